//! Weights of images by noise level.

use crate::denoiser::LevelInputs;
use crate::level::{Level, Step};
use crate::precondition::Prediction;
use crate::sampler::variances;
use crate::schedule::Schedule;
use clearshot_graph::{Builder, Value};
use std::sync::Arc;

/// Weights of the squared error of x0; [`Weight::of`] turns them into weights of what a network predicts.
#[derive(Clone, Debug)]
pub enum Weight {
    /// 1 for the prediction itself, whatever it is: DDPM's simple loss.
    Uniform,
    /// The signal-to-noise ratio; for networks that predict noise the same as uniform.
    Snr,
    /// The same, at most this (Hang et al. 2023).
    MinSnr(f64),
    /// Karras et al. 2022: (sigma^2 + sigma_data^2) / (sigma sigma_data)^2.
    Edm { sigma_data: f64 },
    /// What the variational bound gives each timestep: half of what the signal-to-noise ratio rises by to
    /// the timestep before. The first, where that is infinite, counts as the second.
    Bound(Arc<[f64]>),
}

impl Weight {
    /// The weights of the variational bound of a schedule.
    pub fn bound(schedule: &Schedule) -> Weight {
        let weight = |t: usize| {
            let (small, large) = variances(&Step { from: level(schedule, t), to: level(schedule, t - 1) });
            // |mean difference|^2 / (2 variance), the mean being alpha_to large / sigma^2 times x0.
            let factor = level(schedule, t - 1).alpha * large / level(schedule, t).sigma.powi(2);
            factor * factor / (2.0 * small)
        };
        let mut weights: Vec<f64> = (1..schedule.len()).map(weight).collect();
        weights.insert(0, weights.first().copied().unwrap_or(1.0));
        Weight::Bound(weights.into())
    }

    /// The weight of an image's squared error in what its network predicts.
    pub fn of(&self, prediction: Prediction, level: &Level) -> f64 {
        // An error of the prediction is so large an error of x0.
        let error = prediction.coefficients(level).output.powi(2);
        match self {
            Weight::Uniform => 1.0,
            Weight::Snr => level.snr() * error,
            Weight::MinSnr(most) => level.snr().min(*most) * error,
            Weight::Edm { sigma_data } => {
                let ratio = level.ratio();
                (ratio * ratio + sigma_data * sigma_data) / (ratio * sigma_data).powi(2) * error
            }
            Weight::Bound(weights) => {
                let t = (level.time.max(0.0).round() as usize).min(weights.len() - 1);
                weights[t] * error
            }
        }
    }

    /// As an input of the graph, `[N]`.
    #[track_caller]
    pub fn input(&self, b: &mut Builder, prediction: Prediction, level: &mut LevelInputs) -> Value {
        let kind = match self {
            Weight::Uniform => "uniform".into(),
            Weight::Snr => "snr".into(),
            Weight::MinSnr(most) => format!("min_snr{most}"),
            Weight::Edm { sigma_data } => format!("edm{sigma_data}"),
            Weight::Bound(_) => "bound".into(),
        };
        let name = format!("{}.weight_{kind}", prediction.tag());
        let weight = self.clone();
        level.number(b, &name, move |l| weight.of(prediction, l))
    }
}

fn level(schedule: &Schedule, t: usize) -> Level {
    schedule.level(t).unwrap_or(Level::CLEAN)
}
