//! Regions and chunks: every source returns chunks of a regular grid, every file is written in such chunks, and all copying
//! between chunks and regions is here.

use std::ops::Range;

/// One range an axis, in the order of the image's axes.
pub type Region = [Range<usize>];

pub fn extent(region: &Region) -> Vec<usize> {
    region.iter().map(|r| r.len()).collect()
}

/// How many elements a shape has, if that many can be counted.
pub fn volume(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len))
}

/// A shape cut into chunks of one shape; chunks at the far edges hang over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    pub shape: Vec<usize>,
    pub chunk: Vec<usize>,
}

impl Grid {
    pub fn new(shape: Vec<usize>, chunk: Vec<usize>) -> Grid {
        debug_assert_eq!(shape.len(), chunk.len());
        debug_assert!(chunk.iter().all(|&c| c > 0));
        Grid { shape, chunk }
    }

    /// Chunks for data that lies in a file row after row: as many whole trailing axes as fit into about
    /// a mebibyte.
    pub fn rows(shape: &[usize], bytes: usize) -> Grid {
        const TARGET: usize = 1 << 20;
        let mut chunk = vec![1; shape.len()];
        let mut size = bytes;
        for axis in (0..shape.len()).rev() {
            let len = shape[axis].max(1);
            chunk[axis] = len.min((TARGET / size).max(1));
            size = size.saturating_mul(chunk[axis]);
            if chunk[axis] < len {
                break;
            }
        }
        Grid::new(shape.to_vec(), chunk)
    }

    /// How many chunks there are along each axis.
    pub fn counts(&self) -> Vec<usize> {
        self.shape.iter().zip(&self.chunk).map(|(&s, &c)| s.div_ceil(c)).collect()
    }

    pub fn total(&self) -> usize {
        self.counts().iter().product()
    }

    /// The part of the image that a chunk covers.
    pub fn region(&self, index: &[usize]) -> Vec<Range<usize>> {
        (0..self.shape.len())
            .map(|a| index[a] * self.chunk[a]..((index[a] + 1) * self.chunk[a]).min(self.shape[a]))
            .collect()
    }

    /// A chunk's number in row-major order.
    pub fn number(&self, index: &[usize]) -> usize {
        self.counts().iter().zip(index).fold(0, |n, (&count, &i)| n * count + i)
    }

    /// The chunks that a region touches, in row-major order.
    pub fn touching(&self, region: &Region) -> Vec<Vec<usize>> {
        let ranges: Vec<Range<usize>> = (0..self.shape.len())
            .map(|a| region[a].start / self.chunk[a]..region[a].end.div_ceil(self.chunk[a]))
            .collect();
        indices(&ranges)
    }
}

/// Every index of a box, in row-major order.
pub fn indices(ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
    if ranges.iter().any(|r| r.is_empty()) {
        return Vec::new();
    }
    let mut index: Vec<usize> = ranges.iter().map(|r| r.start).collect();
    let mut all = Vec::new();
    loop {
        all.push(index.clone());
        let Some(axis) = (0..ranges.len()).rev().find(|&a| index[a] + 1 < ranges[a].end) else {
            return all;
        };
        index[axis] += 1;
        for a in axis + 1..ranges.len() {
            index[a] = ranges[a].start;
        }
    }
}

/// Row-major strides, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut s = vec![1; shape.len()];
    for a in (1..shape.len()).rev() {
        s[a - 1] = s[a] * shape[a];
    }
    s
}

/// A box in a buffer: the buffer's shape and where the box begins in it.
pub struct Place<'a> {
    pub shape: &'a [usize],
    pub start: &'a [usize],
}

/// Copies a box of `extent` elements of `width` bytes from one row-major buffer into another.
pub fn copy_box(width: usize, extent: &[usize], src: &[u8], from: Place, dst: &mut [u8], to: Place) {
    if extent.contains(&0) {
        return;
    }
    let rank = extent.len();
    let (ss, ds) = (strides(from.shape), strides(to.shape));
    let offset = |s: &[usize], start: &[usize]| -> usize { s.iter().zip(start).map(|(a, b)| a * b).sum() };
    let (mut s0, mut d0) = (offset(&ss, from.start), offset(&ds, to.start));
    // Trailing axes that lie together in both buffers are one run.
    let mut run = 1;
    let mut outer = rank;
    while outer > 0 {
        run *= extent[outer - 1];
        outer -= 1;
        let whole = extent[outer] == from.shape[outer] && extent[outer] == to.shape[outer];
        if !whole {
            break;
        }
    }
    let mut index = vec![0; outer];
    loop {
        dst[d0 * width..(d0 + run) * width].copy_from_slice(&src[s0 * width..(s0 + run) * width]);
        let Some(axis) = (0..outer).rev().find(|&a| index[a] + 1 < extent[a]) else { return };
        index[axis] += 1;
        s0 += ss[axis];
        d0 += ds[axis];
        for a in axis + 1..outer {
            s0 -= index[a] * ss[a];
            d0 -= index[a] * ds[a];
            index[a] = 0;
        }
    }
}

