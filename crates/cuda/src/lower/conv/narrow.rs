//! Convolutions of 3 x 3 pixels from many channels to one or two, without tensor cores: see `kernels/conv/narrow.cu`.

use super::Sizes;
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, Node, type_name};

/// Results of a block, across and down.
const TILE: [usize; 2] = [30, 14];
const THREADS: usize = 128;
/// Shared memory that a kernel has without asking.
const MOST_SHARED: usize = 48 << 10;

/// Whether the kernel takes a convolution whose end is nothing but a bias.
pub(super) fn takes(s: &Sizes) -> bool {
    let shared = s.k * 9 * (s.c + (TILE[0] + 2) * (TILE[1] + 2)) * size_of::<f32>();
    s.is_usual() && (1..=2).contains(&s.k) && s.c.is_multiple_of(8) && shared <= MOST_SHARED
}

/// From x (operand 0), weights and a bias of the same type.
pub(super) fn forward(
    n: &Node<'_>,
    s: &Sizes,
    weight: usize,
    bias: Option<usize>,
) -> Result<Kernel, CudaError> {
    let source = Source::new("conv/narrow", include_str!("../../kernels/conv/narrow.cu"))
        .define("T", type_name(s.dtype)?)
        .define("C", s.c)
        .define("K", s.k);
    let f = n.cx.function(&source, "conv_narrow")?;
    let [_, h, w] = s.input;
    let [tiles_x, tiles_y] = [w.div_ceil(TILE[0]), h.div_ceil(TILE[1])];
    let blocks = s.n * tiles_x * tiles_y;
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[weight]);
        let p = p.with(bias.map_or(0, |i| io.inputs[i])).with(io.outputs[0]);
        let p = p.with(h as i32).with(w as i32).with(tiles_x as i32).with(tiles_y as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], THREADS, 0, &p) }
    }))
}
