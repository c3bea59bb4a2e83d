//! Adversarial training: a generator against a discriminator, with pix2pixHD's losses as in CytoDL.
//!
//! The generator minimises the adversarial loss (cross-entropy), the difference of the discriminator's activations from
//! those of the real image (L1, every layer), and the distance from the real image (the distance of the task). The
//! discriminator minimises the mean of its cross-entropies on real and generated images, each together with the input of
//! the generator. Both losses use the weights from the start of the iteration, so both optimisers are at the end of one
//! graph ([`crate::iteration`]): the gradient of the generator stops at the weights of the discriminator, and that of the
//! discriminator at the image, which it treats as a constant.

use crate::config::GanConfig;
use crate::error::{Result, setting};
use clearshot_graph::ops::{ReduceKind, Unary};
use clearshot_graph::{Builder, StateInit, Type, Value};
use clearshot_nn::Param;
use clearshot_nn::layers::Scope;
use clearshot_nn::models::discriminator::Discriminator;

/// The name of the discriminator's optimiser, which is part of the names of its states and outputs.
pub const NAME: &str = "discriminator";

/// The prefix of the names of its parameters.
pub const PREFIX: &str = "discriminator.";

/// The parts of the two losses that are recorded as `term.NAME`.
pub const PARTS: [&str; 4] = ["adversarial", "features", "reconstruction", "discriminator"];

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gan {
    pub discriminator: Discriminator,
    /// How much the generator's three parts count.
    adversarial: f64,
    features: f64,
    reconstruction: f64,
}

/// What adversarial training adds to an iteration.
pub struct Losses {
    /// Of the generator, of each sample, `[N]`.
    pub generator: Value,
    /// Of the discriminator.
    pub discriminator: Value,
    /// The discriminator's parameters.
    pub params: Vec<Value>,
    /// As [`PARTS`] has them, none of them weighted.
    pub parts: [Value; 4],
}

impl Gan {
    pub fn new(config: &GanConfig) -> Gan {
        let GanConfig { scales, layers, filters, adversarial, features, reconstruction } = *config;
        let discriminator = Discriminator { scales, layers, filters };
        Gan { discriminator, adversarial, features, reconstruction }
    }

    /// # Errors
    /// If crops are too small for the discriminator.
    pub fn check_size(&self, size: &[usize]) -> Result<()> {
        let least = self.discriminator.least_size();
        match size.iter().find(|n| **n < least) {
            None => Ok(()),
            Some(n) => {
                let needed = format!(
                    "crops of {n} pixels are too small for a discriminator of {} scales of {} layers, which looks at {least} or more",
                    self.discriminator.scales, self.discriminator.layers
                );
                setting("task.gan.layers", self.discriminator.layers, needed)
            }
        }
    }

    /// The discriminator's parameters, with the names of its states.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn parameters(&self, dims: usize, channels: usize) -> Result<Vec<Param>> {
        let all = self.discriminator.parameters(dims, channels)?;
        Ok(all.into_iter().map(|p| Param { name: format!("{PREFIX}{}", p.name), ..p }).collect())
    }

    /// Adds both losses. `given` is what the generator was given, `off` the distance of each sample, `[N]`.
    #[track_caller]
    pub fn losses(&self, b: &mut Builder, given: Value, real: Value, made: Value, off: Value) -> Losses {
        let features = |b: &mut Builder, image: Value| {
            let mut params = vec![];
            let all = self.discriminator.features(&mut Scope::new(b, &mut params).at(NAME), given, image);
            (all, params)
        };
        let samples = b.shape(real)[0];
        let (of_real, params) = features(b, real);
        let (of_made, _) = features(b, made);
        let constant = b.stop_gradient(made);
        let (of_constant, _) = features(b, constant);
        // The mean of each sample, over scales.
        let over_scales = |b: &mut Builder, each: Vec<Value>| {
            let count = each.len() as f64;
            let sum = each[1..].iter().fold(each[0], |sum, own| b.add(sum, *own));
            b.mul_scalar(sum, 1.0 / count)
        };
        let passes = |b: &mut Builder, of: &[Vec<Value>], is_real: bool| {
            let each =
                of.iter().map(|scale| cross_entropy(b, scale[scale.len() - 1], is_real, samples)).collect();
            over_scales(b, each)
        };
        let adversarial = passes(b, &of_made, true);
        let matched = of_real.iter().zip(&of_made).map(|(real, made)| {
            let layers = real.iter().zip(made).map(|(real, made)| {
                let real = b.stop_gradient(*real);
                let off = b.sub(*made, real);
                let off = b.unary(Unary::Abs, off);
                mean_of_each(b, off, samples)
            });
            let layers: Vec<Value> = layers.collect();
            layers[1..].iter().fold(layers[0], |sum, own| b.add(sum, *own))
        });
        let matched = matched.collect();
        let matched = over_scales(b, matched);
        let parts = [(adversarial, self.adversarial), (matched, self.features), (off, self.reconstruction)];
        let weighted = parts.map(|(part, weight)| b.mul_scalar(part, weight));
        let generator = weighted[1..].iter().fold(weighted[0], |sum, own| b.add(sum, *own));
        let [on_real, on_made] = [passes(b, &of_real, true), passes(b, &of_constant, false)];
        let both = b.add(on_real, on_made);
        let both = b.mul_scalar(both, 0.5);
        let discriminator = b.reduce_all(ReduceKind::Mean, both);
        let [adversarial, matched, off] =
            [adversarial, matched, off].map(|v| b.reduce_all(ReduceKind::Mean, v));
        let state = |p: &Param| b.state(&p.name, Type::f32(p.shape), StateInit::Given);
        let params = params.iter().map(state).collect();
        Losses { generator, discriminator, params, parts: [adversarial, matched, off, discriminator] }
    }
}

/// The cross-entropy of logits with real (1) or made (0), of each sample.
fn cross_entropy(b: &mut Builder, logits: Value, is_real: bool, samples: usize) -> Value {
    // softplus(x) - x target never takes the logarithm of 0.
    let mut entropy = b.unary(Unary::Softplus, logits);
    if is_real {
        entropy = b.sub(entropy, logits);
    }
    mean_of_each(b, entropy, samples)
}

fn mean_of_each(b: &mut Builder, v: Value, samples: usize) -> Value {
    let axes: Vec<usize> = (1..b.shape(v).rank()).collect();
    let mean = b.mean(v, &axes);
    b.reshape(mean, [samples])
}
