//! An interrupted and resumed run is bit-identical to an uninterrupted one, in every mode.

use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use clearshot_train::{Ending, Run, RunConfig};
use serde_json::{Value, json};
use std::path::Path;

mod tiny;
use tiny::{config, network};

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
}

#[test]
fn conditional_diffusion() {
    check(json!({}));
}

#[test]
fn another_seed_is_another_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let digest = |seed: u64| {
        let config = config(json!({"seed": seed, "trainer": {"iterations": 1}, "validation": {"every": 0}}));
        whole(&config, &dir.path().join(seed.to_string()), &[]).0
    };
    assert_ne!(digest(3), digest(4));
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
        "model": {"network": network(0)},
        "task": {
            "kind": "supervised", "distance": "smooth_l1", "intensity": {"weight": 0.5, "from": 0.1, "over": 6},
            "gradient": {"weight": 0.1},
        },
        "schedule": {"shape": "restarts", "cycles": 2, "refinement": 0.2},
    }));
}

/// Tasks that learn from noise: second exposures, blind spots and splits belong to their samples.
#[test]
fn learning_from_noise() {
    for task in ["noise2noise", "noise2void", "splitting"] {
        let blind = json!({"share": 0.05});
        check(
            json!({"model": {"network": network(0)}, "task": {"kind": task, "drop": 0.0, "at_most": 0.0, "blind": blind}}),
        );
    }
}

/// Classes by a table, by a vector with the camera, and by contexts, each dropped now and then: all of it belongs to the samples.
#[test]
fn conditions() {
    let scenes = json!({"nuclei": 1.0, "stars": 1.0});
    let data = json!({"scenes": scenes, "balance": "domains"});
    check(
        json!({"data": data, "task": {"class": true, "drop_class": 0.3}, "model": {"network": network(10)}}),
    );
    let local = json!({"_class_name": "Local", "in_channels": 10, "out_channels": 1, "channels": [4, 8], "blocks": 1});
    let task = json!({"vector": ["domain", "camera"], "drop_class": 0.3});
    check(json!({"data": data, "task": task, "model": {"network": local}}));
    let dir = tempfile::tempdir().expect("a folder");
    for (name, value) in [("nuclei", 0.5f32), ("stars", -1.0)] {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        let padded = format!("{header:<117}\n");
        bytes.extend((padded.len() as u16).to_le_bytes());
        bytes.extend(padded.as_bytes());
        (0..6).for_each(|i| bytes.extend((value * i as f32).to_le_bytes()));
        std::fs::write(dir.path().join(format!("{name}.npy")), bytes).expect("a file");
    }
    let mut cross = network(10);
    cross["_class_name"] = "UNet2DConditionModel".into();
    cross["attention_head_dim"] = 2.into();
    cross["down_block_types"] = json!(["CrossAttnDownBlock2D", "DownBlock2D"]);
    cross["up_block_types"] = json!(["UpBlock2D", "CrossAttnUpBlock2D"]);
    let task = json!({"context": dir.path(), "drop_class": 0.3});
    check(json!({"data": data, "task": task, "model": {"network": cross}}));
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
        "_class_name": "Growing", "in_channels": 0, "out_channels": 1, "channels": 8, "channel_mult": [1],
        "attention_head_dim": null, "groups": 4,
    });
    check(json!({
        "model": {"network": growing},
        "trainer": {"growth": {"stages": stages, "adaptive": true, "patience": 1, "threshold": 100.0}},
        "validation": {"every": 1},
    }));
}

/// Stopped before the losses of the first period are known, and in the middle of the next: with batches made ahead, in one
/// run of the graph and in two, and over a change of the batch.
#[test]
fn domains_that_follow_their_losses() {
    let data = json!({"scenes": {"nuclei": 1.0, "stars": 2.0}, "balance": "adaptive", "balance_every": 2});
    for trainer in [
        json!({}),
        json!({"accumulate": 2}),
        json!({"growth": {"stages": [{"size": 8, "share": 0.5}, {"size": 16, "share": 0.5}], "warm_up": 2}}),
    ] {
        let workers = json!({"workers": 3, "ahead": 50});
        check(json!({"data": data, "trainer": trainer, "performance": workers}));
    }
}

