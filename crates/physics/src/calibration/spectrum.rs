//! How neighbouring pixels share their noise, from a single picture.
//!
//! Where a block of pixels holds noise and nothing else, the mean squares of its cosine coefficients are the noise's
//! spectrum. Structure only ever adds to them, most at low frequencies, and never evenly over the picture; so the quietest
//! blocks of each brightness are looked for, among brightnesses those whose spectrum falls least, and a correlation of a
//! few lags is fitted that what lies above it pulls less than what lies below.
//! To take the quietest blocks would make the noise look small: so coefficients are parted like the fields of a chess
//! board, one half chooses the blocks, the other is measured, and the other way round.
//!
//! Nearness: `scenes/tests/blind.rs` and docs/benchmarks.md. Lags along the two diagonals cannot be told apart and are given
//! alike.

use super::blocks::{Block, COEFFICIENTS, SIDE, frequency, lag_products, mean_squares};
use crate::correlation::{Correlation, REACH};

/// Groups of like level, and the blocks that one needs.
const GROUPS: usize = 16;
const FEWEST_IN_GROUP: usize = 24;
/// One group in so many tells the spectrum.
const TELLING: usize = 4;
const FEWEST_GROUPS: usize = 2;
/// Frequencies that choose blocks.
const CHOOSING: usize = 6;
/// The share of blocks that is quiet whatever the picture shows, and where its middle lies in normal numbers.
const QUIET: usize = 20;
const QUIET_NORMAL: f64 = -1.96;
/// Turns of choosing and fitting.
const TURNS: usize = 5;
/// The median of a squared normal number.
const MEDIAN_SQUARE: f64 = 0.4549;
/// How sure a mean square is.
const SURE: f64 = 0.06;
/// Correlations below this are none, and so are those below so many standard errors.
const LEAST: f64 = 0.025;
const ERRORS: f64 = 3.0;
/// The standard error of a lag for a thousand pixels that were measured.
const ERROR_OF_THOUSAND: f64 = 0.05;

/// The correlation that a picture's blocks tell, sorted by level; white where it is not seen.
pub(super) fn correlation(blocks: &[Block]) -> Correlation {
    let count = (blocks.len() / FEWEST_IN_GROUP).min(GROUPS);
    if count < FEWEST_GROUPS {
        return Correlation::WHITE;
    }
    let groups: Vec<&[Block]> = blocks.chunks(blocks.len().div_ceil(count)).collect();
    let groups: Vec<&[Block]> = groups.into_iter().filter(|g| g.len() >= FEWEST_IN_GROUP).collect();
    let few = Fit::few();
    let mut found = Correlation::WHITE;
    let mut spectrum = [1.0; COEFFICIENTS];
    let mut pixels = 0.0;
    let mut share = 0.0;
    for _ in 0..TURNS {
        let shape = mean_squares(&found).map(|s| s.max(1e-3));
        let mut told: Vec<Told> = groups.iter().map(|g| Told::of(g, &shape)).collect();
        told.sort_by(|a, b| a.falls.total_cmp(&b.falls));
        told.truncate((told.len() / TELLING).max(FEWEST_GROUPS));
        share = told.iter().map(|t| t.share).sum::<f64>() / told.len() as f64;
        let weights: f64 = told.iter().map(|t| t.weight).sum();
        pixels = told.iter().map(|t| t.pixels).sum();
        spectrum =
            std::array::from_fn(|i| told.iter().map(|t| t.weight * t.spectrum[i]).sum::<f64>() / weights);
        found = few.to(&spectrum);
    }
    let found = less_structure(found, &Fit::fine().to(&spectrum), &Fit::all().to(&spectrum), share);
    let error = ERROR_OF_THOUSAND * (1000.0 / f64::max(pixels, 1.0)).sqrt();
    let largest = [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)].map(|(y, x)| found.at(y, x).abs());
    let seen = largest.into_iter().fold(0.0, f64::max) > LEAST.max(ERRORS * error);
    if seen { found } else { Correlation::WHITE }
}

/// The lags (0, 1) and (1, 1) of structure behind a lens.
const STRUCTURE: [f64; 2] = [0.89, 0.8];
/// Up to the first of these a correlation can be told from structure, from the second on it cannot: along both axes (the
/// geometric mean), and along one.
const TELLING_APART: [[f64; 2]; 2] = [[0.35, 0.5], [0.6, 0.75]];

/// Shares of quiet blocks from which a weak correlation is believed, and fully believed.
const QUIET_SHARES: [f64; 2] = [0.35, 0.55];
/// Frequencies that structure behind a lens hardly reaches.
const FINE: usize = 7;

