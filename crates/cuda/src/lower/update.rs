//! Updates of many tensors by one launch: optimisers with averages and 16-bit copies, sums of squares.
//!
//! A table on the GPU lists the tensors, another which stretch of which tensor each block takes; both are
//! written once, when a session is made.

use super::{Kernel, Node};
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::memory::Buffer;
use clearshot_graph::ops::{Adam, Clip, LossScale, Sgd};
use clearshot_tensor::DType;
use std::sync::Arc;

/// Elements of one block's stretch; the kernels' PIECE.
const PIECE: usize = 16_384;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Entry {
    pub param: u64,
    pub param_in: u64,
    pub grad: u64,
    pub first: u64,
    pub first_in: u64,
    pub second: u64,
    pub second_in: u64,
    pub average: u64,
    pub average_in: u64,
    pub narrow: u64,
    pub count: i64,
    pub grad_type: i32,
    pub narrow_type: i32,
}

/// How the kernels number float types.
pub(crate) fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::BF16 => 1,
        DType::F16 => 2,
        _ => 0,
    }
}

fn source() -> Source {
    Source::new("update", include_str!("../kernels/update.cu"))
}

/// Has the program compiled in the background.
pub(crate) fn begin(cx: &Context) -> Result<(), CudaError> {
    cx.function(&source(), "narrow").map(|_| ())
}

/// The tables of one launch.
pub(crate) struct Tables {
    entries: Buffer,
    pieces: Buffer,
    starts: Buffer,
    tensors: usize,
    blocks: usize,
}

fn bytes<T: Copy>(items: &[T]) -> &[u8] {
    // SAFETY: plain values without padding that matters, read as bytes.
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}

impl Tables {
    pub fn new(cx: &Arc<Context>, entries: &[Entry]) -> Result<Tables, CudaError> {
        let mut pieces: Vec<[i32; 2]> = vec![];
        let mut starts: Vec<i32> = vec![0];
        for (i, e) in entries.iter().enumerate() {
            let count = (e.count as usize).div_ceil(PIECE).max(1);
            pieces.extend((0..count).map(|p| [i as i32, p as i32]));
            starts.push(pieces.len() as i32);
        }
        let fill = |bytes: &[u8]| {
            let buffer = Buffer::new(cx, bytes.len())?;
            cx.synchronize()?;
            buffer.fill(bytes)?;
            Ok::<_, CudaError>(buffer)
        };
        Ok(Tables {
            entries: fill(bytes(entries))?,
            pieces: fill(bytes(&pieces))?,
            starts: fill(bytes(&starts))?,
            tensors: entries.len(),
            blocks: pieces.len(),
        })
    }

    fn params(&self) -> Params {
        Params::new().with(self.entries.start()).with(self.pieces.start())
    }
}

/// Scalars that an optimiser reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scalars {
    pub rate: u64,
    pub step: u64,
    pub factor: u64,
    /// The average's decay; 0 where there is no average.
    pub decay: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AdamRule {
    beta1: f32,
    beta2: f32,
    eps: f32,
    weight_decay: f32,
    decoupled: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SgdRule {
    momentum: f32,
    weight_decay: f32,
    nesterov: i32,
}

/// What a launch over tables does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Adam(Adam),
    Sgd(Sgd),
    Ema,
    /// 16-bit copies alone.
    Narrow,
}

/// A launch over tables, ready.
pub(crate) struct Joint {
    f: Function,
    rule: Rule,
    tables: Tables,
    scalars: Scalars,
}

impl Joint {
    pub fn new(
        cx: &Arc<Context>,
        rule: Rule,
        entries: &[Entry],
        scalars: Scalars,
    ) -> Result<Joint, CudaError> {
        let name = match rule {
            Rule::Adam(_) => "adam",
            Rule::Sgd(_) => "sgd",
            Rule::Ema => "ema",
            Rule::Narrow => "narrow",
        };
        let f = cx.function(&source(), name)?;
        Ok(Joint { f, rule, tables: Tables::new(cx, entries)?, scalars })
    }

