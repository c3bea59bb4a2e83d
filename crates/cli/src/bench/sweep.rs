//! One network at several batch sizes. A batch that does not fit into memory is reported as a row, and the sweep
//! continues.

use super::{Bench, Made};
use anyhow::{Error, Result};
use clearshot_graph::plan::human;
use clearshot_runtime::CompileError;
use serde_json::json;
use std::io::Write;

/// Measures batch after batch and prints a row for each.
///
/// # Errors
/// What goes wrong but for a lack of memory.
pub fn run(bench: &Bench) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if !bench.json {
        writeln!(
            out,
            "{:>6} {:>12} {:>10} {:>10} {:>14} {:>11}",
            "batch", "median ms", "95 % ms", "images/s", "ms an image", "planned"
        )?;
    }
    for &batch in bench.network.batches() {
        let mut made = match Made::of(&bench.network.with_batch(batch)) {
            Ok(made) => made,
            Err(e) => match no_room(&e) {
                Some((needed, free)) => {
                    let row = json!({ "batch": batch, "refused": "no room", "needed_bytes": needed, "free_bytes": free });
                    match bench.json {
                        true => writeln!(out, "{row}")?,
                        false => {
                            writeln!(out, "{batch:>6} needs {}, and {} are free", human(needed), human(free))?
                        }
                    }
                    continue;
                }
                None => return Err(e),
            },
        };
        let times = made.measured(bench)?;
        match bench.json {
            true => writeln!(out, "{}", made.record(&times))?,
            false => writeln!(
                out,
                "{batch:>6} {:>12.2} {:>10.2} {:>10.1} {:>14.2} {:>11}",
                times.median(),
                times.quantile(0.95),
                times.rate(batch as usize),
                times.median() / f64::from(batch),
                human(made.session.plan().bytes())
            )?,
        }
        out.flush()?;
    }
    Ok(())
}

/// The bytes that were needed and free, where memory is what is missing.
fn no_room(e: &Error) -> Option<(usize, usize)> {
    match e.downcast_ref::<CompileError>() {
        Some(CompileError::NoRoom { needed, free, .. }) => Some((*needed, *free)),
        _ => None,
    }
}
