//! Resolves a configuration to a network, with all checks.

use super::{Added, Attend, Class, Level, Mid, TIME_IDS, Time, UNet2DCondition, UNet2DConditionConfig};
use crate::Error;
use crate::layers::ResnetStyle;
use crate::models::config::{
    MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, MOST_ROWS, activation, choice, count, counts, divides,
    dropout_rate, only, positive, unsupported,
};
use clearshot_graph::ops::Unary;

const DOWN_BLOCKS: &[&str] = &["DownBlock2D", "CrossAttnDownBlock2D"];
const UP_BLOCKS: &[&str] = &["UpBlock2D", "CrossAttnUpBlock2D"];

impl UNet2DConditionConfig {
    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<UNet2DCondition, Error> {
        match self.bookkeeping.get("_class_name") {
            Some(name) if name.as_str() != Some(super::CLASS_NAME) => {
                return Err(unsupported("_class_name", name.to_string(), super::CLASS_NAME));
            }
            _ => {}
        }
        self.check_absent()?;
        let groups = match self.norm_num_groups {
            Some(groups) => count("norm_num_groups", groups, MOST_CHANNELS)?,
            None => return Err(unsupported("norm_num_groups", "null".into(), "a number")),
        };
        let levels = self.levels(groups)?;
        let shifts = ["default", "scale_shift"];
        if self.downsample_padding > 1 {
            let got = self.downsample_padding.to_string();
            return Err(unsupported("downsample_padding", got, "0 and 1; more does not halve the size"));
        }
        let odd = |key, got: usize| {
            let got = count(key, got, 63)?;
            if got % 2 == 1 { Ok(got) } else { Err(unsupported(key, got.to_string(), "odd sizes")) }
        };
        Ok(UNet2DCondition {
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            center_input: self.center_input_sample,
            time: self.time()?,
            class: self.class()?,
            class_beside: self.class_embeddings_concat,
            added: self.added()?,
            embedding: self.width()?,
            mid: self.mid(&levels)?,
            mid_scale: positive("mid_block_scale_factor", self.mid_block_scale_factor)?,
            style: ResnetStyle {
                groups,
                eps: positive("norm_eps", self.norm_eps)?,
                act: activation("act_fn", &self.act_fn)?,
                scale_shift: 1 == choice("resnet_time_scale_shift", &self.resnet_time_scale_shift, &shifts)?,
                dropout: dropout_rate("dropout", self.dropout)?,
            },
            pad_downsample: self.downsample_padding == 1,
            linear_projection: self.use_linear_projection,
            context_from: self.context_from()?,
            kernels: [
                odd("conv_in_kernel", self.conv_in_kernel)?,
                odd("conv_out_kernel", self.conv_out_kernel)?,
            ],
            levels,
        })
    }

    /// Choices of which only one is supported.
    fn check_absent(&self) -> Result<(), Error> {
        only("num_attention_heads", &self.num_attention_heads, &None)?;
        only("dual_cross_attention", &self.dual_cross_attention, &false)?;
        only("resnet_skip_time_act", &self.resnet_skip_time_act, &false)?;
        only("resnet_out_scale_factor", &self.resnet_out_scale_factor, &1.0)?;
        only("attention_type", &self.attention_type, &"default".to_string())?;
        only("cross_attention_norm", &self.cross_attention_norm, &None)
    }

