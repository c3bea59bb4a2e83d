//! Matrix products of the graph on the product kernel.

use super::Machine;
use super::operands::{Ending, Packing, Pieces};
use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::matmul::{MatmulDims, MatmulPlan};
use clearshot_graph::Type;
use clearshot_graph::ops::MatMul;

pub(super) struct Product {
    plan: MatmulPlan,
    packing: Packing,
    ending: Ending,
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
        let packing = Packing::new(plan.packed_len, constant, operands);
        Product { plan, packing, ending: Ending::new(bias, residual, op.act) }
    }
}

impl Prepared for Product {
    fn workspace_len(&self, _: usize) -> usize {
        self.packing.workspace_len() + self.plan.workspace_len
    }

    fn packed_len(&self) -> usize {
        self.packing.prepared_len()
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.plan.pack(cpu, inputs[1], packed) }
    }

    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let mut pieces = Pieces(workspace);
        // SAFETY: the caller's promise; the pieces are those that `workspace_len` counts.
        unsafe {
            let packed = self.packing.packed(inputs, &mut pieces, |to| self.plan.pack(cpu, inputs[1], to));
            let epilogue = self.ending.of(inputs);
            let scratch = pieces.take(self.plan.workspace_len);
            self.plan.run(cpu, inputs[0], inputs[1], packed, &epilogue, outputs[0], scratch);
        }
    }
}
