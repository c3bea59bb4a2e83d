//! Records, summaries, reports and gates: nothing is computed twice, and known numbers are right.

use clearshot_evaluate::method::{Method, Raw, by_name, names};
use clearshot_evaluate::{
    Assumed, Bench, DEFAULT, EvaluateError, Learned, Outcome, Record, Restored, Scores, Store, Summary,
    Verdict, View, gate, report, run, stress,
};
use clearshot_image::dataset::{Normaliser, Range};
use clearshot_model::{About, Model, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Tensor};
use std::cell::Cell;
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn bench(count: u32) -> Bench {
    Bench {
        scenes: vec!["nuclei".into(), "filaments".into()],
        peaks: vec![5.0, 50.0],
        count,
        size: 48,
        seed: 3,
        ..Bench::default()
    }
}

/// A method that counts how often it is asked, and knows the truth up to a shift.
struct Counted {
    name: String,
    learned: bool,
    asked: Cell<usize>,
    shrink: f32,
}

impl Method for Counted {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_learned(&self) -> bool {
        self.learned
    }

    fn restore(&self, view: &View) -> Result<Restored, String> {
        self.asked.set(self.asked.get() + 1);
        let background = view.background as f32;
        let mean = view.electrons.iter().map(|e| background + self.shrink * (e - background)).collect();
        Ok(Restored { mean, std: None, reach: None })
    }
}

fn records(bench: &Bench, methods: &[Box<dyn Method>], store: &mut Store) -> Vec<Record> {
    let (name, case) = (|n: usize| Ok(bench.name(n)), |n: usize| bench.case(n));
    run(methods, bench.len(), &name, &case, &bench.assumed, true, store, &mut |_| ()).expect("records")
}

#[test]
fn the_number_of_records_is_the_product_and_done_ones_are_skipped() {
    let path = folder("resume").join("records.jsonl");
    let bench = bench(3);
    let methods = || -> Vec<Box<dyn Method>> { vec![Box::new(Raw), by_name("gat+median").unwrap()] };
    let first = records(&bench, &methods(), &mut Store::open(&path).unwrap());
    assert_eq!(first.len(), 2 * 2 * 2 * 3);
    let keys: std::collections::HashSet<&str> = first.iter().map(|r| r.key.as_str()).collect();
    assert_eq!(keys.len(), first.len());
    let written = std::fs::read(&path).unwrap();
    // Everything is there: nothing is made, and nothing is written.
    let again = records(&bench, &methods(), &mut Store::open(&path).unwrap());
    assert_eq!((again, std::fs::read(&path).unwrap()), (first.clone(), written.clone()));
    // A run that was cut off in the middle of a line resumes from the last complete one.
    std::fs::write(&path, &written[..written.len() * 2 / 3]).unwrap();
    let mut store = Store::open(&path).unwrap();
    assert!(store.len() < first.len() && !store.is_empty());
    assert_eq!(records(&bench, &methods(), &mut store), first);
    assert_eq!(Store::open(&path).unwrap().len(), first.len());
    // Or in the middle of a letter.
    std::fs::write(&path, [&written[..], "{\"key\": \"\u{3b1}".as_bytes().split_last().unwrap().1].concat())
        .unwrap();
    assert_eq!(Store::open(&path).unwrap().len(), first.len());
    std::fs::write(&path, "not a record\n").unwrap();
    let said = Store::open(&path).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("line 1 is not a record"), "{said}");
}

#[test]
fn another_setting_is_another_record() {
    let counted =
        |name: &str| Counted { name: name.into(), learned: false, asked: Cell::new(0), shrink: 0.5 };
    let mut store = Store::default();
    let one: Vec<Box<dyn Method>> = vec![Box::new(counted("a"))];
    let few = Bench { scenes: vec!["nuclei".into()], peaks: vec![5.0], ..bench(1) };
    records(&few, &one, &mut store);
    for other in [
        Bench { size: 40, ..few.clone() },
        Bench { seed: 4, ..few.clone() },
        Bench { psf_sigma: Some(1.0), ..few.clone() },
        Bench { assumed: Assumed { gain: 1.2, ..Assumed::default() }, ..few.clone() },
    ] {
        let before = store.len();
        records(&other, &one, &mut store);
        assert_eq!(store.len(), before + 1, "{other:?}");
    }
}

