//! The updates of training: gradient clipping, optimisers, averages, loss scale.
//!
//! They are ordinary nodes whose results the graph's updates write back into the states that they
//! read, in place. One scalar, `factor`, ties them together: every gradient is multiplied by it (loss
//! scale taken out, norm clipped), and where some gradient is not finite it is NaN, upon which every
//! update leaves its state as it was: the iteration is skipped, and the loss scale is lowered.

use super::{OpError, floats, operands, want};
use crate::array::Array;
use crate::graph::Type;
use clearshot_tensor::Shape;

fn scalars(x: &[Type]) -> Result<(), OpError> {
    x.iter().try_for_each(|t| want("scalar", *t, Shape::SCALAR))
}

fn alike(what: &'static str, x: &[Type]) -> Result<(), OpError> {
    floats(x)?;
    x.iter().try_for_each(|t| want(what, *t, x[0].shape))
}

/// Operands: loss scale, then each gradient's sum of squares. Outputs: the norm of all gradients
/// together (loss scale taken out), and the factor for each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The largest norm; infinite for no clipping.
    pub max_norm: f64,
}

hash_by_bits!(Clip {} max_norm);

impl Clip {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        if x.len() < 2 {
            return Err(OpError::Count { expected: "two or more".into(), got: x.len() });
        }
        scalars(x)?;
        Ok(vec![x[0]; 2])
    }

    /// Norm and factor from the total of the squares.
    pub fn factor(&self, loss_scale: f64, squares: f64) -> (f64, f64) {
        let norm = squares.sqrt() / loss_scale;
        let clip = if self.max_norm.is_finite() { (self.max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        (norm, if norm.is_finite() { clip / loss_scale } else { f64::NAN })
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (norm, factor) = self.factor(x[0].data[0], x[1..].iter().map(|s| s.data[0]).sum());
        vec![Array::scalar(norm), Array::scalar(factor)]
    }
}

/// Adam, or AdamW where the decay is decoupled from the gradient. Operands: parameter, gradient, first
/// moment, second moment, rate, steps done before, factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub decoupled: bool,
}

hash_by_bits!(Adam { decoupled } beta1, beta2, eps, weight_decay);

impl Adam {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 7)?;
        alike("parameter, gradient and moments", &x[..4])?;
        scalars(&x[4..])?;
        Ok(vec![x[0], x[2], x[3]])
    }

    /// The bias corrections after `steps` earlier ones: of the first moment, and of the second's root.
    pub fn corrections(&self, steps: f64) -> (f64, f64) {
        let t = steps + 1.0;
        (1.0 - self.beta1.powf(t), (1.0 - self.beta2.powf(t)).sqrt())
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (rate, factor) = (x[4].data[0], x[6].data[0]);
        let (mut p, mut m, mut v) = (x[0].clone(), x[2].clone(), x[3].clone());
        if factor.is_nan() {
            return vec![p, m, v];
        }
        let (c1, c2) = self.corrections(x[5].data[0]);
        for i in 0..p.data.len() {
            let mut g = x[1].data[i] * factor;
            if self.decoupled {
                p.data[i] *= 1.0 - rate * self.weight_decay;
            } else {
                g += self.weight_decay * p.data[i];
            }
            m.data[i] = self.beta1 * m.data[i] + (1.0 - self.beta1) * g;
            v.data[i] = self.beta2 * v.data[i] + (1.0 - self.beta2) * g * g;
            p.data[i] -= rate / c1 * m.data[i] / (v.data[i].sqrt() / c2 + self.eps);
        }
        vec![p, m, v]
    }
}

/// Gradient descent with momentum. Operands: parameter, gradient, momentum, rate, factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub momentum: f64,
    pub nesterov: bool,
    pub weight_decay: f64,
}

hash_by_bits!(Sgd { nesterov } momentum, weight_decay);

impl Sgd {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 5)?;
        alike("parameter, gradient and momentum", &x[..3])?;
        scalars(&x[3..])?;
        Ok(vec![x[0], x[2]])
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (rate, factor) = (x[3].data[0], x[4].data[0]);
        let (mut p, mut buffer) = (x[0].clone(), x[2].clone());
        if factor.is_nan() {
            return vec![p, buffer];
        }
        for i in 0..p.data.len() {
            let g = x[1].data[i] * factor + self.weight_decay * p.data[i];
            buffer.data[i] = self.momentum * buffer.data[i] + g;
            let step = if self.nesterov { g + self.momentum * buffer.data[i] } else { buffer.data[i] };
            p.data[i] -= rate * step;
        }
        vec![p, buffer]
    }
}

pub(super) fn infer_ema(x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 4)?;
    alike("average and parameter", &x[..2])?;
    scalars(&x[2..])?;
    Ok(vec![x[0]])
}

/// average decay + parameter (1 - decay).
pub(super) fn eval_ema(x: &[&Array]) -> Vec<Array> {
    let (decay, factor) = (x[2].data[0], x[3].data[0]);
    if factor.is_nan() {
        return vec![x[0].clone()];
    }
    let data = x[0].data.iter().zip(&x[1].data).map(|(e, p)| e * decay + p * (1.0 - decay)).collect();
    vec![Array::new(x[0].shape, data)]
}

/// Dynamic loss scale: lowered when an iteration was skipped, raised after `interval` good ones.
/// Operands: scale, good iterations since it last changed, norm of the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    pub growth: f64,
    pub backoff: f64,
    pub interval: f64,
}

hash_by_bits!(LossScale {} growth, backoff, interval);

impl LossScale {
    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 3)?;
        scalars(x)?;
        Ok(vec![x[0], x[1]])
    }

    /// The next scale and count.
    pub fn next(&self, scale: f64, good: f64, norm: f64) -> (f64, f64) {
        if !norm.is_finite() {
            (scale * self.backoff, 0.0)
        } else if good + 1.0 >= self.interval {
            (scale * self.growth, 0.0)
        } else {
            (scale, good + 1.0)
        }
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (scale, good) = self.next(x[0].data[0], x[1].data[0], x[2].data[0]);
        vec![Array::scalar(scale), Array::scalar(good)]
    }
}

pub(super) fn infer_count(x: &[Type]) -> Result<Vec<Type>, OpError> {
    operands(x, 2)?;
    scalars(x)?;
    Ok(vec![x[0]])
}

pub(super) fn eval_count(x: &[&Array]) -> Vec<Array> {
    let skipped = x[1].data[0].is_nan();
    vec![x[0].map(|s| if skipped { s } else { s + 1.0 })]
}
