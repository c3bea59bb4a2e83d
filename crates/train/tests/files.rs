//! Training from files: pairs, and clean images with a simulated camera.

mod tiny;

use clearshot_image::dataset::Normaliser;
use clearshot_image::{Axis, Channel, DType, Description, Dim, WriteOptions, Writer};
use clearshot_model::{Model, Signal};
use clearshot_train::Run;
use clearshot_train::data::{Data, Part};
use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use serde_json::{Value, json};
use std::path::Path;
use tiny::{config, network};

/// A picture of 40 by 48 pixels in counts.
fn write(path: &Path, pixel: impl Fn(usize, usize) -> f64) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let dims = vec![Dim::new(Axis::Y, 40), Dim::new(Axis::X, 48)];
    let description = Description::new("", path, dims, DType::U16);
    let options = WriteOptions { replace: false, provenance: None };
    let mut writer = Writer::create(path, &description, &options).expect("a file");
    let values: Vec<f64> = (0..40 * 48).map(|i| pixel(i / 48, i % 48)).collect();
    let mut bytes = vec![];
    DType::U16.encode(&values, &mut bytes);
    writer.write(&[0..40, 0..48], &bytes).expect("pixels");
    writer.finish().expect("a file");
}

/// The same with channels in front.
fn write_channels(path: &Path, channels: usize, pixel: impl Fn(usize, usize, usize) -> f64) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let dims = vec![Dim::new(Axis::C, channels), Dim::new(Axis::Y, 40), Dim::new(Axis::X, 48)];
    let mut description = Description::new("", path, dims, DType::U16);
    let named = |c: usize| Channel { name: Some(format!("dye {c}")), ..Channel::default() };
    description.channels = (0..channels).map(named).collect();
    let mut writer = Writer::create(path, &description, &WriteOptions::default()).expect("a file");
    let of = |i: usize| pixel(i / (40 * 48), i / 48 % 40, i % 48);
    let values: Vec<f64> = (0..channels * 40 * 48).map(of).collect();
    let mut bytes = vec![];
    DType::U16.encode(&values, &mut bytes);
    writer.write(&[0..channels, 0..40, 0..48], &bytes).expect("pixels");
    writer.finish().expect("a file");
}

/// From two channels to three: training comes to its end, and the model says what goes in.
#[test]
fn targets_may_have_other_channels_than_their_inputs() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    for scene in 0..6 {
        let name = format!("scene{scene}.ome.tif");
        write_channels(&folder("in").join(&name), 2, |c, y, x| wave(scene + c, y, x));
        write_channels(&folder("out").join(&name), 3, |c, y, x| wave(scene + c, y, x));
    }
    let mut network = network(2);
    network["out_channels"] = json!(3);
    let pairs = config(json!({
        "data": {"kind": "pairs", "inputs": folder("in"), "targets": folder("out"), "validation": 0.3},
        "model": {"network": network}, "task": {"kind": "supervised"}, "trainer": {"iterations": 4},
    }));
    let mut run = Run::open(pairs, &folder("run"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let about = Model::load(&folder("run").join("best.clearshot")).expect("a model").about;
    assert_eq!((about.inputs, about.channels), (Some(2), 3));
}

/// Values outside of the limits stay outside, or become the limits; a model keeps which.
#[test]
fn values_outside_of_the_limits_are_clipped_where_that_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    for scene in 0..6 {
        for folder in ["in", "out"] {
            write(&dir.path().join(folder).join(format!("scene{scene}.tif")), |y, x| wave(scene, y, x));
        }
    }
    let outside = |clip: bool| {
        let pairs = config(json!({
            "data": {
                "kind": "pairs", "inputs": dir.path().join("in"), "targets": dir.path().join("out"), "validation": 0.3,
                "normalise": {"percentiles": {"low": 20.0, "high": 80.0}}, "clip": clip,
            },
            "model": {"network": network(1)}, "task": {"kind": "supervised"},
        }));
        let source = Data::new(&pairs).expect("data").source(Part::Training, &[16, 16], None).expect("files");
        let Signal::Fixed { input, .. } = source.signal() else { panic!("limits of files") };
        assert_eq!(input.clip, clip);
        let samples = (0..8).map(|number| source.sample(number, None).expect("a sample"));
        samples.flat_map(|s| [s.measured, s.clean].concat()).filter(|v| v.abs() > 1.0).count()
    };
    assert!(outside(false) > 0);
    assert_eq!(outside(true), 0);
}

