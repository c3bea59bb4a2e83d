//! Every reference case by every engine that takes its kind.
//!
//! The cases are those below the folder that `CLEARSHOT_REFS` names, or the project's own. A kind or
//! an op that the suite does not know fails the run; kinds that belong to later work are counted as
//! skipped, in the table that ends the run.

use clearshot_suite::case::{self, Case};
use clearshot_suite::engine::{ENGINES, Engine};
use clearshot_suite::report::{Checks, Report};
use clearshot_suite::{Result, op, train, unet2d};

/// Kinds that the suite has no runner for yet.
const LATER: &[&str] = &["schedule", "sampler", "network", "metric"];

fn run(case: &Case, engine: Engine) -> Result<Checks> {
    match case.kind.as_str() {
        "op" => op::run(case, engine),
        "unet2d" => unet2d::run(case, engine),
        "train" => train::run(case, engine),
        other => Err(format!("unknown kind `{other}`").into()),
    }
}

#[test]
fn every_case_matches_its_peer() {
    let root = case::folder();
    let found = case::find(&root).unwrap();
    assert!(!found.cases.is_empty(), "no cases below {}", root.display());
    let mut report = Report::default();
    for case in &found.cases {
        if LATER.contains(&case.kind.as_str()) {
            report.not_covered(&case.kind);
            continue;
        }
        for &engine in ENGINES {
            if engine.takes(&case.kind) {
                report.case(engine.name(), &case.kind, &case.name, run(case, engine));
            } else {
                report.skip(engine.name(), &case.kind);
            }
        }
    }
    let failed = report.finish();
    assert_eq!(failed, 0, "cases failed; each is named above");
}

#[test]
fn folders_of_diffusers_come_back_as_they_were() {
    let found = case::find(&case::folder()).unwrap();
    for folder in &found.folders {
        if let Err(e) = unet2d::run_folder(folder, &found.cases) {
            panic!("{}: {e}", folder.display());
        }
    }
}
