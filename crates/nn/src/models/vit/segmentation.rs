//! A vision transformer encoder with a convolutional decoder, for encoders that were trained without labels.
//!
//! The tokens of all patches form a coarse image; transposed convolutions upsample it to pixels by factors of two, each
//! with half as many channels, a norm, GELU and a convolution. With `image_skip` a last convolution also gets the image
//! itself through a convolution: edges are finer than patches, but if brightness alone separates objects, the encoder then
//! learns little.

use super::{Encoder, EncoderConfig};
use crate::Error;
use crate::layers::{self, Layer, Scope};
use crate::models::config::{self, MOST_CHANNELS, count, unsupported};
use crate::models::network::{Given, Network, Port};
use clearshot_graph::Value;
use clearshot_graph::ops::Unary;
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Of group norms.
const EPS: f64 = 1e-5;
/// Fewer channels than this have no norm of several groups.
const GROUP: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VitSegmentationConfig {
    #[serde(flatten)]
    pub encoder: EncoderConfig,
    pub out_channels: usize,
    /// Channels of the decoder at full size; twice as many with every level below, up to those of tokens.
    pub decoder_dim: usize,
    /// Whether a last convolution sees the image itself beside what became of the tokens.
    pub image_skip: bool,
}

impl Default for VitSegmentationConfig {
    fn default() -> VitSegmentationConfig {
        let (encoder, image_skip) = (EncoderConfig::default(), false);
        VitSegmentationConfig { encoder, out_channels: 1, decoder_dim: 16, image_skip }
    }
}

/// Every choice made and checked; see [`VitSegmentationConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct VitSegmentation {
    encoder: Encoder,
    out_channels: usize,
    width: usize,
    image_skip: bool,
    /// How often sizes are doubled.
    levels: usize,
}

impl VitSegmentationConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<VitSegmentationConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<VitSegmentation, Error> {
        let encoder = self.encoder.resolve()?;
        count("out_channels", self.out_channels, MOST_CHANNELS)?;
        count("decoder_dim", self.decoder_dim, MOST_CHANNELS)?;
        if let Some(odd) = encoder.patch.iter().find(|p| !p.is_power_of_two()) {
            return Err(unsupported(
                "patch_size",
                odd.to_string(),
                "powers of two, by which the decoder enlarges",
            ));
        }
        let levels = encoder.patch.iter().map(|p| p.trailing_zeros() as usize).max().unwrap_or(0);
        let (width, image_skip) = (self.decoder_dim, self.image_skip);
        Ok(VitSegmentation { encoder, out_channels: self.out_channels, width, image_skip, levels })
    }
}

impl VitSegmentation {
    /// Twice the size along the axes whose patches are still larger than what is left of the way.
    fn factor(&self, level: usize) -> [usize; 3] {
        let mut factor = [1; 3];
        let first = 3 - self.encoder.dims();
        for (to, patch) in factor[first..].iter_mut().zip(&self.encoder.patch) {
            if patch.trailing_zeros() as usize >= self.levels - level {
                *to = 2;
            }
        }
        factor
    }
}

impl Network for VitSegmentation {
    fn in_channels(&self) -> usize {
        self.encoder.channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn dims(&self) -> usize {
        self.encoder.dims()
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        self.encoder.check_size(size)
    }

    fn example_size(&self) -> Vec<usize> {
        self.encoder.patch.clone()
    }

    fn encoder(&self) -> Option<&Encoder> {
        Some(&self.encoder)
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let x = given.x();
        let mut h = self.encoder.embeddings(&mut s.at("encoder"), x);
        let mut s = s.at("decoder");
        let norm = |s: &mut Scope<'_>, h: Value| {
            let channels = s.b.channels(h);
            let groups = if channels.is_multiple_of(GROUP) { channels / GROUP } else { 1 };
            let h = layers::group_norm(s, h, groups, EPS);
            s.b.unary(Unary::Gelu, h)
        };
        for level in 0..self.levels {
            let mut s = s.at(&format!("up.{level}"));
            let width = (self.width << (self.levels - 1 - level)).min(self.encoder.tower.dim);
            h = layers::conv_up(&mut s.at("enlarge"), h, width, self.factor(level), Layer::TORCH);
            h = norm(&mut s.at("norm1"), h);
            h = layers::conv3(&mut s.at("conv"), h, width);
            h = norm(&mut s.at("norm2"), h);
        }
        if self.image_skip {
            let own = layers::conv3(&mut s.at("conv_in"), x, self.width);
            let own = norm(&mut s.at("norm_in"), own);
            h = s.b.concat_channels(&[h, own]);
            h = layers::conv3(&mut s.at("conv_both"), h, self.width);
            h = norm(&mut s.at("norm_both"), h);
        }
        layers::conv1(&mut s.at("conv_out"), h, self.out_channels)
    }
}
