//! Attention whose products are taken by warpgroups: heads of 64 in 16 bits, on cards of compute capability 9.0.
//!
//! Tiles come by the card's tensor memory unit, which is told of each tensor by a map that the driver encodes.

use super::Problem;
use super::tiled::PRELUDE;
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, maps};
use clearshot_tensor::DType;
use std::borrow::Cow;
use std::sync::Arc;

const WARPGROUP: &str = include_str!("../../kernels/warpgroup.cu");
const FORWARD: &str = include_str!("../../kernels/attention/warpgroup_forward.cu");
const BACKWARD: &str = include_str!("../../kernels/attention/warpgroup_backward.cu");

const HEAD: usize = 64;
/// Threads of a warpgroup, and rows that it takes at a time.
const THREADS: usize = 128;
const ROWS: usize = 64;
/// Bytes of a row of a tile in shared memory, and what tiles there are aligned to.
const ROW_BYTES: usize = 128;
const ALIGNMENT: usize = 1024;
/// Keys that forward takes at a time and a block of backward owns; queries that backward takes at a time.
const KEYS: usize = 128;
const QUERIES: usize = 128;

/// Warpgroups of a block, with 64 queries each; how many tiles of keys and values are held; whether scores are
/// asked for before the last tile's values are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardTile {
    groups: usize,
    stages: usize,
    ahead: bool,
}

/// Whether the kernels take the problem.
fn takes(cx: &Context, p: &Problem) -> bool {
    cx.gpu.capability == (9, 0) && !p.single() && p.s.d == HEAD && p.scale > 0.0
}

pub(super) fn forward_tiles(cx: &Context, p: &Problem) -> Vec<ForwardTile> {
    if !takes(cx, p) {
        return vec![];
    }
    // The more queries a block takes, the fewer blocks there are: few queries have narrow ones.
    [(4, 5, false), (2, 5, false), (1, 4, true)]
        .map(|(groups, stages, ahead)| ForwardTile { groups, stages, ahead })
        .to_vec()
}

/// Whether there is a backward for the problem: a head's blocks wait for each other, and so must fit on the card at
/// a time, one a multiprocessor.
pub(super) fn takes_backward(cx: &Context, p: &Problem) -> bool {
    takes(cx, p) && p.s.keys.div_ceil(KEYS) <= cx.gpu.multiprocessors
}

fn source(p: &Problem, kernels: &str) -> Source {
    let text = format!("{PRELUDE}\n{WARPGROUP}\n{kernels}");
    let source =
        Source { file: "attention/warpgroup", text: Cow::Owned(text), prelude: false, options: vec![] };
    source
        .define("HEAD_DIM", HEAD)
        .define("D", HEAD)
        .define("VEC", 8)
        .option("-default-device")
        .option(if p.dtype == DType::F16 { "-DELEM_FP16" } else { "-DELEM_BF16" })
}

/// A tensor [batch, rows, heads * 64] of 16 bits in boxes of one head's columns.
fn boxes(p: &Problem, address: u64, rows: usize, box_rows: usize) -> Result<Vec<u64>, CudaError> {
    let columns = p.heads * HEAD;
    maps::encode(
        address,
        2,
        &[columns, rows, p.s.batch],
        &[columns, columns * rows],
        &[HEAD, box_rows, 1],
        true,
    )
}

/// The kernel of a forward tile: from q, k, v to o and lse.
pub(super) fn forward(cx: &Arc<Context>, p: Problem, t: ForwardTile) -> Result<Kernel, CudaError> {
    let source = source(&p, FORWARD)
        .define("FWD_GROUPS", t.groups)
        .define("FWD_STAGES", t.stages)
        .define("FWD_AHEAD", t.ahead as usize);
    let f = cx.function(&source, "attention_forward")?;
    let tiles = p.s.queries.div_ceil(ROWS * t.groups) * p.pairs();
    let shared = ALIGNMENT + (t.stages * 2 * KEYS + t.groups * ROWS) * ROW_BYTES;
    let blocks = tiles.min(cx.gpu.multiprocessors);
    Ok(Kernel::new(0, move |cx, io| {
        let (x, y, row) = (io.inputs, io.outputs, p.row());
        let maps =
            Params::new().words(boxes(&p, x[1], p.s.keys, KEYS)?).words(boxes(&p, x[2], p.s.keys, KEYS)?);
        let a = maps.with(x[0]).with(y[0]).with(y[1]).with(p.heads as i32).with(p.s.queries as i32);
        let a = a.with(p.s.keys as i32).with(row).with(row).with(p.scale).with(tiles as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], t.groups * THREADS, shared, &a) }
    }))
}

