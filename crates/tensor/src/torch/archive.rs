//! The zip archive that `torch.save` writes: members are stored uncompressed, and the directory is at the end. All entries
//! of the directory are checked against the available bytes.

use crate::zip::Reader;
use std::cell::Cell;
use std::collections::HashMap;

struct Member<'a> {
    data: &'a [u8],
    checksum: u32,
    checked: Cell<bool>,
}

pub(super) struct Archive<'a> {
    members: HashMap<String, Member<'a>>,
}

fn slice(bytes: &[u8], at: u64, length: u64) -> Result<&[u8], String> {
    let range = usize::try_from(at).ok().zip(at.checked_add(length).and_then(|e| usize::try_from(e).ok()));
    range.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| {
        format!("the archive speaks of {length} bytes at {at}, and has {} in all", bytes.len())
    })
}

impl<'a> Archive<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Archive<'a>, String> {
        let read = |at: u64, length: u64| slice(bytes, at, length).map(<[u8]>::to_vec);
        let reader = Reader { len: bytes.len() as u64, read: &read, wrong: |why| why };
        let mut members = HashMap::new();
        let mut left = bytes.len();
        for (name, member) in reader.members()? {
            if member.method != 0 || member.packed != member.unpacked {
                return Err(format!("the member `{name}` is compressed, which torch.save never does"));
            }
            let data = slice(bytes, reader.data(&name, &member)?, member.packed)?;
            left = left.checked_sub(data.len()).ok_or("its archive's members lie on each other")?;
            let member = Member { data, checksum: member.checksum, checked: Cell::new(false) };
            if members.insert(name.clone(), member).is_some() {
                return Err(format!("two members of its archive are called `{name}`"));
            }
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
    pub fn folder(&self) -> Result<&str, String> {
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
