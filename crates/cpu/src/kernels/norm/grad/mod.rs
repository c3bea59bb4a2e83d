//! The gradient of a norm with all that follows it.
//!
//! With u = x a + b and du = dy act'(u), all gradients come out of two sums for each image and
//! channel, of du and of du (x - mean). The first pass leaves du where dx goes, and the second turns
//! it into dx: that costs less than the slope of an activation a second time.

mod job;
mod phases;

use super::grid::{Grid, longest_row};
use super::{Affine, MAX_PARTS, NormDims, Part};
use crate::Cpu;
use crate::act::Act;
use crate::kernels::attention::{ALIGN, aligned};
use crate::pool::Shares;
use job::Job;
use phases::{BlockInputs, BlockSums, Merge, Open, WholeImages};

/// What the gradient is computed from.
#[derive(Clone, Copy)]
pub struct GradInputs<'a> {
    pub parts: &'a [Part<'a>],
    /// As [`stats`](super::stats) left them.
    pub stats: &'a [f32],
    pub affine: Affine<'a>,
    pub act: Act,
    /// [N, S, C], the gradient of y.
    pub dy: &'a [f32],
    /// For each part [N, S, channels], added to its dx.
    pub addends: [Option<&'a [f32]>; MAX_PARTS],
}

/// Where dx goes: one tensor [N, S, C], or one [N, S, channels] for each part of x.
pub enum PartGradients<'a, 'b> {
    Whole(&'a mut [f32]),
    Parts(&'a mut [&'b mut [f32]]),
}

/// The gradients that are wanted.
#[derive(Default)]
pub struct NormGradients<'a, 'b> {
    pub dx: Option<PartGradients<'a, 'b>>,
    /// [C]
    pub dgamma: Option<&'a mut [f32]>,
    /// [C]
    pub dbeta: Option<&'a mut [f32]>,
    /// [N, C]
    pub dscale: Option<&'a mut [f32]>,
    /// [N, C]
    pub dshift: Option<&'a mut [f32]>,
}

/// Vectors over the channels that one thread keeps: a, b, mean or q, r, and the two sums.
const VECTORS: usize = 6;

/// The length of the workspace of [`grad`].
pub fn grad_workspace(dims: &NormDims, threads: usize) -> usize {
    let (sums, coef) = shared(&Grid::of(dims));
    ALIGN + sums + coef + threads * VECTORS * longest_row(dims)
}

/// Values of the sums and of the images' coefficients (a, b, q, r).
fn shared(grid: &Grid) -> (usize, usize) {
    let c = grid.dims.c;
    let (sums, coef) = if grid.whole_images() { (grid.tasks(), 0) } else { (grid.units(), grid.dims.n) };
    ((sums * 2 * c).next_multiple_of(16), (coef * 4 * c).next_multiple_of(16))
}

/// The gradients of everything that went into a norm.
///
/// # Panics
/// If a buffer is shorter than the dimensions ask.
pub fn grad(
    cpu: &Cpu,
    dims: &NormDims,
    inputs: &GradInputs,
    mut gradients: NormGradients,
    workspace: &mut [f32],
) {
    check(dims, inputs, &gradients);
    assert!(workspace.len() >= grad_workspace(dims, cpu.pool.threads()));
    let grid = &Grid::new(dims, inputs.parts);
    let (sums, coef) = shared(grid);
    let (sums, rest) = aligned(workspace).split_at_mut(sums);
    let (coef, rest) = rest.split_at_mut(coef);
    let wants = gradients.dgamma.is_some() || gradients.dbeta.is_some();
    let job = &Job {
        grid,
        inputs,
        dx: outputs(dims, inputs.parts, gradients.dx.as_mut()),
        dscale: gradients.dscale.as_mut().map(|d| Shares(d.as_mut_ptr())),
        dshift: gradients.dshift.as_mut().map(|d| Shares(d.as_mut_ptr())),
        sums: Shares(sums.as_mut_ptr()),
        coef: Shares(coef.as_mut_ptr()),
        scratch: Shares(rest.as_mut_ptr()),
    };
    if grid.whole_images() {
        // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
        cpu.pool.run(grid.tasks(), |worker, task| unsafe {
            cpu.level.dispatch(WholeImages { job, worker, task })
        });
        if wants {
            add_up(&mut gradients, sums, dims.c, grid.tasks(), 2 * dims.c);
        }
        return;
    }
    // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
    cpu.pool.run(dims.n, |_, image| unsafe { cpu.level.dispatch(Open { job, image }) });
    // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
    cpu.pool.run(grid.tasks(), |worker, task| unsafe { cpu.level.dispatch(BlockSums { job, worker, task }) });
    // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
    cpu.pool.run(dims.n, |_, image| unsafe { cpu.level.dispatch(Merge { job, image }) });
    if job.dx.is_some() {
        // SAFETY: the buffers were checked above; in each phase a task writes places that are its own.
        cpu.pool.run(grid.tasks(), |worker, task| unsafe {
            cpu.level.dispatch(BlockInputs { job, worker, task })
        });
    }
    if wants {
        add_up(&mut gradients, sums, dims.c, dims.n, grid.blocks * 2 * dims.c);
    }
}

