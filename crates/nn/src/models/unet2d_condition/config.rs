//! The `config.json` of a UNet2DConditionModel: diffusers' keys and defaults.

use crate::Error;
use crate::models::config::{self, OneOrEach};
use crate::models::unet2d::SampleSize;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// diffusers' `UNet2DConditionModel`, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UNet2DConditionConfig {
    pub sample_size: Option<SampleSize>,
    pub in_channels: usize,
    pub out_channels: usize,
    pub center_input_sample: bool,
    pub flip_sin_to_cos: bool,
    pub freq_shift: f64,
    pub down_block_types: Vec<String>,
    pub mid_block_type: Option<String>,
    pub up_block_types: Vec<String>,
    pub only_cross_attention: OneOrEach<bool>,
    pub block_out_channels: Vec<usize>,
    pub layers_per_block: OneOrEach<usize>,
    pub downsample_padding: usize,
    pub mid_block_scale_factor: f64,
    pub dropout: f64,
    pub act_fn: String,
    pub norm_num_groups: Option<usize>,
    pub norm_eps: f64,
    pub cross_attention_dim: OneOrEach<usize>,
    pub transformer_layers_per_block: OneOrEach<usize>,
    pub reverse_transformer_layers_per_block: Option<Vec<usize>>,
    pub encoder_hid_dim: Option<usize>,
    pub encoder_hid_dim_type: Option<String>,
    pub attention_head_dim: OneOrEach<usize>,
    pub num_attention_heads: Option<OneOrEach<usize>>,
    pub dual_cross_attention: bool,
    pub use_linear_projection: bool,
    pub class_embed_type: Option<String>,
    pub addition_embed_type: Option<String>,
    pub addition_time_embed_dim: Option<usize>,
    pub num_class_embeds: Option<usize>,
    /// Of no effect where everything is computed in 32 bits.
    pub upcast_attention: Option<bool>,
    pub resnet_time_scale_shift: String,
    pub resnet_skip_time_act: bool,
    pub resnet_out_scale_factor: f64,
    pub time_embedding_type: String,
    pub time_embedding_dim: Option<usize>,
    pub time_embedding_act_fn: Option<String>,
    pub timestep_post_act: Option<String>,
    pub time_cond_proj_dim: Option<usize>,
    pub conv_in_kernel: usize,
    pub conv_out_kernel: usize,
    pub projection_class_embeddings_input_dim: Option<usize>,
    pub attention_type: String,
    pub class_embeddings_concat: bool,
    /// Of effect only on a kind of block that is not supported.
    pub mid_block_only_cross_attention: Option<bool>,
    pub cross_attention_norm: Option<String>,
    /// Of effect only on a kind of embedding that is not supported.
    pub addition_embed_type_num_heads: usize,
    /// The keys that begin with `_`.
    #[serde(flatten)]
    pub bookkeeping: BTreeMap<String, Json>,
}

impl Default for UNet2DConditionConfig {
    fn default() -> UNet2DConditionConfig {
        let blocks = |plain_first: bool, way: &str| {
            let name = |plain| format!("{}{way}Block2D", if plain { "" } else { "CrossAttn" });
            (0..4).map(|i| name(i == if plain_first { 0 } else { 3 })).collect()
        };
        UNet2DConditionConfig {
            sample_size: None,
            in_channels: 4,
            out_channels: 4,
            center_input_sample: false,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            down_block_types: blocks(false, "Down"),
            mid_block_type: Some("UNetMidBlock2DCrossAttn".into()),
            up_block_types: blocks(true, "Up"),
            only_cross_attention: OneOrEach::One(false),
            block_out_channels: vec![320, 640, 1280, 1280],
            layers_per_block: OneOrEach::One(2),
            downsample_padding: 1,
            mid_block_scale_factor: 1.0,
            dropout: 0.0,
            act_fn: "silu".into(),
            norm_num_groups: Some(32),
            norm_eps: 1e-5,
            cross_attention_dim: OneOrEach::One(1280),
            transformer_layers_per_block: OneOrEach::One(1),
            reverse_transformer_layers_per_block: None,
            encoder_hid_dim: None,
            encoder_hid_dim_type: None,
            attention_head_dim: OneOrEach::One(8),
            num_attention_heads: None,
            dual_cross_attention: false,
            use_linear_projection: false,
            class_embed_type: None,
            addition_embed_type: None,
            addition_time_embed_dim: None,
            num_class_embeds: None,
            upcast_attention: Some(false),
            resnet_time_scale_shift: "default".into(),
            resnet_skip_time_act: false,
            resnet_out_scale_factor: 1.0,
            time_embedding_type: "positional".into(),
            time_embedding_dim: None,
            time_embedding_act_fn: None,
            timestep_post_act: None,
            time_cond_proj_dim: None,
            conv_in_kernel: 3,
            conv_out_kernel: 3,
            projection_class_embeddings_input_dim: None,
            attention_type: "default".into(),
            class_embeddings_concat: false,
            mid_block_only_cross_attention: None,
            cross_attention_norm: None,
            addition_embed_type_num_heads: 64,
            bookkeeping: BTreeMap::new(),
        }
    }
}

impl UNet2DConditionConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<UNet2DConditionConfig, Error> {
        config::from_map(map)
    }
}
