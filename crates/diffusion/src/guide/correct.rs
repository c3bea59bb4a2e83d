//! The corrections of all laws as nodes.

use super::{DIAGNOSTICS, Discrepancy, Guide, Law, NormAdaptive, covariance, proximal};
use crate::denoiser::LevelInputs;
use clearshot_graph::grad::grad;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};
use clearshot_physics::{Evidence, MeasuredValues};

/// Keeps quotients of sums finite where both vanish.
pub(super) const TINY: f64 = 1e-30;

impl Guide {
    /// What is added to `x0`, the denoiser's estimate for `x`.
    pub(super) fn correction(&self, b: &mut Builder, x: Value, x0: Value, level: &mut LevelInputs) -> Value {
        let batch = b.shape(x0);
        let measured = self.measured(b, batch);
        let evidence = self.forward.build_evidence(b, x0, measured);
        let change = match self.law {
            Law::Proximal(law) => proximal::build(self, &law, b, x0, measured, evidence, level),
            Law::Covariance(law) => covariance::build(self, &law, b, [x, x0], evidence, level),
            Law::SigmaSquared { .. } | Law::Sigma { .. } | Law::Constant { .. } => {
                let gradient = self.gradient(b, evidence, x0);
                self.weighted(b, gradient, level)
            }
            Law::Through { .. } => {
                let gradient = self.gradient(b, evidence, x);
                self.weighted(b, gradient, level)
            }
            Law::NormAdaptive(law) => self.norm_adaptive(&law, b, x0, evidence, level),
            Law::Discrepancy(law) => self.discrepancy(&law, b, x0, measured, evidence, level),
        };
        let mut kept = None;
        let change = if self.clip.is_finite() {
            let size = root_mean_square(b, change);
            let size = b.add_scalar(size, TINY);
            let limit = b.scalar(self.clip as f32);
            let share = b.div(limit, size);
            let share = b.unary(Unary::Clamp(0.0, 1.0), share);
            kept = Some(share);
            b.mul(change, share)
        } else {
            change
        };
        let names = DIAGNOSTICS.map(|part| self.called(part));
        if self.diagnostics && !b.graph().outputs.iter().any(|o| o.name == names[0]) {
            let by = if matches!(self.law, Law::Through { .. }) { x } else { x0 };
            let gradient = self.gradient(b, evidence, by);
            let chi2 = chi2(b, evidence, measured);
            let (gradient, moved) = (root_mean_square(b, gradient), root_mean_square(b, change));
            let kept = kept.unwrap_or_else(|| {
                let all = b.scalar(1.0);
                let shape = b.shape(chi2);
                b.broadcast(all, shape)
            });
            for (name, value) in names.iter().zip([chi2, gradient, moved, kept]) {
                b.output(name, value);
            }
        }
        change
    }

    /// The gradient of the measurement's negative log-likelihood by `by`, which its mean depends on.
    pub(super) fn gradient(&self, b: &mut Builder, evidence: Evidence, by: Value) -> Value {
        match grad(b, evidence.mean, Some(evidence.slope), &[by]) {
            Ok(gradients) => gradients[0],
            Err(e) => b.refuse("guide", e.to_string()),
        }
    }

    /// Minus the law's weight times the gradient.
    fn weighted(&self, b: &mut Builder, gradient: Value, level: &mut LevelInputs) -> Value {
        let guide = self.clone();
        let weight = level.factor(b, gradient, &self.called("weight"), move |l| {
            -guide.gate_at(l) * guide.law.weight(l).unwrap_or(0.0)
        });
        b.mul(gradient, weight)
    }

    fn norm_adaptive(
        &self,
        law: &NormAdaptive,
        b: &mut Builder,
        x0: Value,
        evidence: Evidence,
        level: &mut LevelInputs,
    ) -> Value {
        let gradient = self.gradient(b, evidence, x0);
        let size = root_mean_square(b, gradient);
        let size = b.add_scalar(size, law.eps);
        let direction = b.div(gradient, size);
        let (guide, law) = (self.clone(), *law);
        let weight =
            level.factor(b, gradient, &self.called("step"), move |l| -guide.gate_at(l) * law.weight(l));
        b.mul(direction, weight)
    }

