//! Binning: means over blocks of pixels, as from a coarser camera, and images with given block means.
//!
//! Blocks are square and within a plane; at the far edges they may be smaller. They are used for restoring from coarse
//! to fine and for binning under a time limit.

use super::Error;
use super::field::Scratch;
use super::measured::{Camera, Measured, Values};
use clearshot_physics::Correlation;

/// The blocks of an image of one size.
#[derive(Clone, Debug)]
pub struct Blocks {
    size: Vec<usize>,
    channels: usize,
    side: usize,
}

impl Blocks {
    /// Blocks of `side` x `side` pixels of an image of (Z,) Y, X.
    pub fn new(size: &[usize], channels: usize, side: usize) -> Blocks {
        Blocks { size: size.to_vec(), channels, side: side.max(1) }
    }

    /// The sizes of the coarse image.
    pub fn coarse(&self) -> Vec<usize> {
        let planar = self.size.len() - 2;
        let of = |(a, n): (usize, &usize)| if a < planar { *n } else { n.div_ceil(self.side) };
        self.size.iter().enumerate().map(of).collect()
    }

    /// Calls `f` with the place of every value and that of its block's.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        let [.., height, width] = self.size[..] else { return };
        let [.., rows, columns] = self.coarse()[..] else { return };
        let (c, planes) = (self.channels, self.size[..self.size.len() - 2].iter().product::<usize>());
        for z in 0..planes {
            for y in 0..height {
                for x in 0..width {
                    let fine = ((z * height + y) * width + x) * c;
                    let coarse = ((z * rows + y / self.side) * columns + x / self.side) * c;
                    (0..c).for_each(|ch| f(fine + ch, coarse + ch));
                }
            }
        }
    }

    /// The mean of every block.
    pub fn means(&self, values: &[f32]) -> Vec<f32> {
        let len = self.coarse().iter().product::<usize>() * self.channels;
        let (mut sums, mut counts) = (vec![0f64; len], vec![0f64; len]);
        self.each(|fine, coarse| {
            sums[coarse] += f64::from(values[fine]);
            counts[coarse] += 1.0;
        });
        sums.iter().zip(counts).map(|(sum, n)| (sum / n) as f32).collect()
    }

    /// The image with a constant value in each block.
    pub fn spread(&self, means: &[f32]) -> Vec<f32> {
        let mut values = vec![0.0; self.size.iter().product::<usize>() * self.channels];
        self.each(|fine, coarse| values[fine] = means[coarse]);
        values
    }

    /// Projects to the nearest image with these block means.
    pub fn project(&self, values: &mut [f32], means: &[f32]) {
        let now = self.means(values);
        self.each(|fine, coarse| {
            values[fine] =
                (f64::from(values[fine]) + f64::from(means[coarse]) - f64::from(now[coarse])) as f32;
        });
    }
}

impl Camera {
    /// The camera of means over blocks of `side` x `side` pixels. A mean over n pixels has the same counts and an n
    /// times smaller variance, as if every count were n times as many electrons; correlated noise is averaged less.
    pub fn binned(&self, side: usize) -> Camera {
        let side = side.max(1) as isize;
        // The sum of the correlations of all pixels of a block with those of another that lies so many blocks away.
        let shared = |by: isize, bx: isize| {
            let pairs = |a: isize| (0..side).flat_map(move |i| (0..side).map(move |j| a * side + j - i));
            pairs(by).map(|dy| pairs(bx).map(|dx| self.correlation.at(dy, dx)).sum::<f64>()).sum::<f64>()
        };
        let own = shared(0, 0);
        let factor = (side * side * side * side) as f64 / own;
        let correlation = match self.correlation.is_white() {
            true => Correlation::WHITE,
            false => Correlation::from_lags(|dy, dx| shared(dy, dx) / own),
        };
        Camera {
            gain: self.gain * factor,
            offset: self.offset,
            read_noise: self.read_noise * factor.sqrt(),
            background: self.background.map(|b| b * factor),
            correlation,
        }
    }
}

