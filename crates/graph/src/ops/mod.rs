//! Every operation, on one page.
//!
//! The enum is closed: adding an operation is adding a variant, and the compiler then lists every
//! rule that is missing. A family's file holds its attributes, shape rules, gradient rules and plain
//! meaning together; the backends have kernel files of the same names.
//!
//! What networks have and this list has not is built from it, by [`crate::Builder`] and
//! [`crate::losses`]: linear layers are `MatMul`, transposed convolution is `ConvInputGrad` (that is
//! what it is), layer and instance norm are `Norm`, losses and the sinusoidal embedding are chains of
//! elementwise operations that the fuse pass makes one.

/// Hashes attributes that hold numbers by the numbers' bits: 0 and -0 compute different things.
macro_rules! hash_by_bits {
    ($type:ident { $($plain:ident),* } $($number:ident),+) => {
        impl std::hash::Hash for $type {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                let $type { $($plain,)* $($number),+ } = self;
                $($plain.hash(state);)*
                $($number.to_bits().hash(state);)+
            }
        }
    };
}

pub mod all_reduce;
pub mod attention;
pub mod conv;
pub mod float8;
pub mod fourier;
pub mod gather;
pub mod int8;
pub mod matmul;
pub mod movement;
pub mod noise;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod reduce;
pub mod resize;
pub mod update;

pub use all_reduce::{AllReduceBegin, AllReduceEnd};
pub use attention::Attention;
pub use conv::{Bias, Conv, ConvInputGrad, ConvWeightGrad, Geometry, Side};
pub use float8::Float8;
pub use fourier::CyclicConv;
pub use gather::GatherGrad;
pub use int8::{Int8, Whole};
pub use matmul::MatMul;
pub use movement::{Concat, Pad, PadMode, Slice, Transpose};
pub use noise::{Dropout, Noise, NoiseKind};
pub use norm::{Norm, NormGrad, Prologue};
pub use pointwise::{Binary, Program, Scalar, Step, Unary};
pub use pool::{Pool, PoolGrad, PoolKind};
pub use reduce::{Reduce, ReduceKind};
pub use resize::{Resize, ResizeGrad, ResizeMode};
pub use update::{Adam, Clip, LossScale, Sgd};

use crate::array::Array;
use crate::builder::Builder;
use crate::graph::{StateInit, Type, Value};
use clearshot_tensor::{DType, Shape, Tensor};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// One operation with its attributes. Operands are the node's inputs, in the order that the family's
/// file says.
#[derive(Clone, Debug, Hash)]
pub enum Op {
    // Where values come from. -------------------------------------------------------------------
    /// Set by the caller before a run.
    Input(Arc<str>),
    /// Kept from run to run: parameters, optimiser moments, counters.
    State(State),
    Const(Constant),

    // Contractions. -----------------------------------------------------------------------------
    /// x, weight -> y; may read x in parts, normalise it, add bias and residual, and activate.
    Conv(Conv),
    /// dy, weight -> dx; the transposed convolution.
    ConvInputGrad(ConvInputGrad),
    /// x, dy -> dweight.
    ConvWeightGrad(ConvWeightGrad),
    /// a, b -> op(a) op(b); batched; may add bias and residual, and activate.
    MatMul(MatMul),
    /// q, k, v -> o, log-sum-exp.
    Attention(Attention),
    /// q, k, v, o, log-sum-exp, do -> dq, dk, dv.
    AttentionGrad(Attention),
    /// x, kernel -> cyclic convolution over the spatial axes, or its adjoint.
    CyclicConv(CyclicConv),

    // Norms. ------------------------------------------------------------------------------------
    /// x, gamma, beta -> y, statistics.
    Norm(Norm),
    /// x -> statistics alone.
    NormStats(Norm),
    /// x, statistics, gamma, beta, dy -> dx, dgamma, dbeta.
    NormGrad(NormGrad),
    /// Over the last axis.
    Softmax,

    // Elementwise, with broadcasting. -----------------------------------------------------------
    Unary(Unary),
    /// x, dy -> dy f'(x).
    UnaryGrad(Unary),
    Binary(Binary),
    /// A chain of the three above as one pass over memory.
    Pointwise(Arc<Program>),
    Cast(DType),
    /// weight -> a part of it in floats of 8 bits.
    Float8(Float8),
    /// weight, steps and zeros of an image -> a part of it in whole numbers.
    Whole(Whole),

