//! The variance of the noise in every coefficient of a stack, in correlated noise.
//!
//! White noise has the same variance in all coefficients. Correlated noise has a different variance in each coefficient
//! of a block. If blocks of a stack overlap or nearly do, their noise is also correlated, so that sums along the stack
//! have more noise and differences less. Both effects are computed exactly (Makinen, Azzari, Foi, 2020): with `R(d)`
//! the covariance of a coefficient in two blocks at distance `d`, the variance of a sum along the stack is a sum over
//! all pairs of blocks. The Haar transform only needs the sums over the pairs between two halves, each pair once.

use super::transform::{Block, SIDE, Transform};
use crate::classical::Noise;
use clearshot_physics::Correlation;
use clearshot_physics::correlation::REACH;

/// Blocks further apart along an axis share no noise.
const FAR: usize = SIDE - 1 + REACH;
const ACROSS: usize = 2 * FAR + 1;
/// The least variance of a coefficient over that of a pixel: estimated correlations can say less than nothing.
const LEAST: f64 = 1e-3;

/// The covariances of the coefficients of two blocks, by their displacement.
pub(super) struct Covariances {
    /// Displacements with dy from 0 to [`FAR`] and dx from -[`FAR`] to [`FAR`], row by row.
    table: Vec<Block>,
    least: f32,
}

impl Covariances {
    pub fn new(transform: &Transform, noise: &Noise) -> Covariances {
        let variance = f64::from(noise.variance());
        let lines = transform.autocorrelations();
        let table = (0..=FAR as isize)
            .flat_map(|dy| (-(FAR as isize)..=FAR as isize).map(move |dx| [dy, dx]))
            .map(|d| covariance(&noise.correlation, &lines, d).map(|c| (c * variance) as f32))
            .collect();
        Covariances { table, least: (LEAST * variance) as f32 }
    }

    /// Of two blocks at these places, or none if they share no noise.
    #[inline(always)]
    fn at(&self, a: [usize; 2], b: [usize; 2]) -> Option<&Block> {
        let [mut dy, mut dx] = [a[0] as i32 - b[0] as i32, a[1] as i32 - b[1] as i32];
        if dy < 0 {
            (dy, dx) = (-dy, -dx);
        }
        let far = FAR as i32;
        (dy <= far && dx.abs() <= far).then(|| &self.table[(dy * ACROSS as i32 + dx + far) as usize])
    }

    /// The variances of the coefficients that [`super::transform::haar`] computes from a stack with blocks at these
    /// positions.
    #[inline(always)]
    pub fn of_stack(&self, places: &[[usize; 2]], out: &mut [Block]) {
        let alone = &self.table[FAR];
        out.fill(*alone);
        // Powers of sums of 2^k blocks; where a half ends, that of its difference from the other.
        let mut half = 1;
        while half < out.len() {
            for first in (0..out.len()).step_by(2 * half) {
                let shared = self.between(&places[first..][..half], &places[first + half..][..half]);
                let (head, tail) = out.split_at_mut(first + half);
                let scale = 1.0 / (2 * half) as f32;
                for ((sum, difference), shared) in head[first].iter_mut().zip(&mut tail[0]).zip(&shared) {
                    let both = *sum + *difference;
                    *difference = ((both - 2.0 * shared) * scale).max(self.least);
                    *sum = both + 2.0 * shared;
                }
            }
            half *= 2;
        }
        let scale = 1.0 / out.len() as f32;
        out[0].iter_mut().for_each(|v| *v = (*v * scale).max(self.least));
    }

    /// The sum of the covariances between the blocks of two halves.
    #[inline(always)]
    fn between(&self, one: &[[usize; 2]], other: &[[usize; 2]]) -> Block {
        let mut sum = [0f32; SIDE * SIDE];
        for &a in one {
            for &b in other {
                if let Some(shared) = self.at(a, b) {
                    sum.iter_mut().zip(shared).for_each(|(s, v)| *s += v);
                }
            }
        }
        sum
    }
}

