//! Functions of one value.

use crate::error::ImportError;
use crate::import::node::Call;
use crate::import::{Importer, Item, Origin};
use clearshot_graph::Value;
use clearshot_graph::ops::{Binary, Unary};

type Done = Result<(), ImportError>;

pub(super) fn function<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let name = call.node.outputs.first().copied().unwrap_or("");
    if let (Item::Host(host), Some(f)) = (&item, plain(call.node.op)) {
        let dtype = host.tensor.dtype();
        im.give(call, 0, Item::Host(host.map(name, dtype, f)));
        return Ok(());
    }
    let view = im.computed(&item);
    let x = im.float(view.value);
    let value = computed(im, call, x)?;
    im.give_view(call, value, view.order);
    Ok(())
}

/// Functions that arithmetic on known values uses.
fn plain(op: &str) -> Option<fn(f64) -> f64> {
    Some(match op {
        "Abs" => f64::abs,
        "Ceil" => f64::ceil,
        "Exp" => f64::exp,
        "Floor" => f64::floor,
        "Log" => f64::ln,
        "Neg" => |x| -x,
        "Reciprocal" => |x| 1.0 / x,
        "Round" => f64::round_ties_even,
        "Sqrt" => f64::sqrt,
        "Sin" => f64::sin,
        "Cos" => f64::cos,
        _ => return None,
    })
}

fn computed<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>, x: Value) -> Result<Value, ImportError> {
    let one = |im: &mut Importer<'_, 'a>, f: Unary| Ok(im.b.unary(f, x));
    match call.node.op {
        "Abs" => one(im, Unary::Abs),
        "Cos" => one(im, Unary::Cos),
        "Exp" => one(im, Unary::Exp),
        "Log" => one(im, Unary::Log),
        "Neg" => one(im, Unary::Neg),
        "Reciprocal" => one(im, Unary::Recip),
        "Relu" => one(im, Unary::Relu),
        "Sigmoid" => one(im, Unary::Sigmoid),
        "Round" => one(im, Unary::Round),
        "Sign" => one(im, Unary::Sign),
        "Sin" => one(im, Unary::Sin),
        "Softplus" => one(im, Unary::Softplus),
        "Sqrt" => one(im, Unary::Sqrt),
        "Tanh" => one(im, Unary::Tanh),
        "LeakyRelu" => one(im, Unary::LeakyRelu(call.float_or("alpha", 0.01)?)),
        "Gelu" => match call.text_or("approximate", "none")? {
            "tanh" => one(im, Unary::GeluTanh),
            _ => one(im, Unary::Gelu),
        },
        "Elu" => {
            let alpha = call.float_or("alpha", 1.0)?;
            Ok(exponential(im, x, 1.0, alpha, 1.0))
        }
        "Celu" => {
            let alpha = call.float_or("alpha", 1.0)?;
            Ok(exponential(im, x, 1.0 / alpha, alpha, 1.0))
        }
        "Selu" => {
            let (alpha, gamma) = (call.float_or("alpha", 1.673_263_2)?, call.float_or("gamma", 1.050_701)?);
            Ok(exponential(im, x, 1.0, alpha * gamma, gamma))
        }
        "HardSigmoid" => {
            let (alpha, beta) = (call.float_or("alpha", 0.2)?, call.float_or("beta", 0.5)?);
            Ok(hard_sigmoid(im, x, alpha, beta))
        }
        "HardSwish" => {
            let gate = hard_sigmoid(im, x, 1.0 / 6.0, 0.5);
            Ok(im.b.mul(x, gate))
        }
        "Mish" => {
            let soft = im.b.unary(Unary::Softplus, x);
            let gate = im.b.unary(Unary::Tanh, soft);
            Ok(im.b.mul(x, gate))
        }
        "Softsign" => {
            let size = im.b.unary(Unary::Abs, x);
            let under = im.b.add_scalar(size, 1.0);
            Ok(im.b.div(x, under))
        }
        other => call.fail(format!("{other} of what is computed when the network runs")),
    }
}

/// `slope max(x, 0) + factor (exp(rate min(x, 0)) - 1)`.
fn exponential(im: &mut Importer<'_, '_>, x: Value, rate: f64, factor: f64, slope: f64) -> Value {
    let positive = im.b.unary(Unary::Relu, x);
    let negative = im.b.unary(Unary::Clamp(f64::NEG_INFINITY, 0.0), x);
    let scaled = im.scaled(negative, rate);
    let power = im.b.unary(Unary::Exp, scaled);
    let power = im.b.add_scalar(power, -1.0);
    let (left, right) = (im.scaled(positive, slope), im.scaled(power, factor));
    im.b.add(left, right)
}

fn hard_sigmoid(im: &mut Importer<'_, '_>, x: Value, alpha: f64, beta: f64) -> Value {
    let scaled = im.scaled(x, alpha);
    let line = im.b.add_scalar(scaled, beta);
    im.b.unary(Unary::Clamp(0.0, 1.0), line)
}

/// Stands for the error function until a GELU is made of it: the value given here is not it, and must not be left in the graph.
pub(super) fn erf<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let view = im.view(call, 0)?;
    let placeholder = im.b.unary(Unary::Tanh, view.value);
    im.origins.insert(placeholder, Origin::Erf(view.value));
    im.give_view(call, placeholder, view.order);
    Ok(())
}

pub(super) fn clip<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let mut limit = |i: usize, attribute: &str, none: f64| -> Result<f64, ImportError> {
        if let Some(host) = im.host(call, i)? {
            return match host.single() {
                Some(v) => Ok(v),
                None => call.fail(format!("{attribute} is not a single number")),
            };
        }
        match call.node.attribute(attribute) {
            None => Ok(none),
            Some(_) => call.float_or(attribute, 0.0),
        }
    };
    let (low, high) = (limit(1, "min", f64::NEG_INFINITY)?, limit(2, "max", f64::INFINITY)?);
    match im.item(call, 0)? {
        Item::Host(host) => {
            let name = call.node.outputs.first().copied().unwrap_or("");
            let dtype = host.tensor.dtype();
            im.give(call, 0, Item::Host(host.map(name, dtype, |v| v.max(low).min(high))));
        }
        Item::View(view) => {
            let x = im.float(view.value);
            let relu = low == 0.0 && high == f64::INFINITY;
            let value = im.b.unary(if relu { Unary::Relu } else { Unary::Clamp(low, high) }, x);
            im.give_view(call, value, view.order);
        }
    }
    Ok(())
}

/// `max(x, 0) + slope min(x, 0)`.
pub(super) fn prelu<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (view, slope) = (im.view(call, 0)?, im.item(call, 1)?);
    let x = im.float(view.value);
    if let Item::Host(host) = &slope
        && let Some(c) = host.single()
    {
        let value = im.b.unary(Unary::LeakyRelu(c), x);
        im.give_view(call, value, view.order);
        return Ok(());
    }
    if im.sizes(&slope).len() > view.rank() {
        return call.fail("slopes with more axes than the value");
    }
    let slope = im.operand(&slope, view.rank(), &view.order);
    let positive = im.b.unary(Unary::Relu, x);
    let negative = im.b.sub(x, positive);
    let scaled = im.b.binary(Binary::Mul, negative, slope);
    let value = im.b.add(positive, scaled);
    im.give_view(call, value, view.order);
    Ok(())
}
