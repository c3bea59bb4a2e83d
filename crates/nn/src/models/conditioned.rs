//! A diffusion network conditioned on the measurement in one of the three ways of latent diffusion's `DiffusionWrapper`, by
//! its names: `concat`, as channels next to the noisy image; `crossattn`, as patches for cross-attention; `adm`, as one
//! vector that scales and shifts features like the time embedding.
//!
//! Images have the same layout as for every network, the noisy channels first and those of the measurement after them; only
//! the key selects how the latter are used, so that the three can be compared on the same data. The inner network is a
//! UNet2DConditionModel. With `crossattn`, a convolution makes a token of each patch, and its position is encoded by fixed
//! sines and cosines; the same code of each pixel's position is concatenated with the noisy image, because attention could
//! not find the patch of a position otherwise. With `adm`, convolutions of stride 2 and a global mean make the vector,
//! which therefore describes the image as a whole and not what is where.

use crate::Error;
use crate::layers::{self, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LEVELS, count, unsupported};
use crate::models::network::{Given, Network, Port, multiples};
use crate::models::unet2d_condition::{self, UNet2DCondition, UNet2DConditionConfig};
use crate::models::vit;
use clearshot_graph::Value;
use clearshot_graph::ops::Geometry;
use clearshot_graph::reach::least_common_multiple;
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// The value of `_class_name`.
pub const CLASS_NAME: &str = "Conditioned";

/// Channels of the code of a pixel's place.
const PLACE: usize = 16;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConditionedConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    /// `concat`, `crossattn` or `adm`.
    pub conditioning_key: String,
    /// Numbers of a token, or of the vector.
    pub width: usize,
    /// Pixels along each side of a patch that becomes a token.
    pub patch_size: usize,
    /// Convolutions of stride 2 before the mean, for `adm`.
    pub depth: usize,
    /// The `config.json` of the network inside; the keys that follow from the others are filled in.
    pub network: Map<String, Json>,
}

impl Default for ConditionedConfig {
    fn default() -> ConditionedConfig {
        let network = serde_json::json!({
            "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 2,
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
        });
        let Json::Object(network) = network else { unreachable!("an object is written above") };
        ConditionedConfig {
            in_channels: 2,
            out_channels: 1,
            conditioning_key: "concat".into(),
            width: 32,
            patch_size: 4,
            depth: 4,
            network,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Concat,
    Cross { patch: usize },
    Adm { depth: usize },
}

/// Every choice made and checked; see [`ConditionedConfig::resolve`].
#[derive(Clone, Debug)]
pub struct Conditioned {
    in_channels: usize,
    out_channels: usize,
    way: Way,
    width: usize,
    inner: UNet2DCondition,
}

impl ConditionedConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<ConditionedConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported.
    pub fn resolve(&self) -> Result<Conditioned, Error> {
        let out_channels = count("out_channels", self.out_channels, MOST_CHANNELS)?;
        let in_channels = count("in_channels", self.in_channels, MOST_CHANNELS)?;
        if in_channels <= out_channels {
            let needed = "more than out_channels: the noisy image and a measurement";
            return Err(unsupported("in_channels", in_channels.to_string(), needed));
        }
        let width = count("width", self.width, MOST_CHANNELS)?;
        let way = match self.conditioning_key.as_str() {
            "concat" => Way::Concat,
            "crossattn" => Way::Cross { patch: count("patch_size", self.patch_size, 64)? },
            "adm" => Way::Adm { depth: count("depth", self.depth, MOST_LEVELS)? },
            other => return Err(unsupported("conditioning_key", other.into(), "concat, crossattn, adm")),
        };
        let mut inner = self.network.clone();
        match inner.remove("_class_name") {
            Some(other) if other.as_str() != Some(unet2d_condition::CLASS_NAME) => {
                return Err(unsupported("network", other.to_string(), unet2d_condition::CLASS_NAME));
            }
            _ => {}
        }
        let seen = match way {
            Way::Concat => in_channels,
            Way::Cross { .. } => out_channels + PLACE,
            Way::Adm { .. } => out_channels,
        };
        inner.insert("in_channels".into(), seen.into());
        inner.insert("out_channels".into(), out_channels.into());
        match way {
            Way::Cross { .. } => _ = inner.insert("cross_attention_dim".into(), width.into()),
            Way::Concat | Way::Adm { .. } => without_context(&mut inner),
        }
        if let Way::Adm { .. } = way {
            inner.insert("class_embed_type".into(), "projection".into());
            inner.insert("projection_class_embeddings_input_dim".into(), width.into());
        }
        let inner = UNet2DConditionConfig::from_map(inner)?.resolve()?;
        let network = Conditioned { in_channels, out_channels, way, width, inner };
        let told: Vec<&str> = network.inner_ports(network.example()).iter().map(|p| p.name).collect();
        let made: &[&str] = match way {
            Way::Concat => &["t"],
            Way::Cross { .. } => &["t", "context"],
            Way::Adm { .. } => &["t", "class"],
        };
        if told != made {
            let needed = format!("one with the inputs {}, by its block types", made.join(", "));
            return Err(unsupported(
                "network",
                format!("a network with the inputs {}", told.join(", ")),
                &needed,
            ));
        }
        Ok(network)
    }
}

/// The same network without attention to a context: it attends to nothing then, and has the same convolutions.
fn without_context(inner: &mut Map<String, Json>) {
    for (key, way) in [("down_block_types", "Down"), ("up_block_types", "Up")] {
        let Some(Json::Array(blocks)) = inner.get_mut(key) else { continue };
        blocks.iter_mut().for_each(|block| *block = format!("{way}Block2D").into());
    }
    inner.insert("mid_block_type".into(), "UNetMidBlock2D".into());
}

impl Conditioned {
    fn example(&self) -> Shape {
        let size = self.example_size();
        Shape::new(&[1, size[0], size[1], self.in_channels])
    }

