//! A point-spread function from images of beads: found, cut out, centred and averaged.

use crate::error::{Error, Result};
use crate::psf::pixel_sizes;
use clearshot_image::{Axis, DType, Description, Dim, Image, Provenance, WriteOptions, Writer};
use clearshot_physics::Psf;
use clearshot_physics::psf::Background;
use clearshot_physics::psf::beads::{Search, average};
use clearshot_restore::stream::Frames;
use clearshot_tensor::{Shape, Tensor};
use serde_json::json;
use std::path::{Path, PathBuf};

/// How beads are detected.
#[derive(Clone, Debug)]
pub struct BeadSettings {
    /// The radius of a bead in pixels around its brightest pixel, along every axis.
    pub radius: usize,
    /// The minimum height of a bead above the background, as a fraction of the brightest pixel's height.
    pub least: f64,
    /// Averages volumes along Z, Y and X in place of planes.
    pub volume: bool,
    /// The image of a multi-image file, by name or number. Default: the first.
    pub item: Option<String>,
}

impl Default for BeadSettings {
    fn default() -> BeadSettings {
        BeadSettings { radius: 8, least: 0.3, volume: false, item: None }
    }
}

/// A point-spread function that was averaged from beads.
#[derive(Clone)]
#[non_exhaustive]
pub struct Beads {
    /// The average; its sum is 1.
    pub psf: Psf,
    /// The number of beads.
    pub count: usize,
    /// The pixel size in nanometres along (Z,) Y and X, if the file has one.
    pub pixels: Option<Vec<f64>>,
    /// The file, and its axes.
    source: Description,
    settings: BeadSettings,
}

impl Beads {
    /// The full width at half maximum along (Z,) Y and X, in pixels.
    pub fn fwhm(&self) -> Vec<f64> {
        self.psf.fwhm()
    }

    /// Writes it as 32-bit floats with its pixel size, for [`crate::Settings::psf`].
    ///
    /// # Errors
    /// If the file exists, or cannot be written.
    pub fn write(&self, path: &Path, replace: bool) -> Result<()> {
        let shape = self.psf.shape();
        let axes = &[Axis::Z, Axis::Y, Axis::X][3 - shape.rank()..];
        let dims = axes.iter().enumerate().map(|(i, &axis)| {
            let step = self.pixels.as_ref().map(|p| p[i]);
            Dim::stepped(axis, shape[i], step, "nm")
        });
        let mut d = Description::new("", path, dims.collect(), DType::F32);
        d.levels = vec![d.shape()];
        let BeadSettings { radius, least, .. } = self.settings;
        let parameters = json!({"beads": self.count, "radius": radius, "least": least});
        let provenance = Some(Provenance::new("psf", &self.source, parameters).value());
        let mut writer = Writer::create(path, &d, &WriteOptions { replace, provenance })?;
        let mut bytes = Vec::new();
        DType::F32.encode(self.psf.values(), &mut bytes);
        let whole: Vec<_> = d.shape().iter().map(|&n| 0..n).collect();
        writer.write(&whole, &bytes)?;
        Ok(writer.finish()?)
    }
}

/// Averages the beads of an image into a point-spread function. If an image has several planes or volumes, the first is
/// used.
///
/// # Errors
/// If the image cannot be read, is an 8-bit image, or has no isolated bead.
pub fn average_beads(image: impl Into<PathBuf>, settings: &BeadSettings) -> Result<Beads> {
    let path = image.into();
    let at = |e: Error| e.at(path.display());
    let image = Image::open_named(&path, settings.item.as_deref())?;
    let d = &image.description;
    let frames = Frames::of(d, settings.volume).map_err(|e| at(e.into()))?;
    let Some(region) = frames.regions().into_iter().next() else {
        return Err(at(Error::Unsuited("has no planes".into())));
    };
    let size = frames.size().to_vec();
    let search = Search {
        radius: vec![settings.radius; size.len()],
        least: settings.least,
        background: Background::Median,
    };
    let shape = Shape::new(&size);
    // What an 8-bit image cannot hold is refused by its type, which is lost in a tensor of floats.
    if image.dtype() == DType::U8 {
        let dtype = clearshot_tensor::DType::U8;
        return Err(at(clearshot_physics::PhysicsError::EightBitPsf { dtype }.into()));
    }
    let values = Tensor::f32(shape, image.read_f32(&region)?);
    let (psf, count) = average(&values, &search).map_err(|e| at(e.into()))?;
    let pixels = pixel_sizes(d, size.len());
    Ok(Beads { psf, count, pixels, source: d.clone(), settings: settings.clone() })
}
