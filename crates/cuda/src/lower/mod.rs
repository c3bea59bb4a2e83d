//! From a node to launches on the GPU.
//!
//! Everything that depends on shapes and types is worked out here, once; what is left is a closure that
//! takes addresses and launches. Ops that run over many tensors at once (optimisers, sums of squares)
//! are joined by the executor and are lowered in [`update`].
//!
//! Addresses are numbers, which no type can vouch for. So whatever launches is `unsafe`, down from [`Kernel::launch`], whose promise
//! every other `unsafe fn` in here asks for; the executor keeps it, since it owns the memory, and so does who measures on memory of
//! its own.

pub(crate) mod all_reduce;
mod attention;
mod conv;
mod fourier;
mod gather;
mod maps;
mod matmul;
mod movement;
mod noise;
mod norm;
mod pointwise;
mod pool;
mod reduce;
mod resize;
#[cfg(test)]
mod trial;
pub(crate) mod update;

use crate::context::{Context, Source};
use crate::error::CudaError;
use crate::exec::replay::{Replay, record};
use crate::memory::Buffer;
use crate::tune;
use clearshot_graph::{Graph, Op, Type};
use clearshot_tensor::DType;
pub(crate) use matmul::largest_product;
use std::sync::Arc;

/// What arithmetic to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Math {
    /// Products and convolutions of f32 may round their operands to TF32.
    pub tf32: bool,
}

/// Addresses of a node's operands, results and scratch.
pub(crate) struct Io<'a> {
    pub inputs: &'a [u64],
    pub outputs: &'a [u64],
    pub workspace: u64,
}

type Run = dyn Fn(&Context, &Io<'_>) -> Result<(), CudaError> + Send + Sync;

/// A node made ready to launch.
pub(crate) struct Kernel {
    pub workspace: usize,
    /// Whether nothing else may run beside it.
    pub is_alone: bool,
    run: Box<Run>,
}

impl Kernel {
    pub fn new(
        workspace: usize,
        run: impl Fn(&Context, &Io<'_>) -> Result<(), CudaError> + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { workspace, is_alone: false, run: Box::new(run) }
    }

    pub fn alone(self) -> Kernel {
        Kernel { is_alone: true, ..self }
    }

    /// # Safety
    /// The addresses are of memory on the context's card: operands and results as large as the types of the node that it was
    /// made for, scratch of `workspace` bytes. No two of them overlap but where the plan lets a result take an operand's
    /// place, and they stay until the stream has done it.
    pub unsafe fn launch(&self, cx: &Context, io: &Io<'_>) -> Result<(), CudaError> {
        (self.run)(cx, io)
    }
}

/// What a lowering sees of its node.
pub(crate) struct Node<'a> {
    pub cx: &'a Arc<Context>,
    pub math: Math,
    pub x: Vec<Type>,
    pub y: &'a [Type],
}

/// Makes a node ready. Sources, views, copies of states and the ops that [`update`] joins are not asked for.
pub(crate) fn lower(cx: &Arc<Context>, graph: &Graph, node: usize, math: Math) -> Result<Kernel, CudaError> {
    let n = &graph.nodes[node];
    let at = Node { cx, math, x: n.inputs.iter().map(|v| graph.ty(*v)).collect(), y: &n.outs };
    let lowered = match &n.op {
        Op::Conv(a) => conv::forward(&at, a),
        Op::ConvInputGrad(a) => conv::input_grad(&at, a),
        Op::ConvWeightGrad(a) => conv::weight_grad(&at, a),
        Op::MatMul(a) => matmul::matmul(&at, a),
        Op::Attention(a) => attention::forward(&at, a),
        Op::AttentionGrad(a) => attention::backward(&at, a),
        Op::CyclicConv(a) => fourier::cyclic(&at, a),
        Op::Norm(a) => norm::norm(&at, a),
        Op::NormStats(a) => norm::stats(&at, a),
        Op::NormGrad(a) => norm::grad(&at, a),
        Op::Softmax => reduce::softmax(&at),
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) | Op::Pointwise(_) => {
            pointwise::elementwise(&at, &n.op)
        }
        Op::Cast(_) => pointwise::copy(&at),
        Op::Float8(_) | Op::Whole(_) => Err(CudaError::Unsupported {
            op: n.op.name().into(),
            reason: "weights are split where they are set, and this is no parameter".into(),
        }),
        Op::Reduce(a) => reduce::reduce(&at, a),
        Op::Transpose(a) => movement::transpose(&at, a),
        Op::Broadcast(_) => pointwise::copy(&at),
        Op::Concat(a) => movement::concat(&at, a),
        Op::Slice(a) => movement::slice(&at, a),
        Op::Pad(a) => movement::pad(&at, a),
        Op::PadGrad(a) => movement::pad_grad(&at, a),
        Op::Resize(a) => resize::resize(&at, a),
        Op::ResizeGrad(a) => resize::resize_grad(&at, a),
        Op::Pool(a) => pool::pool(&at, a),
        Op::PoolGrad(a) => pool::pool_grad(&at, a),
        Op::Gather => gather::gather(&at),
        Op::GatherGrad(a) => gather::gather_grad(&at, a),
        Op::Noise(a) => noise::noise(&at, a),
        Op::Dropout(a) => noise::dropout(&at, a),
        Op::LossScale(a) => update::loss_scale(&at, a),
        Op::CountStep => update::count_step(&at),
        Op::Clip(_)
        | Op::Adam(_)
        | Op::Sgd(_)
        | Op::Ema
        // Of the executor: how values travel is known when it is told who carries them.
        | Op::AllReduceBegin(_)
        | Op::AllReduceEnd(_)
        | Op::Input(_)
        | Op::State(_)
        | Op::Const(_)
        | Op::Reshape(_)
        | Op::StopGradient => unreachable!("{} is not lowered by itself", n.op.name()),
    };
    lowered.map_err(|e| match e {
        CudaError::Call { what, detail } => {
            CudaError::Call { what, detail: format!("{detail}, for {}", graph.line(node)) }
        }
        other => other,
    })
}