    /// Steps down the gradient. Along one, with the variances held, chi2 is `c0 - 2 t c1 + t^2 c2`; t is where
    /// that is the target, or lowest if it never is, or 0 if it is there already.
    fn discrepancy(
        &self,
        law: &Discrepancy,
        b: &mut Builder,
        x0: Value,
        measured: MeasuredValues,
        first: Evidence,
        level: &mut LevelInputs,
    ) -> Value {
        let guide = self.clone();
        let gate = level.factor(b, x0, &self.called("gate"), move |l| guide.gate_at(l));
        let (mut z, mut evidence) = (x0, first);
        for step in 0..law.steps {
            if step > 0 {
                evidence = self.forward.build_evidence(b, z, measured);
            }
            let gradient = self.gradient(b, evidence, z);
            let down = b.unary(Unary::Neg, gradient);
            let moved = self.forward.operator.build(b, down);
            let moved = b.mul_scalar(moved, self.forward.sensitivity());
            let residual = b.sub(measured.y, evidence.mean);
            let mut mean_of = |p: Value, q: Value| {
                let product = b.mul(p, q);
                let weighted = b.mul(product, evidence.information);
                mean_over_valid(b, weighted, measured)
            };
            let (c0, c1, c2) = (mean_of(residual, residual), mean_of(residual, moved), mean_of(moved, moved));
            let above = b.add_scalar(c0, -law.target);
            let above = b.unary(Unary::Relu, above);
            // t = (c1 - sqrt(c1^2 - c2 above)) / c2, written so that nothing cancels.
            let square = b.unary(Unary::Square, c1);
            let product = b.mul(c2, above);
            let inside = b.sub(square, product);
            let inside = b.unary(Unary::Relu, inside);
            let root = b.unary(Unary::Sqrt, inside);
            let sum = b.add(c1, root);
            let sum = b.add_scalar(sum, TINY);
            let t = b.div(above, sum);
            // Where the target is out of reach the root is 0 and t = above / c1 overshoots the lowest point.
            let lowest = b.add_scalar(c2, TINY);
            let lowest = b.div(c1, lowest);
            let t = b.binary(clearshot_graph::ops::Binary::Min, t, lowest);
            let step = b.mul(down, t);
            z = b.add(z, step);
        }
        let change = b.sub(z, x0);
        b.mul(change, gate)
    }
}

/// Sums over each image, or means, as `[N, 1, ...]`.
pub(super) fn per_image(b: &mut Builder, x: Value, mean: bool) -> Value {
    let axes: Vec<usize> = (1..b.shape(x).rank()).collect();
    if mean { b.mean(x, &axes) } else { b.sum(x, &axes) }
}

fn root_mean_square(b: &mut Builder, x: Value) -> Value {
    let square = b.unary(Unary::Square, x);
    let mean = per_image(b, square, true);
    b.unary(Unary::Sqrt, mean)
}

/// The mean over an image's valid pixels, of values that are zero elsewhere.
fn mean_over_valid(b: &mut Builder, x: Value, measured: MeasuredValues) -> Value {
    let sum = per_image(b, x, false);
    match measured.valid {
        None => per_image(b, x, true),
        Some(valid) => {
            let count = per_image(b, valid, false);
            let count = b.unary(Unary::Clamp(1.0, f64::MAX), count);
            b.div(sum, count)
        }
    }
}

/// For each image, the mean of the squared residual over its variance.
fn chi2(b: &mut Builder, evidence: Evidence, measured: MeasuredValues) -> Value {
    let residual = b.sub(measured.y, evidence.mean);
    let square = b.unary(Unary::Square, residual);
    let relative = b.mul(square, evidence.information);
    mean_over_valid(b, relative, measured)
}
