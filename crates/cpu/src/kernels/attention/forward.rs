//! The forward pass: an online softmax over blocks of keys, for a few tiles of queries at a time.

use super::tile::{Left, Right, Sink, WIDEST, load, multiply, width};
use super::{ALIGN, AttentionDims, Rows, RowsMut, aligned, pack};
use crate::Cpu;
use crate::gemm::pack::zip_rows;
use crate::pool::Shares;
use crate::simd::Simd;
use crate::simd::factors::{FactorKernel, Factors, Multiply, Sums, cells_of, store_narrow};
use crate::vmath;
use std::f32::consts::{LN_2, LOG2_E};

/// Keys of a block: a multiple of the rows of a register tile, with its logits in the first cache.
const KEYS: usize = 96;
/// Tiles of one task: the copies of keys and values are shared by them.
const TILES: usize = 4;

/// Queries of one task. Results do not depend on it.
fn chunk(dims: &AttentionDims) -> usize {
    let mut chunk = TILES * WIDEST;
    while chunk > WIDEST && dims.planes() * dims.sq.div_ceil(chunk) < 16 {
        chunk /= 2;
    }
    chunk
}

/// Values of the scratch of one thread.
fn scratch(dims: &AttentionDims) -> usize {
    KEYS * (dims.d + dims.dv) + KEYS * WIDEST + chunk(dims) * (dims.d + dims.dv + 2)
}

/// The length of the workspace of [`forward`].
pub fn forward_workspace(dims: &AttentionDims, threads: usize) -> usize {
    ALIGN + threads * scratch(dims)
}

/// `o = softmax(scale q k^T) v` for each image and head, and `lse` [batch, heads, sq], the natural
/// logarithm of the sum of the exponentials of the scaled logits. `factors` are what both products multiply; the softmax is in f32.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn forward(
    cpu: &Cpu,
    factors: Multiply,
    dims: &AttentionDims,
    q: Rows,
    k: Rows,
    v: Rows,
    o: RowsMut,
    lse: &mut [f32],
    workspace: &mut [f32],
) {
    dims.check();
    q.check(dims.batch * dims.sq, dims.heads * dims.d);
    k.check(dims.batch * dims.sk, dims.heads * dims.d);
    v.check(dims.batch * dims.sk, dims.heads * dims.dv);
    o.check(dims.batch * dims.sq, dims.heads * dims.dv);
    assert_eq!(lse.len(), dims.planes() * dims.sq);
    assert!(workspace.len() >= forward_workspace(dims, cpu.pool.threads()));

    let (lse, workspace) = (Shares(lse.as_mut_ptr()), Shares(aligned(workspace).as_mut_ptr()));
    let size = chunk(dims);
    let chunks = dims.sq.div_ceil(size);
    cpu.pool.run(dims.planes() * chunks, |worker, task| {
        let (plane, first) = (task / chunks, task % chunks * size);
        let (image, head) = (plane / dims.heads, plane % dims.heads);
        let count = size.min(dims.sq - first);
        // SAFETY: the buffers were checked above, and the queries and the scratch are this task's.
        unsafe {
            factors.dispatch(Task {
                dims: *dims,
                count,
                q: q.head(image * dims.sq + first, head, dims.d),
                q_stride: q.stride,
                k: k.head(image * dims.sk, head, dims.d),
                k_stride: k.stride,
                v: v.head(image * dims.sk, head, dims.dv),
                v_stride: v.stride,
                o: o.head(image * dims.sq + first, head, dims.dv),
                o_stride: o.stride,
                // The plane's queries first..first + count, which are this task's.
                lse: lse.at(plane * dims.sq + first),
                // This worker's part.
                scratch: workspace.at(worker * scratch(dims)),
            })
        };
    });
}

/// One head of one image, and `count` of its queries.
struct Task {
    dims: AttentionDims,
    count: usize,
    q: *const f32,
    q_stride: usize,
    k: *const f32,
    k_stride: usize,
    v: *const f32,
    v_stride: usize,
    o: *mut f32,
    o_stride: usize,
    lse: *mut f32,
    scratch: *mut f32,
}

