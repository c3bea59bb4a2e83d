//! One function for each kind of operation: takes an image of the drawing, gives what the operation makes
//! of it, or nothing where it adds to the loss itself or the image does not suit it.

use crate::draw::Drawing;
use clearshot_graph::ops::{
    Binary, Geometry, NoiseKind, Norm, Op, PadMode, PoolKind, Reduce, ReduceKind, ResizeGrad, ResizeMode,
    Unary,
};
use clearshot_graph::{Value, losses};
use clearshot_tensor::{DType, MAX_RANK, Shape};

pub type Move = fn(&mut Drawing) -> Option<Value>;

/// Every move; those that choose among many operations several times.
pub const MOVES: &[Move] = &[
    unary,
    unary,
    unary,
    unary,
    binary,
    binary,
    conv,
    conv_transpose,
    conv_weight_grad,
    linear,
    matmul,
    attention,
    cyclic_conv,
    group_norm,
    film_norm,
    layer_norm,
    softmax,
    cast,
    reduce,
    reshape_and_transpose,
    broadcast,
    concat,
    slice,
    pad,
    resize,
    resize_grad,
    pool,
    gather,
    gather_grad,
    noise,
    dropout,
    loss,
    time_embedding,
];

pub const UNARY: &[Unary] = &[
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Square,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Exp,
    Unary::Log,
    Unary::Sin,
    Unary::Cos,
    Unary::Relu,
    Unary::LeakyRelu(0.1),
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Softplus,
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Huber(0.7),
    Unary::SmoothL1(0.4),
    Unary::AddScalar(0.3),
    Unary::MulScalar(-1.2),
    Unary::PowScalar(1.7),
    Unary::Clamp(-0.5, 0.8),
];

pub const BINARY: &[Binary] = &[
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Greater,
];

pub const RESIZE: &[ResizeMode] = &[ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::LinearAligned];

fn dims(g: &Drawing, x: Value) -> usize {
    g.b.shape(x).rank() - 2
}

/// Sizes along Z, Y, X; 1 for the axis that planes lack.
fn space(shape: Shape) -> [usize; 3] {
    match shape.rank() {
        4 => [1, shape[1], shape[2]],
        _ => [shape[1], shape[2], shape[3]],
    }
}

/// `[first, (kz,) ky, kx, last]`.
fn image_shape(dims: usize, first: usize, at: [usize; 3], last: usize) -> Shape {
    let mut sizes = vec![first];
    sizes.extend(&at[3 - dims..]);
    sizes.push(last);
    Shape::new(&sizes)
}

/// `f` of an axis for those that are there, `neutral` for the one that planes lack.
fn each_axis<T>(dims: usize, neutral: T, mut f: impl FnMut(usize) -> T) -> [T; 3]
where
    T: Copy,
{
    std::array::from_fn(|a| if a + dims < 3 { neutral } else { f(a) })
}

fn unary(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let f = g.d.pick(UNARY);
    let x = match f {
        Unary::Sqrt | Unary::Log | Unary::Recip | Unary::PowScalar(_) => g.positive(x),
        Unary::Exp | Unary::Square => g.bounded(x),
        _ => x,
    };
    Some(g.b.unary(f, x))
}

/// With a leaf that has some axes, some of them stretched.
fn binary(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let first = g.d.between(0, shape.rank() - 1);
    let sizes: Vec<usize> = shape[first..].iter().map(|&n| if g.d.flip() { n } else { 1 }).collect();
    let mut other = g.leaf(Shape::new(&sizes), 1.0);
    let f = g.d.pick(BINARY);
    let mut x = x;
    if matches!(f, Binary::Pow) {
        x = g.positive(x);
    }
    if matches!(f, Binary::Div | Binary::Pow) {
        other = g.positive(other);
    }
    let pair = if g.d.flip() && !matches!(f, Binary::Div) { (other, x) } else { (x, other) };
    let pair = if f == Binary::Pow { (x, other) } else { pair };
    Some(g.b.binary(f, pair.0, pair.1))
}

