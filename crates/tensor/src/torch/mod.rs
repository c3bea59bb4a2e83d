//! PyTorch checkpoints (`.pt`, `.pth`, `.bin`): the tensors of a state dictionary written by `torch.save`.
//!
//! They are zip archives of a pickle and of raw storages. The pickle is parsed and never executed (see [`pickle`]). If a
//! checkpoint contains more than a state dictionary (an optimiser, an epoch), the dictionary of weights is found by the
//! names that training programs use, averaged weights first. All sizes in a file are checked against its length.

mod archive;
mod pickle;

use crate::{DType, Data, F8, MAX_RANK, Shape, Tensor};
use archive::Archive;
use half::{bf16, f16};
use pickle::{Pickle, Value, View};
use std::collections::BTreeMap;

/// The names of weights in checkpoints with several parts, as training programs use them; averages come before the last iteration's.
const WEIGHTS: &[&str] = &[
    "ema",
    "ema_state_dict",
    "state_dict_ema",
    "model_ema",
    "params_ema",
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "unet",
    "params",
    "weights",
    "module",
];

/// Prefixes that wrappers add to every name.
const WRAPPERS: &[&str] = &["module.", "_orig_mod."];

/// How deep dictionaries of weights may stand in each other, how many entries are looked at, and how long names are.
const DEPTH: usize = 8;
const ENTRIES: usize = 1 << 16;
const NAME: usize = 512;

/// Tensors may share storages, but not so that a small file fills the memory.
const EXPANSION: usize = 8;

/// Whether these bytes begin a checkpoint of `torch.save`.
pub(crate) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// The message for files of older PyTorch versions, which are neither zip archives nor safetensors files.
pub(crate) fn legacy(bytes: &[u8]) -> Option<String> {
    // A pickle of protocol 2 or later; before 0.1.10, a tar archive.
    let pickle = matches!(bytes, [0x80, 2..=5, ..]);
    let tar = bytes.get(257..262) == Some(b"ustar");
    (pickle || tar).then(|| {
        "a checkpoint in the form that PyTorch wrote before version 1.6. Convert it with PyTorch: \
         torch.save(torch.load(OLD, map_location='cpu', weights_only=True), NEW)"
            .into()
    })
}

/// The weights in a checkpoint, by name.
pub(crate) fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, String> {
    let archive = Archive::open(bytes)?;
    let folder = archive.folder()?;
    let order = format!("{folder}/byteorder");
    if archive.has(&order) && archive.member(&order)? != b"little" {
        return Err("its values were written on a big-endian machine".into());
    }
    let pickle = Pickle::read(archive.member(&format!("{folder}/data.pkl"))?)?;
    let mut views = BTreeMap::new();
    gather(&pickle, weights(&pickle)?, "", 0, &mut 0, &mut views)?;
    let mut tensors = BTreeMap::new();
    let mut room = bytes.len().saturating_mul(EXPANSION);
    for (name, view) in views {
        let tensor =
            values(&archive, folder, view, &mut room).map_err(|why| format!("tensor `{name}`: {why}"))?;
        tensors.insert(name, tensor);
    }
    Ok(unwrapped(tensors))
}

/// The dictionary of weights in what a checkpoint says.
fn weights(pickle: &Pickle) -> Result<&Value, String> {
    let mut value = &pickle.root;
    for _ in 0..DEPTH {
        let Some(entries) = pickle.dict(value) else {
            return Err(match value {
                Value::Tensor(_) => "a single tensor, no dictionary of them".into(),
                _ => "no dictionary of tensors".into(),
            });
        };
        if entries.iter().any(|(_, v)| matches!(v, Value::Tensor(_))) || entries.is_empty() {
            return Ok(value);
        }
        let named = |name: &&str| {
            let is = |key: &Value| matches!(key, Value::Text(text) if **text == **name);
            entries.iter().find(|(k, v)| is(k) && pickle.dict(v).is_some_and(|inner| !inner.is_empty()))
        };
        let Some((_, inner)) = WEIGHTS.iter().find_map(named) else {
            let keys = entries.iter().take(12).map(|(k, _)| match k {
                Value::Text(text) => pickle::shown(text),
                _ => "one that is no text".into(),
            });
            let keys = keys.collect::<Vec<_>>().join(", ");
            return Err(format!("no weights among its keys {keys}; known: {}", WEIGHTS.join(", ")));
        };
        value = inner;
    }
    Err(format!("its dictionaries stand in each other more than {DEPTH} deep"))
}