/// The common part of two regions; empty ranges where there is none.
pub fn intersect(a: &Region, b: &Region) -> Vec<Range<usize>> {
    a.iter()
        .zip(b)
        .map(|(a, b)| {
            let start = a.start.max(b.start);
            start..a.end.min(b.end).max(start)
        })
        .collect()
}

/// Copies what a chunk-shaped buffer at `at` and a region-shaped buffer have in common, from the first to
/// the second. `whole` is the shape of the source buffer, `at` where its first element lies in the image.
pub fn copy_common(width: usize, src: &[u8], whole: &[usize], at: &[usize], dst: &mut [u8], region: &Region) {
    let covered: Vec<Range<usize>> = at.iter().zip(whole).map(|(&s, &n)| s..s + n).collect();
    let common = intersect(&covered, region);
    let size = extent(&common);
    let from: Vec<usize> = common.iter().zip(at).map(|(c, &a)| c.start - a).collect();
    let to: Vec<usize> = common.iter().zip(region).map(|(c, r)| c.start - r.start).collect();
    copy_box(
        width,
        &size,
        src,
        Place { shape: whole, start: &from },
        dst,
        Place { shape: &extent(region), start: &to },
    );
}

/// A row-major buffer with its axes in another order: axis `i` of the result is axis `order[i]`.
pub fn permute(data: &[u8], shape: &[usize], order: &[usize], width: usize) -> Vec<u8> {
    let from = strides(shape);
    let target: Vec<usize> = order.iter().map(|&a| shape[a]).collect();
    let steps: Vec<usize> = order.iter().map(|&a| from[a]).collect();
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0; target.len()];
    let mut at = 0;
    if target.contains(&0) {
        return out;
    }
    loop {
        out.extend_from_slice(&data[at * width..(at + 1) * width]);
        let Some(axis) = (0..target.len()).rev().find(|&a| index[a] + 1 < target[a]) else { return out };
        index[axis] += 1;
        at += steps[axis];
        for a in axis + 1..target.len() {
            at -= index[a] * steps[a];
            index[a] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_copied_element_by_element() {
        for (from, to, size, s, d) in [
            (vec![4, 5, 6], vec![3, 5, 6], vec![2, 5, 6], vec![1, 0, 0], vec![0, 0, 0]),
            (vec![4, 5, 6], vec![7, 3, 4], vec![2, 2, 3], vec![1, 2, 1], vec![3, 1, 0]),
            (vec![6], vec![9], vec![4], vec![2], vec![5]),
        ] {
            let src: Vec<u8> = (0..volume(&from).unwrap() * 2).map(|i| i as u8).collect();
            let mut dst = vec![0xEE; volume(&to).unwrap() * 2];
            copy_box(
                2,
                &size,
                &src,
                Place { shape: &from, start: &s },
                &mut dst,
                Place { shape: &to, start: &d },
            );
            let full: Vec<Range<usize>> = size.iter().map(|&n| 0..n).collect();
            let mut expected = vec![0xEE; dst.len()];
            for i in indices(&full) {
                let at = |strides: Vec<usize>, start: &[usize]| -> usize {
                    (0..i.len()).map(|a| strides[a] * (start[a] + i[a])).sum::<usize>() * 2
                };
                let (a, b) = (at(strides(&from), &s), at(strides(&to), &d));
                expected[b..b + 2].copy_from_slice(&src[a..a + 2]);
            }
            assert_eq!(dst, expected);
        }
    }

    #[test]
    fn row_chunks_are_about_a_mebibyte() {
        assert_eq!(Grid::rows(&[200, 2048, 2048], 2).chunk, [1, 256, 2048]);
        assert_eq!(Grid::rows(&[10, 16, 16], 2).chunk, [10, 16, 16]);
        assert_eq!(Grid::rows(&[3, 1 << 22], 1).chunk, [1, 1 << 20]);
    }
}
