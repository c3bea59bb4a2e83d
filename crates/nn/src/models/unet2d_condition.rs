//! diffusers' `UNet2DConditionModel`: the pyramid of [`super::unet2d`] with cross-attention to a context, a list of vectors.
//!
//! In addition to context and time it can be conditioned on a class, a vector (`class_embed_type: projection`) or SDXL's `text_embeds` and `time_ids`. `attention_head_dim` is the
//! *number* of heads, a misnomer that diffusers keeps for the sake of existing files. Sizes that are not multiples of the smallest level's are accepted: the way up upsamples to the
//! size that the way down had.

mod config;
mod resolve;

pub use config::UNet2DConditionConfig;

use crate::init::{Init, Law};
use crate::layers::{self, Conditions, Layer, Resample, ResnetStyle, Scope, resnet};
use crate::models::network::{Given, Network, Port};
use clearshot_graph::ops::{Geometry, ResizeMode, Unary};
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::Shape;

/// The name of this network in diffusers.
pub const CLASS_NAME: &str = "UNet2DConditionModel";

/// Every choice made and checked; see [`UNet2DConditionConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct UNet2DCondition {
    in_channels: usize,
    out_channels: usize,
    center_input: bool,
    time: Time,
    class: Class,
    /// The class's embedding stands beside the time's and is not added to it.
    class_beside: bool,
    added: Option<Added>,
    /// Width of the time embedding.
    embedding: usize,
    /// From the largest image to the smallest.
    levels: Vec<Level>,
    mid: Mid,
    mid_scale: f64,
    style: ResnetStyle,
    pad_downsample: bool,
    linear_projection: bool,
    /// Width of the given context, if a layer converts it to that of the attention.
    context_from: Option<usize>,
    /// Kernels of the first and the last layer.
    kernels: [usize; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Time {
    /// Random frequencies; otherwise a position code.
    fourier: bool,
    width: usize,
    cos_first: bool,
    shift: f64,
    act: Unary,
    post_act: Option<Unary>,
    /// The activation of the whole embedding.
    embed_act: Option<Unary>,
    /// Width of an optional vector that is added to the time's code.
    condition: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    None,
    /// Whole numbers.
    Table {
        rows: usize,
    },
    /// Embedded as times are.
    Timestep,
    /// An embedding already.
    Identity,
    /// A vector of this width, through two layers.
    Projection {
        from: usize,
    },
    /// A vector of this width, through one layer.
    Linear {
        from: usize,
    },
}

/// SDXL's micro-conditioning: a vector, and numbers that are embedded as times are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Added {
    text: usize,
    /// Width of each number's code.
    code: usize,
}

/// Number of SDXL's conditioning values: original size, crop and target size.
const TIME_IDS: usize = 6;

/// Default number of vectors of a context.
const TOKENS: usize = 77;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    channels: usize,
    layers: usize,
    down: Option<Attend>,
    up: Option<Attend>,
}

/// The transformer behind a residual block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Attend {
    heads: usize,
    context: usize,
    depth: usize,
    /// The first attention looks at the context too, not at the image.
    only_cross: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mid {
    None,
    Plain,
    Attend(Attend),
}

/// The norm in front of a transformer has this constant of its own.
const TRANSFORMER_EPS: f64 = 1e-6;
const LAYER_EPS: f64 = 1e-5;
const NO_BIAS: Layer = Layer { bias: false, law: Law::Torch };

/// The inputs of every block other than its image.
#[derive(Clone, Copy)]
struct With {
    conditions: Conditions,
    context: Option<Value>,
}

