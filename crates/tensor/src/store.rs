//! Safetensors files: named tensors with a string table. PyTorch checkpoints are read too, as tensors without strings.
//!
//! Files are not trusted: the lengths and offsets of the header are checked against the available bytes before anything is
//! allocated. A file is read tensor by tensor, so that only the memory of the tensors is needed. Writing goes to a
//! temporary file beside the target that is renamed when complete, so that a name always refers to a complete file.

use crate::{DType, Data, F8, Shape, Tensor, torch};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Errors of a file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: not a safetensors file, or a damaged one: {reason}", path.display())]
    Format { path: PathBuf, reason: String },
    #[error("{}: a PyTorch checkpoint that is not read: {reason}", path.display())]
    Checkpoint { path: PathBuf, reason: String },
    #[error(
        "{}: tried as a PyTorch checkpoint, as its name says, and it is none (torch.save writes a zip archive; this \
         begins with {begins}); tried as a safetensors file, and it is none either: {reason}",
        path.display()
    )]
    Neither { path: PathBuf, begins: String, reason: String },
    #[error("{}: tensor `{name}`: {reason}", path.display())]
    Tensor { path: PathBuf, name: String, reason: String },
}

/// Tensors by name, and strings by name.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub tensors: BTreeMap<String, Tensor>,
    pub metadata: BTreeMap<String, String>,
}

impl Store {
    /// # Errors
    /// If the file cannot be read, is neither safetensors nor a checkpoint of `torch.save`, or holds a tensor that
    /// this project has no type or rank for.
    pub fn read(path: &Path) -> Result<Store, StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let mut file = std::fs::File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = Vec::new();
        (&mut file).take(size_of::<u64>() as u64).read_to_end(&mut head).map_err(io)?;
        if !torch::is_archive(&head)
            && let Ok(header) = header_length(&head, length)
        {
            return Store::tensor_by_tensor(&mut file, header, length, path);
        }
        file.read_to_end(&mut head).map_err(io)?;
        Store::parse(&head, path)
    }

    /// Reads from bytes; `path` is for messages.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Store, StoreError> {
        let checkpoint = |reason| StoreError::Checkpoint { path: path.into(), reason };
        if torch::is_archive(bytes) {
            let tensors = torch::parse(bytes).map_err(checkpoint)?;
            return Ok(Store { tensors, metadata: BTreeMap::new() });
        }
        let length = bytes.len() as u64;
        let header = header_length(bytes, length)
            .map_err(|why| torch::legacy(bytes).map_or_else(|| no_store(path, bytes, why), checkpoint))?;
        Store::tensor_by_tensor(&mut &bytes[size_of::<u64>()..], header, length, path)
    }

    /// Reads what lies behind a file's first eight bytes, which say how long its header is.
    fn tensor_by_tensor(
        file: &mut impl Read,
        header: usize,
        length: u64,
        path: &Path,
    ) -> Result<Store, StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let mut text = vec![0; header];
        file.read_exact(&mut text).map_err(io)?;
        let format = |reason: String| no_store(path, &(header as u64).to_le_bytes(), reason);
        let header: Metadata = serde_json::from_slice(&text).map_err(|e| format(e.to_string()))?;
        let given = length - (size_of::<u64>() + text.len()) as u64;
        if header.data_len() as u64 != given {
            return Err(format(format!(
                "{given} bytes of tensors where its header has {}",
                header.data_len()
            )));
        }
        let mut tensors = BTreeMap::new();
        // Tensors follow each other without gaps in the order of their offsets; the header was refused otherwise.
        for name in header.offset_keys() {
            let Some(info) = header.info(&name) else { continue };
            let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
            file.read_exact(&mut bytes).map_err(io)?;
            let view = TensorView::new(info.dtype, info.shape.clone(), &bytes);
            let tensor = view.map_err(|e| e.to_string()).and_then(|view| from_view(&view));
            let wrong = |reason| StoreError::Tensor { path: path.into(), name: name.clone(), reason };
            let tensor = tensor.map_err(wrong)?;
            tensors.insert(name, tensor);
        }
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Store { tensors, metadata })
    }

    /// Writes the file whole or not at all.
    ///
    /// # Errors
    /// If the folder cannot be written to or the disk is full; an existing file is then untouched.
    pub fn write(&self, path: &Path) -> Result<(), StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let bytes: Vec<(&String, Vec<u8>)> = self.tensors.iter().map(|(k, t)| (k, to_bytes(t))).collect();
        let views: Vec<(&String, TensorView<'_>)> = bytes
            .iter()
            .map(|(name, bytes)| {
                let t = &self.tensors[*name];
                let view = TensorView::new(to_dtype(t.dtype()), t.shape().to_vec(), bytes);
                (*name, view.expect("a tensor's bytes fit its shape"))
            })
            .collect();
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone().into_iter().collect());
        let mut whole = safetensors::serialize(views, metadata)
            .map_err(|e| StoreError::Format { path: path.into(), reason: e.to_string() })?;
        order_strings(&mut whole, &self.metadata);
        write_whole(path, &whole).map_err(io)
    }
}

