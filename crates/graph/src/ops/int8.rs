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

use super::{OpError, floats, want};
use crate::array::Array;
use crate::graph::Type;
use clearshot_tensor::{DType, Shape};
use std::collections::BTreeMap;

/// Where the steps of a convolution's input come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int8 {
    /// Given for each channel, as an operand `[2, C]`: steps, then zeros.
    Static,
    /// The range of each sample, in every run; all channels share it.
    Dynamic,
    /// Rounded already: x is the numbers q, the weight the numbers p ([`Whole`]), so 3 x 3 pixels around each of x's are read alone.
    Whole,
}

impl Int8 {
    pub fn name(self) -> &'static str {
        match self {
            Int8::Static => "static",
            Int8::Dynamic => "dynamic",
            Int8::Whole => "whole",
        }
    }
}

/// A part of a weight `[K, 3, 3, C]` that is multiplied as whole numbers, for an image with steps and zeros `[2, C]`.
///
/// A convolution of 3 x 3 pixels then sums `q p` over the pixels there are, and takes off what the zeros add to that. At the image's
/// sides this is less, so there is a number for each set of [`sides`] at which a pixel lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whole {
    /// p, of the weight's shape, i8.
    Values,
    /// `[K]`.
    Scales,
    /// `[16, K]`, i32: the sums of `zero p` over the taps that a pixel at those sides has.
    Offsets,
}

/// Sets of sides of a plane.
pub const SIDES: usize = 16;

/// The sides of a plane at which a pixel lies, as bits: the first row, the last, the first column, the last.
pub fn sides([y, x]: [usize; 2], [height, width]: [usize; 2]) -> usize {
    let bits = [y == 0, y + 1 == height, x == 0, x + 1 == width];
    bits.iter().enumerate().map(|(i, is)| usize::from(*is) << i).sum()
}

/// The parts of a weight.
pub struct WholeWeight {
    pub values: Vec<i8>,
    pub scales: Vec<f32>,
    pub offsets: Vec<i32>,
}

impl WholeWeight {
    /// Of a weight `[channels, 3, 3, C]` and the steps and zeros of an image.
    pub fn new(weight: &[f32], channels: usize, steps: &[f32]) -> WholeWeight {
        let (steps, zeros) = steps.split_at(steps.len() / 2);
        let c = steps.len();
        let row = weight.len() / channels;
        let mut made = WholeWeight {
            values: Vec::with_capacity(weight.len()),
            scales: Vec::with_capacity(channels),
            offsets: vec![0; SIDES * channels],
        };
        for (k, row) in weight.chunks(row).enumerate() {
            let scaled = || row.iter().zip(steps.iter().cycle()).map(|(w, step)| w * step);
            let scale = scale_of(scaled().fold(0.0, |most: f32, w| most.max(w.abs())));
            made.scales.push(scale);
            made.values.extend(scaled().map(|w| round_weight(w, scale)));
            let values = &made.values[made.values.len() - row.len()..];
            let tap = |at: usize| {
                let products =
                    values[at * c..][..c].iter().zip(zeros).map(|(p, z)| i32::from(*p) * *z as i32);
                products.sum::<i32>()
            };
            let taps: [i32; 9] = std::array::from_fn(tap);
            for at in 0..SIDES {
                let meets = |i: usize, low: usize, high: usize| {
                    !(i == 0 && at >> low & 1 == 1 || i == 2 && at >> high & 1 == 1)
                };
                let there = (0..9).filter(|t| meets(t / 3, 0, 1) && meets(t % 3, 2, 3));
                made.offsets[at * channels + k] = there.map(|t| taps[t]).sum();
            }
        }
        made
    }
}

impl Whole {
    pub fn name(self) -> &'static str {
        match self {
            Whole::Values => "values",
            Whole::Scales => "scales",
            Whole::Offsets => "offsets",
        }
    }

    pub(super) fn infer(self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        super::operands(x, 2)?;
        floats(x)?;
        let shape = x[0].shape;
        if shape.rank() != 4 || shape[1..3] != [3, 3] {
            return Err(OpError::Rank { what: "weight", expected: "K, 3, 3, C as its", got: shape });
        }
        want("steps and zeros of the image's channels", x[1], [2, shape.channels()])?;
        check(1, shape)?;
        let k = shape[0];
        Ok(vec![match self {
            Whole::Values => Type { dtype: DType::I8, shape },
            Whole::Scales => Type::f32(Shape::from([k])),
            Whole::Offsets => Type { dtype: DType::I32, shape: Shape::from([SIDES, k]) },
        }])
    }

    pub(super) fn eval(self, w: &Array, steps: &Array) -> Array {
        let f32s = |a: &Array| a.data.iter().map(|v| *v as f32).collect::<Vec<_>>();
        let k = w.shape[0];
        let made = WholeWeight::new(&f32s(w), k, &f32s(steps));
        match self {
            Whole::Values => Array::new(w.shape, made.values.into_iter().map(f64::from).collect()),
            Whole::Scales => Array::new([k], made.scales.into_iter().map(f64::from).collect()),
            Whole::Offsets => Array::new([SIDES, k], made.offsets.into_iter().map(f64::from).collect()),
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
        whole(x, 1.0 / self.step, f32::from(self.zero))
    }

    /// x, rounded.
    pub fn nearest(self, x: f32) -> f32 {
        (i32::from(self.round(x)) - i32::from(self.zero)) as f32 * self.step
    }
}

/// The whole number that stands for x, given one over the step, and the zero.
pub fn whole(x: f32, times: f32, zero: f32) -> u8 {
    let at = x * times + zero;
    // Not a number is the lowest.
    let at = if at > 0.0 { at } else { 0.0 };
    let at = if at < 255.0 { at } else { 255.0 };
    at.round_ties_even() as u8
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
