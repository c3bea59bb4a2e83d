//! Convolutions and their gradients.
//!
//! Those of one pixel are matrix products; parts of a concatenation are then products that add up, and
//! nothing is copied. The rest is done by kernels of our own for one kind of card ([`warpgroup`]) or by cuDNN, whichever
//! was the fastest for the shape when it was measured; images that are upsampled first are convolved small ([`phases`]),
//! few channels are laid out for a product ([`thin`]) or, one or two, summed without one ([`few`], [`narrow`]), other odd
//! numbers rounded up ([`widened`]), volumes and planes of few channels multiplied by single warps ([`volume`], [`one_in`]) or not by
//! tensor cores ([`few_out`]), fp32 multiplied without tensor cores where that is faster ([`direct`]), and what cuDNN refuses is
//! done by plain kernels.

mod algorithm;
mod direct;
mod few;
mod few_out;
mod forward;
mod input_grad;
mod library;
mod narrow;
mod one_in;
mod phases;
mod plain;
#[cfg(test)]
mod small_tests;
mod split;
#[cfg(test)]
mod tests;
mod thin;
mod volume;
mod warpgroup;
mod weight_grad;
mod widened;

pub(super) use forward::forward;
pub(super) use input_grad::input_grad;
pub(super) use weight_grad::weight_grad;

use super::matmul::Extras;
use super::{Io, Kernel, Node, resize, type_name, vector};
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use clearshot_graph::Type;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{Geometry, Resize, ResizeGrad, ResizeMode, Unary};
use clearshot_tensor::{DType, Shape};
use library::{Kind, Library};
use plain::Plain;
use std::sync::Arc;
use thin::Thin;
use widened::Widened;

/// A convolution's sizes, the same for it and both gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub dims: usize,
    pub n: usize,
    pub c: usize,
    pub k: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub kernel: [usize; 3],
    pub geometry: Geometry,
    pub dtype: DType,
}

impl Sizes {
    fn new(
        x: Shape,
        y: Shape,
        kernel: [usize; 3],
        geometry: Geometry,
        dtype: DType,
    ) -> Result<Sizes, CudaError> {
        let unfit =
            |e: clearshot_graph::OpError| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() };
        Ok(Sizes {
            dims: x.rank() - 2,
            n: x[0],
            c: x.channels(),
            k: y.channels(),
            input: spatial("x", x).map_err(unfit)?,
            output: spatial("y", y).map_err(unfit)?,
            kernel,
            geometry,
            dtype,
        })
    }

    /// Whether it is a matrix product of pixels by channels.
    fn is_product(&self) -> bool {
        let g = &self.geometry;
        self.kernel == [1; 3] && g.stride == [1; 3] && g.pad == [[0; 2]; 3] && g.groups == 1
    }

    /// Whether it is one of 3 x 3 pixels on a plane that keeps the size, small enough to count results in 32 bits.
    fn is_usual(&self) -> bool {
        self.dims == 2
            && self.kernel == [1, 3, 3]
            && self.geometry == Geometry::new(2, 1, 1)
            && self.rows() <= i32::MAX as usize
    }

    fn rows(&self) -> usize {
        self.n * self.output.iter().product::<usize>()
    }

    fn in_rows(&self) -> usize {
        self.n * self.input.iter().product::<usize>()
    }

    fn weight_len(&self) -> usize {
        self.k * self.kernel.iter().product::<usize>() * self.c / self.geometry.groups
    }

    /// Whether an image has more elements than the library counts.
    fn is_huge(&self) -> bool {
        (self.in_rows() * self.c).max(self.rows() * self.k) > i32::MAX as usize
    }

    fn bytes(&self, elements: usize) -> usize {
        (elements * self.dtype.bytes()).next_multiple_of(256)
    }
}

/// Who computes a convolution or one of its gradients.
enum Way {
    Library(Library),
    Thin(Thin),
    Widened(Widened),
    Plain(Plain),
}

