//! `clearshot restore` as users start it, with small models of random weights: files of several kinds come back as they
//! went in with a record of what was done, a second run finds nothing to do, and what cannot be restored is said in
//! words.

mod program;

use clearshot_image::dataset::{Normaliser, Range};
use clearshot_image::{Axis, Channel, DType, Description, Dim, Image, WriteOptions, Writer};
use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;
use program::{clearshot, folder, must, refused};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CAMERA: &str = "--gain 0.5 --offset 100 --read-noise 1.5";

/// A small model for images of so many channels and axes.
fn model(at: &Path, name: &str, channels: usize, dims: usize, task: Task) {
    let signal = Signal::Photons;
    let inputs = match &task {
        Task::Regression => signal.condition_channels(channels),
        Task::Diffusion { condition: ConditionKind::None, .. } => channels,
        Task::Diffusion { .. } => channels + signal.condition_channels(channels),
    };
    let config = json!({
        "_class_name": "Local", "spatial_dims": dims, "channels": [4, 4], "blocks": 1, "in_channels": inputs,
        "out_channels": channels, "time": task != Task::Regression,
    })
    .to_string();
    let params = models::read(&config).expect("a network").parameters().expect("parameters");
    let about = About::new(name, task, signal, channels, &vec![16; dims]);
    let model = Model::new(about, config, weights::initial(&params, 3)).expect("a model");
    model.save_file(&at.join(format!("{name}.clearshot")), clearshot_tensor::DType::F32).expect("a file");
}

fn conditional() -> Task {
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    Task::Diffusion { prediction, process, condition: ConditionKind::Measurement }
}

/// Counts of a camera that looks at stripes.
fn counts(shape: &[usize], seed: u64) -> Vec<f64> {
    let mut noise = vec![0.0f32; shape.iter().product()];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let wave = |i: usize| 30.0 + 20.0 * (i as f64 * 0.1).sin();
    noise
        .iter()
        .enumerate()
        .map(|(i, &n)| 100.0 + 2.0 * (wave(i) + f64::from(n) * (wave(i) + 2.0).sqrt()))
        .collect()
}

fn write(path: &Path, axes: &str, shape: &[usize], dtype: DType, values: &[f64]) {
    let dims = axes.chars().zip(shape).map(|(a, &n)| {
        let axis = Axis::from_letter(a).expect("an axis");
        if axis.is_space() { Dim::stepped(axis, n, Some(0.1), "um") } else { Dim::new(axis, n) }
    });
    let mut d = Description::new("TIFF", path, dims.collect(), dtype);
    if let Some(c) = axes.find('C') {
        let name = |i: usize| Some(format!("channel {i}"));
        d.channels = (0..shape[c]).map(|i| Channel { name: name(i), ..Channel::default() }).collect();
    }
    let mut bytes = Vec::new();
    dtype.encode(values, &mut bytes);
    let mut writer = Writer::create(path, &d, &WriteOptions::default()).expect("a writer");
    let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    writer.write(&whole, &bytes).expect("written");
    writer.finish().expect("finished");
}

fn read(path: PathBuf) -> (Image, Vec<f64>) {
    let image = Image::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let values = image.read_f64(&image.whole()).expect("pixels");
    (image, values)
}

