//! Matrix products by cuBLASLt.
//!
//! The library counts columns first, so a product is given to it transposed: `yᵀ = op(b)ᵀ op(a)ᵀ`. Its
//! candidates for a shape are timed once where the product is large enough to be worth it.

use super::pointwise::with_act;
use super::{Kernel, Math, Node, blocks, fast, type_name, vector};
use crate::context::{Context, Function, Params, Source};
use crate::error::{CudaError, refused};
use crate::tune;
use clearshot_graph::ops::{MatMul, Unary};
use clearshot_tensor::DType;
use cudarc::cublaslt::result as lt;
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// `d = op(a) op(b) + bias + c`, row by row as the rest of this program counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub transpose_a: bool,
    pub transpose_b: bool,
    /// Elements from row to row.
    pub row_a: usize,
    pub row_b: usize,
    pub row_d: usize,
    /// Elements from sample to sample; 0 where all share one.
    pub step_a: usize,
    pub step_b: usize,
    pub step_d: usize,
    pub input: DType,
    pub output: DType,
    pub bias: bool,
    /// Another matrix of d's layout is added; it may be d itself.
    pub add: bool,
    /// Bytes that every matrix's address is a multiple of.
    pub align: u32,
}

impl Product {
    /// One product `[m, k]` by `[k, n]` of matrices without gaps, in one type, with nothing added; `transposed` says of
    /// a and of b whether they lie the other way around.
    pub fn dense([m, n, k]: [usize; 3], transposed: [bool; 2], dtype: DType) -> Product {
        let [transpose_a, transpose_b] = transposed;
        Product {
            batch: 1,
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            row_a: if transpose_a { m } else { k },
            row_b: if transpose_b { k } else { n },
            row_d: n,
            step_a: 0,
            step_b: 0,
            step_d: 0,
            input: dtype,
            output: dtype,
            bias: false,
            add: false,
            align: ALIGNED,
        }
    }
}

/// What addresses inside plans are multiples of.
const ALIGNED: u32 = 256;

/// What `bytes` behind such an address is a multiple of.
pub(super) fn alignment(bytes: usize) -> u32 {
    1 << bytes.trailing_zeros().min(ALIGNED.trailing_zeros())
}

/// The library's scratch for a candidate is at most this.
const LARGEST_SCRATCH: usize = 32 << 20;
/// Candidates that are timed.
const CANDIDATES: usize = 8;
/// Products of fewer operations take the first candidate.
const WORTH_TIMING: usize = 100_000_000;

/// A product with the way chosen to compute it.
pub(super) struct Ready {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
    pub scratch: usize,
    add: bool,
    bias: bool,
}

// SAFETY: descriptors are read only, except for the bias pointer, which is set right before each launch by
// the one thread that launches.
unsafe impl Send for Ready {}
unsafe impl Sync for Ready {}

impl Drop for Ready {
    fn drop(&mut self) {
        // SAFETY: made in `new`, used nowhere else.
        unsafe {
            let _ = lt::destroy_matmul_desc(self.desc);
            for l in self.layouts {
                let _ = lt::destroy_matrix_layout(l);
            }
        }
    }
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType, CudaError> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        other => Err(CudaError::Unsupported { op: "matmul".into(), reason: format!("{other} operands") }),
    }
}

impl Ready {
    pub fn new(cx: &Arc<Context>, p: &Product, math: Math) -> Result<Ready, CudaError> {
        let failed = |e: lt::CublasError| refused("cuBLASLt", e);
        let compute = if p.input == DType::F32 && math.tf32 {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let desc = lt::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F).map_err(failed)?;
        let set = |attribute, value: i32| {
            // SAFETY: the attribute is 32 bits wide.
            unsafe { lt::set_matmul_desc_attribute(desc, attribute, (&raw const value).cast(), 4) }
                .map_err(failed)
        };
        use sys::cublasLtMatmulDescAttributes_t as D;
        // First b, then a: row by row they are their own transposes, column by column.
        set(D::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(p.transpose_b))?;
        set(D::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(p.transpose_a))?;
        if p.bias {
            set(D::CUBLASLT_MATMUL_DESC_EPILOGUE, sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as i32)?;
        }
        let layout = |dtype, rows: usize, columns: usize, row: usize, step: usize| {
            let l = lt::create_matrix_layout(data_type(dtype)?, rows as u64, columns as u64, row as i64)
                .map_err(failed)?;
            use sys::cublasLtMatrixLayoutAttribute_t as L;
            let (batch, step) = (p.batch as i32, step as i64);
            // SAFETY: attributes of 32 and 64 bits.
            unsafe {
                lt::set_matrix_layout_attribute(
                    l,
                    L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                    (&raw const batch).cast(),
                    4,
                )
                .map_err(failed)?;
                lt::set_matrix_layout_attribute(
                    l,
                    L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    (&raw const step).cast(),
                    8,
                )
                .map_err(failed)?;
            }
            Ok::<_, CudaError>(l)
        };
        let (b_rows, b_columns) = if p.transpose_b { (p.k, p.n) } else { (p.n, p.k) };
        let (a_rows, a_columns) = if p.transpose_a { (p.m, p.k) } else { (p.k, p.m) };
        let layouts = [
            layout(p.input, b_rows, b_columns, p.row_b, p.step_b)?,
            layout(p.input, a_rows, a_columns, p.row_a, p.step_a)?,
            layout(p.output, p.n, p.m, p.row_d, p.step_d)?,
        ];
        let mut ready = Ready {
            desc,
            layouts,
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            scratch: 0,
            add: p.add,
            bias: p.bias,
        };
        let found = ready.candidates(cx, p.align)?;
        let work = 2 * p.batch * p.m * p.n * p.k;
        let chosen = if work < WORTH_TIMING || found.len() < 2 {
            0
        } else {
            let key = format!("product {p:?} {math:?}");
            tune::choice(cx, &key, |i| *i < found.len(), || ready.fastest(cx, p, &found))?.unwrap_or(0)
        };
        (ready.algo, ready.scratch) = (found[chosen].algo, found[chosen].workspaceSize);
        Ok(ready)
    }

