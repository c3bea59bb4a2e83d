//! CCITT fax in TIFF: rows of black and white runs, with the codes of ITU-T T.4 and T.6.
//!
//! The code tables are those of the crate `fax`; its own decoders support neither rows without markers between them (TIFF's
//! compression 2) nor T.4's two-dimensional rows, so rows are decoded here. White is 0 and black 1, as in libtiff; the
//! photometric interpretation defines their meaning.

use crate::error::{Parsed, damaged, unsupported};
use fax::maps::{Mode, black, mode, white};
use fax::{BitReader, slice_reader};

/// How rows are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fax {
    /// Runs; each row begins with a whole byte.
    Huffman,
    /// T.4: a mark before each row; where `referring`, a bit behind it says whether the row refers to the one above.
    Group3 { referring: bool },
    /// T.6: every row refers to the one above.
    Group4,
}

/// Where the colour changes along a row, from white: to black, to white, and so on.
type Changes = Vec<u32>;

/// Unpacks `rows` rows of `width` pixels, eight to a byte from the highest bit on, each row from a whole byte.
pub fn decode(kind: Fax, packed: &[u8], width: usize, rows: usize) -> Parsed<Vec<u8>> {
    let Ok(end) = u32::try_from(width) else { return damaged(format!("a fax of {width} pixels across")) };
    // Tables look further ahead than the last code goes.
    let padded = [packed, &[0; 4]].concat();
    let mut reader = slice_reader(&padded);
    let mut above = Changes::new();
    let mut out = Vec::with_capacity(width.div_ceil(8) * rows);
    for row in 0..rows {
        let refers = match kind {
            Fax::Huffman => false,
            Fax::Group3 { referring } => skip_mark(&mut reader)? && referring && !bit(&mut reader)?,
            Fax::Group4 => true,
        };
        let found = if refers { referring_row(&mut reader, &above, end) } else { runs(&mut reader, end) };
        let Some(changes) = found? else {
            return damaged(format!("fax data ends or breaks in row {row} of {rows}"));
        };
        paint(&changes, width, &mut out);
        above = changes;
        if kind == Fax::Huffman {
            let rest = reader.bits_to_byte_boundary();
            let Ok(()) = reader.consume(rest);
        }
    }
    Ok(out)
}

fn bit<R: BitReader>(reader: &mut R) -> Parsed<bool> {
    match (reader.peek(1), reader.consume(1)) {
        (Some(bit), Ok(())) => Ok(bit == 1),
        _ => damaged("fax data ends between rows"),
    }
}

/// Skips zeros and the one behind them, if these are a mark: eleven zeros or more, which no code begins with.
fn skip_mark<R: BitReader>(reader: &mut R) -> Parsed<bool> {
    if reader.peek(11) != Some(0) {
        return Ok(false);
    }
    while !bit(reader)? {}
    Ok(true)
}

fn run<R: BitReader>(reader: &mut R, is_black: bool) -> Option<u32> {
    let mut sum = 0u32;
    loop {
        let part = if is_black { black::decode(reader)? } else { white::decode(reader)? };
        sum = sum.checked_add(part.into())?;
        if part < 64 {
            return Some(sum);
        }
    }
}

/// A change at a place; a run of nothing undoes the change before it. `None` if it goes backwards or beyond the row.
fn change(changes: &mut Changes, place: u32, end: u32) -> Option<()> {
    match changes.last() {
        _ if place > end => return None,
        Some(&last) if place < last => return None,
        Some(&last) if place == last => {
            changes.pop();
        }
        _ => changes.push(place),
    }
    Some(())
}

/// A row of runs. Nothing if the data breaks.
fn runs<R: BitReader>(reader: &mut R, end: u32) -> Parsed<Option<Changes>> {
    let read = |reader: &mut R| {
        let (mut changes, mut at, mut is_black) = (Changes::new(), 0u32, false);
        while at < end {
            at = at.checked_add(run(reader, is_black)?)?;
            change(&mut changes, at, end)?;
            is_black = !is_black;
        }
        Some(changes)
    };
    Ok(read(reader))
}

/// A row that refers to the one above. Nothing if the data breaks.
fn referring_row<R: BitReader>(reader: &mut R, above: &[u32], end: u32) -> Parsed<Option<Changes>> {
    let mut changes = Changes::new();
    // Before the first pixel there is an imaginary white one.
    let (mut at, mut is_black, mut behind) = (None::<u32>, false, 0);
    while at.is_none_or(|at| at < end) {
        // The first change above that lies behind this place and leads away from this colour.
        while at.is_some_and(|at| above.get(behind).is_some_and(|&place| place <= at)) {
            behind += 1;
        }
        let first = behind + usize::from((behind % 2 == 1) != is_black);
        let there = |i: usize| above.get(i).copied().unwrap_or(end);
        let done = match mode::decode(reader) {
            Some(Mode::Pass) => {
                at = Some(there(first + 1));
                Some(())
            }
            Some(Mode::Vertical(shift)) => (|| {
                let place = there(first).checked_add_signed(shift.into())?;
                if at.is_some_and(|at| place < at) {
                    return None;
                }
                at = Some(place);
                is_black = !is_black;
                change(&mut changes, place, end)
            })(),
            Some(Mode::Horizontal) => (|| {
                let middle = at.unwrap_or(0).checked_add(run(reader, is_black)?)?;
                let last = middle.checked_add(run(reader, !is_black)?)?;
                at = Some(last);
                change(&mut changes, middle, end)?;
                change(&mut changes, last, end)
            })(),
            Some(Mode::Extension) => return unsupported("uncompressed rows within CCITT fax"),
            Some(Mode::EOF) | None => None,
        };
        if done.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(changes))
}

/// Black runs as bits.
fn paint(changes: &[u32], width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + width.div_ceil(8), 0);
    let row = &mut out[start..];
    for run in changes.chunks(2) {
        let end = run.get(1).map_or(width, |&e| e as usize);
        (run[0] as usize..end).for_each(|x| row[x / 8] |= 0x80 >> (x % 8));
    }
}
