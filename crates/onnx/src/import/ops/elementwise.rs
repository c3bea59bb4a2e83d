//! Arithmetic of two and more values with broadcasting, and what exporters spell out with it: SiLU, GELU, biases, the factors and
//! terms of norms.

use crate::error::ImportError;
use crate::import::host::Host;
use crate::import::node::Call;
use crate::import::view::{View, channels_last, plain};
use crate::import::{Importer, Item, Origin};
use clearshot_graph::ops::{Binary, MatMul, Unary};
use clearshot_graph::{Op, Value};
use clearshot_tensor::{DType, Tensor};

type Done = Result<(), ImportError>;

/// The result's name, which new parameters take theirs from.
fn name<'a>(call: Call<'_, 'a>) -> &'a str {
    call.node.outputs.first().copied().unwrap_or("")
}

impl<'m, 'a> Importer<'m, 'a> {
    /// Two operands in one layout: that of the one with more axes.
    fn pair(&mut self, a: &Item, b: &Item) -> (Value, Value, Vec<usize>) {
        let (ra, rb) = (self.sizes(a).len(), self.sizes(b).len());
        let rank = ra.max(rb);
        let lead = [a, b].into_iter().find_map(|item| match item {
            Item::View(v) if v.rank() == rank => Some(v.order.clone()),
            _ => None,
        });
        let order = lead.unwrap_or_else(|| plain(rank));
        let (va, vb) = (self.operand(a, rank, &order), self.operand(b, rank, &order));
        (va, vb, order)
    }

    fn binary(&mut self, call: Call<'_, 'a>, f: Binary, a: &Item, b: &Item) -> Done {
        if let (Item::Host(a), Item::Host(b)) = (a, b) {
            let whole = !a.is_float();
            let value =
                |p: f64, q: f64| if whole && f == Binary::Div { (p / q).trunc() } else { f.value(p, q) };
            return self.give_host(call, Host::zip(name(call), [a, b], a.tensor.dtype(), value));
        }
        let (va, vb, order) = self.pair(a, b);
        let value = self.b.binary(f, va, vb);
        self.give_view(call, value, order);
        Ok(())
    }

    /// A function of a view that does not touch its layout.
    fn mapped(&mut self, call: Call<'_, 'a>, view: &View, f: impl FnOnce(&mut Self, Value) -> Value) -> Done {
        let value = self.float(view.value);
        let value = f(self, value);
        self.give_view(call, value, view.order.clone());
        Ok(())
    }

    /// What a constant of each channel, or a bias of each column, makes of a layer before it.
    fn layer_with(&mut self, view: &View, host: &Host, is_factor: bool) -> Option<Value> {
        let sizes = self.view_sizes(view);
        if let Some(values) = self.per_channel(host, &sizes)
            && view.order == channels_last(view.rank())
        {
            let ones = vec![1.0; values.len()];
            let zeros = vec![0.0; values.len()];
            let (factor, term) = if is_factor { (&values, &zeros) } else { (&ones, &values) };
            return self
                .norm_with(view.value, factor, term)
                .or_else(|| self.conv_with(view.value, factor, term));
        }
        let node = &self.b.graph().nodes[view.value.at()];
        let Op::MatMul(product) = node.op else { return None };
        let linear = MatMul { bias: false, ..product };
        let columns = *sizes.last()?;
        let shape = host.tensor.shape();
        let fits = !is_factor
            && product == MatMul::plain(product.transpose_a, product.transpose_b)
            && view.order == plain(view.rank())
            && shape.len() == columns
            && shape.channels() == columns
            && shape.rank() <= sizes.len();
        if !fits {
            return None;
        }
        let inputs = node.inputs.clone();
        let bias = self.param(&format!("{} bias", host.name), Tensor::f32([columns], host.floats()));
        let op = Op::MatMul(MatMul { bias: true, ..linear });
        Some(self.b.push_one(op, inputs.into_iter().chain([bias]).collect()))
    }
}

pub(super) fn add<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    match (&a, &b) {
        (Item::View(v), Item::Host(h)) | (Item::Host(h), Item::View(v)) => {
            if let Some(c) = h.single().filter(|_| h.tensor.shape().rank() <= v.rank()) {
                return im.mapped(call, v, |im, x| im.b.add_scalar(x, c));
            }
            if let Some(value) = im.layer_with(v, h, false) {
                im.give_view(call, value, v.order.clone());
                return Ok(());
            }
            im.binary(call, Binary::Add, &a, &b)
        }
        _ => im.binary(call, Binary::Add, &a, &b),
    }
}

