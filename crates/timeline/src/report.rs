//! The summary of a timeline: phases of the run, work of the loader threads, the slowest nodes, and advice.

use crate::attribution::{Times, times};
use crate::memory::{self, Leak};
use crate::{Phase, Timeline, Window, advice, lock};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The group of spans that an iteration is.
pub const ITERATION: &str = "iteration";
/// Time outside all phases.
pub const OTHER: &str = "other";

/// A part of the time.
#[derive(Clone, Debug, Serialize)]
pub struct Share {
    pub phase: &'static str,
    pub seconds: f64,
    pub percent: f64,
    pub times: usize,
}

/// A thread that works beside the first one.
#[derive(Clone, Debug, Serialize)]
pub struct RowShare {
    pub name: String,
    /// The percentage of the time that it worked.
    pub busy: f64,
    pub phases: Vec<Share>,
}

/// All runs of one node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeShare {
    pub node: String,
    pub op: &'static str,
    pub layer: String,
    pub phase: &'static str,
    pub seconds: f64,
    pub runs: usize,
    /// Bytes in use while it runs, by the plan.
    pub bytes: usize,
}

/// The most that a phase takes of the memory that was planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedPeak {
    pub phase: &'static str,
    /// Values and workspaces that are in use at one time, and what is kept from run to run.
    pub bytes: usize,
    /// The extent of their planned memory; for the highest phase, all that was planned.
    pub reach: usize,
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds that were written down.
    pub wall: f64,
    pub iterations: u32,
    /// Of the first thread; with what lies in no phase they are the whole of the time.
    pub phases: Vec<Share>,
    pub threads: Vec<RowShare>,
    /// The percentage of the time that the device computes.
    pub device_busy: f64,
    /// Cores of the processor that the process kept busy, on average.
    pub cores_busy: f64,
    pub cores: usize,
    /// The slowest first.
    pub nodes: Vec<NodeShare>,
    pub planned_peaks: Vec<PlannedPeak>,
    /// Of the process, where that was asked for; see [`memory::table`].
    pub memory: Vec<Value>,
    pub leak: Option<Leak>,
    pub advice: Vec<String>,
}

fn shares(times: &Times, wall: f64) -> Vec<Share> {
    let share = |(phase, (seconds, count)): (&Phase, &(f64, usize))| Share {
        phase: phase.name(),
        seconds: *seconds,
        percent: 100.0 * seconds / wall,
        times: *count,
    };
    times.by_phase.iter().map(share).collect()
}

impl Report {
    /// Seconds of a phase of the first thread.
    pub fn seconds(&self, phase: Phase) -> f64 {
        self.phases.iter().find(|s| s.phase == phase.name()).map_or(0.0, |s| s.seconds)
    }

    pub(crate) fn percent(&self, phase: Phase) -> f64 {
        100.0 * self.seconds(phase) / self.wall
    }

    /// As text, with the slowest nodes and advice.
    pub fn in_words(&self, top: usize) -> String {
        let mut text = self.table(top);
        text += &memory::in_words(&self.memory, &self.planned_peaks);
        text += &match self.advice.is_empty() {
            true => "nothing stands out".to_string(),
            false => self.advice.join("\n"),
        };
        text
    }

    /// The times as text.
    pub fn table(&self, top: usize) -> String {
        let count =
            if self.iterations > 0 { format!("{} iterations, ", self.iterations) } else { String::new() };
        let mut text = format!(
            "{count}{:.3} s: the device computes {:.1} % of the time, {:.2} of {} cores are busy\n",
            self.wall, self.device_busy, self.cores_busy, self.cores
        );
        let mut rows = |title: &str, shares: &[Share]| {
            text += &format!("  {title:<28} {:>10} {:>7} {:>8}\n", "seconds", "%", "times");
            for s in shares {
                text +=
                    &format!("    {:<26} {:>10.4} {:>7.2} {:>8}\n", s.phase, s.seconds, s.percent, s.times);
            }
        };
        rows("phase", &self.phases);
        for row in &self.threads {
            rows(&format!("{} (works {:.0} %)", row.name, row.busy), &row.phases);
        }
        if top > 0 && !self.nodes.is_empty() {
            text += &format!("  {:<28} {:>10} {:>7} {:>8}\n", "slowest nodes", "ms a run", "%", "phase");
            for n in self.nodes.iter().take(top) {
                let each = 1e3 * n.seconds / n.runs as f64;
                let percent = 100.0 * n.seconds / self.wall;
                text += &format!("    {:>37.3} {percent:>7.2} {:>9}  {}\n", each, n.phase, n.node);
            }
        }
        text
    }
}

