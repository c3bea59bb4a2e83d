//! Convolutions, products, attention, norms and pooling in ONNX's operators.

use super::document::{Attribute, Source};
use super::emit::{Emitter, Made};
use super::layout;
use clearshot_graph::ops::*;
use clearshot_graph::{Node, Op, Value};
use clearshot_tensor::{Data, Shape, Tensor};

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

pub(super) fn conv(e: &mut Emitter<'_>, a: &Conv, x: &[Value]) -> Made {
    let (at, plain) = (a.operands(), Conv { int8: None, ..*a });
    if plain != Conv::plain(a.geometry, a.bias == Bias::Channel) {
        return e.refuse("a fused convolution");
    }
    let weight = e.sizes.graph().shape(x[at.weight]);
    let Ok(kernel) = conv::spatial("weight", weight) else { return e.refuse("a weight of other axes") };
    let read = (0..x.len()).filter(|i| Some(*i) != at.steps);
    let mut operands = read.map(|i| e.name(x[i])).collect::<Result<Vec<_>, _>>()?;
    if let Some(steps) = at.steps {
        operands[0] = rounded(e, &operands[0], x[steps])?;
    }
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    Ok(e.node("Conv", &operands, conv_attributes(&a.geometry, kernel, weight.rank())))
}

/// What a convolution in 8 bits reads, rounded to its grid by a pair: so a reader that multiplies floats computes the same. The weight is a value of
/// its own whole numbers already, as models in 8 bits have it.
fn rounded(e: &mut Emitter<'_>, x: &str, steps: Value) -> Made {
    let Op::Const(grid) = e.sizes.graph().op(steps) else { return e.refuse("steps that are computed") };
    let numbers = grid.0.to_f64();
    let (mut scales, mut zeros): (Vec<f32>, Vec<u8>) = {
        let (scales, zeros) = numbers.split_at(numbers.len() / 2);
        (scales.iter().map(|&s| s as f32).collect(), zeros.iter().map(|&z| z as u8).collect())
    };
    // One pair of numbers where all channels share it: other programs know only these from the inside of a network.
    let is_shared = scales.iter().all(|s| *s == scales[0]) && zeros.iter().all(|z| *z == zeros[0]);
    let mut shape = Shape::from([scales.len()]);
    if is_shared {
        scales.truncate(1);
        zeros.truncate(1);
        shape = Shape::SCALAR;
    }
    let axis = || if is_shared { vec![] } else { vec![("axis", Attribute::Int(1))] };
    let zeros = Tensor::new(shape, Data::U8(zeros)).expect("as many as there are channels");
    let scale =
        e.initializer(format!("const_{}_scale", steps.at()), Source::Given(Tensor::f32(shape, scales)));
    let zero = e.initializer(format!("const_{}_zero_point", steps.at()), Source::Given(zeros));
    let whole = e.node("QuantizeLinear", &[x, &scale, &zero], axis());
    Ok(e.node("DequantizeLinear", &[&whole, &scale, &zero], axis()))
}

pub(super) fn conv_transpose(e: &mut Emitter<'_>, index: usize, a: &ConvInputGrad, x: &[Value]) -> Made {
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

pub(super) fn matmul(e: &mut Emitter<'_>, a: &MatMul, x: &[Value]) -> Made {
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
pub(super) fn attention(e: &mut Emitter<'_>, a: &Attention, x: &[Value]) -> Made {
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
pub(super) fn norm(e: &mut Emitter<'_>, a: &Norm, node: &Node) -> Made {
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

pub(super) fn pool(e: &mut Emitter<'_>, a: &Pool, x: Value) -> Made {
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
