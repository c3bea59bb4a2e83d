//! The forward kernel, which also computes gradients of inputs: `kernels/conv/forward.cu`.

use super::tile::{Feed, Room, patch};
use super::{
    Call, FORWARD, GROUP, MAP_WORDS, PHASES, Pace, RUN_BYTES, SIDE_WIDE, Sizes, Tile, View, Weights,
    is_whole, pace, source, views,
};
use crate::context::Params;
use crate::error::CudaError;
use crate::lower::conv::widened::Widen;
use crate::lower::pointwise::literal;
use crate::lower::{Io, Kernel, Node, blocks, maps};
use clearshot_graph::ops::Unary;
use clearshot_tensor::DType;

#[repr(C)]
#[derive(Clone, Copy)]
struct ForwardParams {
    bias: u64,
    scales: u64,
    offsets: u64,
    side_bias: u64,
    residual: i32,
    side: [i32; 2],
    c: [i32; 2],
    k: i32,
    tiles_x: i32,
    tiles_y: i32,
    tiles_k: i32,
    tiles: i32,
    tap_columns: i32,
    first_column: i32,
    phase_rows: i32,
    bias_step: i32,
    y: u64,
    added: u64,
    height: i32,
    width: i32,
}

/// The kernel of a convolution that sees `s`, or of its input's gradient.
pub(in crate::lower::conv) fn forward(
    n: &Node<'_>,
    s: &Sizes,
    call: Call,
    tile: Tile,
) -> Result<Kernel, CudaError> {
    let side = call.side(s);
    let patch = patch(side, tile);
    let halved = pace(s) == Some(Pace::Halved);
    let room = Room::new(s, &call, tile).ok_or_else(|| CudaError::Unsupported {
        op: "conv".into(),
        reason: format!("{tile:?} has no room for its weights"),
    })?;
    let narrow = !call.transposed && !is_whole(s.c, s.dtype);
    let widen = if narrow { Some(Widen::new(n.cx, s)?) } else { None };
    let beside: Vec<usize> =
        call.side.map_or(vec![], |s| n.x[s.first..s.weight].iter().map(|t| t.shape.channels()).collect());
    let real = *s;
    let s = Sizes { c: if narrow { s.c.next_multiple_of(maps::STEP / 2) } else { s.c }, ..*s };
    let weights = if call.upsample { Some(Weights::new(n.cx, &s)?) } else { None };
    let [image_bytes, wide_bytes] =
        if narrow { [s.in_rows() * s.c, s.weight_len()].map(|len| s.bytes(len)) } else { [0; 2] };
    let is_rounded = s.dtype == DType::F32;
    let weight_bytes = match &weights {
        Some(weights) => weights.bytes(),
        None if is_rounded => s.bytes(s.weight_len()),
        None => 0,
    };
    let wide = tile.wide(s.dtype);
    let run = RUN_BYTES / s.dtype.bytes();

    let [_, h, w] = if call.upsample { s.input.map(|v| v / 2) } else { s.output };
    let made = if call.transposed { call.channels } else { s.k };
    let summed: Vec<usize> = match (call.transposed, call.parts) {
        (true, _) => vec![s.k],
        (false, 1) => vec![s.c],
        (false, parts) => n.x[..parts].iter().map(|t| t.shape.channels()).collect(),
    };
    let steps = match summed[..] {
        [c] if c < wide => c.div_ceil(run),
        _ if summed.iter().all(|c| c.is_multiple_of(wide)) => wide / run,
        _ => 0,
    };
    let end = n.y[0].dtype;
    let kind_of_act = match call.act {
        None => 0,
        Some(Unary::Silu) => 1,
        Some(Unary::Relu) => 2,
        Some(_) => 3,
    };
    let source = source(s.dtype, end, "conv/forward", FORWARD)
        .define("KS", side)
        .define("MB", tile.blocks)
        .define("BN", tile.channels)
        .define("PARTS", call.parts)
        .define("PATCHES", room.patches)
        .define("SPLIT", tile.shares)
        .define("STAGES", room.stages)
        .define(
            "WIDE_BIAS",
            call.bias.or(call.side.and_then(|s| s.bias)).is_some_and(|i| n.x[i].dtype == DType::F32) as usize,
        )
        .define("HELD", (tile.feed == Feed::Held) as usize)
        .define("DOWN", halved as usize)
        .define("STEPS", steps)
        .define("ROW", tile.row)
        .define("TRANSPOSED", call.transposed as usize)
        .define("ACT", kind_of_act);
    let source = match call.act {
        Some(Unary::LeakyRelu(slope)) => source.define("SLOPE", literal(slope)),
        _ => source,
    };
    let source = if beside.is_empty() { source } else { source.define("SIDE", beside.len()) };
    let f = n.cx.function(&source, "conv_warpgroup")?;
    let round = if is_rounded { Some(n.cx.function(&source, "round_weights")?) } else { None };
    let [phase_sources, results] = match (call.upsample, call.transposed) {
        (false, _) if halved => [PHASES, 1],
        (false, _) => [1, 1],
        (true, false) => [1, PHASES],
        (true, true) => [PHASES, 1],
    };
    let [tiles_x, tiles_y, tiles_k] =
        [w.div_ceil(8 * tile.blocks), h.div_ceil(16), made.div_ceil(tile.channels)];
    // For every place, tiles of all phases and channels.
    let (places, kinds) = (tiles_x * tiles_y * s.n, tiles_k * results);
    let tiles = places * kinds;
    let sms = n.cx.gpu.multiprocessors;
    let grid = match tile.feed {
        _ if tile.shares > 1 => tiles * tile.shares,
        Feed::Anew => tiles.min(sms),
        Feed::Held => kinds * places.min((sms / kinds).max(1)),
    };
    let fixed = ForwardParams {
        bias: 0,
        scales: 0,
        offsets: 0,
        side_bias: 0,
        residual: call.residual.is_some() as i32,
        side: [0, 1].map(|i| beside.get(i).map_or(0, |c| *c as i32)),
        c: [summed[0] as i32, summed.get(1).map_or(0, |c| *c as i32)],
        k: made as i32,
        tiles_x: tiles_x as i32,
        tiles_y: tiles_y as i32,
        tiles_k: tiles_k as i32,
        tiles: tiles as i32,
        tap_columns: s.c as i32,
        first_column: call.first as i32,
        phase_rows: s.k as i32,
        bias_step: if call.by_sample { s.k as i32 } else { 0 },
        y: 0,
        added: 0,
        height: h as i32,
        width: w as i32,
    };
    let boxed = match tile.shares {
        1 if tile.channels.is_multiple_of(64) => 64,
        shares => tile.channels / shares,
    };
    let weight_rows = if call.transposed { 64 } else { tile.channels };
    Ok(Kernel::new(image_bytes + wide_bytes + weight_bytes, move |cx, io: &Io<'_>| {
        let mut images = io.inputs[..call.parts].to_vec();
        let (mut weight, y) = (io.inputs[call.weight], io.outputs[0]);
        if let Some(widen) = &widen {
            let wide_weight = io.workspace + image_bytes as u64;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { widen.launch(cx, images[0], [s.in_rows(); 2], [real.c, s.c], io.workspace) }?;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { widen.launch(cx, weight, [s.weight_len() / s.c; 2], [real.c, s.c], wide_weight) }?;
            (images[0], weight) = (io.workspace, wide_weight);
        }
        let mut rows = s.k;
        if let Some(weights) = &weights {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { weights.gather(cx, weight, io.workspace) }?;
            (weight, rows) = (io.workspace, PHASES * s.k);
        }
        let view = |c| View { n: s.n, h, w, c, dtype: s.dtype, phase: None };
        let columns = if call.upsample { side * side } else { s.kernel[1] * s.kernel[2] } * s.c;
        if let Some(round) = round {
            let count = rows * columns;
            let a = Params::new().with(weight).with(io.workspace).with(count as i32);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(round, blocks(cx, count), 256, 0, &a) }?;
            weight = io.workspace;
        }
        let weight =
            maps::encode(weight, s.dtype.bytes(), &[columns, rows], &[columns], &[wide, weight_rows], true)?;
        let added = call.residual.map_or(0, |i| io.inputs[i]);
        let boxes = |at: u64| match is_rounded || at == 0 {
            true => Ok(vec![0; MAP_WORDS * results]),
            false => views(at, View { dtype: end, ..view(made) }, results, [boxed, 8, 8], boxed == 64),
        };
        let (result, residual) = (boxes(y)?, boxes(added)?);
        let mut sources = vec![];
        for (image, c) in images.iter().zip(&summed) {
            sources.extend(views(*image, view(*c), phase_sources, [wide, patch[0], patch[1]], true)?);
        }
        let biases = [call.bias, call.scales, call.offsets, call.side.and_then(|s| s.bias)];
        let [bias, scales, offsets, side_bias] = biases.map(|at| at.map_or(0, |i| io.inputs[i]));
        let p = ForwardParams { bias, scales, offsets, side_bias, y, added, ..fixed };
        let mut a = Params::new().words(sources).words(weight).words(result).words(residual);
        if let Some(side) = call.side {
            let bytes = end.bytes();
            let mut maps = vec![];
            for (image, c) in io.inputs[side.first..side.weight].iter().zip(&beside) {
                let view = View { dtype: end, ..view(*c) };
                maps.extend(view.map(*image, [SIDE_WIDE, 8 * tile.blocks, 16], true)?);
            }
            let all = beside.iter().sum::<usize>();
            let extent = [SIDE_WIDE, tile.channels];
            let weight = maps::encode(io.inputs[side.weight], bytes, &[all, s.k], &[all], &extent, true)?;
            a = a.words(maps).words(weight);
        }
        let a = a.with(p);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [grid, 1], 3 * GROUP, room.bytes, &a) }
    }))
}
