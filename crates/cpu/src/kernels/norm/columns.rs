//! The inner loops: rows of channels against vectors of coefficients for each channel.
//!
//! All take a [`Span`] and walk it in the order of memory. Vectors at the end of a row are cut;
//! cut lanes load zeros, so that they add nothing to sums.

use super::grid::Span;
use crate::act::{self, Activation};
use crate::simd::Simd;

/// A matrix of rows `stride` values apart.
#[derive(Clone, Copy)]
pub struct Rows {
    pub p: *mut f32,
    pub stride: usize,
}

impl Rows {
    #[inline(always)]
    unsafe fn row(self, i: usize) -> *mut f32 {
        // SAFETY: the caller's rows have i.
        unsafe { self.p.add(i * self.stride) }
    }
}

/// `sum[c]` and `squares[c]` become the sums over the rows of x - shift[c] and of its square.
///
/// # Safety
/// The span lies in x; the vectors have its width.
#[inline(always)]
pub unsafe fn sums<S: Simd>(s: S, span: Span, x: Rows, shift: *const f32, sum: *mut f32, squares: *mut f32) {
    let mut c = 0;
    // SAFETY: columns below width, rows below rows.
    unsafe {
        while c + 4 * S::LANES <= span.width {
            sums_of::<S, 4>(s, span.rows, x, c, shift, sum, squares);
            c += 4 * S::LANES;
        }
        while c + S::LANES <= span.width {
            sums_of::<S, 1>(s, span.rows, x, c, shift, sum, squares);
            c += S::LANES;
        }
        if c < span.width {
            for i in c..span.width {
                *sum.add(i) = 0.0;
                *squares.add(i) = 0.0;
            }
            for r in 0..span.rows {
                add_cut(s, x.row(r), c, span.width, shift, sum, squares);
            }
        }
        for c in (0..span.tail).step_by(S::LANES) {
            add_cut(s, x.row(span.rows), c, span.tail, shift, sum, squares);
        }
    }
}

#[inline(always)]
unsafe fn sums_of<S: Simd, const N: usize>(
    s: S,
    rows: usize,
    x: Rows,
    c: usize,
    shift: *const f32,
    sum: *mut f32,
    squares: *mut f32,
) {
    let mut away = [s.splat(0.0); N];
    let (mut one, mut two) = (away, away);
    // SAFETY: N vectors from column c on.
    unsafe {
        for j in 0..N {
            away[j] = s.load(shift.add(c + j * S::LANES));
        }
        for r in 0..rows {
            let p = x.row(r).add(c);
            for j in 0..N {
                let d = s.sub(s.load(p.add(j * S::LANES)), away[j]);
                one[j] = s.add(one[j], d);
                two[j] = s.fma(d, d, two[j]);
            }
        }
        for j in 0..N {
            s.store(sum.add(c + j * S::LANES), one[j]);
            s.store(squares.add(c + j * S::LANES), two[j]);
        }
    }
}

/// Adds the values of one row from column c to `end`, of which less than a vector may be left.
#[inline(always)]
unsafe fn add_cut<S: Simd>(
    s: S,
    row: *const f32,
    c: usize,
    end: usize,
    shift: *const f32,
    sum: *mut f32,
    squares: *mut f32,
) {
    let n = S::LANES.min(end - c);
    // SAFETY: n values from column c on.
    unsafe {
        let d = s.sub(s.load_first(row.add(c), n), s.load_first(shift.add(c), n));
        s.store_first(sum.add(c), s.add(s.load_first(sum.add(c), n), d), n);
        s.store_first(squares.add(c), s.fma(d, d, s.load_first(squares.add(c), n)), n);
    }
}

/// One step of a kernel at a column: `n` of the lanes count.
pub trait Step<S: Simd> {
    /// # Safety
    /// Row and columns `c..c + n` lie in what the step points to; `n` is LANES where `FULL`.
    unsafe fn at<const FULL: bool>(&self, s: S, row: usize, c: usize, n: usize);
}

