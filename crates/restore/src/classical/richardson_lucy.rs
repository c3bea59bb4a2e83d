//! Richardson-Lucy deconvolution (1972, 1974): iterative maximum likelihood for Poisson noise, with a background, read
//! noise, a total-variation term and a stopping rule.
//!
//! With m = A x + b the step is `x <- x / A'1 * A'((y + s^2) / (m + s^2))`: read noise of variance s^2 enters as a Poisson
//! process added to both sides (Snyder, 1993), and A'1 is the share of each pixel's light that reaches the detector.
//! The total-variation term (Dey et al., 2006) divides by `1 - strength div(grad x / |grad x|)`. The iteration first
//! restores the image and then fits the noise. There are two stopping rules, with chi2 = mean((y - m)^2 / (m + s^2)).
//! [`Stop::Discrepancy`] stops when chi2 falls to a target. The true image has 1, but an estimate with this residual
//! has already fitted some of the noise, so 1 stops early. [`Stop::Predicted`] predicts the error of the image itself,
//! from twins that are deconvolved from slightly perturbed data (Ramani, Blu, Unser, 2008) and from later steps. It
//! does so separately for bright and dark regions, because bright ones need more steps: the result is a mixture of
//! steps that depends on the brightness of a pixel; see `stopping.rs`.
//!
//! Correlated noise does not change the steps, nor the mean of chi2, which only has a larger variance. It does change
//! which step is best, because it has more power at the frequencies that the steps restore: the perturbation of the
//! twins is therefore correlated too.

use super::Reach;
pub use super::stopping::Levels;
use super::stopping::{self, CHANGE, Data, Judge, LOOK, Twin};
use crate::RestoreError;
use crate::convolve::{Convolution, Edges};
use crate::error::{require, require_not_negative, require_positive};
use crate::frame::Frame;
use clearshot_physics::correlation::FILTER;
use clearshot_physics::{Correlation, Electrons, PhysicsError, Psf};
use clearshot_tensor::Shape;
use clearshot_tensor::noise::Key;
use rayon::prelude::*;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RichardsonLucy {
    /// Mean electrons of the background.
    pub background: f32,
    /// Standard deviation of the read noise in electrons.
    pub read_noise: f32,
    /// The correlation of the noise between neighbouring pixels, along Y and X.
    pub correlation: Correlation,
    /// The strength of the total-variation term, relative to the data; 0 for none, 0.002 to 0.02 usually.
    pub total_variation: f32,
    pub edges: Edges,
    /// Whether to compensate for light that falls outside the image. Without this and with dark edges, the steps are
    /// those of scikit-image.
    pub make_up_for_edges: bool,
    /// Electrons of the uniform initial image, for tiles of an image that must start alike. Default: the mean above the
    /// background.
    pub start: Option<f32>,
    pub stop: Stop,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// After this many steps.
    Steps(usize),
    /// When chi2 falls to the target or stops falling, after `most` steps at the latest.
    Discrepancy { target: f32, most: usize },
    /// At the step with the smallest predicted error among the first `most`, later in bright regions. Three quarters
    /// more steps are made than the result has, and each costs twice as much (more in images below 512 x 512).
    Predicted { most: usize },
    /// At the steps that [`Stop::Predicted`] found for another tile of the same image.
    Levels(Levels),
}

/// A deconvolved image with its number of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Deconvolved {
    /// Electrons without the background.
    pub values: Vec<f32>,
    /// The largest number of steps of any pixel.
    pub steps: usize,
    /// The number of steps for each brightness level, if they differ.
    pub levels: Option<Levels>,
    /// chi2 of the initial image and after each step made, which may be more than the result has.
    pub chi2: Vec<f64>,
}

impl RichardsonLucy {
    /// Without background or read noise, stopped at the smallest predicted error.
    pub const USUAL: RichardsonLucy = RichardsonLucy {
        background: 0.0,
        read_noise: 0.0,
        correlation: Correlation::WHITE,
        total_variation: 0.0,
        edges: Edges::Reflect,
        make_up_for_edges: true,
        start: None,
        stop: Stop::Predicted { most: 300 },
    };

