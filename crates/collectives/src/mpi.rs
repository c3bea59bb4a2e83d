//! MPI, by the ABI that MPICH, Intel MPI, Cray MPICH and MVAPICH share (`libmpi.so.12`), loaded at run time.
//!
//! Handles are the integers of that ABI's mpi.h. MPI moves bytes and adds nothing: a sum sends each rank its part of the values of all others, which are added
//! in the order of ranks, and gathers the parts. That is as many bytes as a ring sends (2 (N - 1) / N of the values' for each rank), and the bits do not depend on which algorithm
//! a library takes for which size. Calls do not block inside of the library: a rank that waits asks again and again with pauses in between, leaves the processor to those
//! who compute, and hears of ranks that are gone. Calls are made by one thread at a time (`MPI_THREAD_SERIALIZED`).

use crate::hello::Peer;
use crate::watch::Watch;
use crate::{Collective, CollectiveError, Fault, Plain, Result, bytes_of, bytes_of_mut};
use half::{bf16, f16};
use libloading::{Library, Symbol};
use std::ffi::{OsString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

type Comm = c_int;
type Datatype = c_int;
type Request = c_int;

const COMM_WORLD: Comm = 0x4400_0000;
const BYTE: Datatype = 0x4c00_010d;
const ERRORS_RETURN: c_int = 0x5400_0001;
const THREAD_SERIALIZED: c_int = 2;
const MAX_ERROR_STRING: usize = 512;
const MAX_LIBRARY_VERSION: usize = 8192;
const STATUS_IGNORE: *mut c_void = std::ptr::without_provenance_mut(1);

/// The library's file, where it is not to be looked for as the system does.
pub const VARIABLE: &str = "CLEARSHOT_MPI";
/// The names that MPICH's ABI has, and that Open MPI, which has another, has.
const NAMES: [&str; 2] = ["libmpi.so.12", "libmpi.12.dylib"];
const OPEN_MPI: [&str; 2] = ["libmpi.so.40", "libmpi.40.dylib"];

/// Values whose bytes of all ranks together are fewer than this are gathered everywhere and added there: one exchange in place of two.
const SMALL: usize = 32 << 10;
/// Bytes that all ranks together receive by one call, which counts with 32 bits.
const MOST: usize = 1 << 30;

/// A rank that waits asks so often before it pauses for so long.
const QUESTIONS: u32 = 32;
const PAUSE: Duration = Duration::from_micros(30);

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Functions {
            /// # Safety
            /// The library is one of MPICH's ABI, and is never unloaded.
            unsafe fn of(library: &Library) -> Result<Functions> {
                $(
                    // SAFETY: the function's type is that of the ABI's mpi.h.
                    let found: std::result::Result<Symbol<unsafe extern "C" fn($($arg),*) -> c_int>, _> =
                        unsafe { library.get(concat!($name, "\0").as_bytes()) };
                    let $field = *found.map_err(|e| CollectiveError::Library(format!("it has no {}: {e}", $name)))?;
                )*
                Ok(Functions { $($field,)* })
            }
        }
    };
}

functions! {
    init = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize": fn();
    set_errors = "MPI_Comm_set_errhandler": fn(Comm, c_int);
    rank = "MPI_Comm_rank": fn(Comm, *mut c_int);
    size = "MPI_Comm_size": fn(Comm, *mut c_int);
    gather = "MPI_Iallgather": fn(*const c_void, c_int, Datatype, *mut c_void, c_int, Datatype, Comm, *mut Request);
    gather_v = "MPI_Iallgatherv": fn(*const c_void, c_int, Datatype, *mut c_void, *const c_int, *const c_int, Datatype, Comm, *mut Request);
    all_to_all_v = "MPI_Ialltoallv": fn(*const c_void, *const c_int, *const c_int, Datatype, *mut c_void, *const c_int, *const c_int, Datatype, Comm, *mut Request);
    test = "MPI_Test": fn(*mut Request, *mut c_int, *mut c_void);
    abort = "MPI_Abort": fn(Comm, c_int);
    error_text = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
    version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
}

