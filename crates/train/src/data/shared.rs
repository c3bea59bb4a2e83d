//! Noise that neighbouring pixels share.
//!
//! Few images come to a program as a sensor gave them. They are resampled, scanned by detectors slower than their pixels, or put
//! together from the mosaic of a colour camera: all of it makes neighbours share noise. A network learns on noise that
//! was shared in the same ways and is told how much, [`Correlation`].

use super::camera::{Cameras, filter};
use clearshot_physics::Correlation;

/// The most noise without correlation beside noise with it, as a share of the variance.
const MOST_WHITE: f64 = 0.15;
/// The most noise that is shared over many pixels, as a share of the variance, and the width of the Gaussian it is shared by.
const MOST_FAR: f64 = 0.3;
const FAR_SIGMA: [f64; 2] = [1.5, 4.0];
/// How often neighbours share noise by a filter of three taps, as interpolation has it, not by a Gaussian.
const NARROW: f64 = 0.25;
/// The widest smoothing behind a mosaic, a Gaussian's standard deviation in pixels.
const MOSAIC_SIGMA: f64 = 0.8;

impl Cameras {
    /// Makes independent noise one that neighbouring pixels share, where this image is to have such.
    ///
    /// Some of it stays independent, and some may be shared over many pixels (light that flickers, a sensor that drifts):
    /// noise of the same variances, pixel by pixel, but of other draws.
    pub(super) fn correlate(
        &self,
        noise: &mut [f32],
        variance: impl Fn(usize) -> f64,
        size: &[usize],
        number: u64,
    ) -> Correlation {
        let (c, dice) = (&self.config, self.key(number, 0xCA7));
        let unit = |i: u64| f64::from(dice.uniform(i));
        if unit(0) >= c.correlated {
            return Correlation::WHITE;
        }
        let between = |i: u64, [low, high]: [f64; 2]| low + (high - low) * unit(i);
        let sigma = between(1, c.correlated_sigma);
        // Scanning detectors share noise along rows; cameras behind interpolation along both axes, about alike.
        let along = match unit(2) {
            u if u < 0.3 => [0.0, sigma],
            u if u < 0.35 => [sigma, 0.0],
            _ => [sigma, sigma * (0.8 + 0.4 * unit(3))],
        };
        let near = match unit(10) < c.mosaic {
            true => Mosaic::drawn(unit(11), unit(12)).share(noise, size, MOSAIC_SIGMA * unit(13)),
            false => {
                let narrow = unit(5) < NARROW;
                let taps =
                    along.map(|s| if narrow && s > 0.0 { vec![0.6 * s, 1.0, 0.6 * s] } else { gaussian(s) });
                filter_noise(noise, size, &taps);
                Correlation::of_filters([&taps[0][..], &taps[1][..]])
            }
        };
        let white = MOST_WHITE * unit(4) * unit(4);
        let far = if unit(6) < c.correlated_far { MOST_FAR * unit(7) } else { 0.0 };
        let draws = |stream: u32| {
            let mut draws = vec![0f32; noise.len()];
            self.key(number, stream).fill_normal(0, &mut draws);
            draws
        };
        let independent = draws(0xCAA);
        let (far_taps, shared) = match far > 0.0 {
            true => {
                let (taps, mut shared) = ([(); 2].map(|()| gaussian(between(8, FAR_SIGMA))), draws(0xCAB));
                filter_noise(&mut shared, size, &taps);
                (taps, shared)
            }
            false => ([vec![1.0], vec![1.0]], vec![]),
        };
        for (i, n) in noise.iter_mut().enumerate() {
            let deviation = variance(i).sqrt();
            let mut sum = (1.0 - white - far).sqrt() * f64::from(*n);
            sum += white.sqrt() * deviation * f64::from(independent[i]);
            sum += far.sqrt() * deviation * shared.get(i).copied().map_or(0.0, f64::from);
            *n = sum as f32;
        }
        let far_off = Correlation::of_filters([&far_taps[0][..], &far_taps[1][..]]);
        Correlation::from_lags(|dy, dx| (1.0 - white - far) * near.at(dy, dx) + far * far_off.at(dy, dx))
    }
}

