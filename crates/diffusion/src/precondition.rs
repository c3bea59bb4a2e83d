//! Preconditioning: from the prediction of a network to the clean image.
//!
//! For every kind of prediction, `x0 = skip x + output F(input x, time)` with three numbers that follow from the level.
//! Networks that predict noise, x0 or velocity were trained with alpha^2 + sigma^2 = 1; at other scales x is converted
//! first.

use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use crate::level::Level;
use clearshot_graph::{Builder, Value};

/// What a network predicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prediction {
    /// The noise in x; diffusers' `epsilon`.
    Noise,
    /// The clean image; diffusers' `sample`.
    Sample,
    /// alpha noise - sigma x0 (Salimans and Ho 2022); diffusers' `v_prediction`.
    Velocity,
    /// Karras et al. 2022: between noise and clean image, whichever is the smaller error.
    Edm { sigma_data: f64 },
}

/// `x0 = skip x + output F(input x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    pub input: f64,
    pub skip: f64,
    pub output: f64,
}

impl Prediction {
    pub fn coefficients(self, level: &Level) -> Coefficients {
        let Level { alpha, sigma, .. } = *level;
        let norm = level.norm();
        match self {
            Prediction::Noise => {
                Coefficients { input: 1.0 / norm, skip: 1.0 / alpha, output: -sigma / alpha }
            }
            Prediction::Sample => Coefficients { input: 1.0 / norm, skip: 0.0, output: 1.0 },
            Prediction::Velocity => {
                Coefficients { input: 1.0 / norm, skip: alpha / (norm * norm), output: -sigma / norm }
            }
            Prediction::Edm { sigma_data } => {
                let ratio = level.ratio();
                let both = ratio.hypot(sigma_data);
                Coefficients {
                    input: 1.0 / (alpha * both),
                    skip: sigma_data * sigma_data / (both * both * alpha),
                    output: ratio * sigma_data / both,
                }
            }
        }
    }

    /// In front of the names of this prediction's inputs, so that two networks in one graph do not mix.
    pub(crate) fn tag(self) -> String {
        match self {
            Prediction::Noise => "noise".into(),
            Prediction::Sample => "sample".into(),
            Prediction::Velocity => "velocity".into(),
            Prediction::Edm { sigma_data } => format!("edm{sigma_data}"),
        }
    }
}

/// A network as nodes: (x, time `[N]`, condition) -> its prediction. A condition that is an image is
/// already part of x, behind its channels.
pub trait Network {
    fn build(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> Value;

    /// The same with what the network says of the error of the clean image, if it does.
    fn answer(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> (Value, Option<Value>) {
        (self.build(b, x, time, given), None)
    }
}

impl<F: Fn(&mut Builder, Value, Value, &Condition) -> Value> Network for F {
    fn build(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> Value {
        self(b, x, time, given)
    }
}

/// What a network predicts for x.
#[derive(Clone, Copy, Debug)]
pub struct Predicted {
    pub value: Value,
    /// As an [`Estimate`] has them.
    pub variance: Option<Value>,
    pub error: Option<Value>,
}

/// A network as a denoiser.
pub struct Preconditioned<N> {
    pub network: N,
    pub prediction: Prediction,
    /// The network's output has twice the channels of x: behind the prediction stands the learned variance,
    /// from -1 (smallest) to 1 (Nichol and Dhariwal 2021).
    pub learned_variance: bool,
}

impl<N: Network> Preconditioned<N> {
    /// Adds the network.
    pub fn predict(
        &self,
        b: &mut Builder,
        x: Value,
        level: &mut LevelInputs,
        given: &Condition,
    ) -> Predicted {
        let prediction = self.prediction;
        let name = format!("{}.input", prediction.tag());
        let time = level.number(b, "time", |l| l.time);
        let input = level.factor(b, x, &name, move |l| prediction.coefficients(l).input);
        let scaled = b.mul(x, input);
        let parts: Vec<Value> = [scaled].into_iter().chain(given.image).collect();
        let seen = b.concat_channels(&parts);
        let rest = Condition { image: None, ..*given };
        let (y, error) = self.network.answer(b, seen, time, &rest);
        let (got, want) = (b.shape(y), b.shape(x));
        let c = want.channels();
        let channels = if self.learned_variance { 2 * c } else { c };
        let axis = want.rank().saturating_sub(1);
        if got != want.with(axis, channels) {
            let want = want.with(axis, channels);
            let value = b.refuse("denoiser", format!("the network gives {got} where {want} is needed"));
            return Predicted { value, variance: None, error: None };
        }
        if !self.learned_variance {
            return Predicted { value: y, variance: None, error };
        }
        let v = b.slice(y, axis, c, c);
        let half = b.mul_scalar(v, 0.5);
        let variance = Some(b.add_scalar(half, 0.5));
        Predicted { value: b.slice(y, axis, 0, c), variance, error }
    }

    /// The clean image that a prediction for x means.
    pub fn clean(&self, b: &mut Builder, x: Value, predicted: Value, level: &mut LevelInputs) -> Value {
        let prediction = self.prediction;
        if prediction == Prediction::Sample {
            return predicted;
        }
        let [skip, output] = ["skip", "output"].map(|what| format!("{}.{what}", prediction.tag()));
        let skip = level.factor(b, x, &skip, move |l| prediction.coefficients(l).skip);
        let output = level.factor(b, x, &output, move |l| prediction.coefficients(l).output);
        let (kept, made) = (b.mul(x, skip), b.mul(predicted, output));
        b.add(kept, made)
    }
}

impl<N: Network> Denoiser for Preconditioned<N> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let Predicted { value, variance, error } = self.predict(b, x, level, given);
        Estimate { variance, error, ..Estimate::of(self.clean(b, x, value, level)) }
    }
}

/// A denoiser whose estimate is clipped to the range of images.
pub struct Clipped<D> {
    pub denoiser: D,
    pub range: [f64; 2],
}

impl<D: Denoiser> Denoiser for Clipped<D> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let inner = self.denoiser.denoise(b, x, level, given);
        let [low, high] = self.range;
        let x0 = b.unary(clearshot_graph::ops::Unary::Clamp(low, high), inner.x0);
        Estimate { x0, unclipped: inner.x0, ..inner }
    }
}
