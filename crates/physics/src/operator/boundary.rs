//! Boundary conditions: the values of an image beyond its edges.

use clearshot_graph::ops::PadMode;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::MAX_RANK;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// The opposite side.
    Periodic,
    /// Zero.
    Zero,
    /// Mirrored at the pixels' outer edges (half-sample): the edge pixel is repeated. SciPy's `reflect`.
    Reflect,
    /// Mirrored at the edge pixels' centres (whole-sample): the edge pixel is not repeated. SciPy's `mirror`.
    Mirror,
    /// The edge pixel, repeated.
    Replicate,
}

impl Boundary {
    pub const ALL: [Boundary; 5] =
        [Boundary::Periodic, Boundary::Zero, Boundary::Reflect, Boundary::Mirror, Boundary::Replicate];

    /// The pixel, of `n`, that position `p` copies; `p` is at most one image size away.
    pub fn source(self, p: isize, n: usize) -> Option<usize> {
        let n = n as isize;
        let at = match self {
            _ if (0..n).contains(&p) => p,
            Boundary::Zero => return None,
            Boundary::Periodic => p.rem_euclid(n),
            Boundary::Replicate => p.clamp(0, n - 1),
            Boundary::Reflect => {
                let q = p.rem_euclid(2 * n);
                if q < n { q } else { 2 * n - 1 - q }
            }
            Boundary::Mirror if n == 1 => 0,
            Boundary::Mirror => {
                let q = p.rem_euclid(2 * n - 2);
                if q < n { q } else { 2 * n - 2 - q }
            }
        };
        Some(at as usize)
    }

    /// Adds `before[a]` and `after[a]` pixels to the spatial axis `a + 1` of x.
    #[track_caller]
    pub(super) fn pad(self, b: &mut Builder, x: Value, before: &[usize], after: &[usize]) -> Value {
        let mode = match self {
            Boundary::Periodic => PadMode::Wrap,
            Boundary::Zero => PadMode::Zero,
            Boundary::Mirror => PadMode::Reflect,
            Boundary::Replicate => PadMode::Edge,
            Boundary::Reflect => {
                return (0..before.len()).fold(x, |v, a| reflect(b, v, a + 1, before[a], after[a]));
            }
        };
        let mut pad = [[0; 2]; MAX_RANK];
        for a in 0..before.len() {
            pad[a + 1] = [before[a], after[a]];
        }
        b.pad(x, pad, mode)
    }
}

/// Half-sample reflection from whole-sample reflection: with one pixel less on a side, the whole-sample pad
/// and the edge pixel behind it are together the half-sample pad.
#[track_caller]
fn reflect(b: &mut Builder, x: Value, axis: usize, before: usize, after: usize) -> Value {
    let n = b.shape(x).get(axis).copied().unwrap_or(1);
    let (low, high) = (before.saturating_sub(1), after.saturating_sub(1));
    let mut pad = [[0; 2]; MAX_RANK];
    pad[axis] = [low, high];
    let whole = b.pad(x, pad, PadMode::Reflect);
    let mut parts = Vec::new();
    if before > 0 {
        parts.push(b.slice(whole, axis, 0, before));
    }
    parts.push(x);
    if after > 0 {
        parts.push(b.slice(whole, axis, low + n - 1, after));
    }
    b.concat(&parts, axis)
}
