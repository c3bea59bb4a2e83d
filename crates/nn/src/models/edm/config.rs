//! The configuration of EDM's networks: the authors' arguments by their names, those of the preconditioning and those of
//! the network together, and their conversion to the network.

use super::block::{Fir, Style, groups};
use super::plan::{Encoder, Kind, Shape};
use super::{Edm, Embedding, Family};
use crate::Error;
use crate::init::{Law, Taps};
use crate::models::config::{
    self, MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, choice, count, counts, dropout_rate, positive, unsupported,
};
use crate::precondition::Precondition;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// As written. Where a default depends on the network, nothing stands for the authors'.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EdmConfig {
    /// `EDMPrecond`, `VPPrecond`, `VEPrecond` or `iDDPMPrecond`.
    pub precond: String,
    /// `SongUNet` or `DhariwalUNet`.
    pub model_type: String,
    /// The image's side that level 0 is named after.
    pub img_resolution: usize,
    pub img_channels: usize,
    /// Ours: clean channels that stand beside the noisy image.
    pub condition_channels: usize,
    pub label_dim: usize,
    pub augment_dim: usize,
    pub sigma_data: f64,
    pub beta_d: f64,
    pub beta_min: f64,
    #[serde(rename = "M")]
    pub steps: usize,
    #[serde(rename = "C_1")]
    pub c1: f64,
    #[serde(rename = "C_2")]
    pub c2: f64,
    pub model_channels: Option<usize>,
    pub channel_mult: Option<Vec<usize>>,
    pub channel_mult_emb: usize,
    pub num_blocks: Option<usize>,
    pub attn_resolutions: Option<Vec<usize>>,
    pub dropout: f64,
    pub label_dropout: f64,
    pub embedding_type: String,
    pub channel_mult_noise: usize,
    pub encoder_type: String,
    pub decoder_type: String,
    pub resample_filter: Vec<f64>,
}

impl Default for EdmConfig {
    fn default() -> EdmConfig {
        EdmConfig {
            precond: "EDMPrecond".into(),
            model_type: "DhariwalUNet".into(),
            img_resolution: 64,
            img_channels: 1,
            condition_channels: 0,
            label_dim: 0,
            augment_dim: 0,
            sigma_data: 0.5,
            beta_d: 19.9,
            beta_min: 0.1,
            steps: 1000,
            c1: 0.001,
            c2: 0.008,
            model_channels: None,
            channel_mult: None,
            channel_mult_emb: 4,
            num_blocks: None,
            attn_resolutions: None,
            dropout: 0.1,
            label_dropout: 0.0,
            embedding_type: "positional".into(),
            channel_mult_noise: 1,
            encoder_type: "standard".into(),
            decoder_type: "standard".into(),
            resample_filter: vec![1.0, 1.0],
        }
    }
}

