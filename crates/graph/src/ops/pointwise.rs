//! Elementwise operations with broadcasting, alone and in chains.
//!
//! Each scalar function states its value and its derivative in f64; kernels are tested against them.
//! A [`Program`] is what the fuse pass makes of a chain: scalar steps in order, each reading operands
//! of the node or earlier steps, so that the chain is one pass over memory.

use super::{GradNode, Grads, OpError, floats, operands};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::Shape;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Functions of one value. Parameters are held in f64 and rounded by who computes in less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    Neg,
    Abs,
    Sign,
    /// To the nearest whole number, halves to the even one.
    Round,
    Square,
    Sqrt,
    Recip,
    Exp,
    Log,
    Sin,
    Cos,
    Relu,
    LeakyRelu(f64),
    Sigmoid,
    Tanh,
    Softplus,
    Silu,
    /// With the error function.
    Gelu,
    /// With the tanh that approximates it.
    GeluTanh,
    /// x^2/2 up to delta, then delta (|x| - delta/2).
    Huber(f64),
    /// x^2/(2 beta) up to beta, then |x| - beta/2.
    SmoothL1(f64),
    AddScalar(f64),
    MulScalar(f64),
    PowScalar(f64),
    Clamp(f64, f64),
    /// The nearest of the multiples of a step that 8 bits tell apart: the step, and the first and the last multiple. Halves go to the even one.
    Snap(f64, f64, f64),
}

impl Hash for Unary {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        let numbers = match *self {
            Unary::LeakyRelu(x)
            | Unary::Huber(x)
            | Unary::SmoothL1(x)
            | Unary::AddScalar(x)
            | Unary::MulScalar(x)
            | Unary::PowScalar(x) => [x, 0.0, 0.0],
            Unary::Clamp(low, high) => [low, high, 0.0],
            Unary::Snap(step, first, last) => [step, first, last],
            Unary::Neg
            | Unary::Abs
            | Unary::Sign
            | Unary::Round
            | Unary::Square
            | Unary::Sqrt
            | Unary::Recip
            | Unary::Exp
            | Unary::Log
            | Unary::Sin
            | Unary::Cos
            | Unary::Relu
            | Unary::Sigmoid
            | Unary::Tanh
            | Unary::Softplus
            | Unary::Silu
            | Unary::Gelu
            | Unary::GeluTanh => [0.0; 3],
        };
        numbers.map(f64::to_bits).hash(state);
    }
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const GELU_CUBIC: f64 = 0.044_715;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x * 0.0
    }
}

impl Unary {
    pub fn value(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign => sign(x),
            Unary::Round => x.round_ties_even(),
            Unary::Square => x * x,
            Unary::Sqrt => x.sqrt(),
            Unary::Recip => 1.0 / x,
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Unary::LeakyRelu(slope) => {
                if x > 0.0 {
                    x
                } else {
                    slope * x
                }
            }
            Unary::Sigmoid => sigmoid(x),
            Unary::Tanh => x.tanh(),
            Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Unary::Silu => x * sigmoid(x),
            Unary::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Unary::GeluTanh => 0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)).tanh()),
            Unary::Huber(d) => {
                if x.abs() <= d {
                    0.5 * x * x
                } else {
                    d * (x.abs() - 0.5 * d)
                }
            }
            Unary::SmoothL1(b) => {
                if x.abs() < b {
                    0.5 * x * x / b
                } else {
                    x.abs() - 0.5 * b
                }
            }
            Unary::AddScalar(c) => x + c,
            Unary::MulScalar(c) => x * c,
            Unary::PowScalar(p) => x.powf(p),
            Unary::Clamp(lo, hi) => {
                if x.is_nan() {
                    x
                } else {
                    x.max(lo).min(hi)
                }
            }
            Unary::Snap(step, first, last) => {
                Unary::Clamp(first, last).value((x / step).round_ties_even()) * step
            }
        }
    }

    pub fn derivative(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -1.0,
            Unary::Abs => sign(x),
            Unary::Sign | Unary::Round | Unary::Snap(..) => 0.0,
            Unary::Square => 2.0 * x,
            Unary::Sqrt => 0.5 / x.sqrt(),
            Unary::Recip => -1.0 / (x * x),
            Unary::Exp => x.exp(),
            Unary::Log => 1.0 / x,
            Unary::Sin => x.cos(),
            Unary::Cos => -x.sin(),
            Unary::Relu => {
                if x > 0.0 {
                    1.0
                } else {
                    0.0
                }
            }
            Unary::LeakyRelu(slope) => {
                if x > 0.0 {
                    1.0
                } else {
                    slope
                }
            }
            Unary::Sigmoid => sigmoid(x) * sigmoid(-x),
            Unary::Tanh => 1.0 - x.tanh() * x.tanh(),
            Unary::Softplus => sigmoid(x),
            Unary::Silu => {
                let s = sigmoid(x);
                s * (1.0 + x * (1.0 - s))
            }
            Unary::Gelu => {
                let density = (-0.5 * x * x).exp() * 0.5 * SQRT_2_OVER_PI;
                0.5 * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density
            }
            Unary::GeluTanh => {
                let t = (SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)).tanh();
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x)
            }
            Unary::Huber(d) => x.max(-d).min(d),
            Unary::SmoothL1(b) => {
                if x.abs() < b {
                    x / b
                } else {
                    sign(x)
                }
            }
            Unary::AddScalar(_) => 1.0,
            Unary::MulScalar(c) => c,
            Unary::PowScalar(p) => p * x.powf(p - 1.0),
            Unary::Clamp(lo, hi) => {
                if (lo..=hi).contains(&x) {
                    1.0
                } else {
                    0.0
                }
            }
        }
    }
}

