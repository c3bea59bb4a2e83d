//! The UNet of Rosinality's diffusion code, as used by a medical restoration project: residual blocks with the time added
//! or as a modulation, attention at chosen strides and in the middle.
//!
//! `fold` moves blocks of pixels into channels before the first layer and back after the last one. Heads divide the logits
//! of attention by the square root of *all* channels, as that code does, not of the channels of a head.

use crate::Error;
use crate::init::{Init, Law};
use crate::layers::{self, Layer, Scope};
use crate::models::config::{
    self, MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, count, counts, dropout_rate, unsupported,
};
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::ops::{Geometry, ResizeMode};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Groups of every norm.
const GROUPS: usize = 32;
const EPS: f64 = 1e-5;
/// The base of the time code's frequencies.
const PERIOD: f64 = 10_000.0;

const PLAIN: Layer = Layer { bias: true, law: Law::Glorot(1.0) };
/// Layers that end a branch: nearly nothing at first, so that a fresh block is the identity.
const QUIET: Layer = Layer { bias: true, law: Law::Glorot(1e-5) };

/// The arguments of that code's `Unet`, by their names; the defaults are the project's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RosinalityConfig {
    pub in_channel: usize,
    pub out_channel: usize,
    pub channel: usize,
    pub channel_multiplier: Vec<usize>,
    pub n_res_blocks: usize,
    /// Levels with attention, by how many pixels of the image one of theirs is wide.
    pub attn_strides: Vec<usize>,
    pub attn_heads: usize,
    pub use_affine_time: bool,
    pub dropout: f64,
    pub fold: usize,
}

impl Default for RosinalityConfig {
    fn default() -> RosinalityConfig {
        RosinalityConfig {
            in_channel: 2,
            out_channel: 1,
            channel: 64,
            channel_multiplier: vec![1, 2, 4],
            n_res_blocks: 2,
            attn_strides: vec![4],
            attn_heads: 1,
            use_affine_time: false,
            dropout: 0.1,
            fold: 1,
        }
    }
}

/// Every choice made and checked; see [`RosinalityConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Rosinality {
    in_channels: usize,
    out_channels: usize,
    /// Channels of the first layer; the time embedding has four times as many.
    first: usize,
    /// From the largest image to the smallest.
    levels: Vec<Level>,
    layers: usize,
    heads: usize,
    affine_time: bool,
    dropout: f64,
    fold: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    channels: usize,
    attention: bool,
}

impl RosinalityConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<RosinalityConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Rosinality, Error> {
        let first = count("channel", self.channel, MOST_CHANNELS)?;
        counts("channel_multiplier", &self.channel_multiplier, MOST_LEVELS, MOST_CHANNELS)?;
        if !first.is_multiple_of(GROUPS) {
            let supported = format!("multiples of {GROUPS}, the groups of every norm");
            return Err(unsupported("channel", first.to_string(), &supported));
        }
        let heads = count("attn_heads", self.attn_heads, MOST_CHANNELS)?;
        let strides: Vec<usize> = (0..self.channel_multiplier.len()).map(|i| 1 << i).collect();
        if let Some(stride) = self.attn_strides.iter().find(|s| !strides.contains(s)) {
            let supported = format!("the strides of the levels, {strides:?}");
            return Err(unsupported("attn_strides", stride.to_string(), &supported));
        }
        let levels: Vec<Level> = self
            .channel_multiplier
            .iter()
            .zip(&strides)
            .map(|(m, stride)| Level { channels: first * m, attention: self.attn_strides.contains(stride) })
            .collect();
        let last = levels.len() - 1;
        for (i, level) in levels.iter().enumerate() {
            count("channel_multiplier", level.channels, MOST_CHANNELS)?;
            if (level.attention || i == last) && !level.channels.is_multiple_of(heads) {
                let supported = format!("divisors of {}, the channels with attention", level.channels);
                return Err(unsupported("attn_heads", heads.to_string(), &supported));
            }
        }
        Ok(Rosinality {
            in_channels: count("in_channel", self.in_channel, MOST_CHANNELS)?,
            out_channels: count("out_channel", self.out_channel, MOST_CHANNELS)?,
            first,
            levels,
            layers: count("n_res_blocks", self.n_res_blocks, MOST_LAYERS)?,
            heads,
            affine_time: self.use_affine_time,
            dropout: dropout_rate("dropout", self.dropout)?,
            fold: count("fold", self.fold, 64)?,
        })
    }
}

