//! MONAI's `DynUNet`, the network of nnU-Net in 2-D and 3-D: convolutions with norm and leaky ReLU, strides and kernels of
//! each level chosen by the resolution of the data, transposed convolutions on the way up.
//!
//! With deep supervision the upper levels have their own outputs, which training also compares with the target, each with
//! half the weight of the one above it; inference returns the first. MONAI's files name every parameter a second time below
//! `skip_layers`; these names are dropped on reading.

mod config;

pub use config::{DynUNetConfig, Named};

use crate::layers::{self, Layer, Scope};
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, ResizeMode, Unary};
use clearshot_tensor::Shape;

/// The prefix of the second names of parameters in MONAI's files.
pub const ALIASES: &str = "skip_layers.";

/// Every choice made and checked; see [`DynUNetConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct DynUNet {
    dims: usize,
    in_channels: usize,
    out_channels: usize,
    /// The input block, the way down and the bottleneck.
    levels: Vec<Level>,
    norm: Norm,
    act: Unary,
    /// The law of the weights and whether transposed convolutions have a bias.
    transposed: Layer,
    residual: bool,
    dropout: f64,
    /// Outputs beside the first that training sees.
    heads: usize,
}

/// Kernel, step and channels of a level, Z, Y, X; in 2-D the first entries are 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    kernel: [usize; 3],
    stride: [usize; 3],
    /// By how much the way up enlarges this level's image.
    up: [usize; 3],
    channels: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Norm {
    /// None for as many as there are channels.
    groups: Option<usize>,
    affine: bool,
    eps: f64,
}

/// The law of every weight: MONAI's, whatever the activation.
const LAW: crate::init::Law = crate::init::Law::He(0.01);
const PLAIN: Layer = Layer { bias: false, law: LAW };
const HEAD: Layer = Layer { bias: true, law: LAW };

impl DynUNet {
    fn dropped(&self, s: &mut Scope<'_>, x: Value, key: Option<Value>) -> Value {
        match key {
            Some(key) if self.dropout > 0.0 => s.at("adn.D").dropout(x, key, self.dropout),
            _ => x,
        }
    }

    fn conv(
        &self,
        s: &mut Scope<'_>,
        x: Value,
        out: usize,
        kernel: [usize; 3],
        stride: [usize; 3],
        key: Option<Value>,
    ) -> Value {
        // As MONAI pads: by half of what the kernel is wider than the step.
        let pad = std::array::from_fn(|a| [(kernel[a] + 1 - stride[a]) / 2; 2]);
        let geometry = Geometry { stride, pad, ..Geometry::new(2, 1, 0) };
        let y = layers::conv_by(&mut s.at("conv"), x, out, kernel, geometry, PLAIN);
        self.dropped(s, y, key)
    }

    fn norm(&self, s: &mut Scope<'_>, x: Value) -> Value {
        let groups = self.norm.groups.unwrap_or(s.b.channels(x));
        if self.norm.affine {
            return layers::group_norm(s, x, groups, self.norm.eps);
        }
        let [gamma, beta] = layers::no_affine(s.b, x);
        s.b.group_norm(x, gamma, beta, groups, self.norm.eps)
    }

    /// Two convolutions, each with its norm, and a residual where `residual` says so.
    fn block(
        &self,
        s: &mut Scope<'_>,
        x: Value,
        level: &Level,
        stride: [usize; 3],
        residual: bool,
        key: Option<Value>,
    ) -> Value {
        let out = level.channels;
        let h = self.conv(&mut s.at("conv1"), x, out, level.kernel, stride, key);
        let h = self.norm(&mut s.at("norm1"), h);
        let h = s.b.unary(self.act, h);
        let h = self.conv(&mut s.at("conv2"), h, out, level.kernel, [1; 3], key);
        let mut h = self.norm(&mut s.at("norm2"), h);
        if residual {
            let mut x = x;
            if s.b.channels(x) != out || stride != [1; 3] {
                x = self.conv(&mut s.at("conv3"), x, out, [1; 3], stride, key);
                x = self.norm(&mut s.at("norm3"), x);
            }
            h = s.b.add(h, x);
        }
        s.b.unary(self.act, h)
    }

    fn head(&self, s: &mut Scope<'_>, x: Value, key: Option<Value>) -> Value {
        let geometry = Geometry::new(2, 1, 0);
        let mut s = s.at("conv");
        let y = layers::conv_by(&mut s.at("conv"), x, self.out_channels, [1; 3], geometry, HEAD);
        self.dropped(&mut s, y, key)
    }

    /// The images of the way up, the largest first.
    fn features(&self, s: &mut Scope<'_>, given: &Given) -> Vec<Value> {
        let (last, key) = (self.levels.len() - 1, given.key());
        let mut h = given.x();
        let mut skips = vec![];
        for (i, level) in self.levels.iter().enumerate() {
            let name = match i {
                0 => "input_block".into(),
                i if i == last => "bottleneck".into(),
                i => format!("downsamples.{}", i - 1),
            };
            h = self.block(&mut s.at(&name), h, level, level.stride, self.residual, key);
            skips.push(h);
        }
        skips.pop();
        let mut features = vec![];
        for (i, skip) in skips.into_iter().rev().enumerate() {
            let mut s = s.at(&format!("upsamples.{i}"));
            let (from, to) = (&self.levels[last - i], &self.levels[last - i - 1]);
            let mut up = s.at("transp_conv");
            h = layers::conv_up(&mut up.at("conv"), h, to.channels, from.up, self.transposed);
            h = self.dropped(&mut up, h, key);
            drop(up);
            h = s.b.concat_channels(&[h, skip]);
            // The kernel is that of the level that was left, as MONAI has it.
            let level = Level { kernel: from.kernel, ..*to };
            h = self.block(&mut s.at("conv_block"), h, &level, [1; 3], false, key);
            features.push(h);
        }
        features.reverse();
        features
    }

    fn multiple(&self) -> Vec<usize> {
        let product = |a: usize| self.levels.iter().map(|l| l.stride[a]).product();
        (3 - self.dims..3).map(product).collect()
    }
}

impl Network for DynUNet {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn dims(&self) -> usize {
        self.dims
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &self.multiple())
    }

    fn example_size(&self) -> Vec<usize> {
        self.multiple()
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let features = self.features(s, given);
        self.head(&mut s.at("output_block"), features[0], given.key())
    }

    fn outputs(&self, s: &mut Scope<'_>, given: &Given) -> Vec<(f64, Value)> {
        let (features, key) = (self.features(s, given), given.key());
        let first = self.head(&mut s.at("output_block"), features[0], key);
        let size = s.b.shape(first);
        let size = if self.dims == 2 { [1, size[1], size[2]] } else { [size[1], size[2], size[3]] };
        let mut outputs = vec![first];
        for i in 0..self.heads {
            let y = self.head(&mut s.at(&format!("deep_supervision_heads.{i}")), features[i + 1], key);
            outputs.push(s.b.resize(y, ResizeMode::Nearest, size));
        }
        let sum: f64 = (0..outputs.len()).map(|i| 0.5f64.powi(i as i32)).sum();
        outputs.into_iter().enumerate().map(|(i, y)| (0.5f64.powi(i as i32) / sum, y)).collect()
    }
}
