//! Rounding of the inputs of a convolution, determined from their values.
//!
//! The range of a channel contains all but a few of its values (`percentile`), or minimises the squared error of rounding
//! (`error`). The values that are cut off are few, often absent from a sample, and have the largest errors: the bright
//! stars of a dark image. A channel therefore keeps its most extreme values in addition to the sample, each with the number
//! of pixels that it represents. Separate steps for each channel make the weights of large channels large, which takes bits
//! from the others; so three compromises between one step for all and separate steps are compared by the expected error of
//! the product.

use super::Mode;
use clearshot_graph::ops::int8::{Grid, scale_of};
use clearshot_tensor::Tensor;

/// How ranges are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    /// The values between these percentiles from either end: 99.99 leaves out one of ten thousand.
    Percentile(f64),
    Error,
}

impl By {
    pub fn name(self, mode: Mode) -> String {
        match (mode, self) {
            (Mode::Dynamic, _) => "the range of each image".into(),
            (_, By::Percentile(p)) => format!("percentile {p}"),
            (_, By::Error) => "error".into(),
        }
    }
}

/// Values of a channel that are kept, and those at each end of it.
const KEPT: usize = 4096;
const EXTREMES: usize = 512;
/// Parts of a range that are tried, and shares of a channel's own range in its step.
const PARTS: [f32; 8] = [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4];
const OWN: [f32; 3] = [1.0, 0.5, 0.0];

/// The inputs of one convolution.
pub struct Inputs {
    /// Its weight's.
    pub name: String,
    channels: Vec<Channel>,
}

#[derive(Clone, Default)]
struct Channel {
    low: f32,
    high: f32,
    /// Of every so many pixels one.
    values: Vec<f32>,
    /// Finite values of all pixels.
    count: usize,
    /// The extremes at both ends: those below the lower end's with their signs turned.
    ends: [Extremes; 2],
}

/// The largest values of many.
#[derive(Clone, Default)]
struct Extremes {
    values: Vec<f32>,
    /// No value that is not larger is one of them; nothing while there are few.
    above: Option<f32>,
}

impl Extremes {
    fn see(&mut self, x: f32) {
        if self.above.is_some_and(|a| x <= a) {
            return;
        }
        self.values.push(x);
        if self.values.len() == 2 * EXTREMES {
            self.values.select_nth_unstable_by(EXTREMES, |a, b| b.total_cmp(a));
            self.values.truncate(EXTREMES);
            self.above = self.values.iter().copied().reduce(f32::min);
        }
    }

    fn has(&self, x: f32) -> bool {
        self.above.is_none_or(|a| x > a)
    }
}

impl Inputs {
    pub fn new(name: String, channels: usize) -> Inputs {
        Inputs { name, channels: vec![Channel::default(); channels] }
    }

    /// Looks at an image, channels last, as one of `of`.
    pub fn see(&mut self, image: &[f32], of: usize) {
        let c = self.channels.len();
        let pixels = image.len() / c;
        let step = (pixels * of / KEPT).max(1);
        for pixel in 0..pixels {
            for (channel, &x) in self.channels.iter_mut().zip(&image[pixel * c..(pixel + 1) * c]) {
                channel.low = channel.low.min(x);
                channel.high = channel.high.max(x);
                if x.is_finite() {
                    channel.count += 1;
                    channel.ends[0].see(-x);
                    channel.ends[1].see(x);
                    if pixel % step == 0 {
                        channel.values.push(x);
                    }
                }
            }
        }
    }

    /// The grids of the channels, for the weight `[K, ..., C]` that they are multiplied with.
    pub fn grids(&self, weight: &Tensor, by: By) -> Vec<Grid> {
        let ranges: Vec<[f32; 2]> = self.channels.iter().map(|c| c.range(by)).collect();
        let width = |r: &[f32; 2]| r[1].max(0.0) - r[0].min(0.0);
        let widest = ranges.iter().map(width).fold(0.0, f32::max);
        let of = |own: f32| -> Vec<Grid> {
            let wider = |r: &[f32; 2]| if width(r) > 0.0 { (widest / width(r)).powf(1.0 - own) } else { 1.0 };
            ranges.iter().map(|r| Grid::between(r[0] * wider(r), r[1] * wider(r))).collect()
        };
        let weights = weight.as_f32().unwrap_or(&[]);
        let error = |grids: &Vec<Grid>| self.expected_error(weights, weight.shape()[0], grids);
        let made = OWN.map(of);
        made.into_iter().min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or_default()
    }

    /// The squared error of results that rounding inputs and weights makes, summed over output channels.
    fn expected_error(&self, weights: &[f32], k: usize, grids: &[Grid]) -> f64 {
        let c = self.channels.len();
        let row = weights.len() / k.max(1);
        let mut energy = vec![0.0f64; c];
        weights.iter().enumerate().for_each(|(i, w)| energy[i % c] += f64::from(*w).powi(2));
        // The cost of a unit of a weight's rounding in a channel of mean square m and step s: m / s².
        let mut unit = 0.0;
        let mut error = 0.0;
        for ((channel, grid), energy) in self.channels.iter().zip(grids).zip(&energy) {
            error += channel.error(*grid) * energy;
            unit += channel.mean_square() / f64::from(grid.step).powi(2);
        }
        for row in weights.chunks_exact(row.max(1)) {
            let scaled = |(i, w): (usize, &f32)| (w * grids[i % c].step).abs();
            let scale = scale_of(row.iter().enumerate().map(scaled).fold(0.0, f32::max));
            error += (row.len() / c) as f64 * f64::from(scale).powi(2) / 12.0 * unit;
        }
        error
    }
}