    // Over axes. --------------------------------------------------------------------------------
    Reduce(Reduce),

    // Moving values. ----------------------------------------------------------------------------
    Reshape(Shape),
    /// x -> x, which differentiation takes for a constant.
    StopGradient,
    Transpose(Transpose),
    Broadcast(Shape),
    Concat(Concat),
    Slice(Slice),
    Pad(Pad),
    /// dy -> dx for the modes that repeat pixels.
    PadGrad(Pad),
    Resize(Resize),
    ResizeGrad(ResizeGrad),
    Pool(Pool),
    PoolGrad(PoolGrad),
    /// table, indices -> rows.
    Gather,
    /// indices, drows -> dtable.
    GatherGrad(GatherGrad),

    // Random, from keys. ------------------------------------------------------------------------
    /// key -> noise.
    Noise(Noise),
    /// x, key -> x with elements dropped and the rest scaled up.
    Dropout(Dropout),

    // Training's updates. -----------------------------------------------------------------------
    /// loss scale, sums of squares -> norm of all gradients, factor for each.
    Clip(Clip),
    /// parameter, gradient, two moments, rate, step, factor -> parameter, two moments.
    Adam(Adam),
    /// parameter, gradient, momentum, rate, factor -> parameter, momentum.
    Sgd(Sgd),
    /// average, parameter, decay, factor -> average.
    Ema,
    /// loss scale, good steps, gradient norm -> loss scale, good steps.
    LossScale(LossScale),
    /// step, factor -> step + 1, unless the iteration is skipped.
    CountStep,

    // Between ranks. ----------------------------------------------------------------------------
    /// values -> token; their means over ranks are under way.
    AllReduceBegin(AllReduceBegin),
    /// token, value -> its mean over ranks.
    AllReduceEnd(AllReduceEnd),
}

/// A value kept from run to run.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    pub name: Arc<str>,
    pub init: StateInit,
}

/// A tensor that is part of the graph. Prints as its value where that is short.
#[derive(Clone)]
pub struct Constant(pub Arc<Tensor>);

/// By its values where they are few, and else by which tensor it is.
impl Hash for Constant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let tensor = &*self.0;
        (tensor.dtype(), tensor.shape()).hash(state);
        match tensor.shape().len() {
            0..=8 => tensor.to_f64().iter().for_each(|x| x.to_bits().hash(state)),
            _ => Arc::as_ptr(&self.0).hash(state),
        }
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.shape().len() {
            0..=8 => write!(f, "{:?}", self.0.data()),
            _ => write!(f, "constant at {:p}", Arc::as_ptr(&self.0)),
        }
    }
}

/// What is wrong with an operation's operands or attributes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    #[error("takes {expected} operands, was given {got}")]
    Count { expected: String, got: usize },
    #[error("{what}: {left} and {right} do not fit")]
    Mismatch { what: &'static str, left: Shape, right: Shape },
    #[error("{what}: expected shape {expected}, got {got}")]
    Shape { what: &'static str, expected: Shape, got: Shape },
    #[error("{what}: expected {expected} axes, got shape {got}")]
    Rank { what: &'static str, expected: &'static str, got: Shape },
    #[error("{what}: expected {expected}, got {got}")]
    Kind { what: &'static str, expected: DType, got: DType },
    #[error("{0}")]
    Attribute(String),
}

/// What a gradient rule sees of its node.
pub struct GradNode<'a> {
    pub inputs: &'a [Value],
    pub outs: &'a [Value],
    /// The gradient of each output, where there is one.
    pub douts: &'a [Option<Value>],
    /// Which inputs' gradients are wanted; a rule may leave the others out.
    pub wanted: &'a [bool],
}

impl GradNode<'_> {
    /// The first output's gradient.
    pub fn dy(&self) -> Value {
        self.douts[0].expect("a rule is asked only where the first output has a gradient")
    }
}

/// The gradients for the inputs, or nothing where the op has no rule.
pub(crate) type Grads = Option<Vec<Option<Value>>>;

