//! Scaled dot-product attention: `softmax(scale q kᵀ) v` for each sample and head.
//!
//! q is `[B, Sq, H D]`, k `[B, Sk, H D]`, v `[B, Sk, H Dv]`: heads lie side by side along channels, as
//! linear layers make them, so nothing is transposed. The second output is the logarithm of each
//! softmax's denominator, `[B, H, Sq]`, from which the gradient recomputes the probabilities block by
//! block; no backend ever holds Sq x Sk values.

use super::{GradNode, Grads, Op, OpError, floats, operands, want};
use crate::array::Array;
use crate::builder::Builder;
use crate::graph::Type;
use clearshot_tensor::Shape;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub scale: f64,
}

hash_by_bits!(Attention { heads } scale);

/// Sizes that an attention works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    /// Head sizes of q and k, and of v.
    pub d: usize,
    pub dv: usize,
}

impl Attention {
    /// # Errors
    /// If q, k and v do not fit each other.
    pub fn sizes(&self, q: Shape, k: Shape, v: Shape) -> Result<AttentionSizes, OpError> {
        for s in [q, k, v] {
            if s.rank() != 3 || s.is_empty() {
                return Err(OpError::Rank {
                    what: "operand of attention",
                    expected: "3 (B,S,C), none empty,",
                    got: s,
                });
            }
            if self.heads == 0 || s[2] % self.heads != 0 {
                return Err(OpError::Attribute(format!(
                    "{} channels of {s} do not split into {} heads",
                    s[2], self.heads
                )));
            }
        }
        if q[0] != k[0] || q[2] != k[2] {
            return Err(OpError::Mismatch { what: "queries and keys", left: q, right: k });
        }
        if k[..2] != v[..2] {
            return Err(OpError::Mismatch { what: "keys and values", left: k, right: v });
        }
        Ok(AttentionSizes {
            batch: q[0],
            queries: q[1],
            keys: k[1],
            d: q[2] / self.heads,
            dv: v[2] / self.heads,
        })
    }

    pub(super) fn infer(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 3)?;
        let dtype = floats(x)?;
        let s = self.sizes(x[0].shape, x[1].shape, x[2].shape)?;
        let like = |shape: Shape| Type { dtype, shape };
        Ok(vec![
            like(Shape::from([s.batch, s.queries, self.heads * s.dv])),
            like(Shape::from([s.batch, self.heads, s.queries])),
        ])
    }

    pub(super) fn infer_grad(&self, x: &[Type]) -> Result<Vec<Type>, OpError> {
        operands(x, 6)?;
        floats(x)?;
        let forward = self.infer(&x[..3])?;
        want("output", x[3], forward[0].shape)?;
        want("log-sum-exp", x[4], forward[1].shape)?;
        want("gradient of the output", x[5], forward[0].shape)?;
        Ok(x[..3].to_vec())
    }

    pub(super) fn grad(&self, b: &mut Builder, n: &GradNode<'_>) -> Grads {
        if n.douts[1].is_some() {
            return None;
        }
        let operands = vec![n.inputs[0], n.inputs[1], n.inputs[2], n.outs[0], n.outs[1], n.dy()];
        Some(b.push(Op::AttentionGrad(*self), operands).into_iter().map(Some).collect())
    }

    /// Calls `f(sample, head, query, probabilities, log-sum-exp)` for every row.
    fn for_each_row(
        &self,
        q: &Array,
        k: &Array,
        s: AttentionSizes,
        mut f: impl FnMut(usize, usize, usize, &[f64], f64),
    ) {
        let width = self.heads * s.d;
        for b in 0..s.batch {
            for h in 0..self.heads {
                for i in 0..s.queries {
                    let row = &q.data[(b * s.queries + i) * width + h * s.d..][..s.d];
                    let logit = |j: usize| {
                        let key = &k.data[(b * s.keys + j) * width + h * s.d..][..s.d];
                        self.scale * row.iter().zip(key).map(|(x, y)| x * y).sum::<f64>()
                    };
                    let logits: Vec<f64> = (0..s.keys).map(logit).collect();
                    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let lse = top + logits.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
                    let p: Vec<f64> = logits.iter().map(|l| (l - lse).exp()).collect();
                    f(b, h, i, &p, lse);
                }
            }
        }
    }

    pub(super) fn eval(&self, x: &[&Array]) -> Vec<Array> {
        let (q, k, v) = (x[0], x[1], x[2]);
        let s = self.sizes(q.shape, k.shape, v.shape).unwrap();
        let width = self.heads * s.dv;
        let mut o = Array::zeros([s.batch, s.queries, width]);
        let mut sums = Array::zeros([s.batch, self.heads, s.queries]);
        self.for_each_row(q, k, s, |b, h, i, p, lse| {
            sums.data[(b * self.heads + h) * s.queries + i] = lse;
            for e in 0..s.dv {
                o.data[(b * s.queries + i) * width + h * s.dv + e] = p
                    .iter()
                    .enumerate()
                    .map(|(j, p)| p * v.data[(b * s.keys + j) * width + h * s.dv + e])
                    .sum();
            }
        });
        vec![o, sums]
    }

    pub(super) fn eval_grad(&self, x: &[&Array]) -> Vec<Array> {
        let (q, k, v, go) = (x[0], x[1], x[2], x[5]);
        let s = self.sizes(q.shape, k.shape, v.shape).unwrap();
        let (wq, wv) = (self.heads * s.d, self.heads * s.dv);
        let (mut dq, mut dk, mut dv) = (Array::zeros(q.shape), Array::zeros(k.shape), Array::zeros(v.shape));
        self.for_each_row(q, k, s, |b, h, i, p, _| {
            let go_at = (b * s.queries + i) * wv + h * s.dv;
            let v_at = |j: usize| (b * s.keys + j) * wv + h * s.dv;
            let dp: Vec<f64> = (0..s.keys)
                .map(|j| (0..s.dv).map(|e| go.data[go_at + e] * v.data[v_at(j) + e]).sum())
                .collect();
            let mean: f64 = dp.iter().zip(p).map(|(d, p)| d * p).sum();
            let q_at = (b * s.queries + i) * wq + h * s.d;
            for j in 0..s.keys {
                for e in 0..s.dv {
                    dv.data[v_at(j) + e] += p[j] * go.data[go_at + e];
                }
                let dl = self.scale * p[j] * (dp[j] - mean);
                let k_at = (b * s.keys + j) * wq + h * s.d;
                for e in 0..s.d {
                    dq.data[q_at + e] += dl * k.data[k_at + e];
                    dk.data[k_at + e] += dl * q.data[q_at + e];
                }
            }
        });
        vec![dq, dk, dv]
    }
}
