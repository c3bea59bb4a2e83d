//! Convolutions in 8 bits: what is rounded, how, and what the whole numbers mean.
//!
//! An input value x of channel c becomes `q = round(clamp(x / step[c] + zero[c], 0, 255))`, a weight, with the
//! input's step taken into it, `p = round(w step[c] / scale[k])` with `scale[k]` its output channel's largest magnitude over 127.
//! The result is `scale[k] * sum (q - zero) p`, and the sum is exact: every backend has the same whole numbers.
//! Steps of each input channel cost nothing, since values are rounded while they are read; they let a channel
//! of small values keep its bits beside one of large values.
//!
//! The weight of such a convolution is an ordinary f32 value. One that has been rounded before is rounded to itself,
//! so a file can hold 8 bits, and a backend without 8-bit products computes with the same weights in f32.

use super::OpError;
use crate::array::Array;
use clearshot_tensor::Shape;
use std::collections::BTreeMap;

/// Where the steps of a convolution's input come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int8 {
    /// Given for each channel, as an operand `[2, C]`: steps, then zeros.
    Static,
    /// The range of each sample, in every run; all channels share it.
    Dynamic,
}

impl Int8 {
    pub fn name(self) -> &'static str {
        match self {
            Int8::Static => "static",
            Int8::Dynamic => "dynamic",
        }
    }
}

/// Products of one sum: as many of the largest magnitude fit an i32.
pub const MOST_PRODUCTS: usize = i32::MAX as usize / (255 * 127);

/// Whether a convolution can be in 8 bits.
///
/// # Errors
/// If it has groups, or sums that an i32 does not hold.
pub fn check(groups: usize, weight: Shape) -> Result<(), OpError> {
    let products = weight.len() / weight[0].max(1);
    if groups != 1 || products > MOST_PRODUCTS {
        return Err(OpError::Attribute(format!(
            "no 8-bit convolution of {groups} groups with sums of {products} products; 1 group and {MOST_PRODUCTS} products at most"
        )));
    }
    Ok(())
}

/// How the inputs of convolutions are rounded, by the names of their weights.
pub type Table = BTreeMap<String, Rounding>;

/// How the input of one convolution is rounded.
#[derive(Clone, Debug, PartialEq)]
pub enum Rounding {
    Static(Vec<Grid>),
    Dynamic,
}

/// The whole numbers that stand for the values of one channel: `x = (q - zero) * step`, q in 0..=255.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    pub step: f32,
    pub zero: u8,
}

impl Grid {
    /// The grid from `low` to `high`, widened to contain 0, which is what padding is.
    pub fn between(low: f32, high: f32) -> Grid {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let step = (high - low) / 255.0;
        if !(step.is_finite() && step >= f32::MIN_POSITIVE) {
            return Grid { step: 1.0, zero: 0 };
        }
        Grid { step, zero: (-low / step).round_ties_even().clamp(0.0, 255.0) as u8 }
    }

    /// The whole number that stands for x, in the arithmetic that kernels use.
    pub fn round(self, x: f32) -> u8 {
        let at = x * (1.0 / self.step) + f32::from(self.zero);
        // Not a number is the lowest.
        let at = if at > 0.0 { at } else { 0.0 };
        let at = if at < 255.0 { at } else { 255.0 };
        at.round_ties_even() as u8
    }

    /// x, rounded.
    pub fn nearest(self, x: f32) -> f32 {
        (i32::from(self.round(x)) - i32::from(self.zero)) as f32 * self.step
    }
}

/// The scale of an output channel whose largest magnitude this is.
pub fn scale_of(largest: f32) -> f32 {
    if largest.is_finite() && largest / 127.0 >= f32::MIN_POSITIVE { largest / 127.0 } else { 1.0 }
}

/// A weight as a whole number of scales.
pub fn round_weight(w: f32, scale: f32) -> i8 {
    (w / scale).round_ties_even().clamp(-127.0, 127.0) as i8
}

/// A convolution's operands as whole numbers, and what a product of sample n and output channel k is worth.
pub(super) struct Rounded {
    pub z: Array,
    pub w: Array,
    /// `[N, K]`.
    pub worth: Array,
}

/// The operands of one convolution; `steps` are those of a static rounding.
pub(super) fn rounded(z: &Array, w: &Array, steps: Option<&Array>) -> Rounded {
    let (n, c, k) = (z.shape[0], z.shape.channels(), w.shape[0]);
    let sample = z.data.len() / n;
    let range = |n: usize| {
        let values = || z.data[n * sample..(n + 1) * sample].iter().map(|x| *x as f32);
        Grid::between(values().fold(0.0, f32::min), values().fold(0.0, f32::max))
    };
    let given = |s: &Array, c_at: usize| Grid { step: s.data[c_at] as f32, zero: s.data[c + c_at] as u8 };
    let grids: Vec<Grid> = match steps {
        Some(s) => (0..c).map(|at| given(s, at)).collect(),
        None => (0..n).map(range).collect(),
    };
    let grid = |i: usize| if steps.is_some() { grids[i % c] } else { grids[i / sample] };
    let whole = |(i, x): (usize, &f64)| {
        let grid = grid(i);
        f64::from(i32::from(grid.round(*x as f32)) - i32::from(grid.zero))
    };
    let numbers = Array::new(z.shape, z.data.iter().enumerate().map(whole).collect());
    let scaled = |i: usize| w.data[i] as f32 * if steps.is_some() { grids[i % c].step } else { 1.0 };
    let row = w.data.len() / k;
    let scales: Vec<f32> = (0..k)
        .map(|at| scale_of((at * row..(at + 1) * row).fold(0.0, |most: f32, i| most.max(scaled(i).abs()))))
        .collect();
    let weights = (0..w.data.len()).map(|i| f64::from(round_weight(scaled(i), scales[i / row]))).collect();
    let step = |n: usize| if steps.is_some() { 1.0 } else { f64::from(grids[n].step) };
    Rounded {
        z: numbers,
        w: Array::new(w.shape, weights),
        worth: Array::from_fn([n, k], |i| f64::from(scales[i[1]]) * step(i[0])),
    }
}
