//! From a node to a kernel that is ready to run it.
//!
//! Most families' kernels take the node's attributes as they are ([`crate::kernels::prepare`]). The
//! files here join graph ops with the kernels that have an interface of their own: convolutions with a
//! norm in front of them, products, attention, norms.

mod attention;
mod conv;
mod conv_int8;
mod matmul;
mod norm;

use crate::act::Act;
use crate::kernels::{Prepared, fourier, prepare};
use crate::simd::Level;
use crate::simd::factors::{Bf16, Multiply};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Graph, Op, Type, Value};

/// What kernels are prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub level: Level,
    pub threads: usize,
    /// Products and attention multiply pairs of bf16.
    pub bf16: Option<Bf16>,
}

impl Machine {
    /// Products of f32.
    pub fn new(level: Level, threads: usize) -> Machine {
        Machine { level, threads, bf16: None }
    }

    /// What products multiply.
    fn factors(&self) -> Multiply {
        self.bf16.map_or(Multiply::F32(self.level), Multiply::Bf16)
    }
}

/// The kernel of a node; nothing for sources and views, which do not run.
pub fn lower(graph: &Graph, node: usize, machine: Machine) -> Option<Box<dyn Prepared>> {
    let n = &graph.nodes[node];
    let types: Vec<Type> = n.inputs.iter().map(|v| graph.ty(*v)).collect();
    let constant = |operand: usize| is_constant(graph, n.inputs[operand]);
    Some(match &n.op {
        Op::Conv(c) if c.int8.is_some() => {
            let fixed = constant(c.operands().weight) && c.operands().steps.is_none_or(constant);
            Box::new(conv_int8::Forward::new(c, &types, fixed, machine))
        }
        Op::Conv(c) => Box::new(conv::Forward::new(c, &types, constant(c.operands().weight), machine)),
        Op::ConvInputGrad(c) => Box::new(conv::InputGrad::new(c, &types, constant(1), machine)),
        Op::ConvWeightGrad(c) => Box::new(conv::WeightGrad::new(c, &types, machine)),
        Op::MatMul(m) => Box::new(matmul::Product::new(m, &types, constant(1), machine)),
        Op::CyclicConv(c) => Box::new(fourier::CyclicConv::new(*c, &types, constant(1))),
        Op::Attention(a) => Box::new(attention::Forward::new(a, &types, machine)),
        Op::AttentionGrad(a) => Box::new(attention::Backward::new(a, &types)),
        Op::Norm(a) => Box::new(norm::Forward::new(a, &types)),
        Op::NormStats(a) => Box::new(norm::Stats::new(a, &types)),
        Op::NormGrad(a) => Box::new(norm::Grad::new(a, &types)),
        op => return prepare(op, &types),
    })
}

/// Whether a value is the same from run to run: a constant, or a state that the graph never updates.
pub(crate) fn is_constant(graph: &Graph, v: Value) -> bool {
    let v = graph.behind_views(v);
    match graph.op(v) {
        Op::Const(_) => true,
        Op::State(_) => graph.updates.iter().all(|u| u.state != v.node),
        _ => false,
    }
}

fn act(f: Option<Unary>) -> Act {
    match f {
        None => Act::Identity,
        Some(Unary::Silu) => Act::Silu,
        Some(Unary::Relu) => Act::Relu,
        Some(Unary::LeakyRelu(slope)) => Act::LeakyRelu(slope as f32),
        Some(Unary::Gelu) => Act::Gelu,
        Some(Unary::GeluTanh) => Act::GeluTanh,
        Some(Unary::Sigmoid) => Act::Sigmoid,
        Some(Unary::Tanh) => Act::Tanh,
        Some(Unary::Softplus) => Act::Softplus,
        Some(other) => panic!("{other:?} is no activation that passes fuse"),
    }
}

/// Values in whole cache lines, so that pieces of a workspace do not share one.
fn padded(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// A workspace handed out piece by piece.
struct Pieces(*mut f32);

impl Pieces {
    /// # Safety
    /// The workspace has `len` more values, padded, and lives for `'a`.
    unsafe fn take<'a>(&mut self, len: usize) -> &'a mut [f32] {
        let start = self.0;
        // SAFETY: the caller's promise.
        unsafe {
            self.0 = start.add(padded(len));
            std::slice::from_raw_parts_mut(start, len)
        }
    }
}

/// # Safety
/// `len` values can be read at `p` for `'a`.
unsafe fn read<'a>(p: *const f32, len: usize) -> &'a [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(p, len) }
}

/// # Safety
/// `len` values can be written at `p`, and nobody else uses them, for `'a`.
unsafe fn write<'a>(p: *mut f32, len: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(p, len) }
}
