//! A network that grows with the resolution of its training images: 32, 64, 96, 128 pixels, keeping its weights.
//!
//! A core works at the first resolution. Every further stage surrounds the previous ones: one block before them, after
//! which features are downsampled to the resolution below, and one after the features are upsampled again. The layers from
//! and to the image are shared by all stages. The parameters of a stage are therefore among those of every later one, and
//! growing keeps them all ([`grow`]).
//!
//! A new stage is blended in by the input `alpha`, from 0 to 1: at 0 the output is exactly that of the stage below on the
//! downsampled image, upsampled; at 1 the old path from and to the image has no effect. With `blend` false that path is not
//! even built. 2-D and 3-D.

use crate::Error;
use crate::init::Param;
use crate::layers::{self, AttentionStyle, Conditions, Resample, ResnetStyle, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, count, counts, unsupported};
use crate::models::modulation::{self, Modulation};
use crate::models::network::{Given, Network, Port, multiples};
use crate::weights::Weights;
use clearshot_graph::ops::ResizeMode;
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GrowingConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Of all stages, from the core's.
    pub resolutions: Vec<usize>,
    /// The resolution that is worked at now, one of `resolutions`.
    pub resolution: usize,
    /// Whether the last stage is being blended in.
    pub blend: bool,
    pub channels: usize,
    /// Channels of the core's levels, in multiples of `channels`; each level has half the size of the one before.
    pub channel_mult: Vec<usize>,
    /// Residual blocks a level of the core, each way.
    pub blocks: usize,
    /// Channels of one head of the attention in the core's middle; nothing for no attention.
    pub attention_head_dim: Option<usize>,
    pub groups: usize,
    /// Values of the conditioning vector; 0 for none.
    pub vector_dim: usize,
}

impl Default for GrowingConfig {
    fn default() -> GrowingConfig {
        GrowingConfig {
            spatial_dims: 2,
            in_channels: 2,
            out_channels: 1,
            resolutions: vec![32, 64, 96, 128],
            resolution: 128,
            blend: true,
            channels: 64,
            channel_mult: vec![1, 2, 2],
            blocks: 1,
            attention_head_dim: Some(32),
            groups: 8,
            vector_dim: 0,
        }
    }
}

/// Every choice made and checked; see [`GrowingConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Growing {
    dims: usize,
    in_channels: usize,
    out_channels: usize,
    /// Up to the present one.
    resolutions: Vec<usize>,
    blend: bool,
    channels: usize,
    /// Channels of the core's levels.
    core: Vec<usize>,
    blocks: usize,
    head: Option<usize>,
    style: ResnetStyle,
    modulation: Modulation,
}

impl GrowingConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<GrowingConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Growing, Error> {
        config::spatial_dims(self.spatial_dims)?;
        counts("resolutions", &self.resolutions, MOST_LEVELS, 1 << 20)?;
        if !self.resolutions.is_sorted_by(|a, b| a < b) {
            return Err(unsupported("resolutions", format!("{:?}", self.resolutions), "a list that grows"));
        }
        let Some(stage) = self.resolutions.iter().position(|r| *r == self.resolution) else {
            let supported = format!("one of the resolutions, {:?}", self.resolutions);
            return Err(unsupported("resolution", self.resolution.to_string(), &supported));
        };
        let channels = count("channels", self.channels, MOST_CHANNELS)?;
        counts("channel_mult", &self.channel_mult, MOST_LEVELS, MOST_CHANNELS)?;
        let core: Vec<usize> = self.channel_mult.iter().map(|m| channels * m).collect();
        counts("channel_mult", &core, MOST_LEVELS, MOST_CHANNELS)?;
        let deepest = core[core.len() - 1];
        if let Some(head) = self.attention_head_dim.filter(|h| *h == 0 || !deepest.is_multiple_of(*h)) {
            let supported = format!("divisors of {deepest}, the channels of the core's last level");
            return Err(unsupported("attention_head_dim", head.to_string(), &supported));
        }
        let all: Vec<usize> = [channels].into_iter().chain(core.iter().copied()).collect();
        Ok(Growing {
            dims: self.spatial_dims,
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            resolutions: self.resolutions[..=stage].to_vec(),
            blend: self.blend && stage > 0,
            channels,
            core,
            blocks: count("blocks", self.blocks, MOST_LAYERS)?,
            head: self.attention_head_dim,
            style: modulation::style(self.groups, &all)?,
            modulation: Modulation::new(channels, self.vector_dim)?,
        })
    }
}