/// Puts a file's strings in the order of their names, so that equal stores are equal files. The library writes them, first in the
/// header, in the order of a hash table, which is another one every time.
fn order_strings(file: &mut [u8], strings: &BTreeMap<String, String>) {
    const BEFORE: &[u8] = br#"{"__metadata__":"#;
    let Ok(ordered) = serde_json::to_vec(strings) else { return };
    let header = &mut file[size_of::<u64>()..];
    if header.starts_with(BEFORE) {
        header[BEFORE.len()..][..ordered.len()].copy_from_slice(&ordered);
    }
}

/// Names that `torch.save` is usually given.
fn is_named_as_checkpoint(path: &Path) -> bool {
    let is = |name: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(name));
    ["pth", "pt", "bin", "ckpt"].into_iter().any(is)
}

/// The message for an unsupported file that begins with these bytes.
fn no_store(path: &Path, head: &[u8], reason: String) -> StoreError {
    match is_named_as_checkpoint(path) {
        true => StoreError::Neither { path: path.into(), begins: beginning(head), reason },
        false => StoreError::Format { path: path.into(), reason },
    }
}

/// The first bytes of a file, for a message.
fn beginning(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing".into();
    }
    let shown: Vec<String> = bytes.iter().take(4).map(|b| format!("{b:02x}")).collect();
    format!("the bytes {}", shown.join(" "))
}

/// Writes `bytes` beside `path` and renames. Of several that write one path at a time, one is whole there in the end.
///
/// # Errors
/// As the file system says; the file beside it is removed then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}-{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let beside = PathBuf::from(beside);
    let attempt = (|| {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    })();
    if attempt.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    attempt
}

/// Bytes that a header may have, as the format says.
const MOST_HEADER: u64 = 100_000_000;

/// The first eight bytes claim the header's length: nothing is allocated on a claim that a file of this length
/// does not bear out.
fn header_length(head: &[u8], length: u64) -> Result<usize, String> {
    let Some(claim) = head.first_chunk::<8>() else {
        return Err(format!("{length} bytes, shorter than the length of a header"));
    };
    let claim = u64::from_le_bytes(*claim);
    if claim > length - 8 {
        return Err(format!("its header claims {claim} bytes of a file of {length}"));
    }
    if claim > MOST_HEADER {
        return Err(format!("its header claims {claim} bytes; {MOST_HEADER} are the most"));
    }
    Ok(claim as usize)
}

fn to_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F8 => Dtype::F8_E4M3,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
    }
}

fn from_view(view: &TensorView<'_>) -> Result<Tensor, String> {
    if view.shape().len() > crate::MAX_RANK {
        return Err(format!("{} axes, {} at most", view.shape().len(), crate::MAX_RANK));
    }
    let b = view.data();
    macro_rules! read {
        ($t:ty) => {
            b.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|c| <$t>::from_le_bytes(*c)).collect()
        };
    }
    let data = match view.dtype() {
        Dtype::F64 => Data::F64(read!(f64)),
        Dtype::F32 => Data::F32(read!(f32)),
        Dtype::F16 => Data::F16(read!(f16)),
        Dtype::BF16 => Data::BF16(read!(bf16)),
        Dtype::F8_E4M3 => Data::F8(read!(F8)),
        Dtype::I64 => Data::I64(read!(i64)),
        Dtype::I32 => Data::I32(read!(i32)),
        Dtype::I8 => Data::I8(read!(i8)),
        Dtype::U8 => Data::U8(b.to_vec()),
        other => return Err(format!("elements of type {other:?} are not supported")),
    };
    Tensor::new(Shape::new(view.shape()), data).map_err(|e| e.to_string())
}

