//! Training without clean images: expected losses, what networks learn, and files of every kind.

mod tiny;

use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_model::{Model, Signal};
use clearshot_physics::poisson;
use clearshot_restore::learned::{Camera, Measured, Restorer, Settings, Values};
use clearshot_runtime::Device;
use clearshot_tensor::noise::Key;
use clearshot_train::Run;
use clearshot_train::data::{Data, NUMBERS, Part, Sample, Source, batch};
use clearshot_train::engine::Judge;
use clearshot_train::iteration::Shapes;
use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use clearshot_train::task::Task;
use serde_json::{Value, json};
use std::path::Path;
use tiny::config;

/// A network with a receptive field and no time input.
fn local(channels: Value, dims: usize) -> Value {
    json!({
        "_class_name": "Local", "spatial_dims": dims, "in_channels": 0, "out_channels": 0, "channels": channels,
        "blocks": 1, "time": false,
    })
}

/// A linear denoiser that follows each pixel by half, where a split that leaks would show most.
fn smoothed(x: &[f32], side: usize) -> Vec<f64> {
    let at = |y: isize, u: isize| {
        let inside = |i: isize| i.clamp(0, side as isize - 1) as usize;
        f64::from(x[inside(y) * side + inside(u)])
    };
    let of = |i: usize| {
        let (y, u) = ((i / side) as isize, (i % side) as isize);
        0.5 * at(y, u) + 0.125 * (at(y - 1, u) + at(y + 1, u) + at(y, u - 1) + at(y, u + 1))
    };
    (0..side * side).map(of).collect()
}

/// The loss of splitting is that against the truth plus the variance of its target, to a hundredth of the former: electrons with
/// and without read noise, few and many.
#[test]
fn the_loss_of_splitting_is_the_supervised_one_and_a_constant() {
    let side = 256;
    for (peak, background, read_noise) in [(20.0, 2.0, 0.0), (8.0, 1.0, 1.5), (300.0, 10.0, 3.0)] {
        let of = |task: &str| {
            let config = config(json!({
                "data": {
                    "scenes": {"nuclei": 1.0, "filaments": 1.0}, "sizes": [side], "pool": 4,
                    "camera": {
                        "peak": [peak, peak], "background": [background, background],
                        "read_noise": [read_noise, read_noise], "spread": 1.0, "blur": 0.0,
                    },
                },
                "task": {"kind": task, "split": [0.5, 0.5]},
            }));
            Data::new(&config).expect("data").source(Part::Training, &[side, side], None).expect("scenes")
        };
        let (truth, split) = (of("supervised"), of("splitting"));
        let (mut supervised, mut against_part, mut constant, mut count) = (0.0, 0.0, 0.0, 0.0);
        for number in 0..64 {
            // Every crop is split twice.
            let (clean, sample) = (
                truth.sample(number - number % 2, None).expect("a sample"),
                split.sample(number, None).expect("a sample"),
            );
            let [whole, n] = [clean.numbers, sample.numbers].map(|n| n.map(f64::from));
            let x: Vec<f32> = sample.measured.iter().map(|e| (n[0] * f64::from(*e) + n[1]) as f32).collect();
            for ((f, part), truth) in smoothed(&x, side).iter().zip(&sample.clean).zip(&clean.clean) {
                let truth = f64::from(*truth);
                supervised += (f - truth).powi(2);
                against_part += (f - f64::from(*part)).powi(2);
                let electrons = (truth - whole[1]) / whole[0];
                constant += 2.0 * (electrons + read_noise * read_noise) * whole[0].powi(2);
                count += 1.0;
            }
        }
        let [supervised, against_part, constant] =
            [supervised, against_part, constant].map(|sum| sum / count);
        let off = (against_part - constant) / supervised - 1.0;
        assert!(off.abs() < 0.01, "peak {peak}: {against_part} - {constant} is not {supervised}: {off:.4}");
    }
}

