//! Which input pixels an output pixel reads, for any kernel, stride, dilation and padding.
//!
//! A convolution is one [`Phase`]: output pixel `q` reads input `q * pace + offset` for each tap. The
//! gradient with respect to the input, which scatters, is turned around into phases: the pixels
//! of the same remainder by the stride all read the same taps at offsets of their own, so each
//! phase is a dense convolution that gathers. No atomics, no order of sums that could change.

use super::ConvDims;

/// Positions of the kernel along one axis that a phase reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Index into the kernel.
    pub weight: usize,
    /// Input position relative to `q * pace`.
    pub offset: i32,
}

/// One axis of a phase: output pixels `first, first + step, ...`, of which number `q` reads the input
/// pixels `q * pace + offset`.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub count: usize,
    pub first: usize,
    pub step: usize,
    pub pace: usize,
    /// Lengths of the axis in the tensors that are read and written.
    pub input: usize,
    pub output: usize,
    /// By rising offset.
    pub taps: Vec<Tap>,
}

/// The output pixels that read the same taps.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub n: usize,
    pub axes: [Axis; 3],
}

impl Axis {
    fn forward(dims: &ConvDims, d: usize) -> Axis {
        let offset = |t: usize| (t * dims.dilation[d]) as i32 - dims.pad[d] as i32;
        Axis {
            count: dims.output[d],
            first: 0,
            step: 1,
            pace: dims.stride[d],
            input: dims.input[d],
            output: dims.output[d],
            taps: (0..dims.kernel[d]).map(|t| Tap { weight: t, offset: offset(t) }).collect(),
        }
    }

    /// Input pixels `first, first + stride, ...`, and the taps whose output position is whole
    /// there: `o = (i + pad - t dilation) / stride`.
    fn backward(dims: &ConvDims, d: usize, first: usize) -> Axis {
        let stride = dims.stride[d] as i32;
        let tap = |t: usize| {
            let o = first as i32 + dims.pad[d] as i32 - (t * dims.dilation[d]) as i32;
            (o.rem_euclid(stride) == 0).then_some(Tap { weight: t, offset: o.div_euclid(stride) })
        };
        Axis {
            count: (dims.input[d] - first).div_ceil(dims.stride[d]),
            first,
            step: dims.stride[d],
            pace: 1,
            input: dims.output[d],
            output: dims.input[d],
            taps: (0..dims.kernel[d]).rev().filter_map(tap).collect(),
        }
    }

    /// An axis of pixels that read themselves.
    fn identity(count: usize) -> Axis {
        let taps = vec![Tap { weight: 0, offset: 0 }];
        Axis { count, first: 0, step: 1, pace: 1, input: count, output: count, taps }
    }

    /// Pixels and outputs that read each other in order.
    fn is_identity(&self) -> bool {
        let one_tap = self.taps.len() == 1 && self.taps[0].offset == 0;
        one_tap && self.pace == 1 && self.step == 1 && self.input == self.output && self.count == self.input
    }

    pub fn low(&self) -> i32 {
        self.taps.first().map_or(0, |t| t.offset)
    }

    /// Input pixels from the first that a pixel reads to the last.
    pub fn span(&self) -> usize {
        self.taps.last().map_or(0, |t| (t.offset - self.low()) as usize + 1)
    }
}

impl Phase {
    /// The one phase of a forward convolution.
    pub fn forward(dims: &ConvDims) -> Phase {
        Phase { n: dims.n, axes: std::array::from_fn(|d| Axis::forward(dims, d)) }.flat()
    }

    /// The phases of the gradient with respect to the input; some may have no taps.
    pub fn input_grad(dims: &ConvDims) -> Vec<Phase> {
        let axes: [Vec<Axis>; 3] = std::array::from_fn(|d| {
            (0..dims.stride[d].min(dims.input[d])).map(|first| Axis::backward(dims, d, first)).collect()
        });
        let mut phases = Vec::new();
        for z in &axes[0] {
            for y in &axes[1] {
                for x in &axes[2] {
                    phases.push(Phase { n: dims.n, axes: [z.clone(), y.clone(), x.clone()] }.flat());
                }
            }
        }
        phases
    }

    /// Where each pixel reads only itself, all pixels of a sample are one row.
    fn flat(self) -> Phase {
        if !self.is_plain() {
            return self;
        }
        let pixels = self.axes.iter().map(|a| a.count).product();
        Phase { n: self.n, axes: [Axis::identity(1), Axis::identity(1), Axis::identity(pixels)] }
    }

    /// Output pixel `i` reads input pixel `i` and no other.
    pub fn is_plain(&self) -> bool {
        self.axes.iter().all(Axis::is_identity)
    }

    pub fn taps(&self) -> usize {
        self.axes.iter().map(|a| a.taps.len()).product()
    }

    /// The flat index into the kernel `[kz, ky, kx]` of tap `i`.
    pub fn weight(&self, i: usize, kernel: [usize; 3]) -> usize {
        let [z, y, x] = self.axes.each_ref();
        let (tx, ty, tz) =
            (i % x.taps.len(), i / x.taps.len() % y.taps.len(), i / x.taps.len() / y.taps.len());
        (z.taps[tz].weight * kernel[1] + y.taps[ty].weight) * kernel[2] + x.taps[tx].weight
    }
}