    fn levels(&self, groups: usize) -> Result<Vec<Level>, Error> {
        let channels = &self.block_out_channels;
        counts("block_out_channels", channels, MOST_LEVELS, MOST_CHANNELS)?;
        let n = channels.len();
        for (key, names) in
            [("down_block_types", &self.down_block_types), ("up_block_types", &self.up_block_types)]
        {
            if names.len() != n {
                let got = format!("{} blocks for {n} block_out_channels", names.len());
                return Err(unsupported(key, got, "as many of both"));
            }
        }
        let layers = self.layers_per_block.of("layers_per_block", n)?;
        let heads = self.attention_head_dim.of("attention_head_dim", n)?;
        let context = self.cross_attention_dim.of("cross_attention_dim", n)?;
        if let Some(other) = context.iter().find(|c| **c != context[0]) {
            let supported = format!("the same at every level, {} as at the first", context[0]);
            return Err(unsupported("cross_attention_dim", other.to_string(), &supported));
        }
        let cross = self.only_cross_attention.of("only_cross_attention", n)?;
        let depth = self.transformer_layers_per_block.of("transformer_layers_per_block", n)?;
        let mut back: Vec<usize> = depth.iter().rev().copied().collect();
        if let Some(given) = &self.reverse_transformer_layers_per_block {
            counts("reverse_transformer_layers_per_block", given, n, MOST_LAYERS)?;
            if given.len() != n {
                let got = format!("a list of {}", given.len());
                return Err(unsupported(
                    "reverse_transformer_layers_per_block",
                    got,
                    &format!("a list of {n}"),
                ));
            }
            back.clone_from(given);
        }
        let mut levels = vec![];
        for i in 0..n {
            divides("norm_num_groups", groups, channels[i])?;
            count("layers_per_block", layers[i], MOST_LAYERS)?;
            let (down, up) = (&self.down_block_types[i], &self.up_block_types[n - 1 - i]);
            let attend = |depth: usize| -> Result<Attend, Error> {
                let heads = count("attention_head_dim", heads[i], MOST_CHANNELS)?;
                if heads > channels[i] {
                    let supported =
                        format!("at most {}, the channels: it is the number of heads", channels[i]);
                    return Err(unsupported("attention_head_dim", heads.to_string(), &supported));
                }
                Ok(Attend {
                    heads,
                    context: count("cross_attention_dim", context[i], MOST_CHANNELS)?,
                    depth: count("transformer_layers_per_block", depth, MOST_LAYERS)?,
                    only_cross: cross[i],
                })
            };
            let with = |key, name: &str, known, depth| {
                let attends = choice(key, name, known)? == 1;
                attends.then(|| attend(depth)).transpose()
            };
            levels.push(Level {
                channels: channels[i],
                layers: layers[i],
                down: with("down_block_types", down, DOWN_BLOCKS, depth[i])?,
                up: with("up_block_types", up, UP_BLOCKS, back[n - 1 - i])?,
            });
        }
        Ok(levels)
    }

    fn mid(&self, levels: &[Level]) -> Result<Mid, Error> {
        let Some(name) = &self.mid_block_type else { return Ok(Mid::None) };
        if choice("mid_block_type", name, &["UNetMidBlock2DCrossAttn", "UNetMidBlock2D"])? == 1 {
            return Ok(Mid::Plain);
        }
        let n = levels.len();
        let last = |list: Vec<usize>| list[n - 1];
        let heads = last(self.attention_head_dim.of("attention_head_dim", n)?);
        if heads > levels[n - 1].channels {
            let supported =
                format!("at most {}, the channels: it is the number of heads", levels[n - 1].channels);
            return Err(unsupported("attention_head_dim", heads.to_string(), &supported));
        }
        Ok(Mid::Attend(Attend {
            heads: count("attention_head_dim", heads, MOST_CHANNELS)?,
            context: last(self.cross_attention_dim.of("cross_attention_dim", n)?),
            depth: last(self.transformer_layers_per_block.of("transformer_layers_per_block", n)?),
            only_cross: false,
        }))
    }

    fn is_fourier(&self) -> Result<bool, Error> {
        Ok(choice("time_embedding_type", &self.time_embedding_type, &["positional", "fourier"])? == 1)
    }

    /// Width of the time embedding.
    fn width(&self) -> Result<usize, Error> {
        match self.time_embedding_dim {
            // diffusers takes 0 for none.
            None | Some(0) => Ok(self.block_out_channels[0] * if self.is_fourier()? { 2 } else { 4 }),
            Some(n) => count("time_embedding_dim", n, 4 * MOST_CHANNELS),
        }
    }

