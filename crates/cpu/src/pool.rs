//! A pool of threads that runs numbered tasks and allocates nothing while it does.
//!
//! Why not rayon: a session promises that a run allocates nothing and wakes its threads in
//! microseconds some hundred times a forward; rayon's injector allocates now and then. Which thread
//! runs which task is not fixed, so a task's result may depend on its number and never on its
//! worker: that is how results stay the same for any number of threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, Thread};

/// How often a worker looks for the next job before it offers its core to others, and how often it does that before it
/// sleeps. A network's next operation follows within a few microseconds; between runs the cores should be free.
const SPINS: usize = 2_000;
const YIELDS: usize = 2_000;
/// How often the caller looks for the job's end before it sleeps. A core that is left idle is what makes the system move a
/// thread there that other programs keep from its own; one that spins or yields is not.
const LOOKS: usize = 10_000;

type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Counts jobs; a change tells the workers that there is a new one.
    epoch: AtomicUsize,
    /// Tasks of the current job that nobody has taken. Whoever lowers it has one of them, and the job goes on until that one is done.
    untaken: AtomicUsize,
    /// Tasks that are not done.
    undone: AtomicUsize,
    /// The caller sleeps until `over`.
    sleeps: AtomicBool,
    gate: Mutex<()>,
    over: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
    job: std::cell::UnsafeCell<Job>,
}

/// A closure, its lifetime erased, and how many tasks it was given.
#[derive(Clone, Copy)]
struct Job {
    body: Option<*const Body<'static>>,
    tasks: usize,
}

// SAFETY: `job` is written before `untaken` is raised (Release), while no task is undone. It is read only by a thread that has
// taken a task (Acquire) and has not counted it as done, so never while it is written.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointee is Sync.
unsafe impl Send for Shared {}

/// A fixed number of threads; the caller's is one of them.
///
/// A job is over when its tasks are done, whether or not every worker has looked at it: one that the system lets wait, because other
/// programs want the cores, takes no task and holds nobody up.
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
            untaken: AtomicUsize::new(0),
            undone: AtomicUsize::new(0),
            sleeps: AtomicBool::new(false),
            gate: Mutex::new(()),
            over: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            job: std::cell::UnsafeCell::new(Job { body: None, tasks: 0 }),
        });
        let workers: Vec<_> = (1..threads.max(1))
            .map_while(|worker| {
                let shared = shared.clone();
                let thread = std::thread::Builder::new().name(format!("clearshot-{worker}"));
                thread.spawn(move || serve(&shared, worker)).ok()
            })
            .collect();
        let handles: Vec<_> = workers.iter().map(|w| w.thread().clone()).collect();
        let pool = Pool { shared, workers, handles, turn: Mutex::new(()) };
        // A thread allocates when it starts; after a job in which each has a task no later one has to.
        let started = std::sync::Barrier::new(pool.threads());
        pool.run(pool.threads(), |_, _| {
            started.wait();
        });
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
    /// If `body` panics, after the other tasks have been done. It must not call `run` itself.
    pub fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        if self.handles.is_empty() || tasks <= 1 {
            (0..tasks).for_each(|task| body(0, task));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        let shared = &*self.shared;
        let body: &Body<'_> = &body;
        // SAFETY: the closure outlives this call, and this call ends only when no task is undone.
        let erased = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: no task is undone, so nobody reads.
        unsafe { *shared.job.get() = Job { body: Some(erased), tasks } };
        shared.undone.store(tasks, Relaxed);
        shared.untaken.store(tasks, Release);
        shared.epoch.fetch_add(1, Release);
        self.handles.iter().for_each(Thread::unpark);

        let mine = drain(shared, 0);
        let mut looks = 0usize;
        while shared.undone.load(Acquire) != 0 {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { shared.sleep() }
        }
        let panicked = shared.panicked.swap(false, Relaxed);
        if let Some(cause) = mine {
            std::panic::resume_unwind(cause);
        }
        assert!(!panicked, "a task panicked on another thread");
    }
}

impl Shared {
    /// Until no task is undone.
    fn sleep(&self) {
        let mut gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
        // Whoever does the last task sees this, or is seen to have done it.
        self.sleeps.store(true, SeqCst);
        while self.undone.load(SeqCst) != 0 {
            gate = self.over.wait(gate).unwrap_or_else(|e| e.into_inner());
        }
        self.sleeps.store(false, Relaxed);
    }

    /// Counts tasks as done.
    fn count(&self, done: usize) {
        if self.undone.fetch_sub(done, SeqCst) == done && self.sleeps.load(SeqCst) {
            let _gate = self.gate.lock().unwrap_or_else(|e| e.into_inner());
            self.over.notify_one();
        }
    }
}

/// Does tasks until none is left to take. Gives the first panic of one of them.
fn drain(shared: &Shared, worker: usize) -> Option<Box<dyn std::any::Any + Send>> {
    let mut done = 0;
    let mut cause = None;
    while let Ok(left) = shared.untaken.fetch_update(Acquire, Relaxed, |left| left.checked_sub(1)) {
        // SAFETY: a task of this job is taken and not done, so the job is as it was written and its closure alive.
        let job = unsafe { *shared.job.get() };
        // SAFETY: as above.
        let body = unsafe { &*job.body.expect("a job has a body") };
        if let Err(panic) =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(worker, job.tasks - left)))
        {
            cause.get_or_insert(panic);
        }
        done += 1;
    }
    if cause.is_some() {
        shared.panicked.store(true, Relaxed);
    }
    if done > 0 {
        shared.count(done);
    }
    cause
}

fn serve(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let mut looks = 0;
        loop {
            let epoch = shared.epoch.load(Acquire);
            if epoch != seen {
                seen = epoch;
                break;
            }
            looks += 1;
            if looks < SPINS {
                std::hint::spin_loop();
            } else if looks < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::park();
            }
        }
        if shared.stop.load(Acquire) {
            return;
        }
        drain(shared, worker);
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
    fn jobs_end_while_other_programs_have_the_cores() {
        // Many more threads than cores: most workers come late to most jobs, and each job's tasks are done once, with its own closure.
        let pool = Pool::new(4 * std::thread::available_parallelism().map_or(1, |n| n.get()));
        for job in 0..3000 {
            let tasks = 2 + job % 9;
            let sum = AtomicUsize::new(0);
            pool.run(tasks, |_, task| {
                sum.fetch_add(job * 100 + task, Relaxed);
            });
            assert_eq!(sum.load(Relaxed), tasks * job * 100 + tasks * (tasks - 1) / 2);
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