fn to_bytes(tensor: &Tensor) -> Vec<u8> {
    macro_rules! write {
        ($v:expr) => {
            $v.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
    }
    match tensor.data() {
        Data::F64(v) => write!(v),
        Data::F32(v) => write!(v),
        Data::F16(v) => write!(v),
        Data::BF16(v) => write!(v),
        Data::F8(v) => write!(v),
        Data::I64(v) => write!(v),
        Data::I32(v) => write!(v),
        Data::I8(v) => write!(v),
        Data::U8(v) => v.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Store {
        let mut store = Store::default();
        store.tensors.insert("a.weight".into(), Tensor::f32([2, 3], vec![1.0, -2.5, 3.0, 0.0, 5.0, 6.0]));
        store.tensors.insert("t".into(), Tensor::i32(Shape::SCALAR, vec![-7]));
        for (name, text) in [("config", "{\"x\": 1}"), ("about", "\u{b5}m"), ("hash", "0"), ("task", "a\nb")]
        {
            store.metadata.insert(name.into(), text.into());
        }
        store
    }

    #[test]
    fn equal_stores_are_equal_files() {
        let path = std::env::temp_dir().join(format!("clearshot-equal-{}.safetensors", std::process::id()));
        let written = || {
            sample().write(&path).unwrap();
            std::fs::read(&path).unwrap()
        };
        let first = written();
        assert!((0..20).all(|_| written() == first));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        let dir = std::env::temp_dir().join(format!("clearshot-store-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.safetensors");
        sample().write(&path).unwrap();
        let back = Store::read(&path).unwrap();
        assert_eq!((back.tensors, back.metadata), (sample().tensors, sample().metadata));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside the file");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn writers_of_one_path_leave_one_whole_file() {
        let dir = std::env::temp_dir().join(format!("clearshot-whole-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x");
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let path = &path;
                s.spawn(move || (0..20).for_each(|_| write_whole(path, &[t; 5000]).unwrap()));
            }
        });
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() == 5000 && bytes.iter().all(|b| *b == bytes[0]));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing is left beside the file");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// The message names what was tried if the file name implies a format.
    #[test]
    fn damaged_checkpoints_are_reported_on_resuming() {
        for name in ["model.pth", "Epoch_3.PT", "diffusion_pytorch_model.bin", "last.ckpt"] {
            for junk in [&b""[..], b"no", b"hello, this is text and no weights", &[0; 4096]] {
                let text = Store::parse(junk, Path::new(name)).unwrap_err().to_string();
                assert!(text.contains(name) && text.contains("PyTorch checkpoint"), "{text}");
                assert!(text.contains("torch.save") && text.contains("safetensors"), "{text}");
            }
        }
        let text = Store::parse(b"hello, this is text", Path::new("a.safetensors")).unwrap_err().to_string();
        assert!(!text.contains("PyTorch"), "{text}");
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let path = Path::new("weights.safetensors");
        let text = |bytes: &[u8]| Store::parse(bytes, path).unwrap_err().to_string();
        assert!(text(&[1, 2]).contains("weights.safetensors"));
        assert!(text(&[0xff; 64]).contains("claims"));
        let mut huge = (1u64 << 40).to_le_bytes().to_vec();
        huge.extend([b'{'; 100]);
        assert!(text(&huge).contains("1099511627776"));
        let header = br#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#;
        let mut overflow = (header.len() as u64).to_le_bytes().to_vec();
        overflow.extend(header);
        overflow.extend([0; 8]);
        assert!(text(&overflow).contains("damaged"));
    }
}