#[test]
fn several_domains_and_checkpoints_on_the_way() {
    check(json!({
        "data": {"scenes": {"nuclei": 1.0, "stars": 2.0}, "refresh": 200.0},
        "checkpoint": {"every": 2, "top": 2, "keep_every": 4},
    }));
}

/// A rate that rises until the network falls apart: the run goes back and ends sound, and where it was stopped does not matter.
#[test]
fn a_run_that_diverges_and_turns_back() {
    let config = config(json!({
        "optimizer": {"kind": "sgd", "rate": 50.0, "clip": 0.0, "momentum": 0.0},
        "schedule": {"shape": "constant", "warm_up": 400},
        "trainer": {"iterations": 40, "skips": 3, "returns": 12},
        "checkpoint": {"every": 4, "top": 1},
        "validation": {"every": 0},
        "records": {"every": 2},
    }));
    let dir = tempfile::tempdir().expect("a folder");
    let straight = whole(&config, &dir.path().join("straight"), &[]);
    assert!(straight.1.iter().any(|r| r["kind"] == "return"), "it never went back: {:?}", straight.1);
    let trained: Vec<&Value> = straight.1.iter().filter(|r| r["kind"] == "train").collect();
    let [first, last] = [trained[0], trained[trained.len() - 1]].map(|r| r["loss"].as_f64().expect("a loss"));
    assert!(last < 2.0 * first, "{first} became {last}");
    let stopped = whole(&config, &dir.path().join("stopped"), &[9, 22, 31]);
    assert_eq!(straight.1, stopped.1);
    assert_eq!(straight.0, stopped.0);
}

#[test]
fn a_changed_length_is_honoured_and_a_changed_batch_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let with = |trainer: Value| config(json!({"trainer": trainer, "validation": {"every": 0}}));
    let open = |trainer: Value, resume| Run::open(with(trainer), dir.path(), resume, Show::Quiet);
    open(json!({}), false).expect("a run").train(&never(), Some(3)).expect("an end");
    let records = std::fs::read(dir.path().join("records.jsonl")).expect("records");
    let text = open(json!({"batch": 8}), true).err().expect("a refusal").to_string();
    assert!(text.starts_with("trainer.batch: 8") && text.contains("began with, 4; "), "{text}");
    // A run that cannot resume changes nothing.
    assert!(open(json!({"crop": 17}), true).is_err());
    assert_eq!(std::fs::read(dir.path().join("records.jsonl")).expect("records"), records);
    let timed = |seconds: f64| json!({"iterations": null, "seconds": seconds});
    assert_eq!(open(timed(1e6), true).expect("a run").progress().total, None);
    assert_eq!(open(timed(1e-6), true).expect("a run").progress().total, Some(3));
    let mut longer = open(json!({"iterations": 10}), true).expect("a run");
    assert_eq!(longer.train(&never(), None).expect("an end").iteration, 10);
}

/// A damaged checkpoint is named and left out, whichever of its files is; the run resumes from the last complete one to the
/// same end.
#[test]
fn a_damaged_checkpoint_does_not_stand_in_the_way_of_whole_ones() {
    let usual = config(json!({"checkpoint": {"every": 2, "keep_every": 2}, "validation": {"every": 0}}));
    let dir = tempfile::tempdir().expect("a folder");
    let straight = whole(&usual, &dir.path().join("straight"), &[]);
    for (case, file) in ["progress.json", "config.json", "states.safetensors"].into_iter().enumerate() {
        let folder = dir.path().join(case.to_string());
        let open = |resume| Run::open(usual.clone(), &folder, resume, Show::Quiet);
        open(false).expect("a run").train(&never(), Some(5)).expect("an end");
        let mut all: Vec<_> = std::fs::read_dir(folder.join("checkpoints"))
            .expect("checkpoints")
            .map(|e| e.expect("an entry").path())
            .collect();
        all.sort();
        let last = all.pop().expect("a checkpoint");
        assert!(!all.is_empty() && last.join(file).is_file(), "{}: {file}", last.display());
        let bytes = std::fs::read(last.join(file)).expect("a file");
        std::fs::write(last.join(file), &bytes[..bytes.len() / 2]).expect("a shorter one");
        let mut run = open(true).expect("a run");
        let named = |w: &String| {
            w.contains("is ignored") && w.contains(last.to_str().expect("text")) && w.contains(file)
        };
        assert!(run.warnings().iter().any(named), "{:?}", run.warnings());
        assert_eq!(run.progress().iteration, 4);
        assert_eq!(run.train(&never(), None).expect("an end").digest, straight.0, "{file}");
        drop(run);
        // Where none is whole, all are named.
        for entry in std::fs::read_dir(folder.join("checkpoints")).expect("checkpoints") {
            std::fs::write(entry.expect("an entry").path().join(file), "{").expect("a broken file");
        }
        let text = open(true).err().expect("a refusal").to_string();
        assert!(text.contains(file) && text.contains("no checkpoint to resume from"), "{text}");
        assert!(open(false).is_err());
    }
}

