//! Vision transformers: images as patches, each a token that attends to all others, in 2-D and 3-D.
//!
//! Several networks share the encoder: a masked autoencoder ([`mae`]) or a joint embedding ([`jepa`]) trains it without
//! labels, and [`segmentation`] adds a convolutional decoder. Blocks are those of timm (pre-norm, MLPs four times as wide,
//! GELU), with timm's parameter names; positions are fixed sines and cosines along each axis, so that images may have any
//! size. The visible patches are an input, indices of rows ([`masks`]), so that shapes are known.

pub mod jepa;
pub mod mae;
pub mod masks;
pub mod segmentation;

pub use masks::Masks;

use crate::Error;
use crate::init::{Init, Law};
use crate::layers::{self, Layer, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LAYERS, OneOrEach, count, unsupported};
use crate::models::network::multiples;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};
use serde::{Deserialize, Serialize};

/// Of layer norms, as timm has it.
const EPS: f64 = 1e-6;
/// How much wider MLPs are than tokens.
const RATIO: usize = 4;
/// The longest wavelength of positions, over 2 pi.
const LONGEST: f64 = 10_000.0;
/// As He et al. draw the weights of masked autoencoders.
const GLOROT: Layer = Layer { bias: true, law: Law::Glorot(1.0) };

/// The keys of an encoder, by CytoDL's names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EncoderConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    /// Pixels along each axis of a patch, or a list of (Z,) Y, X.
    pub patch_size: OneOrEach<usize>,
    /// Numbers of a token.
    pub emb_dim: usize,
    pub encoder_layer: usize,
    pub encoder_head: usize,
}

impl Default for EncoderConfig {
    fn default() -> EncoderConfig {
        EncoderConfig {
            spatial_dims: 2,
            in_channels: 1,
            patch_size: OneOrEach::One(8),
            emb_dim: 128,
            encoder_layer: 4,
            encoder_head: 4,
        }
    }
}

impl EncoderConfig {
    /// The keys that say what an encoder is.
    pub const KEYS: [&str; 6] =
        ["spatial_dims", "in_channels", "patch_size", "emb_dim", "encoder_layer", "encoder_head"];

    /// # Errors
    /// Names the first key whose value is not supported.
    pub fn resolve(&self) -> Result<Encoder, Error> {
        config::spatial_dims(self.spatial_dims)?;
        count("in_channels", self.in_channels, MOST_CHANNELS)?;
        let patch = self.patch_size.of("patch_size", self.spatial_dims)?;
        config::counts("patch_size", &patch, 3, 256)?;
        let tower = Tower::new(
            ["emb_dim", "encoder_layer", "encoder_head"],
            [self.emb_dim, self.encoder_layer, self.encoder_head],
            self.spatial_dims,
        )?;
        Ok(Encoder { channels: self.in_channels, patch, tower })
    }
}

/// Transformer blocks of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tower {
    pub dim: usize,
    pub depth: usize,
    pub heads: usize,
}

