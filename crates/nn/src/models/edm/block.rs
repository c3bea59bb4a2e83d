//! The residual block that EDM's networks share, and the filters by which they change the size.

use crate::init::{Init, Law, Taps};
use crate::layers::{self, Layer, Resample, Scope};
use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode};
use clearshot_tensor::Tensor;

/// Parameters shared by the blocks of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    pub eps: f64,
    /// What a block's result is multiplied by.
    pub skip_scale: f64,
    /// The embedding scales and shifts the normalised image; otherwise it is added before the norm.
    pub adaptive: bool,
    /// Blocks that change the size have a convolution on their shortcut whatever their channels.
    pub resample_proj: bool,
    pub dropout: f64,
    pub fir: Fir,
    /// The law of most layers, of the layers that end a branch, and of attention's.
    pub laws: [Law; 3],
}

impl Style {
    pub fn plain(&self) -> Layer {
        Layer { bias: true, law: self.laws[0] }
    }

    /// Of layers that end a branch.
    pub fn quiet(&self) -> Layer {
        Layer { bias: true, law: self.laws[1] }
    }

    fn attention(&self) -> Layer {
        Layer { bias: true, law: self.laws[2] }
    }
}

/// The inputs of every block other than its image.
#[derive(Clone, Copy)]
pub(super) struct With {
    pub emb: Value,
    pub key: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Channels that come in.
    pub from: usize,
    pub to: usize,
    pub resample: Resample,
    /// None for no attention.
    pub heads: Option<usize>,
}

/// Groups of the norm of so many channels, four or more in each.
pub(super) fn groups(channels: usize) -> usize {
    (channels / 4).min(32)
}

pub(super) fn norm(s: &mut Scope<'_>, x: Value, eps: f64) -> Value {
    let groups = groups(s.b.channels(x));
    layers::group_norm(s, x, groups, eps)
}

/// A convolution that keeps the size.
pub(super) fn conv(s: &mut Scope<'_>, x: Value, out: usize, kernel: usize, layer: Layer) -> Value {
    layers::conv_by(s, x, out, [kernel; 3], Geometry::new(2, 1, kernel / 2), layer)
}

impl Block {
    pub fn add(&self, s: &mut Scope<'_>, x: Value, with: With, style: &Style) -> Value {
        let out = self.to;
        let h = norm(&mut s.at("norm0"), x, style.eps);
        let h = s.b.silu(h);
        let mut first = s.at("conv0");
        let h = style.fir.resampled(&mut first, h, self.resample);
        let h = conv(&mut first, h, out, 3, style.plain());
        drop(first);
        let width = if style.adaptive { 2 * out } else { out };
        let emb = layers::linear_by(&mut s.at("affine"), with.emb, width, style.plain());
        let h = if style.adaptive {
            let film = [s.b.slice(emb, 1, 0, out), s.b.slice(emb, 1, out, out)];
            layers::modulated_norm(&mut s.at("norm1"), h, film, groups(out), style.eps)
        } else {
            let emb = layers::per_sample(s.b, emb, h);
            let h = s.b.add(h, emb);
            norm(&mut s.at("norm1"), h, style.eps)
        };
        let mut h = s.b.silu(h);
        if let (Some(key), true) = (with.key, style.dropout > 0.0) {
            h = s.at("dropout").dropout(h, key, style.dropout);
        }
        let h = conv(&mut s.at("conv1"), h, out, 3, style.quiet());
        let shortcut = self.shortcut(&mut s.at("skip"), x, style);
        let h = s.b.add(h, shortcut);
        let h = s.b.mul_scalar(h, style.skip_scale);
        match self.heads {
            None => h,
            Some(heads) => attention(s, h, heads, style),
        }
    }

    fn shortcut(&self, s: &mut Scope<'_>, x: Value, style: &Style) -> Value {
        let x = style.fir.resampled(s, x, self.resample);
        let project = style.resample_proj && self.resample != Resample::None;
        if project || self.from != self.to { conv(s, x, self.to, 1, style.plain()) } else { x }
    }
}