/// Takes off what structure adds to a weak correlation.
///
/// Noise that a small filter has touched shares little along diagonals, about the product of what it shares along the axes;
/// structure shares nearly as much there. So a share of structure follows from three lags, and the rest is noise. It is
/// no more than the high frequencies alone tell, `fine`, and nothing where a small share of the blocks is quiet. A strong
/// correlation cannot be told from structure that way: it is what `all` lags tell.
fn less_structure(c: Correlation, fine: &Correlation, all: &Correlation, share: f64) -> Correlation {
    let (x, y, diagonal) = (c.at(0, 1), c.at(1, 0), c.at(1, 1));
    let strong = [(x.max(0.0) * y.max(0.0)).sqrt(), x.max(y)];
    let falling = |([near, far], r): ([f64; 2], f64)| ((far - r) / (far - near)).clamp(0.0, 1.0);
    let sure = TELLING_APART.into_iter().zip(strong).map(falling).fold(1.0, f64::min);
    if sure == 0.0 {
        return *all;
    }
    let [along, across] = STRUCTURE;
    let left = |share: f64| [x, y].map(|r| r * (1.0 + share) - along * share);
    let excess = |share: f64| {
        let [x, y] = left(share);
        diagonal * (1.0 + share) - x.max(0.0) * y.max(0.0) - across * share
    };
    // More structure leaves less on the diagonal.
    let (mut low, mut high) = (0.0, 1.0);
    if excess(low) > 0.0 {
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if excess(middle) > 0.0 { low = middle } else { high = middle }
        }
    }
    let [x, y] = left(low);
    let trust = ((share - QUIET_SHARES[0]) / (QUIET_SHARES[1] - QUIET_SHARES[0])).clamp(0.0, 1.0);
    // What the high frequencies would tell of such noise is more than they do tell, where structure is left.
    let expected = Fit::fine().to(&mean_squares(&of_taps([x, y].map(taps))));
    let less = |r: f64, [dy, dx]: [isize; 2]| {
        let left = r - (expected.at(dy, dx) - fine.at(dy, dx)).max(0.0);
        taps(trust * left)
    };
    let noise = of_taps([less(x, [0, 1]), less(y, [1, 0])]);
    Correlation::from_lags(|dy, dx| sure * noise.at(dy, dx) + (1.0 - sure) * all.at(dy, dx))
}

/// Noise behind filters (t, 1, t) along X and Y.
fn of_taps([x, y]: [f64; 2]) -> Correlation {
    Correlation::of_filters([&[y, 1.0, y], &[x, 1.0, x]])
}

/// The outer taps of a filter (t, 1, t) that makes neighbours share so much, up to what such filters can.
fn taps(shared: f64) -> f64 {
    let shared = shared.clamp(0.0, 0.65);
    let (mut low, mut high) = (0.0, std::f64::consts::FRAC_1_SQRT_2);
    for _ in 0..40 {
        let t = 0.5 * (low + high);
        if 2.0 * t / (1.0 + 2.0 * t * t) < shared { low = t } else { high = t }
    }
    low
}

/// Whether a coefficient belongs to a half of the chess board; the mean to neither.
pub(super) fn belongs(coefficient: usize, half: usize) -> bool {
    coefficient > 0 && frequency(coefficient) % 2 == half
}

/// The blocks of a group that are as quiet as the quietest by the coefficients of one half, given the spectrum's shape.
pub(super) fn quiet<'b>(group: &'b [Block], half: usize, shape: &[f64; COEFFICIENTS]) -> Vec<&'b Block> {
    let chosen: Vec<usize> =
        (0..COEFFICIENTS).filter(|&i| belongs(i, half) && frequency(i) <= CHOOSING).collect();
    let freedom = chosen.len() as f64;
    let score = |b: &Block| chosen.iter().map(|&i| f64::from(b.squares[i]) / shape[i]).sum::<f64>() / freedom;
    let mut scored: Vec<(f64, &Block)> = group.iter().map(|b| (score(b), b)).collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    let first = (scored.len() / QUIET).max(scored.len().min(12));
    // What noise alone gives there (Wilson, Hilferty).
    let spread = (2.0 / (9.0 * freedom)).sqrt();
    let low = (1.0 - spread * spread + QUIET_NORMAL * spread).powi(3).max(0.1);
    let limit = scored[first / 2].0 / low * (1.0 + (2.0 / freedom).sqrt());
    scored.iter().take_while(|s| s.0 < limit).map(|s| s.1).collect()
}

/// What a group of blocks of like level tells.
struct Told {
    /// Mean squares of the coefficients, with a mean of about 1.
    spectrum: [f64; COEFFICIENTS],
    /// Those of low frequencies over those of high ones.
    falls: f64,
    weight: f64,
    /// Of its blocks that are quiet: five in six where there is noise alone.
    share: f64,
    /// Pixels that were measured, about.
    pixels: f64,
}

