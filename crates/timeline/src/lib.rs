//! Profiling: spans of work, recorded by the threads that do it.
//!
//! A thread writes to the timeline that it is attached to ([`Timeline::attach`]), by default to none: a span then costs one
//! read of a thread-local variable. Threads that work for another one take over its timeline ([`current`]). The recorded
//! spans become a [`Report`] (phases, loader threads, nodes), a Chrome trace, folded stacks for flame graphs, and a table
//! of memory with its growth from iteration to iteration.

mod advice;
mod attribution;
pub mod memory;
mod report;
mod schedule;
mod stacks;
mod trace;

pub use memory::{Leak, Memory, Snapshot};
pub use report::{ITERATION, NodeShare, PlannedPeak, Report, RowShare, Share};
pub use schedule::{Schedule, State};

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Bytes of files.
    Reading,
    /// Bytes of files become pixels.
    Decoding,
    /// A generated scene.
    Drawing,
    /// A simulated camera's noise and blur.
    Exposing,
    /// Crops, flips and rotations, normalisation.
    Augmenting,
    /// For samples.
    Waiting,
    /// Values to the device, and back.
    Copying,
    Forward,
    Backward,
    Optimiser,
    /// Values to other ranks of a training, and back.
    Exchanging,
    /// Losses are read and written down.
    Recording,
    Validating,
    /// Checkpoints and models.
    Saving,
    /// A camera from an image.
    Estimating,
    /// Which method an image is restored by, where that takes other methods' results.
    Choosing,
    /// The steps of a sampler beside the network.
    Sampling,
    /// Tiles are cut and put together again.
    Tiling,
    /// A model from its file.
    Loading,
    /// The driver, the GPU's context, and libraries when they are first used.
    Starting,
    /// A network made ready to run.
    Compiling,
    /// Pixels to a file.
    Writing,
}

impl Phase {
    /// In the order in which they are listed.
    pub const ALL: [Phase; 22] = [
        Phase::Reading,
        Phase::Decoding,
        Phase::Drawing,
        Phase::Exposing,
        Phase::Augmenting,
        Phase::Waiting,
        Phase::Copying,
        Phase::Forward,
        Phase::Backward,
        Phase::Optimiser,
        Phase::Exchanging,
        Phase::Recording,
        Phase::Validating,
        Phase::Saving,
        Phase::Estimating,
        Phase::Choosing,
        Phase::Sampling,
        Phase::Tiling,
        Phase::Loading,
        Phase::Starting,
        Phase::Compiling,
        Phase::Writing,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Reading => "reading",
            Phase::Decoding => "decoding",
            Phase::Drawing => "drawing scenes",
            Phase::Exposing => "simulating the camera",
            Phase::Augmenting => "augmenting",
            Phase::Waiting => "waiting for data",
            Phase::Copying => "copying",
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimiser => "optimiser",
            Phase::Exchanging => "exchanging between ranks",
            Phase::Recording => "recording",
            Phase::Validating => "validating",
            Phase::Saving => "saving",
            Phase::Estimating => "estimating the camera",
            Phase::Choosing => "choosing the method",
            Phase::Sampling => "sampling",
            Phase::Tiling => "tiling",
            Phase::Loading => "loading the model",
            Phase::Starting => "starting the GPU",
            Phase::Compiling => "compiling",
            Phase::Writing => "writing",
        }
    }

    /// Whether the device computes in it.
    pub fn computes(self) -> bool {
        matches!(self, Phase::Forward | Phase::Backward | Phase::Optimiser)
    }

    /// Whether what is done inside counts as this phase, whatever it is.
    fn takes_all(self) -> bool {
        use Phase::{Compiling, Loading, Recording, Saving, Validating};
        matches!(self, Recording | Validating | Saving | Compiling | Loading)
    }
}

/// What a span is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Phase(Phase),
    /// Several phases together, as an iteration.
    Group(&'static str),
}

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Phase(phase) => phase.name(),
            What::Group(name) => name,
        }
    }
}

/// Nanoseconds since the timeline began.
#[derive(Clone, Copy, Debug)]
struct Span {
    what: What,
    start: u64,
    end: u64,
    depth: u32,
}

/// What a timeline knows of a node of a compiled graph.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub op: &'static str,
    /// The layer that it is of.
    pub scope: Arc<str>,
    /// As graphs are printed.
    pub line: String,
    pub phase: Phase,
    /// Bytes that are in use while it runs, by the plan.
    pub bytes: usize,
    /// How far the memory must reach for it, as the plan arranges it.
    pub reach: usize,
}

