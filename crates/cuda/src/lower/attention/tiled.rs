//! Attention by tiles of queries and keys, never holding all of their products.
//!
//! In 16 bits and in TF32 the products are the tensor cores'; in fp32 they are plain multiply-adds. Several tile sizes
//! are compiled and the fastest for the shape is kept.

use super::Problem;
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, vector};
use clearshot_tensor::DType;
use std::borrow::Cow;
use std::sync::Arc;

pub(super) const PRELUDE: &str =
    concat!(include_str!("../../kernels/half.cu"), include_str!("../../kernels/attention/prelude.cu"));
const FORWARD: &str = include_str!("../../kernels/attention/forward.cu");
const BACKWARD: &str = include_str!("../../kernels/attention/backward.cu");
const SINGLE: &str = concat!(
    include_str!("../../kernels/attention/delta.cu"),
    include_str!("../../kernels/attention/single.cu")
);
const TF32: &str = concat!(
    include_str!("../../kernels/half.cu"),
    include_str!("../../kernels/attention/delta.cu"),
    include_str!("../../kernels/attention/tf32.cu")
);

/// Rows of a block: 16 for each warp and tile of it; columns: what it holds of the other side at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    warps: usize,
    tiles: usize,
    columns: usize,
}

fn tile(warps: usize, tiles: usize, columns: usize) -> Tile {
    Tile { warps, tiles, columns }
}

impl Tile {
    fn rows(&self) -> usize {
        16 * self.warps * self.tiles
    }

    fn define(&self, source: Source, name: &str, columns: &str) -> Source {
        source
            .define(&format!("{name}_WARPS"), self.warps)
            .define(&format!("{name}_MT"), self.tiles)
            .define(&format!("{name}_{columns}"), self.columns)
    }
}

pub(super) fn forward_tiles(p: &Problem) -> Vec<Tile> {
    match p.head {
        _ if p.tf32 => p.tf32_columns().map(|columns| tile(4, 1, columns)).to_vec(),
        _ if p.single() => vec![tile(4, 1, p.single_tile())],
        8 => vec![tile(4, 2, 256), tile(4, 1, 256)],
        16 | 32 => vec![tile(4, 2, 64), tile(4, 1, 64)],
        64 => vec![tile(8, 2, 64), tile(4, 2, 64), tile(4, 1, 64)],
        _ => vec![tile(8, 1, 64), tile(4, 1, 64)],
    }
}

/// For keys and values, and for queries.
pub(super) fn backward_tiles(p: &Problem) -> Vec<(Tile, Tile)> {
    match p.head {
        _ if p.tf32 => p.tf32_columns().map(|columns| (tile(4, 1, columns), tile(4, 1, columns))).to_vec(),
        _ if p.single() => vec![(tile(4, 1, p.single_tile()), tile(4, 1, p.single_tile()))],
        8 => vec![(tile(4, 2, 128), tile(4, 2, 128)), (tile(4, 3, 128), tile(4, 2, 128))],
        16 | 32 => vec![(tile(4, 2, 64), tile(4, 2, 64)), (tile(4, 1, 64), tile(4, 1, 64))],
        64 => vec![(tile(4, 2, 64), tile(4, 2, 64)), (tile(4, 1, 64), tile(4, 1, 64))],
        _ => vec![(tile(8, 1, 64), tile(4, 1, 64)), (tile(4, 1, 64), tile(4, 1, 64))],
    }
}

impl Problem {
    /// Rows and columns of a tile of the fp32 kernels.
    fn single_tile(&self) -> usize {
        if self.head > 64 { 32 } else { 64 }
    }

    /// Columns of tiles of TF32, of which the smaller fit into the shared memory of every card.
    fn tf32_columns(&self) -> [usize; 2] {
        if self.head > 64 { [32, 16] } else { [64, 32] }
    }

    fn pitch(&self) -> usize {
        if self.head == 8 { 8 } else { self.head + 8 }
    }

