//! Convolution: forward, gradient of the input, gradient of the weights.
//!
//! Tensors are channels-last, `[N, Z, Y, X, C]` (Z = 1 for images), weights `[K, kz, ky, kx, C / groups]`.
//! A plan chooses the algorithm from the dimensions once and says how much memory it needs; running
//! it allocates nothing. The cut into tasks and the order of every sum depend on the dimensions and
//! the instruction set only, so results are the same bits for any number of threads; and but for the gradient
//! of the weights, which sums over all samples, on the dimensions of one sample, so that a sample's result is
//! the same bits alone or in a batch.
//!
//! Kernels of 3x3 with stride 1 go through Winograd's transforms, small groups (depthwise convolutions) through
//! vectors of output channels, everything else through packed products that read patches of the input where they lie.

mod choice;
mod epilogue;
mod geometry;
mod grouped;
mod implicit;
mod int8;
mod region;
mod source;
#[cfg(test)]
mod tests;
mod weight_grad;
mod winograd;

pub use epilogue::Epilogue;
pub(crate) use epilogue::Finish;
pub use int8::{Int8Plan, Reading};
pub use source::{MAX_PARTS, Part, Pre, Source};

use crate::Cpu;
use crate::simd::Level;
use choice::{Choice, SAMPLES};
use grouped::Grouped;
use implicit::Implicit;
use weight_grad::Pixels;
use winograd::scheme::{F2, F4};
use winograd::{Winograd, WinogradGrad};

/// The shapes of a convolution. Axes are Z, Y, X.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvDims {
    pub n: usize,
    pub input: [usize; 3],
    pub c: usize,
    pub output: [usize; 3],
    pub k: usize,
    pub kernel: [usize; 3],
    pub stride: [usize; 3],
    /// Zeros before the first pixel; those behind the last one follow from `output`.
    pub pad: [usize; 3],
    pub dilation: [usize; 3],
    pub groups: usize,
}

impl ConvDims {
    /// A square image convolution with the same padding on all sides and no dilation.
    pub fn square(
        n: usize,
        size: usize,
        c: usize,
        k: usize,
        kernel: usize,
        stride: usize,
        pad: usize,
    ) -> ConvDims {
        let out = (size + 2 * pad - kernel) / stride + 1;
        ConvDims {
            n,
            input: [1, size, size],
            c,
            output: [1, out, out],
            k,
            kernel: [1, kernel, kernel],
            stride: [1, stride, stride],
            pad: [0, pad, pad],
            dilation: [1; 3],
            groups: 1,
        }
    }

    /// Multiplications and additions of the plain sum over all taps, padding counted.
    pub fn flops(&self) -> f64 {
        let outputs = self.n * self.output.iter().product::<usize>() * self.k;
        2.0 * outputs as f64 * (self.c / self.groups * self.kernel.iter().product::<usize>()) as f64
    }

    fn check(&self) {
        assert!(self.groups >= 1 && self.c.is_multiple_of(self.groups) && self.k.is_multiple_of(self.groups));
        assert!(self.n > 0 && self.c > 0 && self.k > 0, "a convolution of nothing: {self:?}");
        let axes = [self.input, self.output, self.kernel, self.stride, self.dilation];
        assert!(axes.iter().flatten().all(|&x| x > 0), "a convolution of nothing: {self:?}");
    }
}

/// Which of the two convolutions a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    InputGrad,
}

/// A convolution, or the gradient of one with respect to its input, ready to run.
pub struct ConvPlan {
    algo: Algo,
    threads: usize,
    /// Values of workspace that [`ConvPlan::run`] needs.
    pub workspace_len: usize,
    /// Values of packed weights that [`ConvPlan::pack`] writes.
    pub packed_len: usize,
}

enum Algo {
    Implicit(Implicit),
    Grouped(Grouped),
    Winograd2(Winograd<F2>),
    Winograd4(Winograd<F4>),
}

/// Calls a method of whichever algorithm it is.
macro_rules! each {
    ($algo:expr, $a:ident => $call:expr) => {
        match $algo {
            Algo::Implicit($a) => $call,
            Algo::Grouped($a) => $call,
            Algo::Winograd2($a) => $call,
            Algo::Winograd4($a) => $call,
        }
    };
}

impl Algo {
    fn choose(dims: &ConvDims, direction: Direction, level: Level) -> Choice {
        match direction {
            Direction::Forward => choice::choose(SAMPLES, dims, dims.output, dims.c, dims.k, level),
            Direction::InputGrad => choice::choose(SAMPLES, dims, dims.input, dims.k, dims.c, level),
        }
    }

    /// What was chosen, or packed products where that does not apply.
    fn new(choice: Choice, dims: &ConvDims, direction: Direction, level: Level) -> Algo {
        let algo = match choice {
            Choice::Winograd4 => Winograd::new(dims, direction, level).map(Algo::Winograd4),
            Choice::Winograd2 => Winograd::new(dims, direction, level).map(Algo::Winograd2),
            Choice::Grouped => Grouped::new(dims, direction, level).map(Algo::Grouped),
            Choice::Implicit => None,
        };
        algo.unwrap_or_else(|| Algo::Implicit(Implicit::new(dims, direction, level)))
    }
}

impl ConvPlan {
    /// The convolution.
    ///
    /// # Panics
    /// If a dimension is 0 or the groups do not divide the channels.
    pub fn forward(dims: &ConvDims, level: Level, threads: usize) -> ConvPlan {
        let choice = Algo::choose(dims, Direction::Forward, level);
        ConvPlan::new(choice, dims, Direction::Forward, level, threads)
    }