/// This process as a rank of MPI's world.
pub struct Mpi {
    functions: Functions,
    rank: usize,
    size: usize,
    /// What is under way, and whether calls may still be made.
    calls: Mutex<Calls>,
    watch: OnceLock<Watch>,
    sent: AtomicU64,
}

/// Memory of a call, which the library may touch until the call is complete.
#[derive(Default)]
struct Calls {
    send: Vec<u8>,
    receive: Vec<u8>,
    /// Counts and offsets of what is sent and received.
    tables: [Vec<c_int>; 4],
    /// A call did not end, or MPI is finalised: no other is made.
    over: bool,
}

/// The library's file, as far as it is said.
fn named() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The program that starts ranks: beside the library that is named, or in the path.
///
/// # Errors
/// If there is none.
pub fn mpiexec() -> Result<PathBuf> {
    let beside = named().and_then(|library| Some(library.parent()?.parent()?.join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    let mut found = folders.flat_map(|f| ["mpiexec.hydra", "mpiexec"].map(|name| f.join(name)));
    found.find(|p| p.is_file()).ok_or_else(|| {
        CollectiveError::Launch(format!(
            "no mpiexec was found; install MPICH (Debian: mpich; `pip install mpich`) and put its mpiexec into the path, or set \
             {VARIABLE}=/path/to/lib/libmpi.so.12"
        ))
    })
}

fn load() -> Result<Library> {
    let open = |name: &OsString| {
        // SAFETY: MPI libraries run no code of consequence when they are loaded.
        unsafe { Library::new(name) }
    };
    if let Some(path) = named() {
        return open(&path.clone().into_os_string()).map_err(|e| {
            CollectiveError::Library(format!("{VARIABLE}={}, and it cannot be loaded: {e}", path.display()))
        });
    }
    let mut reasons = vec![];
    // As the system finds it, or beside the mpiexec that is found: a Python environment's library is in no path.
    let beside = mpiexec().ok().and_then(|m| Some(m.parent()?.parent()?.join("lib")));
    let beside = beside.iter().flat_map(|lib| NAMES.map(|name| lib.join(name))).filter(|p| p.is_file());
    for name in NAMES.map(OsString::from).into_iter().chain(beside.map(PathBuf::into_os_string)) {
        match open(&name) {
            Ok(library) => return Ok(library),
            Err(e) => reasons.push(e.to_string()),
        }
    }
    let other = OPEN_MPI.iter().any(|name| open(&name.into()).is_ok());
    let missing = match other {
        true => "only Open MPI was found, which has another binary interface".to_string(),
        false => format!("MPICH was not found ({})", reasons[0]),
    };
    Err(CollectiveError::Library(format!(
        "{missing}; install MPICH (Debian: libmpich12; `pip install mpich`), or set {VARIABLE}=/path/to/libmpi.so.12"
    )))
}

impl Mpi {
    /// Joins the world of whoever started this process; alone, it is a world of one. Only one of a process can be made, and by its main thread.
    ///
    /// # Errors
    /// If there is no library that can be used, or what it says.
    pub fn start() -> Result<Mpi> {
        // Never unloaded: its functions are kept, and its threads may run on.
        let library: &'static Library = Box::leak(Box::new(load()?));
        // SAFETY: the name or the user says that it is of this ABI; Open MPI is refused below, before anything that has handles is called.
        let functions = unsafe { Functions::of(library)? };
        let version = text(MAX_LIBRARY_VERSION, |buffer, length| {
            // SAFETY: the buffer has the ABI's largest length; may be called before MPI is initialised.
            unsafe { (functions.version)(buffer, length) }
        });
        if version.contains("Open MPI") {
            let name = version.split(',').next().unwrap_or_default().to_string();
            return Err(CollectiveError::Library(format!(
                "{name} has another binary interface than MPICH; install MPICH, Intel MPI or MVAPICH, or name it by {VARIABLE}"
            )));
        }
        let mut mpi = Mpi {
            functions,
            rank: 0,
            size: 1,
            calls: Mutex::default(),
            watch: OnceLock::new(),
            sent: AtomicU64::new(0),
        };
        let (mut level, mut rank, mut size) = (0, 0, 0);
        let f = &mpi.functions;
        // SAFETY: as the ABI has it; null for the arguments is allowed since MPI-2.
        unsafe {
            let none = std::ptr::null_mut();
            mpi.check("MPI_Init_thread", (f.init)(none, none.cast(), THREAD_SERIALIZED, &raw mut level))?;
            mpi.check("MPI_Comm_set_errhandler", (f.set_errors)(COMM_WORLD, ERRORS_RETURN))?;
            mpi.check("MPI_Comm_rank", (f.rank)(COMM_WORLD, &raw mut rank))?;
            mpi.check("MPI_Comm_size", (f.size)(COMM_WORLD, &raw mut size))?;
        }
        if level < THREAD_SERIALIZED {
            let reason = "the library does not allow calls from more than one thread".to_string();
            return Err(CollectiveError::Call { function: "MPI_Init_thread", reason });
        }
        (mpi.rank, mpi.size) = (rank as usize, size as usize);
        Ok(mpi)
    }

    /// Lets ranks hear of each other's end. Says whether they do; where not, only who started them knows.
    ///
    /// # Errors
    /// What went wrong with arranging it.
    pub fn watch(&self, peers: &[Peer]) -> Result<bool> {
        if self.size == 1 {
            return Ok(true);
        }
        let Some(watch) = Watch::start(self, peers)? else { return Ok(false) };
        let _ = self.watch.set(watch);
        Ok(true)
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let reason = text(MAX_ERROR_STRING, |buffer, length| {
            // SAFETY: the buffer has the ABI's largest length.
            unsafe { (self.functions.error_text)(code, buffer, length) }
        });
        Err(CollectiveError::Call { function, reason })
    }

    /// Makes a call whose memory is that of `Calls`, and waits for its end.
    fn call(
        &self,
        function: &'static str,
        calls: &mut Calls,
        begin: impl FnOnce(&Functions, &mut Calls, *mut Request) -> c_int,
    ) -> Result<()> {
        let mut request: Request = 0;
        let begun = begin(&self.functions, calls, &raw mut request);
        let result = self.check(function, begun).and_then(|()| self.wait(function, &mut request));
        if result.is_err() {
            // The library may still write into what it was given.
            std::mem::forget(std::mem::take(calls));
            calls.over = true;
        }
        result
    }

    fn wait(&self, function: &'static str, request: &mut Request) -> Result<()> {
        let mut asked = 0u32;
        loop {
            let mut done = 0;
            // SAFETY: a request that is under way.
            let code = unsafe { (self.functions.test)(request, &raw mut done, STATUS_IGNORE) };
            self.check(function, code)?;
            if done != 0 {
                return Ok(());
            }
            if let Some(fault) = self.watch.get().and_then(Watch::fault) {
                return Err(CollectiveError::Fault(fault));
            }
            asked += 1;
            // Only a question moves bytes on, so there are several of them to a pause. Giving the processor away without one would cost a turn of
            // every other process of a busy machine.
            if asked.is_multiple_of(QUESTIONS) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Calls, unless they are over.
    fn calls(&self) -> Result<std::sync::MutexGuard<'_, Calls>> {
        let calls = self.calls.lock().unwrap_or_else(|p| p.into_inner());
        match (calls.over, self.watch.get().and_then(Watch::fault)) {
            (false, _) => Ok(calls),
            (true, Some(fault)) => Err(CollectiveError::Fault(fault)),
            (true, None) => {
                let reason = "an earlier call failed, or the world has ended".to_string();
                Err(CollectiveError::Call { function: "MPI", reason })
            }
        }
    }

    /// Gathers `calls.send`, as long on every rank.
    fn gather_equal(&self, calls: &mut Calls) -> Result<()> {
        let each = calls.send.len();
        calls.receive.resize(each * self.size, 0);
        self.sent.fetch_add((each * (self.size - 1)) as u64, Ordering::Relaxed);
        self.call("MPI_Iallgather", calls, |f, calls, request| {
            let (from, to) = (calls.send.as_ptr().cast(), calls.receive.as_mut_ptr().cast());
            // SAFETY: each rank sends `each` bytes, and the receiver has room for all.
            unsafe { (f.gather)(from, each as c_int, BYTE, to, each as c_int, BYTE, COMM_WORLD, request) }
        })
    }

    /// Gathers `calls.send`, of these lengths.
    fn gather_lengths(&self, calls: &mut Calls, lengths: impl Iterator<Item = usize>) -> Result<()> {
        calls.tables.iter_mut().for_each(Vec::clear);
        let mut at = 0;
        for length in lengths {
            calls.tables[0].push(length as c_int);
            calls.tables[1].push(at as c_int);
            at += length;
        }
        calls.receive.resize(at, 0);
        self.sent.fetch_add((calls.send.len() * (self.size - 1)) as u64, Ordering::Relaxed);
        self.call("MPI_Iallgatherv", calls, |f, calls, request| {
            let (from, to) = (calls.send.as_ptr().cast(), calls.receive.as_mut_ptr().cast());
            let (count, [counts, offsets, ..]) = (calls.send.len() as c_int, &calls.tables);
            let (counts, offsets) = (counts.as_ptr(), offsets.as_ptr());
            // SAFETY: the tables have an entry for each rank, and their parts lie inside of what is received.
            unsafe { (f.gather_v)(from, count, BYTE, to, counts, offsets, BYTE, COMM_WORLD, request) }
        })
    }

    /// Sums of a block that one call can carry.
    fn sum_block<T: Plain>(&self, values: &mut [T]) -> Result<()> {
        let (width, n, ranks) = (size_of::<T>(), values.len(), self.size);
        let mut calls = self.calls()?;
        calls.send.clear();
        calls.send.extend_from_slice(bytes_of(values));
        if n * width * ranks <= SMALL {
            self.gather_equal(&mut calls)?;
            add_parts(values, &calls.receive);
            return Ok(());
        }
        let part = |rank: usize| rank * n / ranks..(rank + 1) * n / ranks;
        let own = part(self.rank);
        calls.tables.iter_mut().for_each(Vec::clear);
        for rank in 0..ranks {
            let sent = part(rank);
            let rows = [sent.len(), sent.start, own.len(), rank * own.len()];
            calls.tables.iter_mut().zip(rows).for_each(|(table, n)| table.push((n * width) as c_int));
        }
        calls.receive.resize(own.len() * width * ranks, 0);
        self.sent.fetch_add(((n - own.len()) * width) as u64, Ordering::Relaxed);
        self.call("MPI_Ialltoallv", &mut calls, |f, calls, request| {
            let (from, to) = (calls.send.as_ptr().cast(), calls.receive.as_mut_ptr().cast());
            let [sent, from_at, got, to_at] = calls.tables.each_ref().map(|t| t.as_ptr());
            // SAFETY: the tables have an entry for each rank, and their parts lie inside of what is sent and received.
            unsafe { (f.all_to_all_v)(from, sent, from_at, BYTE, to, got, to_at, BYTE, COMM_WORLD, request) }
        })?;
        add_parts(&mut values[own.clone()], &calls.receive);
        calls.send.clear();
        calls.send.extend_from_slice(bytes_of(&values[own]));
        self.gather_lengths(&mut calls, (0..ranks).map(|rank| part(rank).len() * width))?;
        bytes_of_mut(values).copy_from_slice(&calls.receive);
        Ok(())
    }

    fn sum<T: Plain>(&self, values: &mut [T]) -> Result<()> {
        if self.size == 1 {
            return Ok(());
        }
        let most = (MOST / size_of::<T>() / self.size).max(1);
        values.chunks_mut(most).try_for_each(|block| self.sum_block(block))
    }
}

/// Sums of parts that lie one behind the other, the first rank's first.
fn add_parts<T: Plain>(sums: &mut [T], parts: &[u8]) {
    let bytes = size_of_val(sums);
    if bytes == 0 {
        return;
    }
    let mut given = vec![T::default(); sums.len().min(4096)];
    for (rank, part) in parts.chunks_exact(bytes).enumerate() {
        for (i, sums) in sums.chunks_mut(4096).enumerate() {
            let given = &mut given[..sums.len()];
            let at = i * 4096 * size_of::<T>();
            bytes_of_mut(given).copy_from_slice(&part[at..at + size_of_val(sums)]);
            match rank {
                0 => sums.copy_from_slice(given),
                _ => sums.iter_mut().zip(given).for_each(|(sum, x)| *sum += *x),
            }
        }
    }
}

/// What a function writes into a buffer of at most so many characters.
fn text(most: usize, write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut buffer, mut length) = (vec![0u8; most + 1], 0);
    write(buffer.as_mut_ptr().cast(), &raw mut length);
    buffer.truncate((length.max(0) as usize).min(most));
    String::from_utf8_lossy(&buffer).trim_end_matches('\0').to_string()
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.size == 1 {
            return Ok(vec![bytes.to_vec()]);
        }
        let mut calls = self.calls()?;
        calls.send.clear();
        calls.send.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.gather_equal(&mut calls)?;
        let lengths: Vec<usize> =
            calls.receive.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n) as usize).collect();
        let most = MOST / self.size;
        let mut all: Vec<Vec<u8>> = vec![vec![]; self.size];
        for round in 0..lengths.iter().max().map_or(0, |n| n.div_ceil(most)) {
            let part = |n: usize| (n - (round * most).min(n)).min(most);
            calls.send.clear();
            let from = (round * most).min(bytes.len());
            calls.send.extend_from_slice(&bytes[from..from + part(bytes.len())]);
            self.gather_lengths(&mut calls, lengths.iter().map(|n| part(*n)))?;
            let mut rest = &calls.receive[..];
            for (to, n) in all.iter_mut().zip(&lengths) {
                let (own, others) = rest.split_at(part(*n));
                to.extend_from_slice(own);
                rest = others;
            }
        }
        Ok(all)
    }

    fn sum_f32(&self, values: &mut [f32]) -> Result<()> {
        self.sum(values)
    }

    fn sum_f64(&self, values: &mut [f64]) -> Result<()> {
        self.sum(values)
    }

    fn sum_bf16(&self, values: &mut [bf16]) -> Result<()> {
        self.sum(values)
    }

    fn sum_f16(&self, values: &mut [f16]) -> Result<()> {
        self.sum(values)
    }

    /// Ends MPI too, by the thread that began it.
    fn finish(&self) -> Result<()> {
        self.barrier()?;
        if let Some(watch) = self.watch.get() {
            watch.leave();
        }
        let mut calls = self.calls.lock().unwrap_or_else(|p| p.into_inner());
        if !std::mem::replace(&mut calls.over, true) {
            // SAFETY: nothing is under way, and no call is made any more.
            let code = unsafe { (self.functions.finalize)() };
            return self.check("MPI_Finalize", code);
        }
        Ok(())
    }

    fn abort(&self, why: &str) {
        match self.watch.get() {
            // All others hear of it and end by themselves.
            Some(watch) => watch.end_all(why),
            None => {
                eprintln!("clearshot: rank {}: {why}; all ranks end", self.rank);
                // SAFETY: ends this process and all others.
                unsafe { (self.functions.abort)(COMM_WORLD, 1) };
            }
        }
    }

    fn fault(&self) -> Option<Fault> {
        self.watch.get().and_then(Watch::fault)
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
