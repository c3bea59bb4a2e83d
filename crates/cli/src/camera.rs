//! `clearshot camera`: measures the noise of a camera from its images, and writes a file for the option `--camera` of
//! other commands.

mod given;
mod summary;

pub use given::KnownCameraArgs;

use crate::electrons;
use crate::voice::worded;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::{Axis, CameraImages, CameraSettings, Event, KnownCamera, Observer, estimate_camera};
use clearshot_tensor::store::write_whole;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Camera {
    /// Measure from these images of one camera: files, folders, glob patterns or Zarr addresses (s3://, https://). Without --repeats or --movie each
    /// is treated as a single image, whose noise is separated from its structure.
    #[arg(value_name = "IMAGES", required_unless_present_any = ["flats", "darks"])]
    images: Vec<String>,
    /// Write the camera to this file, for the option --camera of other verbs. Default: it is only printed.
    #[arg(short, long, alias = "out", value_name = "camera.json")]
    output: Option<PathBuf>,
    /// Treat the images as frames of one scene, in several files or along T: differences are noise. Use this if the sample does not move. Default:
    /// single images.
    #[arg(long, conflicts_with = "movie")]
    repeats: bool,
    /// Treat the images as a movie along T, or with one frame in each file: motion and bleaching are separated from noise. Default: single images.
    #[arg(long)]
    movie: bool,
    /// Measure the gain from evenly lit frames, two or more of each brightness; several brightnesses are better. Default: none.
    #[arg(long, num_args = 1.., value_name = "FILES", conflicts_with_all = ["images", "repeats", "movie"])]
    flats: Vec<String>,
    /// Measure offset and read noise from frames without light, two or more. Default: none.
    #[arg(long, num_args = 1.., value_name = "FILES")]
    darks: Vec<String>,
    /// Look for frames along this axis of the files: T, Z, C, Y, or I (an axis without a name). Default: T, otherwise I.
    #[arg(long, value_name = "AXIS", value_parser = axis)]
    axis: Option<Axis>,
    /// Set the gain, in electrons per count. Default: measured; it includes the excess noise of an EMCCD (about half of the photo-electrons per
    /// count).
    #[arg(long, value_parser = electrons::gain::<f64>, allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Set the offset, in counts: images alone cannot separate it from the read noise. Default: from --darks; otherwise, if 0 fits, the level at which no noise would be left, 0 at least;
    /// if not, the middle between that level and the darkest smooth one, never above dark places; below all pixels if no gain is seen.
    #[arg(long, value_parser = electrons::counts::<f64>, allow_negative_numbers = true)]
    offset: Option<f64>,
    /// Set the read noise, its standard deviation in electrons. Default: measured.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    read_noise: Option<f64>,
    /// Treat pixels at or above this value as saturated. Default: the top of the range, if values pile up there.
    #[arg(long, value_name = "VALUE")]
    saturation: Option<f64>,
    /// Use this image of files that contain several, by name or number. Default: the first.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Plot variance against brightness, the correlation, and clipping. Default: no plot.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    /// Print the contents of the camera file as JSON. Default: a summary in text.
    #[arg(long)]
    json: bool,
}

fn axis(text: &str) -> Result<Axis, String> {
    let mut letters = text.chars();
    let found = letters.next().and_then(|c| Axis::from_letter(c.to_ascii_uppercase()));
    match (found, letters.next()) {
        (Some(axis), None) if axis != Axis::X => Ok(axis),
        _ => Err("an axis other than X is needed: T, Z, C, Y or I".into()),
    }
}

impl Camera {
    pub fn run(self) -> Result<()> {
        for path in self.output.iter().chain(&self.plot) {
            if path.exists() && !self.force {
                bail!("{}: exists already; --force replaces it", path.display());
            }
        }
        if let Some(path) = self.plot.as_ref().filter(|p| p.extension().is_none_or(|e| e != "svg")) {
            bail!("--plot {}: figures are SVG; name it NAME.svg", path.display());
        }
        if self.images.is_empty() && self.flats.is_empty() {
            bail!(
                "--darks alone give offset and read noise in counts, but no gain; add --flats or images of a scene"
            );
        }
        let (images, sources) = match (self.flats.is_empty(), self.repeats, self.movie) {
            (false, ..) => (CameraImages::Flats, &self.flats),
            (_, true, _) => (CameraImages::Repeats, &self.images),
            (_, _, true) => (CameraImages::Movie, &self.images),
            _ => (CameraImages::Single, &self.images),
        };
        let known = KnownCamera {
            gain: self.gain,
            offset: self.offset,
            read_noise: self.read_noise,
            ..KnownCamera::default()
        };
        let (darks, item) = (self.darks.clone(), self.item.clone());
        let settings =
            CameraSettings { images, darks, axis: self.axis, known, saturation: self.saturation, item };
        let report = estimate_camera(sources, &settings, &mut Hints)?;
        let record = report.record();
        if let Some(path) = &self.output {
            write(path, &format!("{}\n", serde_json::to_string_pretty(&record)?))?;
        }
        if let Some(path) = &self.plot {
            write(path, &report.figure())?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{record}")?;
            return Ok(());
        }
        summary::print(&report.measured, &known, &report.files, &mut out)?;
        for path in self.output.iter().chain(&self.plot) {
            writeln!(out, "wrote {}", path.display())?;
        }
        Ok(())
    }
}

/// What would tell more, on standard error.
struct Hints;

impl Observer for Hints {
    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        if let Event::Notice(notice) = event {
            eprintln!("clearshot: {}: {}", image.display(), worded(notice));
        }
        ControlFlow::Continue(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text.as_bytes()).with_context(|| path.display().to_string())
}