fn kinds(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

/// A network from one channel to two, and back: the file gets the axes that it needs, and the same planes as they would be
/// alone.
#[test]
fn channels_that_come_out_need_not_be_those_that_go_in() {
    let at = folder("restore_channels");
    let limits = Normaliser { range: Range::MinMax, low: 0.0, high: 400.0, clip: false };
    for (inputs, channels) in [(1, 2), (2, 1)] {
        let config = json!({
            "_class_name": "Local", "channels": [4, 4], "blocks": 1, "in_channels": inputs, "out_channels": channels,
            "time": false,
        });
        let config = config.to_string();
        let params = models::read(&config).expect("a network").parameters().expect("parameters");
        let signal = Signal::Fixed { input: limits, target: None };
        let about = About::new("m", Task::Regression, signal, channels, &[16, 16]);
        let refused = Model::new(about.clone(), config.clone(), weights::initial(&params, 3));
        assert!(refused.is_err(), "a model that does not say what goes in");
        let about = About { inputs: Some(inputs), ..about };
        let mut weights = weights::initial(&params, 3);
        // What begins at zero would hide what the network is given.
        for (i, t) in weights.values_mut().enumerate() {
            let mut noise = vec![0.0; t.shape().len()];
            Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
            let values = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.1 * n).collect();
            *t = Tensor::f32(t.shape(), values);
        }
        let model = Model::new(about, config, weights).expect("a model");
        let name = format!("{inputs}to{channels}.clearshot");
        model.save_file(&at.join(name), clearshot_tensor::DType::F32).expect("a file");
    }
    let shape = [3, 24, 28];
    let values = counts(&shape, 5);
    write(&at.join("in.ome.tif"), "ZYX", &shape, DType::U16, &values);
    must("restore in.ome.tif -o two.ome.tif --model 1to2.clearshot --float --report r.html", &at);
    let (two, made) = read(at.join("two.ome.tif"));
    assert_eq!((two.description.dim(Axis::C).map(|d| d.len), made.len()), (Some(2), 2 * values.len()));
    assert_eq!(two.description.dim(Axis::Z).map(|d| d.len), Some(3));
    // The same plane alone, in a file of another order, cut otherwise.
    write(&at.join("one.ome.tif"), "YX", &shape[1..], DType::U16, &values[24 * 28..2 * 24 * 28]);
    must("restore one.ome.tif -o one2.ome.tif --model 1to2.clearshot --float --tile 16", &at);
    let (one, alone) = read(at.join("one2.ome.tif"));
    let plane = |image: &Image, values: &[f64], z: usize, c: usize| -> Vec<f64> {
        let d = &image.description;
        let strides = clearshot_image::grid::strides(&image.shape());
        let at = |axis: Axis| d.position(axis).map_or(0, |a| strides[a]);
        let (z, c) = (z * at(Axis::Z), c * at(Axis::C));
        (0..24 * 28).map(|i| values[z + c + i / 28 * at(Axis::Y) + i % 28 * at(Axis::X)]).collect()
    };
    for c in 0..2 {
        let (a, b) = (plane(&two, &made, 1, c), plane(&one, &alone, 0, c));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-2), "channel {c}");
    }
    assert!(plane(&two, &made, 1, 0) != plane(&two, &made, 1, 1), "both channels are the same");
    must("restore two.ome.tif -o back.ome.tif --model 2to1.clearshot --float", &at);
    let (back, values) = read(at.join("back.ome.tif"));
    assert_eq!((back.description.dim(Axis::C).map_or(1, |d| d.len), values.len()), (1, made.len() / 2));
    for (what, why) in [
        ("two.ome.tif --model 1to2.clearshot", "a file of its own"),
        ("in.ome.tif --model 2to1.clearshot", "2 channels together"),
        ("in.ome.tif --model 1to2.clearshot --chi2 --gain 1 --offset 0 --read-noise 1", "other channels"),
    ] {
        let said = refused(&format!("restore {what} -o x.ome.tif"), &at);
        assert!(said.contains(why), "{what}: {said}");
    }
}

#[test]
fn files_come_back_as_they_were_with_a_record() {
    let at = folder("restore_files");
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 3, 40, 52];
    write(&at.join("in.ome.tif"), "CZYX", &shape, DType::U16, &counts(&shape, 1));
    let said = must(
        &format!(
            "restore in.ome.tif -o out.ome.tif --model m.clearshot {CAMERA} --std --samples 2 --steps 3 --chi2 --report r.html"
        ),
        &at,
    );
    assert!(said.starts_with("plan: ") && said.contains("chi2"), "{said}");
    let ((before, _), (after, values)) = (read(at.join("in.ome.tif")), read(at.join("out.ome.tif")));
    assert_eq!(after.description.axes(), before.description.axes());
    assert_eq!((after.shape(), after.dtype()), (before.shape(), DType::U16));
    assert_eq!(after.description.channels, before.description.channels);
    assert_eq!(after.description.dim(Axis::X), before.description.dim(Axis::X));
    assert!(values.iter().all(|v| *v > 50.0 && *v < 400.0));
    let record = after.description.provenance.expect("provenance");
    let p = &record["parameters"];
    assert_eq!((record["operation"].as_str(), p["clipped"].as_u64()), (Some("restore"), Some(0)));
    assert_eq!(p["settings"]["model_hash"].as_str().map(str::len), Some(64));
    assert_eq!((p["settings"]["seed"].as_u64(), p["camera"]["gain"].as_f64()), (Some(0), Some(0.5)));
    assert!(p["plan"]["tile"].is_array());
    for map in ["out_std.ome.tif", "out_chi2.ome.tif"] {
        let (image, values) = read(at.join(map));
        assert_eq!((image.dtype(), image.shape()), (DType::F32, shape.to_vec()), "{map}");
        assert!(values.iter().all(|v| v.is_finite() && *v >= 0.0), "{map}");
    }
    let page = std::fs::read_to_string(at.join("r.html")).expect("a report");
    for part in ["data:image/png;base64,iVBOR", "<svg", "in.ome.tif", "model_hash", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    // Tiles do not show, down to the file's type.
    must(
        &format!(
            "restore in.ome.tif -o tiled.ome.tif --model m.clearshot {CAMERA} --tile 16 --batch 3 --threads 1"
        ),
        &at,
    );
    must(&format!("restore in.ome.tif -o whole.ome.tif --model m.clearshot {CAMERA}"), &at);
    let (tiled, whole) = (read(at.join("tiled.ome.tif")).1, read(at.join("whole.ome.tif")).1);
    assert!(tiled.iter().zip(&whole).all(|(a, b)| (a - b).abs() <= 1.0));
    let same = tiled.iter().zip(&whole).filter(|(a, b)| a == b).count();
    assert!(same as f64 > 0.999 * whole.len() as f64, "{same} of {}", whole.len());
}

