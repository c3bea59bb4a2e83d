//! Group norm, its statistics and its gradient.

#[cfg(test)]
mod tests;
mod whole;

use super::pointwise::with_act;
use super::{Io, Kernel, Node, fast, fastest, type_name, vector};
use crate::context::{Function, Params, Source};
use crate::error::CudaError;
use clearshot_graph::Type;
use clearshot_graph::ops::{Norm, NormGrad};
use clearshot_tensor::DType;
use whole::Whole;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PartParams {
    x: u64,
    addend: u64,
    dx: u64,
    c: i32,
    first: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NormParams {
    part: [PartParams; 4],
    bias: u64,
    gamma: u64,
    beta: u64,
    scale: u64,
    shift: u64,
    stats: u64,
    y: u64,
    dy: u64,
    partial: u64,
    sums: u64,
    group_sums: u64,
    dgamma: u64,
    dbeta: u64,
    dscale: u64,
    dshift: u64,
    dbias: u64,
    s: i64,
    n: i32,
    c: i32,
    groups: i32,
    chunks: i32,
    rows: i64,
    eps: f32,
    film_row: i32,
    grid: u64,
}

/// A norm's sizes and how its pixels are cut into stretches.
#[derive(Clone, Copy)]
struct Shape3 {
    n: usize,
    s: usize,
    c: usize,
    parts: usize,
    chunks: usize,
    rows: usize,
    v: usize,
}

impl Shape3 {
    /// `busy` is how many blocks each multiprocessor is given.
    fn new(n: &Node<'_>, parts: &[Type], busy: usize) -> Shape3 {
        let shape = parts[0].shape;
        let channels: Vec<usize> = parts.iter().map(|t| t.shape.channels()).collect();
        let (samples, c) = (shape[0], channels.iter().sum());
        let s: usize = shape[1..shape.rank() - 1].iter().product();
        let v = vector(parts[0].dtype, &channels);
        let across = channels.iter().map(|c| (c / v).min(256)).max().unwrap_or(1);
        let least = (256 / across).max(1) * 8;
        let busy = n.cx.gpu.multiprocessors * busy;
        let chunks = busy.div_ceil(samples * parts.len()).clamp(1, usize::max(s / least, 1));
        let rows = s.div_ceil(chunks).max(1);
        Shape3 { n: samples, s, c, parts: parts.len(), chunks: s.div_ceil(rows).max(1), rows, v }
    }

    fn params(&self, parts: &[Type], norm: &Norm) -> NormParams {
        let mut p = NormParams {
            s: self.s as i64,
            n: self.n as i32,
            c: self.c as i32,
            groups: norm.groups as i32,
            chunks: self.chunks as i32,
            rows: self.rows as i64,
            eps: norm.eps as f32,
            film_row: self.c as i32,
            ..NormParams::default()
        };
        let mut first = 0;
        for (part, t) in p.part.iter_mut().zip(parts) {
            (part.c, part.first) = (t.shape.channels() as i32, first);
            first += part.c;
        }
        p
    }

    fn partial_bytes(&self) -> usize {
        self.n * self.chunks * self.c * 2 * size_of::<f32>()
    }

    fn grid(&self) -> [usize; 2] {
        [self.n * self.chunks, self.parts]
    }
}

const CHUNKS: &str = include_str!("../kernels/norm/chunks.cu");
const GRAD: &str = include_str!("../kernels/norm/grad.cu");
const SLAB: &str = include_str!("../kernels/norm/slab.cu");

/// The program of a file of kernels. `extras` are FiLM's scale and the bias, where there are.
fn source(
    kernels: &str,
    x: DType,
    y: DType,
    extras: [Option<&Type>; 2],
    norm: &Norm,
    v: usize,
) -> Result<Source, CudaError> {
    let [film, bias] = extras.map(|t| type_name(t.map_or(DType::F32, |t| t.dtype)));
    let text = format!("{}\n{kernels}", include_str!("../kernels/norm/shared.cu"));
    let source = Source { file: "norm", text: text.into(), prelude: true, options: vec![] }
        .define("T", type_name(x)?)
        .define("Y", type_name(y)?)
        .define("F", film?)
        .define("B", bias?)
        .define("V", v);
    let source = with_act(fast(source, y), norm.act);
    Ok(if norm.rounded { source.option("-DON_GRID") } else { source })
}

/// The launches that make statistics.
struct Statistics {
    partial: Function,
    finish: Function,
}

impl Statistics {
    fn new(n: &Node<'_>, source: &Source) -> Result<Statistics, CudaError> {
        Ok(Statistics {
            partial: n.cx.function(source, "norm_partial")?,
            finish: n.cx.function(source, "norm_stats")?,
        })
    }

    unsafe fn launch(
        &self,
        cx: &crate::context::Context,
        at: &Shape3,
        groups: usize,
        p: &Params,
    ) -> Result<(), CudaError> {
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.partial, at.grid(), 256, 0, p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.finish, [at.n * groups, 1], 256, 0, p) }
    }
}