    fn candidates(
        &self,
        cx: &Context,
        align: u32,
    ) -> Result<Vec<sys::cublasLtMatmulHeuristicResult_t>, CudaError> {
        let preference = lt::create_matmul_pref().map_err(|e| refused("cuBLASLt", e))?;
        // SAFETY: descriptors of this product; room for the results.
        unsafe {
            let limit = LARGEST_SCRATCH as u64;
            lt::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const limit).cast(),
                8,
            )
            .map_err(|e| refused("cuBLASLt", e))?;
            use sys::cublasLtMatmulPreferenceAttributes_t as P;
            for matrix in [
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                lt::set_matmul_pref_attribute(preference, matrix, (&raw const align).cast(), 4)
                    .map_err(|e| refused("cuBLASLt", e))?;
            }
            let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![std::mem::zeroed(); CANDIDATES];
            let mut count = 0;
            let [b, a, d] = self.layouts;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                cx.cublas()?,
                self.desc,
                b,
                a,
                d,
                d,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            );
            let _ = lt::destroy_matmul_pref(preference);
            status.result().map_err(|e| refused("cublasLtMatmulAlgoGetHeuristic", e))?;
            found.truncate(count as usize);
            found.retain(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
            if found.is_empty() {
                return Err(refused("cuBLASLt", "no way to compute this product"));
            }
            Ok(found)
        }
    }

    fn fastest(
        &mut self,
        cx: &Arc<Context>,
        p: &Product,
        found: &[sys::cublasLtMatmulHeuristicResult_t],
    ) -> Result<Option<usize>, CudaError> {
        let size = |rows: usize, row: usize, step: usize| rows * row + step * (p.batch - 1);
        let rows_a = if p.transpose_a { p.k } else { p.m };
        let rows_b = if p.transpose_b { p.n } else { p.k };
        let a = tune::sample(cx, size(rows_a, p.row_a, p.step_a) * p.input.bytes())?;
        let b = tune::sample(cx, size(rows_b, p.row_b, p.step_b) * p.input.bytes())?;
        let d = tune::sample(cx, size(p.m, p.row_d, p.step_d) * p.output.bytes())?;
        let bias = tune::sample(cx, p.n * 4)?;
        let scratch = crate::memory::Buffer::new(cx, LARGEST_SCRATCH)?;
        let mut best = (f32::INFINITY, 0);
        for (i, candidate) in found.iter().enumerate() {
            (self.algo, self.scratch) = (candidate.algo, candidate.workspaceSize);
            // SAFETY: buffers as large as the matrices.
            let run = || unsafe {
                self.launch(cx, a.start(), b.start(), bias.start(), d.start(), d.start(), scratch.start())
            };
            if let Ok(time) = cx.time(&mut { run })
                && time < best.0
            {
                best = (time, i);
            }
        }
        Ok(best.0.is_finite().then_some(best.1))
    }

    /// `d = a b + bias + c`.
    pub unsafe fn launch(
        &self,
        cx: &Context,
        a: u64,
        b: u64,
        bias: u64,
        c: u64,
        d: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let (alpha, beta) = (1.0f32, if self.add { 1.0f32 } else { 0.0 });
        // SAFETY: addresses of matrices as the descriptors say.
        unsafe {
            if self.bias {
                lt::set_matmul_desc_attribute(
                    self.desc,
                    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    (&raw const bias).cast(),
                    8,
                )
                .map_err(|e| refused("cuBLASLt", e))?;
            }
            let [lb, la, ld] = self.layouts;
            sys::cublasLtMatmul(
                cx.cublas()?,
                self.desc,
                (&raw const alpha).cast(),
                b as *const c_void,
                lb,
                a as *const c_void,
                la,
                (&raw const beta).cast(),
                c as *const c_void,
                ld,
                d as *mut c_void,
                ld,
                &self.algo,
                scratch as *mut c_void,
                self.scratch,
                cx.stream.cast(),
            )
            .result()
            .map_err(|e| refused("cublasLtMatmul", e))
        }
    }
}

