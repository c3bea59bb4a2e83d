//! Zip archives as stores of members: the directory is read once, members are read at their places by any
//! number of threads. Stored and deflated members, Zip64; written members are stored.

use crate::bytes::{Bytes, Cursor, check_expansion};
use crate::dtype::Order;
use crate::error::{Parsed, damaged, unsupported};
use std::collections::HashMap;
use std::io::Read;

const LE: Order = Order::Little;

struct Member {
    header: u64,
    packed: u64,
    unpacked: u64,
    method: u16,
}

pub(crate) struct Zip {
    bytes: Bytes,
    members: HashMap<String, Member>,
    /// In the order of the archive.
    pub names: Vec<String>,
}

impl Zip {
    pub fn open(bytes: Bytes) -> Parsed<Zip> {
        let tail_len = bytes.len().min(65_557);
        let base = bytes.len() - tail_len;
        let tail = bytes.read(base, tail_len)?;
        let Some(end) = tail.windows(4).rposition(|w| w == b"PK\x05\x06").filter(|e| e + 22 <= tail.len())
        else {
            return damaged("no directory of a zip archive");
        };
        let field = &tail[end..];
        let mut size = u64::from(LE.u32(&field[12..]));
        let mut start = u64::from(LE.u32(&field[16..]));
        // The locator of the 64-bit directory stands right before.
        if end >= 20 && &tail[end - 20..end - 16] == b"PK\x06\x07" {
            let at = LE.u64(&tail[end - 12..]);
            let record = bytes.read(at, 56)?;
            if &record[..4] != b"PK\x06\x06" {
                return damaged("no 64-bit directory where the archive says");
            }
            size = LE.u64(&record[40..]);
            start = LE.u64(&record[48..]);
        }
        let directory = bytes.read(start, size)?;
        let mut zip = Zip { bytes, members: HashMap::new(), names: Vec::new() };
        let mut cursor = Cursor::new(&directory);
        while cursor.left() >= 46 {
            let entry = cursor.take(46)?;
            if &entry[..4] != b"PK\x01\x02" {
                return damaged("a damaged zip directory");
            }
            let lengths = [28, 30, 32].map(|at| usize::from(LE.u16(&entry[at..])));
            let name = String::from_utf8_lossy(cursor.take(lengths[0])?).into_owned();
            let extra = cursor.take(lengths[1])?;
            cursor.take(lengths[2])?;
            if LE.u16(&entry[8..]) & 1 == 1 {
                return unsupported(format!("the encrypted member {name}"));
            }
            let mut member = Member {
                header: u64::from(LE.u32(&entry[42..])),
                packed: u64::from(LE.u32(&entry[20..])),
                unpacked: u64::from(LE.u32(&entry[24..])),
                method: LE.u16(&entry[10..]),
            };
            read_extra(extra, &mut member)?;
            zip.names.push(name.clone());
            zip.members.insert(name, member);
        }
        Ok(zip)
    }

    /// Where a member's data begin.
    fn data(&self, member: &Member) -> Parsed<u64> {
        let local = self.bytes.read(member.header, 30)?;
        if &local[..4] != b"PK\x03\x04" {
            return damaged("a zip member is not where the directory says");
        }
        let skip = 30 + u64::from(LE.u16(&local[26..])) + u64::from(LE.u16(&local[28..]));
        Ok(member.header + skip)
    }

    /// A member that is stored: its place in the archive, so that parts of it can be read.
    pub fn stored(&self, name: &str) -> Parsed<Option<(u64, u64)>> {
        match self.members.get(name) {
            Some(m) if m.method == 0 => Ok(Some((self.data(m)?, m.packed))),
            _ => Ok(None),
        }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn read(&self, name: &str) -> Parsed<Option<Vec<u8>>> {
        let Some(member) = self.members.get(name) else { return Ok(None) };
        let at = self.data(member)?;
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

/// The 64-bit sizes of an entry, where the 32-bit ones are saturated.
fn read_extra(extra: &[u8], member: &mut Member) -> Parsed<()> {
    let mut cursor = Cursor::new(extra);
    while cursor.left() >= 4 {
        let head = cursor.take(4)?;
        let body = cursor.take(usize::from(LE.u16(&head[2..])))?;
        if LE.u16(head) != 1 {
            continue;
        }
        let mut fields = Cursor::new(body);
        for value in [&mut member.unpacked, &mut member.packed, &mut member.header] {
            if *value == u64::from(u32::MAX) {
                *value = LE.u64(fields.take(8)?);
            }
        }
    }
    Ok(())
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
        let header = self.at;
        let large = size >= u64::from(u32::MAX);
        let short = |v: u64| u32::try_from(v).unwrap_or(u32::MAX).to_le_bytes();
        let fields = |extra: u16| {
            let mut f = Vec::new();
            // Names in UTF-8; stored; the first day of the format's calendar.
            for v in [45u16, 0x800, 0, 0, 0x21] {
                f.extend_from_slice(&v.to_le_bytes());
            }
            f.extend_from_slice(&crc.to_le_bytes());
            f.extend_from_slice(&if large { u32::MAX.to_le_bytes() } else { short(size) });
            f.extend_from_slice(&if large { u32::MAX.to_le_bytes() } else { short(size) });
            f.extend_from_slice(&(name.len() as u16).to_le_bytes());
            f.extend_from_slice(&extra.to_le_bytes());
            f
        };
        let mut local = b"PK\x03\x04".to_vec();
        local.extend(fields(if large { 20 } else { 0 }));
        local.extend_from_slice(name.as_bytes());
        if large {
            local.extend_from_slice(&[1, 0, 16, 0]);
            local.extend_from_slice(&size.to_le_bytes());
            local.extend_from_slice(&size.to_le_bytes());
        }
        self.put(&local)?;
        self.at += std::io::copy(data, &mut self.out)?;
        let far = header >= u64::from(u32::MAX);
        let extra = if large || far { 4 + if large { 16 } else { 0 } + if far { 8 } else { 0 } } else { 0 };
        self.directory.extend_from_slice(b"PK\x01\x02\x2d\x03");
        self.directory.extend(fields(extra));
        self.directory.extend_from_slice(&[0; 6]);
        self.directory.extend_from_slice(&(0o100_644u32 << 16).to_le_bytes());
        self.directory.extend_from_slice(&if far { u32::MAX.to_le_bytes() } else { short(header) });
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
        Ok(())
    }

    pub fn finish(mut self) -> std::io::Result<()> {
        let (start, size, count) = (self.at, self.directory.len() as u64, self.count);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        let limit = u64::from(u32::MAX);
        if start >= limit || size >= limit || count >= 0xFFFF {
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
        let short = |v: u64| u32::try_from(v).unwrap_or(u32::MAX).to_le_bytes();
        let n = (u16::try_from(count).unwrap_or(u16::MAX)).to_le_bytes();
        let end = [b"PK\x05\x06\0\0\0\0".as_slice(), &n, &n, &short(size), &short(start), &[0, 0]].concat();
        self.put(&end)?;
        self.out.flush()
    }
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
