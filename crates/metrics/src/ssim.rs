//! Structural similarity (Wang et al., 2004), as computed by scikit-image.
//!
//! Means, variances and the covariance of the two images in a window around each pixel give a map; the score is its mean
//! over the pixels whose window is inside the image and that the mask includes. The window is uniform or Gaussian, in two
//! or three dimensions. A NaN gives NaN in the windows that contain it.
//!
//! In scenes that are mostly empty, the background dominates the score; use a mask of the foreground there.

use crate::error::{require, require_positive};
use crate::filter::{Kernel, filter};
use crate::image::cropped;
use crate::{MetricError, Pair};

/// How far a Gaussian window reaches, in sigmas.
const TRUNCATE: f64 = 3.5;

/// The window that statistics are taken in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// An odd number of pixels along each axis, all of one weight.
    Uniform { size: usize },
    /// Gaussian weights, cut at 3.5 sigma: 11 pixels for sigma 1.5.
    Gaussian { sigma: f64 },
}

/// The parameters of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ssim {
    pub window: Window,
    /// Variances with N - 1 in place of N, where N is the window's number of pixels.
    pub sample_covariance: bool,
    /// The largest less the smallest value that an image can have.
    pub data_range: f64,
    /// The constants that keep quotients of small numbers quiet: 0.01 and 0.03 in the paper.
    pub k1: f64,
    pub k2: f64,
}

impl Ssim {
    /// scikit-image's choice when nothing but the range is given: a uniform window of 7.
    pub fn uniform7(data_range: f64) -> Ssim {
        Ssim { window: Window::Uniform { size: 7 }, sample_covariance: true, data_range, k1: 0.01, k2: 0.03 }
    }

    /// The paper's choice: a Gaussian window of sigma 1.5.
    pub fn wang2004(data_range: f64) -> Ssim {
        Ssim {
            window: Window::Gaussian { sigma: 1.5 },
            sample_covariance: false,
            data_range,
            k1: 0.01,
            k2: 0.03,
        }
    }

    /// The window's extent along each axis, in pixels.
    pub fn window_size(&self) -> usize {
        match self.window {
            Window::Uniform { size } => size,
            // Sigmas that are NaN or too large are refused by `check`.
            Window::Gaussian { sigma } => 2 * ((TRUNCATE * sigma + 0.5) as usize).min(usize::MAX / 4) + 1,
        }
    }

    /// # Errors
    /// If a parameter is out of its range or the window is larger than the image.
    fn check(&self, shape: &[usize]) -> Result<(), MetricError> {
        require_positive("the data range", self.data_range)?;
        require(self.k1 >= 0.0, "k1", self.k1, "zero or more")?;
        require(self.k2 >= 0.0, "k2", self.k2, "zero or more")?;
        if let Window::Gaussian { sigma } = self.window {
            require_positive("sigma", sigma)?;
        }
        let size = self.window_size();
        require(size % 2 == 1, "the window's size", size as f64, "an odd number")?;
        let alone = size == 1 && self.sample_covariance;
        require(!alone, "the window's size", 1.0, "more than one pixel for a sample covariance")?;
        if shape.iter().any(|&s| s < size) {
            return Err(MetricError::Window { window: size, shape: shape.to_vec() });
        }
        Ok(())
    }

    fn kernel(&self) -> Kernel {
        match self.window {
            Window::Uniform { size } => Kernel::Uniform(size),
            Window::Gaussian { sigma } => Kernel::gaussian(sigma, self.window_size() / 2),
        }
    }

    /// The similarity at each pixel; near the border with mirrored values.
    ///
    /// # Errors
    /// If a parameter is out of its range or the window is larger than the image.
    pub fn map(&self, pair: &Pair<'_>) -> Result<Vec<f64>, MetricError> {
        let Maps { luminance, structure } = self.maps(pair)?;
        Ok(luminance.iter().zip(&structure).map(|(l, s)| l * s).collect())
    }

    /// The mean similarity of the pixels that count and whose window lies in the image; NaN where the
    /// mask leaves none of those.
    ///
    /// # Errors
    /// As [`Ssim::map`].
    pub fn mean(&self, pair: &Pair<'_>) -> Result<f64, MetricError> {
        Ok(self.inner_mean(&self.map(pair)?, pair))
    }

