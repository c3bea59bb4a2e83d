//! Convolutions and their gradients.
//!
//! Those of one pixel are matrix products; parts of a concatenation are then products that add up, and
//! nothing is copied. The rest is done by kernels of our own for one kind of card ([`warpgroup`]) or by cuDNN, whichever
//! was the fastest for the shape when it was measured; images that are upsampled first are convolved small ([`phases`]),
//! one or two channels are laid out for a product ([`thin`]) or summed without one ([`few`]), other odd numbers rounded up ([`widened`]), and what
//! cuDNN refuses is done by plain kernels.

mod few;
mod library;
mod phases;
mod plain;
mod split;
#[cfg(test)]
mod tests;
mod thin;
mod warpgroup;
mod widened;

use super::matmul::{Epilogue, Extras, Product, Ready, alignment};
use super::{Io, Kernel, Node, fastest, resize, type_name, vector};
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use clearshot_graph::Type;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::{
    Bias, Conv, ConvInputGrad, ConvWeightGrad, Geometry, Resize, ResizeGrad, ResizeMode,
};
use clearshot_tensor::{DType, Shape};
use library::{Kind, Library};
use plain::Plain;
use split::Split;
use std::sync::Arc;
use thin::Thin;
use widened::Widened;

/// A convolution's sizes, the same for it and both gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub dims: usize,
    pub n: usize,
    pub c: usize,
    pub k: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
    pub kernel: [usize; 3],
    pub geometry: Geometry,
    pub dtype: DType,
}

impl Sizes {
    fn new(
        x: Shape,
        y: Shape,
        kernel: [usize; 3],
        geometry: Geometry,
        dtype: DType,
    ) -> Result<Sizes, CudaError> {
        let unfit =
            |e: clearshot_graph::OpError| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() };
        Ok(Sizes {
            dims: x.rank() - 2,
            n: x[0],
            c: x.channels(),
            k: y.channels(),
            input: spatial("x", x).map_err(unfit)?,
            output: spatial("y", y).map_err(unfit)?,
            kernel,
            geometry,
            dtype,
        })
    }

    /// Whether it is a matrix product of pixels by channels.
    fn is_product(&self) -> bool {
        let g = &self.geometry;
        self.kernel == [1; 3] && g.stride == [1; 3] && g.pad == [[0; 2]; 3] && g.groups == 1
    }

    fn rows(&self) -> usize {
        self.n * self.output.iter().product::<usize>()
    }

    fn in_rows(&self) -> usize {
        self.n * self.input.iter().product::<usize>()
    }

    fn weight_len(&self) -> usize {
        self.k * self.kernel.iter().product::<usize>() * self.c / self.geometry.groups
    }

    /// Whether an image has more elements than the library counts.
    fn is_huge(&self) -> bool {
        (self.in_rows() * self.c).max(self.rows() * self.k) > i32::MAX as usize
    }

    fn bytes(&self, elements: usize) -> usize {
        (elements * self.dtype.bytes()).next_multiple_of(256)
    }
}

/// Who computes a convolution or one of its gradients.
enum Way {
    Library(Library),
    Thin(Thin),
    Widened(Widened),
    Plain(Plain),
}

impl Way {
    fn new(n: &Node<'_>, s: &Sizes, kind: Kind) -> Result<Way, CudaError> {
        if let Some(thin) = Thin::new(n.cx, s, kind, n.math)? {
            return Ok(Way::Thin(thin));
        }
        if widened::suits(s)
            && let Some(widened) = Widened::new(n.cx, s, kind, n.math)?
        {
            return Ok(Way::Widened(widened));
        }
        if let Some(library) = Library::new(n.cx, s, kind, n.math)? {
            return Ok(Way::Library(library));
        }
        Ok(Way::Plain(Plain::new(n.cx, s, kind)?))
    }

    fn scratch(&self) -> usize {
        match self {
            Way::Library(l) => l.scratch,
            Way::Thin(t) => t.scratch,
            Way::Widened(w) => w.scratch,
            Way::Plain(_) => 0,
        }
    }

    /// Whether it adds bias and residual itself.
    fn is_fused(&self) -> bool {
        match self {
            Way::Library(l) => l.is_fused(),
            Way::Thin(t) => t.adds_bias(),
            _ => false,
        }
    }

