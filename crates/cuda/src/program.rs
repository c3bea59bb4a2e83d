//! Programs of kernels, compiled in the background.
//!
//! Asking for a kernel starts compiling its program on one of a few threads and returns at once, so that a
//! graph's programs are compiled side by side while its nodes are made ready; who launches a kernel first
//! waits for its program, and compiles it if no thread has begun. What was compiled is kept on disk.

use crate::cache;
use crate::error::{CudaError, refused};
use cudarc::driver::{result, sys};
use cudarc::nvrtc;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The text that every kernel file is compiled behind.
const PRELUDE: &str = include_str!("kernels/prelude.cu");

/// Kernels in CUDA C++ with the options that make one program of them.
#[derive(Clone)]
pub(crate) struct Source {
    pub file: &'static str,
    pub text: Cow<'static, str>,
    /// Whether [`PRELUDE`] stands before it.
    pub prelude: bool,
    pub options: Vec<String>,
}

impl Source {
    pub fn new(file: &'static str, text: &'static str) -> Source {
        Source { file, text: Cow::Borrowed(text), prelude: true, options: vec![] }
    }

    pub fn define(mut self, name: &str, value: impl std::fmt::Display) -> Source {
        self.options.push(format!("-D{name}={value}"));
        self
    }

    pub fn option(mut self, option: &str) -> Source {
        self.options.push(option.into());
        self
    }
}

/// A program's code for the card.
#[derive(Clone)]
struct Image {
    bytes: Arc<[u8]>,
    /// It was found on disk.
    kept: bool,
}

enum State {
    /// Nobody has begun to compile it.
    Waiting,
    Running,
    Done(Result<Image, CudaError>),
}

struct Program {
    file: &'static str,
    text: String,
    options: Vec<String>,
    arch: String,
    /// Everything that the code depends on: its key on disk; nothing where it is not kept.
    key: Option<String>,
    state: Mutex<State>,
    done: Condvar,
    module: Mutex<Option<usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Program {
    /// Finds or compiles it, unless another thread has begun to.
    fn make(&self, compiled: &Count) {
        {
            let mut state = lock(&self.state);
            if !matches!(*state, State::Waiting) {
                return;
            }
            *state = State::Running;
        }
        // A library that fails by panicking must not leave others waiting.
        let kept = || self.key.as_ref().and_then(|key| cache::read("kernel", key));
        let made = std::panic::catch_unwind(|| match kept() {
            Some(bytes) => Ok(Image { bytes: bytes.into(), kept: true }),
            None => self.compile(compiled),
        });
        let made = made.unwrap_or_else(|_| Err(refused(&format!("compiling {}", self.file), "it panicked")));
        *lock(&self.state) = State::Done(made);
        self.done.notify_all();
    }

    /// The code, when it is there; meanwhile this thread compiles what others have not begun.
    fn image(&self, compiled: &Count) -> Result<Image, CudaError> {
        self.make(compiled);
        loop {
            if let State::Done(image) = &*lock(&self.state) {
                return image.clone();
            }
            if let Some((other, compiled)) = QUEUE.pop() {
                other.make(compiled);
                continue;
            }
            let state = lock(&self.state);
            if !matches!(*state, State::Done(_)) {
                drop(self.done.wait(state));
            }
        }
    }

    fn compile(&self, compiled: &Count) -> Result<Image, CudaError> {
        let start = Instant::now();
        let bytes = compile(self.file, &self.text, &self.options, &self.arch)?;
        if let Some(key) = &self.key {
            cache::write("kernel", key, &bytes);
        }
        compiled.add(start.elapsed());
        Ok(Image { bytes: bytes.into(), kept: false })
    }

    /// The program on the card, in the context that this thread is bound to.
    fn module(&self, clocks: &Clocks) -> Result<sys::CUmodule, CudaError> {
        let mut module = lock(&self.module);
        if let Some(loaded) = *module {
            return Ok(loaded as sys::CUmodule);
        }
        let start = Instant::now();
        let image = self.image(&clocks.compiled);
        clocks.waited.add(start.elapsed());
        let image = image?;
        // SAFETY: an image that the compiler made for this card; a damaged one is refused by the driver.
        let load = |image: &Image| unsafe { result::module::load_data(image.bytes.as_ptr().cast()) };
        let loaded = match load(&image) {
            Err(_) if image.kept => load(&self.compile(&clocks.compiled)?)?,
            loaded => loaded?,
        };
        *module = Some(loaded as usize);
        Ok(loaded)
    }
}

fn compile(file: &str, text: &str, options: &[String], arch: &str) -> Result<Vec<u8>, CudaError> {
    let mut all = vec![format!("--gpu-architecture={arch}"), "--std=c++17".to_string()];
    all.extend(options.iter().cloned());
    let text = CString::new(text).expect("kernel files have no zeros");
    let program = nvrtc::result::create_program(&text, None).map_err(|e| refused("nvrtcCreateProgram", e))?;
    // SAFETY: the program lives until it is destroyed below.
    unsafe {
        let compiled = nvrtc::result::compile_program(program, &all);
        if compiled.is_err() {
            let log = nvrtc::result::get_program_log(program).unwrap_or_default();
            let log: String = log.iter().map(|&c| c as u8 as char).filter(|c| *c != '\0').collect();
            let _ = nvrtc::result::destroy_program(program);
            return Err(CudaError::Compile {
                kernel: String::new(),
                file: file.into(),
                arch: arch.into(),
                options: options.join(" "),
                log,
            });
        }
        let mut size = 0;
        nvrtc_call("nvrtcGetCUBINSize", nvrtc::sys::nvrtcGetCUBINSize(program, &mut size))?;
        let mut image = vec![0u8; size];
        nvrtc_call("nvrtcGetCUBIN", nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()))?;
        let _ = nvrtc::result::destroy_program(program);
        Ok(image)
    }
}

