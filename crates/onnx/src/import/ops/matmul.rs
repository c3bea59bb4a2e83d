//! Matrix products, and attention, which exporters write as two of them around a softmax.

use crate::error::ImportError;
use crate::import::node::Call;
use crate::import::view::{View, plain};
use crate::import::{Importer, Item, Origin};
use clearshot_graph::Value;
use clearshot_tensor::Shape;

type Done = Result<(), ImportError>;

pub(super) fn matmul<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (a, b) = (im.item(call, 0)?, im.item(call, 1)?);
    let (sa, sb) = (im.sizes(&a), im.sizes(&b));
    let (ra, rb) = (sa.len(), sb.len());
    if ra < 2 || rb < 2 || sa[ra - 1] != sb[rb - 2] {
        return call.fail(format!("factors of sizes {sa:?} and {sb:?}"));
    }
    let left = im.computed(&a);
    if let Some(y) = im.attended(&left, &b) {
        im.give(call, 0, Item::View(y));
        return Ok(());
    }
    if rb == 2 {
        let y = shared(im, &left, &b);
        im.give_view(call, y, plain(ra));
        return Ok(());
    }
    let right = im.computed(&b);
    let rank = ra.max(rb);
    let batch =
        batch(&sa, &sb).ok_or(()).or_else(|()| call.fail(format!("factors of sizes {sa:?} and {sb:?}")))?;
    let (x, transpose_a) = factor(im, &left, &batch);
    let (w, transpose_b) = factor(im, &right, &batch);
    let y = im.b.matmul(x, w, transpose_a, transpose_b);
    if ra == rb && rank >= 3 && sa[..ra - 2] == sb[..rb - 2] {
        im.origins.insert(y, Origin::Product { q: left, k: right, scale: 1.0 });
    }
    im.give_view(call, y, plain(rank));
    Ok(())
}

/// A product with one matrix for the whole batch: a linear layer.
fn shared(im: &mut Importer<'_, '_>, left: &View, right: &Item) -> Value {
    let x = im.plain(left);
    let x = im.float(x);
    match right {
        // As our own linear layers have it: results by values.
        Item::Host(host) => {
            let w = im.param_of(host, 2, &[1, 0]);
            im.b.matmul(x, w, false, true)
        }
        Item::View(view) => {
            let transposed = view.order == [1, 0];
            let w = if transposed { view.value } else { im.plain(view) };
            im.b.matmul(x, w, false, transposed)
        }
    }
}

/// The sizes of all axes but the last two, broadcast.
fn batch(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let shape = |s: &[usize]| Shape::new(&s[..s.len() - 2]);
    shape(a).broadcast(&shape(b)).map(|s| s.to_vec())
}

/// A factor with the batch's axes, and whether its last two axes lie the other way around.
fn factor(im: &mut Importer<'_, '_>, view: &View, batch: &[usize]) -> (Value, bool) {
    let rank = view.rank();
    let mut turned = plain(rank);
    turned.swap(rank - 2, rank - 1);
    let transposed = view.order == turned;
    let value = if transposed { view.value } else { im.plain(view) };
    let value = im.float(value);
    let s = im.b.shape(value);
    let sizes: Vec<usize> = batch.iter().copied().chain(s[rank - 2..].iter().copied()).collect();
    let wide = im.b.reshape(value, s.padded_to(sizes.len()));
    (im.b.broadcast(wide, Shape::new(&sizes)), transposed)
}

impl Importer<'_, '_> {
    /// `softmax(scale q k) v` as attention, where the left factor is such a softmax.
    fn attended(&mut self, left: &View, right: &Item) -> Option<View> {
        let Some(Origin::Shares { q, k, scale }) = self.origins.get(&left.value).cloned() else {
            return None;
        };
        let Item::View(v) = right else { return None };
        let (sq, sk, sv) = (self.view_sizes(&q), self.view_sizes(&k), self.view_sizes(v));
        let rank = sv.len();
        if sq.len() != rank
            || left.rank() != rank
            || rank > 4
            || sv[..rank - 2] != sq[..rank - 2]
            || sk[rank - 1] != sv[rank - 2]
        {
            return None;
        }
        let k = k.transposed(&swapped(rank));
        let heads = if rank == 4 { sv[1] } else { 1 };
        let [q, k, values] = [&q, &k, v].map(|x| self.rows(x));
        let y = self.b.attention(q, k, values, heads, Some(scale));
        let (queries, width) = (sq[rank - 2], sv[rank - 1]);
        Some(match rank {
            4 => {
                let y = self.b.reshape(y, Shape::from([sv[0], queries, heads, width]));
                View { value: y, order: vec![0, 2, 1, 3] }
            }
            _ => View::plain(y, 3),
        })
    }

    /// `[B, H, S, D]` as `[B, S, H D]`; `[B, S, D]` unchanged.
    fn rows(&mut self, view: &View) -> Value {
        if view.rank() == 3 {
            let value = self.plain(view);
            return self.float(value);
        }
        let value = self.arranged(view, &[0, 2, 1, 3]);
        let value = self.float(value);
        let s = self.b.shape(value);
        self.b.reshape(value, Shape::from([s[0], s[1], s[2] * s[3]]))
    }
}

/// The axes with the last two exchanged.
fn swapped(rank: usize) -> Vec<usize> {
    let mut order = plain(rank);
    order.swap(rank - 2, rank - 1);
    order
}

/// `alpha op(a) op(b) + beta c`.
pub(super) fn gemm<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (alpha, beta) = (call.float_or("alpha", 1.0)?, call.float_or("beta", 1.0)?);
    let flag = |name: &str| Ok::<bool, ImportError>(call.int_or(name, 0)? != 0);
    let (transpose_a, transpose_b) = (flag("transA")?, flag("transB")?);
    let (a, b) = (im.view(call, 0)?, im.item(call, 1)?);
    if a.rank() != 2 || im.sizes(&b).len() != 2 {
        return call.fail("factors that are not matrices");
    }
    let x = im.plain(&a);
    let x = im.float(x);
    let bias = im.optional(call, 2)?;
    let (w, transpose_b) = match &b {
        Item::Host(host) => (im.param_of(host, 2, if transpose_b { &[0, 1] } else { &[1, 0] }), true),
        Item::View(view) => (im.plain(view), transpose_b),
    };
    let columns = im.b.shape(w)[usize::from(!transpose_b)];
    if let Some(Item::Host(host)) = &bias
        && (alpha, beta) == (1.0, 1.0)
        && host.tensor.shape().len() == columns
        && host.tensor.shape().channels() == columns
        && !transpose_a
        && transpose_b
    {
        let flat = host.reshaped(&[columns]).or_else(|reason| call.fail(reason))?;
        let bias = im.param_of(&flat, 1, &[0]);
        let y = im.b.linear(x, w, Some(bias));
        im.give_view(call, y, plain(2));
        return Ok(());
    }
    let y = im.b.matmul(x, w, transpose_a, transpose_b);
    let mut y = if alpha == 1.0 { y } else { im.b.mul_scalar(y, alpha) };
    if let Some(item) = bias {
        let c = im.operand(&item, 2, &plain(2));
        let c = if beta == 1.0 { c } else { im.b.mul_scalar(c, beta) };
        y = im.b.add(y, c);
    }
    im.give_view(call, y, plain(2));
    Ok(())
}
