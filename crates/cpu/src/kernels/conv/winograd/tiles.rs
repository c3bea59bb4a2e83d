//! How the output is cut into tiles, and tiles into blocks.
//!
//! Tile rows of all planes and samples follow each other; a block is some whole rows, or a piece of
//! one row where rows are long. Its transformed input stays in the second-level cache.

use super::scheme::Scheme;

/// A convolution seen as one over planes: the shapes after a gradient is turned into a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    pub n: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    /// Channels read and written.
    pub c: usize,
    pub k: usize,
    /// Taps along z, their distance, and zeros before the image on each axis.
    pub taps: usize,
    pub dilation: usize,
    pub pad: [usize; 3],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub planes: Planes,
    /// Tiles down and across one plane.
    pub down: usize,
    pub across: usize,
    pub block_rows: usize,
    pub block_columns: usize,
}

/// Tile rows that lie in one plane, and the tiles of each.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub n: usize,
    /// The output plane.
    pub z: usize,
    /// The first tile row in the plane, and how many.
    pub row: usize,
    pub rows: usize,
    pub column: usize,
    pub columns: usize,
    /// Number of the first tile in its block.
    pub first: usize,
}

impl Grid {
    /// Blocks of about `most` tiles.
    pub fn new<W: Scheme>(planes: Planes, most: usize) -> Grid {
        let [_, height, width] = planes.output;
        let (down, across) = (height.div_ceil(W::OUT), width.div_ceil(W::OUT));
        let mut grid = Grid { planes, down, across, block_rows: 1, block_columns: across };
        if across > most + most / 3 {
            grid.block_columns = across.div_ceil(across.div_ceil(most));
        } else {
            let rows = (most / across).clamp(1, grid.rows());
            grid.block_rows = grid.rows().div_ceil(grid.rows().div_ceil(rows));
        }
        grid
    }

    /// Tile rows of all planes and samples.
    pub fn rows(&self) -> usize {
        self.planes.n * self.planes.output[0] * self.down
    }

    /// Tiles of a block at most.
    pub fn block_tiles(&self) -> usize {
        self.block_rows * self.block_columns
    }

    pub fn blocks(&self) -> usize {
        self.rows().div_ceil(self.block_rows) * self.across.div_ceil(self.block_columns)
    }

    /// The runs of a block, in the order of its tiles.
    pub fn runs(&self, block: usize) -> impl Iterator<Item = Run> + '_ {
        let pieces = self.across.div_ceil(self.block_columns);
        let mut at = block / pieces * self.block_rows;
        let end = self.rows().min(at + self.block_rows);
        let column = block % pieces * self.block_columns;
        let columns = self.block_columns.min(self.across - column);
        let mut first = 0;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let (plane, row) = (at / self.down, at % self.down);
                let rows = (end - at).min(self.down - row);
                let (n, z) = (plane / self.planes.output[0], plane % self.planes.output[0]);
                let run = Run { n, z, row, rows, column, columns, first };
                at += rows;
                first += rows * columns;
                run
            })
        })
    }

    /// The tiles of a block.
    pub fn tiles(&self, block: usize) -> usize {
        self.runs(block).map(|r| r.rows * r.columns).sum()
    }
}
