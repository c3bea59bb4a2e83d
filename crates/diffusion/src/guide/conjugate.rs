//! Conjugate gradients as part of a graph, separately for each image of a batch.

use super::correct::{TINY, per_image};
use clearshot_graph::ops::Binary;
use clearshot_graph::{Builder, Value};

/// What a direction becomes: the matrix times it, and what it adds to the result, which may be another image than the
/// direction itself.
pub(super) struct Applied {
    pub image: Value,
    pub moved: Value,
}

/// The result of so many steps towards the solution of a system whose matrix is at least the identity, from nothing; residuals
/// are divided by `divisor`, which is near the matrix. `target` where there are no steps.
///
/// With `bounded`, a matrix that is less than the identity along a direction counts as the identity there.
pub(super) fn conjugate_gradients(
    b: &mut Builder,
    target: Value,
    divisor: Value,
    iterations: usize,
    bounded: bool,
    apply: impl Fn(&mut Builder, Value) -> Applied,
) -> Value {
    let dot = |b: &mut Builder, p: Value, q: Value| {
        let product = b.mul(p, q);
        let sum = per_image(b, product, false);
        b.add_scalar(sum, TINY)
    };
    let mut residual = target;
    let mut direction = b.div(residual, divisor);
    let mut size = dot(b, residual, direction);
    let mut result: Option<Value> = None;
    for i in 0..iterations {
        let Applied { image, moved } = apply(b, direction);
        let mut curvature = dot(b, direction, image);
        if bounded {
            let least = dot(b, direction, direction);
            curvature = b.binary(Binary::Max, curvature, least);
        }
        let length = b.div(size, curvature);
        let step = b.mul(moved, length);
        result = Some(match result {
            Some(result) => b.add(result, step),
            None => step,
        });
        if i + 1 == iterations {
            break;
        }
        let less = b.mul(image, length);
        residual = b.sub(residual, less);
        let divided = b.div(residual, divisor);
        let next = dot(b, residual, divided);
        let ratio = b.div(next, size);
        let kept = b.mul(direction, ratio);
        direction = b.add(divided, kept);
        size = next;
    }
    result.unwrap_or(target)
}
