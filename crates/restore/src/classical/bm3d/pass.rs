//! A BM3D stage over a plane: the stack of every reference block is found, filtered, and added to the result with a
//! weight that depends on the remaining noise. Rows of reference blocks are divided into strips with separate sums that
//! are added in order, so that the result is bit-identical for any number of threads.

use super::filter::{Rule, keep_above, keep_above_each, shrink, shrink_each};
use super::matching::{Found, Matcher, Search};
use super::transform::{self, Block, SIDE, Transform, haar, haar_back};
use super::variance::Covariances;
use super::{Noise, Stage};
use crate::widest::widest;
use rayon::prelude::*;

/// The most blocks of a stack.
pub(super) const MOST_BLOCKS: usize = 64;
/// Rows of reference blocks in a strip.
pub(super) const STRIP: usize = 8;

/// What is seen and what tells which blocks are alike.
pub(super) struct Images<'a> {
    pub noisy: &'a [f32],
    pub guide: &'a [f32],
    pub size: [usize; 2],
}

/// One of the stages, in a given noise.
pub(super) struct Pass {
    step: usize,
    search: Search,
    transform: &'static Transform,
    rule: Rule,
    /// Of a pixel's noise.
    deviation: f32,
    variance: f32,
    /// None in white noise.
    covariances: Option<Covariances>,
}

/// Weighted sums of filtered blocks over some rows of the image.
struct Sums {
    first_row: usize,
    values: Vec<f32>,
    weights: Vec<f32>,
}

impl Pass {
    pub fn new(stage: &Stage, transform: &'static Transform, rule: Rule, noise: &Noise) -> Pass {
        let variance = noise.variance();
        let white = noise.correlation.is_white();
        let covariances = (!white).then(|| Covariances::new(transform, noise));
        let reach = stage.search_radius as isize;
        // Blocks that are near share some of their noise and seem more alike than they are, by this.
        let bias = |d: usize| {
            let [dy, dx] = [d as isize / (2 * reach + 1) - reach, d as isize % (2 * reach + 1) - reach];
            let shared = if white { 0.0 } else { noise.correlation.at(dy, dx) as f32 };
            2.0 * shared * variance * (SIDE * SIDE) as f32
        };
        let search = Search {
            reach: stage.search_radius,
            most: stage.blocks,
            limit: stage.likeness * variance * (SIDE * SIDE) as f32,
            bias: (0..(2 * stage.search_radius + 1).pow(2)).map(bias).collect(),
        };
        Pass { step: stage.step, search, transform, rule, deviation: noise.deviation, variance, covariances }
    }

    pub fn run(&self, images: &Images<'_>) -> Vec<f32> {
        let [height, width] = images.size;
        let places = |n: usize| {
            let last = n - SIDE;
            let mut at: Vec<usize> = (0..=last).step_by(self.step).collect();
            if at.last() != Some(&last) {
                at.push(last);
            }
            at
        };
        let (rows, columns) = (places(height), places(width));
        let strips: Vec<Sums> =
            rows.par_chunks(STRIP).map(|rows| widest(|| self.strip(images, rows, &columns))).collect();
        let mut values = vec![0f32; height * width];
        let mut weights = vec![0f32; height * width];
        for strip in &strips {
            let first = strip.first_row * width;
            values[first..].iter_mut().zip(&strip.values).for_each(|(v, s)| *v += s);
            weights[first..].iter_mut().zip(&strip.weights).for_each(|(w, s)| *w += s);
        }
        values.iter().zip(&weights).map(|(v, w)| v / w).collect()
    }

    /// Filters the stacks of the reference blocks at some rows.
    #[inline(always)]
    fn strip(&self, images: &Images<'_>, rows: &[usize], columns: &[usize]) -> Sums {
        let [height, width] = images.size;
        let reach = self.search.reach;
        let first_row = rows[0].saturating_sub(reach);
        let last_row = (rows[rows.len() - 1] + reach + SIDE).min(height);
        let n = (last_row - first_row) * width;
        let mut sums = Sums { first_row, values: vec![0.0; n], weights: vec![0.0; n] };
        let mut matcher = Matcher::new(images.guide, images.size, &self.search);
        let mut stacks = Stacks::new();
        for &y in rows {
            matcher.row(y, columns);
            for (i, &x) in columns.iter().enumerate() {
                self.stack(images, matcher.found(i), [y, x], &mut stacks, &mut sums);
            }
        }
        sums
    }

