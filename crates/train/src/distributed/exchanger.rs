//! Buckets on their way: a thread of each rank averages them, in the order in which they were handed over, while the graph goes on.

use super::compress::Compressor;
use crate::config::{DistributedConfig, RunConfig};
use crate::error::Result;
use clearshot_collectives::{Collective, CollectiveError};
use clearshot_graph::train::is_of_gradients;
use clearshot_graph::{Graph, Op};
use clearshot_nn::Weights;
use clearshot_runtime::Exchange;
use clearshot_tensor::Shape;
use clearshot_timeline::{Phase, Timeline, current, is_active, span};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a run's graphs hand their buckets to.
pub struct Exchanger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the exchanges so far came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Travelled {
    /// The time that the graph waited for buckets, as far as it is known: on a GPU that waits by itself it is not.
    pub waited: Option<Duration>,
    /// Bytes that this rank sent.
    pub bytes: u64,
    /// Values of gradients that were handed over, and values that were sent for them: fewer where they are compressed.
    pub values: u64,
    pub sent_values: u64,
}

struct Shared {
    collective: Arc<dyn Collective>,
    buckets: BTreeMap<u32, Bucket>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Whether gradients travel in this run of the graph, or numbers alone.
    is_last_run: AtomicBool,
    iteration: AtomicU64,
    /// Whether the graph goes on meanwhile.
    overlaps: bool,
    waited: AtomicU64,
    values: AtomicU64,
    sent_values: AtomicU64,
    bytes_before: u64,
}

struct Bucket {
    values: Mutex<Vec<f32>>,
    compressor: Mutex<Compressor>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<u32>,
    /// Buckets that are handed over and not averaged yet.
    under_way: Vec<u32>,
    error: Option<CollectiveError>,
    stop: bool,
    /// Where whoever hands buckets over writes down what it does, while it does.
    timeline: Option<Timeline>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

impl Exchanger {
    /// For the buckets of a graph.
    pub fn new(graph: &Graph, collective: &Arc<dyn Collective>, config: &RunConfig) -> Exchanger {
        let distributed: &DistributedConfig = &config.distributed;
        let mut buckets = BTreeMap::new();
        for node in &graph.nodes {
            if let Op::AllReduceBegin(a) = node.op {
                let shapes: Vec<Shape> = node.inputs.iter().map(|v| graph.shape(*v)).collect();
                let values = Mutex::new(vec![0.0; shapes.iter().map(Shape::len).sum()]);
                let kind = is_of_gradients(a.bucket).then_some(distributed);
                let compressor =
                    Mutex::new(Compressor::new(kind, &shapes, config.seed ^ u64::from(a.bucket)));
                buckets.insert(a.bucket, Bucket { values, compressor });
            }
        }
        let shared = Arc::new(Shared {
            collective: Arc::clone(collective),
            buckets,
            queue: Mutex::default(),
            changed: Condvar::new(),
            is_last_run: AtomicBool::new(true),
            iteration: AtomicU64::new(0),
            overlaps: distributed.overlap,
            waited: AtomicU64::new(0),
            values: AtomicU64::new(0),
            sent_values: AtomicU64::new(0),
            bytes_before: collective.bytes_sent(),
        });
        let works = Arc::clone(&shared);
        let thread = Some(std::thread::spawn(move || works.work()));
        Exchanger { shared, thread }
    }

    /// What a session is given.
    pub fn exchange(&self) -> Arc<dyn Exchange> {
        Arc::clone(&self.shared) as Arc<dyn Exchange>
    }

    /// What the next run of the graph is.
    pub fn begin_run(&self, iteration: u64, is_last: bool) {
        self.shared.iteration.store(iteration, Ordering::Relaxed);
        self.shared.is_last_run.store(is_last, Ordering::Relaxed);
    }

