//! Mixed precision: which values are stored in 16 bits.
//!
//! Kernels compute in f32 whatever their operands are and round once, when they store. So mixed precision
//! is a choice of storage: images, and what products and convolutions read, are 16 bits wide; parameters
//! with their moments, statistics, sums, losses and what the caller sees stay f32. Products and
//! convolutions want operands of one type, so casts are put before them where need be. The cast of a
//! parameter is a [state copy](Graph::is_state_copy): a backend keeps it from run to run, and refreshes it
//! where it writes the parameter.

use crate::graph::{Graph, Node, Type, Value};
use crate::ops::{Bias, Op};
use clearshot_tensor::DType;
use std::collections::BTreeMap;

/// The graph with images in `narrow`. Runs behind every pass that builds nodes.
pub fn narrow(graph: Graph, narrow: DType) -> Graph {
    let updated = gradients(&graph);
    let mut next = Narrowing { narrow, graph: Graph::default(), cast: BTreeMap::new() };
    let mut moved: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|v| *v = moved[v.at()][v.port()]);
        let outs = next.push(node, updated[i]);
        moved.push(outs);
    }
    for mut output in graph.outputs {
        let wanted = graph.nodes[output.value.at()].outs[output.value.port()].dtype;
        output.value = next.as_type(moved[output.value.at()][output.value.port()], wanted);
        next.graph.outputs.push(output);
    }
    for mut update in graph.updates {
        let wanted = graph.nodes[update.state as usize].outs[0].dtype;
        update.value = next.as_type(moved[update.value.at()][update.value.port()], wanted);
        update.state = moved[update.state as usize][0].node;
        next.graph.updates.push(update);
    }
    next.graph.tidy()
}

/// Which nodes make gradients that optimisers read.
fn gradients(graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for node in graph.nodes.iter().filter(|n| matches!(n.op, Op::Adam(_) | Op::Sgd(_))) {
        found[graph.behind_views(node.inputs[1]).at()] = true;
    }
    found
}

struct Narrowing {
    narrow: DType,
    graph: Graph,
    /// Casts made so far.
    cast: BTreeMap<(Value, DType), Value>,
}

impl Narrowing {
    fn push(&mut self, mut node: Node, gradient: bool) -> Vec<Value> {
        self.choose(&mut node, gradient);
        self.graph.nodes.push(node);
        let at = self.graph.nodes.len() - 1;
        (0..self.graph.nodes[at].outs.len()).map(|p| Value::new(at, p)).collect()
    }

    /// A value in another type of float; itself where it is no float or has the type.
    fn as_type(&mut self, v: Value, dtype: DType) -> Value {
        let ty = self.graph.ty(v);
        if ty.dtype == dtype || !ty.dtype.is_float() {
            return v;
        }
        if let Some(&done) = self.cast.get(&(v, dtype)) {
            return done;
        }
        let scope = self.graph.nodes[v.at()].scope.clone();
        let outs = vec![Type { dtype, ..ty }];
        self.graph.nodes.push(Node { op: Op::Cast(dtype), inputs: vec![v], outs, scope });
        let cast = Value::new(self.graph.nodes.len() - 1, 0);
        self.cast.insert((v, dtype), cast);
        cast
    }

    fn cast_inputs(&mut self, node: &mut Node, dtype: DType, which: impl Fn(usize) -> bool) {
        for slot in (0..node.inputs.len()).filter(|&s| which(s)) {
            node.inputs[slot] = self.as_type(node.inputs[slot], dtype);
        }
    }

    fn is_narrow(&self, v: Value) -> bool {
        self.graph.ty(v).dtype == self.narrow
    }