/// Memory to try a node on.
struct Bench {
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    workspace: Buffer,
    _held: Vec<Buffer>,
}

impl Bench {
    fn new(n: &Node<'_>, workspace: usize) -> Result<Bench, CudaError> {
        let sample = |t: &Type| tune::sample(n.cx, t.bytes());
        let held = n.x.iter().chain(n.y).map(sample).collect::<Result<Vec<Buffer>, CudaError>>()?;
        let addresses: Vec<u64> = held.iter().map(Buffer::start).collect();
        let (inputs, outputs) = addresses.split_at(n.x.len());
        let workspace = Buffer::new(n.cx, workspace)?;
        Ok(Bench { inputs: inputs.to_vec(), outputs: outputs.to_vec(), workspace, _held: held })
    }

    fn io(&self) -> Io<'_> {
        Io { inputs: &self.inputs, outputs: &self.outputs, workspace: self.workspace.start() }
    }
}

/// The milliseconds of several ways to do a node: each a few times in a row, in turns, since the card's pace changes
/// with what it has just done; infinity for those that fail. The median of the turns counts.
fn times(n: &Node<'_>, kernels: &[Option<Kernel>]) -> Result<Vec<f32>, CudaError> {
    const TURNS: usize = 5;
    /// A turn takes about so long.
    const TURN_MS: f32 = 0.6;
    let workspace = kernels.iter().flatten().map(|k| k.workspace).max().unwrap_or(0);
    let bench = Bench::new(n, workspace)?;
    let io = bench.io();
    // What is recorded takes no time of the host's, as in a run.
    let mut tries: Vec<Option<(Replay, usize)>> = vec![];
    for kernel in kernels {
        let launch =
            // SAFETY: the promise of `Kernel::launch`.
            |count| (0..count).try_for_each(|_| kernel.as_ref().map_or(Ok(()), |k| unsafe { k.launch(n.cx, &io) }));
        let prepare = || {
            // The first launch may wait for the compiler.
            launch(1)?;
            let once = n.cx.time_some(2, &mut || launch(1))?;
            let repeats = (TURN_MS / once.max(1e-3)).ceil().clamp(1.0, 20.0) as usize;
            Ok::<_, CudaError>((record(n.cx, || launch(repeats))?, repeats))
        };
        tries.push(if kernel.is_some() { prepare().ok() } else { None });
    }
    let mut all = vec![vec![]; kernels.len()];
    for _ in 0..TURNS {
        for (times, (replay, repeats)) in
            all.iter_mut().zip(&tries).filter_map(|(times, t)| Some((times, t.as_ref()?)))
        {
            times.push(n.cx.time_some(1, &mut || replay.launch(n.cx))? / *repeats as f32);
        }
    }
    let median = |mut times: Vec<f32>| {
        times.sort_by(f32::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f32::INFINITY)
    };
    Ok(all.into_iter().map(median).collect())
}

