//! Resolves a configuration to a network, with all checks.

use super::{ClassEmbedding, Level, Mid, TimeEmbedding, UNet2D, UNet2DConfig};
use crate::Error;
use crate::layers::{Resample, ResnetStyle};
use crate::models::config::{
    MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, MOST_ROWS, activation, choice, count, dropout_rate, positive,
    unsupported,
};

const DOWN_BLOCKS: &[&str] = &["DownBlock2D", "AttnDownBlock2D"];
const UP_BLOCKS: &[&str] = &["UpBlock2D", "AttnUpBlock2D"];

impl UNet2DConfig {
    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<UNet2D, Error> {
        self.check_class_name()?;
        let levels = self.levels()?;
        let first = levels[0].channels;
        let style = ResnetStyle {
            groups: self.norm_num_groups,
            eps: positive("norm_eps", self.norm_eps)?,
            act: activation("act_fn", &self.act_fn)?,
            scale_shift: 1
                == choice(
                    "resnet_time_scale_shift",
                    &self.resnet_time_scale_shift,
                    &["default", "scale_shift"],
                )?,
            dropout: dropout_rate("dropout", self.dropout)?,
        };
        let conv_or_resnet = |key, value| choice(key, value, &["conv", "resnet"]).map(|i| i == 1);
        let down_by_resnet = conv_or_resnet("downsample_type", &self.downsample_type)?;
        let up_by_resnet = conv_or_resnet("upsample_type", &self.upsample_type)?;
        if self.downsample_padding > 1 {
            let got = self.downsample_padding.to_string();
            return Err(unsupported("downsample_padding", got, "0 and 1; more does not halve the size"));
        }
        Ok(UNet2D {
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            center_input: self.center_input_sample,
            time: self.time_embedding()?,
            class: self.class_embedding()?,
            embedding: match self.time_embedding_dim {
                // diffusers takes 0 for none.
                None | Some(0) => 4 * first,
                Some(n) => count("time_embedding_dim", n, 4 * MOST_CHANNELS)?,
            },
            mid: self.mid(&levels)?,
            levels,
            layers: count("layers_per_block", self.layers_per_block, MOST_LAYERS)?,
            style,
            pad_downsample: self.downsample_padding == 1,
            attn_down: if down_by_resnet { Resample::Down } else { Resample::None },
            attn_up: if up_by_resnet { Resample::Up } else { Resample::None },
        })
    }

    fn check_class_name(&self) -> Result<(), Error> {
        match self.bookkeeping.get("_class_name") {
            Some(name) if name.as_str() != Some(super::CLASS_NAME) => {
                Err(unsupported("_class_name", name.to_string(), super::CLASS_NAME))
            }
            _ => Ok(()),
        }
    }

    fn levels(&self) -> Result<Vec<Level>, Error> {
        let channels = &self.block_out_channels;
        count("block_out_channels", channels.len(), MOST_LEVELS)?;
        for (key, names) in
            [("down_block_types", &self.down_block_types), ("up_block_types", &self.up_block_types)]
        {
            if names.len() != channels.len() {
                let got = format!("{} blocks for {} block_out_channels", names.len(), channels.len());
                return Err(unsupported(key, got, "as many of both"));
            }
        }
        let groups = count("norm_num_groups", self.norm_num_groups, MOST_CHANNELS)?;
        let mut levels = vec![];
        for (i, &channels) in channels.iter().enumerate() {
            count("block_out_channels", channels, MOST_CHANNELS)?;
            if !channels.is_multiple_of(groups) {
                let supported = format!("divisors of all block_out_channels, {channels} among them");
                return Err(unsupported("norm_num_groups", groups.to_string(), &supported));
            }
            let up = &self.up_block_types[self.up_block_types.len() - 1 - i];
            levels.push(Level {
                channels,
                head: self.head(channels)?,
                down_attention: block("down_block_types", &self.down_block_types[i], DOWN_BLOCKS)? == 1,
                up_attention: block("up_block_types", up, UP_BLOCKS)? == 1,
            });
        }
        for level in levels.iter().filter(|l| l.down_attention || l.up_attention) {
            self.check_head(level)?;
        }
        Ok(levels)
    }