/// Runs a step over a span, row by row.
///
/// # Safety
/// The span lies in every matrix of the step, and its vectors have the width of the span.
#[inline(always)]
pub unsafe fn walk<S: Simd>(s: S, span: Span, step: &impl Step<S>) {
    // The body of a step is large: one place for whole vectors and one for cut ones, and no
    // unrolling, keep what is compiled small. The processor overlaps the turns by itself.
    for row in 0..=span.rows {
        let width = if row < span.rows { span.width } else { span.tail };
        let mut c = 0;
        // SAFETY: rows and columns of the span.
        unsafe {
            while c + S::LANES <= width {
                step.at::<true>(s, row, c, S::LANES);
                c += S::LANES;
            }
            if c < width {
                step.at::<false>(s, row, c, width - c);
            }
        }
    }
}

/// The `n` lanes at p that count; all of them where `FULL`.
///
/// # Safety
/// They can be read.
#[inline(always)]
pub unsafe fn load<S: Simd, const FULL: bool>(s: S, p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { if FULL { s.load(p) } else { s.load_first(p, n) } }
}

/// Stores as [`load`] loads.
///
/// # Safety
/// The lanes can be written.
#[inline(always)]
pub unsafe fn store<S: Simd, const FULL: bool>(s: S, p: *mut f32, v: S::V, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { if FULL { s.store(p, v) } else { s.store_first(p, v, n) } }
}

/// y = act(x a + b).
pub struct Apply<A> {
    pub act: A,
    pub x: Rows,
    pub a: *const f32,
    pub b: *const f32,
    pub y: Rows,
}

impl<S: Simd, A: Activation> Step<S> for Apply<A> {
    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, row: usize, c: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, FULL>(s, self.x.row(row).add(c), n);
            let a = load::<S, FULL>(s, self.a.add(c), n);
            let u = s.fma(x, a, load::<S, FULL>(s, self.b.add(c), n));
            store::<S, FULL>(s, self.y.row(row).add(c), act::value(s, self.act, u), n);
        }
    }
}

/// With du = dy act'(x a + b): adds to `du_sum[c]` the du, and to `dux_sum[c]` the du (x - mean[c]),
/// and keeps du where asked.
pub struct Sums<A> {
    pub act: A,
    pub x: Rows,
    pub dy: Rows,
    pub a: *const f32,
    pub b: *const f32,
    pub mean: *const f32,
    pub du_sum: *mut f32,
    pub dux_sum: *mut f32,
    pub keep: Option<Rows>,
}

impl<S: Simd, A: Activation> Step<S> for Sums<A> {
    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, row: usize, c: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, FULL>(s, self.x.row(row).add(c), n);
            let a = load::<S, FULL>(s, self.a.add(c), n);
            let u = s.fma(x, a, load::<S, FULL>(s, self.b.add(c), n));
            let du = s.mul(load::<S, FULL>(s, self.dy.row(row).add(c), n), act::slope(s, self.act, u));
            let away = s.sub(x, load::<S, FULL>(s, self.mean.add(c), n));
            let (p, q) = (self.du_sum.add(c), self.dux_sum.add(c));
            store::<S, FULL>(s, p, s.add(load::<S, FULL>(s, p, n), du), n);
            store::<S, FULL>(s, q, s.fma(du, away, load::<S, FULL>(s, q, n)), n);
            if let Some(keep) = self.keep {
                store::<S, FULL>(s, keep.row(row).add(c), du, n);
            }
        }
    }
}

/// dx = du a + x q + r, plus what is to be added. `du` may be where dx goes.
pub struct Input {
    pub x: Rows,
    pub du: Rows,
    pub addend: Option<Rows>,
    pub a: *const f32,
    pub q: *const f32,
    pub r: *const f32,
    pub dx: Rows,
}

impl<S: Simd> Step<S> for Input {
    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, row: usize, c: usize, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = load::<S, FULL>(s, self.x.row(row).add(c), n);
            let q = load::<S, FULL>(s, self.q.add(c), n);
            let mut dx = s.fma(x, q, load::<S, FULL>(s, self.r.add(c), n));
            if let Some(addend) = self.addend {
                dx = s.add(dx, load::<S, FULL>(s, addend.row(row).add(c), n));
            }
            let du = load::<S, FULL>(s, self.du.row(row).add(c), n);
            let a = load::<S, FULL>(s, self.a.add(c), n);
            store::<S, FULL>(s, self.dx.row(row).add(c), s.fma(du, a, dx), n);
        }
    }
}
