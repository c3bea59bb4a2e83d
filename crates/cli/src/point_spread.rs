//! PSFs for an image: made or cropped to a size that fits it, and what there is to say of that.

use clearshot_physics::psf::{Fitted, NEGLIGIBLE};
use clearshot_physics::{PhysicsError, Psf};

/// A Gaussian of these standard deviations in pixels for an image of this size, and a word where the image has no room for
/// a part of it that matters.
///
/// # Errors
/// If the numbers are no widths, or more than half of the light would lie outside the image.
pub fn gaussian(sigmas: &[f64], image: &[usize]) -> Result<(Psf, Option<String>), PhysicsError> {
    let Fitted { psf, outside } = Psf::gaussian_fitting(sigmas, image)?;
    let said = (outside >= NEGLIGIBLE).then(|| {
        format!(
            "the image has room for {} pixels of the Gaussian PSF; {:.1} % of its light would lie outside",
            psf.shape(),
            100.0 * outside
        )
    });
    Ok((psf, said))
}

/// A measured PSF for an image of this size, and a word where its outer parts, without light, are left out.
///
/// # Errors
/// If it has other axes, or has light beyond the size of the image.
pub fn measured(psf: &Psf, image: &[usize]) -> Result<(Psf, Option<String>), PhysicsError> {
    let Fitted { psf: fitted, outside } = psf.fitting(image)?;
    let said = (fitted.shape() != psf.shape()).then(|| {
        format!(
            "the PSF of {} pixels is cropped to {}; {:.2} % of its light lay outside",
            psf.shape(),
            fitted.shape(),
            100.0 * outside
        )
    });
    Ok((fitted, said))
}
