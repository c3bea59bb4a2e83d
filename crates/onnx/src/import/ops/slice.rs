//! Parts of values: slices, splits, rows by index, and padding, which is the opposite.

use crate::error::ImportError;
use crate::import::host::Host;
use crate::import::node::Call;
use crate::import::view::View;
use crate::import::{Importer, Item};
use clearshot_graph::ops::{PadMode, Slice};
use clearshot_graph::{Op, Value};
use clearshot_tensor::{DType, MAX_RANK, Shape};

type Done = Result<(), ImportError>;

fn name<'a>(call: Call<'_, 'a>) -> &'a str {
    call.node.outputs.first().copied().unwrap_or("")
}

impl<'m, 'a> Importer<'m, 'a> {
    /// `len` elements from `start` on along an axis.
    fn part(
        &mut self,
        call: Call<'_, 'a>,
        item: &Item,
        axis: usize,
        start: usize,
        len: usize,
    ) -> Result<Item, ImportError> {
        match item {
            Item::Host(host) => {
                match Host::apply(name(call), &Op::Slice(Slice { axis, start, len }), &[host]) {
                    Ok(host) => Ok(Item::Host(host)),
                    Err(reason) => call.fail(reason),
                }
            }
            Item::View(view) => {
                let value = self.b.slice(view.value, view.place(axis), start, len);
                Ok(Item::View(View { value, order: view.order.clone() }))
            }
        }
    }

    /// Every `step`-th element of an axis: the axis is cut into blocks, of which the first elements are kept.
    fn every(&mut self, view: &View, axis: usize, step: usize) -> View {
        let place = view.place(axis);
        let mut value = view.value;
        let size = self.b.shape(value)[place];
        let count = size.div_ceil(step);
        let mut pad = [[0; 2]; MAX_RANK];
        pad[place] = [0, count * step - size];
        value = self.b.pad(value, pad, PadMode::Zero);
        let shape = self.b.shape(value);
        let before: usize = shape[..place].iter().product();
        let behind: usize = shape[place + 1..].iter().product();
        let blocks = self.b.reshape(value, Shape::from([before, count, step, behind]));
        let first = self.b.slice(blocks, 2, 0, 1);
        View { value: self.b.reshape(first, shape.with(place, count)), order: view.order.clone() }
    }
}

pub(super) fn slice<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let mut item = im.item(call, 0)?;
    let rank = im.sizes(&item).len();
    let (Some(starts), Some(ends)) = (im.list(call, 1, "starts")?, im.list(call, 2, "ends")?) else {
        return call.fail("where it begins and ends is missing");
    };
    let axes = im.list(call, 3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = im.list(call, 4, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return call.fail("starts, ends, axes and steps of different lengths");
    }
    for i in 0..starts.len() {
        let axis = call.axis(axes[i], rank)?;
        let size = im.sizes(&item)[axis] as i64;
        let (start, end, step) = (starts[i], ends[i], steps[i]);
        if step == -1 && matches!(item, Item::Host(_)) && start >= -1 && end <= -size {
            item = reversed(im, call, &item, axis)?;
            continue;
        }
        if step < 1 {
            return call.fail(format!("a step of {step}"));
        }
        let at = |v: i64| (if v < 0 { v.saturating_add(size) } else { v }).clamp(0, size);
        let (start, end) = (at(start), at(end));
        if end <= start
            && let Item::Host(host) = &item
        {
            item = Item::Host(host.emptied(axis));
            continue;
        }
        if end <= start {
            return call.fail(format!("elements {start} to {end} along axis {axis}: nothing is left"));
        }
        item = im.part(call, &item, axis, start as usize, (end - start) as usize)?;
        if step > 1 {
            let view = im.computed(&item);
            item = Item::View(im.every(&view, axis, step as usize));
        }
    }
    im.give(call, 0, item);
    Ok(())
}

/// Known values in the opposite order.
fn reversed<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    item: &Item,
    axis: usize,
) -> Result<Item, ImportError> {
    let sizes = im.sizes(item);
    let Item::Host(host) = item else { return call.fail("a step of -1") };
    let array = clearshot_graph::Array::from_tensor(&host.tensor);
    let mut at = sizes.clone();
    let turned = clearshot_graph::Array::from_fn(host.tensor.shape(), |i| {
        at.copy_from_slice(i);
        at[axis] = sizes[axis] - 1 - i[axis];
        array.get(&at)
    });
    Ok(Item::Host(Host::new(name(call), crate::import::host::tensor(&turned, host.tensor.dtype()))))
}

pub(super) fn split<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let axis = call.axis(call.int_or("axis", 0)?, sizes.len())?;
    let count = call.node.outputs.len();
    let parts: Vec<usize> = match im.list(call, 1, "split")? {
        Some(parts) => parts.iter().map(|&p| usize::try_from(p).unwrap_or(0)).collect(),
        None => {
            let each = sizes[axis].div_ceil(count.max(1));
            (0..count).map(|i| each.min(sizes[axis].saturating_sub(i * each))).collect()
        }
    };
    if parts.len() != count || parts.iter().try_fold(0usize, |n, &p| n.checked_add(p)) != Some(sizes[axis]) {
        return call.fail(format!("{} elements as {parts:?}", sizes[axis]));
    }
    let mut start = 0;
    for (i, &len) in parts.iter().enumerate() {
        let part = im.part(call, &item, axis, start, len)?;
        im.give(call, i, part);
        start += len;
    }
    Ok(())
}

