//! Runs that fine-tune a model on noisy files: the reported gain is the true one, and interrupting them changes no bit.

mod tiny;

use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_model::Model;
use clearshot_physics::poisson;
use clearshot_restore::learned::{Camera, Measured, Restorer, Settings, Values};
use clearshot_runtime::Device;
use clearshot_tensor::noise::Key;
use clearshot_train::config::{DataKind, TaskKind};
use clearshot_train::records::console::Show;
use clearshot_train::run::{BEST, never};
use clearshot_train::{Run, RunConfig, Summary};
use serde_json::json;
use std::path::Path;
use tiny::config;

const SIDE: usize = 96;

/// Mean electrons, of all files alike, so that those that are trained on and those that are not have the same to gain.
fn light(i: usize) -> f64 {
    let (y, x) = (i / SIDE, i % SIDE);
    60.0 + 50.0 * (y as f64 / 9.0).sin() * (x as f64 / 13.0).cos()
}

/// Its counts by a camera of gain 1, offset 100 and read noise 1.5.
fn counts(scene: u32) -> Vec<f64> {
    let key = |stream| Key { seed: 5, step: scene, stream };
    let of = |i: usize| {
        let read = 1.5 * f64::from(key(2).normal(i as u64));
        poisson::draw(light(i), key(1), i as u64) + read + 100.0
    };
    (0..SIDE * SIDE).map(of).collect()
}

fn files(folder: &Path, exposure: u32) {
    std::fs::create_dir_all(folder).expect("a folder");
    for scene in 0..6 {
        let dims = vec![Dim::new(Axis::Y, SIDE), Dim::new(Axis::X, SIDE)];
        let path = folder.join(format!("scene{scene}.tif"));
        let description = Description::new("", &path, dims, DType::F32);
        let mut writer = Writer::create(&path, &description, &WriteOptions::default()).expect("a file");
        let mut bytes = vec![];
        DType::F32.encode(&counts(scene + 100 * exposure), &mut bytes);
        writer.write(&[0..SIDE, 0..SIDE], &bytes).expect("pixels");
        writer.finish().expect("a file");
    }
}

fn trained(config: &RunConfig, out: &Path, stops: &[u64]) -> Summary {
    let mut last = None;
    for (i, stop) in stops.iter().map(|s| Some(*s)).chain([None]).enumerate() {
        let mut run = Run::open(config.clone(), out, i > 0, Show::Quiet).expect("a run");
        last = Some(run.train(&never(), stop).expect("an end"));
    }
    last.expect("an end")
}

/// A conditional model that knows little: of stars, and not long.
fn beginner(dir: &Path) -> std::path::PathBuf {
    let network = json!({
        "_class_name": "Local", "spatial_dims": 2, "in_channels": 0, "out_channels": 0, "channels": [8, 12], "blocks": 1,
    });
    let first = config(json!({
        "data": {"scenes": {"stars": 1.0}}, "model": {"network": network}, "task": {"at_most": 0.5},
        "optimizer": {"rate": 2e-3}, "trainer": {"iterations": 30}, "validation": {"every": 0},
    }));
    trained(&first, &dir.join("first"), &[]);
    dir.join("first").join(BEST)
}

fn adapting(dir: &Path, init: &Path, iterations: u64) -> RunConfig {
    let mut config = config(json!({
        "data": {
            "kind": "noisy", "inputs": dir.join("noisy"), "validation": 0.4, "gain": 1.0, "offset": 100.0, "read_noise": 1.5,
        },
        "model": {"init": init}, "task": {"kind": "splitting", "drop": 0.0, "at_most": 0.0},
        "optimizer": {"rate": 2e-3, "betas": [0.9, 0.99]},
        "trainer": {"iterations": iterations, "crop": 32, "batch": 4, "ema_half_life": 50.0},
        "validation": {"every": 0, "images": 16}, "records": {"every": iterations},
    }));
    // The model's own.
    config.model.network.clear();
    config
}

