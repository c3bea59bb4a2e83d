//! The gradient of the weights: `kernels/conv/weight_grad.cu`.

use super::{
    ALIGNMENT, GROUP, MOST_SHARED, PHASES, Pace, ROW_BYTES, Sizes, View, WEIGHT_GRAD, Weights, is_half,
    is_whole, pace, source, takes, views,
};
use crate::context::Params;
use crate::error::CudaError;
use crate::lower::{Io, Kernel, Node, blocks};

#[repr(C)]
#[derive(Clone, Copy)]
struct WeightParams {
    partial: u64,
    c: i32,
    k: i32,
    tiles_x: i32,
    tiles_y: i32,
    tiles: i32,
    tiles_k: i32,
    tiles_c: i32,
    splits: i32,
}

/// Pixels of a weight gradient's tile.
const PIXELS: [usize; 2] = [16, 8];

/// Into how many stretches pixels are cut, so that all multiprocessors have about as much to do: `blocks` for each.
fn splits(multiprocessors: usize, blocks: usize, tiles: usize) -> usize {
    // A block's start and end take about as long as so many tiles.
    const AROUND: usize = 6;
    let most = (4 * multiprocessors / blocks).clamp(1, tiles);
    let cost = |s: &usize| (blocks * s).div_ceil(multiprocessors) * (tiles.div_ceil(*s) + AROUND);
    (1..=most).min_by_key(cost).unwrap_or(1)
}

pub(in crate::lower::conv) fn takes_weight_grad(n: &Node<'_>, s: &Sizes) -> bool {
    takes(n, s)
        && is_half(s.dtype)
        && pace(s) == Some(Pace::Whole)
        && s.kernel == [1, 3, 3]
        && is_whole(s.c, s.dtype)
        && n.y[0].dtype == s.dtype
}

/// The kernels of a weight gradient, of a convolution that sees `s`: from x (operand 0) and dy to dw.
pub(in crate::lower::conv) fn weight_grad(
    n: &Node<'_>,
    s: &Sizes,
    dy_at: usize,
    upsample: bool,
) -> Result<Kernel, CudaError> {
    let (side, phases) = if upsample { (2, PHASES) } else { (3, 1) };
    let patch = [PIXELS[0] + side - 1, PIXELS[1] + side - 1];
    let stage =
        PIXELS[0] * PIXELS[1] * ROW_BYTES + (patch[0] * patch[1] * ROW_BYTES).next_multiple_of(ALIGNMENT);
    let stages = (MOST_SHARED - ALIGNMENT) / stage;
    let source =
        source(s.dtype, s.dtype, "conv/weight_grad", WEIGHT_GRAD).define("KS", side).define("STAGES", stages);
    let (f, sum) = (n.cx.function(&source, "conv_weight_grad")?, n.cx.function(&source, "conv_weight_sum")?);
    let weights = if upsample { Some(Weights::new(n.cx, s)?) } else { None };

    let s = *s;
    let [_, h, w] = if upsample { s.input.map(|v| v / 2) } else { s.input };
    let [tiles_x, tiles_y] = [w.div_ceil(PIXELS[0]), h.div_ceil(PIXELS[1])];
    let (tiles, tiles_k, tiles_c) = (tiles_x * tiles_y * s.n, s.k.div_ceil(64), s.c.div_ceil(64));
    let blocks_of_split = tiles_k * tiles_c * phases;
    let splits = splits(n.cx.gpu.multiprocessors, blocks_of_split, tiles);
    let elements = phases * s.k * side * side * s.c;
    let partial_bytes = (splits * elements * size_of::<f32>()).next_multiple_of(256);
    let weight_bytes = if upsample { s.bytes(elements) } else { 0 };
    let fixed = WeightParams {
        partial: 0,
        c: s.c as i32,
        k: s.k as i32,
        tiles_x: tiles_x as i32,
        tiles_y: tiles_y as i32,
        tiles: tiles as i32,
        tiles_k: tiles_k as i32,
        tiles_c: tiles_c as i32,
        splits: splits as i32,
    };
    Ok(Kernel::new(partial_bytes + weight_bytes, move |cx, io: &Io<'_>| {
        let image = |c| View { n: s.n, h, w, c, dtype: s.dtype, phase: None };
        let x = views(io.inputs[0], image(s.c), 1, [64, patch[0], patch[1]], true)?;
        let dy = views(io.inputs[dy_at], image(s.k), phases, [64, PIXELS[0], PIXELS[1]], true)?;
        let p = WeightParams { partial: io.workspace, ..fixed };
        let a = Params::new().words(x).words(dy).with(p);
        let shared = ALIGNMENT + stages * stage;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks_of_split * splits, 1], (side + 1) * GROUP, shared, &a) }?;
        let dw = if upsample { io.workspace + partial_bytes as u64 } else { io.outputs[0] };
        let a = Params::new().with(io.workspace).with(dw).with((elements / 2) as i64).with(splits as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(sum, blocks(cx, elements / 2), 256, 0, &a) }?;
        match &weights {
            // SAFETY: the promise of `Kernel::launch`.
            Some(weights) => unsafe { weights.fold(cx, dw, io.outputs[0]) },
            None => Ok(()),
        }
    }))
}
