//! Transforms of blocks of 8 x 8 and of stacks.
//!
//! A transform is a matrix with rows of unit length, so that white noise has the same variance in every coefficient,
//! and its inverse.

use std::sync::LazyLock;

pub(super) const SIDE: usize = 8;
/// 8 x 8 numbers, row-major.
pub(super) type Block = [f32; SIDE * SIDE];
type Matrix = [[f64; SIDE]; SIDE];

/// A transform of lines of eight, applied along both axes of a block.
pub(super) struct Transform {
    forward: Block,
    forward_turned: Block,
    backward: Block,
    backward_turned: Block,
}

impl Transform {
    #[inline(always)]
    pub fn forward(&self, block: &Block) -> Block {
        product(&product(&self.forward, block), &self.forward_turned)
    }

    #[inline(always)]
    pub fn backward(&self, block: &Block) -> Block {
        product(&self.backward, &product(block, &self.backward_turned))
    }

    /// The autocorrelation of each row of the matrix, at distances from -7 to 7.
    pub fn autocorrelations(&self) -> [[f64; 2 * SIDE - 1]; SIDE] {
        let value = |row: usize, i: usize| f64::from(self.forward[row * SIDE + i]);
        std::array::from_fn(|row| {
            std::array::from_fn(|lag| {
                let apart = lag.abs_diff(SIDE - 1);
                (apart..SIDE).map(|i| value(row, i) * value(row, i - apart)).sum()
            })
        })
    }

    fn new(mut rows: Matrix) -> Transform {
        for row in &mut rows {
            let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            row.iter_mut().for_each(|v| *v /= length);
        }
        let back = inverse(rows);
        let flat = |m: &Matrix| std::array::from_fn(|i| m[i / SIDE][i % SIDE] as f32);
        let turned = |m: &Matrix| std::array::from_fn(|i| m[i % SIDE][i / SIDE] as f32);
        Transform {
            forward: flat(&rows),
            forward_turned: turned(&rows),
            backward: flat(&back),
            backward_turned: turned(&back),
        }
    }
}

/// The cosine transform (DCT-II).
pub(super) static COSINE: LazyLock<Transform> = LazyLock::new(|| {
    let angle = std::f64::consts::PI / (2 * SIDE) as f64;
    Transform::new(std::array::from_fn(|k| std::array::from_fn(|i| (angle * ((2 * i + 1) * k) as f64).cos())))
});

/// The biorthogonal wavelets 1.5 (Cohen, Daubechies, Feauveau) in three levels, periodic.
pub(super) static WAVELET: LazyLock<Transform> = LazyLock::new(|| {
    // The analysis filters: a smoothing one of ten taps, and the difference of two neighbours.
    const LOW: [f64; 10] = [3.0, -3.0, -22.0, 22.0, 128.0, 128.0, 22.0, -22.0, -3.0, 3.0];
    let mut rows: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u8::from(i == j))));
    let mut n = SIDE;
    while n > 1 {
        let level: Vec<[f64; SIDE]> = (0..n)
            .map(|k| {
                let (place, detail) = (2 * (k % (n / 2)), k >= n / 2);
                let taps: &[f64] = if detail { &[1.0, -1.0] } else { &LOW };
                let before = taps.len() / 2 - 1;
                let mut row = [0.0; SIDE];
                for (t, tap) in taps.iter().enumerate() {
                    let from = &rows[(place + t + before * (n - 1)) % n];
                    row.iter_mut().zip(from).for_each(|(r, f)| *r += tap * f);
                }
                row
            })
            .collect();
        rows[..n].copy_from_slice(&level);
        n /= 2;
    }
    Transform::new(rows)
});

/// What a pixel of a block counts for where blocks overlap: Kaiser's window with beta 2.
pub(super) static WINDOW: LazyLock<Block> = LazyLock::new(|| {
    // The modified Bessel function of order zero, by its series.
    let bessel = |x: f64| {
        let (mut sum, mut term) = (1.0, 1.0);
        for k in 1..30 {
            term *= (0.5 * x / f64::from(k)).powi(2);
            sum += term;
        }
        sum
    };
    let line = |i: usize| {
        let u = 2.0 * i as f64 / (SIDE - 1) as f64 - 1.0;
        bessel(2.0 * (1.0 - u * u).max(0.0).sqrt()) / bessel(2.0)
    };
    std::array::from_fn(|i| (line(i / SIDE) * line(i % SIDE)) as f32)
});

