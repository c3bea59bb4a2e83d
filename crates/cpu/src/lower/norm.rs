//! Norms of the graph on the norm kernels.

use super::act;
use super::operands::{read, write};
use crate::Cpu;
use crate::act::Act;
use crate::kernels::Prepared;
use crate::kernels::norm::{
    self, Affine, GradInputs, MAX_PARTS, NormDims, NormGradients, Part, PartGradients,
};
use clearshot_graph::Type;
use clearshot_graph::ops::{Norm, NormGrad};

/// gamma, beta and, with film, scale and shift.
#[derive(Clone, Copy)]
pub(super) struct NormOperands<'a> {
    pub pointers: &'a [*const f32],
    pub film: bool,
}

/// # Safety
/// The operands have the shapes of the dimensions.
pub(super) unsafe fn affine<'a>(d: &NormDims, operands: NormOperands<'_>) -> Affine<'a> {
    let p = operands.pointers;
    // SAFETY: the caller's promise.
    unsafe {
        Affine {
            gamma: Some(read(p[0], d.c)),
            beta: Some(read(p[1], d.c)),
            film: operands.film.then(|| (read(p[2], d.n * d.c), read(p[3], d.n * d.c))),
        }
    }
}

/// Dimensions of a norm and the channels of its parts.
struct Image {
    dims: NormDims,
    channels: Vec<usize>,
}

impl Image {
    fn new(op: &Norm, parts: &[Type]) -> Image {
        let [n, s, _] = clearshot_graph::array::rows(parts[0].shape);
        let channels: Vec<usize> = parts.iter().map(|t| t.shape.channels()).collect();
        Image { dims: NormDims { n, s, c: channels.iter().sum(), groups: op.groups }, channels }
    }

    fn pixels(&self) -> usize {
        self.dims.n * self.dims.s
    }

    /// # Safety
    /// The first of `x` are the parts.
    unsafe fn parts<'a>(&self, x: &[*const f32]) -> [Part<'a>; MAX_PARTS] {
        let mut parts = [Part { data: &[], channels: 0, stride: 0 }; MAX_PARTS];
        for (i, &channels) in self.channels.iter().enumerate() {
            // SAFETY: the caller's promise.
            let data = unsafe { read(x[i], self.pixels() * channels) };
            parts[i] = Part { data, channels, stride: channels };
        }
        parts
    }

    fn stats_len(&self) -> usize {
        self.dims.n * self.dims.groups * 2
    }

    fn len(&self) -> usize {
        self.pixels() * self.dims.c
    }
}

pub(super) struct Forward {
    image: Image,
    eps: f32,
    film: bool,
    act: Act,
}

impl Forward {
    pub(super) fn new(op: &Norm, x: &[Type]) -> Forward {
        let image = Image::new(op, &x[..op.parts]);
        Forward { image, eps: op.eps as f32, film: op.film, act: act(op.act) }
    }
}

impl Prepared for Forward {
    fn workspace_len(&self, threads: usize) -> usize {
        norm::forward_workspace(&self.image.dims, threads)
    }

    unsafe fn run(&self, cpu: &Cpu, x: &[*const f32], y: &[*mut f32], workspace: *mut f32) {
        let (d, count) = (&self.image.dims, self.image.channels.len());
        // SAFETY: the caller's promise.
        unsafe {
            let parts = self.image.parts(x);
            let affine = affine(d, NormOperands { pointers: &x[count..], film: self.film });
            let workspace = write(workspace, self.workspace_len(cpu.pool.threads()));
            let (out, stats) = (write(y[0], self.image.len()), write(y[1], self.image.stats_len()));
            norm::forward(cpu, d, &parts[..count], &affine, self.eps, self.act, stats, out, workspace);
        }
    }
}

pub(super) struct Stats {
    image: Image,
    eps: f32,
}

impl Stats {
    pub(super) fn new(op: &Norm, x: &[Type]) -> Stats {
        Stats { image: Image::new(op, x), eps: op.eps as f32 }
    }
}

impl Prepared for Stats {
    fn workspace_len(&self, threads: usize) -> usize {
        norm::stats_workspace(&self.image.dims, threads)
    }

    unsafe fn run(&self, cpu: &Cpu, x: &[*const f32], y: &[*mut f32], workspace: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let parts = self.image.parts(x);
            let workspace = write(workspace, self.workspace_len(cpu.pool.threads()));
            let stats = write(y[0], self.image.stats_len());
            norm::stats(
                cpu,
                &self.image.dims,
                &parts[..self.image.channels.len()],
                self.eps,
                stats,
                workspace,
            );
        }
    }
}

pub(super) struct Grad {
    image: Image,
    op: NormGrad,
    act: Act,
}

impl Grad {
    pub(super) fn new(op: &NormGrad, x: &[Type]) -> Grad {
        Grad { image: Image::new(&op.norm, &x[..op.norm.parts]), op: *op, act: act(op.norm.act) }
    }
}

impl Prepared for Grad {
    fn workspace_len(&self, threads: usize) -> usize {
        norm::grad_workspace(&self.image.dims, threads)
    }

    unsafe fn run(&self, cpu: &Cpu, x: &[*const f32], y: &[*mut f32], workspace: *mut f32) {
        let (d, count) = (&self.image.dims, self.image.channels.len());
        // SAFETY: the caller's promise.
        unsafe {
            let parts = self.image.parts(x);
            let part_len = |i: usize| self.image.pixels() * self.image.channels[i];
            let mut addends = [None; MAX_PARTS];
            for part in 0..count {
                addends[part] = self.op.addend(part).map(|i| read(x[i], part_len(part)));
            }
            let inputs = GradInputs {
                parts: &parts[..count],
                stats: read(x[count], self.image.stats_len()),
                affine: affine(d, NormOperands { pointers: &x[count + 1..], film: self.op.norm.film }),
                act: self.act,
                dy: read(x[self.op.dy()], self.image.len()),
                addends,
            };
            let mut dx: [&mut [f32]; MAX_PARTS] = Default::default();
            for part in 0..count {
                dx[part] = write(y[part], part_len(part));
            }
            let mut gradients = NormGradients {
                dx: Some(PartGradients::Parts(&mut dx[..count])),
                dgamma: Some(write(y[count], d.c)),
                dbeta: Some(write(y[count + 1], d.c)),
                ..NormGradients::default()
            };
            if self.op.norm.film {
                gradients.dscale = Some(write(y[count + 2], d.n * d.c));
                gradients.dshift = Some(write(y[count + 3], d.n * d.c));
            }
            let workspace = write(workspace, self.workspace_len(cpu.pool.threads()));
            norm::grad(cpu, d, &inputs, gradients, workspace);
        }
    }
}
