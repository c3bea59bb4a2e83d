//! One Zarr array, version 2 or 3: its metadata, its codecs and its chunks, sharded or not.

use super::blosc;
use super::store::Store;
use crate::bytes::check_expansion;
use crate::dtype::{DType, Order, swap_bytes};
use crate::error::{Fault, Parsed, damaged, instead, unsupported, unsupported_instead};
use crate::grid::{Grid, permute, volume};
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, PartialEq)]
pub enum Packer {
    Gzip,
    Zlib,
    Zstd,
    Lz4,
    Blosc,
    Crc32c,
}

/// From an array to bytes, in the order in which codecs are applied when writing.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// How axes are permuted, one after the other.
    pub transposes: Vec<Vec<usize>>,
    pub big_endian: bool,
    pub packers: Vec<Packer>,
}

#[derive(Clone, Debug)]
pub struct Sharding {
    pub inner: Chain,
    pub index: Chain,
    pub index_at_end: bool,
}

#[derive(Clone, Debug)]
pub struct Array {
    pub path: String,
    pub dtype: DType,
    /// The chunks that are read: the inner ones if there are shards.
    pub grid: Grid,
    pub shard: Option<Vec<usize>>,
    pub chain: Chain,
    pub sharding: Option<Sharding>,
    pub fill: Vec<u8>,
    pub keys: Keys,
    pub names: Vec<Option<String>>,
    pub attributes: Value,
}

/// How a chunk's index becomes a key.
#[derive(Clone, Debug)]
pub struct Keys {
    pub prefix: bool,
    pub separator: char,
}

fn json(data: &[u8], key: &str) -> Parsed<Value> {
    if data.trim_ascii_start().starts_with(b"<") {
        return damaged(format!("{key} is a web page (HTML or XML) and not metadata"));
    }
    serde_json::from_slice(data).map_err(|e| Fault::Damaged(format!("{key}: {e}")))
}

pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_string() } else { format!("{folder}/{name}") }
}

/// The attributes of a group or array, and its version; nothing where there is none.
pub fn attributes(store: &Store, path: &str) -> Parsed<Option<(Value, u8)>> {
    let key = join(path, "zarr.json");
    if let Some(data) = store.get_metadata(&key)? {
        let meta = json(&data, &key)?;
        return Ok(Some((meta.get("attributes").cloned().unwrap_or(Value::Null), 3)));
    }
    let key = join(path, ".zattrs");
    if let Some(data) = store.get_metadata(&key)? {
        return Ok(Some((json(&data, &key)?, 2)));
    }
    let exists = store.get_metadata(&join(path, ".zgroup"))?.is_some()
        || store.get_metadata(&join(path, ".zarray"))?.is_some();
    Ok(exists.then_some((Value::Null, 2)))
}

impl Array {
    pub fn open(store: &Store, path: &str) -> Parsed<Option<Array>> {
        if path.split('/').any(|part| part == "..") || path.starts_with('/') {
            return damaged(format!("an array at {path}"));
        }
        let key = join(path, "zarr.json");
        if let Some(data) = store.get_metadata(&key)? {
            let meta = json(&data, &key)?;
            if meta.get("node_type").and_then(Value::as_str) != Some("array") {
                return Ok(None);
            }
            return Array::version3(path, &meta).map(Some);
        }
        let key = join(path, ".zarray");
        match store.get_metadata(&key)? {
            Some(data) => {
                let mut array = Array::version2(path, &json(&data, &key)?)?;
                if let Some(data) = store.get_metadata(&join(path, ".zattrs"))? {
                    array.attributes = json(&data, ".zattrs")?;
                }
                Ok(Some(array))
            }
            None => Ok(None),
        }
    }

