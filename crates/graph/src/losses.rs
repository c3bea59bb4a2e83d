//! Losses, built from elementwise operations and sums. Each gives a scalar: the mean over all elements.

use crate::ops::{ReduceKind, Unary};
use crate::{Builder, Value};

#[track_caller]
fn mean_of(b: &mut Builder, f: Unary, x: Value, target: Value) -> Value {
    let difference = b.sub(x, target);
    let each = b.unary(f, difference);
    b.reduce_all(ReduceKind::Mean, each)
}

/// Mean squared error.
#[track_caller]
pub fn mse(b: &mut Builder, x: Value, target: Value) -> Value {
    mean_of(b, Unary::Square, x, target)
}

/// Mean absolute error.
#[track_caller]
pub fn l1(b: &mut Builder, x: Value, target: Value) -> Value {
    mean_of(b, Unary::Abs, x, target)
}

/// Squared up to `delta`, linear beyond with slope `delta`.
#[track_caller]
pub fn huber(b: &mut Builder, x: Value, target: Value, delta: f64) -> Value {
    mean_of(b, Unary::Huber(delta), x, target)
}

/// Squared up to `beta`, linear beyond with slope 1.
#[track_caller]
pub fn smooth_l1(b: &mut Builder, x: Value, target: Value, beta: f64) -> Value {
    mean_of(b, Unary::SmoothL1(beta), x, target)
}

/// Added to numerator and denominator of Dice, as MONAI does by default.
const DICE_SMOOTH: f64 = 1e-5;

/// Dice plus binary cross-entropy of logits `x` against `target` in [0, 1]: MONAI's
/// `DiceCELoss(sigmoid=True)`. Dice is taken for each sample and channel and averaged.
#[track_caller]
pub fn dice_ce(b: &mut Builder, x: Value, target: Value) -> Value {
    let axes: Vec<usize> = (1..b.shape(x).rank().saturating_sub(1)).collect();
    let p = b.unary(Unary::Sigmoid, x);
    let both = b.mul(p, target);
    let intersection = b.sum(both, &axes);
    let (sum_p, sum_t) = (b.sum(p, &axes), b.sum(target, &axes));
    let sum = b.add(sum_p, sum_t);
    let twice = b.mul_scalar(intersection, 2.0);
    let (numerator, denominator) = (b.add_scalar(twice, DICE_SMOOTH), b.add_scalar(sum, DICE_SMOOTH));
    let overlap = b.div(numerator, denominator);
    let overlap = b.reduce_all(ReduceKind::Mean, overlap);
    // Cross-entropy of logits: softplus(x) - x target, which never takes the log of 0.
    let softplus = b.unary(Unary::Softplus, x);
    let product = b.mul(x, target);
    let entropy = b.sub(softplus, product);
    let entropy = b.reduce_all(ReduceKind::Mean, entropy);
    let lost = b.sub(entropy, overlap);
    b.add_scalar(lost, 1.0)
}
