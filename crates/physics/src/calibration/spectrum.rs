//! Estimates the correlation of the noise between neighbouring pixels from a single image.
//!
//! If a block of pixels contains only noise, the mean squares of its cosine coefficients are the noise spectrum.
//! Structure only adds power, mostly at low frequencies, and never uniformly over the image. Therefore the quietest
//! blocks of each brightness are selected, then the brightness levels with the flattest spectrum, and a correlation
//! with a few lags is fitted (`lag_fit.rs`), with less weight for values above it than below.
//!
//! If no region is quiet, the excess power of louder blocks over quiet ones of the same brightness is structure,
//! because their noise is the same; it is subtracted as far as the remaining noise is correlated over two pixels at
//! most. This result is accepted if it explains the spectrum (`APART`). A correlation over more pixels is accepted if
//! most blocks are quiet (`STRONG_SHARES`), because noise is uniform and texture is not. No correlation is accepted if
//! not even all lags together explain the spectrum (`EXPLAINED`).
//!
//! Selecting the quietest blocks would bias the noise. Coefficients are therefore divided like the squares of a
//! chessboard: one half selects the blocks and the other is measured, and vice versa.
//!
//! For the accuracy see `scenes/tests/blind.rs` and docs/benchmarks.md. Lags along the two diagonals cannot be
//! distinguished and have the same value.

use super::blocks::{Block, COEFFICIENTS, SIDE, frequency, mean_squares};
use super::lag_fit::{Fit, Fitted};
use crate::correlation::Correlation;

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
/// Loud blocks that are compared with them, at the least.
const FEWEST_LOUD: usize = 12;
/// Turns of choosing and fitting.
const TURNS: usize = 5;
/// The median of a squared normal number.
const MEDIAN_SQUARE: f64 = 0.4549;
/// Correlations below this are none, and so are those below so many standard errors.
const LEAST: f64 = 0.025;
const ERRORS: f64 = 5.0;
/// The standard error of a lag for a thousand pixels that were measured, and where there is too little to measure.
const ERROR_OF_THOUSAND: f64 = 0.03;
const ERROR_UNSEEN: f64 = 0.1;
/// The share of the difference between two ways of telling a correlation that is its error: where noise is shared over two pixels at
/// most, and where it is not and neither way is sure. With these, two generated images in three are within the standard error.
const ERROR_APART: [f64; 2] = [0.05, 1.0];
/// Lags that are looked at.
const TOLD_LAGS: [(isize, isize); 5] = [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0)];

/// Misfits of the fit by all lags up to which a correlation is believed, and from which on it is not, over 1 and what chance adds. Noise behind a
/// filter is explained by a few lags: generated scenes of all kinds and FMD's images reach 1.4. What texture leaves in quiet blocks reaches
/// 1.5 to 5.
const EXPLAINED: [f64; 2] = [1.5, 2.2];
/// What chance adds to a misfit where one pixel was measured; of more pixels it is as many times smaller.
const MISFIT_OF_PIXEL: f64 = 16_000.0;

/// Misfits (see [`Fit::to`]) up to which noise is shared over two pixels at most, and from which on it is not.
const APART: [f64; 2] = [2.0, 4.0];

/// What a picture's blocks tell.
pub(super) struct Shared {
    /// White if no correlation is detected.
    pub correlation: Correlation,
    /// The standard error of a lag.
    pub error: f64,
    /// The spectrum of the quietest blocks, including structure.
    pub spectrum: [f64; COEFFICIENTS],
}

impl Shared {
    const UNSEEN: Shared =
        Shared { correlation: Correlation::WHITE, error: ERROR_UNSEEN, spectrum: [1.0; COEFFICIENTS] };
}