    /// x, w, bias, residual -> y.
    fn launch_fused(
        &self,
        cx: &Context,
        (x, w): (u64, u64),
        extras: Extras,
        y: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        match self {
            Way::Library(l) => l.launch_fused(cx, x, w, extras, y, scratch),
            Way::Thin(t) => t.launch(cx, x, w, extras.bias.unwrap_or(0), y, scratch),
            _ => unreachable!("only where it is fused"),
        }
    }

    /// Forward: x, w -> y. Input's gradient: dy, w -> dx. Weight's: x, dy -> dw.
    fn launch(&self, cx: &Context, a: u64, b: u64, out: u64, scratch: u64) -> Result<(), CudaError> {
        match self {
            Way::Library(l) => l.launch(cx, a, b, out, scratch),
            Way::Thin(t) => t.launch(cx, a, b, 0, out, scratch),
            Way::Widened(w) => w.launch(cx, a, b, out, scratch),
            Way::Plain(p) => p.launch(cx, a, b, out),
        }
    }
}

/// Copies channels from tensors of one width to tensors of another.
struct Channels {
    f: Function,
    v: usize,
    dtype: DType,
}

impl Channels {
    fn new(cx: &Arc<Context>, dtype: DType, counts: &[usize]) -> Result<Channels, CudaError> {
        let v = vector(dtype, counts);
        let name = type_name(dtype)?;
        let source = Source::new("conv", include_str!("../kernels/conv/plain.cu"))
            .define("T", name)
            .define("B", name)
            .define("V", v)
            .define("ACT(x)", "(x)");
        Ok(Channels { f: cx.function(&source, "copy_channels")?, v, dtype })
    }

    /// `c` channels of each row: from `[rows, from.0]` at channel `from.1`, to the same of `to`.
    fn launch(
        &self,
        cx: &Context,
        (x, y): (u64, u64),
        rows: usize,
        c: usize,
        from: (usize, usize),
        to: (usize, usize),
    ) -> Result<(), CudaError> {
        debug_assert_eq!(c % self.v, 0);
        debug_assert!(self.dtype.is_float());
        let p = Params::new().with(x).with(y).with(rows as i64).with(c as i32);
        let p = p.with(from.0 as i32).with(from.1 as i32).with(to.0 as i32).with(to.1 as i32);
        cx.launch(self.f, super::blocks(cx, rows * c / self.v), 256, 0, &p)
    }
}

/// The parts of an input as one tensor in scratch memory, where there are several; or the input upsampled.
struct Gathered {
    copy: Option<Channels>,
    upsample: Option<Kernel>,
    widths: Vec<usize>,
    rows: usize,
    bytes: usize,
}

/// An image of twice the size, of the same type.
fn doubled(small: Type) -> Type {
    let rank = small.shape.rank();
    Type { shape: (1..rank - 1).fold(small.shape, |s, a| s.with(a, 2 * s[a])), ..small }
}

/// The kernel that repeats every pixel, or its adjoint that sums them.
fn resizing(n: &Node<'_>, small: Type, adjoint: bool) -> Result<Kernel, CudaError> {
    let large = doubled(small);
    let size = |t: Type| spatial("image", t.shape).unwrap_or([1; 3]);
    let (from, to) = if adjoint { (large, small) } else { (small, large) };
    let node = Node { cx: n.cx, math: n.math, x: vec![from], y: &[to] };
    let mode = ResizeMode::Nearest;
    if adjoint {
        resize::resize_grad(&node, &ResizeGrad { mode, input: size(small) })
    } else {
        resize::resize(&node, &Resize { mode, size: size(large) })
    }
}

impl Gathered {
    fn new(n: &Node<'_>, parts: &[Type], upsample: bool) -> Result<Gathered, CudaError> {
        let widths: Vec<usize> = parts.iter().map(|t| t.shape.channels()).collect();
        let rows = parts[0].shape.len() / widths[0];
        let (mut copy, mut up, mut bytes) = (None, None, 0);
        if upsample {
            up = Some(resizing(n, parts[0], false)?);
            bytes = doubled(parts[0]).bytes().next_multiple_of(256);
        } else if parts.len() > 1 {
            copy = Some(Channels::new(n.cx, parts[0].dtype, &widths)?);
            bytes = parts.iter().map(Type::bytes).sum::<usize>().next_multiple_of(256);
        }
        Ok(Gathered { copy, upsample: up, widths, rows, bytes })
    }

