//! Elementwise chains and strided copies as generated kernels.
//!
//! A chain becomes one expression after another in CUDA C++; shapes are run-time parameters, so a program
//! serves every shape of the same kind. Adjacent axes along which all operands step evenly are one, and
//! where everything is dense there is no index arithmetic at all.

use super::{Kernel, Node, type_name};
use crate::context::{Context, Params, Source};
use crate::error::CudaError;
use clearshot_graph::Op;
use clearshot_graph::ops::{Binary, Program, Scalar, Step, Unary};
use clearshot_tensor::{DType, MAX_RANK, Shape};
use std::borrow::Cow;
use std::sync::Arc;

/// A constant, exactly.
pub(super) fn literal(x: f64) -> String {
    format!("__int_as_float(0x{:08x})", (x as f32).to_bits())
}

/// The name and parameters of a function in the prelude.
fn function(u: Unary) -> (&'static str, Vec<f64>) {
    match u {
        Unary::Neg => ("neg", vec![]),
        Unary::Abs => ("abs", vec![]),
        Unary::Sign => ("sign", vec![]),
        Unary::Round => ("round", vec![]),
        Unary::Square => ("square", vec![]),
        Unary::Sqrt => ("sqrt", vec![]),
        Unary::Recip => ("recip", vec![]),
        Unary::Exp => ("exp", vec![]),
        Unary::Log => ("log", vec![]),
        Unary::Sin => ("sin", vec![]),
        Unary::Cos => ("cos", vec![]),
        Unary::Relu => ("relu", vec![]),
        Unary::LeakyRelu(a) => ("leaky", vec![a]),
        Unary::Sigmoid => ("sigmoid", vec![]),
        Unary::Tanh => ("tanh", vec![]),
        Unary::Softplus => ("softplus", vec![]),
        Unary::Silu => ("silu", vec![]),
        Unary::Gelu => ("gelu", vec![]),
        Unary::GeluTanh => ("gelu_tanh", vec![]),
        Unary::Huber(d) => ("huber", vec![d]),
        Unary::SmoothL1(b) => ("smooth_l1", vec![b]),
        Unary::AddScalar(c) => ("add", vec![c]),
        Unary::MulScalar(c) => ("mul", vec![c]),
        Unary::PowScalar(p) => ("pow", vec![p]),
        Unary::Clamp(a, b) => ("clamp", vec![a, b]),
        Unary::Snap(step, first, last) => ("snap", vec![step, first, last]),
    }
}

fn call(prefix: &str, u: Unary, x: &str) -> String {
    let (name, parameters) = function(u);
    let rest: String = parameters.into_iter().map(|p| format!(", {}", literal(p))).collect();
    format!("{prefix}_{name}({x}{rest})")
}

/// Defines `ACT(x)` and `DACT(x)` as an activation and its derivative.
pub(super) fn with_act(source: Source, act: Option<Unary>) -> Source {
    let value = act.map_or("u_none(x)".into(), |u| call("u", u, "x"));
    let slope = act.map_or("d_none(x)".into(), |u| call("d", u, "x"));
    source.define("ACT(x)", value).define("DACT(x)", slope)
}

fn binary(b: Binary) -> &'static str {
    match b {
        Binary::Add => "b_add",
        Binary::Sub => "b_sub",
        Binary::Mul => "b_mul",
        Binary::Div => "b_div",
        Binary::Max => "b_max",
        Binary::Min => "b_min",
        Binary::Pow => "b_pow",
        Binary::Greater => "b_greater",
    }
}

fn expression(step: &Step) -> String {
    let (a, b) = (format!("r{}", step.a), format!("r{}", step.b));
    match step.scalar {
        Scalar::Unary(u) => call("u", u, &a),
        Scalar::UnaryGrad(u) => format!("{b} * {}", call("d", u, &a)),
        Scalar::Binary(o) => format!("{}({a}, {b})", binary(o)),
    }
}

/// An operand, or the result, as a kernel walks over it: steps in elements along the result's axes, and
/// the first element's place.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub dtype: DType,
    pub strides: Vec<usize>,
    pub start: usize,
}