    /// Gives the node's outputs their types and its operands casts.
    fn choose(&mut self, node: &mut Node, gradient: bool) {
        let (wide, narrow) = (DType::F32, self.narrow);
        let mut outs = vec![wide; node.outs.len()];
        match node.op.clone() {
            Op::Input(_) | Op::State(_) | Op::Const(_) | Op::Cast(_) | Op::Float8(_) | Op::Whole(_) => return,
            Op::Conv(c) => {
                // A bias of each sample is added by a kernel of our own, which reads any float.
                let own = if c.bias == Bias::Sample { c.operands().bias } else { None };
                let steps = c.operands().steps;
                self.cast_inputs(node, narrow, |s| Some(s) != own && Some(s) != steps);
                outs[0] = narrow;
            }
            Op::ConvInputGrad(_) | Op::ConvWeightGrad(_) => {
                self.cast_inputs(node, narrow, |_| true);
                outs[0] = narrow;
            }
            Op::MatMul(m) => {
                // What is added to the product has the product's type.
                let residual = m.operands().1;
                outs[0] = if gradient { wide } else { narrow };
                self.cast_inputs(node, narrow, |s| Some(s) != residual);
                self.cast_inputs(node, outs[0], |s| Some(s) == residual);
            }
            Op::Attention(_) => {
                self.cast_inputs(node, narrow, |_| true);
                outs[0] = narrow;
            }
            Op::AttentionGrad(_) => {
                self.cast_inputs(node, narrow, |s| s != 4);
                outs.fill(narrow);
            }
            Op::Norm(n) => {
                self.agree(node, n.parts);
                self.affine(node, n.parts, n.film);
                outs[0] = narrow;
            }
            Op::NormStats(n) => self.agree(node, n.parts),
            Op::NormGrad(n) => {
                self.agree(node, n.norm.parts);
                let x = self.graph.ty(node.inputs[0]).dtype;
                self.affine(node, n.norm.parts + 1, n.norm.film);
                self.cast_inputs(node, narrow, |s| s == n.dy());
                let addends = n.dy() + 1 + n.addends.count_ones() as usize;
                self.cast_inputs(node, x, |s| s > n.dy() && s < addends);
                outs[..n.norm.parts].fill(x);
            }
            Op::Concat(_) => {
                let count = node.inputs.len();
                self.agree(node, count);
                outs[0] = self.graph.ty(node.inputs[0]).dtype;
            }
            Op::Unary(_)
            | Op::UnaryGrad(_)
            | Op::Binary(_)
            | Op::Pointwise(_)
            | Op::Softmax
            | Op::Dropout(_) => outs[0] = self.elementwise(node),
            Op::Reshape(_)
            | Op::StopGradient
            | Op::Transpose(_)
            | Op::Broadcast(_)
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::PadGrad(_)
            | Op::Resize(_)
            | Op::ResizeGrad(_)
            | Op::Pool(_) => outs[0] = self.graph.ty(node.inputs[0]).dtype,
            Op::PoolGrad(_) => {
                let count = node.inputs.len();
                self.agree(node, count);
                outs[0] = self.graph.ty(node.inputs[0]).dtype;
            }
            Op::CyclicConv(_) | Op::Gather => self.cast_inputs(node, wide, |_| true),
            // Sums and noise stay wide.
            Op::Reduce(_) | Op::GatherGrad(_) | Op::Noise(_) => {}
            // So do updates, which read gradients of any width.
            Op::Adam(_) | Op::Sgd(_) => self.cast_inputs(node, wide, |s| s != 1),
            Op::Clip(_)
            | Op::Ema
            | Op::LossScale(_)
            | Op::CountStep
            | Op::AllReduceBegin(_)
            | Op::AllReduceEnd(_) => {
                self.cast_inputs(node, wide, |_| true);
            }
        }
        for (ty, dtype) in node.outs.iter_mut().zip(outs) {
            if ty.dtype.is_float() {
                ty.dtype = dtype;
            }
        }
    }

    /// Makes the first `count` operands one type: narrow if any is.
    fn agree(&mut self, node: &mut Node, count: usize) {
        if node.inputs[..count].iter().any(|v| self.is_narrow(*v)) {
            self.cast_inputs(node, self.narrow, |s| s < count);
        }
    }

    /// A norm's gamma and beta, at `first`, are wide; FiLM's scale and shift behind them are of one type.
    fn affine(&mut self, node: &mut Node, first: usize, film: bool) {
        self.cast_inputs(node, DType::F32, |s| s == first || s == first + 1);
        if film && !self.is_narrow(node.inputs[first + 2]) | !self.is_narrow(node.inputs[first + 3]) {
            self.cast_inputs(node, DType::F32, |s| s == first + 2 || s == first + 3);
        }
    }

    /// Narrow if every operand of the result's size is: a wide image, such as a loss's target or a
    /// sampler's x, keeps what is computed with it wide.
    fn elementwise(&self, node: &Node) -> DType {
        let size = node.outs[0].shape.len();
        let mut whole = node
            .inputs
            .iter()
            .filter(|v| self.graph.shape(**v).len() == size && self.graph.ty(**v).dtype.is_float())
            .peekable();
        if whole.peek().is_some() && whole.all(|v| self.is_narrow(*v)) { self.narrow } else { DType::F32 }
    }
}