/// The last operand, where it is a bias.
fn bias<'a, T>(a: &Norm, operands: &'a [T]) -> Option<&'a T> {
    operands.last().filter(|_| a.bias)
}

pub(super) fn stats(n: &Node<'_>, a: &Norm) -> Result<Kernel, CudaError> {
    let (a, parts) = (*a, a.parts);
    let at = Shape3::new(n, &n.x[..parts], 4);
    let source = source(CHUNKS, n.x[0].dtype, n.x[0].dtype, [None, bias(&a, &n.x)], &a, at.v)?;
    let statistics = Statistics::new(n, &source)?;
    let (fixed, groups) = (at.params(&n.x[..parts], &a), a.groups);
    Ok(Kernel::new(at.partial_bytes(), move |cx, io| {
        let mut p = NormParams { stats: io.outputs[0], partial: io.workspace, ..fixed };
        p.bias = bias(&a, io.inputs).copied().unwrap_or(0);
        p.part.iter_mut().zip(&io.inputs[..parts]).for_each(|(part, x)| part.x = *x);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { statistics.launch(cx, &at, groups, &Params::new().with(p)) }
    }))
}

/// Parameters of a norm on its operands and results.
fn forward_params(a: &Norm, fixed: &NormParams, io: &Io<'_>) -> NormParams {
    let affine = &io.inputs[a.parts..];
    let mut p = NormParams {
        y: io.outputs[0],
        stats: io.outputs[1],
        partial: io.workspace,
        gamma: affine[0],
        beta: affine[1],
        bias: bias(a, io.inputs).copied().unwrap_or(0),
        ..*fixed
    };
    if a.film {
        (p.scale, p.shift) = (affine[2], affine[3]);
    }
    p.grid = a.grid().map_or(0, |at| io.inputs[at]);
    p.part.iter_mut().zip(&io.inputs[..a.parts]).for_each(|(part, x)| part.x = *x);
    p
}

/// How a norm or its gradient is computed.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By launches that cut pixels into stretches, with so many blocks for each multiprocessor.
    Chunks(usize),
    /// All at once by clusters that hold so many channels.
    Slab(usize),
    /// All at once by blocks of so many threads that wait for each other, for so many sections of the channels.
    Whole(usize, usize),
}

pub(super) fn norm(n: &Node<'_>, a: &Norm) -> Result<Kernel, CudaError> {
    fastest(n, &format!("norm {a:?}"), &norm_ways(n, a), |way| norm_way(n, a, way))
}

fn norm_ways(n: &Node<'_>, a: &Norm) -> Vec<Way> {
    let slabs = slabs(n, a, 1).into_iter().map(Way::Slab);
    // A section more hides the waiting, and reads images by half of their channels.
    let whole = [(512, 1), (512, 2), (1024, 1)].into_iter();
    let whole = whole.filter(|(t, s)| Whole::new(n, a, *t, *s).is_some()).map(|(t, s)| Way::Whole(t, s));
    std::iter::once(Way::Chunks(4)).chain(slabs).chain(whole).collect()
}

fn norm_way(n: &Node<'_>, a: &Norm, way: Way) -> Result<Kernel, CudaError> {
    match way {
        Way::Chunks(busy) => in_chunks(n, a, busy),
        Way::Slab(channels) => in_slabs(n, a, channels),
        Way::Whole(threads, sections) => match Whole::new(n, a, threads, sections) {
            Some(whole) => whole.kernel(n, a),
            None => in_chunks(n, a, 4),
        },
    }
}