/// What a conditional model estimates of the same measurement beside a flat target.
fn estimate_beside(kind: &str, target: f32) -> Vec<f32> {
    let config = config(json!({"task": {"kind": kind, "form": "conditional", "drop": 0.0}}));
    let task = Task::new(&config.task).expect("a task");
    let size = [16, 16];
    let shapes =
        Shapes { batch: 1, size: &size, channels: [1, 1], photons: false, domains: 0, masked: false };
    let inputs = shapes.network_inputs(&task);
    let network = clearshot_nn::models::read(&tiny::network(inputs).to_string()).expect("a network");
    let mut judge = Judge::new(&*network, &task, &shapes, &config, &Device::cpu(Some(1))).expect("a graph");
    let weights =
        network.parameters().expect("weights").into_iter().map(|p| (p.name.clone(), p.initial(1))).collect();
    judge.load(&weights, 1.0).expect("weights");
    let sample = Sample::plain(
        noisy(0, 0, 1)[..256].iter().map(|v| *v as f32 / 500.0).collect(),
        vec![target; 256],
        [1.0; NUMBERS],
    );
    let source = One(sample);
    let batch = batch(&source, 0, 1, &size, |_| None, |_| false).expect("a batch");
    let level = task.diffusion.as_ref().expect("a diffusion model").last_level();
    judge.estimate(&batch, Some(&level), 3, 0).expect("an estimate").as_f32().expect("numbers").to_vec()
}

/// A source of one sample.
struct One(Sample);

impl Source for One {
    fn sample(&self, _: u64, _: Option<usize>) -> clearshot_train::Result<Sample> {
        Ok(self.0.clone())
    }

    fn domains(&self) -> Vec<String> {
        vec!["one".into()]
    }

    fn channels(&self) -> [usize; 2] {
        [1, 1]
    }
}

/// A network that is shown its noisy target learns to copy the target's noise: no estimate depends on it. A clean target shows in the noisy image x, as that of
/// every diffusion model does.
#[test]
fn noisy_targets_are_not_shown_to_the_network() {
    for kind in ["splitting", "noise2noise", "noise2void"] {
        assert_eq!(estimate_beside(kind, 0.0), estimate_beside(kind, 1.0), "{kind}");
    }
    assert_ne!(estimate_beside("conditional", 0.0), estimate_beside("conditional", 1.0));
}

/// Networks that see no clean image in training come near the one that does, on images that none of them saw.
#[test]
fn networks_trained_on_noise_approach_those_trained_on_the_truth() {
    learns_from_noise("nuclei", &["supervised", "noise2noise", "splitting", "noise2void"]);
    learns_from_noise("filaments", &["supervised", "noise2noise", "splitting"]);
}

fn learns_from_noise(scene: &str, tasks: &[&str]) {
    let dir = tempfile::tempdir().expect("a folder");
    let scores: Vec<(f64, f64)> = tasks
        .iter()
        .map(|task| {
            let config = config(json!({
                "data": {"scenes": {scene: 1.0}, "sizes": [64], "pool": 16, "camera": {"peak": [20.0, 20.0], "spread": 1.0, "blur": 0.0}},
                "model": {"network": local(json!([8, 12]), 2)},
                "task": {"kind": task, "drop": 0.0, "at_most": 0.0, "blind": {"share": 0.04}},
                "optimizer": {"rate": 2e-3, "betas": [0.9, 0.99]}, "schedule": {"warm_up": 20},
                "trainer": {"iterations": 120, "crop": 32, "batch": 6, "ema_half_life": 100.0},
                "validation": {"every": 0, "images": 8}, "records": {"every": 120},
            }));
            let out = dir.path().join(task);
            let mut run = Run::open(config, &out, false, Show::Quiet).expect("a run");
            let score = run.train(&never(), None).expect("an end").score.expect("a score");
            let text = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
            let of = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["measured_psnr"].as_f64();
            (score, text.lines().find_map(of).expect("what was measured"))
        })
        .collect();
    let [(supervised, measured), others @ ..] = &scores[..] else { panic!("no task") };
    assert!(supervised - measured > 8.0, "{scene}: {scores:?}");
    for ((score, _), room) in others.iter().zip([0.3, 0.3, 0.5]) {
        assert!(score > &(supervised - room), "{scene}: {scores:?}");
    }
}

