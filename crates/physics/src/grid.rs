//! Planes and volumes: the spatial sizes that operators work on, two or three of them.

use crate::error::PhysicsError;
use clearshot_tensor::{MAX_RANK, Shape};

/// # Errors
/// If there are not 2 or 3 sizes, all above zero.
pub(crate) fn check(what: &'static str, shape: Shape) -> Result<(), PhysicsError> {
    let possible = shape.checked_len().is_some_and(|n| n > 0);
    if matches!(shape.rank(), 2 | 3) && possible {
        return Ok(());
    }
    Err(PhysicsError::Shape { what, got: shape, needed: "2 or 3 sizes above zero".into() })
}

/// Z, Y, X with Z = 1 for a plane.
pub(crate) fn zyx(shape: Shape) -> [usize; 3] {
    match shape.rank() {
        2 => [1, shape[0], shape[1]],
        _ => [shape[0], shape[1], shape[2]],
    }
}

/// Calls `f` with every index in row-major order.
pub(crate) fn for_each(shape: Shape, mut f: impl FnMut(&[usize])) {
    let rank = shape.rank();
    let mut at = [0usize; MAX_RANK];
    for _ in 0..shape.len() {
        f(&at[..rank]);
        for axis in (0..rank).rev() {
            at[axis] += 1;
            if at[axis] < shape[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}
