//! Gain and offset between target and input of a pair, for each file.
//!
//! Real pairs are often stretched to the range of each file, so that the same light has a different value in each. Only the
//! mean of the input can be learned then, which is the target times a gain plus an offset: the line through the pixels of
//! both by least squares, with the target as the noise-free variable.

use crate::error::Result;
use clearshot_image::dataset::{Dataset, Frame, Part};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Pairs that are looked at to decide whether targets are fitted.
const LOOKED_AT: usize = 16;
/// The side of blocks whose means, in which there is little noise, show whether two images show the same thing.
const BLOCK: usize = 8;
/// The correlation of those means from which on they do.
const ALIKE: f64 = 0.9;
/// Smallest difference of gains, and of offsets in units of the inputs' range, that is reported.
const DIFFERENT: f64 = 0.02;

/// `input = gain * target + offset` in the mean, of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    pub gain: f64,
    pub offset: f64,
}

/// The lines of an image's channels, once they are found.
type Lines = Arc<OnceLock<Vec<Line>>>;

/// The lines of files, each found when it is first asked for.
#[derive(Default)]
pub struct Fits {
    lines: Mutex<HashMap<(usize, Vec<usize>), Lines>>,
}

impl Fits {
    /// The lines of the channels of the image that a crop is cut from.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of(&self, dataset: &Dataset, entry: usize, origin: &[usize]) -> Result<Lines> {
        let origin = dataset.frame_origin(entry, origin)?;
        let cell = {
            let mut lines = self.lines.lock().unwrap_or_else(|p| p.into_inner());
            Arc::clone(lines.entry((entry, origin.clone())).or_default())
        };
        if cell.get().is_none() {
            let [input, target] = [Part::Input, Part::Target].map(|part| dataset.frame(entry, &origin, part));
            let (input, target) = (input?, target?);
            cell.get_or_init(|| (0..input.channels).map(|c| line(&input, &target, c)).collect());
        }
        Ok(cell)
    }
}

/// The line through the pixels of a channel.
fn line(input: &Frame, target: &Frame, channel: usize) -> Line {
    let at = |frame: &Frame| {
        let (channels, values) = (frame.channels, frame.values.clone());
        values.into_iter().skip(channel).step_by(channels).map(f64::from)
    };
    let pairs: Vec<(f64, f64)> =
        at(input).zip(at(target)).filter(|(a, b)| a.is_finite() && b.is_finite()).collect();
    through(&pairs)
}

fn through(pairs: &[(f64, f64)]) -> Line {
    let count = pairs.len().max(1) as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
    let [x, y] = [mean(&|p| p.1), mean(&|p| p.0)];
    let (covariance, variance) = (mean(&|p| (p.0 - y) * (p.1 - x)), mean(&|p| (p.1 - x).powi(2)));
    let gain = if variance > 0.0 { covariance / variance } else { 0.0 };
    // What falls as the other rises is not the same thing.
    let gain = if gain > 0.0 { gain } else { 1.0 };
    Line { gain, offset: y - gain * x }
}

/// Whether targets should be fitted to their inputs, and why: the two show the same thing, on scales that differ from file to file.
///
/// # Errors
/// If a file cannot be read.
pub fn is_due(dataset: &Dataset) -> Result<Option<String>> {
    let count = dataset.entries.len().min(LOOKED_AT);
    let (mut lines, mut alike, mut range) = (vec![], 0, 0.0f64);
    for i in 0..count {
        let crop = dataset.crop_at(i * dataset.entries.len() / count)?;
        let origin = dataset.frame_origin(crop.entry, &crop.origin)?;
        let input = dataset.frame(crop.entry, &origin, Part::Input)?;
        let target = dataset.frame(crop.entry, &origin, Part::Target)?;
        if input.channels != target.channels || input.size != target.size {
            return Ok(None);
        }
        let (low, high) = input
            .values
            .iter()
            .filter(|v| v.is_finite())
            .fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
        range = range.max(f64::from(high) - f64::from(low));
        alike += usize::from(correlation(&input, &target) >= ALIKE);
        lines.push(line(&input, &target, 0));
    }
    let ends = |of: &dyn Fn(&Line) -> f64| {
        lines.iter().map(of).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (gains, offsets) = (ends(&|l| l.gain), ends(&|l| l.offset));
    let differ = gains.1 > gains.0 * (1.0 + DIFFERENT) || offsets.1 - offsets.0 > DIFFERENT * range;
    let holds = count > 1 && differ && alike * 5 >= count * 4;
    Ok(holds.then(|| {
        format!(
            "targets are fitted to their inputs file by file: gains of {:.3} to {:.3} in {count} pairs; data.fit=false turns this off",
            gains.0, gains.1
        )
    }))
}

/// The correlation of the means of blocks in the first channel and the middle plane.
fn correlation(input: &Frame, target: &Frame) -> f64 {
    let means = |frame: &Frame| -> Vec<f64> {
        let [.., height, width] = frame.size[..] else { return vec![] };
        let plane = frame.values.len() / (height * width * frame.channels) / 2 * height * width;
        let value = |y: usize, x: usize| f64::from(frame.values[(plane + y * width + x) * frame.channels]);
        let mut means = vec![];
        for y in (0..(height + 1).saturating_sub(BLOCK)).step_by(BLOCK) {
            for x in (0..(width + 1).saturating_sub(BLOCK)).step_by(BLOCK) {
                let pixels = (0..BLOCK * BLOCK).map(|i| value(y + i / BLOCK, x + i % BLOCK));
                means.push(pixels.sum::<f64>() / (BLOCK * BLOCK) as f64);
            }
        }
        means
    };
    let pairs: Vec<(f64, f64)> =
        means(input).into_iter().zip(means(target)).filter(|(a, b)| a.is_finite() && b.is_finite()).collect();
    let count = pairs.len().max(1) as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / count;
    let [a, b] = [mean(&|p| p.0), mean(&|p| p.1)];
    let product = mean(&|p| (p.0 - a) * (p.1 - b));
    product / (mean(&|p| (p.0 - a).powi(2)) * mean(&|p| (p.1 - b).powi(2))).sqrt().max(1e-300)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_the_input_given_the_target() {
        let target = |i: usize| ((i * 37) % 101) as f64;
        let noise = |i: usize| [3.0, -3.0][(i / 101) % 2];
        let pairs: Vec<(f64, f64)> =
            (0..2020).map(|i| (0.6 * target(i) + 12.0 + noise(i), target(i))).collect();
        let found = through(&pairs);
        assert!((found.gain - 0.6).abs() < 1e-9 && (found.offset - 12.0).abs() < 1e-9, "{found:?}");
        assert_eq!(through(&[(5.0, 1.0), (5.0, 1.0)]), Line { gain: 1.0, offset: 4.0 });
    }
}
