//! Matrix products of the graph on the product kernel.

use super::{Machine, Pieces, act, padded, read};
use crate::Cpu;
use crate::act::Act;
use crate::kernels::Prepared;
use crate::kernels::conv::Epilogue;
use crate::kernels::matmul::{MatmulDims, MatmulPlan};
use clearshot_graph::Type;
use clearshot_graph::ops::MatMul;

pub(super) struct Product {
    plan: MatmulPlan,
    bias: Option<usize>,
    residual: Option<usize>,
    act: Act,
    operands: usize,
    constant: bool,
}

impl Product {
    pub(super) fn new(op: &MatMul, x: &[Type], constant: bool, m: Machine) -> Product {
        let s = op.sizes(x[0].shape, x[1].shape).expect("checked when the node was built");
        let dims = MatmulDims {
            batch: s.batch,
            m: s.m,
            n: s.n,
            k: s.k,
            lda: if op.transpose_a { s.m } else { s.k },
            ldb: if op.transpose_b { s.k } else { s.n },
            ldc: s.n,
            a_transposed: op.transpose_a,
            b_transposed: op.transpose_b,
            b_shared: s.shared || s.batch == 1,
        };
        let (bias, residual, operands) = op.operands();
        let plan = MatmulPlan::new(&dims, m.factors(), m.threads);
        Product { plan, bias, residual, act: act(op.act), operands, constant }
    }
}

impl Prepared for Product {
    fn workspace_len(&self, _: usize) -> usize {
        let packed = if self.constant { 0 } else { padded(self.plan.packed_len) };
        packed + self.plan.workspace_len
    }

    fn packed_len(&self) -> usize {
        if self.constant { self.plan.packed_len } else { 0 }
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.plan.pack(cpu, inputs[1], packed) }
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let packed: &[f32] = if self.packed_len() > 0 {
                read(inputs[self.operands], self.plan.packed_len)
            } else {
                let packed = pieces.take(if self.constant { 0 } else { self.plan.packed_len });
                if !packed.is_empty() {
                    self.plan.pack(cpu, inputs[1], packed);
                }
                packed
            };
            let epilogue = Epilogue {
                bias: self.bias.map(|i| inputs[i]),
                bias_per_sample: false,
                residual: self.residual.map(|i| inputs[i]),
                act: self.act,
            };
            let scratch = pieces.take(self.plan.workspace_len);
            self.plan.run(cpu, inputs[0], inputs[1], packed, &epilogue, outputs[0], scratch);
        }
    }
}
