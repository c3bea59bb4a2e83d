//! The distribution of noise levels in training.

use crate::Error;
use crate::level::{Clock, Level};
use crate::schedule::Schedule;
use clearshot_tensor::noise::Key;

/// The law of a training image's level.
#[derive(Clone, Debug)]
pub enum LevelLaw {
    /// ln sigma is normal, alpha is 1 (Karras et al. 2022: mean -1.2, deviation 1.2).
    LogNormal { mean: f64, deviation: f64 },
    /// Every timestep of a schedule below this share of them, equally often.
    Timesteps { schedule: Schedule, below: f64 },
}

impl LevelLaw {
    /// # Errors
    /// If the deviation is negative, or no timestep is left.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: &'static str, got: f64, must: &str| {
            Err(Error::Setting { what, got: got.to_string(), must: must.into() })
        };
        match self {
            LevelLaw::LogNormal { mean, .. } if !mean.is_finite() => {
                refuse("the mean of ln sigma", *mean, "finite")
            }
            LevelLaw::LogNormal { deviation, .. } if !(deviation.is_finite() && *deviation >= 0.0) => {
                refuse("the deviation of ln sigma", *deviation, "finite and not negative")
            }
            LevelLaw::Timesteps { below, .. } if !(*below > 0.0 && *below <= 1.0) => {
                refuse("the share of timesteps", *below, "above 0 and at most 1")
            }
            _ => Ok(()),
        }
    }

    /// The level of the image whose key this is.
    pub fn draw(&self, key: Key) -> Level {
        match self {
            LevelLaw::LogNormal { mean, deviation } => {
                let sigma = (mean + deviation * f64::from(key.normal(0))).exp();
                Level::new(1.0, sigma, Clock::LogSigma.time(sigma))
            }
            LevelLaw::Timesteps { schedule, below } => {
                let count = ((schedule.len() as f64 * below).ceil() as usize).clamp(1, schedule.len());
                let t = (f64::from(key.uniform(0)) * count as f64) as usize;
                schedule.level(t.min(count - 1)).unwrap_or(Level::CLEAN)
            }
        }
    }
}
