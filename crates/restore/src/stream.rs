//! Runs a restorer over image files tile by tile, in memory that depends on the tile and not on the image.
//!
//! A file is processed plane by plane, or volume by volume; large ones are cut into tiles, depending on the support of
//! the restorer ([`Reach`]). If nothing beyond a halo matters, tiles are adjacent, and each is restored with its halo
//! and contributes its core: the result is bit-identical to that of the whole plane. If all pixels matter, with
//! decreasing influence, tiles overlap and are blended with a window; the result differs from that of the whole plane
//! by the influence of pixels beyond the overlap. The next tile is read while one is restored.
//!
//! A sink may accept only a part of the image ([`Sink::wanted`]). With a halo nothing else is restored. Blended tiles
//! that touch the wanted part are restored completely, so that the result is bit-identical.

use crate::RestoreError;
use crate::classical::Reach;
use clearshot_image::grid::{Region, extent, indices};
use clearshot_image::tiles::{Edge, Stitcher, TileSpec, Tiling, Window};
use clearshot_image::{Axis, Description, Image, Writer};
use std::ops::{ControlFlow, Range};

/// Why a file could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Image(#[from] clearshot_image::Error),
    #[error("part {part} of {parts}: {source}")]
    Part { part: usize, parts: usize, source: PieceError },
    #[error("axes {axes}: {needed}")]
    Axes { axes: String, needed: &'static str },
    #[error("stopped")]
    Stopped,
}

/// Why a tile could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum PieceError {
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The mask of invalid pixels cannot be read.
    #[error("{0}")]
    Mask(String),
}

/// The size of tiles along each axis that is cut, without halo or overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileSide {
    /// Whole planes and volumes if they are small, otherwise tiles of a few million pixels.
    Auto,
    Pixels(usize),
}

/// How a file is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Along Z too, for restorers of volumes.
    pub volume: bool,
    pub tile: TileSide,
    pub reach: Reach,
}

/// One tile of an image: physical values, sizes along (Z,) Y and X, and its position.
pub struct Piece<'a> {
    pub values: &'a [f32],
    pub shape: &'a [usize],
    pub place: &'a Region,
}

/// The operation on tiles.
pub enum Work<'w> {
    /// No operation: stored values are copied, bit by bit if the output has the type of the input.
    Pass,
    Restore(&'w mut dyn FnMut(&Piece<'_>) -> Result<Vec<f32>, PieceError>),
}

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub pieces: usize,
    /// Values that were clipped to the output's type, or were NaN.
    pub clipped: usize,
}

/// A destination of restored tiles.
pub trait Sink {
    /// The sizes of its chunks, which pieces are made of where they are many.
    fn chunk(&self) -> Vec<usize>;

    /// What of a region it takes, as boxes that share no pixel. Default: all of it.
    fn wanted(&self, place: &Region) -> Vec<Vec<Range<usize>>> {
        vec![place.to_vec()]
    }

    /// # Errors
    /// If a tile cannot be written.
    fn put(&mut self, place: &Region, bytes: &[u8]) -> clearshot_image::Result<()>;
}

impl Sink for Writer {
    fn chunk(&self) -> Vec<usize> {
        self.grid(0).chunk.to_vec()
    }

    fn wanted(&self, place: &Region) -> Vec<Vec<Range<usize>>> {
        Writer::wanted(self, place)
    }

    fn put(&mut self, place: &Region, bytes: &[u8]) -> clearshot_image::Result<()> {
        self.write(place, bytes)
    }
}

/// Tiles that are held until all are complete, for files whose record contains their counts.
pub struct Held {
    chunk: Vec<usize>,
    pieces: Vec<(Vec<Range<usize>>, Vec<u8>)>,
}

impl Held {
    /// For the result of an image.
    pub fn of(image: &Image) -> Held {
        Held { chunk: image.grid(0).chunk.to_vec(), pieces: Vec::new() }
    }

    /// Writes them all.
    ///
    /// # Errors
    /// If a tile cannot be written.
    pub fn write(self, to: &mut dyn Sink) -> clearshot_image::Result<()> {
        self.pieces.iter().try_for_each(|(place, bytes)| to.put(place, bytes))
    }
}

