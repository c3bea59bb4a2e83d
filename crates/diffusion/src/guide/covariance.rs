//! The covariance law: the minimum of `d' C^-1 d / 2 - ln p(y | x0 + d)`, C being the covariance of x0 given x.
//!
//! A denoiser knows C: it is `sigma^2 / alpha` times its derivative, dx0/dx, which for one that is trained is
//! symmetric as nearly as it is right. With the likelihood's slope and Fisher's information F at x0 the minimum is
//! `d = C s A' sqrt(F) w` with `(1 + sqrt(F) s A C s A' sqrt(F)) w = -slope / sqrt(F)`: conjugate gradients in the
//! measurement's space, where invalid pixels are zeros and noise that neighbours share is made white (sqrt(F) then stands for W sqrt(F), W being the
//! inverse root of its correlation), each product with C a walk back through the denoiser. They are
//! divided by what the matrix would be without correlations, so the first of them is that solution made as long as
//! suits best.

use super::conjugate::{Applied, conjugate_gradients};
use super::{Covariance, Guide};
use crate::denoiser::LevelInputs;
use clearshot_graph::grad::grad;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};
use clearshot_physics::Evidence;

pub(super) fn build(
    guide: &Guide,
    law: &Covariance,
    b: &mut Builder,
    [x, x0]: [Value; 2],
    evidence: Evidence,
    level: &mut LevelInputs,
) -> Value {
    let s = guide.forward.sensitivity();
    let (copy, weigh) = (guide.clone(), *law);
    let weight = level.factor(b, x0, &guide.called("weight"), move |l| copy.gate_at(l) * weigh.weight(l));
    let guess =
        level.factor(b, evidence.mean, &guide.called("variance"), move |l| s * s * weigh.first_guess(l));
    let root = b.unary(Unary::Sqrt, evidence.information);
    let whitening = guide.forward.whitening();
    let whitened = |b: &mut Builder, w: Value| match &whitening {
        Some(whitening) => whitening.build(b, w),
        None => w,
    };
    let divisor = b.mul(evidence.information, guess);
    let divisor = b.add_scalar(divisor, 1.0);
    // What a direction w of the measurement's space moves in the image.
    let moved = |b: &mut Builder, w: Value| {
        let own = whitened(b, w);
        let seen = b.mul(own, root);
        let back = match guide.forward.operator.build_adjoint(b, seen) {
            Ok(back) => back,
            Err(e) => return b.refuse("guide", e.to_string()),
        };
        let back = b.mul_scalar(back, s);
        let back = b.mul(back, weight);
        match grad(b, x0, Some(back), &[x]) {
            Ok(gradients) => gradients[0],
            Err(e) => b.refuse("guide", e.to_string()),
        }
    };
    let target = whitened(b, evidence.score);
    let target = b.unary(Unary::Neg, target);
    // A covariance adds to the matrix; a network's derivative may be none here and there, so it is bounded.
    conjugate_gradients(b, target, divisor, law.iterations, true, |b, direction| {
        let moved = moved(b, direction);
        let seen = guide.forward.operator.build(b, moved);
        let seen = b.mul_scalar(seen, s);
        let seen = b.mul(seen, root);
        let seen = whitened(b, seen);
        Applied { image: b.add(direction, seen), moved }
    })
}
