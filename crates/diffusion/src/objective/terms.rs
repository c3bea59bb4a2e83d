//! Further terms of the loss: counts, consistency with the measurement, intensities, edges, frequencies and wavelets.

use super::Distance;
use clearshot_graph::ops::{Geometry, PadMode, ReduceKind, Unary};
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
    /// Iteration at which the full weight is reached.
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

/// The difference of two batches as planes `[N, Y, X, C]`, volumes plane by plane; `None` if they are not images.
#[track_caller]
fn difference_of_planes(b: &mut Builder, what: &str, x0: Value, target: Value) -> Option<Value> {
    let difference = b.sub(x0, target);
    let shape = b.shape(difference);
    match *shape {
        [_, _, _, _] => Some(difference),
        [n, z, y, x, c] => Some(b.reshape(difference, [n * z, y, x, c])),
        _ => {
            b.refuse(what, format!("{shape} is not a batch of images"));
            None
        }
    }
}

/// Mean absolute difference of Sobel gradients along Y and X, in every plane and channel; pixels without
/// all their neighbours do not count.
#[track_caller]
pub fn gradient(b: &mut Builder, x0: Value, target: Value) -> Value {
    let Some(planes) = difference_of_planes(b, "gradient", x0, target) else { return x0 };
    let [_, y, x, c] = *b.shape(planes) else { return x0 };
    if y < 3 || x < 3 {
        return b.refuse("gradient", format!("planes of {y} by {x} are smaller than Sobel's filter, 3 by 3"));
    }
    // Two filters for each channel: [2 C, 3, 3, 1].
    let both = |i: usize, j: usize| [SOBEL[i][j], SOBEL[j][i]];
    let filter = (0..2 * c).flat_map(|k| (0..9).map(move |p| both(p / 3, p % 3)[k % 2])).collect();
    let filter = b.constant(Tensor::f32([2 * c, 3, 3, 1], filter));
    // The filter is linear: the gradient of the difference is the difference of gradients.
    let slopes = b.conv(planes, filter, None, Geometry::new(2, 1, 0).with_groups(c));
    mean_size(b, slopes)
}

/// Below this a frequency's difference counts by its square.
const BEND: f64 = 1e-3;

/// Mean size of the difference's Fourier coefficients, of the orthonormal transform of every plane and channel. A
/// frequency counts by its size and not by its square, so that weak high frequencies are not drowned.
///
/// The transform is two products with matrices of cosines and sines.
#[track_caller]
pub fn frequency(b: &mut Builder, x0: Value, target: Value) -> Value {
    let Some(planes) = difference_of_planes(b, "frequency", x0, target) else { return x0 };
    let [n, y, x, c] = *b.shape(planes) else { return x0 };
    // Of a real image's coefficients along X, half say all.
    let half = x / 2 + 1;
    let planes = b.transpose(planes, &[0, 3, 1, 2]);
    let planes = b.reshape(planes, [n * c, y, x]);
    let along_x = waves(b, x, half);
    let rows = b.linear(planes, along_x, None);
    let rows = b.transpose(rows, &[0, 2, 1]);
    let along_y = waves(b, y, y);
    let all = b.linear(rows, along_y, None);
    // [N C, cosines and sines along X, cosines and sines along Y]
    let mut part = |of_x: usize, of_y: usize| {
        let rows = b.slice(all, 1, of_x * half, half);
        b.slice(rows, 2, of_y * y, y)
    };
    let [cc, cs, sc, ss] = [part(0, 0), part(0, 1), part(1, 0), part(1, 1)];
    let (real, imaginary) = (b.sub(cc, ss), b.add(cs, sc));
    let (real, imaginary) = (b.unary(Unary::Square, real), b.unary(Unary::Square, imaginary));
    let square = b.add(real, imaginary);
    let square = b.add_scalar(square, BEND * BEND);
    let size = b.unary(Unary::Sqrt, square);
    let size = b.add_scalar(size, -BEND);
    // Those that stand for their mirror images count twice.
    let counts = |k: usize| if k == 0 || 2 * k == x { 1.0 } else { 2.0 };
    let counts =
        b.constant(Tensor::f32([half, 1], (0..half).map(|k| counts(k) * half as f32 / x as f32).collect()));
    let size = b.mul(size, counts);
    b.reduce_all(ReduceKind::Mean, size)
}

/// `[2 K, length]`: cosines, then sines, of the first K frequencies of the orthonormal transform.
fn waves(b: &mut Builder, length: usize, frequencies: usize) -> Value {
    let scale = (length as f64).sqrt().recip();
    let angle = |k: usize, i: usize| std::f64::consts::TAU * ((k * i) % length) as f64 / length as f64;
    let of = |wave: fn(f64) -> f64| {
        (0..frequencies).flat_map(move |k| (0..length).map(move |i| (scale * wave(angle(k, i))) as f32))
    };
    let values = of(f64::cos).chain(of(f64::sin)).collect();
    b.constant(Tensor::f32([2 * frequencies, length], values))
}

/// Scales of the wavelet transform, where the image is large enough.
const SCALES: usize = 3;

/// Mean size of the difference's coefficients in Haar's orthonormal wavelets: the mean over the details of each of up to
/// three scales, and over what is left, every scale counting the same.
#[track_caller]
pub fn wavelet(b: &mut Builder, x0: Value, target: Value) -> Value {
    let Some(mut left) = difference_of_planes(b, "wavelet", x0, target) else { return x0 };
    let [_, y, x, c] = *b.shape(left) else { return x0 };
    let scales = (y.min(x).max(1).ilog2() as usize).min(SCALES);
    // What is left and three details of each channel: [4 C, 2, 2, 1].
    let signs =
        [[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, -1.0, 1.0]];
    let filter = (0..4 * c).flat_map(|k| signs[k % 4].map(|sign: f32| sign / 2.0)).collect();
    let filter = b.constant(Tensor::f32([4 * c, 2, 2, 1], filter));
    let mut terms = Vec::new();
    for _ in 0..scales {
        let [n, y, x, _] = *b.shape(left) else { return x0 };
        // The last row and column of an odd size stand twice.
        let mut pad = [[0; 2]; clearshot_tensor::MAX_RANK];
        (pad[1][1], pad[2][1]) = (y % 2, x % 2);
        if pad != [[0; 2]; clearshot_tensor::MAX_RANK] {
            left = b.pad(left, pad, PadMode::Edge);
        }
        let all = b.conv(left, filter, None, Geometry::new(2, 2, 0).with_groups(c));
        let (y, x) = (y.div_ceil(2), x.div_ceil(2));
        let all = b.reshape(all, [n, y, x, c, 4]);
        let details = b.slice(all, 4, 1, 3);
        terms.push(mean_size(b, details));
        let rest = b.slice(all, 4, 0, 1);
        left = b.reshape(rest, [n, y, x, c]);
    }
    let mut sum = mean_size(b, left);
    for term in &terms {
        sum = b.add(sum, *term);
    }
    b.mul_scalar(sum, 1.0 / (terms.len() + 1) as f64)
}

fn mean_size(b: &mut Builder, x: Value) -> Value {
    let sizes = b.unary(Unary::Abs, x);
    b.reduce_all(ReduceKind::Mean, sizes)
}