impl Sink for Held {
    fn chunk(&self) -> Vec<usize> {
        self.chunk.clone()
    }

    fn put(&mut self, place: &Region, bytes: &[u8]) -> clearshot_image::Result<()> {
        self.pieces.push((place.to_vec(), bytes.to_vec()));
        Ok(())
    }
}

/// How an image is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The size of a tile in pixels along (Z,) Y and X, without its surroundings.
    pub tile: Vec<usize>,
    /// The halo of a tile in pixels, or the overlap of blended ones.
    pub halo: usize,
    pub pieces: usize,
}

/// Pixels of a piece that is not cut further.
const MOST_PIXELS: usize = 1 << 23;
/// Pixels of a piece of what is cut.
const PIECE_PIXELS: usize = 1 << 22;
/// Up to this halo pieces are bands of whole rows, which files like best; beyond, squares, which have less rim.
const SMALL_HALO: usize = 16;
/// The longest row of a band.
const LONGEST_ROW: usize = 1 << 15;

/// The positions of the axes (Z,) Y, X of an image, and its planes or volumes.
pub struct Frames {
    inner: Vec<usize>,
    shape: Vec<usize>,
}

impl Frames {
    /// # Errors
    /// If the image does not have these axes in this order.
    pub fn of(description: &Description, volume: bool) -> Result<Frames, StreamError> {
        let shape = description.shape();
        let axes: &[Axis] = if volume { &[Axis::Z, Axis::Y, Axis::X] } else { &[Axis::Y, Axis::X] };
        let refused = |needed| StreamError::Axes { axes: description.axes(), needed };
        let places: Option<Vec<usize>> = axes.iter().map(|&a| description.position(a)).collect();
        let inner = places.ok_or_else(|| {
            refused(if volume { "Z, Y and X are needed for volumes" } else { "Y and X are needed" })
        })?;
        if inner.windows(2).any(|w| w[0] > w[1]) {
            return Err(refused("they must come in the order Z, Y, X"));
        }
        if shape.contains(&0) {
            return Err(refused("the image has no pixels"));
        }
        Ok(Frames { inner, shape })
    }

    /// The positions of (Z,) Y and X among the axes of the image.
    pub fn inner(&self) -> &[usize] {
        &self.inner
    }

    /// The sizes of a plane or volume.
    pub fn size(&self) -> Vec<usize> {
        self.inner.iter().map(|&a| self.shape[a]).collect()
    }

    /// The region of each plane or volume.
    pub fn regions(&self) -> Vec<Vec<Range<usize>>> {
        let ranges: Vec<Range<usize>> = (0..self.shape.len())
            .map(|a| if self.inner.contains(&a) { 0..1 } else { 0..self.shape[a] })
            .collect();
        let region = |index: &Vec<usize>| {
            (0..self.shape.len())
                .map(|a| if self.inner.contains(&a) { 0..self.shape[a] } else { index[a]..index[a] + 1 })
                .collect()
        };
        indices(&ranges).iter().map(region).collect()
    }

    /// A region's sizes along the inner axes.
    fn inner_shape(&self, region: &Region) -> Vec<usize> {
        self.inner.iter().map(|&a| region[a].len()).collect()
    }
}

/// A piece that is read with its halo and written without.
struct Job {
    core: Vec<Range<usize>>,
    wide: Vec<Range<usize>>,
}

impl Job {
    fn around(core: Vec<Range<usize>>, frames: &Frames, halo: usize, align: usize) -> Job {
        let mut wide = core.clone();
        for &axis in &frames.inner {
            let Range { start, end } = core[axis];
            let n = frames.shape[axis];
            wide[axis] = start.saturating_sub(halo) / align * align..end.saturating_add(halo).min(n);
        }
        Job { core, wide }
    }
}

