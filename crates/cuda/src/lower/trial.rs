//! What tests of kernels share: numbers as the card holds them, a kernel run twice, and errors.

use super::{Io, Kernel};
use crate::context::Context;
use crate::memory::{self, Buffer};
use clearshot_tensor::{DType, F8};
use half::{bf16, f16};
use std::sync::Arc;

/// Values as the card holds them, and as they are.
pub fn rounded(dtype: DType, values: &[f32]) -> (Vec<u8>, Vec<f64>) {
    let mut bytes = vec![];
    let exact = values.iter().map(|&v| match dtype {
        DType::F32 => {
            bytes.extend(v.to_ne_bytes());
            v.into()
        }
        DType::BF16 => {
            bytes.extend(bf16::from_f32(v).to_ne_bytes());
            bf16::from_f32(v).to_f64()
        }
        DType::F8 => {
            bytes.push(F8::from_f32(v).0);
            F8::from_f32(v).to_f32().into()
        }
        _ => {
            bytes.extend(f16::from_f32(v).to_ne_bytes());
            f16::from_f32(v).to_f64()
        }
    });
    let exact = exact.collect();
    (bytes, exact)
}

pub fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let value = |b: &[u8]| match dtype {
        DType::F32 => f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into(),
        DType::BF16 => bf16::from_ne_bytes([b[0], b[1]]).to_f64(),
        DType::F8 => F8(b[0]).to_f32().into(),
        DType::U8 => b[0].into(),
        _ => f16::from_ne_bytes([b[0], b[1]]).to_f64(),
    };
    bytes.chunks_exact(dtype.bytes()).map(value).collect()
}

/// The bytes that a kernel writes, which must be the same both times, over outputs that hold no number before.
pub fn run(
    cx: &Arc<Context>,
    kernel: &Kernel,
    inputs: &[Vec<u8>],
    outputs: &[usize],
    name: &str,
) -> Vec<Vec<u8>> {
    let held: Vec<Buffer> = inputs.iter().map(|b| filled(cx, b)).collect();
    let x: Vec<u64> = held.iter().map(Buffer::start).collect();
    let once = || {
        let outs: Vec<Buffer> = outputs.iter().map(|n| filled(cx, &vec![0xff; *n])).collect();
        let work = filled(cx, &vec![0xff; kernel.workspace]);
        let y: Vec<u64> = outs.iter().map(Buffer::start).collect();
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { kernel.launch(cx, &Io { inputs: &x, outputs: &y, workspace: work.start() }) }.unwrap();
        cx.synchronize().unwrap();
        let read = |(at, n): (&u64, &usize)| {
            let mut bytes = vec![0; *n];
            // SAFETY: the output's own buffer.
            unsafe { memory::read(*at, &mut bytes) }.unwrap();
            bytes
        };
        y.iter().zip(outputs).map(read).collect::<Vec<_>>()
    };
    let first = once();
    assert!(first == once(), "{name}: other bits in the second run");
    first
}

fn filled(cx: &Arc<Context>, bytes: &[u8]) -> Buffer {
    let buffer = Buffer::new(cx, bytes.len()).unwrap();
    // SAFETY: a buffer as large.
    unsafe { memory::write(buffer.start(), bytes) }.unwrap();
    buffer
}

/// Whether all is within the limit; says so.
pub fn check(name: &str, what: &str, got: &[f64], truth: &[f64], limit: f64) -> bool {
    let off: f64 = got.iter().zip(truth).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = truth.iter().map(|v| v * v).sum();
    let error = (off / size).sqrt();
    let fits = error < limit;
    eprintln!("{name}: {what} {error:.1e}{}", if fits { "" } else { ", WRONG" });
    fits
}
