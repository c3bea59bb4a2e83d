//! Tuned settings: batches that fit, the written file, and runs that use it.

mod tiny;

use clearshot_train::config::Count;
use clearshot_train::run::{SETTINGS, TuneLimits, tune};
use clearshot_train::{Run, RunConfig, Watch, presets};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn silent() -> Box<dyn Watch> {
    Box::new(())
}

fn opened(config: RunConfig, out: &Path) -> Run<'static> {
    Run::open(config, out, false, silent()).unwrap()
}

#[test]
fn the_batch_of_the_plan_is_that_of_trying_all() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |batch: usize| {
        let out = folder.path().join(batch.to_string());
        opened(tiny::config(json!({"trainer": {"batch": batch}})), &out).planned_bytes()
    };
    let memory = bytes(5) + 1000;
    let all = (1..).take_while(|n| *n == 5 || bytes(*n) <= memory).count();
    let changes = json!({"trainer": {"batch": "auto"}, "performance": {"memory": format!("{memory}")}});
    let found = opened(tiny::config(changes), &folder.path().join("auto")).progress().batch;
    assert!(found.abs_diff(all) <= 1 && found >= 5, "{found} by the plan, {all} by trying");
}

#[test]
fn tuned_settings_are_a_configuration_that_a_run_uses() {
    let folder = tempfile::tempdir().unwrap();
    let config = tiny::config(json!({"performance": {"workers": 1}}));
    let limits = TuneLimits { seconds: 3.0, exhaustive: false };
    let found = tune(config, &folder.path().join("run"), limits, &AtomicBool::new(false), silent()).unwrap();
    assert!(found.trials[0].taken && found.images_per_second >= found.began_with, "{found:?}");
    assert!(found.trials.iter().all(|t| t.images_per_second.is_some_and(|r| r > 0.0) && t.planned_bytes > 0));
    assert!(found.best.batch <= found.largest_batch);
    // As a file behind an experiment whose own batch is another.
    let configs = folder.path().join("configs");
    let file = presets::tuned_file(Some(&configs));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let texts = ["experiment=supervised", "performance=auto_tuned", "trainer.iterations=2"].map(String::from);
    let missing = presets::read(Some(&configs), &texts).unwrap_err().to_string();
    assert!(missing.contains("clearshot tune") && missing.contains("auto_tuned.yaml"), "{missing}");
    let mut tuned = found.clone();
    // Values that are never the default.
    (tuned.best.batch, tuned.best.threads, tuned.best.workers, tuned.best.ahead) = (6, 1, 3, 7);
    std::fs::write(&file, tuned.yaml()).unwrap();
    let read = presets::read(Some(&configs), &texts).unwrap();
    assert_eq!(read.trainer.batch, Count::Number(6));
    let changes = json!({"trainer": read.trainer, "performance": read.performance, "model": {"compile_mode": read.model.compile_mode}});
    let mut config = tiny::config(changes);
    config.trainer.crop = 16;
    let out = folder.path().join("applied");
    drop(opened(config, &out));
    let settings: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join(SETTINGS)).unwrap()).unwrap();
    let value =
        |key: &str| settings.as_array().unwrap().iter().find(|s| s["key"] == key).unwrap()["value"].clone();
    // The seven of the pages: batch, precision, workers and kernels as they were found, three that always are so.
    for (key, want) in [
        ("trainer.batch", json!(6)),
        ("performance.precision", json!("fp32")),
        ("performance.workers", json!(3)),
        ("model.compile_mode", serde_json::to_value(found.best.compile_mode).unwrap()),
        ("channels last", json!(true)),
        ("pinned memory", json!(true)),
        ("persistent workers", json!(true)),
        ("performance.threads", json!(1)),
        ("performance.ahead", json!(7)),
    ] {
        assert_eq!(value(key), want, "{key}");
    }
}

#[test]
fn stopping_keeps_the_results_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let limits = TuneLimits { seconds: 600.0, exhaustive: false };
    let stopped = AtomicBool::new(true);
    let found =
        tune(tiny::config(json!({})), &folder.path().join("run"), limits, &stopped, silent()).unwrap();
    assert!(found.cut_short && found.trials.len() == 1 && found.trials[0].taken, "{found:?}");
}

#[test]
fn recomputing_makes_room_for_larger_batches() {
    let folder = tempfile::tempdir().unwrap();
    let alone = opened(tiny::config(json!({"trainer": {"batch": 8}})), &folder.path().join("alone"));
    let memory = format!("{}", alone.planned_bytes());
    let found = |name: &str, performance: Value| {
        let changes = json!({"trainer": {"batch": "auto"}, "performance": performance});
        opened(tiny::config(changes), &folder.path().join(name)).progress().batch
    };
    let plain = found("plain", json!({"memory": memory}));
    let spared = found("spared", json!({"budget": memory}));
    assert!(2 * spared >= 3 * plain, "{plain} images, and {spared} where values are recomputed");
}

#[test]
fn a_batch_without_room_names_the_bytes_and_one_that_fits() {
    let folder = tempfile::tempdir().unwrap();
    let config = tiny::config(json!({"trainer": {"batch": 4_000_000}}));
    let Err(e) = Run::open(config, &folder.path().join("run"), false, silent()) else {
        panic!("there is room")
    };
    let text = e.to_string();
    assert!(text.starts_with("trainer.batch: 4000000 images at once; running them takes "), "{text}");
    let fits = text
        .split("a batch of about ")
        .nth(1)
        .and_then(|t| t.split(' ').next())
        .unwrap()
        .parse::<usize>()
        .unwrap();
    assert!((1..4_000_000).contains(&fits), "{text}");
}