fn write(path: &Path, dims: Vec<Dim>, values: &[f64]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let whole: Vec<_> = dims.iter().map(|d| 0..d.len).collect();
    let description = Description::new("", path, dims, DType::U16);
    let mut writer = Writer::create(path, &description, &WriteOptions::default()).expect("a file");
    let mut bytes = vec![];
    DType::U16.encode(values, &mut bytes);
    writer.write(&whole, &bytes).expect("pixels");
    writer.finish().expect("a file");
}

const SIDE: usize = 96;

/// Counts of a camera of gain 0.5, offset 100 and read noise 1.5.
fn noisy(scene: u32, exposure: u32, planes: usize) -> Vec<f64> {
    let key = |stream| Key { seed: 5, step: 1000 * scene + exposure, stream };
    let of = |i: usize| {
        let (z, y, x) = (i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE);
        let wave = ((y + 7 * scene as usize) as f64 / 9.0).sin() * ((x + 3 * z) as f64 / 13.0).cos();
        let electrons = 60.0 + 50.0 * wave;
        let read = 1.5 * f64::from(key(2).normal(i as u64));
        ((poisson::draw(electrons, key(1), i as u64) + read) / 0.5 + 100.0).round().max(0.0)
    };
    (0..planes * SIDE * SIDE).map(of).collect()
}

fn plane() -> Vec<Dim> {
    vec![Dim::new(Axis::Y, SIDE), Dim::new(Axis::X, SIDE)]
}

/// Every task on files of its kind: planes, volumes and several channels; the model restores an image of the same kind.
#[test]
fn files_of_every_kind_train_and_their_models_restore() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let leading = |axis: Axis, n: usize| [vec![Dim::new(axis, n)], plane()].concat();
    for scene in 0..4 {
        let name = format!("scene{scene}.ome.tif");
        write(&folder("plain").join(&name), plane(), &noisy(scene, 0, 1));
        write(&folder("stack").join(&name), leading(Axis::Z, 6), &noisy(scene, 0, 6));
        write(&folder("colours").join(&name), leading(Axis::C, 2), &noisy(scene, 0, 2));
        let frames: Vec<f64> = (0..3).flat_map(|t| noisy(scene, t, 1)).collect();
        write(&folder("movie").join(&name), leading(Axis::T, 3), &frames);
        for repeat in 0..3 {
            let repeated = folder("repeats").join(format!("cell{scene}_{repeat}.tif"));
            write(&repeated, plane(), &noisy(scene, repeat, 1));
        }
    }
    let camera = json!({"gain": 0.5, "offset": 100.0, "read_noise": 1.5});
    for (case, (inputs, kind, task, more)) in [
        ("plain", "noisy", "splitting", json!({})),
        ("plain", "noisy", "splitting", camera.clone()),
        ("plain", "noisy", "noise2void", json!({})),
        ("plain", "noisy", "noise2void", json!({"signal": "photons"})),
        ("stack", "noisy", "splitting", camera.clone()),
        ("stack", "noisy", "noise2void", json!({})),
        ("colours", "noisy", "splitting", camera.clone()),
        ("colours", "noisy", "noise2void", json!({})),
        ("repeats", "repeats", "noise2noise", json!({})),
        ("repeats", "repeats", "noise2noise", json!({"signal": "photons"})),
        ("movie", "repeats", "noise2noise", json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let said = format!("case {case}: {task} on {inputs}");
        let dims = if inputs == "stack" { 3 } else { 2 };
        let mut changes = json!({
            "data": {"kind": kind, "inputs": folder(inputs), "validation": 0.3},
            "model": {"network": local(json!([4, 4]), dims)},
            "task": {"kind": task, "drop": 0.0, "at_most": 0.0},
            "trainer": {"iterations": 3, "crop": 16, "depth": if dims == 3 { json!(4) } else { Value::Null }},
        });
        tiny::merge(&mut changes, json!({"data": more}));
        let out = folder(&format!("run{case}"));
        let mut run = Run::open(config(changes), &out, false, Show::Quiet).expect(&said);
        assert!(run.notes().iter().any(|n| n.contains("held in memory")), "{said}: {:?}", run.notes());
        run.train(&never(), None).expect(&said);
        let model = Model::load(&out.join("best.clearshot")).expect(&said);
        assert_eq!(model.about.signal == Signal::Photons, task == "splitting" || more["signal"] == "photons");
        let channels = if inputs == "colours" { 2 } else { 1 };
        let size: &[usize] = if dims == 3 { &[6, SIDE, SIDE] } else { &[SIDE, SIDE] };
        let counts: Vec<f32> =
            noisy(9, 0, channels * if dims == 3 { 6 } else { 1 }).iter().map(|v| *v as f32).collect();
        let mut restorer = Restorer::new(model, Settings::default(), Device::cpu(Some(1))).expect(&said);
        let values = Values { values: &counts, size, channels };
        let measured = Measured::read(&values, restorer.scratch()).expect(&said);
        let camera = Camera { gain: 0.5, offset: 100.0, read_noise: 1.5, ..Camera::default() };
        let made = restorer.restore(&[measured], &[0], Some(&camera), &mut || Ok(())).expect(&said);
        assert!(made[0].image.iter().all(|v| v.is_finite()), "{said}");
    }
}