/// The pixels of a colour camera that see one colour; all others are interpolated linearly from these.
///
/// Interpolated pixels are means of two or four, and less noisy than the others: such noise is not the same everywhere, and
/// what is told is its mean.
#[derive(Clone, Copy, Debug)]
struct Mosaic {
    /// Every second pixel, as green has it, or else one in four.
    green: bool,
    /// The first pixel of the colour.
    at: [usize; 2],
}

impl Mosaic {
    /// By two uniform numbers: green is as frequent as the other two together.
    fn drawn(colour: f64, place: f64) -> Mosaic {
        let place = (4.0 * place) as usize;
        Mosaic { green: colour < 0.5, at: [place / 2 % 2, place % 2] }
    }

    fn sees(&self, y: usize, x: usize) -> bool {
        let [down, right] = [y + self.at[0], x + self.at[1]].map(|p| p % 2 == 0);
        if self.green { down == right } else { down && right }
    }

    /// Replaces independent noise by that of an image put together and smoothed, of the same variances in the mean.
    fn share(&self, noise: &mut [f32], size: &[usize], sigma: f64) -> Correlation {
        let [height, width] = [size[size.len() - 2], size[size.len() - 1]];
        for plane in noise.chunks_mut(height * width) {
            let unseen = |(i, _): &(usize, &mut f32)| !self.sees(i / width, i % width);
            plane.iter_mut().enumerate().filter(unseen).for_each(|(_, n)| *n = 0.0);
            if self.green {
                let seen = plane.to_vec();
                let at = |y: usize, x: usize| seen[y % height * width + x % width];
                for (i, n) in plane.iter_mut().enumerate() {
                    let (y, x) = (i / width, i % width);
                    let around = [(y + 1, x), (y + height - 1, x), (y, x + 1), (y, x + width - 1)];
                    *n += 0.25 * around.into_iter().map(|(y, x)| at(y, x)).sum::<f32>();
                }
            }
        }
        let smooth = gaussian(sigma);
        let triangle = [0.5, 1.0, 0.5];
        let along = if self.green { smooth.clone() } else { convolved(&smooth, &triangle) };
        let plus = [0.0, 0.25, 0.0, 0.25, 1.0, 0.25, 0.0, 0.25, 0.0];
        let (kernel, side) = match self.green {
            true => spread(&plus, &smooth),
            false => spread(&[1.0], &along),
        };
        let share = if self.green { 0.5 } else { 0.25 };
        let power = (share * kernel.iter().map(|k| k * k).sum::<f64>()).sqrt();
        let wrapped = |p: isize, n: usize| p.rem_euclid(n as isize) as usize;
        let taps: Vec<f32> = along.iter().map(|t| (t / power.sqrt()) as f32).collect();
        for axis in size.len() - 2..size.len() {
            filter(noise, size, axis, &taps, wrapped);
        }
        Correlation::of_filter(&kernel, [side; 2])
    }
}

/// One filter behind another.
fn convolved(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; a.len() + b.len() - 1];
    for (i, x) in a.iter().enumerate() {
        b.iter().enumerate().for_each(|(j, y)| out[i + j] += x * y);
    }
    out
}

/// A square filter followed by the same one along both axes, and its side.
fn spread(square: &[f64], along: &[f64]) -> (Vec<f64>, usize) {
    let inner = square.len().isqrt();
    let side = inner + along.len() - 1;
    let mut out = vec![0.0; side * side];
    for (i, s) in square.iter().enumerate() {
        for (y, a) in along.iter().enumerate() {
            for (x, b) in along.iter().enumerate() {
                out[(i / inner + y) * side + i % inner + x] += s * a * b;
            }
        }
    }
    (out, side)
}

/// The taps of a Gaussian filter; of none, where it has no width.
fn gaussian(sigma: f64) -> Vec<f64> {
    if sigma <= 0.0 {
        return vec![1.0];
    }
    let reach = (3.0 * sigma).ceil() as isize;
    (-reach..=reach).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect()
}

