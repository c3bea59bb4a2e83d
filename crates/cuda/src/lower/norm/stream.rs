//! A norm by one launch whose blocks stay and take sections of a batch one behind the other: see `kernels/norm/stream.cu`.

use super::whole::{quick, span};
use super::{Shape3, forward_params, source};
use crate::context::Params;
use crate::error::CudaError;
use crate::lower::{Kernel, Node};
use crate::memory::Buffer;
use clearshot_graph::ops::Norm;

/// How the work is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    /// Teams of blocks, each with samples of its own.
    teams: usize,
    /// Channels of a section.
    channels: usize,
    /// Blocks of a multiprocessor: while one waits, the other may compute.
    blocks: usize,
}

impl Cut {
    /// Threads of a block.
    fn threads(&self) -> usize {
        512 / self.blocks
    }
}

/// Shared memory of a multiprocessor, but for what the kernel has of its own.
const MOST_SHARED: usize = 200 << 10;
/// Sections that a block holds, and the fewest with which memory is kept busy.
const SLOTS: usize = 3;
const LEAST_SLOTS: usize = 2;
/// A section has less to do than waiting takes where a block's part of it is smaller.
const LEAST_SECTION: usize = 8 << 10;

/// Cuts worth trying.
pub(super) fn cuts(n: &Node<'_>, a: &Norm) -> Vec<Cut> {
    let at = Shape3::new(n, &n.x[..a.parts], 4);
    let width = at.c / a.groups;
    let Some(least) = (1..=at.v).map(|i| i * width).find(|c| c % at.v == 0) else { return vec![] };
    let mut found = vec![];
    for (teams, blocks) in [1, 2, 4, 8].into_iter().flat_map(|t| [(t, 1), (t, 2)]) {
        let channels = (1..=at.c / least).map(|i| i * least).filter(|c| at.c.is_multiple_of(*c));
        let made: Vec<Stream> =
            channels.filter_map(|channels| Stream::new(n, a, Cut { teams, channels, blocks })).collect();
        // The largest two that leave room for the next ones, or the smallest.
        let roomy = made.iter().rev().filter(|s| s.slots == SLOTS).take(3 - blocks);
        let mut cuts: Vec<Cut> = roomy.map(|s| s.cut).collect();
        if cuts.is_empty() {
            cuts.extend(made.first().map(|s| s.cut));
        }
        found.extend(cuts);
    }
    found
}

/// The launch.
pub(super) struct Stream {
    at: Shape3,
    cut: Cut,
    slots: usize,
}

impl Stream {
    /// Nothing where sections do not fit, or are too small to be worth waiting for.
    pub fn new(n: &Node<'_>, a: &Norm, cut: Cut) -> Option<Stream> {
        let at = Shape3::new(n, &n.x[..a.parts], 4);
        let (bytes, width, channels) = (n.x[0].dtype.bytes(), at.c / a.groups, cut.channels);
        let chunks = n.cx.gpu.multiprocessors * cut.blocks / cut.teams;
        let suits = n.cx.gpu.capability >= (8, 0)
            && at.v * bytes == 16
            && chunks > 0
            && at.n.is_multiple_of(cut.teams)
            && channels <= cut.threads()
            && at.c.is_multiple_of(channels)
            && channels.is_multiple_of(width)
            && channels.is_multiple_of(at.v);
        if !suits {
            return None;
        }
        // A thread has registers for so many blocks' sums of its warp's groups.
        const MOST_SUMS: usize = 12;
        let sums = (channels / width).div_ceil(cut.threads() / 32) * chunks.div_ceil(32);
        if sums > MOST_SUMS {
            return None;
        }
        let rows = at.s.div_ceil(chunks).max(1);
        let section = rows * channels * bytes;
        let room = (MOST_SHARED / cut.blocks).checked_sub(staged(&at, a, &cut))?;
        let slots = (room / section).min(SLOTS);
        let at = Shape3 { chunks: at.s.div_ceil(rows), rows, ..at };
        (slots >= LEAST_SLOTS && section >= LEAST_SECTION).then_some(Stream { at, cut, slots })
    }

    pub fn kernel(self, n: &Node<'_>, a: &Norm) -> Result<Kernel, CudaError> {
        let (a, Stream { at, cut, slots }) = (*a, self);
        let (channels, threads) = (cut.channels, cut.threads());
        let parts = a.parts;
        let film = a.film.then(|| &n.x[parts + 2]);
        let stream = include_str!("../../kernels/norm/stream.cu");
        let source = source(stream, n.x[0].dtype, n.y[0].dtype, [film, super::bias(&a, &n.x)], &a, at.v)?
            .define("WHOLE", threads)
            .define("SECTION", channels)
            .define("SLOTS", slots)
            .define("TEAMS", cut.teams)
            .define("BLOCKS", cut.blocks)
            .define("MOST_CHUNKS", at.chunks.next_multiple_of(32))
            .define("WIDTH", at.c / a.groups)
            .define("SPAN", span(&at, &a));
        let source = quick(source, &a, n.y[0].dtype);
        let f = n.cx.function(&source, "norm_stream")?;
        let fixed = at.params(&n.x[..parts], &a);
        let shared = slots * at.rows * channels * n.x[0].dtype.bytes() + staged(&at, &a, &cut);
        let barriers = Buffer::new(n.cx, at.n * (at.c / channels) * 32 * size_of::<u32>())?;
        let workspace = at.n * at.chunks * a.groups * 2 * size_of::<f32>();
        let kernel = Kernel::new(workspace, move |cx, io| {
            let p = Params::new().with(forward_params(&a, &fixed, io)).with(barriers.start());
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(f, [cut.teams * at.chunks, 1], threads, shared, &p) }
        });
        // With no more blocks than multiprocessors hold and nothing beside them, all run at a time.
        Ok(kernel.alone())
    }
}

/// Bytes of shared memory for sums of threads.
fn staged(at: &Shape3, a: &Norm, cut: &Cut) -> usize {
    2 * cut.threads() * span(at, a) * size_of::<f32>()
}