impl Walk {
    /// A dense tensor of `shape`, broadcast to `to`.
    pub fn broadcast(dtype: DType, shape: Shape, to: Shape) -> Walk {
        let padded = shape.padded_to(to.rank());
        let strides = padded.strides();
        let strides = (0..to.rank()).map(|a| if padded[a] == 1 { 0 } else { strides[a] }).collect();
        Walk { dtype, strides, start: 0 }
    }

    pub fn dense(dtype: DType, shape: Shape) -> Walk {
        Walk::broadcast(dtype, shape, shape)
    }
}

/// The result's axes after those of one pixel are dropped and those that all step over evenly are joined.
fn collapse(shape: &[usize], walks: &mut [Walk]) -> Vec<usize> {
    let mut sizes: Vec<usize> = vec![];
    let mut kept: Vec<Vec<usize>> = vec![vec![]; walks.len()];
    for (a, &size) in shape.iter().enumerate().filter(|(_, s)| **s != 1) {
        let even = !sizes.is_empty()
            && walks.iter().zip(&kept).all(|(w, k)| k[sizes.len() - 1] == w.strides[a] * size);
        if even {
            *sizes.last_mut().expect("not empty") *= size;
            let last = sizes.len() - 1;
            walks.iter().zip(&mut kept).for_each(|(w, k)| k[last] = w.strides[a]);
        } else {
            sizes.push(size);
            walks.iter().zip(&mut kept).for_each(|(w, k)| k.push(w.strides[a]));
        }
    }
    walks.iter_mut().zip(kept).for_each(|(w, k)| w.strides = k);
    sizes
}

/// A kernel that computes `steps` over the elements of `shape`; the last walk is the result's.
pub(super) fn generate(
    cx: &Arc<Context>,
    shape: &[usize],
    mut walks: Vec<Walk>,
    steps: &[Step],
) -> Result<Kernel, CudaError> {
    let sizes = collapse(shape, &mut walks);
    let count: usize = sizes.iter().product();
    let inner = sizes.last().copied().unwrap_or(1);
    let widest = walks.iter().map(|w| w.dtype.bytes()).max().unwrap_or(4);
    let result = walks.len() - 1;
    let narrow = walks[result].dtype.bytes() == 2;
    let fits = |v: usize| {
        inner % v == 0
            && walks.iter().enumerate().all(|(i, w)| {
                let last = w.strides.last().copied().unwrap_or(0);
                let others = w.strides.iter().rev().skip(1).all(|s| s % v == 0);
                (last == 1 && others && w.start % v == 0) || (last == 0 && i != result)
            })
    };
    let v = [8, 4, 2].into_iter().find(|&v| v * widest <= 32 && (v <= 4 || narrow) && fits(v)).unwrap_or(1);
    let source = program(&sizes, &walks, steps, v)?;
    let f = cx.function(&source, "pointwise")?;
    let mut tail: Vec<u64> = vec![(count / v) as u64];
    tail.extend(sizes.iter().map(|s| *s as u64));
    walks.iter().for_each(|w| tail.extend(w.strides.iter().map(|s| *s as u64)));
    let starts: Vec<u64> = walks.iter().map(|w| (w.start * w.dtype.bytes()) as u64).collect();
    let threads = count / v;
    Ok(Kernel::new(0, move |cx, io| {
        let mut words: Vec<u64> =
            io.inputs.iter().chain(&io.outputs[..1]).zip(&starts).map(|(p, s)| p + s).collect();
        words.extend(&tail);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, super::blocks(cx, threads), 256, 0, &Params::new().words(words)) }
    }))
}

