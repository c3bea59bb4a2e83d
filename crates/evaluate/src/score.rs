//! The scores of one method on one case.

use crate::case::{Case, Scale};
use crate::method::Restored;
use crate::{Assumed, EvaluateError};
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
    /// Mean absolute error in units of the peak, or of the range where that is given.
    pub mae: f64,
    pub chi2: f64,
    /// Of 90 % intervals, where the method gives a standard deviation.
    pub coverage: Option<f64>,
    /// The mean standard deviation in the same unit.
    pub spread: Option<f64>,
}

const MOST_DB: f64 = 150.0;
/// Half the width of a 90 % interval of the normal law.
const NINETY: f64 = 1.644_853_626_951_472_2;

/// PSNR of mean electrons alone.
///
/// # Errors
/// If there are not as many as the case has.
pub(crate) fn psnr(case: &Case, mean: &[f32]) -> Result<f64, EvaluateError> {
    let mean: Vec<f64> = mean.iter().map(|&v| f64::from(v)).collect();
    Scaled::of(case, &mean).psnr(&case.view.shape)
}

/// Truth and restored mean in the unit that the case is scored in.
struct Scaled {
    truth: Vec<f64>,
    image: Vec<f64>,
    /// The unit's share of an electron, a fitted gain included.
    slope: f64,
    range: f64,
    ssim: Ssim,
    clips: bool,
}

impl Scaled {
    fn of(case: &Case, mean: &[f64]) -> Scaled {
        let truth = case.truth.iter().map(|&v| f64::from(v));
        match case.scale {
            Scale::Peak => {
                let unit = |v: f64| (v - case.background) / case.peak;
                Scaled {
                    truth: truth.map(unit).collect(),
                    image: mean.iter().map(|&v| unit(v)).collect(),
                    slope: 1.0 / case.peak,
                    range: 1.0,
                    ssim: Ssim::wang2004(1.0),
                    clips: true,
                }
            }
            Scale::Counts { range, fit, limits } => {
                let counts = |v: f64| v / case.view.gain + case.view.offset;
                let truth: Vec<f64> = truth.map(counts).collect();
                // As the file would hold it.
                let [low, high] = limits;
                let mut image: Vec<f64> = mean.iter().map(|&v| counts(v).clamp(low, high)).collect();
                let (gain, offset) = if fit { fitted(&image, &truth) } else { (1.0, 0.0) };
                image.iter_mut().for_each(|v| *v = gain * *v + offset);
                let slope = gain.abs() / case.view.gain;
                Scaled { truth, image, slope, range, ssim: Ssim::uniform7(range), clips: false }
            }
        }
    }

    fn pair<'a>(&'a self, shape: &'a [usize]) -> Result<Pair<'a>, EvaluateError> {
        pair(&self.truth, &self.image, shape)
    }

    fn psnr(&self, shape: &[usize]) -> Result<f64, EvaluateError> {
        let found = match self.clips {
            true => {
                let clip = |x: &[f64]| x.iter().map(|v| v.clamp(0.0, 1.5)).collect::<Vec<f64>>();
                intensity::psnr(&pair(&clip(&self.truth), &clip(&self.image), shape)?, self.range)?
            }
            false => intensity::psnr(&self.pair(shape)?, self.range)?,
        };
        Ok(found.min(MOST_DB))
    }
}

fn pair<'a>(truth: &'a [f64], image: &'a [f64], shape: &'a [usize]) -> Result<Pair<'a>, EvaluateError> {
    let (truth, image) = (ImageRef::new(truth, shape)?, ImageRef::new(image, shape)?);
    Ok(Pair::new(truth, image, None, Rounding::Keep, Crop::Nothing)?)
}

/// Gain and offset that bring an image nearest to the truth by least squares; for a constant image only the offset is determined.
pub(crate) fn fitted(image: &[f64], truth: &[f64]) -> (f64, f64) {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (at_image, at_truth) = (mean(image), mean(truth));
    let (mut variance, mut covariance) = (0.0, 0.0);
    for (x, t) in image.iter().zip(truth) {
        variance += (x - at_image) * (x - at_image);
        covariance += (x - at_image) * (t - at_truth);
    }
    let gain = if variance > 0.0 { covariance / variance } else { 0.0 };
    (gain, at_truth - gain * at_image)
}

impl Scores {
    /// Scores a restoration. `assumed` undoes the wrong gain that the method was given: errors of scale are the
    /// calibration's, and count as such only in what the method made of them.
    ///
    /// # Errors
    /// If the restoration has another size, or the image is too small for SSIM's window.
    pub fn of(case: &Case, restored: &Restored, assumed: &Assumed) -> Result<Scores, EvaluateError> {
        let mean: Vec<f64> = restored.mean.iter().map(|&v| f64::from(v) / assumed.gain).collect();
        let spread =
            restored.std.as_ref().map(|s| s.iter().map(|&v| f64::from(v) / assumed.gain).collect::<Vec<_>>());
        let scaled = Scaled::of(case, &mean);
        let pair = scaled.pair(&case.view.shape)?;
        let reach = restored.reach.unwrap_or(NINETY);
        let coverage = spread.as_ref().map(|s| {
            let inside = |((t, x), s): ((&f64, &f64), &f64)| (t - x).abs() <= reach * scaled.slope * s;
            let hits = scaled.truth.iter().zip(&scaled.image).zip(s).filter(|&v| inside(v)).count();
            hits as f64 / mean.len() as f64
        });
        let mean_spread = |s: &[f64]| scaled.slope * s.iter().sum::<f64>() / s.len() as f64 / scaled.range;
        Ok(Scores {
            psnr: scaled.psnr(&case.view.shape)?,
            ssim: scaled.ssim.mean(&pair)?,
            mae: intensity::mae(&pair) / scaled.range,
            chi2: chi2(case, &mean, spread.as_deref(), assumed)?,
            coverage,
            spread: spread.as_deref().map(mean_spread),
        })
    }

    pub(crate) fn is_finite(&self) -> bool {
        [self.psnr, self.ssim, self.mae, self.chi2].iter().all(|v| v.is_finite())
    }
}

/// The mean squared residual of the measurement in units of its variance under the restored mean. Where there is a
/// spread, it is the mean over what the truth may be, so its squares are added; what a blur leaves of it is not known.
fn chi2(case: &Case, mean: &[f64], spread: Option<&[f64]>, assumed: &Assumed) -> Result<f64, EvaluateError> {
    let shape = &case.view.shape;
    let predicted = match &case.psf {
        Some(psf) => Operator::blur(shape.as_slice(), psf, Boundary::Reflect)?.apply(mean)?,
        None => mean.to_vec(),
    };
    let observed: Vec<f64> = case.view.electrons.iter().map(|&e| f64::from(e) / assumed.gain).collect();
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
