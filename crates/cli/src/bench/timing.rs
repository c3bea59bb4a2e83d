//! Times of runs, and their statistics.

use anyhow::Result;
use clearshot_runtime::Session;
use serde_json::{Value, json};
use std::time::Instant;

/// The times of some runs in milliseconds, in the order in which they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    /// Runs a session once, waits for it and notes how long that took.
    ///
    /// # Errors
    /// What went wrong when running.
    pub fn take(&mut self, session: &mut Session) -> Result<()> {
        let start = Instant::now();
        session.run()?;
        session.wait()?;
        self.0.push(start.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    /// The time that this share of the runs stays at or below: 0.5 is the median, 1 the slowest run. None has taken none.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (share * sorted.len() as f64) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Images a second, of runs of `batch` images.
    pub fn rate(&self, batch: usize) -> f64 {
        batch as f64 * 1e3 / self.mean().max(f64::MIN_POSITIVE)
    }

    /// The fields that a record of a benchmark has, for `batch` images at once.
    pub fn record(&self, batch: usize) -> Value {
        json!({
            "median_ms": round(self.median()), "max_ms": round(self.quantile(1.0)),
            "p50_ms": round(self.median()), "p95_ms": round(self.quantile(0.95)),
            "avg_latency_ms": round(self.mean()),
            "throughput_fps": round(self.rate(batch)),
            "total_time_ms": round(self.0.iter().sum()), "num_iterations": self.0.len(),
            "samples_ms": self.0.iter().map(|x| round(*x)).collect::<Vec<_>>(),
        })
    }
}

/// Three digits behind the point.
pub fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rates_by_hand() {
        let times = Times((1..=20).rev().map(f64::from).collect());
        assert_eq!((times.median(), times.quantile(0.95), times.quantile(1.0)), (11.0, 20.0, 20.0));
        assert_eq!(times.mean(), 10.5);
        let record = times.record(4);
        assert_eq!(record["throughput_fps"], round(4000.0 / 10.5));
        assert_eq!((&record["num_iterations"], &record["total_time_ms"]), (&json!(20), &json!(210.0)));
        assert_eq!(record["samples_ms"][0], 20.0);
        assert_eq!(Times::default().quantile(0.5), 0.0);
    }
}
