//! Parameters and what they hold before anyone trains them.
//!
//! Values are drawn as PyTorch's layers draw theirs, but from a key made of the seed and the
//! parameter's name: they depend neither on the order of the layers nor on each other, so one
//! parameter can be made at a time.

use clearshot_graph::Type;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape, Tensor};

/// The law of a parameter's first values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Constant(f32),
    /// Uniform within plus and minus this bound.
    Uniform(f32),
    /// Normal with this standard deviation.
    Normal(f32),
}

impl Init {
    /// What PyTorch gives the weight and the bias of a layer that sums over `fan_in` inputs.
    pub fn fan_in(fan_in: usize) -> Init {
        Init::Uniform(1.0 / (fan_in.max(1) as f32).sqrt())
    }
}

/// A parameter of a network: a state of its graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub name: String,
    /// In our layout: convolution weights are `[K, ky, kx, C]`.
    pub shape: Shape,
    pub init: Init,
    /// Whether an optimiser changes it.
    pub trainable: bool,
}

impl Param {
    /// The first values under a seed.
    pub fn initial(&self, seed: u64) -> Tensor {
        initial(&self.name, self.shape, self.init, seed)
    }
}

/// Random data for a graph's input by its name, for benchmarks and tests: times up to 1000, a small rate,
/// class 0, and normal noise for everything else.
pub fn example(name: &str, ty: Type, seed: u64) -> Tensor {
    if ty.dtype == DType::I32 {
        return Tensor::i32(ty.shape, vec![0; ty.shape.len()]);
    }
    let hash = name_hash(name);
    let key = Key { seed, step: hash as u32, stream: (hash >> 32) as u32 };
    let mut values = vec![0.0; ty.shape.len()];
    match name {
        "rate" => values.fill(1e-4),
        "t" => {
            key.fill_uniform(0, &mut values);
            values.iter_mut().for_each(|v| *v = (*v * 1000.0).floor());
        }
        _ => key.fill_normal(0, &mut values),
    }
    Tensor::f32(ty.shape, values)
}

/// The first values of a parameter under a seed.
pub fn initial(name: &str, shape: Shape, init: Init, seed: u64) -> Tensor {
    let mut values = vec![0.0; shape.len()];
    let hash = name_hash(name);
    let key = Key { seed, step: hash as u32, stream: (hash >> 32) as u32 };
    match init {
        Init::Constant(c) => values.fill(c),
        Init::Uniform(bound) => {
            key.fill_uniform(0, &mut values);
            values.iter_mut().for_each(|v| *v = (2.0 * *v - 1.0) * bound);
        }
        Init::Normal(deviation) => {
            key.fill_normal(0, &mut values);
            values.iter_mut().for_each(|v| *v *= deviation);
        }
    }
    Tensor::f32(shape, values)
}

/// FNV-1a, 64 bits.
pub(crate) fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_their_law_and_their_name() {
        let draw = |name: &str, seed| initial(name, Shape::from([64, 3, 3, 32]), Init::fan_in(288), seed);
        let a = draw("conv_in.weight", 1);
        let (values, bound) = (a.as_f32().unwrap(), 1.0 / 288f32.sqrt());
        assert!(values.iter().all(|v| v.abs() <= bound));
        let variance = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!((variance / (bound * bound / 3.0) - 1.0).abs() < 0.03, "{variance}");
        assert_eq!(a, draw("conv_in.weight", 1));
        assert_ne!(a, draw("conv_in.weight", 2));
        assert_ne!(a, draw("conv_out.weight", 1));
    }
}