    /// Filters one stack and adds it to the sums.
    #[inline(always)]
    fn stack(
        &self,
        images: &Images<'_>,
        found: Found<'_>,
        at: [usize; 2],
        stacks: &mut Stacks,
        sums: &mut Sums,
    ) {
        let width = images.size[1];
        let n = 1 << found.len().ilog2();
        let transform = self.transform;
        let Stacks { places, noisy, guide, variances } = stacks;
        let (places, noisy) = (&mut places[..n], &mut noisy[..n]);
        for (k, place) in places.iter_mut().enumerate() {
            let [dy, dx] = found.displacement(k);
            *place = [at[0].wrapping_add_signed(dy), at[1].wrapping_add_signed(dx)];
        }
        transformed(transform, images.noisy, width, places, noisy);
        // The mean of the stack is neither cut nor shrunk, so that adding a constant to the image adds it to the result.
        let mean = noisy[0][0];
        if let Some(covariances) = &self.covariances {
            covariances.of_stack(places, &mut variances[..n]);
        }
        // Stacks count by how little noise is left in them.
        let weight = match (self.rule, &self.covariances) {
            (Rule::Threshold(limit), None) => 1.0 / keep_above(noisy, limit * self.deviation).max(1) as f32,
            (Rule::Threshold(limit), Some(_)) => {
                let kept = keep_above_each(noisy, &variances[..n], limit * limit);
                self.variance / kept.max(variances[0][0])
            }
            (Rule::Wiener(power), covariances) => {
                let guide = &mut guide[..n];
                transformed(transform, images.guide, width, places, guide);
                match covariances {
                    None => 1.0 / shrink(noisy, guide, power * self.variance).max(1e-6),
                    Some(_) => {
                        let left = shrink_each(noisy, guide, &variances[..n], power);
                        1.0 / (left / self.variance).max(1e-6)
                    }
                }
            }
        };
        noisy[0][0] = mean;
        haar_back(noisy);
        for (block, &[y, x]) in noisy.iter().zip(&*places) {
            let restored = transform.backward(block);
            let first = (y - sums.first_row) * width + x;
            for r in 0..SIDE {
                let window = &transform::WINDOW[r * SIDE..][..SIDE];
                let values = &mut sums.values[first + r * width..][..SIDE];
                let row = &restored[r * SIDE..][..SIDE];
                values.iter_mut().zip(row).zip(window).for_each(|((s, v), w)| *s += weight * w * v);
                let weights = &mut sums.weights[first + r * width..][..SIDE];
                weights.iter_mut().zip(window).for_each(|(s, w)| *s += weight * w);
            }
        }
    }
}

/// Memory for the stacks of one strip.
struct Stacks {
    places: [[usize; 2]; MOST_BLOCKS],
    noisy: Box<[Block; MOST_BLOCKS]>,
    guide: Box<[Block; MOST_BLOCKS]>,
    /// Of the noise in each coefficient.
    variances: Box<[Block; MOST_BLOCKS]>,
}

impl Stacks {
    fn new() -> Stacks {
        let zero = || Box::new([[0f32; SIDE * SIDE]; MOST_BLOCKS]);
        Stacks { places: [[0; 2]; MOST_BLOCKS], noisy: zero(), guide: zero(), variances: zero() }
    }
}

/// The coefficients of a stack with blocks at these places.
#[inline(always)]
fn transformed(by: &Transform, image: &[f32], width: usize, places: &[[usize; 2]], stack: &mut [Block]) {
    for (block, &place) in stack.iter_mut().zip(places) {
        *block = by.forward(&cut(image, width, place));
    }
    haar(stack);
}

#[inline(always)]
fn cut(image: &[f32], width: usize, [y, x]: [usize; 2]) -> Block {
    let mut block = [0f32; SIDE * SIDE];
    for (r, row) in block.chunks_exact_mut(SIDE).enumerate() {
        row.copy_from_slice(&image[(y + r) * width + x..][..SIDE]);
    }
    block
}