fn attention(s: &mut Scope<'_>, x: Value, heads: usize, style: &Style) -> Value {
    let shape = s.b.shape(x);
    let (n, c) = (shape[0], shape.channels());
    let pixels = shape.len() / (n * c).max(1);
    let h = norm(&mut s.at("norm2"), x, style.eps);
    let h = conv(&mut s.at("qkv"), h, 3 * c, 1, style.attention());
    // Query, key and value of a channel lie side by side.
    let h = s.b.reshape(h, [n, pixels, c, 3]);
    let [q, k, v] = [0, 1, 2].map(|i| {
        let part = s.b.slice(h, 3, i, 1);
        s.b.reshape(part, [n, pixels, c])
    });
    let h = s.b.attention(q, k, v, heads, None);
    let h = s.b.reshape(h, shape);
    let h = conv(&mut s.at("proj"), h, c, 1, style.quiet());
    let h = s.b.add(h, x);
    s.b.mul_scalar(h, style.skip_scale)
}

/// The low-pass filter in front of halving and behind doubling, of an even number of taps. It is part of the
/// configuration; files hold it too (`resample_filter`), as a parameter that nothing reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fir {
    pub taps: Taps,
}

impl Fir {
    fn declare(&self, s: &mut Scope<'_>) {
        let n = self.taps.values().len();
        s.fixed("resample_filter", [1, n, n, 1], Init::Filter(self.taps));
    }

    fn resampled(&self, s: &mut Scope<'_>, x: Value, resample: Resample) -> Value {
        match resample {
            Resample::None => x,
            Resample::Up => self.up(s, x),
            Resample::Down => self.down(s, x),
        }
    }

    /// Whether filtering is the mean of two pixels, for which there are faster operations.
    fn is_box(&self) -> bool {
        matches!(self.taps.values(), [a, b] if a == b)
    }

    /// The same filter for each channel, multiplied by `gain`.
    fn weight(&self, s: &mut Scope<'_>, channels: usize, gain: f32) -> Value {
        let n = self.taps.values().len();
        let one: Vec<f32> = self.taps.outer().iter().map(|v| gain * v).collect();
        s.b.constant(Tensor::f32([channels, n, n, 1], one.repeat(channels)))
    }

    fn pad(&self) -> usize {
        (self.taps.values().len() - 1) / 2
    }

    pub fn down(&self, s: &mut Scope<'_>, x: Value) -> Value {
        self.declare(s);
        if self.is_box() {
            return s.b.pool(x, PoolKind::Average, [1, 2, 2], Geometry::new(2, 2, 0));
        }
        let c = s.b.channels(x);
        let weight = self.weight(s, c, 1.0);
        s.b.conv(x, weight, None, Geometry::new(2, 2, self.pad()).with_groups(c))
    }

    pub fn up(&self, s: &mut Scope<'_>, x: Value) -> Value {
        self.declare(s);
        if self.is_box() {
            return s.b.upsample(x, ResizeMode::Nearest, 2);
        }
        let c = s.b.channels(x);
        let weight = self.weight(s, c, 4.0);
        s.b.conv_transpose(x, weight, None, Geometry::new(2, 2, self.pad()).with_groups(c), [0; 3])
    }

    /// A convolution 3 pixels wide and the filter behind it, which halves: padded once, for both.
    pub fn conv_down(&self, s: &mut Scope<'_>, x: Value, out: usize, layer: Layer) -> Value {
        self.declare(s);
        let geometry = Geometry::new(2, 1, 1 + self.pad());
        // The bias comes behind the filter, whose sum is 1.
        let h = layers::conv_by(s, x, out, [3; 3], geometry, layer);
        let weight = self.weight(s, out, 1.0);
        s.b.conv(h, weight, None, Geometry::new(2, 2, 0).with_groups(out))
    }
}
