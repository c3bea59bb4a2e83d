//! Training, evaluating, scoring and cameras through the library: plain data in and out, heard of and stopped by an observer.

use clearshot::{
    CameraImages, CameraSettings, DeviceName, Error, EvaluateSettings, Event, MeasureSettings, Observer,
    TrainSettings, estimate_camera, evaluate, measure, train,
};
use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_tensor::noise::Key;
use std::ops::ControlFlow;
use std::path::Path;

/// Counts what it hears, and stops after so many steps.
#[derive(Default)]
struct Counter {
    stop_after: Option<usize>,
    steps: usize,
    statuses: usize,
    records: usize,
    notes: Vec<String>,
    measured: usize,
}

impl Observer for Counter {
    fn progress(&mut self, done: usize, _: usize) -> ControlFlow<()> {
        self.steps = self.steps.max(done);
        match self.stop_after.is_some_and(|n| done >= n) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Training(_) => self.statuses += 1,
            Event::Record(_) => self.records += 1,
            Event::Note(text) => self.notes.push(text.to_string()),
            Event::Measured { .. } => self.measured += 1,
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn write(path: &Path, axes: &str, shape: &[usize], values: &[f64]) {
    let dims = axes.chars().zip(shape).map(|(a, &n)| Dim::new(Axis::from_letter(a).unwrap(), n)).collect();
    let d = Description::new("TIFF", path, dims, DType::F32);
    let mut writer = Writer::create(path, &d, &WriteOptions::default()).unwrap();
    let mut bytes = Vec::new();
    DType::F32.encode(values, &mut bytes);
    writer.write(&shape.iter().map(|&n| 0..n).collect::<Vec<_>>(), &bytes).unwrap();
    writer.finish().unwrap();
}

/// An interrupted run resumes to the bits of one that was not.
#[test]
fn training_is_heard_of_stopped_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let overrides: Vec<String> = [
        "experiment=default",
        "trainer.device=cpu",
        "trainer.crop=16",
        "trainer.batch=4",
        "trainer.iterations=8",
        "model.network.channels=[4,8]",
        "model.network.blocks=1",
        "data.sizes=[32]",
        "data.pool=4",
        "validation.images=4",
        "validation.crop=16",
        "validation.every=4",
        "records.every=2",
        "calibration.images=0",
        "performance.threads=1",
        "schedule.warm_up=2",
    ]
    .map(String::from)
    .to_vec();
    let of = |name: &str| TrainSettings {
        overrides: overrides.clone(),
        out: Some(dir.path().join(name)),
        ..TrainSettings::default()
    };
    let mut straight = Counter::default();
    let whole = train(&of("straight"), &mut straight).unwrap();
    assert!(!whole.is_interrupted() && whole.model.as_ref().is_some_and(|m| m.is_file()));
    assert_eq!((whole.summary.iteration, straight.statuses), (8, 4));
    assert!(straight.records > 4 && straight.notes[0].contains("parameters"), "{:?}", straight.notes);
    let mut halting = Counter { stop_after: Some(5), ..Counter::default() };
    let part = train(&of("stopped"), &mut halting).unwrap();
    assert!(part.is_interrupted() && part.summary.iteration == 5);
    let resumed = TrainSettings { overrides: vec![], resume: true, ..of("stopped") };
    let rest = train(&resumed, &mut ()).unwrap();
    assert_eq!((rest.summary.iteration, rest.summary.digest), (8, whole.summary.digest));
    // No data, an unknown key, and a folder that holds a run already.
    let nothing = TrainSettings::default();
    assert!(matches!(train(&nothing, &mut ()), Err(Error::Refused(why)) if why.contains("experiment=NAME")));
    let wrong = TrainSettings { overrides: vec!["trainer.iteration=3".into()], ..TrainSettings::default() };
    assert!(matches!(train(&wrong, &mut ()), Err(Error::Config(_))));
    assert!(matches!(train(&of("straight"), &mut ()), Err(Error::Train(_))));
}

#[test]
fn methods_are_evaluated_and_it_can_be_stopped() {
    let settings = EvaluateSettings {
        scenes: vec!["nuclei".into()],
        peaks: vec![20.0],
        count: 3,
        sizes: vec![32],
        device: DeviceName::Cpu,
        ..EvaluateSettings::default()
    };
    let mut counter = Counter::default();
    let made = evaluate(&["raw", "gaussian"], &settings, &mut counter).unwrap();
    assert_eq!((made.records.len(), counter.steps, made.found), (6, 6, 0));
    let psnr = |i: usize| made.summary.rows[i].psnr;
    assert!(psnr(1) > psnr(0) + 3.0, "{} {}", psnr(0), psnr(1));
    assert!(made.markdown.contains("# Evaluation") && made.json().contains("\"rows\""));
    let mut halting = Counter { stop_after: Some(2), ..Counter::default() };
    assert!(matches!(evaluate(&["raw", "gaussian"], &settings, &mut halting), Err(Error::Stopped)));
    assert!(evaluate(&["gausian"], &settings, &mut ()).is_err());
    let swept = EvaluateSettings { sweep: vec!["gian=1,2".into()], ..settings };
    assert!(matches!(evaluate(&["raw"], &swept, &mut ()), Err(Error::Value { key: "sweep", .. })));
}

#[test]
fn images_are_scored_and_cameras_measured() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let truth: Vec<f64> = (0..32 * 32).map(|i| f64::from(i % 32)).collect();
    let off: Vec<f64> = truth.iter().map(|v| v + 2.0).collect();
    write(Path::new(&at("t.tif")), "YX", &[32, 32], &truth);
    write(Path::new(&at("x.tif")), "YX", &[32, 32], &off);
    let settings = MeasureSettings {
        truth: Some(at("t.tif")),
        metrics: vec!["mae".into(), "psnr".into()],
        range: Some(20.0),
        ..MeasureSettings::default()
    };
    let mut counter = Counter::default();
    let found = measure(&at("x.tif"), &settings, &mut counter).unwrap();
    assert_eq!((found.of("mae"), counter.measured), (Some(vec![2.0]), 1));
    assert!((found.of("psnr").unwrap()[0] - 20.0).abs() < 1e-9, "20 for an error of a tenth of the range");
    assert_eq!(found.summary().unwrap()[0].mean.as_ref().map(|m| m.value), Some(2.0));
    let lacking = MeasureSettings { metrics: vec!["chi2".into()], ..settings };
    assert!(matches!(
        measure(&at("x.tif"), &lacking, &mut ()),
        Err(Error::Missing { field: "measured", .. })
    ));
    // Eight frames of one scene under a camera of 0.5 electrons a count.
    let (frames, side) = (8, 48);
    let mut noise = vec![0.0f32; frames * side * side];
    Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let counts: Vec<f64> = noise
        .iter()
        .enumerate()
        .map(|(i, &n)| {
            let light = 20.0 + 10.0 * ((i % side) as f64);
            100.0 + 2.0 * (light + f64::from(n) * (light + 4.0).sqrt())
        })
        .collect();
    write(Path::new(&at("frames.tif")), "TYX", &[frames, side, side], &counts);
    let settings = CameraSettings { images: CameraImages::Repeats, ..CameraSettings::default() };
    let camera = estimate_camera(&[at("frames.tif")], &settings, &mut ()).unwrap();
    let gain = camera.camera().gain.unwrap();
    assert!((gain - 0.5).abs() < 0.05, "{gain}");
    assert!(camera.figure().contains("<svg") && camera.record()["gain"].is_number());
    let none: [&str; 0] = [];
    assert!(estimate_camera(&none, &CameraSettings::default(), &mut ()).is_err());
}
