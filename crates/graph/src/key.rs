//! What a node computes, as a key: the same key, the same kernel.

use crate::graph::Graph;
use std::hash::{Hash, Hasher};

/// An operation with all of its attributes, and the types of its operands and results, as bytes: everything that a kernel for it
/// depends on. Two keys are equal only where all of it is, bit by bit. Keys hold for one process: bytes are not kept in files.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KernelKey(Vec<u8>);

impl KernelKey {
    pub fn of(graph: &Graph, node: usize) -> KernelKey {
        let n = &graph.nodes[node];
        let mut bytes = Bytes(Vec::with_capacity(128));
        n.op.hash(&mut bytes);
        n.inputs.len().hash(&mut bytes);
        n.inputs.iter().for_each(|v| graph.ty(*v).hash(&mut bytes));
        n.outs.hash(&mut bytes);
        KernelKey(bytes.0)
    }

    /// With something else that a kernel depends on.
    pub fn with(self, what: &impl Hash) -> KernelKey {
        let mut bytes = Bytes(self.0);
        what.hash(&mut bytes);
        KernelKey(bytes.0)
    }
}

/// Keeps what is hashed in place of a sum over it: lists come with their length and variants with their number, so no two
/// different things have the same bytes.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Never asked for: the bytes are the key.
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Geometry, Unary};
    use crate::{Builder, Type};

    fn key(build: impl Fn(&mut Builder) -> crate::Value) -> KernelKey {
        let mut b = Builder::new();
        let v = build(&mut b);
        let graph = b.finish().expect("a graph");
        KernelKey::of(&graph, v.at())
    }

    #[test]
    fn keys_differ_where_kernels_do_and_nowhere_else() {
        let unary = |u: Unary, n: usize| {
            key(move |b| {
                let x = b.input("x", Type::f32([2, n]));
                b.unary(u, x)
            })
        };
        let same = || unary(Unary::Clamp(0.0, 1.0), 3);
        assert!(same() == same());
        let others = [
            unary(Unary::Clamp(-0.0, 1.0), 3),
            unary(Unary::Clamp(0.0, 2.0), 3),
            unary(Unary::Clamp(0.0, 1.0), 4),
            unary(Unary::AddScalar(0.0), 3),
            unary(Unary::MulScalar(0.0), 3),
            same().with(&true),
        ];
        assert!(others.iter().all(|o| *o != same()));
        assert!(same().with(&true) != same().with(&false));
        let conv = |bias: bool, pad: usize| {
            key(move |b| {
                let (x, w) = (b.input("x", Type::f32([1, 8, 8, 4])), b.param("w", [4, 3, 3, 4]));
                let bias = bias.then(|| b.param("b", [4]));
                b.conv(x, w, bias, Geometry::new(2, 1, pad))
            })
        };
        assert!(conv(true, 1) == conv(true, 1));
        assert!(conv(true, 1) != conv(false, 1) && conv(true, 1) != conv(true, 0));
    }

    /// Names and values of nodes that are the same node of another graph do not count.
    #[test]
    fn what_a_value_is_called_does_not_matter() {
        let named = |name: &'static str| {
            key(move |b| {
                let x = b.input(name, Type::f32([5]));
                b.unary(Unary::Exp, x)
            })
        };
        assert!(named("x") == named("y"));
    }
}
