//! The Poisson distribution: its logarithm without cancellation, and exact samples for any mean.
//!
//! The logarithm is Loader's saddle-point form (2000): the deviance and the remainder of Stirling's series are computed
//! separately, so there is no cancellation at a mean of 10^9. Sampling is by inversion below a mean of ten and by
//! Hörmann's transformed rejection (PTRS, 1993) above. Both take their uniform numbers from a key and the voxel's
//! absolute index, for every attempt, so that a sample does not depend on tiles, order or threads.

use clearshot_tensor::noise::Key;
use libm::lgamma;

/// Means below this are drawn by inversion; PTRS holds from 10 on.
const INVERSION: f64 = 10.0;
/// Attempts lie this many bits above voxels in the block index. Block indices below are [`Key::normal`]'s.
const ATTEMPT_SHIFT: u32 = 48;
/// The logarithm of sqrt(2 pi).
const LN_SQRT_TAU: f64 = 0.918_938_533_204_672_7;

/// ln(n!) minus Stirling's formula.
fn stirling_rest(n: f64) -> f64 {
    if n <= 15.0 {
        return lgamma(n + 1.0) - (n + 0.5) * n.ln() + n - LN_SQRT_TAU;
    }
    let square = n * n;
    (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / (1680.0 * square)) / square) / square) / n
}

/// x ln(x / mean) + mean - x, without cancellation where the two are close.
fn deviance(x: f64, mean: f64) -> f64 {
    if (x - mean).abs() >= 0.1 * (x + mean) {
        return x * (x / mean).ln() + mean - x;
    }
    let v = (x - mean) / (x + mean);
    let mut sum = (x - mean) * v;
    let mut power = 2.0 * x * v;
    let mut odd = 3.0;
    loop {
        power *= v * v;
        let next = sum + power / odd;
        if next == sum {
            return sum;
        }
        sum = next;
        odd += 2.0;
    }
}

/// ln P(k; mean) for k >= 0; for non-integer k with the Gamma function.
pub fn log_pmf(k: f64, mean: f64) -> f64 {
    if k == 0.0 {
        -mean
    } else if k < 0.0 || mean <= 0.0 {
        f64::NEG_INFINITY
    } else {
        -stirling_rest(k) - deviance(k, mean) - LN_SQRT_TAU - 0.5 * k.ln()
    }
}

/// The block of a voxel's attempt.
fn block(voxel: u64, attempt: u64) -> u64 {
    voxel | (attempt + 1) << ATTEMPT_SHIFT
}

/// Two uniform numbers in (0, 1), of 52 bits each.
fn two_uniforms(words: [u32; 4]) -> (f64, f64) {
    let unit = |a: u32, b: u32| {
        let bits = (u64::from(a) << 32 | u64::from(b)) >> 12;
        (bits as f64 + 0.5) / (1u64 << 52) as f64
    };
    (unit(words[0], words[1]), unit(words[2], words[3]))
}

/// A Poisson sample for a finite nonnegative mean; others give NaN. `voxel` is below 2^48.
pub fn draw(mean: f64, key: Key, voxel: u64) -> f64 {
    draw_from(key.block(block(voxel, 0)), mean, key, voxel)
}

/// Samples for voxels `first..`, each equal to that of [`draw`]. Their first random words are generated together, which
/// halves the time.
pub fn draw_each(means: &[f64], key: Key, first: u64, out: &mut [f64]) {
    const TOGETHER: usize = 64;
    let mut words = [[0; 4]; TOGETHER];
    for (run, (means, out)) in means.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER)).enumerate() {
        let first = first + (run * TOGETHER) as u64;
        key.fill_blocks(block(first, 0), &mut words[..means.len()]);
        for (i, (out, &mean)) in out.iter_mut().zip(means).enumerate() {
            *out = draw_from(words[i], mean, key, first + i as u64);
        }
    }
}

/// A draw whose first attempt has these random words.
#[inline]
fn draw_from(words: [u32; 4], mean: f64, key: Key, voxel: u64) -> f64 {
    if !mean.is_finite() || mean < 0.0 {
        return f64::NAN;
    }
    if mean < INVERSION {
        return invert(mean, two_uniforms(words).0);
    }
    let b = 0.931 + 2.53 * mean.sqrt();
    let a = -0.059 + 0.024_83 * b;
    let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    let surely = 0.9277 - 3.6224 / (b - 2.0);
    let mut attempt = 0;
    loop {
        let (u, v) = match attempt {
            0 => two_uniforms(words),
            _ => two_uniforms(key.block(block(voxel, attempt))),
        };
        attempt += 1;
        let u = u - 0.5;
        let us = 0.5 - u.abs();
        let k = ((2.0 * a / us + b) * u + mean + 0.43).floor();
        if us >= 0.07 && v <= surely {
            return k;
        }
        if k < 0.0 || (us < 0.013 && v > us) {
            continue;
        }
        if (v * inverse_alpha / (a / (us * us) + b)).ln() <= log_pmf(k, mean) {
            return k;
        }
    }
}

