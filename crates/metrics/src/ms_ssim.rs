//! Multi-scale structural similarity (Wang, Simoncelli and Bovik, 2003).
//!
//! Contrast and structure are compared at each of several scales, luminance only at the coarsest; the score is the product
//! of the means, each to the power of the weight of its scale. From one scale to the next, images are averaged over blocks
//! of two pixels along each axis; an odd last pixel is left out. The window must fit into the coarsest scale, so the caller
//! chooses the number of scales: [`scales_that_fit`] returns the largest one. With fewer than five, the first weights are
//! used, scaled so that their sum is 1.
//!
//! A negative mean has no real power; it counts as zero, and the score is then zero.

use crate::error::require;
use crate::ssim::Ssim;
use crate::{Crop, ImageRef, MetricError, Pair, Rounding};

/// The weights of the paper, finest scale first.
pub const WEIGHTS: [f64; 5] = [0.0448, 0.2856, 0.3001, 0.2363, 0.1333];

/// How many scales a window fits into an image, five at most.
pub fn scales_that_fit(shape: &[usize], window_size: usize) -> usize {
    let shortest = shape.iter().copied().min().unwrap_or(0);
    (0..WEIGHTS.len()).take_while(|&scale| shortest >> scale >= window_size.max(1)).count()
}

/// The score over `scales` scales. The mask is averaged along with the images: a coarse pixel counts
/// if all its fine ones do.
///
/// # Errors
/// If there are not 1 to 5 scales, the window does not fit the coarsest, or the mask leaves nothing
/// there.
pub fn ms_ssim(pair: &Pair<'_>, ssim: &Ssim, scales: usize) -> Result<f64, MetricError> {
    require((1..=WEIGHTS.len()).contains(&scales), "the number of scales", scales as f64, "1 to 5")?;
    let sum: f64 = WEIGHTS[..scales].iter().sum();
    let mut level = Level::of(pair);
    let mut score = 1.0;
    for scale in 0..scales {
        if scale > 0 {
            level = level.halved()?;
        }
        let mean = level.compare(ssim, scale + 1 == scales)?;
        // Not `max`, which would make zero of NaN.
        let mean = if mean < 0.0 { 0.0 } else { mean };
        score *= mean.powf(WEIGHTS[scale] / sum);
    }
    Ok(score)
}

/// Both images at one scale.
struct Level {
    truth: Vec<f64>,
    image: Vec<f64>,
    mask: Option<Vec<bool>>,
    shape: Vec<usize>,
}

impl Level {
    fn of(pair: &Pair<'_>) -> Level {
        Level {
            truth: pair.truth().to_vec(),
            image: pair.image().to_vec(),
            mask: pair.mask().map(<[bool]>::to_vec),
            shape: pair.shape().to_vec(),
        }
    }

    fn halved(&self) -> Result<Level, MetricError> {
        if self.shape.iter().any(|&s| s < 2) {
            return Err(MetricError::Window { window: 2, shape: self.shape.clone() });
        }
        let blocks = 1 << self.shape.len();
        let mean = |data: &[f64]| reduce(data, &self.shape, 0.0, |a, b| a + b);
        let scaled = |data: &[f64]| mean(data).iter().map(|x| x / f64::from(blocks)).collect();
        Ok(Level {
            truth: scaled(&self.truth),
            image: scaled(&self.image),
            mask: self.mask.as_ref().map(|m| reduce(m, &self.shape, true, |a, b| a && b)),
            shape: self.shape.iter().map(|s| s / 2).collect(),
        })
    }

    /// The mean of contrast and structure, with luminance at the coarsest scale.
    fn compare(&self, ssim: &Ssim, coarsest: bool) -> Result<f64, MetricError> {
        let truth = ImageRef::new(&self.truth, &self.shape)?;
        let image = ImageRef::new(&self.image, &self.shape)?;
        let pair = Pair::new(truth, image, self.mask.as_deref(), Rounding::Keep, Crop::Nothing)?;
        if coarsest {
            return ssim.mean(&pair);
        }
        Ok(ssim.inner_mean(&ssim.maps(&pair)?.structure, &pair))
    }
}

/// Combines blocks of two elements an axis.
fn reduce<T: Copy>(data: &[T], shape: &[usize], start: T, combine: impl Fn(T, T) -> T) -> Vec<T> {
    let mut data = data.to_vec();
    let mut shape = shape.to_vec();
    for axis in 0..shape.len() {
        let (n, stride) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let blocks = data.chunks_exact(n * stride);
        let pair = |block: &[T], i: usize, s: usize| {
            let at = 2 * i * stride + s;
            combine(combine(start, block[at]), block[at + stride])
        };
        let pair = &pair;
        let block = |b| (0..n / 2).flat_map(move |i| (0..stride).map(move |s| pair(b, i, s)));
        data = blocks.flat_map(block).collect();
        shape[axis] = n / 2;
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssim::Window;

    fn score(t: &[f64], x: &[f64], shape: &[usize], size: usize, scales: usize) -> Result<f64, MetricError> {
        let (t, x) = (ImageRef::new(t, shape)?, ImageRef::new(x, shape)?);
        let ssim = Ssim { window: Window::Uniform { size }, ..Ssim::uniform7(1.0) };
        ms_ssim(&Pair::new(t, x, None, Rounding::Keep, Crop::Nothing)?, &ssim, scales)
    }

    #[test]
    fn blocks_are_combined() {
        let x: Vec<f64> = (0..15).map(f64::from).collect();
        assert_eq!(reduce(&x, &[3, 5], 0.0, |a, b| a + b), [12.0, 20.0]);
        let ones = [1.0; 27];
        assert_eq!(reduce(&ones, &[3, 3, 3], 0.0, |a, b| a + b), [8.0]);
    }

    /// Flat images differ in luminance only, which counts with the last weight.
    #[test]
    fn flat_images_compare_at_the_coarsest_scale() {
        let (t, x) = (vec![0.2; 112 * 115], vec![0.6; 112 * 115]);
        let luminance = (2.0 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4);
        let got = score(&t, &x, &[112, 115], 7, 5).unwrap();
        let expected = f64::powf(luminance, 0.1333 / WEIGHTS.iter().sum::<f64>());
        assert!((got - expected).abs() < 1e-9, "{got} {expected}");
        assert!((score(&t, &t, &[112, 115], 7, 5).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn scales_must_fit() {
        assert_eq!(scales_that_fit(&[112, 400], 7), 5);
        assert_eq!(scales_that_fit(&[111, 400], 7), 4);
        assert_eq!(scales_that_fit(&[3, 400], 7), 0);
        let x = vec![0.0; 400];
        assert!(matches!(score(&x, &x, &[20, 20], 7, 3), Err(MetricError::Window { window: 7, .. })));
        assert!(score(&x, &x, &[20, 20], 7, 0).is_err() && score(&x, &x, &[20, 20], 7, 6).is_err());
    }

    #[test]
    fn opposite_images_score_zero() {
        let t: Vec<f64> = (0..256).map(|i| f64::from((i / 16 + i) % 2)).collect();
        let x: Vec<f64> = t.iter().map(|t| 1.0 - t).collect();
        assert_eq!(score(&t, &x, &[16, 16], 7, 2).unwrap(), 0.0);
    }
}