impl Tower {
    /// Of width, layers and heads, by their keys.
    pub(crate) fn new(
        keys: [&'static str; 3],
        [dim, depth, heads]: [usize; 3],
        axes: usize,
    ) -> Result<Tower, Error> {
        count(keys[0], dim, MOST_CHANNELS)?;
        count(keys[1], depth, MOST_LAYERS)?;
        count(keys[2], heads, dim)?;
        if !dim.is_multiple_of(heads) {
            return Err(unsupported(keys[2], heads.to_string(), &format!("divisors of {}, {dim}", keys[0])));
        }
        if dim < 2 * axes {
            let needed = format!("at least {}, a sine and a cosine for each axis", 2 * axes);
            return Err(unsupported(keys[0], dim.to_string(), &needed));
        }
        Ok(Tower { dim, depth, heads })
    }

    /// All blocks and the last norm.
    pub(crate) fn add(&self, s: &mut Scope<'_>, mut x: Value) -> Value {
        for i in 0..self.depth {
            x = self.block(&mut s.at(&format!("blocks.{i}")), x, None);
        }
        layers::layer_norm(&mut s.at("norm"), x, EPS)
    }

    /// Tokens that attend to each other or, where there are some, to others alone; then an MLP. Both are added.
    pub(crate) fn block(&self, s: &mut Scope<'_>, x: Value, others: Option<Value>) -> Value {
        let h = layers::layer_norm(&mut s.at("norm1"), x, EPS);
        let h = self.attention(&mut s.at("attn"), h, others);
        let x = s.b.add(x, h);
        let h = layers::layer_norm(&mut s.at("norm2"), x, EPS);
        let h = layers::linear_by(&mut s.at("mlp.fc1"), h, RATIO * self.dim, GLOROT);
        let h = s.b.unary(Unary::Gelu, h);
        let h = layers::linear_by(&mut s.at("mlp.fc2"), h, self.dim, GLOROT);
        s.b.add(x, h)
    }

    fn attention(&self, s: &mut Scope<'_>, x: Value, others: Option<Value>) -> Value {
        let dim = self.dim;
        let part = |s: &mut Scope<'_>, all: Value, i: usize| s.b.slice(all, 2, i * dim, dim);
        let [q, k, v] = match others {
            None => {
                let all = layers::linear_by(&mut s.at("qkv"), x, 3 * dim, GLOROT);
                [0, 1, 2].map(|i| part(s, all, i))
            }
            Some(others) => {
                let q = layers::linear_by(&mut s.at("q"), x, dim, GLOROT);
                let both = layers::linear_by(&mut s.at("kv"), others, 2 * dim, GLOROT);
                [q, part(s, both, 0), part(s, both, 1)]
            }
        };
        let h = s.b.attention(q, k, v, self.heads, None);
        layers::linear_by(&mut s.at("proj"), h, dim, GLOROT)
    }
}

/// What becomes of an image's patches; see [`EncoderConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    pub(crate) channels: usize,
    /// (Z,) Y, X.
    pub(crate) patch: Vec<usize>,
    pub(crate) tower: Tower,
}

impl Encoder {
    pub(crate) fn dims(&self) -> usize {
        self.patch.len()
    }

    /// Numbers of a patch.
    pub(crate) fn values(&self) -> usize {
        self.patch.iter().product::<usize>() * self.channels
    }

    /// Patches along each axis of an image of this size.
    pub(crate) fn grid(&self, size: &[usize]) -> Vec<usize> {
        size.iter().zip(&self.patch).map(|(s, p)| s / p).collect()
    }

    /// The same of an image with its batch and channels.
    pub(crate) fn grid_of(&self, image: Shape) -> Vec<usize> {
        self.grid(&image[1..image.rank().saturating_sub(1).max(1)])
    }

    pub(crate) fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &self.patch)
    }

    /// The pixels of each patch, `[N, T, values]`, and `[N, (Z,) Y, X, C]` of such.
    pub(crate) fn patches(&self, b: &mut Builder, x: Value) -> Value {
        let image = b.shape(x);
        let tokens: usize = self.grid_of(image).iter().product();
        let h = self.turned(b, x, &image, false);
        b.reshape(h, [image[0], tokens, self.values()])
    }

    pub(crate) fn image_of(&self, b: &mut Builder, patches: Value, image: Shape) -> Value {
        let h = self.turned(b, patches, &image, true);
        b.reshape(h, image)
    }

    /// Brings the pixels of each patch together, or back: along X, and of volumes along Y at the same time, then along Z. Every step swaps two axes of a view.
    fn turned(&self, b: &mut Builder, x: Value, image: &[usize], back: bool) -> Value {
        let grid = self.grid(&image[1..=self.dims()]);
        let last = |a: usize| grid.len() - 1 - a;
        let (gy, gx) = (grid[last(1)], grid[last(0)]);
        let (py, px) = (self.patch[last(1)], self.patch[last(0)]);
        let outer: usize = image[0] * grid[..last(1)].iter().product::<usize>();
        let pz = if self.dims() == 3 { self.patch[0] } else { 1 };
        // Planes of a patch beside each other, [.., gy, pz py, gx, px C], then patches beside each other.
        let steps =
            [[outer, pz, gy, py * gx * px * self.channels], [outer * gy, pz * py, gx, px * self.channels]];
        let mut steps: Vec<[usize; 4]> = steps.into_iter().skip(usize::from(pz == 1)).collect();
        if back {
            steps.reverse();
            steps.iter_mut().for_each(|view| view.swap(1, 2));
        }
        steps.iter().fold(x, |h, view| {
            let h = b.reshape(h, *view);
            b.transpose(h, &[0, 2, 1, 3])
        })
    }

    /// Tokens of patches, `[N, K, dim]`, before they know where they are.
    pub(crate) fn embedded(&self, s: &mut Scope<'_>, patches: Value) -> Value {
        let mut s = s.at("patch_embed.proj");
        let (dim, values) = (self.tower.dim, self.values());
        let [weight, bias] = GLOROT.law.init(values, dim);
        // A convolution of patches, as timm's files have it.
        let sizes: Vec<usize> =
            [dim].into_iter().chain(self.patch.iter().copied()).chain([self.channels]).collect();
        let weight = s.param("weight", Shape::new(&sizes), weight);
        let bias = s.param("bias", [dim], bias);
        let weight = s.b.reshape(weight, [dim, values]);
        s.b.linear(patches, weight, Some(bias))
    }

    /// The tokens of an image, `[N, T, dim]`, or of the patches that indices name, `[N, K, dim]`.
    pub(crate) fn add(&self, s: &mut Scope<'_>, x: Value, seen: Option<Value>) -> Value {
        let grid = self.grid_of(s.b.shape(x));
        let mut patches = self.patches(s.b, x);
        let batch = s.b.shape(patches)[0];
        let mut at = positions(s.b, &grid, self.tower.dim, batch);
        if let Some(seen) = seen {
            (patches, at) = (picked(s.b, patches, seen), picked(s.b, at, seen));
        }
        let tokens = self.embedded(s, patches);
        let tokens = s.b.add(tokens, at);
        self.tower.add(s, tokens)
    }
}

