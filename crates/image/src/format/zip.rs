//! Zip archives as stores of members: the directory is read once, members are read at their offsets by any number of
//! threads. Stored and deflated members, Zip64; written members are stored.

use crate::bytes::{Bytes, check_expansion};
use crate::error::{Fault, Parsed, damaged, unsupported};
use clearshot_tensor::zip::{Member, Reader};
use std::collections::HashMap;
use std::io::Read;

pub(crate) struct Zip {
    bytes: Bytes,
    members: HashMap<String, Member>,
    /// In the order of the archive.
    pub names: Vec<String>,
}

impl Zip {
    pub fn open(bytes: Bytes) -> Parsed<Zip> {
        let read = |at: u64, count: u64| bytes.read(at, count);
        let found = Reader { len: bytes.len(), read: &read, wrong: Fault::Damaged }.members()?;
        let names = found.iter().map(|(name, _)| name.clone()).collect();
        Ok(Zip { bytes, members: found.into_iter().collect(), names })
    }

    /// Where a member's data begin.
    fn data(&self, name: &str, member: &Member) -> Parsed<u64> {
        let read = |at: u64, count: u64| self.bytes.read(at, count);
        Reader { len: self.bytes.len(), read: &read, wrong: Fault::Damaged }.data(name, member)
    }

    /// A member that is stored: its place in the archive, so that parts of it can be read.
    pub fn stored(&self, name: &str) -> Parsed<Option<(u64, u64)>> {
        match self.members.get(name) {
            Some(m) if m.method == 0 => Ok(Some((self.data(name, m)?, m.packed))),
            _ => Ok(None),
        }
    }

    /// Bytes of a member once it is unpacked, as the directory says.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.members.get(name).map(|m| m.unpacked)
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn read(&self, name: &str) -> Parsed<Option<Vec<u8>>> {
        let Some(member) = self.members.get(name) else { return Ok(None) };
        let at = self.data(name, member)?;
        match member.method {
            0 => self.bytes.read(at, member.packed).map(Some),
            8 => {
                check_expansion(member.packed, member.unpacked)?;
                let packed = self.bytes.read(at, member.packed)?;
                let mut out = Vec::new();
                flate2::read::DeflateDecoder::new(&packed[..]).take(member.unpacked).read_to_end(&mut out)?;
                if out.len() as u64 != member.unpacked {
                    return damaged(format!("member {name} is shorter than it should be"));
                }
                Ok(Some(out))
            }
            other => unsupported(format!("zip method {other} of member {name}")),
        }
    }
}

/// Writes stored members to a stream, always with 64-bit sizes where these are needed.
pub(crate) struct ZipWriter<W> {
    out: W,
    at: u64,
    directory: Vec<u8>,
    count: u64,
}

impl<W: std::io::Write> ZipWriter<W> {
    pub fn new(out: W) -> ZipWriter<W> {
        ZipWriter { out, at: 0, directory: Vec::new(), count: 0 }
    }

    fn put(&mut self, data: &[u8]) -> std::io::Result<()> {
        self.at += data.len() as u64;
        self.out.write_all(data)
    }

