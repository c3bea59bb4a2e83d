//! Song, Meng and Ermon 2021, equation 12: from eta = 0, deterministic, to eta = 1, DDPM's variance.

use super::ddpm::variances;
use super::{Call, Mix, Program, deterministic, within};
use crate::Error;
use crate::level::Levels;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ddim {
    pub eta: f64,
    /// The direction to the new x is taken from the clipped estimate and not from the network's own
    /// prediction; diffusers' `use_clipped_model_output`. The same where nothing is clipped.
    pub clipped_direction: bool,
}

/// # Errors
/// If eta is not from 0 to 1.
pub fn ddim(levels: &Levels, options: &Ddim) -> Result<Program, Error> {
    within("eta", options.eta, 0.0, 1.0)?;
    let calls = levels.steps().iter().enumerate().map(|(i, step)| {
        let noise = options.eta * variances(step).0.sqrt();
        // x_to = alpha_to x0 + direction eps + noise, eps = (x - alpha x0) / sigma.
        let direction = (step.to.sigma.powi(2) - noise * noise).max(0.0).sqrt();
        let mix = deterministic(&step.from, &crate::Level { sigma: direction, ..step.to });
        let x = if options.clipped_direction {
            Mix { noise, ..mix }
        } else {
            Mix { x0: step.to.alpha, unclipped: mix.x0 - step.to.alpha, noise, ..mix }
        };
        Call::new(i, step.from, step.to, x)
    });
    Ok(Program::new(levels, calls.collect()))
}
