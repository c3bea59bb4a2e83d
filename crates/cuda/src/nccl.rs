//! NCCL, NVIDIA's collectives between GPUs, loaded at run time: a communicator of all ranks, and means over them.
//!
//! Of the library a handful of functions is asked for, by the types of nccl.h of version 2, so that where it is missing the reason is said as for the other
//! libraries. Kernels of NCCL wait on the GPU for those of the other ranks, without end if one is gone. So a thread asks all the while whether somebody is, and
//! then aborts the communicator, which ends the kernels that wait; what they leave behind is not to be used, and [`Communicator::check`] says so.

use crate::context::Context;
use crate::error::{CudaError, refused};
use crate::memory::Buffer;
use clearshot_tensor::DType;
use cudarc::driver::result;
use cudarc::driver::sys::CUstream;
use libloading::{Library, Symbol};
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The library's file, where it is not to be looked for as the system does.
pub const VARIABLE: &str = "CLEARSHOT_NCCL";
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Where a Python environment keeps it, beside the folders of NVIDIA's other packages.
const PACKAGE: &str = "nccl/lib/libnccl.so.2";
/// The oldest that has means (`ncclAvg`), as NCCL counts.
const OLDEST: c_int = 21_000;

/// The bytes of an id.
pub const ID_BYTES: usize = 128;

type Comm = *mut c_void;
type Status = c_int;

const SUCCESS: Status = 0;
/// Of a communicator that does not block.
const IN_PROGRESS: Status = 7;
const AVERAGE: c_int = 4;

/// From one question whether somebody is gone to the next.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a launch that is under way is waited for before the communicator is aborted beside it, and an ordinary end.
const GRACE: Duration = Duration::from_secs(1);
const LEAVING: Duration = Duration::from_secs(5);

/// What the ranks of one communicator find each other by; the first makes it and tells the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NcclId(pub [u8; ID_BYTES]);

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl Functions {
            /// # Safety
            /// The library is NCCL of version 2, and is never unloaded.
            unsafe fn of(library: &Library) -> Result<Functions, String> {
                $(
                    // SAFETY: the function's type is that of nccl.h.
                    let found: Result<Symbol<unsafe extern "C" fn($($arg),*) -> $result>, _> =
                        unsafe { library.get(concat!($name, "\0").as_bytes()) };
                    let $field = *found.map_err(|e| format!("it has no {}: {e}", $name))?;
                )*
                Ok(Functions { $($field,)* })
            }
        }
    };
}

functions! {
    version = "ncclGetVersion": fn(*mut c_int) -> Status;
    unique_id = "ncclGetUniqueId": fn(*mut NcclId) -> Status;
    init_rank = "ncclCommInitRank": fn(*mut Comm, c_int, NcclId, c_int) -> Status;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> Status;
    group_start = "ncclGroupStart": fn() -> Status;
    group_end = "ncclGroupEnd": fn() -> Status;
    async_error = "ncclCommGetAsyncError": fn(Comm, *mut Status) -> Status;
    abort = "ncclCommAbort": fn(Comm) -> Status;
    destroy = "ncclCommDestroy": fn(Comm) -> Status;
    error_text = "ncclGetErrorString": fn(Status) -> *const c_char;
}

/// The library's file, as far as it is said.
fn named() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// Where it may lie: under the names that systems have, and beside NVIDIA's other packages in the library path, of which each has a folder
/// of its own (`nvidia/cudnn/lib`).
fn candidates(library_path: &OsString) -> Vec<OsString> {
    let packages = std::env::split_paths(library_path)
        .filter_map(|folder| Some(folder.parent()?.parent()?.join(PACKAGE)))
        .filter(|file| file.is_file());
    let mut all: Vec<OsString> = NAMES.map(OsString::from).to_vec();
    for file in packages.map(PathBuf::into_os_string) {
        if !all.contains(&file) {
            all.push(file);
        }
    }
    all
}