    fn version2(path: &str, meta: &Value) -> Parsed<Array> {
        let name = meta.get("dtype").and_then(Value::as_str).unwrap_or("a structure");
        let (dtype, order) = DType::from_numpy(name)?;
        let shape = lengths(meta, "shape")?;
        let chunk = lengths(meta, "chunks")?;
        if meta.get("filters").is_some_and(|f| f.as_array().is_some_and(|f| !f.is_empty())) {
            return unsupported(format!("filters {}", meta["filters"]));
        }
        let mut chain = Chain { big_endian: order == Order::Big, ..Chain::default() };
        if meta.get("order").and_then(Value::as_str) == Some("F") {
            chain.transposes.push((0..shape.len()).rev().collect());
        }
        if let Some(id) = meta.get("compressor").and_then(|c| c.get("id")) {
            chain.packers.push(packer(id.as_str().unwrap_or(""))?);
        }
        let separator = meta.get("dimension_separator").and_then(Value::as_str).unwrap_or(".");
        Ok(Array {
            path: path.to_string(),
            dtype,
            grid: checked_grid(shape, chunk, dtype)?,
            shard: None,
            chain,
            sharding: None,
            fill: fill_value(meta.get("fill_value"), dtype)?,
            keys: Keys { prefix: false, separator: separator.chars().next().unwrap_or('.') },
            names: Vec::new(),
            attributes: Value::Null,
        })
    }

    pub fn version3(path: &str, meta: &Value) -> Parsed<Array> {
        let name = meta.get("data_type").and_then(Value::as_str).unwrap_or("a structure");
        let dtype = match name {
            "bool" => DType::U8,
            name if name.starts_with("complex") => {
                return unsupported_instead(format!("complex pixels ({name})"), instead::COMPLEX);
            }
            name => match DType::from_name(name) {
                Some(dtype) => dtype,
                None => return unsupported(format!("pixels of type {name}")),
            },
        };
        let shape = lengths(meta, "shape")?;
        let grid = &meta["chunk_grid"];
        if grid.get("name").and_then(Value::as_str) != Some("regular") {
            return unsupported(format!("chunk grid {}", grid["name"]));
        }
        let mut chunk = lengths(&grid["configuration"], "chunk_shape")?;
        let (chain, sharded) = read_chain(&meta["codecs"], shape.len())?;
        let mut shard = None;
        let sharding = match sharded {
            None => None,
            Some(_) if !chain.transposes.is_empty() || !chain.packers.is_empty() => {
                return unsupported("sharding inside other codecs");
            }
            Some(configuration) => {
                let inner = lengths(&configuration, "chunk_shape")?;
                let outer = std::mem::replace(&mut chunk, inner);
                let fits = outer.len() == chunk.len()
                    && chunk.iter().all(|&c| c > 0)
                    && outer.iter().zip(&chunk).all(|(o, c)| o % c == 0);
                if !fits {
                    return damaged(format!("shards of {outer:?} of chunks of {chunk:?}"));
                }
                shard = Some(outer);
                let (inner, nested) = read_chain(&configuration["codecs"], shape.len())?;
                let (index, _) = read_chain(&configuration["index_codecs"], shape.len() + 1)?;
                if nested.is_some() {
                    return unsupported("sharding inside sharding");
                }
                let end = configuration.get("index_location").and_then(Value::as_str) != Some("start");
                Some(Sharding { inner, index, index_at_end: end })
            }
        };
        let encoding = &meta["chunk_key_encoding"];
        let prefix = encoding.get("name").and_then(Value::as_str) != Some("v2");
        let separator =
            encoding["configuration"]["separator"].as_str().unwrap_or(if prefix { "/" } else { "." });
        if meta.get("storage_transformers").is_some_and(|t| t.as_array().is_some_and(|t| !t.is_empty())) {
            return unsupported("storage transformers");
        }
        let names = meta.get("dimension_names").and_then(Value::as_array);
        Ok(Array {
            path: path.to_string(),
            dtype,
            grid: checked_grid(shape, chunk, dtype)?,
            shard,
            chain,
            sharding,
            fill: fill_value(meta.get("fill_value"), dtype)?,
            keys: Keys { prefix, separator: separator.chars().next().unwrap_or('/') },
            names: names.map_or(Vec::new(), |n| n.iter().map(|n| n.as_str().map(str::to_string)).collect()),
            attributes: meta.get("attributes").cloned().unwrap_or(Value::Null),
        })
    }

