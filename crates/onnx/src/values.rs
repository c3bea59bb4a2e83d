//! The values of a file's tensors: in the message itself, in any of ONNX's forms, or in an external file.

use crate::error::ReadError;
use crate::file::OnnxTensor;
use clearshot_tensor::{Data, MAX_RANK, Shape, Tensor};
use half::{bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

/// ONNX's numbers of element types.
pub(crate) mod element {
    pub const FLOAT: i64 = 1;
    pub const UINT8: i64 = 2;
    pub const INT8: i64 = 3;
    pub const INT32: i64 = 6;
    pub const INT64: i64 = 7;
    pub const BOOL: i64 = 9;
    pub const FLOAT16: i64 = 10;
    pub const DOUBLE: i64 = 11;
    pub const BFLOAT16: i64 = 16;
}

/// A type's name, for messages.
pub(crate) fn element_name(element: i64) -> String {
    const NAMES: [&str; 17] = [
        "undefined",
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
    ];
    usize::try_from(element)
        .ok()
        .and_then(|i| NAMES.get(i))
        .map_or(format!("type {element}"), |n| n.to_string())
}

/// Bytes of an element, for the types that are read.
fn width(kind: i64) -> Option<usize> {
    Some(match kind {
        element::UINT8 | element::INT8 | element::BOOL => 1,
        element::FLOAT16 | element::BFLOAT16 => 2,
        element::FLOAT | element::INT32 => 4,
        element::INT64 | element::DOUBLE => 8,
        _ => return None,
    })
}

/// The shape that a tensor claims.
pub(crate) fn shape(name: &str, dims: &[i64]) -> Result<Shape, ReadError> {
    let wrong = |reason: String| ReadError::Tensor { name: name.into(), reason };
    if dims.len() > MAX_RANK {
        return Err(wrong(format!("{} axes, {MAX_RANK} at most", dims.len())));
    }
    let sizes = dims.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<_>>>();
    let shape = sizes.map(|s| Shape::new(&s)).filter(|s| s.checked_len().is_some());
    shape.ok_or_else(|| wrong(format!("impossible sizes {dims:?}")))
}

/// A tensor's values; bool becomes u8. `folder` is where files beside the model may lie; none forbids them.
///
/// # Errors
/// If the type is not read, or there are not exactly as many values as the sizes say.
pub fn tensor(t: &OnnxTensor<'_>, folder: Option<&Path>) -> Result<Tensor, ReadError> {
    let wrong = |reason: String| ReadError::Tensor { name: t.name.into(), reason };
    let shape = shape(t.name, &t.dims)?;
    let len = shape.len();
    let Some(width) = width(t.element) else {
        return Err(wrong(format!("values of {} are not read", element_name(t.element))));
    };
    let bytes = len.checked_mul(width).ok_or_else(|| wrong("too many values".into()))?;
    let data = if t.is_external {
        of_bytes(t.element, &external(t, bytes, folder).map_err(wrong)?)
    } else if let Some(raw) = t.raw {
        if raw.len() != bytes {
            return Err(wrong(format!(
                "{} bytes where {shape} of {} needs {bytes}",
                raw.len(),
                element_name(t.element)
            )));
        }
        of_bytes(t.element, raw)
    } else {
        of_lists(t)
    };
    let got = data.len();
    Tensor::new(shape, data).map_err(|_| wrong(format!("{got} values where {shape} has {len}")))
}

fn of_bytes(kind: i64, raw: &[u8]) -> Data {
    fn each<T, const N: usize>(raw: &[u8], of: fn([u8; N]) -> T) -> Vec<T> {
        raw.as_chunks::<N>().0.iter().map(|b| of(*b)).collect()
    }
    match kind {
        element::FLOAT => Data::F32(each(raw, f32::from_le_bytes)),
        element::DOUBLE => Data::F64(each(raw, f64::from_le_bytes)),
        element::FLOAT16 => Data::F16(each(raw, f16::from_le_bytes)),
        element::BFLOAT16 => Data::BF16(each(raw, bf16::from_le_bytes)),
        element::INT64 => Data::I64(each(raw, i64::from_le_bytes)),
        element::INT32 => Data::I32(each(raw, i32::from_le_bytes)),
        element::INT8 => Data::I8(each(raw, i8::from_le_bytes)),
        _ => Data::U8(raw.to_vec()),
    }
}

/// From the typed lists of the message; small types are kept as whole numbers there, 16-bit floats as their bits.
fn of_lists(t: &OnnxTensor<'_>) -> Data {
    match t.element {
        element::FLOAT => Data::F32(t.floats.clone()),
        element::DOUBLE => Data::F64(t.doubles.clone()),
        element::FLOAT16 => Data::F16(t.ints.iter().map(|&v| f16::from_bits(v as u16)).collect()),
        element::BFLOAT16 => Data::BF16(t.ints.iter().map(|&v| bf16::from_bits(v as u16)).collect()),
        element::INT64 => Data::I64(t.ints.clone()),
        element::INT32 => Data::I32(t.ints.iter().map(|&v| v as i32).collect()),
        element::INT8 => Data::I8(t.ints.iter().map(|&v| v as i8).collect()),
        _ => Data::U8(t.ints.iter().map(|&v| v as u8).collect()),
    }
}

/// The bytes of a tensor in a file beside the model.
fn external(t: &OnnxTensor<'_>, bytes: usize, folder: Option<&Path>) -> Result<Vec<u8>, String> {
    let entry = |key: &str| t.external.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let location = entry("location").ok_or("its values are in another file, which is not named")?;
    let folder =
        folder.ok_or_else(|| format!("its values are in the file `{location}`, which is not at hand"))?;
    let number = |key: &str, default: usize| match entry(key) {
        None => Ok(default),
        Some(text) => text.parse::<usize>().map_err(|_| format!("{key} of its values is `{text}`")),
    };
    let (offset, length) = (number("offset", 0)?, number("length", bytes)?);
    if length != bytes {
        return Err(format!("{length} bytes in `{location}` where its sizes need {bytes}"));
    }
    let path = inside(folder, location)?;
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = File::open(&path).map_err(failed)?;
    let there = file.metadata().map_err(failed)?.len();
    let end = (offset as u64).checked_add(bytes as u64);
    if end.is_none_or(|end| end > there) {
        return Err(format!(
            "{}: has {there} bytes, and bytes {offset} to {} are wanted",
            path.display(),
            offset.saturating_add(bytes)
        ));
    }
    file.seek(SeekFrom::Start(offset as u64)).map_err(failed)?;
    let mut values = vec![0; bytes];
    file.read_exact(&mut values).map_err(failed)?;
    Ok(values)
}

/// A file in the model's folder, by a path that does not leave it, not even by a link.
pub(crate) fn inside(folder: &Path, location: &str) -> Result<PathBuf, String> {
    let outside = || format!("`{location}` is not in the model's folder");
    let relative = Path::new(location);
    if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let real = |p: &Path| p.canonicalize().map_err(|e| format!("{}: {e}", p.display()));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (folder, path) = (real(folder)?, real(&folder.join(relative))?);
    match path.starts_with(&folder) {
        false => Err(outside()),
        // A pipe would be waited for.
        true if !path.is_file() => Err(format!("`{location}` is not a file")),
        true => Ok(path),
    }
}
