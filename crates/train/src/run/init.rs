//! Runs that start from a model: they take its network, levels and scale, so that the first loss is that of the model.

use crate::checkpoint;
use crate::config::{FormKind, PredictionKind, RunConfig, TaskKind};
use crate::error::{Result, setting};
use crate::errors;
use crate::task::OWN_BETAS;
use clearshot_model::{
    ConditionInput, ConditionKind, InputKind, Model, PredictionKind as Predicts, Process, Task,
};
use clearshot_nn::models;
use clearshot_nn::models::vit::EncoderConfig;
use serde_json::{Map, Value as Json};

/// The key of a network that says how wide that is which says its error.
const ERROR_KEY: &str = "error";
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
    let own = || serde_json::from_str::<Map<String, Json>>(&model.config).unwrap_or_default();
    if config.model.network.is_empty() {
        config.model.network = own();
    } else if errors::is_all(&config.model.only) {
        // Everything else is unchanged.
        let width = config.model.network.remove(ERROR_KEY);
        config.model.network = own();
        config.model.network.extend(width.map(|width| (ERROR_KEY.to_string(), width)));
    }
    let path = config.model.init.clone().unwrap_or_default();
    let task = &mut config.task;
    let own_kind = match model.about.task {
        Task::Segmentation { .. } => Some((TaskKind::Segmentation, "task=segmentation")),
        Task::Instances => Some((TaskKind::Instances, "task=instances")),
        Task::Enlarging { .. } => Some((TaskKind::Gan, "experiment=im2im/gan_superres")),
        _ => None,
    };
    if let Some((kind, said)) = own_kind {
        if task.kind != kind {
            let needed = format!(
                "a model that restores images: this one segments or enlarges them; train it further with {said}"
            );
            return setting("model.init", path.display(), needed);
        }
        match model.about.task {
            Task::Segmentation { classes } => task.classes = classes,
            Task::Enlarging { factor } => task.enlarge = factor,
            _ => {}
        }
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

/// The prefix of the names of an encoder's parameters.
pub(super) const ENCODER: &str = "encoder.";

/// The model of `model.encoder`, if there is one.
///
/// # Errors
/// If it cannot be read, or has no encoder.
pub(super) fn encoder_model(config: &RunConfig) -> Result<Option<Model>> {
    let Some(path) = &config.model.encoder else { return Ok(None) };
    let needed = "a model with an encoder, as `clearshot train experiment=mae` leaves it: RUN/best.clearshot, or a checkpoint";
    if !path.exists() {
        return setting("model.encoder", path.display(), needed);
    }
    let inside = path.join(checkpoint::MODEL);
    let model = Model::load(if inside.is_dir() { &inside } else { path })?;
    match model.network.encoder() {
        Some(_) => Ok(Some(model)),
        None => setting("model.encoder", path.display(), needed),
    }
}

/// Gives the network the patches and widths of the encoder that it begins with.
///
/// # Errors
/// If the encoder cannot be read, or the network has none.
pub(crate) fn adopt_encoder(config: &mut RunConfig) -> Result<()> {
    let Some(model) = encoder_model(config)? else { return Ok(()) };
    let own = serde_json::from_str::<Map<String, Json>>(&model.config).unwrap_or_default();
    for key in EncoderConfig::KEYS {
        match own.get(key) {
            Some(value) => config.model.network.insert(key.into(), value.clone()),
            // What its file leaves out is the architecture's default.
            None => config.model.network.remove(key),
        };
    }
    // Channels that are left open are filled later.
    let mut keys = config.model.network.clone();
    let open = |n: &mut Json| *n = n.as_u64().unwrap_or(1).max(1).into();
    ["in_channels", "out_channels"].iter().for_each(|key| keys.get_mut(*key).into_iter().for_each(open));
    match models::read(&Json::from(keys).to_string()) {
        Ok(network) if network.encoder().is_some() => Ok(()),
        _ => {
            let needed = "for networks that have an encoder: model=vit_segmentation, mae2d or jepa2d, say";
            setting("model.encoder", "given", needed)
        }
    }
}
