//! Constants scattered into other constants, as exporters do for masks.

use crate::error::ImportError;
use crate::import::Importer;
use crate::import::host::{self, Host};
use crate::import::node::Call;
use clearshot_graph::Array;

pub(super) fn scatter_nd<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Result<(), ImportError> {
    let (Some(data), Some(indices), Some(updates)) =
        (im.host(call, 0)?, im.host(call, 1)?, im.host(call, 2)?)
    else {
        return call.fail("an operand is missing");
    };
    if call.text_or("reduction", "none")? != "none" {
        return call.fail("values that are added up");
    }
    let name = call.node.outputs.first().copied().unwrap_or("");
    im.give_host(call, scattered(name, &data, &indices, &updates))
}

fn scattered(name: &str, data: &Host, indices: &Host, updates: &Host) -> Result<Host, String> {
    let sizes = data.sizes();
    let places = indices.ints().ok_or("indices that are not whole numbers")?;
    let depth = *indices.sizes().last().ok_or("indices without axes")?;
    if depth == 0 || depth > sizes.len() {
        return Err(format!("indices of {depth} axes into sizes {sizes:?}"));
    }
    // Each index names a run of values.
    let run: usize = sizes[depth..].iter().product();
    let values = updates.tensor.to_f64();
    if places.len() / depth * run != values.len() {
        return Err(format!("{} values for {} places of {run}", values.len(), places.len() / depth));
    }
    let mut array = Array::from_tensor(&data.tensor);
    for (i, place) in places.chunks_exact(depth).enumerate() {
        let mut at = 0;
        for (&p, &size) in place.iter().zip(&sizes) {
            let p = if p < 0 { p + size as i64 } else { p };
            let p = usize::try_from(p).ok().filter(|p| *p < size);
            at = at * size + p.ok_or_else(|| format!("index {place:?} beyond sizes {sizes:?}"))?;
        }
        array.data[at * run..(at + 1) * run].copy_from_slice(&values[i * run..(i + 1) * run]);
    }
    Ok(Host::new(name, host::tensor(&array, data.tensor.dtype())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::{Data, Tensor};

    #[test]
    fn rows_and_single_values_are_put_in_place() {
        let whole = |shape: &[usize], v: Vec<i64>| Host::new("", Tensor::new(shape, Data::I64(v)).unwrap());
        let data = Host::new("", Tensor::zeros([2, 3]));
        let row = scattered(
            "",
            &data,
            &whole(&[1, 1], vec![-1]),
            &Host::new("", Tensor::f32([1, 3], vec![1.0, 2.0, 3.0])),
        );
        assert_eq!(row.unwrap().floats(), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
        let one =
            scattered("", &data, &whole(&[1, 2], vec![0, 2]), &Host::new("", Tensor::f32([1], vec![7.0])));
        assert_eq!(one.unwrap().floats(), [0.0, 0.0, 7.0, 0.0, 0.0, 0.0]);
        assert!(
            scattered("", &data, &whole(&[1, 2], vec![0, 3]), &Host::new("", Tensor::f32([1], vec![7.0])))
                .is_err()
        );
        assert!(
            scattered("", &data, &whole(&[1, 1], vec![0]), &Host::new("", Tensor::f32([1], vec![7.0])))
                .is_err()
        );
    }
}