impl Channel {
    fn range(&self, by: By) -> [f32; 2] {
        match by {
            By::Percentile(p) => {
                let mut sorted = self.values.clone();
                sorted.sort_by(f32::total_cmp);
                let at = |share: f64| {
                    let i = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
                    sorted.get(i).copied().unwrap_or(0.0)
                };
                let left = (100.0 - p) / 100.0;
                if left <= 0.0 { [self.low, self.high] } else { [at(left), at(1.0 - left)] }
            }
            By::Error => {
                let part = |f: &f32| [self.low * f, self.high * f];
                let error = |r: &[f32; 2]| self.error(Grid::between(r[0], r[1]));
                let parts = PARTS.iter().map(part);
                parts.min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or([self.low, self.high])
            }
        }
    }

    /// The mean of a function of all values: exact for the extremes, and from the sample for all values between.
    fn mean(&self, f: impl Fn(f32) -> f64) -> f64 {
        let [below, above] = &self.ends;
        let (mut sum, mut between) = (0.0, 0usize);
        for x in self.values.iter().filter(|x| !below.has(-**x) && !above.has(**x)) {
            sum += f(*x);
            between += 1;
        }
        // All values are extremes of both ends while they are few.
        let low = below.values.iter().map(|x| -x).filter(|x| !above.has(*x));
        let extremes: Vec<f64> = low.chain(above.values.iter().copied()).map(f).collect();
        let left = self.count.saturating_sub(extremes.len()) as f64;
        let mean = if between > 0 { sum / between as f64 } else { 0.0 };
        (extremes.iter().sum::<f64>() + left * mean) / self.count.max(1) as f64
    }

    /// The mean squared error of rounding.
    fn error(&self, grid: Grid) -> f64 {
        self.mean(|x| f64::from(grid.nearest(x) - x).powi(2))
    }

    fn mean_square(&self) -> f64 {
        self.mean(|x| f64::from(x).powi(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(values: &[f32]) -> Inputs {
        let mut inputs = Inputs::new("w".into(), 1);
        inputs.see(values, 1);
        inputs
    }

    #[test]
    fn one_outlier_is_cut_off_and_the_rest_keeps_its_bits() {
        let mut values: Vec<f32> = (0..4000).map(|i| (i as f32 / 4000.0 - 0.5) * 2.0).collect();
        values[7] = 2.4;
        let weight = Tensor::f32([1, 1, 1, 1], vec![1.0]);
        let whole = seen(&values).grids(&weight, By::Percentile(100.0))[0];
        assert!((whole.step - 3.4 / 255.0).abs() < 1e-4, "{whole:?}");
        let most = seen(&values).grids(&weight, By::Percentile(99.9))[0];
        assert!((most.step - 2.0 / 255.0).abs() < 1e-4, "{most:?}");
        let least = seen(&values).grids(&weight, By::Error)[0];
        assert!(seen(&values).channels[0].error(least) <= seen(&values).channels[0].error(whole));
    }

    /// Four bright pixels of 400,000, which a sample of 4096 has none of: cutting them off would cost more than a finer step wins.
    #[test]
    fn rare_bright_values_are_not_cut_off() {
        let mut image: Vec<f32> = (0..400_000).map(|i| (i as f32 * 0.37).sin().abs()).collect();
        [1001, 50_501, 200_003, 333_337].into_iter().for_each(|i| image[i] = 12.0);
        let grid = seen(&image).grids(&Tensor::f32([1, 1, 1, 1], vec![1.0]), By::Error)[0];
        assert!(grid.nearest(12.0) > 9.0, "{grid:?}");
        let exact = |grid: Grid| {
            image.iter().map(|x| f64::from(grid.nearest(*x) - x).powi(2)).sum::<f64>() / image.len() as f64
        };
        let known = seen(&image).channels[0].error(grid);
        assert!((known / exact(grid) - 1.0).abs() < 0.05, "{known} {}", exact(grid));
    }

    /// A channel of small values beside one of large ones, both as important: one step for all would round the small one away.
    #[test]
    fn a_small_channel_has_its_own_step() {
        let image: Vec<f32> =
            (0..4000).flat_map(|i| [(i as f32 * 0.7).sin(), 100.0 * (i as f32).sin()]).collect();
        let mut inputs = Inputs::new("w".into(), 2);
        inputs.see(&image, 1);
        let weight = Tensor::f32([1, 1, 1, 2], vec![1.0, 0.01]);
        let grids = inputs.grids(&weight, By::Percentile(100.0));
        assert!((grids[1].step / grids[0].step - 100.0).abs() < 1.0, "{grids:?}");
    }
}
