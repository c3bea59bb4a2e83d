//! From a node to a kernel that is ready to run it.
//!
//! Most families' kernels take the node's attributes as they are ([`crate::kernels::prepare`]). The
//! files here join graph ops with the kernels that have an interface of their own: convolutions with a
//! norm in front of them, products, attention, norms.

mod attention;
mod conv;
mod matmul;
mod norm;
mod operands;

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
    let machine = Machine { bf16: machine.bf16.filter(|_| takes_bf16(graph, node)), ..machine };
    Some(match &n.op {
        Op::Conv(c) => {
            let fixed = constant(c.operands().weight) && c.operands().steps.is_none_or(constant);
            Box::new(conv::Forward::new(c, &types, fixed, machine))
        }
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

/// Whether the products of a node are of bf16 where those of its machine are: attention, and products of many rows. Those of one row
/// of each sample (what a network is told of the noise, say) take no time, and everything depends on them.
pub fn takes_bf16(graph: &Graph, node: usize) -> bool {
    let n = &graph.nodes[node];
    match n.op {
        Op::Attention(_) => true,
        Op::MatMul(_) => graph.shape(n.inputs[0]).rank() > 2,
        _ => false,
    }
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
        Some(Unary::Snap(step, first, last)) => Act::Snap([step, first, last].map(|x| x as f32)),
        Some(other) => panic!("{other:?} is no activation that passes fuse"),
    }
}
