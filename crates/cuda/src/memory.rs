//! Memory on the GPU, and memory of the host that the GPU copies from by itself.

use crate::context::Context;
use crate::error::CudaError;
use cudarc::driver::result;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes on the GPU, zeroed when taken.
pub(crate) struct Buffer {
    context: Arc<Context>,
    start: u64,
    bytes: usize,
}

impl Buffer {
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Buffer, CudaError> {
        let bytes = bytes.max(256);
        // SAFETY: new memory, freed when dropped.
        unsafe {
            let start = result::malloc_sync(bytes)
                .map_err(|_| CudaError::NoRoom { needed: bytes, free: context.free_bytes().unwrap_or(0) })?;
            result::memset_d8_async(start, 0, bytes, context.stream)?;
            // Copies from the host do not wait for the stream, and must not be zeroed afterwards.
            result::stream::synchronize(context.stream)?;
            Ok(Buffer { context: context.clone(), start, bytes })
        }
    }

    /// The address of `bytes` bytes at an offset.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn at(&self, offset: usize, bytes: usize) -> u64 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} of {}",
            self.bytes
        );
        self.start + offset as u64
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Fills the first bytes from the host, and waits until they are there.
    pub fn fill(&self, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: `at` checks that they fit.
        unsafe { write(self.at(0, bytes.len()), bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken in `new`; owners wait for what runs on it before they let it go, and so does freeing.
        unsafe {
            let _ = self.context.bind();
            let _ = result::free_sync(self.start);
        }
    }
}

/// Copies to the GPU, and waits.
///
/// # Safety
/// As many bytes can be written at `to`, on the card whose context this thread is bound to.
pub(crate) unsafe fn write(to: u64, bytes: &[u8]) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_htod_sync(to, bytes) }?;
    // The call may return before the last bytes are there, and our streams do not wait for it.
    Ok(result::ctx::synchronize()?)
}

/// Copies from the GPU, and waits.
///
/// # Safety
/// As many bytes can be read at `from`, on the card whose context this thread is bound to.
pub(crate) unsafe fn read(from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
    // SAFETY: the caller's promise.
    Ok(unsafe { result::memcpy_dtoh_sync(bytes, from) }?)
}

/// Host memory that stays in place, from which copies run beside computing.
pub(crate) struct Pinned {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: it owns its bytes, and the executor that has it uses them one call at a time.
unsafe impl Send for Pinned {}
unsafe impl Sync for Pinned {}

impl Pinned {
    pub fn new(bytes: usize) -> Result<Pinned, CudaError> {
        let bytes = bytes.max(64);
        // SAFETY: new memory, freed when dropped.
        Ok(Pinned { start: unsafe { result::malloc_host(bytes, 0) }?, bytes })
    }

    #[allow(clippy::mut_from_ref)]
    pub fn slice(&self) -> &mut [u8] {
        // SAFETY: as long as this lives; the executor alone uses it, one call at a time.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }

    /// The bytes as floats.
    #[allow(clippy::mut_from_ref)]
    pub fn floats(&self) -> &mut [f32] {
        // SAFETY: as of `slice`; pages are aligned for floats, and every bit pattern is one.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / size_of::<f32>()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: taken in `new`.
        unsafe {
            let _ = result::free_host(self.start);
        }
    }
}
