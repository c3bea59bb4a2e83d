//! Attention of the graph on the attention kernels.

use super::Machine;
use super::operands::{read, write};
use crate::Cpu;
use crate::kernels::Prepared;
use crate::kernels::attention::{self, AttentionDims, Gradients, Rows, RowsMut};
use crate::simd::factors::Multiply;
use clearshot_graph::Type;
use clearshot_graph::ops::Attention;

fn dims(op: &Attention, x: &[Type]) -> AttentionDims {
    let s = op.sizes(x[0].shape, x[1].shape, x[2].shape).expect("checked when the node was built");
    AttentionDims {
        batch: s.batch,
        heads: op.heads,
        sq: s.queries,
        sk: s.keys,
        d: s.d,
        dv: s.dv,
        scale: op.scale as f32,
    }
}

/// The lengths and row lengths of q, k, v and o.
fn extents(d: &AttentionDims) -> [(usize, usize); 4] {
    let (q, v) = (d.heads * d.d, d.heads * d.dv);
    let (queries, keys) = (d.batch * d.sq, d.batch * d.sk);
    [(queries * q, q), (keys * q, q), (keys * v, v), (queries * v, v)]
}

/// # Safety
/// The extent can be read at `p`.
unsafe fn rows<'a>(p: *const f32, (len, stride): (usize, usize)) -> Rows<'a> {
    // SAFETY: the caller's promise.
    Rows { data: unsafe { read(p, len) }, stride }
}

/// # Safety
/// The extent can be written at `p`.
unsafe fn rows_mut<'a>(p: *mut f32, (len, stride): (usize, usize)) -> RowsMut<'a> {
    // SAFETY: the caller's promise.
    RowsMut::new(unsafe { write(p, len) }, stride)
}

pub(super) struct Forward {
    dims: AttentionDims,
    factors: Multiply,
}

impl Forward {
    pub(super) fn new(op: &Attention, x: &[Type], machine: Machine) -> Forward {
        Forward { dims: dims(op, x), factors: machine.factors() }
    }
}

impl Prepared for Forward {
    fn workspace_len(&self, threads: usize) -> usize {
        attention::forward_workspace(&self.dims, threads)
    }

    unsafe fn run(&self, cpu: &Cpu, x: &[*const f32], y: &[*mut f32], workspace: *mut f32) {
        let d = &self.dims;
        let [q, k, v, o] = extents(d);
        // SAFETY: the caller's promise.
        unsafe {
            let lse = write(y[1], d.batch * d.heads * d.sq);
            let workspace = write(workspace, self.workspace_len(cpu.pool.threads()));
            attention::forward(
                cpu,
                self.factors,
                d,
                rows(x[0], q),
                rows(x[1], k),
                rows(x[2], v),
                rows_mut(y[0], o),
                lse,
                workspace,
            );
        }
    }
}

pub(super) struct Backward(AttentionDims);

impl Backward {
    pub(super) fn new(op: &Attention, x: &[Type]) -> Backward {
        Backward(dims(op, x))
    }
}

impl Prepared for Backward {
    fn workspace_len(&self, threads: usize) -> usize {
        attention::backward_workspace(&self.0, threads)
    }

    unsafe fn run(&self, cpu: &Cpu, x: &[*const f32], y: &[*mut f32], workspace: *mut f32) {
        let d = &self.0;
        let [q, k, v, o] = extents(d);
        // SAFETY: the caller's promise.
        unsafe {
            let lse = read(x[4], d.batch * d.heads * d.sq);
            let gradients = Gradients { dq: rows_mut(y[0], q), dk: rows_mut(y[1], k), dv: rows_mut(y[2], v) };
            let workspace = write(workspace, self.workspace_len(cpu.pool.threads()));
            attention::backward(
                cpu,
                d,
                rows(x[0], q),
                rows(x[1], k),
                rows(x[2], v),
                rows(x[3], o),
                lse,
                rows(x[5], o),
                gradients,
                workspace,
            );
        }
    }
}
