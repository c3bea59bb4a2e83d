//! Quantisation-aware training: the weights of a network are trained further while its convolutions are rounded.
//!
//! In the forward pass, convolutions multiply in 8 bits with the kernels of inference. In the backward pass, rounding
//! counts as the identity (straight-through estimator): the gradient of a rounded convolution is that of the convolution in
//! f32. The loss is that of the task, on images like those of the model's training.

use super::Mode;
use crate::config::RunConfig;
use crate::data::{Data, Part, batch};
use crate::engine::{Engine, Numbers};
use crate::error::{Result, setting};
use crate::iteration::Shapes;
use crate::task::Task;
use clearshot_nn::Weights;
use clearshot_nn::models::Network;
use clearshot_runtime::{Device, Precision};

/// How weights are trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    pub iterations: usize,
    /// Crops of an iteration.
    pub batch: usize,
    /// The learning rate at the beginning; it falls to zero as a cosine.
    pub rate: f64,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { iterations: 300, batch: 4, rate: 2e-5 }
    }
}

/// Samples of training begin here, far from those that ranges are found on.
const FIRST: u64 = 1 << 24;
/// The part of the iterations over which weights are averaged.
const AVERAGED: f64 = 0.1;

/// Weights of a network whose convolutions round, trained further from `weights`. `told` is called with the number of iterations done.
///
/// # Errors
/// If samples cannot be loaded, the training cannot be run, its loss is NaN, or `told` stops it.
pub fn tuned(
    network: &dyn Network,
    weights: &Weights,
    (task, config): (&Task, &RunConfig),
    data: &Data,
    size: &[usize],
    how: &Tuning,
    device: Device,
    told: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<Weights> {
    let mut config = config.clone();
    config.trainer.accumulate = 1;
    config.trainer.ema_half_life = 1.0;
    config.performance.precision = Precision::F32.to_string();
    config.model.only = vec![];
    let source = data.source(Part::Training, size, None)?;
    let shapes = Shapes {
        batch: how.batch,
        size,
        channels: source.channels(),
        photons: data.photons(),
        domains: 0,
        masked: source.is_masked(),
    };
    let mut engine = Engine::new(network, task, &shapes, &config, &device)?;
    engine.load(weights)?;
    let decay = 0.5f64.powf(1.0 / (AVERAGED * how.iterations as f64).max(1.0));
    for i in 0..how.iterations {
        told(i, how.iterations)?;
        let first = FIRST + (i * how.batch) as u64;
        let done = i as f64 / how.iterations as f64;
        let numbers = Numbers {
            rate: how.rate * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            ema_decay: decay,
            alpha: 1.0,
            iteration: i as u64,
            first,
        };
        let next = || {
            let domain = |n: u64| data.in_turn(&*source, n);
            batch(&*source, first, how.batch, size, domain, |n| task.drops(config.seed, n))
        };
        engine.step(next, &numbers)?;
    }
    let tuned = engine.weights(network)?;
    let is_finite = |w: &clearshot_tensor::Tensor| w.to_f64().iter().all(|x| x.is_finite());
    if !tuned.values().all(is_finite) {
        return setting("--qat-rate", how.rate, "a smaller one: training diverged");
    }
    // What is not trained, as what was measured and not learned, is as it was.
    let mut all = weights.clone();
    all.extend(tuned);
    Ok(all)
}

impl Mode {
    /// How its weights are trained on, if they are.
    pub fn tuning(&self) -> Option<&Tuning> {
        match self {
            Mode::Qat(tuning) => Some(tuning),
            Mode::Static | Mode::Dynamic => None,
        }
    }
}
