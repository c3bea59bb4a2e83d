//! The end of a run: the best model has calibrated uncertainty.

mod tiny;

use clearshot_model::{Model, SpreadFactor};
use clearshot_train::records::console::Show;
use clearshot_train::run::{BEST, never};
use clearshot_train::{Ending, Run};
use serde_json::{Value, json};
use std::path::Path;
use tiny::{config, network};

fn train(changes: Value, folder: &Path, stop_at: Option<u64>, resume: bool) -> (Ending, Model, String) {
    let mut run = Run::open(config(changes), folder, resume, Show::Quiet).expect("a run");
    let ending = run.train(&never(), stop_at).expect("trained").ending;
    let records = std::fs::read_to_string(folder.join("records.jsonl")).expect("records");
    (ending, Model::load(&folder.join(BEST)).expect("a model"), records)
}

#[test]
fn conditional_models_are_calibrated_when_training_ends_and_only_then() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let few = json!({"calibration": {"images": 3, "samples": 3, "steps": 2}});
    let (ending, whole, records) = train(few.clone(), &folder("whole"), None, false);
    assert_eq!(ending, Ending::Finished);
    assert!(matches!(whole.about.spread, Some(SpreadFactor::Table(_))), "{:?}", whole.about.spread);
    assert!(records.lines().last().is_some_and(|l| l.contains("\"calibration\"")), "{records}");
    // It is not if the run was stopped; after resuming, it is bit-identical.
    let (ending, part, _) = train(few.clone(), &folder("part"), Some(5), false);
    assert_eq!((ending, part.about.spread), (Ending::Interrupted, None));
    let (_, rest, _) = train(few, &folder("part"), None, true);
    assert_eq!((rest.hash(), &rest.about.spread), (whole.hash(), &whole.about.spread));
    // Without images, and where samples have no meaning, it is left out.
    let (_, none, _) = train(json!({}), &folder("none"), None, false);
    let supervised = json!({"task": {"kind": "supervised", "drop": 0.0, "at_most": 0.0}, "model": {"network": network(0)},
        "calibration": {"images": 3}});
    let (_, direct, _) = train(supervised, &folder("direct"), None, false);
    assert_eq!((none.about.spread, direct.about.spread), (None, None));
    let text = config(json!({"calibration": {"samples": 1}})).check().expect_err("one sample").to_string();
    assert!(text.starts_with("calibration.samples"), "{text}");
}
