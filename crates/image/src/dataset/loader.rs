//! Crops read ahead by worker threads and handed out in their order.

use super::crop::{Crop, Dataset};
use crate::error::{Result, request};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    ahead: u64,
}

struct State {
    ready: BTreeMap<u64, Result<Crop>>,
    /// The next crop to hand out, and the next to begin.
    wanted: u64,
    begun: u64,
    stop: bool,
}

impl Loader {
    /// Begins at crop `start`; at most `ahead` crops wait to be taken.
    pub fn new(dataset: Arc<Dataset>, start: u64, threads: usize, ahead: usize) -> Loader {
        let state = State { ready: BTreeMap::new(), wanted: start, begun: start, stop: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            ahead: ahead.max(1) as u64,
        });
        let workers = (0..threads.max(1))
            .map(|_| {
                let (shared, dataset) = (Arc::clone(&shared), Arc::clone(&dataset));
                std::thread::spawn(move || shared.work(&dataset))
            })
            .collect();
        Loader { shared, workers }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn wait<'a>(&self, guard: std::sync::MutexGuard<'a, State>) -> std::sync::MutexGuard<'a, State> {
        self.changed.wait(guard).unwrap_or_else(|p| p.into_inner())
    }

    fn work(&self, dataset: &Dataset) {
        let mut state = self.lock();
        loop {
            while !state.stop && state.begun >= state.wanted + self.ahead {
                state = self.wait(state);
            }
            if state.stop {
                return;
            }
            let number = state.begun;
            state.begun += 1;
            drop(state);
            // A crop that is never ready would be waited for without end.
            let crop = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dataset.crop(number)))
                .unwrap_or_else(|_| request(format!("crop {number} could not be made: its reader panicked")));
            state = self.lock();
            state.ready.insert(number, crop);
            self.changed.notify_all();
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Crop>;

    fn next(&mut self) -> Option<Result<Crop>> {
        let mut state = self.shared.lock();
        loop {
            let wanted = state.wanted;
            if let Some(crop) = state.ready.remove(&wanted) {
                state.wanted += 1;
                self.shared.changed.notify_all();
                return Some(crop);
            }
            state = self.shared.wait(state);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
    }
}
