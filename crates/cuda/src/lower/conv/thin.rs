//! Convolutions between few channels and many, with steps of one pixel: the first and the last of a network.
//!
//! The library has no fast way for them. Here the taps of the few channels are laid side by side, and what is
//! left is a matrix product that is bound by reading or writing the many.

use super::Sizes;
use super::library::Kind;
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::matmul::{Product, Ready};
use crate::lower::{Math, blocks, type_name};
use clearshot_tensor::DType;
use std::sync::Arc;

/// The most taps times channels that are worth laying side by side.
const WIDEST: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct ThinParams {
    x: u64,
    z: u64,
    out: u64,
    c: i32,
    wide: i32,
    from: [i32; 3],
    to: [i32; 3],
    kernel: [i32; 3],
    before: [i32; 3],
    dilation: [i32; 3],
    sign: i32,
    count: i64,
}

/// Which side has few channels.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Input,
    Output,
}

pub(super) struct Thin {
    s: Sizes,
    kind: Kind,
    side: Side,
    wide: usize,
    product: Ready,
    gather: Function,
    sum: Function,
    turn: Function,
    widen: Function,
    pub scratch: usize,
}

/// The side with few channels, of a convolution that suits.
fn side(s: &Sizes) -> Option<Side> {
    let taps: usize = s.kernel.iter().product();
    let thin = |c: usize| c < 8 && taps * c <= WIDEST;
    let suits = s.dtype != DType::F32 && s.geometry.groups == 1 && s.geometry.stride == [1; 3];
    match (suits, thin(s.c), thin(s.k)) {
        (true, true, false) => Some(Side::Input),
        (true, false, true) => Some(Side::Output),
        _ => None,
    }
}

impl Thin {
    /// Nothing where the convolution does not suit.
    pub fn new(cx: &Arc<Context>, s: &Sizes, kind: Kind, math: Math) -> Result<Option<Thin>, CudaError> {
        let Some(side) = side(s) else { return Ok(None) };
        let taps: usize = s.kernel.iter().product();
        let few = if side == Side::Input { s.c } else { s.k };
        let many = if side == Side::Input { s.k } else { s.c };
        let wide = (taps * few).next_multiple_of(8);
        let product = |sizes, transposed| Product::dense(sizes, transposed, s.dtype);
        let product = match (kind, side) {
            // Taps [rows, wide] by weights [many, wide] -> [rows, many].
            (Kind::Forward | Kind::Fused { .. }, Side::Input) => Product {
                bias: kind == (Kind::Fused { residual: false }),
                ..product([s.rows(), many, wide], [false, true])
            },
            // Image [rows, many] by weights [wide, many] -> taps [rows, wide].
            (Kind::Forward | Kind::Fused { .. }, Side::Output) => {
                Product { output: DType::F32, ..product([s.in_rows(), wide, many], [false, true]) }
            }
            // Gradient [rows, many] by weights [many, wide] -> taps [rows, wide].
            (Kind::InputGrad, Side::Input) => {
                Product { output: DType::F32, ..product([s.rows(), wide, many], [false, false]) }
            }
            // Taps [rows, wide] by weights [wide, many] -> [rows, many].
            (Kind::InputGrad, Side::Output) => product([s.in_rows(), many, wide], [false, false]),
            // Gradient [rows, many] and taps [rows, wide] -> [many, wide].
            (Kind::WeightGrad, Side::Input) => product([many, wide, s.rows()], [true, false]),
            // Taps [rows, wide] and image [rows, many] -> [wide, many].
            (Kind::WeightGrad, Side::Output) => product([wide, many, s.in_rows()], [true, false]),
        };
        let name = type_name(s.dtype)?;
        let source = Source::new("thin", include_str!("../../kernels/conv/thin.cu"))
            .define("T", name)
            .define("S", type_name(product.output)?);
        let plain = Source::new("conv", include_str!("../../kernels/conv/plain.cu"))
            .define("T", name)
            .define("B", name)
            .define("V", 1)
            .define("ACT(x)", "(x)");
        let product = Ready::new(cx, &product, math)?;
        let mut made = Thin {
            s: *s,
            kind,
            side,
            wide,
            product,
            gather: cx.function(&source, "gather_taps")?,
            sum: cx.function(&source, "sum_taps")?,
            turn: cx.function(&source, "turn_weights")?,
            widen: cx.function(&plain, "widen_channels")?,
            scratch: 0,
        };
        made.scratch = made.taps_bytes() + made.weight_bytes() + made.product.scratch;
        Ok(Some(made))
    }

    fn taps(&self) -> usize {
        self.s.kernel.iter().product()
    }

    fn few(&self) -> usize {
        if self.side == Side::Input { self.s.c } else { self.s.k }
    }

    fn taps_bytes(&self) -> usize {
        // In fp32 where products write them.
        (self.s.rows().max(self.s.in_rows()) * self.wide * 4).next_multiple_of(256)
    }

    fn weight_bytes(&self) -> usize {
        let many = if self.side == Side::Input { self.s.k } else { self.s.c };
        (many * self.wide * self.s.dtype.bytes()).next_multiple_of(256)
    }

