//! The `config.json` of a UNet2D: diffusers' keys and defaults.
//!
//! Every key is known or refused. Keys that begin with `_` are diffusers' bookkeeping and are kept unchanged. Whether the
//! values describe a network is checked by [`UNet2DConfig::resolve`].

use crate::Error;
use crate::models::config;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Height and width for which a network was trained; of no effect on the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SampleSize {
    Square(usize),
    Sides([usize; 2]),
}

/// diffusers' `UNet2DModel`, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UNet2DConfig {
    pub sample_size: Option<SampleSize>,
    pub in_channels: usize,
    pub out_channels: usize,
    pub center_input_sample: bool,
    pub time_embedding_type: String,
    pub time_embedding_dim: Option<usize>,
    pub freq_shift: f64,
    pub flip_sin_to_cos: bool,
    pub down_block_types: Vec<String>,
    pub mid_block_type: Option<String>,
    pub up_block_types: Vec<String>,
    pub block_out_channels: Vec<usize>,
    pub layers_per_block: usize,
    pub mid_block_scale_factor: f64,
    pub downsample_padding: usize,
    pub downsample_type: String,
    pub upsample_type: String,
    pub dropout: f64,
    pub act_fn: String,
    pub attention_head_dim: Option<usize>,
    pub norm_num_groups: usize,
    pub attn_norm_num_groups: Option<usize>,
    pub norm_eps: f64,
    pub resnet_time_scale_shift: String,
    pub add_attention: bool,
    pub class_embed_type: Option<String>,
    pub num_class_embeds: Option<usize>,
    pub num_train_timesteps: Option<usize>,
    /// The keys that begin with `_`.
    #[serde(flatten)]
    pub bookkeeping: BTreeMap<String, Json>,
}

impl Default for UNet2DConfig {
    fn default() -> UNet2DConfig {
        let blocks = |names: [&str; 4]| names.map(String::from).to_vec();
        UNet2DConfig {
            sample_size: None,
            in_channels: 3,
            out_channels: 3,
            center_input_sample: false,
            time_embedding_type: "positional".into(),
            time_embedding_dim: None,
            freq_shift: 0.0,
            flip_sin_to_cos: true,
            down_block_types: blocks([
                "DownBlock2D",
                "AttnDownBlock2D",
                "AttnDownBlock2D",
                "AttnDownBlock2D",
            ]),
            mid_block_type: Some("UNetMidBlock2D".into()),
            up_block_types: blocks(["AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"]),
            block_out_channels: vec![224, 448, 672, 896],
            layers_per_block: 2,
            mid_block_scale_factor: 1.0,
            downsample_padding: 1,
            downsample_type: "conv".into(),
            upsample_type: "conv".into(),
            dropout: 0.0,
            act_fn: "silu".into(),
            attention_head_dim: Some(8),
            norm_num_groups: 32,
            attn_norm_num_groups: None,
            norm_eps: 1e-5,
            resnet_time_scale_shift: "default".into(),
            add_attention: true,
            class_embed_type: None,
            num_class_embeds: None,
            num_train_timesteps: None,
            bookkeeping: BTreeMap::new(),
        }
    }
}

impl UNet2DConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// If it is not a JSON object, has a key that is not known, or a value of another kind than the key's.
    pub fn from_json(text: &str) -> Result<UNet2DConfig, Error> {
        UNet2DConfig::from_map(config::object(text)?)
    }

    /// As [`UNet2DConfig::from_json`], from an object that was read already.
    ///
    /// # Errors
    /// As there.
    pub fn from_map(map: Map<String, Json>) -> Result<UNet2DConfig, Error> {
        config::from_map(map)
    }

    /// The text of a `config.json` that diffusers reads.
    pub fn to_json(&self) -> String {
        let mut whole = self.clone();
        whole.bookkeeping.entry("_class_name".into()).or_insert_with(|| super::CLASS_NAME.into());
        serde_json::to_string_pretty(&whole).expect("numbers and strings are always JSON") + "\n"
    }
}
