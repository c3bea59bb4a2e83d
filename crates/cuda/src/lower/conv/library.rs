//! Convolutions by cuDNN.
//!
//! For each shape the library's best estimates among the algorithms that give the same bits every time are
//! timed once; a fused convolution (bias and residual added by the library) is timed against a plain one with a kernel
//! behind it.

use super::super::Math;
use super::super::matmul::Extras;
use super::Sizes;
use super::algorithm::{Algorithm, Chosen};
use crate::context::{Context, cudnn_call};
use crate::error::{CudaError, refused};
use crate::memory::Buffer;
use crate::tune;
use clearshot_tensor::DType;
use cudarc::cudnn::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// What is asked of the library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Forward,
    /// With a bias and, perhaps, a residual.
    Fused {
        residual: bool,
    },
    InputGrad,
    WeightGrad,
}

/// The library's scratch for an algorithm is at most this.
pub(super) const LARGEST_SCRATCH: usize = 512 << 20;
/// Algorithms that are timed.
const CANDIDATES: usize = 4;

struct Descriptors {
    x: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    bias: sys::cudnnTensorDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
    act: sys::cudnnActivationDescriptor_t,
}

/// A convolution with the algorithm chosen for it.
pub(super) struct Library {
    descriptors: Descriptors,
    chosen: Chosen,
}

// SAFETY: descriptors are not changed after they are made.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: made in `new`, used nowhere else.
        unsafe {
            let _ = sys::cudnnDestroyTensorDescriptor(self.x);
            let _ = sys::cudnnDestroyTensorDescriptor(self.y);
            let _ = sys::cudnnDestroyTensorDescriptor(self.bias);
            let _ = sys::cudnnDestroyFilterDescriptor(self.w);
            let _ = sys::cudnnDestroyConvolutionDescriptor(self.conv);
            let _ = sys::cudnnDestroyActivationDescriptor(self.act);
        }
    }
}

