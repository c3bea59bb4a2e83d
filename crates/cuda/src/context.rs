//! A GPU in use: its context, streams, library handles, compiled kernels.
//!
//! There is one context a GPU and process, shared by all sessions on it; everything of a session is
//! launched on one stream, in order.

use crate::device::{Gpu, gpus};
use crate::error::{CudaError, Unavailable, refused};
use crate::program::Programs;
pub(crate) use crate::program::{Function, Source};
use crate::tune::Tuning;
use clearshot_timeline::{Phase, span};
use cudarc::driver::sys::{CUfunction_attribute_enum, CUstream};
use cudarc::driver::{result, sys};
use cudarc::{cublaslt, cudnn, nvrtc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Arguments of a launch, by value.
#[derive(Default)]
pub(crate) struct Params(Vec<Box<[u64]>>);

impl Params {
    pub fn new() -> Params {
        Params::default()
    }

    /// Any plain value: numbers, pointers, `repr(C)` structs.
    pub fn with<T: Copy>(mut self, value: T) -> Params {
        let mut words = vec![0u64; size_of::<T>().div_ceil(8).max(1)].into_boxed_slice();
        assert!(align_of::<T>() <= 8);
        // SAFETY: the words are as large and at least as aligned as T.
        unsafe { std::ptr::write(words.as_mut_ptr().cast::<T>(), value) };
        self.0.push(words);
        self
    }

    /// A struct of 64-bit words.
    pub fn words(mut self, words: Vec<u64>) -> Params {
        self.0.push(words.into_boxed_slice());
        self
    }
}

pub(crate) struct Context {
    pub gpu: Gpu,
    raw: sys::CUcontext,
    pub stream: CUstream,
    /// For copies that overlap computing.
    pub copies: CUstream,
    cudnn: Mutex<Option<cudnn::sys::cudnnHandle_t>>,
    cublas: Mutex<Option<cublaslt::sys::cublasLtHandle_t>>,
    pub programs: Programs,
    pub tuning: Tuning,
    turn: Mutex<()>,
    /// What measured choices depend on: the card, the driver and the libraries.
    pub machine: String,
}

/// What a slot holds, made if it is empty.
fn made_once<T: Copy>(
    slot: &Mutex<Option<T>>,
    make: impl FnOnce() -> Result<T, CudaError>,
) -> Result<T, CudaError> {
    let mut slot = slot.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(made) = *slot {
        return Ok(made);
    }
    let _starting = span(Phase::Starting);
    let made = make()?;
    *slot = Some(made);
    Ok(made)
}

// SAFETY: streams and handles are used by who holds the turn; the rest is immutable or locked.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    /// The context of a GPU, made when first asked for.
    pub fn get(ordinal: usize) -> Result<Arc<Context>, CudaError> {
        static ALL: OnceLock<Mutex<HashMap<usize, Arc<Context>>>> = OnceLock::new();
        let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = all.get(&ordinal) {
            known.bind()?;
            return Ok(known.clone());
        }
        let gpus = gpus()?;
        let count = gpus.len();
        let gpu = gpus
            .into_iter()
            .find(|g| g.ordinal == ordinal)
            .ok_or(Unavailable::NoSuchDevice { asked: ordinal, count })?;
        let made = Arc::new(Context::new(gpu)?);
        all.insert(ordinal, made.clone());
        Ok(made)
    }

    fn new(gpu: Gpu) -> Result<Context, CudaError> {
        let _starting = span(Phase::Starting);
        // SAFETY: the device exists; the primary context lives as long as the process.
        unsafe {
            let device = result::device::get(gpu.ordinal as i32)?;
            let raw = result::primary_ctx::retain(device)?;
            result::ctx::set_current(raw)?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
            let copies = result::stream::create(result::stream::StreamKind::NonBlocking)?;
            let (mut major, mut minor) = (0, 0);
            let _ = nvrtc::sys::nvrtcVersion(&mut major, &mut minor);
            let machine = format!(
                "{} sm_{} driver {} nvrtc {major}.{minor} cudnn {} cublasLt {} clearshot {}",
                gpu.name,
                gpu.arch(),
                gpu.driver,
                cudnn::sys::cudnnGetVersion(),
                cublaslt::sys::cublasLtGetVersion(),
                env!("CARGO_PKG_VERSION"),
            );
            let arch = format!("sm_{}", gpu.arch());
            Ok(Context {
                gpu,
                raw,
                stream,
                copies,
                cudnn: Mutex::default(),
                cublas: Mutex::default(),
                programs: Programs::new(arch, machine.clone(), true),
                tuning: Tuning::default(),
                turn: Mutex::default(),
                machine,
            })
        }
    }

    /// cuDNN's handle, made when first asked for: that takes a good part of a second.
    pub fn cudnn(&self) -> Result<cudnn::sys::cudnnHandle_t, CudaError> {
        made_once(&self.cudnn, || {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the stream lives as long as the context.
            unsafe {
                cudnn_call("cudnnCreate", cudnn::sys::cudnnCreate(&mut handle))?;
                cudnn_call("cudnnSetStream", cudnn::sys::cudnnSetStream(handle, self.stream.cast()))?;
            }
            Ok(handle)
        })
    }

    /// cuBLASLt's handle, made when first asked for.
    pub fn cublas(&self) -> Result<cublaslt::sys::cublasLtHandle_t, CudaError> {
        made_once(&self.cublas, || {
            cublaslt::result::create_handle().map_err(|e| refused("cublasLtCreate", e))
        })
    }

    /// The right to use the context's stream and handles. Sessions in several threads take turns: a launch by
    /// one while another records would become part of the recording.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the context this thread's.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the primary context is never released.
        Ok(unsafe { result::ctx::set_current(self.raw) }?)
    }

    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: our own streams.
        unsafe {
            result::stream::synchronize(self.copies)?;
            result::stream::synchronize(self.stream)?;
        }
        Ok(())
    }

    /// Bytes that are free on the GPU.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        Ok(result::mem_get_info()?.0)
    }

    /// A kernel of a program, which is compiled in the background unless it is known or lies in the cache.
    pub fn function(&self, source: &Source, name: &str) -> Result<Function, CudaError> {
        let f = self.programs.function(source, name)?;
        self.tuning.note(f);
        Ok(f)
    }

    /// Launches a kernel on the context's stream.
    ///
    /// # Safety
    /// The parameters are those of the kernel, in order and type. The addresses among them are of memory on the card that holds
    /// what the kernel reads and writes for this grid, and stays until the stream has done it.
    pub unsafe fn launch(
        &self,
        f: Function,
        grid: [usize; 2],
        block: usize,
        shared: usize,
        params: &Params,
    ) -> Result<(), CudaError> {
        if grid[0] == 0 || grid[1] == 0 {
            return Ok(());
        }
        if grid[0] > i32::MAX as usize || grid[1] > 65_535 {
            return Err(CudaError::Call { what: "launch".into(), detail: format!("a grid of {grid:?}") });
        }
        let f = f.handle()?;
        let mut pointers: Vec<*mut c_void> =
            params.0.iter().map(|w| w.as_ptr().cast_mut().cast::<c_void>()).collect();
        // SAFETY: the caller's promise.
        unsafe {
            // Together with what the kernel has of its own, a block may ask for 48 KiB without this.
            if shared > 16 << 10 {
                result::function::set_function_attribute(
                    f,
                    CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared as i32,
                )?;
            }
            result::launch_kernel(
                f,
                (grid[0] as u32, grid[1] as u32, 1),
                (block as u32, 1, 1),
                shared as u32,
                self.stream,
                &mut pointers,
            )?;
        }
        Ok(())
    }

    /// The milliseconds that a launch takes: the shortest of a few, after one that is not counted.
    pub fn time(&self, launch: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        self.time_below(f32::INFINITY, launch)
    }

    /// The milliseconds of one launch among so many in a row.
    pub fn time_some(
        &self,
        count: usize,
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<f32, CudaError> {
        self.elapsed(&mut || (0..count).try_for_each(|_| launch())).map(|t| t / count as f32)
    }

    /// The milliseconds from the start of what is launched to its end. Waiting for a kernel's code is not its
    /// time: what had to be loaded is launched again.
    fn elapsed(&self, launch: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        self.tuning.may_measure()?;
        let loaded = || self.programs.clocks.loaded.load(Ordering::Relaxed);
        let before = loaded();
        let first = self.elapsed_once(launch)?;
        if loaded() > before { self.elapsed_once(launch) } else { Ok(first) }
    }

    fn elapsed_once(&self, launch: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<f32, CudaError> {
        // SAFETY: events of our own on our own stream.
        unsafe {
            let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
            let (start, end) = (result::event::create(flags)?, result::event::create(flags)?);
            let taken = (|| {
                result::event::record(start, self.stream)?;
                launch()?;
                result::event::record(end, self.stream)?;
                result::event::synchronize(end)?;
                Ok(result::event::elapsed(start, end)?)
            })();
            let _ = result::event::destroy(start);
            let _ = result::event::destroy(end);
            taken
        }
    }

    /// As [`Context::time`]; a launch that takes several times `limit` at first is not tried again.
    pub fn time_below(
        &self,
        limit: f32,
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<f32, CudaError> {
        let mut run = || self.elapsed(launch);
        let mut best = run();
        if best.as_ref().is_ok_and(|first| *first < 4.0 * limit) {
            best = (0..4).try_fold(f32::INFINITY, |best, _| Ok(run()?.min(best)));
        }
        best
    }
}

pub(crate) fn cudnn_call(what: &str, status: cudnn::sys::cudnnStatus_t) -> Result<(), CudaError> {
    if status == cudnn::sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(refused(what, status))
    }
}
