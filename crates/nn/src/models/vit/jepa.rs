//! Joint embeddings: I-JEPA (Assran et al. 2023) and image world models (IWM, Garrido et al. 2024).
//!
//! A predictor predicts the teacher's embeddings of hidden patches from the tokens of visible patches and the positions of
//! the hidden ones. Embeddings are compared, not pixels. The teacher is the encoder with averaged weights: the same nodes
//! with other parameter names. A world model also gets a learned token for the domain of the hidden patches. The output of
//! the network are the embeddings of all patches, as an image with that many channels.

use super::masks::{Hidden, Masks};
use super::{Encoder, EncoderConfig, GLOROT, Tower, mask_token, picked, positions};
use crate::Error;
use crate::init::{Init, Param};
use crate::layers::{self, Scope};
use crate::models::config::{self, unsupported};
use crate::models::network::{Given, Network, Port};
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Blocks of hidden patches, and their Y over X, as Assran et al. have them.
const BLOCKS: Hidden = Hidden::Blocks { count: 4, aspect: [0.75, 1.5] };
/// More domains are a mistake.
const MOST_DOMAINS: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JepaConfig {
    #[serde(flatten)]
    pub encoder: EncoderConfig,
    pub predictor_dim: usize,
    pub predictor_layer: usize,
    pub predictor_head: usize,
    /// The share of patches that are hidden, and predicted.
    pub mask_ratio: f64,
    /// The share of patches that are seen.
    pub context_ratio: f64,
    /// Kinds of images that the predictor tells apart; 0 for one kind.
    pub domains: usize,
}

impl Default for JepaConfig {
    fn default() -> JepaConfig {
        JepaConfig {
            encoder: EncoderConfig::default(),
            predictor_dim: 64,
            predictor_layer: 2,
            predictor_head: 4,
            mask_ratio: 0.5,
            context_ratio: 0.4,
            domains: 0,
        }
    }
}

/// Every choice made and checked; see [`JepaConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Jepa {
    encoder: Encoder,
    predictor: Tower,
    mask_ratio: f64,
    context_ratio: f64,
    domains: usize,
}

impl JepaConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<JepaConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Jepa, Error> {
        let encoder = self.encoder.resolve()?;
        let predictor = Tower::new(
            ["predictor_dim", "predictor_layer", "predictor_head"],
            [self.predictor_dim, self.predictor_layer, self.predictor_head],
            encoder.dims(),
        )?;
        let (mask_ratio, context_ratio) = (self.mask_ratio, self.context_ratio);
        for (key, share) in [("mask_ratio", mask_ratio), ("context_ratio", context_ratio)] {
            if !(share > 0.0 && share < 1.0) {
                return Err(unsupported(key, share.to_string(), "shares above 0 and below 1"));
            }
        }
        if mask_ratio + context_ratio > 1.0 {
            let needed = format!("at most {}: mask_ratio is {mask_ratio}", 1.0 - mask_ratio);
            return Err(unsupported("context_ratio", context_ratio.to_string(), &needed));
        }
        if self.domains > MOST_DOMAINS {
            return Err(unsupported("domains", self.domains.to_string(), &format!("0 to {MOST_DOMAINS}")));
        }
        Ok(Jepa { encoder, predictor, mask_ratio, context_ratio, domains: self.domains })
    }
}

impl Jepa {
    /// Kinds of images that the predictor tells apart; 0 for one kind.
    pub fn domains(&self) -> usize {
        self.domains
    }

    fn masks_of(&self, grid: Vec<usize>) -> Masks {
        let all: usize = grid.iter().product();
        let share = |ratio: f64| ((all as f64 * ratio).round() as usize).max(1);
        let hidden = share(self.mask_ratio).min(all.saturating_sub(1).max(1));
        let visible = share(self.context_ratio).min(all.saturating_sub(hidden));
        Masks { grid, visible, hidden, law: BLOCKS }
    }

    /// The teacher's embeddings of the patches that `hidden` names: embeddings of the whole image, layer-normalised, without a gradient. Its parameters have
    /// `prefix` in front of their names; none are the encoder's own.
    pub fn taught(&self, s: &mut Scope<'_>, prefix: Option<&str>, x: Value, hidden: Value) -> Value {
        let name = prefix.map_or("encoder".into(), |prefix| format!("{prefix}encoder"));
        let all = self.encoder.add(&mut s.at(&name), x, None);
        let [gamma, beta] = layers::no_affine(s.b, all);
        let all = s.b.layer_norm(all, gamma, beta, super::EPS);
        let wanted = picked(s.b, all, hidden);
        s.b.stop_gradient(wanted)
    }

    /// What the predictor says of the hidden patches, `[N, hidden, dim]`, from those that are seen. `domain` says what those of each sample are shown in, `[N]`.
    pub fn predicted(&self, s: &mut Scope<'_>, x: Value, rows: [Value; 2], domain: Option<Value>) -> Value {
        let grid = self.encoder.grid_of(s.b.shape(x));
        let latent = self.encoder.add(&mut s.at("encoder"), x, Some(rows[0]));
        let mut s = s.at("predictor");
        let dim = self.predictor.dim;
        let batch = s.b.shape(latent)[0];
        let at = positions(s.b, &grid, dim, batch);
        let [seen, hidden] = rows.map(|rows| picked(s.b, at, rows));
        let known = layers::linear_by(&mut s.at("embed"), latent, dim, GLOROT);
        let known = s.b.add(known, seen);
        let token = mask_token(&mut s, dim);
        let mut asked = s.b.add(hidden, token);
        if let Some(domain) = domain {
            let tokens = s.param("domain_tokens", [self.domains, dim], Init::Normal(0.02));
            let token = s.b.gather(tokens, domain);
            let token = s.b.reshape(token, [batch, 1, dim]);
            asked = s.b.add(asked, token);
        }
        let (visible, count) = (s.b.shape(known)[1], s.b.shape(asked)[1]);
        let h = s.b.concat(&[known, asked], 1);
        let h = self.predictor.add(&mut s, h);
        let h = s.b.slice(h, 1, visible, count);
        layers::linear_by(&mut s.at("proj"), h, self.encoder.tower.dim, GLOROT)
    }
}

impl Network for Jepa {
    fn in_channels(&self) -> usize {
        self.encoder.channels
    }

    fn out_channels(&self) -> usize {
        self.encoder.tower.dim
    }

    fn dims(&self) -> usize {
        self.encoder.dims()
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
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

    fn encoder(&self) -> Option<&Encoder> {
        Some(&self.encoder)
    }

    fn joint_embedding(&self) -> Option<&Jepa> {
        Some(self)
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        self.encoder.embeddings(&mut s.at("encoder"), given.x())
    }

    /// The predictor's too, which inference does not read.
    fn parameters(&self) -> Result<Vec<Param>, Error> {
        let mut b = Builder::new();
        let size = self.example_size();
        let masks = self.masks_of(self.encoder.grid(&size));
        let image: Vec<usize> = [1].into_iter().chain(size).chain([self.encoder.channels]).collect();
        let x = b.input("x", Type::f32(Shape::new(&image)));
        let rows = [("visible", masks.visible), ("hidden", masks.hidden)]
            .map(|(name, count)| b.input(name, Type::i32([1, count])));
        let domain = (self.domains > 0).then(|| b.input("domain", Type::i32([1])));
        let mut params = vec![];
        self.predicted(&mut Scope::new(&mut b, &mut params), x, rows, domain);
        b.finish()?;
        Ok(params)
    }
}