    /// The surroundings that tiles need: steps carry light further than one PSF, with decreasing amounts.
    pub fn reach(psf: &Psf) -> Reach {
        let widest = psf.shape().iter().max().copied().unwrap_or(1);
        Reach::Fading { overlap: (2 * widest).max(32) }
    }

    /// Deconvolves electrons with a PSF that has the same number of axes.
    ///
    /// # Errors
    /// If the shape is not filled, a pixel is not finite, the PSF has other axes or is larger than the image,
    /// or a setting is out of its range.
    pub fn run(&self, y: Electrons<&[f32]>, shape: &[usize], psf: &Psf) -> Result<Deconvolved, RestoreError> {
        self.watched(y, shape, psf, |_, _| ())
    }

    /// As [`RichardsonLucy::run`], with a separate background for each pixel, in mean electrons.
    ///
    /// # Errors
    /// As [`RichardsonLucy::run`], and if their number differs from that of the pixels, or one is not finite or
    /// negative.
    pub fn run_over(
        &self,
        background: Option<&[f32]>,
        y: Electrons<&[f32]>,
        shape: &[usize],
        psf: &Psf,
    ) -> Result<Deconvolved, RestoreError> {
        if let Some(map) = background {
            Frame::new(map, shape)?;
            let least = map.iter().copied().fold(f32::INFINITY, f32::min);
            require_not_negative("the background", least.into())?;
        }
        self.steps(background, y, shape, psf, |_, _| ())
    }

    /// The initial value for an image with this mean. Without a background, steps from any constant are the same after
    /// the first.
    pub fn start_of(&self, mean: f64) -> f32 {
        (mean - f64::from(self.background)).max(1e-3 * mean.abs()).max(1e-6) as f32
    }

    /// As [`RichardsonLucy::run`], and passes the number and image of each step to a function.
    ///
    /// # Errors
    /// As [`RichardsonLucy::run`].
    pub fn watched(
        &self,
        y: Electrons<&[f32]>,
        shape: &[usize],
        psf: &Psf,
        watch: impl FnMut(usize, &[f32]),
    ) -> Result<Deconvolved, RestoreError> {
        self.steps(None, y, shape, psf, watch)
    }

    fn steps(
        &self,
        background: Option<&[f32]>,
        y: Electrons<&[f32]>,
        shape: &[usize],
        psf: &Psf,
        mut watch: impl FnMut(usize, &[f32]),
    ) -> Result<Deconvolved, RestoreError> {
        let frame = Frame::new(y.0, shape)?;
        self.check()?;
        check_psf(psf, shape)?;
        let blur = Convolution::new(frame.size, psf, self.edges);
        let pixels = frame.values.len();
        let ones = vec![1.0; pixels];
        let seen = if self.make_up_for_edges { blur.adjoint(&ones) } else { ones };
        let mean = || frame.values.iter().map(|&v| f64::from(v)).sum::<f64>() / pixels as f64;
        let start = self.start.unwrap_or_else(|| self.start_of(mean()));
        let run = Run { settings: self, background, y: frame.values, size: frame.size, blur, seen, start };
        match self.stop {
            Stop::Steps(_) | Stop::Discrepancy { .. } => Ok(run.plain(&mut watch)),
            Stop::Predicted { most } => Ok(run.predicted(most, psf, &mut watch)),
            Stop::Levels(levels) => Ok(run.by_level(&levels, &mut watch)),
        }
    }

    fn check(&self) -> Result<(), RestoreError> {
        require_not_negative("the background", self.background.into())?;
        require_not_negative("the read noise", self.read_noise.into())?;
        let tv = f64::from(self.total_variation);
        require((0.0..=0.2).contains(&tv), "the strength of the TV term", tv, "a number from 0 to 0.2")?;
        if let Stop::Discrepancy { target, .. } = self.stop {
            require_positive("the target of the discrepancy", target.into())?;
        }
        let most = self.stop.most();
        require((1..=1_000_000).contains(&most), "the number of steps", most as f64, "1 to a million")
    }
}

impl Stop {
    fn most(&self) -> usize {
        match *self {
            Stop::Steps(n) | Stop::Discrepancy { most: n, .. } | Stop::Predicted { most: n } => n,
            Stop::Levels(levels) => levels.most(),
        }
    }
}

