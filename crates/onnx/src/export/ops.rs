//! Each of our operations in ONNX's. Graphs come as networks are built, before any pass, so fused operations are not among
//! them; what only training needs is refused.

use super::document::{Attribute, Source};
use super::emit::{Emitter, Made};
use super::layout;
use crate::error::ExportError;
use clearshot_graph::ops::*;
use clearshot_graph::{Node, Op, Value};
use clearshot_tensor::DType;

const INFINITE: i64 = i64::MAX;

/// Writes one node of ours.
///
/// # Errors
/// If ONNX has nothing for it.
pub(super) fn emit(e: &mut Emitter<'_>, index: usize) -> Result<(), ExportError> {
    let node = &e.sizes.graph().nodes[index];
    let (x, out) = (&node.inputs, Value::new(index, 0));
    let name = match &node.op {
        Op::Input(name) => name.to_string(),
        // Emitted by who first reads them, in the layout that is wanted.
        Op::State(_) | Op::Const(_) => return Ok(()),
        Op::Conv(a) => conv(e, a, x)?,
        Op::ConvInputGrad(a) => conv_transpose(e, index, a, x)?,
        Op::MatMul(a) => matmul(e, a, x)?,
        Op::Attention(a) => attention(e, a, x)?,
        Op::Norm(a) => norm(e, a, node)?,
        Op::Softmax => {
            let rank = e.sizes.rank(x[0]);
            let name = e.name(x[0])?;
            let axis = layout::place(rank, rank.saturating_sub(1)) as i64;
            e.node("Softmax", &[&name], vec![("axis", Attribute::Int(axis))])
        }
        Op::Unary(f) => {
            let name = e.name(x[0])?;
            unary(e, *f, &name)?
        }
        Op::Binary(f) => {
            let rank = e.sizes.rank(out);
            let (a, b) = (e.aligned(x[0], rank)?, e.aligned(x[1], rank)?);
            binary(e, *f, &a, &b)
        }
        Op::Cast(dtype) => {
            let name = e.name(x[0])?;
            let to = match dtype {
                DType::F32 => 1,
                DType::I32 => 6,
                other => return e.refuse(format!("a cast to {other}")),
            };
            e.node("Cast", &[&name], vec![("to", Attribute::Int(to))])
        }
        Op::Reduce(a) => reduce(e, a, x[0])?,
        Op::Reshape(_) => e.reshape(x[0], out)?,
        Op::StopGradient => e.name(x[0])?,
        Op::Transpose(t) => {
            let name = e.name(x[0])?;
            let order: Vec<usize> = t.order().collect();
            let rank = order.len();
            let perm: Vec<usize> =
                layout::order(rank).into_iter().map(|axis| layout::place(rank, order[axis])).collect();
            e.transposed(&name, &perm)
        }
        Op::Broadcast(_) => {
            let rank = e.sizes.rank(out);
            let name = e.aligned(x[0], rank)?;
            let shape = e.shape(out, &layout::order(rank))?;
            e.call("Expand", &[&name, &shape])
        }
        Op::Concat(a) => {
            let rank = e.sizes.rank(out);
            let parts = x.iter().map(|&v| e.name(v)).collect::<Result<Vec<_>, _>>()?;
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let axis = layout::place(rank, a.axis) as i64;
            e.node("Concat", &parts, vec![("axis", Attribute::Int(axis))])
        }
        Op::Slice(_) => slice(e, index, x[0])?,
        Op::Pad(a) => pad(e, a, x[0])?,
        Op::Resize(a) => resize(e, a.mode, x[0], out)?,
        Op::Pool(a) => pool(e, a, x[0])?,
        Op::Gather => {
            let (table, indices) = (e.name(x[0])?, e.name(x[1])?);
            e.node("Gather", &[&table, &indices], vec![("axis", Attribute::Int(0))])
        }
        _ => return e.refuse("it is for training, or made by a pass"),
    };
    e.bind(out, name);
    Ok(())
}

/// Attributes of a convolution or a pooling, for the spatial axes that there are.
fn geometry(g: &Geometry, kernel: [usize; 3], rank: usize) -> Vec<(&'static str, Attribute)> {
    let first = 5 - rank;
    let ints = |v: &[usize]| Attribute::Ints(v.iter().map(|&n| n as i64).collect());
    let pads: Vec<usize> =
        [0, 1].iter().flat_map(|&end| g.pad[first..].iter().map(move |p| p[end])).collect();
    vec![
        ("kernel_shape", ints(&kernel[first..])),
        ("strides", ints(&g.stride[first..])),
        ("pads", ints(&pads)),
    ]
}

