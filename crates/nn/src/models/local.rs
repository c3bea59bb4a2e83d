//! A UNet in which every pixel depends on a bounded neighbourhood: no norms over space and no attention.
//!
//! A tile with a sufficient margin then gives exactly the values of the whole image, so a restored image does not depend on
//! its tiles. Without norms a residual block is two convolutions, the first with the time embedding added and activated,
//! the second initialised with zeros; skip connections are added, not concatenated. 2-D and 3-D, with or without a time,
//! with vector conditioning.
//!
//! Stacks have fewer planes than rows, with larger distances. A `planar` network downsamples them only within planes, and
//! of the two convolutions of a block only the first extends along Z: two thirds of the work of full 3-D convolutions, and
//! tiles need a margin of only a few planes.
//!
//! It may state its own error (`error`): three convolutions read the features of the last level, without gradients into the
//! rest. The image is the same with and without them.

use crate::Error;
use crate::init::Law;
use crate::layers::{self, Layer, Scope};
use crate::models::config::{
    self, MOST_CHANNELS, MOST_LAYERS, MOST_LEVELS, OneOrEach, count, counts, unsupported,
};
use crate::models::modulation::Modulation;
use crate::models::network::{Answer, Given, Network, Port, multiples};
use clearshot_graph::Value;
use clearshot_graph::ops::Geometry;
use clearshot_tensor::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalConfig {
    pub spatial_dims: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Channels of each level, the finest first.
    pub channels: Vec<usize>,
    /// Residual blocks of each level, on the way down and again on the way up; the coarsest has them once.
    pub blocks: OneOrEach<usize>,
    /// Whether volumes keep their planes at every level; see the module.
    pub planar: bool,
    /// Whether the network has a time input.
    pub time: bool,
    /// Values of the conditioning vector; 0 for none.
    pub vector_dim: usize,
    /// Channels of what says how large the error is; 0 where nothing does.
    pub error: usize,
}

impl Default for LocalConfig {
    fn default() -> LocalConfig {
        LocalConfig {
            spatial_dims: 2,
            in_channels: 6,
            out_channels: 1,
            channels: vec![32, 64, 128],
            blocks: OneOrEach::One(2),
            planar: false,
            time: true,
            vector_dim: 0,
            error: 0,
        }
    }
}

/// Every choice made and checked; see [`LocalConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Local {
    dims: usize,
    in_channels: usize,
    out_channels: usize,
    channels: Vec<usize>,
    blocks: Vec<usize>,
    planar: bool,
    modulation: Option<Modulation>,
    error: Option<usize>,
}

impl LocalConfig {
    /// # Errors
    /// If a key is not known, or a value is of another kind than the key's.
    pub fn from_map(map: Map<String, Json>) -> Result<LocalConfig, Error> {
        config::from_map(map)
    }

    /// The network that this configuration means.
    ///
    /// # Errors
    /// Names the first key whose value is not supported, or contradicts another's.
    pub fn resolve(&self) -> Result<Local, Error> {
        config::spatial_dims(self.spatial_dims)?;
        counts("channels", &self.channels, MOST_LEVELS, MOST_CHANNELS)?;
        let blocks = self.blocks.of("blocks", self.channels.len())?;
        counts("blocks", &blocks, MOST_LEVELS, MOST_LAYERS)?;
        if !self.time && self.vector_dim > 0 {
            let got = format!("{} without a time", self.vector_dim);
            return Err(unsupported("vector_dim", got, "0, or `time` too"));
        }
        if self.planar && self.spatial_dims != 3 {
            return Err(unsupported("planar", "true".into(), "false, or `spatial_dims` 3"));
        }
        // The time's code is made of pairs.
        let modulation = match self.time {
            true => Some(Modulation::new(self.channels[0].next_multiple_of(2), self.vector_dim)?),
            false => None,
        };
        let error = match self.error {
            0 => None,
            channels => Some(count("error", channels, MOST_CHANNELS)?),
        };
        Ok(Local {
            dims: self.spatial_dims,
            in_channels: count("in_channels", self.in_channels, MOST_CHANNELS)?,
            out_channels: count("out_channels", self.out_channels, MOST_CHANNELS)?,
            channels: self.channels.clone(),
            blocks,
            planar: self.planar,
            modulation,
            error,
        })
    }
}

const ZERO: Layer = Layer { bias: true, law: Law::Zero };

