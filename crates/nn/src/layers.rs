//! The layers that networks are made of, as functions on a [`Scope`].
//!
//! A scope is a builder with a path in front of every parameter's name, the names being PyTorch's:
//! `down_blocks.0.resnets.1.conv1.weight`. Nodes carry the path of the layer that they belong to. Images
//! are channels-last, `[N, (Z,) Y, X, C]`.

use crate::init::{Init, Law, Param};
use crate::models::Learning;
use clearshot_graph::ops::{Binary, Geometry, PoolKind, ResizeMode, Unary};
use clearshot_graph::train::mean_of_layer;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Fnv1a, Shape, Tensor};
use std::sync::Arc;

/// A place in a network: a builder, a path, and the list of the parameters made so far.
pub struct Scope<'a> {
    pub b: &'a mut Builder,
    params: &'a mut Vec<Param>,
    path: String,
    outer: Arc<str>,
}

impl<'a> Scope<'a> {
    /// The root of a network. Parameters are listed in `params` in the order of their creation.
    pub fn new(b: &'a mut Builder, params: &'a mut Vec<Param>) -> Scope<'a> {
        let outer = b.set_scope("");
        Scope { b, params, path: String::new(), outer }
    }

    /// The part of the network called `name`.
    pub fn at(&mut self, name: &str) -> Scope<'_> {
        let path = self.name(name);
        let outer = self.b.set_scope(&path);
        Scope { b: self.b, params: self.params, path, outer }
    }

    fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        self.declare(name, shape.into(), init, true)
    }

    /// A parameter that training does not change.
    pub fn fixed(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Value {
        self.declare(name, shape.into(), init, false)
    }

    fn declare(&mut self, name: &str, shape: Shape, init: Init, trainable: bool) -> Value {
        let name = self.name(name);
        let value = self.b.param(&name, shape);
        if self.params.iter().all(|p| p.name != name) {
            self.params.push(Param { name, shape, init, trainable });
        }
        value
    }

    /// Drops elements with probability `rate`; the network's key with this layer's own stream.
    pub fn dropout(&mut self, x: Value, key: Value, rate: f64) -> Value {
        let axis = self.b.shape(key).rank().saturating_sub(1);
        let rows = self.b.shape(key).len() / 4;
        let stream =
            Tensor::i32(self.b.shape(key).with(axis, 1), vec![Fnv1a::of(self.path.as_bytes()) as i32; rows]);
        let stream = self.b.constant(stream);
        let front = self.b.slice(key, axis, 0, 3);
        let key = self.b.concat(&[front, stream], axis);
        self.b.dropout(x, key, rate)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.b.set_scope(&self.outer);
    }
}

/// A convolution with a kernel of one size along every axis and a bias.
pub fn conv(s: &mut Scope<'_>, x: Value, out: usize, kernel: usize, geometry: Geometry) -> Value {
    conv_by(s, x, out, [kernel; 3], geometry, Layer::TORCH)
}

/// The options of layers other than their sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    pub bias: bool,
    pub law: Law,
}

impl Layer {
    /// With a bias, drawn as PyTorch does.
    pub const TORCH: Layer = Layer { bias: true, law: Law::Torch };
}

/// A convolution with a kernel of sizes Z, Y, X (Z is of no effect on planes).
pub fn conv_by(
    s: &mut Scope<'_>,
    x: Value,
    out: usize,
    kernel: [usize; 3],
    geometry: Geometry,
    layer: Layer,
) -> Value {
    let c = s.b.channels(x);
    let kernel = spatial(s.b, x, kernel);
    let taps: usize = kernel.iter().product();
    let [weight, bias] = layer.law.init(taps * c, taps * out);
    let weight = s.param("weight", weight_shape(out, &kernel, c), weight);
    let bias = layer.bias.then(|| s.param("bias", [out], bias));
    s.b.conv(x, weight, bias, geometry)
}

/// Transposed convolution whose steps are as long as its kernel: every pixel becomes a block of its own.
pub fn conv_up(s: &mut Scope<'_>, x: Value, out: usize, factor: [usize; 3], layer: Layer) -> Value {
    let c = s.b.channels(x);
    let kernel = spatial(s.b, x, factor);
    let stride = if kernel.len() == 2 { [1, factor[1], factor[2]] } else { factor };
    let taps: usize = kernel.iter().product();
    // PyTorch takes the second axis of any weight for its fan in: here, the results.
    let [weight, bias] = layer.law.init(taps * out, taps * c);
    let weight = s.param("weight", weight_shape(c, &kernel, out), weight);
    let bias = layer.bias.then(|| s.param("bias", [out], bias));
    let geometry = Geometry { stride, ..Geometry::new(2, 1, 0) };
    s.b.conv_transpose(x, weight, bias, geometry, [0; 3])
}

