//! Parameters and their initial values.
//!
//! Values are drawn from the same distributions as PyTorch's, but from a key made of the seed and the name of the
//! parameter: they depend neither on the order of the layers nor on each other, so parameters can be made one at a time.

use clearshot_graph::Type;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Fnv1a, Shape, Tensor};

/// The law of a parameter's first values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Constant(f32),
    /// Uniform within plus and minus this bound.
    Uniform(f32),
    /// Normal with this standard deviation.
    Normal(f32),
    /// exp(-rate i) for the i-th value: the frequencies of a position code.
    Decay(f32),
    /// The product of a filter with itself along two axes, with sum 1: a buffer that files hold.
    Filter(Taps),
}

/// A filter of a few taps along one axis, scaled to the sum 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taps {
    values: [f32; Taps::MOST],
    len: usize,
}

impl Taps {
    /// No more are held.
    pub const MOST: usize = 16;

    /// None where there are too many taps, or none, or their sum is not positive.
    pub fn new(taps: &[f64]) -> Option<Taps> {
        let sum: f64 = taps.iter().sum();
        if taps.is_empty() || taps.len() > Taps::MOST || !sum.is_finite() || sum <= 0.0 {
            return None;
        }
        let mut values = [0.0; Taps::MOST];
        values.iter_mut().zip(taps).for_each(|(to, tap)| *to = (tap / sum) as f32);
        Some(Taps { values, len: taps.len() })
    }

    pub fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// Rows of the product with itself, one behind the other.
    pub fn outer(&self) -> Vec<f32> {
        let taps = self.values();
        taps.iter().flat_map(|a| taps.iter().map(move |b| a * b)).collect()
    }
}

impl Init {
    /// What PyTorch gives the weight and the bias of a layer that sums over `fan_in` inputs.
    pub fn fan_in(fan_in: usize) -> Init {
        Init::Uniform(1.0 / (fan_in.max(1) as f32).sqrt())
    }
}

/// How a layer's parameters are first drawn, given how many values a result sums over (fan in) and how many
/// results a value goes into (fan out).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// PyTorch's own: weight and bias uniform, see [`Init::fan_in`].
    Torch,
    /// Glorot's uniform law with its bound multiplied by this; the bias is 0.
    Glorot(f32),
    /// He's normal law for leaky ReLU of this slope; the bias is 0.
    He(f32),
    /// Everything is 0.
    Zero,
    /// Normal with this standard deviation; the bias is 0.
    Normal(f32),
}

impl Law {
    /// Of the weight and of the bias.
    pub fn init(self, fan_in: usize, fan_out: usize) -> [Init; 2] {
        let zero = Init::Constant(0.0);
        match self {
            Law::Torch => [Init::fan_in(fan_in); 2],
            Law::Glorot(gain) => {
                let bound = (6.0 / (fan_in + fan_out).max(1) as f32).sqrt();
                [Init::Uniform(gain * bound), zero]
            }
            Law::He(slope) => {
                let variance = 2.0 / ((1.0 + slope * slope) * fan_in.max(1) as f32);
                [Init::Normal(variance.sqrt()), zero]
            }
            Law::Zero => [zero; 2],
            Law::Normal(deviation) => [Init::Normal(deviation), zero],
        }
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
/// class 0, noise levels from 0.05 to 5, half of a blend, and normal noise for everything else.
pub fn example(name: &str, ty: Type, seed: u64) -> Tensor {
    if ty.dtype == DType::I32 {
        return Tensor::i32(ty.shape, vec![0; ty.shape.len()]);
    }
    let hash = Fnv1a::of(name.as_bytes());
    let key = Key { seed, step: hash as u32, stream: (hash >> 32) as u32 };
    let mut values = vec![0.0; ty.shape.len()];
    match name {
        "rate" => values.fill(1e-4),
        "t" => {
            key.fill_uniform(0, &mut values);
            values.iter_mut().for_each(|v| *v = (*v * 1000.0).floor());
        }
        "sigma" => {
            key.fill_uniform(0, &mut values);
            values.iter_mut().for_each(|v| *v = 0.05 * 100f32.powf(*v));
        }
        "alpha" => values.fill(0.5),
        _ => key.fill_normal(0, &mut values),
    }
    Tensor::f32(ty.shape, values)
}

/// The first values of a parameter under a seed.
pub fn initial(name: &str, shape: Shape, init: Init, seed: u64) -> Tensor {
    let mut values = vec![0.0; shape.len()];
    let hash = Fnv1a::of(name.as_bytes());
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
        Init::Decay(rate) => {
            values.iter_mut().enumerate().for_each(|(i, v)| *v = (-f64::from(rate) * i as f64).exp() as f32);
        }
        Init::Filter(taps) => values.iter_mut().zip(taps.outer()).for_each(|(v, f)| *v = f),
    }
    Tensor::f32(shape, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_have_the_spread_of_their_authors() {
        let bound = |law: Law| match law.init(27, 36) {
            [Init::Uniform(bound), Init::Constant(0.0)] => bound,
            other => panic!("{other:?}"),
        };
        assert_eq!(bound(Law::Glorot(1.0)), (6.0f32 / 63.0).sqrt());
        assert_eq!(bound(Law::Glorot(1e-5)), 1e-5 * (6.0f32 / 63.0).sqrt());
        assert_eq!(Law::Torch.init(25, 7), [Init::Uniform(0.2); 2]);
        assert_eq!(Law::He(0.0).init(8, 1), [Init::Normal(0.5), Init::Constant(0.0)]);
    }

    #[test]
    fn filters_sum_to_one_and_decays_are_powers() {
        let taps = Taps::new(&[1.0, 3.0, 3.0, 1.0]).unwrap();
        let filter = initial("f", Shape::from([1, 4, 4, 1]), Init::Filter(taps), 0).to_f64();
        assert_eq!(filter.iter().sum::<f64>(), 1.0);
        assert_eq!([filter[0], filter[1], filter[5]], [1.0 / 64.0, 3.0 / 64.0, 9.0 / 64.0]);
        assert!(Taps::new(&[1.0, -1.0]).is_none() && Taps::new(&[]).is_none());
        let decay = initial("d", Shape::from([3]), Init::Decay(std::f32::consts::LN_2), 0);
        assert!(decay.to_f64().iter().zip([1.0, 0.5, 0.25]).all(|(a, b)| (a - b).abs() < 1e-7));
    }

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
