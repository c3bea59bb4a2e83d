//! Convolutions of 3 x 3 pixels from one or two channels to many, without tensor cores: see `kernels/conv/few.cu`.

use super::Sizes;
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, Node, type_name};

/// Pixels along a row that a thread makes.
const PIXELS: usize = 32;
const THREADS: usize = 256;
/// Threads beside each other along channels: with fewer, a block's patch would be too tall for its shared memory.
const LEAST_ACROSS: usize = 4;
/// Blocks that a launch may have along its second side.
const MOST_STRETCHES: usize = 65_535;

/// Channels that a thread makes: it has registers for so many weights.
fn vector(s: &Sizes) -> usize {
    8 / s.c
}

/// Whether the kernel takes a convolution whose end is nothing but a bias.
pub(super) fn takes(s: &Sizes) -> bool {
    s.is_usual()
        && s.dtype.bytes() == 2
        && (1..=2).contains(&s.c)
        && s.k.is_multiple_of(vector(s) * LEAST_ACROSS)
        && s.k <= MOST_STRETCHES
}

/// From x (operand 0), weights and a bias of the same type.
pub(super) fn forward(
    n: &Node<'_>,
    s: &Sizes,
    weight: usize,
    bias: Option<usize>,
) -> Result<Kernel, CudaError> {
    let vectors = s.k / vector(s);
    let across = [32, 16, 8].into_iter().find(|a| vectors.is_multiple_of(*a)).unwrap_or(LEAST_ACROSS);
    let source = Source::new("conv/few", include_str!("../../kernels/conv/few.cu"))
        .define("T", type_name(s.dtype)?)
        .define("C", s.c)
        .define("V", vector(s))
        .define("ACROSS", across)
        .define("PIXELS", PIXELS);
    let f = n.cx.function(&source, "conv_few")?;
    let [_, h, w] = s.input;
    let [tiles_x, tiles_y] = [w.div_ceil(PIXELS), h.div_ceil(THREADS / across)];
    let (samples, k) = (s.n, s.k);
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[weight]);
        let p = p.with(bias.map_or(0, |i| io.inputs[i])).with(io.outputs[0]);
        let p = p.with(h as i32).with(w as i32).with(k as i32).with(tiles_x as i32).with(tiles_y as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [samples * tiles_x * tiles_y, vectors / across], THREADS, 0, &p) }
    }))
}
