//! Identity conversion: an image is read region by region and written to another file; the next region is read while the
//! last one is written.

use crate::error::{Error, Result, request};
use crate::grid::{Grid, indices, volume};
use crate::image::{Description, Image};
use crate::provenance::Provenance;
use crate::share::Share;
use crate::writer::{WriteOptions, Writer};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// How far a conversion is, in bytes of pixels.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
}

/// Copies a file's first image into another file: the same pixels, axes, names and tags, as far as the
/// output's format holds them, and a provenance record.
pub fn copy(input: impl AsRef<Path>, output: impl AsRef<Path>, replace: bool) -> Result<()> {
    copy_with(&Image::open(input)?, output.as_ref(), replace, &mut |_| {})
}

/// Copies an opened image and tells how far it is.
pub fn copy_with(image: &Image, output: &Path, replace: bool, tell: &mut dyn FnMut(Progress)) -> Result<()> {
    let writer = Writer::create(output, &image.description, &written(image, replace))?;
    copy_levels(image, writer, usize::MAX, tell)
}

/// Copies what is one writer's of several. The last of them copies the lower resolutions too.
///
/// # Errors
/// As [`Writer::join`], or if the image cannot be read or written.
pub fn copy_shared(
    image: &Image,
    output: &Path,
    replace: bool,
    share: &Share,
    tell: &mut dyn FnMut(Progress),
) -> Result<()> {
    let writer = Writer::join(output, &image.description, &written(image, replace), share)?;
    copy_levels(image, writer, if share.part.is_some() { 1 } else { usize::MAX }, tell)
}

fn written(image: &Image, replace: bool) -> WriteOptions {
    let provenance = Provenance::new("convert", &image.description, Value::Null).value();
    WriteOptions { replace, provenance: Some(provenance) }
}

fn copy_levels(image: &Image, mut writer: Writer, most: usize, tell: &mut dyn FnMut(Progress)) -> Result<()> {
    let width = image.dtype().bytes();
    let levels: Vec<usize> = (0..writer.levels().min(most))
        .filter(|&l| l == 0 || image.description.levels.get(l) == Some(&writer.grid(l).shape))
        .collect();
    let mut regions = Vec::new();
    for level in levels {
        let all = bands(image.grid(level), writer.grid(level), width)?;
        let wanted = |region: &Vec<Range<usize>>| match level {
            0 => writer.wanted(region),
            _ => vec![region.clone()],
        };
        regions.push((level, all.iter().flat_map(wanted).collect::<Vec<_>>()));
    }
    let bytes = |region: &Vec<Range<usize>>| region.iter().map(|r| r.len()).product::<usize>() * width;
    let total = regions.iter().flat_map(|(_, all)| all).map(bytes).sum();
    let mut done = 0;
    for (level, regions) in regions {
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let jobs = &regions;
            scope.spawn(move || {
                for region in jobs {
                    let data = image.read_level(level, region);
                    let failed = data.is_err();
                    if sender.send(data).is_err() || failed {
                        return;
                    }
                }
            });
            for region in &regions {
                let data = receiver
                    .recv()
                    .map_err(|_| Error::Request { what: "the reading thread ended early".to_string() })??;
                writer.write_level(level, region, &data)?;
                done += data.len();
                tell(Progress { done, total });
            }
            Ok::<(), Error>(())
        })?;
    }
    writer.finish()
}

/// Regions that cover an image in order, each of whole chunks of both grids where these fit into memory
/// comfortably.
///
/// # Errors
/// When there would be millions of regions: a header that claims so much is damaged.
pub(crate) fn bands(from: &Grid, to: &Grid, width: usize) -> Result<Vec<Vec<Range<usize>>>> {
    const BUDGET: usize = 24 << 20;
    const MOST: usize = 4 << 20;
    let shape = &from.shape;
    let mut size: Vec<usize> =
        (0..shape.len()).map(|a| from.chunk[a].max(to.chunk[a]).min(shape[a].max(1))).collect();
    for axis in (0..shape.len()).rev() {
        let others: usize = size.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, n)| n).product();
        let fits = (BUDGET / others.saturating_mul(width).max(1)).max(1);
        if fits >= shape[axis] {
            size[axis] = shape[axis].max(1);
            continue;
        }
        size[axis] *= (fits / size[axis]).max(1);
        break;
    }
    let bands = Grid::new(shape.clone(), size);
    let counts = bands.counts();
    if volume(&counts).is_none_or(|n| n > MOST) {
        return request(format!("an image of shape {shape:?} is too large"));
    }
    let ranges: Vec<_> = counts.into_iter().map(|n| 0..n).collect();
    Ok(indices(&ranges).iter().map(|i| bands.region(i)).collect())
}

/// What one description says that another does not: axes, steps and their units, channel names, slope and
/// intercept. Used to tell what a conversion's format had no place for.
pub fn not_kept(before: &Description, after: &Description) -> Vec<String> {
    let mut lost = Vec::new();
    let sorted = |d: &Description| {
        let mut letters: Vec<char> = d.dims.iter().filter(|d| d.len > 1).map(|d| d.axis.letter()).collect();
        letters.sort_unstable();
        letters
    };
    if sorted(before) != sorted(after) {
        lost.push(format!("the names of the axes: {} became {}", before.axes(), after.axes()));
    }
    for dim in before.dims.iter().filter(|d| d.step.is_some() && (d.len > 1 || d.axis.is_space())) {
        let other = after.dim(dim.axis);
        let (a, b) = (dim.step.unwrap_or(0.0), other.and_then(|d| d.step).unwrap_or(0.0));
        // The unit may have become another; that is seen as a power of ten between the steps.
        let exact = (a - b).abs() <= 1e-5 * a.abs();
        let power = (b / a).log10();
        let rescaled =
            b > 0.0 && (power - power.round()).abs() < 1e-5 && other.is_some_and(|d| d.unit != dim.unit);
        if !exact && !rescaled {
            lost.push(format!(
                "the step {a} {} of axis {}",
                dim.unit.as_deref().unwrap_or(""),
                dim.axis.letter()
            ));
        } else if dim.unit.is_some() && other.is_none_or(|d| d.unit.is_none()) {
            lost.push(format!(
                "the unit {} of axis {}",
                dim.unit.as_deref().unwrap_or(""),
                dim.axis.letter()
            ));
        }
    }
    let names =
        |d: &Description| -> Vec<String> { d.channels.iter().filter_map(|c| c.name.clone()).collect() };
    if !names(before).is_empty() && names(before) != names(after) {
        lost.push(format!("the channels' names ({})", names(before).join(", ")));
    }
    if let Some(r) = before.rescale {
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
        let kept = after.rescale.is_some_and(|o| close(o.slope, r.slope) && close(o.intercept, r.intercept));
        if !kept && (r.slope, r.intercept) != (1.0, 0.0) {
            lost.push(format!(
                "slope {} and intercept {}: the file holds stored values",
                r.slope, r.intercept
            ));
        }
        if r.blank.is_some() && after.rescale.is_none_or(|o| o.blank != r.blank) {
            lost.push(format!("that {} means no value", r.blank.unwrap_or(0)));
        }
    }
    lost
}
