//! Convolutions of few channels in 16 bits on cards of compute capability 9.0, of volumes and planes, 3 pixels along each side with
//! steps of 1 or 2, and transposed ones of 2 pixels with steps of 2, by products of single warps: see `kernels/conv/volume.cu`.
//!
//! The library takes several times as long as reading and writing such volumes does, and leaves an activation to a pass of its own.

use super::{End, Sizes, is_half};
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::pointwise::with_act;
use crate::lower::{Io, Kernel, Node, fast, type_name};
use clearshot_graph::ops::Geometry;

const KERNEL: &str =
    concat!(include_str!("../../kernels/conv/warps.cu"), include_str!("../../kernels/conv/volume.cu"));

/// Shared memory of a multiprocessor that blocks may take, and what each of them takes besides.
const SHARED: usize = 227 << 10;
const RESERVED: usize = 1 << 10;
/// Threads of a multiprocessor, so that each has 128 registers.
const THREADS: usize = 512;
/// Eights of channels that a block makes at the most: it has registers for their sums.
const MOST_EIGHTS: usize = 4;

/// Warps of a block across and down, and rows of 16 pixels that each of them makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    across: usize,
    down: usize,
    rows: usize,
}

/// What a block computes.
#[derive(Clone, Copy)]
struct Shape {
    /// Channels of each image that is read.
    c: [usize; 2],
    eights: usize,
    /// Taps along z, and along the other axes.
    taps: [usize; 2],
    step: usize,
    /// Pixels that a transposed convolution makes of each; 0 for one that is not.
    phases: usize,
}

impl Shape {
    fn channels(&self) -> usize {
        self.c[0] + self.c[1]
    }

    /// The step along z.
    fn step_z(&self) -> usize {
        if self.taps[0] > 1 { self.step } else { 1 }
    }

    fn shared(&self, t: Tile) -> usize {
        let [kz, ks] = self.taps;
        let weights = kz * ks * ks * self.channels().div_ceil(16) * self.eights * 256;
        let units = self.channels() / 8;
        let pixel = 16 * if [1, 2, 4, 8].contains(&units) { units } else { units | 1 };
        let side = |pixels: usize| (pixels - 1) * self.step + ks;
        weights + (kz + self.step_z()) * side(16 * t.across) * side(t.rows * t.down) * pixel
    }
}

/// Channels of the images that are read one behind the other, two at the most, of whole pieces of 16 bytes.
fn read(parts: &[usize]) -> Option<[usize; 2]> {
    let c = match *parts {
        [c] => [c, 0],
        [a, b] => [a, b],
        _ => return None,
    };
    (parts.iter().all(|c| *c > 0 && c.is_multiple_of(8)) && c[0] + c[1] <= 128).then_some(c)
}

/// The largest number of eights that leaves no block with fewer.
fn eights(k: usize) -> Option<usize> {
    (k > 0 && k.is_multiple_of(8) && k <= 128)
        .then(|| (1..=MOST_EIGHTS).rev().find(|e| (k / 8).is_multiple_of(*e)).unwrap_or(1))
}

/// One that sees `s` of images with so many channels.
fn forward_shape(s: &Sizes, parts: &[usize]) -> Option<Shape> {
    let kz = if s.dims == 3 { 3 } else { 1 };
    let step = s.geometry.stride[2];
    let geometry = Geometry::new(s.dims, step, 0).with_padding(s.geometry.pad);
    let fits = (1..=2).contains(&step) && s.geometry == geometry && s.kernel == [kz, 3, 3];
    fits.then_some(Shape { c: read(parts)?, eights: eights(s.k)?, taps: [kz, 3], step, phases: 0 })
}

/// One whose gradient of the input is wanted: what it writes is read.
fn transposed_shape(s: &Sizes) -> Option<Shape> {
    let kz = if s.dims == 3 { 2 } else { 1 };
    let doubled = (0..3).all(|a| s.input[a] == s.output[a] * if a == 0 { kz } else { 2 });
    let fits = s.kernel == [kz, 2, 2] && s.geometry == Geometry::new(s.dims, 2, 0) && doubled;
    fits.then_some(Shape { c: read(&[s.k])?, eights: eights(s.c)?, taps: [1, 1], step: 1, phases: 4 * kz })
}

/// Tiles worth trying.
fn tiles_of(n: &Node<'_>, s: &Sizes, shape: Option<Shape>) -> Vec<Tile> {
    let Some(shape) = shape.filter(|_| n.cx.gpu.capability == (9, 0) && is_half(s.dtype) && s.n > 0) else {
        return vec![];
    };
    let most = if shape.eights <= 2 { 8 } else { 4 };
    let all = [(1, 4, most), (2, 2, most), (2, 4, 4), (1, 4, most / 2), (1, 2, most), (1, 2, most / 2)];
    let tile = |(across, down, rows)| Tile { across, down, rows };
    let fits = |t: &Tile| shape.shared(*t) + RESERVED <= SHARED;
    all.map(tile).into_iter().filter(fits).collect()
}

