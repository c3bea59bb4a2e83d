//! Convolutions of 3 x 3 pixels in fp32 by plain multiplications: see `kernels/conv/direct.cu`.
//!
//! cuDNN's kernels for images whose channels lie together are made for tensor cores, which round fp32; without those it reaches a
//! fifth of what the card multiplies in fp32.

use super::Sizes;
use super::phases::Weights;
use crate::context::{Context, Params, Source};
use crate::error::CudaError;
use crate::lower::pointwise::with_act;
use crate::lower::{Io, Kernel, Node, type_name};
use clearshot_graph::ops::Unary;
use clearshot_tensor::DType;

/// Results of a block, across and down.
const TILE: [usize; 2] = [32, 8];
/// Channels that are summed at a time.
const EACH: usize = 8;

/// What stands behind the sums, and where operands stand.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub weight: usize,
    pub bias: Option<usize>,
    pub residual: Option<usize>,
    pub by_sample: bool,
    pub act: Option<Unary>,
    /// Whether the image is seen at twice its size.
    pub upsample: bool,
}

/// Whether the kernel takes a convolution of one image that sees `s`.
pub(super) fn takes(cx: &Context, s: &Sizes) -> bool {
    // Copies past the registers.
    cx.gpu.capability >= (8, 0)
        && s.is_usual()
        && s.dtype == DType::F32
        && s.k.is_multiple_of(8)
        && s.rows() * s.c > 0
}

/// Channels of a block: as few as possible are made in vain, and more at a time are better.
fn channels(k: usize) -> usize {
    if k.next_multiple_of(48) < k.next_multiple_of(64) { 48 } else { 64 }
}

pub(super) fn forward(n: &Node<'_>, s: &Sizes, call: Call) -> Result<Kernel, CudaError> {
    // An image that is seen upsampled is convolved as it is, by phases.
    let phases = if call.upsample { Some(Weights::new(n.cx, s)?) } else { None };
    let (taps, scale) = if call.upsample { (2, 2) } else { (3, 1) };
    let wide = channels(s.k);
    let source = Source::new("conv/direct", include_str!("../../kernels/conv/direct.cu"))
        .define("B", type_name(call.bias.map_or(s.dtype, |i| n.x[i].dtype))?)
        .define("K_TILE", wide)
        .define("TAPS", taps);
    let f = n.cx.function(&with_act(source, call.act), "conv_direct")?;
    let [h, w] = [s.output[1] / scale, s.output[2] / scale];
    let [tiles_x, tiles_y] = [w.div_ceil(TILE[0]), h.div_ceil(TILE[1])];
    let grid = [s.n * tiles_x * tiles_y, s.k.div_ceil(wide) * scale * scale];
    let (c, k) = (s.c, s.k);
    // As the kernel lays them out: two stages of the image and of the weights.
    let image = EACH * ((TILE[1] + 2) * (TILE[0] + 4) + 4);
    let shared = 2 * (image + taps * taps * EACH * (wide + 4)) * size_of::<f32>();
    let scratch = phases.as_ref().map_or(0, Weights::bytes);
    Ok(Kernel::new(scratch, move |cx, io: &Io<'_>| {
        let at = |i: Option<usize>| i.map_or(0, |i| io.inputs[i]);
        let mut weights = io.inputs[call.weight];
        if let Some(phases) = &phases {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { phases.gather(cx, weights, io.workspace) }?;
            weights = io.workspace;
        }
        let p = Params::new().with(io.inputs[0]).with(weights);
        let p = p.with(at(call.bias)).with(at(call.residual)).with(io.outputs[0]);
        let p = p.with(h as i32).with(w as i32).with(c as i32).with(k as i32);
        let p = p.with(tiles_x as i32).with(tiles_y as i32).with(i32::from(call.by_sample));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, grid, 4 * wide, shared, &p) }
    }))
}
