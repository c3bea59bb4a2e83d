//! Which metrics to compute, against which references, and how.

use super::sources;
use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use clearshot_metrics::frc::Threshold;
use clearshot_metrics::table::{self, METRICS, Metric, Need, Options, USUAL};
use std::path::PathBuf;

/// How images are scored. Reference images are a file, a folder or a glob pattern, and are paired by name.
#[derive(Clone, Debug)]
pub struct MeasureSettings {
    /// The true images.
    pub truth: Option<String>,
    /// Names of metrics; `all` for all metrics whose inputs are given.
    pub metrics: Vec<String>,
    /// The range of values for PSNR and SSIM. Default: 255 for 8-bit true images, otherwise the maximum minus the
    /// minimum of each true image.
    pub range: Option<f64>,
    /// Images of another method, which are also scored and compared with statistical tests.
    pub against: Option<String>,
    /// The measurements that the images were restored from, for tests of residuals.
    pub measured: Option<String>,
    /// A uniform standard deviation of the measurements' noise, instead of a camera.
    pub noise: Option<f64>,
    /// Known parameters of the measurements' camera; the others are estimated.
    pub camera: KnownCamera,
    /// Edges of strata of true brightness, which are scored separately; empty for no strata.
    pub strata: Vec<f64>,
    /// Whether images are labels of objects, with 0 for background.
    pub labels: bool,
    /// The intersection over union at which objects match.
    pub iou: f64,
    /// The percentile of distances in `hausdorff`.
    pub percentile: f64,
    /// The threshold of Fourier ring correlation.
    pub frc_threshold: Threshold,
    /// A CSV file of sources: y, x and, if known, the flux. Default: the objects of the truth.
    pub sources: Option<PathBuf>,
    /// The radius of the aperture over which the flux of a source is summed, in pixels.
    pub aperture: f64,
    /// The inner and outer radius of the background annulus. Default: 2 and 3 times the aperture.
    pub annulus: Option<[f64; 2]>,
    /// The largest distance between an object's centre and its source. Default: the aperture.
    pub reach: Option<f64>,
    /// The inserted pattern: `disk:Y,X,RADIUS,VALUE[,BLUR]`, `line:Y,X,Y,X,WIDTH,VALUE`, or a file with the added
    /// values.
    pub pattern: Option<String>,
    /// Results of the same restoration without the pattern.
    pub without: Option<String>,
    /// An image whose nonzero pixels are left out.
    pub mask: Option<PathBuf>,
    /// The number of pixels left out at each edge.
    pub crop: usize,
    /// Scores volumes along Z, Y and X in place of planes.
    pub volume: bool,
}

impl Default for MeasureSettings {
    fn default() -> MeasureSettings {
        MeasureSettings {
            truth: None,
            metrics: USUAL.map(String::from).to_vec(),
            range: None,
            against: None,
            measured: None,
            noise: None,
            camera: KnownCamera::default(),
            strata: vec![],
            labels: false,
            iou: 0.5,
            percentile: 100.0,
            frc_threshold: Threshold::OneSeventh,
            sources: None,
            aperture: 3.0,
            annulus: None,
            reach: None,
            pattern: None,
            without: None,
            mask: None,
            crop: 0,
            volume: false,
        }
    }
}

/// What is lacking, as the field that gives it and what that is.
pub(super) fn lacking(key: String, need: Need) -> Error {
    let (field, what) = match need {
        Need::Truth => ("truth", "the true image"),
        Need::Range => ("range", "the largest less the smallest value that an image can have"),
        Need::Measured => ("measured", "the measurement that the image was restored from"),
        Need::Pattern => ("pattern", "what was inserted"),
        Need::Without => ("without", "the restoration without the pattern"),
        Need::Sources => ("sources", "a list of sources, or the true image to find them in"),
    };
    Error::Missing { key, field, what }
}

impl MeasureSettings {
    fn has(&self, need: Need) -> bool {
        match need {
            Need::Truth => self.truth.is_some(),
            Need::Range => self.range.is_some() || self.truth.is_some(),
            Need::Measured => self.measured.is_some(),
            Need::Pattern => self.pattern.is_some(),
            Need::Without => self.without.is_some(),
            Need::Sources => self.sources.is_some() || self.truth.is_some(),
        }
    }

    /// The metrics that are asked for; what they need is there.
    pub(super) fn chosen(&self) -> Result<Vec<&'static Metric>> {
        let possible = |m: &&Metric| m.needs.iter().all(|&n| self.has(n));
        if self.metrics.iter().any(|name| name.trim() == "all") {
            return Ok(METRICS.iter().filter(possible).collect());
        }
        let mut out: Vec<&'static Metric> = Vec::new();
        for name in self.metrics.iter().map(|n| n.trim()) {
            let Some(metric) = table::by_name(name) else {
                let names: Vec<&str> = METRICS.iter().map(|m| m.name).collect();
                let why = format!("not a metric; there are {} and all", names.join(", "));
                return Err(Error::value("metric", name, why));
            };
            if let Some(&need) = metric.needs.iter().find(|&&n| !self.has(n)) {
                return Err(lacking(format!("metric {name}"), need));
            }
            if !out.iter().any(|m| m.name == metric.name) {
                out.push(metric);
            }
        }
        Ok(out)
    }

    pub(super) fn check_strata(&self) -> Result<()> {
        if self.strata.is_empty() {
            return Ok(());
        }
        let rising = self.strata.windows(2).all(|e| e[0] < e[1]);
        if self.strata.len() < 2 || !rising {
            return Err(Error::setting(
                "strata",
                "two or more rising values are needed, such as 0,100,500,inf",
            ));
        }
        match [Need::Truth, Need::Range].into_iter().find(|&need| !self.has(need)) {
            Some(need) => Err(lacking("strata".into(), need)),
            None => Ok(()),
        }
    }

    pub(super) fn options(&self) -> Result<Options> {
        let annulus = match self.annulus {
            None => [2.0 * self.aperture, 3.0 * self.aperture],
            Some([inner, outer]) if inner >= 0.0 && outer > inner => [inner, outer],
            Some(_) => return Err(Error::setting("annulus", "two rising radii are needed, such as 6,9")),
        };
        let mut sources = self.sources.as_deref().map(sources::read).transpose()?;
        let cut = self.crop as f64;
        sources.iter_mut().flatten().for_each(|s| s.centre.iter_mut().for_each(|c| *c -= cut));
        Ok(Options {
            range: self.range,
            spacing: vec![],
            frc_threshold: self.frc_threshold,
            labels: self.labels,
            iou: self.iou,
            percentile: self.percentile,
            sources,
            aperture: self.aperture,
            annulus,
            reach: self.reach.unwrap_or(self.aperture),
        })
    }
}
