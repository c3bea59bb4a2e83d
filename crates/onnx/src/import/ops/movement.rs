//! Operators that give values another shape or order.

use super::reduce::squeezed;
use crate::error::ImportError;
use crate::import::host::{Host, check};
use crate::import::node::Call;
use crate::import::view::{self, View, plain};
use crate::import::{Importer, Item, Origin};
use clearshot_graph::Op;
use clearshot_graph::ops::{Concat, Transpose};
use clearshot_tensor::{MAX_RANK, Shape};

type Done = Result<(), ImportError>;

fn name<'a>(call: Call<'_, 'a>) -> &'a str {
    call.node.outputs.first().copied().unwrap_or("")
}

impl<'m, 'a> Importer<'m, 'a> {
    /// A value under other sizes.
    pub(super) fn give_reshaped(&mut self, call: Call<'_, 'a>, item: &Item, to: &[usize]) -> Done {
        let from = self.sizes(item);
        if to.len() > MAX_RANK
            || to.iter().try_fold(1usize, |n, &s| n.checked_mul(s)) != Some(from.iter().product())
        {
            return call.fail(format!("sizes {from:?} cannot become {to:?}"));
        }
        let view = match item {
            Item::Host(host) => return self.give_host(call, host.reshaped(to)),
            Item::View(view) => view,
        };
        if let Some(normalised) = self.ungrouped(view.value, to, name(call)) {
            self.give(call, 0, Item::View(normalised));
            return Ok(());
        }
        let made = match view::reshaped(&from, &view.order, to) {
            Some((memory, order)) => View { value: self.b.reshape(view.value, Shape::new(&memory)), order },
            None => {
                let value = self.plain(view);
                View::plain(self.b.reshape(value, Shape::new(to)), to.len())
            }
        };
        // What normalises groups of channels has to find the image again.
        if made.value != view.value && to.len() == 3 && from.len() > 2 {
            self.origins.entry(made.value).or_insert(Origin::Reshape(view.clone()));
        }
        self.give(call, 0, Item::View(made));
        Ok(())
    }
}

pub(super) fn reshape<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let from = im.sizes(&item);
    let Some(spec) = im.list(call, 1, "shape")? else { return call.fail("its sizes are missing") };
    let zeros = call.int_or("allowzero", 0)? != 0;
    let mut to = vec![];
    let mut open = None;
    for (i, &s) in spec.iter().enumerate() {
        to.push(match s {
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            0 if !zeros => match from.get(i) {
                Some(&size) => size,
                None => return call.fail(format!("{spec:?} copies axis {i} of sizes {from:?}")),
            },
            _ => match usize::try_from(s) {
                Ok(size) => size,
                Err(_) => return call.fail(format!("impossible sizes {spec:?}")),
            },
        });
    }
    if let Some(i) = open {
        let known = to.iter().try_fold(1usize, |n, &s| n.checked_mul(s)).filter(|n| *n > 0);
        let total: usize = from.iter().product();
        match known {
            Some(known) if total.is_multiple_of(known) => to[i] = total / known,
            _ => return call.fail(format!("sizes {from:?} cannot become {spec:?}")),
        }
    }
    im.give_reshaped(call, &item, &to)
}

pub(super) fn flatten<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let axis = call.int_or("axis", 1)?;
    let axis = if axis == sizes.len() as i64 { sizes.len() } else { call.axis(axis, sizes.len())? };
    let to = [sizes[..axis].iter().product(), sizes[axis..].iter().product()];
    im.give_reshaped(call, &item, &to)
}

pub(super) fn transpose<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let rank = im.sizes(&item).len();
    let perm = match call.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(perm) => perm.iter().map(|&a| call.axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
    };
    if perm.len() != rank || !(0..rank).all(|a| perm.contains(&a)) {
        return call.fail(format!("{perm:?} does not permute {rank} axes"));
    }
    match item {
        Item::Host(host) => {
            let op = Op::Transpose(Transpose::new(&perm));
            im.give_host(call, Host::apply(name(call), &op, &[&host]))
        }
        Item::View(view) => {
            im.give(call, 0, Item::View(view.transposed(&perm)));
            Ok(())
        }
    }
}