/// By elimination with pivots.
fn inverse(mut m: Matrix) -> Matrix {
    let mut inverse: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(u8::from(i == j))));
    for c in 0..SIDE {
        let pivot = (c..SIDE).max_by(|&a, &b| m[a][c].abs().total_cmp(&m[b][c].abs())).unwrap_or(c);
        m.swap(c, pivot);
        inverse.swap(c, pivot);
        let scale = 1.0 / m[c][c];
        m[c].iter_mut().chain(&mut inverse[c]).for_each(|v| *v *= scale);
        for r in (0..SIDE).filter(|&r| r != c) {
            let factor = m[r][c];
            for k in 0..SIDE {
                m[r][k] -= factor * m[c][k];
                inverse[r][k] -= factor * inverse[c][k];
            }
        }
    }
    inverse
}

#[inline(always)]
fn product(m: &Block, x: &Block) -> Block {
    let mut out = [0f32; SIDE * SIDE];
    for (out, factors) in out.chunks_exact_mut(SIDE).zip(m.chunks_exact(SIDE)) {
        let mut row = [0f32; SIDE];
        for (f, x) in factors.iter().zip(x.chunks_exact(SIDE)) {
            row.iter_mut().zip(x).for_each(|(r, x)| *r += f * x);
        }
        out.copy_from_slice(&row);
    }
    out
}

/// Haar's transform along a stack of a power of two of blocks.
#[inline(always)]
pub(super) fn haar(stack: &mut [Block]) {
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let mut apart = 1;
    while apart < stack.len() {
        for first in (0..stack.len()).step_by(2 * apart) {
            mix(stack, first, first + apart, half);
        }
        apart *= 2;
    }
}

/// The inverse of [`haar`].
#[inline(always)]
pub(super) fn haar_back(stack: &mut [Block]) {
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let mut apart = stack.len() / 2;
    while apart > 0 {
        for first in (0..stack.len()).step_by(2 * apart) {
            mix(stack, first, first + apart, half);
        }
        apart /= 2;
    }
}

/// The sum and the difference of two blocks, in their places.
#[inline(always)]
fn mix(stack: &mut [Block], a: usize, b: usize, scale: f32) {
    let (head, tail) = stack.split_at_mut(b);
    for (x, y) in head[a].iter_mut().zip(&mut tail[0]) {
        (*x, *y) = ((*x + *y) * scale, (*x - *y) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: &Block, b: &Block) {
        a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 2e-5, "{a} {b}"));
    }

    #[test]
    fn transforms_come_back() {
        let block: Block = std::array::from_fn(|i| ((i * 37 + 11) % 64) as f32 * 0.1 - 3.0);
        for t in [&COSINE, &WAVELET] {
            close(&t.backward(&t.forward(&block)), &block);
            // A flat block is one coefficient.
            let flat = t.forward(&[0.5; 64]);
            close(&flat, &std::array::from_fn(|i| if i == 0 { 4.0 } else { 0.0 }));
            for row in t.forward.chunks(SIDE) {
                assert!((row.iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn stacks_come_back() {
        let stack: Vec<Block> =
            (0..16).map(|k| std::array::from_fn(|i| ((i * 7 + k * 13) % 31) as f32 * 0.2)).collect();
        let mut there = stack.clone();
        haar(&mut there);
        let power = |s: &[Block]| s.iter().flatten().map(|v| v * v).sum::<f32>();
        assert!((power(&there) / power(&stack) - 1.0).abs() < 1e-5);
        let sum: f32 = stack.iter().map(|b| b[5]).sum();
        assert!((there[0][5] - sum / 4.0).abs() < 1e-4);
        haar_back(&mut there);
        there.iter().zip(&stack).for_each(|(a, b)| close(a, b));
    }
}