/// The entries of Z, Y, X for the axes that an image has.
fn spatial(b: &Builder, x: Value, each: [usize; 3]) -> Vec<usize> {
    if b.shape(x).rank() == 4 { each[1..].to_vec() } else { each.to_vec() }
}

fn weight_shape(first: usize, kernel: &[usize], last: usize) -> Shape {
    let sizes: Vec<usize> = [first].into_iter().chain(kernel.iter().copied()).chain([last]).collect();
    Shape::new(&sizes)
}

/// Spatial axes of an image: 2 or 3.
pub fn dims(b: &Builder, x: Value) -> usize {
    b.shape(x).rank().saturating_sub(2).clamp(2, 3)
}

/// A convolution 3 pixels wide along every axis that keeps the size.
pub fn conv3(s: &mut Scope<'_>, x: Value, out: usize) -> Value {
    let geometry = Geometry::new(dims(s.b, x), 1, 1);
    conv(s, x, out, 3, geometry)
}

/// Nearest to the spatial sizes of another image.
pub fn enlarged(b: &mut Builder, x: Value, like: Value) -> Value {
    let size = match *b.shape(like) {
        [_, y, x, _] => [1, y, x],
        [_, z, y, x, _] => [z, y, x],
        _ => [1; 3],
    };
    b.resize(x, ResizeMode::Nearest, size)
}

/// A convolution of each pixel by itself.
pub fn conv1(s: &mut Scope<'_>, x: Value, out: usize) -> Value {
    conv(s, x, out, 1, Geometry::new(2, 1, 0))
}

/// Values `[N]` or `[N, C]` with the axes of an image between, to be added to all its pixels.
pub fn per_sample(b: &mut Builder, v: Value, image: Value) -> Value {
    let (shape, rank) = (b.shape(v), b.shape(image).rank());
    let c = if shape.rank() == 2 { shape.channels() } else { 1 };
    let ones = vec![1; rank.saturating_sub(2)];
    let sizes: Vec<usize> = [shape[0]].into_iter().chain(ones).chain([c]).collect();
    b.reshape(v, Shape::new(&sizes))
}

/// A linear layer over the last axis, with a bias.
pub fn linear(s: &mut Scope<'_>, x: Value, out: usize) -> Value {
    linear_by(s, x, out, Layer::TORCH)
}

/// A linear layer over the last axis.
pub fn linear_by(s: &mut Scope<'_>, x: Value, out: usize, layer: Layer) -> Value {
    let c = s.b.channels(x);
    let [weight, bias] = layer.law.init(c, out);
    let weight = s.param("weight", [out, c], weight);
    let bias = layer.bias.then(|| s.param("bias", [out], bias));
    s.b.linear(x, weight, bias)
}

/// The parameters of a linear layer that is not used this time, so that files have them all the same.
pub fn declare_linear(s: &mut Scope<'_>, from: usize, out: usize, layer: Layer) {
    let [weight, bias] = layer.law.init(from, out);
    s.param("weight", [out, from], weight);
    if layer.bias {
        s.param("bias", [out], bias);
    }
}

pub fn group_norm(s: &mut Scope<'_>, x: Value, groups: usize, eps: f64) -> Value {
    let [gamma, beta] = affine(s, x);
    s.b.group_norm(x, gamma, beta, groups, eps)
}

/// Group norm whose result is scaled by 1 + the first and shifted by the second of `film`, each `[N, C]`.
pub fn modulated_norm(s: &mut Scope<'_>, x: Value, film: [Value; 2], groups: usize, eps: f64) -> Value {
    let affine = affine(s, x);
    s.b.modulated_norm(x, affine, film, groups, eps)
}

/// Norm over the last axis.
pub fn layer_norm(s: &mut Scope<'_>, x: Value, eps: f64) -> Value {
    let [gamma, beta] = affine(s, x);
    s.b.layer_norm(x, gamma, beta, eps)
}

