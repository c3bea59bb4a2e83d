//! Which pixels hold no measurement: what the command line says of it, the masks that mark such pixels of an image, and the
//! mask that says what was found. One rule for every verb that restores.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::dataset::list::stem;
use clearshot_image::grid::Region;
use clearshot_image::{DType, Description, Image, WriteOptions, Writer};
use clearshot_restore::invalid::Invalid;
use clearshot_restore::stream::Frames;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Options of every verb that restores.
#[derive(Args, Clone, Debug, Default)]
pub struct Validity {
    /// Take pixels at or above this value as saturated: what they held is estimated from their neighbours. Default: where
    /// values pile up at the top of the range.
    #[arg(long, value_name = "VALUE")]
    pub saturation: Option<f32>,
    /// Take pixels as invalid (dead, hot) that are not zero in this image of the same Y and X: they are filled from their
    /// neighbours. Default: none.
    #[arg(long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
    /// Write OUT_mask beside each output: 0 valid, 1 not finite, 2 saturated, 3 marked by --mask. Default: no mask.
    #[arg(long)]
    pub save_mask: bool,
}

impl Validity {
    pub fn mask_of(&self, image: &Image) -> Result<Option<Mask>> {
        self.mask.as_ref().map(|path| Mask::open(path, &image.description)).transpose()
    }

    /// Why pixels of an image hold no measurement, as an image of its own; `saturation` is where its own values say that
    /// pixels are saturated, which what was said on the command line goes before.
    ///
    /// # Errors
    /// If the image or its mask cannot be read, or the file cannot be written.
    pub fn save(
        &self,
        image: &Image,
        saturation: Option<f32>,
        path: &Path,
        options: &WriteOptions,
    ) -> Result<()> {
        let mask = self.mask_of(image)?;
        let full = self.saturation.or(saturation);
        let mut d = image.description.clone();
        (d.dtype, d.bits, d.rescale, d.native, d.mosaic) = (DType::U8, 8, None, None, None);
        d.levels = vec![d.shape()];
        let mut writer = Writer::create(path, &d, options)?;
        for region in Frames::of(&image.description, false)?.regions() {
            let values = image.read_f32(&region)?;
            let marks = mask.as_ref().map(|m| m.marks(&region, values.len())).transpose()?;
            writer.write(&region, &Invalid::find(&values, full, marks.as_deref()).codes(values.len()))?;
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

/// Whether pixels of a file can say by their value that there is none.
pub fn may_be_none(d: &Description) -> bool {
    d.dtype.is_float() || d.rescale.is_some_and(|r| r.blank.is_some())
}

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
