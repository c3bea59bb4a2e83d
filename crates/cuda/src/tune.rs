//! Choices made by measuring, remembered on disk for the card, driver and libraries that they were made on.

use crate::cache;
use crate::context::Context;
use crate::error::{CudaError, refused};
use crate::memory::Buffer;
use crate::program::{Count, Function};
use cudarc::driver::result;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// Where making nodes ready stands. Nodes are first gone through without measuring, so that every program
/// that may be needed begins to be compiled; used by who holds the context's turn.
#[derive(Default)]
pub(crate) struct Tuning {
    ahead: AtomicBool,
    undecided: AtomicBool,
    choosing: AtomicBool,
    asked: Mutex<Vec<Function>>,
    /// Choices that were measured, without the time that they waited for the compiler.
    pub measured: Count,
}

impl Tuning {
    /// From now on nothing is measured, or it is again.
    pub fn go_ahead(&self, ahead: bool) {
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Refused while programs are only asked for.
    pub fn may_measure(&self) -> Result<(), CudaError> {
        if self.ahead.load(Ordering::Relaxed) {
            return Err(refused("measuring", "nothing is measured before all programs were asked for"));
        }
        Ok(())
    }

    /// Notes a kernel as used by what is made ready, unless it is only one to choose from.
    pub fn note(&self, f: Function) {
        if !self.choosing.load(Ordering::Relaxed) {
            self.asked.lock().unwrap_or_else(|e| e.into_inner()).push(f);
        }
    }

    /// The kernels that were asked for since the last call; nothing if a choice was left open.
    pub fn take(&self) -> Option<Vec<Function>> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(|e| e.into_inner()));
        (!self.undecided.swap(false, Ordering::Relaxed)).then_some(asked)
    }
}

/// What can be chosen and kept. What is read is something that could have been chosen, or nothing.
pub(crate) trait Record: Sized {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

/// Which of several ways.
impl Record for usize {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<usize> {
        text.parse().ok()
    }
}

/// The choice remembered for `key`, or the one that `choose` makes now. Where it can choose nothing, as when
/// another program holds the memory to measure in, there is none, and only this process remembers that. A kept record
/// that cannot be read, or that `possible` refuses, is reported, measured again and replaced. The key is text, since it
/// names an entry for later versions of the program too.
pub(crate) fn choice<R: Record>(
    cx: &Arc<Context>,
    key: &str,
    possible: impl Fn(&R) -> bool,
    choose: impl FnOnce() -> Result<Option<R>, CudaError>,
) -> Result<Option<R>, CudaError> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Option<String>>>> = OnceLock::new();
    let key = format!("{}\n{key}", cx.machine);
    let known = KNOWN.get_or_init(Mutex::default);
    let lock = || known.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(found) = lock().get(&key) {
        return Ok(found.as_deref().and_then(R::read));
    }
    let made = match kept(&key, &possible) {
        Kept::Record(record) => Some(record),
        Kept::Nothing => {
            // Another process may have chosen meanwhile: what lies there holds for all.
            let agreed = |made: R| {
                let lies = cache::agree("choice", &key, made.write().as_bytes());
                read_record(&lies, &possible).unwrap_or(made)
            };
            measured(cx, choose)?.map(agreed)
        }
        Kept::Damaged(why) => {
            eprintln!("warning: {why}; it is measured again");
            let made = measured(cx, choose)?;
            made.iter().for_each(|m| cache::write("choice", &key, m.write().as_bytes()));
            made
        }
    };
    lock().entry(key).or_insert_with(|| made.as_ref().map(R::write));
    Ok(made)
}

/// What lies in the cache under a key.
#[derive(Debug, PartialEq)]
enum Kept<R> {
    Nothing,
    Record(R),
    /// In words.
    Damaged(String),
}

fn read_record<R: Record>(bytes: &[u8], possible: impl Fn(&R) -> bool) -> Option<R> {
    R::read(std::str::from_utf8(bytes).ok()?).filter(possible)
}

fn kept<R: Record>(key: &str, possible: impl Fn(&R) -> bool) -> Kept<R> {
    let Some(bytes) = cache::read("choice", key) else { return Kept::Nothing };
    match read_record(&bytes, possible) {
        Some(record) => Kept::Record(record),
        None => {
            let file = cache::path("choice", key).unwrap_or_default();
            Kept::Damaged(format!("{} holds no choice that this program makes", file.display()))
        }
    }
}

fn measured<R>(
    cx: &Context,
    choose: impl FnOnce() -> Result<Option<R>, CudaError>,
) -> Result<Option<R>, CudaError> {
    let tuning = &cx.tuning;
    let waited = &cx.programs.clocks.waited;
    let (start, waited_before) = (Instant::now(), waited.time());
    // A choice may ask for another one.
    let outer = tuning.choosing.swap(true, Ordering::Relaxed);
    let made = choose();
    tuning.choosing.store(outer, Ordering::Relaxed);
    if let Err(ahead) = tuning.may_measure() {
        tuning.undecided.store(true, Ordering::Relaxed);
        return Err(ahead);
    }
    if !outer {
        tuning.measured.add(start.elapsed().saturating_sub(waited.time() - waited_before));
    }
    match made {
        // What is too large to be measured may still be planned, and then told how much is missing.
        Err(CudaError::NoRoom { .. }) => Ok(None),
        made => made,
    }
}

/// Memory to measure on: filled with a pattern of small numbers, since zeros run faster than data.
pub(crate) fn sample(cx: &Arc<Context>, bytes: usize) -> Result<Buffer, CudaError> {
    cx.tuning.may_measure()?;
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut state = 0x9E37_79B9u32;
        // 0x3c.. and 0xbc.. as high bytes are small numbers in bf16, f16 and f32 alike.
        (0..1usize << 20)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 24) as u8;
                if i % 2 == 1 { 0x3c | (noise & 0x80) } else { noise }
            })
            .collect()
    });
    let buffer = Buffer::new(cx, bytes)?;
    let mut done = pattern.len().min(bytes);
    buffer.fill(&pattern[..done])?;
    // What is filled is copied behind itself, twice as much each time.
    while done < bytes {
        let part = done.min(bytes - done);
        // SAFETY: two stretches of the buffer that do not overlap.
        unsafe { result::memcpy_dtod_async(buffer.at(done, part), buffer.start(), part, cx.stream)? };
        done += part;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole entries with hostile contents; those that are damaged are the cache's own matter. Tests of the cache share a folder, which the
    /// environment names, so records are asked for as bytes.
    #[test]
    fn a_hostile_record_is_no_choice() {
        let of_three = |i: &usize| *i < 3;
        assert_eq!(read_record(b"2", of_three), Some(2));
        for hostile in [&b"3"[..], b"", b"-1", b" 2", b"2\n", b"0x2", b"\xff\xfe", b"18446744073709551616"] {
            assert_eq!(read_record(hostile, of_three), None, "{hostile:?}");
        }
    }
}
