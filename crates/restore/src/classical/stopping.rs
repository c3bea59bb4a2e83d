//! The stopping rule of [`super::richardson_lucy`]: the number of steps with the smallest predicted error, judged by
//! later steps.
//!
//! Let x_k be the image after k steps and e_k its noise. If an image t equals the truth in expectation, the error of
//! x_k is `|x_k - t|^2 + 2 <e_k, e_t>` plus a part that is the same for all k: the noise that both share is missing
//! from their difference and is added back (Stein, 1981; Eldar, 2009, does so for inverse problems). Here t is `x_K + b
//! (x_K - x_k)` with K = [`AHEAD`] k + [`FIRST`]: an extrapolation from a later step, because the steps converge
//! slowly. `<e_k, e_t>` is measured on twins, images that are deconvolved from data with a little added noise. A step
//! is chosen as soon as no step between it and K is predicted to be better.
//!
//! The wider the PSF, the further the steps are from convergence, so b is at most the excess of its standard deviation
//! over [`SHARP`] pixels. The data determine whether to extrapolate at all: of all `A x_k + c A (x_K - x_k)`, the one
//! with the smallest predicted error has c = `(<y - A x_k, A d> - <n, A e_d>) / |A d|^2`, where d is x_K - x_k,
//! everything is divided by the noise n of the data, and the twins measure how much of the noise d follows. If c is 1
//! or more, b has its full value. It decreases to 0 at c = [`TURN`]; below that, further steps only add noise, and t
//! moves back from x_K, by at most [`BACK`] of the way.
//!
//! Bright regions need more steps than dark ones, whose noise would grow. Pixels are therefore grouped by brightness,
//! which is estimated from the blurred prediction of the image after [`LOOK`] steps: [`Levels`] has a number of steps
//! for each level, and pixels between two levels get a mixture. A level is judged together with its neighbours and with
//! a weight of [`SHARED`] for the whole image. The brightest levels are merged until they have [`PLACES`] independent
//! resolution cells, so that chance does not decide, but not into a level that has [`DROWNED`] times as many.
//!
//! docs/images.md lists the images on which the constants were chosen, and the results on others.

use clearshot_tensor::noise::Key;
use rayon::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// See the module.
const AHEAD: f64 = 1.75;
const FIRST: f64 = 5.0;
const SHARP: f64 = 0.8;
const TURN: f64 = 0.25;
const BACK: f64 = 0.6;
const SHARED: f64 = 0.1;
const PLACES: f64 = 16.0;
const DROWNED: f64 = 5.0;
/// Independent places that must be there for a level of its own.
const FEWEST: f64 = 2.0;
/// Levels are told apart after so many steps.
pub(super) const LOOK: usize = 10;
/// Neighbouring levels count by a Gaussian of this width.
const NEIGHBOURS: f64 = 0.5;
/// Steps that are judged lie apart by this factor.
const APART: f64 = 1.1;
/// Images of more pixels are judged by about as many of them, spread all over.
const SAMPLE: usize = 1 << 18;
/// Levels there are; brighter pixels are of the last.
const LEVELS: usize = 32;
/// How much a twin's data differ, in standard deviations of the noise.
pub(super) const CHANGE: f32 = 0.1;

/// The number of steps for each brightness level: level l has pixels that exceed the dark by `2^(l / 2) - 1` standard
/// deviations of its noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels([u32; LEVELS]);

impl Levels {
    pub fn least(&self) -> usize {
        self.0.iter().copied().min().unwrap_or(0) as usize
    }

    pub fn most(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0) as usize
    }

    /// Which levels take this step.
    pub(super) fn takes(&self, step: usize) -> [bool; LEVELS] {
        self.0.map(|s| s as usize == step)
    }
}

/// A pixel's level, with a fraction, by its mean electrons: background and variance of the read noise are the dark.
pub(super) fn level(mean: f32, background: f32, variance: f32) -> f32 {
    let (bright, dark) = ((mean + variance).max(0.0), background + variance);
    let above = 2.0 * (bright.sqrt() - dark.sqrt());
    (2.0 * (1.0 + above.max(0.0)).log2()).min((LEVELS - 1) as f32)
}

