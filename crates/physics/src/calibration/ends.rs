//! The ends of the range of values and the steps between them: clipping and rounding of counts.

use crate::units::Adu;
use serde::{Deserialize, Serialize};

/// Properties of the converter, from the values of all pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// The smallest and the largest value.
    pub lowest: f64,
    pub highest: f64,
    /// The share of pixels with these values.
    pub at_lowest: f64,
    pub at_highest: f64,
    /// Whether values pile up there because of clipping.
    pub clipped_low: bool,
    pub clipped_high: bool,
    /// The step of which all values are whole multiples, above the smallest; `None` if they are not whole numbers.
    pub step: Option<f64>,
}

/// Fewer pixels at an end are no pile.
const FEWEST_PILED: usize = 8;

impl Ends {
    pub fn of(planes: &[Adu<&[f32]>]) -> Ends {
        let all = || planes.iter().flat_map(|p| p.0).copied().filter(|v| v.is_finite());
        let (mut low, mut high, mut rounded, mut count) = (f32::INFINITY, f32::NEG_INFINITY, true, 0usize);
        for v in all() {
            (low, high) = (low.min(v), high.max(v));
            rounded &= v.fract() == 0.0;
            count += 1;
        }
        if count == 0 {
            return Ends::default();
        }
        // As many just inside an end as at it are the tail of a distribution; far fewer are a wall.
        // Of whole numbers, the next one is near, however few there are.
        let step = rounded.then(|| step(all().map(|v| (f64::from(v) - f64::from(low)) as u64)));
        let next = step.map_or(0.0, |s| s as f32);
        let near = ((high - low) * 0.02).max(next);
        let (mut top, mut below, mut bottom, mut above) = (0usize, 0usize, 0usize, 0usize);
        for v in all() {
            top += usize::from(v == high);
            below += usize::from(v < high && v >= high - near);
            bottom += usize::from(v == low);
            above += usize::from(v > low && v <= low + next.max((high - low) * 1e-3));
        }
        let share = |n: usize| if high > low { n as f64 / count as f64 } else { 0.0 };
        Ends {
            lowest: low.into(),
            highest: high.into(),
            at_lowest: share(bottom),
            at_highest: share(top),
            clipped_low: high > low && bottom > FEWEST_PILED && bottom > 2 * above,
            clipped_high: high > low && top > FEWEST_PILED && top > 2 * below,
            step: step.map(|s| s as f64),
        }
    }

    /// The value at which pixels are saturated, if they are.
    pub fn full(&self) -> Option<f64> {
        self.clipped_high.then_some(self.highest)
    }

    /// The variance that rounding adds.
    pub fn rounding(&self) -> f64 {
        self.step.map_or(0.0, |s| s * s / 12.0)
    }
}

/// The greatest common divisor of the values, at least 1.
fn step(values: impl Iterator<Item = u64>) -> u64 {
    let mut step = 0;
    for v in values {
        let (mut a, mut b) = (step, v);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        step = a;
        if step == 1 {
            break;
        }
    }
    step.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walls_and_steps_are_seen() {
        // A ramp of 16 counts a step, as 12 bits in a file of 16, a tenth of it clipped at either end.
        let ramp: Vec<f32> = (0..1000i16).map(|i| 100.0 + 16.0 * f32::from(i.clamp(100, 900))).collect();
        let ends = Ends::of(&[Adu(&ramp)]);
        assert_eq!((ends.lowest, ends.highest, ends.step), (1700.0, 14_500.0, Some(16.0)));
        assert!(ends.clipped_low && ends.clipped_high && ends.full() == Some(14_500.0));
        assert!((ends.at_lowest - 0.101).abs() < 1e-9 && (ends.at_highest - 0.1).abs() < 1e-9);
        assert!((ends.rounding() - 256.0 / 12.0).abs() < 1e-9);
        let plain: Vec<f32> = (0..1000i16).map(|i| f32::from(i) * 0.5).collect();
        let ends = Ends::of(&[Adu(&plain)]);
        assert!(!ends.clipped_low && !ends.clipped_high && ends.step.is_none() && ends.rounding() == 0.0);
        assert_eq!(Ends::of(&[Adu(&[f32::NAN])]), Ends::default());
    }
}