/// A tile of queries and what it keeps between blocks of keys: [d][width] queries, [dv][width]
/// output, [width] largest logit, [width] sum of exponentials.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    width: usize,
    queries: *mut f32,
    output: *mut f32,
    largest: *mut f32,
    sum: *mut f32,
}

impl FactorKernel for Task {
    type Output = ();
    #[inline(always)]
    unsafe fn run<H: Factors>(self, h: H) {
        // SAFETY: the checks in `forward`; tiles and blocks stay within the task's share.
        unsafe {
            let mut at = 0;
            while let Some(tile) = self.next::<H::F>(&mut at) {
                self.open(h, tile);
            }
            let dims = &self.dims;
            let (keys, values) = (self.scratch, self.scratch.add(KEYS * dims.d));
            for first in (0..dims.sk).step_by(KEYS) {
                let count = KEYS.min(dims.sk - first);
                let k = self.k.add(first * self.k_stride);
                let v = self.v.add(first * self.v_stride);
                for i in 0..count {
                    store_narrow(h, k.add(i * self.k_stride), dims.d, keys.add(i * cells_of::<H>(dims.d)));
                }
                zip_rows(h, v, self.v_stride, count, dims.dv, values, dims.dv);
                let mut at = 0;
                while let Some(tile) = self.next::<H::F>(&mut at) {
                    match tile.width / H::F::LANES {
                        1 => self.block::<H, 1>(h, tile, count),
                        2 => self.block::<H, 2>(h, tile, count),
                        _ => self.block::<H, 4>(h, tile, count),
                    }
                }
            }
            let mut at = 0;
            while let Some(tile) = self.next::<H::F>(&mut at) {
                self.close(h.floats(), tile);
            }
        }
    }
}

impl Task {
    /// The tile whose first query is `at`, which moves on to the next.
    #[inline(always)]
    fn next<S: Simd>(&self, at: &mut usize) -> Option<Tile> {
        let (d, dv, first) = (self.dims.d, self.dims.dv, *at);
        if first >= self.count {
            return None;
        }
        let width = width::<S>(self.count - first);
        *at += width;
        // SAFETY: `scratch` has d + dv + 2 values for each query of a chunk, tails rounded up.
        unsafe {
            let queries = self.scratch.add(KEYS * (d + dv + WIDEST) + first * (d + dv + 2));
            let output = queries.add(d * width);
            let largest = output.add(dv * width);
            Some(Tile { first, width, queries, output, largest, sum: largest.add(width) })
        }
    }

    #[inline(always)]
    fn open<H: Factors>(&self, h: H, tile: Tile) {
        let Tile { first, width, .. } = tile;
        let (s, lanes) = (h.floats(), H::F::LANES);
        let rows = width.min(self.count - first);
        // SAFETY: the task's queries and the tile's tile.
        unsafe {
            let q = self.q.add(first * self.q_stride);
            let factor = self.dims.scale * LOG2_E;
            pack::transpose_in(q, self.q_stride, rows, self.dims.d, tile.queries, width, factor);
            if H::VALUES > 1 {
                // In place: cells are written behind what is still to be read.
                zip_rows(h, tile.queries, width, self.dims.d, width, tile.queries, width);
            }
            for i in (0..width * self.dims.dv).step_by(lanes) {
                s.store(tile.output.add(i), s.splat(0.0));
            }
            for i in (0..width).step_by(lanes) {
                s.store(tile.largest.add(i), s.splat(f32::NEG_INFINITY));
                s.store(tile.sum.add(i), s.splat(0.0));
            }
        }
    }

