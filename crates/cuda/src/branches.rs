//! Which launches must wait for which others, told by the memory that each reads and writes.
//!
//! A plan lets buffers share memory under the assumption that nodes run one behind the other. What may run
//! side by side follows from addresses alone: a step waits for an earlier one where one of the two writes
//! what the other reads or writes. Every such pair keeps its order, so results are the same bits in whatever
//! order the rest runs.

use std::ops::Range;

/// The memory that a step touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub reads: Vec<Range<u64>>,
    pub writes: Vec<Range<u64>>,
    /// It touches more than is listed: nothing runs beside it.
    pub alone: bool,
}

fn meet(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Access {
    fn conflicts(&self, earlier: &Access) -> bool {
        self.alone
            || earlier.alone
            || meet(&self.writes, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.reads, &earlier.writes)
    }
}

/// For each step the earlier ones that it waits for; those that others of these wait for are left out.
pub(crate) fn waits(steps: &[Access]) -> Vec<Vec<usize>> {
    let words = steps.len().div_ceil(64);
    // A set of steps each: what comes before it, directly or not.
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(steps.len());
    let mut waits = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let mut known = vec![0u64; words];
        let mut direct = vec![];
        for earlier in (0..i).rev() {
            if known[earlier / 64] >> (earlier % 64) & 1 == 0 && step.conflicts(&steps[earlier]) {
                direct.push(earlier);
                known.iter_mut().zip(&before[earlier]).for_each(|(a, b)| *a |= b);
                known[earlier / 64] |= 1 << (earlier % 64);
            }
        }
        before.push(known);
        waits.push(direct);
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::{Access, waits};

    fn step(reads: &[u64], writes: &[u64]) -> Access {
        let ranges = |at: &[u64]| at.iter().map(|&a| 10 * a..10 * a + 10).collect();
        Access { reads: ranges(reads), writes: ranges(writes), alone: false }
    }

    #[test]
    fn order_is_kept_where_one_writes_what_another_touches() {
        let steps = [
            step(&[0], &[1]),
            step(&[0], &[2]),
            step(&[1, 2], &[3]),
            // Takes over the memory of what the third read.
            step(&[0], &[1]),
            // Writes what the second wrote and the third read: waiting for the third is enough.
            step(&[], &[2]),
            step(&[9], &[8]),
        ];
        assert_eq!(waits(&steps), [vec![], vec![], vec![1, 0], vec![2], vec![2], vec![]]);
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let part = |from, to| Access { writes: std::iter::once(from..to).collect(), ..Access::default() };
        assert_eq!(waits(&[part(0, 16), part(16, 32), part(15, 17)]), [vec![], vec![], vec![1, 0]]);
    }

    #[test]
    fn nothing_runs_beside_a_step_that_is_alone() {
        let alone = Access { alone: true, ..Access::default() };
        let steps = [step(&[], &[1]), step(&[], &[2]), alone, step(&[], &[3]), step(&[], &[4])];
        assert_eq!(waits(&steps), [vec![], vec![], vec![1, 0], vec![2], vec![2]]);
    }

    #[test]
    fn every_conflict_is_ordered_directly_or_through_others() {
        let mut state = 7u64;
        let mut random = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let steps: Vec<Access> = (0..200).map(|_| step(&[random(40), random(40)], &[random(40)])).collect();
        let waits = waits(&steps);
        let mut before = vec![vec![false; steps.len()]; steps.len()];
        for i in 0..steps.len() {
            for &w in &waits[i] {
                assert!(w < i && !before[i][w], "step {i} need not wait for {w}");
                before[i][w] = true;
                for j in 0..w {
                    before[i][j] |= before[w][j];
                }
            }
            for j in 0..i {
                assert!(before[i][j] || !steps[i].conflicts(&steps[j]), "{i} runs beside {j}");
            }
        }
        assert!(waits.iter().map(Vec::len).sum::<usize>() < 3 * steps.len());
    }
}
