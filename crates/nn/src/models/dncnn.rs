//! DnCNN (Zhang et al. 2017): a chain of 3 x 3 convolutions that predicts the noise, which is subtracted from its input.
//!
//! As KAIR's released weights have it, with batch norms merged into the convolutions, and with their names (`model.0`,
//! `model.2` and so on); or with batch norms after the inner convolutions (`norm` is `batch`), as in the paper's training
//! and with KAIR's names for it. In 2-D and 3-D. Its receptive field extends as many pixels to each side as there are
//! layers, so it is exact on tiles. The last layer is initialised with zeros: the first output is the input.

use crate::Error;
use crate::init::Law;
use crate::layers::{self, Layer, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LAYERS, count, unsupported};
use crate::models::network::{Given, Network, Port};
use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, Unary};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnCnnConfig {
    pub spatial_dims: usize,
    /// Channels of the input; where they are several times those of the output, the noise is taken off the first of each group.
    pub in_channels: usize,
    pub out_channels: usize,
    /// Channels between the layers.
    pub channels: usize,
    /// Convolutions, the first and the last included.
    pub layers: usize,
    /// What is between a convolution and its activation, but for the first and the last.
    pub norm: Norm,
}

/// A norm of DnCNN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    #[default]
    None,
    Batch,
}

impl Default for DnCnnConfig {
    fn default() -> DnCnnConfig {
        DnCnnConfig {
            spatial_dims: 2,
            in_channels: 1,
            out_channels: 1,
            channels: 64,
            layers: 17,
            norm: Norm::None,
        }
    }
}

/// Every choice made and checked; see [`DnCnnConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct DnCnn {
    config: DnCnnConfig,
}

impl DnCnnConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<DnCnnConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<DnCnn, Error> {
        config::spatial_dims(self.spatial_dims)?;
        count("in_channels", self.in_channels, MOST_CHANNELS)?;
        count("out_channels", self.out_channels, MOST_CHANNELS)?;
        count("channels", self.channels, MOST_CHANNELS)?;
        count("layers", self.layers, MOST_LAYERS)?;
        if self.layers < 2 {
            return Err(unsupported("layers", self.layers.to_string(), "2 or more"));
        }
        if !self.in_channels.is_multiple_of(self.out_channels) {
            let got = format!("{} for out_channels {}", self.in_channels, self.out_channels);
            return Err(unsupported("in_channels", got, "a multiple of out_channels"));
        }
        Ok(DnCnn { config: self.clone() })
    }
}

impl Network for DnCnn {
    fn in_channels(&self) -> usize {
        self.config.in_channels
    }

    fn out_channels(&self) -> usize {
        self.config.out_channels
    }

    fn dims(&self) -> usize {
        self.config.spatial_dims
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
    }

    fn check_size(&self, _: &[usize]) -> Result<(), String> {
        Ok(())
    }

    fn example_size(&self) -> Vec<usize> {
        vec![4; self.config.spatial_dims]
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let DnCnnConfig { spatial_dims, in_channels, out_channels, channels, layers, norm } = self.config;
        let geometry = Geometry::new(spatial_dims, 1, 1);
        let mut h = given.x();
        // Norms and activations count as layers in the authors' names.
        let mut at = 0;
        for i in 0..layers {
            let last = i + 1 == layers;
            let (width, law) = if last { (out_channels, Law::Zero) } else { (channels, Law::He(0.0)) };
            let layer = Layer { bias: true, law };
            h = layers::conv_by(&mut s.at(&format!("model.{at}")), h, width, [3; 3], geometry, layer);
            at += 1;
            if i > 0 && !last && norm == Norm::Batch {
                h = layers::batch_norm(&mut s.at(&format!("model.{at}")), h, given.is_learning());
                at += 1;
            }
            if !last {
                h = s.b.unary(Unary::Relu, h);
                at += 1;
            }
        }
        let x = given.x();
        let step = in_channels / out_channels;
        let noisy = match step {
            1 => x,
            _ => {
                let parts: Vec<Value> =
                    (0..out_channels).map(|c| s.b.slice(x, spatial_dims + 1, c * step, 1)).collect();
                if parts.len() == 1 { parts[0] } else { s.b.concat_channels(&parts) }
            }
        };
        s.b.sub(noisy, h)
    }
}
