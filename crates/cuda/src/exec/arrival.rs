//! Inputs on their way to the GPU: copied from pinned memory by a stream of their own, to a place beside the
//! one that kernels read, so the next batch travels while the last one computes.

use crate::context::Context;
use crate::error::CudaError;
use crate::memory::{Buffer, Pinned};
use cudarc::driver::sys::CUevent;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// An input on its way to the GPU.
pub(super) struct Arrival {
    pinned: Pinned,
    staged: Buffer,
    /// The copy to the GPU is done.
    arrived: Event,
    /// The staged value has been moved into place.
    taken: Event,
    /// A value was sent and not taken yet.
    pub waiting: bool,
}

impl Arrival {
    pub fn new(cx: &Arc<Context>, bytes: usize) -> Result<Arrival, CudaError> {
        Ok(Arrival {
            pinned: Pinned::new(bytes)?,
            staged: Buffer::new(cx, bytes)?,
            arrived: Event::new()?,
            taken: Event::new()?,
            waiting: false,
        })
    }

    /// Where the value arrives.
    pub fn staged(&self) -> u64 {
        self.staged.start()
    }

    /// Starts the copy to the GPU.
    pub fn send(&mut self, cx: &Context, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: events and streams of our own; the pinned memory is written when the last copy is done.
        unsafe {
            result::event::synchronize(self.arrived.0)?;
            let pinned = &mut self.pinned.slice()[..bytes.len()];
            pinned.copy_from_slice(bytes);
            let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(cx.copies, self.taken.0, wait)?;
            result::memcpy_htod_async(self.staged.start(), pinned, cx.copies)?;
            result::event::record(self.arrived.0, cx.copies)?;
        }
        self.waiting = true;
        Ok(())
    }

    /// Moves the value into its place, when it has arrived.
    ///
    /// # Safety
    /// `bytes` bytes can be written at `to`, and no more are staged.
    pub unsafe fn take(&mut self, cx: &Context, to: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe {
            let wait = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(cx.stream, self.arrived.0, wait)?;
            result::memcpy_dtod_async(to, self.staged.start(), bytes, cx.stream)?;
            result::event::record(self.taken.0, cx.stream)?;
        }
        self.waiting = false;
        Ok(())
    }
}

/// Something on a stream that others wait for.
pub(super) struct Event(pub CUevent);

// SAFETY: events belong to the process's context; a call of the driver's on one is whole.
unsafe impl Send for Event {}
unsafe impl Sync for Event {}

impl Event {
    pub fn new() -> Result<Event, CudaError> {
        Ok(Event(result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe {
            let _ = result::event::destroy(self.0);
        }
    }
}
