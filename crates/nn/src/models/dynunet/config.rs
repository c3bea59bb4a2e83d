//! The configuration of a `DynUNet`: MONAI's arguments with MONAI's names and defaults, and their conversion to the network.

use super::{DynUNet, LAW, Level, Norm};
use crate::Error;
use crate::layers::Layer;
use crate::models::config::{
    self, MOST_CHANNELS, MOST_LEVELS, OneOrEach, choice, count, counts, divides, dropout_rate, positive,
    unsupported,
};
use clearshot_graph::ops::Unary;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// By how much all levels together may make an image smaller.
const MOST_SHRINKING: usize = 1 << 16;

/// The name of a layer, alone or with arguments: `"INSTANCE"` or `["INSTANCE", {"affine": true}]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Named {
    Alone(String),
    With(String, Map<String, Json>),
}

impl Named {
    fn parts(&self) -> (String, Map<String, Json>) {
        match self {
            Named::Alone(name) => (name.to_lowercase(), Map::new()),
            Named::With(name, arguments) => (name.to_lowercase(), arguments.clone()),
        }
    }
}

/// MONAI's `DynUNet`, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynUNetConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    /// One entry a level, each one size for all axes or one for each.
    pub kernel_size: Vec<OneOrEach<usize>>,
    pub strides: Vec<OneOrEach<usize>>,
    pub upsample_kernel_size: Vec<OneOrEach<usize>>,
    pub filters: Option<Vec<usize>>,
    pub dropout: Option<f64>,
    /// Instance norm has parameters unless `affine` is false.
    pub norm_name: Named,
    pub act_name: Named,
    pub deep_supervision: bool,
    pub deep_supr_num: usize,
    pub res_block: bool,
    pub trans_bias: bool,
}

impl Default for DynUNetConfig {
    fn default() -> DynUNetConfig {
        let each = |values: &[usize]| values.iter().map(|&v| OneOrEach::One(v)).collect();
        DynUNetConfig {
            spatial_dims: 2,
            in_channels: 1,
            out_channels: 1,
            kernel_size: each(&[3, 3, 3]),
            strides: each(&[1, 2, 2]),
            upsample_kernel_size: each(&[2, 2]),
            filters: None,
            dropout: None,
            norm_name: Named::Alone("INSTANCE".into()),
            act_name: Named::Alone("leakyrelu".into()),
            deep_supervision: false,
            deep_supr_num: 1,
            res_block: false,
            trans_bias: false,
        }
    }
}

