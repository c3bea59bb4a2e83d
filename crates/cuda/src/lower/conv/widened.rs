//! Convolutions of few channels, widened to what tensor cores take at once.
//!
//! The library is slow on 16-bit images whose channels are no multiple of eight. Zeros fill them up: reading and
//! writing those costs far less than the slow way.

use super::library::{Kind, Library};
use super::{Channels, Sizes};
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::{Math, blocks, type_name};
use clearshot_tensor::DType;
use std::sync::Arc;

/// Channels that are worth widening to, for 16-bit types.
const WIDTH: usize = 8;

/// The kernel that puts zeros behind channels, up to a multiple of [`WIDTH`].
pub(super) struct Widen(Function);

impl Widen {
    pub fn new(cx: &Arc<Context>, s: &Sizes) -> Result<Widen, CudaError> {
        let name = type_name(s.dtype)?;
        let source = Source::new("conv", include_str!("../../kernels/conv/plain.cu"))
            .define("T", name)
            .define("B", name)
            .define("V", WIDTH)
            .define("ACT(x)", "(x)");
        Ok(Widen(cx.function(&source, "widen_channels")?))
    }

    /// `[rows, c]` as `[all_rows, wide]`.
    pub unsafe fn launch(
        &self,
        cx: &Context,
        x: u64,
        [rows, all_rows]: [usize; 2],
        [c, wide]: [usize; 2],
        to: u64,
    ) -> Result<(), CudaError> {
        let count = all_rows * wide;
        let p = Params::new().with(x).with(to).with(rows as i64).with(c as i32).with(wide as i32);
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.0, blocks(cx, count / WIDTH), 256, 0, &p.with(count as i64)) }
    }
}

/// A convolution by the library whose channels were widened; takes and gives the narrow tensors.
pub(super) struct Widened {
    narrow: Sizes,
    wide: Sizes,
    kind: Kind,
    library: Library,
    widen: Widen,
    cut: Channels,
    pub scratch: usize,
}

/// Whether a convolution has channels to widen.
pub(super) fn suits(s: &Sizes) -> bool {
    let narrow = |c: usize| !c.is_multiple_of(WIDTH);
    s.dtype != DType::F32 && s.geometry.groups == 1 && (narrow(s.c) || narrow(s.k))
}

impl Widened {
    pub fn new(cx: &Arc<Context>, s: &Sizes, kind: Kind, math: Math) -> Result<Option<Widened>, CudaError> {
        let wide = Sizes { c: s.c.next_multiple_of(WIDTH), k: s.k.next_multiple_of(WIDTH), ..*s };
        let Some(library) = Library::new(cx, &wide, kind, math)? else { return Ok(None) };
        let widen = Widen::new(cx, s)?;
        let cut = Channels::new(cx, s.dtype, &[1])?;
        let images = [wide.in_rows() * wide.c, wide.weight_len(), wide.rows() * wide.k];
        let scratch = images.iter().map(|i| wide.bytes(*i)).sum::<usize>() + library.scratch();
        Ok(Some(Widened { narrow: *s, wide, kind, library, widen, cut, scratch }))
    }

    /// As [`Library::launch`].
    pub unsafe fn launch(
        &self,
        cx: &Context,
        a: u64,
        b: u64,
        out: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let (s, w) = (&self.narrow, &self.wide);
        let x_at = scratch;
        let w_at = x_at + w.bytes(w.in_rows() * w.c) as u64;
        let y_at = w_at + w.bytes(w.weight_len()) as u64;
        let own = y_at + w.bytes(w.rows() * w.k) as u64;
        let taps: usize = s.kernel.iter().product();
        // The tensor itself where nothing is to be done.
        let widened = |x, [rows, all]: [usize; 2], [c, wide]: [usize; 2], to| {
            if c == wide && rows == all {
                return Ok(x);
            }
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { self.widen.launch(cx, x, [rows, all], [c, wide], to) }.map(|()| to)
        };
        let x = |from| widened(from, [s.in_rows(); 2], [s.c, w.c], x_at);
        let y = |from| widened(from, [s.rows(); 2], [s.k, w.k], y_at);
        let weight = |from| widened(from, [s.k * taps, w.k * taps], [s.c, w.c], w_at);
        // What the library writes, and the narrow part of it.
        let place = |same: bool, at: u64| if same { out } else { at };
        match self.kind {
            Kind::Forward | Kind::Fused { .. } => {
                let (from, by, to) = (x(a)?, weight(b)?, place(s.k == w.k, y_at));
                // SAFETY: the promise of `Kernel::launch`.
                unsafe { self.library.launch(cx, from, by, to, own) }?;
                self.cut(cx, to, out, s.rows(), s.k, w.k)
            }
            Kind::InputGrad => {
                let (from, by, to) = (y(a)?, weight(b)?, place(s.c == w.c, x_at));
                // SAFETY: the promise of `Kernel::launch`.
                unsafe { self.library.launch(cx, from, by, to, own) }?;
                self.cut(cx, to, out, s.in_rows(), s.c, w.c)
            }
            Kind::WeightGrad => {
                let (from, by) = (x(a)?, y(b)?);
                let to = place(s.c == w.c && s.k == w.k, w_at);
                // SAFETY: the promise of `Kernel::launch`.
                unsafe { self.library.launch(cx, from, by, to, own) }?;
                self.cut(cx, to, out, s.k * taps, s.c, w.c)
            }
        }
    }

    /// The first `c` of `wide` channels of the first rows.
    fn cut(
        &self,
        cx: &Context,
        from: u64,
        to: u64,
        rows: usize,
        c: usize,
        wide: usize,
    ) -> Result<(), CudaError> {
        if from == to {
            return Ok(());
        }
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { self.cut.launch(cx, (from, to), rows, c, (wide, 0), (c, 0)) }
    }
}