pub(super) fn tiles(n: &Node<'_>, s: &Sizes, parts: &[usize]) -> Vec<Tile> {
    tiles_of(n, s, forward_shape(s, parts))
}

pub(super) fn transposed_tiles(n: &Node<'_>, s: &Sizes) -> Vec<Tile> {
    tiles_of(n, s, transposed_shape(s))
}

#[repr(C)]
#[derive(Clone, Copy)]
struct VolumeParams {
    x: [u64; 2],
    w: u64,
    bias: u64,
    residual: u64,
    y: u64,
    size: [i32; 3],
    out: [i32; 3],
    pad: [i32; 3],
    k: i32,
    tiles_x: i32,
    tiles_y: i32,
    segments: i32,
    along: i32,
    items: i32,
}

/// Of images that are the first operands.
pub(super) fn forward(
    n: &Node<'_>,
    s: &Sizes,
    parts: &[usize],
    end: End,
    tile: Tile,
) -> Result<Kernel, CudaError> {
    made(n, s, forward_shape(s, parts), end, tile)
}

/// The gradient of the input, which is a transposed convolution of operand 0.
pub(super) fn transposed(n: &Node<'_>, s: &Sizes, end: End, tile: Tile) -> Result<Kernel, CudaError> {
    made(n, s, transposed_shape(s), end, tile)
}

fn made(n: &Node<'_>, s: &Sizes, shape: Option<Shape>, end: End, tile: Tile) -> Result<Kernel, CudaError> {
    let shape = shape.ok_or_else(|| CudaError::Unsupported {
        op: "conv".into(),
        reason: format!("{s:?} is not of few channels"),
    })?;
    let threads = 32 * tile.across * tile.down;
    let shared = shape.shared(tile);
    let each = (SHARED / (shared + RESERVED)).min(THREADS / threads).max(1);
    let source = Source::new("conv/volume", KERNEL)
        .define("T", type_name(s.dtype)?)
        .define("B", type_name(end.bias.map_or(s.dtype, |i| n.x[i].dtype))?)
        .define("C0", shape.c[0])
        .define("C1", shape.c[1])
        .define("NF", shape.eights)
        .define("KZ", shape.taps[0])
        .define("KS", shape.taps[1])
        .define("S", shape.step)
        .define("WX", tile.across)
        .define("WY", tile.down)
        .define("R", tile.rows)
        .define("UP", shape.phases)
        .define("BLOCKS", each);
    let f = n.cx.function(&with_act(fast(source, s.dtype), end.act), "conv_volume")?;

    let transposed = shape.phases > 0;
    let (size, k) = if transposed { (s.output, s.c) } else { (s.input, s.k) };
    let out = s.output;
    let [tiles_x, tiles_y] = [out[2].div_ceil(16 * tile.across), out[1].div_ceil(tile.rows * tile.down)];
    let kinds = k.div_ceil(8 * shape.eights) * shape.phases.max(1);
    let most = (n.cx.gpu.multiprocessors * each / kinds).max(1);
    let columns = s.n * tiles_x * tiles_y;
    // A column of the image is cut where blocks then have the least to do: planes to multiply, and those around a segment to load.
    let around = shape.taps[0] - 1;
    let cost = |along: &usize| {
        let items = columns * out[0].div_ceil(*along);
        items.div_ceil(most) * (20 * along + 7 * around + 6)
    };
    let along = (1..=out[0]).min_by_key(cost).unwrap_or(1);
    let segments = out[0].div_ceil(along);
    let items = columns * segments;
    let ints = |v: [usize; 3]| v.map(|x| x as i32);
    let pad = if transposed { [0; 3] } else { s.geometry.pad.map(|p| p[0]) };
    let fixed = VolumeParams {
        x: [0; 2],
        w: 0,
        bias: 0,
        residual: 0,
        y: 0,
        size: ints(size),
        out: ints(out),
        pad: ints(pad),
        k: k as i32,
        tiles_x: tiles_x as i32,
        tiles_y: tiles_y as i32,
        segments: segments as i32,
        along: along as i32,
        items: items as i32,
    };
    Ok(Kernel::new(0, move |cx, io: &Io<'_>| {
        let second = if shape.c[1] > 0 { io.inputs[1] } else { 0 };
        let [bias, residual] = [end.bias, end.residual].map(|at| at.map_or(0, |i| io.inputs[i]));
        let x = [io.inputs[0], second];
        let p = VolumeParams { x, w: io.inputs[end.weight], bias, residual, y: io.outputs[0], ..fixed };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [most.min(items), kinds], threads, shared, &Params::new().with(p)) }
    }))
}