fn conv_attributes(g: &Geometry, kernel: [usize; 3], rank: usize) -> Vec<(&'static str, Attribute)> {
    let mut all = geometry(g, kernel, rank);
    let dilations = g.dilation[5 - rank..].iter().map(|&n| n as i64).collect();
    all.push(("dilations", Attribute::Ints(dilations)));
    all.push(("group", Attribute::Int(g.groups as i64)));
    all
}

fn conv(e: &mut Emitter<'_>, a: &Conv, x: &[Value]) -> Made {
    if *a != Conv::plain(a.geometry, a.bias == Bias::Channel) {
        return e.refuse("a fused convolution");
    }
    let weight = e.sizes.graph().shape(x[1]);
    let Ok(kernel) = conv::spatial("weight", weight) else { return e.refuse("a weight of other axes") };
    let operands = x.iter().map(|&v| e.name(v)).collect::<Result<Vec<_>, _>>()?;
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    Ok(e.node("Conv", &operands, conv_attributes(&a.geometry, kernel, weight.rank())))
}

fn conv_transpose(e: &mut Emitter<'_>, index: usize, a: &ConvInputGrad, x: &[Value]) -> Made {
    if a.upsample || a.channels[0] != 0 || a.act.is_some() || a.residual {
        return e.refuse("a fused convolution");
    }
    let weight = e.sizes.graph().shape(x[1]);
    let rank = weight.rank();
    let Ok(kernel) = conv::spatial("weight", weight) else { return e.refuse("a weight of other axes") };
    // What the result has beyond the smallest that there can be, which must not depend on the image.
    let extra = |node: &Node, shape| match (&node.op, conv::spatial("input", shape)) {
        (Op::ConvInputGrad(a), Ok(at)) => {
            let least = a.geometry.smallest_input(at, kernel);
            Some(std::array::from_fn::<usize, 3, _>(|i| a.input[i].wrapping_sub(least[i])))
        }
        _ => None,
    };
    let all: Vec<_> = e.sizes.nodes(index).zip(e.sizes.shapes(x[0])).map(|(n, s)| extra(n, s)).collect();
    let Some(extra) = all[0].filter(|_| all.iter().all(|other| *other == all[0])) else {
        return e.refuse("its size does not follow from the image's");
    };
    let mut attributes = conv_attributes(&a.geometry, kernel, rank);
    let padding = extra[5 - rank..].iter().map(|&n| n as i64).collect();
    attributes.push(("output_padding", Attribute::Ints(padding)));
    let operands = x.iter().map(|&v| e.name(v)).collect::<Result<Vec<_>, _>>()?;
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    Ok(e.node("ConvTranspose", &operands, attributes))
}

/// A factor of a matrix product, plain or transposed.
fn factor(e: &mut Emitter<'_>, v: Value, transpose: bool) -> Made {
    let rank = e.sizes.rank(v);
    let mut order: Vec<usize> = (0..rank).collect();
    if transpose {
        order.swap(rank - 2, rank - 1);
    }
    if let (Op::State(s), true, 2) = (e.sizes.graph().op(v), transpose, rank) {
        return Ok(e.weight(v, &s.name.clone(), order));
    }
    let name = e.name(v)?;
    // From ONNX's layout to ours, and from there to the factor's.
    let plain = layout::back(rank);
    let perm: Vec<usize> = order.into_iter().map(|a| plain[a]).collect();
    Ok(e.transposed(&name, &perm))
}

fn matmul(e: &mut Emitter<'_>, a: &MatMul, x: &[Value]) -> Made {
    if a.act.is_some() || a.residual {
        return e.refuse("a fused product");
    }
    let rank = e.sizes.rank(x[0]);
    if rank == 2 && e.sizes.rank(x[1]) == 2 {
        let operands = x.iter().map(|&v| e.name(v)).collect::<Result<Vec<_>, _>>()?;
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let flags = [("transA", a.transpose_a), ("transB", a.transpose_b)];
        let attributes = flags.map(|(name, on)| (name, Attribute::Int(i64::from(on))));
        return Ok(e.node("Gemm", &operands, attributes.into()));
    }
    let (left, right) = (factor(e, x[0], a.transpose_a)?, factor(e, x[1], a.transpose_b)?);
    let mut y = e.call("MatMul", &[&left, &right]);
    if a.bias {
        let bias = e.name(x[2])?;
        y = e.call("Add", &[&y, &bias]);
    }
    Ok(e.transposed(&y, &layout::order(rank)))
}