pub(super) fn unsqueeze<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let Some(axes) = im.list(call, 1, "axes")? else { return call.fail("its axes are missing") };
    let rank = sizes.len() + axes.len();
    if rank > MAX_RANK {
        return call.fail(format!("{rank} axes, {MAX_RANK} at most"));
    }
    let axes = axes.iter().map(|&a| call.axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut old = sizes.iter();
    let to: Option<Vec<usize>> =
        (0..rank).map(|a| if axes.contains(&a) { Some(1) } else { old.next().copied() }).collect();
    match to {
        Some(to) if old.next().is_none() => im.give_reshaped(call, &item, &to),
        _ => call.fail(format!("axes {axes:?} stand twice")),
    }
}

pub(super) fn squeeze<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let axes = match im.list(call, 1, "axes")? {
        Some(axes) => axes.iter().map(|&a| call.axis(a, sizes.len())).collect::<Result<Vec<_>, _>>()?,
        None => (0..sizes.len()).filter(|&a| sizes[a] == 1).collect(),
    };
    if axes.iter().any(|&a| sizes[a] != 1) {
        return call.fail(format!("axes {axes:?} of sizes {sizes:?} do not have one element"));
    }
    match &item {
        Item::View(view) => {
            let view = squeezed(im, view, &axes);
            im.give(call, 0, Item::View(view));
            Ok(())
        }
        Item::Host(host) => {
            let to: Vec<usize> = (0..sizes.len()).filter(|a| !axes.contains(a)).map(|a| sizes[a]).collect();
            im.give_host(call, host.reshaped(&to))
        }
    }
}

pub(super) fn concat<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let parts = (0..call.node.inputs.len()).map(|i| im.item(call, i)).collect::<Result<Vec<_>, _>>()?;
    let Some(first) = parts.first() else { return call.fail("nothing to put together") };
    let rank = im.sizes(first).len();
    let axis = call.axis(call.int_or("axis", 1)?, rank)?;
    if parts.iter().any(|p| im.sizes(p).len() != rank) {
        return call.fail("parts with different numbers of axes");
    }
    // Parts without elements, as exporters of shapes leave them.
    let parts: Vec<Item> = parts.iter().filter(|p| !im.sizes(p).contains(&0)).cloned().collect();
    let hosts: Option<Vec<&Host>> =
        parts.iter().map(|p| if let Item::Host(h) = p { Some(h) } else { None }).collect();
    if let Some(hosts) = hosts {
        return im.give_host(call, Host::apply(name(call), &Op::Concat(Concat { axis }), &hosts));
    }
    let order = parts.iter().find_map(|p| if let Item::View(v) = p { Some(v.order.clone()) } else { None });
    let order = order.unwrap_or_else(|| plain(rank));
    let values: Vec<_> = parts.iter().map(|p| im.operand(p, rank, &order)).collect();
    let place = order.iter().position(|&a| a == axis).unwrap_or(axis);
    let value = im.b.concat(&values, place);
    im.give_view(call, value, order);
    Ok(())
}

pub(super) fn expand<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let Some(spec) = im.list(call, 1, "shape")? else { return call.fail("its sizes are missing") };
    let wanted = crate::values::shape(name(call), &spec)?;
    let Some(to) = Shape::new(&sizes).broadcast(&wanted) else {
        return call.fail(format!("sizes {sizes:?} cannot become {spec:?}"));
    };
    im.give_broadcast(call, &item, to)
}

impl<'a> Importer<'_, 'a> {
    fn give_broadcast(&mut self, call: Call<'_, 'a>, item: &Item, to: Shape) -> Done {
        match item {
            Item::Host(host) => self.give_host(call, Host::apply(name(call), &Op::Broadcast(to), &[host])),
            Item::View(view) => {
                let order = if view.rank() == to.rank() { view.order.clone() } else { plain(to.rank()) };
                let value = self.operand(item, to.rank(), &order);
                let memory: Vec<usize> = order.iter().map(|&a| to[a]).collect();
                let value = self.b.broadcast(value, Shape::new(&memory));
                self.give_view(call, value, order);
                Ok(())
            }
        }
    }
}

