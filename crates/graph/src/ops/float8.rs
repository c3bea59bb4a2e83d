//! Weights of convolutions in floats of 8 bits (e4m3): a power of two for each output channel, and the weight divided by it.
//!
//! A channel's scale brings its largest magnitude into the last binade below 448, e4m3's largest value. Being powers of two, scales
//! cost no rounding of their own: a weight keeps the 4 significant bits that e4m3 has, down to 2^-14 of the channel's largest,
//! below which steps stay the same. The two parts of a weight are operands of a convolution that multiplies its sums by the
//! scales; unrounded, it computes what the weight itself would give.

use super::{OpError, floats, operands};
use crate::array::Array;
use crate::graph::Type;
use clearshot_tensor::{DType, F8, Shape};

/// A part of a weight `[K, ...]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float8 {
    /// The weight over its channels' scales, of the weight's shape.
    Values,
    /// `[K]`.
    Scales,
}

impl Float8 {
    pub fn name(self) -> &'static str {
        match self {
            Float8::Values => "values",
            Float8::Scales => "scales",
        }
    }

    pub(super) fn infer(self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 1)?;
        floats(x)?;
        let shape = x[0].shape;
        if shape.rank() == 0 || shape.is_empty() {
            return Err(OpError::Rank { what: "weight", expected: "1 or more, none empty,", got: shape });
        }
        Ok(vec![match self {
            Float8::Values => Type { dtype: DType::F8, shape },
            Float8::Scales => Type::f32(Shape::from([shape[0]])),
        }])
    }

    pub(super) fn eval(self, w: &Array) -> Array {
        let rows: Vec<f32> = w.data.iter().map(|v| *v as f32).collect();
        let scales = scales(&rows, w.shape[0]);
        match self {
            Float8::Values => {
                let row = w.data.len() / scales.len();
                let data = w.data.iter().enumerate().map(|(i, v)| v / f64::from(scales[i / row]));
                Array::new(w.shape, data.collect())
            }
            Float8::Scales => Array::new([scales.len()], scales.into_iter().map(f64::from).collect()),
        }
    }
}

/// The scales of a weight of `channels` output channels.
pub fn scales(weight: &[f32], channels: usize) -> Vec<f32> {
    let largest = |row: &[f32]| row.iter().fold(0.0f32, |most, w| most.max(w.abs()));
    weight.chunks(weight.len() / channels).map(|row| scale_of(largest(row))).collect()
}

/// A weight over the scales of its channels, rounded.
pub fn values(weight: &[f32], scales: &[f32]) -> Vec<F8> {
    let rows = weight.chunks(weight.len() / scales.len()).zip(scales);
    // One over a power of two is exact.
    rows.flat_map(|(row, scale)| row.iter().map(move |w| F8::from_f32(w * (1.0 / scale)))).collect()
}

/// The least power of two that divides `largest` to 448 at most; 1 where there is nothing to divide.
fn scale_of(largest: f32) -> f32 {
    /// What it takes to keep scales, and weights over them, normal.
    const LEAST: f32 = 1e-30;
    if !largest.is_finite() || largest < LEAST {
        return 1.0;
    }
    // 448 is 1.75 * 2^8.
    let bits = largest.to_bits();
    let (exponent, fraction) = ((bits >> 23) as i32 - 127, f32::from_bits(bits & 0x7f_ffff | 127 << 23));
    f32::exp2((exponent - if fraction <= 1.75 { 8 } else { 7 }) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_the_least_powers_of_two_that_fit() {
        for largest in [448.0, 449.0, 224.0, 224.1, 1.0, 0.03, 1e-20, 3e38] {
            let scale = scale_of(largest);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{largest}: {scale} is not a power of two");
            assert!(largest / scale <= 448.0 && largest / scale > 224.0, "{largest}: {scale}");
        }
        for none in [0.0, 1e-38, f32::INFINITY] {
            assert_eq!(scale_of(none), 1.0, "{none}");
        }
    }

    #[test]
    fn each_channel_has_a_scale_of_its_own() {
        let weight = [0.5, -1.0, 1e-4, 7e-4, 0.0, 0.0];
        let scales = scales(&weight, 3);
        assert_eq!(scales, [2f32.powi(-8), 2f32.powi(-19), 1.0]);
        let back: Vec<f32> =
            values(&weight, &scales).iter().enumerate().map(|(i, v)| v.to_f32() * scales[i / 2]).collect();
        for (w, b) in weight.iter().zip(back) {
            assert!((w - b).abs() <= w.abs() / 16.0, "{w} became {b}");
        }
    }
}
