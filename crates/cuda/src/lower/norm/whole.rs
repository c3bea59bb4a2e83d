//! A norm by one launch whose blocks keep the image and wait for each other's sums: see `kernels/norm/whole.cu`.

use super::{Shape3, bias, forward_params, source};
use crate::context::{Params, Source};
use crate::error::CudaError;
use crate::lower::{Kernel, Node};
use crate::memory::Buffer;
use clearshot_graph::ops::{Norm, Unary};
use clearshot_tensor::DType;

/// Channels that lie one behind the other in one part, and in one section of whole groups.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub count: usize,
    pub part: usize,
    pub start: usize,
    pub section: usize,
    /// Vectors that a thread keeps in registers.
    kept: usize,
}

/// Parts of so many channels cut into runs of one section, or of two that are about as large where there are groups for it.
pub(super) fn runs(parts: &[usize], width: usize, vector: usize, sections: usize) -> Vec<Run> {
    let all: usize = parts.iter().sum();
    let whole = (1..=vector).map(|i| i * width).find(|c| c % vector == 0).unwrap_or(all);
    let cut = if sections > 1 { (all / whole).div_ceil(2) * whole } else { all };
    let (mut runs, mut before) = (vec![], 0);
    for (part, &count) in parts.iter().enumerate() {
        let inside = cut.saturating_sub(before).min(count);
        for (start, end) in [(0, inside), (inside, count)] {
            if start < end {
                let section = usize::from(before + start >= cut);
                runs.push(Run { count: end - start, part, start, section, kept: 0 });
            }
        }
        before += count;
    }
    runs
}

/// The launch.
pub(super) struct Whole {
    at: Shape3,
    threads: usize,
    runs: Vec<Run>,
    /// Pixels that a block keeps in shared memory; what neither this nor registers hold is read twice.
    held: usize,
}

impl Whole {
    /// Shared memory of a block.
    const MOST_SHARED: usize = 225 << 10;
    /// Vectors that a thread has registers for, where there are 512.
    const REGISTERS: usize = 14;

    /// Nothing where most of the image would have to be read twice.
    pub fn new(n: &Node<'_>, a: &Norm, threads: usize, sections: usize) -> Option<Whole> {
        let at = Shape3::new(n, &n.x[..a.parts], 4);
        let (sms, bytes) = (n.cx.gpu.multiprocessors, n.x[0].dtype.bytes());
        let parts: Vec<usize> = n.x[..a.parts].iter().map(|t| t.shape.channels()).collect();
        let wide = parts.iter().any(|c| c / at.v > threads);
        if at.v * bytes != 16 || at.n > sms || wide || n.cx.gpu.capability < (8, 0) {
            return None;
        }
        let rows = at.s.div_ceil(sms / at.n).max(1);
        let held = rows.min(Self::MOST_SHARED.checked_sub(sums_shared(&at, a, threads))? / (at.c * bytes));
        let mut runs = runs(&parts, at.c / a.groups, at.v, sections);
        // Registers are shared out as they are wanted.
        let wanted = |r: &Run| (rows - held).div_ceil(threads / (r.count / at.v));
        let (all, most) =
            (runs.iter().map(wanted).sum::<usize>(), if threads > 512 { 0 } else { Self::REGISTERS });
        runs.iter_mut().for_each(|r| r.kept = if all > most { wanted(r) * most / all } else { wanted(r) });
        let in_registers = runs.iter().map(|r| r.kept * threads * at.v).sum::<usize>();
        let at = Shape3 { chunks: at.s.div_ceil(rows), rows, ..at };
        (2 * (held * at.c + in_registers) >= rows * at.c).then_some(Whole { at, threads, runs, held })
    }

    pub fn kernel(self, n: &Node<'_>, a: &Norm) -> Result<Kernel, CudaError> {
        let (a, parts, Whole { at, threads, runs, held }) = (*a, a.parts, self);
        let film = a.film.then(|| &n.x[parts + 2]);
        let whole = include_str!("../../kernels/norm/whole.cu");
        let source = source(whole, n.x[0].dtype, n.y[0].dtype, [film, bias(&a, &n.x)], &a, at.v)?;
        let listed =
            |of: fn(&Run) -> usize| runs.iter().map(|r| of(r).to_string()).collect::<Vec<_>>().join(",");
        let source = source
            .define("WHOLE", threads)
            .define("RUNS", runs.len())
            .define("WAITS", runs.iter().map(|r| r.section + 1).max().unwrap_or(1))
            .define("COUNTS", listed(|r| r.count))
            .define("PARTS", listed(|r| r.part))
            .define("STARTS", listed(|r| r.start))
            .define("SECTIONS", listed(|r| r.section))
            .define("KEPTS", listed(|r| r.kept))
            .define("WIDTH", at.c / a.groups)
            .define("SPAN", span(&at, &a));
        let source = quick(source, &a, n.y[0].dtype);
        let f = n.cx.function(&source, "norm_whole")?;
        let fixed = at.params(&n.x[..parts], &a);
        let shared = held * at.c * n.x[0].dtype.bytes() + sums_shared(&at, &a, threads);
        let barriers = Buffer::new(n.cx, 2 * 32 * size_of::<u32>())?;
        let workspace = at.n * at.chunks * a.groups * 2 * size_of::<f32>();
        let kernel = Kernel::new(workspace, move |cx, io| {
            let p = Params::new().with(forward_params(&a, &fixed, io));
            let p = p.with(barriers.start()).with(held as i32);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { cx.launch(f, [at.n * at.chunks, 1], threads, shared, &p) }
        });
        // With one block a multiprocessor and nothing beside it, all blocks run at a time.
        Ok(kernel.alone())
    }
}

/// With the activation that a result of this type allows.
fn quick(source: Source, a: &Norm, y: DType) -> Source {
    match (a.act, y) {
        (Some(Unary::Silu), DType::F8) => source.option("-DHALVED"),
        (Some(Unary::Silu), DType::BF16 | DType::F16 | DType::U8) => source.option("-DSILU"),
        _ => source,
    }
}

/// Bytes of shared memory besides the pixels that a block of [`Whole`] keeps.
fn sums_shared(at: &Shape3, a: &Norm, threads: usize) -> usize {
    (2 * threads * span(at, a) + 3 * (at.c + a.groups)) * size_of::<f32>()
}

/// How many groups the channels of a vector touch at the most.
fn span(at: &Shape3, a: &Norm) -> usize {
    let width = at.c / a.groups;
    let groups = |k: usize| (k + at.v - 1) / width - k / width + 1;
    (0..at.c).step_by(at.v).map(groups).max().unwrap_or(1)
}