/// Scores are taken from the store under the method's present name; a failure is tried again.
#[test]
fn stored_names_and_failures_are_not_kept() {
    struct Renamed {
        name: &'static str,
        works: bool,
    }
    impl Method for Renamed {
        fn name(&self) -> &str {
            self.name
        }
        fn identity(&self) -> String {
            "the same weights".into()
        }
        fn restore(&self, view: &View) -> Result<Restored, String> {
            if self.works { Raw.restore(view) } else { Err("out of memory".into()) }
        }
    }
    let path = folder("renamed").join("records.jsonl");
    let few = Bench { scenes: vec!["nuclei".into()], peaks: vec![5.0], ..bench(2) };
    let made = |name: &'static str, works: bool| {
        let methods: Vec<Box<dyn Method>> = vec![Box::new(Renamed { name, works })];
        records(&few, &methods, &mut Store::open(&path).unwrap())
    };
    let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
    assert!(made("first", false).iter().all(|r| r.scores().is_none()) && lines() == 2);
    // Repeated failures add no lines.
    assert!(made("first", false).iter().all(|r| r.scores().is_none()) && lines() == 2);
    assert!(made("first", true).iter().all(|r| r.scores().is_some()) && lines() == 4);
    // With scores in the store nothing is made, so that it does not matter whether it would work.
    let again = made("second", false);
    assert!(again.iter().all(|r| r.scores().is_some() && r.method == "second") && lines() == 4);
}

/// The truth has no error, its chi2 is 1 within what chance allows, and known intervals cover what they should.
#[test]
fn the_truth_scores_as_the_truth() {
    let bench = Bench { size: 128, ..bench(2) };
    for number in 0..bench.len() {
        let case = bench.case(number).unwrap();
        let pixels = case.truth.len() as f64;
        let perfect = Restored { mean: case.truth.clone(), std: None, reach: None };
        let s = Scores::of(&case, &perfect, &Assumed::default()).unwrap();
        assert_eq!((s.psnr, s.mae, s.coverage), (150.0, 0.0, None));
        assert!((s.ssim - 1.0).abs() < 1e-9);
        let kurtosis = 1.0 / (case.background + case.read_noise.powi(2));
        assert!((s.chi2 - 1.0).abs() < 4.0 * ((2.0 + kurtosis) / pixels).sqrt(), "{}", s.chi2);
        // The measurement is normal enough for its own intervals at a peak of 50 and a bright background.
        let std =
            case.truth.iter().map(|&m| (f64::from(m) + case.read_noise.powi(2)).sqrt() as f32).collect();
        let noisy = Restored { mean: case.view.electrons.clone(), std: Some(std), reach: None };
        let covered = Scores::of(&case, &noisy, &Assumed::default()).unwrap().coverage.unwrap();
        assert!((covered - 0.9).abs() < 0.02, "{covered}");
        // From three samples an interval is wider: Student's 2.92 in place of 1.64 standard deviations.
        let few = Restored { reach: Some(2.92), ..noisy };
        let covered = Scores::of(&case, &few, &Assumed::default()).unwrap().coverage.unwrap();
        assert!(covered > 0.985, "{covered}");
    }
}