/// A product large enough to show the card's rate: its operations, and its milliseconds.
pub(crate) fn largest_product(cx: &Arc<Context>, dtype: DType, math: Math) -> Result<(f64, f32), CudaError> {
    let n = 8192;
    let product = Product::dense([n; 3], [false, true], dtype);
    let ready = Ready::new(cx, &product, math)?;
    let bytes = n * n * dtype.bytes();
    let [a, b, d] = [tune::sample(cx, bytes)?, tune::sample(cx, bytes)?, tune::sample(cx, bytes)?];
    let scratch = crate::memory::Buffer::new(cx, ready.scratch)?;
    let (a, b, d, scratch) = (a.start(), b.start(), d.start(), scratch.start());
    // SAFETY: buffers as large as the matrices.
    let time = cx.time(&mut || unsafe { ready.launch(cx, a, b, 0, d, d, scratch) })?;
    Ok((2.0 * (n as f64).powi(3), time))
}

/// `y = act(x + bias) + residual` on rows of c channels, of which `pixels` make a sample.
pub(super) struct Epilogue {
    f: Function,
    v: usize,
    c: usize,
    pixels: usize,
    per_sample: bool,
}

/// What an epilogue reads besides x.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    pub bias: Option<u64>,
    pub residual: Option<u64>,
}

impl Epilogue {
    /// `bias` is the bias's type and whether each sample has its own.
    pub fn new(
        cx: &Arc<Context>,
        dtype: DType,
        c: usize,
        pixels: usize,
        act: Option<Unary>,
        bias: Option<(DType, bool)>,
    ) -> Result<Epilogue, CudaError> {
        let v = vector(dtype, &[c]);
        let source = Source::new("conv", include_str!("../kernels/conv/plain.cu"))
            .define("T", type_name(dtype)?)
            .define("B", type_name(bias.map_or(dtype, |b| b.0))?)
            .define("V", v);
        let f = cx.function(&with_act(fast(source, dtype), act), "epilogue")?;
        Ok(Epilogue { f, v, c, pixels, per_sample: bias.is_some_and(|b| b.1) })
    }

    pub unsafe fn launch(
        &self,
        cx: &Context,
        x: u64,
        y: u64,
        extras: Extras,
        count: usize,
    ) -> Result<(), CudaError> {
        let p =
            Params::new().with(x).with(y).with(extras.bias.unwrap_or(0)).with(extras.residual.unwrap_or(0));
        let p = p.with(self.pixels as i64).with(self.c as i32).with(i32::from(self.per_sample));
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { cx.launch(self.f, blocks(cx, count / self.v), 256, 0, &p.with((count / self.v) as i64)) }
    }
}

pub(super) fn matmul(n: &Node<'_>, a: &MatMul) -> Result<Kernel, CudaError> {
    let s = a
        .sizes(n.x[0].shape, n.x[1].shape)
        .map_err(|e| CudaError::Unsupported { op: "matmul".into(), reason: e.to_string() })?;
    let (bias_at, residual_at, _) = a.operands();
    // A shared b sees one tall a.
    let (batch, m) = if s.shared { (1, s.batch * s.m) } else { (s.batch, s.m) };
    let product = Product {
        batch,
        step_a: m * s.k,
        step_b: s.k * s.n,
        step_d: m * s.n,
        output: n.y[0].dtype,
        bias: a.bias,
        add: a.residual && a.act.is_none(),
        ..Product::dense([m, s.n, s.k], [a.transpose_a, a.transpose_b], n.x[0].dtype)
    };
    let ready = Ready::new(n.cx, &product, n.math)?;
    let count = n.y[0].shape.len();
    let Some(act) = a.act else {
        return Ok(Kernel::new(ready.scratch, move |cx, io| {
            let (d, bias) = (io.outputs[0], bias_at.map_or(0, |i| io.inputs[i]));
            let c = residual_at.map_or(d, |i| io.inputs[i]);
            // SAFETY: the promise of `Kernel::launch`.
            unsafe { ready.launch(cx, io.inputs[0], io.inputs[1], bias, c, d, io.workspace) }
        }));
    };
    // The residual may lie where the result goes, so the product before it is activated lies elsewhere.
    let epilogue = Epilogue::new(n.cx, n.y[0].dtype, s.n, 1, Some(act), None)?;
    let scratch = ready.scratch.next_multiple_of(256);
    let aside = if a.residual { n.y[0].bytes() } else { 0 };
    Ok(Kernel::new(scratch + aside, move |cx, io| {
        let bias = bias_at.map_or(0, |i| io.inputs[i]);
        let d = if aside > 0 { io.workspace + scratch as u64 } else { io.outputs[0] };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { ready.launch(cx, io.inputs[0], io.inputs[1], bias, d, d, io.workspace) }?;
        let extras = Extras { residual: residual_at.map(|i| io.inputs[i]), bias: None };
        // SAFETY: the promise of `Kernel::launch`.
        unsafe { epilogue.launch(cx, d, io.outputs[0], extras, count) }
    }))
}
