//! Fits a correlation with a few lags to the mean squares of the cosine coefficients of blocks.
//!
//! The contribution of a lag to each mean square is known, so this is linear least squares. Structure only adds power,
//! so values above the fit are iteratively given less weight than those below.

use super::blocks::{COEFFICIENTS, SIDE, frequency, lag_products};
use crate::correlation::{Correlation, REACH};

/// How sure a mean square is, as a share of it.
const SURE: f64 = 0.06;
/// Frequencies that structure behind a lens hardly reaches.
const FINE: usize = 7;

/// A lag, and the mean squares that it stands for.
type Lag = ([usize; 2], [f64; COEFFICIENTS]);

/// A correlation fitted to a spectrum: by which lags, from which frequency on, how far lags are pulled to zero, and how
/// much of what lies above the fit counts at the least.
pub(super) struct Fit {
    lags: Vec<Lag>,
    least: usize,
    pull: f64,
    above: f64,
}

impl Fit {
    /// Short lags, with values above the fit nearly excluded as structure: for noise that is nearly white.
    pub fn few() -> Fit {
        Fit { lags: lags(|[y, x]| y + x <= 3), least: 1, pull: 30.0, above: 0.05 }
    }

    /// The nearest lags, from high frequencies.
    pub fn fine() -> Fit {
        Fit { lags: lags(|[y, x]| y <= 1 && x <= 1), least: FINE, ..Fit::few() }
    }

    /// All lags: the correlation of filtered noise extends along diagonals as far as along the axes, and its power at
    /// low frequencies is mostly noise.
    pub fn all() -> Fit {
        Fit { lags: lags(|_| true), least: 1, pull: 3.0, above: 0.5 }
    }

    /// Lags of up to two pixels along each axis, for known structure.
    pub fn near() -> Fit {
        Fit { lags: lags(|[y, x]| y <= 2 && x <= 2), least: 1, pull: 3.0, above: 0.3 }
    }

    /// The correlation with the closest mean squares.
    pub fn to(&self, spectrum: &[f64; COEFFICIENTS]) -> Fitted {
        self.fitted(spectrum, None)
    }

    /// The correlation with the closest mean squares after adding a nonnegative multiple of a structure's.
    pub fn beside(&self, spectrum: &[f64; COEFFICIENTS], structure: &[f64; COEFFICIENTS]) -> Fitted {
        let fitted = self.fitted(spectrum, Some(structure));
        if fitted.structure < 0.0 { self.to(spectrum) } else { fitted }
    }

    fn fitted(&self, spectrum: &[f64; COEFFICIENTS], structure: Option<&[f64; COEFFICIENTS]>) -> Fitted {
        let used: Vec<usize> = (1..COEFFICIENTS).filter(|&i| frequency(i) >= self.least).collect();
        let columns: Vec<&[f64; COEFFICIENTS]> = self.lags.iter().map(|l| &l.1).chain(structure).collect();
        let n = columns.len();
        let sure = |i: usize| SURE * spectrum[i].max(0.02);
        let above = |i: usize, found: &[f64]| {
            let fitted: f64 = found.iter().zip(&columns).map(|(f, c)| f * c[i]).sum();
            (spectrum[i] - fitted) / sure(i)
        };
        let mut trust = [1.0; COEFFICIENTS];
        let mut found = vec![0.0; n];
        for _ in 0..25 {
            let mut normal = vec![0.0; n * n];
            let mut right = vec![0.0; n];
            for &i in &used {
                let weight = trust[i] / sure(i).powi(2);
                for a in 0..n {
                    right[a] += weight * columns[a][i] * spectrum[i];
                    (0..n).for_each(|b| normal[a * n + b] += weight * columns[a][i] * columns[b][i]);
                }
            }
            for (a, ([y, x], _)) in self.lags.iter().enumerate() {
                normal[a * n + a] += self.pull * (y * y + x * x) as f64;
            }
            let Some(solved) = solve(&mut normal, &mut right, n) else { return Fitted::NOTHING };
            found = solved;
            for &i in &used {
                let above = above(i, &found);
                trust[i] =
                    if above > 0.0 { (1.0 / (1.0 + above * above / 4.0)).max(self.above) } else { 1.0 };
            }
        }
        let misfit = used.iter().map(|&i| above(i, &found).powi(2)).sum::<f64>() / used.len() as f64;
        let correlation = Correlation::from_lags(|dy, dx| {
            let at = [dy.unsigned_abs(), dx.unsigned_abs()];
            self.lags.iter().position(|(lag, _)| *lag == at).map_or(0.0, |a| found[a] / found[0])
        });
        let structure = found.get(self.lags.len()).copied().unwrap_or(0.0);
        Fitted { correlation, structure, misfit }
    }
}