/// PSNR by hand: a constant error of a tenth of the peak is 20 dB.
#[test]
fn scores_are_in_units_of_the_peak() {
    let case = Bench { peaks: vec![50.0], ..bench(1) }.case(0).unwrap();
    let off: Vec<f32> = case.truth.iter().map(|t| t + 5.0).collect();
    let s = Scores::of(&case, &Restored { mean: off, std: None, reach: None }, &Assumed::default()).unwrap();
    assert!((s.psnr - 20.0).abs() < 1e-4 && (s.mae - 0.1).abs() < 1e-6, "{s:?}");
    // What lies beyond 1.5 peaks or below the background is clipped before PSNR.
    let below: Vec<f32> = case.truth.iter().map(|t| if *t < 2.1 { -100.0 } else { *t }).collect();
    let s =
        Scores::of(&case, &Restored { mean: below, std: None, reach: None }, &Assumed::default()).unwrap();
    assert!(s.psnr > 50.0 && s.mae > 0.1, "{s:?}");
}

#[test]
fn a_failing_method_is_reported_and_the_others_run() {
    struct Broken;
    impl Method for Broken {
        fn name(&self) -> &str {
            "broken"
        }
        fn restore(&self, view: &View) -> Result<Restored, String> {
            match view.seed % 2 {
                0 => Err("out of order".into()),
                _ => Ok(Restored { mean: vec![f32::NAN; view.electrons.len()], std: None, reach: None }),
            }
        }
    }
    let methods: Vec<Box<dyn Method>> = vec![Box::new(Raw), Box::new(Broken)];
    let found = records(&bench(2), &methods, &mut Store::default());
    let summary = Summary::of(&found).unwrap();
    assert_eq!(summary.failures.len(), 8);
    assert!(summary.rows.iter().all(|r| r.method == "raw"));
    let text = report::markdown("t", &[], &summary);
    assert!(text.contains("out of order") && text.contains("not finite"), "{text}");
    assert!(report::csv(&found).contains("out of order"));
    assert!(found.iter().any(|r| matches!(r.outcome, Outcome::Failed(_))));
}

fn scored(method: &str, learned: bool, index: u32, psnr: f64) -> Record {
    let scores = Scores {
        psnr,
        ssim: psnr / 50.0,
        mae: 0.0,
        chi2: 1.0,
        coverage: learned.then_some(0.9),
        spread: None,
    };
    Record {
        key: format!("{method}{index}"),
        method: method.into(),
        learned,
        oracle: false,
        scene: "nuclei".into(),
        peak: 20.0,
        index,
        outcome: Outcome::Scores(scores),
    }
}

#[test]
fn cells_without_a_win_are_listed() {
    let table = |gain: [f64; 6]| {
        let mut all = Vec::new();
        for (i, g) in gain.iter().enumerate() {
            let base = 30.0 + i as f64;
            all.push(scored("old", false, i as u32, base - 3.0));
            all.push(scored("best", false, i as u32, base));
            all.push(scored("net", true, i as u32, base + g));
        }
        Summary::of(&all).unwrap()
    };
    let worse = table([-1.0, -1.1, -0.9, -1.0, -1.2, -0.8]);
    let c = &worse.comparisons[0];
    assert_eq!((c.against.as_str(), c.verdict), ("best", Verdict::Worse));
    assert!((c.gain.0 + 1.0).abs() < 1e-9 && c.gain.1 < -0.9 && c.gain.2 > -1.1, "{c:?}");
    let said = report::markdown("t", &[], &worse);
    assert!(said.contains("In 1 of 1 cells their mean is not above"), "{said}");
    assert!(said.contains("| net | nuclei | 20 | best | -1.00"), "{said}");
    assert!(!said.contains("so few images"), "{said}");
    assert!(report::html("t", &[], &worse, &[], &[]).contains("net is worse than best"));
    let better = table([1.0, 1.1, 0.9, 1.0, 1.2, 0.8]);
    assert_eq!(better.comparisons[0].verdict, Verdict::Better);
    let said = report::markdown("t", &[], &better);
    assert!(said.contains("Nowhere: in all 1 cells") && !said.contains("so few images"), "{said}");
    let unclear = table([1.0, -1.1, 0.9, -1.0, 1.2, -0.8]);
    assert_eq!(unclear.comparisons[0].verdict, Verdict::NoDifference);
    assert_eq!((unclear.lower().count(), unclear.unclear().count()), (0, 1));
    for said in [report::markdown("t", &[], &unclear), report::html("t", &[], &unclear, &[], &[])] {
        assert!(said.contains("Nowhere: in all 1 cells their mean is above"), "{said}");
        assert!(said.contains("In 1 of 1 cells it is above, but with so few images"), "{said}");
    }
    assert!(report::html("t", &[], &unclear, &[], &[]).contains("net is better than, but not clearly, best"));
}

