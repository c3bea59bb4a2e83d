//! The backward pass: the probabilities are computed again, block by block, from the kept `lse`.
//!
//! One pass over pairs of a key block and a query tile gives all three gradients with five
//! products and one exponential for each logit. The gradients of a key block stay with the task
//! that walks the queries for it; those of the queries gather over the key blocks of the task. Where
//! images times heads are too few tasks, the keys are cut into chunks, whose parts of the query
//! gradient are summed in order afterwards: the cut depends on the dimensions only.

mod pairs;

use super::tile::{WIDEST, width};
use super::{ALIGN, AttentionDims, Rows, RowsMut, aligned, pack};
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use pairs::Main;
use std::f32::consts::LOG2_E;

/// Keys of a block: a multiple of the rows of a register tile; a block's probabilities and their
/// gradients lie in the first cache together.
const KEYS: usize = 96;
/// Tasks that are enough for any machine.
const TASKS: usize = 16;
/// Padding of rows in the scratch.
const LANES: usize = 16;

/// Where the gradients go.
pub struct Gradients<'a> {
    pub dq: RowsMut<'a>,
    pub dk: RowsMut<'a>,
    pub dv: RowsMut<'a>,
}

/// How the workspace is cut; all lengths in values.
struct Layout {
    /// Key blocks of one chunk, and chunks of one plane.
    blocks: usize,
    chunks: usize,
    /// Queries of a plane, padded.
    queries: usize,
    /// Packed queries, packed output gradients, (lse, delta), and the chunks' query gradients.
    packed: usize,
    slopes: usize,
    rows: usize,
    partial: usize,
    scratch: usize,
}

impl Layout {
    fn new(dims: &AttentionDims) -> Layout {
        let all = dims.sk.div_ceil(KEYS);
        // By the heads of one image, not all of them: chunks are sums, and an image's do not depend on others.
        let wanted = TASKS.div_ceil(dims.heads.max(1)).min(all.div_ceil(2));
        let blocks = all.div_ceil(wanted);
        let chunks = all.div_ceil(blocks);
        let queries = dims.sq.next_multiple_of(WIDEST);
        let padded = dims.d.next_multiple_of(LANES) + dims.dv.next_multiple_of(LANES);
        Layout {
            blocks,
            chunks,
            queries,
            packed: dims.planes() * queries * dims.d,
            slopes: dims.planes() * queries * dims.dv,
            rows: dims.planes() * queries * 2,
            partial: chunks * dims.planes() * queries * dims.d,
            scratch: KEYS * (dims.d + dims.dv + 2 * WIDEST) + (KEYS + WIDEST) * padded,
        }
    }
}

/// The length of the workspace of [`backward`].
pub fn backward_workspace(dims: &AttentionDims, threads: usize) -> usize {
    let l = Layout::new(dims);
    ALIGN + l.packed + l.slopes + l.rows + l.partial + threads * l.scratch
}

/// The gradients of q, k and v, given what [`forward`](super::forward) left and the gradient of o.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn backward(
    cpu: &Cpu,
    dims: &AttentionDims,
    q: Rows,
    k: Rows,
    v: Rows,
    o: Rows,
    lse: &[f32],
    d_o: Rows,
    gradients: Gradients,
    workspace: &mut [f32],
) {
    dims.check();
    let (query_rows, key_rows) = (dims.batch * dims.sq, dims.batch * dims.sk);
    let (width, v_width) = (dims.heads * dims.d, dims.heads * dims.dv);
    q.check(query_rows, width);
    k.check(key_rows, width);
    v.check(key_rows, v_width);
    o.check(query_rows, v_width);
    d_o.check(query_rows, v_width);
    gradients.dq.check(query_rows, width);
    gradients.dk.check(key_rows, width);
    gradients.dv.check(key_rows, v_width);
    assert_eq!(lse.len(), dims.planes() * dims.sq);
    assert!(workspace.len() >= backward_workspace(dims, cpu.pool.threads()));

    let layout = Layout::new(dims);
    let (packed, rest) = aligned(workspace).split_at_mut(layout.packed);
    let (slopes, rest) = rest.split_at_mut(layout.slopes);
    let (rows, rest) = rest.split_at_mut(layout.rows);
    let (partial, scratch) = rest.split_at_mut(layout.partial);
    let job = Job {
        dims,
        q,
        k,
        v,
        o,
        lse,
        d_o,
        gradients: &gradients,
        packed: Shares(packed.as_mut_ptr()),
        slopes: Shares(slopes.as_mut_ptr()),
        rows: Shares(rows.as_mut_ptr()),
        partial: Shares(partial.as_mut_ptr()),
        scratch: Shares(scratch.as_mut_ptr()),
        layout: &layout,
    };
    // Tiles are cut by this step in every phase, whatever the level.
    let groups = dims.sq.div_ceil(WIDEST);
    let job = &job;
    let tiles = dims.planes() * groups;
    cpu.pool.run(tiles, |_, task| {
        // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
        unsafe { cpu.level.dispatch(Open { job, plane: task / groups, first: task % groups * WIDEST }) };
    });
    cpu.pool.run(dims.planes() * layout.chunks, |worker, task| {
        let (plane, chunk) = (task / layout.chunks, task % layout.chunks);
        // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
        unsafe { cpu.level.dispatch(Main { job, plane, chunk, worker }) };
    });
    cpu.pool.run(tiles, |_, task| {
        // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
        unsafe { cpu.level.dispatch(Close { job, plane: task / groups, first: task % groups * WIDEST }) };
    });
}

