//! Random values from keys, with the bits of [`clearshot_tensor::noise`].
//!
//! The same functions as there, run over groups of Philox blocks in loops that the compiler turns into
//! vectors of the level. Fused multiply-adds are part of the definition: levels that have the
//! instruction use it, portable code computes it.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span::{self, vectors};
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops::{self, NoiseKind};
use clearshot_tensor::noise::{Key, normal_pair, unit};
use std::ops::Range;

/// Philox blocks that are computed together; four values each.
const GROUP: usize = 32;
const VALUES: usize = 4 * GROUP;

/// How many keys there are, and how many values each one makes.
#[derive(Clone, Copy)]
struct Streams {
    len: usize,
    each: usize,
}

impl Streams {
    fn new(key: Type, len: usize) -> Streams {
        Streams { len, each: (len / (key.shape.len() / 4).max(1)).max(1) }
    }

    /// The key of the value at `i`.
    ///
    /// # Safety
    /// `keys` are the words of all keys.
    unsafe fn key(&self, keys: Shares<f32>, i: usize) -> Key {
        // SAFETY: the caller's promise.
        let words = unsafe { keys.at(i / self.each * 4).cast::<[i32; 4]>().read_unaligned() };
        Key::from_words(words)
    }
}

/// Runs `Noise`: key (`i32`s) -> noise.
pub struct Noise {
    kind: NoiseKind,
    streams: Streams,
}

impl Noise {
    pub fn new(a: ops::Noise, x: &[Type]) -> Noise {
        Noise { kind: a.kind, streams: Streams::new(x[0], a.shape.len()) }
    }
}

impl Prepared for Noise {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (keys, y) = (span::shared(inputs[0]), Shares(outputs[0]));
        // A value costs several times what a copy does.
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe { span::split_with(cpu, self.streams.len, 4, |range| Fill { noise: self, keys, y, range }) };
    }
}

struct Fill<'a> {
    noise: &'a Noise,
    keys: Shares<f32>,
    y: Shares<f32>,
    range: Range<usize>,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let streams = self.noise.streams;
        let mut i = self.range.start;
        while i < self.range.end {
            let n = (streams.each - i % streams.each).min(self.range.end - i);
            // SAFETY: i is the index of a value, and i..i + n are this task's and of one key.
            unsafe {
                let key = streams.key(self.keys, i);
                let to = self.y.slice(i, n);
                match self.noise.kind {
                    NoiseKind::Normal => draw::<S, true>(s, key, i % streams.each, to),
                    NoiseKind::Uniform => draw::<S, false>(s, key, i % streams.each, to),
                }
            }
            i += n;
        }
    }
}

/// Values `start..` of a stream.
#[inline(always)]
fn draw<S: Simd, const NORMAL: bool>(s: S, key: Key, start: usize, to: &mut [f32]) {
    let mut done = 0;
    let mut group = [0.0f32; VALUES];
    while done < to.len() {
        let skip = (start + done) % 4;
        let n = (VALUES - skip).min(to.len() - done);
        let block = ((start + done) / 4) as u64;
        if skip == 0 && n == VALUES {
            let whole = to[done..].first_chunk_mut().expect("as long as a group");
            draw_group::<NORMAL>(key, block, whole);
        } else {
            draw_group::<NORMAL>(key, block, &mut group);
            // SAFETY: n values from `skip` on are in the group and in what is to be filled.
            unsafe { span::copy(s, group.as_ptr().add(skip), to.as_mut_ptr().add(done), n) };
        }
        done += n;
    }
}

/// The values of `GROUP` blocks from `block` on.
#[inline(always)]
fn draw_group<const NORMAL: bool>(key: Key, block: u64, to: &mut [f32; VALUES]) {
    let mut words = [[0u32; GROUP]; 4];
    for j in 0..GROUP {
        let w = key.block(block + j as u64);
        for k in 0..4 {
            words[k][j] = w[k];
        }
    }
    for j in 0..GROUP {
        let w = [words[0][j], words[1][j], words[2][j], words[3][j]];
        let v = if NORMAL {
            let [(a, b), (c, d)] = [normal_pair(w[0], w[1]), normal_pair(w[2], w[3])];
            [a, b, c, d]
        } else {
            [unit(w[0]), unit(w[1]), unit(w[2]), unit(w[3])]
        };
        to[4 * j..4 * j + 4].copy_from_slice(&v);
    }
}

/// Runs `Dropout`: x, key (`i32`s) -> y. The output may be in place of x.
pub struct Dropout {
    threshold: f32,
    kept: f32,
    streams: Streams,
}

impl Dropout {
    pub fn new(a: ops::Dropout, x: &[Type]) -> Dropout {
        let kept = (1.0 / (1.0 - a.rate)) as f32;
        Dropout { threshold: a.threshold(), kept, streams: Streams::new(x[1], x[0].shape.len()) }
    }
}

impl Prepared for Dropout {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (x, keys, y) = (span::shared(inputs[0]), span::shared(inputs[1]), Shares(outputs[0]));
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, self.streams.len, 2, |range| Drop { dropout: self, x, keys, y, range })
        };
    }
}

struct Drop<'a> {
    dropout: &'a Dropout,
    x: Shares<f32>,
    keys: Shares<f32>,
    y: Shares<f32>,
    range: Range<usize>,
}

impl Kernel for Drop<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let Dropout { threshold, kept, streams } = *self.dropout;
        let (threshold, kept) = (s.splat(threshold), s.splat(kept));
        let mut uniform = [0.0f32; VALUES];
        let mut i = self.range.start;
        while i < self.range.end {
            let within = i % streams.each;
            // Up to the end of a group of blocks, so that the next piece is a whole one.
            let n = (VALUES - within % VALUES).min(streams.each - within).min(self.range.end - i);
            // SAFETY: i is the index of a value, and i..i + n are this task's and of one key.
            unsafe {
                draw::<S, false>(s, streams.key(self.keys, i), within, &mut uniform[..n]);
                let (x, y) = (self.x.at(i), self.y.at(i));
                vectors!(S, n, at => {
                    let scaled = s.mul(kept, at.load(s, x));
                    at.store(s, y, s.select_gt(threshold, at.load(s, uniform.as_ptr()), s.splat(0.0), scaled))
                });
            }
            i += n;
        }
    }
}