impl Op {
    /// The op's name as printed graphs have it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "input",
            Op::State(_) => "state",
            Op::Const(_) => "const",
            Op::Conv(_) => "conv",
            Op::ConvInputGrad(_) => "conv_input_grad",
            Op::ConvWeightGrad(_) => "conv_weight_grad",
            Op::MatMul(_) => "matmul",
            Op::Attention(_) => "attention",
            Op::AttentionGrad(_) => "attention_grad",
            Op::CyclicConv(_) => "cyclic_conv",
            Op::Norm(_) => "norm",
            Op::NormStats(_) => "norm_stats",
            Op::NormGrad(_) => "norm_grad",
            Op::Softmax => "softmax",
            Op::Unary(_) => "unary",
            Op::UnaryGrad(_) => "unary_grad",
            Op::Binary(_) => "binary",
            Op::Pointwise(_) => "pointwise",
            Op::Cast(_) => "cast",
            Op::Float8(_) => "float8",
            Op::Whole(_) => "whole",
            Op::Reduce(_) => "reduce",
            Op::Reshape(_) => "reshape",
            Op::StopGradient => "stop_gradient",
            Op::Transpose(_) => "transpose",
            Op::Broadcast(_) => "broadcast",
            Op::Concat(_) => "concat",
            Op::Slice(_) => "slice",
            Op::Pad(_) => "pad",
            Op::PadGrad(_) => "pad_grad",
            Op::Resize(_) => "resize",
            Op::ResizeGrad(_) => "resize_grad",
            Op::Pool(_) => "pool",
            Op::PoolGrad(_) => "pool_grad",
            Op::Gather => "gather",
            Op::GatherGrad(_) => "gather_grad",
            Op::Noise(_) => "noise",
            Op::Dropout(_) => "dropout",
            Op::Clip(_) => "clip",
            Op::Adam(_) => "adam",
            Op::Sgd(_) => "sgd",
            Op::Ema => "ema",
            Op::LossScale(_) => "loss_scale",
            Op::CountStep => "count_step",
            Op::AllReduceBegin(_) => "all_reduce_begin",
            Op::AllReduceEnd(_) => "all_reduce_end",
        }
    }

    /// The types of the outputs.
    ///
    /// # Errors
    /// If the operands do not fit the op. Sources have no operands to infer from and are never asked.
    pub fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        match self {
            Op::Input(_) | Op::State(_) => {
                Err(OpError::Attribute("a source's type is declared, not inferred".into()))
            }
            Op::Const(c) => Ok(vec![Type { dtype: c.0.dtype(), shape: c.0.shape() }]),
            Op::Conv(a) => a.infer(x),
            Op::ConvInputGrad(a) => a.infer(x),
            Op::ConvWeightGrad(a) => a.infer(x),
            Op::MatMul(a) => a.infer(x),
            Op::Attention(a) => a.infer(x),
            Op::AttentionGrad(a) => a.infer_grad(x),
            Op::CyclicConv(a) => a.infer(x),
            Op::Norm(a) => a.infer(x),
            Op::NormStats(a) => a.infer_stats(x),
            Op::NormGrad(a) => a.infer(x),
            Op::Softmax => reduce::infer_softmax(x),
            Op::Unary(_) => pointwise::infer(1, x),
            Op::UnaryGrad(_) => pointwise::infer(2, x),
            Op::Binary(_) => pointwise::infer(2, x),
            Op::Pointwise(p) => pointwise::infer(p.operands, x),
            Op::Float8(a) => a.infer(x),
            Op::Whole(a) => a.infer(x),
            Op::Cast(dtype) => operands(x, 1).map(|_| vec![Type { dtype: *dtype, shape: x[0].shape }]),
            Op::Reduce(a) => a.infer(x),
            Op::Reshape(shape) => movement::infer_reshape(*shape, x),
            Op::StopGradient => operands(x, 1).map(|_| vec![x[0]]),
            Op::Transpose(a) => a.infer(x),
            Op::Broadcast(shape) => movement::infer_broadcast(*shape, x),
            Op::Concat(a) => a.infer(x),
            Op::Slice(a) => a.infer(x),
            Op::Pad(a) => a.infer(x),
            Op::PadGrad(a) => a.infer_grad(x),
            Op::Resize(a) => a.infer(x),
            Op::ResizeGrad(a) => a.infer(x),
            Op::Pool(a) => a.infer(x),
            Op::PoolGrad(a) => a.infer(x),
            Op::Gather => gather::infer(x),
            Op::GatherGrad(a) => a.infer(x),
            Op::Noise(a) => a.infer(x),
            Op::Dropout(a) => a.infer(x),
            Op::Clip(a) => a.infer(x),
            Op::Adam(a) => a.infer(x),
            Op::Sgd(a) => a.infer(x),
            Op::Ema => update::infer_ema(x),
            Op::LossScale(a) => a.infer(x),
            Op::CountStep => update::infer_count(x),
            Op::AllReduceBegin(a) => a.infer(x),
            Op::AllReduceEnd(a) => a.infer(x),
        }
    }

    /// The gradients with respect to the inputs, as nodes added to `b`. Nothing where the op is not
    /// differentiable: fused ops (differentiate before fusing), gradients of attention, norm, pooling, padding and
    /// elementwise functions, and updates.
    pub fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        match self {
            Op::Input(_) | Op::State(_) | Op::Const(_) => Some(vec![]),
            Op::Conv(a) => a.grad(b, n),
            Op::ConvInputGrad(a) => a.grad(b, n),
            Op::ConvWeightGrad(a) => a.grad(b, n),
            Op::MatMul(a) => a.grad(b, n),
            Op::Attention(a) => a.grad(b, n),
            Op::CyclicConv(a) => a.grad(b, n),
            Op::Norm(a) => a.grad(b, n),
            Op::Softmax => reduce::grad_softmax(b, n),
            Op::Unary(u) => Some(vec![Some(b.unary_grad(*u, n.inputs[0], n.dy()))]),
            Op::Binary(a) => a.grad(b, n),
            Op::Cast(_) => {
                let dtype = b.ty(n.inputs[0]).dtype;
                Some(vec![Some(b.cast(n.dy(), dtype))])
            }
            Op::Reduce(a) => a.grad(b, n),
            Op::Reshape(_) => {
                let shape = b.shape(n.inputs[0]);
                Some(vec![Some(b.reshape(n.dy(), shape))])
            }
            Op::StopGradient => Some(vec![None]),
            Op::Transpose(a) => Some(vec![Some(b.transpose(n.dy(), &a.inverse()))]),
            Op::Broadcast(_) => {
                let shape = b.shape(n.inputs[0]);
                Some(vec![Some(b.sum_to(n.dy(), shape))])
            }
            Op::Concat(a) => a.grad(b, n),
            Op::Slice(a) => a.grad(b, n),
            Op::Pad(a) => a.grad(b, n),
            Op::Resize(a) => a.grad(b, n),
            Op::ResizeGrad(a) => a.grad(b, n),
            Op::Pool(a) => a.grad(b, n),
            Op::Gather => gather::grad(b, n),
            Op::GatherGrad(_) => Some(vec![None, Some(b.gather(n.dy(), n.inputs[0]))]),
            Op::Noise(_) => Some(vec![None]),
            Op::Dropout(a) => Some(vec![Some(b.dropout(n.dy(), n.inputs[1], a.rate)), None]),
            Op::AttentionGrad(_)
            | Op::NormStats(_)
            | Op::NormGrad(_)
            | Op::UnaryGrad(_)
            | Op::Pointwise(_)
            | Op::PadGrad(_)
            | Op::PoolGrad(_)
            | Op::Float8(_)
            | Op::Whole(_)
            | Op::Clip(_)
            | Op::Adam(_)
            | Op::Sgd(_)
            | Op::Ema
            | Op::LossScale(_)
            | Op::CountStep
            | Op::AllReduceBegin(_) => None,
            Op::AllReduceEnd(_) => AllReduceEnd::grad(b, n),
        }
    }

    /// What the op means, in f64. Sources are not computed.
    ///
    /// # Panics
    /// If the operands were not checked by [`Op::infer`].
    pub fn eval(&self, x: &[&Array]) -> Vec<Array> {
        match self {
            Op::Input(_) | Op::State(_) => panic!("a source has no meaning of its own"),
            Op::Const(c) => vec![Array::from_tensor(&c.0)],
            Op::Conv(a) => a.eval(x),
            Op::ConvInputGrad(a) => a.eval(x),
            Op::ConvWeightGrad(a) => a.eval(x),
            Op::MatMul(a) => a.eval(x),
            Op::Attention(a) => a.eval(x),
            Op::AttentionGrad(a) => a.eval_grad(x),
            Op::CyclicConv(a) => a.eval(x),
            Op::Norm(a) => a.eval(x),
            Op::NormStats(a) => a.eval_stats(x),
            Op::NormGrad(a) => a.eval(x),
            Op::Softmax => reduce::eval_softmax(x),
            Op::Unary(u) => vec![x[0].map(|v| u.value(v))],
            Op::UnaryGrad(u) => vec![pointwise::zip(x[0], x[1], |v, d| d * u.derivative(v))],
            Op::Binary(a) => vec![pointwise::zip(x[0], x[1], |p, q| a.value(p, q))],
            Op::Pointwise(p) => vec![p.eval(x)],
            Op::Float8(a) => vec![a.eval(x[0])],
            Op::Whole(a) => vec![a.eval(x[0], x[1])],
            Op::Cast(dtype) => vec![if dtype.is_float() { x[0].clone() } else { x[0].map(f64::trunc) }],
            Op::Reduce(a) => a.eval(x),
            Op::Reshape(shape) => vec![x[0].clone().reshaped(*shape)],
            Op::StopGradient => vec![x[0].clone()],
            Op::Transpose(a) => a.eval(x),
            Op::Broadcast(shape) => vec![Array::from_fn(*shape, |i| x[0].get(i))],
            Op::Concat(a) => a.eval(x),
            Op::Slice(a) => a.eval(x),
            Op::Pad(a) => a.eval(x),
            Op::PadGrad(a) => a.eval_grad(x),
            Op::Resize(a) => a.eval(x),
            Op::ResizeGrad(a) => a.eval(x),
            Op::Pool(a) => a.eval(x),
            Op::PoolGrad(a) => a.eval(x),
            Op::Gather => gather::eval(x),
            Op::GatherGrad(a) => a.eval(x),
            Op::Noise(a) => a.eval(x),
            Op::Dropout(a) => a.eval(x),
            Op::Clip(a) => a.eval(x),
            Op::Adam(a) => a.eval(x),
            Op::Sgd(a) => a.eval(x),
            Op::Ema => update::eval_ema(x),
            Op::LossScale(a) => a.eval(x),
            Op::CountStep => update::eval_count(x),
            Op::AllReduceBegin(_) => all_reduce::eval_begin(),
            Op::AllReduceEnd(a) => a.eval(x),
        }
    }

    /// Whether this op only gives another name to the same bytes.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::StopGradient)
    }

    /// Whether the op hands values to other ranks or waits for them: each runs once, where it stands.
    pub fn is_all_reduce(&self) -> bool {
        matches!(self, Op::AllReduceBegin(_) | Op::AllReduceEnd(_))
    }

    /// Whether the op changes state when its outputs are written back; such nodes run last.
    pub fn is_update(&self) -> bool {
        matches!(self, Op::Clip(_) | Op::Adam(_) | Op::Sgd(_) | Op::Ema | Op::LossScale(_) | Op::CountStep)
    }
}

/// Checks the number of operands.
pub(crate) fn operands(x: &[Type], expected: usize) -> Result<(), OpError> {
    if x.len() == expected {
        Ok(())
    } else {
        Err(OpError::Count { expected: expected.to_string(), got: x.len() })
    }
}

/// Checks an operand's shape.
pub(crate) fn want(what: &'static str, got: Type, expected: impl Into<Shape>) -> Result<(), OpError> {
    let expected = expected.into();
    if got.shape == expected { Ok(()) } else { Err(OpError::Shape { what, expected, got: got.shape }) }
}

/// Checks that operands are floats, and gives the first one's type.
///
/// Operands may be floats of several types: every op computes in f32 at least and rounds once, to the
/// type that its node declares for the output. [`crate::passes::precision`] makes use of it.
pub(crate) fn floats(x: &[Type]) -> Result<DType, OpError> {
    let Some(first) = x.first() else {
        return Err(OpError::Count { expected: "one or more".into(), got: 0 });
    };
    for t in x {
        if !t.dtype.is_float() {
            return Err(OpError::Kind { what: "operand", expected: DType::F32, got: t.dtype });
        }
    }
    Ok(first.dtype)
}
