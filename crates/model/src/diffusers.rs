//! Folders of diffusers: converts a `scheduler_config.json` into a [`Task`].

use crate::about::{About, ConditionKind, PredictionKind, Process, Task};
use crate::signal::Signal;
use clearshot_diffusion::schedule::BetaLaw;
use clearshot_image::dataset::{Normaliser, Range};
use clearshot_nn::models::Network;
use serde_json::{Map, Value as Json};

/// The names of laws as `scheduler_config.json` has them and as [`Process::Timesteps`] does.
const LAWS: &[(&str, &str)] = &[
    ("linear", "ddpm_linear"),
    ("scaled_linear", "scaled_linear"),
    ("squaredcos_cap_v2", "cosine"),
    ("sigmoid", "sigmoid"),
    ("exp", "exponential_decay"),
];

/// The key of a table of betas of one's own.
const OWN_BETAS: &str = "trained_betas";

/// What a folder of diffusers is, by its scheduler's configuration; DDPM's own where there is none.
///
/// # Errors
/// Names the key whose value is not supported.
pub(crate) fn about(
    name: &str,
    network: &dyn Network,
    scheduler: &Map<String, Json>,
) -> Result<About, String> {
    let text = |key: &str, default: &'static str| match scheduler.get(key) {
        None | Some(Json::Null) => Ok(default.to_string()),
        Some(Json::String(s)) => Ok(s.clone()),
        Some(other) => Err(format!("`{key}` of the scheduler is {other}, no text")),
    };
    let number = |key: &str, default: f64| match scheduler.get(key) {
        None | Some(Json::Null) => Ok(default),
        Some(value) => {
            value.as_f64().ok_or_else(|| format!("`{key}` of the scheduler is {value}, no number"))
        }
    };
    let prediction = match text("prediction_type", "epsilon")?.as_str() {
        "epsilon" => PredictionKind::Epsilon,
        "sample" => PredictionKind::Sample,
        "v_prediction" => PredictionKind::VPrediction,
        other => {
            return Err(format!("`prediction_type` is `{other}`; supported: epsilon, sample, v_prediction"));
        }
    };
    let schedule = text("beta_schedule", "linear")?;
    let known = || LAWS.iter().map(|(theirs, _)| *theirs).collect::<Vec<_>>().join(", ");
    let law = LAWS.iter().find(|(theirs, _)| *theirs == schedule);
    let law = law.ok_or_else(|| format!("`beta_schedule` is `{schedule}`; supported: {}", known()))?.1;
    debug_assert!(BetaLaw::named(law).is_ok());
    let steps = number("num_train_timesteps", 1000.0)?;
    if !(1.0..=1e6).contains(&steps) {
        return Err(format!("`num_train_timesteps` is {steps}; it must be from 1 to 1000000"));
    }
    let process = match scheduler.get(OWN_BETAS) {
        None | Some(Json::Null) => Process::Timesteps {
            law: law.into(),
            first: number("beta_start", 1e-4)?,
            last: number("beta_end", 0.02)?,
            steps: steps as usize,
            finer: 1.0,
        },
        Some(Json::Array(betas)) => {
            let wrong = |b: &Json| format!("`{OWN_BETAS}` of the scheduler holds {b}, not a number");
            let betas = betas.iter().map(|b| b.as_f64().ok_or_else(|| wrong(b))).collect::<Result<_, _>>()?;
            Process::Betas { betas, finer: 1.0 }
        }
        Some(other) => return Err(format!("`{OWN_BETAS}` of the scheduler is {other}, not a list")),
    };
    let channels = network.out_channels();
    let condition = match network.in_channels() == channels {
        true => ConditionKind::None,
        false => ConditionKind::Measurement,
    };
    // Numbers of 16 bits become -1 to 1, as PNGs of 8 bits do for the peer.
    let input = Normaliser { range: Range::MinMax, low: 0.0, high: 65_535.0, clip: false };
    let task = Task::Diffusion { prediction, process, condition };
    Ok(About::new(name, task, Signal::Fixed { input, target: None }, channels, &network.example_size()))
}

/// A `scheduler_config.json` for a task, where diffusers has a scheduler for it.
pub(crate) fn scheduler(task: &Task) -> Option<String> {
    let Task::Diffusion { prediction, process, .. } = task else { return None };
    let mut config = match process {
        // Its schedulers know no shift by resolution.
        Process::Timesteps { finer, .. } | Process::Betas { finer, .. } if *finer != 1.0 => return None,
        Process::Edm { .. } => return None,
        Process::Timesteps { law, first, last, steps, .. } => {
            let theirs = LAWS.iter().find(|(_, ours)| ours == law)?.0;
            serde_json::json!({"beta_schedule": theirs, "beta_start": first, "beta_end": last, "num_train_timesteps": steps})
        }
        Process::Betas { betas, .. } => {
            serde_json::json!({OWN_BETAS: betas, "num_train_timesteps": betas.len()})
        }
    };
    let prediction = match prediction {
        PredictionKind::Epsilon => "epsilon",
        PredictionKind::Sample => "sample",
        PredictionKind::VPrediction => "v_prediction",
        PredictionKind::Edm { .. } | PredictionKind::Denoiser => return None,
    };
    for (key, value) in [("_class_name", "DDPMScheduler"), ("prediction_type", prediction)] {
        config[key] = value.into();
    }
    config["clip_sample"] = false.into();
    serde_json::to_string_pretty(&config).ok()
}