fn in_chunks(n: &Node<'_>, a: &Norm, busy: usize) -> Result<Kernel, CudaError> {
    let (a, parts) = (*a, a.parts);
    let at = Shape3::new(n, &n.x[..parts], busy);
    let film = a.film.then(|| &n.x[parts + 2]);
    let source = source(CHUNKS, n.x[0].dtype, n.y[0].dtype, [film, bias(&a, &n.x)], &a, at.v)?;
    let statistics = Statistics::new(n, &source)?;
    let apply = n.cx.function(&source, "norm_apply")?;
    let fixed = at.params(&n.x[..parts], &a);
    Ok(Kernel::new(at.partial_bytes(), move |cx, io| {
        let p = Params::new().with(forward_params(&a, &fixed, io));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { statistics.launch(cx, &at, a.groups, &p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(apply, at.grid(), 256, 0, &p) }
    }))
}

/// Blocks of a cluster; more are not portable.
const CLUSTER: usize = 8;
/// Shared memory that a block may ask for besides what the kernel has of its own.
const LARGEST_SLAB: usize = 208 << 10;

/// Numbers of channels that clusters could hold of `images` images, whole groups each.
fn slabs(n: &Node<'_>, a: &Norm, images: usize) -> Vec<usize> {
    let at = Shape3::new(n, &n.x[..a.parts], 4);
    let dtype = n.x[0].dtype;
    if n.cx.gpu.capability < (9, 0) || at.v * dtype.bytes() != 16 || at.s < 64 {
        return vec![];
    }
    let width = at.c / a.groups;
    let least = (1..=at.v).map(|i| i * width).find(|c| c % at.v == 0).unwrap_or(at.c);
    let fits = |c: &usize| {
        at.c.is_multiple_of(*c)
            && *c <= 32 * at.v
            && at.s.div_ceil(CLUSTER) * c * dtype.bytes() * images <= LARGEST_SLAB
    };
    // Pieces of 64 bytes and more are read well; the largest, where there are none.
    let all: Vec<usize> = [1, 2, 4, 8].iter().map(|i| i * least).filter(fits).collect();
    let wide = all.iter().copied().filter(|c| c * dtype.bytes() >= 64).take(2).collect::<Vec<_>>();
    if wide.is_empty() { all.last().copied().into_iter().collect() } else { wide }
}

fn in_slabs(n: &Node<'_>, a: &Norm, slab: usize) -> Result<Kernel, CudaError> {
    let (a, parts) = (*a, a.parts);
    let at = Shape3::new(n, &n.x[..parts], 4);
    let film = a.film.then(|| &n.x[parts + 2]);
    let source = source(SLAB, n.x[0].dtype, n.y[0].dtype, [film, bias(&a, &n.x)], &a, at.v)?;
    let f = n.cx.function(&source.define("SLAB", slab).define("CLUSTER", CLUSTER), "norm_slab")?;
    let rows = at.s.div_ceil(CLUSTER);
    let fixed = NormParams { rows: rows as i64, ..at.params(&n.x[..parts], &a) };
    let shared = rows * slab * n.x[0].dtype.bytes();
    let blocks = at.n * (at.c / slab) * CLUSTER;
    Ok(Kernel::new(0, move |cx, io| {
        let p = Params::new().with(forward_params(&a, &fixed, io));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], 256, shared, &p) }
    }))
}

pub(super) fn grad(n: &Node<'_>, a: &NormGrad) -> Result<Kernel, CudaError> {
    fastest(n, &format!("{a:?}"), &grad_ways(n, a), |way| grad_way(n, a, way))
}

fn grad_ways(n: &Node<'_>, a: &NormGrad) -> Vec<Way> {
    let mut ways = vec![Way::Chunks(2), Way::Chunks(4)];
    if n.x[a.dy()].dtype == n.x[0].dtype {
        ways.extend(slabs(n, &a.norm, 2).into_iter().map(Way::Slab));
    }
    ways
}

fn grad_way(n: &Node<'_>, a: &NormGrad, way: Way) -> Result<Kernel, CudaError> {
    match way {
        Way::Chunks(busy) => grad_in_chunks(n, a, busy),
        Way::Slab(channels) => grad_in_slabs(n, a, channels),
        Way::Whole(..) => unreachable!("not among a gradient's ways"),
    }
}

fn grad_source(kernels: &str, n: &Node<'_>, a: &NormGrad, v: usize) -> Result<Source, CudaError> {
    let film = a.norm.film.then(|| &n.x[a.norm.parts + 3]);
    let extras = [film, bias(&a.norm, &n.x)];
    let source = source(kernels, n.x[0].dtype, n.x[a.dy()].dtype, extras, &a.norm, v)?.option("-DGRAD");
    Ok(if a.norm.bias { source.option("-DDBIAS") } else { source })
}