/// The inputs of every block other than its image.
#[derive(Clone, Copy)]
struct With {
    /// The activated time embedding.
    time: Value,
    key: Option<Value>,
}

impl Rosinality {
    fn multiple(&self) -> usize {
        self.fold << (self.levels.len() - 1)
    }

    fn embed(&self, s: &mut Scope<'_>, t: Value) -> Value {
        let mut s = s.at("time");
        let half = self.first / 2;
        let rate = 2.0 * PERIOD.ln() / self.first as f64;
        let rates = s.fixed("0.inv_freq", [half], Init::Decay(rate as f32));
        let n = s.b.shape(t).len();
        let column = s.b.reshape(t, [n, 1]);
        let angle = s.b.mul(column, rates);
        let code = sin_cos(s.b, angle);
        let h = layers::linear_by(&mut s.at("1"), code, 4 * self.first, PLAIN);
        let h = s.b.silu(h);
        layers::linear_by(&mut s.at("3"), h, 4 * self.first, PLAIN)
    }

    fn block(&self, s: &mut Scope<'_>, x: Value, with: With, out: usize, attend: bool) -> Value {
        let h = self.residual(&mut s.at("resblocks"), x, with, out);
        if attend { self.attention(&mut s.at("attention"), h) } else { h }
    }

    fn residual(&self, s: &mut Scope<'_>, x: Value, with: With, out: usize) -> Value {
        let h = layers::group_norm(&mut s.at("norm1"), x, GROUPS, EPS);
        let h = s.b.silu(h);
        let h = convolution(&mut s.at("conv1"), h, out, 3, PLAIN);
        let h = if self.affine_time {
            let film = layers::linear_by(&mut s.at("time.1"), with.time, 2 * out, QUIET);
            let film = [s.b.slice(film, 1, 0, out), s.b.slice(film, 1, out, out)];
            let affine = layers::no_affine(s.b, h);
            s.b.modulated_norm(h, affine, film, GROUPS, EPS)
        } else {
            let time = layers::linear_by(&mut s.at("time.1"), with.time, out, PLAIN);
            let time = layers::per_sample(s.b, time, h);
            let h = s.b.add(h, time);
            layers::group_norm(&mut s.at("norm2"), h, GROUPS, EPS)
        };
        let mut h = s.b.silu(h);
        if let (Some(key), true) = (with.key, self.dropout > 0.0) {
            h = s.at("dropout").dropout(h, key, self.dropout);
        }
        let h = convolution(&mut s.at("conv2"), h, out, 3, QUIET);
        let x = if s.b.channels(x) == out { x } else { convolution(&mut s.at("skip"), x, out, 1, PLAIN) };
        s.b.add(h, x)
    }

    fn attention(&self, s: &mut Scope<'_>, x: Value) -> Value {
        let shape = s.b.shape(x);
        let (n, c) = (shape[0], shape.channels());
        let pixels = shape.len() / (n * c).max(1);
        let h = layers::group_norm(&mut s.at("norm"), x, GROUPS, EPS);
        let h = convolution(&mut s.at("qkv"), h, 3 * c, 1, PLAIN);
        // A head's queries, keys and values lie side by side, head behind head.
        let h = s.b.reshape(h, [n, pixels, self.heads, 3, c / self.heads]);
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = s.b.slice(h, 3, i, 1);
            s.b.reshape(part, [n, pixels, c])
        });
        let h = s.b.attention(q, k, v, self.heads, Some(1.0 / (c as f64).sqrt()));
        let h = s.b.reshape(h, shape);
        let h = convolution(&mut s.at("out"), h, c, 1, QUIET);
        s.b.add(h, x)
    }
}

