//! Quantised networks with pairs of `QuantizeLinear` and `DequantizeLinear` around floating-point operators.
//!
//! A quantised value is an integer stored in a float, and the pair follows ONNX exactly: division by the scale in 32 bits,
//! rounding half to even, the zero point, saturation. Stored quantised weights become floats here. The grid of a rounded
//! value is remembered, so that a convolution that reads it can multiply in 8 bits ([`grids`]).

use crate::error::ImportError;
use crate::import::host::Host;
use crate::import::node::Call;
use crate::import::view::View;
use crate::import::{Importer, Item, Origin};
use crate::values::{element, element_name};
use clearshot_graph::Value;
use clearshot_graph::ops::int8::{self, Grid};
use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::passes::int8::is_worth_it;
use clearshot_tensor::{DType, Shape, Tensor};

type Done = Result<(), ImportError>;

/// Scale and zero point of a node, with as many axes as its value.
struct Scale {
    scale: Host,
    /// None where it is zero.
    zero: Option<Host>,
    dtype: DType,
}

fn range(dtype: DType) -> Option<(f64, f64)> {
    match dtype {
        DType::U8 => Some((0.0, 255.0)),
        DType::I8 => Some((-128.0, 127.0)),
        _ => None,
    }
}

impl Scale {
    fn read<'a>(
        im: &mut Importer<'_, 'a>,
        call: Call<'_, 'a>,
        sizes: &[usize],
    ) -> Result<Scale, ImportError> {
        if call.int_or("block_size", 0)? != 0 {
            return call.fail("scales of blocks; scales of tensors and of channels are read");
        }
        let rank = sizes.len() as i64;
        let axis = call.int_or("axis", 1)?;
        let axis = if axis < 0 { axis + rank } else { axis } as usize;
        let mut spread = |i: usize| -> Result<Option<Host>, ImportError> {
            let Some(host) = im.host(call, i)? else { return Ok(None) };
            let count = host.tensor.shape().len();
            let mut wide = vec![1; sizes.len()];
            match (count, sizes.get(axis)) {
                (1, _) => {}
                (n, Some(size)) if n == *size => wide[axis] = n,
                _ => return call.fail(format!("{count} scales for axis {axis} of sizes {sizes:?}")),
            }
            host.reshaped(&wide).map(Some).or_else(|reason| call.fail(reason))
        };
        let Some(scale) = spread(1)? else { return call.fail("its scale is missing") };
        let zero = spread(2)?;
        let dtype = match &zero {
            Some(zero) => zero.tensor.dtype(),
            None => match call.int_or("output_dtype", element::UINT8)? {
                element::UINT8 => DType::U8,
                element::INT8 => DType::I8,
                other => return call.fail(format!("values of {}", element_name(other))),
            },
        };
        let zero = zero.filter(|z| z.tensor.to_f64().iter().any(|v| *v != 0.0));
        Ok(Scale { scale, zero, dtype })
    }

    /// The grids of the channels of an image, or the one that all share; none where another axis has several.
    fn grids(&self, channels: usize) -> Option<Vec<Grid>> {
        let shape = self.scale.tensor.shape();
        let is_of_channels = (0..shape.rank()).all(|axis| axis == 1 || shape[axis] == 1);
        let (low, _) = range(self.dtype)?;
        let (steps, zeros) = (self.scale.floats(), self.zero.as_ref().map_or(vec![0.0], Host::floats));
        let at = |list: &[f32], c: usize| if list.len() == 1 { list[0] } else { list[c] };
        let grid = |c| Grid { step: at(&steps, c), zero: (f64::from(at(&zeros, c)) - low) as u8 };
        is_of_channels.then(|| (0..channels).map(grid).collect())
    }

    /// Scale and zero point as constants of the graph, for a value of these axes.
    fn constants(&self, im: &mut Importer<'_, '_>, view: &View) -> (Value, Option<Value>) {
        let mut constant = |host: &Host| {
            let tensor = Tensor::f32(Shape::new(&host.sizes()), host.floats()).permuted(&view.order);
            im.b.constant(tensor)
        };
        (constant(&self.scale), self.zero.as_ref().map(constant))
    }

    /// Calls with scale and zero point of each element of a tensor.
    fn each(&self, tensor: &Tensor, f: impl Fn(f32, f32, f32) -> f32) -> Tensor {
        let shape = tensor.shape();
        let (scale, zero) = (self.scale.floats(), self.zero.as_ref().map(Host::floats));
        let wide = self.scale.tensor.shape();
        // Along one axis at most there is more than one scale; that many values share each.
        let axis = (0..shape.rank()).find(|&a| wide[a] != 1).unwrap_or(0);
        let inner: usize = (axis + 1..shape.rank()).map(|a| shape[a]).product();
        let at =
            |list: &[f32], i: usize| if list.len() == 1 { list[0] } else { list[i / inner % list.len()] };
        let value =
            |(i, v): (usize, f64)| f(v as f32, at(&scale, i), zero.as_ref().map_or(0.0, |z| at(z, i)));
        Tensor::f32(shape, tensor.to_f64().into_iter().enumerate().map(value).collect())
    }
}

