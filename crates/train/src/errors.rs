//! The output of a network that states its own error, trained together with the image.
//!
//! It predicts the error that nine in ten pixels like this one do not exceed, and learns it from the errors that the
//! network makes, with the quantile loss (Koenker and Bassett 1978) of logarithms, because errors of dark and of bright
//! regions differ in size. Errors are measured in standard deviations of the camera noise at the brightness of the
//! estimate. No gradient reaches the image, which is the same as without.

use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_model::signal::LEAST_VARIANCE;
use clearshot_nn::models::{ERROR, ERROR_SHARE, LEAST_ERROR};

/// What Anscombe's root adds to the variance of the read noise.
const ANSCOMBE: f64 = 0.375;

/// The stated errors of a batch.
#[derive(Clone, Copy)]
pub(crate) struct ErrorSaid {
    /// Of each sample, `[N]`.
    pub losses: Value,
    /// The share of each sample's errors that lie beyond what was said, `[N]`.
    pub beyond: Value,
}

impl ErrorSaid {
    /// Of what the network says of an estimate. `numbers` are those of [`crate::data::camera::numbers`], where electrons were measured; `valid` is 1
    /// where a pixel counts, and `weights` are those of samples.
    pub fn new(
        b: &mut Builder,
        said: Value,
        [estimate, clean]: [Value; 2],
        numbers: Option<&[Value]>,
        valid: Option<Value>,
        weights: Option<Value>,
    ) -> ErrorSaid {
        let estimate = b.stop_gradient(estimate);
        let off = b.sub(clean, estimate);
        let mut error = b.unary(Unary::Abs, off);
        if let Some(numbers) = numbers {
            let noise = noise(b, estimate, numbers);
            error = b.div(error, noise);
        }
        let error = b.add_scalar(error, LEAST_ERROR);
        let error = b.unary(Unary::Log, error);
        let above = b.sub(error, said);
        let under = b.unary(Unary::Neg, above);
        let [above, under] = [above, under].map(|v| b.unary(Unary::Relu, v));
        let is_beyond = b.scalar(0.0);
        let is_beyond = b.binary(Binary::Greater, above, is_beyond);
        let (above, under) = (b.mul_scalar(above, ERROR_SHARE), b.mul_scalar(under, 1.0 - ERROR_SHARE));
        let loss = b.add(above, under);
        let [losses, beyond] = [loss, is_beyond].map(|values| mean_of_each(b, values, valid, weights));
        ErrorSaid { losses, beyond }
    }
}

/// The mean of every sample's values, `[N]`.
fn mean_of_each(b: &mut Builder, mut values: Value, valid: Option<Value>, weights: Option<Value>) -> Value {
    if let Some(valid) = valid {
        values = b.mul(values, valid);
    }
    let shape = b.shape(values);
    let axes: Vec<usize> = (1..shape.rank()).collect();
    let mean = b.mean(values, &axes);
    let mean = b.reshape(mean, [shape[0]]);
    weights.map_or(mean, |weights| b.mul(mean, weights))
}

/// The standard deviation of the noise where an image is as bright as the estimate, in the network's unit; as [`clearshot_model::Photons::noise`] has it.
fn noise(b: &mut Builder, estimate: Value, numbers: &[Value]) -> Value {
    let kept = numbers[numbers.len() - 1];
    // The slope of a dropped condition is zero; any other number will do there.
    let dropped = b.unary(Unary::Neg, kept);
    let dropped = b.add_scalar(dropped, 1.0);
    let slope = b.add(numbers[0], dropped);
    let above = b.sub(estimate, numbers[1]);
    let electrons = b.div(above, slope);
    let electrons = b.unary(Unary::Relu, electrons);
    let variance = b.add_scalar(numbers[2], -ANSCOMBE);
    let variance = b.add(electrons, variance);
    let variance = b.unary(Unary::Clamp(LEAST_VARIANCE, f64::from(f32::MAX)), variance);
    let deviation = b.unary(Unary::Sqrt, variance);
    b.mul(deviation, slope)
}

/// Whether nothing else is learned, by `model.only`.
pub fn is_all(only: &[String]) -> bool {
    let own = ERROR.trim_end_matches('.');
    !only.is_empty() && only.iter().all(|name| name == own || name.starts_with(ERROR))
}