#[test]
fn a_second_run_finds_nothing_to_do_and_an_interrupted_one_goes_on() {
    let at = folder("restore_again");
    model(&at, "m", 1, 2, conditional());
    std::fs::create_dir(at.join("in")).expect("a folder");
    for (name, seed) in [("a.tif", 1), ("b.tif", 2), ("c.npy", 3)] {
        write(&at.join("in").join(name), "YX", &[30, 30], DType::F32, &counts(&[30, 30], seed));
    }
    let run = format!("restore in -o out --model m.clearshot {CAMERA} --json");
    let events = |text: &str| -> Vec<Value> {
        text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
    };
    let first = events(&must(&run, &at));
    let summary = first.last().expect("a summary");
    assert_eq!((summary["restored"].as_u64(), summary["already_done"].as_u64()), (Some(3), Some(0)));
    let pixels = std::fs::read(at.join("out/a.tif")).expect("a file");
    // b.tif is as if the run had been stopped before it.
    std::fs::remove_file(at.join("out/b.tif")).expect("removed");
    let second = clearshot(&run, &at);
    let again = events(&String::from_utf8(second.stdout).expect("text"));
    let summary = again.last().expect("a summary");
    let counted = (summary["restored"].as_u64(), summary["already_done"].as_u64());
    // A format without a place for the record cannot be known to be done: it is not replaced, and said.
    match second.status.success() {
        true => assert_eq!(counted, (Some(1), Some(2))),
        false => {
            assert_eq!(counted, (Some(1), Some(1)));
            assert!(
                summary["failed"][0]["error"].as_str().is_some_and(|e| e.contains("--force")),
                "{summary}"
            );
        }
    }
    assert_eq!(std::fs::read(at.join("out/a.tif")).expect("a file"), pixels);
    // Other settings are another result, and nothing is replaced unasked.
    let said =
        refused("restore in/a.tif -o out/a.tif --model m.clearshot --gain 1 --offset 90 --read-noise 1", &at);
    assert!(said.contains("--force"), "{said}");
    must(
        "restore in/a.tif -o out/a.tif --model m.clearshot --gain 1 --offset 90 --read-noise 1 --force --quiet",
        &at,
    );
    assert_ne!(std::fs::read(at.join("out/a.tif")).expect("a file"), pixels);
}

