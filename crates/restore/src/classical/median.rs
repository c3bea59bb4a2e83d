//! The median of the box around each pixel, mirrored at the edges.

use crate::RestoreError;
use crate::error::require;
use crate::frame::Frame;
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
