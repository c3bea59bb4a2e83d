//! CAREamics' U-Net, which its packages have as a state of PyTorch: CARE, Noise2Noise, Noise2Void and N2V2 in 2-D and 3-D.
//!
//! Pairs of convolutions with ReLU, with or without batch norms; maxima over 2 x 2 pixels on the way down, or N2V2's blurred ones; linear
//! upsampling and concatenation on the way up. Channels may each have a network of their own (`independent_channels`), as groups.
//! The network of [`clearshot_nn::models::n2v`], CSBDeep's, is another one.

use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode, Unary};
use clearshot_nn::Law;
use clearshot_nn::layers::{self, Scope};
use clearshot_nn::models::network::{Given, Network, Port};
use clearshot_tensor::{Shape, Tensor};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// The class's arguments, with its defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct CareamicsConfig {
    conv_dims: usize,
    num_classes: usize,
    in_channels: usize,
    depth: usize,
    num_channels_init: usize,
    use_batch_norm: bool,
    pool_kernel: usize,
    final_activation: String,
    n2v2: bool,
    independent_channels: bool,
}

impl Default for CareamicsConfig {
    fn default() -> CareamicsConfig {
        CareamicsConfig {
            conv_dims: 2,
            num_classes: 1,
            in_channels: 1,
            depth: 3,
            num_channels_init: 64,
            use_batch_norm: true,
            pool_kernel: 2,
            final_activation: "None".into(),
            n2v2: false,
            independent_channels: true,
        }
    }
}

/// More than any such network has.
const MOST_DEPTH: usize = 10;
const MOST_CHANNELS: usize = 1 << 14;

impl CareamicsConfig {
    /// # Errors
    /// If an argument is of another kind, or not supported.
    pub fn of(arguments: Map<String, Json>) -> Result<CareamicsConfig, String> {
        let config: CareamicsConfig =
            serde_json::from_value(Json::Object(arguments)).map_err(|e| e.to_string())?;
        let within =
            |name: &str, value: usize, least: usize, most: usize| match (least..=most).contains(&value) {
                true => Ok(()),
                false => Err(format!("{name}: {value}; {least} to {most} are supported")),
            };
        within("conv_dims", config.conv_dims, 2, 3)?;
        within("depth", config.depth, 1, MOST_DEPTH)?;
        within("pool_kernel", config.pool_kernel, 2, 2)?;
        within("in_channels", config.in_channels, 1, MOST_CHANNELS)?;
        within("num_classes", config.num_classes, 1, MOST_CHANNELS)?;
        let widest = (MOST_CHANNELS / config.groups()) >> config.depth;
        if widest == 0 {
            return Err(format!(
                "depth: {}; with {} independent channels the lowest level has more than {MOST_CHANNELS} channels; fewer levels, or independent_channels false, are supported",
                config.depth,
                config.groups()
            ));
        }
        within("num_channels_init", config.num_channels_init, 1, widest)?;
        if !config.num_classes.is_multiple_of(config.groups()) {
            return Err(format!("{} num_classes of {} channels apart", config.num_classes, config.groups()));
        }
        config.last()?;
        Ok(config)
    }

    fn groups(&self) -> usize {
        if self.independent_channels { self.in_channels } else { 1 }
    }

    fn last(&self) -> Result<Option<Unary>, String> {
        match self.final_activation.to_lowercase().as_str() {
            "none" => Ok(None),
            "sigmoid" => Ok(Some(Unary::Sigmoid)),
            "tanh" => Ok(Some(Unary::Tanh)),
            "relu" => Ok(Some(Unary::Relu)),
            "leakyrelu" => Ok(Some(Unary::LeakyRelu(0.01))),
            other => Err(format!(
                "final_activation: {other}; none, sigmoid, tanh, relu and leakyrelu are supported"
            )),
        }
    }

    fn conv(&self, s: &mut Scope<'_>, x: Value, out: usize, kernel: usize) -> Value {
        let geometry = Geometry { groups: self.groups(), ..Geometry::new(self.conv_dims, 1, kernel / 2) };
        let each = s.b.channels(x) / self.groups();
        let shape: Vec<usize> = [out].into_iter().chain(vec![kernel; self.conv_dims]).chain([each]).collect();
        let [weight, bias] = Law::Torch.init(shape[1..].iter().product(), shape[0]);
        let weight = s.param("weight", Shape::new(&shape), weight);
        let bias = s.param("bias", [out], bias);
        s.b.conv(x, weight, Some(bias), geometry)
    }

