//! Conversion of our operations to ONNX; those that move values and sum over axes are here, the others in [`super::layers`]
//! and [`super::elementwise`]. Graphs are exported before any pass, so they contain no fused operations; operations for
//! training only are refused.

use super::document::{Attribute, Source};
use super::elementwise::{binary, unary};
use super::emit::{Emitter, Made};
use super::layers::{attention, conv, conv_transpose, matmul, norm, pool};
use super::layout;
use crate::error::ExportError;
use clearshot_graph::ops::*;
use clearshot_graph::{Op, Value};
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
