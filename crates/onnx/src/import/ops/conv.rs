//! Convolutions, plain and transposed, of two and three spatial axes; those of one axis are planes of one row.

use super::quantize;
use crate::error::ImportError;
use crate::import::node::Call;
use crate::import::view::{View, channels_last};
use crate::import::{Importer, Item};
use clearshot_graph::ops::Geometry;
use clearshot_graph::ops::int8::{Rounding, Table};
use clearshot_graph::passes::int8;
use clearshot_graph::{Op, Value};
use clearshot_tensor::Shape;

/// A value with its channels last and at least two spatial axes, and how many axes the file has.
fn image(im: &mut Importer<'_, '_>, item: &Item) -> (Value, usize) {
    let rank = im.sizes(item).len();
    let view = im.computed(item);
    let value = match item {
        Item::Host(host) => im.param_of(host, rank, &channels_last(rank)),
        Item::View(_) => im.arranged(&view, &channels_last(rank)),
    };
    (im.float_rows(value, rank), rank)
}

impl Importer<'_, '_> {
    /// As floats; a row becomes a plane.
    fn float_rows(&mut self, value: Value, rank: usize) -> Value {
        let value = self.float(value);
        if rank != 3 {
            return value;
        }
        let s = self.b.shape(value);
        self.b.reshape(value, Shape::from([s[0], 1, s[1], s[2]]))
    }

    /// Undoes that.
    pub(super) fn without_rows(&mut self, value: Value, rank: usize) -> View {
        let value = match rank {
            3 => {
                let s = self.b.shape(value);
                self.b.reshape(value, Shape::from([s[0], s[2], s[3]]))
            }
            _ => value,
        };
        View { value, order: channels_last(rank) }
    }
}

/// The entries of the file's spatial axes as Z, Y, X.
fn each(values: &[usize], neutral: usize) -> [usize; 3] {
    let mut all = [neutral; 3];
    let skip = 3 - values.len().min(3);
    all[skip..].copy_from_slice(&values[..3 - skip]);
    all
}

/// Padding, by numbers or by what the result's size is to be.
pub(super) fn padding(
    call: Call<'_, '_>,
    input: &[usize],
    reach: &[usize],
    stride: &[usize],
) -> Result<[[usize; 2]; 3], ImportError> {
    let dims = input.len();
    let mut all = [[0; 2]; 3];
    let (places, pads) = (3 - dims.., call.sizes_or("pads", 2 * dims, 0)?);
    let auto = call.text_or("auto_pad", "NOTSET")?;
    for (a, pad) in all[places].iter_mut().enumerate() {
        *pad = match auto {
            "NOTSET" | "" => [pads[a], pads[a + dims]],
            "VALID" => [0, 0],
            "SAME_UPPER" | "SAME_LOWER" => {
                let out = input[a].div_ceil(stride[a].max(1));
                let total = ((out - 1) * stride[a] + reach[a]).saturating_sub(input[a]);
                let (less, more) = (total / 2, total - total / 2);
                if auto == "SAME_UPPER" { [less, more] } else { [more, less] }
            }
            other => return call.fail(format!("auto_pad {other}")),
        };
    }
    Ok(all)
}

struct Parts {
    x: Value,
    weight: Value,
    bias: Option<Value>,
    /// Axes that the file has.
    rank: usize,
    geometry: Geometry,
    /// Of the file's spatial axes.
    input: Vec<usize>,
    reach: Vec<usize>,
    stride: Vec<usize>,
}