/// Weights for a network from those of an earlier stage: what there was stays, what is new is drawn under a
/// seed. What the network has no place for is left out.
///
/// The blocks of a new stage pass on what they are given at first, and of what they join that from the stage below: so blending in begins with what that stage knows, and
/// not with what random layers make of it.
pub fn grow(weights: &Weights, params: &[Param], seed: u64) -> Weights {
    let value = |p: &Param| match weights.get(&p.name) {
        Some(kept) if kept.shape() == p.shape => kept.clone(),
        _ if p.name.starts_with("stages.") => passing_on(p).unwrap_or_else(|| p.initial(seed)),
        _ => p.initial(seed),
    };
    params.iter().map(|p| (p.name.clone(), value(p))).collect()
}

/// The values of a new stage's parameter that make its block pass on what it is given, if this is one of them.
fn passing_on(p: &Param) -> Option<Tensor> {
    let mut values = vec![0.0; p.shape.len()];
    let parts: Vec<&str> = p.name.split('.').collect();
    match parts[..] {
        [.., "conv2", "weight" | "bias"] | [.., "conv_shortcut", "bias"] => {}
        // From the features of the stage below and those that were set aside, side by side.
        [.., "conv_shortcut", "weight"] => {
            let both = p.shape.channels();
            (0..p.shape[0]).for_each(|i| values[i * both + i] = 1.0);
        }
        _ => return None,
    }
    Some(Tensor::f32(p.shape, values))
}

impl Growing {
    fn last(&self) -> usize {
        self.resolutions.len() - 1
    }

    /// From the size of an image at the present resolution to that at a stage's.
    fn size(&self, image: Shape, stage: usize) -> [usize; 3] {
        let at = |axis: usize| image[axis] * self.resolutions[stage] / self.resolutions[self.last()];
        if self.dims == 2 { [1, at(1), at(2)] } else { [at(1), at(2), at(3)] }
    }

    fn features(&self, s: &mut Scope<'_>, x: Value) -> Value {
        layers::conv3(&mut s.at("from_image"), x, self.channels)
    }

    fn to_image(&self, s: &mut Scope<'_>, h: Value) -> Value {
        let mut s = s.at("to_image");
        let h = layers::group_norm(&mut s.at("norm"), h, self.style.groups, self.style.eps);
        let h = s.b.silu(h);
        layers::conv3(&mut s.at("conv"), h, self.out_channels)
    }

    fn block(&self, s: &mut Scope<'_>, h: Value, with: Conditions, out: usize) -> Value {
        layers::resnet(s, h, with, out, &self.style, 1.0, Resample::None)
    }

    fn core(&self, s: &mut Scope<'_>, mut h: Value, with: Conditions) -> Value {
        let mut s = s.at("core");
        let mut skips = vec![];
        for (i, &channels) in self.core.iter().enumerate() {
            if i > 0 {
                h = layers::halved(s.b, h);
            }
            for j in 0..self.blocks {
                h = self.block(&mut s.at(&format!("down.{i}.{j}")), h, with, channels);
            }
            skips.push(h);
        }
        let deepest = self.core[self.core.len() - 1];
        h = self.block(&mut s.at("mid.0"), h, with, deepest);
        if let Some(head) = self.head {
            let (groups, eps) = (Some(self.style.groups), self.style.eps);
            h = layers::attention(&mut s.at("mid.1"), h, &AttentionStyle { groups, eps, head, scale: 1.0 });
        }
        h = self.block(&mut s.at("mid.2"), h, with, deepest);
        for (i, skip) in skips.into_iter().enumerate().rev() {
            h = s.b.concat_channels(&[h, skip]);
            let channels = self.core[i.saturating_sub(1)];
            for j in 0..self.blocks {
                h = self.block(&mut s.at(&format!("up.{i}.{j}")), h, with, channels);
            }
            if i > 0 {
                h = s.b.upsample(h, ResizeMode::Nearest, 2);
            }
        }
        self.block(&mut s.at("end"), h, with, self.channels)
    }

