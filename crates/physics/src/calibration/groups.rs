//! Groups of smooth blocks of similar level, and their noise.
//!
//! All estimates from blocks (single images, movies, repeats, flats) form such groups; `line.rs` fits a line to them.

use super::blind::{NoiseLine, Point};
use super::blocks::{Block, COEFFICIENTS, COUNTS, frequency};
use super::spectrum::{belongs, quiet};
use std::ops::RangeInclusive;

/// Which coefficients tell how large correlated noise is.
pub(super) struct Telling {
    /// Those that do, and higher ones that are taken where structure leaks into these.
    frequencies: &'static [RangeInclusive<usize>],
    /// Those with less of the noise tell nothing.
    least: f64,
    /// All count alike, not as they have of the noise.
    whitened: bool,
}

/// In a picture structure is mostly below these, and above them a small error of the correlation is a large one of the noise.
pub(super) const IN_PICTURES: Telling =
    Telling { frequencies: &[5..=9, 7..=14, 9..=14], least: 0.1, whitened: true };
/// Differences of frames have no structure where nothing moves.
pub(super) const IN_DIFFERENCES: Telling = Telling { frequencies: &[2..=14], least: 0.0, whitened: false };

/// The least share of a shape that is taken for seen.
const MOST_LEFT: f64 = 0.05;

/// What the quietest blocks of a group tell by some of their coefficients.
struct Told {
    variance: f64,
    freedom: f64,
    count: usize,
}

impl Told {
    fn relative_error(&self) -> f64 {
        relative_error(self.freedom, self.count)
    }
}

impl Telling {
    fn tells(
        &self,
        coefficient: usize,
        frequencies: &RangeInclusive<usize>,
        shape: &[f64; COEFFICIENTS],
    ) -> bool {
        frequencies.contains(&frequency(coefficient)) && shape[coefficient] > self.least
    }

    /// What has been seen over what the shape has, in some frequencies.
    fn share(
        &self,
        frequencies: &RangeInclusive<usize>,
        shape: &[f64; COEFFICIENTS],
        seen: &[f64; COEFFICIENTS],
    ) -> f64 {
        let told = (0..COEFFICIENTS).filter(|&i| self.tells(i, frequencies, shape));
        let (sum, count) = told.fold((0.0, 0.0), |(s, n), i| (s + seen[i] / shape[i], n + 1.0));
        if count > 0.0 { sum / count } else { 1.0 }
    }

    /// What the blocks that either half of the coefficients chose tell by the other half.
    fn told(
        &self,
        frequencies: &RangeInclusive<usize>,
        quiet: &[Vec<&Block>; 2],
        shape: &[f64; COEFFICIENTS],
    ) -> Told {
        let tells = |i: usize| self.tells(i, frequencies, shape);
        let weight = |i: usize| if self.whitened { shape[i].recip() } else { 1.0 };
        let (mut variance, mut halves, mut count, mut freedom) = (0.0, 0.0, 0, 0.0);
        for (half, quiet) in quiet.iter().enumerate() {
            let measured: Vec<usize> =
                (0..COEFFICIENTS).filter(|&i| belongs(i, 1 - half) && tells(i)).collect();
            count += quiet.len();
            if measured.is_empty() {
                continue;
            }
            let sum = |power: i32| measured.iter().map(|&i| (weight(i) * shape[i]).powi(power)).sum::<f64>();
            let (whole, own) = (sum(1), sum(1).powi(2) / sum(2));
            let energy = |b: &&Block| {
                measured.iter().map(|&i| weight(i) * f64::from(b.squares[i])).sum::<f64>() / whole
            };
            variance += own * median(quiet.iter().map(energy)) / median_share(own);
            (halves, freedom) = (halves + own, freedom + own);
        }
        Told { variance: variance / halves.max(f64::MIN_POSITIVE), freedom, count: count / 2 }
    }
}

/// Blocks that a group of like levels needs.
const FEWEST_IN_GROUP: usize = 12;
/// Mean squares up to this many times the noise are noise's own spread.
const CONSISTENT: f64 = 1.6;
/// No group's variance is trusted to be nearer than this: medians of skewed numbers, traces of structure.
const MODEL_ERROR: f64 = 0.02;
/// A band that exceeds the next higher one by this factor holds structure.
const LEAKS: f64 = 1.3;

/// The band of the highest frequencies.
const HIGHEST: usize = 3;

/// Smooth blocks of like level.
pub(super) struct Group {
    pub level: f64,
    pub variance: f64,
    /// The relative error of the variance, if there is only noise.
    pub relative_error: f64,
    pub count: usize,
}

/// Levels are cut into equal steps, wider ones where there are few blocks.
pub(super) fn group(
    blocks: &mut [Block],
    step: f64,
    of: impl Fn(&mut [Block]) -> Option<Group>,
) -> Vec<Group> {
    // A group sorts its own blocks by their structure.
    blocks.sort_by(|a, b| a.level.total_cmp(&b.level));
    let mut groups = Vec::new();
    let mut first = 0;
    for i in 0..blocks.len() {
        let rest = blocks.len() - i - 1;
        let full = i + 1 - first >= 3 * FEWEST_IN_GROUP && blocks[i].level - blocks[first].level >= step;
        if rest == 0 || (full && rest >= 3 * FEWEST_IN_GROUP) {
            groups.extend(of(&mut blocks[first..=i]));
            first = i + 1;
        }
    }
    groups
}

impl Group {
    pub fn point(&self) -> Point {
        let Group { level, variance, relative_error, count } = *self;
        Point { level, variance, error: relative_error * variance, count }
    }