fn nvrtc_call(what: &str, status: nvrtc::sys::nvrtcResult) -> Result<(), CudaError> {
    status.result().map_err(|e| refused(what, e))
}

/// One kernel of a program.
struct Entry {
    program: &'static Program,
    name: CString,
    clocks: &'static Clocks,
    handle: OnceLock<usize>,
}

/// A kernel that can be launched, perhaps not compiled yet.
#[derive(Clone, Copy)]
pub(crate) struct Function(&'static Entry);

impl Function {
    /// The driver's kernel; waits for its program when it is asked for first.
    pub fn handle(self) -> Result<sys::CUfunction, CudaError> {
        let Function(entry) = self;
        if let Some(known) = entry.handle.get() {
            return Ok(*known as sys::CUfunction);
        }
        let name = entry.name.to_string_lossy();
        let module = entry.program.module(entry.clocks).map_err(|e| match e {
            CudaError::Compile { file, arch, options, log, .. } => {
                CudaError::Compile { kernel: name.to_string(), file, arch, options, log }
            }
            CudaError::Call { what, detail } => CudaError::Call {
                what,
                detail: format!("{detail}, for kernel {name} of {}.cu", entry.program.file),
            },
            other => other,
        })?;
        // SAFETY: modules stay loaded.
        let found = unsafe { result::module::get_function(module, entry.name.clone())? };
        entry.clocks.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(*entry.handle.get_or_init(|| found as usize) as sys::CUfunction)
    }
}

/// How often something was done, and how long it took in all.
#[derive(Default)]
pub(crate) struct Count {
    times: AtomicUsize,
    nanoseconds: AtomicU64,
}

impl Count {
    pub fn add(&self, time: Duration) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn times(&self) -> usize {
        self.times.load(Ordering::Relaxed)
    }

    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// What compiling has cost.
#[derive(Default)]
pub(crate) struct Clocks {
    /// Of all threads together.
    pub compiled: Count,
    /// For programs that were not ready when they were needed.
    pub waited: Count,
    /// Kernels that were put on the card.
    pub loaded: AtomicUsize,
}

/// The programs of one GPU. They stay for as long as the process lives, as the GPU's context does.
pub(crate) struct Programs {
    arch: String,
    machine: String,
    keeps: bool,
    pub clocks: &'static Clocks,
    known: Mutex<HashMap<String, &'static Program>>,
    entries: Mutex<HashMap<(usize, String), &'static Entry>>,
}

impl Programs {
    /// For an architecture; `machine` names everything else that code depends on, `keeps` says whether code
    /// is kept on disk.
    pub fn new(arch: String, machine: String, keeps: bool) -> Programs {
        let clocks = Box::leak(Box::default());
        Programs { arch, machine, keeps, clocks, known: Mutex::default(), entries: Mutex::default() }
    }

    /// A kernel, whose program begins to be compiled unless it is known.
    pub fn function(&self, source: &Source, name: &str) -> Result<Function, CudaError> {
        let text =
            if source.prelude { format!("{PRELUDE}\n{}", source.text) } else { source.text.to_string() };
        let key = format!("{}\n{:?}\n{text}", self.machine, source.options);
        let program = *lock(&self.known).entry(key).or_insert_with_key(|key| {
            let program: &'static Program = Box::leak(Box::new(Program {
                file: source.file,
                text,
                options: source.options.clone(),
                arch: self.arch.clone(),
                key: self.keeps.then(|| key.clone()),
                state: Mutex::new(State::Waiting),
                done: Condvar::new(),
                module: Mutex::default(),
            }));
            QUEUE.push(program, &self.clocks.compiled);
            program
        });
        let at = (std::ptr::from_ref(program) as usize, name.to_string());
        let name = CString::new(name).map_err(|e| refused("the name of a kernel", e))?;
        Ok(Function(lock(&self.entries).entry(at).or_insert_with(|| {
            Box::leak(Box::new(Entry { program, name, clocks: self.clocks, handle: OnceLock::new() }))
        })))
    }
}

