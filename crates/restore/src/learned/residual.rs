//! Tests the residual between measurement and restored image: camera noise, or more.
//!
//! chi2 tests the size of the residual. This module tests whether neighbouring residuals are correlated beyond the
//! noise of the camera: each residual is divided by its standard deviation and by the noise spectrum, after which it
//! must be white. A statistical test for whiteness would fail for every large image, because a restored image follows
//! the noise a little; the correlation of neighbours shows whether it matters.

use super::measured::{Camera, Measured};
use super::moments::normalised;
use clearshot_metrics::ImageRef;
use clearshot_metrics::residual::whiteness;
use serde::Serialize;

/// The side of the square that is looked at.
const SIDE: usize = 512;
/// Correlations of whitened neighbours from here on matter: fine structure that was smoothed away leaves up to 0.15 along an axis, noise of
/// 0.5 between neighbours that was taken for white leaves 0.33.
const MATTERS: f64 = 0.2;

/// The correlations of neighbours in a whitened residual: 0 for camera noise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LeftOver {
    pub along_x: f64,
    pub along_y: f64,
}

impl LeftOver {
    /// For the centre of an image's middle plane, both in the unit of the file; `None` if it has too few pixels.
    pub fn of(measured: &Measured, image: &[f32], camera: &Camera) -> Option<LeftOver> {
        let [.., height, width] = measured.size[..] else { return None };
        let c = measured.channels;
        let middle = measured.values.len() / (height * width * c) / 2;
        let size = [height.min(SIDE), width.min(SIDE)];
        let first = [(height - size[0]) / 2, (width - size[1]) / 2];
        let read_noise = camera.read_noise as f32;
        let residual = |i: usize| {
            let pixel = (middle * height + first[0] + i / size[1]) * width + first[1] + i % size[1];
            let holds = measured.valid.as_ref().is_none_or(|v| v[pixel]);
            let [y, mean] = [measured.values[pixel * c], image[pixel * c]].map(|v| camera.electrons(v));
            if holds { f64::from(normalised(y, mean, read_noise)) } else { 0.0 }
        };
        let residuals: Vec<f64> = (0..size[0] * size[1]).map(residual).collect();
        let noise = (!camera.correlation.is_white()).then(|| camera.correlation.spectrum(size));
        let found = whiteness(ImageRef::new(&residuals, &size).ok()?, noise.as_deref()).ok()?;
        let [along_y, along_x] = found.neighbours[..] else { return None };
        Some(LeftOver { along_x, along_y })
    }

    /// A description of the problem, if it matters.
    pub fn in_words(&self) -> Option<String> {
        let LeftOver { along_x, along_y } = self;
        (along_x.abs().max(along_y.abs()) >= MATTERS).then(|| {
            format!(
                "what was removed is not the expected noise: after whitening, neighbouring pixels have a correlation of {along_x:.2} along X and {along_y:.2} along Y, where 0 is right; the noise is correlated in another way, or structure was taken for noise: compare with the input, look at a map of chi2 (--chi2), and have the noise estimated from the image if a gain or camera was given"
            )
        })
    }
}