    /// Two convolutions, of these numbers of channels for each group.
    fn block(&self, s: &mut Scope<'_>, mut x: Value, channels: [usize; 2], given: &Given) -> Value {
        for (i, c) in channels.into_iter().enumerate() {
            x = self.conv(&mut s.at(&format!("conv{}", i + 1)), x, c * self.groups(), 3);
            if self.use_batch_norm {
                x = layers::batch_norm(&mut s.at(&format!("batch_norm{}", i + 1)), x, given.is_learning());
            }
            x = s.b.unary(Unary::Relu, x);
        }
        x
    }

    fn smaller(&self, s: &mut Scope<'_>, x: Value) -> Value {
        let dims = self.conv_dims;
        let two = if dims == 2 { [1, 2, 2] } else { [2; 3] };
        if !self.n2v2 {
            return s.b.pool(x, PoolKind::Max, two, Geometry::new(dims, 2, 0));
        }
        let most = s.b.pool(x, PoolKind::Max, two, Geometry::new(dims, 1, 0));
        // Binomial weights over three pixels along each axis.
        let c = s.b.channels(x);
        let line = [0.25f32, 0.5, 0.25];
        let taps = |i: usize| (0..dims).map(|axis| line[i / 3usize.pow(axis as u32) % 3]).product::<f32>();
        let kernel: Vec<f32> = (0..3usize.pow(dims as u32)).map(taps).collect();
        let shape: Vec<usize> = [c].into_iter().chain(vec![3; dims]).chain([1]).collect();
        let weight = s.b.constant(Tensor::f32(Shape::new(&shape), kernel.repeat(c)));
        s.b.conv(most, weight, None, Geometry { groups: c, ..Geometry::new(dims, 2, 1) })
    }

    /// Two images side by side, within each group.
    fn joined(&self, s: &mut Scope<'_>, a: Value, b: Value) -> Value {
        let (groups, axis) = (self.groups(), self.conv_dims + 1);
        let mut parts = vec![];
        for group in 0..groups {
            for x in [a, b] {
                let each = s.b.channels(x) / groups;
                parts.push(s.b.slice(x, axis, group * each, each));
            }
        }
        s.b.concat_channels(&parts)
    }
}

impl Network for CareamicsConfig {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.num_classes
    }

    fn dims(&self) -> usize {
        self.conv_dims
    }

    fn ports(&self, _: Shape) -> Vec<Port> {
        vec![]
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        let multiple = 1 << self.depth;
        match size.iter().all(|n| *n > 0 && n.is_multiple_of(multiple)) {
            true => Ok(()),
            false => Err(format!("an image of sizes {size:?}; multiples of {multiple} are possible")),
        }
    }

    fn example_size(&self) -> Vec<usize> {
        vec![1 << self.depth; self.conv_dims]
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let (depth, first) = (self.depth, self.num_channels_init);
        let mut x = given.x();
        let mut skips = vec![];
        for level in 0..depth {
            let block = format!("encoder.encoder_blocks.{}", 2 * level);
            x = self.block(&mut s.at(&block), x, [first << level; 2], given);
            skips.push(x);
            x = self.smaller(s, x);
        }
        let c = first << (depth - 1);
        x = self.block(&mut s.at("decoder.bottleneck"), x, [2 * c, c], given);
        for level in (0..depth).rev() {
            x = s.b.upsample(x, ResizeMode::Linear, 2);
            if level > 0 || !self.n2v2 {
                x = self.joined(s, x, skips[level]);
            }
            let c = first << level;
            let channels = if level > 0 { [c, c / 2] } else { [c; 2] };
            let block = format!("decoder.decoder_blocks.{}", 2 * (depth - 1 - level) + 1);
            x = self.block(&mut s.at(&block), x, channels, given);
        }
        let y = self.conv(&mut s.at("final_conv"), x, self.num_classes, 1);
        match self.last() {
            Ok(Some(f)) => s.b.unary(f, y),
            _ => y,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(arguments: Json) -> String {
        let Json::Object(map) = arguments else { panic!("{arguments} is not an object") };
        CareamicsConfig::of(map).unwrap_err()
    }

    #[test]
    fn networks_that_are_too_wide_are_refused_with_what_is_supported() {
        let said =
            refused(json!({"in_channels": 64, "num_classes": 64, "depth": 10, "num_channels_init": 1}));
        assert!(said.starts_with("depth: 10; with 64 independent channels"), "{said}");
        let said = refused(json!({"in_channels": 4, "num_classes": 4, "depth": 4, "num_channels_init": 512}));
        assert_eq!(said, "num_channels_init: 512; 1 to 256 are supported");
    }
}
