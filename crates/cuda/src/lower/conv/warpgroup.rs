//! Convolutions of 3 x 3 pixels, of one pixel on two images, and of 2 x 2 or 3 x 3 that halve the image, by warpgroups,
//! in 16 bits, or forward in TF32, e4m3 or whole numbers of 8 bits, on cards of compute capability 9.0: see `kernels/conv`.
//!
//! A patch of the image comes to shared memory once for all taps. Bias, residual and activation are added before the result
//! leaves the block. Convolutions of upsampled images are done by phases, whose results go straight to their places.
//! Whether these kernels or the library's are faster is measured for each shape.

mod forward;
mod tile;
mod weight_grad;

pub(super) use forward::forward;
pub(super) use tile::{Tile, tiles};
pub(super) use weight_grad::{takes_weight_grad, weight_grad};

use super::phases::Weights;
use super::{Sizes, is_half};
use crate::context::Source;
use crate::error::CudaError;
use crate::lower::{Node, maps};
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
        DType::BF16 | DType::F16 | DType::F8 | DType::U8 => true,
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
    if is_eighth(dtype) { DType::BF16 } else { dtype }
}

/// Whether images of this type are of 8 bits: e4m3, or whole numbers, whose weights are signed.
pub(super) fn is_eighth(dtype: DType) -> bool {
    matches!(dtype, DType::F8 | DType::U8)
}

/// Whether so many channels are as many bytes as the copy unit takes.
fn is_whole(channels: usize, dtype: DType) -> bool {
    (channels * dtype.bytes()).is_multiple_of(maps::STEP)
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
    /// What is taken off each channel's sums before: of whole numbers.
    pub offsets: Option<usize>,
    pub bias: Option<usize>,
    pub residual: Option<usize>,
    /// Of 8 bits: images of 16 bits, so many from the first operand on, whose product with a weight of one pixel is added.
    pub side: Option<Side>,
    /// Whether there is a bias for each sample.
    pub by_sample: bool,
    pub act: Option<Unary>,
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
    pub fn is_taken(&self, n: &Node<'_>) -> bool {
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
            DType::F8 | DType::U8 => {
                is_half(end) && self.scales.is_some() && self.parts == 1 && !self.upsample
            }
            _ => end == dtype && self.scales.is_none(),
        } && self.offsets.is_some() == (dtype == DType::U8);
        let weight = if dtype == DType::U8 { DType::I8 } else { dtype };
        let side = self.side.is_none_or(|s| {
            let fits = |i: usize| n.x[i].dtype == end && is_whole(n.x[i].shape.channels(), end);
            // Both biases are of one type.
            let first = self.bias.or(s.bias).map(|i| n.x[i].dtype);
            let same = |i: Option<usize>| i.is_none_or(|i| Some(n.x[i].dtype) == first);
            is_eighth(dtype)
                && (1..=2).contains(&(s.weight - s.first))
                && (s.first..=s.weight).all(fits)
                && self.act.is_none()
                && !self.by_sample
                && same(self.bias)
                && same(s.bias)
                && first.is_none_or(|t| [end, DType::F32].contains(&t))
        });
        images
            && factors
            && side
            && n.x[self.weight].dtype == weight
            && is_whole(self.first, end)
            && is_whole(self.channels, end)
            && matches!(self.act, None | Some(Unary::Silu | Unary::Relu | Unary::LeakyRelu(_)))
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
    match read {
        DType::F8 => source.option("-DFP8"),
        DType::U8 => source.option("-DINT8"),
        _ => source,
    }
}