impl Way {
    fn new(n: &Node<'_>, s: &Sizes, kind: Kind) -> Result<Way, CudaError> {
        if let Some(thin) = Thin::new(n.cx, s, kind, n.math)? {
            return Ok(Way::Thin(thin));
        }
        if widened::suits(s)
            && let Some(widened) = Widened::new(n.cx, s, kind, n.math)?
        {
            return Ok(Way::Widened(widened));
        }
        if let Some(library) = Library::new(n.cx, s, kind, n.math)? {
            return Ok(Way::Library(library));
        }
        Ok(Way::Plain(Plain::new(n.cx, s, kind)?))
    }

    fn scratch(&self) -> usize {
        match self {
            Way::Library(l) => l.scratch(),
            Way::Thin(t) => t.scratch,
            Way::Widened(w) => w.scratch,
            Way::Plain(_) => 0,
        }
    }

    /// Whether it adds bias and residual itself.
    fn is_fused(&self) -> bool {
        match self {
            Way::Library(l) => l.is_fused(),
            Way::Thin(t) => t.adds_bias(),
            _ => false,
        }
    }

    /// x, w, bias, residual -> y.
    unsafe fn launch_fused(
        &self,
        cx: &Context,
        (x, w): (u64, u64),
        extras: Extras,
        y: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        match self {
            // SAFETY: the promise of `Kernel::launch`.
            Way::Library(l) => unsafe { l.launch_fused(cx, x, w, extras, y, scratch) },
            // SAFETY: the promise of `Kernel::launch`.
            Way::Thin(t) => unsafe { t.launch(cx, x, w, extras.bias.unwrap_or(0), y, scratch) },
            _ => unreachable!("only where it is fused"),
        }
    }

    /// Forward: x, w -> y. Input's gradient: dy, w -> dx. Weight's: x, dy -> dw.
    unsafe fn launch(&self, cx: &Context, a: u64, b: u64, out: u64, scratch: u64) -> Result<(), CudaError> {
        match self {
            // SAFETY: the promise of `Kernel::launch`.
            Way::Library(l) => unsafe { l.launch(cx, a, b, out, scratch) },
            // SAFETY: the promise of `Kernel::launch`.
            Way::Thin(t) => unsafe { t.launch(cx, a, b, 0, out, scratch) },
            // SAFETY: the promise of `Kernel::launch`.
            Way::Widened(w) => unsafe { w.launch(cx, a, b, out, scratch) },
            // SAFETY: the promise of `Kernel::launch`.
            Way::Plain(p) => unsafe { p.launch(cx, a, b, out) },
        }
    }
}

/// Copies channels from tensors of one width to tensors of another.
struct Channels {
    f: Function,
    v: usize,
    dtype: DType,
}

impl Channels {
    fn new(cx: &Arc<Context>, dtype: DType, counts: &[usize]) -> Result<Channels, CudaError> {
        let v = vector(dtype, counts);
        let name = type_name(dtype)?;
        let source = Source::new("conv", include_str!("../kernels/conv/plain.cu"))
            .define("T", name)
            .define("B", name)
            .define("V", v)
            .define("ACT(x)", "(x)");
        Ok(Channels { f: cx.function(&source, "copy_channels")?, v, dtype })
    }

    /// `c` channels of each row: from `[rows, from.0]` at channel `from.1`, to the same of `to`.
    unsafe fn launch(
        &self,
        cx: &Context,
        (x, y): (u64, u64),
        rows: usize,
        c: usize,
        from: (usize, usize),
        to: (usize, usize),
    ) -> Result<(), CudaError> {
        debug_assert_eq!(c % self.v, 0);
        debug_assert!(self.dtype.is_float());
        let p = Params::new().with(x).with(y).with(rows as i64).with(c as i32);
        let p = p.with(from.0 as i32).with(from.1 as i32).with(to.0 as i32).with(to.1 as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.f, super::blocks(cx, rows * c / self.v), 256, 0, &p) }
    }
}

/// The parts of an input as one tensor in scratch memory, where there are several; or the input upsampled.
struct Gathered {
    copy: Option<Channels>,
    upsample: Option<Kernel>,
    widths: Vec<usize>,
    rows: usize,
    bytes: usize,
}

/// An image of twice the size, of the same type.
fn doubled(small: Type) -> Type {
    let rank = small.shape.rank();
    Type { shape: (1..rank - 1).fold(small.shape, |s, a| s.with(a, 2 * s[a])), ..small }
}

