//! The proximal law: the minimum of `|z - x0|^2 / 2 v + strength * -ln p(y | z)`.
//!
//! The likelihood is replaced by the parabola with its slope and Fisher's information at the present z, which
//! for Poisson noise is minimal at y from any z. The minimum then solves
//! `(1 + v strength s^2 A' F A) d = -v strength s A' slope - (z - x0)`. Where A is diagonal that is a
//! division; otherwise conjugate gradients, all images of a batch side by side. Information differs from
//! pixel to pixel by as much as the light does, without limit in the dark, so the equations are first divided
//! by `1 + v strength s^2 A' F`, which A smears but does not change. Where neighbours share the noise, `sqrt(F) R^-1 sqrt(F)` stands in
//! the place of F, R being its correlation, and nothing is diagonal.

use super::conjugate::{Applied, conjugate_gradients};
use super::{Guide, Proximal};
use crate::denoiser::LevelInputs;
use clearshot_graph::{Builder, Value};
use clearshot_physics::{Evidence, MeasuredValues};

pub(super) fn build(
    guide: &Guide,
    law: &Proximal,
    b: &mut Builder,
    x0: Value,
    measured: MeasuredValues,
    first: Evidence,
    level: &mut LevelInputs,
) -> Value {
    let forward = &guide.forward;
    let (copy, weigh) = (guide.clone(), *law);
    let weight = level.factor(b, x0, &guide.called("variance"), move |l| {
        copy.gate_at(l) * weigh.strength * weigh.variance(l)
    });
    let passes = if forward.likelihood.is_quadratic() { 1 } else { law.passes };
    let (mut change, mut evidence) = (None, first);
    for pass in 0..passes {
        let z = match change {
            Some(change) => b.add(x0, change),
            None => x0,
        };
        if pass > 0 {
            evidence = forward.build_evidence(b, z, measured);
        }
        let gradient = guide.gradient(b, evidence, z);
        let pull = b.mul(gradient, weight);
        let pull = b.unary(clearshot_graph::ops::Unary::Neg, pull);
        let target = match change {
            Some(change) => b.sub(pull, change),
            None => pull,
        };
        let step = solve(guide, law, b, target, evidence.information, weight);
        change = Some(match change {
            Some(change) => b.add(change, step),
            None => step,
        });
    }
    change.unwrap_or(x0)
}

/// d with `(1 + weight s^2 A' F A) d = target`.
fn solve(
    guide: &Guide,
    law: &Proximal,
    b: &mut Builder,
    target: Value,
    information: Value,
    weight: Value,
) -> Value {
    let forward = &guide.forward;
    let square = forward.sensitivity().powi(2);
    let whitening = forward.whitening();
    if forward.operator.is_diagonal() && whitening.is_none() {
        // A' F A of a diagonal A is A A F, the operator twice.
        let once = forward.operator.build(b, information);
        let twice = forward.operator.build(b, once);
        let weighted = b.mul(twice, weight);
        let scaled = b.mul_scalar(weighted, square);
        let divisor = b.add_scalar(scaled, 1.0);
        return b.div(target, divisor);
    }
    let adjoint = |b: &mut Builder, y: Value| {
        let back = match forward.operator.build_adjoint(b, y) {
            Ok(back) => back,
            Err(e) => b.refuse("guide", e.to_string()),
        };
        let weighted = b.mul(back, weight);
        b.mul_scalar(weighted, square)
    };
    let apply = |b: &mut Builder, p: Value| {
        let seen = forward.operator.build(b, p);
        let known = forward.build_precision(b, information, seen);
        let back = adjoint(b, known);
        Applied { image: b.add(p, back), moved: p }
    };
    let own = b.mul_scalar(information, whitening.map_or(1.0, |w| w.precision()));
    let divisor = adjoint(b, own);
    let divisor = b.add_scalar(divisor, 1.0);
    conjugate_gradients(b, target, divisor, law.iterations, false, apply)
}