    /// The one tensor's address.
    fn launch(&self, cx: &Context, parts: &[u64], scratch: u64) -> Result<u64, CudaError> {
        if let Some(upsample) = &self.upsample {
            upsample.launch(cx, &Io { inputs: parts, outputs: &[scratch], workspace: 0 })?;
            return Ok(scratch);
        }
        let Some(copy) = &self.copy else { return Ok(parts[0]) };
        let whole: usize = self.widths.iter().sum();
        let mut first = 0;
        for (x, c) in parts.iter().zip(&self.widths) {
            copy.launch(cx, (*x, scratch), self.rows, *c, (*c, 0), (whole, first))?;
            first += c;
        }
        Ok(scratch)
    }
}

/// The shape of what a convolution sees of its input.
fn seen_shape(parts: &[Type], upsample: bool) -> Shape {
    let shape = if upsample { doubled(parts[0]).shape } else { parts[0].shape };
    shape.with(shape.rank() - 1, parts.iter().map(|t| t.shape.channels()).sum())
}

pub(super) fn forward(n: &Node<'_>, a: &Conv) -> Result<Kernel, CudaError> {
    if a.prologue.is_some() {
        return Err(CudaError::Unsupported { op: "conv".into(), reason: "a norm inside".into() });
    }
    let at = a.operands();
    let parts = a.parts;
    let kernel = spatial("w", n.x[at.weight].shape)
        .map_err(|e| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() })?;
    let seen = seen_shape(&n.x[..parts], a.upsample);
    let sizes = Sizes::new(seen, n.y[0].shape, kernel, a.geometry, n.x[0].dtype)?;
    let is_product = sizes.is_product() && a.act.is_none() && a.bias != Bias::Sample;
    let own = warpgroup::Call {
        parts,
        weight: at.weight,
        bias: at.bias,
        residual: at.residual,
        by_sample: a.bias == Bias::Sample,
        silu: a.act.is_some(),
        transposed: false,
        first: 0,
        channels: sizes.k,
        upsample: a.upsample,
    };
    // The products of one image by itself are the library's best.
    let is_own = own.is_taken(n, a.act) && !(is_product && parts == 1);
    let bare = parts == 1 && !a.upsample && !a.residual && a.act.is_none() && a.bias != Bias::Sample;
    let same_types = n.y[0].dtype == sizes.dtype && at.bias.is_none_or(|i| n.x[i].dtype == sizes.dtype);
    let mut ways = ways(n, &sizes, is_own.then_some(&own));
    if bare && same_types && few::takes(&sizes) {
        ways.push(Candidate::Few);
    }
    fastest(n, &format!("{a:?} {:?}", n.math), &ways, |way| match way {
        Candidate::Warpgroups(tile) => warpgroup::forward(n, &sizes, own, tile),
        Candidate::Few => few::forward(n, &sizes, at.weight, at.bias),
        Candidate::Library if is_product => product_forward(n, a, &sizes),
        Candidate::Library => library_forward(n, a, &sizes),
    })
}

/// A way that may be the fastest.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// The library's, or plain kernels in its place.
    Library,
    Warpgroups(warpgroup::Tile),
    Few,
}

/// The library and the tiles of our own kernels.
fn ways(n: &Node<'_>, sizes: &Sizes, own: Option<&warpgroup::Call>) -> Vec<Candidate> {
    let tiles = own.map(|call| warpgroup::tiles(n.cx, sizes, call.channels, call.transposed));
    let mut ways: Vec<_> = tiles.unwrap_or_default().into_iter().map(Candidate::Warpgroups).collect();
    // Plain kernels take so long that they are not even tried where there are others.
    if ways.is_empty() || !sizes.is_huge() {
        ways.insert(0, Candidate::Library);
    }
    ways
}