impl DynUNetConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<DynUNetConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<DynUNet, Error> {
        let dims = self.spatial_dims;
        config::spatial_dims(dims)?;
        let levels = self.levels()?;
        let dropout = self.dropout.unwrap_or(0.0);
        Ok(DynUNet {
            dims,
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            norm: self.norm(&levels)?,
            act: self.activation()?,
            transposed: Layer { bias: self.trans_bias, law: LAW },
            residual: self.res_block,
            dropout: dropout_rate("dropout", dropout)?,
            heads: self.heads(levels.len())?,
            levels,
        })
    }

    fn levels(&self) -> Result<Vec<Level>, Error> {
        let n = self.strides.len();
        if !(3..=MOST_LEVELS).contains(&n) {
            return Err(unsupported("strides", format!("{n} levels"), &format!("3 to {MOST_LEVELS}")));
        }
        let as_many = |key: &'static str, got: usize, want: usize| {
            let supported = format!("{want}, for {n} strides");
            if got == want { Ok(()) } else { Err(unsupported(key, format!("{got} entries"), &supported)) }
        };
        as_many("kernel_size", self.kernel_size.len(), n)?;
        as_many("upsample_kernel_size", self.upsample_kernel_size.len(), n - 1)?;
        let filters = self.channels(n)?;
        let mut levels = vec![];
        for i in 0..n {
            let kernel = self.axes("kernel_size", &self.kernel_size[i])?;
            let stride = self.axes("strides", &self.strides[i])?;
            let up = match i {
                0 => [1; 3],
                _ => self.axes("upsample_kernel_size", &self.upsample_kernel_size[i - 1])?,
            };
            if i > 0 && up != stride {
                let supported = format!("{stride:?} at level {i}, the stride that it undoes");
                return Err(unsupported("upsample_kernel_size", format!("{up:?}"), &supported));
            }
            for a in 0..3 {
                // The second convolution of a level keeps the size, which an even kernel cannot.
                if kernel[a].is_multiple_of(2) {
                    return Err(unsupported("kernel_size", kernel[a].to_string(), "odd sizes"));
                }
                // The residual's convolution is one pixel wide.
                let narrowest = if self.res_block { 1 } else { kernel[a] };
                if stride[a] > narrowest + 1 {
                    let supported = format!("at most {}, one more than the kernel", narrowest + 1);
                    return Err(unsupported("strides", stride[a].to_string(), &supported));
                }
            }
            levels.push(Level { kernel, stride, up, channels: filters[i] });
        }
        // Images have to be multiples of all strides together.
        let together = |a: usize| levels.iter().fold(1usize, |all, l| all.saturating_mul(l.stride[a]));
        if let Some(all) = (0..3).map(together).find(|&all| all > MOST_SHRINKING) {
            let supported = format!("strides whose product is at most {MOST_SHRINKING} along an axis");
            return Err(unsupported("strides", format!("{all} together"), &supported));
        }
        Ok(levels)
    }

    /// Z, Y, X; 1 along the axis that a plane lacks.
    fn axes(&self, key: &'static str, given: &OneOrEach<usize>) -> Result<[usize; 3], Error> {
        let each = given.of(key, self.spatial_dims)?;
        each.iter().try_for_each(|&x| count(key, x, 64).map(|_| ()))?;
        let mut out = [1; 3];
        out[3 - self.spatial_dims..].copy_from_slice(&each);
        Ok(out)
    }

    /// nnU-Net's doubling from 32 by default.
    fn channels(&self, levels: usize) -> Result<Vec<usize>, Error> {
        let Some(filters) = &self.filters else {
            let most = if self.spatial_dims == 3 { 320 } else { 512 };
            return Ok((0..levels).map(|i| (32 << i).min(most)).collect());
        };
        if filters.len() < levels {
            let got = format!("{} entries", filters.len());
            return Err(unsupported("filters", got, &format!("at least {levels}, one a level")));
        }
        counts("filters", filters, usize::MAX, MOST_CHANNELS)?;
        Ok(filters[..levels].to_vec())
    }

    fn norm(&self, levels: &[Level]) -> Result<Norm, Error> {
        let (name, arguments) = self.norm_name.parts();
        let kind = choice("norm_name", &name, &["instance", "group"])?;
        let mut norm = Norm { groups: None, affine: true, eps: 1e-5 };
        for (key, value) in &arguments {
            match (key.as_str(), value) {
                ("affine", Json::Bool(affine)) => norm.affine = *affine,
                ("eps", value) if value.is_number() => {
                    norm.eps = positive("norm_name", value.as_f64().unwrap_or(0.0))?;
                }
                ("num_groups", Json::Number(n)) if kind == 1 => {
                    norm.groups = Some(n.as_u64().unwrap_or(0) as usize);
                }
                _ => {
                    let supported = "affine and eps, and num_groups for `group`";
                    return Err(unsupported("norm_name", format!("`{key}`: {value}"), supported));
                }
            }
        }
        match (kind, norm.groups) {
            (1, None) => Err(unsupported("norm_name", "`group` alone".into(), "`num_groups` beside it")),
            (1, Some(groups)) => {
                levels.iter().try_for_each(|l| divides("norm_name", groups, l.channels))?;
                Ok(norm)
            }
            _ => Ok(norm),
        }
    }

    fn activation(&self) -> Result<Unary, Error> {
        let (name, mut arguments) = self.act_name.parts();
        arguments.remove("inplace");
        let slope = arguments.remove("negative_slope");
        if let Some((key, value)) = arguments.iter().next() {
            let supported = "inplace, and negative_slope for `leakyrelu`";
            return Err(unsupported("act_name", format!("`{key}`: {value}"), supported));
        }
        let kind = choice("act_name", &name, &["leakyrelu", "relu", "swish", "silu", "gelu"])?;
        let slope = match (kind, slope) {
            (_, None) => 0.01,
            (0, Some(Json::Number(slope))) => slope.as_f64().unwrap_or(0.01),
            (_, Some(other)) => {
                let supported = "a number, for `leakyrelu`";
                return Err(unsupported("act_name", format!("`negative_slope`: {other}"), supported));
            }
        };
        Ok(match kind {
            0 => Unary::LeakyRelu(slope),
            1 => Unary::Relu,
            2 | 3 => Unary::Silu,
            _ => Unary::Gelu,
        })
    }

    fn heads(&self, levels: usize) -> Result<usize, Error> {
        if !self.deep_supervision {
            return Ok(0);
        }
        if (1..levels - 1).contains(&self.deep_supr_num) {
            return Ok(self.deep_supr_num);
        }
        let supported = format!("1 to {}, less than the {} steps of the way up", levels - 2, levels - 1);
        Err(unsupported("deep_supr_num", self.deep_supr_num.to_string(), &supported))
    }
}
