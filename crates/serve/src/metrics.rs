//! Counters of the server in the format of Prometheus.

use crate::jobs::{Queue, State};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

#[derive(Default)]
pub struct Metrics {
    /// Answers by the first digit of their status.
    answers: [AtomicU64; 6],
    pub connections: AtomicUsize,
    pub uploaded_bytes: AtomicU64,
    jobs: AtomicU64,
    job_milliseconds: AtomicU64,
}

impl Metrics {
    pub fn answer(&self, status: u16) {
        self.answers[usize::from(status / 100).min(5)].fetch_add(1, Relaxed);
    }

    pub fn job(&self, time: Duration) {
        self.jobs.fetch_add(1, Relaxed);
        self.job_milliseconds.fetch_add(time.as_millis() as u64, Relaxed);
    }

    pub fn text(&self, queue: &Queue) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, about: &str, rows: Vec<(String, f64)>| {
            let _ = writeln!(out, "# HELP {name} {about}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(out, "{name}{labels} {value}");
            }
        };
        let plain = |value: f64| vec![(String::new(), value)];
        let answers = (2..6).map(|c| (format!("{{class=\"{c}xx\"}}"), self.answers[c].load(Relaxed) as f64));
        family("clearshot_http_responses_total", "counter", "Answers by class of status.", answers.collect());
        let connections = self.connections.load(Relaxed) as f64;
        family("clearshot_http_connections", "gauge", "Connections that are open.", plain(connections));
        let uploaded = self.uploaded_bytes.load(Relaxed) as f64;
        family("clearshot_uploaded_bytes_total", "counter", "Bytes of uploads.", plain(uploaded));
        let states = State::ALL.map(|s| (format!("{{state=\"{}\"}}", s.name()), queue.count(s) as f64));
        family("clearshot_jobs", "gauge", "Jobs by state.", states.to_vec());
        let run = self.jobs.load(Relaxed) as f64;
        family("clearshot_jobs_run_total", "counter", "Jobs that have run since the start.", plain(run));
        let seconds = self.job_milliseconds.load(Relaxed) as f64 / 1000.0;
        family("clearshot_job_seconds_total", "counter", "Time that jobs have taken.", plain(seconds));
        if let Some(bytes) = clearshot_runtime::peak_bytes() {
            family(
                "clearshot_peak_memory_bytes",
                "gauge",
                "The most memory held so far.",
                plain(bytes as f64),
            );
        }
        out
    }
}
