//! The correlation of the noise between neighbouring pixels.
//!
//! The noise of a camera is independent from pixel to pixel. That of an image that was resampled, demosaiced, smoothed
//! or scanned is not, and a restorer that assumes independence keeps most of it as structure. [`Correlation`] is the
//! autocorrelation of the normalised noise over a few pixels: 1 at lag (0, 0), symmetric, the same everywhere in the
//! image. The variance may differ from pixel to pixel.
//!
//! It has three equivalent forms: lags ([`Correlation::at`]), a power spectrum with mean 1 ([`Correlation::spectrum`]),
//! and a filter that generates such noise from white noise ([`Correlation::filter`]).

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use serde::{Deserialize, Serialize};

/// The largest lag in pixels along each axis.
pub const REACH: usize = 4;
const SIDE: usize = 2 * REACH + 1;
/// Lags of one half of the plane, with (0, 0); the other half is the same mirrored.
const LAGS: usize = (SIDE * SIDE).div_ceil(2);
/// Correlations below this are taken for none.
const NEGLIGIBLE: f64 = 0.01;
/// The least value of a spectrum whose mean is 1: what is estimated may be slightly below zero where there is no power.
const LEAST_POWER: f64 = 1e-3;
/// The least value of a spectrum that the precision of a measurement is taken from.
const LEAST_CERTAIN: f64 = 0.05;
/// The side of the grid that filters are made on; a filter has as many taps as [`FILTER`] along each axis.
const GRID: usize = 32;
/// Taps of a filter along each axis.
pub const FILTER: usize = 11;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correlation {
    /// Row by row from lag (0, 0) on: first those to the right of it, then the rows below.
    lags: [f64; LAGS],
}

/// As it stands in files: rows of lags (dy from 0 to 4), each from dx = -4 to 4.
#[derive(Serialize, Deserialize)]
struct Rows(Vec<Vec<f64>>);

impl Serialize for Correlation {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let reach = REACH as isize;
        let row = |dy| (-reach..=reach).map(|dx| (self.at(dy, dx) * 1e6).round() / 1e6).collect();
        Rows((0..=reach).map(row).collect()).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Correlation {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Correlation, D::Error> {
        let Rows(rows) = Rows::deserialize(from)?;
        let fits = rows.len() == REACH + 1 && rows.iter().all(|r| r.len() == SIDE);
        let holds = rows.iter().flatten().all(|v| v.is_finite() && v.abs() <= 1.0);
        if !fits || !holds {
            let needed = "a noise correlation is 5 rows (lags 0 to 4 along Y) of 9 numbers from -1 to 1 (lags -4 to 4 along X)";
            return Err(serde::de::Error::custom(needed));
        }
        let it = Correlation::from_lags(|dy, dx| rows[dy as usize][(dx + REACH as isize) as usize]);
        Ok(it)
    }
}

impl Default for Correlation {
    fn default() -> Correlation {
        Correlation::WHITE
    }
}

/// Where a lag of the stored half stands.
fn place(dy: isize, dx: isize) -> usize {
    let at = (dy * SIDE as isize + dx) as usize;
    debug_assert!(at < LAGS);
    at
}

impl Correlation {
    /// No correlation.
    pub const WHITE: Correlation = {
        let mut lags = [0.0; LAGS];
        lags[0] = 1.0;
        Correlation { lags }
    };

    /// From a function of the lags (dy, dx) with dy > 0, or dy = 0 and dx > 0, each at most [`REACH`]. NaN counts as
    /// zero; other values are clipped to -1 to 1.
    pub fn from_lags(of: impl Fn(isize, isize) -> f64) -> Correlation {
        let mut it = Correlation::WHITE;
        let reach = REACH as isize;
        for dy in 0..=reach {
            for dx in -reach..=reach {
                if dy > 0 || dx > 0 {
                    let v = of(dy, dx);
                    it.lags[place(dy, dx)] = if v.is_finite() { v.clamp(-1.0, 1.0) } else { 0.0 };
                }
            }
        }
        it
    }

    /// The correlation of white noise after a filter with these taps, row by row.
    pub fn of_filter(taps: &[f64], [height, width]: [usize; 2]) -> Correlation {
        let sum = |dy: isize, dx: isize| -> f64 {
            let mut sum = 0.0;
            for y in 0..height as isize {
                for x in 0..width as isize {
                    let (v, u) = (y + dy, x + dx);
                    if (0..height as isize).contains(&v) && (0..width as isize).contains(&u) {
                        sum += taps[y as usize * width + x as usize] * taps[v as usize * width + u as usize];
                    }
                }
            }
            sum
        };
        let power = sum(0, 0);
        Correlation::from_lags(|dy, dx| sum(dy, dx) / power)
    }

    /// The correlation of white noise smoothed by a Gaussian with these standard deviations in pixels along Y and X.
    pub fn gaussian(sigma: [f64; 2]) -> Correlation {
        let taps = sigma.map(|s| {
            let at =
                |i: isize| if s > 0.0 { libm::exp(-0.5 * (i as f64 / s).powi(2)) } else { f64::from(i == 0) };
            (-8..=8).map(at).collect::<Vec<f64>>()
        });
        Correlation::of_filters([&taps[0], &taps[1]])
    }

