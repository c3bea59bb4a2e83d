//! A network for super-resolution: any other network on the coarse grid, then a head on the fine one.
//!
//! Its input has the size of the fine grid, with every pixel repeated `factor` times along each axis, so that input and
//! output have the same size as for all networks; its first step is to return to the coarse grid. The head is CytoDL's:
//! linear interpolation of the other network's output, a residual block of two convolutions and one of single pixels, with
//! one feature and instance norms there. If `norm` is false it has none, and is exact on tiles if the other network is. If
//! input and output have the same number of channels, the interpolated image itself is added, so that the first output is
//! close to it.

use crate::Error;
use crate::init::Law;
use crate::layers::{self, Layer, Scope};
use crate::models::config::{self, MOST_CHANNELS, count, unsupported};
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// The value of `_class_name`.
pub const CLASS_NAME: &str = "Enlarged";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnlargedConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    /// How many times finer the grid is that comes out, along each axis.
    pub factor: usize,
    /// Channels that the network on the coarse grid gives.
    pub features: usize,
    /// Whether the head has instance norms.
    pub norm: bool,
    /// The `config.json` of the network on the coarse grid; its channels are those that fit.
    pub network: Map<String, Json>,
}

impl Default for EnlargedConfig {
    fn default() -> EnlargedConfig {
        let (in_channels, out_channels) = (1, 1);
        let network = [("_class_name", Json::from("Local")), ("time", false.into())];
        let network = network.map(|(key, value)| (key.to_string(), value)).into_iter().collect();
        EnlargedConfig { in_channels, out_channels, factor: 4, features: 16, norm: false, network }
    }
}

/// Every choice made and checked; see [`EnlargedConfig::resolve`].
#[derive(Debug)]
pub struct Enlarged {
    config: EnlargedConfig,
    inner: Box<dyn Network>,
}

/// The slope of activations, as MONAI has it.
const SLOPE: f64 = 0.01;
const EPS: f64 = 1e-5;

impl EnlargedConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<EnlargedConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported.
    pub fn resolve(&self) -> Result<Enlarged, Error> {
        count("in_channels", self.in_channels, MOST_CHANNELS)?;
        count("out_channels", self.out_channels, MOST_CHANNELS)?;
        count("features", self.features, MOST_CHANNELS)?;
        if !(2..=8).contains(&self.factor) {
            return Err(unsupported("factor", self.factor.to_string(), "2 to 8"));
        }
        let mut inner = self.network.clone();
        if inner.get("_class_name").and_then(Json::as_str) == Some(CLASS_NAME) {
            return Err(unsupported("network", CLASS_NAME.into(), "a network that keeps the size"));
        }
        inner.insert("in_channels".into(), self.in_channels.into());
        inner.insert("out_channels".into(), self.features.into());
        let inner = super::read(&Json::from(inner).to_string())?;
        let sizes: Vec<usize> =
            [1].into_iter().chain(inner.example_size()).chain([self.in_channels]).collect();
        if let Some(port) = inner.ports(Shape::new(&sizes)).iter().find(|p| !p.optional) {
            let got = format!("one that is told `{}`", port.name);
            return Err(unsupported("network", got, "networks that take an image alone (time: false)"));
        }
        Ok(Enlarged { config: self.clone(), inner })
    }
}

impl Enlarged {
    fn multiple(&self) -> Vec<usize> {
        self.inner.example_size().iter().map(|n| n * self.config.factor).collect()
    }

    fn normed(&self, s: &mut Scope<'_>, x: Value) -> Value {
        if !self.config.norm {
            return x;
        }
        let [gamma, beta] = layers::no_affine(s.b, x);
        s.b.instance_norm(x, gamma, beta, EPS)
    }
}

/// The image with one pixel for each block.
fn coarse(b: &mut Builder, x: Value, dims: usize, factor: usize) -> Value {
    let kernel = if dims == 2 { [1, factor, factor] } else { [factor; 3] };
    b.pool(x, PoolKind::Average, kernel, Geometry::new(dims, factor, 0))
}

impl Network for Enlarged {
    fn in_channels(&self) -> usize {
        self.config.in_channels
    }

    fn out_channels(&self) -> usize {
        self.config.out_channels
    }

    fn dims(&self) -> usize {
        self.inner.dims()
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &vec![self.config.factor; size.len()])?;
        let coarse: Vec<usize> = size.iter().map(|n| n / self.config.factor).collect();
        self.inner.check_size(&coarse).map_err(|why| format!("on the coarse grid, {why}"))
    }

    fn example_size(&self) -> Vec<usize> {
        self.multiple()
    }

    fn drops(&self) -> bool {
        self.inner.drops()
    }

    fn base_fan_in(&self) -> Option<usize> {
        self.inner.base_fan_in()
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let EnlargedConfig { in_channels, out_channels, factor, features, .. } = self.config;
        let dims = self.inner.dims();
        let small = coarse(s.b, given.x(), dims, factor);
        let mut inner = Given::image(small);
        if let Some(key) = given.get("key") {
            inner = inner.with("key", key);
        }
        let made = self.inner.add(&mut s.at("network"), &inner);
        let x = s.b.upsample(made, ResizeMode::Linear, factor);
        let geometry = Geometry::new(dims, 1, 1);
        let layer = Layer { bias: !self.config.norm, law: Law::He(SLOPE as f32) };
        let h = layers::conv_by(&mut s.at("head.conv1"), x, features, [3; 3], geometry, layer);
        let h = self.normed(s, h);
        let h = s.b.unary(Unary::LeakyRelu(SLOPE), h);
        let h = layers::conv_by(&mut s.at("head.conv2"), h, features, [3; 3], geometry, layer);
        let h = self.normed(s, h);
        let h = s.b.add(h, x);
        let h = s.b.unary(Unary::LeakyRelu(SLOPE), h);
        let last = Layer { bias: true, law: Law::Normal(0.01) };
        let h = layers::conv_by(&mut s.at("head.out"), h, out_channels, [1; 3], Geometry::new(2, 1, 0), last);
        if in_channels != out_channels {
            return h;
        }
        let own = s.b.upsample(small, ResizeMode::Linear, factor);
        s.b.add(own, h)
    }
}
