//! `clearshot camera`: what the noise of a camera is, from its own files, as a file that every verb takes by `--camera`.

mod given;
mod summary;

pub use given::{CameraArgs, KnownCameraArgs};

use crate::{electrons, outputs};
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::{Axis, Image};
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::flats::Darkness;
use clearshot_physics::calibration::measurement::CameraMeasurement;
use clearshot_restore::camera::{Stack, Together, file};
use clearshot_restore::estimate;
use clearshot_tensor::store::write_whole;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Camera {
    /// Measure from these images of one camera: files, folders, glob patterns or addresses of Zarr (s3://, https://). Without
    /// --repeats or --movie each is taken for a single image, whose noise is told from its structure.
    #[arg(value_name = "IMAGES", required_unless_present_any = ["flats", "darks"])]
    images: Vec<String>,
    /// Write the camera to this file, for --camera of other verbs. Default: it is only printed.
    #[arg(short, long, value_name = "camera.json")]
    output: Option<PathBuf>,
    /// Take the images as frames of one scene, as several files or along T: what differs is noise. Best of all where the sample
    /// holds still. Default: single images.
    #[arg(long, conflicts_with = "movie")]
    repeats: bool,
    /// Take the images as a movie along T, or as one frame a file: what moves or bleaches is told from noise. Default: single
    /// images.
    #[arg(long)]
    movie: bool,
    /// Measure the gain from frames of even light, two or more of each brightness; several brightnesses tell more. Default: none.
    #[arg(long, num_args = 1.., value_name = "FILES", conflicts_with_all = ["images", "repeats", "movie"])]
    flats: Vec<String>,
    /// Measure offset and read noise from frames without light, two or more. Default: none.
    #[arg(long, num_args = 1.., value_name = "FILES")]
    darks: Vec<String>,
    /// Look for frames along this axis of the files: T, Z, C, Y or I, the one without a name. Default: T, or else I.
    #[arg(long, value_name = "AXIS", value_parser = axis)]
    axis: Option<Axis>,
    /// Take the gain as known, in electrons per count. Default: measured; the excess noise of an EMCCD is part of it (about half
    /// of the photo-electrons per count).
    #[arg(long, value_parser = electrons::gain::<f64>, allow_negative_numbers = true)]
    gain: Option<f64>,
    /// Take the offset as known, in counts: images alone do not tell it from the read noise. Default: that of --darks, or the
    /// middle of what fits.
    #[arg(long, value_parser = electrons::counts::<f64>, allow_negative_numbers = true)]
    offset: Option<f64>,
    /// Take the read noise as known, its standard deviation in electrons. Default: measured.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true)]
    read_noise: Option<f64>,
    /// Take pixels at or above this value as saturated. Default: where values pile up at the top of the range.
    #[arg(long, value_name = "VALUE")]
    saturation: Option<f64>,
    /// Take this image of files that have several, by name or number. Default: the first.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Draw variance against brightness, the correlation and what is clipped. Default: no figure.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Replace files that are there already. Default: they are kept, and it is an error.
    #[arg(long)]
    force: bool,
    /// Print one JSON object, what the file holds, instead of the summary. Default: the summary.
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
        let (measured, files) = self.measure()?;
        let record = file::record(&measured, &files);
        if let Some(path) = &self.output {
            write(path, &format!("{}\n", serde_json::to_string_pretty(&record)?))?;
        }
        if let Some(path) = &self.plot {
            write(path, &clearshot_evaluate::report::camera(&measured, &title(&files)))?;
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{record}")?;
            return Ok(());
        }
        summary::print(&measured, &self.known(), &files, &mut out)?;
        for path in self.output.iter().chain(&self.plot) {
            writeln!(out, "wrote {}", path.display())?;
        }
        Ok(())
    }

    fn known(&self) -> Known {
        Known {
            gain: self.gain,
            offset: self.offset,
            read_noise: self.read_noise,
            saturation: self.saturation,
            correlation: None,
        }
    }

    /// The camera, and the files that told it.
    fn measure(&self) -> Result<(CameraMeasurement, Vec<String>)> {
        let mut names = Vec::new();
        let dark = match self.darks.is_empty() {
            true => None,
            false => Some(self.stack(&self.darks, Together::All, "--darks", &mut names)?.as_darks()?),
        };
        let mut known = self.known();
        if let Some(dark) = &dark {
            known.offset = known.offset.or(Some(dark.offset));
        }
        if !self.flats.is_empty() {
            let stack = self.stack(&self.flats, Together::All, "--flats", &mut names)?;
            return Ok((stack.as_flats(dark.as_ref(), &known)?, names));
        }
        if self.images.is_empty() {
            bail!(
                "--darks tell offset and read noise in counts, and no gain: add --flats or images of a scene"
            );
        }
        let mut measured = if self.repeats {
            self.stack(&self.images, Together::All, "--repeats", &mut names)?.as_repeats(&known)?
        } else if self.movie {
            self.stack(&self.images, Together::EachFile, "--movie", &mut names)?.as_movie(&known)?
        } else {
            let images = self.open(&self.images, &mut names)?;
            hint(&images);
            estimate::measure(&images, &known).with_context(|| names.join(", "))?
        };
        if let Some(dark) = dark.filter(|_| self.read_noise.is_none()) {
            Darkness::complete(&dark, &mut measured);
        }
        Ok((measured, names))
    }

    fn open(&self, sources: &[String], names: &mut Vec<String>) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        for source in sources {
            for path in outputs::listed(source)? {
                images.push(Image::open_named(&path, self.item.as_deref())?);
                names.push(path.display().to_string());
            }
        }
        Ok(images)
    }

    fn stack(
        &self,
        sources: &[String],
        together: Together,
        option: &str,
        names: &mut Vec<String>,
    ) -> Result<Stack> {
        let images = self.open(sources, names)?;
        let stack = Stack::read(&images, self.axis, together).with_context(|| option.to_string())?;
        Ok(stack)
    }
}

/// Says where frames of a file would tell more than single images.
fn hint(images: &[Image]) {
    for image in images {
        let d = &image.description;
        if d.dim(Axis::T).is_some_and(|t| t.len > 1) {
            eprintln!(
                "clearshot: {}: has several frames along T, taken for single images; --movie, or --repeats where the sample holds still, tells more",
                d.path.display()
            );
        }
    }
}

fn title(files: &[String]) -> String {
    let name =
        |f: &String| Path::new(f).file_name().map_or_else(|| f.clone(), |n| n.to_string_lossy().into_owned());
    match files {
        [one] => format!("Noise of {}", name(one)),
        [first, rest @ ..] => format!("Noise of {} and {} more", name(first), rest.len()),
        [] => "Noise".into(),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text.as_bytes()).with_context(|| path.display().to_string())
}
