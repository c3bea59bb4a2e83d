//! The noise level as an input of the file, and the numbers that a denoiser derives from it.
//!
//! Our own sampler computes these numbers on the host; a file for other programs has to compute them itself. A process over
//! sigma takes `sigma`; one over timesteps takes `timestep` and looks up its level.

use crate::error::ExportError;
use clearshot_diffusion::precondition::Prediction;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Type, Value};
use clearshot_model::Process;
use clearshot_nn::layers::per_sample;
use clearshot_tensor::Tensor;

/// alpha, sigma and the time that the network is given, each `[N]`.
#[derive(Clone, Copy)]
pub(super) struct LevelValues {
    pub alpha: Value,
    pub sigma: Value,
    pub time: Value,
}

/// `x0 = skip x + output F(input x)`, each `[N]`.
struct Coefficients {
    input: Value,
    skip: Option<Value>,
    output: Value,
}

impl LevelValues {
    /// The inputs for a process; `fixed` where the level is not to be one.
    pub fn new(
        b: &mut Builder,
        process: &Process,
        batch: usize,
        fixed: bool,
    ) -> Result<LevelValues, ExportError> {
        if fixed {
            let level = process.noisiest()?;
            let [alpha, sigma, time] =
                [level.alpha, level.sigma, level.time].map(|v| b.constant(Tensor::full([1], v as f32)));
            return Ok(LevelValues { alpha, sigma, time });
        }
        Ok(match process {
            Process::Edm { .. } => {
                let sigma = b.input("sigma", Type::f32([batch]));
                let log = b.unary(Unary::Log, sigma);
                let time = b.mul_scalar(log, 0.25);
                LevelValues { alpha: b.constant(Tensor::full([1], 1.0)), sigma, time }
            }
            Process::Timesteps { .. } | Process::Betas { .. } => {
                let schedule = process.schedule()?;
                let timestep = b.input("timestep", Type::i32([batch]));
                let rows = (0..schedule.len()).filter_map(|t| schedule.level(t));
                let table = rows.flat_map(|l| [l.alpha, l.sigma, l.time].map(|v| v as f32)).collect();
                let table = b.constant(Tensor::f32([schedule.len(), 3], table));
                let row = b.gather(table, timestep);
                let [alpha, sigma, time] = [0, 1, 2].map(|i| {
                    let column = b.slice(row, 1, i, 1);
                    b.reshape(column, [batch])
                });
                LevelValues { alpha, sigma, time }
            }
        })
    }

    /// sigma / alpha.
    pub fn ratio(&self, b: &mut Builder) -> Value {
        b.div(self.sigma, self.alpha)
    }

    /// As [`Prediction::coefficients`].
    fn coefficients(&self, b: &mut Builder, prediction: Prediction) -> Coefficients {
        let LevelValues { alpha, sigma, .. } = *self;
        let root_of_squares = |b: &mut Builder, p: Value, q: Value| {
            let (p, q) = (b.unary(Unary::Square, p), b.unary(Unary::Square, q));
            let sum = b.add(p, q);
            b.unary(Unary::Sqrt, sum)
        };
        let norm = root_of_squares(b, alpha, sigma);
        let whitened = b.unary(Unary::Recip, norm);
        match prediction {
            Prediction::Noise => {
                let ratio = self.ratio(b);
                let (skip, output) = (b.unary(Unary::Recip, alpha), b.unary(Unary::Neg, ratio));
                Coefficients { input: whitened, skip: Some(skip), output }
            }
            Prediction::Sample => {
                let one = b.constant(Tensor::full([1], 1.0));
                Coefficients { input: whitened, skip: None, output: one }
            }
            Prediction::Velocity => {
                let square = b.unary(Unary::Square, whitened);
                let (skip, part) = (b.mul(alpha, square), b.mul(sigma, whitened));
                Coefficients { input: whitened, skip: Some(skip), output: b.unary(Unary::Neg, part) }
            }
            Prediction::Edm { sigma_data } => {
                let ratio = self.ratio(b);
                let data = b.constant(Tensor::full([1], sigma_data as f32));
                let both = root_of_squares(b, ratio, data);
                let scaled = b.mul(alpha, both);
                let input = b.unary(Unary::Recip, scaled);
                let share = b.div(data, both);
                let square = b.unary(Unary::Square, share);
                let (skip, output) = (b.div(square, alpha), b.mul(ratio, share));
                Coefficients { input, skip: Some(skip), output }
            }
        }
    }

    /// The clean image behind x by what `network` predicts of the scaled x.
    pub fn denoised(
        &self,
        b: &mut Builder,
        x: Value,
        prediction: Prediction,
        network: impl FnOnce(&mut Builder, Value) -> Value,
    ) -> Value {
        let c = self.coefficients(b, prediction);
        let scaled = |b: &mut Builder, factor: Value, v: Value| {
            let factor = per_sample(b, factor, v);
            b.mul(v, factor)
        };
        let seen = scaled(b, c.input, x);
        let raw = network(b, seen);
        if prediction == Prediction::Sample {
            return raw;
        }
        let made = scaled(b, c.output, raw);
        match c.skip {
            Some(skip) => {
                let kept = scaled(b, skip, x);
                b.add(kept, made)
            }
            None => made,
        }
    }
}

/// The meaning of the input of a process.
pub(super) fn about(process: &Process) -> String {
    match process {
        Process::Edm { sigma_min, sigma_max, .. } => format!(
            "standard deviation of the noise in x, in the network's unit, from {sigma_min} to {sigma_max}"
        ),
        Process::Timesteps { .. } | Process::Betas { .. } => {
            format!("timestep of the schedule, from 0 to {}", process.timesteps().unwrap_or(1) - 1)
        }
    }
}
