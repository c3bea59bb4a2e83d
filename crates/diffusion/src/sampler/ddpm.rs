//! Ho, Jain and Abbeel 2020, algorithm 2; learned variance as Nichol and Dhariwal 2021, equation 15.

use super::{Call, Mix, Program, within};
use crate::Error;
use crate::level::{Levels, Step};

/// The variance of the noise that a step adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variance {
    /// That of the posterior, right where images are points.
    FixedSmall,
    /// That of the forward step, right where images are noise.
    FixedLarge,
    /// Between the two, as the denoiser says for each element.
    Learned,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ddpm {
    pub variance: Variance,
    /// The noise is multiplied by this.
    pub temperature: f64,
}

impl Default for Ddpm {
    fn default() -> Ddpm {
        Ddpm { variance: Variance::FixedSmall, temperature: 1.0 }
    }
}

/// The variance of q(x_to | x_from, x0), and that of q(x_from | x_to).
pub(crate) fn variances(step: &Step) -> (f64, f64) {
    let Step { from, to } = step;
    let forward = from.sigma.powi(2) - (from.alpha / to.alpha * to.sigma).powi(2);
    (forward * (to.sigma / from.sigma).powi(2), forward)
}

/// No logarithm of a variance is taken below this.
const SMALLEST: f64 = 1e-20;

/// # Errors
/// If the temperature is negative or not finite.
pub fn ddpm(levels: &Levels, options: &Ddpm) -> Result<Program, Error> {
    within("the temperature", options.temperature, 0.0, f64::MAX)?;
    let calls = levels.steps().iter().enumerate().map(|(i, step)| {
        let Step { from, to } = step;
        let (small, large) = variances(step);
        let noise = match options.variance {
            _ if to.sigma == 0.0 => 0.0,
            Variance::FixedSmall => small.sqrt(),
            Variance::FixedLarge => large.sqrt(),
            Variance::Learned => 1.0,
        };
        let x = Mix {
            x: from.alpha / to.alpha * (to.sigma / from.sigma).powi(2),
            x0: to.alpha * large / from.sigma.powi(2),
            noise: noise * options.temperature,
            ..Mix::default()
        };
        let spread = [small, large].map(|v| 0.5 * v.max(SMALLEST).ln());
        Call { spread, ..Call::new(i, *from, *to, x) }
    });
    let program = Program::new(levels, calls.collect());
    Ok(Program { learned_variance: options.variance == Variance::Learned, ..program })
}
