//! diffusers' `UNet2DModel`: a pyramid of residual blocks with attention at some levels, with a time embedding that enters
//! every block.
//!
//! [`UNet2DConfig`] holds the contents of a file, [`UNet2D`] the resolved network. Building adds nodes for one image size
//! and batch; parameters have diffusers' names. The way down keeps the result of every block, the way up uses them in
//! reverse order.

mod config;
mod graphs;
mod networks;
mod resolve;

pub use config::{SampleSize, UNet2DConfig};
pub use networks::{NETWORKS, Network, network};

use crate::Error;
use crate::init::{Init, Param};
use crate::layers::{
    self, AttentionStyle, Conditions, Resample, ResnetStyle, Scope, attention, conv3, resnet, time_mlp,
};
use clearshot_graph::ops::{Geometry, ResizeMode, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::DType;

/// The name of this network in diffusers.
pub const CLASS_NAME: &str = "UNet2DModel";

/// Every choice made and checked; see [`UNet2DConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct UNet2D {
    in_channels: usize,
    out_channels: usize,
    /// The input is first mapped from [0, 1] to [-1, 1].
    center_input: bool,
    time: TimeEmbedding,
    class: ClassEmbedding,
    /// Width of the time embedding.
    embedding: usize,
    /// From the largest image to the smallest.
    levels: Vec<Level>,
    mid: Option<Mid>,
    /// Residual blocks a level on the way down; one more on the way up.
    layers: usize,
    style: ResnetStyle,
    /// Downsampling pads both sides by one; otherwise only the far one.
    pad_downsample: bool,
    /// How levels with attention resample: by a residual block, or by a convolution.
    attn_down: Resample,
    attn_up: Resample,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TimeEmbedding {
    Positional {
        cos_first: bool,
        shift: f64,
    },
    /// Random frequencies of log t; the output is divided by t.
    Fourier,
    Learned {
        steps: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ClassEmbedding {
    None,
    Table {
        rows: usize,
    },
    /// Classes are embedded as times are.
    Timestep,
    /// Classes come as embeddings.
    Identity,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    channels: usize,
    head: usize,
    down_attention: bool,
    up_attention: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Mid {
    attention: bool,
    /// Groups of the norm in front of attention; none for no norm.
    groups: Option<usize>,
    scale: f64,
}

/// The standard deviation of the random frequencies.
const FOURIER_SCALE: f32 = 16.0;

/// What a network may be given beside image and time.
#[derive(Clone, Copy, Default)]
pub struct Extras {
    /// Whole numbers `[N]` for a table of classes, times `[N]`, or embeddings `[N, E]`, as the
    /// configuration has it.
    pub class: Option<Value>,
    /// The key of dropout, `[4]` or `[N, 4]`. Without it nothing is dropped: that is inference.
    pub dropout_key: Option<Value>,
}

impl UNet2DConfig {
    /// Adds the network to `b`: x is `[N, Y, X, C]`, t `[N]`. A configuration that cannot be built
    /// becomes the builder's error.
    #[track_caller]
    pub fn build(&self, b: &mut Builder, x: Value, t: Value) -> Value {
        match self.resolve() {
            Ok(network) => network.build(b, x, t, Extras::default()),
            Err(e) => b.refuse("unet2d", e.to_string()),
        }
    }
}

impl UNet2D {
    /// Image sizes must be multiples of this.
    pub fn multiple(&self) -> usize {
        1 << (self.levels.len() - 1)
    }

    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Every parameter, in the order in which the network uses them.
    ///
    /// # Errors
    /// If the network cannot be built.
    pub fn parameters(&self) -> Result<Vec<Param>, Error> {
        crate::models::Network::parameters(self)
    }

    /// Adds the network to `b`: x is `[N, Y, X, C]`, t `[N]`.
    #[track_caller]
    pub fn build(&self, b: &mut Builder, x: Value, t: Value, extras: Extras) -> Value {
        if let Err(reason) = self.check_input(b, x, t, extras) {
            return b.refuse("unet2d", reason);
        }
        self.add(&mut Scope::new(b, &mut vec![]), x, t, extras)
    }

    fn check_input(&self, b: &Builder, x: Value, t: Value, extras: Extras) -> Result<(), String> {
        let (image, time) = (b.shape(x), b.shape(t));
        if image.rank() != 4 || image[3] != self.in_channels {
            return Err(format!("the image is {image}, expected [N, Y, X, {}]", self.in_channels));
        }
        if time.to_vec() != [image[0]] {
            return Err(format!("the times are {time}, expected [{}], one a sample", image[0]));
        }
        let m = self.multiple();
        let sides = [image[1], image[2]];
        if sides.iter().any(|s| *s == 0 || s % m != 0) {
            let next = sides.map(|s| s.max(1).next_multiple_of(m));
            return Err(format!(
                "an image of {} x {} pixels: {} levels need multiples of {m}, the next are {} x {}",
                sides[0],
                sides[1],
                self.levels.len(),
                next[0],
                next[1]
            ));
        }
        match (self.class, extras.class) {
            (ClassEmbedding::None, Some(_)) => Err("classes were given to a network that has none".into()),
            (ClassEmbedding::None, None) | (_, Some(_)) => Ok(()),
            (kind, None) => Err(format!("the network needs classes ({kind:?}) and was given none")),
        }
    }

    fn add(&self, s: &mut Scope<'_>, x: Value, t: Value, extras: Extras) -> Value {
        let x = if self.center_input {
            let twice = s.b.mul_scalar(x, 2.0);
            s.b.add_scalar(twice, -1.0)
        } else {
            x
        };
        let emb = self.embed(s, t, extras.class);
        let emb = s.b.unary(self.style.act, emb);
        let with = Conditions { emb, key: extras.dropout_key };
        let h = conv3(&mut s.at("conv_in"), x, self.levels[0].channels);
        let (h, skips) = self.down(s, h, with);
        let h = self.middle(s, h, with);
        let h = self.up(s, h, skips, with);
        let h = layers::group_norm(&mut s.at("conv_norm_out"), h, self.style.groups, self.style.eps);
        let h = s.b.unary(Unary::Silu, h);
        let y = conv3(&mut s.at("conv_out"), h, self.out_channels);
        if self.time == TimeEmbedding::Fourier {
            let n = s.b.shape(t).len();
            let t = s.b.reshape(t, [n, 1, 1, 1]);
            return s.b.div(y, t);
        }
        y
    }

    fn embed(&self, s: &mut Scope<'_>, t: Value, class: Option<Value>) -> Value {
        let code = self.time_code(s, t);
        let emb = time_mlp(&mut s.at("time_embedding"), code, self.embedding);
        let class = match (self.class, class) {
            (ClassEmbedding::None, _) | (_, None) => return emb,
            (ClassEmbedding::Identity, Some(class)) => class,
            (ClassEmbedding::Table { rows }, Some(class)) => {
                layers::embedding(&mut s.at("class_embedding"), class, rows, self.embedding)
            }
            (ClassEmbedding::Timestep, Some(class)) => {
                let code = self.time_code(s, class);
                time_mlp(&mut s.at("class_embedding"), code, self.embedding)
            }
        };
        s.b.add(emb, class)
    }

    fn time_code(&self, s: &mut Scope<'_>, t: Value) -> Value {
        let width = self.levels[0].channels;
        let mut s = s.at("time_proj");
        match self.time {
            TimeEmbedding::Positional { cos_first, shift } => {
                s.b.sinusoidal_embedding(t, width, cos_first, shift, 10_000.0)
            }
            TimeEmbedding::Learned { steps } => {
                let t = s.b.cast(t, DType::I32);
                layers::embedding(&mut s, t, steps, width)
            }
            TimeEmbedding::Fourier => {
                let rates = s.fixed("weight", [width], Init::Normal(FOURIER_SCALE));
                let n = s.b.shape(t).len();
                let t = s.b.reshape(t, [n, 1]);
                let log = s.b.unary(Unary::Log, t);
                let turns = s.b.mul(log, rates);
                let angle = s.b.mul_scalar(turns, std::f64::consts::TAU);
                let (sin, cos) = (s.b.unary(Unary::Sin, angle), s.b.unary(Unary::Cos, angle));
                s.b.concat(&[sin, cos], 1)
            }
        }
    }

    /// The last image and all that the way up will need.
    fn down(&self, s: &mut Scope<'_>, mut h: Value, with: Conditions) -> (Value, Vec<Value>) {
        let mut skips = vec![h];
        for (i, level) in self.levels.iter().enumerate() {
            let mut s = s.at(&format!("down_blocks.{i}"));
            for j in 0..self.layers {
                h = self.layer(&mut s, j, h, with, level, level.down_attention);
                skips.push(h);
            }
            if i + 1 < self.levels.len() {
                h = self.downsample(&mut s.at("downsamplers.0"), h, with, level);
                skips.push(h);
            }
        }
        (h, skips)
    }

    fn middle(&self, s: &mut Scope<'_>, h: Value, with: Conditions) -> Value {
        let Some(mid) = self.mid else { return h };
        let Level { channels, head, .. } = self.levels[self.levels.len() - 1];
        let mut s = s.at("mid_block");
        let block = |s: &mut Scope<'_>, i: usize, h: Value| {
            let mut s = s.at(&format!("resnets.{i}"));
            resnet(&mut s, h, with, channels, &self.style, mid.scale, Resample::None)
        };
        let mut h = block(&mut s, 0, h);
        if mid.attention {
            let style = AttentionStyle { groups: mid.groups, eps: self.style.eps, head, scale: mid.scale };
            h = attention(&mut s.at("attentions.0"), h, &style);
        }
        block(&mut s, 1, h)
    }

    fn up(&self, s: &mut Scope<'_>, mut h: Value, mut skips: Vec<Value>, with: Conditions) -> Value {
        for (i, level) in self.levels.iter().rev().enumerate() {
            let mut s = s.at(&format!("up_blocks.{i}"));
            for j in 0..=self.layers {
                let skip = skips.pop().expect("the way down keeps one for every block of the way up");
                h = s.b.concat_channels(&[h, skip]);
                h = self.layer(&mut s, j, h, with, level, level.up_attention);
            }
            if i + 1 < self.levels.len() {
                h = self.upsample(&mut s.at("upsamplers.0"), h, with, level);
            }
        }
        h
    }

    /// One residual block, with attention behind it or without.
    fn layer(
        &self,
        s: &mut Scope<'_>,
        j: usize,
        h: Value,
        with: Conditions,
        level: &Level,
        attend: bool,
    ) -> Value {
        let style = &self.style;
        let mut block = s.at(&format!("resnets.{j}"));
        let h = resnet(&mut block, h, with, level.channels, style, 1.0, Resample::None);
        drop(block);
        if !attend {
            return h;
        }
        let style =
            AttentionStyle { groups: Some(style.groups), eps: style.eps, head: level.head, scale: 1.0 };
        attention(&mut s.at(&format!("attentions.{j}")), h, &style)
    }

    fn downsample(&self, s: &mut Scope<'_>, h: Value, with: Conditions, level: &Level) -> Value {
        if level.down_attention && self.attn_down == Resample::Down {
            return resnet(s, h, with, level.channels, &self.style, 1.0, Resample::Down);
        }
        let before = usize::from(self.pad_downsample);
        let pad = [[0, 0], [before, 1], [before, 1]];
        layers::conv(&mut s.at("conv"), h, level.channels, 3, Geometry::new(2, 2, 0).with_padding(pad))
    }

    fn upsample(&self, s: &mut Scope<'_>, h: Value, with: Conditions, level: &Level) -> Value {
        if level.up_attention && self.attn_up == Resample::Up {
            return resnet(s, h, with, level.channels, &self.style, 1.0, Resample::Up);
        }
        let h = s.b.upsample(h, ResizeMode::Nearest, 2);
        conv3(&mut s.at("conv"), h, level.channels)
    }
}