#[test]
fn records_of_a_run_without_checkpoints_are_not_written_over() {
    for name in ["records.jsonl", "config.yaml"] {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(name), "kept").expect("a file");
        let refused = Run::open(config(json!({})), dir.path(), false, Show::Quiet);
        let text = refused.err().expect("a refusal").to_string();
        assert!(text.contains(name) && text.contains("--out"), "{text}");
        assert_eq!(std::fs::read_to_string(dir.path().join(name)).expect("the file"), "kept");
    }
}

/// What an iteration is stays as it was; what is about its surroundings may change.
#[test]
fn keys_that_give_an_iteration_its_meaning_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let stages = |first: usize| json!([{"size": first, "share": 0.5}, {"size": 16, "share": 0.5}]);
    let usual = json!({
        "data": {"scenes": {"nuclei": 1.0, "stars": 0.3}},
        "trainer": {"growth": {"stages": stages(8)}},
        "validation": {"every": 0},
    });
    let open = |changes: Value, resume| {
        let mut whole = usual.clone();
        tiny::merge(&mut whole, changes);
        Run::open(config(whole), dir.path(), resume, Show::Quiet)
    };
    open(json!({}), false).expect("a run").train(&never(), Some(2)).expect("an end");
    for (changes, key, values) in [
        (json!({"trainer": {"accumulate": 2}}), "trainer.accumulate", ["2", "1"]),
        (json!({"trainer": {"growth": {"most": 8}}}), "trainer.growth.most", ["8", "128"]),
        (
            json!({"trainer": {"growth": {"stages": stages(12)}}}),
            "trainer.growth.stages",
            ["\"size\":12", "\"size\":8"],
        ),
        (json!({"data": {"scenes": {"nuclei": 2.0}}}), "data.scenes.nuclei", ["2.0", "1.0"]),
        (json!({"data": {"scenes": {"filaments": 1.0}}}), "data.scenes.filaments", ["1.0", "null"]),
        (json!({"data": {"camera": {"peak": [5.0, 60.0]}}}), "data.camera.peak", ["60.0", "50.0"]),
        (
            json!({"model": {"network": {"layers_per_block": 2}}}),
            "model.network.layers_per_block",
            ["2", "1"],
        ),
        (json!({"task": {"drop": 0.2}}), "task.drop", ["0.2", "0.15"]),
        (json!({"seed": 4}), "seed", ["4", "3"]),
        (json!({"optimizer": {"kind": "sgd"}}), "optimizer.kind", ["sgd", "adamw"]),
    ] {
        let text = open(changes, true).err().expect(key).to_string();
        assert!(text.starts_with(&format!("{key}: ")) && text.contains("model.init"), "{text}");
        assert!(values.iter().all(|v| text.contains(v)), "{values:?}: {text}");
    }
    let around = json!({
        "optimizer": {"rate": 1e-3}, "schedule": {"floor": 0.1}, "checkpoint": {"every": 3},
        "performance": {"workers": 2}, "records": {"every": 1},
    });
    let mut run = open(around, true).expect("a run");
    assert_eq!(run.train(&never(), None).expect("an end").iteration, 8);
}