fn load(named: Option<&Path>, library_path: &OsString) -> Result<Functions, String> {
    // SAFETY: NCCL runs no code of consequence when it is loaded.
    let open = |name: &OsString| unsafe { Library::new(name) };
    let library = match named {
        Some(path) => open(&path.as_os_str().to_owned())
            .map_err(|e| format!("{VARIABLE}={}, and it cannot be loaded: {e}", path.display()))?,
        None => {
            let mut reasons = vec![];
            let opened = candidates(library_path)
                .iter()
                .find_map(|name| open(name).map_err(|e| reasons.push(e.to_string())).ok());
            opened.ok_or_else(|| {
                format!(
                    "{}; install NCCL (Debian: libnccl2; `pip install nvidia-nccl-cu13`), or name the file by {VARIABLE}=/path/to/libnccl.so.2",
                    reasons.first().map_or("", String::as_str)
                )
            })?
        }
    };
    // Never unloaded: its functions are kept, and its threads may run on.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the name or the user says that it is NCCL, whose version is asked for first.
    let functions = unsafe { Functions::of(library)? };
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { (functions.version)(&raw mut version) };
    if version < OLDEST {
        return Err(format!("it is version {}, and 2.10 is the oldest that is used here", in_words(version)));
    }
    Ok(functions)
}

fn functions() -> Result<&'static Functions, CudaError> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let path = || std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let loaded = LOADED.get_or_init(|| load(named().as_deref(), &path()));
    loaded.as_ref().map_err(|why| CudaError::Nccl(why.clone()))
}

/// 22703 is 2.27.3.
fn in_words(version: c_int) -> String {
    match version {
        v if v >= 10_000 => format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100),
        v => format!("{}.{}.{}", v / 1000, v / 100 % 10, v % 100),
    }
}

impl Functions {
    fn check(&self, what: &str, status: Status) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: a text that the library keeps.
        let text = unsafe { CStr::from_ptr((self.error_text)(status)) };
        let detail = format!("{}; NCCL_DEBUG=WARN in the environment says more", text.to_string_lossy());
        Err(CudaError::Call { what: what.into(), detail })
    }
}

/// The version of the library.
///
/// # Errors
/// If there is none that can be used: why, and what to do.
pub fn nccl_version() -> Result<String, CudaError> {
    let f = functions()?;
    let mut version = 0;
    // SAFETY: writes one number.
    f.check("ncclGetVersion", unsafe { (f.version)(&raw mut version) })?;
    Ok(in_words(version))
}

impl NcclId {
    /// A new one, for the ranks of one communicator.
    ///
    /// # Errors
    /// If there is no NCCL, or it finds no way by which ranks could reach this one.
    pub fn new() -> Result<NcclId, CudaError> {
        let f = functions()?;
        let mut id = NcclId([0; ID_BYTES]);
        // SAFETY: writes the bytes of one id.
        f.check("ncclGetUniqueId", unsafe { (f.unique_id)(&raw mut id) })?;
        Ok(id)
    }
}

/// A communicator's handle, which is passed between threads.
#[derive(Clone, Copy)]
struct Handle(Comm);

// SAFETY: NCCL's calls may come from any thread, one at a time but for the one that aborts.
unsafe impl Send for Handle {}
unsafe impl Sync for Handle {}

impl Handle {
    /// Whole, for closures that go to another thread.
    fn comm(self) -> Comm {
        self.0
    }
}