/// All that the three phases share.
struct Job<'a> {
    dims: &'a AttentionDims,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    o: Rows<'a>,
    lse: &'a [f32],
    d_o: Rows<'a>,
    gradients: &'a Gradients<'a>,
    packed: Shares<f32>,
    slopes: Shares<f32>,
    rows: Shares<f32>,
    partial: Shares<f32>,
    scratch: Shares<f32>,
    layout: &'a Layout,
}

/// A tile of queries: its place in the plane, queries in it, and width in lanes.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    count: usize,
    width: usize,
}

impl Job<'_> {
    /// The tile whose first query is `at`, which moves on to the next; none from `end` on.
    #[inline(always)]
    fn next<S: Simd>(&self, at: &mut usize, end: usize) -> Option<Tile> {
        let (first, end) = (*at, end.min(self.dims.sq));
        if first >= end {
            return None;
        }
        let width = width::<S>(end - first);
        *at += width;
        Some(Tile { first, count: width.min(end - first), width })
    }

    /// The packed queries, packed output gradients, lse and delta of a tile.
    ///
    /// # Safety
    /// The plane and tile are of these dimensions.
    #[inline(always)]
    unsafe fn tile(&self, plane: usize, tile: Tile) -> [*mut f32; 4] {
        let at = plane * self.layout.queries + tile.first;
        // SAFETY: `Layout` counts d, dv and 2 values for each padded query.
        unsafe {
            let rows = self.rows.at(at * 2);
            [self.packed.at(at * self.dims.d), self.slopes.at(at * self.dims.dv), rows, rows.add(tile.width)]
        }
    }

    /// The query gradients [d][width] of a tile that one chunk gathers.
    ///
    /// # Safety
    /// As `tile`.
    #[inline(always)]
    unsafe fn partial(&self, chunk: usize, plane: usize, tile: Tile) -> *mut f32 {
        let at = (chunk * self.dims.planes() + plane) * self.layout.queries + tile.first;
        // SAFETY: as above.
        unsafe { self.partial.at(at * self.dims.d) }
    }
}

/// First phase: packs queries and output gradients, and sums do * o.
struct Open<'a> {
    job: &'a Job<'a>,
    plane: usize,
    first: usize,
}

impl Kernel for Open<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let Open { job, plane, first } = self;
        let dims = job.dims;
        let (image, head) = (plane / dims.heads, plane % dims.heads);
        let mut at = first;
        while let Some(tile) = job.next::<S>(&mut at, first + WIDEST) {
            let row = image * dims.sq + tile.first;
            // SAFETY: the tile is this task's; the inputs were checked.
            unsafe {
                let [queries, slopes, lse, delta] = job.tile(plane, tile);
                let factor = dims.scale * LOG2_E;
                let q = job.q.head(row, head, dims.d);
                pack::transpose_in(q, job.q.stride, tile.count, dims.d, queries, tile.width, factor);
                let d_o = job.d_o.head(row, head, dims.dv);
                pack::transpose_in(d_o, job.d_o.stride, tile.count, dims.dv, slopes, tile.width, 1.0);
                for i in 0..tile.width {
                    *lse.add(i) = 0.0;
                    *delta.add(i) = 0.0;
                }
                for i in 0..tile.count {
                    *lse.add(i) = job.lse[plane * dims.sq + tile.first + i] * LOG2_E;
                    let o = job.o.head(row + i, head, dims.dv);
                    *delta.add(i) = dot(s, o, d_o.add(i * job.d_o.stride), dims.dv);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn dot<S: Simd>(s: S, a: *const f32, b: *const f32, len: usize) -> f32 {
    let mut sum = s.splat(0.0);
    for i in (0..len).step_by(S::LANES) {
        let n = S::LANES.min(len - i);
        // SAFETY: the caller has `len` values at both.
        sum = unsafe { s.fma(s.load_first(a.add(i), n), s.load_first(b.add(i), n), sum) };
    }
    s.sum(sum)
}

/// Third phase: sums the chunks' query gradients and writes them as rows.
struct Close<'a> {
    job: &'a Job<'a>,
    plane: usize,
    first: usize,
}

impl Kernel for Close<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let Close { job, plane, first } = self;
        let dims = job.dims;
        let (image, head) = (plane / dims.heads, plane % dims.heads);
        let dq = &job.gradients.dq;
        let mut at = first;
        while let Some(tile) = job.next::<S>(&mut at, first + WIDEST) {
            // SAFETY: the tile is this task's.
            unsafe {
                let sum = job.partial(0, plane, tile);
                for chunk in 1..job.layout.chunks {
                    let part = job.partial(chunk, plane, tile);
                    for i in (0..tile.width * dims.d).step_by(S::LANES) {
                        s.store(sum.add(i), s.add(s.load(sum.add(i)), s.load(part.add(i))));
                    }
                }
                let to = dq.head(image * dims.sq + tile.first, head, dims.d);
                pack::transpose_out(sum, tile.width, tile.count, dims.d, to, dq.stride, dims.scale);
            }
        }
    }
}
