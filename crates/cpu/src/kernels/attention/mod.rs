//! Blocked attention, forward and backward: softmax(scale q k^T) v without the matrix of logits.
//!
//! Everything is computed transposed: the lanes of a vector are neighbouring queries. The largest
//! logit, the sum of exponentials and their corrections are then plain vector arithmetic with
//! nothing to reduce across lanes, keys and values are read as broadcast scalars in the order in
//! which they lie in memory, and a head of 8 channels fills the vectors as well as one of 128.
//! Exponentials are taken to base 2, with the factor folded into the queries.
//!
//! A query's arithmetic depends on the order of the keys and not on the tile that it falls in, so
//! results are the same for any number of threads.

mod backward;
mod forward;
mod pack;
mod tile;

#[cfg(test)]
mod tests;

pub use backward::{Gradients, backward, backward_workspace};
pub use forward::{forward, forward_workspace};

use std::marker::PhantomData;

/// The sizes of one attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionDims {
    pub batch: usize,
    pub heads: usize,
    /// Queries of one image.
    pub sq: usize,
    /// Keys and values of one image.
    pub sk: usize,
    /// Channels of one head of the queries and keys.
    pub d: usize,
    /// Channels of one head of the values and the output.
    pub dv: usize,
    /// What the logits are multiplied by.
    pub scale: f32,
}

impl AttentionDims {
    fn check(&self) {
        assert!(self.d > 0 && self.dv > 0, "{self:?}");
        assert!(self.sk > 0, "attention over no keys: {self:?}");
    }

    /// Attentions that are independent of each other: images times heads.
    fn planes(&self) -> usize {
        self.batch * self.heads
    }
}

/// A matrix [batch * length, heads * channels] whose rows lie `stride` values apart: a slice of a
/// wider product, for example.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

impl Rows<'_> {
    fn check(&self, rows: usize, width: usize) {
        assert!(self.stride >= width && self.data.len() >= extent(rows, width, self.stride));
    }

    /// The first value of a head in a row. The row is one that `check` was told of.
    fn head(&self, row: usize, head: usize, channels: usize) -> *const f32 {
        self.data[row * self.stride + head * channels..].as_ptr()
    }
}

/// [`Rows`] to write.
pub struct RowsMut<'a> {
    data: *mut f32,
    len: usize,
    stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: as a mutable slice; tasks write rows and heads that no other task touches.
unsafe impl Sync for RowsMut<'_> {}

impl<'a> RowsMut<'a> {
    pub fn new(data: &'a mut [f32], stride: usize) -> RowsMut<'a> {
        RowsMut { data: data.as_mut_ptr(), len: data.len(), stride, life: PhantomData }
    }

    /// For rows that are interleaved with the rows of another matrix.
    ///
    /// # Safety
    /// `len` values can be written at `data`, and nobody else uses the values of these rows for `'a`.
    pub unsafe fn from_raw(data: *mut f32, len: usize, stride: usize) -> RowsMut<'a> {
        RowsMut { data, len, stride, life: PhantomData }
    }

    fn check(&self, rows: usize, width: usize) {
        assert!(self.stride >= width && self.len >= extent(rows, width, self.stride));
    }

    fn head(&self, row: usize, head: usize, channels: usize) -> *mut f32 {
        let at = row * self.stride + head * channels;
        assert!(at < self.len);
        // SAFETY: just checked.
        unsafe { self.data.add(at) }
    }
}

fn extent(rows: usize, width: usize, stride: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * stride + width }
}

/// Values that a workspace has more than is used, for [`aligned`].
pub(in crate::kernels) const ALIGN: usize = 16;

/// The workspace from its first cache line on: vectors that straddle lines load at half the speed,
/// and lines that two threads write are slower still.
pub(in crate::kernels) fn aligned(workspace: &mut [f32]) -> &mut [f32] {
    let skip = workspace.as_ptr().align_offset(ALIGN * size_of::<f32>());
    &mut workspace[skip.min(ALIGN)..]
}
