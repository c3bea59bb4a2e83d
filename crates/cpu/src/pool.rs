//! A pool of threads that runs numbered tasks and allocates nothing while it does.
//!
//! Why not rayon: a session promises that a run allocates nothing and wakes its threads in
//! microseconds some hundred times a forward; rayon's injector allocates now and then. Which thread
//! runs which task is not fixed, so a task's result may depend on its number and never on its
//! worker: that is how results stay the same for any number of threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// How long a worker looks for the next job before it sleeps. A network's next operation follows
/// within a few microseconds; between runs the cores should be free.
const SPINS: usize = 20_000;

type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Counts jobs; a change tells the workers that `body` and `tasks` are those of a new one.
    epoch: AtomicUsize,
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Workers that have not finished with the current job.
    busy: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// The job's closure, its lifetime erased: valid from the epoch's change until `busy` is 0.
    body: std::cell::UnsafeCell<Option<*const Body<'static>>>,
}

// SAFETY: `body` is written only while no worker is busy, and read only between the epoch's change
// (Release / Acquire) and the worker's decrement of `busy`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointee is Sync.
unsafe impl Send for Shared {}

/// A fixed number of threads; the caller's is one of them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// One job at a time, whoever calls.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` (at least 1), the calling thread counted; of fewer where the system gives no more, which changes
    /// no result.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            body: std::cell::UnsafeCell::new(None),
        });
        let workers: Vec<_> = (1..threads.max(1))
            .map_while(|worker| {
                let shared = shared.clone();
                let thread = std::thread::Builder::new().name(format!("clearshot-{worker}"));
                thread.spawn(move || serve(&shared, worker)).ok()
            })
            .collect();
        let handles = workers.iter().map(|w| w.thread().clone()).collect();
        let pool = Pool { shared, workers, handles, turn: Mutex::new(()) };
        // A thread allocates when it starts; after a job in which all took part no later one has to.
        pool.run(pool.threads(), |_, _| ());
        pool
    }

    /// A pool of as many threads as the machine runs at once.
    pub fn for_machine() -> Pool {
        Pool::new(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }

    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `body(worker, task)` for each task in `0..tasks` and returns when all are done.
    /// `worker < self.threads()` names a thread for the length of the call: index scratch by it.
    ///
    /// # Panics
    /// If `body` panics, after the other workers have finished. It must not call `run` itself.
    pub fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        if self.handles.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| body(0, task));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        let body: &Body<'_> = &body;
        // SAFETY: the closure outlives this call, and this call ends only when `busy` is 0.
        let erased = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: no worker is busy, so none reads.
        unsafe { *shared.body.get() = Some(erased) };
        shared.next.store(0, Relaxed);
        shared.tasks.store(tasks, Relaxed);
        shared.busy.store(self.handles.len(), Relaxed);
        shared.epoch.fetch_add(1, Release);
        self.handles.iter().for_each(Thread::unpark);

        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drain(shared, body, 0)));
        let mut spins = 0usize;
        while shared.busy.load(Acquire) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        if let Err(cause) = mine {
            shared.panicked.store(false, Relaxed);
            std::panic::resume_unwind(cause);
        }
        assert!(!shared.panicked.swap(false, Relaxed), "a task panicked on another thread");
    }
}

fn drain(shared: &Shared, body: &Body<'_>, worker: usize) {
    let tasks = shared.tasks.load(Relaxed);
    loop {
        let task = shared.next.fetch_add(1, Relaxed);
        if task >= tasks {
            return;
        }
        body(worker, task);
    }
}

fn serve(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Acquire) == seen {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::park() }
        }
        seen = seen.wrapping_add(1);
        if shared.stop.load(Acquire) {
            return;
        }
        // SAFETY: between the epoch's change and the decrement below the closure is alive.
        let body = unsafe { &*(*shared.body.get()).expect("a job has a body") };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drain(shared, body, worker)));
        if outcome.is_err() {
            shared.panicked.store(true, Relaxed);
        }
        shared.busy.fetch_sub(1, Release);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        self.shared.epoch.fetch_add(1, Release);
        self.handles.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// A pointer that tasks of one job share. Each task writes a part that no other touches; that
/// is what makes the `unsafe` at each use sound.
#[derive(Clone, Copy)]
pub struct Shares<T>(pub *mut T);

// SAFETY: see the type.
unsafe impl<T: Send> Send for Shares<T> {}
// SAFETY: see the type.
unsafe impl<T: Send> Sync for Shares<T> {}

impl<T> Shares<T> {
    /// # Safety
    /// `start..start + len` lies in the buffer, and no other task uses that part meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// # Safety
    /// `i` lies in the buffer.
    pub unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..4 {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |worker, task| {
                    assert!(worker < threads);
                    counts[task].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(3);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, |_, task| assert!(task != 40, "task 40"));
        }));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, |_, task| {
            sum.fetch_add(task, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 45);
    }
}
