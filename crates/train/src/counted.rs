//! Losses against the measurement: the electrons expected from an estimate compared with the counted ones.
//!
//! Both are raised by the variance of the read noise and bounded by zero, so that the sum of shot and read noise is nearly
//! Poisson distributed (the shifted Poisson likelihood of guidance). One more electron on either side bounds quotients and
//! slopes in the dark without moving the minimum. If the condition was dropped or a pixel is invalid, both are zero.

use clearshot_diffusion::objective::{Consistency, forward_consistency, poisson_nll};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};

/// See the module.
#[derive(Clone, Copy)]
pub struct Counted {
    expected: Value,
    counts: Value,
}

/// What Anscombe's root adds to the variance of the read noise, and what is added here.
const ANSCOMBE: f64 = 0.375;
const FLOOR: f64 = 1.0;

impl Counted {
    /// From electrons, the numbers of [`crate::data::camera::numbers`], an estimate in the network's units and, where pixels are left out, a
    /// mask of those that count.
    pub fn new(
        b: &mut Builder,
        measured: Value,
        numbers: &[Value],
        estimate: Value,
        valid: Option<Value>,
    ) -> Counted {
        let kept = numbers[numbers.len() - 1];
        // The slope of a dropped condition is zero; any other number will do there.
        let dropped = b.unary(Unary::Neg, kept);
        let dropped = b.add_scalar(dropped, 1.0);
        let slope = b.add(numbers[0], dropped);
        let above = b.sub(estimate, numbers[1]);
        let electrons = b.div(above, slope);
        let electrons = b.unary(Unary::Relu, electrons);
        let variance = b.add_scalar(numbers[2], FLOOR - ANSCOMBE);
        let [mut expected, mut counts] = [electrons, measured].map(|e| {
            let raised = b.add(e, variance);
            let positive = b.unary(Unary::Relu, raised);
            b.mul(positive, kept)
        });
        if let Some(valid) = valid {
            (expected, counts) = (b.mul(expected, valid), b.mul(counts, valid));
        }
        Counted { expected, counts }
    }

    /// Half of Poisson's deviance, the mean over pixels: what the likelihood is short of that of the counts themselves. 0.5 for the
    /// truth, where there is light.
    pub fn poisson(&self, b: &mut Builder) -> Value {
        let said = poisson_nll(b, self.expected, self.counts);
        let best = poisson_nll(b, self.counts, self.counts);
        b.sub(said, best)
    }

    /// The mean square of how far counts are from what is expected, relative to that.
    pub fn consistency(&self, b: &mut Builder) -> Value {
        forward_consistency(b, Consistency::Poisson { read_variance: 0.0 }, self.expected, self.counts)
    }
}