/// What is added to the variance of a batch norm, and the share of a new batch in its running averages: PyTorch's.
const BATCH_EPS: f64 = 1e-5;
const BATCH_SHARE: f64 = 0.1;

/// Batch norm as PyTorch has it. In training, mean and variance are those of the batch, and of the batches of all ranks where there are several (SyncBN), and running
/// averages follow them; otherwise the averages stand in their place, and every pixel is treated alike.
pub fn batch_norm(s: &mut Scope<'_>, x: Value, learning: Option<Learning>) -> Value {
    let (shape, c) = (s.b.shape(x), s.b.channels(x));
    let running =
        [s.fixed("running_mean", [c], Init::Constant(0.0)), s.fixed("running_var", [c], Init::Constant(1.0))];
    let affine = affine(s, x);
    let b = &mut *s.b;
    let axes: Vec<usize> = (0..shape.rank().saturating_sub(1)).collect();
    let wide = axes.iter().fold(shape, |s, &axis| s.with(axis, 1));
    let [gamma, beta] = affine.map(|v| b.reshape(v, wide));
    let [mean, variance] = match learning {
        None => running.map(|v| b.reshape(v, wide)),
        Some(Learning { ranks }) => {
            let over_ranks = |b: &mut Builder, v: Value| if ranks > 1 { mean_of_layer(b, v) } else { v };
            let mean = b.mean(x, &axes);
            let mean = over_ranks(b, mean);
            // About the mean of all, for the difference of two large numbers would have few digits.
            let off = b.sub(x, mean);
            let squares = b.mul(off, off);
            let variance = b.mean(squares, &axes);
            let variance = over_ranks(b, variance);
            let count = (shape.len() / c.max(1) * ranks) as f64;
            let unbiased = b.mul_scalar(variance, count / (count - 1.0).max(1.0));
            follow(b, running[0], mean);
            follow(b, running[1], unbiased);
            [mean, variance]
        }
    };
    let variance = b.add_scalar(variance, BATCH_EPS);
    let deviation = b.unary(Unary::Sqrt, variance);
    let scale = b.binary(Binary::Div, gamma, deviation);
    let off = b.sub(x, mean);
    let scaled = b.mul(off, scale);
    b.add(scaled, beta)
}

/// Moves a running average towards the number of a batch; one that is not finite, of a skipped iteration, does not change it.
fn follow(b: &mut Builder, running: Value, new: Value) {
    const MOST: f64 = 1e30;
    let new = b.reshape(new, b.shape(running));
    let [low, high] = [-MOST, MOST].map(|v| b.scalar(v as f32));
    let bounded = b.binary(Binary::Max, new, low);
    let bounded = b.binary(Binary::Min, bounded, high);
    let above = b.binary(Binary::Greater, new, low);
    let below = b.binary(Binary::Greater, high, new);
    let holds = b.mul(above, below);
    let step = b.sub(bounded, running);
    let step = b.mul_scalar(step, BATCH_SHARE);
    let step = b.mul(step, holds);
    let after = b.add(running, step);
    b.update(running, after);
}

/// Gamma and beta of a norm that has no parameters.
pub fn no_affine(b: &mut Builder, x: Value) -> [Value; 2] {
    let c = b.channels(x);
    [b.constant(Tensor::full([c], 1.0)), b.constant(Tensor::zeros([c]))]
}

/// The parameters of a norm: gamma and beta.
fn affine(s: &mut Scope<'_>, x: Value) -> [Value; 2] {
    let c = s.b.channels(x);
    [s.param("weight", [c], Init::Constant(1.0)), s.param("bias", [c], Init::Constant(0.0))]
}

/// Rows of a table by whole numbers.
pub fn embedding(s: &mut Scope<'_>, indices: Value, rows: usize, width: usize) -> Value {
    let table = s.param("weight", [rows, width], Init::Normal(1.0));
    s.b.gather(table, indices)
}

/// Two linear layers with SiLU between: what diffusers makes of a time's code.
pub fn time_mlp(s: &mut Scope<'_>, code: Value, width: usize) -> Value {
    time_mlp_by(s, code, width, Unary::Silu)
}

/// As [`time_mlp`] with another activation.
pub fn time_mlp_by(s: &mut Scope<'_>, code: Value, width: usize, act: Unary) -> Value {
    let hidden = linear(&mut s.at("linear_1"), code, width);
    let hidden = s.b.unary(act, hidden);
    linear(&mut s.at("linear_2"), hidden, width)
}