/// Independent noise behind filters along Y and X, its variances as before; the image goes on behind its edges.
fn filter_noise(noise: &mut [f32], size: &[usize], taps: &[Vec<f64>; 2]) {
    for (axis, taps) in (size.len() - 2..).zip(taps).filter(|(_, t)| t.len() > 1) {
        let power = taps.iter().map(|t| t * t).sum::<f64>().sqrt();
        let taps: Vec<f32> = taps.iter().map(|t| (t / power) as f32).collect();
        filter(noise, size, axis, &taps, |p, n| p.rem_euclid(n as isize) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CameraConfig;
    use crate::data::camera::{Ends, photons};
    use clearshot_tensor::noise::Key;

    #[test]
    fn noise_is_shared_by_neighbours_as_it_is_told() {
        let config = CameraConfig {
            peak: [200.0, 200.0],
            correlated: 1.0,
            correlated_far: 0.5,
            read_noise: Some([4.0, 4.0]),
            background: Some([9.0, 9.0]),
            ..CameraConfig::default()
        };
        let n = 256;
        for number in 0..8 {
            let ends = Ends { bright: 1.0, dark: 0.0 };
            let sample = Cameras::new(&config, 1).expose(vec![0.0; n * n], &[n, n], ends, number);
            let told = photons(&sample.numbers).unwrap().correlation;
            let off: Vec<f64> = sample.measured.iter().map(|&e| f64::from(e) - 9.0).collect();
            let lag = |dy: usize, dx: usize| {
                let at = |i: usize| off[i] * off[(i / n + dy) % n * n + (i % n + dx) % n];
                (0..n * n).map(at).sum::<f64>() / (n * n) as f64
            };
            // The variance stays that of the camera, 9 + 16.
            assert!((lag(0, 0) / 25.0 - 1.0).abs() < 0.06, "{}", lag(0, 0));
            let two = 0.5 * (lag(0, 2) + lag(2, 0)) / lag(0, 0);
            assert!((two - told.at(0, 2)).abs() < 0.03, "{number}: {two} for {}", told.at(0, 2));
            for (dy, dx) in [(0, 1), (1, 0), (1, 1)] {
                let (got, want) = (lag(dy, dx) / lag(0, 0), told.at(dy as isize, dx as isize));
                assert!((got - want).abs() < 0.03, "{number}: {got} for {want}");
            }
        }
    }

    #[test]
    fn what_a_mosaic_leaves_out_is_less_noisy_and_the_mean_is_as_told() {
        let n = 512;
        for (green, sigma) in [(true, 0.0), (true, 0.6), (false, 0.0), (false, 0.6)] {
            let mosaic = Mosaic { green, at: [0, 1] };
            let mut noise = vec![0f32; n * n];
            Key { seed: 3, step: 1, stream: 5 }.fill_normal(0, &mut noise);
            let told = mosaic.share(&mut noise, &[n, n], sigma);
            let lag = |dy: usize, dx: usize, of: &dyn Fn(usize, usize) -> bool| {
                let inside = (0..n * n).filter(|i| of(i / n, i % n));
                let product = |i: usize| f64::from(noise[i] * noise[(i / n + dy) % n * n + (i % n + dx) % n]);
                let (sum, count) = inside.fold((0.0, 0.0), |(s, c), i| (s + product(i), c + 1.0));
                sum / count
            };
            let all = |_, _| true;
            let variance = lag(0, 0, &all);
            assert!((variance - 1.0).abs() < 0.03, "{mosaic:?}: {variance}");
            for (dy, dx) in [(0, 1), (1, 0), (1, 1), (0, 2), (2, 1)] {
                let (got, want) = (lag(dy, dx, &all) / variance, told.at(dy as isize, dx as isize));
                assert!((got - want).abs() < 0.02, "{mosaic:?} {dy} {dx}: {got} for {want}");
            }
            if sigma == 0.0 {
                // A mean of four has a quarter of the variance; of red's other pixels half are means of two.
                let seen = lag(0, 0, &|y, x| mosaic.sees(y, x));
                let others = lag(0, 0, &|y, x| !mosaic.sees(y, x)) / seen;
                let want = if green { 0.25 } else { (0.5 + 0.5 + 0.25) / 3.0 };
                assert!((others - want).abs() < 0.02, "{mosaic:?}: {others}");
            }
        }
    }
}