    /// An upper bound of the noise, from the highest frequencies of the smoothest blocks of similar level, if even
    /// those contain structure.
    pub fn at_most(like: &mut [Block]) -> Group {
        Group::measured(smooth(like), HIGHEST..=HIGHEST)
    }

    /// The smoothest blocks of similar level; `None` if even those are not smooth.
    pub fn of_white(like: &mut [Block]) -> Option<Group> {
        let smooth = smooth(like);
        // What structure leaks into a band shows more in the band below.
        [(1..=1, 2..=3), (2..=2, 3..=3)].into_iter().find_map(|(below, taken)| {
            let group = Group::measured(smooth, taken);
            (typical(smooth, below).0 < LEAKS * group.variance).then_some(group)
        })
    }

    /// The quietest blocks, for noise with a spectrum of this shape: one half of the coefficients selects blocks, the
    /// other is measured, and vice versa. `seen` is the spectrum of the regions from which the shape was estimated,
    /// which may have less power at high frequencies than the shape.
    pub fn of_correlated(
        like: &[Block],
        shape: &[f64; COEFFICIENTS],
        seen: &[f64; COEFFICIENTS],
        by: &Telling,
    ) -> Group {
        let quiet = [0, 1].map(|half| quiet(like, half, shape));
        let told = |frequencies: &RangeInclusive<usize>| by.told(frequencies, &quiet, shape);
        let [lowest, higher @ ..] = by.frequencies else { unreachable!("something tells") };
        let mut found = told(lowest);
        // What structure leaks into some frequencies shows less in higher ones.
        for higher in higher {
            let mut next = told(higher);
            // Where less was seen than the shape has, either structure was taken off the shape or neighbours share more than is believed: half of it counts.
            next.variance /=
                (by.share(higher, shape, seen) / by.share(lowest, shape, seen)).clamp(MOST_LEFT, 1.0).sqrt();
            if next.freedom > 0.0
                && found.variance > next.variance * (1.0 + 2.0 * next.relative_error()).max(LEAKS)
            {
                found = next;
            }
        }
        let level =
            quiet.iter().map(|q| q.iter().map(|b| b.level).sum::<f64>() / q.len() as f64).sum::<f64>() / 2.0;
        Group::new(level, found.variance, found.freedom, found.count)
    }

    fn measured(smooth: &[Block], bands: RangeInclusive<usize>) -> Group {
        let count = smooth.len();
        let level = smooth.iter().map(|b| b.level).sum::<f64>() / count as f64;
        let (variance, freedom) = typical(smooth, bands);
        Group::new(level, variance, freedom, count)
    }

    fn new(level: f64, variance: f64, freedom: f64, count: usize) -> Group {
        let relative_error = relative_error(freedom, count).hypot(MODEL_ERROR);
        Group { level, variance, relative_error, count }
    }
}

/// How much of the noise that a line tells is there at most. Where texture is everywhere, a group of like level has hardly a quiet block, but the
/// brightest quarter of the image may have some; what their highest frequencies hold is no less than the noise there, and no darker place has more.
pub(super) fn at_most(blocks: &mut [Block], line: &NoiseLine) -> f64 {
    blocks.sort_by(|a, b| a.level.total_cmp(&b.level));
    let bright = &blocks[blocks.len() - blocks.len() / 4..];
    let in_noise = |b: &Block| {
        let variance = line.variance(b.level);
        (variance > 0.0).then(|| (structure(b) / variance, b.bands[HIGHEST] / variance))
    };
    let mut scored: Vec<(f64, f64)> = bright.iter().filter_map(in_noise).collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    scored.truncate(fewest(&scored));
    if scored.len() < FEWEST_IN_GROUP {
        return 1.0;
    }
    let error = relative_error(COUNTS[HIGHEST], scored.len());
    let share = median(scored.into_iter().map(|s| s.1)) / median_share(COUNTS[HIGHEST]);
    (share * (1.0 + 2.0 * error)).min(1.0)
}

/// Of low and middling frequencies, in variances of a pixel: little in noise alone.
fn structure(b: &Block) -> f64 {
    b.bands[0] / 20.0 + b.bands[1]
}

/// The blocks of like level that have as little structure as those that have least.
fn smooth(like: &mut [Block]) -> &[Block] {
    like.sort_by(|a, b| structure(a).total_cmp(&structure(b)));
    let first = fewest(like);
    let quiet = typical(&like[..first], 2..=3).0;
    &like[..like.partition_point(|b| structure(b) < CONSISTENT * quiet).max(first)]
}

/// How many of the smoothest blocks are taken before others are compared with them.
fn fewest<T>(like: &[T]) -> usize {
    (like.len() / 20).max(FEWEST_IN_GROUP.min(like.len()))
}

/// The median over blocks of the mean square in some bands, as the mean that it stands for in white noise, and the number
/// of coefficients.
pub(super) fn typical(blocks: &[Block], bands: RangeInclusive<usize>) -> (f64, f64) {
    let freedom: f64 = COUNTS[bands.clone()].iter().sum();
    let energy = |b: &Block| bands.clone().map(|i| b.bands[i] * COUNTS[i]).sum::<f64>() / freedom;
    (median(blocks.iter().map(energy)) / median_share(freedom), freedom)
}

/// Of the median over blocks. They overlap by half along each axis, and a median needs more values than a mean for the same error.
fn relative_error(freedom: f64, count: usize) -> f64 {
    (2.0 / freedom * 1.57 * 3.0 / count as f64).sqrt()
}

/// The median of chi2 over its mean (Wilson, Hilferty).
fn median_share(freedom: f64) -> f64 {
    (1.0 - 2.0 / (9.0 * freedom)).powi(3)
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    let at = values.len() / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
