//! Statistics of samples and residuals: mean and standard deviation of each pixel, and chi2.

use super::Error;
use super::field::{Field, Scratch};
use super::measured::{Camera, Measured};
use rayon::prelude::*;

/// Running mean and squared deviations of samples (Welford).
pub struct Moments {
    mean: Field,
    squares: Field,
    count: usize,
}

impl Moments {
    /// # Errors
    /// If there is not enough memory or disk space.
    pub fn new(len: usize, scratch: &Scratch) -> Result<Moments, Error> {
        Ok(Moments { mean: scratch.field(len)?, squares: scratch.field(len)?, count: 0 })
    }

    pub fn add(&mut self, sample: &[f32]) {
        self.count += 1;
        let n = self.count as f32;
        self.mean.par_iter_mut().zip(self.squares.par_iter_mut()).zip(sample).for_each(
            |((mean, squares), x)| {
                let delta = x - *mean;
                *mean += delta / n;
                *squares += delta * (x - *mean);
            },
        );
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The mean, and the standard deviation of the distribution that the samples are drawn from; zero where there
    /// is only one.
    pub fn finish(mut self) -> (Field, Field) {
        let freedom = self.count.saturating_sub(1).max(1) as f32;
        self.squares.par_iter_mut().for_each(|s| *s = (*s / freedom).max(0.0).sqrt());
        (self.mean, self.squares)
    }

    /// The standard deviation about an image other than the mean of the samples; the difference of the two is included.
    pub fn finish_about(mut self, centre: &[f32]) -> Field {
        let n = self.count.max(1) as f32;
        self.squares.par_iter_mut().zip(self.mean.par_iter()).zip(centre).for_each(|((s, mean), c)| {
            *s = (*s / n + (mean - c) * (mean - c)).max(0.0).sqrt();
        });
        self.squares
    }
}

/// Standard deviations whose squares are averaged over 3 x 3 pixels (fewer at the edges), plane by plane: a few samples
/// of one pixel give a very uncertain value, and the posterior of its neighbours is similar.
pub fn pooled(deviation: &[f32], size: &[usize], channels: usize, out: &mut [f32]) {
    let [.., height, width] = size[..] else { return };
    let row = width * channels;
    out.par_chunks_mut(row).enumerate().for_each(|(r, out)| {
        let (plane, line) = (r / height * height, r % height);
        let lines = line.saturating_sub(1)..(line + 2).min(height);
        for (i, out) in out.iter_mut().enumerate() {
            let (x, c) = (i / channels, i % channels);
            let (mut sum, mut count) = (0.0, 0.0);
            for l in lines.clone() {
                for x in x.saturating_sub(1)..(x + 2).min(width) {
                    sum += deviation[(plane + l) * row + x * channels + c].powi(2);
                    count += 1.0;
                }
            }
            *out = (sum / count).sqrt();
        }
    });
}

/// Half the side of the square over which residuals are averaged.
pub const CHI2_REACH: usize = 7;

/// The number of neighbouring pixels along an axis.
pub fn neighbours(at: usize, size: usize) -> usize {
    (at + CHI2_REACH + 1).min(size) - at.saturating_sub(CHI2_REACH)
}

/// The local mean of squared normalised residuals, (y - mean)^2 / (mean + read variance), over squares of
/// 15 x 15 valid pixels, plane by plane, and the mean of all. About 1 if the residual is noise; well below 1 if the
/// image follows the noise; well above 1 if structure in the measurement is not explained.
///
/// With the standard deviation of the posterior it is the mean over the posterior: the mean image alone follows the
/// measurement by the ratio of posterior variance to noise variance, which is added here.
///
/// `mean`, `deviation` and `y` are electrons, background included. Pixels without valid neighbours are NaN.
///
/// # Errors
/// If there is not enough memory or disk space.
pub fn chi2(
    y: &[f32],
    mean: &[f32],
    deviation: Option<&[f32]>,
    valid: Option<&[bool]>,
    read_noise: f32,
    size: &[usize],
    channels: usize,
    scratch: &Scratch,
) -> Result<(Field, Option<f64>), Error> {
    let (width, height) = (size[size.len() - 1], size[size.len() - 2]);
    let (row, plane) = (width * channels, width * height * channels);
    let mut rows = scratch.field(y.len())?;
    let mut counts = scratch.field(y.len())?;
    let holds = |pixel: usize| valid.is_none_or(|v| v[pixel]);
    let residual = |i: usize| square(y[i], mean[i], deviation.map_or(0.0, |d| d[i]), read_noise);
    // Sums along X, then along Y; counts of valid pixels likewise.
    let parts = rows.par_chunks_mut(row).zip(counts.par_chunks_mut(row)).enumerate();
    let (sum, count) = parts
        .map(|(r, (sums, counts))| {
            let (mut total, mut number) = (0.0f64, 0usize);
            for c in 0..channels {
                let at = |x: usize| r * row + x * channels + c;
                let value = |x: usize| if holds(at(x) / channels) { residual(at(x)) } else { 0.0 };
                let one = |x: usize| f64::from(u8::from(holds(at(x) / channels)));
                let mut run = [0.0f64; 2];
                (0..CHI2_REACH.min(width)).for_each(|x| run = [run[0] + value(x), run[1] + one(x)]);
                for x in 0..width {
                    if x + CHI2_REACH < width {
                        run = [run[0] + value(x + CHI2_REACH), run[1] + one(x + CHI2_REACH)];
                    }
                    if x > CHI2_REACH {
                        let gone = x - CHI2_REACH - 1;
                        run = [run[0] - value(gone), run[1] - one(gone)];
                    }
                    (sums[x * channels + c], counts[x * channels + c]) =
                        (run[0].max(0.0) as f32, run[1] as f32);
                    total += value(x);
                    number += usize::from(holds(at(x) / channels));
                }
            }
            (total, number)
        })
        .collect::<Vec<_>>()
        .into_iter()
        .fold((0.0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let mut map = scratch.field(y.len())?;
    map.par_chunks_mut(row).enumerate().for_each(|(r, out)| {
        let (z, line) = (r / height, r % height);
        let near = line.saturating_sub(CHI2_REACH)..(line + CHI2_REACH + 1).min(height);
        for (i, out) in out.iter_mut().enumerate() {
            let at = |l: usize| z * plane + l * row + i;
            let total: f64 = near.clone().map(|l| f64::from(rows[at(l)])).sum();
            let number: f64 = near.clone().map(|l| f64::from(counts[at(l)])).sum();
            *out = (total / number) as f32;
        }
    });
    Ok((map, (count > 0).then(|| sum / count as f64)))
}

/// The local mean of values over valid pixels, with the same squares as for residuals.
///
/// # Errors
/// If there is not enough memory or disk space.
pub fn local_mean(
    values: &[f32],
    valid: Option<&[bool]>,
    size: &[usize],
    channels: usize,
    scratch: &Scratch,
) -> Result<Field, Error> {
    let [.., height, width] = size[..] else { return scratch.field(values.len()) };
    let row = width * channels;
    let holds = |i: usize| valid.is_none_or(|v| v[i / channels]);
    let [mut sums, mut counts] = [scratch.field(values.len())?, scratch.field(values.len())?];
    sums.par_chunks_mut(row).zip(counts.par_chunks_mut(row)).enumerate().for_each(|(r, (sums, counts))| {
        for i in 0..row {
            let (x, c) = (i / channels, i % channels);
            let near = x.saturating_sub(CHI2_REACH)..(x + CHI2_REACH + 1).min(width);
            let places = near.map(|x| r * row + x * channels + c).filter(|&at| holds(at));
            let (sum, count) = places.fold((0.0, 0.0), |(s, n), at| (s + values[at], n + 1.0));
            (sums[i], counts[i]) = (sum, count);
        }
    });
    let mut mean = scratch.field(values.len())?;
    mean.par_chunks_mut(row).enumerate().for_each(|(r, out)| {
        let (plane, line) = (r / height * height, r % height);
        let near = line.saturating_sub(CHI2_REACH)..(line + CHI2_REACH + 1).min(height);
        for (i, out) in out.iter_mut().enumerate() {
            let total = |of: &Field| near.clone().map(|l| of[(plane + l) * row + i]).sum::<f32>();
            *out = total(&sums) / total(&counts);
        }
    });
    Ok(mean)
}

/// The same mean for a restored image in the unit of the file, without a map and without a PSF.
pub fn mean_chi2(
    measured: &Measured,
    image: &[f32],
    deviation: Option<&[f32]>,
    camera: &Camera,
) -> Option<f64> {
    let c = measured.channels;
    let read_noise = camera.read_noise as f32;
    let (mut sum, mut count) = (0.0, 0usize);
    for (i, (&y, &mean)) in measured.values.iter().zip(image).enumerate() {
        if measured.valid.as_ref().is_none_or(|v| v[i / c]) {
            let deviation = deviation.map_or(0.0, |d| d[i] * camera.gain as f32);
            sum += square(camera.electrons(y), camera.electrons(mean), deviation, read_noise);
            count += 1;
        }
    }
    (count > 0).then(|| sum / count as f64)
}

/// The residual in standard deviations of the noise at the restored mean.
pub fn normalised(y: f32, mean: f32, read_noise: f32) -> f32 {
    (y - mean) / noise(mean, read_noise)
}

/// The standard deviation of the noise; means below a hundredth of an electron count as dark.
pub fn noise(mean: f32, read_noise: f32) -> f32 {
    (mean.max(0.01) + read_noise * read_noise).sqrt()
}

/// The mean squared normalised residual of what a pixel may have been.
fn square(y: f32, mean: f32, deviation: f32, read_noise: f32) -> f64 {
    let residual = f64::from(normalised(y, mean, read_noise));
    residual * residual + f64::from(deviation / noise(mean, read_noise)).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    #[test]
    fn moments_are_those_of_the_samples() {
        let scratch = Scratch::new(usize::MAX, None);
        let samples = [[1.0f32, 5.0, -2.0], [3.0, 5.0, 0.0], [8.0, 5.0, 2.0]];
        let mut moments = Moments::new(3, &scratch).unwrap();
        samples.iter().for_each(|s| moments.add(s));
        let (mean, deviation) = moments.finish();
        assert_eq!(&mean[..], [4.0, 5.0, 0.0]);
        let exact = [13f32.sqrt(), 0.0, 2.0];
        assert!(deviation.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", &deviation[..]);
        let mut moments = Moments::new(3, &scratch).unwrap();
        samples.iter().for_each(|s| moments.add(s));
        let about = moments.finish_about(&[1.0, 5.0, 0.0]);
        // The mean of 0, 4 and 49; of nothing; of 4, 0 and 4.
        let exact = [(53f32 / 3.0).sqrt(), 0.0, (8f32 / 3.0).sqrt()];
        assert!(about.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-5), "{:?}", &about[..]);
    }

    #[test]
    fn chi2_is_the_mean_over_valid_neighbours() {
        let scratch = Scratch::new(usize::MAX, None);
        for (size, channels) in [(vec![20, 31], 1), (vec![3, 9, 17], 2), (vec![1, 4], 1)] {
            let len = size.iter().product::<usize>() * channels;
            let mut y = vec![0.0; len];
            Key { seed: 1, step: 0, stream: 0 }.fill_uniform(0, &mut y);
            let valid: Vec<bool> = (0..len / channels).map(|i| i % 5 != 1).collect();
            let mean: Vec<f32> = (0..len).map(|i| 0.2 + (i % 7) as f32).collect();
            let (map, all) = chi2(&y, &mean, None, Some(&valid), 0.5, &size, channels, &scratch).unwrap();
            let squares: Vec<f32> =
                y.iter().zip(&mean).map(|(y, m)| normalised(*y, *m, 0.5).powi(2)).collect();
            let averaged = local_mean(&squares, Some(&valid), &size, channels, &scratch).unwrap();
            let (h, w) = (size[size.len() - 2], size[size.len() - 1]);
            let (mut total, mut count) = (0.0, 0.0);
            for i in 0..len {
                let (c, p) = (i % channels, i / channels);
                let (x, y0, z) = (p % w, p / w % h, p / w / h);
                let (mut sum, mut n) = (0.0, 0.0);
                for (yy, xx) in (0..h).flat_map(|a| (0..w).map(move |b| (a, b))) {
                    let q = (z * h + yy) * w + xx;
                    if yy.abs_diff(y0) <= 7 && xx.abs_diff(x) <= 7 && valid[q] {
                        sum +=
                            f64::from(normalised(y[q * channels + c], mean[q * channels + c], 0.5)).powi(2);
                        n += 1.0;
                    }
                }
                assert!((f64::from(map[i]) - sum / n).abs() < 1e-5, "{size:?} {i}: {} {}", map[i], sum / n);
                assert!((f64::from(averaged[i]) - sum / n).abs() < 1e-4, "{size:?} {i}: {}", averaged[i]);
                if valid[p] {
                    total += f64::from(normalised(y[i], mean[i], 0.5)).powi(2);
                    count += 1.0;
                }
            }
            assert!((all.unwrap() - total / count).abs() < 1e-9);
        }
    }

    #[test]
    fn pooled_deviations_are_those_of_neighbours_in_the_plane() {
        let size = [2, 3, 4];
        let values: Vec<f32> = (0..48).map(|i| (i * i % 17) as f32).collect();
        let mut made = vec![0.0; 48];
        pooled(&values, &size, 2, &mut made);
        for (z, y, x, c) in [(0, 0, 0, 0), (1, 1, 2, 1), (1, 2, 3, 0), (0, 1, 0, 1)] {
            let near = |at: usize, a: usize| at.abs_diff(a) <= 1;
            let all: Vec<f32> = (0..48)
                .filter(|i| i % 2 == c && near(y, i / 8 % 3) && near(x, i / 2 % 4) && i / 24 == z)
                .map(|i| values[i])
                .collect();
            let exact = (all.iter().map(|v| v * v).sum::<f32>() / all.len() as f32).sqrt();
            assert!((made[((z * 3 + y) * 4 + x) * 2 + c] - exact).abs() < 1e-5);
        }
    }

    /// An object with a normal prior under normal noise: the posterior's mean alone follows the measurement, and with the
    /// posterior's variance the mean square is that of the noise.
    #[test]
    fn what_the_posterior_leaves_open_is_part_of_chi2() {
        let scratch = Scratch::new(usize::MAX, None);
        let n = 100_000;
        let [mut object, mut noise] = [vec![0.0f32; n], vec![0.0; n]];
        Key { seed: 1, step: 0, stream: 0 }.fill_normal(0, &mut object);
        Key { seed: 2, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        // The noise's variance is 1e8 wherever the object is, nearly, and the object has as much itself.
        let y: Vec<f32> = object.iter().zip(&noise).map(|(o, z)| 100.0 + 1e4 * o + 1e4 * z).collect();
        let mean: Vec<f32> = y.iter().map(|v| 100.0 + 0.5 * (v - 100.0)).collect();
        let (read_noise, deviation) = (1e4, vec![5e7f32.sqrt(); n]);
        let of = |d: Option<&[f32]>| {
            chi2(&y, &mean, d, None, read_noise, &[n / 100, 100], 1, &scratch).unwrap().1.unwrap()
        };
        assert!((of(None) - 0.5).abs() < 0.01, "{}", of(None));
        assert!((of(Some(&deviation)) - 1.0).abs() < 0.01, "{}", of(Some(&deviation)));
    }
}