/// A stack that was interrupted goes on after the last planes that were restored, to the same bytes.
#[test]
fn a_stack_goes_on_where_it_was_interrupted() {
    let at = folder("restore_stack_again");
    model(&at, "m", 1, 2, conditional());
    let shape = [40, 36, 36];
    write(&at.join("in.tif"), "ZYX", &shape, DType::U16, &counts(&shape, 1));
    let run = format!("restore in.tif -o out.tif --model m.clearshot {CAMERA} --std --samples 2 --steps 2");
    let kept = at.join(".out.tif.parts");
    must(&run.replace("out.tif", "straight.tif"), &at);
    // Somebody else's file stands where the deviation belongs, which is found out when all planes are restored.
    write(&at.join("out_std.tif"), "YX", &[4, 4], DType::F32, &[0.0; 16]);
    refused(&run, &at);
    std::fs::remove_file(at.join("out_std.tif")).expect("removed");
    let parts = || std::fs::read_dir(&kept).expect("kept").count();
    assert_eq!(parts(), 40 + 1);
    // As if it had been interrupted in the second group, and a part of the first been damaged afterwards.
    std::fs::remove_file(kept.join("20.safetensors")).expect("removed");
    std::fs::write(kept.join("3.safetensors"), "no part").expect("damaged");
    let out = clearshot(&run, &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("8 of 40 planes were restored by a run before"), "{said}");
    assert!(!kept.exists());
    for suffix in ["", "_std"] {
        let [a, b] = ["out", "straight"].map(|name| read(at.join(format!("{name}{suffix}.tif"))).1);
        assert_eq!(a, b);
    }
    // A folder that is not there is made.
    must(&run.replace("out.tif", "new/out.tif"), &at);
    assert_eq!(read(at.join("new/out.tif")).1, read(at.join("out.tif")).1);
    // Parts of other settings are not taken.
    write(&at.join("other_std.tif"), "YX", &[4, 4], DType::F32, &[0.0; 16]);
    let other = run.replace("out.tif", "other.tif");
    refused(&other, &at);
    std::fs::remove_file(at.join("other_std.tif")).expect("removed");
    let out = clearshot(&format!("{other} --seed 4"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success() && !said.contains("run before") && !at.join(".other.tif.parts").exists(),
        "{said}"
    );
}

/// Killed again and again while it restores a stack: the next run goes on from whole parts, nothing has the output's name
/// before it is complete, and the end is the bytes of a run that nobody disturbed.
#[cfg(unix)]
#[test]
fn a_stack_goes_on_after_kills() {
    use std::process::{Command, Stdio};
    let at = folder("restore_stack_killed");
    model(&at, "m", 1, 2, conditional());
    let shape = [96, 32, 32];
    write(&at.join("in.tif"), "ZYX", &shape, DType::U16, &counts(&shape, 2));
    let run = format!("restore in.tif -o out.tif --model m.clearshot {CAMERA} --steps 4 --threads 1");
    let kept = at.join(".out.tif.parts");
    let is_part = |e: &std::fs::DirEntry| e.path().extension().is_some_and(|x| x == "safetensors");
    let parts = || {
        let entries = std::fs::read_dir(&kept).map(|d| d.flatten().filter(is_part).count());
        entries.unwrap_or(0)
    };
    let mut killed = 0;
    // In the middle of a group's computation, and while its parts are being written.
    for (more, pause) in [(1, 0), (1, 1500), (17, 300), (20, 20_000)] {
        let before = parts();
        let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
            .args(run.split_whitespace())
            .current_dir(&at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a start");
        while child.try_wait().expect("a state").is_none() && parts() < before + more {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        std::thread::sleep(std::time::Duration::from_micros(pause));
        let running = child.try_wait().expect("a state").is_none();
        child.kill().expect("a kill");
        child.wait().expect("an end");
        if !running {
            break;
        }
        killed += 1;
        assert!(parts() >= before + more, "{} parts, and {before} before", parts());
        assert!(!at.join("out.tif").exists(), "a torn output");
    }
    assert!(killed > 0, "no run was caught at work");
    let out = clearshot(&run, &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("of 96 planes were restored by a run before"), "{said}");
    assert!(!kept.exists());
    must(&run.replace("out.tif", "straight.tif"), &at);
    let [a, b] = ["out.tif", "straight.tif"].map(|name| read(at.join(name)).1);
    assert_eq!(a, b);
}

/// What the command line says of the background, the image may contradict; what an image does not tell is assumed aloud.
#[test]
fn cameras_that_do_not_fit_or_are_not_told_are_said() {
    let at = folder("restore_camera_said");
    model(&at, "m", 1, 2, conditional());
    must("synth --scene filaments --count 1 --size 96x96 --peak 100 --out scene --seed 3", &at);
    let noisy =
        std::fs::read_dir(at.join("scene/noisy")).expect("pictures").flatten().next().expect("a picture");
    let path = noisy.path().display().to_string();
    let said = |more: &str| {
        let out = clearshot(
            &format!("restore {path} -o out.tif --force --model m.clearshot --steps 2 {more}"),
            &at,
        );
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        said
    };
    let told = "--gain 1 --offset 0 --read-noise 2";
    // 5 electrons is what the scenes of this peak have.
    for fits in [0, 4, 5] {
        assert!(!said(&format!("{told} --background {fits}")).contains("contradicts"), "{fits}");
    }
    for too_high in [6, 8, 20] {
        let said = said(&format!("{told} --background {too_high}"));
        assert!(said.contains("contradicts the image") && said.contains("--background"), "{said}");
    }
    // A flat image tells no gain.
    let flat: Vec<f64> =
        counts(&[64, 64], 5).iter().enumerate().map(|(i, v)| 100.0 + (v + i as f64) % 7.0).collect();
    write(&at.join("flat.tif"), "YX", &[64, 64], DType::U16, &flat);
    let out = clearshot("restore flat.tif -o flat_out.tif --model m.clearshot --steps 2", &at);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && text.contains("could not be told from this image"), "{text}");
    assert!(text.contains("--gain") && !text.contains("inf") && !text.contains("NaN"), "{text}");
}

#[test]
fn bad_input_is_said_in_words() {
    let at = folder("restore_bad");
    model(&at, "m", 1, 2, conditional());
    model(&at, "colour", 3, 2, conditional());
    model(&at, "volume", 1, 3, conditional());
    model(&at, "regression", 1, 2, Task::Regression);
    write(&at.join("good.tif"), "YX", &[32, 32], DType::U16, &counts(&[32, 32], 1));
    write(&at.join("line.npy"), "X", &[50], DType::F32, &counts(&[50], 1));
    let full: Vec<f64> = (0..1024).map(|i| if i % 3 == 0 { 500.0 } else { 65_535.0 }).collect();
    write(&at.join("saturated.tif"), "YX", &[32, 32], DType::U16, &full);
    let mut part = counts(&[32, 32], 4);
    part[..50].fill(65_535.0);
    write(&at.join("bright.tif"), "YX", &[32, 32], DType::U16, &part);
    write(&at.join("psf8.tif"), "YX", &[3, 3], DType::U8, &[0.0, 9.0, 0.0, 9.0, 255.0, 9.0, 0.0, 9.0, 0.0]);
    write(&at.join("large.tif"), "YX", &[99, 99], DType::F32, &[1.0; 99 * 99]);
    write(&at.join("huge.tif"), "YX", &[3, 299], DType::F32, &[1.0; 3 * 299]);
    std::fs::create_dir(at.join("empty")).expect("a folder");
    std::fs::write(at.join("broken.tif"), b"II*\0 no more of a TIFF than this").expect("a file");
    for (arguments, words) in [
        ("restore line.npy -o x.tif --model m.clearshot", "Y and X"),
        ("restore good.tif -o x.tif --model colour.clearshot", "3 channels"),
        ("restore good.tif -o x.tif --model volume.clearshot", "no Z axis"),
        ("restore saturated.tif -o x.tif --model m.clearshot", "shorter exposure"),
        ("restore empty -o x --model m.clearshot", "no images"),
        ("restore good.tif -o x.tif --model nothing.clearshot", "no model"),
        ("restore good.tif -o x.tif --model good.tif", "not a model"),
        ("restore good.tif -o x.tif --model regression.clearshot --samples 4", "regression"),
        ("restore good.tif -o x.tif --model regression.clearshot --psf gaussian:1px", "diffusion model"),
        ("restore good.tif -o x.tif --model m.clearshot --memory 1000", "more memory"),
        ("restore good.tif -o x.tif --model m.clearshot --device cuda:99", ""),
        ("restore good.tif -o good.tif --model m.clearshot --force", "its own input"),
        ("restore good.tif -o x.tif --model m.clearshot --gain 0", "above zero"),
        ("restore good.tif -o x.tif --model m.clearshot --sampler best --samples 1", "heun"),
        ("restore good.tif -o x.tif --model m.clearshot --psf airy:na=1.4", "em="),
        ("restore good.tif -o x.tif --model m.clearshot --psf blur", "gaussian:1.5px"),
        ("restore good.tif -o x.tif --model m.clearshot --psf psf8.tif", "8 bits"),
        ("restore good.tif -o x.tif --model m.clearshot --psf large.tif --steps 2", "does not fit an image"),
        ("restore good.tif -o x.tif --model m.clearshot --gain=-1", "above zero"),
        ("deconvolve good.tif x.tif --psf psf8.tif --gain 1", "8 bits"),
        (
            "deconvolve good.tif x.tif --psf huge.tif --gain 1",
            "[3,299] pixels does not fit an image of [32,32]",
        ),
        (
            "deconvolve good.tif x.tif --psf large.tif --gain 1",
            "[99,99] pixels does not fit an image of [32,32]",
        ),
        ("deconvolve good.tif x.tif --psf-sigma 20 --gain 1", "would lie outside an image of [32,32]"),
        (
            "restore good.tif -o x.tif --model m.clearshot --psf gaussian:40px",
            "would lie outside an image of [32,32]",
        ),
        ("deconvolve good.tif x.tif --psf-sigma 1 --gain=-1", "above zero"),
        ("restore good.tif -o x.tif --model m.clearshot --guidance best", "poisson-gaussian"),
        ("restore good.tif -o x.tif --model m.clearshot --law best", "proximal"),
        ("restore good.tif -o x.tif --model m.clearshot --std --samples 1", "--samples 8"),
        ("restore good.tif bright.tif -o x.tif --model m.clearshot", "name a folder"),
        ("restore good.tif -o x.tif --model m.clearshot --camera good.tif", "camera"),
        ("restore broken.tif -o x.tif --model m.clearshot", "broken.tif"),
        ("restore nothing.tif -o x.tif --model m.clearshot", "no such file"),
    ] {
        let camera = if arguments.contains("--gain") { "" } else { CAMERA };
        let said = refused(&format!("{arguments} {camera}"), &at);
        assert!(said.contains(words), "{arguments}: {said}");
        assert!(!said.contains("panicked") && !at.join("x.tif").exists(), "{arguments}: {said}");
    }
    let warned = clearshot(&format!("restore bright.tif -o y.tif --model m.clearshot {CAMERA}"), &at);
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success() && said.contains("4.9 % of the pixels are saturated"), "{said}");
    // One that cannot be read does not stop the others, and the end says which it was.
    let batch = clearshot(
        &format!("restore good.tif broken.tif bright.tif -o many --model m.clearshot {CAMERA}"),
        &at,
    );
    let (out, err) = (String::from_utf8_lossy(&batch.stdout), String::from_utf8_lossy(&batch.stderr));
    assert!(
        !batch.status.success() && out.contains("2 restored, 1 failed") && err.contains("broken.tif"),
        "{out}{err}"
    );
    assert_eq!(kinds(&at.join("many")), 2);
}

#[test]
fn pixels_that_are_no_numbers_and_colour_pictures_are_taken_and_said() {
    let at = folder("restore_odd");
    model(&at, "m", 1, 2, conditional());
    let mut values = counts(&[40, 40], 2);
    (values[7], values[820]) = (f64::NAN, f64::INFINITY);
    write(&at.join("holes.tif"), "YX", &[40, 40], DType::F32, &values);
    let out = clearshot(&format!("restore holes.tif -o filled.tif --model m.clearshot {CAMERA}"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("2 pixels were no numbers"), "{said}");
    let (image, values) = read(at.join("filled.tif"));
    assert!(values.iter().all(|v| v.is_finite()));
    assert_eq!(image.description.provenance.expect("provenance")["parameters"]["filled"].as_u64(), Some(2));
    let rgb: Vec<f64> = counts(&[24, 30, 3], 5).iter().map(|v| (v - 100.0).clamp(0.0, 250.0)).collect();
    write(&at.join("photo.png"), "YXS", &[24, 30, 3], DType::U8, &rgb);
    let out = clearshot(
        "restore photo.png -o photo_clean.png --model m.clearshot --gain 1 --offset 0 --read-noise 1 --chi2",
        &at,
    );
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("8-bit colour picture"), "{said}");
    assert_eq!(
        (read(at.join("photo_clean.png")).0.dtype(), read(at.join("photo_clean.png")).0.shape()),
        (DType::U8, vec![24, 30, 3])
    );
    // PNG holds no floats: the map is a TIFF.
    assert_eq!(read(at.join("photo_clean_chi2.tif")).0.dtype(), DType::F32);
    // Without a word about the camera it is estimated, and that is said.
    must("synth --scene nuclei --count 1 --peak 50 --size 128x128 --seed 1 --out s", &at);
    let out = clearshot("restore s/noisy -o s/clean --model m.clearshot", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("camera estimated from the image: gain"), "{said}");
    std::fs::write(at.join("camera.json"), r#"{"gain": 1.0, "offset": 0, "read_noise": 1.5}"#)
        .expect("a file");
    let out = clearshot("restore s/noisy -o s/known --model m.clearshot --camera camera.json", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    // A model that learnt nothing explains nothing, and that is all there is to say.
    assert!(out.status.success() && said.lines().all(|l| l.contains("chi2 is")), "{said}");
}

#[test]
fn volumes_channels_and_blur() {
    let at = folder("restore_volumes");
    model(&at, "volume", 1, 3, conditional());
    model(&at, "colour", 3, 2, conditional());
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 5, 20, 24];
    write(&at.join("stack.ome.tif"), "TZYX", &shape, DType::U16, &counts(&shape, 1));
    must(&format!("restore stack.ome.tif -o v.ome.tif --model volume.clearshot {CAMERA}"), &at);
    let (image, values) = read(at.join("v.ome.tif"));
    assert_eq!((image.description.axes().as_str(), image.shape()), ("TZYX", shape.to_vec()));
    assert!(values.iter().any(|v| *v != values[0]));
    // Channels of one pixel together, wherever they stand in the file.
    let planar = counts(&[3, 20, 24], 7);
    write(&at.join("planar.ome.tif"), "CYX", &[3, 20, 24], DType::F32, &planar);
    must(&format!("restore planar.ome.tif -o p.ome.tif --model colour.clearshot {CAMERA}"), &at);
    assert_eq!(read(at.join("p.ome.tif")).0.shape(), [3, 20, 24]);
    // Under a PSF: from pixels, from the microscope and from a file; the three differ.
    write(&at.join("psf.tif"), "YX", &[3, 3], DType::F32, &[0.0, 1.0, 0.0, 1.0, 8.0, 1.0, 0.0, 1.0, 0.0]);
    let mut made = Vec::new();
    for (i, psf) in
        ["gaussian:1.5px", "airy:na=1.4,em=520nm", "psf.tif", "gaussian:0.15um"].iter().enumerate()
    {
        let run = format!(
            "restore stack.ome.tif -o d{i}.ome.tif --model m.clearshot {CAMERA} --psf {psf} --steps 3 --float"
        );
        must(&run, &at);
        made.push(read(at.join(format!("d{i}.ome.tif"))).1);
    }
    assert!(made[0] != made[1] && made[1] != made[2]);
    // The stack's pixels are 0.1 um wide.
    assert!(made[0].iter().zip(&made[3]).all(|(a, b)| (a - b).abs() < 1e-3));
    let run = format!(
        "restore stack.ome.tif -o g.ome.tif --model m.clearshot {CAMERA} --guidance poisson-gaussian --law proximal:strength=0.9 --steps 3"
    );
    must(&run, &at);
}

/// A line for each image, sample and step, by the image's own numbers; a clip that is reached holds.
#[test]
fn guidance_can_be_traced_and_clipped() {
    let at = folder("restore_trace");
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 20, 24];
    write(&at.join("two.ome.tif"), "TYX", &shape, DType::U16, &counts(&shape, 1));
    let run = |more: &str| {
        format!(
            "restore two.ome.tif -o out.tif --model m.clearshot {CAMERA} --force --samples 2 --steps 3 {more}"
        )
    };
    must(&run("--guidance shifted-poisson --clip 0.01 --trace t.jsonl"), &at);
    let text = std::fs::read_to_string(at.join("t.jsonl")).expect("a trace");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let number = |l: &serde_json::Value, key: &str| l[key].as_f64().unwrap_or(f64::NAN);
    let at_step =
        |l: &serde_json::Value| ["image", "sample", "step"].map(|key| l[key].as_u64().expect("a number"));
    let mut places: Vec<[u64; 3]> = lines.iter().map(at_step).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!((lines.len(), places.len()), (12, 12), "two images, two samples, three steps: {text}");
    for line in &lines {
        let [chi2, gradient, weight, moved, kept, sigma] =
            ["chi2", "gradient", "weight", "moved", "kept", "sigma"].map(|key| number(line, key));
        assert!(chi2 > 0.0 && gradient > 0.0 && weight > 0.0 && sigma > 0.0, "{line}");
        assert!(moved <= 0.01 * 1.0001 && kept > 0.0 && kept <= 1.0, "{line}");
    }
    assert!(lines.iter().any(|l| number(l, "kept") < 0.999), "{text}");
    let chi2 = |image: u64| -> Vec<f64> {
        lines.iter().filter(|l| l["image"] == image).map(|l| number(l, "chi2")).collect()
    };
    assert_ne!(chi2(0), chi2(1), "each image has numbers of its own");
    let said = clearshot(&run("--trace u.jsonl"), &at);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("--trace") && said.contains("--guidance"), "{said}");
    let said = clearshot(&run("--guidance gaussian --clip=-1"), &at);
    assert!(!said.status.success());
}

