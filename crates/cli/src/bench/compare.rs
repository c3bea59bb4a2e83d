//! The speed-up of each optimisation on this machine: none, each one alone, all but each one, and all.
//!
//! Each variant is a separate session compiled from the same graph, so rows are independent. They run in turns with a
//! different start in every round, so that a slowdown of the machine affects all of them. The table also shows the
//! difference of each result from that without any optimisation in fp32.

use super::timing::{Times, round};
use super::{Bench, beside, kind};
use crate::network::Network;
use anyhow::{Context, Result};

use clearshot_graph::plan::human;
use clearshot_runtime::{Device, Level, Options, Precision, Session, compile, plan};
use serde_json::json;
use std::io::Write;

/// How a network is compiled and run.
#[derive(Clone, Copy)]
struct Way {
    options: Options,
    device: Device,
    replay: bool,
}

/// Something that can be switched off.
struct Switch {
    name: &'static str,
    /// Whether this device has the choice.
    applies: fn(&Device) -> bool,
    off: fn(&mut Way),
}

const SWITCHES: &[Switch] = &[
    Switch { name: "fused operations", applies: |_| true, off: |w| w.options.optimise = false },
    Switch {
        name: "vector instructions",
        applies: |d| matches!(d, Device::Cpu { level, .. } if *level != Level::Portable),
        off: |w| {
            if let Device::Cpu { level, .. } = &mut w.device {
                *level = Level::Portable;
            }
        },
    },
    Switch {
        name: "all threads",
        applies: |d| matches!(d, Device::Cpu { threads, .. } if *threads > 1),
        off: |w| {
            if let Device::Cpu { threads, .. } = &mut w.device {
                *threads = 1;
            }
        },
    },
    Switch {
        name: "16-bit images",
        applies: |d| matches!(d, Device::Cuda { .. }),
        off: |w| w.options.precision = Precision::F32,
    },
    Switch {
        name: "one launch (CUDA graph)",
        applies: |d| matches!(d, Device::Cuda { .. }),
        off: |w| w.replay = false,
    },
];

/// What is always so, and cannot be switched.
const ALWAYS: &str = "always on: channels-last layout; weights packed for the kernels; one update for all parameters of an optimiser; \
                      kernels chosen for each shape";

/// A row of the table.
struct Row {
    name: String,
    session: Session,
    first: Vec<f32>,
    times: Times,
}

/// Measures every way and prints a table.
///
/// # Errors
/// If the network or the device is not known, or memory does not suffice for all ways at once.
pub fn run(bench: &Bench) -> Result<()> {
    let network = bench.network.build()?;
    let device = bench.network.device()?;
    let mut rows = vec![];
    for (name, way) in ways(&network, &device)? {
        rows.push(Row::new(name, &network, &way)?);
    }
    for row in &mut rows {
        (1..bench.warm_up).try_for_each(|_| Ok::<_, anyhow::Error>(row.session.run()?))?;
        row.session.wait()?;
    }
    let count = rows.len();
    for turn in 0..bench.runs as usize {
        for i in 0..count {
            let row = &mut rows[(i + turn) % count];
            row.times.take(&mut row.session)?;
        }
    }
    print(bench, &network, &device, &rows)
}

fn ways(network: &Network, device: &Device) -> Result<Vec<(String, Way)>> {
    let switches: Vec<&Switch> = SWITCHES.iter().filter(|s| (s.applies)(device)).collect();
    let all = Way { options: Options::default(), device: *device, replay: true };
    let off = |wanted: &dyn Fn(&Switch) -> bool| {
        let mut way = all;
        switches.iter().filter(|s| wanted(s)).for_each(|s| (s.off)(&mut way));
        way
    };
    let mut ways = vec![("none".to_string(), off(&|_| true))];
    for one in &switches {
        ways.push((format!("only {}", one.name), off(&|s| s.name != one.name)));
    }
    for one in &switches {
        ways.push((format!("all but {}", one.name), off(&|s| s.name == one.name)));
    }
    ways.push(("all".into(), all));
    if network.train {
        let bytes = plan(network.graph.clone(), device, &all.options)?.bytes();
        let mut tight = all;
        tight.options.budget = Some(bytes / 4 * 3);
        // A network whose memory is mostly parameters has nothing to recompute.
        if plan(network.graph.clone(), device, &tight.options).is_ok() {
            ways.push(("all, recomputing to 3/4 of the memory".into(), tight));
        }
    }
    Ok(ways)
}

impl Row {
    fn new(name: String, network: &Network, way: &Way) -> Result<Row> {
        let made = compile(network.graph.clone(), &way.device, &way.options);
        let mut session = made.with_context(|| {
            format!("{name}; all variants are in memory at once; use a smaller --batch or --size")
        })?;
        session.set_replay(way.replay);
        network.fill(&mut session)?;
        session.run()?;
        session.wait()?;
        let output = network.graph.outputs.first().context("a network without an output")?;
        let first = session.get(&output.name)?.as_f32()?.to_vec();
        Ok(Row { name, session, first, times: Times::default() })
    }
}

fn print(bench: &Bench, network: &Network, device: &Device, rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let plain = &rows[0];
    if !bench.json {
        writeln!(
            out,
            "{} {}, batch {}, {} x {} pixels, on {device}; {} runs of each variant, in turns",
            network.name,
            network.work(),
            network.batch,
            network.size,
            network.size,
            bench.runs
        )?;
        writeln!(
            out,
            "  {:<40} {:>10} {:>10} {:>8} {:>11} {:>12} {:>11}",
            "optimisations", "median ms", "95 % ms", "speed-up", "planned", "rel. error", "1 - cosine"
        )?;
    }
    for row in rows {
        let [error, cosine] = beside(&row.first, &plain.first);
        let (median, ratio) = (row.times.median(), plain.times.median() / row.times.median());
        let planned = row.session.plan().bytes();
        if bench.json {
            let mut record = json!({
                "net": network.name, "work": network.work(), "device": kind(device), "size": network.size, "batch": network.batch,
                "optimisations": row.name, "precision": row.session.arithmetic().name(), "speed_up": round(ratio),
                "planned_bytes": planned, "relative_error": error, "cosine": cosine,
            });
            super::extend(&mut record, row.times.record(network.batch));
            writeln!(out, "{record}")?;
        } else {
            writeln!(
                out,
                "  {:<40} {median:>10.2} {:>10.2} {ratio:>8.2} {:>11} {error:>12.1e} {:>11.1e}",
                row.name,
                row.times.quantile(0.95),
                human(planned),
                (1.0 - cosine).max(0.0)
            )?;
        }
    }
    if !bench.json {
        writeln!(out, "{ALWAYS}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_beside_a_reference_by_hand() {
        let [error, cosine] = beside(&[3.0, 4.0], &[3.0, 0.0]);
        assert!((error - 4.0 / 3.0).abs() < 1e-12 && (cosine - 0.6).abs() < 1e-12);
        assert_eq!(beside(&[1.0, 2.0], &[1.0, 2.0])[0], 0.0);
    }

    #[test]
    fn every_switch_changes_the_way() {
        let device = Device::Cpu { threads: 2, level: Level::detect() };
        let way = Way { options: Options::default(), device, replay: true };
        for switch in SWITCHES.iter().filter(|s| (s.applies)(&device)) {
            let mut off = way;
            (switch.off)(&mut off);
            let same = off.options == way.options && off.device == way.device && off.replay == way.replay;
            assert!(!same, "{}", switch.name);
        }
    }
}
