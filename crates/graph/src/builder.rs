//! Making graphs, without a `?` on every line.
//!
//! The builder checks each operation when it is added and keeps the first error with the place in the
//! caller's code; later calls go on with a poisoned value and do nothing. [`Builder::finish`] gives the
//! graph or that error. A network's code therefore reads like the network.

use crate::graph::{Graph, Node, Output, StateInit, Type, Update, Value};
use crate::ops::{self, *};
use clearshot_tensor::{DType, MAX_RANK, Shape, Tensor};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

/// The first thing that went wrong while a graph was built.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{op}{} at {place}: {reason}{}", part(" in ", scope, ""), part(" (operands: ", operands, ")"))]
pub struct BuildError {
    pub op: String,
    pub scope: String,
    /// Types of the operands, in order; empty where they are not what is wrong.
    pub operands: String,
    pub reason: OpError,
    pub place: &'static Location<'static>,
}

/// A text between two others, or nothing where it is empty.
fn part(before: &str, text: &str, behind: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{before}{text}{behind}") }
}

/// See the module.
#[derive(Default)]
pub struct Builder {
    graph: Graph,
    error: Option<BuildError>,
    scope: Option<Arc<str>>,
}

/// What a poisoned value answers when asked for its shape: nothing indexed by it is out of range.
const POISON_SHAPE: [usize; MAX_RANK] = [1; MAX_RANK];

impl Builder {
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Goes on building where a finished graph ended.
    pub fn extend(graph: Graph) -> Builder {
        Builder { graph, ..Builder::default() }
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// # Errors
    /// The first error of any call.
    pub fn finish(self) -> Result<Graph, BuildError> {
        match self.error {
            Some(e) => Err(e),
            None => Ok(self.graph),
        }
    }

    /// The first error so far, for who builds from a file and wants to stop there.
    pub fn error(&self) -> Option<&BuildError> {
        self.error.as_ref()
    }

    /// Nodes added from now on belong to this layer; returns the former one, to be set again.
    pub fn set_scope(&mut self, scope: &str) -> Arc<str> {
        self.scope.replace(scope.into()).unwrap_or_else(|| "".into())
    }

    pub fn ty(&self, v: Value) -> Type {
        if v == Value::POISON { Type::f32(POISON_SHAPE) } else { self.graph.ty(v) }
    }

    pub fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape
    }

    /// The size of the last axis.
    pub fn channels(&self, v: Value) -> usize {
        self.shape(v).channels()
    }

    /// Records that something cannot be built, for a reason that no operation would give.
    #[track_caller]
    pub fn refuse(&mut self, what: &str, reason: String) -> Value {
        self.fail(what, String::new(), OpError::Attribute(reason), Location::caller());
        Value::POISON
    }

    fn fail(&mut self, op: &str, operands: String, reason: OpError, place: &'static Location<'static>) {
        let scope = self.scope.as_deref().unwrap_or("").to_string();
        self.error.get_or_insert(BuildError { op: op.into(), scope, operands, reason, place });
    }

    /// Adds an operation; its outputs in order.
    #[track_caller]
    pub fn push(&mut self, op: Op, inputs: Vec<Value>) -> Vec<Value> {
        if inputs.contains(&Value::POISON) || self.error.is_some() {
            return vec![Value::POISON; MAX_OUTS];
        }
        let types: Vec<Type> = inputs.iter().map(|&v| self.ty(v)).collect();
        match op.infer(&types).and_then(|outs| outs.iter().try_for_each(possible).map(|()| outs)) {
            Ok(outs) => self.place(op, inputs, outs),
            Err(reason) => {
                let operands = types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
                self.fail(op.name(), operands, reason, Location::caller());
                vec![Value::POISON; MAX_OUTS]
            }
        }
    }

    fn place(&mut self, op: Op, inputs: Vec<Value>, outs: Vec<Type>) -> Vec<Value> {
        let node = self.graph.nodes.len();
        let values = (0..outs.len()).map(|port| Value::new(node, port)).collect();
        let scope = self.scope.clone().unwrap_or_else(|| "".into());
        self.graph.nodes.push(Node { op, inputs, outs, scope });
        values
    }

    /// Adds an operation of which only the first output matters.
    #[track_caller]
    pub fn push_one(&mut self, op: Op, inputs: Vec<Value>) -> Value {
        self.push(op, inputs)[0]
    }

