//! Weights to points, `[panel][point][z tap][channel][width]`.
//!
//! Forward, output channels are the columns of a panel but the slow axis of the weights, so a block
//! is transposed on its way; for the gradient of the input the channels of the input are the
//! columns and lie side by side, and the kernel is turned around.

use super::super::Direction;
use super::scheme::{Scheme, both_axes};
use super::tiles::Planes;
use crate::Cpu;
use crate::gemm::{Panels, pack};
use crate::pool::Shares;
use crate::simd::{Kernel, Level, Simd};
use std::marker::PhantomData;

/// Rows of one task: channels that are read.
const ROWS: usize = 16;
const MAX_WIDTH: usize = 64;

/// # Safety
/// `weights` holds the weights of the convolution, `packed` all panels.
pub(super) unsafe fn weights<W: Scheme>(
    cpu: &Cpu,
    level: Level,
    direction: Direction,
    planes: &Planes,
    panels: &Panels,
    weights: *const f32,
    packed: *mut f32,
) {
    let blocks = planes.c.div_ceil(ROWS);
    let (weights, packed) = (Shares(weights.cast_mut()), Shares(packed));
    cpu.pool.run(panels.count() * planes.taps * blocks, |_, task| {
        let (panel, tap, block) = (task / (planes.taps * blocks), task / blocks % planes.taps, task % blocks);
        // SAFETY: each task writes its own rows of its panel.
        unsafe {
            rows::<W>(level, direction, planes, panels, panel, tap, block, weights.at(0), packed.at(0))
        };
    });
}

unsafe fn rows<W: Scheme>(
    level: Level,
    direction: Direction,
    planes: &Planes,
    panels: &Panels,
    panel: usize,
    tap: usize,
    block: usize,
    weights: *const f32,
    packed: *mut f32,
) {
    let (width, columns, start) = (panels.width(panel), panels.columns(panel), panels.start(panel));
    let padded = planes.c.next_multiple_of(level.lanes());
    let depth = planes.taps * padded;
    let (first, taps) = (block * ROWS, 9 * planes.taps);
    let count = ROWS.min(planes.c - first);
    let mut turned = [0.0; 9 * ROWS * MAX_WIDTH];
    // SAFETY: the promise of `weights`.
    unsafe {
        let dst = packed.add(panels.offset(panel, W::POINTS * depth) + (tap * padded + first) * width);
        let (src, tap_step, row_step) = match direction {
            Direction::Forward => {
                for t in 0..9 {
                    let src = weights.add((start * taps + tap * 9 + t) * planes.c + first);
                    let dst = turned.as_mut_ptr().add(t * ROWS * MAX_WIDTH);
                    pack::transpose_columns(level, src, taps * planes.c, count, columns, dst, width);
                }
                (turned.as_ptr(), (ROWS * MAX_WIDTH) as isize, width)
            }
            // The last tap first.
            Direction::InputGrad => {
                let last = (planes.taps - tap) * 9 - 1;
                let src = weights.add((first * taps + last) * planes.k + start);
                (src, -(planes.k as isize), taps * planes.k)
            }
        };
        let scheme = PhantomData::<W>;
        let point_step = depth * width;
        let rows = ROWS.min(padded - first);
        level.dispatch(ToPoints {
            src,
            tap_step,
            row_step,
            count,
            rows,
            columns,
            dst,
            width,
            point_step,
            scheme,
        });
    }
}

struct ToPoints<W> {
    src: *const f32,
    tap_step: isize,
    row_step: usize,
    /// Rows that exist, and rows to write; those between are zero.
    count: usize,
    rows: usize,
    columns: usize,
    dst: *mut f32,
    width: usize,
    point_step: usize,
    scheme: PhantomData<W>,
}

impl<W: Scheme> Kernel for ToPoints<W> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            for j in (0..self.width).step_by(S::LANES) {
                let len = if row < self.count { S::LANES.min(self.columns - j) } else { 0 };
                let src = self.src.wrapping_add(row * self.row_step + j);
                // SAFETY: the promise of `weights`; a masked load of nothing touches nothing.
                unsafe {
                    let dst = self.dst.add(row * self.width + j);
                    both_axes!(
                        s, 3 to 6, 3, W::IN, W::kernel,
                        load |y, x| s.load_first(src.wrapping_offset((3 * y + x) as isize * self.tap_step), len),
                        store |y, x, v| s.store(dst.add((y * W::IN + x) * self.point_step), v)
                    );
                }
            }
        }
    }
}
