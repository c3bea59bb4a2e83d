//! Dynamic thresholding (Saharia et al. 2022): each image is clipped to a quantile of its own values and scaled back to
//! [-1, 1].
//!
//! Graphs cannot sort. The two order statistics around a quantile are found by bisection, both at the same time: each round
//! counts the values above a bound.

use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use clearshot_graph::ops::{Binary, Op, Reduce, ReduceKind, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};

/// See the module.
pub struct Thresholded<D> {
    pub denoiser: D,
    /// Which quantile of the absolute values; 0.995 is usual.
    pub ratio: f64,
    /// The largest bound; the smallest is 1, which clips to [-1, 1].
    pub most: f64,
}

/// Halvings of the interval from 0 to the norm of an image; they leave less than 32-bit numbers resolve.
const ROUNDS: usize = 34;

impl<D: Denoiser> Denoiser for Thresholded<D> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let inner = self.denoiser.denoise(b, x, level, given);
        if !(0.0..=1.0).contains(&self.ratio) || self.most.is_nan() || self.most < 1.0 {
            let why = format!(
                "quantile {} must lie from 0 to 1, the largest bound {} above 1",
                self.ratio, self.most
            );
            return Estimate::of(b.refuse("thresholded", why));
        }
        let shape = b.shape(inner.x0);
        let size = b.unary(Unary::Abs, inner.x0);
        let quantile = quantile(b, size, self.ratio);
        let bound = b.unary(Unary::Clamp(1.0, self.most), quantile);
        let bound = b.reshape(bound, Shape::new(&[1]).padded_to(shape.rank()).with(0, shape[0]));
        let scaled = b.div(inner.x0, bound);
        let x0 = b.unary(Unary::Clamp(-1.0, 1.0), scaled);
        Estimate { x0, unclipped: inner.x0, ..inner }
    }
}

/// A quantile of each image's values, which are not negative, `[N, 1, 1]`; between two of them by linear
/// interpolation.
fn quantile(b: &mut Builder, x: Value, ratio: f64) -> Value {
    let shape = b.shape(x);
    let (n, count) = (shape[0], shape.len() / shape[0].max(1));
    let values = b.reshape(x, [n, count, 1]);
    let place = ratio * (count - 1) as f64;
    let below = place.floor();
    let above = (below + 1.0).min((count - 1) as f64);
    // The k-th smallest, counted from 0, lies above a bound that more than count - 1 - k values exceed.
    let limits = [below, above].map(|k| (count as f64 - 0.5 - k) as f32);
    let limits = b.constant(Tensor::f32([1, 1, 2], limits.to_vec()));
    let squares = b.push_one(Op::Reduce(Reduce::new(ReduceKind::SumSquares, &[1])), vec![values]);
    let norm = b.unary(Unary::Sqrt, squares);
    // The norm is rounded; a little more is never too small.
    let high = b.mul_scalar(norm, 1.0001);
    let mut high = b.broadcast(high, [n, 1, 2]);
    let mut low = b.mul_scalar(high, 0.0);
    for _ in 0..ROUNDS {
        let sum = b.add(low, high);
        let middle = b.mul_scalar(sum, 0.5);
        let exceeds = b.binary(Binary::Greater, values, middle);
        let exceeding = b.sum(exceeds, &[1]);
        let is_above = b.binary(Binary::Greater, exceeding, limits);
        let half = b.sub(high, low);
        let half = b.mul_scalar(half, 0.5);
        // The interval halves; it begins in its middle where the value lies there.
        let step = b.mul(half, is_above);
        low = b.add(low, step);
        high = b.add(low, half);
    }
    let (first, second) = (b.slice(high, 2, 0, 1), b.slice(high, 2, 1, 1));
    let way = b.sub(second, first);
    let way = b.mul_scalar(way, place - below);
    b.add(first, way)
}
