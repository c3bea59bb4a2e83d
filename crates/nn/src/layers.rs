//! The layers that networks are made of, as functions on a [`Scope`].
//!
//! A scope is a builder with a path in front of every parameter's name, the names being PyTorch's:
//! `down_blocks.0.resnets.1.conv1.weight`. Nodes carry the path of the layer that they belong to. Images
//! are channels-last, `[N, Y, X, C]`.

use crate::init::{Init, Param, name_hash};
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};
use std::sync::Arc;

/// A place in a network: a builder, a path, and the list of the parameters made so far.
pub struct Scope<'a> {
    pub b: &'a mut Builder,
    params: &'a mut Vec<Param>,
    path: String,
    outer: Arc<str>,
}

impl<'a> Scope<'a> {
    /// The root of a network. Parameters are listed in `params` as they are made.
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

    /// A parameter that training leaves as it is.
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
    fn dropout(&mut self, x: Value, key: Value, rate: f64) -> Value {
        let axis = self.b.shape(key).rank().saturating_sub(1);
        let rows = self.b.shape(key).len() / 4;
        let stream = Tensor::i32(self.b.shape(key).with(axis, 1), vec![name_hash(&self.path) as i32; rows]);
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

/// A convolution with a square kernel and a bias.
pub fn conv(s: &mut Scope<'_>, x: Value, out: usize, kernel: usize, geometry: Geometry) -> Value {
    let c = s.b.channels(x);
    let init = Init::fan_in(kernel * kernel * c);
    let weight = s.param("weight", [out, kernel, kernel, c], init);
    let bias = s.param("bias", [out], init);
    s.b.conv(x, weight, Some(bias), geometry)
}

/// A 3x3 convolution that keeps the size.
pub fn conv3(s: &mut Scope<'_>, x: Value, out: usize) -> Value {
    conv(s, x, out, 3, Geometry::new(2, 1, 1))
}

/// A linear layer over the last axis, with a bias.
pub fn linear(s: &mut Scope<'_>, x: Value, out: usize) -> Value {
    let c = s.b.channels(x);
    let weight = s.param("weight", [out, c], Init::fan_in(c));
    let bias = s.param("bias", [out], Init::fan_in(c));
    s.b.linear(x, weight, Some(bias))
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
    let hidden = linear(&mut s.at("linear_1"), code, width);
    let hidden = s.b.silu(hidden);
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

/// What the residual blocks of a network share.
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
        let n = s.b.shape(emb)[0];
        let emb = s.b.reshape(emb, [n, 1, 1, out]);
        let h = s.b.add(h, emb);
        group_norm(&mut s.at("norm2"), h, style.groups, style.eps)
    };
    let mut h = s.b.unary(style.act, h);
    if let (Some(key), true) = (with.key, style.dropout > 0.0) {
        h = s.at("dropout").dropout(h, key, style.dropout);
    }
    let h = conv3(&mut s.at("conv2"), h, out);
    let x = if s.b.channels(x) == out {
        x
    } else {
        conv(&mut s.at("conv_shortcut"), x, out, 1, Geometry::new(2, 1, 0))
    };
    let y = s.b.add(x, h);
    divided(s.b, y, scale)
}

fn resampled(b: &mut Builder, x: Value, resample: Resample) -> Value {
    match resample {
        Resample::None => x,
        Resample::Up => b.upsample(x, ResizeMode::Nearest, 2),
        Resample::Down => b.pool(x, PoolKind::Average, [1, 2, 2], Geometry::new(2, 2, 0)),
    }
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
    let h = s.b.reshape(h, [n, shape[1] * shape[2], c]);
    let q = linear(&mut s.at("to_q"), h, inner);
    let k = linear(&mut s.at("to_k"), h, inner);
    let v = linear(&mut s.at("to_v"), h, inner);
    let h = s.b.attention(q, k, v, heads, None);
    let h = linear(&mut s.at("to_out.0"), h, c);
    let h = s.b.reshape(h, shape);
    let y = s.b.add(x, h);
    divided(s.b, y, style.scale)
}
