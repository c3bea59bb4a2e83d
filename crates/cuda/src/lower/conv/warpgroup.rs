//! Convolutions of 3 x 3 pixels, of one pixel on two images, and of 2 x 2 or 3 x 3 that halve the image, by warpgroups,
//! in 16 bits, or forward in TF32 or e4m3, on cards of compute capability 9.0: see `kernels/conv`.
//!
//! A patch of the image comes to shared memory once for all taps. Bias, residual and SiLU are added before the result
//! leaves the block. Convolutions of upsampled images are done by phases, whose results go straight to their places.
//! Whether these kernels or the library's are faster is measured for each shape.

use super::Sizes;
use super::phases::Weights;
use super::widened::Widen;
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::{Io, Kernel, Node, blocks, maps};
use clearshot_graph::ops::conv::SideOperands;
use clearshot_graph::ops::{Geometry, Unary};
use clearshot_tensor::DType;
use std::borrow::Cow;

const SHARED: &str =
    concat!(include_str!("../../kernels/half.cu"), include_str!("../../kernels/warpgroup.cu"));
const FORWARD: &str = include_str!("../../kernels/conv/forward.cu");
const WEIGHT_GRAD: &str = include_str!("../../kernels/conv/weight_grad.cu");

/// Threads of a warpgroup.
const GROUP: usize = 128;
/// Bytes of a pixel's channels in shared memory, and what tiles in shared memory are aligned to.
const ROW_BYTES: usize = 128;
/// Channels of a side that come at a time: a row of 16 bits.
const SIDE_WIDE: usize = ROW_BYTES / 2;
/// Bytes of channels that a product sums over.
const RUN_BYTES: usize = 32;
const ALIGNMENT: usize = 1024;
/// Shared memory that a block may ask for besides the barriers.
const MOST_SHARED: usize = (227 << 10) - 1024;
const PHASES: usize = 4;
/// Words of a tensor's map.
const MAP_WORDS: usize = 16;

/// What a block of the forward kernel makes: 16 rows of 8 `blocks` pixels, and so many channels; or as many blocks as there
/// are `shares` together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    blocks: usize,
    channels: usize,
    shares: usize,
    feed: Feed,
    /// Bytes of a pixel's channels that come at a time.
    row: usize,
}

/// How weights come to a block's shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Feed {
    /// For every tile again.
    Anew,
    /// Once: all its tiles need the same.
    Held,
}

/// What the kernels make of a convolution's steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pace {
    /// One pixel.
    Whole,
    /// Two: the image is halved.
    Halved,
}

fn pace(s: &Sizes) -> Option<Pace> {
    let whole = s.input == s.output && s.geometry == Geometry::new(2, 1, s.kernel[1] / 2);
    let halved = s.input == [1, 2 * s.output[1], 2 * s.output[2]];
    match s.kernel {
        [1, 1, 1] | [1, 3, 3] if whole => Some(Pace::Whole),
        [1, 2, 2] if halved && s.geometry == Geometry::new(2, 2, 0) => Some(Pace::Halved),
        [1, 3, 3] if halved && s.geometry == Geometry::new(2, 2, 1) => Some(Pace::Halved),
        _ => None,
    }
}

/// Whether the kernels take the convolution, or its gradients: one that sees `s`.
fn takes(n: &Node<'_>, s: &Sizes) -> bool {
    let sizes = [s.n, s.c, s.k, s.input[1], s.input[2]];
    let computes = match s.dtype {
        DType::BF16 | DType::F16 | DType::F8 => true,
        DType::F32 => n.math.tf32,
        _ => false,
    };
    n.cx.gpu.capability == (9, 0)
        && computes
        && s.dims == 2
        && is_whole(s.k, made(s.dtype))
        && sizes.iter().product::<usize>() > 0
        && s.rows() <= i32::MAX as usize
        && (s.rows() * s.c <= i32::MAX as usize || is_whole(s.c, s.dtype))
}

