//! A timeline as Chrome trace events for Perfetto (ui.perfetto.dev) and chrome://tracing: threads, the nodes of the device
//! and the copies to it are rows, memory is a curve. `otherData` has the time of day at which its clock was zero, so that
//! traces of several processes can be aligned.

use crate::{Timeline, lock};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows of nodes and copies, behind those of threads.
const NODES: usize = 1000;
const COPIES: usize = 1001;

fn named(row: usize, name: &str) -> Vec<Value> {
    vec![
        json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}),
        json!({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": row, "args": {"sort_index": row}}),
    ]
}

fn event(name: &str, category: &str, row: usize, start: u64, end: u64, args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "pid": 1, "tid": row,
        "ts": start as f64 * 1e-3, "dur": (end - start) as f64 * 1e-3, "args": args,
    })
}

impl Timeline {
    /// The whole trace; see the module.
    pub fn chrome_trace(&self) -> Value {
        let mut events =
            vec![json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "clearshot"}})];
        for (i, row) in lock(&self.0.rows).iter().enumerate() {
            let spans = lock(&row.spans);
            if spans.is_empty() {
                continue;
            }
            events.extend(named(i, &row.name));
            events.extend(spans.iter().map(|s| event(s.what.name(), "phase", i, s.start, s.end, json!({}))));
        }
        let nodes = lock(&self.0.nodes);
        if !nodes.is_empty() {
            events.extend(named(NODES, "nodes on the device"));
        }
        for span in nodes.iter() {
            let info = &span.nodes[span.node];
            let args = json!({"layer": &*info.scope, "phase": info.phase.name(), "node": info.line, "planned_bytes": info.bytes});
            events.push(event(info.op, info.phase.name(), NODES, span.start, span.end, args));
            events.push(json!({
                "name": "planned memory in use", "ph": "C", "pid": 1, "ts": span.start as f64 * 1e-3, "args": {"bytes": info.bytes},
            }));
        }
        let copies = lock(&self.0.copies);
        if !copies.is_empty() {
            events.extend(named(COPIES, "copies"));
        }
        for c in copies.iter() {
            events.push(event(&c.name, "copy", COPIES, c.start, c.end, json!({"bytes": c.bytes})));
        }
        for s in lock(&self.0.snapshots).iter() {
            let args = json!({"allocated": s.after.allocated, "reserved": s.after.reserved});
            events.push(json!({"name": "memory", "ph": "C", "pid": 1, "ts": s.seconds * 1e6, "args": args}));
        }
        let zero = SystemTime::now().checked_sub(self.0.began.elapsed());
        let zero = zero.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|t| t.as_secs_f64());
        json!({"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"began_unix_seconds": zero}})
    }
}
