//! Pairs of files: scored as in scikit-image, with the estimated camera, in groups by name.

use clearshot_evaluate::files::{Grouping, Pairs, Terms};
use clearshot_evaluate::method::{Method, Raw, by_name};
use clearshot_evaluate::{Assumed, BEST_GAUSSIAN, Record, Restored, Scores, Store, Summary, report, run};
use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_physics::calibration::blind::Known;
use clearshot_restore::classical::{self, Noise, gaussian::Gaussian};
use clearshot_tensor::noise::Key;
use std::path::{Path, PathBuf};

const SIDE: usize = 64;

fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn write(path: &Path, values: &[f64], dtype: DType) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let dims = [Axis::Y, Axis::X].into_iter().map(|a| Dim::new(a, SIDE)).collect();
    let description = Description::new("", path, dims, dtype);
    let mut writer = Writer::create(path, &description, &WriteOptions::default()).unwrap();
    let mut bytes = Vec::new();
    dtype.encode(values, &mut bytes);
    writer.write(&[0..SIDE, 0..SIDE], &bytes).unwrap();
    writer.finish().unwrap();
}

fn pairs(at: &Path, terms: Terms) -> Pairs {
    Pairs::new(&at.join("truth").display().to_string(), &at.join("noisy").display().to_string(), terms)
        .unwrap()
}

fn given(gain: f64, offset: f64, read_noise: f64) -> Known {
    Known { gain: Some(gain), offset: Some(offset), read_noise: Some(read_noise), ..Known::default() }
}

fn raw(pairs: &Pairs) -> Scores {
    let case = pairs.case(0).unwrap();
    Scores::of(&case, &Raw.restore(&case.view).unwrap(), &Assumed::default()).unwrap()
}

/// Waves that a formula makes, as 8 bits.
fn waves() -> (Vec<f64>, Vec<f64>) {
    let at = |i: usize| ((i / SIDE) as f64, (i % SIDE) as f64);
    let truth = |i: usize| {
        let (y, x) = at(i);
        (110.0 + 60.0 * (0.21 * x).sin() + 45.0 * (0.17 * y + 0.03 * x).cos()).round()
    };
    let noisy = |i: usize| {
        let (y, x) = at(i);
        (0.8 * truth(i) + 12.0 + 25.0 * (1.9 * x + 2.7 * y).sin()).round().clamp(0.0, 255.0)
    };
    ((0..SIDE * SIDE).map(truth).collect(), (0..SIDE * SIDE).map(noisy).collect())
}

/// (range, fitted, PSNR, SSIM) of the waves by scikit-image 0.26: `peak_signal_noise_ratio` and `structural_similarity` with
/// `data_range`, 255 where none is given, after numpy's `polyfit` of degree 1 where it is fitted.
const SCIKIT: [(Option<f64>, bool, f64, f64); 4] = [
    (None, false, 21.115914304169227, 0.637014852386668),
    (Some(255.0), true, 21.979395648589374, 0.6268633163665506),
    (Some(40.0), false, 5.02631052204937, 0.609835477394286),
    (Some(40.0), true, 5.889791866469515, 0.6013763294582453),
];

#[test]
fn scores_are_those_of_scikit_image() {
    let at = folder("scikit");
    let (truth, noisy) = waves();
    write(&at.join("truth/a_1.tif"), &truth, DType::U8);
    write(&at.join("noisy/a_1.tif"), &noisy, DType::U8);
    for (range, fit, psnr, ssim) in SCIKIT {
        // Whatever the camera, scores are in counts.
        for known in [given(1.0, 0.0, 1.0), given(0.37, 7.5, 2.0)] {
            let s = raw(&pairs(&at, Terms { known, range, fit, ..Terms::default() }));
            assert!((s.psnr - psnr).abs() < 1e-6, "{range:?} {fit}: {} {psnr}", s.psnr);
            assert!((s.ssim - ssim).abs() < 1e-6, "{range:?} {fit}: {} {ssim}", s.ssim);
        }
    }
}

