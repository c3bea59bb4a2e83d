//! TensorBoard event files: records with checksums, each a protocol buffer of a few fields, written by hand.
//!
//! A record is the length of its data, a checksum of the length, the data and a checksum of the data; checksums are
//! CRC-32C, rotated and shifted so that records may contain records.

use crate::error::{Result, io};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub struct EventFile {
    path: PathBuf,
    file: File,
}

/// A picture in a file format that browsers know.
pub struct Png<'a> {
    pub bytes: &'a [u8],
    pub width: usize,
    pub height: usize,
}

fn varint(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

fn number(out: &mut Vec<u8>, field: u64, x: u64) {
    varint(out, field << 3);
    varint(out, x);
}

fn double(out: &mut Vec<u8>, field: u64, x: f64) {
    varint(out, field << 3 | 1);
    out.extend(x.to_le_bytes());
}

fn float(out: &mut Vec<u8>, field: u64, x: f32) {
    varint(out, field << 3 | 5);
    out.extend(x.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, x: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, x.len() as u64);
    out.extend(x);
}

fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record of its data.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend(length);
    out.extend(masked(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked(data).to_le_bytes());
    out
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl EventFile {
    /// A new file in a folder. Events of other files from iteration `from` on are invalid: a run that resumes from a
    /// checkpoint says it again.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn create(folder: &Path, from: u64) -> Result<EventFile> {
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let time = now();
        let name = format!("events.out.tfevents.{:010}.clearshot.{}.v2", time as u64, std::process::id());
        let path = folder.join(name);
        let file = File::create(&path).map_err(io(&path))?;
        let mut events = EventFile { path, file };
        let mut first = vec![];
        double(&mut first, 1, time);
        bytes(&mut first, 3, b"brain.Event:2");
        events.put(&first)?;
        if from > 0 {
            let mut log = vec![];
            number(&mut log, 1, 1);
            events.event(from, 7, &log)?;
        }
        Ok(events)
    }

    fn put(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(&framed(data)).map_err(io(&self.path))
    }

    fn event(&mut self, step: u64, field: u64, content: &[u8]) -> Result<()> {
        let mut event = vec![];
        double(&mut event, 1, now());
        number(&mut event, 2, step);
        bytes(&mut event, field, content);
        self.put(&event)
    }

    /// # Errors
    /// If it cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(String, f64)]) -> Result<()> {
        let mut summary = vec![];
        for (tag, value) in values {
            let mut entry = vec![];
            bytes(&mut entry, 1, tag.as_bytes());
            float(&mut entry, 2, *value as f32);
            bytes(&mut summary, 1, &entry);
        }
        self.event(step, 5, &summary)
    }

    /// # Errors
    /// If it cannot be written.
    pub fn picture(&mut self, step: u64, tag: &str, png: &Png<'_>) -> Result<()> {
        let (mut image, mut entry, mut summary) = (vec![], vec![], vec![]);
        number(&mut image, 1, png.height as u64);
        number(&mut image, 2, png.width as u64);
        number(&mut image, 3, 1);
        bytes(&mut image, 4, png.bytes);
        bytes(&mut entry, 1, tag.as_bytes());
        bytes(&mut entry, 4, &image);
        bytes(&mut summary, 1, &entry);
        self.event(step, 5, &summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_framed_as_tensorflow_does() {
        // What TensorFlow's writer makes of the record b"abc".
        let record = framed(b"abc");
        assert_eq!(&record[..8], &3u64.to_le_bytes());
        assert_eq!(record.len(), 19);
        // CRC-32C of "123456789" is e3069283; turned by 15 and shifted.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn numbers_are_encoded_by_sevens() {
        let mut out = vec![];
        varint(&mut out, 300);
        assert_eq!(out, [0xac, 0x02]);
        out.clear();
        float(&mut out, 2, 1.0);
        assert_eq!(out, [0x15, 0, 0, 0x80, 0x3f]);
    }
}