/// The correlation that a picture's blocks tell, sorted by level.
pub(super) fn correlation(blocks: &[Block]) -> Shared {
    let count = (blocks.len() / FEWEST_IN_GROUP).min(GROUPS);
    if count < FEWEST_GROUPS {
        return Shared {
            correlation: Correlation::WHITE,
            error: ERROR_UNSEEN,
            spectrum: [1.0; COEFFICIENTS],
        };
    }
    let groups: Vec<&[Block]> = blocks.chunks(blocks.len().div_ceil(count)).collect();
    // Squares that vanish in 32-bit floats leave nothing to compare.
    let has_noise =
        |g: &[Block]| (0..2).all(|half| !quiet(g, half, &mean_squares(&Correlation::WHITE)).is_empty());
    let groups: Vec<&[Block]> =
        groups.into_iter().filter(|g| g.len() >= FEWEST_IN_GROUP && has_noise(g)).collect();
    if groups.len() < FEWEST_GROUPS {
        return Shared::UNSEEN;
    }
    let few = Fit::few();
    let told = |shape: &Correlation| Told::of_all(&groups, &mean_squares(shape).map(|s| s.max(1e-3)));
    let mut quietest = told(&Correlation::WHITE);
    for _ in 1..TURNS {
        quietest = told(&few.to(&quietest.spectrum).correlation);
    }
    let found = few.to(&quietest.spectrum).correlation;
    let Told { spectrum, structure, share, pixels, .. } = quietest;
    let near = Fit::near().beside(&spectrum, &structure);
    let all = Fit::all().to(&spectrum);
    let explained = falling(EXPLAINED, all.misfit / (1.0 + MISFIT_OF_PIXEL / f64::max(pixels, 1.0)));
    let all = all.correlation;
    let is_near = falling(APART, near.misfit);
    let is_noise = explained * is_near.max(rising(STRONG_SHARES, share));
    let strong = near.correlation.mixed(is_near, &all).mixed(is_noise, &Correlation::WHITE);
    let fine = Fit::fine().to(&spectrum).correlation;
    let found = less_structure(found, &fine, &strong, explained * trust(share, &near));
    let chance = ERROR_OF_THOUSAND * (1000.0 / f64::max(pixels, 1.0)).sqrt();
    let apart = TOLD_LAGS.map(|(y, x)| (near.correlation.at(y, x) - all.at(y, x)).abs());
    let share = is_near * ERROR_APART[0] + (1.0 - is_near) * ERROR_APART[1];
    let error = chance.hypot(share * apart.into_iter().fold(0.0, f64::max));
    let largest = TOLD_LAGS.map(|(y, x)| found.at(y, x).abs()).into_iter().fold(0.0, f64::max);
    let seen = largest > LEAST.max(ERRORS * chance);
    Shared { correlation: if seen { found } else { Correlation::WHITE }, error, spectrum }
}

/// From one at the first number to zero at the second.
fn falling([near, far]: [f64; 2], value: f64) -> f64 {
    ((far - value) / (far - near)).clamp(0.0, 1.0)
}

/// From zero at the first number to one at the second.
fn rising(limits: [f64; 2], value: f64) -> f64 {
    1.0 - falling(limits, value)
}

/// How far a weak correlation is believed: where a large share of the blocks is quiet, or where it is left with structure taken off.
fn trust(share: f64, near: &Fitted) -> f64 {
    let left = near.correlation.at(0, 1).max(near.correlation.at(1, 0));
    rising(QUIET_SHARES, share).max(falling(APART, near.misfit) * rising(LEFT, left))
}

/// The lags (0, 1) and (1, 1) of structure behind a lens.
const STRUCTURE: [f64; 2] = [0.89, 0.8];
/// Up to the first of these a correlation can be told from structure, from the second on it cannot: along both axes (the
/// geometric mean), and along one.
const TELLING_APART: [[f64; 2]; 2] = [[0.35, 0.5], [0.6, 0.75]];

/// Shares of quiet blocks from which noise that is shared over more than two pixels is believed, and fully believed. Noise is everywhere, texture is
/// not: of pictures that are full of texture and have little noise, an eighth to a half of the blocks is quiet. What is not
/// believed counts as independent, which takes the least from a picture.
const STRONG_SHARES: [f64; 2] = [0.4, 0.6];

/// Shares of quiet blocks from which a weak correlation is believed, and fully believed.
const QUIET_SHARES: [f64; 2] = [0.35, 0.55];
/// The same of what is left of it with structure taken off: none of it where noise is independent.
const LEFT: [f64; 2] = [0.1, 0.2];