/// The fastest of several ways to do a node, measured once for the shape and kept; `name` says what the node is.
pub(crate) fn fastest<W: Copy + std::fmt::Debug>(
    n: &Node<'_>,
    name: &str,
    ways: &[W],
    make: impl Fn(W) -> Result<Kernel, CudaError>,
) -> Result<Kernel, CudaError> {
    if let [way] = ways {
        return make(*way);
    }
    let key = format!("{name} {:?} {:?} {ways:?}", n.x, n.y);
    let chosen = tune::choice(
        n.cx,
        &key,
        |i| *i < ways.len(),
        || {
            // All are asked for before any is timed.
            let kernels: Vec<Option<Kernel>> = ways.iter().map(|way| make(*way).ok()).collect();
            let times = times(n, &kernels)?;
            let best = (0..ways.len())
                .filter(|i| times[*i].is_finite())
                .min_by(|a, b| times[*a].total_cmp(&times[*b]));
            Ok(best)
        },
    )?;
    make(chosen.and_then(|i| ways.get(i)).copied().unwrap_or(ways[0]))
}

/// The name of a type in kernel files.
pub(crate) fn type_name(dtype: DType) -> Result<&'static str, CudaError> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::BF16 => Ok("bf16"),
        DType::F16 => Ok("f16"),
        DType::F8 => Ok("f8"),
        DType::I32 => Ok("i32"),
        DType::U8 => Ok("u8"),
        other => Err(CudaError::Unsupported {
            op: format!("an operand of {other}"),
            reason: "kernels take f32, f16, bf16, f8, i32 and u8".into(),
        }),
    }
}

/// The most elements, up to 16 bytes of `dtype`, that divide all of `counts`.
pub(crate) fn vector(dtype: DType, counts: &[usize]) -> usize {
    let most = 16 / dtype.bytes();
    [8, 4, 2].into_iter().find(|v| *v <= most && counts.iter().all(|c| c % v == 0)).unwrap_or(1)
}

/// The type that kernels count so many elements in: division is several times as fast in 32 bits. With room for a step of the grid.
pub(crate) fn index_name(count: usize) -> &'static str {
    if count <= i32::MAX as usize { "u32" } else { "i64" }
}

/// Blocks of 256 threads for `count` threads' work, not more than keep the GPU busy.
pub(crate) fn blocks(cx: &Context, count: usize) -> [usize; 2] {
    [count.div_ceil(256).clamp(1, cx.gpu.multiprocessors * 16), 1]
}

/// Approximate functions where results are 16 bits wide.
pub(crate) fn fast(source: Source, dtype: DType) -> Source {
    if dtype == DType::F32 { source } else { source.option("-DFAST") }
}