/// Adds to the result what the levels that take this step have of it.
pub(super) fn add(result: &mut [f32], x: &[f32], levels: &[f32], takes: &[bool; LEVELS]) {
    result.par_iter_mut().zip(x).zip(levels).for_each(|((r, x), l)| {
        let (at, part) = (*l as usize, l.fract());
        let lower = if takes[at] { 1.0 - part } else { 0.0 };
        let upper = if part > 0.0 && takes[at + 1] { part } else { 0.0 };
        *r += (lower + upper) * x;
    });
}

/// What was measured.
pub(super) struct Data<'a> {
    pub y: &'a [f32],
    /// The noise variance of each pixel.
    pub variance: &'a [f32],
}

/// An image deconvolved from data that differ by [`CHANGE`] of their noise.
pub(super) struct Twin {
    pub x: Vec<f32>,
    pub y: Vec<f32>,
}

/// A step that may be taken.
struct Candidate {
    step: usize,
    values: Vec<f32>,
    /// The values of the pixels that are looked at, if those are not all.
    looked_at: Option<Vec<f32>>,
    /// What a unit of noise in the data makes of these pixels, twin by twin.
    noise: Vec<Vec<f32>>,
    /// What the image predicts for these pixels beyond the data, in standard deviations.
    residual: Vec<f32>,
    /// How much of the data's noise the prediction follows, level by level.
    followed: [f64; LEVELS],
}

/// Predicts errors; see the module.
pub(super) struct Judge<'a> {
    data: Data<'a>,
    /// Of each pixel.
    levels: &'a [f32],
    /// The pixels that are looked at, if not all, and their levels.
    places: Option<Vec<usize>>,
    seen: Vec<f32>,
    /// How much each level counts for each.
    counts: Vec<[f64; LEVELS]>,
    /// How far the truth may lie beyond the latest step, in distances from the oldest.
    beyond: f64,
    /// The oldest first.
    candidates: VecDeque<Candidate>,
    next: usize,
    /// `|x - y|^2 + 2 <e, f>` of pairs of candidates, level by level.
    pairs: BTreeMap<(usize, usize), [f64; LEVELS]>,
    taken: [Option<usize>; LEVELS],
    result: Vec<f32>,
}