fn program(sizes: &[usize], walks: &[Walk], steps: &[Step], v: usize) -> Result<Source, CudaError> {
    let (rank, operands) = (sizes.len(), walks.len() - 1);
    let last = |w: &Walk| w.strides.last().copied().unwrap_or(0);
    let dense = |w: &Walk| rank == 1 && last(w) == 1;
    let single = |w: &Walk| w.strides.iter().all(|s| *s == 0);
    let mut code = String::from("struct P {\n");
    for (i, w) in walks.iter().enumerate() {
        let (name, constant) = if i == operands { ("y".into(), "") } else { (format!("x{i}"), "const ") };
        code += &format!("    {constant}{}* {name};\n", type_name(w.dtype)?);
    }
    code += "    i64 count;\n";
    if rank > 0 {
        code += &format!("    i64 size[{rank}];\n    i64 stride[{}][{rank}];\n", walks.len());
    }
    code +=
        "};\nextern \"C\" __global__ void __launch_bounds__(256) pointwise(const __grid_constant__ P p) {\n";
    code +=
        "    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < p.count; i += (i64)gridDim.x * 256) {\n";
    let indexed = walks.iter().any(|w| !dense(w) && !single(w));
    if indexed {
        code += &format!("        i64 rest = i * {v}, at[{rank}];\n");
        code += &format!(
            "        for (int a = {rank} - 1; a >= 0; a--) {{ at[a] = rest % p.size[a]; rest /= p.size[a]; }}\n"
        );
    }
    let place = |i: usize, w: &Walk| {
        if dense(w) {
            format!("i * {v}")
        } else if single(w) {
            "0".into()
        } else {
            (0..rank).map(|a| format!("at[{a}] * p.stride[{i}][{a}]")).collect::<Vec<_>>().join(" + ")
        }
    };
    for (i, w) in walks[..operands].iter().enumerate() {
        let name = type_name(w.dtype)?;
        code += &if last(w) == 1 {
            format!("        Vec<{name}, {v}> v{i} = load<{name}, {v}>(p.x{i} + {});\n", place(i, w))
        } else {
            format!("        float s{i} = to_float(p.x{i}[{}]);\n", place(i, w))
        };
    }
    let out = type_name(walks[operands].dtype)?;
    code +=
        &format!("        Vec<{out}, {v}> out;\n#pragma unroll\n        for (int e = 0; e < {v}; e++) {{\n");
    for (i, w) in walks[..operands].iter().enumerate() {
        let value = if last(w) == 1 { format!("v{i}.at(e)") } else { format!("s{i}") };
        code += &format!("            float r{i} = {value};\n");
    }
    for (i, step) in steps.iter().enumerate() {
        code += &format!("            float r{} = {};\n", operands + i, expression(step));
    }
    // Without steps it is a copy of the one operand.
    let result = operands + steps.len() - 1;
    code += &format!("            out.set(e, r{result});\n        }}\n");
    let at = place(operands, &walks[operands]);
    code += &if v == 1 {
        format!("        p.y[{at}] = out.v[0];\n    }}\n}}\n")
    } else {
        format!("        store<{out}, {v}>(p.y + {at}, out);\n    }}\n}}\n")
    };
    Ok(Source { file: "pointwise", text: Cow::Owned(code), prelude: true, options: vec![] })
}

pub(super) fn elementwise(n: &Node<'_>, op: &Op) -> Result<Kernel, CudaError> {
    let one = |scalar: Scalar| vec![Step { scalar, a: 0, b: (n.x.len() - 1) as u8 }];
    let steps = match op {
        Op::Unary(u) => one(Scalar::Unary(*u)),
        Op::UnaryGrad(u) => one(Scalar::UnaryGrad(*u)),
        Op::Binary(b) => one(Scalar::Binary(*b)),
        Op::Pointwise(p) => Program::clone(p).steps,
        _ => unreachable!("elementwise ops alone"),
    };
    let shape = n.y[0].shape;
    let mut walks: Vec<Walk> = n.x.iter().map(|t| Walk::broadcast(t.dtype, t.shape, shape)).collect();
    walks.push(Walk::dense(n.y[0].dtype, shape));
    generate(n.cx, &shape, walks, &steps)
}

/// The operand broadcast to the result's shape and cast to its type.
pub(super) fn copy(n: &Node<'_>) -> Result<Kernel, CudaError> {
    let shape = n.y[0].shape;
    let from = Walk::broadcast(n.x[0].dtype, n.x[0].shape, shape);
    strided_copy(n.cx, &shape, from, Walk::dense(n.y[0].dtype, shape))
}

/// Elements of `shape` from one walk to another. Whole numbers are moved as the bits that they are.
pub(super) fn strided_copy(
    cx: &Arc<Context>,
    shape: &[usize],
    mut from: Walk,
    mut to: Walk,
) -> Result<Kernel, CudaError> {
    debug_assert!(shape.len() <= MAX_RANK);
    if from.dtype == DType::I32 && to.dtype == DType::I32 {
        // A copy of floats keeps every bit.
        (from.dtype, to.dtype) = (DType::F32, DType::F32);
    }
    generate(cx, shape, vec![from, to], &[])
}
