//! `clearshot measure`: how good images are, by any metric of `clearshot_metrics::table`.

mod frame;
mod pattern;
mod print;
mod sources;
mod summary;
mod together;

use crate::camera::KnownCameraArgs;
use crate::electrons;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_metrics::frc::Threshold;
use clearshot_metrics::table::{self, METRICS, Metric, Need, Options, Score, USUAL};
use frame::Frame;
use pattern::Inserted;
use print::Printer;
use std::path::{Path, PathBuf};
use together::{Set, sets};

#[derive(Args)]
#[command(after_help = metrics_help())]
pub struct Measure {
    /// Score this image, or a folder or glob pattern of them; of Zarr also an address (s3://, https://).
    #[arg(long)]
    image: String,
    /// Compare with this true image, or a folder or glob pattern; files are paired by name. Default: none, for metrics that need
    /// no truth.
    #[arg(long)]
    truth: Option<String>,
    /// Compute these metrics, separated by commas; `all` takes every one whose inputs are given. The list is below. Default:
    /// psnr,ssim,nrmse,mae,snr.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = USUAL.map(String::from), hide_default_value = true)]
    metric: Vec<String>,
    /// Compute PSNR and SSIM relative to this, the largest less the smallest value that an image can have. Default: none; metrics
    /// that need it say so.
    #[arg(long)]
    range: Option<f64>,
    /// Score these images of another method too, paired by name, and test the differences: Wilcoxon's signed-rank test and
    /// Student's paired test, corrected for the number of metrics by Holm's method. Default: none.
    #[arg(long, value_name = "IMAGES")]
    against: Option<String>,
    /// Test the residuals of the image beside this measurement that it was restored from, or a folder or glob pattern: chi2, ks,
    /// whiteness and bias. Default: none.
    #[arg(long, value_name = "IMAGES")]
    measured: Option<String>,
    /// Take the noise of --measured to have this standard deviation everywhere, in the file's unit. Default: a camera's noise.
    #[arg(long, value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, conflicts_with_all = ["gain", "offset", "read_noise", "camera"])]
    noise: Option<f64>,
    #[command(flatten)]
    camera: KnownCameraArgs,
    /// Score by true brightness: bias, mae, mse and psnr of the pixels between each two of these rising values, separated by
    /// commas; `-inf` and `inf` are allowed. Default: no strata.
    #[arg(long, value_name = "EDGES", value_delimiter = ',', requires = "truth", allow_hyphen_values = true)]
    strata: Vec<f64>,
    /// Take images as labels, 0 being background and every other value an object. Default: objects are the connected parts above
    /// Otsu's threshold.
    #[arg(long)]
    labels: bool,
    /// Match objects from this intersection over union on, for ap. Default: 0.5.
    #[arg(long, default_value_t = 0.5)]
    iou: f64,
    /// Take this percentile of the distances in hausdorff; 95 is less moved by single pixels. Default: 100.
    #[arg(long, default_value_t = 100.0)]
    percentile: f64,
    /// Cut Fourier ring correlation here: 1/7, half, or half-bit. Default: 1/7.
    #[arg(long, value_name = "NAME", default_value = "1/7", value_parser = threshold)]
    frc_threshold: Threshold,
    /// Take sources for flux and completeness from this CSV file: lines of y, x and, if known, the flux; pixel 0 is centred on 0.
    /// Default: the objects of the truth, with the truth's flux.
    #[arg(long, value_name = "FILE.csv")]
    sources: Option<PathBuf>,
    /// Sum the flux of a source over a circle of this radius in pixels. Default: 3.
    #[arg(long, value_name = "RADIUS", default_value_t = 3.0, value_parser = electrons::ratio::<f64>)]
    aperture: f64,
    /// Take a source's background between these two radii in pixels. Default: 2 and 3 times --aperture.
    #[arg(long, value_name = "INNER,OUTER", value_delimiter = ',', num_args = 1)]
    annulus: Vec<f64>,
    /// Take a source as found if an object's centre is at most this many pixels away. Default: --aperture.
    #[arg(long, value_name = "RADIUS", value_parser = electrons::ratio::<f64>)]
    reach: Option<f64>,
    /// Look for this pattern, for sar, pattern-gain and omission: disk:Y,X,RADIUS,VALUE[,BLUR], line:Y,X,Y,X,WIDTH,VALUE, or an
    /// image of what was added. Default: none.
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
    /// Compare with these results of the same restoration without the pattern, paired by name. Default: none.
    #[arg(long, value_name = "IMAGES", requires = "pattern")]
    without: Option<String>,
    /// Write --image with --pattern added to this file, and score nothing: the first step of a test for invented or missed
    /// structure. Default: nothing is written.
    #[arg(long, value_name = "FILE", requires = "pattern")]
    insert: Option<PathBuf>,
    /// Leave out pixels that are not zero in this image of the same Y and X. Pixels that are NaN or infinite in any image are
    /// always left out. Default: none.
    #[arg(long)]
    mask: Option<PathBuf>,
    /// Leave out this many pixels at each edge. Default: 0.
    #[arg(long, default_value_t = 0)]
    crop: usize,
    /// Score volumes along Z, Y and X. Default: plane after plane.
    #[arg(long)]
    volume: bool,
    /// End JSON with a line of means and their 95 % intervals (BCa bootstrap) over all images. Default: only with --against.
    #[arg(long)]
    summary: bool,
    /// Print one JSON line an image; a score that is infinite, or that an image is too small for, is null. Default: text.
    #[arg(long)]
    json: bool,
}

