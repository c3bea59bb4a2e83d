//! Scores images with any metric of `clearshot_metrics::table`: against the truth, another method or the measurement,
//! or without a reference.

mod frame;
mod pattern;
mod settings;
mod sources;
mod summary;
mod together;

pub use settings::MeasureSettings;
pub use summary::{Against, CONFIDENCE, MetricSummary, Tests};

use crate::error::{Error, Result};
use crate::observer::{Ear, Event, Observer};
use clearshot_metrics::stratify::Stratum;
use clearshot_metrics::table::{Metric, Options, Score};
use frame::Frame;
use pattern::Inserted;
use std::path::{Path, PathBuf};
use together::{Set, sets};

/// The scores of one image.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ImageScores {
    /// The image.
    pub image: PathBuf,
    /// Whether it is an image of the other method.
    pub is_against: bool,
    /// One score per metric, in the order of the metrics.
    pub scores: Vec<Score>,
    /// Scores by true brightness, if requested.
    pub strata: Vec<Stratum>,
    /// The range of PSNR and SSIM, as given or from the true image.
    pub range: Option<f64>,
    /// The unit of lengths: that of the pixel size, or pixels.
    pub unit: String,
}

/// The scores of images and their summary.
#[derive(Clone)]
#[non_exhaustive]
pub struct Measurements {
    /// The metrics, in the order of the scores.
    pub metrics: Vec<&'static Metric>,
    /// One entry per image; the image of another method follows the one of the same name.
    pub images: Vec<ImageScores>,
}

impl Measurements {
    /// The scores of the metric with this name, for each image of this method.
    pub fn of(&self, metric: &str) -> Option<Vec<f64>> {
        let i = self.metrics.iter().position(|m| m.name == metric)?;
        Some(self.images.iter().filter(|s| !s.is_against).map(|s| s.scores[i].value).collect())
    }

    /// Means with 95 % intervals, and tests against the other method if there is one.
    ///
    /// # Errors
    /// If a statistic cannot be computed.
    pub fn summary(&self) -> Result<Vec<MetricSummary>> {
        let of = |is_against: bool| -> Vec<Vec<Score>> {
            let own = self.images.iter().filter(|s| s.is_against == is_against);
            own.map(|s| s.scores.clone()).collect()
        };
        let (own, other) = (of(false), of(true));
        summary::of(&self.metrics, &own, (!other.is_empty()).then_some(&other[..]))
    }
}

/// Scores images: a file, a folder or a glob pattern. The observer receives [`Event::Measured`] after every image, and
/// can stop the work.
///
/// # Errors
/// If an input of a metric is missing, images do not match, or the observer stops the work.
pub fn measure(
    images: &str,
    settings: &MeasureSettings,
    observer: &mut dyn Observer,
) -> Result<Measurements> {
    let pattern = settings.pattern.as_deref().map(Inserted::parse).transpose()?;
    let metrics = settings.chosen()?;
    settings.check_strata()?;
    let options = settings.options()?;
    let MeasureSettings { truth, against, measured, without, .. } = settings;
    let partners = [truth, against, measured, without].map(|p| p.as_deref());
    let sets = sets(images, partners, observer)?;
    let mut walk = Walk { settings, metrics: &metrics, pattern: pattern.as_ref(), options, observer };
    let mut found = Vec::new();
    for set in &sets {
        found.push(walk.score(set, &set.image, false).map_err(|e| e.at(set.name()))?);
        if let Some(path) = &set.against {
            found.push(walk.score(set, path, true).map_err(|e| e.at(path.display()))?);
        }
    }
    Ok(Measurements { metrics, images: found })
}

/// Writes an image with a pattern ([`MeasureSettings::pattern`]) added to every plane, as 32-bit floats: the first step of a test for invented or missed
/// structure.
///
/// # Errors
/// If the pattern is wrong, there is not one image, or it cannot be read or written.
pub fn insert_pattern(image: &str, pattern: &str, output: &Path) -> Result<()> {
    Inserted::parse(pattern)?.write(image, output)
}

/// What scoring an image needs.
struct Walk<'a> {
    settings: &'a MeasureSettings,
    metrics: &'a [&'static Metric],
    pattern: Option<&'a Inserted>,
    options: Options,
    observer: &'a mut dyn Observer,
}

impl Walk<'_> {
    fn score(&mut self, set: &Set, image: &Path, is_against: bool) -> Result<ImageScores, Error> {
        let shown = set.measured.clone().unwrap_or_else(|| image.to_path_buf());
        let mut ear = Ear { observer: &mut *self.observer, shown };
        let frame = Frame::open(self.settings, set, image, self.pattern, &self.options, &mut ear)?;
        let scored = frame.scores(self.metrics, &self.settings.strata)?;
        let scores = ImageScores {
            image: image.to_path_buf(),
            is_against,
            scores: scored.scores,
            strata: scored.strata,
            range: frame.range(),
            unit: frame.unit(),
        };
        ear.shown = image.to_path_buf();
        ear.event(&Event::Measured { metrics: self.metrics, scores: &scores })?;
        Ok(scores)
    }
}
