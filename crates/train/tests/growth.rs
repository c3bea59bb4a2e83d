//! The loss at the change to larger images does not jump, neither for one network on larger crops nor for a growing one.

use clearshot_model::Model;
use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use clearshot_train::{Run, RunConfig, Watch};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

mod tiny;
use tiny::config;

/// Means of the losses before and after the only switch of a run, over so many iterations, and at its end.
fn around_the_switch(network: Value, over: usize) -> [f64; 3] {
    let dir = tempfile::tempdir().expect("a folder");
    let stages = json!([{"size": 16, "share": 0.5}, {"size": 32, "share": 0.5}]);
    let config = config(json!({
        "data": {"scenes": {"nuclei": 1.0}, "sizes": [64], "camera": {"peak": [50.0, 50.0], "spread": 1.0, "blur": 0.0}},
        "model": {"network": network}, "task": {"drop": 0.0, "at_most": 0.0},
        "optimizer": {"rate": 2e-3}, "schedule": {"shape": "constant", "warm_up": 20},
        "trainer": {"iterations": 200, "crop": 32, "batch": 4, "growth": {"stages": stages, "warm_up": 10, "blend": 0.25}},
        "performance": {"threads": 1}, "validation": {"every": 0}, "records": {"every": 1, "tensorboard": false, "pictures": 0},
    }));
    let folder = dir.path().join("run");
    Run::open(config, &folder, false, Show::Quiet).expect("a run").train(&never(), None).expect("an end");
    let text = std::fs::read_to_string(folder.join("records.jsonl")).expect("records");
    let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let switch = records.iter().find(|r| r["kind"] == "stage").expect("a switch")["iteration"]
        .as_u64()
        .expect("a number");
    let losses: Vec<(u64, f64)> = records
        .iter()
        .filter(|r| r["kind"] == "train")
        .map(|r| (r["iteration"].as_u64().expect("a number"), r["loss"].as_f64().expect("a number")))
        .collect();
    let (before, after): (Vec<_>, Vec<_>) = losses.iter().partition(|(i, _)| *i <= switch);
    let mean = |part: &[(u64, f64)]| part.iter().map(|(_, loss)| loss).sum::<f64>() / part.len() as f64;
    assert!(before.len() >= over && after.len() >= 2 * over, "{} and {}", before.len(), after.len());
    [mean(&before[before.len() - over..]), mean(&after[..over]), mean(&after[after.len() - over..])]
}

#[test]
fn larger_crops_do_not_raise_the_loss() {
    let network = json!({"_class_name": "Local", "in_channels": 0, "out_channels": 1, "channels": [8, 12], "blocks": 1});
    let [before, after, last] = around_the_switch(network, 30);
    assert!(after < 1.2 * before && last < before, "{before} before, {after} after, {last} at the end");
}

/// A stage begins with what the one below knows, enlarged, which lacks detail; that is learned at once.
#[test]
fn a_growing_network_keeps_its_weights() {
    let network = json!({"_class_name": "Growing", "in_channels": 0, "out_channels": 1, "channels": 8, "channel_mult": [1, 2],
        "groups": 4, "attention_head_dim": null});
    let [before, after, last] = around_the_switch(network, 30);
    assert!(after < 2.0 * before && last < before, "{before} before, {after} after, {last} at the end");
}

/// A run in two stages of one length, whose second is blended in over a share of it.
fn growing(iterations: u64, blend: f64) -> RunConfig {
    let stages = json!([{"size": 16, "share": 0.5}, {"size": 32, "share": 0.5}]);
    config(json!({
        "data": {"scenes": {"nuclei": 1.0}, "sizes": [64]},
        "model": {"network": {"_class_name": "Growing", "in_channels": 0, "out_channels": 1, "channels": 8, "channel_mult": [1, 2],
            "groups": 4, "attention_head_dim": null}},
        "trainer": {"iterations": iterations, "crop": 32, "batch": 2, "growth": {"stages": stages, "blend": blend}},
        "performance": {"threads": 1}, "validation": {"every": 4, "images": 2, "crop": 32},
        "records": {"tensorboard": false, "pictures": 0},
    }))
}

/// While new layers are blended in there is no best model: the one of the stage before stays, which needs no blending.
#[test]
fn no_best_model_is_half_blended() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("run");
    let config = growing(40, 0.5);
    // The second stage begins after 20 iterations and is blended in over 10.
    Run::open(config, &folder, false, Show::Quiet).expect("a run").train(&never(), Some(28)).expect("an end");
    let best = Model::load(&folder.join("best.clearshot")).expect("a model");
    let network: Value = serde_json::from_str(&best.config).expect("JSON");
    assert_eq!(network["blend"], json!(false), "{network}");
}

struct Warnings(Arc<Mutex<Vec<String>>>);

impl Watch for Warnings {
    fn warning(&mut self, text: &str) {
        self.0.lock().expect("no panic").push(text.into());
    }
}

/// A best model of smaller images than the last ones is not passed on in silence.
#[test]
fn a_best_model_of_an_earlier_stage_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let warnings = |name: &str, iterations: u64, blend: f64| {
        let heard = Arc::new(Mutex::new(vec![]));
        let watch: Box<dyn Watch> = Box::new(Warnings(heard.clone()));
        let mut run =
            Run::open(growing(iterations, blend), &dir.path().join(name), false, watch).expect("a run");
        run.train(&never(), None).expect("an end");
        heard.lock().expect("no panic").join("\n")
    };
    assert_eq!(warnings("blended", 20, 0.2), "");
    // The second stage begins after 11 iterations of 21 and is blended in over 10.5.
    let said = warnings("not-blended", 21, 1.0);
    assert!(said.contains("best.clearshot is of an earlier stage, with crops of 16 x 16 pixels"), "{said}");
    assert!(said.contains("32 x 32") && said.contains("trainer.growth.blend"), "{said}");
}
