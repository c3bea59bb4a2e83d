//! Estimates the correlation of pure noise: sums of products over lags.
//!
//! Differences of frames of one scene contain no structure, so no separation is needed, and lags along the two
//! diagonals are estimated separately.

use crate::correlation::{Correlation, REACH};

const SIDE: usize = 2 * REACH + 1;
/// Values beyond so many standard deviations are cut to it: single odd pixels say nothing of their neighbours.
const FARTHEST: f32 = 8.0;
/// Correlations below so many standard errors are taken for none.
const ERRORS: f64 = 3.0;

/// Sums over lags (dy from 0, dx from -REACH), and how many products each has.
#[derive(Clone)]
pub(super) struct Lags {
    sums: [[f64; SIDE]; REACH + 1],
    counts: [[f64; SIDE]; REACH + 1],
}

impl Lags {
    pub fn new() -> Lags {
        Lags { sums: [[0.0; SIDE]; REACH + 1], counts: [[0.0; SIDE]; REACH + 1] }
    }

    /// Adds a plane of noise with a standard deviation of about 1; NaN and infinite values are left out.
    pub fn add(&mut self, noise: &[f32], [height, width]: [usize; 2]) {
        let valid: Vec<f32> = noise.iter().map(|v| f32::from(u8::from(v.is_finite()))).collect();
        let all = !valid.contains(&0.0);
        let noise: Vec<f32> =
            noise.iter().map(|v| if v.is_finite() { v.clamp(-FARTHEST, FARTHEST) } else { 0.0 }).collect();
        let product = |of: &[f32], dy: usize, dx: isize| -> f64 {
            let (first, shift) = (dx.min(0).unsigned_abs(), dx.max(0) as usize);
            let length = width.saturating_sub(dx.unsigned_abs());
            (dy..height)
                .map(|y| {
                    let a = &of[(y - dy) * width + first..][..length];
                    let b = &of[y * width + shift..][..length];
                    f64::from(a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>())
                })
                .sum()
        };
        for dy in 0..=REACH.min(height.saturating_sub(1)) {
            for at in 0..SIDE {
                let dx = at as isize - REACH as isize;
                if (dy == 0 && dx < 0) || dx.unsigned_abs() >= width {
                    continue;
                }
                self.sums[dy][at] += product(&noise, dy, dx);
                self.counts[dy][at] += match all {
                    true => ((height - dy) * (width - dx.unsigned_abs())) as f64,
                    false => product(&valid, dy, dx),
                };
            }
        }
    }

    /// The correlation and the standard error of one lag; `independent` is the share of the values that are independent
    /// in time.
    pub fn correlation(&self, independent: f64) -> (Correlation, f64) {
        let mean = |dy: usize, at: usize| self.sums[dy][at] / self.counts[dy][at].max(1.0);
        let variance = mean(0, REACH);
        if variance.is_nan() || variance <= 0.0 {
            return (Correlation::WHITE, 1.0);
        }
        let raw =
            Correlation::from_lags(|dy, dx| mean(dy as usize, (dx + REACH as isize) as usize) / variance);
        let error = (sum_of_squares(&raw) / (independent * self.counts[0][REACH]).max(1.0)).sqrt();
        let seen = |v: f64| if v.abs() < ERRORS * error { 0.0 } else { v };
        (Correlation::from_lags(|dy, dx| seen(raw.at(dy, dx))), error)
    }
}

/// Over all lags: by how much correlated noise needs more pixels than independent noise for the same error of its variance.
pub(super) fn sum_of_squares(c: &Correlation) -> f64 {
    let reach = REACH as isize;
    (-reach..=reach).flat_map(|dy| (-reach..=reach).map(move |dx| c.at(dy, dx).powi(2))).sum()
}