/// Noisy files tell their camera, and a network is given what restoring would give it: electrons of the whole image's scale.
#[test]
fn noisy_files_become_electrons_of_their_own_camera() {
    let dir = tempfile::tempdir().expect("a folder");
    for scene in 0..3 {
        write(&dir.path().join(format!("{scene}.tif")), plane(), &noisy(scene, 0, 1));
    }
    let of = |data: Value| {
        let mut changes = json!({
            "data": {"kind": "noisy", "inputs": dir.path(), "signal": "photons", "augment": false},
            "task": {"kind": "noise2void"},
        });
        tiny::merge(&mut changes, json!({"data": data}));
        let data = Data::new(&config(changes)).expect("data");
        data.source(Part::Training, &[SIDE, SIDE], None).expect("files")
    };
    let known = of(json!({"gain": 0.5, "offset": 100.0, "read_noise": 1.5}));
    let sample = known.sample(0, None).expect("a sample");
    let mean = sample.clean.iter().map(|v| f64::from(*v)).sum::<f64>() / sample.clean.len() as f64;
    let n = sample.numbers.map(f64::from);
    let electrons = (mean - n[1]) / n[0];
    assert!((electrons - 60.0).abs() < 5.0, "{electrons} electrons in the mean");
    let told = of(json!({}));
    let said = told.notes().into_iter().find(|n| n.contains("camera of the noisy files")).expect("a note");
    let gain: f64 = said
        .split("gain ")
        .nth(1)
        .and_then(|s| s.split(' ').next())
        .expect("a gain")
        .parse()
        .expect("a number");
    assert!((0.35..0.7).contains(&gain), "{said}");
}

/// Pairs whose targets are stretched file by file are fitted; those that share a scale are left alone.
#[test]
fn targets_on_another_scale_are_fitted_to_their_inputs() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let clean = |scene: u32, i: usize| {
        let (y, x) = (i / SIDE, i % SIDE);
        60.0 + 50.0 * ((y + 7 * scene as usize) as f64 / 9.0).sin() * (x as f64 / 13.0).cos()
    };
    for scene in 0..6 {
        let name = format!("scene{scene}.tif");
        write(&folder("in").join(&name), plane(), &noisy(scene, 0, 1));
        let scaled = |gain: f64, offset: f64| -> Vec<f64> {
            (0..SIDE * SIDE).map(|i| (clean(scene, i) * gain + offset).round()).collect()
        };
        write(
            &folder("own").join(&name),
            plane(),
            &scaled(30.0 + 10.0 * f64::from(scene), 50.0 * f64::from(scene)),
        );
        write(&folder("shared").join(&name), plane(), &scaled(50.0, 500.0));
    }
    for (targets, fitted) in [("own", true), ("shared", false)] {
        let config = config(json!({
            "data": {"kind": "pairs", "inputs": folder("in"), "targets": folder(targets), "validation": 0.0, "augment": false},
            "task": {"kind": "supervised"},
        }));
        let source =
            Data::new(&config).expect("data").source(Part::Training, &[SIDE, SIDE], None).expect("pairs");
        assert_eq!(source.notes().iter().any(|n| n.contains("fitted")), fitted, "{:?}", source.notes());
        let Signal::Fixed { input, target } = source.signal() else { panic!("limits of files") };
        assert_eq!(target.is_none(), fitted);
        if fitted {
            for number in 0..6 {
                let sample = source.sample(number, None).expect("a sample");
                // In the unit of the input, the truth is 2 electrons a count above 100.
                let counts: Vec<f64> = sample.clean.iter().map(|v| input.inverse(f64::from(*v))).collect();
                let (low, high) =
                    counts.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
                assert!((low - 120.0).abs() < 6.0 && (high - 320.0).abs() < 6.0, "{low} to {high}");
            }
        }
    }
}