/// A convolution by the library, with what it does not do itself behind it.
fn library_forward(n: &Node<'_>, a: &Conv, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let (at, parts, sizes) = (a.operands(), a.parts, *sizes);
    let count = n.y[0].shape.len();
    let pixels = sizes.output.iter().product();
    let bias_type = at.bias.map(|i| (n.x[i].dtype, a.bias == Bias::Sample));
    let epilogue = Epilogue::new(n.cx, n.y[0].dtype, sizes.k, pixels, a.act, bias_type)?;
    let extras = move |io: &Io<'_>| Extras {
        bias: at.bias.map(|i| io.inputs[i]),
        residual: at.residual.map(|i| io.inputs[i]),
    };
    if a.upsample
        && a.act.is_none()
        && !a.residual
        && a.bias != Bias::Sample
        && let Some(kernel) = phases::forward(n, &sizes, at.weight, at.bias)?
    {
        return Ok(kernel);
    }
    let gathered = Gathered::new(n, &n.x[..parts], a.upsample)?;
    // The library adds a bias of each channel and a residual itself; the rest takes a kernel behind it.
    let fusable = a.act.is_none() && a.bias == Bias::Channel && bias_type.is_none_or(|b| b.0 == sizes.dtype);
    let plain_end = a.bias == Bias::None && a.act.is_none() && !a.residual;
    let wanted = if fusable { Kind::Fused { residual: a.residual } } else { Kind::Forward };
    let gathered_bytes = gathered.bytes;
    let way = Way::new(n, &sizes, wanted)?;
    // A residual may lie where the result goes.
    let aside = if !way.is_fused() && a.residual { sizes.bytes(count) } else { 0 };
    let scratch = gathered_bytes + aside;
    Ok(Kernel::new(scratch + way.scratch(), move |cx, io| {
        let x = gathered.launch(cx, &io.inputs[..parts], io.workspace)?;
        let (w, y, own) = (io.inputs[at.weight], io.outputs[0], io.workspace + scratch as u64);
        let extras = extras(io);
        if way.is_fused() {
            return way.launch_fused(cx, (x, w), extras, y, own);
        }
        let to = if aside > 0 { io.workspace + gathered_bytes as u64 } else { y };
        way.launch(cx, x, w, to, own)?;
        if plain_end { Ok(()) } else { epilogue.launch(cx, to, y, extras, count) }
    }))
}

/// One product for each part, each adding to the one before.
fn product_forward(n: &Node<'_>, a: &Conv, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let at = a.operands();
    let mut products = vec![];
    let mut first = 0;
    for (i, part) in n.x[..a.parts].iter().enumerate() {
        let c = part.shape.channels();
        let product = Product {
            batch: 1,
            m: sizes.rows(),
            n: sizes.k,
            k: c,
            transpose_a: false,
            transpose_b: true,
            row_a: c,
            row_b: sizes.c,
            row_d: sizes.k,
            step_a: 0,
            step_b: 0,
            step_d: 0,
            input: sizes.dtype,
            output: n.y[0].dtype,
            bias: a.bias == Bias::Channel && i == 0,
            add: a.residual || i > 0,
            align: alignment(first * sizes.dtype.bytes()),
        };
        products.push((Ready::new(n.cx, &product, n.math)?, (first * sizes.dtype.bytes()) as u64));
        first += c;
    }
    let scratch = products.iter().map(|p| p.0.scratch).max().unwrap_or(0);
    Ok(Kernel::new(scratch, move |cx, io| {
        let y = io.outputs[0];
        for (i, (product, offset)) in products.iter().enumerate() {
            let bias = at.bias.map_or(0, |i| io.inputs[i]);
            let c = if i == 0 { at.residual.map_or(y, |r| io.inputs[r]) } else { y };
            product.launch(cx, io.inputs[i], io.inputs[at.weight] + offset, bias, c, y, io.workspace)?;
        }
        Ok(())
    }))
}

