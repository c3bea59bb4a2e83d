//! Wiener filters: with local statistics for noise, and in Fourier space for blur.

use crate::RestoreError;
use crate::convolve::Convolution;
use crate::error::{require, require_positive};
use crate::frame::Frame;
use clearshot_physics::{Correlation, Psf};
use rayon::prelude::*;

/// The mean of the box around each pixel, plus a fraction of the pixel's deviation from it that depends on the excess
/// of the box's variance over that of the noise (Lee, 1980). Only the standard deviation of the noise is used.
/// Correlated noise contributes less to the variance of a box, because some is in the mean, but this varies more from
/// box to box: on scenes with noise smoothed by 0.5 to 1.2 pixels, subtracting less lost up to 0.4 dB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalWiener {
    /// The box has `2 radius + 1` pixels along every axis longer than one.
    pub radius: usize,
}

impl LocalWiener {
    pub const USUAL: LocalWiener = LocalWiener { radius: 2 };

    pub(super) fn run(&self, frame: Frame<'_>, noise: f32) -> Result<Vec<f32>, RestoreError> {
        let r = self.radius;
        require(
            (1..=50).contains(&r),
            "the radius of the Wiener filter",
            r as f64,
            "a whole number from 1 to 50",
        )?;
        let (padded, wide) = frame.mirrored([r; 3]);
        let [depth, height, width] = frame.size;
        let reach = [0, 1, 2].map(|a| if frame.size[a] > 1 { 2 * r + 1 } else { 1 });
        let share = 1.0 / reach.iter().product::<usize>() as f64;
        let variance = f64::from(noise) * f64::from(noise);
        let mut out = vec![0f32; frame.values.len()];
        out.par_chunks_mut(height * width).enumerate().take(depth).for_each(|(z, plane)| {
            for (y, out) in plane.chunks_mut(width).enumerate() {
                // Sums of columns, then of a window that moves along them.
                let mut sums = vec![[0f64; 2]; wide[2]];
                for dz in 0..reach[0] {
                    for dy in 0..reach[1] {
                        let row = &padded[((z + dz) * wide[1] + y + dy) * wide[2]..][..wide[2]];
                        for (s, &v) in sums.iter_mut().zip(row) {
                            let v = f64::from(v);
                            *s = [s[0] + v, s[1] + v * v];
                        }
                    }
                }
                for (x, o) in out.iter_mut().enumerate() {
                    let window = &sums[x..x + reach[2]];
                    let [sum, squares] = window.iter().fold([0.0; 2], |t, s| [t[0] + s[0], t[1] + s[1]]);
                    let mean = sum * share;
                    let local = (squares * share - mean * mean).max(0.0);
                    let kept = if local > variance { 1.0 - variance / local } else { 0.0 };
                    let v = f64::from(frame.values[(z * height + y) * width + x]);
                    *o = (mean + kept * (v - mean)) as f32;
                }
            }
        });
        Ok(out)
    }
}

/// Removes a blur in one step: `conj(H) / (|H|^2 + balance P)` in Fourier space. `balance` is the ratio of noise power
/// to image power; smaller values are sharper and noisier. P is the noise spectrum, 1 for white noise. The image is
/// mirrored at its edges.
///
/// # Errors
/// If the shape is not filled, a pixel is not finite, the PSF has other axes or is larger than the
/// image, or `balance` is not positive.
pub fn deconvolve(
    image: &[f32],
    shape: &[usize],
    psf: &Psf,
    balance: f32,
    correlation: &Correlation,
) -> Result<Vec<f32>, RestoreError> {
    let frame = Frame::new(image, shape)?;
    require_positive("the balance of the Wiener filter", balance.into())?;
    super::richardson_lucy::check_psf(psf, shape)?;
    Ok(Convolution::seamless(frame.size, psf).wiener(frame.values, balance, correlation))
}