/// As `softmax(scale q kᵀ) v` with the heads as an axis of their own.
fn attention(e: &mut Emitter<'_>, a: &Attention, x: &[Value]) -> Made {
    let mut heads = |v: Value, perm: &[usize]| -> Made {
        let width = e.sizes.graph().shape(v)[2] / a.heads;
        let name = e.name(v)?;
        let spec = e.ints(&[0, 0, a.heads as i64, width as i64]);
        let split = e.call("Reshape", &[&name, &spec]);
        Ok(e.transposed(&split, perm))
    };
    let q = heads(x[0], &[0, 2, 1, 3])?;
    let k = heads(x[1], &[0, 2, 3, 1])?;
    let v = heads(x[2], &[0, 2, 1, 3])?;
    let scale = e.scalar(a.scale);
    let q = e.call("Mul", &[&q, &scale]);
    let products = e.call("MatMul", &[&q, &k]);
    let shares = e.node("Softmax", &[&products], vec![("axis", Attribute::Int(-1))]);
    let mixed = e.call("MatMul", &[&shares, &v]);
    let rows = e.transposed(&mixed, &[0, 2, 1, 3]);
    let width = e.sizes.graph().shape(x[2])[2];
    let spec = e.ints(&[0, 0, width as i64]);
    Ok(e.call("Reshape", &[&rows, &spec]))
}

/// Opset 17 has no group norm: groups become the channels of an instance norm.
fn norm(e: &mut Emitter<'_>, a: &Norm, node: &Node) -> Made {
    if a.parts != 1 || a.act.is_some() || a.bias {
        return e.refuse("a fused norm");
    }
    let x = &node.inputs;
    let shape = e.sizes.graph().shape(x[0]);
    let rank = shape.rank();
    let eps = || vec![("epsilon", Attribute::Float(a.eps as f32))];
    let name = e.name(x[0])?;
    if rank == 2 && a.groups == 1 && !a.film {
        let (gamma, beta) = (e.name(x[1])?, e.name(x[2])?);
        let mut attributes = eps();
        attributes.push(("axis", Attribute::Int(-1)));
        return Ok(e.node("LayerNormalization", &[&name, &gamma, &beta], attributes));
    }
    // Channels second.
    let swap = [0, 2, 1];
    let image = if rank == 3 { e.transposed(&name, &swap) } else { name };
    let mut y = if a.groups == shape.channels() && rank > 2 {
        let (gamma, beta) = (e.name(x[1])?, e.name(x[2])?);
        e.node("InstanceNormalization", &[&image, &gamma, &beta], eps())
    } else {
        let spec = e.ints(&[0, a.groups as i64, -1]);
        let grouped = e.call("Reshape", &[&image, &spec]);
        let fill = |e: &mut Emitter<'_>, value: f32| {
            let tensor = clearshot_tensor::Tensor::full([a.groups], value);
            e.initializer(format!("full_{value}_{}", a.groups), Source::Given(tensor))
        };
        let (one, zero) = (fill(e, 1.0), fill(e, 0.0));
        let normal = e.node("InstanceNormalization", &[&grouped, &one, &zero], eps());
        let shape = e.call("Shape", &[&image]);
        let normal = e.call("Reshape", &[&normal, &shape]);
        let (gamma, beta) = (e.per_channel(x[1], rank)?, e.per_channel(x[2], rank)?);
        let scaled = e.call("Mul", &[&normal, &gamma]);
        e.call("Add", &[&scaled, &beta])
    };
    if a.film {
        let (scale, shift) = (e.per_sample(x[3], rank)?, e.per_sample(x[4], rank)?);
        let one = e.scalar(1.0);
        let gain = e.call("Add", &[&scale, &one]);
        let scaled = e.call("Mul", &[&y, &gain]);
        y = e.call("Add", &[&scaled, &shift]);
    }
    Ok(if rank == 3 { e.transposed(&y, &swap) } else { y })
}

