//! Filters the coefficients of a stack: hard thresholding, or a Wiener filter. Both support white noise, with the same
//! variance in all coefficients, and noise with a different variance in each.

use super::transform::{Block, SIDE};

/// How a stack is filtered.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Sets coefficients below this many standard deviations of their noise to zero.
    Threshold(f32),
    /// A Wiener filter based on the stack of the guide image, with this multiple of the noise variance.
    Wiener(f32),
}

/// Sets coefficients below the limit to zero and counts the others.
#[inline(always)]
pub(super) fn keep_above(stack: &mut [Block], limit: f32) -> u32 {
    let mut kept = 0;
    for block in stack {
        for c in block.iter_mut() {
            let large = c.abs() >= limit;
            kept += u32::from(large);
            *c = if large { *c } else { 0.0 };
        }
    }
    kept
}

/// Wiener's filter with the guide's power; gives the sum of the squared factors.
#[inline(always)]
pub(super) fn shrink(stack: &mut [Block], guide: &[Block], variance: f32) -> f32 {
    let mut squares = [0f32; SIDE];
    for (block, guide) in stack.iter_mut().zip(guide) {
        for (row, guide) in block.chunks_exact_mut(SIDE).zip(guide.chunks_exact(SIDE)) {
            for i in 0..SIDE {
                let power = guide[i] * guide[i];
                let factor = power / (power + variance);
                row[i] *= factor;
                squares[i] += factor * factor;
            }
        }
    }
    squares.iter().sum()
}

/// As [`keep_above`], each coefficient by its variance; gives the variance of what is kept.
#[inline(always)]
pub(super) fn keep_above_each(stack: &mut [Block], variances: &[Block], power: f32) -> f32 {
    let mut kept = [0f32; SIDE];
    for (block, variances) in stack.iter_mut().zip(variances) {
        for (row, variances) in block.chunks_exact_mut(SIDE).zip(variances.chunks_exact(SIDE)) {
            for i in 0..SIDE {
                let large = row[i] * row[i] >= power * variances[i];
                kept[i] += if large { variances[i] } else { 0.0 };
                row[i] = if large { row[i] } else { 0.0 };
            }
        }
    }
    kept.iter().sum()
}

/// As [`shrink`], each coefficient by its variance; gives the variance of what is left.
#[inline(always)]
pub(super) fn shrink_each(stack: &mut [Block], guide: &[Block], variances: &[Block], times: f32) -> f32 {
    let mut left = [0f32; SIDE];
    for ((block, guide), variances) in stack.iter_mut().zip(guide).zip(variances) {
        let rows = block.chunks_exact_mut(SIDE).zip(guide.chunks_exact(SIDE));
        for ((row, guide), variances) in rows.zip(variances.chunks_exact(SIDE)) {
            for i in 0..SIDE {
                let power = guide[i] * guide[i];
                let factor = power / (power + times * variances[i]);
                row[i] *= factor;
                left[i] += factor * factor * variances[i];
            }
        }
    }
    left.iter().sum()
}