/// An image without an axis of channels goes with a target that has one; both are cut at the same place, and the names of what
/// comes out are the targets'.
#[test]
fn an_image_without_channels_goes_with_a_target_that_has_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    for scene in 0..6 {
        let name = format!("scene{scene}.ome.tif");
        write(&folder("in").join(&name), |y, x| wave(scene, y, x));
        for channels in [1, 2] {
            let out = folder(&format!("out{channels}")).join(&name);
            write_channels(&out, channels, |c, y, x| wave(scene, y, x) * (1 + c) as f64);
        }
    }
    for channels in [1, 2] {
        let mut network = network(0);
        network["out_channels"] = json!(0);
        let targets = folder(&format!("out{channels}"));
        let pairs = config(json!({
            "data": {"kind": "pairs", "inputs": folder("in"), "targets": targets, "validation": 0.3},
            "model": {"network": network}, "task": {"kind": "supervised"}, "trainer": {"iterations": 2},
        }));
        let source = Data::new(&pairs).expect("data").source(Part::Training, &[16, 16], None).expect("files");
        assert_eq!(source.channels(), [1, channels]);
        let Signal::Fixed { input, target: Some(target) } = source.signal() else {
            panic!("limits of files")
        };
        let counts = |n: &Normaliser, v: f32| n.low + 0.5 * (n.high - n.low) * (f64::from(v) + 1.0);
        for number in 0..8 {
            let sample = source.sample(number, None).expect("a sample");
            for (i, pixel) in sample.clean.chunks(channels).enumerate() {
                let measured = counts(&input, sample.measured[i]);
                for (c, v) in pixel.iter().enumerate() {
                    let off = counts(&target, *v) - measured * (1 + c) as f64;
                    // Counts are whole numbers.
                    assert!(off.abs() < 1.1, "pixel {i}, channel {c}: {off}");
                }
            }
        }
        let run_folder = folder(&format!("run{channels}"));
        let mut run = Run::open(pairs, &run_folder, false, Show::Quiet).expect("a run");
        run.train(&never(), None).expect("an end");
        let about = Model::load(&run_folder.join("best.clearshot")).expect("a model").about;
        let names: &[&str] = if channels == 2 { &["dye 0", "dye 1"] } else { &["dye 0"] };
        assert_eq!((about.names, about.channels), (names.iter().map(|n| n.to_string()).collect(), channels));
    }
}

fn wave(scene: usize, y: usize, x: usize) -> f64 {
    500.0 + 400.0 * ((y + 3 * scene) as f64 / 5.0).sin() * (x as f64 / 7.0).cos()
}