/// The smallest k whose distribution function reaches u.
fn invert(mean: f64, u: f64) -> f64 {
    let mut k = 0.0;
    let mut probability = (-mean).exp();
    let mut below = probability;
    // At a mean of 10 the law beyond 100 is below the resolution of u.
    while u > below && k < 200.0 {
        k += 1.0;
        probability *= mean / k;
        below += probability;
    }
    k
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_sums_to_one_and_has_its_moments() {
        for mean in [0.01, 0.7, 5.0, 33.3, 400.0, 1e4] {
            let reach = 12.0 * f64::sqrt(mean) + 40.0;
            let (low, high) = ((mean - reach).max(0.0) as u64, (mean + reach) as u64);
            let moment = |p: i32| -> f64 {
                (low..=high).map(|k| (k as f64 - mean).powi(p) * log_pmf(k as f64, mean).exp()).sum()
            };
            assert!((moment(0) - 1.0).abs() < 1e-12, "{mean}: {}", moment(0));
            assert!((moment(2) / mean - 1.0).abs() < 1e-10, "{mean}: {}", moment(2));
        }
    }

    /// scipy.stats.poisson.logpmf where k ln(mean) - mean - ln k! still has digits, and the normal
    /// law's density with its first correction where it has not.
    #[test]
    fn the_logarithm_is_exact_at_any_mean() {
        for (k, mean, truth) in [
            (0.0, 3.0, -3.0),
            (7.0, 3.0, -3.834_875_340_388_646_4),
            (120.0, 50.0, -38.369_627_329_900_71),
            (1.0, 1e-8, -18.420_680_753_952_368),
        ] {
            assert!(
                (log_pmf(k, mean) - truth).abs() < 1e-12 * f64::abs(truth),
                "{k} {mean}: {}",
                log_pmf(k, mean)
            );
        }
        let mean: f64 = 1e12;
        let normal = -LN_SQRT_TAU - 0.5 * mean.ln();
        assert!((log_pmf(mean, mean) - normal).abs() < 1e-12 * normal.abs());
        let z = 3.0;
        let off = log_pmf(mean + z * 1e6, mean) - normal;
        assert!((off + 0.5 * z * z - (z * z * z / 6.0 - 0.5 * z) * 1e-6).abs() < 1e-9, "{off}");
    }

    /// Pearson's test of the draws against the law, and the first moments. 5.5 standard deviations.
    #[test]
    fn draws_follow_the_law() {
        for (stream, mean) in [0.1, 0.9, 4.0, 9.99, 10.01, 40.0, 300.0, 1e5].into_iter().enumerate() {
            let key = Key { seed: 11, step: 2, stream: stream as u32 };
            let n = 60_000;
            let draws: Vec<f64> = (0..n).map(|i| draw(mean, key, i * 3 + 7)).collect();
            let average = draws.iter().sum::<f64>() / n as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            assert!((average - mean).abs() < 5.0 * (mean / n as f64).sqrt(), "{mean}: {average}");
            let spread = ((mean + 2.0 * mean * mean) / n as f64).sqrt();
            assert!((variance - mean).abs() < 5.0 * spread, "{mean}: {variance}");
            // Cells of at least 20 expected draws.
            let sd = mean.sqrt();
            let width = (sd / 8.0).floor().max(1.0);
            let cell = |x: f64| (x / width).floor();
            let (first, last) = (cell((mean - 6.0 * sd).max(0.0)), cell(mean + 6.0 * sd + 6.0));
            let (mut chi2, mut cells) = (0.0, 0.0);
            let mut c = first;
            while c <= last {
                let within =
                    (0..width as u64).map(|j| log_pmf(c * width + j as f64, mean).exp()).sum::<f64>();
                let expected = within * n as f64;
                if expected >= 20.0 {
                    let seen = draws.iter().filter(|&&x| cell(x) == c).count() as f64;
                    chi2 += (seen - expected).powi(2) / expected;
                    cells += 1.0;
                }
                c += 1.0;
            }
            assert!(
                chi2 < cells + 5.5 * f64::sqrt(2.0 * cells) + 10.0,
                "{mean}: chi2 {chi2} over {cells} cells"
            );
        }
    }

    #[test]
    fn a_draw_belongs_to_its_voxel() {
        let key = Key { seed: 5, step: 0, stream: 1 };
        for mean in [0.0, 3.0, 1e3, 1e9, 1e15] {
            assert_eq!(draw(mean, key, 123_456_789), draw(mean, key, 123_456_789));
            assert!((draw(mean, key, 4) - mean).abs() <= 8.0 * f64::sqrt(mean));
        }
        assert!(draw(-1.0, key, 0).is_nan() && draw(f64::INFINITY, key, 0).is_nan());
        assert_ne!(draw(1e3, key, 1), draw(1e3, Key { stream: 2, ..key }, 1));
    }

    #[test]
    fn draws_of_many_voxels_are_those_of_each() {
        let key = Key { seed: 9, step: 4, stream: 2 };
        let means: Vec<f64> = (0..1000).map(|i| f64::from(i) * 0.07 - 0.1).collect();
        let mut many = vec![0.0; means.len()];
        draw_each(&means, key, 41, &mut many);
        for (i, (mean, got)) in means.iter().zip(&many).enumerate() {
            let want = draw(*mean, key, 41 + i as u64);
            assert!(want == *got || want.is_nan() && got.is_nan(), "{i}: {want} {got}");
        }
    }
}