/// A geometry and a kernel that fit the image, often grouped, dilated or lopsided.
fn geometry(g: &mut Drawing, x: Value) -> (Geometry, [usize; 3]) {
    let dims = dims(g, x);
    let at = space(g.b.shape(x));
    let kernel = each_axis(dims, 1, |_| g.d.between(1, 3));
    let mut out = Geometry::new(dims, 1, 0);
    out.stride = each_axis(dims, 1, |_| g.d.between(1, 2));
    out.pad = each_axis(dims, [0, 0], |_| [g.d.between(0, 2), g.d.between(0, 1)]);
    out.dilation = each_axis(dims, 1, |a| if at[a] >= 5 { g.d.between(1, 2) } else { 1 });
    for a in 3 - dims..3 {
        let reach = out.dilation[a] * (kernel[a] - 1) + 1;
        out.pad[a][0] += reach.saturating_sub(at[a] + out.pad[a][0] + out.pad[a][1]);
    }
    out.groups = if g.b.channels(x).is_multiple_of(2) { g.d.between(1, 2) } else { 1 };
    (out, kernel)
}

fn conv(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (geometry, kernel) = geometry(g, x);
    let (c, k) = (g.b.channels(x), 2 * g.d.between(1, 2));
    let weight = g.leaf(image_shape(dims(g, x), k, kernel, c / geometry.groups), 0.4);
    let bias = g.d.flip().then(|| g.leaf([k], 0.5));
    Some(g.b.conv(x, weight, bias, geometry))
}

fn conv_transpose(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (mut geometry, kernel) = geometry(g, x);
    let dims = dims(g, x);
    // Padding takes away from the result, which must keep some pixels.
    geometry.pad = each_axis(dims, [0, 0], |a| if kernel[a] == 3 { [1, g.d.between(0, 1)] } else { [0, 0] });
    let extra = each_axis(dims, 0, |a| if geometry.stride[a] == 2 { g.d.between(0, 1) } else { 0 });
    let (c, k) = (g.b.channels(x), g.d.between(1, 2));
    let weight = g.leaf(image_shape(dims, c, kernel, k), 0.4);
    let bias = g.d.flip().then(|| g.leaf([k * geometry.groups], 0.5));
    Some(g.b.conv_transpose(x, weight, bias, geometry, extra))
}

/// The weight gradient as an operation of its own: it is bilinear too.
fn conv_weight_grad(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (geometry, kernel) = geometry(g, x);
    let shape = g.b.shape(x);
    let (dims, k) = (dims(g, x), 2);
    let out = geometry.output(space(shape), kernel).ok()?;
    let dy = g.leaf(image_shape(dims, shape[0], out, k), 0.5);
    let like = image_shape(dims, k, kernel, shape.channels() / geometry.groups);
    Some(g.b.conv_weight_grad(x, dy, geometry, like))
}

fn linear(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (c, k) = (g.b.channels(x), 2 * g.d.between(1, 2));
    let weight = g.leaf([k, c], 0.5);
    let bias = g.d.flip().then(|| g.leaf([k], 0.5));
    Some(g.b.linear(x, weight, bias))
}

/// The image's rows as batched matrices, by a leaf, with every combination of transposes.
fn matmul(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let (rank, columns) = (shape.rank(), g.d.between(1, 4));
    let (ta, tb, shared) = (g.d.flip(), g.d.flip(), g.d.flip());
    let ta = ta && !shared;
    let k = if ta { shape[rank - 2] } else { shape[rank - 1] };
    let mut sizes = if shared { vec![] } else { shape[..rank - 2].to_vec() };
    sizes.extend(if tb { [columns, k] } else { [k, columns] });
    let other = g.leaf(Shape::new(&sizes), 0.5);
    Some(g.b.matmul(x, other, ta, tb))
}

/// From the image's pixels to a few others.
fn attention(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let (n, c) = (shape[0], shape.channels());
    let heads = if c % 2 == 0 { g.d.between(1, 2) } else { 1 };
    let q = g.b.reshape(x, [n, shape.len() / n / c, c]);
    let (keys, dv) = (g.d.between(2, 5), heads * g.d.between(1, 3));
    let (k, v) = (g.leaf([n, keys, c], 1.0), g.leaf([n, keys, dv], 1.0));
    let scale = g.d.flip().then_some(0.8);
    let y = g.b.attention(q, k, v, heads, scale);
    g.observe(y);
    if g.d.flip() {
        return None;
    }
    let own = g.b.attention(q, q, q, heads, scale);
    Some(g.b.reshape(own, shape))
}