/// The tensors of a dictionary, and those of dictionaries in it with their names before a dot.
fn gather<'a>(
    pickle: &'a Pickle,
    dict: &'a Value,
    path: &str,
    depth: usize,
    seen: &mut usize,
    into: &mut BTreeMap<String, &'a View>,
) -> Result<(), String> {
    let Some(entries) = pickle.dict(dict) else { return Ok(()) };
    if depth > DEPTH {
        return Err(format!("its dictionaries stand in each other more than {DEPTH} deep"));
    }
    for (key, value) in entries {
        *seen += 1;
        if *seen > ENTRIES {
            return Err(format!("more than {ENTRIES} entries"));
        }
        let Value::Text(key) = key else { continue };
        if path.len() + key.len() > NAME {
            return Err(format!("a tensor's name of {} bytes", path.len() + key.len()));
        }
        let name = format!("{path}{key}");
        match value {
            Value::Tensor(view) => drop(into.insert(name, view)),
            Value::Container(_) => gather(pickle, value, &format!("{name}."), depth + 1, seen, into)?,
            _ => {}
        }
    }
    Ok(())
}

/// A tensor's values, row-major, gathered by its steps.
fn values(archive: &Archive<'_>, folder: &str, view: &View, room: &mut usize) -> Result<Tensor, String> {
    let (storage, rank) = (&view.storage, view.sizes.len());
    if rank > MAX_RANK {
        return Err(format!("{rank} axes, {MAX_RANK} at most"));
    }
    if view.strides.len() != rank {
        return Err(format!("{rank} sizes and {} steps", view.strides.len()));
    }
    let shape = Shape::new(&view.sizes);
    let count = shape.checked_len().ok_or_else(|| format!("{shape} has too many elements"))?;
    let width = storage.dtype.bytes();
    let needed = count.checked_mul(width).and_then(|n| room.checked_sub(n));
    *room = needed.ok_or_else(|| format!("{shape} is larger than the file bears out; save it contiguous"))?;
    let bytes = archive.member(&format!("{folder}/data/{}", storage.key))?;
    if storage.length.checked_mul(width).is_none_or(|n| n > bytes.len()) {
        return Err(format!(
            "its storage should have {} elements and has {} bytes",
            storage.length,
            bytes.len()
        ));
    }
    // The last element: when it is within the storage, all are.
    let last = view.sizes.iter().zip(&view.strides).try_fold(view.offset, |at, (&n, &step)| {
        n.saturating_sub(1).checked_mul(step).and_then(|way| at.checked_add(way))
    });
    if count > 0 && last.is_none_or(|at| at >= storage.length) {
        return Err(format!("{shape} with steps {:?} reaches beyond its storage", view.strides));
    }
    let strides = shape.strides();
    let contiguous =
        view.sizes.iter().enumerate().all(|(axis, &n)| n == 1 || view.strides[axis] == strides[axis]);
    let place = |index: usize| {
        if contiguous {
            return view.offset + index;
        }
        let along = |axis: usize| index / strides[axis] % view.sizes[axis] * view.strides[axis];
        view.offset + (0..rank).map(along).sum::<usize>()
    };
    macro_rules! read {
        ($t:ty) => {
            (0..count)
                .map(|i| {
                    let mut value = [0; size_of::<$t>()];
                    value.copy_from_slice(&bytes[place(i) * size_of::<$t>()..][..size_of::<$t>()]);
                    <$t>::from_le_bytes(value)
                })
                .collect()
        };
    }
    let data = match storage.dtype {
        DType::F64 => Data::F64(read!(f64)),
        DType::F32 => Data::F32(read!(f32)),
        DType::F16 => Data::F16(read!(f16)),
        DType::BF16 => Data::BF16(read!(bf16)),
        DType::F8 => Data::F8(read!(F8)),
        DType::I64 => Data::I64(read!(i64)),
        DType::I32 => Data::I32(read!(i32)),
        DType::I8 => Data::I8(read!(i8)),
        DType::U8 => Data::U8(read!(u8)),
    };
    Tensor::new(shape, data).map_err(|e| e.to_string())
}

/// Without the names of wrappers, where every tensor has them.
fn unwrapped(mut tensors: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    while let Some(wrapper) =
        WRAPPERS.iter().find(|w| !tensors.is_empty() && tensors.keys().all(|name| name.starts_with(**w)))
    {
        tensors = tensors.into_iter().map(|(name, t)| (name[wrapper.len()..].to_string(), t)).collect();
    }
    tensors
}
