//! Packed matrix products: the register kernels and the layouts that they read.
//!
//! A product is cut into column *panels*, one register tile wide (64 columns on AVX-512), whose
//! values are packed row after row so that the kernel streams them. The left side is read by
//! broadcast straight from row-major (or channel-blocked) memory, so it needs no packing. What a
//! product is for (a convolution, a linear layer, one position of a Winograd transform) is decided
//! by the callers; nothing here knows about images.

pub mod dots;
pub mod micro;
pub mod pack;
pub mod small;

use crate::simd::{Level, Simd};

pub use micro::{BlockProduct, OuterProduct, Segment, Start};

/// No register tile has more rows; scratch for a left side is padded by as many.
pub const MAX_TILE_ROWS: usize = 14;

/// The cut of `n` columns into panels: all of the full width but the last, which is as narrow as
/// whole vectors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    pub n: usize,
    lanes: usize,
    full: usize,
}

impl Panels {
    pub fn new(n: usize, level: Level) -> Panels {
        let lanes = level.lanes();
        let full = match level {
            Level::Avx512(_) => 4 * lanes,
            Level::Avx2(_) | Level::Portable => 2 * lanes,
        };
        Panels { n, lanes, full }
    }

    pub fn count(&self) -> usize {
        self.n.div_ceil(self.full)
    }

    /// The first column of panel `i`.
    pub fn start(&self, i: usize) -> usize {
        i * self.full
    }

    /// The columns of panel `i` that exist.
    pub fn columns(&self, i: usize) -> usize {
        (self.n - self.start(i)).min(self.full)
    }

    /// The vectors that panel `i` is wide.
    pub fn vectors(&self, i: usize) -> usize {
        self.columns(i).div_ceil(self.lanes)
    }

    /// The width of panel `i` with the columns that pad its last vector.
    pub fn width(&self, i: usize) -> usize {
        self.vectors(i) * self.lanes
    }

    /// The width of a full panel.
    pub fn full(&self) -> usize {
        self.full
    }

    /// The width of all panels together.
    pub fn padded(&self) -> usize {
        self.n.next_multiple_of(self.lanes)
    }

    /// Where panel `i` starts when each has `rows` packed rows.
    pub fn offset(&self, i: usize, rows: usize) -> usize {
        self.start(i) * rows
    }
}

/// The first `len` lanes from `p`, without a mask where all are wanted.
///
/// # Safety
/// `len <= LANES` values can be read at `p`.
#[inline(always)]
pub unsafe fn load_len<S: Simd>(s: S, p: *const f32, len: usize) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { if len == S::LANES { s.load(p) } else { s.load_first(p, len) } }
}

/// The first `len` lanes to `p`; masked stores are slow on some machines, so whole vectors go without.
///
/// # Safety
/// `len <= LANES` values can be written at `p`.
#[inline(always)]
pub unsafe fn store_len<S: Simd>(s: S, p: *mut f32, v: S::V, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { if len == S::LANES { s.store(p, v) } else { s.store_first(p, v, len) } }
}