/// The type of an image made of images of this type, as far as the size of its elements goes: sums of 8 bits have 16.
fn made(dtype: DType) -> DType {
    if dtype == DType::F8 { DType::BF16 } else { dtype }
}

/// Whether so many channels are as many bytes as the copy unit takes.
fn is_whole(channels: usize, dtype: DType) -> bool {
    (channels * dtype.bytes()).is_multiple_of(maps::STEP)
}

/// Tiles worth trying for a convolution that sees `s`; where it is transposed, only those of whole boxes of 64 channels.
pub(super) fn tiles(n: &Node<'_>, s: &Sizes, call: &Call) -> Vec<Tile> {
    let fits = match pace(s) {
        Some(Pace::Whole) => true,
        Some(Pace::Halved) => !call.transposed && call.parts == 1 && is_whole(s.c, s.dtype),
        None => false,
    };
    let is_wide = s.dtype == DType::F32;
    if !takes(n, s) || !fits || (is_wide && call.transposed) {
        return vec![];
    }
    let (channels, transposed) = (call.channels, call.transposed);
    let wide = match channels {
        c if c <= 48 && !transposed => 48,
        c if c <= 64 => 64,
        c if !transposed && c.div_ceil(96) * 96 < c.div_ceil(128) * 128 => 96,
        _ => 128,
    };
    let count = |t: &Tile| (s.rows() / (128 * t.blocks)).max(1) * channels.div_ceil(t.channels);
    let sms = n.cx.gpu.multiprocessors;
    let large = Tile { blocks: 2, channels: wide, shares: 1, feed: Feed::Anew, row: ROW_BYTES };
    let mut all = vec![large];
    // Small images do not fill the card with large tiles.
    if count(&large) < 2 * sms {
        all.push(Tile { blocks: 1, ..large });
        if wide > 64 && count(&all[1]) < sms {
            all.push(Tile { channels: 64, ..all[1] });
        }
    }
    let summed = if transposed { s.k } else { s.c }.div_ceil(large.wide(s.dtype));
    let shared = |t: &Tile| {
        let tile = *t;
        [2, 4].map(|shares| Tile { shares, ..tile }).into_iter().filter(move |t| {
            let small = t.blocks == 1 && count(t) * t.shares <= sms;
            small && !is_wide && t.channels.is_multiple_of(64) && t.shares <= summed
        })
    };
    let shared: Vec<Tile> = all.iter().flat_map(shared).collect();
    if count(&large) >= sms {
        all.extend(large.holding(s, call));
        all.extend(large.holding_less(s, call));
    }
    all.extend(shared);
    all
}

impl Tile {
    /// Channels that come at a time.
    fn wide(&self, dtype: DType) -> usize {
        self.row / dtype.bytes()
    }

    /// The same with its weights held, where they fit.
    pub(super) fn holding(self, s: &Sizes, call: &Call) -> Option<Tile> {
        let held = Tile { feed: Feed::Held, ..self };
        let suits = self.shares == 1
            && call.parts == 1
            && !(call.upsample && call.transposed)
            && pace(s) == Some(Pace::Whole);
        (suits && Room::new(s, call, held).is_some()).then_some(held)
    }

    /// The same with half as many channels at a time, for TF32: less comes in vain, and more is on its way.
    pub(super) fn holding_less(self, s: &Sizes, call: &Call) -> Option<Tile> {
        Tile { row: ROW_BYTES / 2, ..self }.holding(s, call).filter(|_| s.dtype == DType::F32)
    }
}

/// The part of a tensor [n, h, w, c] that is seen: every pixel, or those of one phase of an image twice as large.
#[derive(Clone, Copy)]
struct View {
    n: usize,
    h: usize,
    w: usize,
    c: usize,
    dtype: DType,
    phase: Option<usize>,
}

