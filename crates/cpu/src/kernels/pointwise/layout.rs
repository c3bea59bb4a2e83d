//! How operands lie relative to the output, reduced to four forms.
//!
//! Neighbouring axes along which every operand behaves alike (is there, or is repeated) are one axis.
//! Of what remains the last two are the rows and the width of blocks, and with respect to these an
//! operand can only be there in both, in one, or in none.

use clearshot_graph::Type;
use clearshot_tensor::{MAX_RANK, Shape};

/// Values in a block: 2 KiB a register.
pub const BLOCK: usize = 512;

/// How an operand varies within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As the output.
    Direct,
    /// One row, for every row of the block.
    Row,
    /// One value per row.
    Column,
    /// One value.
    Splat,
}

#[derive(Debug)]
pub struct Operand {
    pub form: Form,
    /// Steps along the outer axes, then along rows and width.
    strides: [usize; MAX_RANK + 1],
}

#[derive(Debug)]
pub struct Layout {
    /// Sizes of the axes above rows and width.
    outer: Vec<usize>,
    rows: usize,
    pub width: usize,
    pub block_rows: usize,
    block_width: usize,
    pub operands: Vec<Operand>,
}

/// A part of the output: some whole rows, or a part of one.
#[derive(Debug)]
pub struct Block {
    outer: usize,
    row: usize,
    column: usize,
    pub rows: usize,
    pub width: usize,
    /// Offset in the output.
    pub at: usize,
}

impl Block {
    pub fn len(&self) -> usize {
        self.rows * self.width
    }
}

impl Layout {
    pub fn new(x: &[Type]) -> Layout {
        let out = x.iter().fold(Shape::SCALAR, |s, t| s.broadcast(&t.shape).expect("operands fit"));
        let shapes: Vec<Shape> = x.iter().map(|t| t.shape.padded_to(out.rank())).collect();
        let (mut sizes, mut there) = (Vec::new(), Vec::<Vec<bool>>::new());
        for axis in (0..out.rank()).filter(|&a| out[a] != 1) {
            let present: Vec<bool> = shapes.iter().map(|s| s[axis] != 1).collect();
            if there.last() == Some(&present) {
                *sizes.last_mut().unwrap() *= out[axis];
            } else {
                sizes.push(out[axis]);
                there.push(present);
            }
        }
        // Rows and width always exist; an axis of one is wherever its neighbour is.
        while sizes.len() < 2 {
            sizes.insert(0, 1);
            there.insert(0, there.first().cloned().unwrap_or(vec![true; x.len()]));
        }
        let operands = (0..x.len()).map(|i| operand(&sizes, |a| there[a][i])).collect();
        let width = sizes.pop().unwrap();
        let rows = sizes.pop().unwrap();
        let block_rows = (BLOCK / width.max(1)).clamp(1, rows.max(1));
        Layout { outer: sizes, rows, width, block_rows, block_width: width.min(BLOCK), operands }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        let outer: usize = self.outer.iter().product();
        outer * self.rows.div_ceil(self.block_rows) * self.width.div_ceil(self.block_width.max(1))
    }

    /// The values of a full block.
    pub fn block_len(&self) -> usize {
        self.block_rows * self.block_width
    }

    #[inline(always)]
    pub fn block(&self, index: usize) -> Block {
        let across = self.width.div_ceil(self.block_width);
        let down = self.rows.div_ceil(self.block_rows);
        let column = index % across * self.block_width;
        let row = index / across % down * self.block_rows;
        let outer = index / across / down;
        Block {
            outer,
            row,
            column,
            rows: self.block_rows.min(self.rows - row),
            width: self.block_width.min(self.width - column),
            at: (outer * self.rows + row) * self.width + column,
        }
    }

    /// Where operand `i`'s values for a block begin.
    #[inline(always)]
    pub fn offset(&self, i: usize, block: &Block) -> usize {
        let strides = &self.operands[i].strides;
        let n = self.outer.len();
        let mut at = block.row * strides[n] + block.column * strides[n + 1];
        let mut rest = block.outer;
        for axis in (0..n).rev() {
            at += rest % self.outer[axis] * strides[axis];
            rest /= self.outer[axis];
        }
        at
    }
}

fn operand(sizes: &[usize], there: impl Fn(usize) -> bool) -> Operand {
    let mut strides = [0; MAX_RANK + 1];
    let mut step = 1;
    for axis in (0..sizes.len()).rev().filter(|&a| there(a)) {
        strides[axis] = step;
        step *= sizes[axis];
    }
    let n = sizes.len();
    let form = match (there(n - 2), there(n - 1)) {
        (true, true) => Form::Direct,
        (false, true) => Form::Row,
        (true, false) => Form::Column,
        (false, false) => Form::Splat,
    };
    Operand { form, strides }
}
