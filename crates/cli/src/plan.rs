//! `clearshot plan`: prints memory, operations and largest buffers of a network before it runs; or proposes a number of
//! jobs for a set of files.

use crate::network::NetworkArgs;
use crate::plan_jobs::JobArgs;
use anyhow::Result;
use clap::Args;
use clearshot_graph::cost::total_flops;
use clearshot_graph::plan::{Buffer, Plan, human};
use std::io::Write;
use std::time::Instant;

#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    jobs: JobArgs,
    #[command(flatten)]
    network: NetworkArgs,
    /// List this many of the largest buffers.
    #[arg(long, default_value_t = 8)]
    buffers: usize,
    /// Print one line of JSON. Default: text.
    #[arg(long)]
    json: bool,
}

impl PlanArgs {
    pub fn run(self) -> Result<()> {
        if self.jobs.is_asked() {
            return self.jobs.run(self.network.device()?, self.json);
        }
        let network = self.network.build()?;
        let device = self.network.device()?;
        let start = Instant::now();
        let flops = total_flops(&network.graph);
        let plan = clearshot_runtime::plan(network.graph.clone(), &device, &self.network.options())?;
        let seconds = start.elapsed().as_secs_f64();
        let recomputed = total_flops(&plan.graph).saturating_sub(flops);
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = serde_json::json!({
                "net": network.name,
                "work": network.work(),
                "batch": network.batch,
                "size": network.size,
                "planned_bytes": plan.bytes(),
                "arena_bytes": plan.arena,
                "state_bytes": plan.states,
                "input_bytes": plan.inputs,
                "constant_bytes": plan.constants,
                "packed_weight_bytes": plan.packed,
                "state_copy_bytes": plan.state_copies,
                "host_state_bytes": plan.on_host,
                "largest_live_bytes": plan.largest_live(),
                "flops": flops,
                "recomputed_flops": recomputed,
                "nodes": plan.graph.nodes.len(),
                "plan_s": seconds,
            });
            writeln!(out, "{line}")?;
            return Ok(());
        }
        writeln!(
            out,
            "{} {}, batch {}, {} x {} pixels, on {}",
            network.name,
            network.work(),
            network.batch,
            network.size,
            network.size,
            device
        )?;
        for (what, bytes) in [
            ("total", plan.bytes()),
            ("activations and workspaces", plan.arena),
            ("states", plan.states),
            ("packed weights", plan.packed),
            ("16-bit copies of states", plan.state_copies),
            ("inputs", plan.inputs),
            ("constants", plan.constants),
        ] {
            writeln!(out, "  {what:<27} {:>12}  {bytes} bytes", human(bytes))?;
        }
        if plan.on_host > 0 {
            let bytes = plan.on_host;
            writeln!(out, "  {:<27} {:>12}  {bytes} bytes", "kept on the host, in addition", human(bytes))?;
        }
        writeln!(out, "  {:<27} {:>12.3} GFLOP", "operations", flops as f64 * 1e-9)?;
        if recomputed > 0 {
            writeln!(
                out,
                "  {:<27} {:>12.3} GFLOP",
                "of recomputation, in addition",
                recomputed as f64 * 1e-9
            )?;
        }
        writeln!(out, "  {:<27} {:>12}", "nodes", plan.graph.nodes.len())?;
        writeln!(out, "  {:<27} {:>12.2} s", "planned in", seconds)?;
        writeln!(out, "the largest buffers:")?;
        for buffer in plan.largest_buffers().iter().take(self.buffers) {
            writeln!(out, "  {:>12}  {}", human(buffer.bytes), describe(&plan, buffer))?;
        }
        Ok(())
    }
}

fn describe(plan: &Plan, buffer: &Buffer) -> String {
    let what = if buffer.workspace { "workspace of " } else { "" };
    format!("nodes {}..={}: {what}{}", buffer.first, buffer.last, plan.graph.line(buffer.node))
}
