//! The main phase of the backward pass: a block of keys against each tile of queries in turn.

use super::{Job, KEYS, LANES, Tile};
use crate::kernels::attention::pack;
use crate::kernels::attention::tile::{Add, Left, Right, Sink, WIDEST, load, multiply};
use crate::simd::{Kernel, Simd};
use crate::vmath;

/// Second phase: one chunk of the keys against all queries of the plane.
pub struct Main<'a> {
    pub job: &'a Job<'a>,
    pub plane: usize,
    pub chunk: usize,
    pub worker: usize,
}

/// The scratch of one thread: [KEYS][d] keys, [KEYS][dv] values, [KEYS][width] probabilities and
/// their gradients, a tile's queries and output gradients as padded rows, and the sums for the
/// keys and values in padded rows.
#[derive(Clone, Copy)]
struct Scratch {
    keys: *mut f32,
    values: *mut f32,
    p: *mut f32,
    ds: *mut f32,
    q_rows: *mut f32,
    do_rows: *mut f32,
    dk: *mut f32,
    dv: *mut f32,
}

impl Kernel for Main<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let dims = self.job.dims;
        let start = self.chunk * self.job.layout.blocks;
        let end = (start + self.job.layout.blocks).min(dims.sk.div_ceil(KEYS));
        // SAFETY: the worker's scratch; the chunk's keys are this task's.
        unsafe {
            let scratch = self.scratch();
            for block in start..end {
                let first = block * KEYS;
                self.keys(s, scratch, first, KEYS.min(dims.sk - first), block == start);
            }
        }
    }
}

impl Main<'_> {
    fn padded(&self) -> (usize, usize) {
        (self.job.dims.d.next_multiple_of(LANES), self.job.dims.dv.next_multiple_of(LANES))
    }

    unsafe fn scratch(&self) -> Scratch {
        let dims = self.job.dims;
        let (d, dv) = self.padded();
        // SAFETY: `Layout::scratch` counts the same parts.
        unsafe {
            let keys = self.job.scratch.at(self.worker * self.job.layout.scratch);
            let values = keys.add(KEYS * dims.d);
            let p = values.add(KEYS * dims.dv);
            let ds = p.add(KEYS * WIDEST);
            let q_rows = ds.add(KEYS * WIDEST);
            let do_rows = q_rows.add(WIDEST * d);
            let dk = do_rows.add(WIDEST * dv);
            Scratch { keys, values, p, ds, q_rows, do_rows, dk, dv: dk.add(KEYS * d) }
        }
    }

    /// `count` keys from `first` against all queries.
    #[inline(always)]
    unsafe fn keys<S: Simd>(&self, s: S, scratch: Scratch, first: usize, count: usize, fresh: bool) {
        let Main { job, plane, .. } = self;
        let dims = job.dims;
        let (image, head) = (plane / dims.heads, plane % dims.heads);
        let row = image * dims.sk + first;
        let (d, dv) = self.padded();
        // SAFETY: rows were checked; the scratch has KEYS rows.
        unsafe {
            let k = job.k.head(row, head, dims.d);
            pack::copy_rows(s, k, job.k.stride, count, dims.d, scratch.keys, dims.d);
            let v = job.v.head(row, head, dims.dv);
            pack::copy_rows(s, v, job.v.stride, count, dims.dv, scratch.values, dims.dv);
            for i in (0..KEYS * (d + dv)).step_by(S::LANES) {
                s.store(scratch.dk.add(i), s.splat(0.0));
            }
            let mut at = 0;
            while let Some(tile) = job.next::<S>(&mut at, dims.sq) {
                match tile.width / S::LANES {
                    1 => self.pair::<S, 1>(s, scratch, tile, count, fresh),
                    2 => self.pair::<S, 2>(s, scratch, tile, count, fresh),
                    _ => self.pair::<S, 4>(s, scratch, tile, count, fresh),
                }
            }
            let (dk, dv_out) = (&job.gradients.dk, &job.gradients.dv);
            write_rows(s, scratch.dk, d, count, dims.d, dk.head(row, head, dims.d), dk.stride, dims.scale);
            write_rows(
                s,
                scratch.dv,
                dv,
                count,
                dims.dv,
                dv_out.head(row, head, dims.dv),
                dv_out.stride,
                1.0,
            );
        }
    }

    /// A block of keys against one tile of queries.
    #[inline(always)]
    unsafe fn pair<S: Simd, const N: usize>(
        &self,
        s: S,
        scratch: Scratch,
        tile: Tile,
        count: usize,
        fresh: bool,
    ) {
        let Main { job, plane, chunk, .. } = *self;
        let dims = job.dims;
        let width = N * S::LANES;
        let (d, dv) = self.padded();
        let (image, head) = (plane / dims.heads, plane % dims.heads);
        let row = image * dims.sq + tile.first;
        // SAFETY: the tile is of this plane, and the scratch is large enough for it.
        unsafe {
            let q = job.q.head(row, head, dims.d);
            pack::copy_rows(s, q, job.q.stride, tile.count, dims.d, scratch.q_rows, d);
            let d_o = job.d_o.head(row, head, dims.dv);
            pack::copy_rows(s, d_o, job.d_o.stride, tile.count, dims.dv, scratch.do_rows, dv);

            let [queries, slopes, lse, delta] = job.tile(plane, tile);
            let keys = Left { p: scratch.keys, row: dims.d, col: 1 };
            let mut sink = Probability { p: scratch.p, lse: load::<S, N>(s, lse) };
            multiply::<S, N>(s, keys, Right { p: queries, stride: width }, count, dims.d, &mut sink);

            let values = Left { p: scratch.values, row: dims.dv, col: 1 };
            let mut sink = Slope { p: scratch.p, ds: scratch.ds, delta: load::<S, N>(s, delta) };
            multiply::<S, N>(s, values, Right { p: slopes, stride: width }, count, dims.dv, &mut sink);

            let keys = Left { p: scratch.keys, row: 1, col: dims.d };
            let mut sink = Add { p: job.partial(chunk, plane, tile), stride: width, replace: fresh };
            multiply::<S, N>(s, keys, Right { p: scratch.ds, stride: width }, dims.d, count, &mut sink);

            let p = Left { p: scratch.p, row: width, col: 1 };
            gather(s, p, scratch.do_rows, dv, count, tile.count, scratch.dv);
            let ds = Left { p: scratch.ds, row: width, col: 1 };
            gather(s, ds, scratch.q_rows, d, count, tile.count, scratch.dk);
        }
    }
}