    fn time(&self) -> Result<Time, Error> {
        let fourier = self.is_fourier()?;
        let width = if fourier { self.width()? } else { self.block_out_channels[0] };
        if fourier && width % 2 == 1 {
            return Err(unsupported("time_embedding_dim", width.to_string(), "even numbers"));
        }
        let half = width / 2;
        if !fourier && (self.freq_shift >= half as f64 || !self.freq_shift.is_finite()) {
            let supported = format!("less than {half}, half of the first block_out_channels");
            return Err(unsupported("freq_shift", self.freq_shift.to_string(), &supported));
        }
        let act = |key, name: &Option<String>| -> Result<Option<Unary>, Error> {
            name.as_ref().map(|name| activation(key, name)).transpose()
        };
        Ok(Time {
            fourier,
            width,
            cos_first: self.flip_sin_to_cos,
            shift: self.freq_shift,
            act: activation("act_fn", &self.act_fn)?,
            post_act: act("timestep_post_act", &self.timestep_post_act)?,
            embed_act: act("time_embedding_act_fn", &self.time_embedding_act_fn)?,
            condition: self
                .time_cond_proj_dim
                .map(|n| count("time_cond_proj_dim", n, MOST_CHANNELS))
                .transpose()?,
        })
    }

    fn projected_from(&self) -> Result<usize, Error> {
        let key = "projection_class_embeddings_input_dim";
        match self.projection_class_embeddings_input_dim {
            Some(n) => count(key, n, MOST_ROWS),
            None => Err(unsupported(key, "null".into(), "the width of the vector that is projected")),
        }
    }

    fn class(&self) -> Result<Class, Error> {
        let kinds = ["timestep", "identity", "projection", "simple_projection"];
        Ok(match (&self.class_embed_type, self.num_class_embeds) {
            (None, None) => {
                only("class_embeddings_concat", &self.class_embeddings_concat, &false)?;
                Class::None
            }
            (None, Some(n)) => Class::Table { rows: count("num_class_embeds", n, MOST_ROWS)? },
            (Some(kind), _) => match choice("class_embed_type", kind, &kinds)? {
                0 => Class::Timestep,
                1 => Class::Identity,
                2 => Class::Projection { from: self.projected_from()? },
                _ => Class::Linear { from: self.projected_from()? },
            },
        })
    }

    fn added(&self) -> Result<Option<Added>, Error> {
        let Some(kind) = &self.addition_embed_type else { return Ok(None) };
        choice("addition_embed_type", kind, &["text_time"])?;
        let key = "addition_time_embed_dim";
        let Some(code) = self.addition_time_embed_dim else {
            return Err(unsupported(key, "null".into(), "the width of each number's code"));
        };
        let (code, from) = (count(key, code, MOST_CHANNELS)?, self.projected_from()?);
        if self.class_embeddings_concat {
            return Err(unsupported("class_embeddings_concat", "true".into(), "false beside text_time"));
        }
        match from.checked_sub(TIME_IDS * code) {
            Some(text) if text > 0 => Ok(Some(Added { text, code })),
            _ => {
                let supported = format!("more than {}, the codes of {TIME_IDS} numbers", TIME_IDS * code);
                let key = "projection_class_embeddings_input_dim";
                Err(unsupported(key, from.to_string(), &supported))
            }
        }
    }

    fn context_from(&self) -> Result<Option<usize>, Error> {
        match (&self.encoder_hid_dim_type, self.encoder_hid_dim) {
            (None, None) => Ok(None),
            (kind, Some(n)) => {
                choice("encoder_hid_dim_type", kind.as_deref().unwrap_or("text_proj"), &["text_proj"])?;
                Ok(Some(count("encoder_hid_dim", n, MOST_CHANNELS)?))
            }
            (Some(_), None) => {
                let supported = "a number, where there is an encoder_hid_dim_type";
                Err(unsupported("encoder_hid_dim", "null".into(), supported))
            }
        }
    }
}
