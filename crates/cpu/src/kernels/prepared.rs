//! What a kernel is to who runs it: prepared once for known shapes, then run again and again.
//!
//! Preparing may allocate (index tables, strides, FFT plans); running may not. The results of a run
//! depend on the operands and the instruction level, never on the number of threads.

use super::{all_reduce, fourier, gather, movement, noise, pointwise, pool, reduce, resize, update};
use crate::Cpu;
use clearshot_graph::{Op, Type};

/// A kernel made for one node's attributes and shapes.
pub trait Prepared: Send + Sync {
    /// Computes the outputs.
    ///
    /// # Safety
    /// `inputs` and `outputs` are the operands and results of the node that the kernel was prepared
    /// for, in order, each valid for its number of elements. Whole numbers (keys, indices) are passed
    /// as pointers to their `i32`s cast to `f32` pointers. `workspace` is valid for
    /// [`Prepared::workspace_len`] values. No output overlaps the workspace, another output or an
    /// input, except that it may be the very pointer of an input where the kernel's documentation
    /// says so.
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32);

    /// The `f32`s that [`Prepared::pack`] writes: operands that never change, in the order that the kernel
    /// reads. They are then one more input, behind the others.
    fn packed_len(&self) -> usize {
        0
    }

    /// Packs what is to be packed once.
    ///
    /// # Safety
    /// As for [`Prepared::run`], with `packed` of [`Prepared::packed_len`] values.
    unsafe fn pack(&self, _cpu: &Cpu, _inputs: &[*const f32], _packed: &mut [f32]) {}

    /// The `f32`s of scratch that a run with this many threads needs.
    fn workspace_len(&self, _threads: usize) -> usize {
        0
    }
}

/// The kernel for a node, or nothing where its family has other kernels (convolution, matrix
/// product, attention, norm) or needs none (sources, views). No operand is taken to be the same from run to run.
pub fn prepare(op: &Op, x: &[Type]) -> Option<Box<dyn Prepared>> {
    Some(match op {
        Op::CyclicConv(a) => Box::new(fourier::CyclicConv::new(*a, x, false)),
        Op::Softmax => Box::new(reduce::Softmax::new(x)),
        Op::Unary(u) => Box::new(pointwise::Pointwise::unary(*u, x)),
        Op::UnaryGrad(u) => Box::new(pointwise::Pointwise::unary_grad(*u, x)),
        Op::Binary(o) => Box::new(pointwise::Pointwise::binary(*o, x)),
        Op::Pointwise(p) => Box::new(pointwise::Pointwise::new(p, x)),
        Op::Cast(to) => Box::new(pointwise::Cast::new(*to, x)),
        Op::Reduce(a) => Box::new(reduce::Reduce::new(*a, x)),
        Op::Transpose(a) => Box::new(movement::Transpose::new(*a, x)),
        Op::Broadcast(shape) => Box::new(movement::Broadcast::new(*shape, x)),
        Op::Concat(a) => Box::new(movement::Concat::new(*a, x)),
        Op::Slice(a) => Box::new(movement::Slice::new(*a, x)),
        Op::Pad(a) => Box::new(movement::Pad::new(*a, x)),
        Op::PadGrad(a) => Box::new(movement::PadGrad::new(*a, x)),
        Op::Resize(a) => Box::new(resize::Resize::new(*a, x)),
        Op::ResizeGrad(a) => Box::new(resize::ResizeGrad::new(*a, x)),
        Op::Pool(a) => Box::new(pool::Pool::new(*a, x)),
        Op::PoolGrad(a) => Box::new(pool::PoolGrad::new(*a, x)),
        Op::Gather => Box::new(gather::Gather::new(x)),
        Op::GatherGrad(a) => Box::new(gather::GatherGrad::new(*a, x)),
        Op::Noise(a) => Box::new(noise::Noise::new(*a, x)),
        Op::Dropout(a) => Box::new(noise::Dropout::new(*a, x)),
        Op::Clip(a) => Box::new(update::Clip::new(*a)),
        Op::Adam(a) => Box::new(update::Adam::new(*a, x)),
        Op::Sgd(a) => Box::new(update::Sgd::new(*a, x)),
        Op::Ema => Box::new(update::Ema::new(x)),
        Op::LossScale(a) => Box::new(update::LossScale::new(*a)),
        Op::CountStep => Box::new(update::CountStep),
        Op::AllReduceBegin(a) => Box::new(all_reduce::AllReduceBegin::new(*a, x)),
        Op::AllReduceEnd(a) => Box::new(all_reduce::AllReduceEnd::new(*a, x)),
        Op::Input(_)
        | Op::State(_)
        | Op::Const(_)
        | Op::Float8(_)
        | Op::Whole(_)
        | Op::Conv(_)
        | Op::ConvInputGrad(_)
        | Op::ConvWeightGrad(_)
        | Op::MatMul(_)
        | Op::Attention(_)
        | Op::AttentionGrad(_)
        | Op::Norm(_)
        | Op::NormStats(_)
        | Op::NormGrad(_)
        | Op::Reshape(_)
        | Op::StopGradient => return None,
    })
}