impl View {
    fn map(&self, address: u64, extent: [usize; 3], exchanged: bool) -> Result<Vec<u64>, CudaError> {
        let View { n, h, w, c, .. } = *self;
        let (step, first) = match self.phase {
            None => (1, 0),
            Some(i) => (2, (i / 2 * 2 * w + i % 2) * c),
        };
        let line = step * w * c;
        let steps = [step * c, step * line, step * h * line];
        let ([channels, x, y], bytes) = (extent, self.dtype.bytes());
        maps::encode(
            address + (first * bytes) as u64,
            bytes,
            &[c, w, h, n],
            &steps,
            &[channels, x, y, 1],
            exchanged,
        )
    }
}

/// Views of all phases of a large image, or the image itself, one behind the other.
fn views(
    address: u64,
    view: View,
    phases: usize,
    extent: [usize; 3],
    exchanged: bool,
) -> Result<Vec<u64>, CudaError> {
    let mut words = vec![];
    for i in 0..phases {
        let phase = (phases > 1).then_some(i);
        words.extend(View { phase, ..view }.map(address, extent, exchanged)?);
    }
    Ok(words)
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ForwardParams {
    bias: u64,
    scales: u64,
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

/// Where the operands of what is added beside a convolution stand.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub first: usize,
    pub weight: usize,
    pub bias: Option<usize>,
    /// How many times channels of the images come: tiles of the weight.
    turns: usize,
}

impl Side {
    pub fn new(n: &Node<'_>, at: SideOperands) -> Side {
        let SideOperands { first, weight, bias } = at;
        let turns = n.x[first..weight].iter().map(|t| t.shape.channels().div_ceil(SIDE_WIDE)).sum();
        Side { first, weight, bias, turns }
    }
}

/// Where the operands of a convolution or of its input's gradient stand, and what it is.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// Images that are read, the first operands, whose channels lie one behind the other: one or two.
    pub parts: usize,
    /// The weights; what is added.
    pub weight: usize,
    /// What each channel's sums are multiplied by: of weights in 8 bits.
    pub scales: Option<usize>,
    pub bias: Option<usize>,
    pub residual: Option<usize>,
    /// Of 8 bits: images of 16 bits, so many from the first operand on, whose product with a weight of one pixel is added.
    pub side: Option<Side>,
    /// Whether there is a bias for each sample.
    pub by_sample: bool,
    pub silu: bool,
    /// The input's gradient, of `channels` from `first` on.
    pub transposed: bool,
    pub first: usize,
    pub channels: usize,
    /// Whether the convolution sees its input upsampled.
    pub upsample: bool,
}

impl Call {
    /// Pixels of the kernel along a side, as the kernel that computes it sees them.
    fn side(&self, s: &Sizes) -> usize {
        match pace(s) {
            // Of each of four images a part of the kernel.
            Some(Pace::Halved) => s.kernel[1] - 1,
            _ if self.upsample => 2,
            _ => s.kernel[1],
        }
    }

    /// Whether the kernels have inputs and an end like these.
    pub fn is_taken(&self, n: &Node<'_>, act: Option<Unary>) -> bool {
        let dtype = n.x[0].dtype;
        let whole = |i: usize| is_whole(n.x[i].shape.channels(), dtype);
        // One image of a few channels is widened on the way.
        let images = match self.parts {
            1 => whole(0) || !(self.transposed || self.upsample || !is_half(dtype)),
            2 => whole(0) && whole(1) && !self.upsample,
            _ => false,
        };
        let end = n.y[0].dtype;
        // Of weights in 8 bits alone there are scales, and of few forms.
        let factors = match dtype {
            DType::F8 => is_half(end) && self.scales.is_some() && self.parts == 1 && !self.upsample,
            _ => end == dtype && self.scales.is_none(),
        };
        let side = self.side.is_none_or(|s| {
            let fits = |i: usize| n.x[i].dtype == end && is_whole(n.x[i].shape.channels(), end);
            // Both biases are of one type.
            let first = self.bias.or(s.bias).map(|i| n.x[i].dtype);
            let same = |i: Option<usize>| i.is_none_or(|i| Some(n.x[i].dtype) == first);
            dtype == DType::F8
                && (1..=2).contains(&(s.weight - s.first))
                && (s.first..=s.weight).all(fits)
                && !self.silu
                && !self.by_sample
                && same(self.bias)
                && same(s.bias)
                && first.is_none_or(|t| [end, DType::F32].contains(&t))
        });
        images
            && factors
            && side
            && n.x[self.weight].dtype == dtype
            && is_whole(self.first, end)
            && is_whole(self.channels, end)
            && matches!(act, None | Some(Unary::Silu))
            && self.bias.is_none_or(|i| [end, DType::F32].contains(&n.x[i].dtype))
    }
}