#[test]
fn a_folder_of_diffusers_restores() {
    let at = folder("restore_diffusers");
    let config = r#"{"_class_name": "UNet2DModel", "sample_size": 16, "in_channels": 1, "out_channels": 1,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
    let params = models::read(config).expect("a network").parameters().expect("parameters");
    weights::save_network(&at.join("unet"), config, &weights::initial(&params, 1)).expect("a folder");
    let values: Vec<f64> = counts(&[40, 50], 1).iter().map(|v| v * 100.0).collect();
    write(&at.join("in.tif"), "YX", &[40, 50], DType::U16, &values);
    let guided = "--guidance shifted-poisson --gain 0.005 --offset 10000 --read-noise 1.5";
    let out =
        clearshot(&format!("restore in.tif -o out.tif --model unet --sampler ddim --steps 6 {guided}"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("depends on --tile"), "{said}");
    let plan = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(plan.contains("tiles of 16 x 16 pixels"), "{plan}");
    let (image, made) = read(at.join("out.tif"));
    assert_eq!((image.dtype(), image.shape()), (DType::U16, vec![40, 50]));
    // The measurement has its say: the result is far nearer to it than to what the prior alone would make up.
    let apart = |a: &[f64]| {
        (a.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
    };
    must("restore in.tif -o alone.tif --model unet --sampler ddim --steps 6", &at);
    let alone = read(at.join("alone.tif")).1;
    assert!(apart(&made) < 0.3 * apart(&alone), "{} {}", apart(&made), apart(&alone));
}

/// The default model says of an image unlike its training's that it is, and of one like them nothing.
#[test]
fn strange_images_are_said_to_be() {
    let at = folder("restore_strange");
    must("synth --scene nuclei --count 1 --peak 50 --size 128x128 --seed 6 --out s", &at);
    let said = |arguments: &str| {
        let out = clearshot(arguments, &at);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{text}");
        (text, String::from_utf8(out.stdout).expect("text"))
    };
    let (text, _) = said("restore s/noisy/nuclei_0000.tif -o n.tif --gain 1 --offset 0 --read-noise 1.5");
    assert!(!text.contains("unlike"), "{text}");
    let mut noise = vec![0.0f32; 128 * 128];
    Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let board = |(i, z): (usize, &f32)| {
        let light = if (i / 128 / 8 + i % 128 / 8) % 2 == 0 { 60.0 } else { 4.0 };
        light + f64::from(*z) * (light + 2.0f64).sqrt()
    };
    let values: Vec<f64> = noise.iter().enumerate().map(board).collect();
    write(&at.join("board.tif"), "YX", &[128, 128], DType::F32, &values);
    let (text, json) = said("restore board.tif -o b.tif --gain 1 --offset 0 --read-noise 1.4 --json");
    assert_eq!(text.matches("unlike what the model was trained on: ").count(), 1, "{text}");
    assert!(text.contains("clearshot denoise"), "{text}");
    let record: Value =
        serde_json::from_str(json.lines().find(|l| l.contains("\"file\"")).expect("a line")).expect("JSON");
    assert!(record["strange"].as_str().expect("why").contains("than in its images of"), "{record}");
}

/// Three planes under PSFs of many: a Gaussian is made to fit, a file is cropped where that costs nothing, and both say so.
#[test]
fn thin_stacks_and_large_psfs() {
    let at = folder("restore_thin");
    model(&at, "m", 1, 3, conditional());
    write(&at.join("thin.tif"), "ZYX", &[3, 40, 36], DType::U16, &counts(&[3, 40, 36], 1));
    // A PSF of 31 planes, with all of its light in the middle one, and with as much in each.
    let plane = |i: usize| if i % 25 == 12 { 8.0 } else { 1.0 };
    let narrow: Vec<f64> = (0..31 * 25).map(|i| if i / 25 == 15 { plane(i) } else { 0.0 }).collect();
    write(&at.join("narrow.tif"), "ZYX", &[31, 5, 5], DType::F32, &narrow);
    write(&at.join("wide.tif"), "ZYX", &[31, 5, 5], DType::F32, &(0..31 * 25).map(plane).collect::<Vec<_>>());
    let run = |line: &str| {
        let out = clearshot(line, &at);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let deconvolve = format!("deconvolve --volume {CAMERA} --steps 2 --float thin.tif");
    let restore = format!("restore thin.tif --model m.clearshot {CAMERA} --steps 2 --float");
    for (i, (line, psf)) in [
        (
            format!("{deconvolve} d"),
            ["--psf-sigma 2,1,1", "--psf-sigma 0.1,1,1", "--psf narrow.tif", "--psf wide.tif"],
        ),
        (
            format!("{restore} -o r"),
            [
                "--psf gaussian:2px,1px,1px",
                "--psf gaussian:0.1px,1px,1px",
                "--psf narrow.tif",
                "--psf wide.tif",
            ],
        ),
    ]
    .iter()
    .enumerate()
    {
        let [part, small, narrow, wide] =
            psf.each_ref().map(|psf| run(&format!("{line}{i}.tif --force {psf}")));
        assert!(part.0 && part.1.contains("room for [3,11,11]"), "{}", part.1);
        assert!(small.0 && !small.1.contains("room"), "{}", small.1);
        assert!(narrow.0 && narrow.1.contains("[31,5,5] pixels is cropped to [3,5,5]"), "{}", narrow.1);
        let said = &wide.1;
        assert!(!wide.0 && said.contains("[31,5,5]") && said.contains("[3,40,36]"), "{said}");
        assert!(said.contains("crop the PSF"), "{said}");
    }
}

/// What users trip over is out of the way, or said with what to do.
#[test]
fn stumbling_blocks_are_out_of_the_way_or_said() {
    let at = folder("restore_stumbling");
    let shape = [40, 48];
    write(&at.join("in.tif"), "YX", &shape, DType::U16, &counts(&shape, 5));
    must(&format!("restore in.tif -o new/folder/out.tif {CAMERA}"), &at);
    assert!(at.join("new/folder/out.tif").is_file());

    let text = refused(&format!("restore in.tif -o out.jpg {CAMERA}"), &at);
    assert!(
        text.contains(".jpg files are not written here; write .tif") && !at.join("out.jpg").exists(),
        "{text}"
    );
    let text = refused(&format!("restore - -o out.tif {CAMERA}"), &at);
    assert!(text.contains("standard input is not read"), "{text}");
    let text = refused("restore in.tif -o out.tif --gain -1", &at);
    assert!(text.contains("gain") && !text.contains("unexpected argument"), "{text}");
    std::fs::write(at.join("empty.tif"), b"").expect("a file");
    let text = refused(&format!("restore empty.tif -o out.tif {CAMERA}"), &at);
    assert!(text.contains("the file is empty"), "{text}");
    std::fs::write(at.join("photo.webp"), b"RIFF").expect("a file");
    let text = refused(&format!("restore photo.webp -o out.tif {CAMERA}"), &at);
    assert!(text.contains("take the original, as TIFF or PNG"), "{text}");
    // A photograph is read, with a warning, and comes back as a TIFF.
    let photograph = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/pictures/grey.jpg");
    std::fs::copy(photograph, at.join("photo.jpg")).expect("a copy");
    let made = clearshot(&format!("restore photo.jpg -o photos {CAMERA}"), &at);
    let text = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && text.contains("8 bits, packed with losses"), "{text}");
    assert!(at.join("photos/photo.tif").exists(), "{text}");

    // A scene of filaments with 5 electrons of background.
    must("synth --scene filaments --count 1 --size 96 --peak 100 --out scene --seed 3", &at);
    let noisy =
        std::fs::read_dir(at.join("scene/noisy")).expect("pictures").flatten().next().expect("a picture");
    let path = noisy.path().display().to_string();
    let told = |name: &str, more: &str| {
        let made = clearshot(&format!("restore {path} -o {name}.tif --read-noise 2 {more}"), &at);
        assert!(made.status.success(), "{more}");
        String::from_utf8_lossy(&made.stderr).into_owned()
    };
    let text = told("high", "--gain 1 --offset 0 --background 20");
    let number =
        text.split("so say --background ").nth(1).and_then(|t| t.split(',').next()).expect("a number");
    let dark: f64 = number.parse().expect("a number");
    assert!((4.0..6.0).contains(&dark), "{text}");
    // And with that number there is nothing to say.
    let text = told("right", &format!("--gain 1 --offset 0 --background {dark}"));
    assert!(!text.contains("contradicts") && !text.contains("chi2"), "{text}");
    // Another camera's numbers: nothing is as dark as that, and noise is never so little.
    for (name, camera) in [("dark", "--gain 1 --offset 300"), ("quiet", "--gain 0.05 --offset 0")] {
        let text = told(name, camera);
        assert!(text.contains("chi2 is ") && text.contains("where about 1 is right"), "{text}");
    }
}
