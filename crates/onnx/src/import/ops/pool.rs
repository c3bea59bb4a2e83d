//! Average and maximum over windows, and over whole images.

use super::conv::padding;
use crate::error::ImportError;
use crate::import::node::Call;
use crate::import::view::channels_last;
use crate::import::{Importer, Item};
use clearshot_graph::Value;
use clearshot_graph::ops::{Geometry, PoolKind};
use clearshot_tensor::{Shape, Tensor};

/// An image with its channels last, and its spatial sizes.
fn image<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(Value, Vec<usize>), ImportError> {
    let view = im.view(call, 0)?;
    let sizes = im.view_sizes(&view);
    if !(3..=5).contains(&sizes.len()) || sizes.contains(&0) {
        return call.fail(format!("an image of sizes {sizes:?}"));
    }
    let value = im.arranged(&view, &channels_last(sizes.len()));
    let value = im.float(value);
    let value = match sizes.len() {
        3 => im.b.reshape(value, Shape::from([sizes[0], 1, sizes[2], sizes[1]])),
        _ => value,
    };
    Ok((value, sizes[2..].to_vec()))
}

fn kind(call: Call<'_, '_>) -> PoolKind {
    if call.node.op.ends_with("MaxPool") { PoolKind::Max } else { PoolKind::Average }
}

pub(super) fn pool<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let (x, sizes) = image(im, call)?;
    let dims = sizes.len();
    let kernel = call.sizes_or("kernel_shape", dims, 0)?;
    let stride = call.sizes_or("strides", dims, 1)?;
    if kernel.contains(&0) || stride.contains(&0) {
        return call.fail(format!("kernel_shape {kernel:?}, strides {stride:?}"));
    }
    if call.sizes_or("dilations", dims, 1)?.iter().any(|d| *d != 1) {
        return call.fail("dilated pooling");
    }
    if call.node.outputs.get(1).is_some_and(|name| !name.is_empty()) {
        return call.fail("the places of maxima are asked for");
    }
    let mut pad = padding(call, &sizes, &kernel, &stride)?;
    if call.int_or("ceil_mode", 0)? != 0 {
        // More padding behind the last pixel where the last window would be cut off.
        for (a, pad) in pad[3 - dims..].iter_mut().enumerate() {
            let span = (sizes[a] + pad[0] + pad[1]).saturating_sub(kernel[a]);
            let more = span.next_multiple_of(stride[a]) - span;
            // A window that would begin in that padding is not there.
            if (span + more) < sizes[a] + pad[0] {
                pad[1] += more;
            }
        }
    }
    let kind = kind(call);
    let (mut k, mut s) = ([1; 3], [1; 3]);
    k[3 - dims..].copy_from_slice(&kernel);
    s[3 - dims..].copy_from_slice(&stride);
    let geometry = Geometry { stride: s, pad, dilation: [1; 3], groups: 1 };
    let mut y = im.b.pool(x, kind, k, geometry);
    let padded = pad.iter().flatten().any(|p| *p > 0);
    if kind == PoolKind::Average && padded && call.int_or("count_include_pad", 0)? == 0 {
        // Our average counts the padding: divide by the share of pixels that are there.
        let shape = im.b.shape(x);
        let ones = shape.with(0, 1).with(shape.rank() - 1, 1);
        let ones = im.b.constant(Tensor::full(ones, 1.0));
        let share = im.b.pool(ones, kind, k, geometry);
        y = im.b.div(y, share);
    }
    let view = im.without_rows(y, dims + 2);
    im.give(call, 0, Item::View(view));
    Ok(())
}

pub(super) fn global<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let (x, sizes) = image(im, call)?;
    let dims = sizes.len();
    let rank = im.b.shape(x).rank();
    let y = match kind(call) {
        PoolKind::Average => im.b.mean(x, &(1..rank - 1).collect::<Vec<_>>()),
        PoolKind::Max => {
            let mut kernel = [1; 3];
            kernel[3 - dims..].copy_from_slice(&sizes);
            im.b.pool(x, PoolKind::Max, kernel, Geometry::new(2, 1, 0))
        }
    };
    let view = im.without_rows(y, dims + 2);
    im.give(call, 0, Item::View(view));
    Ok(())
}
