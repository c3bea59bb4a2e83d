//! Convolutions from one channel in 16 bits, of volumes and planes, 3 pixels along each side with steps of 1 or 2: see
//! `kernels/conv/one_in.cu`.

use super::{End, Sizes, is_half};
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::pointwise::with_act;
use crate::lower::{Io, Kernel, Node, fast, type_name};
use clearshot_graph::ops::Geometry;

const KERNEL: &str =
    concat!(include_str!("../../kernels/conv/warps.cu"), include_str!("../../kernels/conv/one_in.cu"));

const THREADS: usize = 256;
/// Pixels of a row of a tile.
const ACROSS: usize = 32;

/// Rows and planes of a tile.
fn tile(s: &Sizes) -> [usize; 2] {
    if s.dims == 3 { [8, 4] } else { [32, 1] }
}

/// Whether the kernel takes a convolution of one image.
pub(super) fn takes(n: &Node<'_>, s: &Sizes) -> bool {
    let step = s.geometry.stride[2];
    n.cx.gpu.capability >= (8, 0)
        && is_half(s.dtype)
        && s.c == 1
        && s.k.is_multiple_of(8)
        && (8..=64).contains(&s.k)
        && s.kernel == [if s.dims == 3 { 3 } else { 1 }, 3, 3]
        && (1..=2).contains(&step)
        && s.geometry == Geometry::new(s.dims, step, 0).with_padding(s.geometry.pad)
        && s.rows() <= i32::MAX as usize
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OneInParams {
    x: u64,
    w: u64,
    bias: u64,
    residual: u64,
    y: u64,
    size: [i32; 3],
    out: [i32; 3],
    pad: [i32; 3],
    k: i32,
    tiles: [i32; 3],
}

pub(super) fn forward(n: &Node<'_>, s: &Sizes, end: End) -> Result<Kernel, CudaError> {
    let [rows, planes] = tile(s);
    let source = Source::new("conv/one_in", KERNEL)
        .define("T", type_name(s.dtype)?)
        .define("B", type_name(end.bias.map_or(s.dtype, |i| n.x[i].dtype))?)
        .define("KZ", s.kernel[0])
        .define("S", s.geometry.stride[2])
        .define("NF", s.k / 8)
        .define("TY", rows)
        .define("TZ", planes);
    let f = n.cx.function(&with_act(fast(source, s.dtype), end.act), "conv_one_in")?;
    let tiles = [s.output[2].div_ceil(ACROSS), s.output[1].div_ceil(rows), s.output[0].div_ceil(planes)];
    let blocks = s.n * tiles.iter().product::<usize>();
    let ints = |v: [usize; 3]| v.map(|x| x as i32);
    let fixed = OneInParams {
        x: 0,
        w: 0,
        bias: 0,
        residual: 0,
        y: 0,
        size: ints(s.input),
        out: ints(s.output),
        pad: ints(s.geometry.pad.map(|p| p[0])),
        k: s.k as i32,
        tiles: ints(tiles),
    };
    Ok(Kernel::new(0, move |cx, io: &Io<'_>| {
        let [bias, residual] = [end.bias, end.residual].map(|at| at.map_or(0, |i| io.inputs[i]));
        let (x, w, y) = (io.inputs[0], io.inputs[end.weight], io.outputs[0]);
        let p = OneInParams { x, w, bias, residual, y, ..fixed };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], THREADS, 0, &Params::new().with(p)) }
    }))
}