pub(super) fn sub<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    match (&a, &b) {
        (Item::View(v), Item::Host(h)) if h.single().is_some() && h.tensor.shape().rank() <= v.rank() => {
            let c = h.single().unwrap_or(0.0);
            im.mapped(call, v, |im, x| im.b.add_scalar(x, -c))
        }
        (Item::Host(h), Item::View(v)) if h.single().is_some() && h.tensor.shape().rank() <= v.rank() => {
            let c = h.single().unwrap_or(0.0);
            im.mapped(call, v, |im, x| {
                let negative = im.b.unary(Unary::Neg, x);
                im.b.add_scalar(negative, c)
            })
        }
        _ => im.binary(call, Binary::Sub, &a, &b),
    }
}

pub(super) fn mul<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    match (&a, &b) {
        (Item::View(v), Item::Host(h)) | (Item::Host(h), Item::View(v)) => {
            if let Some(c) = h.single().filter(|_| h.tensor.shape().rank() <= v.rank()) {
                return im.mapped(call, v, |im, x| im.scaled(x, c));
            }
            if let Some(value) = im.layer_with(v, h, true) {
                im.give_view(call, value, v.order.clone());
                return Ok(());
            }
            im.binary(call, Binary::Mul, &a, &b)
        }
        (Item::View(p), Item::View(q)) if p.order == q.order => {
            if let Some(value) = im.gated(p.value, q.value).or_else(|| im.gated(q.value, p.value)) {
                im.give_view(call, value, p.order.clone());
                return Ok(());
            }
            im.binary(call, Binary::Mul, &a, &b)
        }
        _ => im.binary(call, Binary::Mul, &a, &b),
    }
}

impl Importer<'_, '_> {
    /// The operand of a function of one value.
    fn argument(&self, v: Value, is: impl Fn(&Unary) -> bool) -> Option<Value> {
        let node = &self.b.graph().nodes[v.at()];
        matches!(&node.op, Op::Unary(f) if is(f)).then(|| node.inputs[0])
    }

    /// `x sigmoid(x)` is SiLU; `x (1 + erf(x / sqrt(2)))` is twice GELU.
    fn gated(&mut self, x: Value, gate: Value) -> Option<Value> {
        if self.argument(gate, |f| *f == Unary::Sigmoid) == Some(x) {
            return Some(self.b.silu(x));
        }
        let inner = self.argument(gate, |f| *f == Unary::AddScalar(1.0))?;
        let Some(Origin::Erf(u)) = self.origins.get(&inner) else { return None };
        let root = std::f64::consts::FRAC_1_SQRT_2;
        let argument = self.argument(*u, |f| matches!(f, Unary::MulScalar(c) if (c - root).abs() < 1e-6))?;
        // The factor 1/2 may stand before or behind.
        let half = self.argument(x, |f| *f == Unary::MulScalar(0.5));
        let factor = match x {
            _ if x == argument => 2.0,
            _ if half == Some(argument) => 1.0,
            _ => return None,
        };
        let gelu = self.b.unary(Unary::Gelu, argument);
        Some(self.scaled(gelu, factor))
    }
}

pub(super) fn div<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    match (&a, &b) {
        (Item::View(v), Item::Host(h))
            if h.single().is_some_and(|c| c != 0.0) && h.tensor.shape().rank() <= v.rank() =>
        {
            let c = h.single().unwrap_or(1.0);
            im.mapped(call, v, |im, x| im.scaled(x, 1.0 / c))
        }
        (Item::Host(h), Item::View(v)) if h.single().is_some() && h.tensor.shape().rank() <= v.rank() => {
            let c = h.single().unwrap_or(1.0);
            im.mapped(call, v, |im, x| {
                let inverse = im.b.unary(Unary::Recip, x);
                im.scaled(inverse, c)
            })
        }
        _ => im.binary(call, Binary::Div, &a, &b),
    }
}

pub(super) fn pow<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    match (&a, &b) {
        (Item::View(v), Item::Host(h)) if h.single().is_some() && h.tensor.shape().rank() <= v.rank() => {
            let power = h.single().unwrap_or(1.0);
            im.mapped(call, v, |im, x| match power {
                1.0 => x,
                2.0 => im.b.unary(Unary::Square, x),
                // Powers of negative numbers go by products.
                3.0 => {
                    let square = im.b.unary(Unary::Square, x);
                    im.b.mul(square, x)
                }
                0.5 => im.b.unary(Unary::Sqrt, x),
                -1.0 => im.b.unary(Unary::Recip, x),
                p => im.b.unary(Unary::PowScalar(p), x),
            })
        }
        _ => im.binary(call, Binary::Pow, &a, &b),
    }
}