/// What stays the same from step to step.
struct Run<'a> {
    settings: &'a RichardsonLucy,
    /// Of each pixel, where it is not the same everywhere.
    background: Option<&'a [f32]>,
    y: &'a [f32],
    size: [usize; 3],
    blur: Convolution,
    seen: Vec<f32>,
    /// What every pixel begins with.
    start: f32,
}

/// An image on its way.
struct Walk<'a> {
    run: &'a Run<'a>,
    x: Vec<f32>,
    steps: usize,
    chi2: Vec<f64>,
    watch: &'a mut dyn FnMut(usize, &[f32]),
}

impl Walk<'_> {
    /// Goes one step on.
    fn step(&mut self) {
        let mean = self.look();
        self.go(mean);
    }

    fn go(&mut self, mean: Vec<f32>) {
        self.run.step(&mut self.x, self.run.y, mean);
        self.steps += 1;
        (self.watch)(self.steps, &self.x);
    }

    /// What the image predicts; its chi2 is noted.
    fn look(&mut self) -> Vec<f32> {
        let mean = self.run.mean(&self.x);
        let variance = self.run.settings.read_noise * self.run.settings.read_noise;
        self.chi2.truncate(self.steps);
        self.chi2.push(residual(self.run.y, &mean, variance));
        mean
    }
}

