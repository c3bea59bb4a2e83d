//! Further terms: counts, agreement with what was measured, intensities and edges.

use super::Distance;
use clearshot_graph::ops::{Geometry, ReduceKind, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::Tensor;

/// Keeps logarithms and quotients of small intensities finite.
const SMALL: f64 = 1e-6;

pub(super) fn poisson_nll_each(b: &mut Builder, expected: Value, counts: Value) -> Value {
    let positive = b.add_scalar(expected, SMALL);
    let log = b.unary(Unary::Log, positive);
    let likely = b.mul(counts, log);
    b.sub(expected, likely)
}

/// `expected - counts ln(expected)`: minus the logarithm of Poisson's law but for what the counts alone say.
#[track_caller]
pub fn poisson_nll(b: &mut Builder, expected: Value, counts: Value) -> Value {
    let each = poisson_nll_each(b, expected, counts);
    b.reduce_all(ReduceKind::Mean, each)
}

/// How the image that an estimate would give is compared with what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Consistency {
    L2,
    /// Squares over twice this variance.
    Gaussian {
        variance: f64,
    },
    /// (1 - (y + v) / (expected + v))^2 with v the variance of the read noise: at its minimum where y is
    /// expected, whatever the read noise.
    Poisson {
        read_variance: f64,
    },
}

/// How far `expected`, the measurement that an estimate means, is from `measured`.
#[track_caller]
pub fn forward_consistency(b: &mut Builder, kind: Consistency, expected: Value, measured: Value) -> Value {
    match kind {
        Consistency::L2 => super::distance(b, Distance::L2, expected, measured, None),
        Consistency::Gaussian { variance } => {
            if !(variance.is_finite() && variance > 0.0) {
                return b.refuse("forward_consistency", format!("a variance of {variance}"));
            }
            let square = super::distance(b, Distance::L2, expected, measured, None);
            b.mul_scalar(square, 0.5 / variance)
        }
        Consistency::Poisson { read_variance } => {
            if !(read_variance.is_finite() && read_variance >= 0.0) {
                return b.refuse("forward_consistency", format!("a read variance of {read_variance}"));
            }
            let shift = read_variance + SMALL;
            let (mean, y) = (b.add_scalar(expected, shift), b.add_scalar(measured, shift));
            let ratio = b.div(y, mean);
            let off = b.add_scalar(ratio, -1.0);
            let square = b.unary(Unary::Square, off);
            b.reduce_all(ReduceKind::Mean, square)
        }
    }
}

/// A weight that runs linearly from `from` times its full value to all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    pub full: f64,
    /// The share at the first iteration.
    pub from: f64,
    /// The iteration at which it is full.
    pub over: u64,
}

impl Ramp {
    pub fn at(&self, iteration: u64) -> f64 {
        let way = if iteration >= self.over { 1.0 } else { iteration as f64 / self.over as f64 };
        self.full * (self.from + (1.0 - self.from) * way)
    }
}

/// Distance of images in [-1, 1], bright pixels counting more: by 1 + target, from 0.1 to 2.
#[track_caller]
pub fn intensity(b: &mut Builder, kind: Distance, x0: Value, target: Value) -> Value {
    let bright = b.add_scalar(target, 1.0);
    let weight = b.unary(Unary::Clamp(0.1, 2.0), bright);
    let difference = b.sub(x0, target);
    let each = b.unary(kind.function(), difference);
    let each = b.mul(each, weight);
    b.reduce_all(ReduceKind::Mean, each)
}

/// Sobel's filter along X; along Y it is the transpose.
const SOBEL: [[f32; 3]; 3] = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]];

/// Mean absolute difference of Sobel gradients along Y and X, in every plane and channel; pixels without
/// all their neighbours do not count.
#[track_caller]
pub fn gradient(b: &mut Builder, x0: Value, target: Value) -> Value {
    let difference = b.sub(x0, target);
    let shape = b.shape(difference);
    let planes = match *shape {
        [n, y, x, c] => [n, y, x, c],
        [n, z, y, x, c] => [n * z, y, x, c],
        _ => return b.refuse("gradient", format!("{shape} is no batch of images")),
    };
    let [_, y, x, c] = planes;
    if y < 3 || x < 3 {
        return b.refuse("gradient", format!("planes of {y} by {x} are smaller than Sobel's filter, 3 by 3"));
    }
    let planes = b.reshape(difference, planes);
    // Two filters for each channel: [2 C, 3, 3, 1].
    let both = |i: usize, j: usize| [SOBEL[i][j], SOBEL[j][i]];
    let filter = (0..2 * c).flat_map(|k| (0..9).map(move |p| both(p / 3, p % 3)[k % 2])).collect();
    let filter = b.constant(Tensor::f32([2 * c, 3, 3, 1], filter));
    // The filter is linear: the gradient of the difference is the difference of gradients.
    let slopes = b.conv(planes, filter, None, Geometry::new(2, 1, 0).with_groups(c));
    let sizes = b.unary(Unary::Abs, slopes);
    b.reduce_all(ReduceKind::Mean, sizes)
}