    fn inner_ports(&self, image: Shape) -> Vec<Port> {
        self.inner.ports(image)
    }

    /// The side of squares that a size consists of.
    fn multiple(&self) -> usize {
        let inner = self.inner.example_size()[0];
        match self.way {
            Way::Cross { patch } => least_common_multiple(patch, inner),
            _ => inner,
        }
    }

    fn tokens(&self, s: &mut Scope<'_>, measured: Value, patch: usize) -> Value {
        let h = layers::conv(&mut s.at("patches"), measured, self.width, patch, Geometry::new(2, patch, 0));
        let [n, y, x] = [0, 1, 2].map(|i| s.b.shape(h)[i]);
        let h = s.b.reshape(h, [n, y * x, self.width]);
        let places = vit::positions(s.b, &[y, x], self.width, n);
        s.b.add(h, places)
    }

    fn vector(&self, s: &mut Scope<'_>, measured: Value, depth: usize) -> Value {
        let mut h = measured;
        for i in 0..depth {
            // What is one pixel wide already stays so.
            let stride = if s.b.shape(h)[1].min(s.b.shape(h)[2]) > 1 { 2 } else { 1 };
            h = layers::conv(
                &mut s.at(&format!("encoder.{i}")),
                h,
                self.width,
                3,
                Geometry::new(2, stride, 1),
            );
            h = s.b.silu(h);
        }
        let samples = s.b.shape(h)[0];
        let mean = s.b.mean(h, &[1, 2]);
        s.b.reshape(mean, [samples, self.width])
    }
}

impl Network for Conditioned {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        vec![Port::scalar("t", image)]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &[self.multiple(); 2])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![self.multiple(); 2]
    }

    fn drops(&self) -> bool {
        self.inner.drops()
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let x = given.x();
        let [n, height, width] = [0, 1, 2].map(|i| s.b.shape(x)[i]);
        let noisy = s.b.slice(x, 3, 0, self.out_channels);
        let measured = s.b.slice(x, 3, self.out_channels, self.in_channels - self.out_channels);
        let inner = match self.way {
            Way::Concat => Given::image(x),
            Way::Cross { patch } => {
                let places = vit::positions(s.b, &[height, width], PLACE, n);
                let places = s.b.reshape(places, [n, height, width, PLACE]);
                let tokens = self.tokens(s, measured, patch);
                Given::image(s.b.concat_channels(&[noisy, places])).with("context", tokens)
            }
            Way::Adm { depth } => Given::image(noisy).with("class", self.vector(s, measured, depth)),
        };
        let inner = inner.with("t", given.need("t"));
        let inner = match given.key() {
            Some(key) => inner.with("key", key),
            None => inner,
        };
        self.inner.add(&mut s.at("network"), &inner)
    }
}