impl EdmConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<EdmConfig, Error> {
        config::from_map(map)
    }

    /// DDPM++ as the authors train it on 32 x 32 pixels.
    pub fn ddpmpp() -> EdmConfig {
        EdmConfig {
            model_type: "SongUNet".into(),
            channel_mult: Some(vec![2, 2, 2]),
            img_resolution: 32,
            ..EdmConfig::default()
        }
    }

    /// NCSN++ as the authors train it on 32 x 32 pixels.
    pub fn ncsnpp() -> EdmConfig {
        EdmConfig {
            embedding_type: "fourier".into(),
            channel_mult_noise: 2,
            encoder_type: "residual".into(),
            resample_filter: vec![1.0, 3.0, 3.0, 1.0],
            ..EdmConfig::ddpmpp()
        }
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Edm, Error> {
        let family = match choice("model_type", &self.model_type, &["SongUNet", "DhariwalUNet"])? {
            0 => Family::Song,
            _ => Family::Dhariwal,
        };
        let song = family == Family::Song;
        let or =
            |given: Option<usize>, song_has, adm_has| given.unwrap_or(if song { song_has } else { adm_has });
        let lists = |given: &Option<Vec<usize>>, song_has: &[usize], adm_has: &[usize]| {
            given.clone().unwrap_or_else(|| if song { song_has.to_vec() } else { adm_has.to_vec() })
        };
        let model_channels = count("model_channels", or(self.model_channels, 128, 192), MOST_CHANNELS)?;
        let channel_mult = lists(&self.channel_mult, &[1, 2, 2, 2], &[1, 2, 3, 4]);
        counts("channel_mult", &channel_mult, MOST_LEVELS, MOST_CHANNELS)?;
        for mult in &channel_mult {
            count("channel_mult", model_channels * mult, MOST_CHANNELS)?;
        }
        let attn_resolutions = lists(&self.attn_resolutions, &[16], &[32, 16, 8]);
        let levels = channel_mult.len();
        let resolution = count("img_resolution", self.img_resolution, 1 << 20)?;
        if resolution >> (levels - 1) == 0 {
            let supported = format!("at least {}, for {levels} levels", 1 << (levels - 1));
            return Err(unsupported("img_resolution", resolution.to_string(), &supported));
        }
        let encoders = ["standard", "skip", "residual"];
        let encoder = [Encoder::Standard, Encoder::Skip, Encoder::Residual]
            [choice("encoder_type", &self.encoder_type, &encoders)?];
        let skip_decoder = choice("decoder_type", &self.decoder_type, &["standard", "skip"])? == 1;
        self.check_song_only(song)?;
        if self.label_dropout != 0.0 {
            let supported = "0: set the labels of the samples in question to zeros";
            return Err(unsupported("label_dropout", self.label_dropout.to_string(), supported));
        }
        let shape = Shape {
            family,
            resolution,
            model_channels,
            channel_mult: &channel_mult,
            num_blocks: count("num_blocks", or(self.num_blocks, 4, 3), MOST_LAYERS)?,
            attn_resolutions: &attn_resolutions,
            encoder,
            skip_decoder,
        };
        let [encoder, decoder] = shape.pieces();
        for kind in encoder.iter().chain(&decoder).map(|p| p.kind) {
            if let Kind::Block(block) = kind {
                check_channels(block.from)?;
                check_channels(block.to)?;
            }
        }
        Ok(Edm {
            precondition: self.precondition()?,
            channels: count("img_channels", self.img_channels, MOST_CHANNELS)?,
            condition: match self.condition_channels {
                0 => 0,
                n => count("condition_channels", n, MOST_CHANNELS)?,
            },
            levels,
            embedding: self.embedding(family, model_channels)?,
            style: self.style(song)?,
            encoder,
            decoder,
        })
    }

    /// ADM has none of Song's choices.
    fn check_song_only(&self, song: bool) -> Result<(), Error> {
        let default = EdmConfig::default();
        let adm = |key, got: String, same: bool| {
            if song || same { Ok(()) } else { Err(unsupported(key, got, "another model_type: SongUNet")) }
        };
        let (e, d) = (&self.embedding_type, &self.decoder_type);
        adm("embedding_type", e.clone(), *e == default.embedding_type)?;
        adm("channel_mult_noise", self.channel_mult_noise.to_string(), self.channel_mult_noise == 1)?;
        adm("encoder_type", self.encoder_type.clone(), self.encoder_type == default.encoder_type)?;
        adm("decoder_type", d.clone(), *d == default.decoder_type)?;
        let filter = &self.resample_filter;
        adm("resample_filter", format!("{filter:?}"), *filter == default.resample_filter)
    }

    fn precondition(&self) -> Result<Precondition, Error> {
        let known = ["EDMPrecond", "VPPrecond", "VEPrecond", "iDDPMPrecond"];
        Ok(match choice("precond", &self.precond, &known)? {
            0 => Precondition::Edm { sigma_data: positive("sigma_data", self.sigma_data)? },
            1 => Precondition::Vp {
                beta_d: positive("beta_d", self.beta_d)?,
                beta_min: positive("beta_min", self.beta_min)?,
                steps: count("M", self.steps, 1 << 24)? as f64,
            },
            2 => Precondition::Ve,
            _ => Precondition::Iddpm {
                c1: positive("C_1", self.c1)?,
                c2: positive("C_2", self.c2)?,
                steps: count("M", self.steps, 1 << 16)?,
            },
        })
    }

    fn embedding(&self, kind: Family, model_channels: usize) -> Result<Embedding, Error> {
        let most = 1 << 20;
        let noise = model_channels * count("channel_mult_noise", self.channel_mult_noise, 64)?;
        if noise < 4 || !noise.is_multiple_of(2) {
            let supported = "even numbers from 4, half for sines and half for cosines";
            return Err(unsupported("model_channels", model_channels.to_string(), supported));
        }
        let none_or = |key, n| if n == 0 { Ok(0) } else { count(key, n, most) };
        Ok(Embedding {
            kind,
            fourier: choice("embedding_type", &self.embedding_type, &["positional", "fourier"])? == 1,
            noise,
            width: model_channels * count("channel_mult_emb", self.channel_mult_emb, 64)?,
            labels: none_or("label_dim", self.label_dim)?,
            augment: none_or("augment_dim", self.augment_dim)?,
        })
    }

    fn style(&self, song: bool) -> Result<Style, Error> {
        let taps = Taps::new(&self.resample_filter).filter(|t| t.values().len().is_multiple_of(2));
        let Some(taps) = taps else {
            let supported = format!("an even number of taps, {} at most, with a positive sum", Taps::MOST);
            return Err(unsupported("resample_filter", format!("{:?}", self.resample_filter), &supported));
        };
        let attention = Law::Glorot(0.2f32.sqrt());
        Ok(Style {
            eps: if song { 1e-6 } else { 1e-5 },
            skip_scale: if song { std::f64::consts::FRAC_1_SQRT_2 } else { 1.0 },
            adaptive: !song,
            resample_proj: song,
            dropout: dropout_rate("dropout", self.dropout)?,
            fir: Fir { taps },
            laws: if song {
                [Law::Glorot(1.0), Law::Glorot(1e-5), attention]
            } else {
                [Law::Torch, Law::Zero, Law::Torch]
            },
        })
    }
}

/// Whether the norm's groups, four channels or more in each, come out even.
fn check_channels(channels: usize) -> Result<(), Error> {
    let groups = groups(channels);
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(());
    }
    let got = format!("such that a block has {channels} channels");
    let supported = format!("numbers of channels that the {} groups of a norm divide", groups.max(1));
    Err(unsupported("model_channels", got, &supported))
}