/// The squared error of what a model makes of a scene, against its light.
fn squared_error(model: &Path, scene: u32) -> f64 {
    let model = Model::load(model).expect("a model");
    let mut restorer = Restorer::new(model, Settings::default(), Device::cpu(Some(1))).expect("a restorer");
    let values: Vec<f32> = counts(scene).iter().map(|v| *v as f32).collect();
    let values = Values { values: &values, size: &[SIDE, SIDE], channels: 1 };
    let measured = Measured::read(&values, restorer.scratch()).expect("an image");
    let camera = Camera { gain: 1.0, offset: 100.0, read_noise: 1.5, ..Camera::default() };
    let made = restorer.restore(&[measured], &[0], Some(&camera), &mut || Ok(())).expect("restored");
    let off = |(i, v): (usize, &f32)| (f64::from(*v) - 100.0 - light(i)).powi(2);
    made[0].image.iter().enumerate().map(off).sum()
}

#[test]
fn the_gain_is_that_against_the_truth() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    // A model that knows these images a little.
    trained(&adapting(dir.path(), &beginner(dir.path()), 25), &dir.path().join("begun"), &[]);
    let init = dir.path().join("begun").join(BEST);
    let mut config = adapting(dir.path(), &init, 60);
    // Whole images, as in restoring: crops have more edges, where networks learn most.
    (config.validation.crop, config.validation.images) = (SIDE, 8);
    let summary = trained(&config, &dir.path().join("run"), &[]);
    let gain = summary.gain.expect("a gain");
    let best = dir.path().join("run").join(BEST);
    let of = |model: &Path| (0..6).map(|scene| squared_error(model, scene)).sum::<f64>();
    let truth = 10.0 * (of(&init) / of(&best)).log10();
    assert!(gain.is_sure() && truth > 1.0, "{gain:?}, and the truth is {truth:.2} dB");
    assert!(
        (gain.db - truth).abs() < 0.15 * truth + 3.0 * gain.error,
        "{gain:?}, and the truth is {truth:.2} dB"
    );
}

/// The same from second exposures, of which nothing is known but that their noise is their own.
#[test]
fn the_gain_from_repeats_is_that_against_the_truth() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    files(&dir.path().join("again"), 1);
    let init = beginner(dir.path());
    let mut config = adapting(dir.path(), &init, 60);
    (config.data.kind, config.task.kind) = (DataKind::Pairs, TaskKind::Noise2noise);
    config.data.targets = Some(dir.path().join("again").display().to_string());
    config.data.averaged = Some(1);
    (config.validation.crop, config.validation.images) = (SIDE, 8);
    let gain = trained(&config, &dir.path().join("run"), &[]).gain.expect("a gain");
    let best = dir.path().join("run").join(BEST);
    let of = |model: &Path| (0..6).map(|scene| squared_error(model, scene)).sum::<f64>();
    let truth = 10.0 * (of(&init) / of(&best)).log10();
    assert!(gain.is_sure() && truth > 1.0 && gain.doubt == 0.0, "{gain:?}, and the truth is {truth:.2} dB");
    assert!(
        (gain.db - truth).abs() < 0.15 * truth + 3.0 * gain.error,
        "{gain:?}, and the truth is {truth:.2} dB"
    );
}

#[test]
fn adapting_is_resumed_to_the_bit() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    let init = beginner(dir.path());
    let config = adapting(dir.path(), &init, 8);
    let straight = trained(&config, &dir.path().join("straight"), &[]);
    let stopped = trained(&config, &dir.path().join("stopped"), &[1, 5]);
    assert_eq!(straight.digest, stopped.digest);
    assert_eq!((straight.start, straight.best), (stopped.start, stopped.best));
    let db = |s: &Summary| s.gain.map(|g| (g.db * 1e9).round());
    assert!(db(&straight).is_some() && db(&straight) == db(&stopped), "{straight:?} {stopped:?}");
}

/// The same from a model by second exposures of files, whose names say that they are repeats or that are pairs, and by blind spots.
#[test]
fn other_tasks_on_files_are_resumed_to_the_bit() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    let init = beginner(dir.path());
    files(&dir.path().join("again"), 1);
    for (kind, task) in [
        (DataKind::Repeats, TaskKind::Noise2noise),
        (DataKind::Pairs, TaskKind::Noise2noise),
        (DataKind::Noisy, TaskKind::Noise2void),
    ] {
        let mut config = adapting(dir.path(), &init, 8);
        (config.data.kind, config.task.kind, config.task.blind.share) = (kind, task, 0.05);
        if kind == DataKind::Pairs {
            config.data.targets = Some(dir.path().join("again").display().to_string());
            config.data.averaged = Some(1);
        }
        let out = |name: &str| dir.path().join(format!("{kind:?}-{name}"));
        let straight = trained(&config, &out("straight"), &[]);
        let stopped = trained(&config, &out("stopped"), &[1, 5]);
        assert_eq!(straight.digest, stopped.digest, "{task:?}");
        assert_eq!((straight.start, straight.best), (stopped.start, stopped.best), "{task:?}");
        assert_eq!(straight.gain, stopped.gain, "{task:?}");
        assert_eq!(straight.gain.is_some(), kind == DataKind::Pairs, "{task:?}");
    }
}