    // Sources and results. ----------------------------------------------------------------------

    #[track_caller]
    pub fn input(&mut self, name: &str, ty: Type) -> Value {
        if self.graph.inputs().any(|(n, _)| n == name) {
            return self.refuse("input", format!("two inputs are called `{name}`"));
        }
        if let Err(e) = possible(&ty) {
            return self.refuse("input", e.to_string());
        }
        self.place(Op::Input(name.into()), vec![], vec![ty])[0]
    }

    /// A state by name; the same name again is the same state.
    #[track_caller]
    pub fn state(&mut self, name: &str, ty: Type, init: StateInit) -> Value {
        let known = self.graph.states().find(|(n, ..)| *n == name).map(|(_, _, v)| v);
        match known {
            Some(v) if self.ty(v) == ty => v,
            Some(v) => {
                let first = self.ty(v);
                self.refuse("state", format!("`{name}` is {first} and {ty}"))
            }
            None if possible(&ty).is_err() => self.refuse("state", format!("`{name}` is {ty}: {LARGEST}")),
            None => self.place(Op::State(State { name: name.into(), init }), vec![], vec![ty])[0],
        }
    }

    /// A parameter: a state that the caller must set.
    #[track_caller]
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>) -> Value {
        self.state(name, Type::f32(shape), StateInit::Given)
    }

    pub fn constant(&mut self, tensor: Tensor) -> Value {
        self.push_one(Op::Const(Constant(Arc::new(tensor))), vec![])
    }

    pub fn scalar(&mut self, x: f32) -> Value {
        self.constant(Tensor::scalar(x))
    }

    /// Puts the convolutions from node `first` on into 8 bits whose weights have steps; see [`crate::passes::int8`].
    #[track_caller]
    pub fn round_convolutions(&mut self, first: usize, steps: &BTreeMap<String, Option<Value>>) {
        if self.error.is_none()
            && let Err((name, reason)) = crate::passes::int8::apply(&mut self.graph, first, steps)
        {
            self.fail("int8", name, reason, Location::caller());
        }
    }

    /// Gives a value to the caller under a name.
    #[track_caller]
    pub fn output(&mut self, name: &str, value: Value) {
        if self.graph.outputs.iter().any(|o| o.name == name) {
            self.refuse("output", format!("two outputs are called `{name}`"));
        }
        if value != Value::POISON {
            self.graph.outputs.push(Output { name: name.into(), value });
        }
    }

    /// After a run, `state` holds `value`.
    #[track_caller]
    pub fn update(&mut self, state: Value, value: Value) {
        if state == Value::POISON || value == Value::POISON {
            return;
        }
        let (a, b) = (self.ty(state), self.ty(value));
        if !matches!(self.graph.op(state), Op::State(_)) || a != b {
            self.refuse("update", format!("{b} cannot be written back into {a}"));
            return;
        }
        self.graph.updates.push(Update { state: state.node, value });
    }

    // Contractions. -----------------------------------------------------------------------------

    #[track_caller]
    pub fn conv(&mut self, x: Value, weight: Value, bias: Option<Value>, geometry: Geometry) -> Value {
        let op = Op::Conv(Conv::plain(geometry, bias.is_some()));
        self.push_one(op, [x, weight].into_iter().chain(bias).collect())
    }

    /// The gradient of a convolution's input of shape `like`.
    #[track_caller]
    pub fn conv_input_grad(&mut self, dy: Value, weight: Value, geometry: Geometry, like: Shape) -> Value {
        let Ok(input) = ops::conv::spatial("input", like) else {
            return self.refuse("conv_input_grad", format!("{like} is no image"));
        };
        let channels = [0, like.channels()];
        let op = ConvInputGrad {
            geometry,
            upsample: false,
            input,
            channels,
            bias: false,
            act: None,
            residual: false,
        };
        self.push_one(Op::ConvInputGrad(op), vec![dy, weight])
    }

    /// The gradient of a convolution's weight of shape `like`.
    #[track_caller]
    pub fn conv_weight_grad(&mut self, x: Value, dy: Value, geometry: Geometry, like: Shape) -> Value {
        let Ok(kernel) = ops::conv::spatial("weight", like) else {
            return self.refuse("conv_weight_grad", format!("{like} is no weight"));
        };
        let op = ConvWeightGrad { geometry, upsample: false, kernel, parts: 1, prologue: None };
        self.push_one(Op::ConvWeightGrad(op), vec![x, dy])
    }

    /// Transposed convolution: the weight is `[C in, (kz,) ky, kx, C out / groups]`. The result is as
    /// small as it can be; `extra` adds pixels at the end of each axis (output padding).
    #[track_caller]
    pub fn conv_transpose(
        &mut self,
        x: Value,
        weight: Value,
        bias: Option<Value>,
        geometry: Geometry,
        extra: [usize; 3],
    ) -> Value {
        let (sx, sw) = (self.shape(x), self.shape(weight));
        let (Ok(at), Ok(kernel)) = (ops::conv::spatial("input", sx), ops::conv::spatial("weight", sw)) else {
            return self.refuse("conv_transpose", format!("input {sx}, weight {sw}"));
        };
        let smallest = geometry.smallest_input(at, kernel);
        let op = ConvInputGrad {
            geometry,
            upsample: false,
            input: std::array::from_fn(|a| smallest[a].saturating_add(extra[a])),
            channels: [0, sw.channels() * geometry.groups],
            bias: bias.is_some(),
            act: None,
            residual: false,
        };
        self.push_one(Op::ConvInputGrad(op), [x, weight].into_iter().chain(bias).collect())
    }

    #[track_caller]
    pub fn matmul(&mut self, a: Value, b: Value, transpose_a: bool, transpose_b: bool) -> Value {
        self.push_one(Op::MatMul(MatMul::plain(transpose_a, transpose_b)), vec![a, b])
    }

    /// `x weightᵀ + bias` over the last axis, the weight being `[out, in]`.
    #[track_caller]
    pub fn linear(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Value {
        let op = MatMul { bias: bias.is_some(), ..MatMul::plain(false, true) };
        self.push_one(Op::MatMul(op), [x, weight].into_iter().chain(bias).collect())
    }

    /// Attention with heads side by side along channels; `scale` is by default `1 / sqrt(head size)`.
    #[track_caller]
    pub fn attention(&mut self, q: Value, k: Value, v: Value, heads: usize, scale: Option<f64>) -> Value {
        let head = self.channels(q) / heads.max(1);
        let scale = scale.unwrap_or(1.0 / (head.max(1) as f64).sqrt());
        self.push_one(Op::Attention(Attention { heads, scale }), vec![q, k, v])
    }

    /// Cyclic convolution over the spatial axes; the kernel's origin is its first element.
    #[track_caller]
    pub fn cyclic_conv(&mut self, x: Value, kernel: Value, adjoint: bool) -> Value {
        self.push_one(ops::fourier::op(adjoint), vec![x, kernel])
    }

    // Norms. ------------------------------------------------------------------------------------

    #[track_caller]
    pub fn group_norm(&mut self, x: Value, gamma: Value, beta: Value, groups: usize, eps: f64) -> Value {
        let op = Norm { groups, eps, parts: 1, film: false, act: None, rounded: false, bias: false };
        self.push_one(Op::Norm(op), vec![x, gamma, beta])
    }

    /// Group norm followed by `y (1 + scale) + shift`, both `[N, C]`: feature-wise modulation.
    #[track_caller]
    pub fn modulated_norm(
        &mut self,
        x: Value,
        [gamma, beta]: [Value; 2],
        [scale, shift]: [Value; 2],
        groups: usize,
        eps: f64,
    ) -> Value {
        let op = Norm { groups, eps, parts: 1, film: true, act: None, rounded: false, bias: false };
        self.push_one(Op::Norm(op), vec![x, gamma, beta, scale, shift])
    }

    #[track_caller]
    pub fn instance_norm(&mut self, x: Value, gamma: Value, beta: Value, eps: f64) -> Value {
        let groups = self.channels(x);
        self.group_norm(x, gamma, beta, groups, eps)
    }

    /// Over the last axis.
    #[track_caller]
    pub fn layer_norm(&mut self, x: Value, gamma: Value, beta: Value, eps: f64) -> Value {
        let shape = self.shape(x);
        let c = shape.channels();
        let rows = self.reshape(x, Shape::from([shape.len() / c.max(1), c]));
        let y = self.group_norm(rows, gamma, beta, 1, eps);
        self.reshape(y, shape)
    }

    /// Over the last axis.
    #[track_caller]
    pub fn softmax(&mut self, x: Value) -> Value {
        self.push_one(Op::Softmax, vec![x])
    }

    // Elementwise. ------------------------------------------------------------------------------

    #[track_caller]
    pub fn unary(&mut self, f: Unary, x: Value) -> Value {
        self.push_one(Op::Unary(f), vec![x])
    }

    #[track_caller]
    pub fn unary_grad(&mut self, f: Unary, x: Value, dy: Value) -> Value {
        self.push_one(Op::UnaryGrad(f), vec![x, dy])
    }

    #[track_caller]
    pub fn binary(&mut self, f: Binary, a: Value, b: Value) -> Value {
        self.push_one(Op::Binary(f), vec![a, b])
    }

    #[track_caller]
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::Add, a, b)
    }

    #[track_caller]
    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::Sub, a, b)
    }

    #[track_caller]
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::Mul, a, b)
    }

    #[track_caller]
    pub fn div(&mut self, a: Value, b: Value) -> Value {
        self.binary(Binary::Div, a, b)
    }

    #[track_caller]
    pub fn add_scalar(&mut self, x: Value, c: f64) -> Value {
        self.unary(Unary::AddScalar(c), x)
    }

    #[track_caller]
    pub fn mul_scalar(&mut self, x: Value, c: f64) -> Value {
        self.unary(Unary::MulScalar(c), x)
    }

    #[track_caller]
    pub fn silu(&mut self, x: Value) -> Value {
        self.unary(Unary::Silu, x)
    }

    #[track_caller]
    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        if self.ty(x).dtype == dtype { x } else { self.push_one(Op::Cast(dtype), vec![x]) }
    }

    // Over axes. --------------------------------------------------------------------------------

    /// The sum over `axes`, which stay with size 1.
    #[track_caller]
    pub fn sum(&mut self, x: Value, axes: &[usize]) -> Value {
        self.push_one(Op::Reduce(Reduce::new(ReduceKind::Sum, axes)), vec![x])
    }

    /// The mean over `axes`, which stay with size 1.
    #[track_caller]
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Value {
        self.push_one(Op::Reduce(Reduce::new(ReduceKind::Mean, axes)), vec![x])
    }

    /// Over everything, to a scalar.
    #[track_caller]
    pub fn reduce_all(&mut self, kind: ReduceKind, x: Value) -> Value {
        let rank = self.shape(x).rank();
        let all = self.push_one(Op::Reduce(Reduce::all(kind, rank)), vec![x]);
        self.reshape(all, Shape::SCALAR)
    }

    /// Undoes broadcasting: sums `x` down to `shape`, which broadcasts to x's.
    #[track_caller]
    pub fn sum_to(&mut self, x: Value, shape: Shape) -> Value {
        let from = self.shape(x);
        if from == shape || x == Value::POISON {
            return x;
        }
        let axes = ops::reduce::broadcast_axes(shape, from);
        let summed = if axes == 0 {
            x
        } else {
            self.push_one(Op::Reduce(Reduce { kind: ReduceKind::Sum, axes }), vec![x])
        };
        self.reshape(summed, shape)
    }

    // Moving values. ----------------------------------------------------------------------------

    #[track_caller]
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Value {
        let shape = shape.into();
        if self.shape(x) == shape { x } else { self.push_one(Op::Reshape(shape), vec![x]) }
    }

    /// x again, which gradients do not pass.
    #[track_caller]
    pub fn stop_gradient(&mut self, x: Value) -> Value {
        self.push_one(Op::StopGradient, vec![x])
    }

    #[track_caller]
    pub fn transpose(&mut self, x: Value, order: &[usize]) -> Value {
        if order.len() > MAX_RANK {
            return self.refuse("transpose", format!("an order of {} axes", order.len()));
        }
        self.push_one(Op::Transpose(Transpose::new(order)), vec![x])
    }

    #[track_caller]
    pub fn broadcast(&mut self, x: Value, shape: impl Into<Shape>) -> Value {
        let shape = shape.into();
        if self.shape(x) == shape { x } else { self.push_one(Op::Broadcast(shape), vec![x]) }
    }

    #[track_caller]
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Value {
        if let [one] = parts {
            return *one;
        }
        self.push_one(Op::Concat(Concat { axis }), parts.to_vec())
    }

    /// Along the last axis.
    #[track_caller]
    pub fn concat_channels(&mut self, parts: &[Value]) -> Value {
        let axis = parts.first().map_or(0, |&p| self.shape(p).rank().saturating_sub(1));
        self.concat(parts, axis)
    }

    #[track_caller]
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Value {
        let whole = start == 0 && self.shape(x).get(axis) == Some(&len);
        if whole { x } else { self.push_one(Op::Slice(Slice { axis, start, len }), vec![x]) }
    }

    #[track_caller]
    pub fn pad(&mut self, x: Value, pad: [[usize; 2]; MAX_RANK], mode: PadMode) -> Value {
        if pad == [[0; 2]; MAX_RANK] { x } else { self.push_one(Op::Pad(Pad { pad, mode }), vec![x]) }
    }

    /// To spatial sizes Z, Y, X.
    #[track_caller]
    pub fn resize(&mut self, x: Value, mode: ResizeMode, size: [usize; 3]) -> Value {
        self.push_one(Op::Resize(Resize { mode, size }), vec![x])
    }

    /// By whole factors along every spatial axis.
    #[track_caller]
    pub fn upsample(&mut self, x: Value, mode: ResizeMode, factor: usize) -> Value {
        let shape = self.shape(x);
        match ops::conv::spatial("input of upsample", shape) {
            Ok([z, y, w]) => {
                let z = if shape.rank() == 4 { 1 } else { z.saturating_mul(factor) };
                self.resize(x, mode, [z, y.saturating_mul(factor), w.saturating_mul(factor)])
            }
            Err(e) => self.refuse("upsample", e.to_string()),
        }
    }

    #[track_caller]
    pub fn pool(&mut self, x: Value, kind: PoolKind, kernel: [usize; 3], geometry: Geometry) -> Value {
        self.push_one(Op::Pool(Pool { kind, kernel, geometry }), vec![x])
    }

    /// Rows of `table` by index.
    #[track_caller]
    pub fn gather(&mut self, table: Value, indices: Value) -> Value {
        self.push_one(Op::Gather, vec![table, indices])
    }

    // Random. -----------------------------------------------------------------------------------

    #[track_caller]
    pub fn noise(&mut self, kind: NoiseKind, key: Value, shape: impl Into<Shape>) -> Value {
        self.push_one(Op::Noise(Noise { kind, shape: shape.into() }), vec![key])
    }

    #[track_caller]
    pub fn dropout(&mut self, x: Value, key: Value, rate: f64) -> Value {
        self.push_one(Op::Dropout(Dropout { rate }), vec![x, key])
    }

    // Compositions. -----------------------------------------------------------------------------

    /// Transformer's position code of times `t` `[N]`: `[N, dim]`, half sines and half cosines of
    /// `t max_period^(-i / (dim/2 - shift))`. `cos_first` is diffusers' `flip_sin_to_cos`.
    #[track_caller]
    pub fn sinusoidal_embedding(
        &mut self,
        t: Value,
        dim: usize,
        cos_first: bool,
        shift: f64,
        max_period: f64,
    ) -> Value {
        let half = dim / 2;
        let n = self.shape(t).len();
        let rate = |i: usize| (-max_period.ln() * i as f64 / (half as f64 - shift)).exp() as f32;
        let rates = self.constant(Tensor::f32([1, half], (0..half).map(rate).collect()));
        let column = self.reshape(t, Shape::from([n, 1]));
        let angle = self.mul(column, rates);
        let (sin, cos) = (self.unary(Unary::Sin, angle), self.unary(Unary::Cos, angle));
        let mut parts = if cos_first { vec![cos, sin] } else { vec![sin, cos] };
        if dim % 2 == 1 {
            parts.push(self.constant(Tensor::zeros([n, 1])));
        }
        self.concat(&parts, 1)
    }
}

/// What [`possible`] says of what is not.
const LARGEST: &str = "more than 256 TiB, or a number of elements that does not fit 64 bits";

/// Refuses types whose bytes no machine has, so that sums of sizes never overflow.
fn possible(ty: &Type) -> Result<(), OpError> {
    let bytes = ty.shape.checked_len().and_then(|n| n.checked_mul(ty.dtype.bytes()));
    match bytes {
        Some(bytes) if bytes <= 1 << 48 => Ok(()),
        _ => Err(OpError::Attribute(format!("{ty}: {LARGEST}"))),
    }
}

/// More outputs than any operation has.
const MAX_OUTS: usize = 16;