/// Takes off what structure adds to a weak correlation.
///
/// Noise that a small filter has touched shares little along diagonals, about the product of what it shares along the axes;
/// structure shares nearly as much there. So a share of structure follows from three lags, and the rest is noise. It is
/// no more than the high frequencies alone tell, `fine`, and so much of it as is to be trusted. A strong
/// correlation cannot be told from structure that way: it is what is given as such.
fn less_structure(c: Correlation, fine: &Correlation, strong: &Correlation, trust: f64) -> Correlation {
    let (x, y, diagonal) = (c.at(0, 1), c.at(1, 0), c.at(1, 1));
    let along_both_or_one = [(x.max(0.0) * y.max(0.0)).sqrt(), x.max(y)];
    let weak = TELLING_APART.into_iter().zip(along_both_or_one).map(|(limits, r)| falling(limits, r));
    let weak = weak.fold(1.0, f64::min);
    if weak == 0.0 {
        return *strong;
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
    // What the high frequencies would tell of such noise is more than they do tell, where structure is left.
    let expected = Fit::fine().to(&mean_squares(&of_taps([x, y].map(taps)))).correlation;
    let less = |r: f64, [dy, dx]: [isize; 2]| {
        let left = r - (expected.at(dy, dx) - fine.at(dy, dx)).max(0.0);
        taps(trust * left)
    };
    let noise = of_taps([less(x, [0, 1]), less(y, [1, 0])]);
    noise.mixed(weak, strong)
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
    ranked(group, half, shape).0
}

/// Those, and the loud ones: the louder half, without such as are quiet.
fn ranked<'b>(
    group: &'b [Block],
    half: usize,
    shape: &[f64; COEFFICIENTS],
) -> (Vec<&'b Block>, Vec<&'b Block>) {
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
    let kept = scored.partition_point(|s| s.0 < limit);
    let all: Vec<&Block> = scored.into_iter().map(|s| s.1).collect();
    let loud = kept.max(all.len() / 2).min(all.len() - all.len().min(FEWEST_LOUD));
    (all[..kept].to_vec(), all[loud..].to_vec())
}

/// What a group of blocks of like level tells.
struct Told {
    /// Mean squares of the coefficients, with a mean of about 1.
    spectrum: [f64; COEFFICIENTS],
    /// What loud blocks have more of, in the same unit.
    structure: [f64; COEFFICIENTS],
    /// Mean squares of low frequencies over those of high ones.
    falls: f64,
    weight: f64,
    /// Of its blocks that are quiet: five in six where there is noise alone.
    share: f64,
    /// Pixels that were measured, about.
    pixels: f64,
}

impl Told {
    /// What the groups tell whose spectra fall least.
    fn of_all(groups: &[&[Block]], shape: &[f64; COEFFICIENTS]) -> Told {
        let mut told: Vec<Told> = groups.iter().map(|g| Told::of(g, shape)).collect();
        told.sort_by(|a, b| a.falls.total_cmp(&b.falls));
        told.truncate((told.len() / TELLING).max(FEWEST_GROUPS));
        let sum = |of: &dyn Fn(&Told) -> f64| told.iter().map(of).sum::<f64>();
        let weight = sum(&|t| t.weight);
        Told {
            spectrum: std::array::from_fn(|i| sum(&|t| t.weight * t.spectrum[i]) / weight),
            structure: std::array::from_fn(|i| sum(&|t| t.weight * t.structure[i]) / weight),
            falls: sum(&|t| t.falls) / told.len() as f64,
            share: sum(&|t| t.share) / told.len() as f64,
            pixels: sum(&|t| t.pixels),
            weight,
        }
    }

    fn of(group: &[Block], shape: &[f64; COEFFICIENTS]) -> Told {
        let [mut spectrum, mut louder] = [[0.0; COEFFICIENTS]; 2];
        let mut kept = 0;
        for half in 0..2 {
            let (quiet, loud) = ranked(group, half, shape);
            kept += quiet.len();
            for i in (0..COEFFICIENTS).filter(|&i| belongs(i, 1 - half)) {
                let typical = |blocks: &[&Block]| {
                    super::groups::median(blocks.iter().map(|b| f64::from(b.squares[i]))) / MEDIAN_SQUARE
                };
                (spectrum[i], louder[i]) = (typical(&quiet), typical(&loud));
            }
        }
        let logs = (1..COEFFICIENTS).map(|i| (spectrum[i].max(1e-30) / shape[i]).ln());
        let scale = (logs.sum::<f64>() / (COEFFICIENTS - 1) as f64).exp();
        [&mut spectrum, &mut louder].into_iter().flatten().for_each(|s| *s /= scale);
        let structure = std::array::from_fn(|i| (louder[i] - spectrum[i]).max(0.0));
        let mean = |range: std::ops::RangeInclusive<usize>| {
            let inside: Vec<f64> =
                (1..COEFFICIENTS).filter(|&i| range.contains(&frequency(i))).map(|i| spectrum[i]).collect();
            inside.iter().sum::<f64>() / inside.len() as f64
        };
        let falls = mean(1..=4) / mean(8..=14).max(1e-30);
        let share = kept as f64 / (2 * group.len()) as f64;
        // Blocks overlap: each brings about a quarter of its pixels.
        let pixels = kept as f64 / 2.0 * (SIDE * SIDE / 4) as f64;
        Told { spectrum, structure, falls, weight: share * (group.len() as f64).sqrt(), share, pixels }
    }
}