    /// `adjoint`: from the output's pixels to the input's.
    fn params(&self, adjoint: bool, count: usize) -> ThinParams {
        let s = &self.s;
        let ints = |v: [usize; 3]| v.map(|x| x as i32);
        let (from, to) = if adjoint { (s.output, s.input) } else { (s.input, s.output) };
        ThinParams {
            x: 0,
            z: 0,
            out: 0,
            c: self.few() as i32,
            wide: self.wide as i32,
            from: ints(from),
            to: ints(to),
            kernel: ints(s.kernel),
            before: ints(s.geometry.pad.map(|p| p[0])),
            dilation: ints(s.geometry.dilation),
            sign: if adjoint { -1 } else { 1 },
            count: count as i64,
        }
    }

    /// Taps of a thin image, for each pixel of the other image.
    unsafe fn gathered(&self, cx: &Context, x: u64, adjoint: bool, to: u64) -> Result<u64, CudaError> {
        let rows = if adjoint { self.s.in_rows() } else { self.s.rows() };
        let count = rows * self.wide.div_ceil(self.few());
        let p = ThinParams { x, out: to, ..self.params(adjoint, count) };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.gather, blocks(cx, count), 256, 0, &Params::new().with(p)) }?;
        Ok(to)
    }

    /// A thin image from the taps of the other image's pixels.
    unsafe fn summed(&self, cx: &Context, z: u64, adjoint: bool, out: u64) -> Result<(), CudaError> {
        let count = if adjoint { self.s.in_rows() } else { self.s.rows() } * self.few();
        let p = ThinParams { z, out, ..self.params(adjoint, count) };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.sum, blocks(cx, count), 256, 0, &Params::new().with(p)) }
    }

    /// Weights as the product wants them.
    unsafe fn weights(&self, cx: &Context, w: u64, to: u64) -> Result<u64, CudaError> {
        let s = &self.s;
        if self.side == Side::Output {
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { self.turned(cx, w, to, false) }?;
            return Ok(to);
        }
        let (c, count) = (self.taps() * s.c, s.k * self.wide);
        let p = Params::new().with(w).with(to).with(s.k as i64).with(c as i32).with(self.wide as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.widen, blocks(cx, count), 256, 0, &p.with(count as i64)) }?;
        Ok(to)
    }

    unsafe fn turned(&self, cx: &Context, w: u64, to: u64, back: bool) -> Result<(), CudaError> {
        let s = &self.s;
        let p = Params::new().with(w).with(to).with(s.k as i32).with(self.taps() as i32);
        let p = p.with(s.c as i32).with(self.wide as i32).with(i32::from(back));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.turn, blocks(cx, self.wide * s.c), 256, 0, &p) }
    }

    /// Whether the product adds the bias.
    pub fn adds_bias(&self) -> bool {
        self.side == Side::Input && self.kind == (Kind::Fused { residual: false })
    }

    /// As a library's convolution: x, w -> y; dy, w -> dx; x, dy -> dw.
    pub unsafe fn launch(
        &self,
        cx: &Context,
        a: u64,
        b: u64,
        bias: u64,
        out: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let taps_at = scratch;
        let w_at = taps_at + self.taps_bytes() as u64;
        let own = w_at + self.weight_bytes() as u64;
        // SAFETY: the promise of `Kernel::launch`.
        unsafe {
            let product = |x, y, to| self.product.launch(cx, x, y, bias, to, to, own);
            match (self.kind, self.side) {
                (Kind::Forward | Kind::Fused { .. }, Side::Input) => {
                    let (x, w) = (self.gathered(cx, a, false, taps_at)?, self.weights(cx, b, w_at)?);
                    product(x, w, out)
                }
                (Kind::Forward | Kind::Fused { .. }, Side::Output) => {
                    product(a, self.weights(cx, b, w_at)?, taps_at)?;
                    self.summed(cx, taps_at, false, out)
                }
                (Kind::InputGrad, Side::Input) => {
                    product(a, self.weights(cx, b, w_at)?, taps_at)?;
                    self.summed(cx, taps_at, true, out)
                }
                (Kind::InputGrad, Side::Output) => {
                    let (x, w) = (self.gathered(cx, a, true, taps_at)?, self.weights(cx, b, w_at)?);
                    product(x, w, out)
                }
                (Kind::WeightGrad, Side::Input) => {
                    product(b, self.gathered(cx, a, false, taps_at)?, w_at)?;
                    self.cut(cx, w_at, out)
                }
                (Kind::WeightGrad, Side::Output) => {
                    product(self.gathered(cx, b, true, taps_at)?, a, w_at)?;
                    self.turned(cx, w_at, out, true)
                }
            }
        }
    }

    /// The first taps of each row of weights.
    unsafe fn cut(&self, cx: &Context, from: u64, to: u64) -> Result<(), CudaError> {
        let (s, c) = (&self.s, self.taps() * self.s.c);
        // Widening to fewer channels is cutting.
        let count = s.k * c;
        let p = Params::new().with(from).with(to).with(s.k as i64).with(self.wide as i32).with(c as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.widen, blocks(cx, count), 256, 0, &p.with(count as i64)) }
    }
}