fn cyclic_conv(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let rank = shape.rank();
    let kernel = match g.d.between(0, 2) {
        0 => Shape::new(&shape[1..rank - 1]),
        1 => shape.with(0, 1),
        _ => shape.with(rank - 1, 1),
    };
    let kernel = g.leaf(kernel, 0.2);
    let adjoint = g.d.flip();
    Some(g.b.cyclic_conv(x, kernel, adjoint))
}

fn affine(g: &mut Drawing, c: usize) -> (Value, Value) {
    (g.leaf([c], 1.0), g.leaf([c], 0.5))
}

/// Large enough that a group of nearly equal values is still smooth.
const EPS: f64 = 0.05;

fn group_norm(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let c = g.b.channels(x);
    let (gamma, beta) = affine(g, c);
    if g.d.unit() < 0.3 {
        return Some(g.b.instance_norm(x, gamma, beta, EPS));
    }
    let groups = if c.is_multiple_of(2) { g.d.between(1, 2) } else { 1 };
    Some(g.b.group_norm(x, gamma, beta, groups, EPS))
}

fn film_norm(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (n, c) = (g.b.shape(x)[0], g.b.channels(x));
    let (gamma, beta) = affine(g, c);
    let (scale, shift) = (g.leaf([n, c], 0.5), g.leaf([n, c], 0.5));
    let act = g.d.flip().then_some(Unary::Silu);
    let norm = Norm { groups: 1, eps: EPS, parts: 1, film: true, act, rounded: false, bias: false };
    Some(g.b.push_one(Op::Norm(norm), vec![x, gamma, beta, scale, shift]))
}

fn layer_norm(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let c = g.b.channels(x);
    let (gamma, beta) = affine(g, c);
    Some(g.b.layer_norm(x, gamma, beta, EPS))
}

fn softmax(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    Some(g.b.softmax(x))
}

fn cast(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let wide = g.b.cast(x, DType::F64);
    let square = g.b.mul(wide, wide);
    let back = g.b.cast(square, DType::F32);
    Some(g.bounded(back))
}

fn reduce(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let rank = g.b.shape(x).rank();
    let axes: Vec<usize> = (0..rank).filter(|_| g.d.flip()).collect();
    let kind = g.d.pick(&[ReduceKind::Sum, ReduceKind::Mean, ReduceKind::SumSquares]);
    let y = g.b.push_one(Op::Reduce(Reduce::new(kind, &axes)), vec![x]);
    let y = g.bounded(y);
    // Back to the image's size by broadcasting against it.
    Some(g.b.add(x, y))
}

fn reshape_and_transpose(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let mut order: Vec<usize> = (0..shape.rank()).collect();
    let (i, j) = (g.d.between(1, shape.rank() - 1), g.d.between(1, shape.rank() - 1));
    order.swap(i, j);
    let moved = g.b.transpose(x, &order);
    let flat = g.b.reshape(moved, [shape.len()]);
    let weights = g.leaf([shape.len()], 1.0);
    let scaled = g.b.mul(flat, weights);
    Some(g.b.reshape(scaled, shape))
}

fn broadcast(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let row = g.leaf([shape.channels()], 1.0);
    let wide = g.b.broadcast(row, shape);
    Some(g.b.mul(x, wide))
}

fn concat(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let axis = g.d.between(1, shape.rank() - 1);
    let size = g.d.between(1, 2);
    let other = g.leaf(shape.with(axis, size), 1.0);
    let parts = if g.d.flip() { vec![x, other] } else { vec![other, x, other] };
    Some(g.b.concat(&parts, axis))
}

fn slice(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let axis = g.d.between(1, shape.rank() - 1);
    if shape[axis] < 2 {
        return None;
    }
    let start = g.d.between(0, shape[axis] - 2);
    let len = g.d.between(1, shape[axis] - 1 - start);
    Some(g.b.slice(x, axis, start, len))
}