pub(super) fn input_grad(n: &Node<'_>, a: &ConvInputGrad) -> Result<Kernel, CudaError> {
    let (bias_at, residual_at, _) = a.operands();
    let w = n.x[1].shape;
    let unfit =
        |e: clearshot_graph::OpError| CudaError::Unsupported { op: "conv".into(), reason: e.to_string() };
    let kernel = spatial("w", w).map_err(unfit)?;
    let dx = n.y[0];
    let seen = if a.upsample { doubled(dx).shape } else { dx.shape };
    let whole_c = w.channels() * a.geometry.groups;
    let [first, len] = a.channels;
    let whole = seen.with(seen.rank() - 1, whole_c);
    let sizes = Sizes::new(whole, n.x[0].shape, kernel, a.geometry, n.x[0].dtype)?;
    // The pass that upsamples inside gives no epilogue and no part of the channels.
    let own = warpgroup::Call {
        parts: 1,
        weight: 1,
        bias: bias_at,
        residual: residual_at,
        by_sample: false,
        silu: a.act.is_some(),
        transposed: true,
        first,
        channels: len,
        upsample: a.upsample,
    };
    let is_own = bias_at.is_none() && sizes.kernel[1] == 3 && own.is_taken(n, a.act);
    let ways = ways(n, &sizes, is_own.then_some(&own));
    let measured = |library: &dyn Fn() -> Result<Kernel, CudaError>| {
        fastest(n, &format!("{a:?} {:?}", n.math), &ways, |way| match way {
            Candidate::Warpgroups(tile) => warpgroup::forward(n, &sizes, own, tile),
            _ => library(),
        })
    };
    if a.upsample {
        return measured(&|| match phases::input_grad(n, &sizes)? {
            Some(kernel) => Ok(kernel),
            None => summed_input_grad(n, &sizes),
        });
    }
    if sizes.is_product() && a.act.is_none() && bias_at.is_none() {
        let product = Product {
            batch: 1,
            m: sizes.rows(),
            n: len,
            k: sizes.k,
            transpose_a: false,
            transpose_b: false,
            row_a: sizes.k,
            row_b: sizes.c,
            row_d: len,
            step_a: 0,
            step_b: 0,
            step_d: 0,
            input: sizes.dtype,
            output: n.y[0].dtype,
            bias: false,
            add: a.residual,
            align: alignment(first * sizes.dtype.bytes()),
        };
        let ready = Ready::new(n.cx, &product, n.math)?;
        let offset = (first * sizes.dtype.bytes()) as u64;
        return Ok(Kernel::new(ready.scratch, move |cx, io| {
            let y = io.outputs[0];
            let c = residual_at.map_or(y, |r| io.inputs[r]);
            ready.launch(cx, io.inputs[0], io.inputs[1] + offset, 0, c, y, io.workspace)
        }));
    }
    measured(&|| library_input_grad(n, a, &sizes))
}

fn library_input_grad(n: &Node<'_>, a: &ConvInputGrad, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let ((bias_at, residual_at, _), sizes) = (a.operands(), *sizes);
    let (w, [first, len], whole_c) = (n.x[1].shape, a.channels, sizes.c);
    let count = n.y[0].shape.len();
    let plain_end = bias_at.is_none() && a.act.is_none() && residual_at.is_none();
    let bias_type = bias_at.map(|i| (n.x[i].dtype, false));
    let epilogue = Epilogue::new(n.cx, n.y[0].dtype, len, 1, a.act, bias_type)?;
    let extras = move |io: &Io<'_>| Extras {
        bias: bias_at.map(|i| io.inputs[i]),
        residual: residual_at.map(|i| io.inputs[i]),
    };
    // The channels asked for are a smaller convolution with a part of the weights.
    let part = Sizes { c: len, ..sizes };
    let several = !a.is_whole(w);
    let cut = if several { Some(Channels::new(n.cx, sizes.dtype, &[first, len, whole_c])?) } else { None };
    let cut_bytes = if several { part.bytes(part.weight_len()) } else { 0 };
    let taps_rows = sizes.k * sizes.kernel.iter().product::<usize>();
    let aside = if residual_at.is_some() { part.bytes(count) } else { 0 };
    let way = Way::new(n, &part, Kind::InputGrad)?;
    let scratch = cut_bytes + aside;
    Ok(Kernel::new(scratch + way.scratch(), move |cx, io| {
        let mut w = io.inputs[1];
        if let Some(cut) = &cut {
            cut.launch(cx, (w, io.workspace), taps_rows, len, (whole_c, first), (len, 0))?;
            w = io.workspace;
        }
        let y = io.outputs[0];
        let to = if aside > 0 { io.workspace + cut_bytes as u64 } else { y };
        way.launch(cx, io.inputs[0], w, to, io.workspace + scratch as u64)?;
        if plain_end { Ok(()) } else { epilogue.launch(cx, to, y, extras(io), count) }
    }))
}

