//! The library as a stranger's program uses it: arrays and files through the same walk, holes by one rule, an observer that
//! stops, and settings that are refused.

use clearshot::{
    Array, Candidate, Deconvolution, Device, Error, Event, KnownCamera, Method, Notice, Observer,
    PointSpread, Restorer, Settings, Stacks, Status, restore_file,
};
use clearshot_image::{Axis, DType, Description, Dim, Image, WriteOptions, Writer};
use clearshot_tensor::noise::Key;
use std::ops::ControlFlow;
use std::path::Path;

const CAMERA: KnownCamera = KnownCamera {
    gain: Some(0.5),
    offset: Some(100.0),
    read_noise: Some(1.5),
    background: None,
    dark: None,
    saturation: None,
    correlation: None,
};

fn settings() -> Settings {
    Settings { camera: CAMERA, ..Settings::default() }
}

/// A disc on a slope under a camera's noise.
fn noisy(shape: &[usize]) -> Vec<f32> {
    let width = shape[shape.len() - 1];
    let mut noise = vec![0.0; shape.iter().product()];
    Key { seed: 5, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let pixel = |(i, n): (usize, &f32)| {
        let (y, x) = ((i / width) as f32, (i % width) as f32);
        let disc = if (y % 40.0 - 20.0).powi(2) + (x - 30.0).powi(2) < 120.0 { 60.0 } else { 0.0 };
        let light = 20.0 + 0.2 * x + disc;
        100.0 + 2.0 * (light + n * (light + 2.25).sqrt())
    };
    noise.iter().enumerate().map(pixel).collect()
}

fn write(path: &Path, values: &[f32], shape: &[usize], axes: &str) {
    let dims = axes.chars().zip(shape).map(|(a, &n)| Dim::new(Axis::from_letter(a).unwrap(), n)).collect();
    let d = Description::new("TIFF", path, dims, DType::F32);
    let mut writer = Writer::create(path, &d, &WriteOptions::default()).unwrap();
    let region: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    writer.write(&region, &bytes).unwrap();
    writer.finish().unwrap();
}

fn read(path: &Path) -> Vec<f32> {
    let image = Image::open(path).unwrap();
    image.read_f32(&image.whole()).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn builtin() -> Restorer {
    Restorer::builtin_on(Device::cpu(Some(2))).unwrap()
}

/// An array and a file of the same values become the same, maps and all, by models and by classical methods.
#[test]
fn arrays_and_files_are_restored_alike() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, axes) = ([2, 40, 56], "CYX");
    let values = noisy(&shape);
    let path = folder.path().join("a.tif");
    write(&path, &values, &shape, axes);
    let array = Array::new(&values, &shape, axes).unwrap();
    let bm3d = Restorer::denoiser(Method::by_name("bm3d").unwrap());
    let lucy = Restorer::richardson_lucy(Deconvolution { steps: Some(3), ..Deconvolution::default() });
    let blurred = Settings { psf: Some(PointSpread::gaussian(&[1.2])), ..settings() };
    let only = Some(Candidate::Model);
    let maps =
        Settings { only, samples: 2, steps: 2, std: true, chi2: true, save_samples: true, ..settings() };
    let cases = [("model", builtin(), maps), ("bm3d", bm3d, settings()), ("lucy", lucy, blurred)];
    for (name, restorer, settings) in cases {
        let out = folder.path().join(format!("{name}.tif"));
        let report = restore_file(&path, &out, &restorer, &settings, &mut ()).unwrap();
        let made = restorer.restore(&array, &settings, &mut ()).unwrap();
        assert_eq!(bits(&made.image), bits(&read(&out)), "{name}");
        assert_eq!((&made.shape[..], made.axes.as_str()), (&shape[..], axes));
        assert_eq!(made.report.chi2, report.images[0].chi2, "{name}");
        assert_ne!(bits(&made.image), bits(&values), "{name}");
        let beside = |suffix: &str| read(&folder.path().join(format!("{name}_{suffix}.tif")));
        if name == "model" {
            assert_eq!(bits(made.std.as_ref().unwrap()), bits(&beside("std")));
            assert_eq!(bits(made.chi2.as_ref().unwrap()), bits(&beside("chi2")));
            assert_eq!(bits(&made.samples[1]), bits(&beside("sample2")));
            assert_eq!(report.images[0].written.len(), 5);
            // Once more, and there is nothing to do; in other tiles neither, for the result does not depend on them.
            for tile in [None, Some(16)] {
                let settings = Settings { tile, ..settings.clone() };
                let again = restore_file(&path, &out, &restorer, &settings, &mut ()).unwrap();
                assert!(again.is_already_done() && again.images[0].status == Status::AlreadyDone);
            }
            let other = Settings { seed: 9, ..settings };
            let refused = restore_file(&path, &out, &restorer, &other, &mut ()).unwrap_err();
            assert!(refused.to_string().contains("exists already"), "{refused}");
        }
    }
}

