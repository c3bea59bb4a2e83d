//! Total variation: the image u that minimises `sum |grad u| + |u - f|^2 / (2 weight)` (Rudin, Osher, Fatemi, 1992),
//! with Chambolle's projection (2004).
//!
//! The dual field p, with one number per axis and pixel, is updated by `p <- (p - t grad u) / (1 + t |grad u| /
//! weight)`, and u is f minus the divergence of p. Steps and stopping rule are those of scikit-image's
//! `denoise_tv_chambolle`, so that the two agree.
//!
//! The weight depends only on the standard deviation of the noise. The best weight is the same in correlated noise
//! (smoothed by up to 1.2 pixels) as in white noise, 0.6 to 0.9 standard deviations. More of the correlated noise
//! remains, which no weight changes.
//!
//! A step propagates information by one pixel. After n steps, pixels at a distance of more than n have no influence, so
//! tiles that take the same number of steps are bit-identical to the whole image; [`TotalVariation::settled`] finds
//! that number.

use crate::RestoreError;
use crate::error::{require, require_positive};
use crate::frame::Frame;
use rayon::prelude::*;
use std::ops::Range;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalVariation {
    /// The weight relative to the standard deviation of the noise.
    pub strength: f32,
    /// Stops when the energy changes by less than this fraction of its first value.
    pub tolerance: f32,
    pub most_steps: usize,
    /// Takes this many steps, whatever the energy.
    pub steps: Option<usize>,
}

/// Steps beyond its own end for which a piece tells its energy, and the part of them that comes besides.
const FURTHER: usize = 8;
const FURTHER_PART: usize = 4;

impl TotalVariation {
    pub const USUAL: TotalVariation =
        TotalVariation { strength: 0.9, tolerance: 2e-4, most_steps: 200, steps: None };

    pub(super) fn run(&self, frame: Frame<'_>, noise: f32) -> Result<Vec<f32>, RestoreError> {
        self.check()?;
        let mut end = End::new(self.tolerance);
        let ends = |step: usize, energy: f64| match self.steps {
            Some(steps) => step == steps,
            None => end.at(energy),
        };
        let all = frame.size.map(|n| 0..n);
        Ok(chambolle(frame, &all, self.strength * noise, self.steps.map_or(self.most_steps, |n| n + 1), ends))
    }

    fn check(&self) -> Result<(), RestoreError> {
        require_positive("the strength of total variation", self.strength.into())?;
        require_positive("the tolerance of total variation", self.tolerance.into())?;
        let steps = self.steps.unwrap_or(self.most_steps);
        require(
            (1..=1_000_000).contains(&steps),
            "the steps of total variation",
            steps as f64,
            "1 to a million",
        )
    }

    /// The energy of a piece of an image after each step, to its own end and somewhat further: that of its `core`, which
    /// as many pixels around it as there are steps make what it is in the whole.
    pub(super) fn energies(
        &self,
        frame: Frame<'_>,
        core: &[Range<usize>],
        noise: f32,
    ) -> Result<Vec<f64>, RestoreError> {
        self.check()?;
        let mut counted = [0..1, 0..1, 0..1];
        counted[3 - core.len().min(3)..].clone_from_slice(&core[core.len().saturating_sub(3)..]);
        let mut end = End::new(self.tolerance);
        let (mut energies, mut own) = (Vec::new(), None);
        chambolle(frame, &counted, self.strength * noise, self.most_steps, |step, energy| {
            energies.push(energy);
            if own.is_none() && end.at(energy) {
                own = Some(step);
            }
            own.is_some_and(|own| step >= own + FURTHER + own / FURTHER_PART)
        });
        Ok(energies)
    }

    /// The same with the number of steps at which an image ends whose pieces have these energies: where the change of all
    /// together is below the tolerance.
    pub(super) fn settled(mut self, energies: &[Vec<f64>]) -> TotalVariation {
        let length = energies.iter().map(Vec::len).max().unwrap_or(0);
        let mut end = End::new(self.tolerance);
        let ends = (0..length).find(|&step| end.at(energies.iter().map(|c| continued(c, step)).sum()));
        if length > 0 {
            self.steps = Some(ends.unwrap_or(length - 1).max(1));
        }
        self
    }
}

/// A piece's energy after a step, also beyond the last that it was told for: changes shrink by the same part each time.
fn continued(energies: &[f64], step: usize) -> f64 {
    let [.., before, last_but_one, last] = energies else { return energies.last().copied().unwrap_or(0.0) };
    let Some(beyond) = (step + 1).checked_sub(energies.len()).filter(|&n| n > 0) else {
        return energies[step];
    };
    let change = last - last_but_one;
    let part = (change / (last_but_one - before)).clamp(0.0, 0.99);
    let part = if part.is_finite() { part } else { 0.0 };
    last + change * (1..=beyond).map(|n| part.powi(n as i32)).sum::<f64>()
}