    pub fn key(&self, index: &[usize]) -> String {
        let parts: Vec<String> = index.iter().map(|i| i.to_string()).collect();
        let joined = parts.join(&self.keys.separator.to_string());
        let name = match (self.keys.prefix, index.is_empty()) {
            (true, true) => "c".to_string(),
            (true, false) => format!("c{}{joined}", self.keys.separator),
            (false, true) => "0".to_string(),
            (false, false) => joined,
        };
        join(&self.path, &name)
    }

    /// A chunk that is not stored.
    pub fn empty_chunk(&self) -> Parsed<Vec<u8>> {
        let count = volume(&self.grid.chunk).unwrap_or(usize::MAX / 16);
        check_expansion(0, (count * self.fill.len()) as u64)?;
        Ok(self.fill.repeat(count))
    }

    /// Bytes that a packed chunk has at most: those of its pixels, and what packers add to what they cannot pack.
    fn most_packed(&self) -> u64 {
        let size = volume(&self.grid.chunk).unwrap_or(usize::MAX / 16) * self.dtype.bytes();
        (size + size / 8 + 65_536) as u64
    }

    pub fn chunk(&self, store: &Store, indices: &IndexCache, index: &[usize]) -> Parsed<Vec<u8>> {
        let (Some(shard), Some(sharding)) = (&self.shard, &self.sharding) else {
            return match store.get(&self.key(index), self.most_packed())? {
                Some(data) => self.chain.decode(data, &self.grid.chunk, self.dtype),
                None => self.empty_chunk(),
            };
        };
        let per: Vec<usize> = shard.iter().zip(&self.grid.chunk).map(|(s, c)| s / c).collect();
        let outer: Vec<usize> = index.iter().zip(&per).map(|(i, p)| i / p).collect();
        let number = index.iter().zip(&per).fold(0, |n, (i, p)| n * p + i % p);
        let key = self.key(&outer);
        let Some(table) = indices.get(&key, || read_index(store, &key, sharding, &per))? else {
            return self.empty_chunk();
        };
        let (offset, length) = (table[number * 2], table[number * 2 + 1]);
        if offset == u64::MAX && length == u64::MAX {
            return self.empty_chunk();
        }
        match store.get_part(&key, Some(offset), length, self.most_packed())? {
            Some(data) => sharding.inner.decode(data, &self.grid.chunk, self.dtype),
            None => self.empty_chunk(),
        }
    }
}

fn read_index(store: &Store, key: &str, sharding: &Sharding, per: &[usize]) -> Parsed<Option<Vec<u64>>> {
    let Some(count) = volume(per).filter(|n| *n < 1 << 24) else {
        return damaged(format!("a shard of {per:?} chunks"));
    };
    let checksum = if sharding.index.packers.contains(&Packer::Crc32c) { 4 } else { 0 };
    let length = (count * 16 + checksum) as u64;
    let start = if sharding.index_at_end { None } else { Some(0) };
    let Some(data) = store.get_part(key, start, length, length)? else { return Ok(None) };
    let shape = [per, &[2]].concat();
    let bytes = sharding.index.decode(data, &shape, DType::U64)?;
    Ok(Some(bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect()))
}

/// The indices of the shards that were read last.
#[derive(Default)]
pub struct IndexCache {
    held: Mutex<HashMap<String, Arc<Slot>>>,
}

/// A shard's index; nothing where the shard is not stored.
type Table = Option<Arc<Vec<u64>>>;

/// A shard's index once it is read.
#[derive(Default)]
struct Slot {
    read: Mutex<Option<Parsed<Table>>>,
    waiting: AtomicUsize,
}