/// Restores an image into a `sink`, usually the writer of a file, with the type and rescaling of `output`. `tell`
/// receives the number of finished tiles and the total, and may stop the work.
///
/// # Errors
/// If the file cannot be read or written, a tile cannot be restored, or `tell` stops it.
pub fn run(
    image: &Image,
    sink: &mut dyn Sink,
    output: &Description,
    cut: &Cut,
    work: Work<'_>,
    tell: &mut Tell<'_>,
) -> Result<Report, StreamError> {
    let frames = Frames::of(&image.description, cut.volume)?;
    let chunks = sink.chunk();
    let chunk: Vec<usize> = frames.inner.iter().map(|&a| chunks[a]).collect();
    let (halo, align) = match cut.reach {
        Reach::Within { halo, align } => (halo, align),
        Reach::Fading { overlap } => (overlap, 1),
    };
    let size = frames.size();
    let core = core_size(&size, &chunk, cut.tile, halo);
    let whole = core == size;
    match work {
        Work::Pass => {
            let jobs = wanted(jobs(&frames, &core, 0, 1), &frames, sink, 0, 1);
            pass(image, sink, output, &jobs, tell)
        }
        Work::Restore(restore) => match cut.reach {
            Reach::Fading { overlap } if !whole => {
                blended(image, sink, output, &frames, &core, overlap, restore, tell)
            }
            // Of a plane that is not cut a restorer that looks further than a halo is to see all.
            Reach::Fading { .. } => {
                let all = jobs(&frames, &core, 0, 1);
                let jobs: Vec<Job> = all.into_iter().filter(|j| !sink.wanted(&j.core).is_empty()).collect();
                side_by_side(image, sink, output, &frames, &jobs, restore, tell)
            }
            Reach::Within { .. } => {
                let jobs = wanted(jobs(&frames, &core, halo, align), &frames, sink, halo, align);
                side_by_side(image, sink, output, &frames, &jobs, restore, tell)
            }
        },
    }
}

/// The same with no more in their cores than the sink takes.
fn wanted(jobs: Vec<Job>, frames: &Frames, sink: &dyn Sink, halo: usize, align: usize) -> Vec<Job> {
    let of = |job: Job| -> Vec<Job> {
        let boxes = sink.wanted(&job.core);
        match &boxes[..] {
            [all] if *all == job.core => vec![job],
            _ => boxes.into_iter().map(|core| Job::around(core, frames, halo, align)).collect(),
        }
    };
    jobs.into_iter().flat_map(of).collect()
}

/// The tiles into which [`run`] would cut an image for an output with the same chunks, without halo. Used to determine
/// a setting beforehand.
///
/// # Errors
/// If the image does not have the axes.
pub fn pieces(image: &Image, cut: &Cut) -> Result<Vec<Vec<Range<usize>>>, StreamError> {
    let frames = Frames::of(&image.description, cut.volume)?;
    let (core, _) = core_of(image, &frames, cut);
    Ok(jobs(&frames, &core, 0, 1).into_iter().map(|j| j.core).collect())
}

/// A summary of the same.
///
/// # Errors
/// If the image does not have the axes.
pub fn plan(image: &Image, cut: &Cut) -> Result<Plan, StreamError> {
    let frames = Frames::of(&image.description, cut.volume)?;
    let (tile, halo) = core_of(image, &frames, cut);
    let pieces = jobs(&frames, &tile, 0, 1).len();
    let halo = if tile == frames.size() { 0 } else { halo };
    Ok(Plan { tile, halo, pieces })
}

/// The sizes of a file's pieces, cut along its own chunks, and their halo.
fn core_of(image: &Image, frames: &Frames, cut: &Cut) -> (Vec<usize>, usize) {
    let chunk: Vec<usize> = frames.inner.iter().map(|&a| image.grid(0).chunk[a]).collect();
    let halo = match cut.reach {
        Reach::Within { halo, .. } => halo,
        Reach::Fading { overlap } => overlap,
    };
    (core_size(&frames.size(), &chunk, cut.tile, halo), halo)
}