/// Weights that are not chosen keep every bit, and a beginning that no name has is refused.
#[test]
fn chosen_weights_alone_are_trained() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    let init = beginner(dir.path());
    let mut config = adapting(dir.path(), &init, 6);
    config.model.only = vec!["conv_out".into(), "up.0".into()];
    let mut run = Run::open(config.clone(), &dir.path().join("run"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let (before, after) = (Model::load(&init).expect("a model"), run.model().expect("a model"));
    for (name, weights) in &before.weights {
        let chosen = name.starts_with("conv_out") || name.starts_with("up.0");
        assert_eq!(*weights != after.weights[name], chosen, "{name}");
    }
    config.model.only = vec!["convout".into()];
    let refused = Run::open(config, &dir.path().join("other"), false, Show::Quiet);
    let text = refused.err().expect("a refusal").to_string();
    assert!(text.starts_with("model.only: convout") && text.contains("conv_in"), "{text}");
}

/// What a network says of its error is learned on top of a model that says nothing: its image keeps every bit, it says of itself what it
/// said, and about nine errors in ten stay below.
#[test]
fn the_error_output_is_trained_separately() {
    let dir = tempfile::tempdir().expect("a folder");
    let init = beginner(dir.path());
    let mut config = config(json!({
        "data": {"scenes": {"stars": 1.0}}, "model": {"init": init, "only": ["error"], "network": {"_class_name": "Local", "error": 6}},
        "task": {"drop": 0.0, "at_most": 1.0}, "optimizer": {"rate": 1e-2},
        "trainer": {"iterations": 200, "ema_half_life": 500.0}, "validation": {"every": 100, "images": 32},
        "calibration": {"images": 0},
    }));
    let out = dir.path().join("run");
    trained(&config, &out, &[]);
    let (before, after) =
        (Model::load(&init).expect("a model"), Model::load(&out.join(BEST)).expect("a model"));
    assert!(after.network.says_error() && !before.network.says_error());
    let (own, rest): (Vec<_>, Vec<_>) =
        after.weights.iter().partition(|(name, _)| name.starts_with("error."));
    assert_eq!(own.len(), 6);
    assert!(rest.iter().all(|(name, value)| before.weights[*name] == **value));
    assert_eq!((&after.about.scores, &after.about.familiar), (&before.about.scores, &before.about.familiar));
    assert_eq!(after.about.training["iterations"], before.about.training["iterations"]);
    assert_eq!(after.about.training["error"]["iterations"], 200);
    let text = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
    let covered: Vec<f64> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["covered"].as_f64())
        .collect();
    assert!(covered.len() >= 2, "{text}");
    let last = covered[covered.len() - 1];
    assert!((0.8..0.97).contains(&last), "{covered:?}");
    // A network without that part has nothing to learn by these names.
    config.model.network.clear();
    let refused = Run::open(config, &dir.path().join("other"), false, Show::Quiet);
    let text = refused.err().expect("a refusal").to_string();
    assert!(text.starts_with("model.only: error"), "{text}");
}

/// Images a second are those of batches that can be made; files that cannot be trained on are refused.
#[test]
fn data_are_timed_without_a_network() {
    let dir = tempfile::tempdir().expect("a folder");
    files(&dir.path().join("noisy"), 0);
    let init = beginner(dir.path());
    let config = adapting(dir.path(), &init, 1);
    for threads in [0, 2] {
        let pace = clearshot_train::data::pace::pace(&config, threads, 0.05).expect("a pace");
        assert!(pace > 0.0, "{threads}: {pace}");
    }
    let nothing = adapting(&dir.path().join("nowhere"), &init, 1);
    assert!(clearshot_train::data::pace::pace(&nothing, 0, 0.05).is_err());
}
