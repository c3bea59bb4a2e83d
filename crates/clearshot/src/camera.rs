//! The camera of an image: known parameters, or an estimate from the noise of the image. All restorers use this module.

use crate::decimals::decimals;
use crate::error::Result;
use crate::validity::Validity;
use clearshot_image::Image;
use clearshot_physics::Correlation;
use clearshot_physics::calibration::blind::{BlindFit, Doubt, Known};
use clearshot_restore::camera::file::CameraFile;
use clearshot_restore::estimate::{as_camera, camera_of};
use clearshot_restore::learned::Camera;
use std::fmt;
use std::path::Path;

/// Known camera parameters. A parameter that is `None` is estimated from each image.
///
/// ```
/// use clearshot::KnownCamera;
/// let camera = KnownCamera { gain: Some(0.46), offset: Some(100.0), ..KnownCamera::default() };
/// assert_eq!(camera.read_noise, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KnownCamera {
    /// Electrons per count.
    pub gain: Option<f64>,
    /// Counts in the dark.
    pub offset: Option<f64>,
    /// The standard deviation of the read noise in electrons.
    pub read_noise: Option<f64>,
    /// Mean electrons in empty regions.
    pub background: Option<f64>,
    /// Mean electrons of the dark current in one exposure. They are added to a given background; an estimated
    /// background already includes them.
    pub dark: Option<f64>,
    /// The smallest count of a saturated pixel.
    pub saturation: Option<f64>,
    /// The correlation of the noise between neighbouring pixels.
    pub correlation: Option<Correlation>,
}

impl From<Camera> for KnownCamera {
    fn from(camera: Camera) -> KnownCamera {
        KnownCamera {
            gain: Some(camera.gain),
            offset: Some(camera.offset),
            read_noise: Some(camera.read_noise),
            background: camera.background,
            correlation: Some(camera.correlation),
            ..KnownCamera::default()
        }
    }
}

impl KnownCamera {
    /// Reads a file that describes a camera: `{"gain": 0.46, "offset": 100, "read_noise": 1.6, "saturation": 65535,
    /// "dark": 0.1}`. These names stand for typical cameras unless a file has that name: photography, scmos, ccd.
    ///
    /// # Errors
    /// If the file does not exist or is not a camera file.
    pub fn read(path: impl AsRef<Path>) -> Result<KnownCamera> {
        let CameraFile { camera, saturation, dark } = clearshot_restore::camera::file::read(path.as_ref())?;
        Ok(KnownCamera { saturation, dark, ..camera.into() })
    }