    /// Adds a member of `size` bytes with the given checksum, read from `data`.
    pub fn add(&mut self, name: &str, size: u64, crc: u32, data: &mut dyn Read) -> std::io::Result<()> {
        let header = self.begin(name, size, crc)?;
        let copied = std::io::copy(data, &mut self.out)?;
        if copied != size {
            let why = format!("{name} had {size} bytes and has {copied} now");
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, why));
        }
        self.end(name, size, crc, header);
        Ok(())
    }

    /// Adds a member whose data are left out, to find out how long an archive is.
    pub fn add_without_data(&mut self, name: &str, size: u64) -> std::io::Result<()> {
        let header = self.begin(name, size, 0)?;
        self.end(name, size, 0, header);
        Ok(())
    }

    /// Writes what stands before a member's data, and gives its place.
    fn begin(&mut self, name: &str, size: u64, crc: u32) -> std::io::Result<u64> {
        let (header, large) = (self.at, is_large(size));
        let mut local = b"PK\x03\x04".to_vec();
        local.extend(fields(name, size, crc, if large { 20 } else { 0 }));
        local.extend_from_slice(name.as_bytes());
        if large {
            local.extend_from_slice(&[1, 0, 16, 0]);
            local.extend_from_slice(&size.to_le_bytes());
            local.extend_from_slice(&size.to_le_bytes());
        }
        self.put(&local)?;
        Ok(header)
    }

    /// Notes a member, whose data are written, in the directory.
    fn end(&mut self, name: &str, size: u64, crc: u32, header: u64) {
        self.at += size;
        let (large, far) = (is_large(size), is_large(header));
        let extra = if large || far { 4 + if large { 16 } else { 0 } + if far { 8 } else { 0 } } else { 0 };
        self.directory.extend_from_slice(b"PK\x01\x02\x2d\x03");
        self.directory.extend(fields(name, size, crc, extra));
        self.directory.extend_from_slice(&[0; 6]);
        self.directory.extend_from_slice(&(0o100_644u32 << 16).to_le_bytes());
        self.directory.extend_from_slice(&short(header));
        self.directory.extend_from_slice(name.as_bytes());
        if extra > 0 {
            self.directory.extend_from_slice(&[1, 0]);
            self.directory.extend_from_slice(&(extra - 4).to_le_bytes());
            if large {
                self.directory.extend_from_slice(&size.to_le_bytes());
                self.directory.extend_from_slice(&size.to_le_bytes());
            }
            if far {
                self.directory.extend_from_slice(&header.to_le_bytes());
            }
        }
        self.count += 1;
    }

    /// Writes the directory, and gives the bytes of the whole archive.
    pub fn finish(mut self) -> std::io::Result<u64> {
        let (start, size, count) = (self.at, self.directory.len() as u64, self.count);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        if is_large(start) || is_large(size) || count >= 0xFFFF {
            let at = self.at;
            let mut record = b"PK\x06\x06".to_vec();
            record.extend_from_slice(&44u64.to_le_bytes());
            record.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            for v in [count, count, size, start] {
                record.extend_from_slice(&v.to_le_bytes());
            }
            record.extend_from_slice(b"PK\x06\x07\0\0\0\0");
            record.extend_from_slice(&at.to_le_bytes());
            record.extend_from_slice(&1u32.to_le_bytes());
            self.put(&record)?;
        }
        let n = (u16::try_from(count).unwrap_or(u16::MAX)).to_le_bytes();
        let end = [b"PK\x05\x06\0\0\0\0".as_slice(), &n, &n, &short(size), &short(start), &[0, 0]].concat();
        self.put(&end)?;
        self.out.flush()?;
        Ok(self.at)
    }
}

/// Whether a number needs 64 bits.
fn is_large(number: u64) -> bool {
    number >= u64::from(u32::MAX)
}

/// A number in 32 bits; all of them are set where it stands elsewhere in 64.
fn short(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

/// What a member's header and its row of the directory have in common.
fn fields(name: &str, size: u64, crc: u32, extra: u16) -> Vec<u8> {
    let mut f = Vec::new();
    // Names in UTF-8; stored; the first day of the format's calendar.
    for v in [45u16, 0x800, 0, 0, 0x21] {
        f.extend_from_slice(&v.to_le_bytes());
    }
    f.extend_from_slice(&crc.to_le_bytes());
    f.extend_from_slice(&short(size));
    f.extend_from_slice(&short(size));
    f.extend_from_slice(&(name.len() as u16).to_le_bytes());
    f.extend_from_slice(&extra.to_le_bytes());
    f
}

/// The checksum that a zip member carries, of a whole stream.
pub(crate) fn checksum(data: &mut dyn Read) -> std::io::Result<(u32, u64)> {
    let mut crc = flate2::Crc::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match data.read(&mut buffer)? {
            0 => return Ok((crc.sum(), size)),
            n => {
                crc.update(&buffer[..n]);
                size += n as u64;
            }
        }
    }
}
