//! Blind spots (Noise2Void): pixels whose values are hidden from the network and predicted by it.
//!
//! One pixel of every box is a spot, so that spots are apart. It is filled with the median of its surroundings or with one
//! of its neighbours, never with itself (N2V2, Hoeck et al. 2022). If noise is correlated along rows or columns, the
//! neighbours of a spot along them would reveal its value: they are filled too, from pixels beside the line (structN2V,
//! Broaddus et al. 2020). Surroundings are in the plane of the pixel, also for volumes; a spot covers all channels.

use super::Sample;
use crate::config::{Along, BlindConfig, BlindFill};
use clearshot_tensor::noise::Key;

/// Draws of a spot.
struct Dice {
    key: Key,
    next: u64,
}

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        ((f64::from(self.key.uniform(self.next)) * n as f64) as usize).min(n.saturating_sub(1))
    }
}

/// The spots of an image of (Z,) Y, X: one pixel of every box.
fn spots(config: &BlindConfig, size: &[usize], dice: &mut Dice) -> Vec<[usize; 3]> {
    let volume = if size.len() == 3 { [size[0], size[1], size[2]] } else { [1, size[0], size[1]] };
    // Boxes are flat: along Z, neighbours are farther apart than along Y and X.
    let side = (1.0 / config.share).sqrt().round().max(2.0) as usize;
    let mut found = vec![];
    for z in 0..volume[0] {
        for y in (0..volume[1]).step_by(side) {
            for x in (0..volume[2]).step_by(side) {
                let spot = [z, y + dice.below(side), x + dice.below(side)];
                if spot[1] < volume[1] && spot[2] < volume[2] {
                    found.push(spot);
                }
            }
        }
    }
    found
}

/// Sets `found` to the pixels in a spot's plane that it may be filled from.
fn surroundings(
    config: &BlindConfig,
    [z, y, x]: [usize; 3],
    [height, width]: [usize; 2],
    found: &mut Vec<usize>,
) {
    let r = config.radius;
    let rows = y.saturating_sub(r)..=(y + r).min(height - 1);
    let columns = x.saturating_sub(r)..=(x + r).min(width - 1);
    let on_line = |v: usize, u: usize| match config.along {
        None => v == y && u == x,
        Some(Along::X) => v == y,
        Some(Along::Y) => u == x,
    };
    found.clear();
    for v in rows {
        let row = (z * height + v) * width;
        found.extend(columns.clone().filter(|&u| !on_line(v, u)).map(|u| row + u));
    }
}

/// A sample whose input has blind spots, whose target is what they held, and of which nothing else counts.
pub fn blinded(sample: Sample, config: &BlindConfig, size: &[usize], photons: bool, key: Key) -> Sample {
    let [.., height, width] = *size else { return sample };
    let pixels: usize = size.iter().product();
    let channels = sample.measured.len() / pixels;
    let mut dice = Dice { key, next: 0 };
    let mut measured = sample.measured.clone();
    let mut valid = vec![0.0; pixels];
    // There are thousands of spots in a crop.
    let (mut around, mut values) = (Vec::new(), Vec::new());
    for spot in spots(config, size, &mut dice) {
        let [z, y, x] = spot;
        surroundings(config, spot, [height, width], &mut around);
        let at = (z * height + y) * width + x;
        if around.is_empty() || sample.valid.as_ref().is_some_and(|v| v[at] == 0.0) {
            continue;
        }
        valid[at] = 1.0;
        let mut fill = |at: usize, by: BlindFill, dice: &mut Dice| {
            let one = around[dice.below(around.len())];
            for c in 0..channels {
                measured[at * channels + c] = match by {
                    BlindFill::Uniform => sample.measured[one * channels + c],
                    BlindFill::Median => {
                        values.clear();
                        values.extend(around.iter().map(|p| sample.measured[p * channels + c]));
                        median(&mut values)
                    }
                };
            }
        };
        fill(at, config.fill, &mut dice);
        let near = |i: usize, n: usize| i.saturating_sub(config.reach)..=(i + config.reach).min(n - 1);
        match config.along {
            None => {}
            Some(Along::X) => near(x, width)
                .filter(|u| *u != x)
                .for_each(|u| fill((z * height + y) * width + u, BlindFill::Uniform, &mut dice)),
            Some(Along::Y) => near(y, height)
                .filter(|v| *v != y)
                .for_each(|v| fill((z * height + v) * width + x, BlindFill::Uniform, &mut dice)),
        }
    }
    let [slope, at_zero] = if photons { [sample.numbers[0], sample.numbers[1]] } else { [1.0, 0.0] };
    let clean = sample.measured.iter().map(|v| slope * v + at_zero).collect();
    Sample { measured, clean, valid: Some(valid), ..sample }
}

fn median(values: &mut [f32]) -> f32 {
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f32::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::NUMBERS;

    fn sample(size: &[usize], channels: usize) -> Sample {
        let count = size.iter().product::<usize>() * channels;
        let measured: Vec<f32> = (0..count).map(|i| i as f32).collect();
        Sample::plain(measured.clone(), measured, [0.0; NUMBERS])
    }

    #[test]
    fn spots_are_the_share_that_was_asked_for_and_never_see_themselves() {
        for (size, channels) in [(vec![40, 60], 1), (vec![40, 60], 3), (vec![3, 40, 60], 2)] {
            for fill in [BlindFill::Median, BlindFill::Uniform] {
                let config = BlindConfig { share: 0.04, fill, ..BlindConfig::default() };
                let before = sample(&size, channels);
                let key = Key { seed: 1, step: 5, stream: 2 };
                let after = blinded(before.clone(), &config, &size, false, key);
                assert_eq!(after, blinded(before.clone(), &config, &size, false, key));
                assert_eq!(after.clean, before.measured);
                let valid = after.valid.expect("a mask");
                let share = valid.iter().sum::<f32>() / valid.len() as f32;
                assert!((share - 0.04).abs() < 1e-6, "{share}");
                for (i, v) in valid.iter().enumerate() {
                    for c in 0..channels {
                        let at = i * channels + c;
                        assert_eq!(*v == 0.0, after.measured[at] == before.measured[at], "{at}");
                    }
                }
            }
        }
    }

    #[test]
    fn correlated_noise_is_hidden_along_its_line() {
        let size = [30, 30];
        for along in [Along::X, Along::Y] {
            let config = BlindConfig { share: 0.01, along: Some(along), reach: 2, ..BlindConfig::default() };
            let before = sample(&size, 1);
            let after = blinded(before.clone(), &config, &size, false, Key { seed: 3, step: 0, stream: 0 });
            let valid = after.valid.expect("a mask");
            for i in (0..900).filter(|i| valid[*i] == 1.0) {
                for off in -2isize..=2 {
                    let (y, x) = (i as isize / 30, i as isize % 30);
                    let (y, x) = if along == Along::X { (y, x + off) } else { (y + off, x) };
                    if (0..30).contains(&y) && (0..30).contains(&x) {
                        let at = (y * 30 + x) as usize;
                        assert_ne!(after.measured[at], before.measured[at], "{along:?} {i} {off}");
                    }
                }
            }
        }
    }
}