impl Run<'_> {
    fn walk<'a>(&'a self, watch: &'a mut dyn FnMut(usize, &[f32])) -> Walk<'a> {
        Walk { run: self, x: vec![self.start; self.y.len()], steps: 0, chi2: Vec::new(), watch }
    }

    /// So many steps, or until chi2 falls to a target.
    fn plain(&self, watch: &mut dyn FnMut(usize, &[f32])) -> Deconvolved {
        let mut walk = self.walk(watch);
        loop {
            let mean = walk.look();
            let now = walk.chi2[walk.steps];
            let fits = match self.settings.stop {
                Stop::Discrepancy { target, .. } => {
                    now <= f64::from(target) || (walk.steps > 0 && now >= walk.chi2[walk.steps - 1])
                }
                _ => false,
            };
            if fits || walk.steps == self.settings.stop.most() {
                return Deconvolved { values: walk.x, steps: walk.steps, levels: None, chi2: walk.chi2 };
            }
            walk.go(mean);
        }
    }

    /// The steps of the least predicted error; see `stopping.rs`.
    fn predicted(&self, most: usize, psf: &Psf, watch: &mut dyn FnMut(usize, &[f32])) -> Deconvolved {
        let mut walk = self.walk(watch);
        let (mut first, mean) = self.first_steps(&mut walk);
        let levels = self.levels(&mean);
        let sharpness: f64 = psf.values().iter().map(|v| v * v).sum();
        let axes = psf.shape().iter().filter(|n| **n > 1).count().max(1);
        let read = self.settings.read_noise * self.settings.read_noise;
        let variance: Vec<f32> = mean.iter().map(|m| (m + read).max(TINY)).collect();
        let data = Data { y: self.y, variance: &variance };
        let mut judge = Judge::new(data, &levels, 1.0 / sharpness, axes);
        let mut twins: Vec<Twin> = (0..twins(self.y.len())).map(|t| self.twin(t, &variance)).collect();
        for step in 1..=most {
            if step > LOOK {
                walk.step();
            }
            for twin in &mut twins {
                let mean = self.mean(&twin.x);
                self.step(&mut twin.x, &twin.y, mean);
            }
            let early = first.get_mut(step - 1).map(std::mem::take);
            let x = early.as_deref().unwrap_or(&walk.x);
            if judge.see(step, x, &twins, |x| self.mean(x), step == most) {
                break;
            }
        }
        walk.look();
        let (levels, values) = judge.result();
        Deconvolved { values, steps: levels.most(), levels: Some(levels), chi2: walk.chi2 }
    }

    /// Steps by the light of each pixel.
    fn by_level(&self, table: &Levels, watch: &mut dyn FnMut(usize, &[f32])) -> Deconvolved {
        let mut walk = self.walk(watch);
        let (first, mean) = self.first_steps(&mut walk);
        let levels = self.levels(&mean);
        let mut values = vec![0.0; self.y.len()];
        for step in 1..=table.most() {
            if step > LOOK {
                walk.step();
            }
            let takes = table.takes(step);
            if takes.contains(&true) {
                let x = first.get(step - 1).unwrap_or(&walk.x);
                stopping::add(&mut values, x, &levels, &takes);
            }
        }
        walk.look();
        Deconvolved { values, steps: table.most(), levels: Some(*table), chi2: walk.chi2 }
    }

    /// The images of the steps after which levels are told apart, and what the last of them predicts.
    fn first_steps(&self, walk: &mut Walk<'_>) -> (Vec<Vec<f32>>, Vec<f32>) {
        let mut first = Vec::with_capacity(LOOK);
        for _ in 0..LOOK {
            walk.step();
            first.push(walk.x.clone());
        }
        (first, walk.look())
    }

    /// The level of each pixel, by what the image predicts, blurred once more lest noise decides.
    fn levels(&self, mean: &[f32]) -> Vec<f32> {
        let read_noise = self.settings.read_noise;
        let light: Vec<f32> = mean.par_iter().enumerate().map(|(i, m)| m - self.background_at(i)).collect();
        let mut levels = self.mean(&light);
        let level = |(i, m): (usize, &mut f32)| {
            *m = stopping::level(*m, self.background_at(i), read_noise * read_noise);
        };
        levels.par_iter_mut().enumerate().for_each(level);
        levels
    }

    /// The measurement that an image would give without noise.
    fn mean(&self, x: &[f32]) -> Vec<f32> {
        let mut mean = self.blur.apply(x);
        // FFTs leave rounding below zero where it is dark.
        let add = |(i, m): (usize, &mut f32)| *m = m.max(0.0) + self.background_at(i);
        mean.par_iter_mut().enumerate().for_each(add);
        mean
    }

    fn background_at(&self, pixel: usize) -> f32 {
        self.background.map_or(self.settings.background, |map| map[pixel])
    }

    /// One step of x, whose mean is given.
    fn step(&self, x: &mut [f32], y: &[f32], mut mean: Vec<f32>) {
        let variance = self.settings.read_noise * self.settings.read_noise;
        let strength = self.settings.total_variation;
        mean.par_iter_mut()
            .zip(y)
            .for_each(|(m, y)| *m = (y + variance).max(0.0) / (*m + variance).max(TINY));
        let ratio = self.blur.adjoint(&mean);
        if strength > 0.0 {
            let curvature = curvature(x, self.size);
            x.par_iter_mut().zip(&ratio).zip(&self.seen).zip(&curvature).for_each(|(((x, r), s), c)| {
                *x *= r.max(0.0) / (s - strength * c).max(TINY);
            });
        } else {
            x.par_iter_mut()
                .zip(&ratio)
                .zip(&self.seen)
                .for_each(|((x, r), s)| *x *= r.max(0.0) / s.max(TINY));
        }
    }

    /// A twin before its first step: a random sign in each pixel changes its data, correlated as the noise is.
    fn twin(&self, number: usize, variance: &[f32]) -> Twin {
        let key = Key { seed: 0x7111, step: 0, stream: number as u32 };
        let sign = |i: usize| if key.block(i as u64)[0] & 1 == 0 { 1.0 } else { -1.0 };
        let signs: Vec<f32> = (0..self.y.len()).into_par_iter().map(sign).collect();
        let unit = correlated(signs, self.size, &self.settings.correlation);
        let other = |((n, v), y): ((&f32, &f32), &f32)| y + n * CHANGE * v.sqrt();
        let y = unit.par_iter().zip(variance).zip(self.y).map(other).collect();
        Twin { x: vec![self.start; self.y.len()], y }
    }
}

