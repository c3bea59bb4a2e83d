//! The median of the box around each pixel, mirrored at the edges. It does not depend on the noise.
//!
//! The common box of 3 x 3 pixels has a special implementation: columns of three are sorted once for the three boxes
//! that share them, and the median of nine is the median of the largest low, the middle middle and the smallest high of
//! three columns.

use crate::RestoreError;
use crate::error::require;
use crate::frame::Frame;
use crate::widest::widest;
use rayon::prelude::*;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Median {
    /// The box has `2 radius + 1` pixels along every axis longer than one.
    pub radius: usize,
}

impl Median {
    pub const USUAL: Median = Median { radius: 1 };

    pub(super) fn run(&self, frame: Frame<'_>) -> Result<Vec<f32>, RestoreError> {
        let r = self.radius;
        require(r <= 50, "the radius of the median", r as f64, "a whole number up to 50")?;
        let (padded, wide) = frame.mirrored([r; 3]);
        let [_, height, width] = frame.size;
        let depth = if frame.size[0] > 1 { 2 * r + 1 } else { 1 };
        let (tall, long) = (if height > 1 { 2 * r + 1 } else { 1 }, if width > 1 { 2 * r + 1 } else { 1 });
        let mut out = vec![0f32; frame.values.len()];
        if r == 1 && depth == 1 && tall == 3 && long == 3 {
            out.par_chunks_mut(width * STRIP).enumerate().for_each(|(strip, out)| {
                widest(|| {
                    let mut sorted = [0; 3].map(|_| vec![0f32; wide[2]]);
                    for (i, out) in out.chunks_mut(width).enumerate() {
                        let row = |d: usize| &padded[(strip * STRIP + i + d) * wide[2]..][..wide[2]];
                        of_nine([row(0), row(1), row(2)], &mut sorted, out);
                    }
                });
            });
            return Ok(out);
        }
        out.par_chunks_mut(width).enumerate().for_each(|(row, out)| {
            let (z, y) = (row / height, row % height);
            let mut inside = Vec::with_capacity(depth * tall * long);
            for (x, o) in out.iter_mut().enumerate() {
                inside.clear();
                for dz in 0..depth {
                    for dy in 0..tall {
                        let first = ((z + dz) * wide[1] + y + dy) * wide[2] + x;
                        inside.extend_from_slice(&padded[first..first + long]);
                    }
                }
                // The number of pixels is odd.
                let middle = inside.len() / 2;
                *o = *inside.select_nth_unstable_by(middle, f32::total_cmp).1;
            }
        });
        Ok(out)
    }
}

/// Rows that a thread takes at a time.
const STRIP: usize = 32;

/// The medians of 3 x 3 boxes along three rows; rows have two pixels more than `out`.
#[inline(always)]
fn of_nine(rows: [&[f32]; 3], sorted: &mut [Vec<f32>; 3], out: &mut [f32]) {
    let least = |a: f32, b: f32| if a < b { a } else { b };
    let most = |a: f32, b: f32| if a < b { b } else { a };
    let middle = |a: f32, b: f32, c: f32| most(least(a, b), least(most(a, b), c));
    let [low, mid, high] = sorted;
    let columns = rows[0].iter().zip(rows[1]).zip(rows[2]);
    for (((l, m), h), ((&a, &b), &c)) in low.iter_mut().zip(&mut *mid).zip(&mut *high).zip(columns) {
        let (small, large) = (least(a, b), most(a, b));
        *l = least(small, c);
        *m = most(small, least(large, c));
        *h = most(large, c);
    }
    let lows = low.iter().zip(&low[1..]).zip(&low[2..]).map(|((&a, &b), &c)| most(most(a, b), c));
    let mids = mid.iter().zip(&mid[1..]).zip(&mid[2..]).map(|((&a, &b), &c)| middle(a, b, c));
    let highs = high.iter().zip(&high[1..]).zip(&high[2..]).map(|((&a, &b), &c)| least(least(a, b), c));
    out.iter_mut().zip(lows).zip(mids).zip(highs).for_each(|(((o, l), m), h)| *o = middle(l, m, h));
}
