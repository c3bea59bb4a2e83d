//! Convolutions to at most 8 channels without tensor cores, and transposed ones, of volumes and planes, 3 pixels along each side, or
//! one, with steps of 1 or 2: see `kernels/conv/few_out.cu`.

use super::{End, Sizes};
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::pointwise::with_act;
use crate::lower::{Io, Kernel, Node, fast, type_name, vector};
use clearshot_graph::ops::Geometry;

const THREADS: usize = 256;
/// Weights at the most: loops over them are unrolled, and compiling tens of thousands of products takes a minute.
const MOST_WEIGHTS: usize = 1024;

/// Whether the kernel takes a convolution that sees `s`, or where it is transposed, its input's gradient.
pub(super) fn takes(s: &Sizes, transposed: bool) -> bool {
    let step = s.geometry.stride[2];
    let (c, k) = if transposed { (s.k, s.c) } else { (s.c, s.k) };
    let side = s.kernel[2];
    let taps = s.kernel.iter().product::<usize>();
    matches!(k, 1 | 2 | 4 | 8)
        && c > 0
        && taps * c * k <= MOST_WEIGHTS
        && (side == 3 || (side == 1 && !transposed))
        && s.kernel == [if s.dims == 3 { side } else { 1 }, side, side]
        && (1..=2).contains(&step)
        && s.geometry == Geometry::new(s.dims, step, 0).with_padding(s.geometry.pad)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FewOutParams {
    x: u64,
    w: u64,
    bias: u64,
    residual: u64,
    y: u64,
    size: [i32; 3],
    out: [i32; 3],
    pad: [i32; 3],
    count: i64,
}

/// From x (operand 0).
pub(super) fn forward(n: &Node<'_>, s: &Sizes, transposed: bool, end: End) -> Result<Kernel, CudaError> {
    let step = s.geometry.stride[2];
    let (c, k) = if transposed { (s.k, s.c) } else { (s.c, s.k) };
    let (size, out) = if transposed { (s.output, s.input) } else { (s.input, s.output) };
    let source = Source::new("conv/few_out", include_str!("../../kernels/conv/few_out.cu"))
        .define("T", type_name(s.dtype)?)
        .define("B", type_name(end.bias.map_or(s.dtype, |i| n.x[i].dtype))?)
        .define("V", vector(s.dtype, &[c]))
        .define("C", c)
        .define("K", k)
        .define("KZ", s.kernel[0])
        .define("KS", s.kernel[2])
        .define("SZ", s.geometry.stride[0])
        .define("S", step)
        .define("TRANSPOSED", transposed as usize);
    let f = n.cx.function(&with_act(fast(source, s.dtype), end.act), "conv_few_out")?;
    let across = if transposed { step } else { 1 };
    let count = s.n * out[0] * out[1] * out[2].next_multiple_of(across);
    let blocks = count.div_ceil(THREADS).min(n.cx.gpu.multiprocessors * 16);
    let ints = |v: [usize; 3]| v.map(|x| x as i32);
    let fixed = FewOutParams {
        x: 0,
        w: 0,
        bias: 0,
        residual: 0,
        y: 0,
        size: ints(size),
        out: ints(out),
        pad: ints(s.geometry.pad.map(|p| p[0])),
        count: count as i64,
    };
    Ok(Kernel::new(0, move |cx, io: &Io<'_>| {
        let [bias, residual] = [end.bias, end.residual].map(|at| at.map_or(0, |i| io.inputs[i]));
        let (x, w, y) = (io.inputs[0], io.inputs[end.weight], io.outputs[0]);
        let p = FewOutParams { x, w, bias, residual, y, ..fixed };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], THREADS, 0, &Params::new().with(p)) }
    }))
}