/// One rank of all that a run's GPUs are.
pub struct Communicator {
    cx: Arc<Context>,
    functions: &'static Functions,
    handle: Handle,
    /// Means are made beside what computes.
    pub(crate) stream: CUstream,
    size: usize,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

// SAFETY: the stream is used by who holds the context's turn.
unsafe impl Send for Communicator {}
unsafe impl Sync for Communicator {}

/// What the thread that watches shares with those who launch.
#[derive(Default)]
struct Shared {
    /// Held while something of the communicator is launched.
    calls: Mutex<()>,
    /// Why it was aborted; set before it is.
    ended: OnceLock<String>,
    leaving: AtomicBool,
}

impl Communicator {
    /// Joins the other ranks, on the GPU of that number, and waits for all. `fault` says who is gone, if somebody is; it is asked until the communicator is dropped.
    ///
    /// # Errors
    /// If there is no NCCL, it cannot reach the others, or one of them is gone.
    pub fn new(
        ordinal: usize,
        id: NcclId,
        rank: usize,
        size: usize,
        fault: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Communicator, CudaError> {
        let functions = functions()?;
        let cx = Context::get(ordinal)?;
        let handle = joined(functions, &cx, id, rank, size, &fault)?;
        let stream = {
            let _turn = cx.turn();
            cx.bind()?;
            // Before what computes: others wait for it.
            let (_, greatest) = result::stream::get_priority_range()?;
            result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, greatest)?
        };
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let watcher = std::thread::spawn(move || watched.watch(functions, handle, fault));
        let made = Communicator { cx, functions, handle, stream, size, shared, watcher: Some(watcher) };
        made.warm_up()?;
        Ok(made)
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether what it computes may be used: not after it was aborted.
    ///
    /// # Errors
    /// Who is gone.
    pub fn check(&self) -> Result<(), CudaError> {
        self.shared.ended.get().map_or(Ok(()), |why| Err(CudaError::Ended(why.clone())))
    }

    /// The right to launch something of it, which is not aborted meanwhile.
    pub(crate) fn calls(&self) -> Result<MutexGuard<'_, ()>, CudaError> {
        let held = self.shared.calls.lock().unwrap_or_else(|e| e.into_inner());
        self.check()?;
        Ok(held)
    }

    /// Replaces values by their means over ranks, on the stream of this: at each address so many of them.
    ///
    /// # Safety
    /// The values lie on the communicator's card, and stay there until the stream has done it. Every rank asks for as many, in the same order.
    pub(crate) unsafe fn average(&self, values: &[(u64, usize)], dtype: DType) -> Result<(), CudaError> {
        let f = self.functions;
        let number = match dtype {
            DType::F32 => 7,
            DType::F16 => 6,
            DType::BF16 => 9,
            other => return Err(refused("ncclAllReduce", format!("values of {other}"))),
        };
        let _calls = self.calls()?;
        // SAFETY: the caller's promise; in a group, calls are launched together at its end.
        unsafe {
            f.check("ncclGroupStart", (f.group_start)())?;
            let begun = values.iter().try_for_each(|(at, count)| {
                let at = std::ptr::without_provenance_mut::<c_void>(*at as usize);
                let status = (f.all_reduce)(at, at, *count, number, AVERAGE, self.handle.0, self.stream);
                f.check("ncclAllReduce", status)
            });
            let ended = f.check("ncclGroupEnd", (f.group_end)());
            begun.and(ended)
        }
    }