fn pad(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let mode = g.d.pick(&[PadMode::Zero, PadMode::Reflect, PadMode::Edge, PadMode::Wrap]);
    let mut pad = [[0; 2]; MAX_RANK];
    for axis in 1..shape.rank() - 1 {
        let most = if mode == PadMode::Reflect { (shape[axis] - 1).min(2) } else { 1 };
        pad[axis] = [g.d.between(0, most), g.d.between(0, most)];
    }
    pad[1][1] = if mode == PadMode::Reflect { (shape[1] - 1).min(1) } else { 1 };
    Some(g.b.pad(x, pad, mode))
}

fn resize(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let size = each_axis(dims(g, x), 1, |_| g.d.between(1, 6));
    let mode = g.d.pick(RESIZE);
    Some(g.b.resize(x, mode, size))
}

fn resize_grad(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let input = each_axis(dims(g, x), 1, |_| g.d.between(2, 4));
    let mode = g.d.pick(RESIZE);
    Some(g.b.push_one(Op::ResizeGrad(ResizeGrad { mode, input }), vec![x]))
}

fn pool(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let (dims, at) = (dims(g, x), space(g.b.shape(x)));
    let kernel = each_axis(dims, 1, |a| g.d.between(1, at[a].min(3)));
    let mut geometry = Geometry::new(dims, 1, 0);
    geometry.stride = each_axis(dims, 1, |_| g.d.between(1, 2));
    geometry.pad = each_axis(dims, [0, 0], |a| [g.d.between(0, 1).min(kernel[a] - 1), 0]);
    let kind = g.d.pick(&[PoolKind::Average, PoolKind::Max]);
    Some(g.b.pool(x, kind, kernel, geometry))
}

/// Rows of a table, added to the channels of each sample.
fn gather(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let (n, c) = (shape[0], shape.channels());
    let table = g.leaf([3, c], 1.0);
    let indices = g.indices(n, 3);
    let rows = g.b.gather(table, indices);
    let rows = g.b.reshape(rows, image_shape(dims(g, x), n, [1; 3], c));
    Some(g.b.mul(x, rows))
}

fn gather_grad(g: &mut Drawing) -> Option<Value> {
    use clearshot_graph::ops::GatherGrad;
    let x = g.image();
    let shape = g.b.shape(x);
    let rows = g.b.reshape(x, [shape.len() / shape.channels(), shape.channels()]);
    let indices = g.indices(shape.len() / shape.channels(), 4);
    Some(g.b.push_one(Op::GatherGrad(GatherGrad { rows: 4 }), vec![indices, rows]))
}

fn noise(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let key = g.key();
    let kind = g.d.pick(&[NoiseKind::Normal, NoiseKind::Uniform]);
    let shape = g.b.shape(x);
    let noise = g.b.noise(kind, key, shape);
    Some(g.b.mul(x, noise))
}

fn dropout(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let key = g.key();
    Some(g.b.dropout(x, key, 0.3))
}

fn loss(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let target = g.leaf(g.b.shape(x), 1.0);
    let loss = match g.d.between(0, 4) {
        0 => losses::mse(&mut g.b, x, target),
        1 => losses::l1(&mut g.b, x, target),
        2 => losses::huber(&mut g.b, x, target, 0.8),
        3 => losses::smooth_l1(&mut g.b, x, target, 0.5),
        _ => {
            let target = g.b.unary(Unary::Sigmoid, target);
            losses::dice_ce(&mut g.b, x, target)
        }
    };
    g.add_loss(loss);
    None
}

fn time_embedding(g: &mut Drawing) -> Option<Value> {
    let x = g.image();
    let shape = g.b.shape(x);
    let (n, c) = (shape[0], shape.channels());
    let t = g.leaf([n], 2.0);
    let (cos_first, width) = (g.d.flip(), c.max(4));
    let code = g.b.sinusoidal_embedding(t, width, cos_first, 0.0, 100.0);
    let code = g.b.slice(code, 1, 0, c);
    let code = g.b.reshape(code, image_shape(dims(g, x), n, [1; 3], c));
    Some(g.b.add(x, code))
}
