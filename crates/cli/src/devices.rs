//! `clearshot devices`: lists the available devices.

use anyhow::Result;
use clap::Args;
use clearshot_graph::plan::human;
use clearshot_runtime::Device;
use std::io::Write;

#[derive(Args)]
pub struct Devices {
    /// Print one line of JSON for each device. Default: text.
    #[arg(long)]
    json: bool,
}

impl Devices {
    pub fn run(self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if let Device::Cpu { threads, level } = Device::cpu(None) {
            let memory = memory();
            if self.json {
                let line = serde_json::json!({
                    "device": "cpu",
                    "model": model(),
                    "threads": threads,
                    "instructions": format!("{level:?}").to_lowercase(),
                    "memory_bytes": memory,
                });
                writeln!(out, "{line}")?;
            } else {
                let model = model().map_or(String::new(), |m| format!(" ({m})"));
                let memory = memory.map_or(String::new(), |m| format!(", {} of memory", human(m)));
                writeln!(out, "{}{model}{memory}", Device::cpu(None))?;
            }
        }
        match (clearshot_runtime::gpus(), self.json) {
            (Ok(gpus), true) => {
                for gpu in gpus {
                    let line = serde_json::json!({
                        "device": format!("cuda:{}", gpu.ordinal),
                        "model": gpu.name,
                        "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
                        "multiprocessors": gpu.multiprocessors,
                        "cuda": format!("{}.{}", gpu.driver / 1000, gpu.driver % 1000 / 10),
                        "memory_bytes": gpu.memory,
                    });
                    writeln!(out, "{line}")?;
                }
            }
            (Ok(gpus), false) => {
                for gpu in gpus {
                    writeln!(out, "cuda:{}: {gpu}", gpu.ordinal)?;
                }
            }
            (Err(why), true) => {
                let line = serde_json::json!({ "device": "cuda", "unavailable": why.to_string() });
                writeln!(out, "{line}")?;
            }
            (Err(why), false) => writeln!(out, "no cuda: {why}")?,
        }
        Ok(())
    }
}

/// The processor's name, where the system tells it.
pub fn model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

pub fn memory() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