/// Parameters of a gradient on its operands and results, with its sums of channels and of groups so many bytes
/// behind the start of its scratch.
fn grad_params(op: &NormGrad, fixed: &NormParams, io: &Io<'_>, [sums, group_sums]: [usize; 2]) -> NormParams {
    let parts = op.norm.parts;
    let inputs = &io.inputs[parts..];
    let outputs = &io.outputs[parts..];
    let mut p = NormParams {
        stats: inputs[0],
        gamma: inputs[1],
        beta: inputs[2],
        dy: io.inputs[op.dy()],
        dgamma: outputs[0],
        dbeta: outputs[1],
        partial: io.workspace,
        sums: io.workspace + sums as u64,
        group_sums: io.workspace + group_sums as u64,
        ..*fixed
    };
    if op.norm.film {
        (p.scale, p.shift) = (inputs[3], inputs[4]);
        (p.dscale, p.dshift) = (outputs[2], outputs[3]);
    }
    if op.norm.bias {
        p.bias = bias(&op.norm, io.inputs).copied().unwrap_or(0);
        p.dbias = outputs.last().copied().unwrap_or(0);
    }
    for i in 0..parts {
        p.part[i].x = io.inputs[i];
        p.part[i].dx = io.outputs[i];
        p.part[i].addend = op.addend(i).map_or(0, |a| io.inputs[a]);
    }
    p
}

/// Bytes of three sums each, which are the most that there are.
fn sums_bytes(count: usize) -> usize {
    (count * 3 * size_of::<f32>()).next_multiple_of(256)
}

fn grad_in_chunks(n: &Node<'_>, a: &NormGrad, busy: usize) -> Result<Kernel, CudaError> {
    let (op, parts) = (*a, a.norm.parts);
    let at = Shape3::new(n, &n.x[..parts], busy);
    let source = grad_source(GRAD, n, a, at.v)?;
    let f = |name| n.cx.function(&source, name);
    let (partial, sums, apply) = (f("norm_grad_partial")?, f("norm_grad_sums")?, f("norm_grad_apply")?);
    let fixed = at.params(&n.x[..parts], &a.norm);
    let (sums_at, groups) = (sums_bytes(at.n * at.chunks * at.c), a.norm.groups);
    let group_sums_at = sums_at + sums_bytes(at.n * at.c);
    let workspace = group_sums_at + sums_bytes(at.n * groups);
    Ok(Kernel::new(workspace, move |cx, io| {
        let p = Params::new().with(grad_params(&op, &fixed, io, [sums_at, group_sums_at]));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(partial, at.grid(), 256, 0, &p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(sums, [at.n * groups, 1], 256, 0, &p) }?;
        // Besides the stretches, blocks for the gradients of gamma and beta.
        let [stretches, parts] = at.grid();
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(apply, [stretches + at.c.div_ceil(32), parts], 256, 0, &p) }
    }))
}

fn grad_in_slabs(n: &Node<'_>, a: &NormGrad, slab: usize) -> Result<Kernel, CudaError> {
    let (op, parts) = (*a, a.norm.parts);
    let at = Shape3::new(n, &n.x[..parts], 4);
    let source = grad_source(SLAB, n, a, at.v)?.define("SLAB", slab).define("CLUSTER", CLUSTER);
    let (f, affine) =
        (n.cx.function(&source, "norm_grad_slab")?, n.cx.function(&source, "norm_grad_affine")?);
    let rows = at.s.div_ceil(CLUSTER);
    let fixed = NormParams { rows: rows as i64, ..at.params(&n.x[..parts], &a.norm) };
    let shared = rows * slab * (n.x[0].dtype.bytes() + n.x[a.dy()].dtype.bytes());
    let blocks = at.n * (at.c / slab) * CLUSTER;
    Ok(Kernel::new(sums_bytes(at.n * at.c), move |cx, io| {
        let p = Params::new().with(grad_params(&op, &fixed, io, [0, 0]));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(f, [blocks, 1], 256, shared, &p) }?;
        // SAFETY: the promise of `Kernel::launch`.
        if at.n > 1 { unsafe { cx.launch(affine, [at.c.div_ceil(32), 1], 256, 0, &p) } } else { Ok(()) }
    }))
}