    /// Channels of one head. Default: all of them.
    fn head(&self, channels: usize) -> Result<usize, Error> {
        self.attention_head_dim.map_or(Ok(channels), |d| count("attention_head_dim", d, MOST_CHANNELS))
    }

    fn check_head(&self, level: &Level) -> Result<(), Error> {
        if level.head <= level.channels {
            return Ok(());
        }
        let supported = format!("at most the {} channels of the block with attention", level.channels);
        Err(unsupported("attention_head_dim", level.head.to_string(), &supported))
    }

    fn mid(&self, levels: &[Level]) -> Result<Option<Mid>, Error> {
        let Some(name) = &self.mid_block_type else { return Ok(None) };
        choice("mid_block_type", name, &["UNetMidBlock2D"])?;
        let last = levels[levels.len() - 1];
        if self.mid_block_scale_factor <= 0.0 || !self.mid_block_scale_factor.is_finite() {
            let got = self.mid_block_scale_factor.to_string();
            return Err(unsupported("mid_block_scale_factor", got, "positive numbers"));
        }
        if self.add_attention {
            self.check_head(&last)?;
        }
        // Without a number of its own, attention has a norm only beside plain residual blocks.
        let groups = match self.attn_norm_num_groups {
            Some(g) if g == 0 || !last.channels.is_multiple_of(g) => {
                let supported = format!("divisors of {}", last.channels);
                return Err(unsupported("attn_norm_num_groups", g.to_string(), &supported));
            }
            Some(g) => Some(g),
            None => (self.resnet_time_scale_shift == "default").then_some(self.norm_num_groups),
        };
        Ok(Some(Mid { attention: self.add_attention, groups, scale: self.mid_block_scale_factor }))
    }

    fn time_embedding(&self) -> Result<TimeEmbedding, Error> {
        let kinds = ["positional", "fourier", "learned"];
        Ok(match choice("time_embedding_type", &self.time_embedding_type, &kinds)? {
            0 => {
                let half = self.block_out_channels[0] / 2;
                if self.freq_shift >= half as f64 || !self.freq_shift.is_finite() {
                    let supported = format!("less than {half}, half of the first block_out_channels");
                    return Err(unsupported("freq_shift", self.freq_shift.to_string(), &supported));
                }
                TimeEmbedding::Positional { cos_first: self.flip_sin_to_cos, shift: self.freq_shift }
            }
            1 => TimeEmbedding::Fourier,
            _ => match self.num_train_timesteps {
                Some(n) => TimeEmbedding::Learned { steps: count("num_train_timesteps", n, MOST_ROWS)? },
                None => {
                    let supported = "a number, where time_embedding_type is learned";
                    return Err(unsupported("num_train_timesteps", "null".into(), supported));
                }
            },
        })
    }

    fn class_embedding(&self) -> Result<ClassEmbedding, Error> {
        Ok(match (&self.class_embed_type, self.num_class_embeds) {
            (None, None) => ClassEmbedding::None,
            (None, Some(n)) => ClassEmbedding::Table { rows: count("num_class_embeds", n, MOST_ROWS)? },
            (Some(kind), _) => match choice("class_embed_type", kind, &["timestep", "identity"])? {
                0 => ClassEmbedding::Timestep,
                _ => ClassEmbedding::Identity,
            },
        })
    }
}

/// As [`choice`]; early versions of diffusers wrote `UNetRes` in front of a block's name.
fn block(key: &'static str, got: &str, known: &[&str]) -> Result<usize, Error> {
    choice(key, got.strip_prefix("UNetRes").unwrap_or(got), known)
}