pub(super) fn quantize<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let by = Scale::read(im, call, &im.sizes(&item))?;
    let Some((low, high)) = range(by.dtype) else {
        return call.fail(format!("values of {:?}; uint8 and int8 are read", by.dtype));
    };
    let name = call.node.outputs.first().copied().unwrap_or("");
    match &item {
        Item::Host(host) => {
            let whole =
                |v: f32, s: f32, z: f32| f64::from((v / s).round_ties_even() + z).clamp(low, high) as f32;
            let made = by.each(&host.tensor, whole);
            im.give_host(call, Ok(Host::new(name, made)))
        }
        Item::View(view) => {
            let x = im.float(view.value);
            let (scale, zero) = by.constants(im, view);
            let divided = im.b.binary(Binary::Div, x, scale);
            let mut whole = im.b.unary(Unary::Round, divided);
            if let Some(zero) = zero {
                whole = im.b.add(whole, zero);
            }
            let value = im.b.unary(Unary::Clamp(low, high), whole);
            if let Some(grids) = im.sizes(&item).get(1).and_then(|channels| by.grids(*channels)) {
                im.origins.insert(value, Origin::Whole(grids));
            }
            im.give_view(call, value, view.order.clone());
            Ok(())
        }
    }
}

pub(super) fn dequantize<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let by = Scale::read(im, call, &im.sizes(&item))?;
    let name = call.node.outputs.first().copied().unwrap_or("");
    match &item {
        Item::Host(host) => {
            let made = by.each(&host.tensor, |v, s, z| (v - z) * s);
            im.give_host(call, Ok(Host::new(name, made)))
        }
        Item::View(view) => {
            let mut x = im.float(view.value);
            let (scale, zero) = by.constants(im, view);
            if let Some(zero) = zero {
                x = im.b.sub(x, zero);
            }
            let value = im.b.mul(x, scale);
            if let Some(Origin::Whole(grids)) = im.origins.get(&view.value).cloned()
                && by.grids(grids.len()).as_ref() == Some(&grids)
            {
                im.origins.insert(value, Origin::Rounded(grids));
            }
            im.give_view(call, value, view.order.clone());
            Ok(())
        }
    }
}

/// How the input of a convolution is rounded, where the convolution can multiply 8 bits and mean the same: its input is on a grid, and its weight is
/// of whole numbers that the engine finds again ([`int8`]), as those with a scale of each output channel are.
pub(super) fn grids(im: &Importer<'_, '_>, x: &Item, weight: &Item, groups: usize) -> Option<Vec<Grid>> {
    let (Item::View(x), Item::Host(weight)) = (x, weight) else { return None };
    let Some(Origin::Rounded(grids)) = im.origins.get(&x.value) else { return None };
    let shape = weight.tensor.shape();
    let usable = |g: &Grid| g.step.is_finite() && g.step >= f32::MIN_POSITIVE;
    if shape.rank() < 4 || shape[1] != grids.len() || !grids.iter().all(usable) {
        return None;
    }
    let kernel: usize = shape[2..].iter().product();
    if kernel == 0 || !is_worth_it(groups, Shape::from([shape[0], kernel, shape[1]])) {
        return None;
    }
    let (values, row) = (weight.floats(), shape.len() / shape[0]);
    let taps = row / grids.len();
    let is_found_again = |of_channel: &[f32]| {
        let scaled = |(i, w): (usize, &f32)| w * grids[i / taps].step;
        let largest = of_channel.iter().enumerate().map(scaled).fold(0.0, |most: f32, w| most.max(w.abs()));
        let scale = int8::scale_of(largest);
        let off = |w: f32| (w - f32::from(int8::round_weight(w, scale)) * scale).abs();
        of_channel.iter().enumerate().map(scaled).all(|w| off(w) <= OFF * largest)
    };
    values.chunks_exact(row).all(is_found_again).then(|| grids.clone())
}

/// What rounding in 32 bits may put a weight off its grid by, over the largest: far less than half a step of 1/127.
const OFF: f32 = 1e-5;
