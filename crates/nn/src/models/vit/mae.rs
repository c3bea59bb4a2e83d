//! Masked autoencoders (He et al. 2022): the encoder gets a few patches of an image, and a small decoder predicts the
//! others.
//!
//! The result is the image with its hidden patches replaced by the prediction, so that its squared error is that of hidden
//! patches only. With `use_crossmae` (Fu et al. 2024) hidden patches attend to the visible ones and not to each other,
//! which is cheaper; otherwise all tokens attend to all.
//!
//! With `normalise_patches` the decoder predicts the pixels of each hidden patch minus their mean, divided by their
//! standard deviation (`norm_pix_loss` of He et al.). Both are taken from the image, so that the result is still an
//! image, and errors are relative to that standard deviation.

use super::masks::{Hidden, Masks};
use super::{Encoder, EncoderConfig, GLOROT, Tower, mask_token, picked, positions};
use crate::Error;
use crate::layers::{self, Scope};
use crate::models::config::{self, unsupported};
use crate::models::network::{Given, Network, Port};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Added to the variance of patches, as He et al. do.
const LEAST_VARIANCE: f64 = 1e-6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaeConfig {
    #[serde(flatten)]
    pub encoder: EncoderConfig,
    pub decoder_dim: usize,
    pub decoder_layer: usize,
    pub decoder_head: usize,
    /// The share of patches that are hidden.
    pub mask_ratio: f64,
    pub use_crossmae: bool,
    /// Whether each hidden patch is predicted less its mean and over its standard deviation.
    pub normalise_patches: bool,
}

impl Default for MaeConfig {
    fn default() -> MaeConfig {
        MaeConfig {
            encoder: EncoderConfig::default(),
            decoder_dim: 64,
            decoder_layer: 2,
            decoder_head: 4,
            mask_ratio: 0.75,
            use_crossmae: false,
            normalise_patches: false,
        }
    }
}

/// Every choice made and checked; see [`MaeConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Mae {
    encoder: Encoder,
    decoder: Tower,
    ratio: f64,
    cross: bool,
    normalised: bool,
}

impl MaeConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<MaeConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Mae, Error> {
        let encoder = self.encoder.resolve()?;
        let decoder = Tower::new(
            ["decoder_dim", "decoder_layer", "decoder_head"],
            [self.decoder_dim, self.decoder_layer, self.decoder_head],
            encoder.dims(),
        )?;
        if !(self.mask_ratio > 0.0 && self.mask_ratio < 1.0) {
            return Err(unsupported("mask_ratio", self.mask_ratio.to_string(), "shares above 0 and below 1"));
        }
        let (cross, normalised) = (self.use_crossmae, self.normalise_patches);
        Ok(Mae { encoder, decoder, ratio: self.mask_ratio, cross, normalised })
    }
}

impl Mae {
    fn masks_of(&self, grid: Vec<usize>) -> Masks {
        let all: usize = grid.iter().product();
        // One at least of each.
        let hidden = ((all as f64 * self.ratio).round() as usize).clamp(1, all.saturating_sub(1).max(1));
        Masks { grid, visible: all.saturating_sub(hidden), hidden, law: Hidden::Scattered }
    }

    /// The pixels of hidden patches, `[N, hidden, values]`.
    fn decoded(&self, s: &mut Scope<'_>, latent: Value, rows: [Value; 2], grid: &[usize]) -> Value {
        let Tower { dim, depth, .. } = self.decoder;
        let batch = s.b.shape(latent)[0];
        let at = positions(s.b, grid, dim, batch);
        let [seen, hidden] = rows.map(|rows| picked(s.b, at, rows));
        let known = layers::linear_by(&mut s.at("embed"), latent, dim, GLOROT);
        let known = s.b.add(known, seen);
        let token = mask_token(s, dim);
        let asked = s.b.add(hidden, token);
        let (visible, count) = (s.b.shape(known)[1], s.b.shape(asked)[1]);
        let mut h = if self.cross { asked } else { s.b.concat(&[known, asked], 1) };
        for i in 0..depth {
            let others = self.cross.then_some(known);
            h = self.decoder.block(&mut s.at(&format!("blocks.{i}")), h, others);
        }
        if !self.cross {
            // Attention does not depend on the order of tokens: those that are asked for stand last.
            h = s.b.slice(h, 1, visible, count);
        }
        let h = layers::layer_norm(&mut s.at("norm"), h, super::EPS);
        layers::linear_by(&mut s.at("pred"), h, self.encoder.values(), GLOROT)
    }
}

/// The mean of each patch of `[N, T, values]`, and its standard deviation as He et al. have it: of the sample, kept above zero.
fn moments(b: &mut Builder, patches: Value) -> [Value; 2] {
    let values = b.shape(patches)[2];
    let mean = b.mean(patches, &[2]);
    let off = b.sub(patches, mean);
    let squares = b.mul(off, off);
    let sum = b.sum(squares, &[2]);
    let variance = b.mul_scalar(sum, 1.0 / (values - 1).max(1) as f64);
    let variance = b.add_scalar(variance, LEAST_VARIANCE);
    [mean, b.unary(Unary::Sqrt, variance)]
}

impl Network for Mae {
    fn in_channels(&self) -> usize {
        self.encoder.channels
    }

    fn out_channels(&self) -> usize {
        self.encoder.channels
    }

    fn dims(&self) -> usize {
        self.encoder.dims()
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let masks = self.masks_of(self.encoder.grid_of(image));
        [("visible", masks.visible), ("hidden", masks.hidden), ("order", masks.patches())]
            .map(|(name, count)| Port::new(name, Type::i32([image[0], count])))
            .to_vec()
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        self.encoder.check_size(size)?;
        match self.encoder.grid(size).iter().product::<usize>() {
            1 => Err("an image of one patch: some must be seen and some hidden".into()),
            _ => Ok(()),
        }
    }

    fn example_size(&self) -> Vec<usize> {
        self.encoder.patch.iter().map(|p| 2 * p).collect()
    }

    fn masks(&self, size: &[usize]) -> Option<Masks> {
        Some(self.masks_of(self.encoder.grid(size)))
    }

    fn scale_of_errors(&self, b: &mut Builder, image: Value) -> Option<Value> {
        if !self.normalised {
            return None;
        }
        let patches = self.encoder.patches(b, image);
        let [_, deviation] = moments(b, patches);
        let (each, of) = (b.shape(patches), b.shape(image));
        let deviation = b.broadcast(deviation, each);
        Some(self.encoder.image_of(b, deviation, of))
    }

    fn encoder(&self) -> Option<&Encoder> {
        Some(&self.encoder)
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let x = given.x();
        let image = s.b.shape(x);
        let [visible, hidden, order] = ["visible", "hidden", "order"].map(|name| given.need(name));
        let latent = self.encoder.add(&mut s.at("encoder"), x, Some(visible));
        let grid = self.encoder.grid_of(image);
        let mut made = self.decoded(&mut s.at("decoder"), latent, [visible, hidden], &grid);
        let patches = self.encoder.patches(s.b, x);
        if self.normalised {
            let asked = picked(s.b, patches, hidden);
            let [mean, deviation] = moments(s.b, asked);
            made = s.b.mul(made, deviation);
            made = s.b.add(made, mean);
        }
        let seen = picked(s.b, patches, visible);
        let both = s.b.concat(&[seen, made], 1);
        let whole = picked(s.b, both, order);
        self.encoder.image_of(s.b, whole, image)
    }
}