impl Measured {
    /// The means over blocks of pixels; a block without valid pixels is filled in like an invalid pixel.
    ///
    /// # Errors
    /// If most pixels are invalid, or there is not enough memory or disk space.
    pub fn binned(&self, side: usize, scratch: &Scratch) -> Result<Measured, Error> {
        let blocks = Blocks::new(&self.size, self.channels, side);
        let mut means = blocks.means(&self.values);
        if self.valid.is_some() {
            // The mean of what was measured, and nothing where nothing was.
            let valid: Vec<f32> = self.valid_values().iter().map(|v| f32::from(u8::from(*v))).collect();
            let kept: Vec<f32> =
                self.values.iter().zip(&valid).map(|(v, k)| if *k > 0.0 { *v } else { 0.0 }).collect();
            let (kept, share) = (blocks.means(&kept), blocks.means(&valid));
            let of = |(mean, share): (&f32, &f32)| if *share > 0.0 { mean / share } else { f32::NAN };
            means = kept.iter().zip(&share).map(of).collect();
        }
        let values = Values { values: &means, size: &blocks.coarse(), channels: self.channels };
        Measured::read(&values, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    #[test]
    fn blocks_have_their_means_and_images_can_be_given_others() {
        let blocks = Blocks::new(&[2, 5, 4], 2, 2);
        assert_eq!(blocks.coarse(), [2, 3, 2]);
        let mut values = vec![0.0; 2 * 5 * 4 * 2];
        Key { seed: 1, step: 0, stream: 0 }.fill_normal(0, &mut values);
        let means = blocks.means(&values);
        // The first block of the second plane and channel, and the last row, which is half as high.
        let at = |z: usize, y: usize, x: usize, c: usize| values[((z * 5 + y) * 4 + x) * 2 + c];
        let first = (at(1, 0, 0, 1) + at(1, 0, 1, 1) + at(1, 1, 0, 1) + at(1, 1, 1, 1)) / 4.0;
        let last = (at(0, 4, 2, 0) + at(0, 4, 3, 0)) / 2.0;
        assert!(
            (means[(3 * 2) * 2 + 1] - first).abs() < 1e-6 && (means[(2 * 2 + 1) * 2] - last).abs() < 1e-6
        );
        let wanted: Vec<f32> = (0..means.len()).map(|i| i as f32 * 0.1).collect();
        let before = values.clone();
        blocks.project(&mut values, &wanted);
        assert!(blocks.means(&values).iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5));
        // Within a block all pixels moved alike.
        let moved: Vec<f32> = values.iter().zip(&before).map(|(a, b)| a - b).collect();
        assert!((moved[0] - moved[2]).abs() < 1e-5);
        assert_eq!(blocks.means(&blocks.spread(&wanted)), wanted);
    }

    /// The noise of means of drawn images is what the camera of means says, for noise of its own in every pixel and for noise that neighbours share.
    #[test]
    fn the_camera_of_means_has_the_noise_of_means() {
        let camera = Camera { gain: 0.5, offset: 100.0, read_noise: 2.0, ..Camera::default() };
        let (n, mean) = (256usize, 140.0);
        for correlation in [Correlation::WHITE, Correlation::gaussian([0.6, 0.6])] {
            let camera = Camera { correlation, ..camera };
            let mut white = vec![0f32; n * n];
            Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut white);
            // The same spectrum by a filter: Gaussian noise whose correlation is that of a Gaussian blur.
            let noise = match correlation.is_white() {
                true => white,
                false => correlated(&white, n, 0.6),
            };
            let deviation = camera.deviation(mean);
            let values: Vec<f32> = noise.iter().map(|v| (mean + deviation * f64::from(*v)) as f32).collect();
            let means = Blocks::new(&[n, n], 1, 2).means(&values);
            let found =
                means.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / means.len() as f64;
            let told = camera.binned(2).deviation(mean).powi(2);
            // 16384 means, whose variance is known to about a hundredth.
            assert!((found / told - 1.0).abs() < 0.06, "{correlation:?}: {found} for {told}");
        }
        let twice = camera.binned(2).binned(2);
        let at_once = camera.binned(4);
        assert!((twice.gain / at_once.gain - 1.0).abs() < 1e-12);
        assert!((twice.read_noise / at_once.read_noise - 1.0).abs() < 1e-12);
    }

    /// White noise blurred by a Gaussian and scaled to a variance of 1, with edges that wrap.
    fn correlated(white: &[f32], n: usize, sigma: f64) -> Vec<f32> {
        let kernel: Vec<f64> = (-4i64..=4).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
        let norm: f64 = kernel.iter().map(|k| k * k).sum::<f64>();
        let pass = |values: Vec<f64>, step: usize| -> Vec<f64> {
            let of = |i: usize| {
                let (y, x) = (i / n, i % n);
                let sum = kernel.iter().enumerate().map(|(k, weight)| {
                    let shift = |p: usize| (p + n + k - 4) % n;
                    weight * if step == 1 { values[y * n + shift(x)] } else { values[shift(y) * n + x] }
                });
                sum.sum::<f64>() / norm.sqrt()
            };
            (0..n * n).map(of).collect()
        };
        let across = pass(white.iter().map(|v| f64::from(*v)).collect(), 1);
        pass(across, n).iter().map(|v| *v as f32).collect()
    }
}
