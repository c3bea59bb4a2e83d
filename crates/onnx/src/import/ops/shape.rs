//! Sizes as values, constants, and operators without effect in inference.

use crate::error::ImportError;
use crate::file::Attribute;
use crate::import::host::{Host, check};
use crate::import::node::Call;
use crate::import::{Importer, Item};
use crate::values::{element, element_name, tensor};
use clearshot_tensor::{DType, Data, MAX_RANK, Shape, Tensor};

type Done = Result<(), ImportError>;

fn name<'a>(call: Call<'_, 'a>) -> &'a str {
    call.node.outputs.first().copied().unwrap_or("")
}

fn list(values: Vec<i64>) -> Tensor {
    Tensor::new([values.len()], Data::I64(values)).expect("as many as there are")
}

pub(super) fn shape<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let sizes = im.sizes(&item);
    let rank = sizes.len() as i64;
    let at = |v: i64| (if v < 0 { v + rank } else { v }).clamp(0, rank) as usize;
    let (start, end) = (at(call.int_or("start", 0)?), at(call.int_or("end", rank)?));
    let part = sizes.get(start..end.max(start)).unwrap_or(&[]).iter().map(|&s| s as i64).collect();
    im.give_host(call, Ok(Host::new(name(call), list(part))))
}

pub(super) fn size<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let count: usize = im.sizes(&item).iter().product();
    let tensor = Tensor::new(Shape::SCALAR, Data::I64(vec![count as i64])).expect("one value");
    im.give_host(call, Ok(Host::new(name(call), tensor)))
}

pub(super) fn identity<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    if call.node.op == "Dropout" && call.node.outputs.get(1).is_some_and(|n| !n.is_empty()) {
        return call.fail("the mask is asked for");
    }
    let item = im.item(call, 0)?;
    im.give(call, 0, item);
    Ok(())
}

pub(super) fn constant<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let Some((kind, value)) = call.node.attributes.first() else { return call.fail("it has no value") };
    let made = match value {
        Attribute::Tensor(t) => tensor(t, im.folder)?,
        Attribute::Float(v) => Tensor::scalar(*v),
        Attribute::Floats(v) => Tensor::f32([v.len()], v.clone()),
        Attribute::Int(v) => Tensor::new(Shape::SCALAR, Data::I64(vec![*v])).expect("one value"),
        Attribute::Ints(v) => list(v.clone()),
        _ => return call.fail(format!("a constant as {kind}")),
    };
    im.give_host(call, Ok(Host::new(name(call), made)))
}

pub(super) fn constant_of_shape<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let Some(sizes) = im.host(call, 0)?.and_then(|h| h.ints()) else {
        return call.fail("its sizes are missing");
    };
    if sizes.len() > MAX_RANK {
        return call.fail(format!("{} axes, {MAX_RANK} at most", sizes.len()));
    }
    let shape = crate::values::shape(name(call), &sizes)?;
    check(shape).or_else(|reason| call.fail(reason))?;
    let value = match call.node.attribute("value") {
        Some(Attribute::Tensor(t)) => tensor(t, im.folder)?,
        None => Tensor::full([1], 0.0),
        Some(_) => return call.fail("its value is not a tensor"),
    };
    let filled = Host::new(name(call), value);
    let Some(number) = filled.single() else { return call.fail("its value is not one number") };
    let array = clearshot_graph::Array::zeros(shape).map(|_| number);
    let tensor = crate::import::host::tensor(&array, filled.tensor.dtype());
    im.give_host(call, Ok(Host::new(name(call), tensor)))
}

pub(super) fn range<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let mut single = |i: usize| -> Result<(f64, DType), ImportError> {
        match im.host(call, i)?.and_then(|h| Some((h.single()?, h.tensor.dtype()))) {
            Some(value) => Ok(value),
            None => call.fail(format!("operand {i} is not one number")),
        }
    };
    let ((start, dtype), (limit, _), (step, _)) = (single(0)?, single(1)?, single(2)?);
    let count = ((limit - start) / step).ceil().max(0.0);
    if count.is_nan() || count > crate::import::host::MOST as f64 {
        return call.fail(format!("{count} numbers"));
    }
    let values = (0..count as usize).map(|i| start + i as f64 * step).collect::<Vec<f64>>();
    let array = clearshot_graph::Array::new([values.len()], values);
    im.give_host(call, Ok(Host::new(name(call), crate::import::host::tensor(&array, dtype))))
}

/// Floats of any width are 32 bits wide here, and so are whole numbers of the graph.
pub(super) fn cast<'a>(im: &mut Importer<'_, 'a>, call: Call<'_, 'a>) -> Done {
    let item = im.item(call, 0)?;
    let dtype = match call.node.op {
        "CastLike" => match im.item(call, 1)? {
            Item::Host(h) => h.tensor.dtype(),
            Item::View(v) => im.b.ty(v.value).dtype,
        },
        _ => match call.int_or("to", 0)? {
            element::FLOAT | element::FLOAT16 | element::BFLOAT16 | element::DOUBLE => DType::F32,
            element::INT64 => DType::I64,
            element::INT32 => DType::I32,
            element::INT8 => DType::I8,
            element::BOOL | element::UINT8 => DType::U8,
            other => return call.fail(format!("a cast to {}", element_name(other))),
        },
    };
    match item {
        Item::Host(host) => {
            let truth = call.int_or("to", 0)? == element::BOOL;
            let made = host.map(name(call), dtype, |v| if truth { f64::from(u8::from(v != 0.0)) } else { v });
            im.give_host(call, Ok(made))
        }
        // Truth values are floats in our graph; whole numbers are cut off by the cast itself.
        Item::View(view) => {
            let to = if matches!(dtype, DType::I64 | DType::I32) { DType::I32 } else { DType::F32 };
            let value = im.b.cast(view.value, to);
            im.give_view(call, value, view.order);
            Ok(())
        }
    }
}