    /// `columns` of the fp32 kernels' tiles.
    fn source(&self, backward: bool, columns: usize) -> Source {
        let text = match (self.single(), backward) {
            (true, _) if self.tf32 => TF32.into(),
            (true, _) => SINGLE.into(),
            (false, false) => format!("{PRELUDE}\n{FORWARD}"),
            (false, true) => format!("{PRELUDE}\n{BACKWARD}"),
        };
        let source = Source { file: "attention", text: Cow::Owned(text), prelude: false, options: vec![] };
        let source = source
            .define("HEAD_DIM", self.head)
            .define("D", self.s.d)
            .define("VEC", vector(self.dtype, &[self.s.d]))
            .option("-default-device");
        match self.dtype {
            DType::F32 if self.tf32 => source.define("TILE", columns).option("-DELEM_TF32"),
            DType::F32 => source.define("TILE", columns),
            DType::F16 => source.option("-DELEM_FP16"),
            _ => source.option("-DELEM_BF16"),
        }
    }

    fn forward_work(&self) -> usize {
        let keys = self.s.keys.next_multiple_of(256);
        if self.head == 8 && !self.single() { self.pairs() * (keys * 32 + 256) } else { 0 }
    }

    fn delta_bytes(&self) -> usize {
        (2 * self.pairs() * self.s.queries * size_of::<f32>()).next_multiple_of(256)
    }

    fn backward_work(&self) -> usize {
        let (queries, keys) = (self.s.queries.next_multiple_of(256), self.s.keys.next_multiple_of(256));
        if self.head == 8 && !self.single() { self.pairs() * (256 + 32 * keys + 48 * queries) } else { 0 }
    }
}

struct Forward {
    p: Problem,
    prepare: Option<Function>,
    main: Function,
    rows: usize,
    threads: usize,
    shared: usize,
}

impl Forward {
    fn new(cx: &Arc<Context>, p: Problem, t: Tile) -> Result<Forward, CudaError> {
        let source = p.source(false, t.columns);
        let source = if p.single() { source } else { t.define(source, "FWD", "KEYS") };
        let special = p.head == 8 && !p.single();
        let prepare = if special { Some(cx.function(&source, "attention_prepare")?) } else { None };
        let main = cx.function(&source, "attention_forward")?;
        let (rows, threads, shared) = if p.tf32 {
            (t.rows(), 128, 2 * t.columns * (p.head + 4) * 4)
        } else if p.single() {
            let t = t.columns;
            (t, 128, (3 * t * (p.head + 4) + t * (t + 4)) * 4)
        } else {
            (t.rows(), 32 * t.warps, 8 * t.columns * p.pitch())
        };
        Ok(Forward { p, prepare, main, rows, threads, shared })
    }

    unsafe fn launch(&self, cx: &Context, x: &[u64], o: u64, lse: u64, work: u64) -> Result<(), CudaError> {
        let p = &self.p;
        let (heads, sq, sk, row) = (p.heads as i32, p.s.queries as i32, p.s.keys as i32, p.row());
        if let Some(prepare) = self.prepare {
            let a = Params::new().with(x[1]).with(x[2]).with(work).with(heads).with(sk).with(row).with(row);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(prepare, [p.pairs(), 1], 256, 0, &a) }?;
        }
        let a = Params::new().with(x[0]).with(x[1]).with(x[2]).with(o).with(lse).with(work);
        let a = a.with(heads).with(sq).with(sk).with(row).with(row).with(row).with(row).with(p.scale);
        let blocks = p.s.queries.div_ceil(self.rows) * p.pairs();
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.main, [blocks, 1], self.threads, self.shared, &a) }
    }
}

struct Backward {
    p: Problem,
    delta: Function,
    prepare: Option<Function>,
    keys: Function,
    queries: Function,
    rows: [usize; 2],
    threads: [usize; 2],
    shared: [usize; 2],
}

