//! The table of metrics by name: what each needs, what it measures, and how it is computed from a plane or volume.
//!
//! Programs that let a user choose metrics use [`METRICS`]; help texts and documentation are generated from it. A metric
//! takes a [`Subject`], which holds the image and its context (the truth, the measurement that it was restored from, an
//! inserted pattern), and returns a [`Score`]. What a metric [`needs`](Metric::needs) is checked before anything is read,
//! so the functions here may rely on it.

mod objects;
mod residuals;
mod score;

pub use score::{Detail, Rule, Score};

use crate::artefacts::{Pattern, omission_psnr};
use crate::frc::{self, Taper, Threshold};
use crate::intensity::{self, Normalisation};
use crate::ms_ssim::{ms_ssim, scales_that_fit};
use crate::photometry::Source;
use crate::ssim::Ssim;
use crate::{Crop, ImageRef, MetricError, Pair, Rounding};

/// What a metric cannot do without, besides the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Truth,
    /// The largest less the smallest value that an image can have.
    Range,
    /// The measurement that the image was restored from, and the variance of its noise.
    Measured,
    /// The inserted pattern.
    Pattern,
    /// The result of the same restoration without the pattern.
    Without,
    /// A list of sources, or the truth to find them in.
    Sources,
}

/// The unit of a metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A ratio, or a value of the images.
    Plain,
    Decibel,
    /// That of the pixel size.
    Length,
}

/// A row of the table.
pub struct Metric {
    pub name: &'static str,
    /// For help texts: what the value is.
    pub meaning: &'static str,
    pub needs: &'static [Need],
    pub unit: Unit,
    pub score: fn(&Subject<'_>) -> Result<Score, MetricError>,
}

/// The parameters of metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub range: Option<f64>,
    /// The pixel size along each axis of the images.
    pub spacing: Vec<f64>,
    pub frc_threshold: Threshold,
    /// Images are labels: 0 is background, every other value an object. Otherwise objects are found by Otsu's threshold.
    pub labels: bool,
    /// From which IoU on two objects match.
    pub iou: f64,
    /// Of the distances in Hausdorff's distance; 100 is the largest.
    pub percentile: f64,
    /// Known sources; of a source without a flux (NaN) the truth's is taken.
    pub sources: Option<Vec<Source>>,
    /// The radius of apertures in pixels.
    pub aperture: f64,
    /// The radii between which the background around a source is taken.
    pub annulus: [f64; 2],
    /// How far a detection may be from its source, in pixels.
    pub reach: f64,
}

/// The measurement that an image was restored from.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    pub values: &'a [f64],
    /// The noise's variance of each pixel.
    pub variance: &'a [f64],
    /// The noise's power spectrum of mean 1 where neighbours share it; see [`crate::residual::whiteness`].
    pub spectrum: Option<&'a [f64]>,
    /// See [`crate::residual::Chi2::shared`].
    pub shared: f64,
}

/// One plane or volume with all that is known of it. Every array has the shape's number of pixels.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub shape: &'a [usize],
    pub image: &'a [f64],
    pub truth: Option<&'a [f64]>,
    /// Which pixels count; all if absent.
    pub counts: Option<&'a [bool]>,
    pub measured: Option<Measured<'a>>,
    pub pattern: Option<&'a Pattern>,
    pub without: Option<&'a [f64]>,
    pub options: &'a Options,
}

impl<'a> Subject<'a> {
    fn view(&self, data: &'a [f64]) -> Result<ImageRef<'a>, MetricError> {
        ImageRef::new(data, self.shape)
    }

    fn image(&self) -> Result<ImageRef<'a>, MetricError> {
        self.view(self.image)
    }

    fn truth(&self) -> Result<ImageRef<'a>, MetricError> {
        self.view(given(self.truth, "the truth")?)
    }

    /// The truth and the image.
    ///
    /// # Errors
    /// If there is no truth, shapes differ, or no pixel counts.
    pub fn pair(&self) -> Result<Pair<'a>, MetricError> {
        Pair::new(self.truth()?, self.image()?, self.counts, Rounding::Keep, Crop::Nothing)
    }

    fn range(&self) -> Result<f64, MetricError> {
        given(self.options.range, "the range")
    }

    fn counts(&self, pixel: usize) -> bool {
        self.counts.is_none_or(|c| c[pixel])
    }
}

/// What a metric needs and has not got is the caller's mistake; see [`Metric::needs`].
fn given<T>(value: Option<T>, what: &'static str) -> Result<T, MetricError> {
    value.ok_or(MetricError::Count { what, got: 0, needed: "one" })
}

const PAIR: &[Need] = &[Need::Truth];
const RANGED: &[Need] = &[Need::Truth, Need::Range];
const RESIDUAL: &[Need] = &[Need::Measured];
const INSERTED: &[Need] = &[Need::Pattern, Need::Without];

