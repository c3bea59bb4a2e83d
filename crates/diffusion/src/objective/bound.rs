//! The variational bound, for networks that learn the variance of the reverse step (Nichol and Dhariwal 2021).
//!
//! Their hybrid objective adds a small multiple of it to the simple loss. The bound trains only the variance: its gradient
//! stops at the mean, which the simple loss trains.

use super::{mean_of_each, terms};
use crate::denoiser::{Estimate, LevelInputs};
use crate::level::{Level, Step};
use crate::sampler::variances;
use crate::schedule::Schedule;
use clearshot_graph::ops::{ReduceKind, Unary};
use clearshot_graph::{Builder, Value};
use std::sync::Arc;

/// What the first timestep, which ends in data, is scored by.
#[derive(Clone, Copy, Debug)]
pub enum FirstStep {
    /// The likelihood of the image under a normal law with the step's own variance.
    Gaussian,
    /// The likelihood of counts: `expected` are the counts that the estimate means, `counts` were measured.
    Poisson { expected: Value, counts: Value },
}

/// Kullback-Leibler divergence of normal laws, element by element, in nats; variances by their logarithms.
#[track_caller]
pub fn kl_normal(b: &mut Builder, [mean1, log1]: [Value; 2], [mean2, log2]: [Value; 2]) -> Value {
    let way = b.sub(log1, log2);
    let ratio = b.unary(Unary::Exp, way);
    let difference = b.sub(mean1, mean2);
    let square = b.unary(Unary::Square, difference);
    let opposite = b.unary(Unary::Neg, log2);
    let precision = b.unary(Unary::Exp, opposite);
    let square = b.mul(square, precision);
    let sum = b.add(ratio, square);
    let sum = b.sub(sum, way);
    let sum = b.add_scalar(sum, -1.0);
    b.mul_scalar(sum, 0.5)
}

/// What a timestep's term needs, in the order of [`NUMBERS`].
const NUMBERS: [&str; 4] = ["bound.mean", "bound.low", "bound.high", "bound.first"];

fn numbers(schedule: &Schedule) -> Vec<[f64; 4]> {
    let of = |t: usize| {
        let step = Step {
            from: schedule.level(t).unwrap_or(Level::CLEAN),
            to: t.checked_sub(1).and_then(|t| schedule.level(t)).unwrap_or(Level::CLEAN),
        };
        let (small, large) = variances(&step);
        let mean = step.to.alpha * large / step.from.sigma.powi(2);
        [mean, small.ln(), large.ln(), 0.0]
    };
    let mut all: Vec<[f64; 4]> = (0..schedule.len()).map(of).collect();
    // The first timestep has no posterior variance; that of the second takes its place.
    all[0][1] = all.get(1).map_or(all[0][2], |second| second[1]);
    all[0][3] = 1.0;
    all
}

/// The bound's term of each image's timestep, in nats an element: how far the reverse step that `estimate`
/// says is from the true one, which knows `x0`.
///
/// Gradients reach the variance, and not `estimate.x0`; counts of [`FirstStep::Poisson`] say nothing of the variance,
/// so they teach what is expected of them. An estimate without learned variance is refused.
#[track_caller]
pub fn variational_bound(
    b: &mut Builder,
    estimate: &Estimate,
    x0: Value,
    level: &mut LevelInputs,
    schedule: &Schedule,
    first: FirstStep,
) -> Value {
    let Some(fraction) = estimate.variance else {
        return b.refuse("variational_bound", "the denoiser has no learned variance".into());
    };
    let table: Arc<[[f64; 4]]> = numbers(schedule).into();
    let mut number = |b: &mut Builder, which: usize| {
        let table = table.clone();
        level.factor(b, x0, NUMBERS[which], move |l| {
            table[(l.time.max(0.0).round() as usize).min(table.len() - 1)][which]
        })
    };
    let [mean, low, high, is_first] = std::array::from_fn(|i| number(b, i));
    let way = b.sub(high, low);
    let way = b.mul(fraction, way);
    let log = b.add(low, way);
    let said = b.stop_gradient(estimate.x0);
    let (truth, mean) = (b.mul(x0, mean), b.mul(said, mean));
    let later = kl_normal(b, [truth, low], [mean, log]);
    let later = mean_of_each(b, later);
    let start = match first {
        FirstStep::Gaussian => {
            let each = gaussian_nll(b, x0, said, log);
            mean_of_each(b, each)
        }
        FirstStep::Poisson { expected, counts } => {
            let each = terms::poisson_nll_each(b, expected, counts);
            mean_of_each(b, each)
        }
    };
    let n = b.shape(later)[0];
    let is_first = b.reshape(is_first, [n]);
    let is_later = b.unary(Unary::Neg, is_first);
    let is_later = b.add_scalar(is_later, 1.0);
    let (start, later) = (b.mul(start, is_first), b.mul(later, is_later));
    let each = b.add(start, later);
    b.reduce_all(ReduceKind::Mean, each)
}

/// Minus the logarithm of a normal density.
fn gaussian_nll(b: &mut Builder, x: Value, mean: Value, log: Value) -> Value {
    let difference = b.sub(x, mean);
    let square = b.unary(Unary::Square, difference);
    let opposite = b.unary(Unary::Neg, log);
    let precision = b.unary(Unary::Exp, opposite);
    let square = b.mul(square, precision);
    let sum = b.add(square, log);
    let sum = b.add_scalar(sum, std::f64::consts::TAU.ln());
    b.mul_scalar(sum, 0.5)
}