/// The gradient of the large image, then sums over repeated pixels.
fn summed_input_grad(n: &Node<'_>, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let way = Way::new(n, sizes, Kind::InputGrad)?;
    let sum = resizing(n, n.y[0], true)?;
    let aside = sizes.bytes(sizes.in_rows() * sizes.c);
    Ok(Kernel::new(aside + way.scratch(), move |cx, io| {
        way.launch(cx, io.inputs[0], io.inputs[1], io.workspace, io.workspace + aside as u64)?;
        sum.launch(cx, &Io { inputs: &[io.workspace], outputs: io.outputs, workspace: 0 })
    }))
}

pub(super) fn weight_grad(n: &Node<'_>, a: &ConvWeightGrad) -> Result<Kernel, CudaError> {
    if a.prologue.is_some() {
        return Err(CudaError::Unsupported { op: "conv_weight_grad".into(), reason: "a norm inside".into() });
    }
    let parts = a.parts;
    let dy = n.x[a.dy()];
    let seen = seen_shape(&n.x[..parts], a.upsample);
    let sizes = Sizes::new(seen, dy.shape, a.kernel, a.geometry, n.x[0].dtype)?;
    let dy_at = a.dy();
    if sizes.is_product() {
        let mut products = vec![];
        let mut first = 0;
        for part in &n.x[..parts] {
            let c = part.shape.channels();
            let product = Product {
                batch: 1,
                m: sizes.k,
                n: c,
                k: sizes.rows(),
                transpose_a: true,
                transpose_b: false,
                row_a: sizes.k,
                row_b: c,
                row_d: sizes.c,
                step_a: 0,
                step_b: 0,
                step_d: 0,
                input: sizes.dtype,
                output: n.y[0].dtype,
                bias: false,
                add: false,
                align: alignment(first * n.y[0].dtype.bytes()),
            };
            products.push((Ready::new(n.cx, &product, n.math)?, (first * n.y[0].dtype.bytes()) as u64));
            first += c;
        }
        let scratch = products.iter().map(|p| p.0.scratch).max().unwrap_or(0);
        return Ok(Kernel::new(scratch, move |cx, io| {
            for (i, (product, offset)) in products.iter().enumerate() {
                let d = io.outputs[0] + offset;
                product.launch(cx, io.inputs[dy_at], io.inputs[i], 0, d, d, io.workspace)?;
            }
            Ok(())
        }));
    }
    // Our own kernels, or the library's.
    let is_own = parts == 1 && warpgroup::takes_weight_grad(n, &sizes);
    let ways: &[bool] = match (is_own, sizes.is_huge()) {
        (true, true) => &[true],
        (true, false) => &[false, true],
        (false, _) => &[false],
    };
    fastest(n, &format!("{a:?} {:?}", n.math), ways, |own| {
        if own {
            warpgroup::weight_grad(n, &sizes, dy_at, a.upsample)
        } else {
            library_weight_grad(n, a, &sizes)
        }
    })
}

fn library_weight_grad(n: &Node<'_>, a: &ConvWeightGrad, sizes: &Sizes) -> Result<Kernel, CudaError> {
    let (parts, dy_at, sizes) = (a.parts, a.dy(), *sizes);
    if a.upsample
        && let Some(kernel) = phases::weight_grad(n, &sizes, dy_at)?
    {
        return Ok(kernel);
    }
    let gathered = Gathered::new(n, &n.x[..parts], a.upsample)?;
    let gathered_bytes = gathered.bytes;
    if let Some(split) = Split::new(n, &sizes)? {
        return Ok(Kernel::new(gathered_bytes + split.scratch, move |cx, io| {
            let x = gathered.launch(cx, &io.inputs[..parts], io.workspace)?;
            split.launch(cx, x, io.inputs[dy_at], io.outputs[0], io.workspace + gathered_bytes as u64)
        }));
    }
    let way = Way::new(n, &sizes, Kind::WeightGrad)?;
    Ok(Kernel::new(gathered_bytes + way.scratch(), move |cx, io| {
        let x = gathered.launch(cx, &io.inputs[..parts], io.workspace)?;
        way.launch(cx, x, io.inputs[dy_at], io.outputs[0], io.workspace + gathered_bytes as u64)
    }))
}