struct Backward {
    p: Problem,
    delta: Function,
    main: Function,
    finish: Function,
}

impl Backward {
    fn query_tiles(&self) -> usize {
        self.p.s.queries.div_ceil(QUERIES) * self.p.pairs()
    }

    /// How many counts: of turns with each tile, and of the blocks that have started.
    fn turns(&self) -> usize {
        self.query_tiles() + 1
    }

    /// Bytes of each query's statistics, of the counts of turns, and of the sums.
    fn work(&self) -> [usize; 3] {
        let (tiles, word) = (self.query_tiles(), size_of::<f32>());
        [tiles * QUERIES * 2, self.turns(), tiles * QUERIES * HEAD].map(|n| (n * word).next_multiple_of(256))
    }

    unsafe fn launch(&self, cx: &Context, x: &[u64], y: &[u64], workspace: u64) -> Result<(), CudaError> {
        let p = &self.p;
        let (heads, sq, sk, row) = (p.heads as i32, p.s.queries as i32, p.s.keys as i32, p.row());
        let rows = self.query_tiles() * QUERIES;
        let [statistics_bytes, turns_bytes, _] = self.work();
        let statistics = workspace;
        let turns = statistics + statistics_bytes as u64;
        let sums = turns + turns_bytes as u64;
        let a =
            Params::new().with(x[3]).with(x[5]).with(x[4]).with(statistics).with(turns).with(heads).with(sq);
        let a = a.with(row).with(row).with(rows as i64).with(self.turns() as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.delta, [(rows * 8).div_ceil(256), 1], 256, 0, &a) }?;

        let blocks = p.s.keys.div_ceil(KEYS);
        let queries = |address| boxes(p, address, p.s.queries, QUERIES);
        let keys = |address| boxes(p, address, p.s.keys, KEYS);
        let a = Params::new().words(queries(x[0])?).words(keys(x[1])?);
        let a = a.words(keys(x[2])?).words(queries(x[5])?);
        let a = a.with(statistics).with(turns).with(sums).with(y[1]).with(y[2]).with(heads).with(sq).with(sk);
        let a = a.with(row).with(row).with(p.scale);
        // k and v; two of q and do, ds twice for two halves of the queries; dq in fp32; two of statistics.
        let shared = ALIGNMENT + (6 * KEYS + 4 * QUERIES) * ROW_BYTES + QUERIES * (HEAD * 4 + 2 * 8);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.main, [blocks * p.pairs(), 1], 3 * THREADS, shared, &a) }?;

        let a = Params::new().with(sums).with(y[0]).with(heads).with(sq).with(row).with(p.scale);
        let a = a.with(rows as i64);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.finish, [(rows * 4).div_ceil(256), 1], 256, 0, &a) }
    }
}

/// The kernels of backward: from q, k, v, o, lse, do to dq, dk, dv.
pub(super) fn backward(cx: &Arc<Context>, p: Problem) -> Result<Kernel, CudaError> {
    let source = source(&p, BACKWARD);
    let function = |name| cx.function(&source, name);
    let b = Backward {
        p,
        delta: function("attention_delta")?,
        main: function("attention_backward")?,
        finish: function("attention_finish")?,
    };
    let work = b.work().iter().sum();
    // SAFETY: the promise of `Kernel::launch`.
    Ok(Kernel::new(work, move |cx, io| unsafe { b.launch(cx, io.inputs, io.outputs, io.workspace) }))
}
