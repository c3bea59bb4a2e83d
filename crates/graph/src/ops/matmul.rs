//! Batched matrix products.
//!
//! `y = act(op(a) op(b) + bias) + residual` with a `[..., M, K]` (transposed: `[..., K, M]`) and b
//! `[..., K, N]` (transposed: `[..., N, K]`). The leading axes are the batch; b may have none and is
//! then shared by the whole batch, which is how linear layers are written: their weight is
//! `[out, in]`, hence `transpose_b`.

use super::{GradNode, Grads, OpError, floats, operands, want};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use crate::ops::Unary;
use clearshot_tensor::Shape;

/// Operands: a, b, bias `[N]`, residual (as y).
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct MatMul {
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub bias: bool,
    pub act: Option<Unary>,
    pub residual: bool,
}

/// The sizes of a product: `batch` products of M x K by K x N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// All of the batch uses one b.
    pub shared: bool,
}

impl MatMul {
    pub fn plain(transpose_a: bool, transpose_b: bool) -> MatMul {
        MatMul { transpose_a, transpose_b, bias: false, act: None, residual: false }
    }

    /// Positions of bias and residual among the operands, and the number of operands.
    pub fn operands(&self) -> (Option<usize>, Option<usize>, usize) {
        let next = 2 + usize::from(self.bias);
        (self.bias.then_some(2), self.residual.then_some(next), next + usize::from(self.residual))
    }

    /// # Errors
    /// If the two shapes cannot be multiplied.
    pub fn sizes(&self, a: Shape, b: Shape) -> Result<Sizes, OpError> {
        let (ra, rb) = (a.rank(), b.rank());
        let misfit = Err(OpError::Mismatch { what: "factors of a matrix product", left: a, right: b });
        if ra < 2 || rb < 2 || a.is_empty() || b.is_empty() {
            return misfit;
        }
        let shared = rb == 2 && ra > 2;
        let (m, k) = if self.transpose_a { (a[ra - 1], a[ra - 2]) } else { (a[ra - 2], a[ra - 1]) };
        let (kb, n) = if self.transpose_b { (b[rb - 1], b[rb - 2]) } else { (b[rb - 2], b[rb - 1]) };
        if k != kb || (!shared && a[..ra - 2] != b[..rb - 2]) || (shared && self.transpose_a) {
            return misfit;
        }
        Ok(Sizes { batch: a[..ra - 2].iter().product(), m, k, n, shared })
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        let (bias, residual, count) = self.operands();
        operands(x, count)?;
        let dtype = floats(x)?;
        let s = self.sizes(x[0].shape, x[1].shape)?;
        let rank = x[0].shape.rank();
        let shape = x[0].shape.with(rank - 2, s.m).with(rank - 1, s.n);
        if let Some(i) = bias {
            want("bias", x[i], [s.n])?;
        }
        if let Some(i) = residual {
            want("residual", x[i], shape)?;
        }
        Ok(vec![Type { dtype, shape }])
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        if self.act.is_some() || self.residual {
            return None;
        }
        let (a, w, dy) = (n.inputs[0], n.inputs[1], n.dy());
        let (shape_a, shape_b) = (b.shape(a), b.shape(w));
        let s = self.sizes(shape_a, shape_b).ok()?;
        // A shared b sees one tall a: its gradient sums over the batch.
        let tall = |b: &mut Builder, v, columns| {
            if s.shared { b.reshape(v, Shape::from([s.batch * s.m, columns])) } else { v }
        };
        let da = n.wanted[0].then(|| {
            if self.transpose_a {
                b.matmul(w, dy, self.transpose_b, true)
            } else {
                b.matmul(dy, w, false, !self.transpose_b)
            }
        });
        let db = n.wanted[1].then(|| {
            let (a, dy) = (tall(b, a, s.k), tall(b, dy, s.n));
            if self.transpose_b {
                b.matmul(dy, a, true, self.transpose_a)
            } else {
                b.matmul(a, dy, !self.transpose_a, false)
            }
        });
        let mut grads = vec![da, db];
        if self.bias {
            grads.push(n.wanted[2].then(|| b.sum_to(dy, Shape::from([s.n]))));
        }
        Some(grads)
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (bias, residual, _) = self.operands();
        let (a, b) = (x[0], x[1]);
        let s = self.sizes(a.shape, b.shape).unwrap();
        let rank = a.shape.rank();
        let mut y = Array::zeros(a.shape.with(rank - 2, s.m).with(rank - 1, s.n));
        for i in 0..s.batch {
            let a = &a.data[i * s.m * s.k..];
            let b = if s.shared { &b.data[..] } else { &b.data[i * s.k * s.n..] };
            for m in 0..s.m {
                for n in 0..s.n {
                    let product = |k: usize| {
                        let left = if self.transpose_a { a[k * s.m + m] } else { a[m * s.k + k] };
                        left * if self.transpose_b { b[n * s.k + k] } else { b[k * s.n + n] }
                    };
                    let at = (i * s.m + m) * s.n + n;
                    let v = (0..s.k).map(product).sum::<f64>() + bias.map_or(0.0, |c| x[c].data[n]);
                    y.data[at] = self.act.map_or(v, |f| f.value(v)) + residual.map_or(0.0, |r| x[r].data[at]);
                }
            }
        }
        vec![y]
    }
}