/// White noise made to have a correlation, plane by plane, mirrored at the edges.
fn correlated(white: Vec<f32>, size: [usize; 3], correlation: &Correlation) -> Vec<f32> {
    if correlation.is_white() {
        return white;
    }
    let taps: Vec<f32> = correlation.filter().iter().map(|&t| t as f32).collect();
    let frame = Frame { values: &white, size };
    let (padded, wide) = frame.mirrored([0, FILTER / 2, FILTER / 2]);
    let [_, height, width] = size;
    // An axis of one pixel is not mirrored and has the middle of the filter alone.
    let across = |n: usize| if n > 1 { 0..FILTER } else { FILTER / 2..FILTER / 2 + 1 };
    let (down, along) = (across(height), across(width));
    let mut out = vec![0f32; white.len()];
    out.par_chunks_mut(width).enumerate().for_each(|(row, out)| {
        let first = row / height * wide[1] + row % height;
        for v in down.clone() {
            let line = &padded[(first + v - down.start) * wide[2]..][..wide[2]];
            for u in along.clone() {
                let tap = taps[v * FILTER + u];
                out.iter_mut().zip(&line[u - along.start..]).for_each(|(o, n)| *o += tap * n);
            }
        }
    });
    out
}

/// How many twins an image of so many pixels has: the fewer pixels, the more does chance weigh.
fn twins(pixels: usize) -> usize {
    (MANY / pixels.max(1)).clamp(1, 16)
}

/// Images of more pixels than half of this have one twin.
const MANY: usize = 1 << 18;
/// Below this a denominator is darkness.
const TINY: f32 = 1e-12;

/// A PSF has the image's axes and is not larger.
pub(super) fn check_psf(psf: &Psf, shape: &[usize]) -> Result<(), RestoreError> {
    let size = psf.shape();
    if size.rank() != shape.len() {
        return Err(RestoreError::PsfAxes { psf: size.rank(), image: shape.len() });
    }
    if size.iter().zip(shape).any(|(p, n)| p > n) {
        return Err(PhysicsError::PsfTooLarge { psf: size, image: Shape::new(shape) }.into());
    }
    Ok(())
}

/// chi2, summed by pieces of a fixed size so that threads do not change it.
fn residual(y: &[f32], mean: &[f32], variance: f32) -> f64 {
    const PIECE: usize = 4096;
    let parts: Vec<f64> = y
        .par_chunks(PIECE)
        .zip(mean.par_chunks(PIECE))
        .map(|(y, m)| {
            let one = |(y, m): (&f32, &f32)| f64::from((y - m) * (y - m) / (m + variance).max(TINY));
            y.iter().zip(m).map(one).sum::<f64>()
        })
        .collect();
    parts.iter().sum::<f64>() / y.len() as f64
}

/// div(grad x / |grad x|) with differences ahead for the gradient and behind for the divergence.
fn curvature(x: &[f32], size: [usize; 3]) -> Vec<f32> {
    let strides = [size[1] * size[2], size[2], 1];
    // Where x is flat the direction has no meaning; the length is kept off zero by a part of the mean.
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
    let least = ((1e-3 * mean) as f32).powi(2).max(1e-30);
    let unit: Vec<[f32; 3]> = (0..x.len())
        .into_par_iter()
        .map(|i| {
            let slope = [0, 1, 2].map(|a| {
                let inside = i / strides[a] % size[a] + 1 < size[a];
                if inside { x[i + strides[a]] - x[i] } else { 0.0 }
            });
            let length = (slope.iter().map(|s| s * s).sum::<f32>() + least).sqrt();
            slope.map(|s| s / length)
        })
        .collect();
    (0..x.len())
        .into_par_iter()
        .map(|i| {
            let along = |a: usize| {
                let first = (i / strides[a]).is_multiple_of(size[a]);
                let before = if first { 0.0 } else { unit[i - strides[a]][a] };
                unit[i][a] - before
            };
            along(0) + along(1) + along(2)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A divergence moves values and makes none: whatever the image, over all pixels it adds up to nothing.
    #[test]
    fn the_total_variation_term_makes_no_light() {
        for size in [[1, 9, 11], [4, 5, 6], [1, 1, 20]] {
            let n = size.iter().product::<usize>();
            let mut x = vec![0f32; n];
            Key { seed: 8, step: 0, stream: 0 }.fill_uniform(0, &mut x);
            let terms = curvature(&x, size);
            let sum: f64 = terms.iter().map(|&c| f64::from(c)).sum();
            assert!(sum.abs() < 1e-4 && terms.iter().any(|c| c.abs() > 0.1), "{size:?}: {sum}");
        }
        assert_eq!(curvature(&[3.0; 12], [1, 3, 4]), [0.0; 12]);
    }
}