/// Types of numbers differ, what they mean does not.
#[test]
fn every_type_of_numbers_is_taken() {
    let shape = [24, 30];
    let whole: Vec<u16> = noisy(&shape).iter().map(|v| v.round() as u16).collect();
    let restorer = Restorer::denoiser(Method::by_name("median").unwrap());
    let median = |array: clearshot::Result<Array>| {
        restorer.restore(&array.unwrap(), &Settings::default(), &mut ()).unwrap().image
    };
    let expected = median(Array::new(&whole, &shape, "YX"));
    let floats: Vec<f64> = whole.iter().map(|&v| v.into()).collect();
    let signed: Vec<i32> = whole.iter().map(|&v| v.into()).collect();
    let bytes: Vec<u8> = whole.iter().flat_map(|v| v.to_ne_bytes()).collect();
    assert_eq!(median(Array::new(&floats, &shape, "YX")), expected);
    assert_eq!(median(Array::new(&signed, &shape, "YX")), expected);
    assert_eq!(median(Array::from_bytes(bytes, DType::U16, &shape, "YX")), expected);
    for (shape, axes) in [(&[30, 24, 2][..], "YXC"), (&[24, 30], "ZX"), (&[24, 30], "YY"), (&[24, 30], "YXC")]
    {
        assert!(matches!(Array::new(&whole, shape, axes), Err(Error::Array(_))), "{shape:?} {axes}");
    }
}

/// One rule for every restorer: what was not finite comes back as NaN, what was masked comes back filled.
#[test]
fn pixels_without_a_measurement() {
    let shape = [40, 48];
    let mut values = noisy(&shape);
    (values[100], values[101], values[900]) = (f32::NAN, f32::INFINITY, 60_000.0);
    let mut marked = vec![false; values.len()];
    marked[900] = true;
    let array = Array::new(&values, &shape, "YX").unwrap().with_mask(&marked).unwrap();
    let only = |only| Settings { only: Some(only), ..settings() };
    let classical = Restorer::denoiser(Method::by_name("bm3d").unwrap());
    for (restorer, settings) in
        [(builtin(), only(Candidate::Model)), (builtin(), only(Candidate::Bm3d)), (classical, settings())]
    {
        let made = restorer.restore(&array, &settings, &mut ()).unwrap();
        let none: Vec<usize> = (0..values.len()).filter(|&i| made.image[i].is_nan()).collect();
        assert_eq!(none, [100, 101]);
        assert!((120.0..400.0).contains(&made.image[900]), "{}", made.image[900]);
        assert_eq!(made.report.filled, 3);
    }
}

/// Stops at the first progress; keeps all events.
#[derive(Default)]
struct Impatient {
    notices: Vec<String>,
}

impl Observer for Impatient {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        assert!(0 < done && done <= total);
        ControlFlow::Break(())
    }

    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        if let Event::Notice(notice @ Notice::Estimated(_)) = event {
            self.notices.push(format!("{}: {notice}", image.display()));
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn an_observer_hears_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("a.tif"), folder.path().join("b.tif"));
    let shape = [2, 64, 64];
    write(&path, &noisy(&shape), &shape, "ZYX");
    let bm3d = Restorer::denoiser(Method::by_name("bm3d").unwrap());
    for restorer in [builtin(), bm3d] {
        let mut impatient = Impatient::default();
        let ended = restore_file(&path, &out, &restorer, &Settings::default(), &mut impatient);
        assert!(matches!(ended, Err(Error::Stopped)));
        assert!(!out.exists() && impatient.notices.len() == 1, "{:?}", impatient.notices);
        assert!(impatient.notices[0].contains("a.tif: "), "{:?}", impatient.notices);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no incomplete file is left");
}

/// An observer breaks at the first progress, so that an error other than that came before any work.
#[test]
fn outputs_that_cannot_hold_the_image_are_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("a.npy"), folder.path().join("b.ome.zarr"));
    let shape = [2, 2, 64, 64];
    write(&path, &noisy(&shape), &shape, "IJYX");
    let bm3d = Restorer::denoiser(Method::by_name("bm3d").unwrap());
    let ended = restore_file(&path, &out, &bm3d, &settings(), &mut Impatient::default());
    let said = ended.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("b.ome.zarr") && said.contains("IJYX"), "{said}");
}

#[test]
fn unsupported_requests_are_refused_by_name() {
    let array = Array::new(&noisy(&[32, 32]), &[32, 32], "YX").unwrap();
    let bm3d = Restorer::denoiser(Method::by_name("bm3d").unwrap());
    let key = |restorer: &Restorer, settings: &Settings| match restorer.restore(&array, settings, &mut ()) {
        Err(Error::Setting { key, .. }) => key,
        other => panic!("{:?}", other.map(|_| ())),
    };
    let base = settings;
    assert_eq!(key(&bm3d, &Settings { samples: 4, ..base() }), "samples");
    assert_eq!(key(&Restorer::wiener(0.01), &base()), "psf");
    assert_eq!(key(&Restorer::exposure(0.0), &base()), "ratio");
    let model = builtin();
    assert_eq!(key(&bm3d, &Settings { std: true, ..base() }), "std");
    assert_eq!(key(&model, &Settings { clip: Some(-1.0), ..base() }), "clip");
    assert_eq!(key(&model, &Settings { only: Some(Candidate::Raw), samples: 3, ..base() }), "only");
    // An error leaves the model as it was.
    let samples = Settings { samples: 1, sampler: "none".into(), ..base() };
    assert!(model.restore(&array, &samples, &mut ()).is_err());
    assert!(model.restore(&array, &base(), &mut ()).is_ok());
    let restored = model.restore(&array, &Settings { std: true, ..base() }, &mut ()).unwrap();
    assert_eq!(restored.std.map(|std| std.len()), Some(32 * 32), "the model states it without samples");
    let volumes = Settings { stacks: Stacks::Volumes, ..base() };
    assert!(bm3d.restore(&array, &volumes, &mut ()).unwrap_err().to_string().contains("Z, Y and X"));
}

#[test]
fn types_go_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Restorer>();
    check::<Array>();
    check::<Settings>();
    check::<Error>();
    check::<clearshot::Restored>();
    check::<clearshot::Report>();
}