/// More rows than are put together from single ones.
const MOST_ROWS: usize = 4096;

pub(super) fn gather<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (item, index) = (im.item(call, 0)?, im.item(call, 1)?);
    let sizes = im.sizes(&item);
    let axis = call.axis(call.int_or("axis", 0)?, sizes.len())?;
    let Item::Host(host) = &index else { return looked_up(im, call, &item, &index, axis) };
    let Some(indices) = host.ints() else { return call.fail("indices that are not whole numbers") };
    let size = sizes[axis] as i64;
    let indices = indices.iter().map(|&i| if i < 0 { i + size } else { i });
    let Some(indices) =
        indices.map(|i| usize::try_from(i).ok().filter(|i| *i < sizes[axis])).collect::<Option<Vec<usize>>>()
    else {
        return call.fail(format!("indices beyond {size} elements"));
    };
    if indices.is_empty() || indices.len() > MOST_ROWS {
        return call.fail(format!("{} rows", indices.len()));
    }
    // Neighbours are one slice.
    let mut runs: Vec<(usize, usize)> = vec![];
    for &i in &indices {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == i => *len += 1,
            _ => runs.push((i, 1)),
        }
    }
    let parts = runs
        .iter()
        .map(|&(start, len)| im.part(call, &item, axis, start, len))
        .collect::<Result<Vec<_>, _>>()?;
    let whole = join(im, call, parts, axis)?;
    let to: Vec<usize> =
        sizes[..axis].iter().copied().chain(host.sizes()).chain(sizes[axis + 1..].iter().copied()).collect();
    im.give_reshaped(call, &whole, &to)
}

fn join<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    mut parts: Vec<Item>,
    axis: usize,
) -> Result<Item, ImportError> {
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    let hosts: Option<Vec<&Host>> =
        parts.iter().map(|p| if let Item::Host(h) = p { Some(h) } else { None }).collect();
    if let Some(hosts) = hosts {
        let op = Op::Concat(clearshot_graph::ops::Concat { axis });
        return Host::apply(name(call), &op, &hosts).map(Item::Host).or_else(|reason| call.fail(reason));
    }
    let views: Vec<View> = parts.iter().map(|p| im.computed(p)).collect();
    let values: Vec<Value> = views.iter().map(|v| v.value).collect();
    let value = im.b.concat(&values, views[0].place(axis));
    Ok(Item::View(View { value, order: views[0].order.clone() }))
}

/// Rows of a table by indices that are known when the network runs.
fn looked_up<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
    table: &Item,
    index: &Item,
    axis: usize,
) -> Done {
    let sizes = im.sizes(table);
    if axis != 0 || sizes.len() != 2 {
        return call.fail("indices that are computed are only taken for the rows of a table");
    }
    let (table, index) = (im.computed(table), im.computed(index));
    let (rows, at) = (im.plain(&table), im.plain(&index));
    let at = im.b.cast(at, DType::I32);
    let value = im.b.gather(rows, at);
    let rank = im.b.shape(value).rank();
    im.give_view(call, value, (0..rank).collect());
    Ok(())
}

pub(super) fn pad<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let view = im.view(call, 0)?;
    let rank = view.rank();
    let Some(pads) = im.list(call, 1, "pads")? else { return call.fail("its sizes are missing") };
    let axes: Vec<usize> = match im.host(call, 3)?.and_then(|h| h.ints()) {
        Some(axes) => axes.iter().map(|&a| call.axis(a, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() || pads.iter().any(|p| p.unsigned_abs() > 1 << 30) {
        return call.fail(format!("{pads:?} for {} axes", axes.len()));
    }
    let mode = match call.text_or("mode", "constant")? {
        "constant" => PadMode::Zero,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return call.fail(format!("mode {other}")),
    };
    let fill = match im.host(call, 2)? {
        Some(host) => host.single().unwrap_or(0.0),
        None => call.float_or("value", 0.0)?,
    };
    let mut value = im.float(view.value);
    // Less than nothing is cut off first.
    let mut all = [[0usize; 2]; MAX_RANK];
    for (i, &axis) in axes.iter().enumerate() {
        let [low, high] = [pads[i], pads[i + axes.len()]];
        let place = view.place(axis);
        let cut = [low, high].map(|p| p.min(0).unsigned_abs() as usize);
        let size = im.b.shape(value)[place];
        if cut != [0, 0] {
            let Some(len) = size.checked_sub(cut[0] + cut[1]).filter(|n| *n > 0) else {
                return call.fail(format!("{pads:?} leaves nothing of axis {axis}"));
            };
            value = im.b.slice(value, place, cut[0], len);
        }
        all[place] = [low.max(0) as usize, high.max(0) as usize];
    }
    let shifted = mode == PadMode::Zero && fill != 0.0;
    if shifted && !fill.is_finite() {
        return call.fail(format!("padding with {fill}"));
    }
    let moved = if shifted { im.b.add_scalar(value, -fill) } else { value };
    let padded = im.b.pad(moved, all, mode);
    let value = if shifted { im.b.add_scalar(padded, fill) } else { padded };
    im.give_view(call, value, view.order);
    Ok(())
}
