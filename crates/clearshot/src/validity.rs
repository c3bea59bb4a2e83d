//! Invalid pixels: the mask that marks them in an image, and the mask that is written for the output.
//!
//! The same rule holds for every restorer. NaN, infinite, masked and saturated pixels are filled in before a restorer
//! runs and keep their restored values. Only NaN and infinite pixels become NaN again, if the output can represent it,
//! because nothing was measured there and readers of the output must know; with inpainting, the filled-in values are
//! kept. The filling is in `clearshot_restore::invalid`.

use crate::error::{Error, Result};
use clearshot_image::dataset::list::stem;
use clearshot_image::grid::Region;
use clearshot_image::{DType, Description, Image, WriteOptions, Writer};
use clearshot_restore::invalid::Invalid;
use clearshot_restore::stream::Frames;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The invalid pixels of an image.
#[derive(Default)]
pub struct Validity {
    /// The smallest saturated value.
    pub saturation: Option<f32>,
    /// Whether that value was given, rather than found in the image.
    pub is_given: bool,
    /// Marks of other pixels.
    pub mask: Option<Mask>,
}

impl Validity {
    /// The pixels of a region that the mask marks.
    ///
    /// # Errors
    /// The reason why the mask cannot be read.
    pub fn marks(&self, region: &Region, pixels: usize) -> Result<Option<Vec<bool>>, String> {
        self.mask.as_ref().map(|m| m.marks(region, pixels).map_err(|e| e.to_string())).transpose()
    }

    /// Writes the reasons why pixels are invalid, as a separate image.
    ///
    /// # Errors
    /// If the image or its mask cannot be read, or the file cannot be written.
    pub fn save(&self, image: &Image, path: &Path, options: &WriteOptions) -> Result<()> {
        let mut d = image.description.clone();
        (d.dtype, d.bits, d.rescale, d.native, d.mosaic) = (DType::U8, 8, None, None, None);
        d.levels = vec![d.shape()];
        let mut writer = Writer::create(path, &d, options)?;
        for region in Frames::of(&image.description, false)?.regions() {
            let values = image.read_f32(&region)?;
            let marks = self.mask.as_ref().map(|m| m.marks(&region, values.len())).transpose()?;
            let invalid = Invalid::find(&values, self.saturation, marks.as_deref());
            writer.write(&region, &invalid.codes(values.len()))?;
        }
        Ok(writer.finish()?)
    }
}

/// The name of OUT_mask.
pub fn mask_path(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem(output);
    let ending = name[stem.len()..].to_string();
    output.with_file_name(format!("{stem}_mask{ending}"))
}

/// Whether the pixel type of a file can represent missing values.
pub fn may_be_none(d: &Description) -> bool {
    d.dtype.is_float() || d.rescale.is_some_and(|r| r.blank.is_some())
}

/// An image that marks the invalid pixels of another; it may have fewer axes than the other.
pub struct Mask {
    image: Image,
    /// For each of the mask's axes, the other image's axis; nothing where the mask has one position for all.
    axes: Vec<Option<usize>>,
}

impl Mask {
    /// # Errors
    /// If it cannot be read or does not fit.
    pub fn open(path: &Path, of: &Description) -> Result<Mask> {
        Mask::new(Image::open(path)?, of)
    }

    /// # Errors
    /// If it does not fit.
    pub fn new(image: Image, of: &Description) -> Result<Mask> {
        let d = &image.description;
        let place = |dim: &clearshot_image::Dim| match of.position(dim.axis) {
            Some(a) if of.dims[a].len == dim.len => Some(Some(a)),
            _ if dim.len == 1 => Some(None),
            _ => None,
        };
        let axes: Option<Vec<_>> = d.dims.iter().map(place).collect();
        let axes = axes.ok_or_else(|| {
            let (mask, image) = (d.shape(), of.shape());
            Error::Unsuited(format!(
                "{}: a mask of axes {} {mask:?} for an image of {} {image:?}: lengths must be equal",
                d.path.display(),
                d.axes(),
                of.axes()
            ))
        })?;
        Ok(Mask { image, axes })
    }

    /// The marked pixels of a region.
    ///
    /// # Errors
    /// If the mask cannot be read, or its axes do not match the region.
    pub fn marks(&self, place: &Region, pixels: usize) -> Result<Vec<bool>> {
        let region: Vec<Range<usize>> =
            self.axes.iter().map(|a| a.map_or(0..1, |a| place[a].clone())).collect();
        let marks: Vec<bool> = self.image.read_f32(&region)?.iter().map(|&v| v != 0.0).collect();
        if marks.is_empty() || !pixels.is_multiple_of(marks.len()) {
            return Err(Error::Unsuited(format!(
                "{}: a mask needs the image's Y and X",
                self.image.description.path.display()
            )));
        }
        // A plane's mask serves every plane of a volume.
        Ok(marks.iter().copied().cycle().take(pixels).collect())
    }
}