fn check(dims: &NormDims, inputs: &GradInputs, gradients: &NormGradients) {
    dims.check(inputs.parts);
    inputs.affine.check(dims);
    assert_eq!(inputs.stats.len(), dims.n * dims.groups * 2);
    assert_eq!(inputs.dy.len(), dims.len());
    for (part, addend) in inputs.parts.iter().zip(inputs.addends) {
        assert!(addend.is_none_or(|a| a.len() == dims.n * dims.s * part.channels));
    }
    assert!(gradients.dgamma.as_ref().is_none_or(|d| d.len() == dims.c));
    assert!(gradients.dbeta.as_ref().is_none_or(|d| d.len() == dims.c));
    assert!(gradients.dscale.as_ref().is_none_or(|d| d.len() == dims.n * dims.c));
    assert!(gradients.dshift.as_ref().is_none_or(|d| d.len() == dims.n * dims.c));
}

/// Where each part's dx begins, and the distance of its pixels.
type Outputs = [(Shares<f32>, usize); MAX_PARTS];

fn outputs(dims: &NormDims, parts: &[Part], dx: Option<&mut PartGradients>) -> Option<Outputs> {
    let mut to = [(Shares(std::ptr::null_mut()), 0); MAX_PARTS];
    match dx? {
        PartGradients::Whole(dx) => {
            assert_eq!(dx.len(), dims.len());
            let mut first = 0;
            for (i, part) in parts.iter().enumerate() {
                to[i] = (Shares(dx[first..].as_mut_ptr()), dims.c);
                first += part.channels;
            }
        }
        PartGradients::Parts(list) => {
            assert_eq!(list.len(), parts.len());
            for (i, (dx, part)) in list.iter_mut().zip(parts).enumerate() {
                assert_eq!(dx.len(), dims.n * dims.s * part.channels);
                to[i] = (Shares(dx.as_mut_ptr()), part.channels);
            }
        }
    }
    Some(to)
}

/// dbeta and dgamma out of `count` rows of both, `pitch` apart: summed in pairs, pairs of pairs and so
/// on, which is as quick as one after the other and loses fewer digits.
fn add_up(gradients: &mut NormGradients, sums: &mut [f32], channels: usize, count: usize, pitch: usize) {
    let mut step = 1;
    while step < count {
        for i in (0..count - step).step_by(2 * step) {
            let (low, high) = sums.split_at_mut((i + step) * pitch);
            let low = &mut low[i * pitch..][..2 * channels];
            low.iter_mut().zip(&high[..2 * channels]).for_each(|(a, b)| *a += b);
        }
        step *= 2;
    }
    if count == 0 {
        sums.fill(0.0);
    }
    if let Some(dbeta) = &mut gradients.dbeta {
        dbeta.copy_from_slice(&sums[..channels]);
    }
    if let Some(dgamma) = &mut gradients.dgamma {
        dgamma.copy_from_slice(&sums[channels..2 * channels]);
    }
}
