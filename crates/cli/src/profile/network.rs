//! Profiles a network alone, with the time of each node.

use crate::network::NetworkArgs;
use anyhow::{Context, Result};
use clap::Args;
use clearshot_graph::Graph;
use clearshot_graph::cost::{flops, traffic};
use clearshot_runtime::{Arithmetic, NodeTime};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct NetworkProfile {
    #[command(flatten)]
    network: NetworkArgs,
    /// Sum over this many runs.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// List this many of the slowest nodes.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// Also write the nodes as a trace for chrome://tracing and Perfetto to this file. Default: no trace.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object. Default: tables.
    #[arg(long)]
    json: bool,
}

/// The nodes in running order, each behind the one before, as Chrome's trace events. A device's nodes are
/// timed by themselves, so the gaps between them are not there.
fn write_trace(path: &Path, graph: &Graph, times: &[NodeTime], runs: u64) -> Result<()> {
    let mut ordered: Vec<&NodeTime> = times.iter().collect();
    ordered.sort_by_key(|t| t.node);
    let mut start = 0.0;
    let mut events = vec![];
    for t in ordered {
        let microseconds = t.nanoseconds as f64 / runs as f64 * 1e-3;
        events.push(serde_json::json!({
            "name": graph.nodes[t.node].op.name(),
            "cat": &*graph.nodes[t.node].scope,
            "ph": "X",
            "ts": start,
            "dur": microseconds,
            "pid": 1,
            "tid": 1,
            "args": {
                "node": graph.line(t.node),
                "gflop_s": flops(graph, t.node) as f64 / microseconds * 1e-3,
                "gb_s": traffic(graph, t.node) as f64 / microseconds * 1e-3,
            },
        }));
        start += microseconds;
    }
    let text = serde_json::json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string();
    let aside = path.with_extension("partial");
    std::fs::write(&aside, text)?;
    Ok(std::fs::rename(&aside, path)?)
}

#[derive(Default)]
struct Total {
    count: usize,
    nanoseconds: u64,
    flops: u64,
    bytes: u64,
}

impl NetworkProfile {
    pub fn run(self) -> Result<()> {
        let network = self.network.build()?;
        let device = self.network.device()?;
        let mut session = self.network.compile(&network, &device)?;
        network.fill(&mut session)?;
        session.run()?;
        let times = session.profile(self.runs as usize)?;
        let graph = &session.plan().graph;
        let runs = u64::from(self.runs);
        let all: u64 = times.iter().map(|t| t.nanoseconds).sum();
        let mut kinds: BTreeMap<&str, Total> = BTreeMap::new();
        for t in &times {
            let kind = kinds.entry(graph.nodes[t.node].op.name()).or_default();
            kind.count += 1;
            kind.nanoseconds += t.nanoseconds / runs;
            kind.flops += flops(graph, t.node);
            kind.bytes += traffic(graph, t.node);
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, t)| std::cmp::Reverse(t.nanoseconds));
        if let Some(path) = &self.trace {
            write_trace(path, graph, &times, runs).with_context(|| path.display().to_string())?;
        }
        let ceilings = session.ceilings()?;
        let mut out = std::io::stdout().lock();
        if self.json {
            let ops = kinds.iter().map(|(name, t)| {
                serde_json::json!({ "op": name, "nodes": t.count, "ms": t.nanoseconds as f64 * 1e-6, "flops": t.flops, "bytes": t.bytes })
            });
            let nodes = times.iter().take(self.top).map(|t| {
                let ms = t.nanoseconds as f64 / runs as f64 * 1e-6;
                serde_json::json!({ "node": graph.line(t.node), "ms": ms, "flops": flops(graph, t.node), "bytes": traffic(graph, t.node) })
            });
            let pace = ceilings.as_ref().map(|c| serde_json::json!({ "flops": c.flops, "bytes": c.bytes }));
            let record = serde_json::json!({
                "network": network.name, "work": network.work(), "runs": runs, "ms": all as f64 / runs as f64 * 1e-6,
                "device_pace": pace, "ops": ops.collect::<Vec<_>>(), "slowest": nodes.collect::<Vec<_>>(),
            });
            writeln!(out, "{record}")?;
            return Ok(());
        }
        let milliseconds = |ns: u64| ns as f64 * 1e-6;
        writeln!(out, "{} {}: {:.2} ms in nodes", network.name, network.work(), milliseconds(all / runs))?;
        if let Some(c) = ceilings {
            writeln!(
                out,
                "  measured peak of this card: {:.0} GFLOP/s in a product of {}, {:.0} GB/s in a copy",
                c.flops * 1e-9,
                // Not in 8 bits, which no library's product is timed in.
                Arithmetic { eighth: None, ..session.arithmetic() }.name(),
                c.bytes * 1e-9
            )?;
        }
        writeln!(
            out,
            "  {:<18} {:>5} {:>10} {:>6} {:>9} {:>8}",
            "op", "nodes", "ms", "%", "GFLOP/s", "GB/s"
        )?;
        for (name, t) in kinds {
            let ns = t.nanoseconds.max(1) as f64;
            writeln!(
                out,
                "  {name:<18} {:>5} {:>10.3} {:>6.1} {:>9.1} {:>8.1}",
                t.count,
                milliseconds(t.nanoseconds),
                100.0 * ns * runs as f64 / all as f64,
                t.flops as f64 / ns,
                t.bytes as f64 / ns
            )?;
        }
        writeln!(out, "the slowest nodes:")?;
        for t in times.iter().take(self.top) {
            let ns = (t.nanoseconds / runs).max(1);
            let rate = flops(graph, t.node) as f64 / ns as f64;
            writeln!(out, "  {:>9.3} ms {rate:>8.1} GFLOP/s  {}", milliseconds(ns), graph.line(t.node))?;
        }
        Ok(())
    }
}
