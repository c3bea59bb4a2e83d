//! Differences of intensity: MSE, MAE, NRMSE, PSNR, SNR.
//!
//! Each is computed over the valid pixels of the [`Pair`]. A NaN among them gives NaN; a NaN outside the mask has no
//! effect. PSNR requires the data range: if it were guessed from the data, the same restoration would get another score
//! with each scene.

use crate::error::require_positive;
use crate::{MetricError, Pair};

/// Mean squared error.
pub fn mse(pair: &Pair<'_>) -> f64 {
    pair.mean(|t, x| (t - x) * (t - x))
}

/// Mean absolute error.
pub fn mae(pair: &Pair<'_>) -> f64 {
    pair.mean(|t, x| (t - x).abs())
}

/// The divisor of the root mean squared error; the names are those of scikit-image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalisation {
    /// The root mean square of the truth.
    Euclidean,
    /// The largest less the smallest true value.
    MinMax,
    /// The mean of the truth.
    Mean,
}

/// Root mean squared error relative to the truth. A truth whose divisor is zero gives infinity, or
/// NaN if the error is zero too.
pub fn nrmse(pair: &Pair<'_>, normalisation: Normalisation) -> f64 {
    let divisor = match normalisation {
        Normalisation::Euclidean => pair.mean(|t, _| t * t).sqrt(),
        Normalisation::MinMax => truth_range(pair),
        Normalisation::Mean => pair.mean(|t, _| t),
    };
    mse(pair).sqrt() / divisor
}

/// f64::max and f64::min skip NaN; the error that this divides does not.
fn truth_range(pair: &Pair<'_>) -> f64 {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = pair.values().fold(start, |(low, high), (t, _)| (low.min(t), high.max(t)));
    high - low
}

/// Peak signal-to-noise ratio in dB, 10 log10(range^2 / MSE); infinite for equal images.
///
/// # Errors
/// If the range is not a finite number above zero.
pub fn psnr(pair: &Pair<'_>, data_range: f64) -> Result<f64, MetricError> {
    require_positive("the data range", data_range)?;
    Ok(10.0 * (data_range * data_range / mse(pair)).log10())
}

/// Signal-to-noise ratio in dB, 10 log10(sum truth^2 / sum error^2); infinite for equal images.
pub fn snr(pair: &Pair<'_>) -> f64 {
    10.0 * (pair.mean(|t, _| t * t) / mse(pair)).log10()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crop, ImageRef, Rounding};

    const TRUTH: [f64; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    const IMAGE: [f64; 6] = [1.5, 2.0, 2.0, 4.0, 7.0, 6.0];

    fn pair<'a>(image: &'a [f64], mask: Option<&'a [bool]>) -> Pair<'a> {
        let view = |x| ImageRef::new(x, &[2, 3]).unwrap();
        Pair::new(view(&TRUTH), view(image), mask, Rounding::Keep, Crop::Nothing).unwrap()
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-14 * b.abs(), "{a} {b}");
    }

    #[test]
    fn by_hand() {
        let p = pair(&IMAGE, None);
        close(mse(&p), 5.25 / 6.0);
        close(mae(&p), 3.5 / 6.0);
        close(nrmse(&p, Normalisation::Euclidean), (5.25f64 / 91.0).sqrt());
        close(nrmse(&p, Normalisation::MinMax), (5.25f64 / 6.0).sqrt() / 5.0);
        close(nrmse(&p, Normalisation::Mean), (5.25f64 / 6.0).sqrt() / 3.5);
        close(psnr(&p, 10.0).unwrap(), 10.0 * (600.0f64 / 5.25).log10());
        close(snr(&p), 10.0 * (91.0f64 / 5.25).log10());
    }

    #[test]
    fn only_valid_pixels_count() {
        let mut image = IMAGE;
        image[1] = f64::NAN;
        let mask = [true, false, true, true, false, false];
        let p = pair(&image, Some(&mask));
        close(mse(&p), 1.25 / 3.0);
        close(mae(&p), 0.5);
        close(nrmse(&p, Normalisation::MinMax), (1.25f64 / 3.0).sqrt() / 3.0);
        assert!(mse(&pair(&image, None)).is_nan() && psnr(&pair(&image, None), 1.0).unwrap().is_nan());
    }

    #[test]
    fn equal_images_have_no_noise() {
        let p = pair(&TRUTH, None);
        assert_eq!((psnr(&p, 1.0).unwrap(), snr(&p)), (f64::INFINITY, f64::INFINITY));
        for range in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(psnr(&p, range).is_err());
        }
    }

    /// RMSE is at least MAE, so no PSNR exceeds 20 log10(range / MAE).
    #[test]
    fn psnr_is_bounded_by_mae() {
        for shift in 1..20 {
            let image = TRUTH.map(|t| t + (t * f64::from(shift)).sin());
            let p = pair(&image, None);
            assert!(psnr(&p, 3.0).unwrap() <= 20.0 * (3.0 / mae(&p)).log10() + 1e-12);
        }
    }
}
