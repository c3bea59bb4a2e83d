//! Convolutions of upsampled images, by phases: see `kernels/conv/phases.cu`.

use super::Sizes;
use super::library::{Kind, Library};
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, Node, blocks, fast, type_name, vector};
use clearshot_graph::ops::Geometry;
use std::sync::Arc;

/// The weights of a convolution that sees `s`, as those of its phases and back.
pub(super) struct Weights {
    gather: Function,
    fold: Function,
    s: Sizes,
}

fn source(s: &Sizes, bias: &str) -> Result<Source, CudaError> {
    let source = Source::new("conv/phases", include_str!("../../kernels/conv/phases.cu"))
        .define("T", type_name(s.dtype)?)
        .define("B", bias)
        .define("V", vector(s.dtype, &[s.k]))
        .define("W", vector(s.dtype, &[s.c]));
    Ok(fast(source, s.dtype))
}

impl Weights {
    pub fn new(cx: &Arc<Context>, s: &Sizes) -> Result<Weights, CudaError> {
        let source = source(s, type_name(s.dtype)?)?;
        let f = |name| cx.function(&source, name);
        Ok(Weights { gather: f("phase_weights")?, fold: f("phase_weights_grad")?, s: *s })
    }

    /// Bytes of the phases' weights.
    pub fn bytes(&self) -> usize {
        self.s.bytes(16 * self.s.k * self.s.c)
    }

    /// From those of 3 x 3 pixels.
    pub unsafe fn gather(&self, cx: &Context, from: u64, to: u64) -> Result<(), CudaError> {
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { self.launch(cx, self.gather, from, to) }
    }

    /// The gradient of those of 3 x 3 pixels.
    pub unsafe fn fold(&self, cx: &Context, from: u64, to: u64) -> Result<(), CudaError> {
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { self.launch(cx, self.fold, from, to) }
    }

    unsafe fn launch(&self, cx: &Context, f: Function, from: u64, to: u64) -> Result<(), CudaError> {
        let p = Params::new().with(from).with(to).with(self.s.k as i32).with(self.s.c as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe {
            cx.launch(f, blocks(cx, self.s.k * self.s.c / vector(self.s.dtype, &[self.s.c])), 256, 0, &p)
        }
    }
}

/// The small convolution and the kernels around it.
struct Phases {
    small: Sizes,
    library: Library,
    weights: Weights,
    v: usize,
    k: usize,
    source: Source,
}

impl Phases {
    /// Of a convolution that sees `s`, whose input is half as large. Nothing where the library refuses it.
    fn new(n: &Node<'_>, s: &Sizes, kind: Kind, bias: &str) -> Result<Option<Phases>, CudaError> {
        let [_, h, w] = s.input;
        let two = Geometry::new(2, 1, 1);
        let small = Sizes {
            input: [1, h / 2, w / 2],
            output: [1, h / 2 + 1, w / 2 + 1],
            kernel: [1, 2, 2],
            k: 4 * s.k,
            geometry: two,
            ..*s
        };
        let Some(library) = Library::new(n.cx, &small, kind, n.math)? else { return Ok(None) };
        let weights = Weights::new(n.cx, s)?;
        let v = vector(s.dtype, &[s.k]);
        Ok(Some(Phases { small, library, weights, v, k: s.k, source: source(s, bias)? }))
    }

    fn function(&self, cx: &Arc<Context>, name: &str) -> Result<Function, CudaError> {
        cx.function(&self.source, name)
    }

    fn image_bytes(&self) -> usize {
        self.small.bytes(self.image_len())
    }

    fn image_len(&self) -> usize {
        self.small.rows() * self.small.k
    }

    unsafe fn scatter(&self, cx: &Context, f: Function, dy: u64, to: u64) -> Result<(), CudaError> {
        let [_, h, w] = self.small.input;
        let count = self.image_len() / self.v;
        let p = Params::new().with(dy).with(to).with(h as i32).with(w as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, blocks(cx, count), 256, 0, &p.with(self.k as i32).with(count as i64)) }
    }
}

/// From the small image (operand 0), weights and a bias of any type. Nothing where the library refuses it.
pub(super) fn forward(
    n: &Node<'_>,
    s: &Sizes,
    weight_at: usize,
    bias_at: Option<usize>,
) -> Result<Option<Kernel>, CudaError> {
    let bias = type_name(bias_at.map_or(s.dtype, |i| n.x[i].dtype))?;
    let Some(p) = Phases::new(n, s, Kind::Forward, bias)? else { return Ok(None) };
    let gather = p.function(n.cx, "phase_gather")?;
    let (w_bytes, u_bytes) = (p.weights.bytes(), p.image_bytes());
    let count = n.y[0].shape.len() / p.v;
    Ok(Some(Kernel::new(w_bytes + u_bytes + p.library.scratch(), move |cx, io| {
        let w2 = io.workspace;
        let u = w2 + w_bytes as u64;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.weights.gather(cx, io.inputs[weight_at], w2) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.library.launch(cx, io.inputs[0], w2, u, u + u_bytes as u64) }?;
        let [_, h, w] = p.small.input;
        let bias = bias_at.map_or(0, |i| io.inputs[i]);
        let a = Params::new().with(u).with(io.outputs[0]).with(bias).with(h as i32).with(w as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(gather, blocks(cx, count), 256, 0, &a.with(p.k as i32).with(count as i64)) }
    })))
}

pub(super) fn input_grad(n: &Node<'_>, s: &Sizes) -> Result<Option<Kernel>, CudaError> {
    let Some(p) = Phases::new(n, s, Kind::InputGrad, type_name(s.dtype)?)? else { return Ok(None) };
    let scatter = p.function(n.cx, "phase_scatter")?;
    let (w_bytes, u_bytes) = (p.weights.bytes(), p.image_bytes());
    Ok(Some(Kernel::new(w_bytes + u_bytes + p.library.scratch(), move |cx, io| {
        let w2 = io.workspace;
        let u = w2 + w_bytes as u64;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.weights.gather(cx, io.inputs[1], w2) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.scatter(cx, scatter, io.inputs[0], u) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.library.launch(cx, u, w2, io.outputs[0], u + u_bytes as u64) }
    })))
}

pub(super) fn weight_grad(n: &Node<'_>, s: &Sizes, dy_at: usize) -> Result<Option<Kernel>, CudaError> {
    let Some(p) = Phases::new(n, s, Kind::WeightGrad, type_name(s.dtype)?)? else { return Ok(None) };
    let scatter = p.function(n.cx, "phase_scatter")?;
    let (w_bytes, u_bytes) = (p.weights.bytes(), p.image_bytes());
    Ok(Some(Kernel::new(w_bytes + u_bytes + p.library.scratch(), move |cx, io| {
        let w2 = io.workspace;
        let u = w2 + w_bytes as u64;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.scatter(cx, scatter, io.inputs[dy_at], u) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.library.launch(cx, io.inputs[0], u, w2, u + u_bytes as u64) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { p.weights.fold(cx, w2, io.outputs[0]) }
    })))
}
