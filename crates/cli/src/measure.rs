//! `clearshot measure`: how near images are to the truth.

use crate::mask::Mask;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::dataset::list::{Listing, files};
use clearshot_image::{Image, lengths};
use clearshot_metrics::intensity::{self, Normalisation};
use clearshot_metrics::ssim::Ssim;
use clearshot_metrics::{Crop, ImageRef, MetricError, Pair, Rounding};
use clearshot_restore::invalid::Invalid;
use clearshot_restore::saturated::NoiseLevel;
use clearshot_restore::stream::Frames;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Measure {
    /// The true image, or a folder or glob pattern of them; of Zarr also an address (s3://, https://).
    #[arg(long)]
    truth: String,
    /// The image to score, or a folder or glob pattern; files are paired by name.
    #[arg(long)]
    image: String,
    /// The largest less the smallest value that an image can have: what PSNR and SSIM are relative to.
    #[arg(long)]
    range: f64,
    /// An image of the same Y and X whose pixels other than zero do not count. Pixels that are not finite in either image never
    /// do.
    #[arg(long)]
    mask: Option<PathBuf>,
    /// Leave out this many pixels at each edge.
    #[arg(long, default_value_t = 0)]
    crop: usize,
    /// Score volumes along Z, Y and X instead of plane after plane.
    #[arg(long)]
    volume: bool,
    /// One JSON line a pair; a score that is infinite, or that an image is too small for, is null.
    #[arg(long)]
    json: bool,
}

const NAMES: [&str; 5] = ["psnr", "ssim", "nrmse", "mae", "snr"];
/// The place of the score that has a window.
const SSIM: usize = 1;

impl Measure {
    pub fn run(self) -> Result<()> {
        let (truths, images) = (files(&self.truth)?, files(&self.image)?);
        let pairs: Vec<(PathBuf, PathBuf)> = if truths.len() == 1 && images.len() == 1 {
            vec![(truths[0].clone(), images[0].clone())]
        } else {
            let listing = Listing::pairs(&self.image, &self.truth)?;
            listing.unpaired.iter().for_each(|u| eprintln!("clearshot: {u}"));
            listing.entries.into_iter().filter_map(|e| Some((e.target?, e.input))).collect()
        };
        let mut out = std::io::stdout().lock();
        let mut means = [0.0; 5];
        let mut small = false;
        for (truth, image) in &pairs {
            let scores = self
                .scores(truth, image)
                .with_context(|| format!("{} beside {}", image.display(), truth.display()))?;
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / pairs.len() as f64);
            small |= scores[SSIM].is_nan();
            self.tell(&mut out, &image.display().to_string(), &scores)?;
        }
        if small {
            eprintln!(
                "clearshot: there is no ssim where an image has no room for its window of 7 pixels along every axis"
            );
        }
        if pairs.len() > 1 && !self.json {
            self.tell(&mut out, "mean", &means)?;
        }
        Ok(())
    }

    fn tell(&self, out: &mut impl Write, name: &str, scores: &[f64; 5]) -> Result<()> {
        if self.json {
            let mut record = serde_json::json!({ "image": name, "range": self.range, "crop": self.crop });
            for (key, score) in NAMES.iter().zip(scores) {
                record[*key] = serde_json::json!(score);
            }
            writeln!(out, "{record}")?;
        } else {
            let parts: Vec<String> = NAMES.iter().zip(scores).map(|(n, s)| format!("{n} {s:.4}")).collect();
            writeln!(out, "{name}: {}", parts.join(", "))?;
        }
        Ok(())
    }

    /// The mean over the planes or volumes of a file.
    fn scores(&self, truth: &Path, image: &Path) -> Result<[f64; 5]> {
        let (truth, image) = (Image::open(truth)?, Image::open(image)?);
        if truth.shape() != image.shape() {
            bail!(
                "the truth has {} pixels and the image {}",
                lengths(&truth.shape()),
                lengths(&image.shape())
            );
        }
        let frames = Frames::of(&truth.description, self.volume)?;
        let mask = self.mask.as_ref().map(|path| Mask::open(path, &truth.description)).transpose()?;
        let (parts, shape) = (frames.regions(), frames.size());
        let mut means = [0.0; 5];
        for region in &parts {
            let (mut t, mut x) = (truth.read_f64(region)?, image.read_f64(region)?);
            let marks = mask.as_ref().map(|m| m.marks(region, t.len())).transpose()?;
            let counts = counting(&mut t, &mut x, &shape, marks.as_deref());
            let pair = Pair::new(
                ImageRef::new(&t, &shape)?,
                ImageRef::new(&x, &shape)?,
                counts.as_deref(),
                Rounding::Keep,
                Crop::Border(self.crop),
            )?;
            let scores = [
                intensity::psnr(&pair, self.range)?,
                ssim_of(&Ssim::uniform7(self.range), &pair)?,
                intensity::nrmse(&pair, Normalisation::Euclidean),
                intensity::mae(&pair),
                intensity::snr(&pair),
            ];
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / parts.len() as f64);
        }
        Ok(means)
    }
}

/// No number where the window does not fit; the other scores are worth having all the same.
fn ssim_of(ssim: &Ssim, pair: &Pair<'_>) -> Result<f64, MetricError> {
    match ssim.mean(pair) {
        Err(MetricError::Window { .. }) => Ok(f64::NAN),
        other => other,
    }
}

/// Which pixels count; nothing if all do. Those that do not are filled from their neighbours in both images, so that windows
/// that reach over them see nothing odd.
fn counting(
    truth: &mut [f64],
    image: &mut [f64],
    shape: &[usize],
    marks: Option<&[bool]>,
) -> Option<Vec<bool>> {
    let invalid: Vec<bool> = (0..truth.len())
        .map(|i| !truth[i].is_finite() || !image[i].is_finite() || marks.is_some_and(|m| m[i]))
        .collect();
    if !invalid.contains(&true) {
        return None;
    }
    for values in [truth, image] {
        let single: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let filled =
            Invalid::find(&single, None, Some(&invalid)).filled(&single, shape, NoiseLevel::Unknown).values;
        for i in (0..values.len()).filter(|&i| invalid[i]) {
            values[i] = filled[i].into();
        }
    }
    Some(invalid.iter().map(|i| !i).collect())
}
