//! A value of the file and its layout in memory.
//!
//! ONNX has channels second and our kernels have them last. A [`View`] is one of our values with its axes in another order
//! than in the file: transposing a view renames its axes, and so does reshaping if the axes that are split or joined are
//! adjacent. Images are therefore converted to channels last once, and most of the transposing and reshaping around
//! attention costs nothing.

use clearshot_graph::Value;
use clearshot_tensor::Shape;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub value: Value,
    /// The file's axes in the order in which they lie in memory.
    pub order: Vec<usize>,
}

/// The file's own order.
pub(crate) fn plain(rank: usize) -> Vec<usize> {
    (0..rank).collect()
}

/// Channels last, where there are channels and pixels.
pub(crate) fn channels_last(rank: usize) -> Vec<usize> {
    if rank < 3 { plain(rank) } else { [0].into_iter().chain(2..rank).chain([1]).collect() }
}

impl View {
    pub fn plain(value: Value, rank: usize) -> View {
        View { value, order: plain(rank) }
    }

    pub fn rank(&self) -> usize {
        self.order.len()
    }

    /// Where an axis of the file lies in memory.
    pub fn place(&self, axis: usize) -> usize {
        self.order.iter().position(|&a| a == axis).expect("every axis has a place")
    }

    /// The file's sizes, from those in memory.
    pub fn sizes(&self, memory: Shape) -> Vec<usize> {
        (0..self.rank()).map(|axis| memory[self.place(axis)]).collect()
    }

    /// The view whose axis `i` is axis `perm[i]` of this one.
    pub fn transposed(&self, perm: &[usize]) -> View {
        let renamed = |axis: &usize| perm.iter().position(|p| p == axis).expect("perm is a permutation");
        View { value: self.value, order: self.order.iter().map(renamed).collect() }
    }
}

/// How a value that lies in memory as `order` says can be seen with the sizes `to` without moving anything: the sizes that it has
/// in memory then, and the new axes in their order. Nothing where values would have to move.
pub(crate) fn reshaped(sizes: &[usize], order: &[usize], to: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
    let groups = groups(sizes, to)?;
    // Each group of axes must lie in memory as one block; axes of one element lie anywhere.
    let real: Vec<usize> = order.iter().copied().filter(|&a| sizes[a] != 1).collect();
    let mut blocks: Vec<(usize, &Group)> = vec![];
    let mut last = 0;
    for group in &groups {
        let axes: Vec<usize> = group.from.clone().filter(|&a| sizes[a] != 1).collect();
        let Some(&first) = axes.first() else {
            blocks.push((last, group));
            continue;
        };
        let at = real.iter().position(|&a| a == first)?;
        if real.get(at..at + axes.len())? != axes {
            return None;
        }
        last = at;
        blocks.push((at, group));
    }
    blocks.sort_by_key(|(at, _)| *at);
    let new: Vec<usize> = blocks.iter().flat_map(|(_, g)| g.to.clone()).collect();
    Some((new.iter().map(|&a| to[a]).collect(), new))
}

/// Axes that together become other axes.
struct Group {
    from: std::ops::Range<usize>,
    to: std::ops::Range<usize>,
}

/// The smallest groups of neighbouring axes with equal numbers of elements.
fn groups(from: &[usize], to: &[usize]) -> Option<Vec<Group>> {
    if from.contains(&0) || to.contains(&0) {
        return None;
    }
    let mut all = vec![];
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (start, target) = (i, j);
        let (mut a, mut b) = (1usize, 1usize);
        loop {
            // One more axis of whichever is behind; ones at the end go to the last group.
            if a == b && i > start && j > target {
                break;
            }
            if i < from.len() && (a <= b || j >= to.len()) {
                a = a.checked_mul(from[i])?;
                i += 1;
            } else if j < to.len() {
                b = b.checked_mul(to[j])?;
                j += 1;
            } else {
                break;
            }
        }
        if a != b {
            return None;
        }
        all.push(Group { from: start..i, to: target..j });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The values of an array seen through a view, in the file's order.
    fn seen(sizes: &[usize], order: &[usize]) -> Vec<usize> {
        let memory: Vec<usize> = order.iter().map(|&a| sizes[a]).collect();
        let mut strides = vec![0; sizes.len()];
        let mut step = 1;
        for (place, &axis) in order.iter().enumerate().rev() {
            strides[axis] = step;
            step *= memory[place];
        }
        let total: usize = sizes.iter().product();
        (0..total)
            .map(|mut i| {
                let mut at = 0;
                for axis in (0..sizes.len()).rev() {
                    at += i % sizes[axis] * strides[axis];
                    i /= sizes[axis];
                }
                at
            })
            .collect()
    }

    #[test]
    fn attention_over_an_image_needs_no_transposition() {
        // [N, C, H, W] with channels last to [N, C, H W], and back.
        let (sizes, order) = ([2, 8, 3, 5], channels_last(4));
        let (memory, axes) = reshaped(&sizes, &order, &[2, 8, 15]).unwrap();
        assert_eq!((memory, axes.clone()), (vec![2, 15, 8], vec![0, 2, 1]));
        assert_eq!(reshaped(&[2, 8, 15], &axes, &sizes).unwrap().1, order);
        // Heads: [N, S, C] to [N, S, H, D].
        assert_eq!(reshaped(&[2, 15, 8], &plain(3), &[2, 15, 4, 2]).unwrap().1, plain(4));
        // Groups of channels over all pixels do not lie together.
        assert!(reshaped(&sizes, &order, &[2, 4, 30]).is_none());
    }

    proptest! {
        /// Whatever is seen differently without moving is what a plain reshape gives.
        #[test]
        fn a_reshape_by_names_is_a_reshape(
            sizes in prop::collection::vec(prop::sample::select(vec![1usize, 2, 3, 4]), 1..5),
            seed in 0usize..1000, split in 0usize..1000,
        ) {
            let mut order: Vec<usize> = plain(sizes.len());
            for i in (1..order.len()).rev() {
                order.swap(i, (seed / (i + 1)) % (i + 1));
            }
            // Join two neighbours or split one axis.
            let mut to = sizes.clone();
            let at = split % sizes.len();
            if split % 2 == 0 && at + 1 < to.len() {
                let joined = to[at] * to.remove(at + 1);
                to[at] = joined;
            } else if to[at] == 4 {
                to[at] = 2;
                to.insert(at, 2);
            } else {
                to.insert(at, 1);
            }
            if let Some((memory, axes)) = reshaped(&sizes, &order, &to) {
                prop_assert_eq!(memory.iter().product::<usize>(), sizes.iter().product::<usize>());
                prop_assert_eq!(seen(&to, &axes), seen(&sizes, &order));
            }
        }
    }
}
