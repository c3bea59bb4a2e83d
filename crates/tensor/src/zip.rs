//! The directory of a zip archive: its members and their offsets. Checkpoints, Zarr stores, NPZ files and packages of
//! models are such archives; each reader has its own access to the bytes and its own errors, so both are parameters. The
//! caller checks what the directory claims.

/// An entry of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where the header stands that comes before its data.
    pub header: u64,
    pub packed: u64,
    pub unpacked: u64,
    /// 0 for stored, 8 for deflated.
    pub method: u16,
    /// CRC-32 of the unpacked bytes.
    pub checksum: u32,
}

/// Reads bytes at places of an archive, and words what is wrong with it.
pub struct Reader<'r, E> {
    pub len: u64,
    /// So many bytes from a place on, or why there are not.
    pub read: &'r dyn Fn(u64, u64) -> Result<Vec<u8>, E>,
    pub wrong: fn(String) -> E,
}

/// The longest comment behind a directory, and the record before it.
const TAIL: u64 = 65_557;
/// The length of a directory's entry without name, extra field and comment.
const ENTRY: usize = 46;

/// A little-endian number of `N` bytes at a place that is there.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

impl<E> Reader<'_, E> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, E> {
        Err((self.wrong)(why.into()))
    }

    /// The members by name, in the order of the archive.
    ///
    /// # Errors
    /// If there is no directory, or it is damaged, or a member is encrypted.
    pub fn members(&self) -> Result<Vec<(String, Member)>, E> {
        let tail_len = self.len.min(TAIL);
        let tail = (self.read)(self.len - tail_len, tail_len)?;
        let end = tail.windows(4).rposition(|w| w == b"PK\x05\x06").filter(|end| end + 22 <= tail.len());
        let Some(end) = end else { return self.fail("no directory of a zip archive: the file is cut short") };
        let (mut size, mut start) = (number::<4>(&tail, end + 12), number::<4>(&tail, end + 16));
        // The locator of the 64-bit directory stands right before.
        if let Some(at) = end.checked_sub(20).filter(|&at| tail[at..].starts_with(b"PK\x06\x07")) {
            let record = (self.read)(number::<8>(&tail, at + 8), 56)?;
            if !record.starts_with(b"PK\x06\x06") {
                return self.fail("no 64-bit directory where the archive says");
            }
            (size, start) = (number::<8>(&record, 40), number::<8>(&record, 48));
        }
        let directory = (self.read)(start, size)?;
        let (mut members, mut rest) = (Vec::new(), &directory[..]);
        while rest.len() >= ENTRY {
            let (member, behind) = self.entry(rest)?;
            members.push(member);
            rest = behind;
        }
        Ok(members)
    }

    /// The first entry of a directory, and what is behind it.
    fn entry<'d>(&self, directory: &'d [u8]) -> Result<((String, Member), &'d [u8]), E> {
        let (head, rest) = directory.split_at(ENTRY);
        let [name, extra, comment] = [28, 30, 32].map(|at| number::<2>(head, at) as usize);
        if !head.starts_with(b"PK\x01\x02") || rest.len() < name + extra + comment {
            return self.fail("a damaged zip directory");
        }
        let text = String::from_utf8_lossy(&rest[..name]).into_owned();
        if number::<2>(head, 8) & 1 == 1 {
            return self.fail(format!("the member `{text}` is encrypted"));
        }
        let mut sizes = [number::<4>(head, 24), number::<4>(head, 20), number::<4>(head, 42)];
        if !widen(&rest[name..name + extra], &mut sizes) {
            return self.fail("a damaged zip directory");
        }
        let [unpacked, packed, header] = sizes;
        let (method, checksum) = (number::<2>(head, 10) as u16, number::<4>(head, 16) as u32);
        let member = Member { header, packed, unpacked, method, checksum };
        Ok(((text, member), &rest[name + extra + comment..]))
    }

    /// Where a member's data begin.
    ///
    /// # Errors
    /// If its header is not there.
    pub fn data(&self, name: &str, member: &Member) -> Result<u64, E> {
        let header = (self.read)(member.header, 30)?;
        if !header.starts_with(b"PK\x03\x04") {
            return self.fail(format!("the member `{name}` is not where the archive's directory says"));
        }
        let skip = 30 + number::<2>(&header, 26) + number::<2>(&header, 28);
        member.header.checked_add(skip).map_or_else(|| self.fail("a damaged zip directory"), Ok)
    }
}

/// Sizes and places that do not fit 32 bits stand in the entry's extra field, in this order. False if it ends early.
fn widen(mut extra: &[u8], sizes: &mut [u64; 3]) -> bool {
    while extra.len() >= 4 {
        let (kind, length) = (number::<2>(extra, 0), number::<2>(extra, 2) as usize);
        let Some(mut field) = extra.get(4..4 + length) else { return false };
        extra = &extra[4 + length..];
        if kind != 1 {
            continue;
        }
        for value in sizes.iter_mut().filter(|v| **v == u64::from(u32::MAX)) {
            if field.len() < 8 {
                return false;
            }
            *value = number::<8>(field, 0);
            field = &field[8..];
        }
    }
    true
}