/// A single image gives no test; the files of a group are one cell, with any peaks.
#[test]
fn a_single_image_is_never_clear_and_a_group_of_files_is_a_cell() {
    let alone = Summary::of(&[scored("best", false, 0, 30.0), scored("net", true, 0, 40.0)]).unwrap();
    assert_eq!((alone.comparisons[0].p, alone.comparisons[0].verdict), (None, Verdict::NoDifference));
    let mut all = Vec::new();
    for i in 0..4u32 {
        let file = |r: Record| Record { scene: format!("{i}.tif"), peak: 10.126 + f64::from(i), ..r };
        let base = 30.0 + f64::from(i);
        all.push(file(scored("best", false, i, base)));
        all.push(file(scored("net", true, i, base + 1.0 + 0.01 * f64::from(i))));
    }
    all.push(Record { outcome: Outcome::Failed("out of order".into()), ..all[0].clone() });
    let files = Summary::grouped(&all, &|_| "files".into()).unwrap();
    assert_eq!((files.cells.len(), files.cells[0].images, files.comparisons.len()), (2, 4, 1));
    // The mean of the peaks of nine records, to three digits.
    assert_eq!(files.comparisons[0].peak, 11.5);
    assert_eq!(files.comparisons[0].verdict, Verdict::Better);
    let (_, scene, peak, ..) = &files.failures[0];
    assert_eq!((scene.as_str(), *peak), ("0.tif", 10.1));
}

#[test]
fn a_model_that_is_worse_does_not_pass() {
    let summary = |records: &[Record]| Summary::of(records).unwrap();
    let all: Vec<Record> = (0..3)
        .flat_map(|i| [scored("a", true, i, 30.0), scored("b", true, i, 28.6), scored("c", true, i, 28.4)])
        .collect();
    let s = summary(&all);
    let failed = |old: &str, new: &str| {
        let checks = gate::compare(&s, old, &s, new).unwrap();
        checks.iter().filter(|c| !c.passes).map(|c| c.metric).collect::<Vec<_>>()
    };
    assert!(failed("a", "b").is_empty() && failed("c", "a").is_empty());
    // 28.4 is under 95 % of 30, here and over all; SSIM follows it in this table.
    assert_eq!(failed("a", "c"), ["psnr", "ssim", "psnr", "ssim"]);
    assert!(matches!(gate::compare(&s, "a", &s, "z"), Err(EvaluateError::NothingCommon(..))));
    // Losing the intervals is a loss.
    let plain: Vec<Record> = all.iter().cloned().chain((0..3).map(|i| scored("d", false, i, 30.0))).collect();
    let s = summary(&plain);
    let lost = gate::compare(&s, "a", &s, "d").unwrap();
    assert!(lost.iter().any(|c| c.metric == "coverage" && !c.passes));
    // So is failing on an image, however good the others are, and on all of a cell.
    let elsewhere = |r: Record| Record { scene: "stars".into(), ..r };
    let mut few: Vec<Record> = (0..3).map(|i| scored("a", true, i, 30.0)).collect();
    few.extend((0..3).map(|i| elsewhere(scored("a", true, i, 30.0))));
    few.extend((0..2).map(|i| scored("e", true, i, 40.0)));
    let s = summary(&few);
    let lost: Vec<_> = gate::compare(&s, "a", &s, "e").unwrap().into_iter().filter(|c| !c.passes).collect();
    assert_eq!(
        lost.iter().map(|c| (c.metric, c.old, c.new)).collect::<Vec<_>>(),
        [("images", 3.0, 2.0), ("images", 3.0, 0.0)]
    );
}

