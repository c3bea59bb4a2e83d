//! Scales values to [-1, 1] and back by given limits: minimum and maximum, or percentiles. The limits are saved with a
//! model as JSON.

use crate::copy::bands;
use crate::error::{Error, Result, request};
use crate::image::Image;
use serde::{Deserialize, Serialize};

/// How limits are found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Range {
    MinMax,
    /// Percentiles between 0 and 100, interpolated linearly.
    Percentiles {
        low: f64,
        high: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normaliser {
    pub range: Range,
    pub low: f64,
    pub high: f64,
    /// Values outside the limits become the limits; otherwise they stay outside.
    pub clip: bool,
}

/// More values than this are thinned evenly before percentiles are taken.
const MOST: usize = 16 << 20;

impl Normaliser {
    /// Finds the limits of values; those that are NaN or infinite do not count.
    pub fn fit(values: impl IntoIterator<Item = f64>, range: Range, clip: bool) -> Result<Normaliser> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        if values.is_empty() {
            return request("a normalisation of no values");
        }
        values.sort_unstable_by(f64::total_cmp);
        let (low, high) = match range {
            Range::MinMax => (values[0], values[values.len() - 1]),
            Range::Percentiles { low, high } => {
                if !(0.0 <= low && low < high && high <= 100.0) {
                    return request(format!(
                        "percentiles {low} and {high}; they lie between 0 and 100, in order"
                    ));
                }
                (percentile(&values, low), percentile(&values, high))
            }
        };
        if low == high {
            return request(format!("a normalisation of values that are all {low}"));
        }
        Ok(Normaliser { range, low, high, clip })
    }

    /// The limits of an image's meant values, read in bands.
    pub fn of(image: &Image, range: Range, clip: bool) -> Result<Normaliser> {
        let total: usize = image.shape().iter().product();
        let step = total.div_ceil(MOST).max(1);
        let mut kept = Vec::new();
        let mut number = 0usize;
        let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        for region in bands(image.grid(0), image.grid(0), image.dtype().bytes())? {
            for v in image.read_f64(&region)? {
                if range == Range::MinMax && v.is_finite() {
                    least = least.min(v);
                    greatest = greatest.max(v);
                } else if number.is_multiple_of(step) {
                    kept.push(v);
                }
                number += 1;
            }
        }
        if range == Range::MinMax {
            kept = vec![least, greatest];
        }
        Normaliser::fit(kept, range, clip).map_err(|e| match e {
            Error::Request { what } => {
                Error::Request { what: format!("{}: {what}", image.description.path.display()) }
            }
            other => other,
        })
    }

    pub fn forward(&self, value: f64) -> f64 {
        let y = 2.0 * (value - self.low) / (self.high - self.low) - 1.0;
        if self.clip { y.clamp(-1.0, 1.0) } else { y }
    }

    pub fn inverse(&self, value: f64) -> f64 {
        (value + 1.0) / 2.0 * (self.high - self.low) + self.low
    }
}

/// numpy's default percentile of sorted values.
fn percentile(sorted: &[f64], q: f64) -> f64 {
    let at = q / 100.0 * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let t = at - below as f64;
    let (a, b) = (sorted[below], sorted[above]);
    if t >= 0.5 { b - (b - a) * (1.0 - t) } else { a + (b - a) * t }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numpys() {
        // numpy.percentile([1, 2, 4, 8, 16, 32, 64], [0, 2, 50, 77, 99.8, 100])
        let values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
        for (q, expected) in
            [(0.0, 1.0), (2.0, 1.12), (50.0, 8.0), (77.0, 25.92), (99.8, 63.616), (100.0, 64.0)]
        {
            assert!((percentile(&values, q) - expected).abs() < 1e-12, "{q}: {}", percentile(&values, q));
        }
    }

    #[test]
    fn forward_and_inverse_cancel_and_json_keeps_everything() {
        let values: Vec<f64> = (0..1000).map(|i| f64::from(i) * 3.7 - 200.0).collect();
        let range = Range::Percentiles { low: 2.0, high: 99.8 };
        let n = Normaliser::fit(values.iter().copied(), range, false).unwrap();
        for &v in &values {
            assert!((n.inverse(n.forward(v)) - v).abs() <= 1e-9 * v.abs().max(1.0));
        }
        let text = serde_json::to_string(&n).unwrap();
        assert_eq!(serde_json::from_str::<Normaliser>(&text).unwrap(), n);
        let clipped = Normaliser { clip: true, ..n };
        assert_eq!(clipped.forward(1e9), 1.0);
        assert!(n.forward(1e9) > 1.0);
        assert!(Normaliser::fit([5.0, 5.0], Range::MinMax, true).is_err());
        assert!(Normaliser::fit([f64::NAN], Range::MinMax, true).is_err());
    }
}
