//! A guard against the iterations that ruin a model.
//!
//! A loss or a gradient whose size is far outside of what it was lately says that the weights, or the images, are no
//! longer what they were. Clipping bounds such a step and still takes it, one after the other, in a direction that means
//! nothing. The guard refuses it: it watches the logarithms of the loss and of the gradients' norm, whose mean and variance
//! it keeps in states, and is one more square of a gradient for [`Clip`](crate::ops::Clip), infinite where it refuses. So
//! it is made of ordinary nodes, runs where the iteration runs, and what it knows is saved with the other states.
//!
//! What is refused or not finite does not enter the statistics: a network that falls apart multiplies its loss within a few
//! iterations, and would soon pass for usual. Whoever trains sees how many were refused in a row, and goes back.

use crate::builder::Builder;
use crate::graph::{StateInit, Type, Value};
use crate::ops::{Binary, Unary};
use clearshot_tensor::Shape;

/// Which iterations are refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// How many times its geometric mean a loss is, at least, to be refused; of a gradient's norm where it is clipped, the square of it.
    pub ratio: f64,
    /// How many standard deviations of its logarithm it is above the mean then, at least.
    pub deviations: f64,
    /// Iterations that the statistics reach back over.
    pub horizon: f64,
    /// Iterations that are seen before any is refused.
    pub after: f64,
}

impl Guard {
    /// Ten times the usual size, by four standard deviations of the latest hundred. A network falls apart soon if its rate is far
    /// too high, so ten iterations are enough to judge by.
    pub const USUAL: Guard = Guard { ratio: 10.0, deviations: 4.0, horizon: 100.0, after: 10.0 };

    /// Watches values none of which is negative, each with the ratio that it may reach: infinite where one is refused, else zero.
    /// `counts` is 1 where the iteration ends with this run and 0 where it does not; none for always. `prefix` stands in the names of states.
    pub(super) fn watch(
        &self,
        b: &mut Builder,
        prefix: &str,
        values: &[(&str, Value, f64)],
        counts: Option<Value>,
    ) -> Value {
        let mut refused = b.scalar(0.0);
        for (name, value, ratio) in values {
            let far = Guard { ratio: *ratio, ..*self }.is_far(b, &format!("{prefix}{name}"), *value, counts);
            refused = b.binary(Binary::Max, refused, far);
        }
        let total =
            b.state(&format!("guard.{prefix}refused"), Type::f32(Shape::SCALAR), StateInit::Constant(0.0));
        let counted = counts.map_or(refused, |c| b.mul(refused, c));
        let after = b.add(total, counted);
        b.update(total, after);
        let one = b.scalar(1.0);
        let passed = b.sub(one, refused);
        b.div(refused, passed)
    }

    /// 1 where the value is refused. Its statistics are the states `guard.NAME.mean`, `.variance` and `.count`.
    fn is_far(&self, b: &mut Builder, name: &str, value: Value, counts: Option<Value>) -> Value {
        // Inside of single precision, and their logarithms are finite.
        let [least, most] = [1e-30, 1e30].map(|x| b.scalar(x));
        let state = |b: &mut Builder, what: &str| {
            b.state(&format!("guard.{name}.{what}"), Type::f32(Shape::SCALAR), StateInit::Constant(0.0))
        };
        let [mean, variance, count] = ["mean", "variance", "count"].map(|what| state(b, what));
        // Both give the bound where the value is no number.
        let bounded = b.binary(Binary::Min, value, most);
        let bounded = b.binary(Binary::Max, bounded, least);
        let log = b.unary(Unary::Log, bounded);
        let off = b.sub(log, mean);

        let deviation = b.unary(Unary::Sqrt, variance);
        let deviations = b.mul_scalar(deviation, self.deviations);
        let ratio = b.scalar(self.ratio.ln() as f32);
        let room = b.binary(Binary::Max, deviations, ratio);
        let enough = b.scalar(self.after as f32 - 0.5);
        let knows = b.binary(Binary::Greater, count, enough);
        let beyond = b.binary(Binary::Greater, off, room);
        let far = b.mul(beyond, knows);

        let finite = b.binary(Binary::Greater, most, value);
        let near = b.mul_scalar(far, -1.0);
        let near = b.add_scalar(near, 1.0);
        let enters = b.mul(finite, near);
        let enters = counts.map_or(enters, |c| b.mul(enters, c));
        let next = b.add_scalar(count, 1.0);
        let share = b.unary(Unary::Recip, next);
        let least_share = b.scalar((1.0 / self.horizon) as f32);
        let share = b.binary(Binary::Max, share, least_share);
        let share = b.mul(share, enters);
        let moved = b.mul(share, off);
        let new_mean = b.add(mean, moved);
        b.update(mean, new_mean);
        let spread = b.mul(moved, off);
        let wider = b.add(variance, spread);
        let kept = b.mul_scalar(share, -1.0);
        let kept = b.add_scalar(kept, 1.0);
        let new_variance = b.mul(kept, wider);
        b.update(variance, new_variance);
        let new_count = b.add(count, enters);
        b.update(count, new_count);
        far
    }
}
