//! What samples and residuals come to: mean and standard deviation at each pixel, and how well a restored image
//! explains the measurement.

use super::Error;
use super::field::{Field, Scratch};
use super::measured::{Camera, Measured};
use rayon::prelude::*;

/// Mean and squared deviations of samples, one after another (Welford).
pub struct Moments {
    mean: Field,
    squares: Field,
    count: usize,
}

impl Moments {
    /// # Errors
    /// If there is no room.
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
}

/// Half the side of the square over which residuals are averaged.
pub const CHI2_REACH: usize = 7;

/// The local mean of squared normalised residuals, (y - mean)^2 / (mean + read variance), over squares of
/// 15 x 15 valid pixels, plane by plane, and the mean of all. About 1 where what is left over is noise; well below,
/// the image follows the noise; well above, something in the measurement is not explained.
///
/// `mean` and `y` are electrons, background included. Pixels where nothing near is valid are NaN.
///
/// # Errors
/// If there is no room.
pub fn chi2(
    y: &[f32],
    mean: &[f32],
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
    let residual = |i: usize| f64::from(normalised(y[i], mean[i], read_noise)).powi(2);
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

/// The mean of squared normalised residuals of a restored image in its file's unit, without a map and without a PSF.
pub fn mean_chi2(measured: &Measured, image: &[f32], camera: &Camera) -> Option<f64> {
    let c = measured.channels;
    let read_noise = camera.read_noise as f32;
    let (mut sum, mut count) = (0.0, 0usize);
    for (i, (&y, &mean)) in measured.values.iter().zip(image).enumerate() {
        if measured.valid.as_ref().is_none_or(|v| v[i / c]) {
            sum += f64::from(normalised(camera.electrons(y), camera.electrons(mean), read_noise)).powi(2);
            count += 1;
        }
    }
    (count > 0).then(|| sum / count as f64)
}

/// The residual in units of its noise's standard deviation, as the restored mean has it.
pub fn normalised(y: f32, mean: f32, read_noise: f32) -> f32 {
    // Means below a hundredth of an electron are as good as dark.
    (y - mean) / (mean.max(0.01) + read_noise * read_noise).sqrt()
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
            let (map, all) = chi2(&y, &mean, Some(&valid), 0.5, &size, channels, &scratch).unwrap();
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
                if valid[p] {
                    total += f64::from(normalised(y[i], mean[i], 0.5)).powi(2);
                    count += 1.0;
                }
            }
            assert!((all.unwrap() - total / count).abs() < 1e-9);
        }
    }
}