impl Local {
    /// The numbers that sizes along (Z,) Y, X must be multiples of.
    fn multiples(&self) -> Vec<usize> {
        let mut each = vec![1 << (self.channels.len() - 1); self.dims];
        if self.planar {
            each[0] = 1;
        }
        each
    }

    /// A kernel 3 wide and its geometry; within the plane where the network is planar.
    fn within(&self) -> ([usize; 3], Geometry) {
        if self.planar {
            ([1, 3, 3], Geometry::new(2, 1, 1))
        } else {
            ([3; 3], Geometry::new(self.dims, 1, 1))
        }
    }

    /// The blocks of a level.
    fn level(&self, s: &mut Scope<'_>, mut h: Value, emb: Option<Value>, level: usize) -> Value {
        let width = self.channels[level];
        let (kernel, geometry) = self.within();
        for i in 0..self.blocks[level] {
            let mut s = s.at(&format!("blocks.{i}"));
            let mut inner = layers::conv3(&mut s.at("conv1"), h, width);
            if let Some(emb) = emb {
                let emb = layers::linear(&mut s.at("time_emb_proj"), emb, width);
                let emb = layers::per_sample(s.b, emb, inner);
                inner = s.b.add(inner, emb);
            }
            let inner = s.b.silu(inner);
            let inner = layers::conv_by(&mut s.at("conv2"), inner, width, kernel, geometry, ZERO);
            h = s.b.add(h, inner);
        }
        h
    }

    /// The features of the last level.
    fn features(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let emb = self.modulation.map(|modulation| {
            let emb = modulation.embed(s, given);
            s.b.silu(emb)
        });
        let coarsest = self.channels.len() - 1;
        let mut h = layers::conv3(&mut s.at("conv_in"), given.x(), self.channels[0]);
        let mut skips = vec![];
        for level in 0..coarsest {
            let mut s = s.at(&format!("down.{level}"));
            h = self.level(&mut s, h, emb, level);
            skips.push(h);
            let (kernel, axes) = if self.planar { ([1, 2, 2], 2) } else { ([2; 3], self.dims) };
            let (geometry, width) = (Geometry::new(axes, 2, 0), self.channels[level + 1]);
            h = layers::conv_by(&mut s.at("shrink"), h, width, kernel, geometry, Layer::TORCH);
        }
        h = self.level(&mut s.at("middle"), h, emb, coarsest);
        for level in (0..coarsest).rev() {
            let mut s = s.at(&format!("up.{level}"));
            h = layers::enlarged(s.b, h, skips[level]);
            let (kernel, geometry) = self.within();
            h = layers::conv_by(&mut s.at("grow"), h, self.channels[level], kernel, geometry, Layer::TORCH);
            h = s.b.add(h, skips[level]);
            h = self.level(&mut s, h, emb, level);
        }
        s.b.silu(h)
    }

    fn image(&self, s: &mut Scope<'_>, features: Value) -> Value {
        let geometry = Geometry::new(self.dims, 1, 1);
        layers::conv_by(&mut s.at("conv_out"), features, self.out_channels, [3; 3], geometry, ZERO)
    }

    /// The error predicted from the features, without a gradient to them.
    fn error(&self, s: &mut Scope<'_>, features: Value, width: usize) -> Value {
        let mut s = s.at("error");
        let mut h = s.b.stop_gradient(features);
        for name in ["conv1", "conv2"] {
            h = layers::conv3(&mut s.at(name), h, width);
            h = s.b.silu(h);
        }
        let geometry = Geometry::new(self.dims, 1, 1);
        layers::conv_by(&mut s.at("conv_out"), h, self.out_channels, [3; 3], geometry, ZERO)
    }
}

impl Network for Local {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        self.modulation.map_or(vec![], |modulation| modulation.ports(image))
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &self.multiples())
    }

    fn example_size(&self) -> Vec<usize> {
        self.multiples()
    }

    /// Of 32 channels: with it 48 to 224 channels train at rates of 1e-3, and fall apart from 2.5e-4 on without.
    fn base_fan_in(&self) -> Option<usize> {
        Some(288)
    }

    fn says_error(&self) -> bool {
        self.error.is_some()
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let features = self.features(s, given);
        self.image(s, features)
    }

    fn answer(&self, s: &mut Scope<'_>, given: &Given) -> Answer {
        let features = self.features(s, given);
        let image = self.image(s, features);
        Answer { image, error: self.error.map(|width| self.error(s, features, width)) }
    }
}
