//! Blocks of 8 x 8 pixels, decomposed by frequency, from which the noise of a single image is estimated.

use crate::correlation::{Correlation, REACH};

/// The side of a block, and the least step from one to the next.
pub(super) const SIDE: usize = 8;
const STEP: usize = 4;
/// Blocks that are looked at, about at the most.
const MOST: usize = 1 << 16;
/// Coefficients of a block.
pub(super) const COEFFICIENTS: usize = SIDE * SIDE;
/// Frequencies u + v of a block's coefficients in four bands: the first tells structure, the others hold the same in
/// white noise.
const BANDS: [std::ops::RangeInclusive<usize>; 4] = [1..=5, 6..=8, 9..=11, 12..=14];
/// How many coefficients they have.
pub(super) const COUNTS: [f64; 4] = [20.0, 22.0, 15.0, 6.0];

/// What one block says.
#[derive(Clone)]
pub(super) struct Block {
    pub level: f64,
    /// Squares of the coefficients, at `8 v + u`.
    pub squares: [f32; COEFFICIENTS],
    /// Their means in each band.
    pub bands: [f64; 4],
}

/// Row u of the orthonormal cosine transform of 8 samples.
pub(super) fn cosines() -> [[f64; SIDE]; SIDE] {
    let n = SIDE as f64;
    std::array::from_fn(|u| {
        let scale = if u == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
        std::array::from_fn(|x| scale * (std::f64::consts::PI * (x as f64 + 0.5) * u as f64 / n).cos())
    })
}

/// `u + v` of a coefficient.
pub(super) fn frequency(coefficient: usize) -> usize {
    coefficient / SIDE + coefficient % SIDE
}

/// What white noise becomes, and noise that neighbours share: the mean squares of all coefficients where a pixel's variance
/// is 1.
pub(super) fn mean_squares(c: &Correlation) -> [f64; COEFFICIENTS] {
    let along = lag_products();
    let reach = REACH as isize;
    std::array::from_fn(|i| {
        let (v, u) = (i / SIDE, i % SIDE);
        let mut sum = 0.0;
        for dy in -reach..=reach {
            for dx in -reach..=reach {
                sum += c.at(dy, dx) * along[v][dy.unsigned_abs()] * along[u][dx.unsigned_abs()];
            }
        }
        sum.max(0.0)
    })
}

/// For each frequency and lag, the sum of products of the cosine's samples that far apart.
pub(super) fn lag_products() -> [[f64; SIDE]; SIDE] {
    let t = cosines();
    std::array::from_fn(|u| std::array::from_fn(|d| (d..SIDE).map(|x| t[u][x] * t[u][x - d]).sum()))
}

/// Blocks of planes of one size; those with pixels at or above `full` or not finite, and constant ones, are left out.
pub(super) fn collect(planes: &[&[f32]], [height, width]: [usize; 2], full: f64) -> Vec<Block> {
    let mut blocks = Vec::new();
    if height < SIDE || width < SIDE {
        return blocks;
    }
    let all = planes.len() * height * width;
    let step = ((all as f64 / MOST as f64).sqrt().ceil() as usize).max(STEP);
    let transform = cosines();
    for plane in planes {
        for y in (0..=height - SIDE).step_by(step) {
            for x in (0..=width - SIDE).step_by(step) {
                let mut rows = [[0f64; SIDE]; SIDE];
                let mut usable = true;
                for (dy, row) in rows.iter_mut().enumerate() {
                    let from = &plane[(y + dy) * width + x..][..SIDE];
                    row.iter_mut().zip(from).for_each(|(r, &v)| *r = v.into());
                    usable &= row.iter().all(|v| v.is_finite() && *v < full);
                }
                // A constant block shows nothing: borders, masks.
                if usable && rows.iter().flatten().any(|v| *v != rows[0][0]) {
                    blocks.push(split(&rows, &transform));
                }
            }
        }
    }
    blocks
}

impl Block {
    /// Whitens its bands, for noise with mean squares of this shape.
    pub fn whiten(&mut self, shape: &[f64; COEFFICIENTS]) {
        for (band, range) in self.bands.iter_mut().zip(BANDS) {
            let inside = (0..COEFFICIENTS).filter(|&i| range.contains(&frequency(i)));
            let (sum, power) =
                inside.fold((0.0, 0.0), |(s, p), i| (s + f64::from(self.squares[i]), p + shape[i]));
            *band = sum / power;
        }
    }
}

fn split(rows: &[[f64; SIDE]; SIDE], transform: &[[f64; SIDE]; SIDE]) -> Block {
    // along[y][u]: each row transformed.
    let along = rows.map(|row| {
        std::array::from_fn::<f64, SIDE, _>(|u| transform[u].iter().zip(&row).map(|(c, v)| c * v).sum())
    });
    let (mut squares, mut bands, mut mean) = ([0f32; COEFFICIENTS], [0f64; 4], 0.0);
    for v in 0..SIDE {
        for u in 0..SIDE {
            let c: f64 = (0..SIDE).map(|y| transform[v][y] * along[y][u]).sum();
            squares[v * SIDE + u] = (c * c) as f32;
            match BANDS.iter().position(|b| b.contains(&(u + v))) {
                Some(band) => bands[band] += c * c / COUNTS[band],
                None => mean = c / SIDE as f64,
            }
        }
    }
    Block { level: mean, squares, bands }
}