/// A program on images of type `read`, whose results are of type `made`.
fn source(read: DType, made: DType, file: &'static str, kernels: &str) -> Source {
    let text = Cow::Owned(format!("{SHARED}\n{kernels}"));
    let source =
        Source { file, text, prelude: false, options: vec![] }.option("-default-device").option(match made {
            DType::F32 => "-DELEM_TF32",
            DType::F16 => "-DELEM_FP16",
            _ => "-DELEM_BF16",
        });
    if read == DType::F8 { source.option("-DFP8") } else { source }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// What a block of the forward kernel has in shared memory.
struct Room {
    patches: usize,
    /// Tiles of weights.
    stages: usize,
    bytes: usize,
}

impl Room {
    /// Nothing where weights are to be held and do not fit.
    fn new(s: &Sizes, call: &Call, tile: Tile) -> Option<Room> {
        const MOST_STAGES: usize = 12;
        const MOST_PATCHES: usize = 8;
        let side = call.side(s);
        let (patch, stage) = (patch_bytes(side, tile), tile.channels * tile.row);
        // Results of 16 bits wait in shared memory.
        let results = if s.dtype == DType::F32 { 0 } else { 2 * tile.blocks * 64 * tile.channels * 2 };
        let fixed = ALIGNMENT + results;
        let left = MOST_SHARED - fixed;
        let (patches, stages) = match (tile.feed, side) {
            (Feed::Held, _) => {
                let summed = if call.transposed { s.k } else { s.c };
                let stages =
                    side * side * summed.div_ceil(tile.wide(s.dtype)) + call.side.map_or(0, |s| s.turns);
                ((left.checked_sub(stages * stage)? / patch).min(MOST_PATCHES), stages)
            }
            // With one tap, every patch goes with one tile of weights.
            (_, 1) => {
                let both = (left / (patch + stage)).min(8);
                (both, both)
            }
            _ => (2, ((left - 2 * patch) / stage).min(MOST_STAGES)),
        };
        let bytes = fixed + patches * patch + stages * stage;
        (patches >= 2).then_some(Room { patches, stages, bytes })
    }
}

/// Pixels of a tile and those around it, across and down.
fn patch(side: usize, tile: Tile) -> [usize; 2] {
    [8 * tile.blocks + side - 1, 16 + side - 1]
}

fn patch_bytes(side: usize, tile: Tile) -> usize {
    (patch(side, tile).iter().product::<usize>() * tile.row).next_multiple_of(ALIGNMENT)
}

/// The kernel of a convolution that sees `s`, or of its input's gradient.
pub(super) fn forward(n: &Node<'_>, s: &Sizes, call: Call, tile: Tile) -> Result<Kernel, CudaError> {
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
        .define("SILU", call.silu as usize);
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
        let biases = [call.bias, call.scales, call.side.and_then(|s| s.bias)];
        let [bias, scales, side_bias] = biases.map(|at| at.map_or(0, |i| io.inputs[i]));
        let p = ForwardParams { bias, scales, side_bias, y, added, ..fixed };
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

pub(super) fn takes_weight_grad(n: &Node<'_>, s: &Sizes) -> bool {
    takes(n, s)
        && is_half(s.dtype)
        && pace(s) == Some(Pace::Whole)
        && s.kernel == [1, 3, 3]
        && is_whole(s.c, s.dtype)
        && n.y[0].dtype == s.dtype
}

/// The kernels of a weight gradient, of a convolution that sees `s`: from x (operand 0) and dy to dw.
pub(super) fn weight_grad(
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
