//! What convolutions and products have in common around their kernels: pieces of a workspace, the packed side, and the end of a result.

use super::act;
use crate::act::Act;
use crate::kernels::conv::Epilogue;
use clearshot_graph::ops::Unary;

/// Values in whole cache lines, so that pieces of a workspace do not share one.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// A workspace handed out piece by piece.
pub(super) struct Pieces(pub *mut f32);

impl Pieces {
    /// # Safety
    /// The workspace has `len` more values, padded, and lives for `'a`.
    pub unsafe fn take<'a>(&mut self, len: usize) -> &'a mut [f32] {
        let start = self.0;
        // SAFETY: the caller's promise.
        unsafe {
            self.0 = start.add(padded(len));
            std::slice::from_raw_parts_mut(start, len)
        }
    }
}

/// # Safety
/// `len` values can be read at `p` for `'a`.
pub(super) unsafe fn read<'a>(p: *const f32, len: usize) -> &'a [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(p, len) }
}

/// # Safety
/// `len` values can be written at `p`, and nobody else uses them, for `'a`.
pub(super) unsafe fn write<'a>(p: *mut f32, len: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(p, len) }
}

/// Where the side of a product lies that kernels read in an order of their own. One that never changes is packed once, into memory that the
/// plan calls prepared and that is handed over as one more operand; any other is packed on every run, into the workspace.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    len: usize,
    /// The operand behind the node's own.
    prepared: Option<usize>,
}

impl Packing {
    /// Of `len` values, for a node of so many operands.
    pub fn new(len: usize, constant: bool, operands: usize) -> Packing {
        Packing { len, prepared: (constant && len > 0).then_some(operands) }
    }

    pub fn workspace_len(&self) -> usize {
        if self.prepared.is_some() { 0 } else { padded(self.len) }
    }

    pub fn prepared_len(&self) -> usize {
        if self.prepared.is_some() { self.len } else { 0 }
    }

    /// What is packed, by `pack` where it has to be done now.
    ///
    /// # Safety
    /// `inputs` are the node's, the prepared one behind them; the pieces have `workspace_len` values.
    pub unsafe fn packed<'a>(
        &self,
        inputs: &[*const f32],
        pieces: &mut Pieces,
        pack: impl FnOnce(&mut [f32]),
    ) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe {
            match self.prepared {
                Some(at) => read(inputs[at], self.len),
                None => {
                    let packed = pieces.take(self.len);
                    pack(packed);
                    packed
                }
            }
        }
    }
}

/// Which operands an epilogue reads.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    bias: Option<usize>,
    bias_per_sample: bool,
    residual: Option<usize>,
    act: Act,
}

impl Ending {
    pub fn new(bias: Option<usize>, residual: Option<usize>, activation: Option<Unary>) -> Ending {
        Ending { bias, bias_per_sample: false, residual, act: act(activation) }
    }

    /// With a bias of each sample.
    pub fn per_sample(self, bias_per_sample: bool) -> Ending {
        Ending { bias_per_sample, ..self }
    }

    pub fn of(&self, inputs: &[*const f32]) -> Epilogue {
        Epilogue {
            bias: self.bias.map(|i| inputs[i]),
            bias_per_sample: self.bias_per_sample,
            residual: self.residual.map(|i| inputs[i]),
            act: self.act,
        }
    }
}