    /// Takes the `count` keys and values in the scratch into a tile of N vectors of queries.
    #[inline(always)]
    fn block<H: Factors, const N: usize>(&self, h: H, tile: Tile, count: usize) {
        let (d, dv, width) = (self.dims.d, self.dims.dv, N * H::F::LANES);
        let (s, lanes, depth) = (h.floats(), H::F::LANES, cells_of::<H>(d));
        // SAFETY: the scratch holds KEYS rows of keys, values and logits.
        unsafe {
            let keys = Left { p: self.scratch, row: depth, col: 1 };
            let values = Left { p: self.scratch.add(KEYS * d), row: 1, col: dv };
            let logits = self.scratch.add(KEYS * (d + dv));

            let before: [Sums<H>; N] = load(s, tile.largest);
            let mut sink = Logits { p: logits, largest: before };
            multiply::<H, N>(h, keys, Right { p: tile.queries, stride: width }, count, depth, &mut sink);
            let largest = sink.largest;
            let mut shrink = [s.splat(0.0); N];
            for j in 0..N {
                shrink[j] = vmath::exp2_nonpositive(s, s.sub(before[j], largest[j]));
            }

            let mut sum = [s.splat(0.0); N];
            for key in (0..count).step_by(H::VALUES) {
                for j in 0..N {
                    let p = logits.add(key * width + j * lanes);
                    let e = vmath::exp2_nonpositive(s, s.sub(s.load(p), largest[j]));
                    sum[j] = s.add(sum[j], e);
                    let mut next = s.splat(0.0);
                    if H::VALUES > 1 && key + 1 < count {
                        next = vmath::exp2_nonpositive(s, s.sub(s.load(p.add(width)), largest[j]));
                        sum[j] = s.add(sum[j], next);
                    }
                    s.store(logits.add(key / H::VALUES * width + j * lanes), h.zip(e, next));
                }
            }
            for j in 0..N {
                let p = tile.sum.add(j * lanes);
                s.store(p, s.fma(s.load(p), shrink[j], sum[j]));
                s.store(tile.largest.add(j * lanes), largest[j]);
            }
            let mut sink = Shrink { p: tile.output, shrink };
            let right = Right { p: logits, stride: width };
            multiply::<H, N>(h, values, right, dv, cells_of::<H>(count), &mut sink);
        }
    }

    #[inline(always)]
    fn close<S: Simd>(&self, s: S, tile: Tile) {
        let Tile { first, width, .. } = tile;
        let rows = width.min(self.count - first);
        // SAFETY: the tile's state, and the task's queries.
        unsafe {
            for i in (0..width).step_by(S::LANES) {
                let sum = s.load(tile.sum.add(i));
                let inverse = s.div(s.splat(1.0), sum);
                for c in 0..self.dims.dv {
                    let p = tile.output.add(c * width + i);
                    s.store(p, s.mul(s.load(p), inverse));
                }
                let lse = s.fma(s.load(tile.largest.add(i)), s.splat(LN_2), vmath::ln(s, sum));
                if i < rows {
                    s.store_first(self.lse.add(first + i), lse, (rows - i).min(S::LANES));
                }
            }
            let o = self.o.add(first * self.o_stride);
            pack::transpose_out(tile.output, width, rows, self.dims.dv, o, self.o_stride, 1.0);
        }
    }
}

/// Stores logits and keeps the largest of each query.
struct Logits<V, const W: usize> {
    p: *mut f32,
    largest: [V; W],
}

impl<S: Simd, const W: usize> Sink<S> for Logits<S::V, W> {
    #[inline(always)]
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]) {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..M {
                for j in 0..N {
                    s.store(self.p.add(((row + i) * N + j) * S::LANES), tile[i][j]);
                    self.largest[j] = s.max(tile[i][j], self.largest[j]);
                }
            }
        }
    }
}

/// Adds tiles to the output, which shrinks as the largest logit grows.
struct Shrink<V, const W: usize> {
    p: *mut f32,
    shrink: [V; W],
}

impl<S: Simd, const W: usize> Sink<S> for Shrink<S::V, W> {
    #[inline(always)]
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]) {
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..M {
                for j in 0..N {
                    let p = self.p.add(((row + i) * N + j) * S::LANES);
                    s.store(p, s.fma(s.load(p), self.shrink[j], tile[i][j]));
                }
            }
        }
    }
}
