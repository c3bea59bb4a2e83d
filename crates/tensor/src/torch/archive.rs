//! The zip archive that `torch.save` writes: members are stored, never compressed, and their directory stands at the
//! end. Whatever the directory claims is checked against the bytes that are there.

use std::cell::Cell;
use std::collections::HashMap;

struct Member<'a> {
    data: &'a [u8],
    checksum: u32,
    checked: Cell<bool>,
}

pub(super) struct Archive<'a> {
    members: HashMap<&'a str, Member<'a>>,
}

/// A little-endian number of `N` bytes at a place.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64, String> {
    let found = at.checked_add(N).and_then(|end| bytes.get(at..end));
    let found = found.ok_or("the archive's directory ends early")?;
    Ok(found.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

fn slice(bytes: &[u8], at: u64, length: u64) -> Result<&[u8], String> {
    let range = usize::try_from(at).ok().zip(at.checked_add(length).and_then(|e| usize::try_from(e).ok()));
    range.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| {
        format!("the archive speaks of {length} bytes at {at}, and has {} in all", bytes.len())
    })
}

impl<'a> Archive<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Archive<'a>, String> {
        let tail = bytes.len().saturating_sub(65_557);
        let end = bytes[tail..].windows(4).rposition(|w| w == b"PK\x05\x06");
        let end = tail + end.ok_or("its archive has no directory: the file is cut short")?;
        let mut size = number::<4>(bytes, end + 12)?;
        let mut start = number::<4>(bytes, end + 16)?;
        // The locator of the 64-bit directory stands right before.
        if let Some(locator) = end.checked_sub(20).filter(|&at| bytes[at..].starts_with(b"PK\x06\x07")) {
            let record = slice(bytes, number::<8>(bytes, locator + 8)?, 56)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err("no 64-bit directory where the archive says".into());
            }
            (size, start) = (number::<8>(record, 40)?, number::<8>(record, 48)?);
        }
        let directory = slice(bytes, start, size)?;
        let mut members = HashMap::new();
        let (mut at, mut left) = (0, bytes.len());
        while at < directory.len() {
            let (name, member, next) = entry(bytes, directory, at)?;
            left = left.checked_sub(member.data.len()).ok_or("its archive's members lie on each other")?;
            if members.insert(name, member).is_some() {
                return Err(format!("two members of its archive are called `{name}`"));
            }
            at = next;
        }
        Ok(Archive { members })
    }

    /// A member's bytes.
    pub fn member(&self, name: &str) -> Result<&'a [u8], String> {
        let member = self.members.get(name).ok_or_else(|| format!("its archive has no member `{name}`"))?;
        if !member.checked.get() && crc32fast::hash(member.data) != member.checksum {
            return Err(format!("the checksum of `{name}` is not that of its bytes"));
        }
        member.checked.set(true);
        Ok(member.data)
    }

    /// The folder in the archive that holds all others, by the place of its pickle.
    pub fn folder(&self) -> Result<&'a str, String> {
        let mut all = self.members.keys().filter_map(|name| name.strip_suffix("/data.pkl"));
        match (all.next(), all.next()) {
            (Some(folder), None) => Ok(folder),
            (None, _) => Err("a zip archive without `data.pkl`, so not one of torch.save".into()),
            _ => Err("its archive has several members `data.pkl`".into()),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }
}

/// The directory's entry at a place, and the place of the next one.
fn entry<'a>(
    bytes: &'a [u8],
    directory: &'a [u8],
    at: usize,
) -> Result<(&'a str, Member<'a>, usize), String> {
    let head = slice(directory, at as u64, 46)?;
    if !head.starts_with(b"PK\x01\x02") {
        return Err("the archive's directory is damaged".into());
    }
    let [name_len, extra_len, comment_len] =
        [number::<2>(head, 28)?, number::<2>(head, 30)?, number::<2>(head, 32)?];
    let name = slice(directory, at as u64 + 46, name_len)?;
    let name = std::str::from_utf8(name).map_err(|_| "the archive names a member with no text")?;
    let extra = slice(directory, at as u64 + 46 + name_len, extra_len)?;
    let mut fields = [number::<4>(head, 24)?, number::<4>(head, 20)?, number::<4>(head, 42)?];
    widen(extra, &mut fields)?;
    let [length, packed, local] = fields;
    if number::<2>(head, 8)? & 1 == 1 {
        return Err(format!("the member `{name}` is encrypted"));
    }
    if number::<2>(head, 10)? != 0 || packed != length {
        return Err(format!("the member `{name}` is compressed, which torch.save never does"));
    }
    let header = slice(bytes, local, 30)?;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(format!("the member `{name}` is not where the archive's directory says"));
    }
    let data = local + 30 + number::<2>(header, 26)? + number::<2>(header, 28)?;
    let data = slice(bytes, data, length)?;
    let member = Member { data, checksum: number::<4>(head, 16)? as u32, checked: Cell::new(false) };
    Ok((name, member, at + 46 + (name_len + extra_len + comment_len) as usize))
}

/// Sizes and places that do not fit 32 bits stand in the entry's extra field, in this order.
fn widen(extra: &[u8], fields: &mut [u64; 3]) -> Result<(), String> {
    let mut at = 0;
    while at + 4 <= extra.len() {
        let (kind, length) = (number::<2>(extra, at)?, number::<2>(extra, at + 2)?);
        let field = slice(extra, at as u64 + 4, length)?;
        if kind == 1 {
            let mut place = 0;
            for value in fields.iter_mut().filter(|v| **v == u64::from(u32::MAX)) {
                *value = number::<8>(field, place)?;
                place += 8;
            }
        }
        at += 4 + length as usize;
    }
    Ok(())
}
