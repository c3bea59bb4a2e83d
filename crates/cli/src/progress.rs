//! A progress line on the terminal, with the remaining time.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

pub struct Line {
    name: String,
    terminal: bool,
    start: Instant,
    last: Option<Instant>,
}

impl Line {
    pub fn new(name: String) -> Line {
        Line { name, terminal: std::io::stderr().is_terminal(), start: Instant::now(), last: None }
    }

    /// Says that `done` of `total` are done, if that was not said just now.
    pub fn show(&mut self, done: usize, total: usize) {
        let recent = self.last.is_some_and(|t| t.elapsed() < Duration::from_millis(200));
        if !self.terminal || recent || done == 0 {
            return;
        }
        self.last = Some(Instant::now());
        let part = done as f64 / total.max(1) as f64;
        let left = self.start.elapsed().as_secs_f64() * (1.0 / part - 1.0);
        eprint!("\r\x1b[K{}: {:.0} %, {left:.0} s left", self.name, 100.0 * part);
    }

    pub fn end(&self) {
        if self.last.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