#[test]
fn reports_of_the_same_records_are_the_same_bytes() {
    let methods = || -> Vec<Box<dyn Method>> { vec![Box::new(Raw), by_name("gaussian").unwrap()] };
    let made = || {
        let found = records(&bench(2), &methods(), &mut Store::default());
        let summary = Summary::of(&found).unwrap();
        let about = ["x | y".to_string()];
        [
            report::markdown("t", &about, &summary),
            report::csv(&found),
            report::json(&summary),
            report::html("t", &about, &summary, &[], &["next".into()]),
        ]
    };
    let (a, b) = (made(), made());
    assert_eq!(a, b);
    assert!(a[0].contains("x \\| y") && a[1].lines().count() == 1 + 2 * 8);
    let back: serde_json::Value = serde_json::from_str(&a[2]).unwrap();
    assert_eq!(back["rows"].as_array().unwrap().len(), 2);
    assert!(a[3].matches("<svg").count() == 2 && a[3].contains("<li>next</li>"));
}

/// A wrong gain costs, and costs more the more it is wrong.
#[test]
fn wrong_cameras_cost() {
    let method: Vec<Box<dyn Method>> = vec![by_name("gat+nlm").unwrap()];
    let psnr = |gain: f64| {
        let b = Bench {
            scenes: vec!["nuclei".into()],
            peaks: vec![20.0],
            assumed: Assumed { gain, ..Assumed::default() },
            size: 64,
            ..bench(4)
        };
        Summary::of(&records(&b, &method, &mut Store::default())).unwrap().rows[0].psnr
    };
    let curve = [0.4, 0.7, 1.0].map(psnr);
    assert!(curve[0] < curve[1] && curve[1] < curve[2], "{curve:?}");
}

#[test]
fn empty_pictures_stay_empty_and_faint_lines_are_found() {
    let bench = Bench { count: 4, size: 64, seed: 5, ..Bench::default() };
    let raw = stress::blank_field(&Raw, 20.0, &bench).unwrap();
    // The noise of a mean over 4 x 4096 pixels: nothing is invented, and 0 is in the interval.
    assert!(raw.low <= 0.0 && 0.0 <= raw.high, "{raw:?}");
    let smooth = stress::blank_field(by_name("gaussian").unwrap().as_ref(), 20.0, &bench).unwrap();
    assert!(smooth.brightest < raw.brightest, "{smooth:?} {raw:?}");
    let line = |amplitude| stress::faint_line(&Raw, 20.0, amplitude, &bench).unwrap();
    let (faint, strong) = (line(0.1), line(0.5));
    assert!((strong.recovered - 1.0).abs() < 0.1, "{strong:?}");
    assert!(strong.contrast > 3.0 && strong.contrast > faint.contrast, "{strong:?} {faint:?}");
    // With light enough that noise does not count, all of a line comes back, whatever the size.
    for size in [32, 33, 34, 35] {
        let line = stress::faint_line(&Raw, 1e6, 1.0, &Bench { size, ..bench.clone() }).unwrap();
        assert!((line.recovered - 1.0).abs() < 1e-3, "{size}: {line:?}");
    }
}

#[test]
fn wrong_names_and_numbers_are_refused() {
    let said = |name: &str| by_name(name).map(|_| ()).unwrap_err().to_string();
    assert_eq!(said("gat+bm3"), "there is no method 'gat+bm3'; the nearest is 'gat+bm3d'");
    assert!(said("something else").contains("models by file"));
    assert_eq!(names().len(), 2 * 6 + 3);
    let wrong = |b: Bench| assert!(b.check().is_err(), "{b:?}");
    wrong(Bench { scenes: vec!["nucleii".into()], ..bench(1) });
    wrong(Bench { scenes: vec![], ..bench(1) });
    wrong(Bench { peaks: vec![0.0], ..bench(1) });
    wrong(Bench { peaks: vec![f64::NAN], ..bench(1) });
    wrong(Bench { assumed: Assumed { psf: -1.0, ..Assumed::default() }, ..bench(1) });
    wrong(bench(0));
}

