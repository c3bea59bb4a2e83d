//! Measures the noise of a camera from its images: single images, repeats, a movie, or flats and darks.

use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::{Event, Observer, go_on};
use clearshot_image::dataset::list::files;
use clearshot_image::{Axis, Image};
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::flats::Darkness;
use clearshot_physics::calibration::measurement::CameraMeasurement;
use clearshot_restore::camera::{Stack, Together, file};
use clearshot_restore::estimate;
use serde_json::Value;
use std::path::Path;

/// What the images of a camera show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CameraImages {
    /// A different scene in each image: noise is separated from structure.
    #[default]
    Single,
    /// Repeats of one static scene, as several files or along an axis: differences are noise.
    Repeats,
    /// A movie along an axis, or one frame per file: motion and bleaching are separated from noise.
    Movie,
    /// Uniform illumination, with two or more frames at each brightness.
    Flats,
}

/// How a camera is measured.
#[derive(Clone, Debug, Default)]
pub struct CameraSettings {
    /// What the images show.
    pub images: CameraImages,
    /// Two or more dark frames: files, folders or glob patterns.
    pub darks: Vec<String>,
    /// The axis of the frames. Default: T, otherwise the unnamed axis.
    pub axis: Option<Axis>,
    /// Known parameters: gain, offset and read noise.
    pub known: KnownCamera,
    /// The smallest value of a saturated pixel. Default: the value at which pixels pile up at the top of the range.
    pub saturation: Option<f64>,
    /// The image of multi-image files, by name or number. Default: the first.
    pub item: Option<String>,
}

/// A camera measured from its images.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CameraReport {
    /// Every number with its uncertainty.
    pub measured: CameraMeasurement,
    /// The files used.
    pub files: Vec<String>,
}

impl CameraReport {
    /// The camera, for [`crate::Settings::camera`].
    pub fn camera(&self) -> KnownCamera {
        estimate::as_camera(&self.measured.fit).into()
    }

    /// As JSON, which [`KnownCamera::read`] can read from a file.
    pub fn record(&self) -> Value {
        file::record(&self.measured, &self.files)
    }

    /// A figure of variance against brightness, the correlation and the clipped pixels, as SVG.
    pub fn figure(&self) -> String {
        let name = |f: &String| {
            Path::new(f).file_name().map_or_else(|| f.clone(), |n| n.to_string_lossy().into_owned())
        };
        let title = match &self.files[..] {
            [one] => format!("Noise of {}", name(one)),
            [first, rest @ ..] => format!("Noise of {} and {} more", name(first), rest.len()),
            [] => "Noise".into(),
        };
        clearshot_evaluate::report::camera(&self.measured, &title)
    }
}

/// Measures a camera from its images: files, folders, glob patterns or addresses of Zarr.
///
/// # Errors
/// If images cannot be read or do not determine the camera, or there are too few frames.
pub fn estimate_camera(
    images: &[impl AsRef<str>],
    settings: &CameraSettings,
    observer: &mut dyn Observer,
) -> Result<CameraReport> {
    let sources: Vec<&str> = images.iter().map(AsRef::as_ref).collect();
    let mut names = Vec::new();
    let dark = match settings.darks.is_empty() {
        true => None,
        false => {
            let darks: Vec<&str> = settings.darks.iter().map(String::as_str).collect();
            Some(settings.stack(&darks, Together::All, "darks", &mut names)?.as_darks()?)
        }
    };
    let mut known = settings.known();
    if let Some(dark) = &dark {
        known.offset = known.offset.or(Some(dark.offset));
    }
    if sources.is_empty() {
        let why = "they give offset and read noise in counts, but no gain; add flats or images of a scene";
        return Err(Error::setting("darks", why));
    }
    let mut measured = match settings.images {
        CameraImages::Flats => {
            let stack = settings.stack(&sources, Together::All, "flats", &mut names)?;
            return Ok(CameraReport { measured: stack.as_flats(dark.as_ref(), &known)?, files: names });
        }
        CameraImages::Repeats => {
            settings.stack(&sources, Together::All, "repeats", &mut names)?.as_repeats(&known)?
        }
        CameraImages::Movie => {
            settings.stack(&sources, Together::EachFile, "movie", &mut names)?.as_movie(&known)?
        }
        CameraImages::Single => {
            let images = settings.open(&sources, &mut names)?;
            hint(&images, observer)?;
            let place = names.join(", ");
            estimate::measure(&images, &known).map_err(|e| Error::from(e).at(place))?
        }
    };
    if let Some(dark) = dark.filter(|_| settings.known.read_noise.is_none()) {
        Darkness::complete(&dark, &mut measured);
    }
    Ok(CameraReport { measured, files: names })
}

impl CameraSettings {
    fn known(&self) -> Known {
        let KnownCamera { gain, offset, read_noise, .. } = self.known;
        Known { gain, offset, read_noise, saturation: self.saturation, correlation: None }
    }

    fn open(&self, sources: &[&str], names: &mut Vec<String>) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        for source in sources {
            for path in files(source)? {
                images.push(Image::open_named(&path, self.item.as_deref())?);
                names.push(path.display().to_string());
            }
        }
        Ok(images)
    }

    fn stack(
        &self,
        sources: &[&str],
        together: Together,
        field: &'static str,
        names: &mut Vec<String>,
    ) -> Result<Stack> {
        let images = self.open(sources, names)?;
        Stack::read(&images, self.axis, together).map_err(|e| Error::setting(field, e.to_string()))
    }
}

/// Says where frames of a file would tell more than single images.
fn hint(images: &[Image], observer: &mut dyn Observer) -> Result<()> {
    for d in images.iter().map(|image| &image.description) {
        if d.dim(Axis::T).is_some_and(|t| t.len > 1) {
            go_on(observer.event(&d.path, &Event::Notice(Notice::FramesAsSingle)))?;
        }
    }
    Ok(())
}
