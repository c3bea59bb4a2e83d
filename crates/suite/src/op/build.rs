//! The peers' operations by name, written with the builder.
//!
//! Names and attributes are PyTorch's functional ones. Beyond the ops of the references at hand there
//! are those that other references would plausibly have.

use super::Operands;
use crate::Result;
use crate::case::Attrs;
use clearshot_graph::losses;
use clearshot_graph::ops::{Binary, Geometry, PadMode, PoolKind, ReduceKind, ResizeMode, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{MAX_RANK, Shape};

/// Ops whose tensors are images: channels move last.
pub(super) fn is_spatial(op: &str) -> bool {
    matches!(
        op,
        "conv" | "conv_transpose" | "group_norm" | "group_norm_silu" | "instance_norm" | "concat_channels"
    ) || ["upsample", "avg_pool", "max_pool", "pad", "loss"].iter().any(|family| op.starts_with(family))
}

pub(super) fn build(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let attrs = o.attrs;
    if let Some(f) = unary(op, attrs)? {
        let x = o.only()?;
        return Ok(b.unary(f, x));
    }
    if let Some(f) = binary(op) {
        let operand = |first: &str, second: &str| o.get(first).or_else(|_| o.get(second));
        let (p, q) = (operand("a", "x")?, operand("b", "y")?);
        return Ok(b.binary(f, p, q));
    }
    match op {
        "conv" | "conv_transpose" => conv(b, op, o),
        "linear" => Ok(b.linear(o.get("x")?, o.get("weight")?, o.maybe("bias"))),
        "matmul" => Ok(b.matmul(o.get("a")?, o.get("b")?, false, false)),
        "attention" => attention(b, o),
        "softmax" => softmax(b, o),
        "group_norm" | "group_norm_silu" | "instance_norm" | "layer_norm" => norm(b, op, o),
        "avg_pool" | "max_pool" => pool(b, op, o),
        "upsample_nearest" | "upsample_linear" => upsample(b, op, o),
        "concat_channels" => Ok(b.concat_channels(&o.values.values().copied().collect::<Vec<_>>())),
        "concat" => {
            let parts: Vec<Value> = o.values.values().copied().collect();
            let axis = attrs.axis_or("dim", b.shape(parts[0]).rank(), 1)?;
            Ok(b.concat(&parts, axis))
        }
        "pad" => pad(b, o),
        "permute" => permute(b, o),
        "slice" => {
            let x = o.only()?;
            let axis = attrs.axis_or("dim", b.shape(x).rank(), 0)?;
            let (start, len) = (attrs.count_or("start", 0)?, attrs.count_or("length", 1)?);
            Ok(b.slice(x, axis, start, len))
        }
        "sum" | "mean" => reduce(b, op, o),
        "embedding" => Ok(b.gather(o.get("weight")?, o.get("x").or_else(|_| o.get("indices"))?)),
        "loss_mse" | "loss_l1" | "loss_huber" | "loss_smooth_l1" | "loss_dice_ce" => loss(b, op, o),
        _ => Err(format!("unknown op `{op}`").into()),
    }
}

fn unary(op: &str, attrs: &Attrs) -> Result<Option<Unary>> {
    Ok(Some(match op {
        "neg" => Unary::Neg,
        "abs" => Unary::Abs,
        "sign" => Unary::Sign,
        "round" => Unary::Round,
        "square" => Unary::Square,
        "sqrt" => Unary::Sqrt,
        "reciprocal" => Unary::Recip,
        "exp" => Unary::Exp,
        "log" => Unary::Log,
        "sin" => Unary::Sin,
        "cos" => Unary::Cos,
        "relu" => Unary::Relu,
        "leaky_relu" => Unary::LeakyRelu(attrs.number_or("negative_slope", 0.01)?),
        "sigmoid" => Unary::Sigmoid,
        "tanh" => Unary::Tanh,
        "softplus" => Unary::Softplus,
        "silu" => Unary::Silu,
        "gelu" if attrs.text("approximate") == Some("tanh") => Unary::GeluTanh,
        "gelu" => Unary::Gelu,
        "gelu_tanh" => Unary::GeluTanh,
        "pow_scalar" => Unary::PowScalar(attrs.number("exponent")?),
        "clamp" => {
            Unary::Clamp(attrs.number_or("min", f64::NEG_INFINITY)?, attrs.number_or("max", f64::INFINITY)?)
        }
        _ => return Ok(None),
    }))
}

fn binary(op: &str) -> Option<Binary> {
    Some(match op {
        "add" => Binary::Add,
        "sub" => Binary::Sub,
        "mul" => Binary::Mul,
        "div" => Binary::Div,
        "maximum" => Binary::Max,
        "minimum" => Binary::Min,
        "pow" => Binary::Pow,
        _ => return None,
    })
}

/// The number of spatial axes: as the case says, or as the image has.
fn dims(b: &Builder, x: Value, attrs: &Attrs) -> Result<usize> {
    attrs.count_or("dims", b.shape(x).rank().saturating_sub(2))
}

fn geometry(attrs: &Attrs, dims: usize, stride: usize) -> Result<Geometry> {
    Ok(Geometry {
        stride: attrs.axes("stride", dims, stride, 1)?,
        pad: attrs.axes("padding", dims, 0, 0)?.map(|p| [p, p]),
        dilation: attrs.axes("dilation", dims, 1, 1)?,
        groups: attrs.count_or("groups", 1)?,
    })
}

fn conv(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let (x, weight, bias) = (o.get("x")?, o.get("weight")?, o.maybe("bias"));
    let dims = dims(b, x, o.attrs)?;
    let geometry = geometry(o.attrs, dims, 1)?;
    if op == "conv" {
        return Ok(b.conv(x, weight, bias, geometry));
    }
    let extra = o.attrs.axes("output_padding", dims, 0, 0)?;
    Ok(b.conv_transpose(x, weight, bias, geometry, extra))
}

fn attention(b: &mut Builder, o: &Operands<'_>) -> Result<Value> {
    let q = o.case.tensor("in.q")?.shape();
    let heads = if o.attrs.text("layout") == Some("b s h d") { q[2] } else { q[1] };
    let scale = o.attrs.get("scale").and_then(serde_json::Value::as_f64);
    Ok(b.attention(o.get("q")?, o.get("k")?, o.get("v")?, heads, scale))
}

fn softmax(b: &mut Builder, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let rank = b.shape(x).rank();
    let axis = o.attrs.axis_or("dim", rank, -1)?;
    if axis == rank - 1 {
        return Ok(b.softmax(x));
    }
    // Exchanging two axes is its own inverse.
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(axis, rank - 1);
    let last = b.transpose(x, &order);
    let y = b.softmax(last);
    Ok(b.transpose(y, &order))
}

fn norm(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let (x, gamma, beta) = (o.get("x")?, o.get("weight")?, o.get("bias")?);
    let eps = o.attrs.number_or("eps", 1e-5)?;
    Ok(match op {
        "instance_norm" => b.instance_norm(x, gamma, beta, eps),
        "layer_norm" => b.layer_norm(x, gamma, beta, eps),
        _ => {
            let groups = o.attrs.number("groups")? as usize;
            let y = b.group_norm(x, gamma, beta, groups, eps);
            if op == "group_norm_silu" { b.silu(y) } else { y }
        }
    })
}

fn pool(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let dims = dims(b, x, o.attrs)?;
    let kernel = o.attrs.axes("kernel", dims, 2, 1)?;
    if o.attrs.flag("ceil_mode") {
        return Err("pooling with ceil_mode is not an op here".into());
    }
    // PyTorch's stride is the kernel where it is not given.
    let mut geometry = geometry(o.attrs, dims, 1)?;
    if o.attrs.get("stride").is_none() {
        geometry.stride = kernel;
    }
    let kind = if op == "avg_pool" { PoolKind::Average } else { PoolKind::Max };
    Ok(b.pool(x, kind, kernel, geometry))
}

fn upsample(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let dims = dims(b, x, o.attrs)?;
    let mode = match (op, o.attrs.flag("align_corners")) {
        ("upsample_nearest", _) => ResizeMode::Nearest,
        (_, false) => ResizeMode::Linear,
        (_, true) => ResizeMode::LinearAligned,
    };
    let size = match o.attrs.get("size") {
        Some(_) => o.attrs.axes("size", dims, 1, 1)?,
        None => {
            let scale = o.attrs.axes("scale", dims, 2, 1)?;
            let shape = b.shape(x);
            std::array::from_fn(|a| if a + dims < 3 { 1 } else { shape[a + dims - 2] * scale[a] })
        }
    };
    Ok(b.resize(x, mode, size))
}

/// PyTorch's padding counts pairs from the last axis of its layout, which is our last but one.
fn pad(b: &mut Builder, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let rank = b.shape(x).rank();
    let list = o.attrs.get("pad").or_else(|| o.attrs.get("padding")).and_then(|v| v.as_array());
    let list = list.ok_or("attribute `pad` is no list")?;
    let sizes: Option<Vec<usize>> = list.iter().map(|v| v.as_u64().map(|v| v as usize)).collect();
    let sizes = sizes.ok_or("attribute `pad` has a value that is no count")?;
    let mut pad = [[0; 2]; MAX_RANK];
    for (i, pair) in sizes.chunks(2).enumerate() {
        let axis = (rank - 2).checked_sub(i).filter(|&a| a > 0 && pair.len() == 2);
        pad[axis.ok_or("attribute `pad` has more than the spatial axes")?] = [pair[0], pair[1]];
    }
    let mode = match o.attrs.text("mode").unwrap_or("constant") {
        "constant" if o.attrs.number_or("value", 0.0)? == 0.0 => PadMode::Zero,
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Edge,
        "circular" => PadMode::Wrap,
        other => return Err(format!("unknown padding `{other}`").into()),
    };
    Ok(b.pad(x, pad, mode))
}

fn permute(b: &mut Builder, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let list = o.attrs.get("dims").and_then(|v| v.as_array()).ok_or("attribute `dims` is no list")?;
    let order: Option<Vec<usize>> = list.iter().map(|v| v.as_u64().map(|v| v as usize)).collect();
    Ok(b.transpose(x, &order.ok_or("attribute `dims` has a value that is no axis")?))
}

fn reduce(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let x = o.only()?;
    let shape = b.shape(x);
    if o.attrs.get("dim").is_none() {
        let kind = if op == "sum" { ReduceKind::Sum } else { ReduceKind::Mean };
        return Ok(b.reduce_all(kind, x));
    }
    let axis = o.attrs.axis_or("dim", shape.rank(), 0)?;
    let y = if op == "sum" { b.sum(x, &[axis]) } else { b.mean(x, &[axis]) };
    if o.attrs.flag("keepdim") {
        return Ok(y);
    }
    let rest: Vec<usize> = (0..shape.rank()).filter(|&a| a != axis).map(|a| shape[a]).collect();
    Ok(b.reshape(y, Shape::new(&rest)))
}

fn loss(b: &mut Builder, op: &str, o: &Operands<'_>) -> Result<Value> {
    let (x, target) = (o.get("x")?, o.get("target")?);
    Ok(match op {
        "loss_mse" => losses::mse(b, x, target),
        "loss_l1" => losses::l1(b, x, target),
        "loss_huber" => losses::huber(b, x, target, o.attrs.number_or("delta", 1.0)?),
        "loss_smooth_l1" => losses::smooth_l1(b, x, target, o.attrs.number_or("beta", 1.0)?),
        _ => losses::dice_ce(b, x, target),
    })
}