impl Timeline {
    /// What was written down in all stretches that have ended.
    pub fn report(&self) -> Report {
        let windows: Vec<Window> =
            lock(&self.0.windows).iter().copied().filter(|w| w.end.is_some()).collect();
        let wall = windows.iter().filter_map(|w| Some(w.end? - w.start)).sum::<u64>() as f64 * 1e-9;
        let wall = wall.max(1e-9);
        let rows = lock(&self.0.rows).clone();
        let mut all = rows.iter().map(|row| (row.name.clone(), times(&lock(&row.spans), &windows)));
        let first = all.next().map(|(_, times)| times).unwrap_or_default();
        let mut phases = shares(&first, wall);
        let rest = (wall - first.total()).max(0.0);
        phases.push(Share { phase: OTHER, seconds: rest, percent: 100.0 * rest / wall, times: 0 });
        let threads: Vec<RowShare> = all
            .map(|(name, times)| RowShare {
                name,
                busy: 100.0 * times.total() / wall,
                phases: shares(&times, wall),
            })
            .filter(|row| !row.phases.is_empty())
            .collect();
        let computing: f64 =
            first.by_phase.iter().filter(|(p, _)| p.computes()).map(|(_, (seconds, _))| seconds).sum();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let snapshots = self.snapshots();
        let mut report = Report {
            wall,
            iterations: self.0.iterations.load(Ordering::Relaxed),
            phases,
            threads,
            device_busy: 100.0 * computing / wall,
            cores_busy: windows.iter().map(|w| w.processor).sum::<f64>() / wall,
            cores,
            nodes: self.nodes(),
            planned_peaks: self.planned_peaks(),
            memory: memory::table(&snapshots),
            leak: memory::leak(&snapshots),
            advice: vec![],
        };
        report.advice = advice::advice(&report);
        report
    }

    fn nodes(&self) -> Vec<NodeShare> {
        let mut sums: BTreeMap<(usize, usize), (NodeShare, usize)> = BTreeMap::new();
        for span in lock(&self.0.nodes).iter() {
            let (table, info) = (std::sync::Arc::as_ptr(&span.nodes) as usize, &span.nodes[span.node]);
            let (sum, _) = sums.entry((table, span.node)).or_insert_with(|| {
                let sum = NodeShare {
                    node: info.line.clone(),
                    op: info.op,
                    layer: info.scope.to_string(),
                    phase: info.phase.name(),
                    seconds: 0.0,
                    runs: 0,
                    bytes: info.bytes,
                };
                (sum, 0)
            });
            sum.seconds += (span.end - span.start) as f64 * 1e-9;
            sum.runs += 1;
        }
        let mut nodes: Vec<NodeShare> = sums.into_values().map(|(sum, _)| sum).collect();
        nodes.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        nodes
    }

    /// The memory of the plan by phase.
    pub fn planned_peaks(&self) -> Vec<PlannedPeak> {
        let mut peaks: BTreeMap<Phase, PlannedPeak> = BTreeMap::new();
        for span in lock(&self.0.nodes).iter() {
            let info = &span.nodes[span.node];
            let none = PlannedPeak { phase: info.phase.name(), bytes: 0, reach: 0 };
            let peak = peaks.entry(info.phase).or_insert(none);
            (peak.bytes, peak.reach) = (peak.bytes.max(info.bytes), peak.reach.max(info.reach));
        }
        peaks.into_values().collect()
    }

    /// Everything about memory as one object.
    fn memory_report(&self, report: &Report) -> Value {
        let snapshots = self.snapshots();
        let node = |n: &NodeShare| json!({"node": n.node, "phase": n.phase, "bytes": n.bytes});
        let nodes: Vec<Value> = report.nodes.iter().map(node).collect();
        json!({
            "phases": report.memory, "planned_peaks": report.planned_peaks, "leak": report.leak,
            "nodes": nodes,
            "snapshots": snapshots.iter().map(|s| json!({
                "phase": s.name, "iteration": s.iteration, "seconds": s.seconds, "allocated": s.after.allocated,
                "reserved": s.after.reserved, "free": s.after.free, "growth": s.growth(),
            })).collect::<Vec<_>>(),
        })
    }

    /// Writes the report, the trace, the stacks and the memory into a folder.
    ///
    /// # Errors
    /// The file that cannot be written, and why.
    pub fn write(&self, folder: &Path, report: &Report) -> Result<(), (PathBuf, std::io::Error)> {
        std::fs::create_dir_all(folder).map_err(|e| (folder.to_path_buf(), e))?;
        let pretty = |value: &Value| format!("{value:#}\n");
        for (name, text) in [
            ("profile.json", pretty(&serde_json::to_value(report).unwrap_or_default())),
            ("trace.json", self.chrome_trace().to_string()),
            ("stacks.txt", self.folded_stacks()),
            ("memory.json", pretty(&self.memory_report(report))),
            ("memory.csv", memory::csv(&self.snapshots())),
        ] {
            let (path, part) = (folder.join(name), folder.join(format!(".{name}.part")));
            std::fs::write(&part, text)
                .and_then(|()| std::fs::rename(&part, &path))
                .map_err(|e| (path, e))?;
        }
        Ok(())
    }
}