    /// Fills in unknown parameters from another camera.
    pub fn or(self, other: KnownCamera) -> KnownCamera {
        KnownCamera {
            gain: self.gain.or(other.gain),
            offset: self.offset.or(other.offset),
            read_noise: self.read_noise.or(other.read_noise),
            background: self.background.or(other.background),
            dark: self.dark.or(other.dark),
            saturation: self.saturation.or(other.saturation),
            correlation: self.correlation.or(other.correlation),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let camera = Camera {
            gain: self.gain.unwrap_or(1.0),
            offset: self.offset.unwrap_or(0.0),
            read_noise: self.read_noise.unwrap_or(0.0),
            background: self.background,
            correlation: Correlation::WHITE,
        };
        Ok(camera.check()?)
    }

    /// Mean electrons in empty regions, if given.
    fn without_object(&self) -> Option<f64> {
        self.background.map(|electrons| electrons + self.dark.unwrap_or(0.0))
    }

    /// The camera, if all parameters are known.
    fn whole(&self) -> Option<Camera> {
        Some(Camera {
            gain: self.gain?,
            offset: self.offset?,
            read_noise: self.read_noise?,
            background: self.without_object(),
            correlation: self.correlation.unwrap_or_default(),
        })
    }

    /// The camera, if its gain is known; other unknown parameters are zero.
    pub(crate) fn with_gain(&self) -> Option<Camera> {
        let zero = KnownCamera { offset: Some(0.0), read_noise: Some(0.0), ..KnownCamera::default() };
        self.or(zero).whole()
    }

    /// The camera of an image, and its estimate if a part of it was estimated.
    ///
    /// # Errors
    /// If the image does not determine the unknown parameters.
    pub(crate) fn of(&self, image: &Image, validity: &Validity) -> Result<(Camera, Option<Estimated>)> {
        if let Some(camera) = self.whole() {
            return Ok((camera, None));
        }
        let place =
            "the camera's noise cannot be estimated from this image; give gain, offset and read noise";
        let found = self.estimate(image, validity).map_err(|e| e.at(place))?;
        Ok((Camera { background: self.without_object(), ..as_camera(&found.fit) }, Some(found)))
    }

    /// Estimates the unknown camera parameters from the noise of the image; invalid pixels are left out.
    ///
    /// # Errors
    /// If the image cannot be read, or does not determine them.
    pub(crate) fn estimate(&self, image: &Image, validity: &Validity) -> Result<Estimated> {
        let known = Known {
            gain: self.gain,
            offset: self.offset,
            read_noise: self.read_noise,
            saturation: validity.saturation.filter(|_| validity.is_given).map(f64::from),
            correlation: self.correlation,
        };
        let fit = camera_of(image, &known, &|region, pixels| validity.marks(region, pixels))?;
        Ok(Estimated { fit, gain_known: self.gain.is_some(), uniform: false })
    }
}

/// A camera that was estimated from an image. `to_string` gives the estimates with their uncertainty.
#[derive(Clone, Debug)]
pub struct Estimated {
    /// The fit to the image.
    pub fit: BlindFit,
    /// Whether the gain was given.
    pub gain_known: bool,
    /// Whether a uniform standard deviation replaces the camera, because the image does not determine its gain.
    pub uniform: bool,
}

impl Estimated {
    /// Whether the image determines the gain.
    pub fn sees_gain(&self) -> bool {
        !self.fit.doubts.contains(&Doubt::GainNotSeen)
    }

    /// The standard deviation of uniform noise.
    pub(crate) fn deviation(&self) -> f64 {
        self.fit.line.deviation(self.fit.line.pivot)
    }
}

impl fmt::Display for Estimated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fit = &self.fit;
        let rest = format!(
            "offset {}, read noise {} electrons{}",
            decimals(fit.offset, 1),
            decimals(fit.read_noise, 2),
            correlation_in_words(&fit.correlation)
        );
        let [low, high] = fit.gain_range;
        match (self.sees_gain(), self.gain_known) {
            (false, _) if self.uniform => {
                write!(
                    f,
                    "noise estimated from the image: standard deviation {} everywhere",
                    decimals(self.deviation(), 4)
                )?;
            }
            (false, _) => write!(
                f,
                "the gain could not be estimated from this image; assumed: {} electrons per count ({} to {} fit equally well), {rest}",
                decimals(fit.gain, 3),
                decimals(low, 3),
                decimals(high, 3)
            )?,
            (true, true) => write!(f, "camera estimated from the image: {rest}")?,
            (true, false) => write!(
                f,
                "camera estimated from the image: gain {} +- {} electrons per count, {rest}",
                decimals(fit.gain, 4),
                decimals(fit.gain_error, 4)
            )?,
        }
        let doubts: Vec<&str> =
            fit.doubts.iter().filter(|d| **d != Doubt::GainNotSeen).map(|d| d.about()).collect();
        match doubts.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", doubts.join("; ")),
        }
    }
}

/// A correlation in words, if there is one.
pub fn correlation_in_words(c: &Correlation) -> String {
    match c.is_white() {
        true => String::new(),
        false => format!(
            ", correlated noise ({:.2} along X, {:.2} along Y, {:.2} along diagonals)",
            c.at(0, 1),
            c.at(1, 0),
            c.at(1, 1)
        ),
    }
}