/// Max, Min, Sum and Mean of any number of values.
pub(super) fn many<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let f = match call.node.op {
        "Max" => Binary::Max,
        "Min" => Binary::Min,
        _ => Binary::Add,
    };
    let count = call.node.inputs.len();
    let first = im.item(call, 0)?;
    im.give(call, 0, first.clone());
    let mut sum = first;
    for i in 1..count {
        let next = im.item(call, i)?;
        im.binary(call, f, &sum, &next)?;
        sum = im.items[name(call)].clone();
    }
    if call.node.op == "Mean" {
        let view = im.computed(&sum);
        return im.mapped(call, &view, |im, x| im.scaled(x, 1.0 / count as f64));
    }
    Ok(())
}

pub(super) fn modulo<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (Some(a), Some(b)) = (im.host(call, 0)?, im.host(call, 1)?) else {
        return call.fail("an operand is missing");
    };
    let made = Host::zip(name(call), [&a, &b], a.tensor.dtype(), |p, q| p - q * (p / q).floor());
    im.give_host(call, made)
}

/// Comparisons and logic: 1 where it holds, else 0.
pub(super) fn compare<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    let op = call.node.op;
    if let (Item::Host(a), Item::Host(b)) = (&a, &b) {
        let holds = |p: f64, q: f64| match op {
            "Equal" => p == q,
            "Greater" => p > q,
            "GreaterOrEqual" => p >= q,
            "Less" => p < q,
            "LessOrEqual" => p <= q,
            "And" => p != 0.0 && q != 0.0,
            _ => p != 0.0 || q != 0.0,
        };
        let made = Host::zip(name(call), [a, b], DType::U8, |p, q| f64::from(u8::from(holds(p, q))));
        return im.give_host(call, made);
    }
    let (va, vb, order) = im.pair(&a, &b);
    let greater = |im: &mut Importer<'_, 'a>, p, q| im.b.binary(Binary::Greater, p, q);
    let not = |im: &mut Importer<'_, 'a>, v| {
        let negative = im.b.unary(Unary::Neg, v);
        im.b.add_scalar(negative, 1.0)
    };
    let value = match op {
        "Greater" => greater(im, va, vb),
        "Less" => greater(im, vb, va),
        "GreaterOrEqual" => {
            let less = greater(im, vb, va);
            not(im, less)
        }
        "LessOrEqual" => {
            let more = greater(im, va, vb);
            not(im, more)
        }
        "Equal" => {
            let (more, less) = (greater(im, va, vb), greater(im, vb, va));
            let differs = im.b.add(more, less);
            not(im, differs)
        }
        "And" => im.b.mul(va, vb),
        _ => im.b.binary(Binary::Max, va, vb),
    };
    im.give_view(call, value, order);
    Ok(())
}

pub(super) fn not<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    match im.item(call, 0)? {
        Item::Host(h) => {
            let host = h.map(name(call), DType::U8, |v| f64::from(u8::from(v == 0.0)));
            im.give(call, 0, Item::Host(host));
            Ok(())
        }
        Item::View(v) => im.mapped(call, &v, |im, x| {
            let negative = im.b.unary(Unary::Neg, x);
            im.b.add_scalar(negative, 1.0)
        }),
    }
}

/// `b + (a - b) condition`; where the condition is known for all at once, the one that it chooses.
pub(super) fn choose<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (condition, a, b) = (im.item(call, 0)?, im.item(call, 1)?, im.item(call, 2)?);
    if let (Item::Host(c), Item::Host(a), Item::Host(b)) = (&condition, &a, &b) {
        return im.give_host(call, Host::choose(name(call), c, a, b));
    }
    let (va, vb, order) = im.pair(&a, &b);
    let difference = im.b.sub(va, vb);
    let (difference, vb) = (View { value: difference, order: order.clone() }, View { value: vb, order });
    let (d, c, order) = im.pair(&Item::View(difference), &condition);
    let part = im.b.mul(d, c);
    let (part, vb, order) = im.pair(&Item::View(View { value: part, order }), &Item::View(vb));
    let value = im.b.add(part, vb);
    im.give_view(call, value, order);
    Ok(())
}
