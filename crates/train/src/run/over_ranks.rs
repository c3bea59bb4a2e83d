//! The cost of training over several ranks: time spent waiting for gradients, bytes sent, and ranks that are slower than
//! the others.

use super::Run;
use crate::distributed::{Ranks, Travelled};
use crate::error::Result;

/// A rank that takes so many times as long as the fastest, over so many iterations, is named once.
const SLOW: f64 = 1.25;
const ENOUGH: u64 = 10;

/// The cost of exchanging gradients.
#[derive(Clone, Copy, Debug)]
pub struct OverRanks {
    /// How many ranks trained.
    pub size: usize,
    /// The library that exchanged gradients, as in `distributed.backend`.
    pub backend: &'static str,
    /// The share of the time in which this rank did not wait for gradients of others: the speed-up over `size` is at most this, if one rank alone is as fast as each of them. Not known over NCCL,
    /// where the GPU waits by itself.
    pub efficiency: Option<f64>,
    /// Bytes that this rank sent in each iteration.
    pub bytes: f64,
    /// Values of gradients for each one that was sent.
    pub compression: f64,
}

impl OverRanks {
    pub(super) fn of(ranks: &Ranks, t: &Travelled, iterations: u64, seconds: f64) -> OverRanks {
        OverRanks {
            size: ranks.size(),
            backend: ranks.backend().unwrap_or_default(),
            efficiency: t.waited.map(|waited| (1.0 - waited.as_secs_f64() / seconds.max(1e-9)).max(0.0)),
            bytes: t.bytes as f64 / iterations.max(1) as f64,
            compression: t.values as f64 / t.sent_values.max(1) as f64,
        }
    }
}

impl Run<'_> {
    /// For a record of `seconds`: the share of it spent waiting for gradients, bytes sent by iteration, and the slowest rank. Nothing of one rank.
    pub(super) fn over_ranks(&mut self, seconds: f64, iterations: u64) -> Result<Vec<(String, f64)>> {
        let Some(carrier) = self.working().engine.carrier() else { return Ok(vec![]) };
        let now = carrier.travelled();
        let before = std::mem::replace(&mut self.travelled, now);
        // A stage of its own counts from zero.
        let bytes = now.bytes.saturating_sub(before.bytes) as f64;
        let size = self.ranks.size() as f64;
        let mut values = vec![
            ("ranks".to_string(), size),
            ("ranks_nccl".to_string(), f64::from(u8::from(self.ranks.backend() == Some("nccl")))),
            ("ranks_bytes".to_string(), bytes / iterations.max(1) as f64),
        ];
        // Who waits for whom is not seen where GPUs wait by themselves.
        let Some(waited) = now.waited else { return Ok(values) };
        let waited = waited.saturating_sub(before.waited.unwrap_or_default()).as_secs_f64();
        let own = (seconds - waited).max(0.0) / iterations.max(1) as f64;
        let all = self.ranks.gathered(&[own])?.concat();
        let slowest = (0..all.len()).max_by(|a, b| all[*a].total_cmp(&all[*b])).unwrap_or(0);
        let fastest = all.iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = all[slowest] / fastest.max(1e-9);
        if ratio > SLOW && iterations >= ENOUGH && !self.slow.contains(&slowest) {
            self.slow.push(slowest);
            let text =
                format!("{} takes {ratio:.1} times as long as the fastest rank", self.ranks.named(slowest));
            self.records.watch.note(&text);
        }
        let more = [
            ("ranks_waiting", waited / seconds.max(1e-9)),
            ("slowest_rank", slowest as f64),
            ("slowest_ratio", ratio),
        ];
        values.extend(more.map(|(name, value)| (name.to_string(), value)));
        Ok(values)
    }
}
