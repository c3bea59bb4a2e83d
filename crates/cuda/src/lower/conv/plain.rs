//! Convolutions as plain sums, for shapes that the library refuses.

use super::Sizes;
use super::library::Kind;
use crate::context::{Context, Function, Params, Source};
use crate::error::CudaError;
use crate::lower::{blocks, type_name};
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
struct ConvParams {
    x: u64,
    w: u64,
    dy: u64,
    y: u64,
    n: i32,
    c: i32,
    k: i32,
    groups: i32,
    sizes: [[i32; 3]; 6],
    count: i64,
}

pub(super) struct Plain {
    f: Function,
    params: ConvParams,
    kind: Kind,
    count: usize,
}

impl Plain {
    pub fn new(cx: &Arc<Context>, s: &Sizes, kind: Kind) -> Result<Plain, CudaError> {
        let dtype = type_name(s.dtype)?;
        let source = Source::new("conv", include_str!("../../kernels/conv/plain.cu"))
            .define("T", dtype)
            .define("B", dtype)
            .define("V", 1)
            .define("ACT(x)", "(x)");
        let (name, count) = match kind {
            Kind::Forward | Kind::Fused { .. } => ("plain_conv", s.rows() * s.k),
            Kind::InputGrad => ("plain_input_grad", s.in_rows() * s.c),
            Kind::WeightGrad => ("plain_weight_grad", s.weight_len()),
        };
        let g = &s.geometry;
        let before = [g.pad[0][0], g.pad[1][0], g.pad[2][0]];
        let sizes = [s.input, s.output, s.kernel, g.stride, before, g.dilation];
        let params = ConvParams {
            x: 0,
            w: 0,
            dy: 0,
            y: 0,
            n: s.n as i32,
            c: s.c as i32,
            k: s.k as i32,
            groups: g.groups as i32,
            sizes: sizes.map(|s| s.map(|v| v as i32)),
            count: count as i64,
        };
        Ok(Plain { f: cx.function(&source, name)?, params, kind, count })
    }

    /// Forward: x, w -> y. Input's gradient: dy, w -> dx. Weight's: x, dy -> dw.
    pub unsafe fn launch(&self, cx: &Context, a: u64, b: u64, y: u64) -> Result<(), CudaError> {
        let p = ConvParams { y, ..self.params };
        let p = match self.kind {
            Kind::Forward | Kind::Fused { .. } => ConvParams { x: a, w: b, ..p },
            Kind::InputGrad => ConvParams { dy: a, w: b, ..p },
            Kind::WeightGrad => ConvParams { x: a, dy: b, ..p },
        };
        let p = Params::new().with(p);
        match self.kind {
            // One block a result instead of one thread.
            // SAFETY: the promise of `Kernel::launch`.
            Kind::WeightGrad => unsafe { cx.launch(self.f, [self.count, 1], 128, 0, &p) },
            // SAFETY: the promise of `Kernel::launch`.
            _ => unsafe { cx.launch(self.f, blocks(cx, self.count), 256, 0, &p) },
        }
    }
}