impl<'a> Judge<'a> {
    /// For an image with these levels, a PSF with this area in pixels, and this number of axes.
    pub fn new(data: Data<'a>, levels: &'a [f32], area: f64, axes: usize) -> Judge<'a> {
        let one_of = levels.len().div_ceil(SAMPLE) as u32;
        let key = Key { seed: 0x7112, step: 0, stream: 0 };
        let places: Option<Vec<usize>> = (one_of > 1)
            .then(|| (0..levels.len()).filter(|&i| key.block(i as u64)[0].is_multiple_of(one_of)).collect());
        let seen: Vec<f32> = match &places {
            None => levels.to_vec(),
            Some(places) => places.iter().map(|&i| levels[i]).collect(),
        };
        let mut pixels = [0.0; LEVELS];
        for l in levels {
            spread(&mut pixels, *l, 1.0);
        }
        // Of a Gaussian of standard deviation s the area is (4 pi s^2)^(axes / 2).
        let sigma = (area.powf(2.0 / axes as f64) / (4.0 * std::f64::consts::PI)).sqrt();
        Judge {
            data,
            levels,
            places,
            seen,
            counts: counts(&pixels, area),
            beyond: (sigma - SHARP).max(0.0),
            candidates: VecDeque::new(),
            next: 1,
            pairs: BTreeMap::new(),
            taken: [None; LEVELS],
            result: vec![0.0; levels.len()],
        }
    }

    /// Examines a step: its image, those of its twins, and the predictions of images; it may be the last possible one.
    /// Returns whether the step of every level is determined.
    pub fn see(
        &mut self,
        step: usize,
        x: &[f32],
        twins: &[Twin],
        predict: impl Fn(&[f32]) -> Vec<f32>,
        last: bool,
    ) -> bool {
        if step >= self.next || last {
            self.next = (step + 1).max((step as f64 * APART).round() as usize);
            self.keep(step, x, twins, predict);
            while let Some(oldest) = self.candidates.front()
                && (last || step as f64 >= AHEAD * oldest.step as f64 + FIRST)
            {
                self.judge_oldest();
            }
        }
        self.taken.iter().all(Option::is_some)
    }

    /// The steps of the levels, and the resulting image.
    pub fn result(self) -> (Levels, Vec<f32>) {
        (Levels(self.taken.map(|t| t.unwrap_or(1) as u32)), self.result)
    }

    fn keep(&mut self, step: usize, x: &[f32], twins: &[Twin], predict: impl Fn(&[f32]) -> Vec<f32>) {
        let Data { y, variance } = self.data;
        let mean = predict(x);
        let residual = self.of_places(|i| (mean[i] - y[i]) / variance[i].sqrt());
        let mut followed = [0.0; LEVELS];
        let mut noise = Vec::with_capacity(twins.len());
        for twin in twins {
            let other = predict(&twin.x);
            let follows = |i| (twin.y[i] - y[i]) * (other[i] - mean[i]) / (CHANGE * CHANGE * variance[i]);
            let follows = self.of_places(follows);
            let by_level = by_level(&self.seen, |n| f64::from(follows[n]) / twins.len() as f64);
            followed.iter_mut().zip(by_level).for_each(|(all, one)| *all += one);
            noise.push(self.of_places(|i| (twin.x[i] - x[i]) / CHANGE));
        }
        let looked_at = self.places.is_some().then(|| self.of_places(|i| x[i]));
        self.candidates.push_back(Candidate {
            step,
            values: x.to_vec(),
            looked_at,
            noise,
            residual,
            followed,
        });
    }

    /// Something of each pixel that is looked at.
    fn of_places(&self, of: impl Fn(usize) -> f32 + Send + Sync) -> Vec<f32> {
        match &self.places {
            None => (0..self.levels.len()).into_par_iter().map(of).collect(),
            Some(places) => places.par_iter().map(|&i| of(i)).collect(),
        }
    }

    /// Levels for which the oldest candidate is the best, as seen from the latest, take it. Then it goes.
    fn judge_oldest(&mut self) {
        let later = self.candidates.len() - 1;
        let beyond = self.ahead(0, later).map(|ahead| match ahead - TURN {
            more if more > 0.0 => self.beyond * (more / (1.0 - TURN)).min(1.0),
            less => less.max(-BACK),
        });
        let mut best = [true; LEVELS];
        let mut own = [0.0; LEVELS];
        for i in 0..later {
            let (near, far) = (self.pair(0, i), self.pair(i, later));
            for (l, counts) in self.counts.iter().enumerate() {
                let error = (1.0 + beyond[l]) * weighted(&far, counts) - beyond[l] * weighted(&near, counts);
                if i == 0 {
                    own[l] = error;
                } else {
                    best[l] &= own[l] <= error;
                }
            }
        }
        let Some(oldest) = self.candidates.pop_front() else { return };
        let takes: [bool; LEVELS] = std::array::from_fn(|l| best[l] && self.taken[l].is_none());
        if takes.contains(&true) {
            add(&mut self.result, &oldest.values, self.levels, &takes);
            for (taken, takes) in self.taken.iter_mut().zip(takes) {
                *taken = taken.or(takes.then_some(oldest.step));
            }
        }
        self.pairs.retain(|pair, _| pair.0 > oldest.step);
    }

    /// Level by level, how far from one candidate to a later one the data would go: see c in the module.
    fn ahead(&self, from: usize, to: usize) -> [f64; LEVELS] {
        let (a, b) = (&self.candidates[from], &self.candidates[to]);
        let (r, s) = (&a.residual, &b.residual);
        let way = by_level(&self.seen, |i| f64::from(s[i] - r[i]).powi(2));
        let mut gain = by_level(&self.seen, |i| f64::from(r[i] * (r[i] - s[i])));
        for (l, gain) in gain.iter_mut().enumerate() {
            *gain -= b.followed[l] - a.followed[l];
        }
        std::array::from_fn(|l| match weighted(&way, &self.counts[l]) {
            0.0 => 0.0,
            way => weighted(&gain, &self.counts[l]) / way,
        })
    }

    /// What is known of two candidates, the older first.
    fn pair(&mut self, i: usize, j: usize) -> [f64; LEVELS] {
        let (a, b) = (&self.candidates[i], &self.candidates[j]);
        *self.pairs.entry((a.step, b.step)).or_insert_with(|| sums(a, b, &self.seen))
    }
}

