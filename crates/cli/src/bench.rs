//! `clearshot bench`: the time of a network, measured as `peers` measure theirs: the median of some
//! runs after a few that do not count.

use crate::network::NetworkArgs;
use anyhow::Result;
use clap::Args;
use clearshot_graph::cost::total_flops;
use clearshot_graph::plan::human;
use clearshot_runtime::{Device, SetUp};
use std::io::Write;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    network: NetworkArgs,
    /// Runs that count.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Runs before them.
    #[arg(long, default_value_t = 3)]
    warm_up: u32,
    /// One JSON line.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self) -> Result<()> {
        let network = self.network.build()?;
        let flops = total_flops(&network.graph);
        let start = Instant::now();
        let device = self.network.device()?;
        let mut session = self.network.compile(&network, &device)?;
        network.fill(&mut session)?;
        session.run()?;
        session.wait()?;
        let setup = start.elapsed().as_secs_f64();
        for _ in 1..self.warm_up {
            session.run()?;
        }
        session.wait()?;
        let mut times = Vec::with_capacity(self.runs as usize);
        for _ in 0..self.runs {
            let start = Instant::now();
            session.run()?;
            session.wait()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        let peak = session.peak_bytes();
        let planned = session.plan().bytes();
        let set_up = session.set_up();
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = serde_json::json!({
                "engine": concat!("clearshot ", env!("CARGO_PKG_VERSION")),
                "mode": "compiled",
                "net": network.name,
                "device": kind(&device),
                "precision": session.arithmetic().name(),
                "batch": network.batch,
                "size": network.size,
                "work": network.work(),
                "median_ms": round(median, 3),
                "max_ms": round(worst, 3),
                "setup_s": round(setup, 3),
                "start_s": seconds(set_up.start),
                "plan_s": seconds(set_up.plan),
                "compile_s": seconds(set_up.compile),
                "tune_s": seconds(set_up.measure),
                "memory_s": seconds(set_up.memory),
                "compiled": set_up.compiled,
                "tuned": set_up.measured,
                "peak_gib": peak.map(|p| round(p as f64 / (1u64 << 30) as f64, 3)),
                "planned_bytes": planned,
                "peak_bytes": peak,
                "flops": flops,
            });
            writeln!(out, "{line}")?;
        } else {
            writeln!(
                out,
                "{} {}, batch {}, {} x {} pixels, on {device}, in {}",
                network.name,
                network.work(),
                network.batch,
                network.size,
                network.size,
                session.arithmetic()
            )?;
            writeln!(out, "  median {median:.2} ms, slowest {worst:.2} ms, of {} runs", self.runs)?;
            writeln!(
                out,
                "  {:.1} GFLOP/s of the plain algorithm's operations",
                flops as f64 / median * 1e-6
            )?;
            writeln!(out, "  ready after {setup:.2} s: {}", phases(set_up))?;
            let peak = peak.map_or("not told by this system".into(), human);
            writeln!(out, "  memory: {} planned, {peak} taken at the most", human(planned))?;
        }
        Ok(())
    }
}

/// Where set-up went; what is left of it are weights and the first run.
fn phases(s: &SetUp) -> String {
    let mut told = format!("{:.2} s to find the device, {:.2} s to plan", seconds(s.start), seconds(s.plan));
    if s.compiled > 0 || s.measured > 0 {
        told += &format!(
            ", {:.2} s for {} programs to be compiled, {:.2} s to measure {} choices",
            seconds(s.compile),
            s.compiled,
            seconds(s.measure),
            s.measured
        );
    }
    told + &format!(", {:.2} s to take memory, then weights and a first run", seconds(s.memory))
}

fn seconds(time: Duration) -> f64 {
    round(time.as_secs_f64(), 3)
}

fn kind(device: &Device) -> &'static str {
    match device {
        Device::Cpu { .. } => "cpu",
        Device::Cuda { .. } => "cuda",
    }
}

fn round(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}