/// What the table says, as the end of the help text.
fn metrics_help() -> String {
    let line = |m: &Metric| format!("  {:<14} {}", m.name, m.meaning);
    format!("Metrics:\n{}", METRICS.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "1/7" => Ok(Threshold::OneSeventh),
        "half" => Ok(Threshold::Half),
        "half-bit" => Ok(Threshold::HalfBit),
        _ => Err("1/7, half or half-bit is needed".into()),
    }
}

impl Measure {
    pub fn run(self) -> Result<()> {
        let pattern = self.pattern.as_deref().map(Inserted::parse).transpose()?;
        if let (Some(path), Some(pattern)) = (&self.insert, &pattern) {
            return pattern.write(&self.image, path);
        }
        let metrics = self.metrics()?;
        self.check_strata()?;
        let options = self.options()?;
        let partners = [&self.truth, &self.against, &self.measured, &self.without].map(|p| p.as_deref());
        let sets = sets(&self.image, partners)?;
        let mut printer = Printer::new(self.json, self.range, self.crop);
        let (mut own, mut other) = (Vec::new(), Vec::new());
        for set in &sets {
            let frame = self.frame(set, &set.image, pattern.as_ref(), &options)?;
            let scored = frame.scores(&metrics, &self.strata).with_context(|| set.name())?;
            printer.scores(&set.image, &metrics, &scored, &frame.unit())?;
            own.push(scored.scores);
            if let Some(path) = &set.against {
                let frame = self.frame(set, path, pattern.as_ref(), &options)?;
                let scored =
                    frame.scores(&metrics, &self.strata).with_context(|| path.display().to_string())?;
                printer.scores(path, &metrics, &scored, &frame.unit())?;
                other.push(scored.scores);
            }
        }
        let wanted = self.summary || self.against.is_some();
        if wanted || (!self.json && sets.len() > 1) {
            let others: Option<&[Vec<Score>]> = self.against.as_ref().map(|_| &other[..]);
            printer.summary(&summary::of(&metrics, &own, others)?)?;
        }
        Ok(())
    }

    fn frame<'a>(
        &'a self,
        set: &Set,
        image: &Path,
        pattern: Option<&'a Inserted>,
        options: &'a Options,
    ) -> Result<Frame<'a>> {
        Frame::open(self, set, image, pattern, options).with_context(|| set.name())
    }

    fn has(&self, need: Need) -> bool {
        match need {
            Need::Truth => self.truth.is_some(),
            Need::Range => self.range.is_some(),
            Need::Measured => self.measured.is_some(),
            Need::Pattern => self.pattern.is_some(),
            Need::Without => self.without.is_some(),
            Need::Sources => self.sources.is_some() || self.truth.is_some(),
        }
    }

    /// The metrics that are asked for; what they need is there.
    fn metrics(&self) -> Result<Vec<&'static Metric>> {
        let possible = |m: &&Metric| m.needs.iter().all(|&n| self.has(n));
        if self.metric.iter().any(|name| name.trim() == "all") {
            return Ok(METRICS.iter().filter(possible).collect());
        }
        let mut out: Vec<&'static Metric> = Vec::new();
        for name in self.metric.iter().map(|n| n.trim()) {
            let Some(metric) = table::by_name(name) else {
                let names: Vec<&str> = METRICS.iter().map(|m| m.name).collect();
                bail!("--metric {name}: not a metric; there are {} and all", names.join(", "));
            };
            if let Some(&need) = metric.needs.iter().find(|&&n| !self.has(n)) {
                bail!("--metric {name}: {} is needed", option_of(need));
            }
            if !out.iter().any(|m| m.name == metric.name) {
                out.push(metric);
            }
        }
        Ok(out)
    }

    fn check_strata(&self) -> Result<()> {
        if self.strata.is_empty() {
            return Ok(());
        }
        let rising = self.strata.windows(2).all(|e| e[0] < e[1]);
        if self.strata.len() < 2 || !rising {
            bail!("--strata: two or more rising values are needed, such as 0,100,500,inf");
        }
        if self.range.is_none() {
            bail!("--strata: {} is needed", option_of(Need::Range));
        }
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        let annulus = match self.annulus[..] {
            [] => [2.0 * self.aperture, 3.0 * self.aperture],
            [inner, outer] if inner >= 0.0 && outer > inner => [inner, outer],
            _ => bail!("--annulus: two rising radii are needed, such as 6,9"),
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

fn option_of(need: Need) -> &'static str {
    match need {
        Need::Truth => "--truth, the true image,",
        Need::Range => "--range, the largest less the smallest value that an image can have,",
        Need::Measured => "--measured, the measurement that the image was restored from,",
        Need::Pattern => "--pattern, what was inserted,",
        Need::Without => "--without, the restoration without the pattern,",
        Need::Sources => "--sources, a list of sources, or --truth to find them in,",
    }
}