impl Told {
    fn of(group: &[Block], shape: &[f64; COEFFICIENTS]) -> Told {
        let mut spectrum = [0.0; COEFFICIENTS];
        let mut kept = 0;
        for half in 0..2 {
            let quiet = quiet(group, half, shape);
            kept += quiet.len();
            for i in (0..COEFFICIENTS).filter(|&i| belongs(i, 1 - half)) {
                let squares = quiet.iter().map(|b| f64::from(b.squares[i]));
                spectrum[i] = super::blind::median(squares) / MEDIAN_SQUARE;
            }
        }
        let logs = (1..COEFFICIENTS).map(|i| (spectrum[i].max(1e-30) / shape[i]).ln());
        let scale = (logs.sum::<f64>() / (COEFFICIENTS - 1) as f64).exp();
        spectrum.iter_mut().for_each(|s| *s /= scale);
        let mean = |range: std::ops::RangeInclusive<usize>| {
            let inside: Vec<f64> =
                (1..COEFFICIENTS).filter(|&i| range.contains(&frequency(i))).map(|i| spectrum[i]).collect();
            inside.iter().sum::<f64>() / inside.len() as f64
        };
        let falls = mean(1..=4) / mean(8..=14).max(1e-30);
        let share = kept as f64 / (2 * group.len()) as f64;
        // Blocks overlap: each brings about a quarter of its pixels.
        let pixels = kept as f64 / 2.0 * (SIDE * SIDE / 4) as f64;
        Told { share, spectrum, falls, weight: share * (group.len() as f64).sqrt(), pixels }
    }
}

/// A lag, and the mean squares that it stands for.
type Lag = ([usize; 2], [f64; COEFFICIENTS]);

/// A correlation fitted to a spectrum: by which lags, from which frequency on, how far lags are pulled to zero, and how
/// much of what lies above the fit counts at the least.
struct Fit {
    lags: Vec<Lag>,
    least: usize,
    pull: f64,
    above: f64,
}

impl Fit {
    /// Near lags, and what lies above them nearly left out as structure: for noise that is nearly white.
    fn few() -> Fit {
        Fit { lags: lags(|[y, x]| y + x <= 3), least: 1, pull: 30.0, above: 0.05 }
    }

    /// The nearest lags, from high frequencies.
    fn fine() -> Fit {
        Fit { lags: lags(|[y, x]| y <= 1 && x <= 1), least: FINE, ..Fit::few() }
    }

    /// All lags of a correlation: noise that a filter has shaped reaches along diagonals as far as along the axes, and
    /// what it has at low frequencies is its own for the most part.
    fn all() -> Fit {
        Fit { lags: lags(|_| true), least: 1, pull: 3.0, above: 0.5 }
    }

    /// The correlation whose mean squares are nearest.
    fn to(&self, spectrum: &[f64; COEFFICIENTS]) -> Correlation {
        let used: Vec<usize> = (0..COEFFICIENTS).filter(|&i| frequency(i) >= self.least).collect();
        let lags = &self.lags;
        let n = lags.len();
        let mut trust = [1.0; COEFFICIENTS];
        let mut found = vec![0.0; n];
        for _ in 0..25 {
            let mut normal = vec![0.0; n * n];
            let mut right = vec![0.0; n];
            for &i in &used {
                let weight = trust[i] / (SURE * spectrum[i].max(0.02)).powi(2);
                for a in 0..n {
                    right[a] += weight * lags[a].1[i] * spectrum[i];
                    (0..n).for_each(|b| normal[a * n + b] += weight * lags[a].1[i] * lags[b].1[i]);
                }
            }
            for (a, ([y, x], _)) in lags.iter().enumerate() {
                normal[a * n + a] += self.pull * (y * y + x * x) as f64;
            }
            let Some(solved) = solve(&mut normal, &mut right, n) else { return Correlation::WHITE };
            found = solved;
            for &i in &used {
                let fitted: f64 = (0..n).map(|a| found[a] * lags[a].1[i]).sum();
                let above = (spectrum[i] - fitted) / (SURE * spectrum[i].max(0.02));
                trust[i] =
                    if above > 0.0 { (1.0 / (1.0 + above * above / 4.0)).max(self.above) } else { 1.0 };
            }
        }
        Correlation::from_lags(|dy, dx| {
            let at = [dy.unsigned_abs(), dx.unsigned_abs()];
            lags.iter().position(|(lag, _)| *lag == at).map_or(0.0, |a| found[a] / found[0])
        })
    }
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
