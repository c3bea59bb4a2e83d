//! BM3D (Dabov, Foi, Katkovnik, Egiazarian, 2007): blocks that look alike are stacked, and the stack is filtered in
//! a transform domain where the image is sparse and the noise is not.
//!
//! Two stages of the same form. The first finds alike blocks in the noisy image and sets small coefficients to zero; the
//! second finds them in the result of the first, which also tells Wiener's filter how much of each coefficient is image.
//! Blocks of 8 x 8 pixels; a volume is taken plane by plane. Reference blocks are cut into strips of rows, each
//! with sums of its own that are added in order, so that threads do not change a bit.

mod matching;
mod transform;

use super::Reach;
use crate::RestoreError;
use crate::error::{require, require_positive};
use crate::frame::{Frame, mirror};
use crate::widest::widest;
use matching::{Found, Matcher};
use rayon::prelude::*;
use transform::{Block, SIDE, Transform, haar, haar_back};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bm3d {
    pub first: Stage,
    pub second: Stage,
    /// Coefficients below this many standard deviations of the noise are zero after the first stage.
    pub threshold: f32,
}

/// How blocks are found in one of the stages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// The most blocks of a stack, a power of two.
    pub blocks: usize,
    /// Reference blocks are this far apart along y and x.
    pub step: usize,
    /// Blocks are sought this far away along y and x.
    pub search_radius: usize,
    /// The largest mean squared difference of alike blocks, in variances of the noise.
    pub likeness: f32,
}

impl Bm3d {
    pub const USUAL: Bm3d = Bm3d {
        first: Stage { blocks: 16, step: 3, search_radius: 19, likeness: 5.0 },
        second: Stage { blocks: 32, step: 3, search_radius: 19, likeness: 1.0 },
        threshold: 2.8,
    };

    /// A pixel's value comes from blocks whose reference block is within the search, and those were chosen by what is
    /// within the search of that; so it is in either stage. Reference blocks stand on a grid, in strips.
    pub(super) fn reach(&self) -> Reach {
        let halo = [self.first, self.second].map(|s| 2 * (s.search_radius + SIDE)).iter().sum();
        Reach::Within { halo, align: STRIP * lcm(self.first.step, self.second.step) }
    }

    pub(super) fn run(&self, frame: Frame<'_>, noise: f32) -> Result<Vec<f32>, RestoreError> {
        require_positive("the threshold of BM3D", self.threshold.into())?;
        for stage in [self.first, self.second] {
            let power = stage.blocks.is_power_of_two() && stage.blocks <= MOST_BLOCKS;
            require(power, "the blocks of a BM3D stack", stage.blocks as f64, "a power of two up to 64")?;
            let step = (1..=SIDE).contains(&stage.step);
            require(step, "the step of BM3D's blocks", stage.step as f64, "a whole number from 1 to 8")?;
            let near = stage.search_radius <= 100;
            require(near, "BM3D's search radius", stage.search_radius as f64, "a whole number up to 100")?;
            require_positive("the likeness of BM3D's blocks", stage.likeness.into())?;
        }
        let mut out = Vec::with_capacity(frame.values.len());
        for z in 0..frame.size[0] {
            out.extend(self.plane(frame.plane(z), [frame.size[1], frame.size[2]], noise));
        }
        Ok(out)
    }

    fn plane(&self, noisy: &[f32], size: [usize; 2], noise: f32) -> Vec<f32> {
        if size.iter().any(|&n| n < SIDE) {
            // A plane narrower than a block is mirrored until it holds one.
            let wide = size.map(|n| n.max(SIDE));
            let at = |i: usize| {
                mirror((i / wide[1]) as isize, size[0]) * size[1] + mirror((i % wide[1]) as isize, size[1])
            };
            let larger: Vec<f32> = (0..wide[0] * wide[1]).map(|i| noisy[at(i)]).collect();
            let done = self.plane(&larger, wide, noise);
            return (0..size[0] * size[1]).map(|i| done[i / size[1] * wide[1] + i % size[1]]).collect();
        }
        let stage = |stage: &Stage, guide: &[f32], filter: Filter| {
            let limit = stage.likeness * noise * noise * (SIDE * SIDE) as f32;
            Pass { noisy, guide, size, stage: *stage, limit, noise, filter }.run()
        };
        let hard = Filter { transform: &transform::WAVELET, threshold: Some(self.threshold * noise) };
        let basic = stage(&self.first, noisy, hard);
        stage(&self.second, &basic, Filter { transform: &transform::COSINE, threshold: None })
    }
}

fn lcm(a: usize, b: usize) -> usize {
    (1..=b).map(|k| a * k).find(|m| m.is_multiple_of(b)).unwrap_or(a)
}

const MOST_BLOCKS: usize = 64;
/// Rows of reference blocks in a strip.
const STRIP: usize = 8;

/// How a stack is filtered: by a threshold, or after the guide's stack.
#[derive(Clone, Copy)]
struct Filter {
    transform: &'static Transform,
    threshold: Option<f32>,
}

struct Pass<'a> {
    noisy: &'a [f32],
    guide: &'a [f32],
    size: [usize; 2],
    stage: Stage,
    /// The largest sum of squared differences of alike blocks.
    limit: f32,
    noise: f32,
    filter: Filter,
}

/// Weighted sums of filtered blocks over some rows of the image.
struct Sums {
    first_row: usize,
    values: Vec<f32>,
    weights: Vec<f32>,
}