/// Without a given range that of floats is the truth's own, and a fit takes a gain and an offset away entirely.
#[test]
fn ranges_and_fits() {
    let at = folder("ranges");
    let truth: Vec<f64> = (0..SIDE * SIDE).map(|i| if i % SIDE < 16 { 0.0 } else { 0.4 }).collect();
    let off: Vec<f64> = truth.iter().map(|t| t + 0.04).collect();
    write(&at.join("truth/a.tif"), &truth, DType::F32);
    write(&at.join("noisy/a.tif"), &off, DType::F32);
    let known = given(2.0, 0.0, 1.0);
    let plain = Terms { known, ..Terms::default() };
    let case = pairs(&at, plain).case(0).unwrap();
    assert!((case.peak - 0.8).abs() < 1e-6, "{}", case.peak);
    // An error of a tenth of the range.
    assert!((raw(&pairs(&at, plain)).psnr - 20.0).abs() < 1e-4);
    assert!((raw(&pairs(&at, Terms { range: Some(0.04), ..plain })).psnr).abs() < 1e-4);
    let fitted = raw(&pairs(&at, Terms { fit: true, ..plain }));
    assert!(fitted.psnr > 120.0 && fitted.ssim > 0.999_999, "{fitted:?}");
    // A quarter of the exposure and the same relative error: scaled, nothing else, it scores as before.
    let short: Vec<f64> = off.iter().map(|v| 0.25 * v).collect();
    std::fs::remove_file(at.join("noisy/a.tif")).unwrap();
    write(&at.join("noisy/a.tif"), &short, DType::F32);
    let short = pairs(&at, Terms { exposure: 0.25, ..plain });
    assert!((short.case(0).unwrap().peak - 0.2).abs() < 1e-6);
    assert!((raw(&short).psnr - 20.0).abs() < 1e-4);
}

/// With a fit, clean files may be in any unit: numbers from 0 to 1 beside counts above an offset score as counts do, and are not taken for dark.
#[test]
fn fitted_clean_files_have_any_unit() {
    let at = folder("units");
    let counts: Vec<f64> = (0..SIDE * SIDE).map(|i| 120.0 + 3.0 * (i % SIDE) as f64).collect();
    let shares: Vec<f64> = counts.iter().map(|c| (c - 120.0) / 200.0).collect();
    write(&at.join("noisy/a.tif"), &noisy(&counts, 0.5, 100.0, 3), DType::F32);
    let terms = Terms { known: given(0.5, 100.0, 2.0), fit: true, ..Terms::default() };
    let [in_counts, in_shares] = [counts, shares].map(|truth| {
        write(&at.join("truth/a.tif"), &truth, DType::F32);
        let pairs = pairs(&at, terms);
        let psnr = raw(&pairs).psnr;
        std::fs::remove_file(at.join("truth/a.tif")).unwrap();
        psnr
    });
    assert!((in_counts - in_shares).abs() < 1e-3, "{in_counts} {in_shares}");
}

/// Electrons of a smooth picture under a camera's noise, in counts.
fn noisy(truth: &[f64], gain: f64, offset: f64, seed: u64) -> Vec<f64> {
    let mut noise = vec![0.0f32; truth.len()];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let pixel = |(t, n): (&f64, &f32)| {
        let electrons = (t - offset) * gain;
        offset + (electrons + f64::from(*n) * (electrons + 4.0).sqrt()) / gain
    };
    truth.iter().zip(&noise).map(pixel).collect()
}

/// What is not given of the camera is found in each file, and what is given holds.
#[test]
fn the_camera_is_found_in_each_file() {
    let at = folder("found");
    let truth: Vec<f64> = (0..SIDE * SIDE).map(|i| 120.0 + 30.0 * (i / SIDE) as f64).collect();
    for (i, gain) in [0.5, 2.0].into_iter().enumerate() {
        write(&at.join(format!("truth/a_{i}.tif")), &truth, DType::F32);
        write(&at.join(format!("noisy/a_{i}.tif")), &noisy(&truth, gain, 100.0, i as u64), DType::F32);
    }
    let found =
        pairs(&at, Terms { known: Known { offset: Some(100.0), ..Known::default() }, ..Terms::default() });
    for (i, gain) in [0.5, 2.0].into_iter().enumerate() {
        let view = found.case(i).unwrap().view;
        assert!((view.gain / gain - 1.0).abs() < 0.25, "{} for {gain}", view.gain);
        assert_eq!(view.offset, 100.0);
        assert!(found.name(i).unwrap().contains(&format!("{:?}", view.gain)));
    }
    let assumed = pairs(&at, Terms { known: given(3.0, 50.0, 1.0), ..Terms::default() });
    assert_eq!(assumed.case(1).unwrap().view.gain, 3.0);
}

