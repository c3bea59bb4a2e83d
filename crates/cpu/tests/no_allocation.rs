//! A kernel that was prepared runs without asking the allocator for anything.

use clearshot_cpu::Cpu;
use clearshot_cpu::kernels::prepare;
use clearshot_graph::ops::*;
use clearshot_graph::{Op, Type};
use clearshot_tensor::{DType, Shape};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator during the second of two runs.
fn calls(cpu: &Cpu, op: &Op, x: &[Type]) -> usize {
    let outs = op.infer(x).expect("a node that fits");
    let kernel = prepare(op, x).expect("an op with a prepared kernel");
    let inputs: Vec<Vec<f32>> = x.iter().map(|t| vec![0.0; t.shape.len()]).collect();
    let mut outputs: Vec<Vec<f32>> = outs.iter().map(|t| vec![0.0; t.shape.len()]).collect();
    let mut workspace = vec![0.0f32; kernel.workspace_len(cpu.threads())];
    let from: Vec<*const f32> = inputs.iter().map(|v| v.as_ptr()).collect();
    let to: Vec<*mut f32> = outputs.iter_mut().map(|v| v.as_mut_ptr()).collect();
    let mut before = 0;
    for _ in 0..2 {
        before = CALLS.load(Relaxed);
        // SAFETY: buffers of the operands' and results' sizes.
        unsafe { kernel.run(cpu, &from, &to, workspace.as_mut_ptr()) };
    }
    CALLS.load(Relaxed) - before
}

/// One node of each kind, large enough for several tasks.
fn nodes() -> Vec<(Op, Vec<Type>)> {
    let x = Type::f32([2, 48, 40, 16]);
    let scalar = Type::f32(Shape::SCALAR);
    let mut pad = [[0; 2]; 6];
    pad[1] = [1, 2];
    let pad = Pad { pad, mode: PadMode::Reflect };
    let pool = max_pool();
    let half = Type::f32([2, 24, 20, 16]);
    let resize = ResizeMode::Linear;
    let step = Step { scalar: Scalar::Binary(Binary::Mul), a: 0, b: 1 };
    let program = Arc::new(Program { operands: 2, steps: vec![step] });
    let adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: true };
    let noise = Noise { kind: NoiseKind::Normal, shape: x.shape };
    vec![
        (Op::CyclicConv(CyclicConv { adjoint: true }), vec![x, Type::f32([48, 40])]),
        (Op::Softmax, vec![x]),
        (Op::Unary(Unary::Gelu), vec![x]),
        (Op::UnaryGrad(Unary::PowScalar(2.5)), vec![x, x]),
        (Op::Binary(Binary::Add), vec![x, Type::f32([16])]),
        (Op::Pointwise(program), vec![x, Type::f32([2, 1, 1, 16])]),
        (Op::Cast(DType::I32), vec![x]),
        (Op::Reduce(Reduce::new(ReduceKind::Sum, &[0, 1, 2])), vec![x]),
        (Op::Reduce(Reduce::new(ReduceKind::Mean, &[0, 2])), vec![x]),
        (Op::Transpose(Transpose::new(&[0, 3, 1, 2])), vec![x]),
        (Op::Broadcast(x.shape), vec![Type::f32([16])]),
        (Op::Concat(Concat { axis: 3 }), vec![x, x]),
        (Op::Slice(Slice { axis: 1, start: 3, len: 40 }), vec![x]),
        (Op::Pad(pad), vec![x]),
        (Op::PadGrad(pad), vec![x]),
        (Op::Resize(Resize { mode: resize, size: [1, 70, 70] }), vec![x]),
        (Op::ResizeGrad(ResizeGrad { mode: resize, input: [1, 24, 20] }), vec![x]),
        (Op::Pool(pool), vec![x]),
        (Op::PoolGrad(PoolGrad { pool, input: [1, 48, 40] }), vec![x, half]),
        (Op::Gather, vec![Type::f32([9, 64]), Type::i32([500])]),
        (Op::GatherGrad(GatherGrad { rows: 9 }), vec![Type::i32([500]), Type::f32([500, 64])]),
        (Op::Noise(noise), vec![Type::i32([2, 4])]),
        (Op::Dropout(Dropout { rate: 0.1 }), vec![x, Type::i32([4])]),
        (Op::Clip(Clip { max_norm: 1.0 }), vec![scalar; 3]),
        (Op::Adam(adam), vec![x, x, x, x, scalar, scalar, scalar]),
        (Op::Sgd(Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 }), vec![x, x, x, scalar, scalar]),
        (Op::Ema, vec![x, x, scalar, scalar]),
        (Op::LossScale(LossScale { growth: 2.0, backoff: 0.5, interval: 10.0 }), vec![scalar; 3]),
        (Op::CountStep, vec![scalar; 2]),
        (Op::AllReduceBegin(AllReduceBegin { bucket: 0 }), vec![x, scalar]),
        (Op::AllReduceEnd(AllReduceEnd { bucket: 0, at: 0 }), vec![scalar, x]),
    ]
}

fn max_pool() -> Pool {
    Pool { kind: PoolKind::Max, kernel: [1, 2, 2], geometry: Geometry::new(2, 2, 0) }
}

#[test]
fn running_allocates_nothing() {
    let cpu = Cpu::new(2);
    for (op, x) in nodes() {
        assert_eq!(calls(&cpu, &op, &x), 0, "{}", op.name());
    }
}
