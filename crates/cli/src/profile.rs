//! `clearshot profile`: the plan with a clock on each node.

use crate::network::NetworkArgs;
use anyhow::Result;
use clap::Args;
use clearshot_graph::cost::{flops, traffic};
use std::collections::BTreeMap;
use std::io::Write;

#[derive(Args)]
pub struct Profile {
    #[command(flatten)]
    network: NetworkArgs,
    /// Runs to sum over.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How many of the slowest nodes to list.
    #[arg(long, default_value_t = 20)]
    top: usize,
}

#[derive(Default)]
struct Total {
    count: usize,
    nanoseconds: u64,
    flops: u64,
    bytes: u64,
}

impl Profile {
    pub fn run(self) -> Result<()> {
        let network = self.network.build()?;
        let device = self.network.device()?;
        let mut session =
            clearshot_runtime::compile(network.graph.clone(), &device, &self.network.options())?;
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
        let mut out = std::io::stdout().lock();
        let milliseconds = |ns: u64| ns as f64 * 1e-6;
        writeln!(out, "{} {}: {:.2} ms in nodes", network.name, network.work(), milliseconds(all / runs))?;
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
