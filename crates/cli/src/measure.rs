//! `clearshot measure`: scores images with any metric of `clearshot_metrics::table`.

mod print;

use crate::camera::KnownCameraArgs;
use crate::electrons;
use anyhow::{Result, bail};
use clap::Args;
use clearshot::{FrcThreshold, MeasureSettings, insert_pattern, measure};
use clearshot_metrics::table::{METRICS, Metric, USUAL};
use print::Printer;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = metrics_help())]
pub struct Measure {
    /// Score this image, folder, glob pattern or Zarr address (s3://, https://).
    #[arg(long)]
    image: String,
    /// Compare with this true image, folder or glob pattern; files are paired by name. Default: none, for metrics that need no truth.
    #[arg(long)]
    truth: Option<String>,
    /// Compute these metrics, separated by commas; `all` computes every metric whose inputs are given. They are listed below. Default:
    /// psnr,ssim,nrmse,mae,snr.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values_t = USUAL.map(String::from), hide_default_value = true)]
    metric: Vec<String>,
    /// Compute PSNR and SSIM for this range of values, the largest minus the smallest that an image can have. Default: 255 for true images of 8 bits,
    /// otherwise the maximum minus the minimum of each true image.
    #[arg(long)]
    range: Option<f64>,
    /// Also score these images of another method, paired by name, and test the differences: Wilcoxon's signed-rank test and Student's paired test,
    /// corrected for the number of metrics by Holm's method. Default: none.
    #[arg(long, value_name = "IMAGES")]
    against: Option<String>,
    /// Test the residuals between the image and the measurement that it was restored from (a file, folder or glob pattern): chi2, ks, whiteness and
    /// bias. Default: none.
    #[arg(long, value_name = "IMAGES")]
    measured: Option<String>,
    /// Assume that the noise of --measured has this standard deviation everywhere, in the file's unit. Default: camera noise.
    #[arg(long, value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, conflicts_with_all = ["gain", "offset", "read_noise", "camera"])]
    noise: Option<f64>,
    #[command(flatten)]
    camera: KnownCameraArgs,
    /// Score by true brightness: bias, mae, mse and psnr of the pixels between successive values of this increasing list, separated by commas; `-inf`
    /// and `inf` are allowed. Default: no strata.
    #[arg(long, value_name = "EDGES", value_delimiter = ',', requires = "truth", allow_hyphen_values = true)]
    strata: Vec<f64>,
    /// Treat images as labels: 0 is background, every other value an object. Default: objects are the connected regions above Otsu's threshold.
    #[arg(long)]
    labels: bool,
    /// Match objects with at least this intersection over union, for ap. Default: 0.5.
    #[arg(long, default_value_t = 0.5)]
    iou: f64,
    /// Use this percentile of the distances in hausdorff; 95 is less sensitive to single pixels. Default: 100.
    #[arg(long, default_value_t = 100.0)]
    percentile: f64,
    /// Set the threshold of Fourier ring correlation: 1/7, half, or half-bit. Default: 1/7.
    #[arg(long, value_name = "NAME", default_value = "1/7", value_parser = threshold)]
    frc_threshold: FrcThreshold,
    /// Read sources for flux and completeness from this CSV file, with y, x and, if known, the flux on each line; the centre of pixel 0 is 0.
    /// Default: the objects of the truth, with their flux in the truth.
    #[arg(long, value_name = "FILE.csv")]
    sources: Option<PathBuf>,
    /// Sum the flux of a source over a circle of this radius in pixels. Default: 3.
    #[arg(long, value_name = "RADIUS", default_value_t = 3.0, value_parser = electrons::ratio::<f64>)]
    aperture: f64,
    /// Measure a source's background between these two radii in pixels. Default: 2 and 3 times --aperture.
    #[arg(long, value_name = "INNER,OUTER", value_delimiter = ',', num_args = 1)]
    annulus: Vec<f64>,
    /// Count a source as found if the centre of an object is at most this many pixels away. Default: --aperture.
    #[arg(long, value_name = "RADIUS", value_parser = electrons::ratio::<f64>)]
    reach: Option<f64>,
    /// Look for this pattern, for sar, pattern-gain and omission: disk:Y,X,RADIUS,VALUE[,BLUR], line:Y,X,Y,X,WIDTH,VALUE, or an
    /// image of what was added. Default: none.
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<String>,
    /// Compare with these results of the same restoration, made without the pattern and paired by name. Default: none.
    #[arg(long, value_name = "IMAGES", requires = "pattern")]
    without: Option<String>,
    /// Write --image with --pattern added to this file, and score nothing: the first step of a test for invented or missed
    /// structure. Default: nothing is written.
    #[arg(long, value_name = "FILE", requires = "pattern")]
    insert: Option<PathBuf>,
    /// Ignore pixels where this image of the same size in Y and X is not zero. Pixels that are NaN or infinite in any image are always ignored.
    /// Default: none.
    #[arg(long)]
    mask: Option<PathBuf>,
    /// Ignore this many pixels at each edge. Default: 0.
    #[arg(long, default_value_t = 0)]
    crop: usize,
    /// Score volumes along Z, Y and X. Default: plane by plane.
    #[arg(long)]
    volume: bool,
    /// Print means over all images and their 95 % intervals (BCa bootstrap) as the last line of JSON. Default: only with --against.
    #[arg(long)]
    summary: bool,
    /// Print one line of JSON for each image; a score that is infinite, or for which an image is too small, is null. Default: text.
    #[arg(long)]
    json: bool,
}

/// What the table says, as the end of the help text.
fn metrics_help() -> String {
    let line = |m: &Metric| format!("  {:<14} {}", m.name, m.meaning);
    format!("Metrics:\n{}", METRICS.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn threshold(text: &str) -> Result<FrcThreshold, String> {
    match text {
        "1/7" => Ok(FrcThreshold::OneSeventh),
        "half" => Ok(FrcThreshold::Half),
        "half-bit" => Ok(FrcThreshold::HalfBit),
        _ => Err("1/7, half or half-bit is needed".into()),
    }
}

impl Measure {
    pub fn run(self) -> Result<()> {
        if let (Some(path), Some(pattern)) = (&self.insert, &self.pattern) {
            return Ok(insert_pattern(&self.image, pattern, path)?);
        }
        let mut printer = Printer::new(self.json, self.range.is_some(), self.crop);
        let outcome = measure(&self.image, &self.settings()?, &mut printer);
        let found = printer.end(outcome)?;
        let several = found.images.iter().filter(|i| !i.is_against).count() > 1;
        if self.summary || self.against.is_some() || (!self.json && several) {
            printer.summary(&found.summary()?)?;
        }
        Ok(())
    }

    fn settings(&self) -> Result<MeasureSettings> {
        let annulus = match self.annulus[..] {
            [] => None,
            [inner, outer] => Some([inner, outer]),
            _ => bail!("--annulus: two rising radii are needed, such as 6,9"),
        };
        Ok(MeasureSettings {
            truth: self.truth.clone(),
            metrics: self.metric.clone(),
            range: self.range,
            against: self.against.clone(),
            measured: self.measured.clone(),
            noise: self.noise,
            camera: self.camera.read()?,
            strata: self.strata.clone(),
            labels: self.labels,
            iou: self.iou,
            percentile: self.percentile,
            frc_threshold: self.frc_threshold,
            sources: self.sources.clone(),
            aperture: self.aperture,
            annulus,
            reach: self.reach,
            pattern: self.pattern.clone(),
            without: self.without.clone(),
            mask: self.mask.clone(),
            crop: self.crop,
            volume: self.volume,
        })
    }
}