/// The sizes of pieces without their halo.
fn core_size(size: &[usize], chunk: &[usize], tile: TileSide, halo: usize) -> Vec<usize> {
    if let TileSide::Pixels(side) = tile {
        return size.iter().map(|&n| n.min(side.max(1))).collect();
    }
    let pixels = |s: &[usize]| s.iter().fold(1usize, |n, &m| n.saturating_mul(m));
    if pixels(size) <= MOST_PIXELS {
        return size.to_vec();
    }
    // Whole chunks, where a chunk is no longer than what is wanted.
    let fit = |axis: usize, wanted: usize| {
        let c = chunk[axis].max(1);
        let n = if c <= wanted { wanted / c * c } else { wanted };
        n.clamp(1, size[axis])
    };
    let mut core = size.to_vec();
    if let [_, width] = *size
        && halo <= SMALL_HALO
        && width <= LONGEST_ROW
    {
        core[0] = fit(0, (PIECE_PIXELS / width).max(1));
        return core;
    }
    while pixels(&core) > PIECE_PIXELS {
        let longest = (0..core.len()).max_by_key(|&a| core[a]).unwrap_or(0);
        core[longest] = core[longest].div_ceil(2);
    }
    (0..core.len()).map(|a| fit(a, core[a])).collect()
}

fn jobs(frames: &Frames, core: &[usize], halo: usize, align: usize) -> Vec<Job> {
    let mut list = Vec::new();
    for frame in frames.regions() {
        let counts: Vec<Range<usize>> =
            frames.size().iter().zip(core).map(|(n, c)| 0..n.div_ceil(*c)).collect();
        for index in indices(&counts) {
            let mut inside = frame.clone();
            for (k, &axis) in frames.inner.iter().enumerate() {
                inside[axis] = index[k] * core[k]..((index[k] + 1) * core[k]).min(frames.shape[axis]);
            }
            list.push(Job::around(inside, frames, halo, align));
        }
    }
    list
}

/// Calls `then` with what `read` makes of each job, in order, reading one ahead.
fn read_ahead<J: Sync, T: Send>(
    jobs: &[J],
    read: impl Fn(&J) -> clearshot_image::Result<T> + Send,
    mut then: impl FnMut(usize, &J, T) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        scope.spawn(move || {
            for job in jobs {
                let outcome = read(job);
                let failed = outcome.is_err();
                if sender.send(outcome).is_err() || failed {
                    return;
                }
            }
        });
        for (i, (job, outcome)) in jobs.iter().zip(receiver.iter()).enumerate() {
            then(i, job, outcome?)?;
        }
        Ok(())
    })
}

fn pass(
    image: &Image,
    sink: &mut dyn Sink,
    output: &Description,
    jobs: &[Job],
    tell: &mut Tell<'_>,
) -> Result<Report, StreamError> {
    let mut report = Report::default();
    let same = image.dtype() == output.dtype;
    read_ahead(
        jobs,
        |job| image.read(&job.core),
        |i, job, bytes| {
            if same {
                sink.put(&job.core, &bytes)?;
            } else {
                let values = image.dtype().decode_f32(&bytes, image.description.rescale);
                let (bytes, clipped) = output.dtype.encode_f32(&values, output.rescale);
                report.clipped += clipped;
                sink.put(&job.core, &bytes)?;
            }
            report.pieces += 1;
            go_on(tell(i + 1, jobs.len()))
        },
    )?;
    Ok(report)
}

type Restore<'w> = dyn FnMut(&Piece<'_>) -> Result<Vec<f32>, PieceError> + 'w;

/// Is told how many pieces of how many are done, and says whether to go on.
type Tell<'t> = dyn FnMut(usize, usize) -> ControlFlow<()> + 't;

fn go_on(flow: ControlFlow<()>) -> Result<(), StreamError> {
    if flow.is_break() { Err(StreamError::Stopped) } else { Ok(()) }
}

