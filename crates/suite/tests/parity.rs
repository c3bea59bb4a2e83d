//! Every reference case by every engine that takes its kind.
//!
//! The cases are those below the folder that `CLEARSHOT_REFS` names, or the project's own. A kind or
//! an op that the suite does not know fails the run; kinds that belong to later work are counted as
//! skipped, in the table that ends the run.

use clearshot_suite::case::{self, Case};
use clearshot_suite::engine::{Engine, engines};
use clearshot_suite::report::{Checks, Report};
use clearshot_suite::{Result, network, objective, op, sampler, schedule, train, unet2d};

/// Kinds that other crates run.
const LATER: &[&str] = &["metric", "restore", "task", "gan"];

/// What runs a case of each kind.
const RUNNERS: &[(&str, Runner)] = &[
    ("op", op::run),
    ("unet2d", unet2d::run),
    ("network", network::run),
    ("train", train::run),
    ("schedule", schedule::run),
    ("sampler", sampler::run),
    ("objective", objective::run),
];

type Runner = fn(&Case, Engine) -> Result<Checks>;

fn run(case: &Case, engines: &[Engine], report: &mut Report) {
    let kind = case.kind.as_str();
    let Some((_, runner)) = RUNNERS.iter().find(|(k, _)| *k == kind) else {
        if LATER.contains(&kind) {
            report.not_covered(kind);
        } else {
            report.case("none", kind, &case.name, Err(format!("unknown kind `{kind}`").into()));
        }
        return;
    };
    for &engine in engines {
        if engine.takes(kind) {
            let checks = runner(case, engine).map(|c| c.with_tolerance(engine.tolerance()));
            report.case(engine.name(), kind, &case.name, checks);
        } else {
            report.skip(engine.name(), kind);
        }
    }
}

#[test]
fn every_case_matches_its_peer() {
    let root = case::folder();
    let found = case::find(&root).unwrap();
    assert!(!found.cases.is_empty(), "no cases below {}", root.display());
    let mut report = Report::default();
    let engines = engines();
    found.cases.iter().for_each(|case| run(case, &engines, &mut report));
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

/// In bfloat16 all limits are wide. They must not be so wide that training which changes nothing passes.
#[test]
fn an_optimiser_that_does_nothing_fails() {
    let found = case::find(&case::folder()).unwrap();
    let case = found.cases.iter().find(|c| c.kind == "train").expect("a case of training");
    let engine = Engine::Narrowed;
    let checks = train::run_at(case, engine, 0.0).unwrap().with_tolerance(engine.tolerance());
    assert!(
        checks.failed().contains(&"change of all parameters"),
        "beyond their limits: {:?}",
        checks.failed()
    );
}