impl IndexCache {
    fn get(&self, key: &str, read: impl FnOnce() -> Parsed<Option<Vec<u64>>>) -> Parsed<Table> {
        let slot = {
            let mut held = self.held.lock().unwrap_or_else(|p| p.into_inner());
            if held.len() >= 256 && !held.contains_key(key) {
                held.clear();
            }
            Arc::clone(held.entry(key.to_string()).or_default())
        };
        // Who comes second waits for the first: an index is read once, and fails once for all who wait for it.
        slot.waiting.fetch_add(1, Ordering::SeqCst);
        let mut held = slot.read.lock().unwrap_or_else(|p| p.into_inner());
        let outcome = match held.get_or_insert_with(|| read().map(|table| table.map(Arc::new))) {
            Ok(table) => Ok(table.clone()),
            Err(fault) => Err(fault.again()),
        };
        let last = slot.waiting.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && outcome.is_err() {
            *held = None;
        }
        outcome
    }
}

fn lengths(meta: &Value, key: &str) -> Parsed<Vec<usize>> {
    let list = meta.get(key).and_then(Value::as_array);
    let numbers = list.and_then(|l| l.iter().map(|n| Some(n.as_u64()? as usize)).collect::<Option<Vec<_>>>());
    match numbers {
        Some(n) if n.len() <= 16 => Ok(n),
        _ => damaged(format!("no {key} in the array's metadata")),
    }
}

fn checked_grid(shape: Vec<usize>, chunk: Vec<usize>, dtype: DType) -> Parsed<Grid> {
    let sensible = shape.len() == chunk.len()
        && !shape.is_empty()
        && chunk.iter().all(|&c| c > 0)
        && volume(&shape).is_some_and(|n| n < 1 << 56)
        && volume(&chunk).is_some_and(|n| n.saturating_mul(dtype.bytes()) < 1 << 34);
    if !sensible {
        return damaged(format!("an array of shape {shape:?} in chunks of {chunk:?}"));
    }
    Ok(Grid::new(shape, chunk))
}

fn fill_value(value: Option<&Value>, dtype: DType) -> Parsed<Vec<u8>> {
    let number = match value {
        None | Some(Value::Null) => 0.0,
        Some(Value::Bool(b)) => f64::from(u8::from(*b)),
        // Whole numbers beyond 2^53 keep all their bits.
        Some(Value::Number(n)) if !dtype.is_float() && n.as_u64().is_some() && dtype.bytes() == 8 => {
            return Ok(n.as_u64().unwrap_or(0).to_ne_bytes().to_vec());
        }
        Some(Value::Number(n)) => n.as_f64().unwrap_or(0.0),
        Some(Value::String(s)) => match s.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            hex if hex.starts_with("0x") => {
                let bits = u64::from_str_radix(&hex[2..], 16).unwrap_or(0);
                let bytes = bits.to_be_bytes()[8 - dtype.bytes()..].to_vec();
                let mut bytes = bytes;
                if Order::NATIVE == Order::Little {
                    bytes.reverse();
                }
                return Ok(bytes);
            }
            other => return damaged(format!("the fill value {other}")),
        },
        Some(other) => return damaged(format!("the fill value {other}")),
    };
    let mut bytes = Vec::new();
    dtype.encode(&[number], &mut bytes);
    Ok(bytes)
}

fn packer(name: &str) -> Parsed<Packer> {
    Ok(match name {
        "gzip" => Packer::Gzip,
        "zlib" | "numcodecs.zlib" => Packer::Zlib,
        "zstd" | "numcodecs.zstd" => Packer::Zstd,
        "lz4" | "numcodecs.lz4" => Packer::Lz4,
        "blosc" | "numcodecs.blosc" => Packer::Blosc,
        "crc32c" => Packer::Crc32c,
        other => return unsupported(format!("codec {other}")),
    })
}

