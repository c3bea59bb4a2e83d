//! Compression of tiles: gzip with and without byte shuffling, Rice, PLIO. HCOMPRESS has its own file.

use crate::bytes::check_expansion;
use crate::dtype::Order;
use crate::error::{Parsed, damaged, unsupported};
use std::io::Read;

pub fn inflate(packed: &[u8], limit: usize) -> Parsed<Vec<u8>> {
    check_expansion(packed.len() as u64, limit as u64)?;
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(packed).take(limit as u64 + 1).read_to_end(&mut out)?;
    Ok(out)
}

pub fn unshuffle(raw: &[u8], width: usize) -> Vec<u8> {
    let count = raw.len() / width.max(1);
    let mut out = vec![0; raw.len()];
    for byte in 0..width {
        for i in 0..count {
            out[i * width + byte] = raw[byte * count + i];
        }
    }
    out
}

/// Bits from the highest down.
struct Bits<'a> {
    data: std::slice::Iter<'a, u8>,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    fn take(&mut self, n: u32) -> Parsed<u64> {
        while self.count < n {
            let Some(&byte) = self.data.next() else { return damaged("a Rice tile that is cut off") };
            self.held = self.held << 8 | u64::from(byte);
            self.count += 8;
        }
        self.count -= n;
        Ok(self.held >> self.count & ((1u64 << n) - 1))
    }

    fn zeros(&mut self) -> Parsed<u64> {
        let mut zeros = 0;
        while self.take(1)? == 0 {
            zeros += 1;
        }
        Ok(zeros)
    }
}

/// Rice's code: differences, in blocks that share how many low bits are written plainly.
pub fn rice(packed: &[u8], count: usize, byte_pix: usize, block: usize) -> Parsed<Vec<i64>> {
    let (fs_bits, fs_max, width) = match byte_pix {
        1 => (3, 6, 8),
        2 => (4, 14, 16),
        4 => (5, 25, 32),
        other => return unsupported(format!("Rice tiles of {other} bytes a value")),
    };
    // A block of any length takes at least a few bits.
    if packed.len().saturating_mul(8) < count / block * fs_bits {
        return damaged("a Rice tile that is cut off");
    }
    let mut bits = Bits { data: packed.iter(), held: 0, count: 0 };
    let mut out = Vec::with_capacity(count);
    let mask = (1u64 << width) - 1;
    let mut last = bits.take(width)?;
    while out.len() < count {
        let n = block.min(count - out.len());
        let fs = bits.take(fs_bits as u32)? as i64 - 1;
        for _ in 0..n {
            let folded = match fs {
                -1 => 0,
                fs if fs == fs_max => bits.take(width)?,
                fs => {
                    let high = bits.zeros()?;
                    high << fs | bits.take(fs as u32)?
                }
            };
            let difference = if folded & 1 == 1 { !(folded >> 1) } else { folded >> 1 };
            last = last.wrapping_add(difference) & mask;
            out.push(match byte_pix {
                1 => last as i64,
                2 => i64::from(last as u16 as i16),
                _ => i64::from(last as u32 as i32),
            });
        }
    }
    Ok(out)
}

/// PLIO's line lists: runs of zeros and of one value, for masks.
pub fn plio(packed: &[u8], count: usize) -> Parsed<Vec<i64>> {
    let words: Vec<i64> = packed.chunks_exact(2).map(|b| i64::from(Order::Big.u16(b) as i16)).collect();
    let word = |i: usize| words.get(i).copied();
    let cut = || damaged::<Vec<i64>>("a PLIO tile that is cut off");
    // The old header has three words, the new one as many as it says.
    let (Some(version), Some(third)) = (word(2), word(1)) else { return cut() };
    let (length, mut at) = if version > 0 {
        (version as usize, 3)
    } else {
        let (Some(low), Some(high)) = (word(3), word(4)) else { return cut() };
        ((high as usize) << 15 | low as usize, third.max(0) as usize)
    };
    let mut out = vec![0i64; count];
    let (mut pixel, mut value) = (0usize, 1i64);
    while at < length.min(words.len()) {
        let (code, data) = (words[at] >> 12 & 0xF, words[at] & 0xFFF);
        let n = data as usize;
        match code {
            0 => pixel += n,
            4 | 5 => {
                let end = (pixel + n).min(count);
                if code == 4 {
                    out[pixel.min(end)..end].fill(value);
                } else if n > 0 && pixel + n <= count {
                    out[pixel + n - 1] = value;
                }
                pixel += n;
            }
            1 => {
                at += 1;
                let Some(high) = word(at) else { return cut() };
                value = high << 12 | data;
            }
            2 => value += data,
            3 => value -= data,
            6 | 7 => {
                value += if code == 6 { data } else { -data };
                if pixel < count {
                    out[pixel] = value;
                }
                pixel += 1;
            }
            _ => return damaged(format!("PLIO instruction {code}")),
        }
        at += 1;
    }
    Ok(out)
}
