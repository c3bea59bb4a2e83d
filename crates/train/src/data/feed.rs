//! Work done ahead by threads and handed out in its order.

use crate::error::{Result, TrainError};
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
    /// Begins at item `first`; at most `ahead` items wait to be taken.
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
            .map(|_| {
                let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
                std::thread::spawn(move || shared.work(&*make))
            })
            .collect();
        Feed { shared, workers, waited: Duration::ZERO }
    }

    /// The next item.
    ///
    /// # Errors
    /// Why it could not be made.
    pub fn take(&mut self) -> Result<T> {
        let start = Instant::now();
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
            // An item that is never ready would be waited for without end.
            let item = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make(number)))
                .unwrap_or_else(|_| Err(TrainError::Worker(format!("it panicked on batch {number}"))));
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