#[test]
fn pairs_and_clean_files_train_and_record_their_scale() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    for scene in 0..6 {
        let name = format!("scene{scene}.tif");
        write(&folder("in").join(&name), |y, x| 2.0 * wave(scene, y, x) + ((y * 31 + x * 17) % 29) as f64);
        write(&folder("out").join(&name), |y, x| wave(scene, y, x));
    }
    std::fs::write(folder("in").join("scene9.tif"), "no image").expect("a file");
    // Cut in the middle.
    let whole = std::fs::read(folder("in").join("scene0.tif")).expect("a file");
    for part in ["in", "out"] {
        std::fs::write(folder(part).join("scene7.tif"), &whole[..whole.len() / 8]).expect("a file");
    }
    let pairs = config(json!({
        "data": {"kind": "pairs", "inputs": folder("in"), "targets": folder("out"), "validation": 0.3},
        "model": {"network": network(1)},
        "task": {"kind": "supervised"},
        "trainer": {"iterations": 4},
    }));
    // An input and its target are cut, turned and scaled alike: away from the ends they are the same numbers.
    let source = Data::new(&pairs).expect("data").source(Part::Training, &[16, 16], None).expect("files");
    let sample = source.sample(5, None).expect("a sample");
    let off = sample.measured.iter().zip(&sample.clean).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 0.1, "{off}");
    assert_eq!(sample, source.sample(5, None).expect("the same"));
    let mut run = Run::open(pairs.clone(), &folder("run"), false, Show::Quiet).expect("a run");
    assert!(run.warnings().iter().any(|w| w.contains("left out: 1 (") && w.contains("scene9.tif")));
    let unusable = run.warnings().iter().find(|w| w.contains("cannot be used"));
    assert!(
        unusable.is_some_and(|w| w.contains("left out: 1 (") && w.contains("scene7.tif")),
        "{:?}",
        run.warnings()
    );
    run.train(&never(), None).expect("an end");
    let model = Model::load(&folder("run").join("best.clearshot")).expect("a model");
    match model.about.signal {
        Signal::Fixed { input, target: Some(target) } => {
            assert!((target.low - 100.0).abs() < 30.0 && (target.high - 900.0).abs() < 30.0, "{target:?}");
            assert!((input.high - 1830.0).abs() < 60.0, "{input:?}");
        }
        other => panic!("{other:?}"),
    }
    // Without files for validation, those for training are scored, with a warning.
    let mut unsplit = pairs;
    unsplit.data.validation = 0.0;
    let source = Data::new(&unsplit).expect("data").source(Part::Validation, &[16, 16], None).expect("files");
    assert!(source.warnings().iter().any(|w| w.contains("none of 7 files belongs to validation")));
    let clean = config(json!({
        "data": {"kind": "clean", "inputs": folder("out"), "camera": {"peak": [50.0, 50.0]}},
        "trainer": {"iterations": null, "epochs": "simple", "batch": 4},
        "validation": {"every": 0},
    }));
    let mut run = Run::open(clean, &folder("clean"), false, Show::Quiet).expect("a run");
    // 50 times through the files that are not kept for validation, a batch or two each time.
    let total = run.progress().total.expect("epochs are iterations");
    assert!(total == 50 || total == 100, "{total}");
    let end = run.train(&never(), Some(3)).expect("an end");
    assert_eq!(end.iteration, 3);
    let empty = folder("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let none = config(json!({"data": {"kind": "clean", "inputs": empty}}));
    let refused = Run::open(none, &folder("none"), false, Show::Quiet);
    assert!(refused.err().expect("a refusal").to_string().contains("empty"));
}

/// Domains of very unequal numbers of files, from a manifest: every batch has each of them, a stopped run resumes
/// alike, wherever the files lie by then, and other files are refused.
#[test]
fn domains_of_a_manifest_are_balanced_and_its_files_kept_to() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let manifest = |root: &std::path::Path, files: usize| {
        let mut text = "input,domain\n".to_string();
        for scene in 0..files {
            let (name, domain) = (format!("scene{scene}.tif"), if scene == 0 { "rare" } else { "usual" });
            write(&root.join(&name), |y, x| wave(scene, y, x));
            text += &format!("{name},{domain}\n");
        }
        std::fs::write(root.join("list.csv"), text).expect("a manifest");
        root.join("list.csv")
    };
    let of = |manifest: &std::path::Path, balance: &str, iterations: u64| {
        config(json!({
            "data": {"kind": "clean", "manifest": manifest, "balance": balance, "balance_every": 2, "validation": 0.0},
            "trainer": {"iterations": iterations}, "validation": {"every": 0},
        }))
    };
    let first = manifest(&folder("first"), 9);
    for balance in ["domains", "inverse_frequency", "adaptive"] {
        let straight = folder(&format!("straight-{balance}"));
        let mut run = Run::open(of(&first, balance, 6), &straight, false, Show::Quiet).expect("a run");
        let straight = run.train(&never(), None).expect("an end");
        let stopped = folder(&format!("stopped-{balance}"));
        let mut run = Run::open(of(&first, balance, 6), &stopped, false, Show::Quiet).expect("a run");
        run.train(&never(), Some(3)).expect("a stop");
        drop(run);
        let moved = manifest(&folder(&format!("moved-{balance}")), 9);
        let mut run = Run::open(of(&moved, balance, 6), &stopped, true, Show::Quiet).expect("the same files");
        assert_eq!(run.train(&never(), None).expect("an end").digest, straight.digest, "{balance}");
        drop(run);
        let more = manifest(&folder(&format!("more-{balance}")), 10);
        let refused =
            Run::open(of(&more, balance, 8), &stopped, true, Show::Quiet).err().expect("other files");
        assert!(refused.to_string().starts_with("data.manifest: other files"), "{refused}");
    }
}

