//! Which iterations are recorded: some are skipped, some warm up, some count, repeated several times.

use serde::{Deserialize, Serialize};

/// As PyTorch's profiler has it: `wait`, `warm_up` and `active` iterations, `repeat` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    pub wait: u64,
    pub warm_up: u64,
    pub active: u64,
    pub repeat: u64,
}

/// The outcome of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Wait,
    /// Written down and thrown away: the first iterations under a clock are slower.
    WarmUp,
    Active,
    /// All are done.
    Over,
}

impl Schedule {
    /// Iterations from the first to the last that counts.
    pub fn iterations(&self) -> u64 {
        (self.wait + self.warm_up + self.active) * self.repeat
    }

    /// Of the iteration of that number, from 0.
    pub fn state(&self, iteration: u64) -> State {
        if iteration >= self.iterations() {
            return State::Over;
        }
        match iteration % (self.wait + self.warm_up + self.active) {
            i if i < self.wait => State::Wait,
            i if i < self.wait + self.warm_up => State::WarmUp,
            _ => State::Active,
        }
    }
}