impl Candidate {
    fn seen(&self) -> &[f32] {
        self.looked_at.as_deref().unwrap_or(&self.values)
    }
}

/// Adds a pixel's value to the two levels that it lies between.
fn spread(sums: &mut [f64; LEVELS], level: f32, value: f64) {
    let (at, part) = (level as usize, f64::from(level.fract()));
    sums[at] += (1.0 - part) * value;
    if part > 0.0 {
        sums[at + 1] += part * value;
    }
}

/// How much each level counts for each, by how many pixels they have.
fn counts(pixels: &[f64; LEVELS], area: f64) -> Vec<[f64; LEVELS]> {
    let brightest = pixels.iter().rposition(|p| *p > 0.0).unwrap_or(0);
    // The groups of levels that are one, from the brightest down.
    let mut group = [0; LEVELS];
    let (mut now, mut places) = (0, 0.0);
    for l in (0..=brightest).rev() {
        let own = pixels[l] / area;
        if places >= PLACES || (places >= FEWEST && own > DROWNED * places) {
            (now, places) = (now + 1, 0.0);
        }
        group[l] = now;
        places += own;
    }
    if places < FEWEST && now > 0 {
        group.iter_mut().filter(|g| **g == now).for_each(|g| *g = now - 1);
    }
    let near = |a: usize, b: usize| (-0.5 * ((a as f64 - b as f64) / NEIGHBOURS).powi(2)).exp();
    let of = |l: usize, other: usize| {
        let joined = (0..=brightest).filter(|&m| group[m] == group[l]);
        SHARED + joined.map(|m| near(m, other)).sum::<f64>()
    };
    (0..LEVELS).map(|l| std::array::from_fn(|other| of(l.min(brightest), other))).collect()
}

fn weighted(of_levels: &[f64; LEVELS], counts: &[f64; LEVELS]) -> f64 {
    of_levels.iter().zip(counts).map(|(v, c)| v * c).sum()
}

/// Level by level, the squared difference of two images and twice what they have of the same noise.
fn sums(a: &Candidate, b: &Candidate, levels: &[f32]) -> [f64; LEVELS] {
    let (x, y) = (a.seen(), b.seen());
    let weight = 2.0 / a.noise.len().max(1) as f64;
    by_level(levels, |i| {
        let shared: f64 = a.noise.iter().zip(&b.noise).map(|(e, f)| f64::from(e[i] * f[i])).sum();
        f64::from(x[i] - y[i]).powi(2) + weight * shared
    })
}

/// Sums of a value over the pixels of each level; by pieces of a fixed size so that threads do not change them.
fn by_level(levels: &[f32], value: impl Fn(usize) -> f64 + Sync) -> [f64; LEVELS] {
    const PIECE: usize = 4096;
    let piece = |n: usize| {
        let mut part = [0.0; LEVELS];
        for i in n * PIECE..((n + 1) * PIECE).min(levels.len()) {
            spread(&mut part, levels[i], value(i));
        }
        part
    };
    let parts: Vec<[f64; LEVELS]> = (0..levels.len().div_ceil(PIECE)).into_par_iter().map(piece).collect();
    let mut sums = [0.0; LEVELS];
    for part in &parts {
        sums.iter_mut().zip(part).for_each(|(s, p)| *s += p);
    }
    sums
}