fn unary(e: &mut Emitter<'_>, f: Unary, x: &str) -> Made {
    let plain = match f {
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
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

fn binary(e: &mut Emitter<'_>, f: Binary, a: &str, b: &str) -> String {
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

fn reduce(e: &mut Emitter<'_>, a: &Reduce, x: Value) -> Made {
    let rank = e.sizes.rank(x);
    let mut axes: Vec<i64> =
        (0..rank).filter(|&axis| a.has(axis)).map(|axis| layout::place(rank, axis) as i64).collect();
    axes.sort_unstable();
    let name = e.name(x)?;
    let op = match a.kind {
        // The only one whose axes are an input in opset 17.
        ReduceKind::Sum => {
            let axes = e.ints(&axes);
            return Ok(e.call("ReduceSum", &[&name, &axes]));
        }
        ReduceKind::Mean => "ReduceMean",
        ReduceKind::SumSquares => "ReduceSumSquare",
    };
    Ok(e.node(op, &[&name], vec![("axes", Attribute::Ints(axes))]))
}

fn slice(e: &mut Emitter<'_>, index: usize, x: Value) -> Made {
    let all: Vec<(Slice, usize)> = e
        .sizes
        .nodes(index)
        .zip(e.sizes.shapes(x))
        .filter_map(|(n, s)| if let Op::Slice(a) = n.op { Some((a, s[a.axis])) } else { None })
        .collect();
    let first = all[0].0;
    let end = if all.iter().all(|(a, _)| (a.start, a.len) == (first.start, first.len)) {
        (first.start + first.len) as i64
    } else if all.iter().all(|(a, size)| a.start == first.start && a.start + a.len == *size) {
        INFINITE
    } else {
        return e.refuse("a part whose place follows from the image's size");
    };
    let rank = e.sizes.rank(x);
    let name = e.name(x)?;
    let (start, end) = (e.ints(&[first.start as i64]), e.ints(&[end]));
    let axis = e.ints(&[layout::place(rank, first.axis) as i64]);
    Ok(e.call("Slice", &[&name, &start, &end, &axis]))
}

fn pad(e: &mut Emitter<'_>, a: &Pad, x: Value) -> Made {
    let mode = match a.mode {
        PadMode::Zero => "constant",
        PadMode::Reflect => "reflect",
        PadMode::Edge => "edge",
        PadMode::Wrap => return e.refuse("padding with the other side needs opset 19"),
    };
    let order = layout::order(e.sizes.rank(x));
    let pads: Vec<i64> =
        [0, 1].iter().flat_map(|&end| order.iter().map(move |&axis| a.pad[axis][end] as i64)).collect();
    let (name, pads) = (e.name(x)?, e.ints(&pads));
    Ok(e.node("Pad", &[&name, &pads], vec![("mode", Attribute::Text(mode))]))
}

fn resize(e: &mut Emitter<'_>, mode: ResizeMode, x: Value, out: Value) -> Made {
    let (kind, coordinates) = match mode {
        ResizeMode::Nearest => ("nearest", "asymmetric"),
        ResizeMode::Linear => ("linear", "half_pixel"),
        ResizeMode::LinearAligned => ("linear", "align_corners"),
    };
    let mut attributes = vec![
        ("mode", Attribute::Text(kind)),
        ("coordinate_transformation_mode", Attribute::Text(coordinates)),
    ];
    if mode == ResizeMode::Nearest {
        attributes.push(("nearest_mode", Attribute::Text("floor")));
    }
    let rank = e.sizes.rank(x);
    let name = e.name(x)?;
    // Whole factors need no size; others would be rounded.
    let factor = |axis: usize| {
        let first = e.sizes.graph().shape(out)[axis] / e.sizes.graph().shape(x)[axis];
        let whole = e.sizes.along(x, axis).zip(e.sizes.along(out, axis)).all(|(from, to)| from * first == to);
        whole.then_some(first as f32)
    };
    let factors: Option<Vec<f32>> = layout::order(rank).into_iter().map(factor).collect();
    match factors {
        Some(factors) => {
            let shown: Vec<String> = factors.iter().map(f32::to_string).collect();
            let tensor = clearshot_tensor::Tensor::f32([rank], factors);
            let scales = e.initializer(format!("factors_{}", shown.join("_")), Source::Given(tensor));
            Ok(e.node("Resize", &[&name, "", &scales], attributes))
        }
        None => {
            let sizes = e.shape(out, &layout::order(rank))?;
            Ok(e.node("Resize", &[&name, "", "", &sizes], attributes))
        }
    }
}

fn pool(e: &mut Emitter<'_>, a: &Pool, x: Value) -> Made {
    let name = e.name(x)?;
    let mut attributes = geometry(&a.geometry, a.kernel, e.sizes.rank(x));
    let op = match a.kind {
        PoolKind::Max => "MaxPool",
        PoolKind::Average => {
            attributes.push(("count_include_pad", Attribute::Int(1)));
            "AveragePool"
        }
    };
    Ok(e.node(op, &[&name], attributes))
}
