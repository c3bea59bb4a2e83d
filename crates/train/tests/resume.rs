//! A run that was stopped and gone on with is the run that was not, to the bit, in every mode.

use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use clearshot_train::{Ending, Run, RunConfig};
use serde_json::{Value, json};
use std::path::Path;

/// A network of a few channels; what it takes depends on the task.
fn network(inputs: usize) -> Value {
    json!({
        "_class_name": "UNet2DModel", "in_channels": inputs, "out_channels": 1, "sample_size": 16,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 8,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"],
    })
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        // One network's keys are not another's.
        (Value::Object(into), Value::Object(from)) if !from.contains_key("_class_name") => {
            from.into_iter().for_each(|(k, v)| merge(into.entry(k).or_insert(Value::Null), v));
        }
        (into, from) => *into = from,
    }
}

fn config(changes: Value) -> RunConfig {
    let mut whole = json!({
        "name": "tiny", "seed": 3,
        "data": {"sizes": [32], "pool": 4, "camera": {"peak": [5.0, 50.0], "spread": 2.0, "blur": 0.3}},
        "model": {"network": network(6)},
        "task": {"drop": 0.15, "at_most": 0.25},
        "schedule": {"warm_up": 2},
        "trainer": {"device": "cpu", "iterations": 8, "crop": 16, "batch": 4},
        "validation": {"every": 3, "images": 6, "subset": 0.5, "full_every": 2},
        "checkpoint": {"every": 0, "top": 1},
        "records": {"every": 2, "tensorboard": true, "pictures": 1},
    });
    merge(&mut whole, changes);
    serde_json::from_value(whole).expect("a configuration")
}

/// The digest of a run's states and the lines of its records without what clocks say.
fn whole(config: &RunConfig, folder: &Path, stops: &[u64]) -> (u64, Vec<Value>) {
    let mut summary = None;
    for (i, stop) in stops.iter().map(|s| Some(*s)).chain([None]).enumerate() {
        let mut run = Run::open(config.clone(), folder, i > 0, Show::Quiet).expect("a run");
        let end = run.train(&never(), stop).expect("an end");
        assert_eq!(end.ending, if stop.is_some() { Ending::Interrupted } else { Ending::Finished });
        summary = Some(end);
    }
    let text = std::fs::read_to_string(folder.join("records.jsonl")).expect("records");
    let timeless = |line: &str| {
        let mut record: Value = serde_json::from_str(line).expect("JSON");
        for clock in ["seconds", "images_per_second", "waiting"] {
            record.as_object_mut().expect("an object").remove(clock);
        }
        record
    };
    (summary.expect("one run at least").digest, text.lines().map(timeless).collect())
}

#[track_caller]
fn check(changes: Value) {
    let config = config(changes);
    let dir = tempfile::tempdir().expect("a folder");
    let straight = whole(&config, &dir.path().join("straight"), &[]);
    let stopped = whole(&config, &dir.path().join("stopped"), &[3, 5]);
    assert_eq!(straight.1, stopped.1);
    assert_eq!(straight.0, stopped.0);
    // And another seed is another run.
    let other = RunConfig { seed: 4, ..config };
    assert_ne!(straight.0, whole(&other, &dir.path().join("other"), &[]).0);
}

#[test]
fn conditional_diffusion() {
    check(json!({}));
}

#[test]
fn a_prior_with_timesteps_and_gradient_descent() {
    check(json!({
        "model": {"network": network(1)},
        "task": {"kind": "prior", "prediction": "epsilon", "weight": "min_snr"},
        "optimizer": {"kind": "sgd", "rate": 0.01},
        "trainer": {"ema_half_life": 0.0},
    }));
}

#[test]
fn supervised_with_further_terms() {
    check(json!({
        "model": {"network": network(5)},
        "task": {
            "kind": "supervised", "distance": "smooth_l1", "intensity": {"weight": 0.5, "from": 0.1, "over": 6},
            "gradient": {"weight": 0.1},
        },
        "schedule": {"shape": "restarts", "cycles": 2, "refinement": 0.2},
    }));
}

#[test]
fn accumulation() {
    check(json!({"trainer": {"accumulate": 2}}));
}

#[test]
fn progressive_resolution() {
    let stages = json!([{"size": 8, "share": 0.5}, {"size": 16, "share": 0.5}]);
    check(json!({"trainer": {"growth": {"stages": stages, "warm_up": 2}}}));
}

#[test]
fn a_growing_network_with_adaptive_stages() {
    let stages = json!([{"size": 8, "share": 0.5}, {"size": 16, "share": 0.5}]);
    let growing = json!({
        "_class_name": "Growing", "in_channels": 6, "out_channels": 1, "channels": 8, "channel_mult": [1],
        "attention_head_dim": null, "groups": 4,
    });
    check(json!({
        "model": {"network": growing},
        "trainer": {"growth": {"stages": stages, "adaptive": true, "patience": 1, "threshold": 100.0}},
        "validation": {"every": 1},
    }));
}

#[test]
fn several_domains_and_checkpoints_on_the_way() {
    check(json!({
        "data": {"scenes": {"nuclei": 1.0, "stars": 2.0}, "refresh": 200.0},
        "checkpoint": {"every": 2, "top": 2, "keep_every": 4},
    }));
}
