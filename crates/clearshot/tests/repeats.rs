//! `adapt` from repeats: it gains where the model did not know the images, and what is not a repeat is named and left out.

use clearshot::{AdaptFrom, AdaptSettings, Axis, DType, Event, Model, Observer, TrainSettings, adapt, train};
use clearshot_image::{Description, Dim, WriteOptions, Writer};
use clearshot_physics::poisson;
use clearshot_tensor::noise::Key;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const SIDE: usize = 96;

/// Mean electrons at a place of a field: waves, which the model below has never seen.
fn light(field: u32, y: f64, x: f64) -> f64 {
    let turn = f64::from(field);
    let wave = |a: f64, b: f64| (y / a + x / b + 1.7 * turn).sin();
    60.0 + 25.0 * wave(5.3, 11.0) * wave(-9.1, 4.7) + 15.0 * wave(3.7, -7.9)
}

/// Counts of one exposure by a camera of gain 1, offset 100 and read noise 1.5.
fn exposed(light: impl Fn(f64, f64) -> f64, seed: u32) -> Vec<f64> {
    let key = |stream| Key { seed: 11, step: seed, stream };
    let of = |i: usize| {
        let read = 1.5 * f64::from(key(2).normal(i as u64));
        let mean = light((i / SIDE) as f64, (i % SIDE) as f64);
        poisson::draw(mean, key(1), i as u64) + read + 100.0
    };
    (0..SIDE * SIDE).map(of).collect()
}

fn write(path: &Path, frames: &[Vec<f64>]) {
    let mut dims = vec![Dim::new(Axis::Y, SIDE), Dim::new(Axis::X, SIDE)];
    let mut region = vec![0..SIDE, 0..SIDE];
    if frames.len() > 1 {
        dims.insert(0, Dim::new(Axis::T, frames.len()));
        region.insert(0, 0..frames.len());
    }
    let description = Description::new("", path, dims, DType::F32);
    let mut writer = Writer::create(path, &description, &WriteOptions::default()).expect("a file");
    let mut bytes = vec![];
    DType::F32.encode(&frames.concat(), &mut bytes);
    writer.write(&region, &bytes).expect("pixels");
    writer.finish().expect("a file");
}

/// Hears notes.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        if let Event::Note(text) = event {
            self.0.push(text.to_string());
        }
        ControlFlow::Continue(())
    }
}

/// A model that knows little: of stars, and not long.
fn beginner(dir: &Path) -> Model {
    let overrides = [
        "experiment=default",
        "data.sizes=[32]",
        "data.pool=4",
        "trainer.device=cpu",
        "trainer.iterations=30",
        "trainer.crop=16",
        "trainer.batch=4",
        "model.network.channels=[8, 12]",
        "model.network.blocks=1",
        "optimizer.rate=2e-3",
        "validation.every=0",
        "validation.images=4",
        "calibration.images=0",
        "records.tensorboard=false",
    ];
    let overrides = overrides.iter().map(|s| s.to_string()).collect();
    let settings = TrainSettings { overrides, out: Some(dir.join("first")), ..TrainSettings::default() };
    let report = train(&settings, &mut ()).expect("a run");
    Model::load(&report.model.expect("a model")).expect("a model")
}

fn settings(from: AdaptFrom, iterations: usize) -> AdaptSettings {
    let overrides = [
        format!("trainer.iterations={iterations}"),
        "trainer.crop=32".into(),
        "trainer.batch=4".into(),
        "optimizer.rate=2e-3".into(),
        "trainer.ema_half_life=50".into(),
        "validation.images=24".into(),
        "records.tensorboard=false".into(),
    ];
    AdaptSettings { overrides: overrides.to_vec(), from, ..AdaptSettings::default() }
}

#[test]
fn repeats_are_found_and_learned_from() {
    let dir = tempfile::tempdir().expect("a folder");
    let images = dir.path().join("images");
    std::fs::create_dir_all(&images).expect("a folder");
    for field in 0..3 {
        for exposure in 0..3 {
            // The second is dimmer, the third shifted by whole pixels.
            let dim = if exposure == 1 { 0.9 } else { 1.0 };
            let off = if exposure == 2 { 3.0 } else { 0.0 };
            let made = exposed(|y, x| dim * light(field, y - off, x), 10 * field + exposure);
            write(&images.join(format!("field{field}_{exposure}.tif")), &[made]);
        }
    }
    // A copy, a shift by half a pixel, and another field under the name of the first.
    write(&images.join("field0_3.tif"), &[exposed(|y, x| light(0, y, x), 0)]);
    write(&images.join("field0_4.tif"), &[exposed(|y, x| light(0, y, x - 0.5), 77)]);
    write(&images.join("field0_5.tif"), &[exposed(|y, x| light(9, 0.7 * x, 1.3 * y), 78)]);
    let mut notes = Notes::default();
    let start = beginner(dir.path());
    let found = adapt(&[images], start, &settings(AdaptFrom::Auto, 60), &mut notes).expect("adapted");
    let note = notes.0.iter().find(|n| n.starts_with("repeats:")).expect("what was found").clone();
    assert!(note.contains("9 images of 3 fields") && note.contains("mean of 2 others"), "{note}");
    assert!(note.contains("factors of 0.8") && note.contains("shifts of up to 3 whole pixels"), "{note}");
    assert!(note.contains("field0_3.tif beside field0_0.tif: a copy"), "{note}");
    assert!(note.contains("field0_4.tif beside field0_0.tif: shifted by") && note.contains("0.5"), "{note}");
    assert!(note.contains("field0_5.tif beside field0_0.tif"), "{note}");
    let gain = found.gain.expect("a gain");
    assert!(found.from_repeats && found.kept && gain.db > 0.5 && gain.doubt == 0.0, "{gain:?}");
    assert!(found.in_words().starts_with("adapted from repeats in 60 iterations"), "{}", found.in_words());
    assert_eq!(found.record()["from"], "repeats");
}