    /// The gradient with respect to the input, which is also the transposed convolution: it reads
    /// `[N, output, K]` and writes `[N, input, C]`; the epilogue is over C.
    ///
    /// # Panics
    /// As [`ConvPlan::forward`].
    pub fn input_grad(dims: &ConvDims, level: Level, threads: usize) -> ConvPlan {
        let choice = Algo::choose(dims, Direction::InputGrad, level);
        ConvPlan::new(choice, dims, Direction::InputGrad, level, threads)
    }

    fn new(choice: Choice, dims: &ConvDims, direction: Direction, level: Level, threads: usize) -> ConvPlan {
        dims.check();
        let algo = Algo::new(choice, dims, direction, level);
        let (workspace_len, packed_len) = each!(&algo, a => (a.workspace_len(threads), a.packed_len()));
        ConvPlan { algo, threads, workspace_len, packed_len }
    }

    /// Brings weights into the order that [`ConvPlan::run`] reads.
    ///
    /// # Safety
    /// `weights` points to `[K, kz, ky, kx, C / groups]`.
    ///
    /// # Panics
    /// If `packed` is too short.
    pub unsafe fn pack(&self, cpu: &Cpu, weights: *const f32, packed: &mut [f32]) {
        assert!(packed.len() >= self.packed_len, "packed weights need {} values", self.packed_len);
        // SAFETY: the caller's promise and the check above.
        unsafe { each!(&self.algo, a => a.pack(cpu, weights, packed.as_mut_ptr())) }
    }

    /// Reads `source`, writes pixels of `out` that are `out_stride` values apart.
    ///
    /// # Safety
    /// The source, the epilogue's tensors and `out` have the shapes of the plan, and `out` overlaps
    /// none of the others (the residual may be `out` itself).
    ///
    /// # Panics
    /// If `packed` or `workspace` is too short, or the context has more threads than planned.
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        source: &Source,
        packed: &[f32],
        epilogue: &Epilogue,
        out: *mut f32,
        out_stride: usize,
        workspace: &mut [f32],
    ) {
        assert!(cpu.pool.threads() <= self.threads, "planned for {} threads", self.threads);
        assert!(packed.len() >= self.packed_len, "packed weights need {} values", self.packed_len);
        assert!(workspace.len() >= self.workspace_len, "the workspace needs {} values", self.workspace_len);
        let (packed, workspace) = (packed.as_ptr(), workspace.as_mut_ptr());
        // SAFETY: the caller's promise and the checks above.
        unsafe { each!(&self.algo, a => a.run(cpu, source, packed, epilogue, out, out_stride, workspace)) }
    }
}

/// The gradient of a convolution with respect to its weights, ready to run.
pub struct WeightGradPlan {
    algo: WeightAlgo,
    threads: usize,
    /// Values of workspace that [`WeightGradPlan::run`] needs.
    pub workspace_len: usize,
}

enum WeightAlgo {
    Pixels(Box<Pixels>),
    Winograd2(WinogradGrad<F2>),
    Winograd4(WinogradGrad<F4>),
}

/// Calls a method of whichever algorithm it is.
macro_rules! each_weight {
    ($algo:expr, $a:ident => $call:expr) => {
        match $algo {
            WeightAlgo::Pixels($a) => $call,
            WeightAlgo::Winograd2($a) => $call,
            WeightAlgo::Winograd4($a) => $call,
        }
    };
}

impl WeightAlgo {
    /// What was chosen, or packed products where the transforms do not apply.
    fn new(choice: Choice, dims: &ConvDims, level: Level) -> WeightAlgo {
        let algo = match choice {
            Choice::Winograd4 => WinogradGrad::new(dims, level).map(WeightAlgo::Winograd4),
            Choice::Winograd2 => WinogradGrad::new(dims, level).map(WeightAlgo::Winograd2),
            Choice::Grouped | Choice::Implicit => None,
        };
        algo.unwrap_or_else(|| WeightAlgo::Pixels(Box::new(Pixels::new(dims, level))))
    }
}

impl WeightGradPlan {
    /// # Panics
    /// If a dimension is 0 or the groups do not divide the channels.
    pub fn new(dims: &ConvDims, level: Level, threads: usize) -> WeightGradPlan {
        let choice = choice::choose(dims.n, dims, dims.output, dims.c, dims.k, level);
        WeightGradPlan::with(choice, dims, level, threads)
    }

    fn with(choice: Choice, dims: &ConvDims, level: Level, threads: usize) -> WeightGradPlan {
        dims.check();
        let algo = WeightAlgo::new(choice, dims, level);
        let workspace_len = each_weight!(&algo, a => a.workspace_len(threads));
        WeightGradPlan { algo, threads, workspace_len }
    }

    /// Writes `dw` `[K, kz, ky, kx, C / groups]` from the convolution's source and the gradient
    /// `dy` `[N, output, K]`.
    ///
    /// # Safety
    /// The tensors have the shapes of the plan, and `dw` overlaps none of the others.
    ///
    /// # Panics
    /// If `workspace` is too short, or the context has more threads than planned.
    pub unsafe fn run(
        &self,
        cpu: &Cpu,
        source: &Source,
        dy: *const f32,
        dw: *mut f32,
        workspace: &mut [f32],
    ) {
        assert!(cpu.pool.threads() <= self.threads, "planned for {} threads", self.threads);
        assert!(workspace.len() >= self.workspace_len, "the workspace needs {} values", self.workspace_len);
        // SAFETY: the caller's promise and the checks above.
        unsafe { each_weight!(&self.algo, a => a.run(cpu, source, dy, dw, workspace.as_mut_ptr())) }
    }
}
