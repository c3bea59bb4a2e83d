//! Sums, means and maxima over axes, and softmax.

use crate::error::ImportError;
use crate::import::host::Host;
use crate::import::node::Call;
use crate::import::view::View;
use crate::import::{Importer, Item, Origin};
use clearshot_graph::ops::{Geometry, PoolKind, Reduce, ReduceKind, Unary};
use clearshot_graph::{Op, Value};
use clearshot_tensor::Shape;

type Done = Result<(), ImportError>;

/// The axes of a reduction, sorted; all by default.
fn axes<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>, rank: usize) -> Result<Vec<usize>, ImportError> {
    let said = im.list(call, 1, "axes")?.unwrap_or_default();
    if said.is_empty() {
        let none = call.int_or("noop_with_empty_axes", 0)? != 0;
        return Ok(if none { vec![] } else { (0..rank).collect() });
    }
    let mut all = said.iter().map(|&a| call.axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

pub(super) fn reduce<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    if sizes.contains(&0) {
        return call.fail(format!("a value of sizes {sizes:?}"));
    }
    let axes = axes(im, call, sizes.len())?;
    let keep = call.int_or("keepdims", 1)? != 0;
    if let Item::Host(host) = &item {
        return host_reduce(im, call, host, &axes, keep);
    }
    let view = im.computed(&item);
    let x = im.float(view.value);
    let places: Vec<usize> = axes.iter().map(|&a| view.place(a)).collect();
    let over =
        |im: &mut Importer<'_, 'a>, kind, x| im.b.push_one(Op::Reduce(Reduce::new(kind, &places)), vec![x]);
    let y = match call.node.op {
        _ if axes.is_empty() => x,
        "ReduceMean" => over(im, ReduceKind::Mean, x),
        "ReduceSum" => over(im, ReduceKind::Sum, x),
        "ReduceSumSquare" => over(im, ReduceKind::SumSquares, x),
        "ReduceL2" => {
            let squares = over(im, ReduceKind::SumSquares, x);
            im.b.unary(Unary::Sqrt, squares)
        }
        "ReduceL1" => {
            let sizes = im.b.unary(Unary::Abs, x);
            over(im, ReduceKind::Sum, sizes)
        }
        "ReduceMax" => maximum(im, x, &places),
        _ => {
            let negative = im.b.unary(Unary::Neg, x);
            let most = maximum(im, negative, &places);
            im.b.unary(Unary::Neg, most)
        }
    };
    let kept = View { value: y, order: view.order };
    let view = if keep { kept } else { squeezed(im, &kept, &axes) };
    im.give(call, 0, Item::View(view));
    Ok(())
}

/// Without these axes of size 1.
pub(super) fn squeezed(im: &mut Importer<'_, '_>, view: &View, axes: &[usize]) -> View {
    let memory: Vec<usize> = view.order.iter().copied().filter(|a| !axes.contains(a)).collect();
    let sizes = im.view_sizes(view);
    let shape: Vec<usize> = memory.iter().map(|&a| sizes[a]).collect();
    let renamed = |a: &usize| a - axes.iter().filter(|gone| *gone < a).count();
    View { value: im.b.reshape(view.value, Shape::new(&shape)), order: memory.iter().map(renamed).collect() }
}

/// Over these axes in memory, one after the other: as pooling over columns.
fn maximum(im: &mut Importer<'_, '_>, mut x: Value, places: &[usize]) -> Value {
    for &axis in places {
        let shape = im.b.shape(x);
        let before: usize = shape[..axis].iter().product();
        let behind: usize = shape[axis + 1..].iter().product();
        let plane = im.b.reshape(x, Shape::from([before, 1, shape[axis], behind]));
        let most = im.b.pool(plane, PoolKind::Max, [1, 1, shape[axis]], Geometry::new(2, 1, 0));
        x = im.b.reshape(most, shape.with(axis, 1));
    }
    x
}

/// Sums, means and products of what is known.
fn host_reduce<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    host: &Host,
    axes: &[usize],
    keep: bool,
) -> Done {
    let kind = match call.node.op {
        "ReduceMean" => ReduceKind::Mean,
        "ReduceSum" => ReduceKind::Sum,
        "ReduceSumSquare" => ReduceKind::SumSquares,
        other => return call.fail(format!("{other} of a constant")),
    };
    let name = call.node.outputs.first().copied().unwrap_or("");
    let made = Host::apply(name, &Op::Reduce(Reduce::new(kind, axes)), &[host]);
    let sizes: Vec<usize> =
        host.sizes().into_iter().enumerate().filter(|(a, _)| !axes.contains(a)).map(|(_, s)| s).collect();
    im.give_host(call, made.and_then(|h| if keep { Ok(h) } else { h.reshaped(&sizes) }))
}

/// Of all values of a known list, as arithmetic on sizes needs it.
pub(super) fn product<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let Some(host) = im.host(call, 0)? else { return call.fail("its operand is missing") };
    let rank = host.tensor.shape().rank();
    let axes = axes(im, call, rank)?;
    if axes.len() != rank {
        return call.fail("a product over some axes only");
    }
    let product: f64 = host.tensor.to_f64().iter().product();
    let keep = call.int_or("keepdims", 1)? != 0;
    let shape = if keep { Shape::from([1]).padded_to(rank.max(1)) } else { Shape::SCALAR };
    let array = clearshot_graph::Array::new(shape, vec![product]);
    let name = call.node.outputs.first().copied().unwrap_or("");
    let tensor = crate::import::host::tensor(&array, host.tensor.dtype());
    im.give_host(call, Ok(Host::new(name, tensor)))
}

/// Softmax and its logarithm. Before opset 13 the axes from `axis` on were taken as one.
pub(super) fn softmax<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let view = im.view(call, 0)?;
    let sizes = im.view_sizes(&view);
    let rank = sizes.len();
    let old = call.opset < 13;
    let axis = call.axis(call.int_or("axis", if old { 1 } else { -1 })?, rank)?;
    let x = im.float(view.value);
    let view = View { value: x, ..view };
    let result = if old && axis + 1 < rank && sizes[axis + 1..].iter().any(|s| *s != 1) {
        let value = im.plain(&view);
        let (rows, columns) = (sizes[..axis].iter().product(), sizes[axis..].iter().product());
        let rows = im.b.reshape(value, Shape::from([rows, columns]));
        let y = im.b.softmax(rows);
        View::plain(im.b.reshape(y, Shape::new(&sizes)), rank)
    } else {
        // The axis goes last in memory.
        let order: Vec<usize> = view.order.iter().copied().filter(|a| *a != axis).chain([axis]).collect();
        let value = im.arranged(&view, &order);
        let y = im.b.softmax(value);
        if let Some(Origin::Product { q, k, scale }) = im.origins.get(&value).cloned()
            && axis + 1 == rank
        {
            im.origins.insert(y, Origin::Shares { q, k, scale });
        }
        View { value: y, order }
    };
    let value = match call.node.op {
        "LogSoftmax" => im.b.unary(Unary::Log, result.value),
        _ => result.value,
    };
    im.give_view(call, value, result.order);
    Ok(())
}