fn data_type(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

impl Descriptors {
    fn new(s: &Sizes, math: Math) -> Result<Descriptors, CudaError> {
        let dtype = data_type(s.dtype);
        let space = |sizes: [usize; 3]| sizes[3 - s.dims..].iter().map(|v| *v as i32).collect::<Vec<i32>>();
        // Sizes are listed N, C, then space; steps say that channels lie innermost.
        let tensor = |n: usize, c: usize, at: [usize; 3]| -> Result<_, CudaError> {
            let mut sizes = vec![n as i32, c as i32];
            sizes.extend(space(at));
            let mut steps = vec![0; sizes.len()];
            steps[1] = 1;
            let mut step = c as i32;
            for a in (2..sizes.len()).rev() {
                steps[a] = step;
                step *= sizes[a];
            }
            steps[0] = step;
            let mut d = std::ptr::null_mut();
            // SAFETY: a new descriptor and arrays of its rank.
            unsafe {
                cudnn_call("cudnnCreateTensorDescriptor", sys::cudnnCreateTensorDescriptor(&mut d))?;
                let rank = sizes.len() as i32;
                let set = sys::cudnnSetTensorNdDescriptor(d, dtype, rank, sizes.as_ptr(), steps.as_ptr());
                cudnn_call("cudnnSetTensorNdDescriptor", set)?;
            }
            Ok(d)
        };
        // SAFETY: new descriptors, arrays of their rank.
        unsafe {
            let (mut w, mut conv, mut act) =
                (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
            cudnn_call("cudnnCreateFilterDescriptor", sys::cudnnCreateFilterDescriptor(&mut w))?;
            let mut sizes = vec![s.k as i32, (s.c / s.geometry.groups) as i32];
            sizes.extend(space(s.kernel));
            let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
            let set = sys::cudnnSetFilterNdDescriptor(w, dtype, nhwc, sizes.len() as i32, sizes.as_ptr());
            cudnn_call("cudnnSetFilterNdDescriptor", set)?;
            cudnn_call("cudnnCreateConvolutionDescriptor", sys::cudnnCreateConvolutionDescriptor(&mut conv))?;
            let g = &s.geometry;
            let (pad, stride, dilation) = (space(g.pad.map(|p| p[0])), space(g.stride), space(g.dilation));
            let set = sys::cudnnSetConvolutionNdDescriptor(
                conv,
                s.dims as i32,
                pad.as_ptr(),
                stride.as_ptr(),
                dilation.as_ptr(),
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            );
            cudnn_call("cudnnSetConvolutionNdDescriptor", set)?;
            let groups = sys::cudnnSetConvolutionGroupCount(conv, g.groups as i32);
            cudnn_call("cudnnSetConvolutionGroupCount", groups)?;
            let kind = match s.dtype {
                DType::F32 if math.tf32 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
                DType::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
                _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
            };
            cudnn_call("cudnnSetConvolutionMathType", sys::cudnnSetConvolutionMathType(conv, kind))?;
            cudnn_call("cudnnCreateActivationDescriptor", sys::cudnnCreateActivationDescriptor(&mut act))?;
            let set = sys::cudnnSetActivationDescriptor(
                act,
                sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY,
                sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN,
                0.0,
            );
            cudnn_call("cudnnSetActivationDescriptor", set)?;
            let x = tensor(s.n, s.c, s.input)?;
            let y = tensor(s.n, s.k, s.output)?;
            let bias = tensor(1, s.k, [1; 3])?;
            Ok(Descriptors { x, w, y, bias, conv, act })
        }
    }
}

impl Library {
    /// Nothing where the library does not take the shape.
    pub fn new(cx: &Arc<Context>, s: &Sizes, kind: Kind, math: Math) -> Result<Option<Library>, CudaError> {
        // The library pads both sides alike, and counts elements in 32 bits.
        let most = (s.in_rows() * s.c).max(s.rows() * s.k).max(s.weight_len());
        if s.geometry.pad.iter().any(|[low, high]| low != high) || most > i32::MAX as usize {
            return Ok(None);
        }
        let key = format!("convolution {kind:?} {s:?} {math:?}");
        let possible = |c: &Chosen| c.suits(kind);
        let Some(chosen) = tune::choice(cx, &key, possible, || measure(cx, s, kind, math))? else {
            return Ok(None);
        };
        Ok(Some(Library { descriptors: Descriptors::new(s, math)?, chosen }))
    }

    pub fn is_fused(&self) -> bool {
        self.chosen.fused
    }

    /// Bytes of scratch that a launch needs.
    pub fn scratch(&self) -> usize {
        self.chosen.scratch
    }

    /// Forward: x, w -> y. Input's gradient: dy, w -> dx. Weight's: x, dy -> dw.
    pub unsafe fn launch(
        &self,
        cx: &Context,
        a: u64,
        b: u64,
        out: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = ((&raw const one).cast::<c_void>(), (&raw const zero).cast::<c_void>());
        let (a, b, out, scratch) =
            (a as *const c_void, b as *const c_void, out as *mut c_void, scratch as *mut c_void);
        let (d, size) = (&self.descriptors, self.chosen.scratch);
        // SAFETY: addresses of tensors as the descriptors say.
        let status = unsafe {
            match self.chosen.algorithm {
                Algorithm::Forward(algo) => sys::cudnnConvolutionForward(
                    cx.cudnn()?,
                    one,
                    d.x,
                    a,
                    d.w,
                    b,
                    d.conv,
                    algo,
                    scratch,
                    size,
                    zero,
                    d.y,
                    out,
                ),
                Algorithm::InputGrad(algo) => sys::cudnnConvolutionBackwardData(
                    cx.cudnn()?,
                    one,
                    d.w,
                    b,
                    d.y,
                    a,
                    d.conv,
                    algo,
                    scratch,
                    size,
                    zero,
                    d.x,
                    out,
                ),
                Algorithm::WeightGrad(algo) => sys::cudnnConvolutionBackwardFilter(
                    cx.cudnn()?,
                    one,
                    d.x,
                    a,
                    d.y,
                    b,
                    d.conv,
                    algo,
                    scratch,
                    size,
                    zero,
                    d.w,
                    out,
                ),
            }
        };
        cudnn_call("cudnnConvolution", status)
    }

    /// y = conv(x) + bias + residual.
    ///
    /// # Safety
    /// As of `Kernel::launch`.
    pub unsafe fn launch_fused(
        &self,
        cx: &Context,
        x: u64,
        w: u64,
        extras: Extras,
        y: u64,
        scratch: u64,
    ) -> Result<(), CudaError> {
        let one = 1.0f32;
        let second = if extras.residual.is_some() { 1.0f32 } else { 0.0 };
        let d = &self.descriptors;
        let Algorithm::Forward(algo) = self.chosen.algorithm else {
            return Err(refused("cudnnConvolutionBiasActivationForward", "an algorithm of a gradient"));
        };
        // SAFETY: as in `launch`.
        let status = unsafe {
            sys::cudnnConvolutionBiasActivationForward(
                cx.cudnn()?,
                (&raw const one).cast(),
                d.x,
                x as *const c_void,
                d.w,
                w as *const c_void,
                d.conv,
                algo,
                scratch as *mut c_void,
                self.chosen.scratch,
                (&raw const second).cast(),
                d.y,
                extras.residual.unwrap_or(y) as *const c_void,
                d.bias,
                extras.bias.unwrap_or(0) as *const c_void,
                d.act,
                d.y,
                y as *mut c_void,
            )
        };
        cudnn_call("cudnnConvolutionBiasActivationForward", status)
    }
}

/// Memory for one measurement.
struct Bench {
    x: Buffer,
    w: Buffer,
    y: Buffer,
    z: Buffer,
    bias: Buffer,
    scratch: Buffer,
}

/// Nothing where no algorithm ran.
fn measure(cx: &Arc<Context>, s: &Sizes, kind: Kind, math: Math) -> Result<Option<Chosen>, CudaError> {
    let descriptors = Descriptors::new(s, math)?;
    let b = s.dtype.bytes();
    let scratch_bytes = LARGEST_SCRATCH.min(cx.free_bytes()? / 4);
    let bench = Bench {
        x: tune::sample(cx, s.in_rows() * s.c * b)?,
        w: tune::sample(cx, s.weight_len() * b)?,
        y: tune::sample(cx, s.rows() * s.k * b)?,
        z: tune::sample(cx, if kind == (Kind::Fused { residual: true }) { s.rows() * s.k * b } else { 0 })?,
        bias: tune::sample(cx, s.k * b)?,
        scratch: Buffer::new(cx, scratch_bytes)?,
    };
    // What is fused takes this algorithm alone: the others do not take the identity as an activation.
    let precomputed = sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    let first = Chosen { fused: false, algorithm: Algorithm::Forward(precomputed), scratch: 0 };
    let mut library = Library { descriptors, chosen: first };
    let mut best: Option<(f32, Chosen)> = None;
    for (algorithm, scratch) in algorithms(cx, &library.descriptors, kind, scratch_bytes)? {
        library.chosen = Chosen { fused: false, algorithm, scratch };
        let (x, w, y, own) = (bench.x.start(), bench.w.start(), bench.y.start(), bench.scratch.start());
        let mut run = || match kind {
            // SAFETY, of all three: buffers as large as the tensors.
            Kind::Forward | Kind::Fused { .. } => unsafe { library.launch(cx, x, w, y, own) },
            Kind::InputGrad => unsafe { library.launch(cx, y, w, x, own) },
            Kind::WeightGrad => unsafe { library.launch(cx, x, y, w, own) },
        };
        let limit = best.as_ref().map_or(f32::INFINITY, |b| b.0);
        let Ok(time) = cx.time_below(limit, &mut run) else { continue };
        // What a kernel behind it would add: at the least a read and a write of y.
        let after = if matches!(kind, Kind::Fused { .. }) { bytes_time(cx, &bench, s)? } else { 0.0 };
        if best.as_ref().is_none_or(|b| time + after < b.0) {
            best = Some((time + after, library.chosen));
        }
    }
    if let Kind::Fused { residual } = kind {
        let algo = precomputed;
        let mut scratch = 0;
        let d = &library.descriptors;
        // SAFETY: descriptors of this convolution.
        let status = unsafe {
            sys::cudnnGetConvolutionForwardWorkspaceSize(
                cx.cudnn()?,
                d.x,
                d.w,
                d.conv,
                d.y,
                algo,
                &mut scratch,
            )
        };
        if cudnn_call("cudnnGetConvolutionForwardWorkspaceSize", status).is_ok() && scratch <= scratch_bytes {
            library.chosen = Chosen { fused: true, scratch, ..first };
            let extras =
                Extras { bias: Some(bench.bias.start()), residual: residual.then(|| bench.z.start()) };
            let mut run = || {
                let (x, w, y, own) =
                    (bench.x.start(), bench.w.start(), bench.y.start(), bench.scratch.start());
                // SAFETY: buffers as large as the tensors.
                unsafe { library.launch_fused(cx, x, w, extras, y, own) }
            };
            if let Ok(time) = cx.time(&mut run)
                && best.as_ref().is_none_or(|b| time < b.0)
            {
                best = Some((time, library.chosen));
            }
        }
    }
    Ok(best.map(|b| b.1))
}

/// The time of a pass over y: reading it and writing it.
fn bytes_time(cx: &Arc<Context>, bench: &Bench, s: &Sizes) -> Result<f32, CudaError> {
    let bytes = s.rows() * s.k * s.dtype.bytes();
    let half = bytes / 2;
    cx.time(&mut || {
        // SAFETY: both halves lie inside y.
        unsafe {
            let y = bench.y.start();
            cudarc::driver::result::memcpy_dtod_async(y, y + half as u64, half, cx.stream)?;
        }
        Ok(())
    })
    .map(|t| 2.0 * t)
}

/// The library's deterministic algorithms for the shape, fastest first by its own estimate, and their scratch.
fn algorithms(
    cx: &Context,
    d: &Descriptors,
    kind: Kind,
    scratch_bytes: usize,
) -> Result<Vec<(Algorithm, usize)>, CudaError> {
    const MOST: usize = 10;
    let mut count = 0;
    macro_rules! estimated {
        ($get:ident, $perf:ty, $of:expr, $a:expr, $b:expr, $c:expr) => {{
            let mut perfs: [$perf; MOST] = std::mem::zeroed();
            let status =
                sys::$get(cx.cudnn()?, $a, $b, d.conv, $c, MOST as i32, &mut count, perfs.as_mut_ptr());
            if cudnn_call(stringify!($get), status).is_err() {
                return Ok(vec![]);
            }
            perfs[..count as usize]
                .iter()
                .filter(|p| p.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS)
                .filter(|p| p.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC)
                .map(|p| ($of(p.algo), p.memory))
                .collect()
        }};
    }
    // SAFETY: descriptors of this convolution, room for the answers.
    let mut all: Vec<(Algorithm, usize)> = unsafe {
        match kind {
            Kind::Forward | Kind::Fused { .. } => estimated!(
                cudnnGetConvolutionForwardAlgorithm_v7,
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Algorithm::Forward,
                d.x,
                d.w,
                d.y
            ),
            Kind::InputGrad => estimated!(
                cudnnGetConvolutionBackwardDataAlgorithm_v7,
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                Algorithm::InputGrad,
                d.w,
                d.y,
                d.x
            ),
            Kind::WeightGrad => estimated!(
                cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                Algorithm::WeightGrad,
                d.x,
                d.y,
                d.w
            ),
        }
    };
    // One algorithm may be listed once for each kind of arithmetic; the descriptor fixes the kind.
    let mut seen = vec![];
    all.retain(|(algorithm, scratch)| {
        let fits = *scratch <= scratch_bytes && !seen.contains(algorithm);
        seen.push(*algorithm);
        fits
    });
    all.truncate(CANDIDATES);
    Ok(all)
}