/// Programs that wait for a thread, and how many threads there are.
struct Queue {
    work: Mutex<(VecDeque<(&'static Program, &'static Count)>, usize)>,
    left: Condvar,
}

static QUEUE: Queue = Queue { work: Mutex::new((VecDeque::new(), 0)), left: Condvar::new() };

impl Queue {
    fn push(&'static self, program: &'static Program, compiled: &'static Count) {
        // One core is for the thread that asks.
        let most = std::thread::available_parallelism().map_or(1, |n| n.get() - 1).max(1);
        let mut work = lock(&self.work);
        work.0.push_back((program, compiled));
        if work.1 < most {
            let spawned = std::thread::Builder::new().name("compile".into()).spawn(|| self.serve());
            // Without a thread, who needs the program compiles it.
            work.1 += usize::from(spawned.is_ok());
        }
    }

    fn pop(&self) -> Option<(&'static Program, &'static Count)> {
        lock(&self.work).0.pop_front()
    }

    fn serve(&self) {
        loop {
            let next = {
                let mut work = lock(&self.work);
                let next = work.0.pop_front();
                if next.is_none() {
                    work.1 -= 1;
                    self.left.notify_all();
                }
                next
            };
            match next {
                Some((program, compiled)) => program.make(compiled),
                None => return,
            }
        }
    }
}

/// Forgets programs that no thread has begun, and waits for the others: a process must not end while the
/// compiler runs.
pub(crate) fn stop_compiling() {
    let mut work = lock(&QUEUE.work);
    work.0.clear();
    while work.1 > 0 {
        work = QUEUE.left.wait(work).unwrap_or_else(|e| e.into_inner());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Option<Programs> {
        // SAFETY: loading the library runs its initialisers, as any program that compiles kernels does.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            eprintln!("skipped: the library nvrtc is not there");
            return None;
        }
        Some(Programs::new("sm_90a".into(), "any machine".into(), false))
    }

    /// As many programs as there are numbers, all different.
    fn numbered(i: usize) -> Source {
        Source::new("numbered", "extern \"C\" __global__ void number(int* y) { *y = NUMBER; }")
            .define("NUMBER", i)
    }

    #[test]
    fn programs_are_compiled_once_and_beside_each_other() {
        let Some(programs) = programs() else { return };
        for _ in 0..3 {
            for i in 0..12 {
                programs.function(&numbered(i), "number").unwrap();
            }
        }
        let known: Vec<_> = lock(&programs.known).values().copied().collect();
        assert_eq!(known.len(), 12);
        let images: Vec<Image> = known.iter().map(|p| p.image(&programs.clocks.compiled).unwrap()).collect();
        assert!(images.iter().all(|i| i.bytes.starts_with(b"\x7fELF") && !i.kept));
        assert_eq!(programs.clocks.compiled.times(), 12);
        // What was stopped is compiled when it is needed.
        for i in 12..40 {
            programs.function(&numbered(i), "number").unwrap();
        }
        stop_compiling();
        let begun = programs.clocks.compiled.times();
        let all: Vec<_> = lock(&programs.known).values().copied().collect();
        all.iter().for_each(|p| drop(p.image(&programs.clocks.compiled).unwrap()));
        assert!(begun <= 40 && programs.clocks.compiled.times() == 40, "{begun}");
    }

    #[test]
    fn what_does_not_compile_is_named() {
        let Some(programs) = programs() else { return };
        let source = Source::new("broken", "extern \"C\" __global__ void broken_kernel() { nonsense(3); }");
        let f = programs.function(&source.define("WIDTH", 4), "broken_kernel").unwrap();
        let told = f.handle().unwrap_err().to_string();
        for part in ["broken_kernel", "broken.cu", "sm_90a", "-DWIDTH=4", "nonsense"] {
            assert!(told.contains(part), "{part} is missing: {told}");
        }
        // It fails the same way the next time.
        assert_eq!(f.handle().unwrap_err().to_string(), told);
    }
}