impl UNet2DCondition {
    fn attends(&self) -> impl Iterator<Item = Attend> + '_ {
        let mid = if let Mid::Attend(a) = self.mid { Some(a) } else { None };
        self.levels.iter().flat_map(|l| [l.down, l.up]).chain([mid]).flatten()
    }

    /// Width of the given context; `None` if there is no cross-attention.
    fn context_width(&self) -> Option<usize> {
        let width = self.attends().map(|a| a.context).next()?;
        Some(self.context_from.unwrap_or(width))
    }

    fn code(&self, s: &mut Scope<'_>, t: Value) -> Value {
        let time = &self.time;
        if !time.fourier {
            return s.b.sinusoidal_embedding(t, time.width, time.cos_first, time.shift, 10_000.0);
        }
        let rates = s.at("time_proj").fixed("weight", [time.width / 2], Init::Normal(1.0));
        let n = s.b.shape(t).len();
        let column = s.b.reshape(t, [n, 1]);
        let turns = s.b.mul(column, rates);
        let angle = s.b.mul_scalar(turns, std::f64::consts::TAU);
        let (sin, cos) = (s.b.unary(Unary::Sin, angle), s.b.unary(Unary::Cos, angle));
        s.b.concat(&if time.cos_first { [cos, sin] } else { [sin, cos] }, 1)
    }

    fn embed(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let mut code = self.code(s, given.need("t"));
        let mut at = s.at("time_embedding");
        if let Some(width) = self.time.condition {
            let mut at = at.at("cond_proj");
            match given.get("time_cond") {
                Some(condition) => {
                    let more = layers::linear_by(&mut at, condition, self.time.width, NO_BIAS);
                    code = at.b.add(code, more);
                }
                None => layers::declare_linear(&mut at, width, self.time.width, NO_BIAS),
            }
        }
        let mut emb = layers::time_mlp_by(&mut at, code, self.embedding, self.time.act);
        drop(at);
        if let Some(act) = self.time.post_act {
            emb = s.b.unary(act, emb);
        }
        if let Some(class) = self.class_embedding(s, given) {
            emb = if self.class_beside { s.b.concat(&[emb, class], 1) } else { s.b.add(emb, class) };
        }
        if let Some(added) = self.added {
            let (text, ids) = (given.need("text_embeds"), given.need("time_ids"));
            let n = s.b.shape(text)[0];
            let ids = s.b.reshape(ids, [n * TIME_IDS]);
            let (cos_first, shift) = (self.time.cos_first, self.time.shift);
            let codes = s.b.sinusoidal_embedding(ids, added.code, cos_first, shift, 10_000.0);
            let codes = s.b.reshape(codes, [n, TIME_IDS * added.code]);
            let both = s.b.concat(&[text, codes], 1);
            let more = layers::time_mlp(&mut s.at("add_embedding"), both, self.embedding);
            emb = s.b.add(emb, more);
        }
        match self.time.embed_act {
            Some(act) => s.b.unary(act, emb),
            None => emb,
        }
    }

    fn class_embedding(&self, s: &mut Scope<'_>, given: &Given) -> Option<Value> {
        if self.class == Class::None {
            return None;
        }
        let class = given.need("class");
        let code = if self.class == Class::Timestep { self.code(s, class) } else { class };
        let mut s = s.at("class_embedding");
        Some(match self.class {
            Class::None | Class::Identity => class,
            Class::Table { rows } => layers::embedding(&mut s, class, rows, self.embedding),
            Class::Timestep => layers::time_mlp_by(&mut s, code, self.embedding, self.time.act),
            Class::Projection { .. } => layers::time_mlp(&mut s, class, self.embedding),
            Class::Linear { .. } => layers::linear(&mut s, class, self.embedding),
        })
    }

    /// The class's input.
    fn class_port(&self, image: Shape) -> Option<Port> {
        let vector = |width| Port::vector("class", image, width);
        Some(match self.class {
            Class::None => return None,
            Class::Table { .. } => Port::new("class", Type::i32([image[0]])),
            Class::Timestep => Port::scalar("class", image),
            Class::Identity => vector(self.embedding),
            Class::Projection { from } | Class::Linear { from } => vector(from),
        })
    }

    /// One residual block, with a transformer behind it or without.
    fn layer(
        &self,
        s: &mut Scope<'_>,
        j: usize,
        h: Value,
        with: With,
        channels: usize,
        attend: Option<Attend>,
    ) -> Value {
        let mut block = s.at(&format!("resnets.{j}"));
        let h = resnet(&mut block, h, with.conditions, channels, &self.style, 1.0, Resample::None);
        drop(block);
        match attend {
            None => h,
            Some(attend) => self.transformer(&mut s.at(&format!("attentions.{j}")), h, with, &attend),
        }
    }

    fn transformer(&self, s: &mut Scope<'_>, x: Value, with: With, attend: &Attend) -> Value {
        let shape = s.b.shape(x);
        let (n, c) = (shape[0], shape.channels());
        let pixels = shape.len() / (n * c).max(1);
        // Channels that fill no head are left out inside.
        let inner = attend.heads * (c / attend.heads);
        let h = layers::group_norm(&mut s.at("norm"), x, self.style.groups, TRANSFORMER_EPS);
        let mut h = self.projected(&mut s.at("proj_in"), h, inner, [n, pixels]);
        for i in 0..attend.depth {
            h = transformer_block(&mut s.at(&format!("transformer_blocks.{i}")), h, with.context, attend);
        }
        let image = shape.with(shape.rank() - 1, inner);
        let mut s_out = s.at("proj_out");
        let h = if self.linear_projection {
            layers::linear(&mut s_out, h, c)
        } else {
            let h = s_out.b.reshape(h, image);
            layers::conv1(&mut s_out, h, c)
        };
        drop(s_out);
        let h = s.b.reshape(h, shape);
        s.b.add(h, x)
    }

    /// Pixels as rows, through a layer that is a convolution in some files and linear in others.
    fn projected(&self, s: &mut Scope<'_>, h: Value, out: usize, [n, pixels]: [usize; 2]) -> Value {
        if self.linear_projection {
            let c = s.b.channels(h);
            let h = s.b.reshape(h, [n, pixels, c]);
            return layers::linear(s, h, out);
        }
        let h = layers::conv1(s, h, out);
        s.b.reshape(h, [n, pixels, out])
    }

    fn middle(&self, s: &mut Scope<'_>, h: Value, with: With) -> Value {
        let channels = self.levels[self.levels.len() - 1].channels;
        let mut s = s.at("mid_block");
        let block = |s: &mut Scope<'_>, i: usize, h: Value| {
            let mut s = s.at(&format!("resnets.{i}"));
            resnet(&mut s, h, with.conditions, channels, &self.style, self.mid_scale, Resample::None)
        };
        match self.mid {
            Mid::None => h,
            Mid::Plain => block(&mut s, 0, h),
            Mid::Attend(attend) => {
                let h = block(&mut s, 0, h);
                let h = self.transformer(&mut s.at("attentions.0"), h, with, &attend);
                block(&mut s, 1, h)
            }
        }
    }

    fn down(&self, s: &mut Scope<'_>, mut h: Value, with: With) -> (Value, Vec<Value>) {
        let mut skips = vec![h];
        for (i, level) in self.levels.iter().enumerate() {
            let mut s = s.at(&format!("down_blocks.{i}"));
            for j in 0..level.layers {
                h = self.layer(&mut s, j, h, with, level.channels, level.down);
                skips.push(h);
            }
            if i + 1 < self.levels.len() {
                let before = usize::from(self.pad_downsample);
                let pad = [[0, 0], [before, 1], [before, 1]];
                let geometry = Geometry::new(2, 2, 0).with_padding(pad);
                h = layers::conv(&mut s.at("downsamplers.0.conv"), h, level.channels, 3, geometry);
                skips.push(h);
            }
        }
        (h, skips)
    }

    fn up(&self, s: &mut Scope<'_>, mut h: Value, mut skips: Vec<Value>, with: With) -> Value {
        for (i, level) in self.levels.iter().rev().enumerate() {
            let mut s = s.at(&format!("up_blocks.{i}"));
            for j in 0..=level.layers {
                let skip = skips.pop().expect("the way down keeps one for every block of the way up");
                h = s.b.concat_channels(&[h, skip]);
                h = self.layer(&mut s, j, h, with, level.channels, level.up);
            }
            if let Some(&next) = skips.last() {
                let size = s.b.shape(next);
                h = s.b.resize(h, ResizeMode::Nearest, [1, size[1], size[2]]);
                h = layers::conv3(&mut s.at("upsamplers.0.conv"), h, level.channels);
            }
        }
        h
    }
}

