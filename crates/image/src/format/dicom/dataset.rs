//! DICOM data sets: elements of a file, explicit or implicit, in both byte orders. Only positions are stored; values are
//! read on request, and a data set is written back from the same bytes.

use crate::bytes::Bytes;
use crate::dtype::Order;
use crate::error::{Parsed, damaged};

pub type Tag = (u16, u16);

pub const PIXEL_DATA: Tag = (0x7FE0, 0x0010);
pub const FLOAT_PIXEL_DATA: Tag = (0x7FE0, 0x0008);
pub const DOUBLE_PIXEL_DATA: Tag = (0x7FE0, 0x0009);
const ITEM: Tag = (0xFFFE, 0xE000);
const ITEM_END: Tag = (0xFFFE, 0xE00D);
const SEQUENCE_END: Tag = (0xFFFE, 0xE0DD);
const UNDEFINED: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Element {
    pub tag: Tag,
    pub vr: [u8; 2],
    /// Where the element, its value, and whatever follows it begin.
    pub start: u64,
    pub value: u64,
    pub end: u64,
    /// The value's length is not stated: it ends with a delimiter.
    pub open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    pub explicit: bool,
    pub order: Order,
}

impl Syntax {
    /// How a sequence's items are written: those of unknown type as if types were implicit.
    fn within(self, vr: [u8; 2]) -> Syntax {
        Syntax { explicit: self.explicit && &vr != b"UN", ..self }
    }
}

/// A head: tag, type, where the value begins, and its stated length.
struct Head {
    tag: Tag,
    vr: [u8; 2],
    value: u64,
    length: u32,
}

fn read_head(bytes: &Bytes, at: u64, syntax: Syntax) -> Parsed<Head> {
    let o = syntax.order;
    let head = bytes.read(at, 8)?;
    let tag = (o.u16(&head), o.u16(&head[2..]));
    if tag.0 == 0xFFFE || !syntax.explicit {
        return Ok(Head { tag, vr: *b"  ", value: at + 8, length: o.u32(&head[4..]) });
    }
    let vr = [head[4], head[5]];
    if !vr.iter().all(|c| c.is_ascii_uppercase()) {
        return damaged(format!("element ({:04X},{:04X}) without a type", tag.0, tag.1));
    }
    if is_long(vr) {
        let length = bytes.read(at + 8, 4)?;
        return Ok(Head { tag, vr, value: at + 12, length: o.u32(&length) });
    }
    Ok(Head { tag, vr, value: at + 8, length: u32::from(o.u16(&head[6..])) })
}

/// Types whose length takes four bytes.
pub fn is_long(vr: [u8; 2]) -> bool {
    matches!(
        &vr,
        b"OB" | b"OW" | b"OF" | b"OD" | b"OL" | b"OV" | b"SQ" | b"UC" | b"UN" | b"UR" | b"UT" | b"SV" | b"UV"
    )
}

/// The elements from `start` to the end of the bytes, or to the end of group `only`.
pub fn read_elements(bytes: &Bytes, start: u64, syntax: Syntax, only: Option<u16>) -> Parsed<Vec<Element>> {
    elements_within(bytes, start, bytes.len(), syntax, only)
}

fn elements_within(
    bytes: &Bytes,
    start: u64,
    stop: u64,
    syntax: Syntax,
    only: Option<u16>,
) -> Parsed<Vec<Element>> {
    let mut list: Vec<Element> = Vec::new();
    let mut at = start;
    while at + 8 <= stop {
        if let Some(group) = only {
            // What follows may be packed, and is not to be parsed.
            if syntax.order.u16(&bytes.read(at, 2)?) != group {
                break;
            }
        }
        let head = read_head(bytes, at, syntax)?;
        if head.tag == ITEM_END {
            break;
        }
        if list.len() > 100_000 {
            return damaged("more elements than any image has");
        }
        let open = head.length == UNDEFINED;
        let end = match open {
            true if head.tag == PIXEL_DATA => skip_fragments(bytes, head.value, syntax)?,
            true => skip_sequence(bytes, head.value, syntax.within(head.vr), 0)?,
            false => head.value + u64::from(head.length),
        };
        if end > stop {
            let (group, element) = head.tag;
            return damaged(format!("element ({group:04X},{element:04X}) ends at {end}, beyond {stop}"));
        }
        list.push(Element { tag: head.tag, vr: head.vr, start: at, value: head.value, end, open });
        at = end;
    }
    Ok(list)
}

/// The end of a sequence that is closed by a delimiter.
fn skip_sequence(bytes: &Bytes, start: u64, syntax: Syntax, depth: usize) -> Parsed<u64> {
    if depth > 32 {
        return damaged("sequences in sequences without end");
    }
    let mut at = start;
    loop {
        let item = read_head(bytes, at, syntax)?;
        match item.tag {
            SEQUENCE_END => return Ok(item.value),
            ITEM if item.length != UNDEFINED => at = item.value + u64::from(item.length),
            ITEM => at = skip_item(bytes, item.value, syntax, depth)?,
            other => return damaged(format!("({:04X},{:04X}) in a sequence", other.0, other.1)),
        }
    }
}