/// A convolution that keeps the size.
fn convolution(s: &mut Scope<'_>, x: Value, out: usize, kernel: usize, layer: Layer) -> Value {
    layers::conv_by(s, x, out, [kernel; 3], Geometry::new(2, 1, kernel / 2), layer)
}

fn sin_cos(b: &mut Builder, angle: Value) -> Value {
    use clearshot_graph::ops::Unary;
    let (sin, cos) = (b.unary(Unary::Sin, angle), b.unary(Unary::Cos, angle));
    b.concat(&[sin, cos], 1)
}

/// Blocks of `fold` x `fold` pixels into channels: channel, row and column of the block in that order.
fn folded(b: &mut Builder, x: Value, fold: usize) -> Value {
    if fold == 1 {
        return x;
    }
    let [n, y, w, c] = [0, 1, 2, 3].map(|i| b.shape(x)[i]);
    let x = b.reshape(x, [n, y / fold, fold, w / fold, fold, c]);
    let x = b.transpose(x, &[0, 1, 3, 5, 2, 4]);
    b.reshape(x, [n, y / fold, w / fold, c * fold * fold])
}

/// The inverse of [`folded`].
fn unfolded(b: &mut Builder, x: Value, fold: usize) -> Value {
    if fold == 1 {
        return x;
    }
    let [n, y, w, c] = [0, 1, 2, 3].map(|i| b.shape(x)[i]);
    let c = c / (fold * fold);
    let x = b.reshape(x, [n, y, w, c, fold, fold]);
    let x = b.transpose(x, &[0, 1, 4, 2, 5, 3]);
    b.reshape(x, [n, y * fold, w * fold, c])
}

impl Network for Rosinality {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        vec![Port::scalar("t", image)]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &[self.multiple(); 2])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![self.multiple(); 2]
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let time = self.embed(s, given.need("t"));
        let with = With { time: s.b.silu(time), key: given.key() };
        let x = folded(s.b, given.x(), self.fold);
        // Layers of the way down are numbered through, and so are those of the way up.
        let mut numbers = 0..;
        let mut next = |way: &str| format!("{way}.{}", numbers.next().unwrap_or(0));
        let mut h = convolution(&mut s.at(&next("down")), x, self.first, 3, PLAIN);
        let mut skips = vec![h];
        for (i, level) in self.levels.iter().enumerate() {
            for _ in 0..self.layers {
                h = self.block(&mut s.at(&next("down")), h, with, level.channels, level.attention);
                skips.push(h);
            }
            if i + 1 < self.levels.len() {
                let mut s = s.at(&format!("{}.0", next("down")));
                h = layers::conv_by(&mut s, h, level.channels, [3; 3], Geometry::new(2, 2, 1), PLAIN);
                skips.push(h);
            }
        }
        let deepest = self.levels[self.levels.len() - 1].channels;
        h = self.block(&mut s.at("mid.0"), h, with, deepest, true);
        h = self.block(&mut s.at("mid.1"), h, with, deepest, false);
        let mut numbers = 0..;
        let mut next = |way: &str| format!("{way}.{}", numbers.next().unwrap_or(0));
        for (i, level) in self.levels.iter().enumerate().rev() {
            for _ in 0..=self.layers {
                let skip = skips.pop().expect("the way down keeps one for every block of the way up");
                h = s.b.concat_channels(&[h, skip]);
                h = self.block(&mut s.at(&next("up")), h, with, level.channels, level.attention);
            }
            if i > 0 {
                h = s.b.upsample(h, ResizeMode::Nearest, 2);
                h = convolution(&mut s.at(&format!("{}.1", next("up"))), h, level.channels, 3, PLAIN);
            }
        }
        let h = layers::group_norm(&mut s.at("out.0"), h, GROUPS, EPS);
        let h = s.b.silu(h);
        let fold = self.fold * self.fold;
        let y = convolution(&mut s.at("out.2"), h, self.out_channels * fold, 3, QUIET);
        unfolded(s.b, y, self.fold)
    }
}