    /// A first mean, which makes connections and takes memory: in a recording neither could be.
    fn warm_up(&self) -> Result<(), CudaError> {
        const COUNT: usize = 1024;
        let values = {
            let _turn = self.cx.turn();
            self.cx.bind()?;
            let values = Buffer::new(&self.cx, COUNT * size_of::<f32>())?;
            // SAFETY: as many values as there is room for, until the stream is waited for below.
            unsafe { self.average(&[(values.start(), COUNT)], DType::F32) }?;
            values
        };
        // SAFETY: our own stream.
        unsafe { result::stream::synchronize(self.stream) }?;
        drop(values);
        self.check()
    }
}

/// The communicator, when all ranks are there. Joining waits for all others on a thread of its own, which is left where it is if one of them dies.
fn joined(
    functions: &'static Functions,
    cx: &Arc<Context>,
    id: NcclId,
    rank: usize,
    size: usize,
    fault: &dyn Fn() -> Option<String>,
) -> Result<Handle, CudaError> {
    let (tell, told) = channel();
    let held = Arc::clone(cx);
    std::thread::spawn(move || {
        let join = || {
            held.bind()?;
            let mut comm: Comm = std::ptr::null_mut();
            // SAFETY: the id is passed by value; the communicator is on this thread's card.
            let status = unsafe { (functions.init_rank)(&raw mut comm, size as c_int, id, rank as c_int) };
            functions.check("ncclCommInitRank", status)?;
            Ok(Handle(comm))
        };
        // Who asked may have given up.
        let _ = tell.send(join());
    });
    loop {
        match told.recv_timeout(PAUSE) {
            Ok(made) => return made,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(why) = fault() {
                    return Err(CudaError::Ended(why));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(refused("ncclCommInitRank", "its thread panicked"));
            }
        }
    }
}

impl Shared {
    /// Aborts the communicator when a rank is gone, or it fails by itself.
    fn watch(&self, f: &'static Functions, handle: Handle, fault: impl Fn() -> Option<String>) {
        let why = loop {
            if self.leaving.load(Ordering::Relaxed) {
                return;
            }
            let mut status = SUCCESS;
            // SAFETY: a communicator that is destroyed by who joins this thread before.
            let asked = unsafe { (f.async_error)(handle.0, &raw mut status) };
            if let Some(why) = fault() {
                break why;
            }
            if let Some(failed) = [asked, status].into_iter().find(|s| ![SUCCESS, IN_PROGRESS].contains(s)) {
                let said = f.check("NCCL", failed).err().map(|e| e.to_string()).unwrap_or_default();
                // Whose death is behind it is heard a moment later.
                std::thread::sleep(10 * PAUSE);
                break fault().unwrap_or(said);
            }
            std::thread::sleep(PAUSE);
        };
        let _ = self.ended.set(why);
        // A launch that is under way is over in a moment, unless it waits for what only the abort ends.
        let until = Instant::now() + GRACE;
        let mut held = self.calls.try_lock();
        while held.is_err() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            held = self.calls.try_lock();
        }
        drop(held);
        // SAFETY: no call is made from here on, for `ended` is set. It returns when recordings of its kernels are gone too, so nobody waits for this thread.
        unsafe { (f.abort)(handle.0) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        // The stream goes with the context; what was launched on it is waited for by who launched.
        let Some(watcher) = self.watcher.take() else { return };
        if self.shared.ended.get().is_some() {
            return;
        }
        // One that panicked has nothing more to say.
        let _ = watcher.join();
        if self.shared.ended.get().is_some() {
            return;
        }
        let (functions, handle, cx) = (self.functions, self.handle, Arc::clone(&self.cx));
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let _ = cx.bind();
            // SAFETY: nothing is under way, and no call is made any more.
            unsafe { (functions.destroy)(handle.comm()) };
            let _ = tell.send(());
        });
        // It waits for the other ranks, who may have ended otherwise.
        let _ = told.recv_timeout(LEAVING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_as_nccl_counts_them() {
        assert_eq!((in_words(22_703).as_str(), in_words(2_804).as_str()), ("2.27.3", "2.8.4"));
    }

    #[test]
    fn a_file_that_is_named_and_missing_is_said() {
        let told = load(Some(Path::new("/nowhere/libnccl.so.2")), &OsString::new()).err().unwrap_or_default();
        assert!(told.starts_with("CLEARSHOT_NCCL=/nowhere/libnccl.so.2, and it cannot be loaded"), "{told}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let Some(other) = ["libm.so.6", "libc.so.6"].iter().find(|n| {
            // SAFETY: a library of the system's.
            unsafe { Library::new(**n) }.is_ok()
        }) else {
            return eprintln!("skipped: this system has no libm.so.6");
        };
        let told = load(Some(Path::new(other)), &OsString::new()).err().unwrap_or_default();
        assert!(told.contains("it has no ncclGetVersion"), "{told}");
    }

    #[test]
    fn packages_of_python_are_looked_into_beside_those_in_the_library_path() {
        let folder = std::env::temp_dir().join(format!("clearshot-nccl-{}", std::process::id()));
        let lib = folder.join("nvidia/nccl/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libnccl.so.2"), "").unwrap();
        let beside = folder.join("nvidia/cudnn/lib");
        std::fs::create_dir_all(&beside).unwrap();
        let found = candidates(&beside.clone().into_os_string());
        assert_eq!(found.len(), 3);
        assert!(Path::new(&found[2]).ends_with("nvidia/nccl/lib/libnccl.so.2"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