/// The kernel that repeats every pixel, or its adjoint that sums them.
fn resizing(n: &Node<'_>, small: Type, adjoint: bool) -> Result<Kernel, CudaError> {
    let large = doubled(small);
    let size = |t: Type| spatial("image", t.shape).unwrap_or([1; 3]);
    let (from, to) = if adjoint { (large, small) } else { (small, large) };
    let node = Node { cx: n.cx, math: n.math, x: vec![from], y: &[to] };
    let mode = ResizeMode::Nearest;
    if adjoint {
        resize::resize_grad(&node, &ResizeGrad { mode, input: size(small) })
    } else {
        resize::resize(&node, &Resize { mode, size: size(large) })
    }
}

impl Gathered {
    fn new(n: &Node<'_>, parts: &[Type], upsample: bool) -> Result<Gathered, CudaError> {
        let widths: Vec<usize> = parts.iter().map(|t| t.shape.channels()).collect();
        let rows = parts[0].shape.len() / widths[0];
        let (mut copy, mut up, mut bytes) = (None, None, 0);
        if upsample {
            up = Some(resizing(n, parts[0], false)?);
            bytes = doubled(parts[0]).bytes().next_multiple_of(256);
        } else if parts.len() > 1 {
            copy = Some(Channels::new(n.cx, parts[0].dtype, &widths)?);
            bytes = parts.iter().map(Type::bytes).sum::<usize>().next_multiple_of(256);
        }
        Ok(Gathered { copy, upsample: up, widths, rows, bytes })
    }

    /// The one tensor's address.
    unsafe fn launch(&self, cx: &Context, parts: &[u64], scratch: u64) -> Result<u64, CudaError> {
        if let Some(upsample) = &self.upsample {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { upsample.launch(cx, &Io { inputs: parts, outputs: &[scratch], workspace: 0 }) }?;
            return Ok(scratch);
        }
        let Some(copy) = &self.copy else { return Ok(parts[0]) };
        let whole: usize = self.widths.iter().sum();
        let mut first = 0;
        for (x, c) in parts.iter().zip(&self.widths) {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { copy.launch(cx, (*x, scratch), self.rows, *c, (*c, 0), (whole, first)) }?;
            first += c;
        }
        Ok(scratch)
    }
}

/// The shape of what a convolution sees of its input.
fn seen_shape(parts: &[Type], upsample: bool) -> Shape {
    let shape = if upsample { doubled(parts[0]).shape } else { parts[0].shape };
    shape.with(shape.rank() - 1, parts.iter().map(|t| t.shape.channels()).sum())
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// Where the weight and what stands behind the sums lie among a node's operands, and the activation: y = act(sums + bias) + residual.
#[derive(Clone, Copy)]
struct End {
    weight: usize,
    /// Of each channel.
    bias: Option<usize>,
    residual: Option<usize>,
    act: Option<Unary>,
}

impl End {
    /// Whether results have the type of what is read, as has the weight, and the bias, or the bias is in fp32.
    fn suits(&self, n: &Node<'_>) -> bool {
        let dtype = n.x[0].dtype;
        n.y[0].dtype == dtype
            && n.x[self.weight].dtype == dtype
            && self.residual.is_none_or(|i| n.x[i].dtype == dtype)
            && self.bias.is_none_or(|i| [dtype, DType::F32].contains(&n.x[i].dtype))
    }
}

/// A way that may be the fastest.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// The library's, or plain kernels in its place.
    Library,
    Warpgroups(warpgroup::Tile),
    Volume(volume::Tile),
    OneIn,
    FewOut,
    Few,
    Narrow,
    /// In fp32, without tensor cores.
    Direct,
}

/// The library and the tiles of our own kernels.
fn ways(n: &Node<'_>, sizes: &Sizes, own: Option<&warpgroup::Call>) -> Vec<Candidate> {
    let tiles = own.map(|call| warpgroup::tiles(n, sizes, call));
    let mut ways: Vec<_> = tiles.unwrap_or_default().into_iter().map(Candidate::Warpgroups).collect();
    // Plain kernels take so long that they are not even tried where there are others. Of 8 bits there are our own alone.
    if !warpgroup::is_eighth(sizes.dtype) && (ways.is_empty() || !sizes.is_huge()) {
        ways.insert(0, Candidate::Library);
    }
    ways
}
