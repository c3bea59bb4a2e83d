//! Determines which sizes of a network's values depend on the sizes of its inputs.
//!
//! Our graphs have fixed sizes, and ONNX files need not. The network is therefore built for several image sizes: a size
//! that is the same in all of these graphs belongs to the network, and any other depends on the images. It is written as
//! the size of an earlier value that equals it, or a multiple or fraction of it, in every graph.

use clearshot_graph::{Graph, Value};
use clearshot_tensor::Shape;

/// One network at several sizes, node by node the same.
pub(super) struct Sizes<'a> {
    graphs: &'a [Graph],
}

/// A size of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Size {
    Fixed(usize),
    /// That of this value along this axis of ours, times the first and over the second.
    Like(Value, usize, [usize; 2]),
}

impl<'a> Sizes<'a> {
    /// Nothing where the graphs differ in more than sizes.
    pub fn new(graphs: &'a [Graph]) -> Option<Sizes<'a>> {
        let (first, others) = graphs.split_first()?;
        let same = |g: &Graph| {
            g.nodes.len() == first.nodes.len()
                && g.nodes.iter().zip(&first.nodes).all(|(a, b)| {
                    a.op.name() == b.op.name()
                        && a.inputs == b.inputs
                        && a.outs.iter().zip(&b.outs).all(|(p, q)| p.shape.rank() == q.shape.rank())
                })
        };
        others.iter().all(same).then_some(Sizes { graphs })
    }

    /// The first of the graphs, whose nodes stand for those of all.
    pub fn graph(&self) -> &'a Graph {
        &self.graphs[0]
    }

    pub fn rank(&self, v: Value) -> usize {
        self.graph().shape(v).rank()
    }

    /// The same node in all graphs.
    pub fn nodes(&self, index: usize) -> impl Iterator<Item = &'a clearshot_graph::Node> + '_ {
        self.graphs.iter().map(move |g| &g.nodes[index])
    }

    /// A value's shapes in all graphs.
    pub fn shapes(&self, v: Value) -> impl Iterator<Item = Shape> + '_ {
        self.graphs.iter().map(move |g| g.shape(v))
    }

    /// A value's sizes along an axis in all graphs.
    pub fn along(&self, v: Value, axis: usize) -> impl Iterator<Item = usize> + '_ {
        self.shapes(v).map(move |s| s[axis])
    }

    /// A size that no image changes.
    pub fn fixed(&self, v: Value, axis: usize) -> Option<usize> {
        let size = self.graph().shape(v)[axis];
        self.along(v, axis).all(|s| s == size).then_some(size)
    }

    pub fn same(&self, a: Value, axis: usize, b: Value, other: usize) -> bool {
        self.along(a, axis).eq(self.along(b, other))
    }

    /// Where a value's size along an axis can be taken from, among the values of nodes before it.
    pub fn find(&self, v: Value, axis: usize) -> Option<Size> {
        if let Some(size) = self.fixed(v, axis) {
            return Some(Size::Fixed(size));
        }
        let places = || {
            let earlier = (0..v.at()).map(|node| Value::new(node, 0));
            earlier.flat_map(|w| (0..self.rank(w)).map(move |a| (w, a)))
        };
        let same = places().find(|&(w, a)| self.same(v, axis, w, a)).map(|(w, a)| Size::Like(w, a, [1, 1]));
        same.or_else(|| places().find_map(|(w, a)| Some(Size::Like(w, a, self.ratio(v, axis, w, a)?))))
    }

    /// What a size that is not fixed is multiplied and divided by to give another.
    fn ratio(&self, v: Value, axis: usize, w: Value, other: usize) -> Option<[usize; 2]> {
        let (size, of) = (self.graph().shape(v)[axis], self.graph().shape(w)[other]);
        if self.fixed(w, other).is_some() || size == 0 || of == 0 {
            return None;
        }
        let common = greatest_common_divisor(size, of);
        let ratio = [size / common, of / common];
        let all = self.along(v, axis).zip(self.along(w, other)).all(|(s, o)| s * ratio[1] == o * ratio[0]);
        all.then_some(ratio)
    }

    /// Whether a value has one element along all of these axes, whatever the image.
    pub fn is_one(&self, v: Value, mut axes: impl Iterator<Item = usize>) -> bool {
        axes.all(|a| self.fixed(v, a) == Some(1))
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