/// The covariances of all coefficients in two blocks that lie `d` apart, in unit noise.
fn covariance(
    correlation: &Correlation,
    lines: &[[f64; 2 * SIDE - 1]; SIDE],
    d: [isize; 2],
) -> [f64; SIDE * SIDE] {
    let mut out = [0.0; SIDE * SIDE];
    let reach = REACH as isize;
    let inside = SIDE as isize - 1;
    for ly in -reach..=reach {
        for lx in -reach..=reach {
            // Pixels of the two blocks have this lag where they are so far apart inside of them.
            let [ay, ax] = [ly - d[0], lx - d[1]];
            if ay.abs() > inside || ax.abs() > inside {
                continue;
            }
            let shared = correlation.at(ly, lx);
            for (i, out) in out.iter_mut().enumerate() {
                let (down, along) = (&lines[i / SIDE], &lines[i % SIDE]);
                *out += shared * down[(ay + inside) as usize] * along[(ax + inside) as usize];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::transform::{COSINE, WAVELET, haar};
    use super::*;
    use clearshot_physics::correlation::FILTER;
    use clearshot_tensor::noise::Key;

    /// A window that holds all places with their blocks.
    const WINDOW: usize = 24;
    const PLACES: [[usize; 2]; 8] = [[4, 5], [4, 6], [5, 5], [7, 3], [0, 16], [16, 16], [3, 8], [12, 0]];

    /// Longer down than along, and along one diagonal more than along the other.
    fn correlation() -> Correlation {
        let taps = [0.1, 0.5, 0.0, 0.4, 1.0, 0.4, 0.0, 0.6, 0.3];
        Correlation::of_filter(&taps, [3, 3])
    }

    fn stack(transform: &Transform, window: &[f32]) -> Vec<Block> {
        let block = |[y, x]: [usize; 2]| std::array::from_fn(|i| window[(y + i / 8) * WINDOW + x + i % 8]);
        let mut stack: Vec<Block> = PLACES.iter().map(|&p| transform.forward(&block(p))).collect();
        haar(&mut stack);
        stack
    }

    /// A coefficient is a sum of pixels with weights, which impulses show; its variance is that of all pairs of pixels.
    #[test]
    fn variances_are_those_of_all_pairs_of_pixels() {
        let noise = Noise { deviation: 1.7, correlation: correlation() };
        for transform in [&WAVELET, &COSINE] {
            let mut variances = vec![[0f32; 64]; PLACES.len()];
            Covariances::new(transform, &noise).of_stack(&PLACES, &mut variances);
            let impulse = |p: usize| -> Vec<f32> {
                (0..WINDOW * WINDOW).map(|i| f32::from(u8::from(i == p))).collect()
            };
            let weights: Vec<Vec<Block>> =
                (0..WINDOW * WINDOW).map(|p| stack(transform, &impulse(p))).collect();
            for (k, c) in [(0, 0), (0, 9), (1, 3), (2, 0), (4, 40), (4, 63), (5, 2), (7, 20)] {
                let mut sum = 0.0;
                for (p, a) in weights.iter().enumerate() {
                    for (q, b) in weights.iter().enumerate() {
                        let lag = |d: usize, e: usize| d as isize - e as isize;
                        let shared =
                            noise.correlation.at(lag(p / WINDOW, q / WINDOW), lag(p % WINDOW, q % WINDOW));
                        sum += f64::from(a[k][c]) * f64::from(b[k][c]) * shared;
                    }
                }
                let want = sum * 1.7 * 1.7;
                let got = f64::from(variances[k][c]);
                assert!(
                    (got - want).abs() < 1e-4 * want.max(0.1),
                    "block {k}, coefficient {c}: {got} for {want}"
                );
            }
        }
    }

    /// Drawn noise has them, coefficient by coefficient.
    #[test]
    fn drawn_noise_has_the_variances() {
        const DRAWS: usize = 1500;
        let correlation = correlation();
        let (taps, wide) = (correlation.filter(), WINDOW + FILTER - 1);
        let mut squares = vec![[0f64; 64]; PLACES.len()];
        for draw in 0..DRAWS {
            let mut white = vec![0f32; wide * wide];
            Key { seed: 5, step: draw as u32, stream: 0 }.fill_normal(0, &mut white);
            let at = |i: usize| -> f32 {
                let first = i / WINDOW * wide + i % WINDOW;
                let tap =
                    |(k, t): (usize, &f64)| t * f64::from(white[first + k / FILTER * wide + k % FILTER]);
                taps.iter().enumerate().map(tap).sum::<f64>() as f32
            };
            let window: Vec<f32> = (0..WINDOW * WINDOW).map(at).collect();
            for (sum, block) in squares.iter_mut().flatten().zip(stack(&COSINE, &window).iter().flatten()) {
                *sum += f64::from(*block).powi(2) / DRAWS as f64;
            }
        }
        let mut variances = vec![[0f32; 64]; PLACES.len()];
        Covariances::new(&COSINE, &Noise { deviation: 1.0, correlation }).of_stack(&PLACES, &mut variances);
        // Standard errors of a mean of squares; of 512 coefficients the worst is within five.
        let error = (2.0 / DRAWS as f64).sqrt();
        for (got, want) in squares.iter().flatten().zip(variances.iter().flatten()) {
            let want = f64::from(*want);
            assert!((got - want).abs() < 5.0 * error * want + 0.01, "{got} for {want}");
        }
    }

    #[test]
    fn white_noise_is_the_same_in_all_coefficients() {
        let mut variances = vec![[0f32; 64]; 4];
        let far = [[0, 0], [0, 20], [30, 0], [50, 50]];
        for transform in [&WAVELET, &COSINE] {
            Covariances::new(transform, &Noise::white(3.0)).of_stack(&far, &mut variances);
            assert!(variances.iter().flatten().all(|v| (v - 9.0).abs() < 1e-4));
        }
    }
}
