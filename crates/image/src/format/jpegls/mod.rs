//! JPEG-LS (ITU-T T.87, the LOCO-I algorithm) as DICOM files hold it, without loss and near-lossless: 2 to 16 bits, components one after
//! the other, line by line or pixel by pixel.
//!
//! Written here because no crate has it alone: see "Crates that were tried" in ARCHITECTURE.md. This file reads the markers, `scan`
//! decodes what is between them. Mapping tables, point transforms, restart markers and colour transforms of Hewlett-Packard, none of which
//! DICOM's writers use, are refused by name.

mod scan;

use crate::bytes::check_expansion;
use crate::dtype::Order;
use crate::error::{Parsed, damaged, unsupported};
use scan::{Coding, Interleave};

/// A decoded picture: the samples of a pixel lie together.
pub(crate) struct Picture {
    pub width: usize,
    pub height: usize,
    pub samples: usize,
    pub data: Vec<u16>,
}

/// The header of the frame.
struct Frame {
    bits: u32,
    width: usize,
    height: usize,
    /// The components' names, by which scans refer to them.
    names: Vec<u8>,
}

/// The parameters of a stream that chose its own; zero stands for the usual value.
#[derive(Clone, Copy, Default)]
struct Preset {
    largest: i32,
    thresholds: [i32; 3],
    reset: i32,
}

/// Decodes a stream of at most `limit` pixels.
pub(crate) fn decode(data: &[u8], limit: usize) -> Parsed<Picture> {
    let be = Order::Big;
    if !data.starts_with(&[0xFF, 0xD8]) {
        return damaged("no JPEG-LS stream");
    }
    let (mut at, mut frame, mut preset) = (2, None, Preset::default());
    let mut out = Vec::new();
    let mut done = 0;
    loop {
        // Fill bytes may stand before a marker.
        while data.get(at..at + 2) == Some(&[0xFF, 0xFF]) {
            at += 1;
        }
        let Some(&[0xFF, marker]) = data.get(at..at + 2) else { return damaged("JPEG-LS markers cut off") };
        if marker == 0xD9 {
            break;
        }
        let Some(length) = data.get(at + 2..at + 4).map(|b| usize::from(be.u16(b))) else {
            return damaged("a JPEG-LS marker cut off");
        };
        let Some(body) = data.get(at + 4..at + 2 + length.max(2)) else {
            return damaged("a JPEG-LS marker cut off");
        };
        at += 2 + length.max(2);
        match marker {
            0xF7 => {
                let read = read_frame(body, limit)?;
                let count = read.width * read.height * read.names.len();
                check_expansion(data.len() as u64, 2 * count as u64)?;
                out = vec![0; count];
                done = 0;
                frame = Some(read);
            }
            0xF8 => read_preset(body, &mut preset)?,
            0xDA => {
                let Some(frame) = &frame else { return damaged("a JPEG-LS scan before its frame") };
                let (components, coding) = read_scan(body, frame, preset)?;
                let samples = frame.names.len();
                at += scan::decode(&coding, &data[at..], frame.width, &components, samples, &mut out)?;
                done += components.len();
                if done >= samples {
                    break;
                }
            }
            0xDD if body.iter().any(|&b| b != 0) => return unsupported("JPEG-LS with restart markers"),
            0xE8 if body.starts_with(b"mrfx") && body.get(4).is_some_and(|&t| t != 0) => {
                return unsupported("JPEG-LS with a colour transform");
            }
            0xC0..=0xCF if marker != 0xC4 && marker != 0xCC => {
                return damaged("another kind of JPEG where JPEG-LS is expected");
            }
            _ => {}
        }
    }
    match frame {
        Some(frame) if done >= frame.names.len() => {
            Ok(Picture { width: frame.width, height: frame.height, samples: frame.names.len(), data: out })
        }
        Some(frame) => damaged(format!("{done} of {} JPEG-LS components", frame.names.len())),
        None => damaged("a JPEG-LS stream without a frame"),
    }
}

fn read_frame(body: &[u8], limit: usize) -> Parsed<Frame> {
    let be = Order::Big;
    let Some((head, rest)) = body.split_at_checked(6) else { return damaged("a JPEG-LS frame cut off") };
    let (bits, count) = (u32::from(head[0]), usize::from(head[5]));
    let (height, width) = (usize::from(be.u16(&head[1..])), usize::from(be.u16(&head[3..])));
    if !(2..=16).contains(&bits) || width == 0 || height == 0 || !(1..=4).contains(&count) {
        return damaged(format!("a JPEG-LS frame of {width} x {height} with {count} samples of {bits} bits"));
    }
    if width * height > limit {
        return damaged(format!("a JPEG-LS frame of {width} x {height}, where {limit} pixels are expected"));
    }
    if rest.len() < 3 * count {
        return damaged("a JPEG-LS frame cut off");
    }
    let components = rest.chunks_exact(3).take(count);
    if components.clone().any(|c| c[1] != 0x11) {
        return unsupported("JPEG-LS with sub-sampled components");
    }
    Ok(Frame { bits, width, height, names: components.map(|c| c[0]).collect() })
}

fn read_preset(body: &[u8], preset: &mut Preset) -> Parsed<()> {
    match body.first() {
        Some(1) if body.len() >= 11 => {
            let number = |i: usize| i32::from(Order::Big.u16(&body[1 + 2 * i..]));
            *preset = Preset {
                largest: number(0),
                thresholds: [number(1), number(2), number(3)],
                reset: number(4),
            };
            Ok(())
        }
        Some(2 | 3) => unsupported("JPEG-LS with mapping tables"),
        Some(4) => unsupported("JPEG-LS of more than 65,535 pixels a side"),
        _ => damaged("JPEG-LS parameters that make no sense"),
    }
}

/// Which components a scan has, and how they are coded.
fn read_scan(body: &[u8], frame: &Frame, preset: Preset) -> Parsed<(Vec<usize>, Coding)> {
    let count = usize::from(body.first().copied().unwrap_or(0));
    let (Some(list), Some(&[near, mode, shift])) =
        (body.get(1..1 + 2 * count), body.get(1 + 2 * count..4 + 2 * count))
    else {
        return damaged("a JPEG-LS scan's header cut off");
    };
    let mut components = Vec::new();
    for entry in list.chunks_exact(2) {
        let Some(place) = frame.names.iter().position(|&n| n == entry[0]) else {
            return damaged(format!("JPEG-LS component {} is not in the frame", entry[0]));
        };
        if entry[1] != 0 {
            return unsupported("JPEG-LS with mapping tables");
        }
        components.push(place);
    }
    if shift & 15 != 0 {
        return unsupported("JPEG-LS with a point transform");
    }
    let interleave = match (mode, count) {
        (0..=2, 1) => Interleave::None,
        (1, 2..) => Interleave::Lines,
        (2, 2..) => Interleave::Pixels,
        _ => return damaged(format!("a JPEG-LS scan of {count} components in mode {mode}")),
    };
    let coding = Coding::new(frame.bits, i32::from(near), preset, interleave)?;
    Ok((components, coding))
}