    /// The correlation of white noise after a filter along Y and one along X.
    pub fn of_filters(taps: [&[f64]; 2]) -> Correlation {
        let along = |axis: usize, lag: isize| -> f64 {
            let (t, lag) = (taps[axis], lag.unsigned_abs());
            let sum = |lag: usize| t[lag.min(t.len())..].iter().zip(t).map(|(a, b)| a * b).sum::<f64>();
            sum(lag) / sum(0)
        };
        Correlation::from_lags(|dy, dx| along(0, dy) * along(1, dx))
    }

    /// The correlation at a lag; zero beyond [`REACH`].
    pub fn at(&self, dy: isize, dx: isize) -> f64 {
        let (dy, dx) = if dy < 0 || (dy == 0 && dx < 0) { (-dy, -dx) } else { (dy, dx) };
        if dy > REACH as isize || dx.unsigned_abs() > REACH { 0.0 } else { self.lags[place(dy, dx)] }
    }

    /// A mixture of this correlation, with a share from 0 to 1, and another.
    pub fn mixed(&self, share: f64, other: &Correlation) -> Correlation {
        Correlation::from_lags(|dy, dx| share * self.at(dy, dx) + (1.0 - share) * other.at(dy, dx))
    }

    /// Whether pixels are practically independent.
    pub fn is_white(&self) -> bool {
        self.lags[1..].iter().all(|v| v.abs() < NEGLIGIBLE)
    }

    /// The power spectrum on the grid of a Fourier transform of `[height, width]` values, row by row, mean 1 and nowhere
    /// zero.
    pub fn spectrum(&self, [height, width]: [usize; 2]) -> Vec<f64> {
        let mut grid = vec![Complex::new(0.0, 0.0); height * width];
        let reach = REACH as isize;
        for dy in -reach..=reach {
            for dx in -reach..=reach {
                let (y, x) = (dy.rem_euclid(height as isize), dx.rem_euclid(width as isize));
                grid[y as usize * width + x as usize].re += self.at(dy, dx);
            }
        }
        transform(&mut grid, [height, width], false);
        let power: Vec<f64> = grid.iter().map(|c| c.re.max(LEAST_POWER)).collect();
        let mean = power.iter().sum::<f64>() / power.len() as f64;
        power.into_iter().map(|p| p / mean).collect()
    }

    /// A symmetric filter of [`FILTER`] x [`FILTER`] taps that makes such noise, of variance 1, from white noise of
    /// variance 1.
    pub fn filter(&self) -> Vec<f64> {
        let mut grid: Vec<Complex<f64>> =
            self.spectrum([GRID; 2]).into_iter().map(|p| Complex::new(p.sqrt(), 0.0)).collect();
        transform(&mut grid, [GRID; 2], true);
        let half = FILTER as isize / 2;
        let at = |dy: isize, dx: isize| {
            let [y, x] = [dy, dx].map(|d| d.rem_euclid(GRID as isize) as usize);
            grid[y * GRID + x].re
        };
        let taps: Vec<f64> = (-half..=half).flat_map(|dy| (-half..=half).map(move |dx| at(dy, dx))).collect();
        let power = taps.iter().map(|t| t * t).sum::<f64>().sqrt();
        taps.into_iter().map(|t| t / power).collect()
    }

    /// The filter that whitens such noise, on the periodic grid of an image of `[height, width]` pixels, with its
    /// origin first. Frequencies with almost no noise power are assigned a minimum, because estimates of such small
    /// powers are unreliable and results must not depend on them.
    pub fn whitening(&self, size: [usize; 2]) -> Vec<f64> {
        let root = |p: f64| Complex::new(1.0 / p.max(LEAST_CERTAIN).sqrt(), 0.0);
        let mut grid: Vec<Complex<f64>> = self.spectrum(size).into_iter().map(root).collect();
        transform(&mut grid, size, true);
        grid.iter().map(|c| c.re / grid.len() as f64).collect()
    }

    /// The sum of the squared correlations of a pixel with all pixels: the factor by which the variance of the mean
    /// square of such noise exceeds that of white noise.
    pub fn squares(&self) -> f64 {
        2.0 * self.lags.iter().map(|v| v * v).sum::<f64>() - 1.0
    }

