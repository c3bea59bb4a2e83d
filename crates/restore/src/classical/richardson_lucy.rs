//! Richardson-Lucy deconvolution (1972, 1974): the likeliest image under Poisson noise, step by step, with a background,
//! read noise, a total-variation term and a rule for stopping.
//!
//! With m = A x + b the step is `x <- x / A'1 * A'((y + s^2) / (m + s^2))`: read noise of variance s^2 enters as a Poisson
//! process added to both sides (Snyder, 1993), and A'1 is what the detector sees of each pixel. The total-variation term
//! (Dey et al., 2006) divides by `1 - strength div(grad x / |grad x|)`.
//! Steps first restore the image and then fit the noise. Under [`Stop::Discrepancy`] they end when the residual is as large as
//! the noise: when chi2 = mean((y - m)^2 / (m + s^2)) falls to a target, 1 if the noise is known.

use crate::RestoreError;
use crate::convolve::{Convolution, Edges};
use crate::error::{require, require_not_negative, require_positive};
use crate::frame::Frame;
use clearshot_physics::{Electrons, Psf};
use rayon::prelude::*;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RichardsonLucy {
    /// Mean electrons without light.
    pub background: f32,
    /// Standard deviation of the read noise in electrons.
    pub read_noise: f32,
    /// The strength of the total-variation term, relative to the data; 0 for none, 0.002 to 0.02 usually.
    pub total_variation: f32,
    pub edges: Edges,
    pub stop: Stop,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// After so many steps.
    Steps(usize),
    /// When chi2 falls to the target or stops falling, after `most` steps at the latest.
    Discrepancy { target: f32, most: usize },
}

/// A deconvolved image and how it was come by.
#[derive(Clone, Debug, PartialEq)]
pub struct Deconvolved {
    /// Electrons without the background.
    pub values: Vec<f32>,
    pub steps: usize,
    /// Of the image before each step, and of the last one.
    pub chi2: Vec<f64>,
}

impl RichardsonLucy {
    /// Without background or read noise, stopped when the residual is as large as the noise.
    pub const USUAL: RichardsonLucy = RichardsonLucy {
        background: 0.0,
        read_noise: 0.0,
        total_variation: 0.0,
        edges: Edges::Reflect,
        stop: Stop::Discrepancy { target: 1.0, most: 200 },
    };

    /// Deconvolves electrons with a PSF of as many axes.
    ///
    /// # Errors
    /// If the shape is not filled, a pixel is not finite, the PSF has other axes, or a setting is out of its range.
    pub fn run(&self, y: Electrons<&[f32]>, shape: &[usize], psf: &Psf) -> Result<Deconvolved, RestoreError> {
        self.watched(y, shape, psf, |_, _| ())
    }

    /// As [`RichardsonLucy::run`], and shows each step's number and image.
    ///
    /// # Errors
    /// As [`RichardsonLucy::run`].
    pub fn watched(
        &self,
        y: Electrons<&[f32]>,
        shape: &[usize],
        psf: &Psf,
        mut watch: impl FnMut(usize, &[f32]),
    ) -> Result<Deconvolved, RestoreError> {
        let frame = Frame::new(y.0, shape)?;
        self.check()?;
        same_axes(psf, shape)?;
        let blur = Convolution::new(frame.size, psf, self.edges);
        let variance = self.read_noise * self.read_noise;
        let seen = blur.adjoint(&vec![1.0; frame.values.len()]);
        let mean = frame.values.iter().map(|&v| f64::from(v)).sum::<f64>() / frame.values.len() as f64;
        // Steps from any constant are the same after the first, without a background.
        let start = (mean - f64::from(self.background)).max(1e-3 * mean.abs()).max(1e-6) as f32;
        let mut x = vec![start; frame.values.len()];
        let mut chi2 = Vec::new();
        let (most, target) = match self.stop {
            Stop::Steps(n) => (n, None),
            Stop::Discrepancy { target, most } => (most, Some(f64::from(target))),
        };
        for step in 0..=most {
            let mut mean = blur.apply(&x);
            // FFTs leave rounding below zero where it is dark.
            mean.par_iter_mut().for_each(|m| *m = m.max(0.0) + self.background);
            chi2.push(residual(frame.values, &mean, variance));
            let now = chi2[step];
            let fitted =
                target.is_some_and(|t| now <= t) || (step > 0 && target.is_some() && now >= chi2[step - 1]);
            if step == most || fitted {
                return Ok(Deconvolved { values: x, steps: step, chi2 });
            }
            mean.par_iter_mut()
                .zip(frame.values)
                .for_each(|(m, y)| *m = (y + variance).max(0.0) / (*m + variance).max(TINY));
            let ratio = blur.adjoint(&mean);
            if self.total_variation > 0.0 {
                let curvature = curvature(&x, frame.size);
                x.par_iter_mut().zip(&ratio).zip(&seen).zip(&curvature).for_each(|(((x, r), s), c)| {
                    *x *= r.max(0.0) / (s - self.total_variation * c).max(TINY);
                });
            } else {
                x.par_iter_mut()
                    .zip(&ratio)
                    .zip(&seen)
                    .for_each(|((x, r), s)| *x *= r.max(0.0) / s.max(TINY));
            }
            watch(step + 1, &x);
        }
        unreachable!("the last step returns")
    }

    fn check(&self) -> Result<(), RestoreError> {
        require_not_negative("the background", self.background.into())?;
        require_not_negative("the read noise", self.read_noise.into())?;
        let tv = f64::from(self.total_variation);
        require((0.0..=0.2).contains(&tv), "the strength of the TV term", tv, "a number from 0 to 0.2")?;
        let most = match self.stop {
            Stop::Steps(n) => n,
            Stop::Discrepancy { target, most } => {
                require_positive("the target of the discrepancy", target.into())?;
                most
            }
        };
        require((1..=1_000_000).contains(&most), "the number of steps", most as f64, "1 to a million")
    }
}

/// Below this a denominator is darkness.
const TINY: f32 = 1e-12;

pub(super) fn same_axes(psf: &Psf, shape: &[usize]) -> Result<(), RestoreError> {
    let (psf, image) = (psf.shape().rank(), shape.len());
    if psf == image { Ok(()) } else { Err(RestoreError::PsfAxes { psf, image }) }
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