/// A model that was trained on files sees their counts, whatever gain and offset they become electrons by.
#[test]
fn a_model_of_files_sees_counts() {
    let config =
        r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 1, "time": false}"#;
    let params = models::read(config).unwrap().parameters().unwrap();
    let mut weights = weights::initial(&params, 5);
    // What begins at zero would hide what the network is given.
    for (i, t) in weights.values_mut().enumerate() {
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
        let values: Vec<f32> = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.05 * n).collect();
        *t = Tensor::f32(t.shape(), values);
    }
    let limits = Normaliser { range: Range::MinMax, low: 100.0, high: 300.0, clip: false };
    let signal = Signal::Fixed { input: limits, target: Some(limits) };
    let about = About::new("files", Task::Regression, signal, 1, &[32, 32]);
    let path = folder("fixed").join("files.clearshot");
    Model::new(about, config.into(), weights).unwrap().save_file(&path, DType::F32).unwrap();
    let device = clearshot_runtime::Device::cpu(None);
    let method = Learned::open(&path.display().to_string(), Default::default(), device).unwrap();
    let counts: Vec<f32> = (0..32 * 32).map(|i| 100.0 + (i * 37 % 200) as f32).collect();
    let restored = |gain: f64, offset: f64| {
        let electrons = counts.iter().map(|&c| ((f64::from(c) - offset) * gain) as f32).collect();
        let shape = vec![32, 32];
        let view = View {
            electrons,
            gain,
            offset,
            shape,
            background: 0.0,
            read_noise: 1.0,
            correlation: Default::default(),
            saturation: None,
            psf: None,
            seed: 1,
        };
        method.restore(&view).unwrap().mean
    };
    let (plain, scaled) = (restored(1.0, 0.0), restored(0.5, 100.0));
    assert!(plain.iter().any(|v| (v - plain[0]).abs() > 1e-3), "the network ignores what it is given");
    for (p, s) in plain.iter().zip(&scaled) {
        assert!((0.5 * (p - 100.0) - s).abs() < 1e-3, "{p} {s}");
    }
}

/// Zeros, saturation, less than a photon, one row, one column, a few pixels, NaN: a finite image or a reason, never a panic.
#[test]
fn extreme_pictures_are_restored_or_refused() {
    let mut methods: Vec<Box<dyn Method>> = names().iter().map(|n| by_name(n).unwrap()).collect();
    let device = clearshot_runtime::Device::cpu(None);
    methods.push(Box::new(Learned::open(DEFAULT, Default::default(), device).unwrap()));
    let faint: Vec<f32> = (0..24 * 24).map(|i| f32::from(u8::from(i % 7 == 0))).collect();
    for (shape, electrons) in [
        (vec![24, 24], vec![0.0; 24 * 24]),
        (vec![24, 24], vec![65535.0; 24 * 24]),
        (vec![24, 24], faint),
        (vec![1, 64], (0..64).map(|i| i as f32).collect()),
        (vec![64, 1], (0..64).map(|i| i as f32).collect()),
        (vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        (vec![24, 24], vec![f32::NAN; 24 * 24]),
        (vec![24, 24], vec![-5.0; 24 * 24]),
    ] {
        let view = View {
            electrons,
            gain: 1.0,
            offset: 0.0,
            shape,
            background: 0.5,
            read_noise: 1.0,
            correlation: Default::default(),
            saturation: None,
            psf: None,
            seed: 1,
        };
        for method in &methods {
            match method.restore(&view) {
                Ok(r) => {
                    assert_eq!(r.mean.len(), view.electrons.len());
                    let is_raw = method.name() == "raw";
                    assert!(
                        is_raw || r.mean.iter().all(|v| v.is_finite()),
                        "{} {:?}",
                        method.name(),
                        view.shape
                    );
                }
                Err(why) => assert!(why.len() > 10, "{}: {why}", method.name()),
            }
        }
    }
}