impl Pass<'_> {
    fn run(&self) -> Vec<f32> {
        let [height, width] = self.size;
        let places = |n: usize| {
            let last = n - SIDE;
            let mut at: Vec<usize> = (0..=last).step_by(self.stage.step).collect();
            if at.last() != Some(&last) {
                at.push(last);
            }
            at
        };
        let (rows, columns) = (places(height), places(width));
        let strips: Vec<Sums> =
            rows.par_chunks(STRIP).map(|rows| widest(|| self.strip(rows, &columns))).collect();
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
    fn strip(&self, rows: &[usize], columns: &[usize]) -> Sums {
        let [height, width] = self.size;
        let reach = self.stage.search_radius;
        let first_row = rows[0].saturating_sub(reach);
        let last_row = (rows[rows.len() - 1] + reach + SIDE).min(height);
        let n = (last_row - first_row) * width;
        let mut sums = Sums { first_row, values: vec![0.0; n], weights: vec![0.0; n] };
        let mut matcher = Matcher::new(self.guide, self.size, reach, self.stage.blocks, self.limit);
        let mut stacks = Stacks::new();
        for &y in rows {
            matcher.row(y, columns);
            for (i, &x) in columns.iter().enumerate() {
                self.stack(matcher.found(i), [y, x], &mut stacks, &mut sums);
            }
        }
        sums
    }

    /// Filters one stack and adds it to the sums.
    #[inline(always)]
    fn stack(&self, found: Found<'_>, at: [usize; 2], stacks: &mut Stacks, sums: &mut Sums) {
        let width = self.size[1];
        let n = 1 << found.len().ilog2();
        let transform = self.filter.transform;
        let place = |k: usize| {
            let [dy, dx] = found.displacement(k);
            [at[0].wrapping_add_signed(dy), at[1].wrapping_add_signed(dx)]
        };
        let noisy = &mut stacks.noisy[..n];
        for (k, block) in noisy.iter_mut().enumerate() {
            let [y, x] = place(k);
            *block = transform.forward(&cut(self.noisy, width, y, x));
        }
        haar(noisy);
        // The mean of the stack is neither cut nor shrunk, so that adding a constant to the image adds it to the result.
        let mean = noisy[0][0];
        let weight = match self.filter.threshold {
            Some(limit) => {
                let kept = keep_above(noisy, limit);
                1.0 / kept.max(1) as f32
            }
            None => {
                let guide = &mut stacks.guide[..n];
                for (k, block) in guide.iter_mut().enumerate() {
                    let [y, x] = place(k);
                    *block = transform.forward(&cut(self.guide, width, y, x));
                }
                haar(guide);
                let squares = shrink(noisy, guide, self.noise * self.noise);
                1.0 / squares.max(1e-6)
            }
        };
        noisy[0][0] = mean;
        haar_back(noisy);
        for (k, block) in noisy.iter().enumerate() {
            let [y, x] = place(k);
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
    noisy: Box<[Block; MOST_BLOCKS]>,
    guide: Box<[Block; MOST_BLOCKS]>,
}

impl Stacks {
    fn new() -> Stacks {
        let zero = || Box::new([[0f32; SIDE * SIDE]; MOST_BLOCKS]);
        Stacks { noisy: zero(), guide: zero() }
    }
}

#[inline(always)]
fn cut(image: &[f32], width: usize, y: usize, x: usize) -> Block {
    let mut block = [0f32; SIDE * SIDE];
    for (r, row) in block.chunks_exact_mut(SIDE).enumerate() {
        row.copy_from_slice(&image[(y + r) * width + x..][..SIDE]);
    }
    block
}

/// Sets coefficients below the limit to zero and counts the others.
#[inline(always)]
fn keep_above(stack: &mut [Block], limit: f32) -> u32 {
    let mut kept = 0;
    for block in stack {
        for c in block.iter_mut() {
            let large = c.abs() >= limit;
            kept += u32::from(large);
            *c = if large { *c } else { 0.0 };
        }
    }
    kept
}

/// Wiener's filter with the guide's power; gives the sum of the squared factors.
#[inline(always)]
fn shrink(stack: &mut [Block], guide: &[Block], variance: f32) -> f32 {
    let mut squares = [0f32; SIDE];
    for (block, guide) in stack.iter_mut().zip(guide) {
        for (row, guide) in block.chunks_exact_mut(SIDE).zip(guide.chunks_exact(SIDE)) {
            for i in 0..SIDE {
                let power = guide[i] * guide[i];
                let factor = power / (power + variance);
                row[i] *= factor;
                squares[i] += factor * factor;
            }
        }
    }
    squares.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// A stack of few coefficients says more of its blocks than one of many, which has kept noise with them: beside something
    /// strong, what is flat stays flatter than under equal weights.
    #[test]
    fn stacks_of_few_coefficients_count_more() {
        let (height, width) = (48, 64);
        let key = Key { seed: 12, step: 0, stream: 0 };
        let truth =
            |i: usize| if i % width < 32 { 10.0 } else { 10.0 + 30.0 * key.normal((1 << 20) + i as u64) };
        let noisy: Vec<f32> = (0..height * width).map(|i| truth(i) + key.normal(i as u64)).collect();
        let settings = Bm3d::USUAL;
        let limit = settings.first.likeness * (SIDE * SIDE) as f32;
        let filter = Filter { transform: &transform::WAVELET, threshold: Some(settings.threshold) };
        let size = [height, width];
        let out =
            Pass { noisy: &noisy, guide: &noisy, size, stage: settings.first, limit, noise: 1.0, filter }
                .run();
        let near = (0..height * width).filter(|i| (25..32).contains(&(i % width)));
        let square = near.map(|i| (out[i] - 10.0).powi(2)).sum::<f32>() / (7 * height) as f32;
        assert!(square < 0.02, "{square}");
    }
}
