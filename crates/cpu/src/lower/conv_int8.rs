//! Convolutions in 8 bits of the graph on their kernel.

use super::conv::{Reader, dims, sizes};
use super::{Machine, Pieces, act, padded, read};
use crate::Cpu;
use crate::act::Act;
use crate::kernels::Prepared;
use crate::kernels::conv::{Epilogue, Int8Plan, Reading};
use clearshot_graph::Type;
use clearshot_graph::ops::conv::seen_size;
use clearshot_graph::ops::{self, Bias, Int8};

pub(super) struct Forward {
    plan: Int8Plan,
    reader: Reader,
    at: ops::conv::ConvOperands,
    bias: Bias,
    act: Act,
    constant: bool,
}

impl Forward {
    pub(super) fn new(op: &ops::Conv, x: &[Type], constant: bool, m: Machine) -> Forward {
        let at = op.operands();
        let reader = Reader::new(&x[..op.parts], op.prologue);
        let weight = x[at.weight].shape;
        let input = seen_size(sizes(x[0].shape), weight.rank(), op.upsample);
        let output = op.geometry.output(input, sizes(weight)).expect("checked when the node was built");
        let dims = dims(&op.geometry, x[0].shape[0], input, reader.channels(), output, weight);
        let how = Reading { dynamic: op.int8 == Some(Int8::Dynamic), upsample: op.upsample };
        let plan = Int8Plan::new(&dims, how, m.level);
        Forward { plan, reader, at, bias: op.bias, act: act(op.act), constant }
    }
}

impl Prepared for Forward {
    fn workspace_len(&self, _: usize) -> usize {
        let packed = if self.constant { 0 } else { padded(self.plan.packed_len) };
        self.reader.workspace_len() + packed + self.plan.workspace_len
    }

    fn packed_len(&self) -> usize {
        if self.constant { self.plan.packed_len } else { 0 }
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        let steps = self.at.steps.map(|i| inputs[i]);
        // SAFETY: the caller's promise.
        unsafe { self.plan.pack(cpu, inputs[self.at.weight], steps, packed) }
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let source = self.reader.source(cpu, inputs, &mut pieces);
            let packed: &[f32] = if self.constant {
                read(inputs[self.at.count], self.plan.packed_len)
            } else {
                let packed = pieces.take(self.plan.packed_len);
                self.pack(cpu, inputs, packed);
                packed
            };
            let epilogue = Epilogue {
                bias: self.at.bias.map(|i| inputs[i]),
                bias_per_sample: self.bias == Bias::Sample,
                residual: self.at.residual.map(|i| inputs[i]),
                act: self.act,
            };
            let scratch = pieces.take(self.plan.workspace_len);
            self.plan.run(cpu, &source, packed, &epilogue, outputs[0], scratch);
        }
    }
}