/// A run that begins from a model of electrons gives it pairs of files as electrons: the first score is that model's, and the best is
/// never below it.
#[test]
fn fine_tuning_begins_where_its_model_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let clean = |scene: u32, i: usize| {
        let (y, x) = (i / SIDE, i % SIDE);
        60.0 + 50.0 * ((y + 7 * scene as usize) as f64 / 9.0).sin() * (x as f64 / 13.0).cos()
    };
    for scene in 0..4 {
        let name = format!("scene{scene}.tif");
        write(&folder("in").join(&name), plane(), &noisy(scene, 0, 1));
        let scaled: Vec<f64> = (0..SIDE * SIDE).map(|i| (clean(scene, i) * 40.0).round()).collect();
        write(&folder("out").join(&name), plane(), &scaled);
    }
    let base = json!({
        "data": {"scenes": {"nuclei": 1.0}, "sizes": [64], "camera": {"peak": [50.0, 200.0]}},
        "model": {"network": {"_class_name": "Local", "in_channels": 0, "out_channels": 0, "channels": [8, 8], "blocks": 1}},
        "optimizer": {"rate": 2e-3}, "trainer": {"iterations": 60, "crop": 32}, "validation": {"every": 0},
        "task": {"sigma_max": 20.0, "at_most": 0.5}, "records": {"every": 60},
    });
    let mut run = Run::open(config(base), &folder("first"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let init = folder("first").join("best.clearshot");
    for (task, kind) in [("conditional", "pairs"), ("splitting", "noisy"), ("supervised", "pairs")] {
        let tuned = json!({
            "data": {"kind": kind, "inputs": folder("in"), "targets": folder("out"), "validation": 0.3},
            "model": {"init": init, "network": null}, "task": {"kind": task},
            // So high that it can only hurt.
            "optimizer": {"rate": 0.3}, "trainer": {"iterations": 6, "crop": 32}, "validation": {"every": 2},
            "records": {"every": 1},
        });
        let mut config = config(json!({}));
        let mut whole = serde_json::to_value(&config).expect("JSON");
        tiny::merge(&mut whole, tuned);
        whole["model"]["network"] = json!({});
        config = serde_json::from_value(whole).expect("a configuration");
        let out = folder(task);
        let mut run = Run::open(config, &out, false, Show::Quiet).expect(task);
        let end = run.train(&never(), None).expect(task);
        let text = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
        let records: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let start = records.iter().find(|r| r["kind"] == "validation").expect("a validation");
        assert_eq!(start["iteration"], 0, "{task}");
        let start = start["psnr"].as_f64().expect("a score");
        assert!(end.best.expect("a score") >= start, "{task}: {start} became {:?}", end.best);
        assert!(start > 10.0, "{task}: {start}");
        let first = records.iter().find(|r| r["kind"] == "train").expect("a record")["loss"].as_f64();
        assert!(first.expect("a loss") < 2.0, "{task}: {first:?}");
        let about = Model::load(&out.join("best.clearshot")).expect("a model").about;
        assert_eq!(about.signal, Signal::Photons);
        assert!(matches!(about.task, clearshot_model::Task::Diffusion { .. }), "{task}");
    }
}
