//! FITS headers: cards of 80 characters in blocks of 2880 bytes. Cards are kept unchanged; values are parsed on request.

use crate::bytes::Bytes;
use crate::error::{Parsed, damaged, unsupported};

pub const BLOCK: u64 = 2880;

#[derive(Clone, Debug, Default)]
pub struct Header {
    pub cards: Vec<[u8; 80]>,
}

/// One header-and-data unit of a file.
#[derive(Clone, Debug)]
pub struct Hdu {
    pub header: Header,
    pub start: u64,
    pub data: u64,
    pub data_bytes: u64,
    /// Where the next one begins.
    pub end: u64,
}

impl Header {
    fn card(&self, key: &str) -> Option<&[u8; 80]> {
        let mut name = [b' '; 8];
        name[..key.len()].copy_from_slice(key.as_bytes());
        self.cards.iter().find(|c| c[..8] == name && &c[8..10] == b"= ")
    }

    /// The value of a card as text, quotes and comment taken off.
    pub fn text(&self, key: &str) -> Option<String> {
        let card = self.card(key)?;
        let value: String = card[10..].iter().map(|&b| b as char).collect();
        let value = value.trim_start();
        if let Some(quoted) = value.strip_prefix('\'') {
            let mut out = String::new();
            let mut chars = quoted.chars().peekable();
            while let Some(c) = chars.next() {
                match c {
                    '\'' if chars.peek() == Some(&'\'') => {
                        chars.next();
                        out.push('\'');
                    }
                    '\'' => break,
                    c => out.push(c),
                }
            }
            return Some(out.trim_end().to_string());
        }
        Some(value.split('/').next().unwrap_or("").trim().to_string()).filter(|v| !v.is_empty())
    }

    pub fn integer(&self, key: &str) -> Option<i64> {
        let text = self.text(key)?;
        text.parse().ok().or_else(|| text.parse::<f64>().ok().filter(|v| v.fract() == 0.0).map(|v| v as i64))
    }

    pub fn real(&self, key: &str) -> Option<f64> {
        self.text(key)?.replace(['D', 'd'], "E").parse().ok()
    }

    pub fn flag(&self, key: &str) -> bool {
        self.text(key).as_deref() == Some("T")
    }

    pub fn remove(&mut self, drop: impl Fn(&str) -> bool) {
        self.cards.retain(|c| !drop(String::from_utf8_lossy(&c[..8]).trim_end()));
    }

    pub fn push(&mut self, text: &str) {
        let mut card = [b' '; 80];
        for (place, c) in card.iter_mut().zip(text.chars()) {
            *place = if (' '..='~').contains(&c) { c as u8 } else { b'?' };
        }
        self.cards.push(card);
    }

    pub fn push_value(&mut self, key: &str, value: &str, comment: &str) {
        self.push(&format!("{key:<8}= {value:>20} / {comment}"));
    }

    /// Gives a card that is there another value, in its place.
    pub fn replace_value(&mut self, key: &str, value: &str, comment: &str) {
        self.push_value(key, value, comment);
        let new = self.cards.pop();
        let old = self.cards.iter().position(|c| String::from_utf8_lossy(&c[..8]).trim_end() == key);
        if let (Some(new), Some(old)) = (new, old) {
            self.cards[old] = new;
        }
    }

    /// Text in HISTORY cards, as many as it takes.
    pub fn push_history(&mut self, text: &str) {
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(70) {
            self.push(&format!("HISTORY {}", part.iter().collect::<String>()));
        }
    }

    /// The text of all HISTORY cards, one after the other.
    pub fn history(&self) -> String {
        let cards = self.cards.iter().filter(|c| c.starts_with(b"HISTORY "));
        cards.map(|c| String::from_utf8_lossy(&c[8..78]).into_owned()).collect()
    }

    /// The header's bytes: the cards, the end, and blanks up to a whole block.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out: Vec<u8> = self.cards.concat();
        let mut end = [b' '; 80];
        end[..3].copy_from_slice(b"END");
        out.extend_from_slice(&end);
        out.resize(out.len().next_multiple_of(BLOCK as usize), b' ');
        out
    }

    pub fn lengths(&self, key: &str) -> Parsed<Vec<u64>> {
        let count = self.integer(key).unwrap_or(0);
        if !(0..=32).contains(&count) {
            return damaged(format!("{key} of {count}"));
        }
        (1..=count)
            .map(|n| match self.integer(&format!("{key}{n}")).and_then(|v| u64::try_from(v).ok()) {
                Some(len) => Ok(len),
                None => damaged(format!("no {key}{n}")),
            })
            .collect()
    }
}

/// Every unit of a file; what follows the last readable one is left alone.
pub fn read_all(bytes: &Bytes) -> Parsed<Vec<Hdu>> {
    let mut hdus: Vec<Hdu> = Vec::new();
    let mut at = 0;
    while at < bytes.len() && hdus.len() < 10_000 {
        match read_hdu(bytes, at) {
            Ok(hdu) => {
                at = hdu.end;
                hdus.push(hdu);
            }
            Err(fault) if hdus.is_empty() => return Err(fault),
            // Trailing bytes that are not a header are allowed to be there.
            Err(_) => break,
        }
    }
    Ok(hdus)
}

fn read_hdu(bytes: &Bytes, start: u64) -> Parsed<Hdu> {
    let mut header = Header::default();
    let mut at = start;
    'blocks: loop {
        let block = bytes.read(at, BLOCK)?;
        at += BLOCK;
        for card in block.as_chunks::<80>().0 {
            if &card[..8] == b"END     " {
                break 'blocks;
            }
            if header.cards.is_empty() && !card.starts_with(b"SIMPLE  =") && !card.starts_with(b"XTENSION=") {
                return damaged("no FITS header");
            }
            header.cards.push(*card);
        }
        if header.cards.len() > 1 << 18 {
            return damaged("a header without an end");
        }
    }
    let Some(bits) = header.integer("BITPIX").filter(|b| [8, 16, 32, 64, -32, -64].contains(b)) else {
        return damaged("no BITPIX");
    };
    if header.flag("GROUPS") {
        return unsupported("random groups");
    }
    let lengths = header.lengths("NAXIS")?;
    let size = |n: Option<i64>, default: u64| n.map_or(Some(default), |n| u64::try_from(n).ok());
    let total = || -> Option<u64> {
        let pixels = if lengths.is_empty() {
            0
        } else {
            lengths.iter().try_fold(1u64, |n, &len| n.checked_mul(len))?
        };
        let with_heap = pixels.checked_add(size(header.integer("PCOUNT"), 0)?)?;
        with_heap.checked_mul(size(header.integer("GCOUNT"), 1)?)?.checked_mul(bits.unsigned_abs() / 8)
    };
    let Some(data_bytes) = total().filter(|n| *n < 1 << 60) else {
        return damaged(format!("axes of {lengths:?}"));
    };
    Ok(Hdu { header, start, data: at, data_bytes, end: at + data_bytes.next_multiple_of(BLOCK) })
}
