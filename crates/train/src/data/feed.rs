//! Work done in advance by threads and returned in order.

use crate::error::{Result, TrainError};
use clearshot_timeline::{Phase, Timeline, current, span};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Item `i` is what `make(i)` gives, and comes `i`th.
pub struct Feed<T> {
    shared: Arc<Shared<T>>,
    workers: Vec<JoinHandle<()>>,
    /// Time that [`Feed::take`] spent waiting.
    pub waited: Duration,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    ahead: u64,
}

struct State<T> {
    ready: BTreeMap<u64, Result<T>>,
    wanted: u64,
    begun: u64,
    stop: bool,
}

impl<T: Send + 'static> Feed<T> {
    /// Begins at item `first`; at most `ahead` items wait to be taken. Threads write to the timeline of the one that asks for them.
    pub fn new(
        first: u64,
        threads: usize,
        ahead: usize,
        make: impl Fn(u64) -> Result<T> + Send + Sync + 'static,
    ) -> Feed<T> {
        let state = State { ready: BTreeMap::new(), wanted: first, begun: first, stop: false };
        let ahead = ahead.max(1) as u64;
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), ahead });
        let make = Arc::new(make);
        let workers = (0..threads.max(1))
            .map(|number| {
                let (shared, make, timeline) = (Arc::clone(&shared), Arc::clone(&make), current());
                std::thread::spawn(move || {
                    let attach = |t: &Timeline| t.attach_again(&format!("loader {}", number + 1));
                    let _attached = timeline.as_ref().and_then(attach);
                    shared.work(&*make);
                })
            })
            .collect();
        Feed { shared, workers, waited: Duration::ZERO }
    }

    /// Threads that make items.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Items that wait to be taken, at most.
    pub fn ahead(&self) -> usize {
        self.shared.ahead as usize
    }

    /// The next item.
    ///
    /// # Errors
    /// Why it could not be made.
    pub fn take(&mut self) -> Result<T> {
        let (start, _waiting) = (Instant::now(), span(Phase::Waiting));
        let mut state = self.shared.lock();
        loop {
            let wanted = state.wanted;
            if let Some(item) = state.ready.remove(&wanted) {
                state.wanted += 1;
                self.shared.changed.notify_all();
                self.waited += start.elapsed();
                return item;
            }
            state = self.shared.wait(state);
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed.wait(guard).unwrap_or_else(|p| p.into_inner())
    }

    fn work(&self, make: &dyn Fn(u64) -> Result<T>) {
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
            // What is none of the phases inside.
            let augmenting = span(Phase::Augmenting);
            // An item that is never ready would be waited for without end.
            let item = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make(number)))
                .unwrap_or_else(|_| Err(TrainError::Worker(format!("it panicked on batch {number}"))));
            drop(augmenting);
            state = self.lock();
            state.ready.insert(number, item);
            self.changed.notify_all();
        }
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing more to say.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_their_order_and_errors_in_their_place() {
        let mut feed = Feed::new(5, 3, 4, |i| match i {
            9 => Err(TrainError::Worker("nine".into())),
            11 => panic!("eleven"),
            _ => {
                std::thread::sleep(Duration::from_millis(i * 7 % 5));
                Ok(i)
            }
        });
        for i in 5..20 {
            match feed.take() {
                Ok(item) => assert_eq!(item, i),
                Err(e) => assert!(i == 9 || i == 11, "{i}: {e}"),
            }
        }
    }
}
