//! Offsets of whole rows or columns: stripes, from the amplifiers of a row or column or from a scan line.
//!
//! The second difference across rows removes smooth structure, and is cut into segments. Two segments of a row that are
//! not adjacent only have the offset of the row in common, so the mean product of such segments is the variance of the
//! offsets (1.5 times, for rows that are independent of each other), whatever the noise of single pixels.

use serde::{Deserialize, Serialize};

/// The standard deviation of the offsets of rows or of columns, in ADU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stripes {
    pub deviation: f64,
    /// The standard error; if no stripes are detected, the smallest detectable standard deviation.
    pub error: f64,
    /// Whether stripes are significant.
    pub seen: bool,
}

/// Rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    pub rows: Stripes,
    pub columns: Stripes,
}

/// Pixels of a segment, and the fewest segments that tell something.
const SEGMENT: usize = 16;
const FEWEST_SEGMENTS: usize = 4;
const FEWEST_LINES: usize = 16;
/// The variance of a second difference of independent offsets.
const OF_SECOND_DIFFERENCE: f64 = 1.5;
/// Neighbouring second differences share offsets: their products' mean has this much more error than independent ones'.
const SHARED: f64 = 1.4;
/// Standard errors of the variance at which offsets are seen.
const SEEN: f64 = 5.0;
/// Structure is cut off at so many standard deviations.
const FARTHEST: f64 = 3.0;

/// The offsets of planes of one size: images, or differences of frames. `share` is what part of the offsets' variance is in
/// the planes, and `known` the variance of offsets that are not meant.
pub(super) fn lines(planes: &[&[f32]], shape: [usize; 2], share: f64, known: [f64; 2]) -> Option<Lines> {
    let one = |columns: bool| {
        let mut products = Vec::new();
        planes.iter().for_each(|p| collect(p, shape, columns, &mut products));
        let n = products.len() as f64;
        if products.len() < FEWEST_LINES {
            return None;
        }
        let mean = products.iter().sum::<f64>() / n;
        let spread = products.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let error = SHARED * (spread / n).sqrt() / OF_SECOND_DIFFERENCE / share;
        let variance = mean / OF_SECOND_DIFFERENCE / share - known[usize::from(columns)];
        let seen = variance > SEEN * error && error > 0.0;
        let deviation = variance.max(0.0).sqrt();
        let error = if seen { 0.5 * error / deviation } else { (SEEN * error).sqrt() };
        Some(Stripes { deviation: if seen { deviation } else { 0.0 }, error, seen })
    };
    Some(Lines { rows: one(false)?, columns: one(true)? })
}

impl Lines {
    /// Those of planes whose values are so many times larger.
    pub(super) fn times(self, factor: f64) -> Lines {
        let of = |s: Stripes| Stripes { deviation: factor * s.deviation, error: factor * s.error, ..s };
        Lines { rows: of(self.rows), columns: of(self.columns) }
    }

    /// Variances of what is seen, rows first.
    pub(super) fn variances(&self) -> [f64; 2] {
        [self.rows, self.columns].map(|s| s.deviation * s.deviation)
    }
}

/// The mean product of far segments of each line.
fn collect(plane: &[f32], [height, width]: [usize; 2], columns: bool, products: &mut Vec<f64>) {
    let (lines, length) = if columns { (width, height) } else { (height, width) };
    let count = length / SEGMENT;
    if count < FEWEST_SEGMENTS || lines < 3 {
        return;
    }
    let at = |line: usize, i: usize| {
        f64::from(if columns { plane[i * width + line] } else { plane[line * width + i] })
    };
    let second = |line: usize, i: usize| at(line, i) - 0.5 * (at(line - 1, i) + at(line + 1, i));
    let mut sizes: Vec<f64> = (1..lines - 1)
        .flat_map(|line| (0..length).step_by(7).map(move |i| (line, i)))
        .map(|(line, i)| second(line, i).abs())
        .filter(|v| v.is_finite())
        .collect();
    if sizes.is_empty() {
        return;
    }
    let middle = sizes.len() / 2;
    let limit = FARTHEST / 0.6745 * *sizes.select_nth_unstable_by(middle, f64::total_cmp).1;
    let mut means = Vec::with_capacity(count);
    for line in 1..lines - 1 {
        means.clear();
        for segment in 0..count {
            let values = (segment * SEGMENT..(segment + 1) * SEGMENT).map(|i| second(line, i));
            let (sum, n) = values
                .filter(|v| v.is_finite())
                .fold((0.0, 0usize), |(s, n), v| (s + v.clamp(-limit, limit), n + 1));
            if 2 * n > SEGMENT {
                means.push(sum / n as f64);
            }
        }
        let n = means.len();
        if n < FEWEST_SEGMENTS {
            continue;
        }
        let sum: f64 = means.iter().sum();
        let near: f64 = means.iter().map(|m| m * m).sum::<f64>()
            + 2.0 * means.windows(2).map(|w| w[0] * w[1]).sum::<f64>();
        products.push((sum * sum - near) / ((n - 1) * (n - 2)) as f64);
    }
}
