//! 8-bit convolutions in model files.
//!
//! The weight of such a convolution is stored as i8, with `int8/NAME/scale`, the scale of each output channel, and, for
//! static rounding, `int8/NAME/step` and `int8/NAME/zero` of each input channel. On reading, the weight becomes the f32
//! values that the bytes represent, which are rounded to the same bytes again when they are used (`graph::ops::int8`).

use clearshot_graph::ops::int8::{Grid, Rounding, Table, round_weight, scale_of};
use clearshot_tensor::{Data, Tensor};
use std::collections::BTreeMap;

const PREFIX: &str = "int8/";

fn beside(name: &str, what: &str) -> String {
    format!("{PREFIX}{name}/{what}")
}

/// The steps of a rounding's channels; 1 where they are not known before a run.
fn steps(rounding: &Rounding, channels: usize) -> Vec<f32> {
    match rounding {
        Rounding::Static(grids) => grids.iter().map(|g| g.step).collect(),
        Rounding::Dynamic => vec![1.0; channels],
    }
}

/// A weight in PyTorch's layout, `[K, C, ...]`, seen as K times C times taps.
fn sizes(weight: &Tensor) -> Option<[usize; 3]> {
    match *weight.shape() {
        [k, c, ref taps @ ..] if k * c > 0 => Some([k, c, taps.iter().product()]),
        _ => None,
    }
}

/// Puts a weight, in our layout, and its rounding among a file's tensors.
pub(crate) fn put(tensors: &mut BTreeMap<String, Tensor>, name: &str, weight: &Tensor, rounding: &Rounding) {
    let torch = weight.channels_second();
    let (Some([_, c, taps]), Ok(values)) = (sizes(&torch), torch.as_f32()) else { return };
    let steps = steps(rounding, c);
    let scaled = |i: usize| values[i] * steps[i / taps % c];
    let row = c * taps;
    let rows = values.len() / row;
    let largest = |k: usize| (k * row..(k + 1) * row).fold(0.0, |most: f32, i| most.max(scaled(i).abs()));
    let scales: Vec<f32> = (0..rows).map(|k| scale_of(largest(k))).collect();
    let bytes = (0..values.len()).map(|i| round_weight(scaled(i), scales[i / row])).collect();
    let tensor = |shape, data| Tensor::new(shape, data).expect("as many values as the weight has");
    tensors.insert(name.into(), tensor(torch.shape(), Data::I8(bytes)));
    tensors.insert(beside(name, "scale"), Tensor::f32([rows], scales));
    if let Rounding::Static(grids) = rounding {
        tensors.insert(beside(name, "step"), Tensor::f32([c], steps));
        let zeros = Data::U8(grids.iter().map(|g| g.zero).collect());
        tensors.insert(beside(name, "zero"), tensor([c].into(), zeros));
    }
}

/// Takes the roundings out of a file's tensors and gives weights of bytes their values.
///
/// # Errors
/// Says which tensor is missing, of another size, or holds what cannot be.
pub(crate) fn take(tensors: &mut BTreeMap<String, Tensor>) -> Result<Table, String> {
    let names: Vec<String> = tensors
        .iter()
        .filter(|(name, t)| matches!(t.data(), Data::I8(_)) && !name.starts_with(PREFIX))
        .map(|(name, _)| name.clone())
        .collect();
    let mut table = Table::new();
    for name in names {
        let (weight, rounding) = taken(tensors, &name)?;
        tensors.insert(name.clone(), weight);
        table.insert(name, rounding);
    }
    match tensors.keys().find(|name| name.starts_with(PREFIX)) {
        Some(name) => Err(format!("`{name}` belongs to no weight of 8 bits")),
        None => Ok(table),
    }
}

fn taken(tensors: &mut BTreeMap<String, Tensor>, name: &str) -> Result<(Tensor, Rounding), String> {
    let weight = tensors.remove(name).ok_or_else(|| format!("no `{name}`"))?;
    let (Some([k, c, taps]), Data::I8(bytes)) = (sizes(&weight), weight.data()) else {
        return Err(format!("`{name}` of shape {} is not the weight of a convolution", weight.shape()));
    };
    let mut part = |what: &str, len: usize| {
        let of = beside(name, what);
        match tensors.remove(&of) {
            Some(t) if t.shape()[..] == [len] => Ok(Some(t)),
            Some(t) => Err(format!("`{of}` has shape {}, expected [{len}]", t.shape())),
            None => Ok(None),
        }
    };
    let positive = |what: &str, t: &Tensor| match t.as_f32() {
        Ok(values) if values.iter().all(|x| x.is_finite() && *x > 0.0) => Ok(values.to_vec()),
        _ => Err(format!("`{}` must be of f32, finite and above 0", beside(name, what))),
    };
    let scale = part("scale", k)?.ok_or_else(|| format!("no `{}`", beside(name, "scale")))?;
    let scales = positive("scale", &scale)?;
    let rounding = match (part("step", c)?, part("zero", c)?) {
        (Some(step), Some(zero)) => {
            let Data::U8(zeros) = zero.data() else {
                return Err(format!("`{}` must be of u8", beside(name, "zero")));
            };
            let steps = positive("step", &step)?;
            Rounding::Static(steps.into_iter().zip(zeros).map(|(step, &zero)| Grid { step, zero }).collect())
        }
        (None, None) => Rounding::Dynamic,
        _ => return Err(format!("`{name}` has steps without zeros, or zeros without steps")),
    };
    let steps = steps(&rounding, c);
    let value = |(i, p): (usize, &i8)| f32::from(*p) * scales[i / (c * taps)] / steps[i / taps % c];
    let values = bytes.iter().enumerate().map(value).collect();
    Ok((Tensor::f32(weight.shape(), values), rounding))
}