fn side_by_side(
    image: &Image,
    sink: &mut dyn Sink,
    output: &Description,
    frames: &Frames,
    jobs: &[Job],
    restore: &mut Restore<'_>,
    tell: &mut Tell<'_>,
) -> Result<Report, StreamError> {
    let mut report = Report::default();
    read_ahead(
        jobs,
        |job| image.read_f32(&job.wide),
        |i, job, values| {
            let shape = frames.inner_shape(&job.wide);
            let piece = Piece { values: &values, shape: &shape, place: &job.wide };
            let restored = restore(&piece).map_err(|source| StreamError::Part {
                part: i + 1,
                parts: jobs.len(),
                source,
            })?;
            drop(values);
            let inside =
                if job.core == job.wide { restored } else { cut_out(&restored, &job.wide, &job.core) };
            let (bytes, clipped) = output.dtype.encode_f32(&inside, output.rescale);
            report.clipped += clipped;
            report.pieces += 1;
            sink.put(&job.core, &bytes)?;
            go_on(tell(i + 1, jobs.len()))
        },
    )?;
    Ok(report)
}

/// The values of a region that are inside a part of it.
pub fn cut_out(values: &[f32], region: &Region, part: &Region) -> Vec<f32> {
    // Axes of one pixel are no axes, wherever they stand.
    let axes: Vec<usize> = (0..region.len()).filter(|&a| region[a].len() > 1).collect();
    let wide: Vec<usize> = axes.iter().map(|&a| region[a].len()).collect();
    let within = |&a: &usize| part[a].start - region[a].start..part[a].end - region[a].start;
    let inside: Vec<Range<usize>> = axes.iter().map(within).collect();
    let (Some(&row), Some((columns, outer))) = (wide.last(), inside.split_last()) else {
        return values.to_vec();
    };
    let mut out = Vec::with_capacity(extent(&inside).iter().product());
    for index in indices(outer) {
        let line = index.iter().enumerate().fold(0, |n, (a, &i)| n * wide[a] + i);
        out.extend_from_slice(&values[line * row + columns.start..line * row + columns.end]);
    }
    out
}

fn blended(
    image: &Image,
    sink: &mut dyn Sink,
    output: &Description,
    frames: &Frames,
    core: &[usize],
    overlap: usize,
    restore: &mut Restore<'_>,
    tell: &mut Tell<'_>,
) -> Result<Report, StreamError> {
    let rank = frames.shape.len();
    let (mut tile, mut overlaps) = (vec![1; rank], vec![0; rank]);
    for (k, &axis) in frames.inner.iter().enumerate() {
        let n = frames.shape[axis];
        tile[axis] = if core[k] == n { n } else { core[k].saturating_add(overlap).min(n) };
        overlaps[axis] = if tile[axis] == n { 0 } else { overlap.min(tile[axis] - 1) };
    }
    let spec = TileSpec { tile, overlap: overlaps, edge: Edge::Shift, window: Window::Cosine };
    let tiling = Tiling::new(&frames.shape, &spec)?;
    let tiles: Vec<_> = tiling.tiles().filter(|t| !sink.wanted(&tiling.region(t)).is_empty()).collect();
    let mut stitcher = Stitcher::of_some(&tiling, tiles.len());
    let mut report = Report::default();
    read_ahead(
        &tiles,
        |tile| image.read_f32(&tiling.region(tile)),
        |i, tile, values| {
            let place = tiling.region(tile);
            let shape = frames.inner_shape(&place);
            let piece = Piece { values: &values, shape: &shape, place: &place };
            let restored = restore(&piece).map_err(|source| StreamError::Part {
                part: i + 1,
                parts: tiles.len(),
                source,
            })?;
            let wide: Vec<f64> = restored.iter().map(|&v| v.into()).collect();
            stitcher.add(tile, &wide, &mut |region, values| {
                let single: Vec<f32> = values.iter().map(|&v| v as f32).collect();
                for place in sink.wanted(region) {
                    let inside = cut_out(&single, region, &place);
                    let (bytes, clipped) = output.dtype.encode_f32(&inside, output.rescale);
                    report.clipped += clipped;
                    sink.put(&place, &bytes)?;
                }
                Ok(())
            })?;
            report.pieces += 1;
            go_on(tell(i + 1, tiles.len()))
        },
    )?;
    Ok(report)
}
