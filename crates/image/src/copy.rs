//! Identity conversion: an image read region by region and written to another file, the next region being
//! read while the last one is written.

use crate::error::{Error, Result};
use crate::grid::{Grid, indices};
use crate::image::Image;
use crate::provenance::Provenance;
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
    let provenance = Provenance::new("convert", &image.description, Value::Null).value();
    let options = WriteOptions { replace, provenance: Some(provenance) };
    let mut writer = Writer::create(output, &image.description, &options)?;
    let width = image.dtype().bytes();
    let levels: Vec<usize> = (0..writer.levels())
        .filter(|&l| l == 0 || image.description.levels.get(l) == Some(&writer.grid(l).shape))
        .collect();
    let bytes = |level: usize| writer.grid(level).shape.iter().product::<usize>() * width;
    let total = levels.iter().map(|&l| bytes(l)).sum();
    let mut done = 0;
    for level in levels {
        let regions = bands(image.grid(level), writer.grid(level), width);
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
pub(crate) fn bands(from: &Grid, to: &Grid, width: usize) -> Vec<Vec<Range<usize>>> {
    const BUDGET: usize = 24 << 20;
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
    let counts: Vec<_> = bands.counts().into_iter().map(|n| 0..n).collect();
    indices(&counts).iter().map(|i| bands.region(i)).collect()
}