/// Repeats along every axis: a new axis in front of each, broadcast and joined.
pub(super) fn tile<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let Some(repeats) = im.list(call, 1, "repeats")? else { return call.fail("its repeats are missing") };
    let times = repeats.iter().map(|&r| usize::try_from(r).ok().filter(|r| (1..=1 << 24).contains(r)));
    let Some(times) = times.collect::<Option<Vec<usize>>>().filter(|t| t.len() == sizes.len()) else {
        return call.fail(format!("repeats {repeats:?} of sizes {sizes:?}"));
    };
    let mut current = item;
    for axis in 0..sizes.len() {
        if times[axis] == 1 {
            continue;
        }
        let parts = vec![current.clone(); times[axis].min(1 << 12)];
        if parts.len() != times[axis] {
            return call.fail(format!("{} repeats along one axis", times[axis]));
        }
        let total: usize = im.sizes(&current).iter().product::<usize>().saturating_mul(times[axis]);
        check(Shape::from([total])).or_else(|reason| call.fail(reason))?;
        let view = im.computed(&current);
        let values = vec![view.value; times[axis]];
        let value = im.b.concat(&values, view.place(axis));
        current = Item::View(View { value, order: view.order });
    }
    im.give(call, 0, current);
    Ok(())
}

/// The channels of blocks of pixels, and back.
fn blocks<'a>(
    im: &mut Importer<'_, 'a>,
    call: Call<'_, 'a>,
) -> Result<(View, [usize; 4], usize), ImportError> {
    let view = im.view(call, 0)?;
    let sizes = im.view_sizes(&view);
    let block = call.int_or("blocksize", 0)?;
    match (<[usize; 4]>::try_from(sizes.clone()), usize::try_from(block)) {
        (Ok(sizes), Ok(block)) if (1..=64).contains(&block) => Ok((view, sizes, block)),
        _ => call.fail(format!("blocks of {block} in an image of sizes {sizes:?}")),
    }
}

pub(super) fn depth_to_space<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (view, [n, c, h, w], s) = blocks(im, call)?;
    if !c.is_multiple_of(s * s) {
        return call.fail(format!("{c} channels in blocks of {s}"));
    }
    let out = c / (s * s);
    let x = im.arranged(&view, &[0, 2, 3, 1]);
    let x = im.float(x);
    // [N, H, W, C] as [N, H, W, s, s, out], or with the result's channels first.
    let columns_first = call.text_or("mode", "DCR")? == "CRD";
    let split = if columns_first { [out, s, s] } else { [s, s, out] };
    // N and H become one axis, so that there are not more than six.
    let x = im.b.reshape(x, Shape::from([n * h, w, split[0], split[1], split[2]]));
    let order: &[usize] = if columns_first { &[0, 3, 1, 4, 2] } else { &[0, 2, 1, 3, 4] };
    let x = im.b.transpose(x, order);
    let y = im.b.reshape(x, Shape::from([n, h * s, w * s, out]));
    im.give_view(call, y, vec![0, 2, 3, 1]);
    Ok(())
}

pub(super) fn space_to_depth<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let (view, [n, c, h, w], s) = blocks(im, call)?;
    if !h.is_multiple_of(s) || !w.is_multiple_of(s) {
        return call.fail(format!("an image of {h} x {w} in blocks of {s}"));
    }
    let x = im.arranged(&view, &[0, 2, 3, 1]);
    let x = im.float(x);
    let x = im.b.reshape(x, Shape::from([n * h / s, s, w / s, s, c]));
    let x = im.b.transpose(x, &[0, 2, 1, 3, 4]);
    let y = im.b.reshape(x, Shape::from([n, h / s, w / s, s * s * c]));
    im.give_view(call, y, vec![0, 2, 3, 1]);
    Ok(())
}
