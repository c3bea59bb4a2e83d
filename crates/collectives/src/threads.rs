//! Ranks that are threads of one process: for tests, and the plainest meaning of a collective.

use crate::{Collective, CollectiveError, Fault, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// One rank of a group.
pub struct Threads {
    rank: usize,
    shared: Arc<Shared>,
    sent: AtomicU64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Exchanges that are complete.
    rounds: u64,
    given: Vec<Option<Vec<u8>>>,
    /// What all gave in the last complete exchange. Nobody can complete another before all have taken it.
    all: Vec<Vec<u8>>,
    fault: Option<Fault>,
}

impl Threads {
    /// So many ranks that belong together.
    pub fn group(size: usize) -> Vec<Threads> {
        let state = State { rounds: 0, given: vec![None; size], all: vec![], fault: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        (0..size).map(|rank| Threads { rank, shared: Arc::clone(&shared), sent: AtomicU64::new(0) }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn end(&self, why: &str) {
        let fault = Fault { rank: self.rank, peer: format!("thread {}", self.rank), why: why.into() };
        self.lock().fault.get_or_insert(fault);
        self.shared.changed.notify_all();
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.lock().given.len()
    }

    fn transport(&self) -> &'static str {
        "threads"
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut state = self.lock();
        self.sent.fetch_add((bytes.len() * (state.given.len() - 1)) as u64, Ordering::Relaxed);
        let round = state.rounds;
        state.given[self.rank] = Some(bytes.to_vec());
        if state.given.iter().all(Option::is_some) {
            state.all = state.given.iter_mut().filter_map(Option::take).collect();
            state.rounds += 1;
            self.shared.changed.notify_all();
        }
        loop {
            if state.rounds > round {
                return Ok(state.all.clone());
            }
            if let Some(fault) = &state.fault {
                return Err(CollectiveError::Fault(fault.clone()));
            }
            state = self.shared.changed.wait(state).unwrap_or_else(|p| p.into_inner());
        }
    }

    fn abort(&self, why: &str) {
        self.end(why);
    }

    fn fault(&self) -> Option<Fault> {
        self.lock().fault.clone()
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Threads {
    /// Whoever waits for a rank that is gone would wait without end.
    fn drop(&mut self) {
        self.end("it has ended");
    }
}
