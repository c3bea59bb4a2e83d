//! Functions of one value and of two in ONNX's operators.

use super::document::Attribute;
use super::emit::{Emitter, Made};
use clearshot_graph::ops::{Binary, Unary};

pub(super) fn unary(e: &mut Emitter<'_>, f: Unary, x: &str) -> Made {
    let plain = match f {
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
        Unary::Round => "Round",
        Unary::Sqrt => "Sqrt",
        Unary::Recip => "Reciprocal",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Relu => "Relu",
        Unary::Sigmoid => "Sigmoid",
        Unary::Tanh => "Tanh",
        Unary::Softplus => "Softplus",
        _ => "",
    };
    if !plain.is_empty() {
        return Ok(e.call(plain, &[x]));
    }
    let mut with = |op: &'static str, c: f64| {
        let c = e.scalar(c);
        e.call(op, &[x, &c])
    };
    Ok(match f {
        Unary::Square => e.call("Mul", &[x, x]),
        Unary::LeakyRelu(slope) => e.node("LeakyRelu", &[x], vec![("alpha", Attribute::Float(slope as f32))]),
        Unary::Silu => {
            let gate = e.call("Sigmoid", &[x]);
            e.call("Mul", &[x, &gate])
        }
        Unary::Gelu => {
            let inner = with("Mul", std::f64::consts::FRAC_1_SQRT_2);
            let inner = e.call("Erf", &[&inner]);
            half_of(e, x, &inner)
        }
        Unary::GeluTanh => {
            let cube = with("Pow", 3.0);
            let (c, root) = (e.scalar(0.044_715), e.scalar((2.0 / std::f64::consts::PI).sqrt()));
            let cube = e.call("Mul", &[&cube, &c]);
            let sum = e.call("Add", &[x, &cube]);
            let inner = e.call("Mul", &[&sum, &root]);
            let inner = e.call("Tanh", &[&inner]);
            half_of(e, x, &inner)
        }
        Unary::AddScalar(c) => with("Add", c),
        Unary::MulScalar(c) => with("Mul", c),
        Unary::PowScalar(c) => with("Pow", c),
        Unary::Clamp(low, high) => {
            let (low, high) = (e.scalar(low), e.scalar(high));
            e.call("Clip", &[x, &low, &high])
        }
        Unary::Snap(step, first, last) => {
            let whole = with("Div", step);
            let whole = e.call("Round", &[&whole]);
            let [first, last, step] = [first, last, step].map(|c| e.scalar(c));
            let whole = e.call("Clip", &[&whole, &first, &last]);
            e.call("Mul", &[&whole, &step])
        }
        other => return e.refuse(format!("{other:?} is for losses")),
    })
}

/// `x (1 + inner) / 2`.
fn half_of(e: &mut Emitter<'_>, x: &str, inner: &str) -> String {
    let (one, half) = (e.scalar(1.0), e.scalar(0.5));
    let sum = e.call("Add", &[inner, &one]);
    let product = e.call("Mul", &[x, &sum]);
    e.call("Mul", &[&product, &half])
}

pub(super) fn binary(e: &mut Emitter<'_>, f: Binary, a: &str, b: &str) -> String {
    let op = match f {
        Binary::Add => "Add",
        Binary::Sub => "Sub",
        Binary::Mul => "Mul",
        Binary::Div => "Div",
        Binary::Max => "Max",
        Binary::Min => "Min",
        Binary::Pow => "Pow",
        Binary::Greater => {
            let flags = e.call("Greater", &[a, b]);
            return e.node("Cast", &[&flags], vec![("to", Attribute::Int(1))]);
        }
    };
    e.call(op, &[a, b])
}