fn transformer_block(s: &mut Scope<'_>, h: Value, context: Option<Value>, attend: &Attend) -> Value {
    let look = |s: &mut Scope<'_>, h: Value, norm: &str, name: &str, at: Option<Value>| {
        let x = layers::layer_norm(&mut s.at(norm), h, LAYER_EPS);
        let y = cross_attention(&mut s.at(name), x, at.unwrap_or(x), attend.heads);
        s.b.add(y, h)
    };
    let h = look(s, h, "norm1", "attn1", context.filter(|_| attend.only_cross));
    let h = look(s, h, "norm2", "attn2", context);
    let x = layers::layer_norm(&mut s.at("norm3"), h, LAYER_EPS);
    let c = s.b.channels(h);
    // Half of a layer gates the other half.
    let x = layers::linear(&mut s.at("ff.net.0.proj"), x, 8 * c);
    let (kept, gate) = (s.b.slice(x, 2, 0, 4 * c), s.b.slice(x, 2, 4 * c, 4 * c));
    let gate = s.b.unary(Unary::Gelu, gate);
    let x = s.b.mul(kept, gate);
    let x = layers::linear(&mut s.at("ff.net.2"), x, c);
    s.b.add(x, h)
}

/// Attention of `x` to `context`, both `[N, rows, C]`.
fn cross_attention(s: &mut Scope<'_>, x: Value, context: Value, heads: usize) -> Value {
    let c = s.b.channels(x);
    let q = layers::linear_by(&mut s.at("to_q"), x, c, NO_BIAS);
    let k = layers::linear_by(&mut s.at("to_k"), context, c, NO_BIAS);
    let v = layers::linear_by(&mut s.at("to_v"), context, c, NO_BIAS);
    let h = s.b.attention(q, k, v, heads, None);
    layers::linear(&mut s.at("to_out.0"), h, c)
}

