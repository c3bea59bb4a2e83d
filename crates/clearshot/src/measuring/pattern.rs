//! Patterns that are inserted into images: shapes, or files with the values to add.

use crate::error::{Error, Result};
use clearshot_image::dataset::list::files;
use clearshot_image::grid::Region;
use clearshot_image::{DType, Description, Image, WriteOptions, Writer};
use clearshot_metrics::artefacts::Pattern;
use clearshot_restore::stream::Frames;
use std::path::{Path, PathBuf};

const DISK: &str = "disk:Y,X,RADIUS,VALUE[,BLUR]";
const LINE: &str = "line:Y,X,Y,X,WIDTH,VALUE";

/// An inserted pattern.
pub enum Inserted {
    /// y, x, radius, value, blur.
    Disk([f64; 5]),
    /// Start y, x, end y, x, width, value.
    Line([f64; 6]),
    File(PathBuf),
}

fn wrong(text: &str, why: String) -> Error {
    Error::value("pattern", text, why)
}

impl Inserted {
    /// # Errors
    /// If it is neither a shape with all its numbers nor a file.
    pub fn parse(text: &str) -> Result<Inserted> {
        let numbers = |list: &str| -> Option<Vec<f64>> {
            list.split(',').map(|n| n.trim().parse().ok().filter(|v: &f64| v.is_finite())).collect()
        };
        match text.split_once(':') {
            Some(("disk", list)) => match numbers(list).as_deref() {
                Some(&[y, x, radius, value]) => Ok(Inserted::Disk([y, x, radius, value, 0.0])),
                Some(&[y, x, radius, value, blur]) => Ok(Inserted::Disk([y, x, radius, value, blur])),
                _ => Err(wrong(text, format!("{DISK} is needed, in pixels"))),
            },
            Some(("line", list)) => match numbers(list).and_then(|n| n.try_into().ok()) {
                Some(numbers) => Ok(Inserted::Line(numbers)),
                None => Err(wrong(text, format!("{LINE} is needed, in pixels"))),
            },
            _ if Path::new(text).exists() => Ok(Inserted::File(text.into())),
            _ => Err(wrong(text, format!("no such file, and not {DISK} or {LINE}"))),
        }
    }

    /// The pattern in one plane or volume `region` of an image.
    ///
    /// # Errors
    /// If it covers no pixel, or the file does not match.
    pub fn of(&self, frames: &Frames, region: &Region) -> Result<Pattern> {
        let whole = match self {
            Inserted::File(path) => return from_file(path, frames, region),
            Inserted::Disk([y, x, radius, value, blur]) => {
                Pattern::disk(plane(frames)?, [*y, *x], *radius, *value, *blur)?
            }
            Inserted::Line([y, x, to_y, to_x, width, value]) => {
                Pattern::line(plane(frames)?, [*y, *x], [*to_y, *to_x], *width, *value)?
            }
        };
        let pixels = chosen(frames, region);
        Ok(Pattern {
            values: pixels.iter().map(|&i| whole.values[i]).collect(),
            mask: pixels.iter().map(|&i| whole.mask[i]).collect(),
        })
    }

    /// Writes an image with the pattern added to every plane, as 32-bit floats.
    ///
    /// # Errors
    /// If there is not one image, or it cannot be read or written.
    pub fn write(&self, image: &str, path: &Path) -> Result<()> {
        let found = files(image)?;
        let [input] = &found[..] else {
            return Err(Error::setting(
                "insert",
                format!("one image is needed, and {image} has {}", found.len()),
            ));
        };
        let image = Image::open(input)?;
        let frames = Frames::of(&image.description, false)?;
        let mut writer = Writer::create(path, &as_floats(&image.description), &WriteOptions::default())?;
        for region in frames.regions() {
            let pattern = self.of(&frames, &region)?;
            let sum =
                image.read_f64(&region)?.iter().zip(&pattern.values).map(|(v, p)| v + p).collect::<Vec<_>>();
            let mut bytes = Vec::new();
            DType::F32.encode(&sum, &mut bytes);
            writer.write(&region, &bytes)?;
        }
        Ok(writer.finish()?)
    }
}

fn as_floats(d: &Description) -> Description {
    let mut d = d.clone();
    (d.dtype, d.bits, d.rescale, d.native, d.mosaic) = (DType::F32, 32, None, None, None);
    d.levels = vec![d.shape()];
    d
}

fn plane(frames: &Frames) -> Result<[usize; 2]> {
    match frames.size()[..] {
        [h, w] => Ok([h, w]),
        _ => Err(Error::setting(
            "pattern",
            "disks and lines are for planes; give an image of what was added for volumes",
        )),
    }
}

/// Which pixels of a plane lie in a region.
fn chosen(frames: &Frames, region: &Region) -> Vec<usize> {
    let width = *frames.size().last().unwrap_or(&1);
    let (y, x) = (region[frames.inner()[0]].clone(), region[frames.inner()[1]].clone());
    y.flat_map(|y| x.clone().map(move |x| y * width + x)).collect()
}

fn from_file(path: &Path, frames: &Frames, region: &Region) -> Result<Pattern> {
    let image = Image::open(path)?;
    let own = Frames::of(&image.description, frames.inner().len() == 3)?;
    if own.size() != frames.size() {
        let why = format!("a pattern of {:?} pixels for an image of {:?}", own.size(), frames.size());
        return Err(Error::Unsuited(why).at(path.display()));
    }
    let mut place = own.regions().into_iter().next().unwrap_or_default();
    own.inner().iter().zip(frames.inner()).for_each(|(&to, &from)| place[to] = region[from].clone());
    let values = image.read_f64(&place)?;
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        return Err(Error::Unsuited(format!("pixel {i} of the pattern is {}", values[i])).at(path.display()));
    }
    let mask: Vec<bool> = values.iter().map(|&v| v != 0.0).collect();
    if !mask.contains(&true) {
        return Err(Error::Unsuited("the pattern is zero everywhere".into()).at(path.display()));
    }
    Ok(Pattern { values, mask })
}
