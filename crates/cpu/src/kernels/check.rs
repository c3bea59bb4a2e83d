//! What the tests of kernels share: a node's kernel is run at every level with 1, 2 and 3 threads and
//! compared with the node's meaning.

use super::{Prepared, prepare};
use crate::Cpu;
use crate::simd::Level;
use clearshot_graph::{Array, Op, Type};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape};

/// The error that kernels of well-conditioned functions are held to, as relative L2 norm.
pub(super) const CLOSE: f64 = 2e-6;

/// An operand: its type and its values, which are exact in `f32`.
#[derive(Clone)]
pub(super) struct Operand {
    ty: Type,
    array: Array,
}

impl Operand {
    pub fn new(shape: impl Into<Shape>, f: impl Fn(usize) -> f64) -> Operand {
        let shape = shape.into();
        let data = (0..shape.len()).map(|i| f64::from(f(i) as f32)).collect();
        Operand { ty: Type::f32(shape), array: Array::new(shape, data) }
    }

    /// Normal values that differ from seed to seed.
    pub fn normal(shape: impl Into<Shape>, seed: u64) -> Operand {
        let key = Key { seed, step: 1, stream: 2 };
        Operand::new(shape, |i| f64::from(key.normal(i as u64)))
    }

    /// Values between `low` and `high`.
    pub fn between(shape: impl Into<Shape>, seed: u64, low: f64, high: f64) -> Operand {
        let key = Key { seed, step: 2, stream: 2 };
        Operand::new(shape, |i| low + (high - low) * f64::from(key.uniform(i as u64)))
    }

    pub fn whole(shape: impl Into<Shape>, f: impl Fn(usize) -> i32) -> Operand {
        let shape = shape.into();
        let data = (0..shape.len()).map(|i| f64::from(f(i))).collect();
        Operand { ty: Type::i32(shape), array: Array::new(shape, data) }
    }

    pub fn scalar(x: f64) -> Operand {
        Operand::new(Shape::SCALAR, |_| x)
    }

    fn words(&self) -> Vec<f32> {
        words(self.ty.dtype, &self.array)
    }
}

/// The bits that a kernel sees of an array.
fn words(dtype: DType, array: &Array) -> Vec<f32> {
    let word = |&v: &f64| if dtype == DType::I32 { f32::from_bits(v as i32 as u32) } else { v as f32 };
    array.data.iter().map(word).collect()
}

/// Outputs of one run, with `in_place[o]` the operand that output o takes the place of.
fn run(
    kernel: &dyn Prepared,
    cpu: &Cpu,
    x: &[Operand],
    outs: &[Type],
    in_place: &[Option<usize>],
) -> Vec<Vec<f32>> {
    let mut inputs: Vec<Vec<f32>> = x.iter().map(Operand::words).collect();
    let mut fresh: Vec<Vec<f32>> = outs.iter().map(|t| vec![f32::NAN; t.shape.len()]).collect();
    let mut workspace = vec![f32::NAN; kernel.workspace_len(cpu.pool.threads())];
    let mut outputs: Vec<*mut f32> = fresh.iter_mut().map(|v| v.as_mut_ptr()).collect();
    let pointers: Vec<*mut f32> = inputs.iter_mut().map(|v| v.as_mut_ptr()).collect();
    for (o, place) in in_place.iter().enumerate() {
        if let Some(i) = place {
            outputs[o] = pointers[*i];
        }
    }
    let pointers: Vec<*const f32> = pointers.into_iter().map(<*mut f32>::cast_const).collect();
    // SAFETY: buffers of the operands' and results' sizes.
    unsafe { kernel.run(cpu, &pointers, &outputs, workspace.as_mut_ptr()) };
    let result = |(o, buffer): (usize, Vec<f32>)| match in_place.get(o).copied().flatten() {
        Some(i) => inputs[i].clone(),
        None => buffer,
    };
    fresh.into_iter().enumerate().map(result).collect()
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|o| o.iter().map(|v| v.to_bits()).collect()).collect()
}

/// Checks a node at every level and number of threads, and in place where `in_place` names operands.
#[track_caller]
pub(super) fn check(op: &Op, x: &[Operand], in_place: &[Option<usize>], tolerance: f64) {
    let types: Vec<Type> = x.iter().map(|o| o.ty).collect();
    let outs = op.infer(&types).expect("a node that fits");
    let truth = op.eval(&x.iter().map(|o| &o.array).collect::<Vec<_>>());
    let kernel = prepare(op, &types).expect("an op of these families");
    for level in Level::available() {
        let mut first: Option<Vec<Vec<u32>>> = None;
        for threads in 1..=3 {
            let cpu = Cpu::with_level(threads, level);
            for place in [&[], in_place] {
                let y = run(&*kernel, &cpu, x, &outs, place);
                let what = format!("{op:?} of {types:?}, {level:?}, {threads} threads, in place {place:?}");
                match &first {
                    None => compare(&y, &outs, &truth, tolerance, &what),
                    Some(bits_of_first) => assert!(bits(&y) == *bits_of_first, "other bits: {what}"),
                }
                first.get_or_insert_with(|| bits(&y));
            }
        }
    }
}

#[track_caller]
fn compare(y: &[Vec<f32>], outs: &[Type], truth: &[Array], tolerance: f64, what: &str) {
    for ((y, ty), truth) in y.iter().zip(outs).zip(truth) {
        if tolerance == 0.0 {
            let expected = words(ty.dtype, truth);
            let same = y.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "not exact: {what}");
            continue;
        }
        // NaN and infinity must be where the truth has them, and are left out of the norm.
        let finite = |v: f64| if v.is_finite() { v } else { 0.0 };
        let got = Array::new(truth.shape, y.iter().map(|&v| f64::from(v)).collect());
        let alike =
            |(a, b): (&f64, &f64)| a.is_nan() == b.is_nan() && (a.is_finite() || a.is_nan() || a == b);
        assert!(got.data.iter().zip(&truth.data).all(alike), "infinite or not a number: {what}");
        let error = got.map(finite).relative_error(&truth.map(finite));
        assert!(error <= tolerance, "error {error:e}: {what}");
    }
}