fn skip_item(bytes: &Bytes, start: u64, syntax: Syntax, depth: usize) -> Parsed<u64> {
    let mut at = start;
    loop {
        let head = read_head(bytes, at, syntax)?;
        at = match (head.tag, head.length) {
            (ITEM_END, _) => return Ok(head.value),
            (_, UNDEFINED) => skip_sequence(bytes, head.value, syntax, depth + 1)?,
            (_, length) => head.value + u64::from(length),
        };
    }
}

fn skip_fragments(bytes: &Bytes, start: u64, syntax: Syntax) -> Parsed<u64> {
    let fragments = fragments(bytes, start, syntax)?;
    Ok(fragments.last().map_or(start, |(at, length)| at + length) + 8)
}

/// The fragments of packed pixels, the table of offsets first: place and length of each.
pub fn fragments(bytes: &Bytes, start: u64, syntax: Syntax) -> Parsed<Vec<(u64, u64)>> {
    let mut list = Vec::new();
    let mut at = start;
    loop {
        let item = read_head(bytes, at, syntax)?;
        match item.tag {
            SEQUENCE_END => return Ok(list),
            ITEM if item.length != UNDEFINED => {
                bytes.check(item.value, u64::from(item.length))?;
                list.push((item.value, u64::from(item.length)));
                at = item.value + u64::from(item.length);
            }
            other => return damaged(format!("({:04X},{:04X}) among fragments", other.0, other.1)),
        }
    }
}

/// A data set that can be asked for values.
pub struct DataSet<'a> {
    pub bytes: &'a Bytes,
    pub elements: &'a [Element],
    pub syntax: Syntax,
}

impl DataSet<'_> {
    pub fn find(&self, tag: Tag) -> Option<&Element> {
        self.elements.iter().find(|e| e.tag == tag)
    }

    /// The elements of each item of a sequence, up to a damaged one.
    pub fn items<T>(&self, tag: Tag, read: impl Fn(&DataSet) -> T) -> Vec<T> {
        let mut list = Vec::new();
        let Some(sequence) = self.find(tag) else { return list };
        let (bytes, syntax) = (self.bytes, self.syntax.within(sequence.vr));
        let mut at = sequence.value;
        while at + 8 <= sequence.end {
            let Ok(item) = read_head(bytes, at, syntax) else { break };
            let end = match item.length {
                UNDEFINED => skip_item(bytes, item.value, syntax, 0),
                length => Ok(item.value + u64::from(length)),
            };
            let Some(end) = end.ok().filter(|e| item.tag == ITEM && *e <= sequence.end) else { break };
            let Ok(elements) = elements_within(bytes, item.value, end, syntax, None) else { break };
            list.push(read(&DataSet { bytes, elements: &elements, syntax }));
            at = end;
        }
        list
    }

    pub fn value(&self, tag: Tag) -> Option<Vec<u8>> {
        let e = self.find(tag).filter(|e| !e.open)?;
        self.bytes.read(e.value, (e.end - e.value).min(65_536)).ok()
    }

    pub fn text(&self, tag: Tag) -> Option<String> {
        let value = self.value(tag)?;
        let text = String::from_utf8_lossy(&value);
        Some(text.trim_matches(['\0', ' ']).to_string()).filter(|t| !t.is_empty())
    }

    pub fn short(&self, tag: Tag) -> Option<u16> {
        let value = self.value(tag)?;
        (value.len() >= 2).then(|| self.syntax.order.u16(&value))
    }

    /// The numbers of a decimal string.
    pub fn numbers(&self, tag: Tag) -> Vec<f64> {
        let text = self.text(tag).unwrap_or_default();
        text.split('\\').filter_map(|n| n.trim().parse().ok()).collect()
    }

    pub fn number(&self, tag: Tag) -> Option<f64> {
        self.numbers(tag).first().copied()
    }
}

/// An element as bytes; values are padded to even length.
pub fn encode(tag: Tag, vr: [u8; 2], value: &[u8], syntax: Syntax) -> Vec<u8> {
    let pad = match &vr {
        b"UI" | b"OB" | b"OW" => 0,
        _ => b' ',
    };
    let mut value = value.to_vec();
    if value.len() % 2 == 1 {
        value.push(pad);
    }
    let mut out = encode_head(tag, vr, value.len() as u32, syntax);
    out.extend(value);
    out
}

pub fn encode_head(tag: Tag, vr: [u8; 2], length: u32, syntax: Syntax) -> Vec<u8> {
    let o = syntax.order;
    let mut out = [o.put16(tag.0), o.put16(tag.1)].concat();
    if !syntax.explicit {
        out.extend_from_slice(&o.put32(length));
    } else if is_long(vr) {
        out.extend_from_slice(&[vr[0], vr[1], 0, 0]);
        out.extend_from_slice(&o.put32(length));
    } else {
        out.extend_from_slice(&vr);
        out.extend_from_slice(&o.put16(length as u16));
    }
    out
}