/// One node of one run.
struct NodeSpan {
    nodes: Arc<Vec<NodeInfo>>,
    node: usize,
    start: u64,
    end: u64,
}

/// One value on its way to a device or back.
struct Copied {
    name: String,
    bytes: usize,
    start: u64,
    end: u64,
}

/// The records of one thread.
struct Row {
    name: String,
    spans: Mutex<Vec<Span>>,
}

struct Shared {
    began: Instant,
    active: AtomicBool,
    iteration: AtomicU32,
    rows: Mutex<Vec<Arc<Row>>>,
    nodes: Mutex<Vec<NodeSpan>>,
    copies: Mutex<Vec<Copied>>,
    /// From when to when it was active, and the processor's seconds in between.
    windows: Mutex<Vec<Window>>,
    iterations: AtomicU32,
    snapshots: Mutex<Vec<Snapshot>>,
    probe: Option<fn() -> Memory>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: u64,
    /// None while it lasts.
    end: Option<u64>,
    processor: f64,
}

/// See the crate. Clones write to the same timeline.
#[derive(Clone)]
pub struct Timeline(Arc<Shared>);

struct Local {
    timeline: Timeline,
    row: Arc<Row>,
    depth: u32,
    is_first: bool,
}

thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

/// The timeline that this thread writes to, while that is active.
pub fn current() -> Option<Timeline> {
    LOCAL.with_borrow(|l| l.as_ref().map(|l| l.timeline.clone()))
}

/// Whether what this thread does is written down now.
pub fn is_active() -> bool {
    LOCAL.with_borrow(|l| l.as_ref().is_some_and(|l| l.timeline.0.active.load(Ordering::Relaxed)))
}

/// What this thread does until the guard is dropped.
pub fn span(phase: Phase) -> Guard {
    Guard::new(What::Phase(phase))
}

/// Several phases together, until the guard is dropped.
pub fn group(name: &'static str) -> Guard {
    Guard::new(What::Group(name))
}

/// Ends a span when it is dropped.
#[must_use]
pub struct Guard(Option<(What, u64, Option<Memory>)>);

impl Guard {
    fn new(what: What) -> Guard {
        LOCAL.with_borrow_mut(|local| {
            let Some(local) = local else { return Guard(None) };
            let shared = &local.timeline.0;
            if !shared.active.load(Ordering::Relaxed) {
                return Guard(None);
            }
            local.depth += 1;
            let before = shared.probe.filter(|_| local.is_first && local.depth <= 2).map(|probe| probe());
            Guard(Some((what, local.timeline.now(), before)))
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some((what, start, before)) = self.0.take() else { return };
        LOCAL.with_borrow_mut(|local| {
            // Whoever detached in between has ended everything.
            let Some(local) = local else { return };
            local.depth = local.depth.saturating_sub(1);
            let end = local.timeline.now();
            lock(&local.row.spans).push(Span { what, start, end, depth: local.depth });
            let shared = &local.timeline.0;
            if let (Some(before), Some(probe)) = (before, shared.probe) {
                let iteration = shared.iteration.load(Ordering::Relaxed);
                let snapshot = Snapshot {
                    name: what.name(),
                    iteration,
                    seconds: end as f64 * 1e-9,
                    before,
                    after: probe(),
                };
                lock(&shared.snapshots).push(snapshot);
            }
        });
    }
}

/// Detaches the thread when it is dropped.
pub struct Attached(());

impl Drop for Attached {
    fn drop(&mut self) {
        LOCAL.with_borrow_mut(|local| *local = None);
    }
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline::new()
    }
}

impl Timeline {
    /// One that nothing is written to yet: [`Timeline::set_active`] begins.
    pub fn new() -> Timeline {
        Timeline::with(None)
    }

    /// One that also asks for the memory before and after each phase of the first thread that is attached.
    pub fn with_memory(probe: fn() -> Memory) -> Timeline {
        Timeline::with(Some(probe))
    }

    fn with(probe: Option<fn() -> Memory>) -> Timeline {
        Timeline(Arc::new(Shared {
            began: Instant::now(),
            active: AtomicBool::new(false),
            iteration: AtomicU32::new(0),
            rows: Mutex::default(),
            nodes: Mutex::default(),
            copies: Mutex::default(),
            windows: Mutex::default(),
            iterations: AtomicU32::new(0),
            snapshots: Mutex::default(),
            probe,
        }))
    }

    fn now(&self) -> u64 {
        self.0.began.elapsed().as_nanos() as u64
    }

    fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.0.began).as_nanos() as u64
    }

    /// This thread writes to it, as the row of that name, until what is returned is dropped. The phases of the first thread are those
    /// of the report.
    #[must_use]
    pub fn attach(&self, row: &str) -> Attached {
        let mut rows = lock(&self.0.rows);
        let (row, is_first) = (Arc::new(Row { name: row.into(), spans: Mutex::default() }), rows.is_empty());
        rows.push(Arc::clone(&row));
        let local = Local { timeline: self.clone(), row, depth: 0, is_first };
        LOCAL.with_borrow_mut(|l| *l = Some(local));
        Attached(())
    }

    /// As [`Timeline::attach`], for a thread that works for others now and then: its earlier row is continued, and an attached thread stays attached.
    pub fn attach_again(&self, row: &str) -> Option<Attached> {
        if LOCAL.with_borrow(Option::is_some) {
            return None;
        }
        let mut rows = lock(&self.0.rows);
        let at = rows.iter().position(|r| r.name == row).unwrap_or(rows.len());
        if at == rows.len() {
            rows.push(Arc::new(Row { name: row.into(), spans: Mutex::default() }));
        }
        let local = Local { timeline: self.clone(), row: Arc::clone(&rows[at]), depth: 0, is_first: at == 0 };
        LOCAL.with_borrow_mut(|l| *l = Some(local));
        Some(Attached(()))
    }

    /// Begins or ends a stretch of time that is written down.
    pub fn set_active(&self, active: bool) {
        let was = self.0.active.swap(active, Ordering::Relaxed);
        let (now, processor) = (self.now(), processor_seconds());
        let mut windows = lock(&self.0.windows);
        match (was, active) {
            (false, true) => windows.push(Window { start: now, end: None, processor }),
            (true, false) => {
                if let Some(last) = windows.last_mut() {
                    (last.end, last.processor) = (Some(now), processor - last.processor);
                }
            }
            _ => {}
        }
    }

    /// Ends the present stretch of time, and forgets it.
    pub fn discard(&self) {
        self.set_active(false);
        let Some(window) = lock(&self.0.windows).pop() else { return };
        let from = window.start;
        for row in lock(&self.0.rows).iter() {
            lock(&row.spans).retain(|s| s.start < from);
        }
        lock(&self.0.nodes).retain(|s| s.start < from);
        lock(&self.0.copies).retain(|s| s.start < from);
        lock(&self.0.snapshots).retain(|s| s.seconds * 1e9 < from as f64);
    }

    /// The iteration of this number begins, and counts in the report.
    pub fn begin_iteration(&self, number: u64) {
        self.0.iteration.store(number as u32, Ordering::Relaxed);
        self.0.iterations.fetch_add(1, Ordering::Relaxed);
    }

    /// A compiled graph ran from `start` on, its nodes one after the other in these nanoseconds each. The thread's own row gets the phases.
    pub fn ran(&self, nodes: &Arc<Vec<NodeInfo>>, start: Instant, nanoseconds: &[u64]) {
        let mut at = self.at(start);
        let mut phases: Vec<(Phase, u64, u64)> = vec![];
        let mut all = lock(&self.0.nodes);
        for (node, &took) in nanoseconds.iter().enumerate().filter(|(_, took)| **took > 0) {
            let phase = nodes[node].phase;
            match phases.last_mut() {
                Some(last) if last.0 == phase => last.2 = at + took,
                _ => phases.push((phase, at, at + took)),
            }
            all.push(NodeSpan { nodes: Arc::clone(nodes), node, start: at, end: at + took });
            at += took;
        }
        drop(all);
        LOCAL.with_borrow(|local| {
            let Some(local) = local else { return };
            let made = phases.into_iter().map(|(phase, start, end)| Span {
                what: What::Phase(phase),
                start,
                end,
                depth: local.depth,
            });
            lock(&local.row.spans).extend(made);
        });
    }

    /// A value was copied from `start` until now.
    pub fn copied(&self, name: &str, bytes: usize, start: Instant) {
        let copied = Copied { name: name.into(), bytes, start: self.at(start), end: self.now() };
        lock(&self.0.copies).push(copied);
    }

    /// The memory at every phase's end so far.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        lock(&self.0.snapshots).clone()
    }
}

/// Seconds that all threads of the process have had of the processor, where the system tells it.
fn processor_seconds() -> f64 {
    #[cfg(unix)]
    {
        // SAFETY: a plain struct that the call fills.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            if libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) != 0 {
                return 0.0;
            }
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    }
    #[cfg(not(unix))]
    0.0
}

#[cfg(test)]
mod tests;
