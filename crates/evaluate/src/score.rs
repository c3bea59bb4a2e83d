//! One method's scores on one case.

use crate::case::Case;
use crate::method::Restored;
use crate::{EvaluateError, Told};
use clearshot_metrics::ssim::Ssim;
use clearshot_metrics::{Crop, ImageRef, Pair, Rounding, intensity, residual};
use clearshot_physics::{Boundary, Operator};
use serde::{Deserialize, Serialize};

/// See the crate for what each number is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    /// dB; equal images count as 150.
    pub psnr: f64,
    pub ssim: f64,
    /// Mean absolute error in units of the peak.
    pub mae: f64,
    pub chi2: f64,
    /// Of 90 % intervals, where the method gives a standard deviation.
    pub coverage: Option<f64>,
    /// The mean standard deviation in units of the peak.
    pub spread: Option<f64>,
}

const MOST_DB: f64 = 150.0;
/// Half the width of a 90 % interval of the normal law.
const NINETY: f64 = 1.644_853_626_951_472_2;

impl Scores {
    /// Scores a restoration. `told` undoes the gain that the method was told wrongly: errors of scale are the
    /// calibration's, and count as such only in what the method made of them.
    ///
    /// # Errors
    /// If the restoration has another size, or the image is too small for SSIM's window.
    pub fn of(case: &Case, restored: &Restored, told: &Told) -> Result<Scores, EvaluateError> {
        let shape = &case.view.shape;
        let unit = |v: f64| (v - case.background) / case.peak;
        let truth: Vec<f64> = case.truth.iter().map(|&v| unit(f64::from(v))).collect();
        let mean: Vec<f64> = restored.mean.iter().map(|&v| f64::from(v) / told.gain).collect();
        let image: Vec<f64> = mean.iter().map(|&v| unit(v)).collect();
        let clip = |x: &[f64]| x.iter().map(|v| v.clamp(0.0, 1.5)).collect::<Vec<f64>>();
        let (clipped_truth, clipped_image) = (clip(&truth), clip(&image));
        let pair = |t, x| -> Result<Pair<'_>, EvaluateError> {
            Ok(Pair::new(
                ImageRef::new(t, shape)?,
                ImageRef::new(x, shape)?,
                None,
                Rounding::Keep,
                Crop::Nothing,
            )?)
        };
        let clipped = pair(&clipped_truth, &clipped_image)?;
        let whole = pair(&truth, &image)?;
        let spread =
            restored.std.as_ref().map(|s| s.iter().map(|&v| f64::from(v) / told.gain).collect::<Vec<_>>());
        let reach = restored.reach.unwrap_or(NINETY);
        let coverage = spread.as_ref().map(|s| {
            let inside = |((t, m), s): ((&f32, &f64), &f64)| (f64::from(*t) - m).abs() <= reach * s;
            let hits = case.truth.iter().zip(&mean).zip(s).filter(|&v| inside(v)).count();
            hits as f64 / mean.len() as f64
        });
        Ok(Scores {
            psnr: intensity::psnr(&clipped, 1.0)?.min(MOST_DB),
            ssim: Ssim::wang2004(1.0).mean(&whole)?,
            mae: intensity::mae(&whole),
            chi2: chi2(case, &mean, spread.as_deref(), told)?,
            coverage,
            spread: spread.map(|s| s.iter().sum::<f64>() / s.len() as f64 / case.peak),
        })
    }

    pub(crate) fn is_finite(&self) -> bool {
        [self.psnr, self.ssim, self.mae, self.chi2].iter().all(|v| v.is_finite())
    }
}

/// The mean squared residual of the measurement in units of its variance under the restored mean. Where there is a
/// spread, it is the mean over what the truth may be, so its squares are added; what a blur leaves of it is not known.
fn chi2(case: &Case, mean: &[f64], spread: Option<&[f64]>, told: &Told) -> Result<f64, EvaluateError> {
    let shape = &case.view.shape;
    let predicted = match &case.psf {
        Some(psf) => Operator::blur(shape.as_slice(), psf, Boundary::Reflect)?.apply(mean)?,
        None => mean.to_vec(),
    };
    let observed: Vec<f64> = case.view.electrons.iter().map(|&e| f64::from(e) / told.gain).collect();
    // No pixel has less light than none.
    let least = case.background.max(1e-3);
    let variance: Vec<f64> =
        predicted.iter().map(|m| m.max(least) + case.read_noise * case.read_noise).collect();
    let view = |x| ImageRef::new(x, shape);
    let chi2 = residual::chi2(view(&observed)?, view(&predicted)?, view(&variance)?, None)?.value;
    let open = spread.filter(|_| case.psf.is_none()).map_or(0.0, |s| {
        s.iter().zip(&variance).map(|(s, v)| s * s / v).sum::<f64>() / variance.len() as f64
    });
    Ok(chi2 + open)
}
