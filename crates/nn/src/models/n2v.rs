//! The U-Net of Noise2Void (Krull et al. 2019) and of N2V2 (Hoeck et al. 2022).
//!
//! As in csbdeep: pairs of convolutions with ReLU, max pooling over 2 x 2 pixels on the way down, nearest upsampling and
//! concatenation on the way up, and a last 1 x 1 convolution; without batch norms, so that it is exact on tiles. N2V2 has
//! no skip connection at full resolution and blurs when it downsamples, here with the mean of 2 x 2 maxima, because blind
//! spots otherwise leave a checkerboard pattern. In 2-D and 3-D.

use crate::Error;
use crate::init::Law;
use crate::layers::{self, Layer, Scope};
use crate::models::config::{self, MOST_CHANNELS, MOST_LEVELS, count};
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode, Unary};
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct N2vConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Channels at full resolution; they double with every level.
    pub channels: usize,
    /// How often the size is halved.
    pub depth: usize,
    /// N2V2's changes: no skip connection at full resolution, and blurring on the way down.
    pub n2v2: bool,
}

impl Default for N2vConfig {
    fn default() -> N2vConfig {
        N2vConfig { spatial_dims: 2, in_channels: 1, out_channels: 1, channels: 32, depth: 2, n2v2: true }
    }
}

/// Every choice made and checked; see [`N2vConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct N2v {
    config: N2vConfig,
}

impl N2vConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<N2vConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<N2v, Error> {
        config::spatial_dims(self.spatial_dims)?;
        count("in_channels", self.in_channels, MOST_CHANNELS)?;
        count("out_channels", self.out_channels, MOST_CHANNELS)?;
        count("depth", self.depth, MOST_LEVELS - 1)?;
        count("channels", self.channels, MOST_CHANNELS >> self.depth)?;
        Ok(N2v { config: self.clone() })
    }
}

impl N2v {
    fn convolved(&self, s: &mut Scope<'_>, h: Value, name: &str, width: usize) -> Value {
        let layer = Layer { bias: true, law: Law::He(0.0) };
        let geometry = Geometry::new(self.config.spatial_dims, 1, 1);
        let h = layers::conv_by(&mut s.at(name), h, width, [3; 3], geometry, layer);
        s.b.unary(Unary::Relu, h)
    }

    fn smaller(&self, s: &mut Scope<'_>, h: Value) -> Value {
        let dims = self.config.spatial_dims;
        let kernel = |n: usize| if dims == 2 { [1, n, n] } else { [n; 3] };
        if self.config.n2v2 {
            let most = s.b.pool(h, PoolKind::Max, kernel(3), Geometry::new(dims, 1, 1));
            return layers::halved(s.b, most);
        }
        s.b.pool(h, PoolKind::Max, kernel(2), Geometry::new(dims, 2, 0))
    }
}

impl Network for N2v {
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

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &vec![1 << self.config.depth; self.config.spatial_dims])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![1 << self.config.depth; self.config.spatial_dims]
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let N2vConfig { channels, depth, n2v2, out_channels, .. } = self.config;
        let mut h = given.x();
        let mut skips = vec![];
        for level in 0..depth {
            let mut s = s.at(&format!("down.{level}"));
            h = self.convolved(&mut s, h, "conv1", channels << level);
            h = self.convolved(&mut s, h, "conv2", channels << level);
            skips.push(h);
            h = self.smaller(&mut s, h);
        }
        h = self.convolved(s, h, "middle.conv1", channels << depth);
        h = self.convolved(s, h, "middle.conv2", channels << (depth - 1));
        for level in (0..depth).rev() {
            let mut s = s.at(&format!("up.{level}"));
            h = s.b.upsample(h, ResizeMode::Nearest, 2);
            if level > 0 || !n2v2 {
                h = s.b.concat_channels(&[h, skips[level]]);
            }
            h = self.convolved(&mut s, h, "conv1", channels << level);
            h = self.convolved(&mut s, h, "conv2", channels << level.saturating_sub(1));
        }
        let geometry = Geometry::new(self.config.spatial_dims, 1, 0);
        layers::conv(&mut s.at("conv_out"), h, out_channels, 1, geometry)
    }
}
