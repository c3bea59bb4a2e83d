//! Random access to bytes: a file read at offsets, or a buffer. Every read is checked against the length before anything is
//! allocated, so a damaged header cannot request more memory than the file could fill.

use crate::error::{Error, Fault, Parsed, Result, damaged};
use std::fs::File;
use std::io::Read;
use std::path::Path;

pub(crate) enum Bytes {
    File { file: File, len: u64 },
    Memory(Vec<u8>),
}

impl Bytes {
    pub fn open(path: &Path) -> Result<Bytes> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let meta = file.metadata().map_err(|e| Error::io(path, e))?;
        if meta.is_dir() {
            let what = format!("{}: a folder, where a file is needed", path.display());
            return Err(Error::Request { what });
        }
        Ok(Bytes::File { file, len: meta.len() })
    }

    pub fn from_file(file: File) -> std::io::Result<Bytes> {
        let len = file.metadata()?.len();
        Ok(Bytes::File { file, len })
    }

    pub fn len(&self) -> u64 {
        match self {
            Bytes::File { len, .. } => *len,
            Bytes::Memory(data) => data.len() as u64,
        }
    }

    pub fn check(&self, offset: u64, count: u64) -> Parsed<()> {
        match offset.checked_add(count) {
            Some(end) if end <= self.len() => Ok(()),
            _ => damaged(format!(
                "{count} bytes at {offset} are needed, and the file has {} bytes",
                self.len()
            )),
        }
    }

    pub fn read_into(&self, offset: u64, out: &mut [u8]) -> Parsed<()> {
        self.check(offset, out.len() as u64)?;
        match self {
            Bytes::File { file, .. } => {
                let _reading = clearshot_timeline::span(clearshot_timeline::Phase::Reading);
                read_exact_at(file, offset, out).map_err(Fault::from)
            }
            Bytes::Memory(data) => {
                out.copy_from_slice(&data[offset as usize..offset as usize + out.len()]);
                Ok(())
            }
        }
    }

    pub fn read(&self, offset: u64, count: u64) -> Parsed<Vec<u8>> {
        self.check(offset, count)?;
        let mut out = vec![0; count as usize];
        self.read_into(offset, &mut out)?;
        Ok(out)
    }

    /// The beginning of the file, as much of `count` bytes as there is.
    pub fn head(&self, count: u64) -> Parsed<Vec<u8>> {
        self.read(0, count.min(self.len()))
    }
}

#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                out = &mut out[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, offset: u64, data: &[u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, data, offset)
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut offset: u64, mut data: &[u8]) -> std::io::Result<()> {
    while !data.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, data, offset)?;
        data = &data[n..];
        offset += n as u64;
    }
    Ok(())
}

/// How much one chunk may decode to: compressed data of any size may fill 64 MiB, and beyond that no more
/// than the best of compressors could have packed into that many bytes.
pub(crate) fn check_expansion(packed: u64, unpacked: u64) -> Parsed<()> {
    const FREE: u64 = 64 << 20;
    const RATIO: u64 = 2000;
    if unpacked <= FREE.max(packed.saturating_mul(RATIO)) {
        return Ok(());
    }
    Err(Fault::Limit(format!("{packed} bytes claim to unpack to {unpacked}")))
}

/// Inflates a gzip member sequence to exactly the bytes that are there, up to `limit`: in memory while it
/// is small, otherwise in a temporary file without a name.
pub(crate) fn gunzip(path: &Path, limit: u64) -> Result<Bytes> {
    const IN_MEMORY: u64 = 32 << 20;
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut stream = flate2::read::MultiGzDecoder::new(std::io::BufReader::new(file)).take(limit);
    let mut data = Vec::new();
    stream.by_ref().take(IN_MEMORY).read_to_end(&mut data).map_err(|e| Error::io(path, e))?;
    if (data.len() as u64) < IN_MEMORY {
        return Ok(Bytes::Memory(data));
    }
    let mut unpacked = || -> std::io::Result<Bytes> {
        let mut temp = tempfile::tempfile()?;
        std::io::Write::write_all(&mut temp, &data)?;
        std::io::copy(&mut stream, &mut temp)?;
        Bytes::from_file(temp)
    };
    unpacked().map_err(|e| Error::io(path, e))
}
