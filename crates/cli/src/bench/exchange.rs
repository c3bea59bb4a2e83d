//! The cost of averaging gradients over NCCL for one rank: a training iteration with the communicator and its
//! all-reduces in the recorded graph, compared with the same iteration without. The two run in turns, so that a
//! slowdown of the GPU affects both.

use super::timing::{Times, round};
use super::{Bench, Made};
use anyhow::Result;
use serde_json::json;
use std::io::Write;

/// Measures both and prints them.
///
/// # Errors
/// If there is no GPU or no NCCL, or memory does not suffice for both at once.
pub fn run(bench: &Bench) -> Result<()> {
    let mut both = vec![];
    for (name, nccl) in [("none", false), ("nccl", true)] {
        let mut made = Made::of(&bench.network.with_nccl(nccl))?;
        (1..bench.warm_up).try_for_each(|_| made.session.run())?;
        made.session.wait()?;
        both.push((name, made, Times::default()));
    }
    for turn in 0..bench.runs as usize {
        for i in 0..both.len() {
            let (_, made, times) = &mut both[(turn + i) % 2];
            times.take(&mut made.session)?;
        }
    }
    let mut out = std::io::stdout().lock();
    for (name, made, times) in &both {
        match bench.json {
            true => {
                let mut record = made.record(times);
                super::extend(
                    &mut record,
                    json!({ "exchange": name, "recorded": made.session.is_recorded() }),
                );
                writeln!(out, "{record}")?;
            }
            false => {
                let recorded = if made.session.is_recorded() { "" } else { ", not recorded" };
                write!(out, "exchange of gradients: {name}{recorded}\n{}", made.told(times))?;
            }
        }
    }
    let more = both[1].2.median() / both[0].2.median() - 1.0;
    match bench.json {
        true => writeln!(out, "{}", json!({ "exchange_overhead_percent": round(100.0 * more) }))?,
        false => writeln!(out, "NCCL with one rank: {:+.2} % compared with no exchange", 100.0 * more)?,
    }
    Ok(())
}
