//! Between the element types that the CPU computes with: `f32` and `i32`.

use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::span;
use crate::pool::Shares;
use clearshot_graph::Type;
use clearshot_tensor::DType;

/// Runs `Cast`. In place where the types are of one size, which all of ours are.
pub struct Cast {
    from: DType,
    to: DType,
    len: usize,
}

impl Cast {
    /// # Panics
    /// For a type that CPU plans do not hold.
    pub fn new(to: DType, x: &[Type]) -> Cast {
        let from = x[0].dtype;
        for t in [from, to] {
            assert!(matches!(t, DType::F32 | DType::I32), "no cast of {from} to {to}");
        }
        Cast { from, to, len: x[0].shape.len() }
    }
}

impl Prepared for Cast {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let (x, y) = (span::shared(inputs[0]), Shares(outputs[0]));
        span::split(cpu, self.len, 1, |range| {
            for i in range {
                // SAFETY: i is in range; whole numbers are passed as f32 pointers.
                unsafe {
                    let (x, y) = (x.at(i), y.at(i));
                    match (self.from, self.to) {
                        (DType::I32, DType::F32) => *y = *x.cast::<i32>() as f32,
                        (DType::F32, DType::I32) => *y.cast::<i32>() = *x as i32,
                        _ => *y = *x,
                    }
                }
            }
        });
    }
}
