//! One set of weights over a pyramid of images, from the coarsest to the finest.
//!
//! Every scale runs the same layers. Their inputs are the image of the scale, and the upsampled estimate and features of
//! the next coarser scale (skip connections between scales); they add a correction to that estimate. The number of scales
//! is chosen at each use and not part of the weights; the network gets the scale in the same way as the time. 2-D and 3-D.

use crate::Error;
use crate::layers::{self, Resample, ResnetStyle, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, count};
use crate::models::modulation::{self, Modulation};
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::ops::ResizeMode;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MultiScaleConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub scales: usize,
    pub channels: usize,
    /// Residual blocks a scale.
    pub blocks: usize,
    pub groups: usize,
    /// Values of the conditioning vector; 0 for none.
    pub vector_dim: usize,
}

impl Default for MultiScaleConfig {
    fn default() -> MultiScaleConfig {
        MultiScaleConfig {
            spatial_dims: 2,
            in_channels: 2,
            out_channels: 1,
            scales: 4,
            channels: 64,
            blocks: 4,
            groups: 8,
            vector_dim: 0,
        }
    }
}

/// Every choice made and checked; see [`MultiScaleConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct MultiScale {
    dims: usize,
    in_channels: usize,
    out_channels: usize,
    scales: usize,
    channels: usize,
    blocks: usize,
    style: ResnetStyle,
    modulation: Modulation,
}

impl MultiScaleConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<MultiScaleConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<MultiScale, Error> {
        config::spatial_dims(self.spatial_dims)?;
        let channels = count("channels", self.channels, MOST_CHANNELS)?;
        Ok(MultiScale {
            dims: self.spatial_dims,
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            scales: count("scales", self.scales, MOST_LEVELS)?,
            channels,
            blocks: count("blocks", self.blocks, MOST_LAYERS)?,
            style: modulation::style(self.groups, &[channels])?,
            modulation: Modulation::new(channels, self.vector_dim)?,
        })
    }
}

/// What a scale hands to the next finer one.
#[derive(Clone, Copy)]
struct Coarser {
    image: Value,
    features: Value,
}

impl MultiScale {
    /// Upsampled to the size of `like`; zeros if there is no coarser scale.
    fn enlarged(&self, b: &mut Builder, coarser: Option<Coarser>, like: Value) -> [Value; 2] {
        let shape = b.shape(like);
        let zeros = |b: &mut Builder, channels: usize| {
            let zero = b.scalar(0.0);
            b.broadcast(zero, shape.with(shape.rank() - 1, channels))
        };
        match coarser {
            None => [zeros(b, self.out_channels), zeros(b, self.channels)],
            Some(c) => [c.image, c.features].map(|v| b.upsample(v, ResizeMode::Linear, 2)),
        }
    }

    /// The layers that all scales share.
    fn scale(
        &self,
        s: &mut Scope<'_>,
        x: Value,
        emb: Value,
        scale: usize,
        coarser: Option<Coarser>,
    ) -> Coarser {
        let [before, features] = self.enlarged(s.b, coarser, x);
        let n = s.b.shape(x)[0];
        let number = s.b.constant(Tensor::full([n], scale as f32));
        let code = s.b.sinusoidal_embedding(number, self.modulation.code, true, 0.0, 100.0);
        let which = layers::time_mlp(&mut s.at("scale_embedding"), code, self.modulation.width());
        let emb = s.b.add(emb, which);
        let with = Modulation::conditions(s, emb);
        let h = s.b.concat_channels(&[x, before]);
        let h = layers::conv3(&mut s.at("conv_in"), h, self.channels);
        let h = s.b.concat_channels(&[h, features]);
        let mut h = layers::conv1(&mut s.at("conv_join"), h, self.channels);
        for i in 0..self.blocks {
            let mut s = s.at(&format!("blocks.{i}"));
            h = layers::resnet(&mut s, h, with, self.channels, &self.style, 1.0, Resample::None);
        }
        let y = layers::group_norm(&mut s.at("norm_out"), h, self.style.groups, self.style.eps);
        let y = s.b.silu(y);
        let correction = layers::conv3(&mut s.at("conv_out"), y, self.out_channels);
        Coarser { image: s.b.add(before, correction), features: h }
    }

    fn multiple(&self) -> usize {
        1 << (self.scales - 1)
    }
}

impl Network for MultiScale {
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
        self.modulation.ports(image)
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &vec![self.multiple(); self.dims])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![self.multiple(); self.dims]
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let emb = self.modulation.embed(s, given);
        let mut pyramid = vec![given.x()];
        for i in 1..self.scales {
            pyramid.push(layers::halved(s.b, pyramid[i - 1]));
        }
        let finest = pyramid[0];
        let mut coarser = None;
        for (i, &x) in pyramid.iter().enumerate().skip(1).rev() {
            coarser = Some(self.scale(s, x, emb, i, coarser));
        }
        self.scale(s, finest, emb, 0, coarser).image
    }
}