/// Brightness varies alike in an input and its target, noise in inputs alone, and neither in validation.
#[test]
fn brightness_and_noise_vary_in_training_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    for scene in 0..8 {
        for part in ["in", "out"] {
            write(&folder(part).join(format!("scene{scene}.tif")), |y, x| wave(scene, y, x));
        }
    }
    let of = |intensity: f64, noise: f64| {
        config(json!({
            "data": {
                "kind": "pairs", "inputs": folder("in"), "targets": folder("out"), "validation": 0.4,
                "intensity": intensity, "noise": noise,
            },
            "model": {"network": network(1)}, "task": {"kind": "supervised"},
        }))
    };
    let samples = |config: &clearshot_train::RunConfig, part| {
        let source = Data::new(config).expect("data").source(part, &[16, 16], None).expect("files");
        let Signal::Fixed { target: Some(n), .. } = source.signal() else { panic!("limits of files") };
        let counts = |v: &f32| n.low + 0.5 * (n.high - n.low) * (f64::from(*v) + 1.0);
        let of = |number: u64| {
            let sample = source.sample(number, None).expect("a sample");
            let sum = sample.clean.iter().map(counts).sum::<f64>();
            let differences = sample.measured.iter().zip(&sample.clean).map(|(a, b)| f64::from(a - b));
            let spread = (differences.map(|d| d * d).sum::<f64>() / sample.clean.len() as f64).sqrt();
            (sum, spread)
        };
        (0..32).map(of).collect::<Vec<_>>()
    };
    let (plain, varied) = (of(0.0, 0.0), of(0.1, 0.05));
    let factors: Vec<f64> = samples(&plain, Part::Training)
        .into_iter()
        .zip(samples(&varied, Part::Training))
        .map(|((before, none), (after, spread))| {
            assert!(none == 0.0 && (spread - 0.05).abs() < 0.01, "{none} {spread}");
            after / before
        })
        .collect();
    let (least, most) = factors.iter().fold((9.0f64, 0.0f64), |(a, b), f| (a.min(*f), b.max(*f)));
    assert!((0.9 - 1e-3..0.93).contains(&least) && (1.07..1.1 + 1e-3).contains(&most), "{least} to {most}");
    assert_eq!(samples(&plain, Part::Validation), samples(&varied, Part::Validation));
    for (data, key) in [
        (json!({"intensity": 0.1}), "data.intensity"),
        (json!({"noise": 0.1}), "data.noise"),
        (json!({"intensity": 1.5}), "data.intensity"),
        (json!({"noise": -1.0}), "data.noise"),
    ] {
        let refused = Run::open(config(json!({"data": data})), &folder("run"), false, Show::Quiet);
        assert!(refused.err().expect("a refusal").to_string().starts_with(key), "{key}");
    }
}

/// An image that is dark but for a corner: crops are where its light is, if that is asked for.
#[test]
fn dark_crops_are_drawn_again() {
    let dir = tempfile::tempdir().expect("a folder");
    for scene in 0..4 {
        let path = dir.path().join("in").join(format!("scene{scene}.tif"));
        write(&path, |y, x| if y < 20 && x < 20 { 900.0 } else { 100.0 });
    }
    let means = |least: Value| -> Vec<f32> {
        let clean = config(json!({
            "data": {"kind": "clean", "inputs": dir.path().join("in"), "least_mean": least, "validation": 0.2},
        }));
        let source = Data::new(&clean).expect("data").source(Part::Training, &[16, 16], None).expect("files");
        let mean = |n| {
            let sample = source.sample(n, None).expect("a sample");
            sample.clean.iter().map(|v| (v + 1.0) / sample.scale).sum::<f32>() / 256.0
        };
        (0..40).map(mean).collect()
    };
    let lit = |means: Vec<f32>| means.into_iter().filter(|m| *m >= 0.1).count();
    let (any, some) = (lit(means(Value::Null)), lit(means(json!(-0.8))));
    assert!(any <= 32 && some >= 39, "{any} and {some} of 40");
}

