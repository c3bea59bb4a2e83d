//! Classifier-free guidance (Ho and Salimans 2022): extrapolation from the unconditional to the conditional estimate.

use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use clearshot_graph::{Builder, Value};

/// `weight` times the estimate with the condition plus `1 - weight` times the one without. A weight of 1 is
/// the conditional denoiser itself and 0 the unconditional one: the other is then not built.
pub struct ClassifierFree<D> {
    pub denoiser: D,
    pub weight: f64,
    /// The value without a condition: that of training when the condition was dropped.
    pub nothing: Condition,
}

impl<D: Denoiser> Denoiser for ClassifierFree<D> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        if !self.weight.is_finite() {
            let x0 = b.refuse("classifier_free", format!("a weight of {}", self.weight));
            return Estimate::of(x0);
        }
        if self.weight == 1.0 {
            return self.denoiser.denoise(b, x, level, given);
        }
        let without = self.denoiser.denoise(b, x, level, &self.nothing);
        if self.weight == 0.0 {
            return without;
        }
        let with = self.denoiser.denoise(b, x, level, given);
        let mut mix = |with: Value, without: Value| {
            let (with, without) = (b.mul_scalar(with, self.weight), b.mul_scalar(without, 1.0 - self.weight));
            b.add(with, without)
        };
        let x0 = mix(with.x0, without.x0);
        let clipped = with.unclipped != with.x0;
        let unclipped = if clipped { mix(with.unclipped, without.unclipped) } else { x0 };
        Estimate { x0, unclipped, variance: with.variance, error: with.error }
    }
}