/// Frames along T where nothing moves are repeats; where all moves, and where names promise too much, they are not.
#[test]
fn static_movies_are_repeats_and_others_are_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let start = beginner(dir.path());
    let run = |images: PathBuf, from| {
        let mut notes = Notes::default();
        let start = Model::load(&dir.path().join("first").join("best.clearshot")).expect("a model");
        (adapt(&[images], start, &settings(from, 2), &mut notes), notes.0.join("\n"))
    };
    drop(start);
    let [rest, moving, named] = ["rest.tif", "moving.tif", "named"].map(|name| dir.path().join(name));
    write(&rest, &(0..4).map(|t| exposed(|y, x| light(1, y, x), t)).collect::<Vec<_>>());
    write(
        &moving,
        &(0..4)
            .map(|t| exposed(|y, x| light(1, if x < 48.0 { y + 7.0 * f64::from(t) } else { y }, x), t))
            .collect::<Vec<_>>(),
    );
    std::fs::create_dir_all(&named).expect("a folder");
    for i in 0..3 {
        write(
            &named.join(format!("cell_{i}.tif")),
            &[exposed(|y, x| light(i, (1.0 + 0.4 * f64::from(i)) * y, (1.5 - 0.3 * f64::from(i)) * x), i)],
        );
    }
    let (found, note) = run(rest, AdaptFrom::Auto);
    assert!(found.expect("adapted").from_repeats && note.contains("mean of 3 others"), "{note}");
    for images in [moving, named] {
        let (found, note) = run(images.clone(), AdaptFrom::Auto);
        assert!(!found.expect("adapted").from_repeats && note.contains("is used separately"), "{note}");
        let refused = run(images, AdaptFrom::Repeats).0.err().expect("a refusal").to_string();
        assert!(refused.contains("might be repeats of one field are not"), "{refused}");
    }
}

/// Stops a run at an iteration.
struct Until(usize);

impl Observer for Until {
    fn progress(&mut self, done: usize, _: usize) -> ControlFlow<()> {
        if done >= self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn an_interrupted_run_is_resumed_to_the_bit() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(beginner(dir.path()));
    let images = dir.path().join("images");
    std::fs::create_dir_all(&images).expect("a folder");
    for field in 0..2 {
        for exposure in 0..3 {
            let made = exposed(|y, x| light(field, y, x), 10 * field + exposure);
            write(&images.join(format!("field{field}_{exposure}.tif")), &[made]);
        }
    }
    for from in [AdaptFrom::Repeats, AdaptFrom::Noise] {
        let fit = |folder: &str, resume, observer: &mut dyn Observer| {
            let start = Model::load(&dir.path().join("first").join("best.clearshot")).expect("a model");
            let mut settings = settings(from, 9);
            settings.overrides.push("checkpoint.every=4".into());
            settings.folder = Some(dir.path().join(format!("{folder}_{from:?}")));
            (settings.resume, settings.anyway) = (resume, true);
            adapt(std::slice::from_ref(&images), start, &settings, observer)
        };
        let whole = fit("whole", false, &mut ()).expect("adapted");
        let part = fit("part", false, &mut Until(5)).expect("stopped");
        assert!(part.interrupted && part.iterations == 5 && !whole.interrupted);
        let resumed = fit("part", true, &mut ()).expect("resumed");
        assert_eq!((resumed.iterations, resumed.from_repeats), (9, from == AdaptFrom::Repeats));
        assert_eq!(resumed.gain, whole.gain);
        let weights = |folder: &str| {
            let path = dir.path().join(format!("{folder}_{from:?}/run/best.clearshot"));
            Model::load(&path).expect("a model").hash()
        };
        assert_eq!(weights("part"), weights("whole"));
        let none = fit("none", true, &mut ()).err().expect("nothing to resume").to_string();
        assert!(none.contains("no run to resume"), "{none}");
    }
    let mut settings = settings(AdaptFrom::Noise, 9);
    (settings.folder, settings.resume) = (Some(dir.path().join("part_Noise")), true);
    let start = Model::load(&dir.path().join("first").join("best.clearshot")).expect("a model");
    let others = adapt(&[images.join("field0_0.tif")], start, &settings, &mut ()).err().expect("a refusal");
    assert!(others.to_string().contains("started with other images"), "{others}");
}
