//! Reads Blosc (version 1) buffers: blocks, split into streams by byte position, each compressed with one of five
//! compressors, and shuffled by bytes or bits.

use crate::bytes::check_expansion;
use crate::dtype::Order;
use crate::error::{Fault, Parsed, damaged, unsupported};
use std::io::Read;

pub fn decode(data: &[u8]) -> Parsed<Vec<u8>> {
    if data.len() < 16 {
        return damaged("a Blosc buffer shorter than its header");
    }
    let le = Order::Little;
    let (flags, typesize) = (data[2], usize::from(data[3]).max(1));
    let [size, block, packed] = [4, 8, 12].map(|at| le.u32(&data[at..]) as usize);
    if packed > data.len() {
        return damaged(format!("a Blosc buffer of {packed} bytes of which {} are there", data.len()));
    }
    check_expansion(data.len() as u64, size as u64)?;
    if flags & 2 != 0 {
        return match data.get(16..16 + size) {
            Some(plain) => Ok(plain.to_vec()),
            None => damaged("a Blosc buffer that is cut off"),
        };
    }
    if size == 0 {
        return Ok(Vec::new());
    }
    if block == 0 {
        return damaged("a Blosc buffer with empty blocks");
    }
    let mut out = vec![0; size];
    for (number, part) in out.chunks_mut(block).enumerate() {
        let Some(entry) = data.get(16 + number * 4..20 + number * 4) else {
            return damaged("a Blosc buffer that is cut off");
        };
        let mut at = le.u32(entry) as usize;
        let leftover = part.len() != block;
        let split = flags & 0x10 == 0 && typesize <= 16 && block / typesize >= 128 && !leftover;
        let streams = if split { typesize } else { 1 };
        let mut plain = vec![0; part.len()];
        let each = (part.len() / streams).max(1);
        for stream in plain.chunks_mut(each).take(streams) {
            let Some(head) = at.checked_add(4).and_then(|end| data.get(at..end)) else {
                return damaged("a Blosc buffer that is cut off");
            };
            let count = le.u32(head) as usize;
            let Some(body) = (at + 4).checked_add(count).and_then(|end| data.get(at + 4..end)) else {
                return damaged("a Blosc stream that is cut off");
            };
            at += 4 + count;
            if count == stream.len() {
                stream.copy_from_slice(body);
            } else {
                unpack(flags >> 5, body, stream)?;
            }
        }
        if flags & 1 != 0 && typesize > 1 {
            unshuffle(&plain, typesize, part);
        } else if flags & 4 != 0 {
            unshuffle_bits(&plain, typesize, part);
        } else {
            part.copy_from_slice(&plain);
        }
    }
    Ok(out)
}

fn unpack(compressor: u8, packed: &[u8], out: &mut [u8]) -> Parsed<()> {
    let count = match compressor {
        0 => return unpack_blosclz(packed, out),
        1 => lz4_flex::block::decompress_into(packed, out).map_err(|e| Fault::Damaged(e.to_string()))?,
        2 => {
            let length = snap::raw::decompress_len(packed).map_err(|e| Fault::Damaged(e.to_string()))?;
            if length > out.len() {
                return damaged("a Snappy stream that is too long");
            }
            snap::raw::Decoder::new().decompress(packed, out).map_err(|e| Fault::Damaged(e.to_string()))?
        }
        3 => {
            flate2::read::ZlibDecoder::new(packed).read_exact(out)?;
            out.len()
        }
        4 => zstd::bulk::decompress_to_buffer(packed, out)?,
        other => return unsupported(format!("Blosc compressor {other}")),
    };
    if count != out.len() {
        return damaged(format!("a Blosc stream of {count} bytes where {} are needed", out.len()));
    }
    Ok(())
}

/// Blosc's own member of the LZ family: literal runs, and copies from up to 64 KiB back.
fn unpack_blosclz(packed: &[u8], out: &mut [u8]) -> Parsed<()> {
    const NEAR: usize = 8191;
    let mut input = packed.iter().map(|&b| usize::from(b));
    let cut = || Fault::Damaged("a BloscLZ stream that is cut off".to_string());
    let mut control = input.next().ok_or_else(cut)? & 31;
    let mut at = 0;
    loop {
        if control >= 32 {
            let mut length = (control >> 5) - 1;
            let high = (control & 31) << 8;
            if length == 6 {
                loop {
                    let more = input.next().ok_or_else(cut)?;
                    length += more;
                    if more != 255 || length > out.len() {
                        break;
                    }
                }
            }
            let low = input.next().ok_or_else(cut)?;
            let distance = if low == 255 && high == 31 << 8 {
                let far = input.next().ok_or_else(cut)? << 8 | input.next().ok_or_else(cut)?;
                far + NEAR + 1
            } else {
                high + low + 1
            };
            length += 3;
            if distance > at || at + length > out.len() {
                return damaged("a BloscLZ stream that points outside");
            }
            for i in at..at + length {
                out[i] = out[i - distance];
            }
            at += length;
        } else {
            for _ in 0..=control {
                let byte = input.next().ok_or_else(cut)?;
                *out.get_mut(at).ok_or_else(cut)? = byte as u8;
                at += 1;
            }
        }
        match input.next() {
            Some(next) => control = next,
            None if at == out.len() => return Ok(()),
            None => return Err(cut()),
        }
    }
}

/// Bytes of one significance lie together; a remainder that is not a whole value is stored unchanged.
fn unshuffle(plain: &[u8], typesize: usize, out: &mut [u8]) {
    let count = plain.len() / typesize;
    for byte in 0..typesize {
        for i in 0..count {
            out[i * typesize + byte] = plain[byte * count + i];
        }
    }
    out[count * typesize..].copy_from_slice(&plain[count * typesize..]);
}

fn unshuffle_bits(plain: &[u8], typesize: usize, out: &mut [u8]) {
    let count = plain.len() / typesize;
    if !count.is_multiple_of(8) {
        out.copy_from_slice(plain);
        return;
    }
    let row = count / 8;
    out[..count * typesize].fill(0);
    for byte in 0..typesize {
        for bit in 0..8 {
            let bits = &plain[(byte * 8 + bit) * row..][..row];
            for i in 0..count {
                out[i * typesize + byte] |= (bits[i / 8] >> (i % 8) & 1) << bit;
            }
        }
    }
    out[count * typesize..].copy_from_slice(&plain[count * typesize..]);
}
