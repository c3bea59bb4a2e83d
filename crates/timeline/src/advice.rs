//! Advice about a run, only where a number of the report supports it. A healthy run gets none.

use crate::report::Report;
use crate::{Phase, RowShare};

/// Percentages of the time above which advice is given.
const WAITING: f64 = 10.0;
const COPYING: f64 = 15.0;
const SAVING: f64 = 15.0;
const VALIDATING: f64 = 40.0;
const FILES: f64 = 50.0;
/// Of loader threads that have nothing else to do, and of cores.
const BUSY: f64 = 85.0;

pub(crate) fn advice(report: &Report) -> Vec<String> {
    let mut all = vec![];
    let waiting = report.percent(Phase::Waiting);
    if waiting >= WAITING {
        all.push(about_loader(report, waiting));
    }
    let copying = report.percent(Phase::Copying);
    if copying >= COPYING {
        all.push(format!("Copies to the device take {copying:.0} % of the time: larger batches (trainer.batch) or larger crops give it more to do with each copy."));
    }
    let saving = report.percent(Phase::Saving);
    if saving >= SAVING {
        all.push(format!("Saving takes {saving:.0} % of the time: checkpoint.every says how often."));
    }
    let validating = report.percent(Phase::Validating);
    if validating >= VALIDATING {
        all.push(format!("Validation takes {validating:.0} % of the time: validation.every says how often, validation.images on how many images."));
    }
    let [reading, decoding] = [Phase::Reading, Phase::Decoding].map(|p| report.percent(p));
    if reading + decoding >= FILES {
        let what = if reading > decoding { "Reading" } else { "Decoding" };
        let how = if reading > decoding {
            "copy the files to a disk of this machine"
        } else {
            "`clearshot convert` writes them without compression"
        };
        all.push(format!(
            "{what} files takes {:.0} % of the time, longer than the network: {how}.",
            reading.max(decoding)
        ));
    }
    if let Some(leak) = &report.leak {
        all.push(format!(
            "Memory grows by {:.2} MB in every iteration, in the phase `{}` ({} iterations).",
            leak.per_iteration * 1e-6,
            leak.phase,
            leak.iterations
        ));
    }
    all
}

fn about_loader(report: &Report, waiting: f64) -> String {
    let each = 1e3 * report.seconds(Phase::Waiting) / f64::from(report.iterations.max(1));
    let mut text = format!(
        "The loader is the bottleneck: {waiting:.0} % of the time ({each:.1} ms of each iteration) is spent waiting for data."
    );
    let loaders: Vec<&RowShare> = report.threads.iter().filter(|r| r.name.starts_with("loader")).collect();
    if loaders.is_empty() {
        return text;
    }
    let busy = loaders.iter().map(|r| r.busy).sum::<f64>() / loaders.len() as f64;
    let slowest = Phase::ALL
        .into_iter()
        .map(|p| {
            let of = |r: &&RowShare| {
                r.phases.iter().filter(|s| s.phase == p.name()).map(|s| s.seconds).sum::<f64>()
            };
            (p, loaders.iter().map(of).sum::<f64>())
        })
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|(_, seconds)| *seconds > 0.0);
    if let Some((phase, _)) = slowest {
        text += &format!(" Its {} threads spend most of their time {}.", loaders.len(), phase.name());
    }
    let free = report.cores as f64 - report.cores_busy;
    text += match (busy >= BUSY, free >= 0.5) {
        (true, true) => " Cores are free: raise performance.workers.",
        (true, false) => {
            " All cores are busy: cheaper data help, as smaller scenes (data.sizes), a smaller data.refresh, or files that fit into memory (data.memory)."
        }
        (false, _) => {
            " They wait themselves now and then: raise performance.ahead, so that more batches are made ahead."
        }
    };
    text
}