const fn row(
    name: &'static str,
    unit: Unit,
    needs: &'static [Need],
    score: fn(&Subject<'_>) -> Result<Score, MetricError>,
    meaning: &'static str,
) -> Metric {
    Metric { name, meaning, needs, unit, score }
}

/// All metrics, in the order in which they are listed and printed.
pub const METRICS: &[Metric] = &[
    row("psnr", Unit::Decibel, RANGED, psnr, "peak signal-to-noise ratio"),
    row("ssim", Unit::Plain, RANGED, ssim, "structural similarity, uniform window of 7 pixels"),
    row("nrmse", Unit::Plain, PAIR, nrmse, "root mean squared error over the truth's root mean square"),
    row("mae", Unit::Plain, PAIR, mae, "mean absolute error"),
    row("snr", Unit::Decibel, PAIR, snr, "signal-to-noise ratio"),
    row(
        "ssim-gaussian",
        Unit::Plain,
        RANGED,
        gaussian,
        "structural similarity, Gaussian window of sigma 1.5",
    ),
    row("ms-ssim", Unit::Plain, RANGED, scales, "multi-scale structural similarity, Gaussian window"),
    row("frc", Unit::Length, PAIR, two_images, "resolution by Fourier ring correlation of truth and image"),
    row(
        "frc-split",
        Unit::Length,
        &[],
        one_image,
        "resolution by Fourier ring correlation of the image's own halves",
    ),
    row("dice", Unit::Plain, PAIR, objects::dice, "Dice overlap of the foregrounds"),
    row("iou", Unit::Plain, PAIR, objects::iou, "intersection over union of the foregrounds"),
    row("hausdorff", Unit::Length, PAIR, objects::hausdorff, "Hausdorff distance of the foregrounds"),
    row("ap", Unit::Plain, PAIR, objects::precision, "average precision of objects, TP / (TP + FP + FN)"),
    row("count", Unit::Plain, &[], objects::count, "number of objects"),
    row("flux", Unit::Plain, &[Need::Sources], objects::flux, "mean flux of sources over their true flux"),
    row(
        "completeness",
        Unit::Plain,
        &[Need::Sources],
        objects::completeness,
        "share of sources that are found",
    ),
    row("chi2", Unit::Plain, RESIDUAL, residuals::chi2, "mean squared residual over the noise's variance"),
    row(
        "ks",
        Unit::Plain,
        RESIDUAL,
        residuals::normality,
        "Kolmogorov-Smirnov distance of residuals from normal noise",
    ),
    row(
        "whiteness",
        Unit::Plain,
        RESIDUAL,
        residuals::whiteness,
        "flatness of the residuals' spectrum, 0.56 for noise",
    ),
    row("bias", Unit::Plain, RESIDUAL, residuals::bias, "mean of measurement less image"),
    row("sar", Unit::Decibel, INSERTED, artefact, "signal-to-artefact ratio of an inserted pattern"),
    row("pattern-gain", Unit::Plain, INSERTED, through, "share of an inserted pattern that comes through"),
    row(
        "omission",
        Unit::Decibel,
        &[Need::Truth, Need::Range, Need::Pattern],
        omission,
        "PSNR inside an inserted pattern",
    ),
];

/// The default metrics.
pub const USUAL: [&str; 5] = ["psnr", "ssim", "nrmse", "mae", "snr"];

/// The row of a name.
pub fn by_name(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|m| m.name == name)
}

fn psnr(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(intensity::psnr(&s.pair()?, s.range()?)?))
}

fn nrmse(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(intensity::nrmse(&s.pair()?, Normalisation::Euclidean)))
}

fn mae(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(intensity::mae(&s.pair()?)))
}

fn snr(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(intensity::snr(&s.pair()?)))
}

fn ssim(s: &Subject<'_>) -> Result<Score, MetricError> {
    windowed(Ssim::uniform7(s.range()?).mean(&s.pair()?))
}

fn gaussian(s: &Subject<'_>) -> Result<Score, MetricError> {
    windowed(Ssim::wang2004(s.range()?).mean(&s.pair()?))
}

fn scales(s: &Subject<'_>) -> Result<Score, MetricError> {
    let ssim = Ssim::wang2004(s.range()?);
    let count = scales_that_fit(s.shape, ssim.window_size());
    if count == 0 {
        return windowed(Err(MetricError::Window { window: ssim.window_size(), shape: s.shape.to_vec() }));
    }
    Ok(windowed(ms_ssim(&s.pair()?, &ssim, count))?.with("scales", count as f64, Rule::Mean))
}

/// NaN if the window does not fit, so that the other scores are still computed.
fn windowed(found: Result<f64, MetricError>) -> Result<Score, MetricError> {
    match found {
        Err(e @ MetricError::Window { .. }) => Ok(Score::missing(e.to_string())),
        other => other.map(Score::of),
    }
}

fn two_images(s: &Subject<'_>) -> Result<Score, MetricError> {
    let curve = frc::two_images(s.truth()?, s.image()?, &s.options.spacing, Taper::Hann)?;
    Ok(Score::of_curve(curve, s.options.frc_threshold))
}

fn one_image(s: &Subject<'_>) -> Result<Score, MetricError> {
    let curve = frc::one_image(s.image()?, &s.options.spacing, Taper::Hann)?;
    Ok(Score::of_curve(curve, s.options.frc_threshold))
}

fn artefact(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(response(s)?.signal_to_artefact))
}

fn through(s: &Subject<'_>) -> Result<Score, MetricError> {
    Ok(Score::of(response(s)?.gain))
}

fn response(s: &Subject<'_>) -> Result<crate::artefacts::Response, MetricError> {
    let without = s.view(given(s.without, "the image without the pattern")?)?;
    given(s.pattern, "the pattern")?.response(s.image()?, without)
}

fn omission(s: &Subject<'_>) -> Result<Score, MetricError> {
    let pattern = given(s.pattern, "the pattern")?;
    Ok(Score::of(omission_psnr(s.truth()?, s.image()?, &pattern.mask, s.range()?)?))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