    /// After a run.
    ///
    /// # Errors
    /// Why values did not come back: the run's results are not to be used.
    pub fn check(&self) -> Result<()> {
        match &locked(&self.shared.queue).error {
            Some(e) => Err(e.clone().into()),
            None => Ok(()),
        }
    }

    pub fn travelled(&self) -> Travelled {
        let s = &self.shared;
        Travelled {
            waited: Some(Duration::from_nanos(s.waited.load(Ordering::Relaxed))),
            bytes: s.collective.bytes_sent() - s.bytes_before,
            values: s.values.load(Ordering::Relaxed),
            sent_values: s.sent_values.load(Ordering::Relaxed),
        }
    }

    /// What compression keeps from iteration to iteration, of all ranks.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn states(&self) -> Result<Weights> {
        let mut all = Weights::new();
        for (number, bucket) in &self.shared.buckets {
            locked(&bucket.compressor).save(*number, &*self.shared.collective, &mut all)?;
        }
        Ok(all)
    }

    /// Goes on with what was kept. Says whether all of it fits: with another number of ranks it does not.
    pub fn load(&self, states: &Weights) -> bool {
        let rank = self.shared.collective.rank();
        let size = self.shared.collective.size();
        let each = self.shared.buckets.iter();
        each.map(|(n, b)| locked(&b.compressor).load(*n, rank, size, states))
            .fold(true, |all, fits| all & fits)
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        locked(&self.shared.queue).stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // One that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn travels(&self, bucket: u32) -> bool {
        !is_of_gradients(bucket) || self.is_last_run.load(Ordering::Relaxed)
    }

    fn work(&self) {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(number) = queue.waiting.pop_front() {
                let failed = queue.error.is_some();
                let timeline = queue.timeline.clone();
                drop(queue);
                let attached = timeline.and_then(|t| t.attach_again("exchange"));
                let error = if failed { None } else { self.average(number).err() };
                drop(attached);
                queue = locked(&self.queue);
                queue.error = queue.error.take().or(error);
                queue.under_way.retain(|n| *n != number);
                self.changed.notify_all();
                continue;
            }
            if queue.stop {
                return;
            }
            queue = self.changed.wait(queue).unwrap_or_else(|p| p.into_inner());
        }
    }

    fn average(&self, number: u32) -> std::result::Result<(), CollectiveError> {
        let _exchanging = span(Phase::Exchanging);
        let bucket = &self.buckets[&number];
        let mut values = locked(&bucket.values);
        let iteration = self.iteration.load(Ordering::Relaxed);
        let sent = locked(&bucket.compressor).average(&mut values, &*self.collective, iteration)?;
        if is_of_gradients(number) {
            self.values.fetch_add(values.len() as u64, Ordering::Relaxed);
            self.sent_values.fetch_add(sent as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until a bucket is averaged.
    fn wait(&self, bucket: u32) {
        let mut queue = locked(&self.queue);
        if !queue.under_way.contains(&bucket) {
            return;
        }
        let begun = Instant::now();
        while queue.under_way.contains(&bucket) {
            queue = self.changed.wait(queue).unwrap_or_else(|p| p.into_inner());
        }
        self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Exchange for Shared {
    fn put(&self, bucket: u32, at: usize, values: &[f32]) {
        if self.travels(bucket) {
            locked(&self.buckets[&bucket].values)[at..at + values.len()].copy_from_slice(values);
        }
    }

    fn begin(&self, bucket: u32) {
        if !self.travels(bucket) {
            return;
        }
        {
            let mut queue = locked(&self.queue);
            queue.waiting.push_back(bucket);
            queue.under_way.push(bucket);
            queue.timeline = if is_active() { current() } else { None };
        }
        self.changed.notify_all();
        if !self.overlaps {
            self.wait(bucket);
        }
    }

    fn take(&self, bucket: u32, at: usize, values: &mut [f32]) {
        if self.travels(bucket) {
            self.wait(bucket);
            values.copy_from_slice(&locked(&self.buckets[&bucket].values)[at..at + values.len()]);
        }
    }
}