/// scikit-image's rule: the energy has changed by less than a part of its first value.
struct End {
    tolerance: f64,
    first: Option<f64>,
    last: f64,
}

impl End {
    fn new(tolerance: f32) -> End {
        End { tolerance: tolerance.into(), first: None, last: 0.0 }
    }

    fn at(&mut self, energy: f64) -> bool {
        let ends = self.first.is_some_and(|first| (self.last - energy).abs() < self.tolerance * first);
        self.first.get_or_insert(energy);
        self.last = energy;
        ends
    }
}

/// Steps until `ends` says so of a step's number and the energy of what is `counted`, or there have been `most`.
fn chambolle(
    frame: Frame<'_>,
    counted: &[Range<usize>; 3],
    weight: f32,
    most: usize,
    mut ends: impl FnMut(usize, f64) -> bool,
) -> Vec<f32> {
    let [_, height, width] = frame.size;
    let pixels = frame.values.len();
    let strides = [height * width, width, 1];
    let axes: Vec<usize> = (0..3).filter(|&a| frame.size[a] > 1).collect();
    // scikit-image counts the axes of the array, and a plane has two.
    // The columns of a row that count.
    let columns =
        |row: usize| match counted[0].contains(&(row / height)) && counted[1].contains(&(row % height)) {
            true => counted[2].clone(),
            false => 0..0,
        };
    let rate = 1.0 / (2.0 * if frame.size[0] > 1 { 3.0 } else { 2.0 });
    let mut p = vec![vec![0f32; pixels]; axes.len()];
    let mut u = frame.values.to_vec();
    for step in 0..most {
        // u = f - div p, row by row; the sum of squares is part of the energy.
        let apart: f64 = if step == 0 {
            0.0
        } else {
            let rows: Vec<f64> = u
                .par_chunks_mut(width)
                .enumerate()
                .map(|(row, out)| {
                    let start = row * width;
                    let mut d = vec![0f32; width];
                    for (field, &axis) in p.iter().zip(&axes) {
                        d.iter_mut().zip(&field[start..]).for_each(|(d, v)| *d -= v);
                        if axis == 2 {
                            let line = &field[start..start + width];
                            d[1..].iter_mut().zip(line).for_each(|(d, v)| *d += v);
                        } else if start / strides[axis] % frame.size[axis] > 0 {
                            d.iter_mut().zip(&field[start - strides[axis]..]).for_each(|(d, v)| *d += v);
                        }
                    }
                    let given = &frame.values[start..start + width];
                    out.iter_mut().zip(given).zip(&d).for_each(|((u, f), d)| *u = f + d);
                    d[columns(row)].iter().map(|&d| f64::from(d) * f64::from(d)).sum::<f64>()
                })
                .collect();
            rows.iter().sum()
        };
        let scale = rate / weight;
        let mut rows: Vec<Vec<&mut [f32]>> = (0..pixels / width).map(|_| Vec::new()).collect();
        for field in &mut p {
            rows.iter_mut().zip(field.chunks_mut(width)).for_each(|(row, part)| row.push(part));
        }
        let norms: Vec<f64> = rows
            .par_iter_mut()
            .enumerate()
            .map(|(row, fields)| {
                let start = row * width;
                let here = &u[start..start + width];
                let mut squares = vec![0f32; width];
                // Each axis has its line of differences, zero at the far edge.
                let slopes: Vec<Vec<f32>> = axes
                    .iter()
                    .map(|&axis| {
                        let mut g = vec![0f32; width];
                        if axis == 2 {
                            g.iter_mut().zip(here.windows(2)).for_each(|(g, w)| *g = w[1] - w[0]);
                        } else if start / strides[axis] % frame.size[axis] + 1 < frame.size[axis] {
                            let next = &u[start + strides[axis]..][..width];
                            g.iter_mut().zip(next).zip(here).for_each(|((g, n), h)| *g = n - h);
                        }
                        squares.iter_mut().zip(&g).for_each(|(s, g)| *s += g * g);
                        g
                    })
                    .collect();
                squares.iter_mut().for_each(|s| *s = s.sqrt());
                for (field, g) in fields.iter_mut().zip(&slopes) {
                    for ((p, g), n) in field.iter_mut().zip(g).zip(&squares) {
                        *p = (*p - rate * g) / (1.0 + scale * n);
                    }
                }
                squares[columns(row)].iter().map(|&n| f64::from(n)).sum::<f64>()
            })
            .collect();
        let energy = apart + f64::from(weight) * norms.iter().sum::<f64>();
        if ends(step, energy) {
            break;
        }
    }
    u
}
