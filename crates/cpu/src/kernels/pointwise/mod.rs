//! Elementwise operations, alone and in chains, by one interpreter of [`Program`]s.
//!
//! The output is made block by block. A block's intermediate results stay in the L1 cache and each
//! step is one vector loop over it, so a chain costs little more than its memory traffic and a single
//! operation nothing more. Operands of the output's shape are read where they lie; those that are
//! broadcast are laid out once per block, or once per task where neighbouring blocks share them.

mod cast;
mod layout;
mod steps;

#[cfg(test)]
mod tests;

pub use cast::Cast;

use super::Prepared;
use super::span;
use crate::Cpu;
use crate::pool::Shares;
use crate::simd::{Kernel, Simd};
use clearshot_graph::Type;
use clearshot_graph::ops::{Binary, Program, Scalar, Step, Unary};
use layout::{BLOCK, Block, Form, Layout};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Runs `Unary`, `UnaryGrad`, `Binary` and `Pointwise`. The output may be in place of any operand of
/// its shape.
pub struct Pointwise {
    steps: Vec<Step>,
    layout: Layout,
    /// The scratch register of each operand that is laid out and of each step but the last.
    slots: Vec<usize>,
}

const REGISTERS: usize = Program::MAX_REGISTERS;

impl Pointwise {
    /// # Panics
    /// If the program has no steps or more registers than programs may have.
    pub fn new(program: &Program, x: &[Type]) -> Pointwise {
        assert!(!program.steps.is_empty() && program.registers() <= REGISTERS, "{program:?}");
        assert_eq!(program.operands, x.len(), "operands of {program:?}");
        let layout = Layout::new(x);
        let slots = slots(program, &layout);
        Pointwise { steps: program.steps.clone(), layout, slots }
    }

    pub fn unary(u: Unary, x: &[Type]) -> Pointwise {
        Pointwise::single(Scalar::Unary(u), x)
    }

    pub fn unary_grad(u: Unary, x: &[Type]) -> Pointwise {
        Pointwise::single(Scalar::UnaryGrad(u), x)
    }

    pub fn binary(o: Binary, x: &[Type]) -> Pointwise {
        Pointwise::single(Scalar::Binary(o), x)
    }

    fn single(scalar: Scalar, x: &[Type]) -> Pointwise {
        let step = Step { scalar, a: 0, b: (x.len() - 1) as u8 };
        Pointwise::new(&Program { operands: x.len(), steps: vec![step] }, x)
    }
}

/// Scratch registers: one of its own for each operand that is laid out, and for the steps as few as
/// their lifetimes allow. A step may write over what it reads last.
fn slots(program: &Program, layout: &Layout) -> Vec<usize> {
    let operands = program.operands;
    let mut slots = vec![0; program.registers()];
    let mut used = 0;
    for (slot, operand) in slots.iter_mut().zip(&layout.operands) {
        if operand.form != Form::Direct {
            *slot = used;
            used += 1;
        }
    }
    let reads = |step: &Step, r: usize| {
        step.a as usize == r || (!matches!(step.scalar, Scalar::Unary(_)) && step.b as usize == r)
    };
    let last_read = |r: usize| program.steps.iter().rposition(|step| reads(step, r));
    let mut free = Vec::new();
    for i in 0..program.steps.len() {
        let dying = (operands..operands + i).filter(|&r| last_read(r) == Some(i));
        free.extend(dying.map(|r| slots[r]));
        slots[operands + i] = free.pop().unwrap_or_else(|| {
            used += 1;
            used - 1
        });
        if last_read(operands + i).is_none() && i + 1 < program.steps.len() {
            free.push(slots[operands + i]);
        }
    }
    slots
}

impl Prepared for Pointwise {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], _workspace: *mut f32) {
        let mut x = [Shares(std::ptr::null_mut()); REGISTERS];
        for (to, from) in x.iter_mut().zip(inputs) {
            *to = span::shared(*from);
        }
        let to = Shares(outputs[0]);
        let layout = &self.layout;
        // SAFETY: the caller's promise, and each task writes a part of its own.
        unsafe {
            span::split_with(cpu, layout.blocks(), layout.block_len(), |blocks| Blocks {
                kernel: self,
                x: &x,
                to,
                blocks,
            })
        };
    }
}

/// One task: some consecutive blocks.
struct Blocks<'a> {
    kernel: &'a Pointwise,
    x: &'a [Shares<f32>; REGISTERS],
    to: Shares<f32>,
    blocks: Range<usize>,
}

/// Scratch registers of a thread, on its stack.
#[repr(align(64))]
struct Scratch([MaybeUninit<f32>; REGISTERS * BLOCK]);

impl Kernel for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self, s: S) {
        let Pointwise { steps, layout, slots } = self.kernel;
        let mut scratch = Scratch([MaybeUninit::uninit(); REGISTERS * BLOCK]);
        let scratch: *mut f32 = scratch.0.as_mut_ptr().cast();
        let operands = layout.operands.len();
        // What a laid-out operand's register holds: the offset in the operand that it was made from.
        let mut held = [usize::MAX; REGISTERS];
        let mut r = [std::ptr::null::<f32>(); REGISTERS];
        for index in self.blocks.clone() {
            let block = layout.block(index);
            for i in 0..operands {
                // SAFETY: the layout gives offsets inside the operand, and a slot is BLOCK values.
                unsafe {
                    let slot = scratch.add(slots[i] * BLOCK);
                    r[i] = lay_out(s, layout, i, &block, self.x[i].at(0), slot, &mut held[i]);
                }
            }
            for (i, step) in steps.iter().enumerate() {
                let (a, b) = (r[step.a as usize], r[step.b as usize]);
                // SAFETY: every register holds a block's values; the output's block is this task's.
                unsafe {
                    let to = if i + 1 == steps.len() {
                        self.to.at(block.at)
                    } else {
                        scratch.add(slots[operands + i] * BLOCK)
                    };
                    steps::step(s, step.scalar, a, b, to, block.len());
                    r[operands + i] = to;
                }
            }
        }
    }
}

/// Where operand `i`'s values for a block lie one behind the other; makes it so where they do not.
///
/// # Safety
/// `x` is the operand, `slot` has room for a block.
#[inline(always)]
unsafe fn lay_out<S: Simd>(
    s: S,
    layout: &Layout,
    i: usize,
    block: &Block,
    x: *const f32,
    slot: *mut f32,
    held: &mut usize,
) -> *const f32 {
    let at = layout.offset(i, block);
    // SAFETY: the caller's promise.
    unsafe {
        match layout.operands[i].form {
            Form::Direct => return x.add(at),
            Form::Row if block.rows == 1 => return x.add(at),
            Form::Row => {
                if *held != at {
                    for row in 0..layout.block_rows {
                        span::copy(s, x.add(at), slot.add(row * layout.width), layout.width);
                    }
                }
            }
            Form::Splat => {
                if *held != at {
                    span::fill(s, *x.add(at), slot, BLOCK);
                }
            }
            Form::Column => {
                for row in 0..block.rows {
                    span::fill(s, *x.add(at + row), slot.add(row * block.width), block.width);
                }
            }
        }
    }
    *held = at;
    slot
}
