//! One file shared by several writers: who owns a chunk, and which parts of a region are still to be written by one of
//! them.
//!
//! Writers own contiguous runs of chunks, so that their pixels are close together and few of the neighbours' are read.
//! Every writer computes this by itself from the grid.

use crate::grid::{Grid, Region, intersect};
use std::ops::Range;

/// The share of one of several writers of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The same for all writers of one file, and for no others: letters and digits.
    pub id: String,
    /// This one's number, from 0 on, and how many there are; none for the last writer, which makes what is missing and completes
    /// the file.
    pub part: Option<(usize, usize)>,
    /// Axes of the image along which chunks are not divided between writers.
    pub together: Vec<usize>,
}

impl Share {
    /// How many runs of chunks there are to divide.
    pub fn units(&self, grid: &Grid) -> usize {
        self.divided(grid).into_iter().map(|(_, count)| count).product()
    }

    /// Whether a chunk is this writer's.
    pub fn owns(&self, grid: &Grid, index: &[usize]) -> bool {
        let Some((number, of)) = self.part else { return true };
        let divided = self.divided(grid);
        let unit = divided.iter().fold(0, |n, &(axis, count)| n * count + index[axis]);
        let units: usize = divided.iter().map(|(_, count)| count).product();
        unit as u128 * of as u128 / (units.max(1) as u128) == number as u128
    }

    /// The axes that are divided, and the chunks along each.
    fn divided(&self, grid: &Grid) -> Vec<(usize, usize)> {
        grid.counts().into_iter().enumerate().filter(|(axis, _)| !self.together.contains(axis)).collect()
    }
}

/// What of a region lies in chosen chunks, as few boxes that share no pixel.
pub fn boxes(grid: &Grid, region: &Region, chosen: impl Fn(&[usize]) -> bool) -> Vec<Vec<Range<usize>>> {
    let of = |index: &Vec<usize>| intersect(&grid.region(index), region);
    let mut all: Vec<_> = grid.touching(region).iter().filter(|index| chosen(index)).map(of).collect();
    // Boxes that touch along an axis and agree along all others are one.
    for axis in (0..grid.shape.len()).rev() {
        let mut merged: Vec<Vec<Range<usize>>> = Vec::with_capacity(all.len());
        let others = |r: &Region| -> Vec<Range<usize>> {
            r.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, r)| r.clone()).collect()
        };
        all.sort_by_key(|r| (others(r).iter().map(|r| (r.start, r.end)).collect::<Vec<_>>(), r[axis].start));
        for next in all {
            match merged.last_mut() {
                Some(last) if last[axis].end == next[axis].start && others(last) == others(&next) => {
                    last[axis].end = next[axis].end;
                }
                _ => merged.push(next),
            }
        }
        all = merged;
    }
    all.sort_by_key(|r| r.iter().map(|r| r.start).collect::<Vec<_>>());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::indices;

    fn share(part: (usize, usize), together: &[usize]) -> Share {
        Share { id: "a".into(), part: Some(part), together: together.to_vec() }
    }

    /// Every chunk has one owner, in runs; no part has two more than another where chunks can be divided.
    #[test]
    fn every_chunk_has_one_owner() {
        for (shape, chunk, together) in [
            (vec![3, 1000, 700], vec![1, 256, 256], vec![]),
            (vec![7, 1000, 700], vec![2, 256, 256], vec![1, 2]),
            (vec![100, 80, 3], vec![30, 30, 1], vec![0, 1]),
            (vec![5, 5], vec![8, 8], vec![]),
        ] {
            let grid = Grid::new(shape, chunk);
            let all = indices(&grid.counts().into_iter().map(|n| 0..n).collect::<Vec<_>>());
            for of in [1, 2, 5, 8, 40] {
                let owners: Vec<Vec<usize>> = all
                    .iter()
                    .map(|i| (0..of).filter(|&p| share((p, of), &together).owns(&grid, i)).collect())
                    .collect();
                assert!(owners.iter().all(|o| o.len() == 1), "{owners:?}");
                let units = share((0, of), &together).units(&grid);
                let each = all.len() / units;
                let count = |p: usize| owners.iter().filter(|o| o[0] == p).count();
                assert!((0..of).all(|p| count(p).abs_diff(all.len() / of) <= each * 2), "{of} parts");
                if together.is_empty() {
                    assert!(owners.windows(2).all(|w| w[0] <= w[1]), "runs follow each other");
                }
            }
        }
        let last = Share { id: "a".into(), part: None, together: vec![] };
        assert!(last.owns(&Grid::new(vec![4], vec![2]), &[1]));
    }

    /// Boxes cover the chosen chunks within a region once, and neighbours are joined.
    #[test]
    fn boxes_cover_what_is_chosen_once() {
        let grid = Grid::new(vec![2, 10, 9], vec![1, 3, 3]);
        let region = [0..2, 1..10, 2..9];
        for seed in 0..50usize {
            let chosen = |i: &[usize]| (seed * 7919 + i[0] * 31 + i[1] * 17 + i[2] * 13) % 5 < 3;
            let mut seen = vec![0; 2 * 10 * 9];
            for r in boxes(&grid, &region, chosen) {
                for p in indices(&r) {
                    seen[(p[0] * 10 + p[1]) * 9 + p[2]] += 1;
                }
            }
            for p in indices(&[0..2, 0..10, 0..9]) {
                let inside = p.iter().zip(&region).all(|(p, r)| r.contains(p));
                let expected = usize::from(inside && chosen(&[p[0], p[1] / 3, p[2] / 3]));
                assert_eq!(seen[(p[0] * 10 + p[1]) * 9 + p[2]], expected, "{p:?}");
            }
        }
        assert_eq!(boxes(&grid, &region, |_| true), [region.to_vec()]);
        assert_eq!(boxes(&grid, &region, |_| false), Vec::<Vec<Range<usize>>>::new());
    }
}
