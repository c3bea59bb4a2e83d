//! Block matching: finds the blocks most similar to reference blocks.
//!
//! All reference blocks of a row are matched together: for each displacement, the squared differences of eight
//! rows of pixels are summed column by column, then over eight columns, for the whole width at once. Each
//! reference block keeps a sorted list of the best so far.

use super::transform::SIDE;

/// Which blocks are found.
#[derive(Clone)]
pub(super) struct Search {
    /// The search radius along y and x.
    pub reach: usize,
    /// The largest number of blocks.
    pub most: usize,
    /// The largest sum of squared differences.
    pub limit: f32,
    /// A bias added to that sum, for each displacement, row by row.
    pub bias: Vec<f32>,
}

/// Finds blocks in one guide image.
pub(super) struct Matcher<'a> {
    guide: &'a [f32],
    size: [usize; 2],
    search: &'a Search,
    sums: Vec<f32>,
    /// `most` entries for each reference block, best first.
    best: Vec<u64>,
    /// How many of them are found, and what the next one must be below.
    counts: Vec<usize>,
    worst: Vec<f32>,
}

/// The blocks of one stack, the most alike first; the first is the reference block itself.
pub(super) struct Found<'a> {
    entries: &'a [u64],
    reach: usize,
}

impl Found<'_> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// From the reference block to the block `k`, along y and x.
    pub fn displacement(&self, k: usize) -> [isize; 2] {
        let side = 2 * self.reach + 1;
        let code = (self.entries[k] & 0xFFFF_FFFF) as usize;
        if code == 0 {
            return [0, 0];
        }
        let code = code - 1;
        [(code / side) as isize - self.reach as isize, (code % side) as isize - self.reach as isize]
    }
}

impl<'a> Matcher<'a> {
    pub fn new(guide: &'a [f32], size: [usize; 2], search: &'a Search) -> Matcher<'a> {
        let sums = vec![0.0; size[1]];
        Matcher { guide, size, search, sums, best: Vec::new(), counts: Vec::new(), worst: Vec::new() }
    }

    /// Finds the stacks of the reference blocks at row `y` and the given columns, in ascending order.
    #[inline(always)]
    pub fn row(&mut self, y: usize, columns: &[usize]) {
        let [height, width] = self.size;
        let &Search { reach, most, limit, ref bias } = self.search;
        // A distance and a displacement as one number, so that sorting needs no second look. Displacement 0 is the
        // reference block, which is always found.
        self.best.clear();
        self.best.resize(columns.len() * most, 0);
        self.counts.clear();
        self.counts.resize(columns.len(), 1);
        self.worst.clear();
        let open = if most > 1 { limit } else { f32::NEG_INFINITY };
        self.worst.resize(columns.len(), open);
        let side = 2 * reach + 1;
        for dy in 0..side {
            let Some(there) = (y + dy).checked_sub(reach).filter(|t| t + SIDE <= height) else {
                continue;
            };
            for dx in 0..side {
                if dy == reach && dx == reach {
                    continue;
                }
                // Columns from which the displaced block is inside.
                let low = reach.saturating_sub(dx);
                let high = (width + reach).saturating_sub(dx).min(width);
                if low + SIDE > high {
                    continue;
                }
                let row = |y: usize, x: usize| &self.guide[y * width + x..][..high - low];
                let a: [&[f32]; SIDE] = std::array::from_fn(|r| row(y + r, low));
                let b: [&[f32]; SIDE] = std::array::from_fn(|r| row(there + r, low + dx - reach));
                let sums = &mut self.sums[..high - low];
                block_distances(a, b, sums);
                let last = high - SIDE;
                let from = columns.partition_point(|&x| x < low);
                let code = dy * side + dx;
                let bias = bias[code];
                for (i, &x) in columns.iter().enumerate().skip(from) {
                    if x > last {
                        break;
                    }
                    let distance = sums[x - low] + bias;
                    if distance < self.worst[i] {
                        let list = &mut self.best[i * most..][..most];
                        let entry = u64::from(distance.max(0.0).to_bits()) << 32 | (code + 1) as u64;
                        let count = &mut self.counts[i];
                        insert(list, count, entry);
                        if *count == most {
                            self.worst[i] = f32::from_bits((list[most - 1] >> 32) as u32);
                        }
                    }
                }
            }
        }
    }

    /// The stack of the reference block at column `i` of the row.
    pub fn found(&self, i: usize) -> Found<'_> {
        let Search { reach, most, .. } = *self.search;
        Found { entries: &self.best[i * most..][..self.counts[i]], reach }
    }
}

/// Puts an entry into its place of a sorted list, after the reference block; a full list loses its last.
fn insert(list: &mut [u64], count: &mut usize, entry: u64) {
    let mut at = if *count < list.len() {
        *count += 1;
        *count - 1
    } else {
        *count - 1
    };
    while at > 1 && list[at - 1] > entry {
        list[at] = list[at - 1];
        at -= 1;
    }
    list[at] = entry;
}

/// The sum of squared differences of the blocks whose first column is each column; the last seven have none.
#[inline(always)]
fn block_distances(a: [&[f32]; SIDE], b: [&[f32]; SIDE], sums: &mut [f32]) {
    let n = sums.len();
    let (a, b) = (a.map(|r| &r[..n]), b.map(|r| &r[..n]));
    for x in 0..n {
        let mut sum = 0.0;
        for r in 0..SIDE {
            let d = a[r][x] - b[r][x];
            sum += d * d;
        }
        sums[x] = sum;
    }
    for shift in [1, 2, 4] {
        for x in 0..n - shift {
            sums[x] += sums[x + shift];
        }
    }
}