/// A convolution that keeps the size.
fn end(s: &mut Scope<'_>, x: Value, out: usize, kernel: usize) -> Value {
    layers::conv(s, x, out, kernel, Geometry::new(2, 1, kernel / 2))
}

impl Network for UNet2DCondition {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let n = image[0];
        let mut ports = vec![Port::scalar("t", image)];
        if let Some(width) = self.context_width() {
            ports.push(Port::new("context", Type::f32([n, TOKENS, width])).free(1));
        }
        ports.extend(self.class_port(image));
        if let Some(added) = self.added {
            ports.push(Port::vector("text_embeds", image, added.text));
            ports.push(Port::vector("time_ids", image, TIME_IDS));
        }
        if let Some(width) = self.time.condition {
            ports.push(Port::vector("time_cond", image, width).optional());
        }
        ports
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        // Without padding in front, halving needs two pixels; with it, one.
        let least = if self.pad_downsample { 1 } else { 1 << (self.levels.len() - 1) };
        if size.iter().all(|s| *s >= least) {
            return Ok(());
        }
        let [y, x] = [size[0], size[1]];
        Err(format!("an image of {y} x {x} pixels: {} levels need at least {least}", self.levels.len()))
    }

    fn example_size(&self) -> Vec<usize> {
        vec![1 << (self.levels.len() - 1); 2]
    }

    fn drops(&self) -> bool {
        self.style.dropout > 0.0
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let x = if self.center_input { centred(s.b, given.x()) } else { given.x() };
        let emb = self.embed(s, given);
        let emb = s.b.unary(self.style.act, emb);
        let context = given.get("context").map(|context| match (self.context_from, self.attends().next()) {
            (Some(_), Some(a)) => layers::linear(&mut s.at("encoder_hid_proj"), context, a.context),
            _ => context,
        });
        let with = With { conditions: Conditions { emb, key: given.key() }, context };
        let h = end(&mut s.at("conv_in"), x, self.levels[0].channels, self.kernels[0]);
        let (h, skips) = self.down(s, h, with);
        let h = self.middle(s, h, with);
        let h = self.up(s, h, skips, with);
        let h = layers::group_norm(&mut s.at("conv_norm_out"), h, self.style.groups, self.style.eps);
        let h = s.b.unary(self.style.act, h);
        end(&mut s.at("conv_out"), h, self.out_channels, self.kernels[1])
    }
}

/// From [0, 1] to [-1, 1].
fn centred(b: &mut Builder, x: Value) -> Value {
    let twice = b.mul_scalar(x, 2.0);
    b.add_scalar(twice, -1.0)
}
