//! Runs that begin from a model: they take its network, its levels and the numbers that it knows, so that the first loss is that model's.

use crate::checkpoint;
use crate::config::{FormKind, PredictionKind, RunConfig, TaskKind};
use crate::error::{Result, setting};
use crate::task::OWN_BETAS;
use clearshot_model::{
    ConditionInput, ConditionKind, InputKind, Model, PredictionKind as Predicts, Process, Task,
};
use serde_json::{Map, Value as Json};

/// How much the bound counts that teaches a learned variance (Nichol and Dhariwal 2021).
const USUAL_BOUND: f64 = 1e-3;

/// The model of `model.init`, if there is one.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn init_model(config: &RunConfig) -> Result<Option<Model>> {
    let Some(path) = &config.model.init else { return Ok(None) };
    if !path.exists() && !Model::is_default(path) {
        let needed =
            "a .clearshot file, a folder, a checkpoint, or default, the model that comes with the program";
        return setting("model.init", path.display(), needed);
    }
    let inside = path.join(checkpoint::MODEL);
    Ok(Some(Model::load(if inside.is_dir() { &inside } else { path })?))
}

/// Completes a configuration by the model that it begins from.
///
/// # Errors
/// If the model cannot be read, or was trained to do something else.
pub(crate) fn adopt(config: &mut RunConfig) -> Result<()> {
    let Some(model) = init_model(config)? else { return Ok(()) };
    if config.model.network.is_empty() {
        config.model.network = serde_json::from_str::<Map<String, Json>>(&model.config).unwrap_or_default();
    }
    let path = config.model.init.clone().unwrap_or_default();
    let task = &mut config.task;
    if let Task::Segmentation { classes } = model.about.task {
        if task.kind != TaskKind::Segmentation {
            let needed =
                "a model that restores images: this one segments them, and goes on with task=segmentation";
            return setting("model.init", path.display(), needed);
        }
        task.classes = classes;
        return Ok(());
    }
    if let Some(conditioning) = &model.about.conditioning {
        let is_class = |i: &ConditionInput| matches!(i.kind, InputKind::Class { .. });
        task.class = model.condition_inputs().iter().any(is_class);
        task.vector = conditioning.vector.iter().map(|part| (*part).into()).collect();
        if task.drop_class == 0.0 {
            task.drop_class = conditioning.dropped;
        }
    }
    let Task::Diffusion { prediction, process, condition } = &model.about.task else { return Ok(()) };
    let diffusion = matches!(task.kind, TaskKind::Conditional | TaskKind::Prior);
    if !diffusion && *condition == ConditionKind::None {
        let needed = "a model that is given the measurement: this one is a prior of clean images";
        return setting("model.init", path.display(), needed);
    }
    if !diffusion && *task.form.get_or_insert(FormKind::Conditional) == FormKind::Regression {
        return Ok(());
    }
    task.prediction = match prediction {
        Predicts::Edm { sigma_data } => {
            task.sigma_data = *sigma_data;
            PredictionKind::Edm
        }
        Predicts::Epsilon => PredictionKind::Epsilon,
        Predicts::Sample => PredictionKind::Sample,
        Predicts::VPrediction => PredictionKind::VPrediction,
        Predicts::Denoiser => return Ok(()),
    };
    match process {
        Process::Edm { sigma_min, sigma_max, .. } => {
            (task.sigma_min, task.sigma_max) = (*sigma_min, *sigma_max)
        }
        Process::Timesteps { .. } | Process::Betas { .. } => {
            task.learned_variance = model.network.out_channels() == 2 * model.about.channels;
            if task.learned_variance && task.bound.weight == 0.0 {
                task.bound.weight = USUAL_BOUND;
            }
        }
    }
    match process {
        Process::Edm { .. } => {}
        Process::Timesteps { law, first, last, steps, finer } => {
            (task.schedule, task.betas, task.timesteps) = (law.clone(), vec![*first, *last], *steps);
            task.finer = *finer;
        }
        Process::Betas { betas, finer } => {
            (task.schedule, task.betas, task.timesteps) = (OWN_BETAS.into(), betas.clone(), betas.len());
            task.finer = *finer;
        }
    }
    Ok(())
}
