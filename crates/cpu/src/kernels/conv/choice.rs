//! Which algorithm a convolution takes, from an estimate of its work.
//!
//! The unit is one multiplication of one lane. Transforms and reading weights are counted in it
//! with factors that were measured; they need not be exact, since the costs of the algorithms
//! differ by much more wherever it matters.

use super::ConvDims;
use super::grouped::Grouped;
use crate::gemm::dots;
use crate::simd::Level;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Implicit,
    Winograd2,
    Winograd4,
    Grouped,
}

/// What it takes to read one weight that is not in a near cache.
const WEIGHT: usize = 8;

/// Samples that a convolution is taken to have, however many there are: a sample's result must not depend on
/// those beside it, and the algorithms round differently. Two costs one sample alone, or many of them, an eighth
/// of the time at most, and that only where images are of a few pixels.
pub(super) const SAMPLES: usize = 2;

/// The cheapest for so many samples, of dimensions that Winograd's transforms apply to unless groups are small, reading `c` channels and
/// writing `k`.
pub(super) fn choose(
    samples: usize,
    dims: &ConvDims,
    output: [usize; 3],
    c: usize,
    k: usize,
    level: Level,
) -> Choice {
    if Grouped::suits(dims, k / dims.groups, level) {
        return Choice::Grouped;
    }
    let lanes = level.lanes();
    let [z, y, x] = output;
    let planes = samples * z;
    let (wide_c, wide_k) = (c.next_multiple_of(lanes), k.next_multiple_of(lanes));
    let taps = dims.kernel[0];
    let winograd = |out: usize, points: usize, transform: usize| {
        let tiles = planes * y.div_ceil(out) * x.div_ceil(out);
        let multiply = points * taps * wide_c * wide_k;
        tiles * (multiply + transform * (taps * wide_c + wide_k)) + WEIGHT * multiply
    };
    // A dot product loads both of its sides.
    let columns = if k <= dots::MAX_COLUMNS { 2 * k } else { wide_k };
    let implicit = (planes * y * x + WEIGHT) * 9 * taps * c * columns;
    let costs = [
        (winograd(4, 36, 230), Choice::Winograd4),
        (winograd(2, 16, 75), Choice::Winograd2),
        (implicit, Choice::Implicit),
    ];
    costs.into_iter().min_by_key(|(cost, _)| *cost).map_or(Choice::Implicit, |(_, choice)| choice)
}