    /// The covariance of the means of two squares of `side` x `side` pixels, the second `down` and `right` squares
    /// away, divided by the variance of a pixel.
    pub fn of_squares(&self, side: usize, down: isize, right: isize) -> f64 {
        let (s, reach) = (side as isize, REACH as isize);
        let shared = |d: isize| (s - d.abs()).max(0) as f64;
        let mut sum = 0.0;
        for dy in -reach..=reach {
            for dx in -reach..=reach {
                sum += self.at(dy, dx) * shared(dy - down * s) * shared(dx - right * s);
            }
        }
        sum / (side as f64).powi(4)
    }
}

/// The Fourier transform in place; the inverse is unnormalised.
fn transform(grid: &mut [Complex<f64>], [height, width]: [usize; 2], inverse: bool) {
    let mut planner = FftPlanner::new();
    let mut plan = |n| if inverse { planner.plan_fft_inverse(n) } else { planner.plan_fft_forward(n) };
    let (rows, columns) = (plan(width), plan(height));
    grid.chunks_exact_mut(width).for_each(|row| rows.process(row));
    let mut column = vec![Complex::new(0.0, 0.0); height];
    for x in 0..width {
        (0..height).for_each(|y| column[y] = grid[y * width + x]);
        columns.process(&mut column);
        (0..height).for_each(|y| grid[y * width + x] = column[y]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    #[test]
    fn lags_spectrum_and_filter_say_the_same() {
        for sigma in [[0.0, 0.0], [0.5, 0.5], [0.8, 0.3], [0.0, 0.6]] {
            let c = Correlation::gaussian(sigma);
            assert_eq!(c.at(0, 0), 1.0);
            assert_eq!(c.at(1, -2), c.at(-1, 2));
            // The filter's own autocorrelation, and the inverse transform of the spectrum.
            let again = Correlation::of_filter(&c.filter(), [FILTER; 2]);
            let spectrum = c.spectrum([24, 40]);
            for (dy, dx) in [(0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0)] {
                assert!((again.at(dy, dx) - c.at(dy, dx)).abs() < 5e-3, "{sigma:?} {dy} {dx}");
                let phase = |y: usize, x: usize| {
                    let turns = y as f64 * dy as f64 / 24.0 + x as f64 * dx as f64 / 40.0;
                    (std::f64::consts::TAU * turns).cos()
                };
                let sum: f64 = (0..24 * 40).map(|i| spectrum[i] * phase(i / 40, i % 40)).sum();
                assert!((sum / 960.0 - c.at(dy, dx)).abs() < 5e-3, "{sigma:?} {dy} {dx}: {}", sum / 960.0);
            }
        }
        assert!(Correlation::gaussian([0.1, 0.1]).is_white() && Correlation::WHITE.is_white());
        assert!(!Correlation::gaussian([0.0, 0.5]).is_white());
    }

    #[test]
    fn filtered_noise_has_the_lags() {
        let c = Correlation::gaussian([0.7, 0.4]);
        let (n, taps, half) = (256usize, c.filter(), FILTER / 2);
        let mut white = vec![0f32; n * n];
        Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut white);
        let mut noise = vec![0f64; n * n];
        for y in 0..n {
            for x in 0..n {
                for (k, t) in taps.iter().enumerate() {
                    let (v, u) = ((y + k / FILTER + n - half) % n, (x + k % FILTER + n - half) % n);
                    noise[y * n + x] += t * f64::from(white[v * n + u]);
                }
            }
        }
        let lag = |dy: usize, dx: usize| {
            let at = |i: usize| noise[i] * noise[(i / n + dy) % n * n + (i % n + dx) % n];
            (0..n * n).map(at).sum::<f64>() / (n * n) as f64
        };
        // Five standard errors of a sum over 65536 products.
        assert!((lag(0, 0) - 1.0).abs() < 0.05);
        for (dy, dx) in [(0, 1), (1, 0), (1, 1), (0, 2)] {
            let want = c.at(dy as isize, dx as isize);
            assert!((lag(dy, dx) - want).abs() < 0.04, "{dy} {dx}: {} for {want}", lag(dy, dx));
        }
    }

    #[test]
    fn means_of_squares() {
        let white = Correlation::WHITE;
        assert!((white.of_squares(3, 0, 0) - 1.0 / 9.0).abs() < 1e-12);
        assert_eq!(white.of_squares(3, 0, 1), 0.0);
        let c = Correlation::gaussian([0.7, 0.4]);
        assert_eq!(c.of_squares(1, 1, 0), c.at(1, 0));
        // Pair by pair.
        let at = |i: isize| (i / 2, i % 2);
        let pairs = (0..4).flat_map(|a| (0..4).map(move |b| (at(a), at(b))));
        let sum: f64 = pairs.map(|(a, b)| c.at(b.0 - a.0, b.1 + 2 - a.1)).sum();
        assert!((c.of_squares(2, 0, 1) - sum / 16.0).abs() < 1e-12);
    }

    #[test]
    fn files_hold_it_and_refuse_others() {
        let c = Correlation::gaussian([0.7, 0.4]);
        let text = serde_json::to_string(&c).unwrap();
        let again: Correlation = serde_json::from_str(&text).unwrap();
        assert!((0..3).all(|d| (again.at(d, 1 - d) - c.at(d, 1 - d)).abs() < 1e-6));
        for bad in ["[]", "[[1, 2]]", "[[0,0,0,0,1,0,0,0,0],[],[],[],[]]"] {
            assert!(serde_json::from_str::<Correlation>(bad).is_err());
        }
    }
}