/// What a fit found.
pub(super) struct Fitted {
    pub correlation: Correlation,
    /// How much of the structure there is, where one was given.
    structure: f64,
    /// The mean squared residual relative to the expected one: below 2 if the fit explains the spectrum.
    pub misfit: f64,
}

impl Fitted {
    const NOTHING: Fitted = Fitted { correlation: Correlation::WHITE, structure: 0.0, misfit: f64::INFINITY };
}

/// The lags of a correlation that are wanted.
fn lags(wanted: impl Fn([usize; 2]) -> bool) -> Vec<Lag> {
    let along = lag_products();
    let times = |d: usize| if d == 0 { 1.0 } else { 2.0 };
    let all = (0..=REACH).flat_map(|y| (0..=REACH).map(move |x| [y, x])).filter(|&lag| wanted(lag));
    all.map(|[y, x]| {
        let of = |i: usize| times(y) * times(x) * along[i / SIDE][y] * along[i % SIDE][x];
        ([y, x], std::array::from_fn(of))
    })
    .collect()
}

/// The solution of a symmetric positive system, by Gauss.
fn solve(matrix: &mut [f64], right: &mut [f64], n: usize) -> Option<Vec<f64>> {
    for k in 0..n {
        let pivot = matrix[k * n + k];
        if pivot.is_nan() || pivot <= 1e-30 {
            return None;
        }
        for row in k + 1..n {
            let factor = matrix[row * n + k] / pivot;
            (k..n).for_each(|c| matrix[row * n + c] -= factor * matrix[k * n + c]);
            right[row] -= factor * right[k];
        }
    }
    let mut x = vec![0.0; n];
    for k in (0..n).rev() {
        let rest: f64 = (k + 1..n).map(|c| matrix[k * n + c] * x[c]).sum();
        x[k] = (right[k] - rest) / matrix[k * n + k];
    }
    x[0].is_finite().then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::blocks::mean_squares;

    /// Structure as a lens leaves it: much of low frequencies, nothing of high ones.
    fn structure() -> [f64; COEFFICIENTS] {
        std::array::from_fn(|i| {
            let square = ((i / SIDE).pow(2) + (i % SIDE).pow(2)) as f64;
            if i == 0 { 0.0 } else { 4.0 / square.powf(1.5) * (-0.15 * square).exp() }
        })
    }

    /// Noise behind small filters beside structure comes back exactly; without being told of the structure it does not.
    #[test]
    fn structure_that_is_known_is_taken_off() {
        let structure = structure();
        for taps in [[0.0, 0.3], [0.2, 0.2], [0.5, 0.5]] {
            let [y, x] = taps.map(|t| [t, 1.0, t]);
            let truth = Correlation::of_filters([&y, &x]);
            let noise = mean_squares(&truth);
            let spectrum = std::array::from_fn(|i| noise[i] + 0.3 * structure[i]);
            let off = |c: &Correlation| {
                [(0, 1), (1, 0), (1, 1), (0, 2)]
                    .map(|(dy, dx)| (c.at(dy, dx) - truth.at(dy, dx)).abs())
                    .into_iter()
                    .fold(0.0, f64::max)
            };
            let told = Fit::near().beside(&spectrum, &structure);
            assert!(off(&told.correlation) < 1e-3, "{taps:?}: {}", off(&told.correlation));
            assert!((told.structure - 0.3).abs() < 0.01 && told.misfit < 1e-3, "{taps:?}: {}", told.misfit);
            let untold = Fit::all().to(&spectrum);
            assert!(off(&untold.correlation) > 0.02, "{taps:?}: {}", off(&untold.correlation));
        }
    }

    /// Noise that is shared over more pixels than the fit has lags is not explained by it, with structure or without.
    #[test]
    fn noise_that_is_shared_further_is_not_explained() {
        let along = |d: isize| (-(d * d) as f64 / 5.76).exp();
        let wide = mean_squares(&Correlation::from_lags(|dy, dx| along(dy) * along(dx)));
        let misfit = Fit::near().beside(&wide, &structure()).misfit;
        assert!(misfit > 10.0, "{misfit}");
    }
}