impl Encoder {
    /// The embeddings of all patches as an image, `[N, (gz,) gy, gx, dim]`.
    pub(crate) fn embeddings(&self, s: &mut Scope<'_>, x: Value) -> Value {
        let image = s.b.shape(x);
        let sizes: Vec<usize> =
            [image[0]].into_iter().chain(self.grid_of(image)).chain([self.tower.dim]).collect();
        let tokens = self.add(s, x, None);
        s.b.reshape(tokens, Shape::new(&sizes))
    }

    /// The embeddings of all patches of images, for networks that have an encoder; `encoder` stands in front of its parameters' names.
    pub fn embeddings_on(&self, b: &mut Builder, x: Value) -> Value {
        self.embeddings(&mut Scope::new(b, &mut vec![]).at("encoder"), x)
    }

    /// Transformer blocks, `encoder.blocks.0` and so on.
    pub fn blocks(&self) -> usize {
        self.tower.depth
    }

    /// Numbers of an embedding.
    pub fn width(&self) -> usize {
        self.tower.dim
    }
}

/// Rows of tokens `[N, T, D]`, by indices `[N, K]` that count all samples' rows.
pub(crate) fn picked(b: &mut Builder, tokens: Value, rows: Value) -> Value {
    let shape = b.shape(tokens);
    let table = b.reshape(tokens, [shape[0] * shape[1], shape[2]]);
    b.gather(table, rows)
}

/// Where each patch is, `[N, T, dim]`: for each axis sines and cosines of frequencies from 1 on down.
pub(crate) fn positions(b: &mut Builder, grid: &[usize], dim: usize, batch: usize) -> Value {
    let tokens: usize = grid.iter().product();
    let table = b.constant(Tensor::f32([1, tokens, dim], sines(grid, dim)));
    b.broadcast(table, [batch, tokens, dim])
}

/// See [`positions`]; what axes leave of `dim` is zero.
fn sines(grid: &[usize], dim: usize) -> Vec<f32> {
    let each = dim / grid.len() / 2;
    let mut out = vec![];
    for t in 0..grid.iter().product() {
        let mut inner: usize = grid.iter().product();
        let start = out.len();
        for &len in grid {
            inner /= len;
            let at = (t / inner % len) as f64;
            let angle = |i: usize| at * LONGEST.powf(-(i as f64) / each as f64);
            out.extend((0..each).map(|i| angle(i).sin() as f32));
            out.extend((0..each).map(|i| angle(i).cos() as f32));
        }
        out.resize(start + dim, 0.0);
    }
    out
}

/// A token that stands for patches whose content is not known.
pub(crate) fn mask_token(s: &mut Scope<'_>, dim: usize) -> Value {
    let token = s.param("mask_token", [dim], Init::Normal(0.02));
    s.b.reshape(token, [1, 1, dim])
}
