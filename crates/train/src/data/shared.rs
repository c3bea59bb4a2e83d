//! Correlated noise.
//!
//! Few images reach a program as the sensor recorded them. They are resampled, scanned by detectors slower than their
//! pixels, or demosaiced: all of this correlates the noise of neighbouring pixels. A network is trained with noise that is
//! correlated in the same ways, and gets its [`Correlation`] as a condition.

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
            true => Mosaic::drawn(unit(11), unit(14), unit(12)).share(noise, size, MOSAIC_SIGMA * unit(13)),
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

/// The pixels of a colour camera that see one colour; all others are interpolated from these.
///
/// Interpolated pixels are means of two or four, and less noisy than the others: such noise is not the same everywhere, and
/// the condition is its mean. Programs that look for edges take the mean of the two neighbours that differ least, which draws
/// short lines into noise.
#[derive(Clone, Copy, Debug)]
struct Mosaic {
    /// Every second pixel, as green has it, or else one in four.
    green: bool,
    /// Edges are looked for.
    directed: bool,
    /// The first pixel of the colour.
    at: [usize; 2],
}

/// Two neighbours on opposite sides: Y and X of one of them.
type Sides = [isize; 2];

impl Mosaic {
    /// By three uniform numbers: green is as frequent as the other two together.
    fn drawn(colour: f64, edges: f64, place: f64) -> Mosaic {
        let place = (4.0 * place) as usize;
        Mosaic { green: colour < 0.5, directed: edges < 0.5, at: [place / 2 % 2, place % 2] }
    }

    /// The neighbours that a pixel is interpolated from; none where it is seen.
    fn sides(&self, y: usize, x: usize) -> &'static [Sides] {
        const ALONG: [Sides; 2] = [[0, 1], [1, 0]];
        const ACROSS: [Sides; 2] = [[1, 1], [1, -1]];
        let [down, right] = [y + self.at[0], x + self.at[1]].map(|p| p % 2 == 0);
        match (self.green, down, right) {
            (true, ..) => {
                if down == right {
                    &[]
                } else {
                    &ALONG
                }
            }
            (false, true, true) => &[],
            (false, true, false) => &ALONG[..1],
            (false, false, true) => &ALONG[1..],
            (false, false, false) => &ACROSS,
        }
    }

    /// Replaces independent noise by that of an image put together and smoothed, of the same variances in the mean.
    fn share(&self, noise: &mut [f32], size: &[usize], sigma: f64) -> Correlation {
        let [height, width] = [size[size.len() - 2], size[size.len() - 1]];
        let power = |noise: &[f32]| noise.iter().map(|n| f64::from(n * n)).sum::<f64>();
        let before = power(noise);
        for plane in noise.chunks_mut(height * width) {
            let seen = plane.to_vec();
            let at = |y: usize, x: usize, [down, right]: Sides| {
                let y = (y as isize + down).rem_euclid(height as isize) as usize;
                seen[y * width + (x as isize + right).rem_euclid(width as isize) as usize]
            };
            for (i, n) in plane.iter_mut().enumerate() {
                let (y, x) = (i / width, i % width);
                let pair = |[down, right]: Sides| [at(y, x, [down, right]), at(y, x, [-down, -right])];
                *n = match self.sides(y, x) {
                    [] => *n,
                    [one] => 0.5 * pair(*one).iter().sum::<f32>(),
                    [one, other, ..] => {
                        let (one, other) = (pair(*one), pair(*other));
                        let off = |[a, b]: [f32; 2]| (a - b).abs();
                        match self.directed {
                            true => {
                                0.5 * (if off(one) < off(other) { one } else { other }).iter().sum::<f32>()
                            }
                            false => 0.25 * one.iter().chain(&other).sum::<f32>(),
                        }
                    }
                };
            }
        }
        filter_noise(noise, size, &[(); 2].map(|()| gaussian(sigma)));
        let factor = (before / power(noise).max(1e-30)).sqrt() as f32;
        noise.iter_mut().for_each(|n| *n *= factor);
        correlation_of(noise, [height, width])
    }
}

/// Lags that a correlation is measured over.
const NEAR: isize = 2;

/// The correlation of planes of noise between neighbouring pixels; planes are periodic.
fn correlation_of(noise: &[f32], [height, width]: [usize; 2]) -> Correlation {
    let product = |dy: isize, dx: isize| {
        let inside = |p: usize, d: isize, n: usize| (p as isize + d).rem_euclid(n as isize) as usize;
        let of = |plane: &[f32]| {
            let row = |y: usize| {
                let (a, b) = (&plane[y * width..][..width], &plane[inside(y, dy, height) * width..][..width]);
                (0..width).map(|x| f64::from(a[x] * b[inside(x, dx, width)])).sum::<f64>()
            };
            (0..height).map(row).sum::<f64>()
        };
        noise.chunks(height * width).map(of).sum::<f64>()
    };
    let all = product(0, 0).max(1e-30);
    Correlation::from_lags(|dy, dx| if dy.max(dx.abs()) > NEAR { 0.0 } else { product(dy, dx) / all })
}

/// The taps of a Gaussian filter; of none, where it has no width.
fn gaussian(sigma: f64) -> Vec<f64> {
    if sigma <= 0.0 {
        return vec![1.0];
    }
    let reach = (3.0 * sigma).ceil() as isize;
    (-reach..=reach).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect()
}

/// Independent noise behind filters along Y and X, its variances as before; the image is periodic.
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
    fn noise_has_the_stated_correlation() {
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
    fn a_mosaic_shares_noise_by_its_interpolation() {
        let n = 512;
        // Variance of interpolated pixels over that of the others, and the lags (0, 1), (1, 1) and (0, 2), by the filters'
        // products: a cross of quarters, or triangles along both axes. Means of the two that differ least are those of two.
        let cases = [
            (true, false, 0.25, [0.4, 0.1, 0.05]),
            (false, false, 1.25 / 3.0, [2.0 / 3.0, 4.0 / 9.0, 1.0 / 6.0]),
            (true, true, 0.5, [1.0 / 3.0, f64::NAN, f64::NAN]),
        ];
        for (green, directed, others, lags) in cases {
            let mosaic = Mosaic { green, directed, at: [0, 1] };
            let mut noise = vec![0f32; n * n];
            Key { seed: 3, step: 1, stream: 5 }.fill_normal(0, &mut noise);
            let told = mosaic.share(&mut noise, &[n, n], 0.0);
            let variance = |seen: bool| {
                let inside = (0..n * n).filter(|i| mosaic.sides(i / n, i % n).is_empty() == seen);
                let (sum, count) =
                    inside.fold((0.0, 0.0), |(s, c), i| (s + f64::from(noise[i]).powi(2), c + 1.0));
                sum / count
            };
            let got = variance(false) / variance(true);
            assert!((got - others).abs() < 0.02, "{mosaic:?}: {got}");
            for ((dy, dx), want) in
                [(0, 1), (1, 1), (0, 2)].into_iter().zip(lags).filter(|(_, l)| !l.is_nan())
            {
                assert!((told.at(dy, dx) - want).abs() < 0.015, "{mosaic:?} {dy} {dx}: {}", told.at(dy, dx));
            }
        }
    }
}
