//! How work is cut into tasks, and the row operations that many kernels are made of.
//!
//! The cut depends on sizes alone, so that a task computes the same whatever thread runs it.

use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Elements that are worth a task: 64 KiB, some microseconds of memory traffic.
pub(super) const GRAIN: usize = 1 << 14;

/// Calls `body(items)` for consecutive ranges of `0..count`, where an item is about `weight` elements.
pub(super) fn split(cpu: &Cpu, count: usize, weight: usize, body: impl Fn(Range<usize>) + Sync) {
    let each = (GRAIN / weight.max(1)).max(1);
    cpu.pool.run(count.div_ceil(each), |_, task| body(task * each..((task + 1) * each).min(count)));
}

/// As [`split`], with the code of `body` compiled for the context's level.
///
/// # Safety
/// What [`Kernel::run`] asks for holds for the kernel of every range, whichever thread runs it.
pub(super) unsafe fn split_with<K: Kernel>(
    cpu: &Cpu,
    count: usize,
    weight: usize,
    kernel: impl Fn(Range<usize>) -> K + Sync,
) {
    split(cpu, count, weight, |range| {
        // SAFETY: the caller's promise.
        unsafe { cpu.level.dispatch(kernel(range)) };
    });
}

/// A pointer that tasks only read.
pub(super) fn shared(x: *const f32) -> Shares<f32> {
    Shares(x.cast_mut())
}

/// A vector's place in a row: whole, or the row's last `left` values.
#[derive(Clone, Copy)]
pub(super) struct At<const WHOLE: bool> {
    pub i: usize,
    pub left: usize,
}

impl<const WHOLE: bool> At<WHOLE> {
    /// # Safety
    /// The row at `p` is readable.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(self, s: S, p: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { if WHOLE { s.load(p.add(self.i)) } else { s.load_first(p.add(self.i), self.left) } }
    }

    /// # Safety
    /// The row at `p` is writable.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(self, s: S, p: *mut f32, v: S::V) {
        // SAFETY: the caller's promise.
        unsafe { if WHOLE { s.store(p.add(self.i), v) } else { s.store_first(p.add(self.i), v, self.left) } }
    }
}

/// Runs the body for each vector of a row of `$n` values, whose place is `$at`: an [`At`]. A macro and
/// not a function of a closure, because a closure is compiled without the level's features unless the
/// compiler happens to inline it.
macro_rules! vectors {
    ($S:ident, $n:expr, $at:ident => $body:expr) => {{
        let n: usize = $n;
        let mut i = 0usize;
        while i + $S::LANES <= n {
            let $at = $crate::kernels::span::At::<true> { i, left: $S::LANES };
            $body;
            i += $S::LANES;
        }
        if i < n {
            let $at = $crate::kernels::span::At::<false> { i, left: n - i };
            $body;
        }
    }};
}
pub(super) use vectors;

/// Copies `n` values without overlap.
///
/// # Safety
/// Both are valid for `n` values.
#[inline(always)]
pub(super) unsafe fn copy<S: Simd>(s: S, from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: the caller's promise; a vector moves the bits of whole numbers unchanged too.
    unsafe {
        if n >= 1024 {
            return std::ptr::copy_nonoverlapping(from, to, n);
        }
        vectors!(S, n, at => at.store(s, to, at.load(s, from)));
    }
}

/// `to = value`.
///
/// # Safety
/// `to` is valid for `n` values.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd>(s: S, value: f32, to: *mut f32, n: usize) {
    let v = s.splat(value);
    // SAFETY: the caller's promise.
    unsafe { vectors!(S, n, at => at.store(s, to, v)) }
}

/// `to += x`.
///
/// # Safety
/// Both are valid for `n` values and do not overlap.
#[inline(always)]
pub(super) unsafe fn add<S: Simd>(s: S, x: *const f32, to: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { vectors!(S, n, at => at.store(s, to, s.add(at.load(s, to), at.load(s, x)))) }
}