/// Adds left times the rows of `right` ([depth][columns]) to `to` ([rows][columns]).
#[inline(always)]
unsafe fn gather<S: Simd>(
    s: S,
    left: Left,
    right: *const f32,
    columns: usize,
    rows: usize,
    depth: usize,
    to: *mut f32,
) {
    let mut c = 0;
    while c < columns {
        // Widths are halved until they fit, not rounded up: columns are a multiple of the lanes.
        let left_over = columns - c;
        // SAFETY: the columns from c on.
        unsafe {
            let right = Right { p: right.add(c), stride: columns };
            let mut sink = Add { p: to.add(c), stride: columns, replace: false };
            if left_over >= 4 * S::LANES && S::LANES == 16 {
                multiply::<S, 4>(s, left, right, rows, depth, &mut sink);
                c += 4 * S::LANES;
            } else if left_over >= 2 * S::LANES {
                multiply::<S, 2>(s, left, right, rows, depth, &mut sink);
                c += 2 * S::LANES;
            } else {
                multiply::<S, 1>(s, left, right, rows, depth, &mut sink);
                c += S::LANES;
            }
        }
    }
}

/// Rows of `channels` values from padded rows, multiplied.
#[inline(always)]
unsafe fn write_rows<S: Simd>(
    s: S,
    from: *const f32,
    padded: usize,
    rows: usize,
    channels: usize,
    to: *mut f32,
    stride: usize,
    factor: f32,
) {
    for i in 0..rows {
        for c in (0..channels).step_by(S::LANES) {
            // SAFETY: the last vector of a row is cut.
            unsafe {
                let v = s.mul(s.load(from.add(i * padded + c)), s.splat(factor));
                s.store_first(to.add(i * stride + c), v, S::LANES.min(channels - c));
            }
        }
    }
}

/// Turns logits into probabilities.
struct Probability<V, const W: usize> {
    p: *mut f32,
    lse: [V; W],
}

impl<S: Simd, const W: usize> Sink<S> for Probability<S::V, W> {
    #[inline(always)]
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]) {
        for i in 0..M {
            for j in 0..N {
                let e = vmath::exp2_nonpositive(s, s.sub(tile[i][j], self.lse[j]));
                // SAFETY: the caller's promise.
                unsafe { s.store(self.p.add(((row + i) * N + j) * S::LANES), e) };
            }
        }
    }
}

/// Turns gradients of probabilities into gradients of logits.
struct Slope<V, const W: usize> {
    p: *const f32,
    ds: *mut f32,
    delta: [V; W],
}

impl<S: Simd, const W: usize> Sink<S> for Slope<S::V, W> {
    #[inline(always)]
    unsafe fn take<const M: usize, const N: usize>(&mut self, s: S, row: usize, tile: &[[S::V; N]; M]) {
        for i in 0..M {
            for j in 0..N {
                let at = ((row + i) * N + j) * S::LANES;
                // SAFETY: the caller's promise.
                unsafe {
                    let ds = s.mul(s.load(self.p.add(at)), s.sub(tile[i][j], self.delta[j]));
                    s.store(self.ds.add(at), ds);
                }
            }
        }
    }
}