    pub unsafe fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        let (p, s) = (self.tables.params(), &self.scalars);
        let p = match self.rule {
            Rule::Adam(a) => p
                .with(AdamRule {
                    beta1: a.beta1 as f32,
                    beta2: a.beta2 as f32,
                    eps: a.eps as f32,
                    weight_decay: a.weight_decay as f32,
                    decoupled: i32::from(a.decoupled),
                })
                .with(s.rate)
                .with(s.step)
                .with(s.factor)
                .with(s.decay),
            Rule::Sgd(a) => p
                .with(SgdRule {
                    momentum: a.momentum as f32,
                    weight_decay: a.weight_decay as f32,
                    nesterov: i32::from(a.nesterov),
                })
                .with(s.rate)
                .with(s.factor)
                .with(s.decay),
            Rule::Ema => p.with(s.factor).with(s.decay),
            Rule::Narrow => p,
        };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.f, [self.tables.blocks, 1], 256, 0, &p) }
    }
}

/// Sums of squares of many tensors.
pub(crate) struct Squares {
    first: Function,
    finish: Function,
    tables: Tables,
    partial: Buffer,
}

impl Squares {
    /// Each entry's `grad` is summed into its `param`.
    pub fn new(cx: &Arc<Context>, entries: &[Entry]) -> Result<Squares, CudaError> {
        let tables = Tables::new(cx, entries)?;
        let partial = Buffer::new(cx, tables.blocks * size_of::<f32>())?;
        Ok(Squares {
            first: cx.function(&source(), "squares")?,
            finish: cx.function(&source(), "squares_finish")?,
            tables,
            partial,
        })
    }

    pub unsafe fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        let p = self.tables.params().with(self.partial.start());
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.first, [self.tables.blocks, 1], 256, 0, &p) }?;
        let p = Params::new().with(self.tables.entries.start()).with(self.tables.starts.start());
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.finish, [self.tables.tensors, 1], 128, 0, &p.with(self.partial.start())) }
    }
}

/// The norm of all gradients and the factor for each, from sums at many addresses.
pub(crate) struct Clipping {
    f: Function,
    rule: Clip,
    scale: u64,
    outputs: [u64; 2],
    squares: Buffer,
    count: usize,
}

impl Clipping {
    pub fn new(
        cx: &Arc<Context>,
        rule: Clip,
        inputs: &[u64],
        outputs: [u64; 2],
    ) -> Result<Clipping, CudaError> {
        let squares = Buffer::new(cx, (inputs.len() - 1) * 8)?;
        cx.synchronize()?;
        squares.fill(bytes(&inputs[1..]))?;
        let f = cx.function(&source(), "clip")?;
        Ok(Clipping { f, rule, scale: inputs[0], outputs, squares, count: inputs.len() - 1 })
    }

    pub unsafe fn launch(&self, cx: &Context) -> Result<(), CudaError> {
        let p = Params::new().with(self.scale).with(self.squares.start()).with(self.count as i32);
        let p = p.with(self.rule.max_norm).with(i32::from(self.rule.max_norm.is_finite()));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.f, [1, 1], 256, 0, &p.with(self.outputs[0]).with(self.outputs[1])) }
    }
}

pub(super) fn loss_scale(n: &Node<'_>, a: &LossScale) -> Result<Kernel, CudaError> {
    let (f, a) = (n.cx.function(&source(), "loss_scale")?, *a);
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[1]).with(io.inputs[2]);
        let p = p.with(a.growth as f32).with(a.backoff as f32).with(a.interval as f32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [1, 1], 1, 0, &p.with(io.outputs[0]).with(io.outputs[1])) }
    }))
}

pub(super) fn count_step(n: &Node<'_>) -> Result<Kernel, CudaError> {
    let f = n.cx.function(&source(), "count_step")?;
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(io.inputs[0]).with(io.inputs[1]).with(io.outputs[0]);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [1, 1], 1, 0, &p) }
    }))
}