/// Functions of two values, broadcast against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Pow,
    /// 1 where the first is greater, else 0.
    Greater,
}

impl Binary {
    pub fn value(self, a: f64, b: f64) -> f64 {
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            Binary::Min => {
                if b > a {
                    a
                } else {
                    b
                }
            }
            Binary::Pow => a.powf(b),
            Binary::Greater => f64::from(u8::from(a > b)),
        }
    }

    pub(super) fn grad(self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        let (p, q, dy) = (n.inputs[0], n.inputs[1], n.dy());
        let [wp, wq] = [n.wanted[0], n.wanted[1]];
        // For Max and Min: 1 where the first operand is the result.
        let (dp, dq) = match self {
            Binary::Add => (wp.then_some(dy), wq.then_some(dy)),
            Binary::Sub => (wp.then_some(dy), wq.then(|| b.unary(Unary::Neg, dy))),
            Binary::Mul => (wp.then(|| b.mul(dy, q)), wq.then(|| b.mul(dy, p))),
            Binary::Div => {
                let scaled = b.div(dy, q);
                let dq = wq.then(|| {
                    let ratio = b.div(p, q);
                    let product = b.mul(scaled, ratio);
                    b.unary(Unary::Neg, product)
                });
                (wp.then_some(scaled), dq)
            }
            Binary::Max | Binary::Min => {
                let first = if self == Binary::Max {
                    b.binary(Binary::Greater, p, q)
                } else {
                    b.binary(Binary::Greater, q, p)
                };
                let dp = b.mul(dy, first);
                (wp.then_some(dp), wq.then(|| b.sub(dy, dp)))
            }
            Binary::Pow => {
                let dp = wp.then(|| {
                    let less = b.add_scalar(q, -1.0);
                    let power = b.binary(Binary::Pow, p, less);
                    let slope = b.mul(q, power);
                    b.mul(dy, slope)
                });
                let dq = wq.then(|| {
                    let power = b.binary(Binary::Pow, p, q);
                    let log = b.unary(Unary::Log, p);
                    let slope = b.mul(power, log);
                    b.mul(dy, slope)
                });
                (dp, dq)
            }
            Binary::Greater => (None, None),
        };
        let shapes = [b.shape(p), b.shape(q)];
        Some(vec![dp.map(|v| b.sum_to(v, shapes[0])), dq.map(|v| b.sum_to(v, shapes[1]))])
    }
}

/// One scalar operation of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub enum Scalar {
    Unary(Unary),
    /// The first operand is x, the second dy.
    UnaryGrad(Unary),
    Binary(Binary),
}

/// A step of a [`Program`]. Registers `0..operands` are the node's operands, those behind them the
/// results of the steps in order. A unary step ignores `b`.
#[derive(Clone, Copy, PartialEq, Hash)]
pub struct Step {
    pub scalar: Scalar,
    pub a: u8,
    pub b: u8,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scalar {
            Scalar::Unary(u) => write!(f, "{u:?} r{}", self.a),
            Scalar::UnaryGrad(u) => write!(f, "{u:?}' r{} r{}", self.a, self.b),
            Scalar::Binary(o) => write!(f, "{o:?} r{} r{}", self.a, self.b),
        }
    }
}

/// A chain of scalar steps; the last one's result is the output.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Program {
    pub operands: usize,
    pub steps: Vec<Step>,
}

impl Program {
    /// More registers than this are not fused into one program.
    pub const MAX_REGISTERS: usize = 24;

    pub fn registers(&self) -> usize {
        self.operands + self.steps.len()
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Array {
        let shape = x.iter().fold(Shape::SCALAR, |s, a| s.broadcast(&a.shape).unwrap());
        Array::from_fn(shape, |i| {
            let mut r: Vec<f64> = x.iter().map(|a| a.get(i)).collect();
            for step in &self.steps {
                let (a, b) = (r[step.a as usize], r[step.b as usize]);
                r.push(match step.scalar {
                    Scalar::Unary(u) => u.value(a),
                    Scalar::UnaryGrad(u) => b * u.derivative(a),
                    Scalar::Binary(o) => o.value(a, b),
                });
            }
            *r.last().unwrap()
        })
    }
}

pub(super) fn infer(count: usize, x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, count)?;
    let dtype = floats(x)?;
    let mut shape = x[0].shape;
    for t in &x[1..] {
        shape = shape.broadcast(&t.shape).ok_or(OpError::Mismatch {
            what: "operands of elementwise arithmetic",
            left: shape,
            right: t.shape,
        })?;
    }
    Ok(vec![Type { dtype, shape }])
}

pub(super) fn zip(a: &Array, b: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
    let shape = a.shape.broadcast(&b.shape).expect("checked when the node was built");
    Array::from_fn(shape, |i| f(a.get(i), b.get(i)))
}
