//! Masks: files whose pixels other than zero mark invalid pixels of another image.

use anyhow::{Context, Result, bail};
use clearshot_image::grid::Region;
use clearshot_image::{Description, Image};
use std::ops::Range;
use std::path::Path;

/// An image that marks invalid pixels of another, which it may have fewer axes than.
pub struct Mask {
    image: Image,
    /// For each of the mask's axes, the other image's axis; nothing where the mask has one position for all.
    axes: Vec<Option<usize>>,
}

impl Mask {
    /// # Errors
    /// If it cannot be read or does not fit.
    pub fn open(path: &Path, of: &Description) -> Result<Mask> {
        let image = Image::open(path)?;
        let d = &image.description;
        let place = |dim: &clearshot_image::Dim| match of.position(dim.axis) {
            Some(a) if of.dims[a].len == dim.len => Some(Some(a)),
            _ if dim.len == 1 => Some(None),
            _ => None,
        };
        let axes: Option<Vec<_>> = d.dims.iter().map(place).collect();
        let axes = axes.with_context(|| {
            let (mask, image) = (d.shape(), of.shape());
            format!(
                "{}: a mask of axes {} {mask:?} for an image of {} {image:?}: lengths must be equal",
                path.display(),
                d.axes(),
                of.axes()
            )
        })?;
        Ok(Mask { image, axes })
    }

    /// Which of a region's pixels are marked.
    ///
    /// # Errors
    /// If the mask cannot be read, or has not the axes that the region has.
    pub fn marks(&self, place: &Region, pixels: usize) -> Result<Vec<bool>> {
        let region: Vec<Range<usize>> =
            self.axes.iter().map(|a| a.map_or(0..1, |a| place[a].clone())).collect();
        let marks: Vec<bool> = self.image.read_f32(&region)?.iter().map(|&v| v != 0.0).collect();
        if marks.is_empty() || !pixels.is_multiple_of(marks.len()) {
            bail!("{}: a mask needs the image's Y and X", self.image.description.path.display());
        }
        // A plane's mask serves every plane of a volume.
        Ok(marks.iter().copied().cycle().take(pixels).collect())
    }
}