    /// Features at a stage's resolution, through that stage and all below it.
    fn stage(&self, s: &mut Scope<'_>, h: Value, with: Conditions, stage: usize, image: Shape) -> Value {
        if stage == 0 {
            return self.core(s, h, with);
        }
        let fine = self.block(&mut s.at(&format!("stages.{stage}.down")), h, with, self.channels);
        let lower = s.b.resize(fine, ResizeMode::Linear, self.size(image, stage - 1));
        let lower = self.stage(s, lower, with, stage - 1, image);
        self.rise(s, lower, fine, with, stage, image)
    }

    /// Features of the stage below enlarged and joined with those that this stage set aside.
    fn rise(
        &self,
        s: &mut Scope<'_>,
        lower: Value,
        fine: Value,
        with: Conditions,
        stage: usize,
        image: Shape,
    ) -> Value {
        let h = s.b.resize(lower, ResizeMode::Linear, self.size(image, stage));
        let h = s.b.concat_channels(&[h, fine]);
        self.block(&mut s.at(&format!("stages.{stage}.up")), h, with, self.channels)
    }

    /// How far sizes must be multiples: every stage's and every level's has to come out whole.
    fn multiple(&self) -> usize {
        let greatest = self.resolutions.iter().fold(0, |a, &b| gcd(a, b));
        let core = 1 << (self.core.len() - 1);
        let first = self.resolutions[0] / greatest;
        self.resolutions[self.last()] / greatest * (core / gcd(core, first))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `(1 - alpha) old + alpha new`, which is each of them exactly at its end.
fn blended(b: &mut Builder, old: Value, new: Value, alpha: Value) -> Value {
    let minus = b.mul_scalar(alpha, -1.0);
    let rest = b.add_scalar(minus, 1.0);
    let (old, new) = (b.mul(rest, old), b.mul(alpha, new));
    b.add(old, new)
}

impl Network for Growing {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let alpha = self.blend.then(|| Port::new("alpha", Type::f32(Shape::SCALAR)));
        self.modulation.ports(image).into_iter().chain(alpha).collect()
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &vec![self.multiple(); self.dims])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![self.multiple(); self.dims]
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let emb = self.modulation.embed(s, given);
        let with = Modulation::conditions(s, emb);
        let (x, last) = (given.x(), self.last());
        let image = s.b.shape(x);
        let h = self.features(s, x);
        let Some(alpha) = given.get("alpha").filter(|_| self.blend) else {
            let h = self.stage(s, h, with, last, image);
            return self.to_image(s, h);
        };
        let size = self.size(image, last - 1);
        let fine = self.block(&mut s.at(&format!("stages.{last}.down")), h, with, self.channels);
        let new = s.b.resize(fine, ResizeMode::Linear, size);
        let coarse = s.b.resize(x, ResizeMode::Linear, size);
        let old = self.features(s, coarse);
        let lower = blended(s.b, old, new, alpha);
        let lower = self.stage(s, lower, with, last - 1, image);
        let old = self.to_image(s, lower);
        let old = s.b.resize(old, ResizeMode::Linear, self.size(image, last));
        let h = self.rise(s, lower, fine, with, last, image);
        let new = self.to_image(s, h);
        blended(s.b, old, new, alpha)
    }
}
