//! All-reduces between ranks: values go to the context's [`Exchange`](clearshot_graph::exchange::Exchange) and come back. Without one there is one rank, and
//! every value is its own mean.

use super::Prepared;
use crate::Cpu;
use clearshot_graph::Type;
use clearshot_graph::ops;

/// Runs `AllReduceBegin`.
pub struct AllReduceBegin {
    bucket: u32,
    lens: Vec<usize>,
}

impl AllReduceBegin {
    pub fn new(a: ops::AllReduceBegin, x: &[Type]) -> AllReduceBegin {
        AllReduceBegin { bucket: a.bucket, lens: x.iter().map(|t| t.shape.len()).collect() }
    }
}

impl Prepared for AllReduceBegin {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        if let Some(exchange) = &cpu.exchange {
            let mut at = 0;
            for (&from, &len) in inputs.iter().zip(&self.lens) {
                // SAFETY: each operand has as many values as its type says.
                exchange.put(self.bucket, at, unsafe { std::slice::from_raw_parts(from, len) });
                at += len;
            }
            exchange.begin(self.bucket);
        }
        // SAFETY: the token is one value.
        unsafe { *outputs[0] = 0.0 }
    }
}

/// Runs `AllReduceEnd`. The output may be in place of the value.
pub struct AllReduceEnd {
    a: ops::AllReduceEnd,
    len: usize,
}

impl AllReduceEnd {
    pub fn new(a: ops::AllReduceEnd, x: &[Type]) -> AllReduceEnd {
        AllReduceEnd { a, len: x[1].shape.len() }
    }
}

impl Prepared for AllReduceEnd {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        // SAFETY: operand and result have `len` values, and where they are not one they do not overlap.
        unsafe {
            if !std::ptr::eq(inputs[1], outputs[0]) {
                std::ptr::copy_nonoverlapping(inputs[1], outputs[0], self.len);
            }
            if let Some(exchange) = &cpu.exchange {
                let to = std::slice::from_raw_parts_mut(outputs[0], self.len);
                exchange.take(self.a.bucket, self.a.at, to);
            }
        }
    }
}
