//! Memory over time: the change during a phase, and the growth from iteration to iteration.
//!
//! A single snapshot says little, because waiting batches and reused buffers come and go. Snapshots of the same name are
//! therefore compared with each other. The memory of a healthy loop varies between constant bounds; with a leak, its lowest
//! values rise in every part of the run.

use crate::PlannedPeak;
use serde::Serialize;
use serde_json::{Value, json};

/// What a process uses at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// In use: values on the heap and the memory of compiled graphs.
    pub allocated: usize,
    /// Taken from the system for it.
    pub reserved: usize,
    /// The memory that the system could still provide.
    pub free: usize,
}

/// The memory around one phase of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    pub name: &'static str,
    pub iteration: u32,
    /// Since the timeline began.
    pub seconds: f64,
    pub before: Memory,
    pub after: Memory,
}

impl Snapshot {
    /// The growth of memory during the phase.
    pub fn growth(&self) -> i64 {
        self.after.allocated as i64 - self.before.allocated as i64
    }
}

/// A phase in which memory grows from iteration to iteration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leak {
    pub phase: String,
    /// Bytes of each iteration.
    pub per_iteration: f64,
    pub iterations: usize,
}

/// Parts of a run whose lowest values are compared, and the smallest total growth that is reported: less is noise of the allocator.
const PARTS: usize = 8;
pub const LEAST_GROWTH: usize = 8 << 20;

/// Whether values rise in every part of a series, and by how much from one to the next.
pub fn steady_growth(values: &[f64], least: f64) -> Option<f64> {
    if values.len() < 2 * PARTS {
        return None;
    }
    let lowest: Vec<f64> = (0..PARTS)
        .map(|i| &values[i * values.len() / PARTS..(i + 1) * values.len() / PARTS])
        .map(|part| part.iter().copied().fold(f64::INFINITY, f64::min))
        .collect();
    let rises = lowest.windows(2).filter(|w| w[1] > w[0]).count();
    let whole = lowest[PARTS - 1] - lowest[0];
    // From the lowest of the first part to the lowest of the last.
    let between = values.len() as f64 * (PARTS - 1) as f64 / PARTS as f64;
    (rises >= PARTS - 2 && whole >= least).then_some(whole / between)
}

/// The phase in which memory grows, if it does: where the allocated bytes at the end of the same phase rise steadily, the one that leaves the most behind.
/// Phases of other threads are not distinguished: their growth is attributed to what the first thread did meanwhile.
pub fn leak(snapshots: &[Snapshot]) -> Option<Leak> {
    let mut names: Vec<&'static str> = vec![];
    for s in snapshots {
        if !names.contains(&s.name) {
            names.push(s.name);
        }
    }
    let series = |name: &str| -> Vec<&Snapshot> { snapshots.iter().filter(|s| s.name == name).collect() };
    // The whole iteration has the most snapshots, or as many as any.
    let whole = names.iter().map(|name| series(name)).max_by_key(Vec::len)?;
    let allocated: Vec<f64> = whole.iter().map(|s| s.after.allocated as f64).collect();
    let per_iteration = steady_growth(&allocated, LEAST_GROWTH as f64)?;
    let left = |name: &&str| series(name).iter().map(|s| s.growth()).sum::<i64>();
    // A group around everything leaves what its parts leave.
    let parts = names.iter().filter(|name| **name != crate::report::ITERATION);
    let phase = parts.max_by_key(|name| left(name)).filter(|name| left(name) > 0);
    let phase = phase.map_or("between phases", |name| *name).to_string();
    Some(Leak { phase, per_iteration, iterations: whole.len() })
}

/// One row for each name: how often, the highest allocated and reserved bytes, the mean growth.
pub fn table(snapshots: &[Snapshot]) -> Vec<Value> {
    let mut rows: Vec<(&str, Vec<&Snapshot>)> = vec![];
    for s in snapshots {
        match rows.iter_mut().find(|(name, _)| *name == s.name) {
            Some((_, all)) => all.push(s),
            None => rows.push((s.name, vec![s])),
        }
    }
    rows.into_iter()
        .map(|(name, all)| {
            let most = |of: fn(&Memory) -> usize| all.iter().map(|s| of(&s.after)).max().unwrap_or(0);
            let growth = all.iter().map(|s| s.growth()).sum::<i64>() as f64 / all.len() as f64;
            json!({
                "phase": name, "snapshots": all.len(), "peak_allocated": most(|m| m.allocated), "peak_reserved": most(|m| m.reserved),
                "least_free": all.iter().map(|s| s.after.free).min(), "mean_growth": growth,
            })
        })
        .collect()
}

/// The peaks of phases as text: of the plan, and as the process had them where that was asked for.
pub(crate) fn in_words(table: &[Value], planned: &[PlannedPeak]) -> String {
    let gigabytes = |bytes: f64| bytes * 1e-9;
    if planned.is_empty() {
        return String::new();
    }
    let mut text = format!("  {:<28} {:>10} {:>10}\n", "planned memory, at its peak", "in use GB", "reaches");
    for p in planned {
        let [bytes, reach] = [p.bytes, p.reach].map(|n| gigabytes(n as f64));
        text += &format!("    {:<26} {bytes:>10.4} {reach:>10.4}\n", p.phase);
    }
    if table.is_empty() {
        return text;
    }
    text += &format!(
        "  {:<28} {:>10} {:>10} {:>10} {:>12}\n",
        "memory of the process", "alloc. GB", "reserved", "free", "growth MB"
    );
    for row in table {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        text += &format!(
            "    {:<26} {:>10.4} {:>10.4} {:>10.4} {:>12.4}\n",
            row["phase"].as_str().unwrap_or_default(),
            gigabytes(number("peak_allocated")),
            gigabytes(number("peak_reserved")),
            gigabytes(number("least_free")),
            number("mean_growth") * 1e-6
        );
    }
    text
}

/// All snapshots, one a line.
pub fn csv(snapshots: &[Snapshot]) -> String {
    let mut text = String::from("phase,iteration,seconds,allocated,reserved,free,growth\n");
    for s in snapshots {
        let m = &s.after;
        text += &format!(
            "{},{},{:.6},{},{},{},{}\n",
            s.name,
            s.iteration,
            s.seconds,
            m.allocated,
            m.reserved,
            m.free,
            s.growth()
        );
    }
    text
}
