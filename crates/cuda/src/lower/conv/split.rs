//! Weight gradients a part of the input's channels at a time.
//!
//! The library has no fast way for some numbers of channels, such as 384, though it has for 256 and 128. A
//! part is copied together, and its gradient is put beside the rest's. Whether that is faster is measured.

use super::library::{Kind, Library};
use super::{Channels, Sizes};
use crate::context::Context;
use crate::error::CudaError;
use crate::lower::Node;
use crate::memory::Buffer;
use crate::tune;

pub(super) struct Split {
    s: Sizes,
    /// First channel and the part's convolution.
    parts: Vec<(usize, Sizes, Library)>,
    copy: Channels,
    pub scratch: usize,
}

impl Split {
    /// Nothing where the whole is faster, or nothing is to be split.
    pub fn new(n: &Node<'_>, s: &Sizes) -> Result<Option<Split>, CudaError> {
        let worth = s.geometry.groups == 1 && s.dtype.bytes() == 2 && s.c > 128;
        if !worth || s.c.is_power_of_two() || !s.c.is_multiple_of(128) {
            return Ok(None);
        }
        let Some(split) = Split::made(n, s)? else { return Ok(None) };
        let Some(whole) = Library::new(n.cx, s, Kind::WeightGrad, n.math)? else { return Ok(Some(split)) };
        let key = format!("split weight gradient {s:?} {:?}", n.math);
        // 0: the whole, 1: in parts.
        let chosen = tune::choice(
            n.cx,
            &key,
            |i| *i < 2,
            || {
                let b = s.dtype.bytes();
                let x = tune::sample(n.cx, s.in_rows() * s.c * b)?;
                let dy = tune::sample(n.cx, s.rows() * s.k * b)?;
                let dw = tune::sample(n.cx, s.weight_len() * b)?;
                let own = Buffer::new(n.cx, split.scratch.max(whole.scratch()))?;
                let (x, dy, dw, own) = (x.start(), dy.start(), dw.start(), own.start());
                // SAFETY, of both: buffers as large as the tensors.
                let apart = n.cx.time(&mut || unsafe { split.launch(n.cx, x, dy, dw, own) });
                let together = n.cx.time(&mut || unsafe { whole.launch(n.cx, x, dy, dw, own) })?;
                let split = apart.is_ok_and(|t| t < together);
                Ok(Some(usize::from(split)))
            },
        )?;
        Ok((chosen == Some(1)).then_some(split))
    }

    fn made(n: &Node<'_>, s: &Sizes) -> Result<Option<Split>, CudaError> {
        let (mut parts, mut first) = (vec![], 0);
        while first < s.c {
            // The largest power of two that is left.
            let c = 1 << (s.c - first).ilog2();
            let part = Sizes { c, ..*s };
            let Some(library) = Library::new(n.cx, &part, Kind::WeightGrad, n.math)? else { return Ok(None) };
            parts.push((first, part, library));
            first += c;
        }
        let scratch = parts.iter().map(|(_, p, l)| image_bytes(p) + p.bytes(p.weight_len()) + l.scratch());
        let scratch = scratch.max().unwrap_or(0);
        let copy = Channels::new(n.cx, s.dtype, &[s.c, 128])?;
        Ok(Some(Split { s: *s, parts, copy, scratch }))
    }

    pub unsafe fn launch(
        &self,
        cx: &Context,
        x: u64,
        dy: u64,
        dw: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let rows = self.s.k * self.s.kernel.iter().product::<usize>();
        for (first, part, library) in &self.parts {
            let gradient = scratch + image_bytes(part) as u64;
            let own = gradient + part.bytes(part.weight_len()) as u64;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe {
                self.copy.launch(cx, (x, scratch), part.in_rows(), part.c, (self.s.c, *first), (part.c, 0))
            }?;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { library.launch(cx, scratch, dy, gradient, own) }?;
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { self.copy.launch(cx, (gradient, dw), rows, part.c, (part.c, 0), (self.s.c, *first)) }?;
        }
        Ok(())
    }
}

/// Bytes of a part of the input.
fn image_bytes(part: &Sizes) -> usize {
    part.bytes(part.in_rows() * part.c)
}
