//! Training objectives as nodes of a graph.
//!
//! The main term compares the prediction of a network with its target, with a weight that depends on the noise level;
//! further terms compare clean images. Every function returns a scalar, the mean over images of the mean over the elements
//! of an image, so that terms can be added with weights.

mod bound;
mod draw;
mod terms;
mod weight;

pub use bound::{FirstStep, kl_normal, variational_bound};
pub use draw::LevelLaw;
pub use terms::{
    Consistency, Ramp, forward_consistency, frequency, gradient, intensity, poisson_nll, wavelet,
};
pub use weight::Weight;

use crate::denoiser::LevelInputs;
use crate::precondition::Prediction;
use clearshot_graph::ops::{ReduceKind, Unary};
use clearshot_graph::{Builder, Value};

/// How a difference counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// Its size.
    L1,
    /// Its square.
    L2,
    /// Half its square up to this, then linear.
    Huber(f64),
    /// The same divided by the bend, so that the linear part has slope 1.
    SmoothL1(f64),
}

impl Distance {
    fn function(self) -> Unary {
        match self {
            Distance::L1 => Unary::Abs,
            Distance::L2 => Unary::Square,
            Distance::Huber(delta) => Unary::Huber(delta),
            Distance::SmoothL1(beta) => Unary::SmoothL1(beta),
        }
    }
}

/// The mean over each image, `[N]`.
#[track_caller]
pub fn mean_of_each(b: &mut Builder, x: Value) -> Value {
    let shape = b.shape(x);
    let axes: Vec<usize> = (1..shape.rank()).collect();
    let mean = b.mean(x, &axes);
    b.reshape(mean, [shape[0]])
}

/// How far apart two batches are; images count by `weights`, `[N]`, where there are any.
#[track_caller]
pub fn distance(b: &mut Builder, kind: Distance, x: Value, target: Value, weights: Option<Value>) -> Value {
    let each = distance_of_each(b, kind, x, target, weights, None);
    b.reduce_all(ReduceKind::Mean, each)
}

/// The same for each image, `[N]`. What `valid` makes zero counts for nothing, and has no gradient.
#[track_caller]
pub fn distance_of_each(
    b: &mut Builder,
    kind: Distance,
    x: Value,
    target: Value,
    weights: Option<Value>,
    valid: Option<Value>,
) -> Value {
    let difference = b.sub(x, target);
    let difference = valid.map_or(difference, |v| b.mul(difference, v));
    let each = b.unary(kind.function(), difference);
    let each = mean_of_each(b, each);
    weights.map_or(each, |w| b.mul(each, w))
}

/// `alpha x0 + sigma noise`.
#[track_caller]
pub fn noised(b: &mut Builder, x0: Value, noise: Value, level: &mut LevelInputs) -> Value {
    let alpha = level.factor(b, x0, "alpha", |l| l.alpha);
    let sigma = level.factor(b, x0, "sigma", |l| l.sigma);
    let (signal, noise) = (b.mul(x0, alpha), b.mul(noise, sigma));
    b.add(signal, noise)
}

/// What a network should predict for an image with this noise in it.
#[track_caller]
pub fn target(
    b: &mut Builder,
    prediction: Prediction,
    x0: Value,
    noise: Value,
    level: &mut LevelInputs,
) -> Value {
    match prediction {
        Prediction::Noise => noise,
        Prediction::Sample => x0,
        Prediction::Velocity => {
            let alpha = level.factor(b, x0, "velocity.of_noise", |l| l.alpha / l.norm());
            let sigma = level.factor(b, x0, "velocity.of_image", |l| -l.sigma / l.norm());
            let (noise, image) = (b.mul(noise, alpha), b.mul(x0, sigma));
            b.add(noise, image)
        }
        // (x0 - skip x) / output, x = alpha x0 + sigma noise, without the difference of near numbers.
        Prediction::Edm { sigma_data } => {
            let parts = move |l: &crate::Level| {
                let (ratio, both) = (l.ratio(), l.ratio().hypot(sigma_data));
                [ratio / (both * sigma_data), -sigma_data / both]
            };
            let of_image = level.factor(b, x0, &format!("edm{sigma_data}.of_image"), move |l| parts(l)[0]);
            let of_noise = level.factor(b, x0, &format!("edm{sigma_data}.of_noise"), move |l| parts(l)[1]);
            let (image, noise) = (b.mul(x0, of_image), b.mul(noise, of_noise));
            b.add(image, noise)
        }
    }
}