/// Pixels without a measurement are left out by the loss, the network's input and the scores: what they hold changes no bit of
/// a run. For pairs and clean images, and for pixels that are masked, saturated, NaN or infinite, unless data.invalid=false.
#[test]
fn invalid_pixels_do_not_affect_the_result() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| dir.path().join(name);
    let is_bad = |y: usize, x: usize| (y + 2 * x).is_multiple_of(17);
    for scene in 0..6 {
        let name = format!("scene{scene}.npy");
        write(&folder("masks").join(&name), |y, x| f64::from(is_bad(y, x)));
        write(&folder("out").join(&name), |y, x| wave(scene, y, x));
        for (garbage, value) in [("dark", 0.0), ("bright", 3000.0), ("brighter", 60000.0)] {
            write(&folder(garbage).join(&name), |y, x| if is_bad(y, x) { value } else { wave(scene, y, x) });
        }
        let mut nan = vec![];
        let values = (0..40 * 48).map(|i| (i / 48, i % 48));
        let values: Vec<f64> = values
            .map(|(y, x)| if is_bad(y, x) { f64::NAN } else { wave(scene, y, x).round_ties_even() })
            .collect();
        DType::F32.encode(&values, &mut nan);
        write_npy(&folder("nan").join(&name), &nan);
    }
    let digest = |inputs: &str, kind: &str, task: &str, more: Value| -> Result<u64, String> {
        let mut changes = json!({
            "data": {"kind": kind, "inputs": folder(inputs), "validation": 0.3},
            "model": {"network": network(0)}, "task": {"kind": task, "gradient": {"weight": 0.1}},
            "trainer": {"iterations": 3}, "validation": {"every": 1},
        });
        if kind == "pairs" {
            changes["data"]["targets"] = json!(folder("out"));
        }
        tiny::merge(&mut changes, more);
        let out = tempfile::tempdir().expect("a folder");
        let mut run =
            Run::open(config(changes), out.path(), false, Show::Quiet).map_err(|e| e.to_string())?;
        let end = run.train(&never(), None).map_err(|e| e.to_string())?;
        Ok(end.digest ^ end.best.unwrap_or(0.0).to_bits())
    };
    let masks = json!({"data": {"masks": folder("masks")}});
    for (kind, task) in [("pairs", "supervised"), ("pairs", "conditional"), ("clean", "supervised")] {
        let of = |inputs: &str, more: Value| digest(inputs, kind, task, more);
        let marked = of("dark", masks.clone());
        assert!(marked.is_ok(), "{marked:?}");
        assert_eq!(of("bright", masks.clone()), marked);
        assert_eq!(of("brighter", json!({"data": {"saturation": 2000.0}})), marked);
        assert_eq!(of("nan", json!({})), marked);
        assert_ne!(of("dark", json!({})), marked);
        let said = of("nan", json!({"data": {"invalid": false}})).expect_err("numbers are wanted");
        assert!(said.contains("data.invalid") && said.contains("scene") && said.contains("NaN"), "{said}");
    }
    let scenes = config(json!({"data": {"invalid": true}}));
    assert!(Run::open(scenes, &folder("run"), false, Show::Quiet).is_err());
}

fn write_npy(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let dims = vec![Dim::new(Axis::Y, 40), Dim::new(Axis::X, 48)];
    let description = Description::new("", path, dims, DType::F32);
    let options = WriteOptions { replace: false, provenance: None };
    let mut writer = Writer::create(path, &description, &options).expect("a file");
    writer.write(&[0..40, 0..48], bytes).expect("pixels");
    writer.finish().expect("a file");
}
