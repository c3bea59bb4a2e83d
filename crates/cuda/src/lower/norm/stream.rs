//! A norm by one launch whose blocks stay and take sections of a batch one behind the other: see `kernels/norm/stream.cu`.

use super::whole::span;
use super::{Shape3, forward_params, source};
use crate::context::Params;
use crate::error::CudaError;
use crate::lower::{Kernel, Node};
use crate::memory::Buffer;
use clearshot_graph::ops::{Norm, Unary};
use clearshot_tensor::DType;

/// Threads of a block.
const THREADS: usize = 512;
/// Shared memory of a block, but for what the kernel has of its own.
const MOST_SHARED: usize = 200 << 10;
/// Sections that a block holds, and the fewest with which memory is kept busy.
const SLOTS: usize = 3;
const LEAST_SLOTS: usize = 2;
/// A section has less to do than waiting takes where a block's part of it is smaller.
const LEAST_SECTION: usize = 12 << 10;

/// Numbers of teams and of channels worth trying.
pub(super) fn sizes(n: &Node<'_>, a: &Norm) -> Vec<(usize, usize)> {
    let at = Shape3::new(n, &n.x[..a.parts], 4);
    let width = at.c / a.groups;
    let Some(least) = (1..=at.v).map(|i| i * width).find(|c| c % at.v == 0) else { return vec![] };
    let channels = || (1..=at.c / least).map(|i| i * least).filter(|c| at.c.is_multiple_of(*c));
    let mut found = vec![];
    for teams in [1, 2, 4, 8].into_iter().filter(|t| at.n.is_multiple_of(*t)) {
        // The largest two that leave room for the next ones.
        let suits = |c: &usize| Stream::new(n, a, teams, *c).is_some_and(|s| s.slots == SLOTS);
        let mut fitting: Vec<usize> = channels().filter(suits).collect();
        if fitting.is_empty() {
            fitting = channels().filter(|c| Stream::new(n, a, teams, *c).is_some()).take(1).collect();
        }
        found.extend(fitting.iter().rev().take(2).map(|c| (teams, *c)));
    }
    found
}

/// The launch.
pub(super) struct Stream {
    at: Shape3,
    teams: usize,
    channels: usize,
    slots: usize,
}

impl Stream {
    /// Nothing where sections of so many channels do not fit, or are too small to be worth waiting for.
    pub fn new(n: &Node<'_>, a: &Norm, teams: usize, channels: usize) -> Option<Stream> {
        let at = Shape3::new(n, &n.x[..a.parts], 4);
        let (bytes, width) = (n.x[0].dtype.bytes(), at.c / a.groups);
        let chunks = n.cx.gpu.multiprocessors / teams;
        let suits = n.cx.gpu.capability >= (8, 0)
            && at.v * bytes == 16
            && chunks > 0
            && channels <= THREADS
            && at.c.is_multiple_of(channels)
            && channels.is_multiple_of(width)
            && channels.is_multiple_of(at.v);
        if !suits {
            return None;
        }
        let rows = at.s.div_ceil(chunks).max(1);
        let section = rows * channels * bytes;
        let slots = (MOST_SHARED.checked_sub(staged(&at, a))? / section).min(SLOTS);
        let at = Shape3 { chunks: at.s.div_ceil(rows), rows, ..at };
        (slots >= LEAST_SLOTS && section >= LEAST_SECTION).then_some(Stream { at, teams, channels, slots })
    }

    pub fn kernel(self, n: &Node<'_>, a: &Norm) -> Result<Kernel, CudaError> {
        let (a, Stream { at, teams, channels, slots }) = (*a, self);
        let parts = a.parts;
        let film = a.film.then(|| &n.x[parts + 2]);
        let stream = include_str!("../../kernels/norm/stream.cu");
        let source = source(stream, n.x[0].dtype, n.y[0].dtype, [film, super::bias(&a, &n.x)], &a, at.v)?
            .define("WHOLE", THREADS)
            .define("SECTION", channels)
            .define("SLOTS", slots)
            .define("TEAMS", teams)
            .define("WIDTH", at.c / a.groups)
            .define("SPAN", span(&at, &a));
        let quick = a.act == Some(Unary::Silu) && n.y[0].dtype != DType::F32;
        let source = if quick { source.option("-DSILU") } else { source };
        let f = n.cx.function(&source, "norm_stream")?;
        let fixed = at.params(&n.x[..parts], &a);
        let shared = slots * at.rows * channels * n.x[0].dtype.bytes() + staged(&at, &a);
        let barriers = Buffer::new(n.cx, at.n * (at.c / channels) * 32 * size_of::<u32>())?;
        let workspace = at.n * at.chunks * a.groups * 2 * size_of::<f32>();
        let kernel = Kernel::new(workspace, move |cx, io| {
            let p = Params::new().with(forward_params(&a, &fixed, io)).with(barriers.start());
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(f, [teams * at.chunks, 1], THREADS, shared, &p) }
        });
        // With one block a multiprocessor and nothing beside it, all blocks run at a time.
        Ok(kernel.alone())
    }
}

/// Bytes of shared memory for sums of threads.
fn staged(at: &Shape3, a: &Norm) -> usize {
    2 * THREADS * span(at, a) * size_of::<f32>()
}