/// The codecs of version 3, and the configuration of sharding where that is one of them.
fn read_chain(codecs: &Value, rank: usize) -> Parsed<(Chain, Option<Value>)> {
    let Some(list) = codecs.as_array() else { return damaged("no codecs in the array's metadata") };
    let mut chain = Chain::default();
    let mut sharding = None;
    for codec in list {
        let name = codec.get("name").or(Some(codec)).and_then(Value::as_str).unwrap_or("");
        let configuration = codec.get("configuration").cloned().unwrap_or(Value::Null);
        match name {
            "bytes" | "endian" => {
                chain.big_endian = configuration.get("endian").and_then(Value::as_str) == Some("big");
            }
            "sharding_indexed" => sharding = Some(configuration),
            "transpose" => {
                let order: Vec<usize> = match configuration.get("order") {
                    Some(Value::String(s)) if s == "F" => (0..rank).rev().collect(),
                    Some(Value::String(s)) if s == "C" => (0..rank).collect(),
                    _ => lengths(&configuration, "order")?,
                };
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if sorted != (0..rank).collect::<Vec<_>>() {
                    return damaged(format!("a transposition {order:?} of {rank} axes"));
                }
                chain.transposes.push(order);
            }
            name => chain.packers.push(packer(name)?),
        }
    }
    Ok((chain, sharding))
}

impl Chain {
    pub fn decode(&self, data: Vec<u8>, chunk: &[usize], dtype: DType) -> Parsed<Vec<u8>> {
        let size = volume(chunk).unwrap_or(usize::MAX / 16) * dtype.bytes();
        let mut data = data;
        for (number, packer) in self.packers.iter().enumerate().rev() {
            // Checksums of inner packers make what comes out a few bytes longer.
            let slack = if number > 0 { size / 8 + 65_536 } else { 0 };
            data = unpack(packer, data, size + slack)?;
        }
        if data.len() != size {
            return damaged(format!("a chunk of {} bytes where {size} are needed", data.len()));
        }
        if self.big_endian != (Order::NATIVE == Order::Big) {
            swap_bytes(&mut data, dtype.bytes());
        }
        if self.transposes.is_empty() {
            return Ok(data);
        }
        let mut shapes = vec![chunk.to_vec()];
        for order in &self.transposes {
            let last = &shapes[shapes.len() - 1];
            shapes.push(order.iter().map(|&a| last[a]).collect());
        }
        for (number, order) in self.transposes.iter().enumerate().rev() {
            let mut inverse = vec![0; order.len()];
            order.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
            data = permute(&data, &shapes[number + 1], &inverse, dtype.bytes());
        }
        Ok(data)
    }
}

fn unpack(packer: &Packer, data: Vec<u8>, limit: usize) -> Parsed<Vec<u8>> {
    check_expansion(data.len() as u64, limit as u64)?;
    let bounded = |stream: &mut dyn Read| -> Parsed<Vec<u8>> {
        let mut out = Vec::new();
        stream.take(limit as u64 + 1).read_to_end(&mut out)?;
        Ok(out)
    };
    match packer {
        Packer::Gzip => bounded(&mut flate2::read::MultiGzDecoder::new(&data[..])),
        Packer::Zlib => bounded(&mut flate2::read::ZlibDecoder::new(&data[..])),
        Packer::Zstd => bounded(&mut zstd::stream::read::Decoder::with_buffer(&data[..])?),
        Packer::Lz4 => {
            let Some((head, body)) = data.split_at_checked(4) else { return damaged("an LZ4 chunk cut off") };
            let size = Order::Little.u32(head) as usize;
            if size > limit {
                return damaged(format!("an LZ4 chunk of {size} bytes"));
            }
            lz4_flex::block::decompress(body, size).map_err(|e| Fault::Damaged(e.to_string()))
        }
        Packer::Blosc => blosc::decode(&data),
        Packer::Crc32c => {
            let Some(at) = data.len().checked_sub(4) else { return damaged("a chunk without its checksum") };
            let mut data = data;
            let sum = data.split_off(at);
            if crc32c::crc32c(&data) != Order::Little.u32(&sum) {
                return damaged("a chunk whose checksum does not hold");
            }
            Ok(data)
        }
    }
}