    /// The two factors of the similarity.
    pub(crate) fn maps(&self, pair: &Pair<'_>) -> Result<Maps, MetricError> {
        self.check(pair.shape())?;
        let (kernel, shape) = (self.kernel(), pair.shape());
        let (t, x) = (pair.truth(), pair.image());
        let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
            let ab: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
            filter(&ab, shape, &kernel)
        };
        let (ut, ux) = (filter(t, shape, &kernel), filter(x, shape, &kernel));
        let (utt, uxx, utx) = (product(t, t), product(x, x), product(t, x));
        let pixels = (self.window_size() as f64).powi(shape.len() as i32);
        let norm = if self.sample_covariance { pixels / (pixels - 1.0) } else { 1.0 };
        let (c1, c2) = ((self.k1 * self.data_range).powi(2), (self.k2 * self.data_range).powi(2));
        let luminance = |i: usize| (2.0 * ut[i] * ux[i] + c1) / (ut[i] * ut[i] + ux[i] * ux[i] + c1);
        let structure = |i: usize| {
            let variances = norm * (utt[i] - ut[i] * ut[i]) + norm * (uxx[i] - ux[i] * ux[i]);
            (2.0 * norm * (utx[i] - ut[i] * ux[i]) + c2) / (variances + c2)
        };
        let each = 0..t.len();
        Ok(Maps {
            luminance: each.clone().map(luminance).collect(),
            structure: each.map(structure).collect(),
        })
    }

    /// The mean of a map over the pixels that count and whose window lies in the image.
    pub(crate) fn inner_mean(&self, map: &[f64], pair: &Pair<'_>) -> f64 {
        let border = vec![self.window_size() / 2; pair.shape().len()];
        let inner = cropped(map, pair.shape(), &border);
        let mask = pair.mask().map(|m| cropped(m, pair.shape(), &border));
        let counts = |i: usize| mask.as_ref().is_none_or(|m| m[i]);
        let counted = inner.iter().enumerate().filter(|&(i, _)| counts(i));
        let (sum, n) = counted.fold((0.0, 0usize), |(sum, n), (_, s)| (sum + s, n + 1));
        sum / n as f64
    }
}

/// The similarity's factors at each pixel.
pub(crate) struct Maps {
    /// Of the means.
    pub luminance: Vec<f64>,
    /// Of variances and covariance: contrast and structure in one.
    pub structure: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crop, ImageRef, Rounding};

    fn pair<'a>(t: &'a [f64], x: &'a [f64], shape: &'a [usize], mask: Option<&'a [bool]>) -> Pair<'a> {
        let view = |x| ImageRef::new(x, shape).unwrap();
        Pair::new(view(t), view(x), mask, Rounding::Keep, Crop::Nothing).unwrap()
    }

    fn waves(n: usize) -> (Vec<f64>, Vec<f64>) {
        let truth: Vec<f64> = (0..n).map(|i| 0.5 + 0.4 * (i as f64 * 0.7).sin()).collect();
        let image = truth.iter().enumerate().map(|(i, t)| t + 0.1 * (i as f64 * 1.3).cos()).collect();
        (truth, image)
    }

    /// Flat images have no variance: what is left is the luminance term.
    #[test]
    fn flat_images_compare_by_their_means() {
        let (t, x) = ([0.2; 81], [0.6; 81]);
        for ssim in [Ssim { window: Window::Uniform { size: 5 }, ..Ssim::uniform7(1.0) }, Ssim::uniform7(1.0)]
        {
            let expected = (2.0 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4);
            let got = ssim.mean(&pair(&t, &x, &[9, 9], None)).unwrap();
            assert!((got - expected).abs() < 1e-12, "{got} {expected}");
        }
    }

    #[test]
    fn one_window_by_hand() {
        let (t, x) = waves(9);
        let ssim = Ssim { window: Window::Uniform { size: 3 }, ..Ssim::uniform7(2.0) };
        let mean = |v: &[f64]| v.iter().sum::<f64>() / 9.0;
        let (ut, ux) = (mean(&t), mean(&x));
        let cov = |a: &[f64], b: &[f64], ua: f64, ub: f64| {
            a.iter().zip(b).map(|(a, b)| (a - ua) * (b - ub)).sum::<f64>() / 8.0
        };
        let (c1, c2) = (0.02f64.powi(2), 0.06f64.powi(2));
        let expected = (2.0 * ut * ux + c1) * (2.0 * cov(&t, &x, ut, ux) + c2)
            / ((ut * ut + ux * ux + c1) * (cov(&t, &t, ut, ut) + cov(&x, &x, ux, ux) + c2));
        let got = ssim.mean(&pair(&t, &x, &[3, 3], None)).unwrap();
        assert!((got - expected).abs() < 1e-14, "{got} {expected}");
    }

    #[test]
    fn the_mask_chooses_from_the_map() {
        let (t, x) = waves(12 * 10);
        let ssim = Ssim::uniform7(1.0);
        let map = ssim.map(&pair(&t, &x, &[12, 10], None)).unwrap();
        let mut mask = vec![false; 120];
        (mask[4 * 10 + 5], mask[7 * 10 + 3], mask[0]) = (true, true, true);
        let got = ssim.mean(&pair(&t, &x, &[12, 10], Some(&mask))).unwrap();
        assert!((got - 0.5 * (map[45] + map[73])).abs() < 1e-15);
        mask.fill(false);
        mask[0] = true;
        assert!(ssim.mean(&pair(&t, &x, &[12, 10], Some(&mask))).unwrap().is_nan());
    }

    #[test]
    fn bad_parameters_are_refused() {
        let (t, x) = waves(64);
        let p = pair(&t, &x, &[8, 8], None);
        let refused = |ssim: Ssim| ssim.mean(&p).unwrap_err();
        let base = Ssim::uniform7(1.0);
        assert!(matches!(refused(Ssim::wang2004(1.0)), MetricError::Window { window: 11, .. }));
        for size in [0, 4, 9, usize::MAX] {
            refused(Ssim { window: Window::Uniform { size }, ..base });
        }
        refused(Ssim { window: Window::Uniform { size: 1 }, ..base });
        for sigma in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 0.01] {
            refused(Ssim { window: Window::Gaussian { sigma }, ..base });
        }
        refused(Ssim { data_range: 0.0, ..base });
        refused(Ssim { k1: -1.0, ..base });
    }
}
