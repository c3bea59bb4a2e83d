//! How a norm is cut: images into blocks of pixels, and a block into rows for the vectors.

use super::{NormDims, Part};

/// Values of a block: it and its gradient stay in the second cache.
const BLOCK: usize = 32_768;
/// Values of a task: below it, handing out tasks would cost more than doing them.
const TASK: usize = 16_384;
/// Images of fewer pixels are taken whole.
const FEW_PIXELS: usize = 8;
/// Rows narrower than this are folded where they can be.
const NARROW: usize = 64;

/// The cut of one norm. Blocks and tasks depend on the dimensions only.
#[derive(Clone, Copy)]
pub struct Grid {
    pub dims: NormDims,
    /// Pixels that are taken as one row: more than 1 for few channels in one contiguous part.
    pub fold: usize,
    /// Pixels of a block, and blocks of an image.
    pub block: usize,
    pub blocks: usize,
    /// Units (an image's blocks, in order) of one task.
    pub per_task: usize,
}

/// A block of one image.
#[derive(Clone, Copy)]
pub struct Unit {
    pub image: usize,
    /// Its first pixel, and its pixels.
    pub first: usize,
    pub pixels: usize,
}

/// A block of one part as the kernels see it: `rows` rows of `width` values and then one of `tail`.
#[derive(Clone, Copy)]
pub struct Span {
    pub rows: usize,
    pub width: usize,
    pub tail: usize,
}

impl Grid {
    pub fn new(dims: &NormDims, parts: &[Part]) -> Grid {
        let single = parts.len() == 1 && parts[0].stride == dims.c && dims.s > 1;
        Grid { fold: if single { folding(dims.c) } else { 1 }, ..Grid::of(dims) }
    }

    /// The cut without what the parts decide.
    pub fn of(dims: &NormDims) -> Grid {
        let block = if dims.s < FEW_PIXELS {
            dims.s.max(1)
        } else if dims.c < NARROW {
            (BLOCK / dims.c).next_multiple_of(NARROW)
        } else {
            (BLOCK / dims.c).max(16)
        };
        let blocks = dims.s.div_ceil(block);
        let per_task = (TASK / (block.min(dims.s).max(1) * dims.c)).max(1);
        Grid { dims: *dims, fold: 1, block, blocks, per_task }
    }

    /// Whether images are taken whole.
    pub fn whole_images(&self) -> bool {
        self.dims.s < FEW_PIXELS
    }

    /// Whether each image is one pixel and one group, as in a layer norm.
    pub fn layers(&self) -> bool {
        self.dims.s == 1 && self.dims.groups == 1
    }

    pub fn units(&self) -> usize {
        self.dims.n * self.blocks
    }

    pub fn tasks(&self) -> usize {
        self.units().div_ceil(self.per_task)
    }

    /// The units of a task.
    pub fn task(&self, task: usize) -> std::ops::Range<usize> {
        task * self.per_task..((task + 1) * self.per_task).min(self.units())
    }

    pub fn unit(&self, unit: usize) -> Unit {
        let (image, first) = (unit / self.blocks, unit % self.blocks * self.block);
        Unit { image, first, pixels: self.block.min(self.dims.s - first) }
    }

    /// How a part of `channels` channels of `pixels` pixels is walked.
    pub fn span(&self, pixels: usize, channels: usize) -> Span {
        let width = channels * self.fold;
        Span { rows: pixels / self.fold, width, tail: pixels % self.fold * channels }
    }

    /// Values between rows, for a tensor whose pixels are `stride` apart.
    pub fn stride(&self, stride: usize) -> usize {
        stride * self.fold
    }

    /// Values of one folded row of all channels.
    pub fn width(&self) -> usize {
        self.dims.c * self.fold
    }
}

/// Values of the longest row that a norm of these dimensions may have, in whole cache lines.
pub fn longest_row(dims: &NormDims) -> usize {
    (dims.c * folding(dims.c)).next_multiple_of(16)
}

/// The power of two that makes rows of `c` channels whole vectors and wide enough.
fn folding(c: usize) -> usize {
    let mut fold = 1;
    while c < NARROW && (c * fold < NARROW || !(c * fold).is_multiple_of(16)) {
        fold *= 2;
    }
    fold
}