/// What a residual block does to the size of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resample {
    None,
    /// Twice the size, nearest pixel.
    Up,
    /// Half the size, mean of four.
    Down,
}

/// Parameters shared by the residual blocks of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResnetStyle {
    pub groups: usize,
    pub eps: f64,
    pub act: Unary,
    /// The time embedding scales and shifts the normalised image; otherwise it is added before the norm.
    pub scale_shift: bool,
    pub dropout: f64,
}

/// What a residual block is given beside its image.
#[derive(Clone, Copy)]
pub struct Conditions {
    /// The activated time embedding, `[N, E]`.
    pub emb: Value,
    /// The key of dropout; none when not training.
    pub key: Option<Value>,
}

/// `(x + conv(act(norm(conv(act(norm(x))) with the time embedding)))) / scale`.
pub fn resnet(
    s: &mut Scope<'_>,
    x: Value,
    with: Conditions,
    out: usize,
    style: &ResnetStyle,
    scale: f64,
    resample: Resample,
) -> Value {
    let h = group_norm(&mut s.at("norm1"), x, style.groups, style.eps);
    let h = s.b.unary(style.act, h);
    let (x, h) = (resampled(s.b, x, resample), resampled(s.b, h, resample));
    let h = conv3(&mut s.at("conv1"), h, out);
    let width = if style.scale_shift { 2 * out } else { out };
    let emb = linear(&mut s.at("time_emb_proj"), with.emb, width);
    let h = if style.scale_shift {
        let film = [s.b.slice(emb, 1, 0, out), s.b.slice(emb, 1, out, out)];
        modulated_norm(&mut s.at("norm2"), h, film, style.groups, style.eps)
    } else {
        let emb = per_sample(s.b, emb, h);
        let h = s.b.add(h, emb);
        group_norm(&mut s.at("norm2"), h, style.groups, style.eps)
    };
    let mut h = s.b.unary(style.act, h);
    if let (Some(key), true) = (with.key, style.dropout > 0.0) {
        h = s.at("dropout").dropout(h, key, style.dropout);
    }
    let h = conv3(&mut s.at("conv2"), h, out);
    let x = if s.b.channels(x) == out { x } else { conv1(&mut s.at("conv_shortcut"), x, out) };
    let y = s.b.add(x, h);
    divided(s.b, y, scale)
}

fn resampled(b: &mut Builder, x: Value, resample: Resample) -> Value {
    match resample {
        Resample::None => x,
        Resample::Up => b.upsample(x, ResizeMode::Nearest, 2),
        Resample::Down => halved(b, x),
    }
}

/// Half the size along every axis: the mean of each block of pixels.
pub fn halved(b: &mut Builder, x: Value) -> Value {
    let dims = dims(b, x);
    let kernel = if dims == 2 { [1, 2, 2] } else { [2; 3] };
    b.pool(x, PoolKind::Average, kernel, Geometry::new(dims, 2, 0))
}

fn divided(b: &mut Builder, x: Value, by: f64) -> Value {
    if by == 1.0 { x } else { b.mul_scalar(x, 1.0 / by) }
}

/// The norm in front of attention, the heads, and what the result is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionStyle {
    /// Groups of the norm; none for no norm.
    pub groups: Option<usize>,
    pub eps: f64,
    /// Channels of one head.
    pub head: usize,
    pub scale: f64,
}

/// Attention of all pixels to all pixels, added to the image.
pub fn attention(s: &mut Scope<'_>, x: Value, style: &AttentionStyle) -> Value {
    let shape = s.b.shape(x);
    let (n, c) = (shape[0], shape.channels());
    // As diffusers has it, channels that fill no head are left out.
    let heads = c / style.head;
    let inner = heads * style.head;
    let h = match style.groups {
        Some(groups) => group_norm(&mut s.at("group_norm"), x, groups, style.eps),
        None => x,
    };
    let h = s.b.reshape(h, [n, shape.len() / (n * c).max(1), c]);
    let q = linear(&mut s.at("to_q"), h, inner);
    let k = linear(&mut s.at("to_k"), h, inner);
    let v = linear(&mut s.at("to_v"), h, inner);
    let h = s.b.attention(q, k, v, heads, None);
    let h = linear(&mut s.at("to_out.0"), h, c);
    let h = s.b.reshape(h, shape);
    let y = s.b.add(x, h);
    divided(s.b, y, style.scale)
}