fn parts<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<Parts, ImportError> {
    let (x, w) = (im.item(call, 0)?, im.item(call, 1)?);
    let (sizes, kernel) = (im.sizes(&x), im.sizes(&w));
    if !(3..=5).contains(&sizes.len()) || kernel.len() != sizes.len() || sizes.contains(&0) {
        return call.fail(format!("an image of sizes {sizes:?} and a weight of sizes {kernel:?}"));
    }
    let dims = sizes.len() - 2;
    let (stride, dilation) = (call.sizes_or("strides", dims, 1)?, call.sizes_or("dilations", dims, 1)?);
    if stride.contains(&0) || dilation.contains(&0) || kernel.contains(&0) {
        return call.fail(format!("strides {stride:?}, dilations {dilation:?}, weight {kernel:?}"));
    }
    let said = call.sizes_or("kernel_shape", dims, 0)?;
    if said.iter().zip(&kernel[2..]).any(|(s, k)| *s != 0 && s != k) {
        return call.fail(format!("kernel_shape {said:?} where the weight has {:?}", &kernel[2..]));
    }
    let reach: Vec<usize> = (0..dims).map(|a| (kernel[a + 2] - 1) * dilation[a] + 1).collect();
    let input = sizes[2..].to_vec();
    let groups = call.int_or("group", 1)?;
    let Ok(groups) = usize::try_from(groups) else { return call.fail(format!("{groups} groups")) };
    let geometry =
        Geometry { stride: each(&stride, 1), pad: [[0; 2]; 3], dilation: each(&dilation, 1), groups };
    let bias = match im.optional(call, 2)? {
        None => None,
        Some(item) => {
            let view = im.computed(&item);
            Some(im.plain(&view))
        }
    };
    let (x, rank) = image(im, &x);
    let (weight, _) = image(im, &w);
    Ok(Parts { x, weight, bias, rank, geometry, input, reach, stride })
}

pub(super) fn conv<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let p = parts(im, call)?;
    let (x, weight) = (im.item(call, 0)?, im.item(call, 1)?);
    let rounding = quantize::grids(im, &x, &weight, p.geometry.groups).map(Rounding::Static);
    let pad = padding(call, &p.input, &p.reach, &p.stride)?;
    let name = match im.b.graph().op(p.weight) {
        Op::State(state) => Some(state.name.to_string()),
        _ => None,
    };
    let y = match name.zip(rounding) {
        Some(rounded) => {
            let steps = int8::steps(&mut im.b, &Table::from([rounded]));
            let first = im.b.graph().nodes.len();
            let y = im.b.conv(p.x, p.weight, p.bias, p.geometry.with_padding(pad));
            im.b.round_convolutions(first, &steps);
            y
        }
        None => im.b.conv(p.x, p.weight, p.bias, p.geometry.with_padding(pad)),
    };
    let view = im.without_rows(y, p.rank);
    im.give(call, 0, Item::View(view));
    Ok(())
}

pub(super) fn conv_transpose<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let p = parts(im, call)?;
    let dims = p.input.len();
    let extra = call.sizes_or("output_padding", dims, 0)?;
    let full: Vec<usize> =
        (0..dims).map(|a| (p.input[a] - 1) * p.stride[a] + p.reach[a] + extra[a]).collect();
    let auto = call.text_or("auto_pad", "NOTSET")?;
    let wanted: Option<Vec<usize>> = match (call.ints("output_shape")?, auto) {
        (Some(_), _) => Some(call.sizes_or("output_shape", dims, 0)?),
        (None, "SAME_UPPER" | "SAME_LOWER") => Some((0..dims).map(|a| p.input[a] * p.stride[a]).collect()),
        _ => None,
    };
    let mut pad = [[0; 2]; 3];
    let places = 3 - dims..;
    match wanted {
        None => pad = padding(call, &p.input, &p.reach, &p.stride)?,
        Some(wanted) => {
            for (a, pad) in pad[places].iter_mut().enumerate() {
                let Some(total) = full[a].checked_sub(wanted[a]) else {
                    return call.fail(format!("output_shape {wanted:?} is larger than {full:?}"));
                };
                let (less, more) = (total / 2, total - total / 2);
                *pad = if auto == "SAME_UPPER" { [less, more] } else { [more, less] };
            }
        }
    }
    let y = im.b.conv_transpose(p.x, p.weight, p.bias, p.geometry.with_padding(pad), each(&extra, 0));
    let view = im.without_rows(y, p.rank);
    im.give(call, 0, Item::View(view));
    Ok(())
}
