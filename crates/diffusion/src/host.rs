//! Runs programs on plain f64 numbers with any function as the denoiser: for oracles and exact trajectories.

use crate::Error;
use crate::level::Level;
use crate::sampler::{KEPT, Mix, Program};

/// What a denoiser on the host answers.
pub struct HostEstimate {
    pub x0: Vec<f64>,
    /// Before clipping, where that is another.
    pub unclipped: Option<Vec<f64>>,
    /// As [`crate::Estimate::variance`].
    pub variance: Option<Vec<f64>>,
}

impl HostEstimate {
    pub fn of(x0: Vec<f64>) -> HostEstimate {
        HostEstimate { x0, unclipped: None, variance: None }
    }
}

/// Runs a program from `x`, which is at [`Program::start`]. `noise` gives the noise of each step, and
/// `watch` sees x after every call.
///
/// # Errors
/// If a step makes values that are not finite.
pub fn run(
    program: &Program,
    mut x: Vec<f64>,
    mut denoiser: impl FnMut(&[f64], &Level) -> HostEstimate,
    mut noise: impl FnMut(usize) -> Vec<f64>,
    mut watch: impl FnMut(&[f64]),
) -> Result<Vec<f64>, Error> {
    let mut kept: [Vec<f64>; KEPT] = std::array::from_fn(|_| vec![0.0; x.len()]);
    let quiet = vec![0.0; x.len()];
    for call in program.calls() {
        let drawn = if call.raise != 0.0 || call.x.noise != 0.0 { noise(call.step) } else { quiet.clone() };
        x.iter_mut().zip(&drawn).for_each(|(x, n)| *x += call.raise * n);
        let answer = denoiser(&x, &call.level);
        let unclipped = answer.unclipped.as_ref().unwrap_or(&answer.x0);
        let spread: Option<Vec<f64>> = match (&answer.variance, program.learned_variance()) {
            (Some(v), true) => {
                let [low, high] = call.spread;
                Some(drawn.iter().zip(v).map(|(n, v)| n * (low + v * (high - low)).exp()).collect())
            }
            _ => None,
        };
        let there = [&x, &answer.x0, unclipped, spread.as_ref().unwrap_or(&drawn), &kept[0], &kept[1]];
        let mix = |m: &Mix| -> Vec<f64> {
            let mut sum = vec![0.0; x.len()];
            for (factor, values) in m.terms().into_iter().zip(there).filter(|(f, _)| *f != 0.0) {
                sum.iter_mut().zip(values).for_each(|(s, v)| *s += factor * v);
            }
            sum
        };
        let next = mix(&call.x);
        kept = [mix(&call.kept[0]), mix(&call.kept[1])];
        if next.iter().any(|v| !v.is_finite()) {
            let by = if answer.x0.iter().all(|v| v.is_finite()) { "the update" } else { "the denoiser" };
            let (step, steps) = (call.step, program.steps());
            return Err(Error::NonFinite { step, steps, image: 0, origin: format!("{by} made the first") });
        }
        x = next;
        watch(&x);
    }
    Ok(x)
}