impl Backward {
    fn new(cx: &Arc<Context>, p: Problem, (kv, q): (Tile, Tile)) -> Result<Backward, CudaError> {
        let source = p.source(true, kv.columns);
        let source =
            if p.single() { source } else { q.define(kv.define(source, "KV", "QUERIES"), "DQ", "KEYS") };
        let special = p.head == 8 && !p.single();
        let prepare = if special { Some(cx.function(&source, "attention_backward_prepare")?) } else { None };
        let (rows, threads, shared) = if p.tf32 {
            let rows = kv.rows();
            ([rows; 2], [128; 2], [(2 * (rows + kv.columns) * (p.head + 4) + 2 * kv.columns) * 4; 2])
        } else if p.single() {
            let t = kv.columns;
            ([t; 2], [128; 2], [(4 * t * (p.head + 4) + 2 * t * (t + 4)) * 4; 2])
        } else {
            let shared = [8 * kv.columns * p.pitch() + 32 * kv.columns, 8 * q.columns * p.pitch()];
            ([kv.rows(), q.rows()], [32 * kv.warps, 32 * q.warps], shared)
        };
        Ok(Backward {
            p,
            delta: cx.function(&source, "attention_delta")?,
            prepare,
            keys: cx.function(&source, "attention_backward_kv")?,
            queries: cx.function(&source, "attention_backward_q")?,
            rows,
            threads,
            shared,
        })
    }

    /// `x`: q, k, v, o, lse, do; `y`: dq, dk, dv.
    unsafe fn launch(&self, cx: &Context, x: &[u64], y: &[u64], workspace: u64) -> Result<(), CudaError> {
        let p = &self.p;
        let (heads, sq, sk, row) = (p.heads as i32, p.s.queries as i32, p.s.keys as i32, p.row());
        let rows = p.pairs() * p.s.queries;
        let (delta, work) = (workspace, workspace + p.delta_bytes() as u64);
        let a = Params::new().with(x[3]).with(x[5]).with(x[4]).with(delta);
        let a = a.with(heads).with(sq).with(row).with(row).with(rows as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.delta, [rows.div_ceil(256), 1], 256, 0, &a) }?;
        let operands = || Params::new().with(x[0]).with(x[1]).with(x[2]).with(x[5]).with(delta);
        let sizes = |a: Params| a.with(heads).with(sq).with(sk).with(row).with(row).with(row).with(row);
        if let Some(prepare) = self.prepare {
            let a = sizes(operands().with(work)).with(p.scale).with(rows as i64);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(prepare, [p.pairs(), 1], 512, 0, &a) }?;
        }
        let a = sizes(operands().with(y[1]).with(y[2]).with(work)).with(row).with(row);
        let blocks = p.s.keys.div_ceil(self.rows[0]) * p.pairs();
        let a = a.with(p.scale).with(rows as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.keys, [blocks, 1], self.threads[0], self.shared[0], &a) }?;
        let a = sizes(operands().with(y[0]).with(work)).with(row).with(p.scale).with(rows as i64);
        let blocks = p.s.queries.div_ceil(self.rows[1]) * p.pairs();
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.queries, [blocks, 1], self.threads[1], self.shared[1], &a) }
    }
}

/// The kernel of a forward tile: from q, k, v to o and lse.
pub(super) fn forward(cx: &Arc<Context>, p: Problem, t: Tile) -> Result<Kernel, CudaError> {
    let f = Forward::new(cx, p, t)?;
    Ok(Kernel::new(p.forward_work(), move |cx, io| {
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { f.launch(cx, io.inputs, io.outputs[0], io.outputs[1], io.workspace) }
    }))
}

/// The kernels of backward tiles: from q, k, v, o, lse, do to dq, dk, dv.
pub(super) fn backward(cx: &Arc<Context>, p: Problem, t: (Tile, Tile)) -> Result<Kernel, CudaError> {
    let f = Backward::new(cx, p, t)?;
    let work = p.delta_bytes() + p.backward_work();
    // SAFETY: the promise of `Kernel::launch`.
    Ok(Kernel::new(work, move |cx, io| unsafe { f.launch(cx, io.inputs, io.outputs, io.workspace) }))
}
