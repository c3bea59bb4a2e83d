//! Memory of a plan's regions: zeroed, on page boundaries, with large pages where the system has them.
//!
//! Kernels walk over megabytes with strides that defeat the cache of small pages' addresses. Large pages
//! must be asked for before a page is first touched, so on Linux the memory comes straight from the
//! system; elsewhere from the allocator. Pages that nobody touches cost nothing.

/// The system refused memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the system gives no {bytes} bytes of memory; a smaller batch, or a budget, needs less")]
pub struct MemoryError {
    pub bytes: usize,
}

/// A stretch of zeroed memory.
pub(super) struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Memory {}

impl Memory {
    /// # Errors
    /// If the system has not that much.
    pub(super) fn new(bytes: usize) -> Result<Memory, MemoryError> {
        let bytes = bytes.max(1);
        let start = system::take(bytes).ok_or(MemoryError { bytes })?;
        Ok(Memory { start, bytes })
    }

    /// The address of `bytes` bytes at an offset.
    ///
    /// # Panics
    /// If they are not all inside.
    pub(super) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} of {}",
            self.bytes
        );
        // SAFETY: just checked.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        system::give_back(self.start, self.bytes);
    }
}

#[cfg(target_os = "linux")]
mod system {
    const LARGE_PAGE: usize = 2 << 20;

    /// Whole large pages, or whatever the system rounds small amounts to.
    fn rounded(bytes: usize) -> usize {
        if bytes >= LARGE_PAGE { bytes.next_multiple_of(LARGE_PAGE) } else { bytes }
    }

    pub(super) fn take(bytes: usize) -> Option<*mut u8> {
        let large = bytes >= LARGE_PAGE;
        let size = rounded(bytes);
        // Addresses come on small pages; what lies before the first large one is given back.
        let spare = if large { LARGE_PAGE } else { 0 };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address that the system chooses.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), size + spare, access, kind, -1, 0) };
        if raw == libc::MAP_FAILED {
            return None;
        }
        let raw = raw.cast::<u8>();
        if !large {
            return Some(raw);
        }
        let before = raw.align_offset(LARGE_PAGE);
        // SAFETY: all inside what was just taken; a refused advice changes nothing.
        unsafe {
            let start = raw.add(before);
            if before > 0 {
                libc::munmap(raw.cast(), before);
            }
            if before < spare {
                libc::munmap(start.add(size).cast(), spare - before);
            }
            libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE);
            Some(start)
        }
    }

    pub(super) fn give_back(start: *mut u8, bytes: usize) {
        // SAFETY: what `take` kept.
        unsafe { libc::munmap(start.cast(), rounded(bytes)) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("a plan's size is a valid size")
    }

    pub(super) fn take(bytes: usize) -> Option<*mut u8> {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout(bytes)) };
        (!start.is_null()).then_some(start)
    }

    pub(super) fn give_back(start: *mut u8, bytes: usize) {
        // SAFETY: taken with this layout.
        unsafe { dealloc(start, layout(bytes)) };
    }
}