/// No other blur is better by the truth; the oracle's row is bold nowhere and nothing is compared with it.
#[test]
fn the_best_blur_is_an_oracle() {
    let at = folder("oracle");
    let truth: Vec<f64> = (0..SIDE * SIDE)
        .map(|i| 300.0 + 150.0 * (0.3 * (i % SIDE) as f64).sin() * (0.2 * (i / SIDE) as f64).cos())
        .collect();
    for i in 0..3 {
        write(&at.join(format!("truth/s_{i}.tif")), &truth, DType::F32);
        write(&at.join(format!("noisy/s_{i}.tif")), &noisy(&truth, 0.1, 0.0, 9 + i), DType::F32);
    }
    let pairs = pairs(&at, Terms { known: given(0.1, 0.0, 2.0), ..Terms::default() });
    let best = by_name(BEST_GAUSSIAN).unwrap();
    let case = pairs.case(0).unwrap();
    let psnr = |restored: Restored| Scores::of(&case, &restored, &Assumed::default()).unwrap().psnr;
    let reached = psnr(best.restore_case(&case).unwrap());
    for i in 0..40 {
        let blur = classical::Method::Gaussian(Gaussian { sigma: 0.1 * i as f32 });
        let mean = blur.run(&case.view.electrons, &case.view.shape, Noise::white(0.0)).unwrap();
        assert!(psnr(Restored { mean, std: None, reach: None }) < reached + 1e-3, "{i}");
    }
    assert!(best.restore(&case.view).is_err());
    let methods: Vec<Box<dyn Method>> = vec![Box::new(Raw), best];
    let (name, case) = (|n: usize| pairs.name(n), |n: usize| pairs.case(n));
    let records: Vec<Record> = run(
        &methods,
        pairs.len(),
        &name,
        &case,
        &Assumed::default(),
        true,
        &mut Store::default(),
        &mut |_| (),
    )
    .unwrap();
    let summary = Summary::grouped(&records, &|n| Grouping::Numbered.of(n)).unwrap();
    assert_eq!((summary.cells.len(), summary.cells[0].images), (2, 3));
    let text = report::markdown("t", &[], &summary);
    let row = text.lines().find(|l| l.starts_with("| s | 3 |")).unwrap();
    let bold: Vec<bool> = row.split('|').skip(3).take(2).map(|c| c.contains("**")).collect();
    assert_eq!(bold, [true, false], "{row}");
}

/// Rows are groups with their number of images, the last one the mean of the groups and not of the images.
#[test]
fn a_table_has_a_row_a_group() {
    let record = |file: &str, index: u32, psnr: f64| Record {
        key: file.into(),
        method: "raw".into(),
        learned: false,
        oracle: false,
        scene: file.into(),
        peak: 10.0 + f64::from(index),
        index,
        outcome: clearshot_evaluate::Outcome::Scores(Scores {
            psnr,
            ssim: 0.5,
            mae: 0.0,
            chi2: 1.0,
            coverage: None,
            spread: None,
        }),
    };
    let records = [record("a_1.tif", 0, 20.0), record("a_2.tif", 1, 22.0), record("b_1.tif", 2, 31.0)];
    let summary = Summary::grouped(&records, &|n| Grouping::Numbered.of(n)).unwrap();
    assert_eq!(summary.rows[0].psnr, 26.0);
    let text = report::markdown("t", &[], &summary);
    assert!(text.contains("| a | 2 | **21.00 ± "), "{text}");
    assert!(
        text.contains("| b | 1 | **31.00** |") && text.contains("| mean of 2 groups | 3 | **26.00** |"),
        "{text}"
    );
    assert!(text.contains("| b | 1 | **0.5000** |"), "{text}");
    assert!(report::html("t", &[], &summary, &[], &[]).contains("<td>b</td><td>1</td>"));
}
