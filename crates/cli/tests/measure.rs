//! Every metric through `clearshot measure`: beside closed forms, or beside numbers that scikit-image, scipy and numpy gave for
//! images that a formula makes.

mod program;

use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::Path;

fn npy(path: &Path, shape: [usize; 2], values: &[f64]) {
    assert_eq!(values.len(), shape[0] * shape[1]);
    numbers(path, shape, "<f8", values.iter().flat_map(|v| v.to_le_bytes()));
}

fn numbers(path: &Path, [height, width]: [usize; 2], kind: &str, bytes: impl Iterator<Item = u8>) {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({height}, {width}), }}");
    let header = format!("{header:<117}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(bytes);
    std::fs::write(path, file).unwrap();
}

fn made(shape: [usize; 2], value: impl Fn(f64, f64, f64) -> f64) -> Vec<f64> {
    (0..shape[0] * shape[1]).map(|i| value((i / shape[1]) as f64, (i % shape[1]) as f64, i as f64)).collect()
}

fn lines(line: &str, at: &Path) -> Vec<Value> {
    must(line, at).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

fn one(line: &str, at: &Path) -> Value {
    let mut all = lines(line, at);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[track_caller]
fn close(record: &Value, key: &str, expected: f64, within: f64) {
    let got = record[key].as_f64().unwrap_or_else(|| panic!("{key}: {record}"));
    assert!(
        (got - expected).abs() <= within * expected.abs().max(1e-12),
        "{key}: {got}, and {expected} is right"
    );
}

fn wave(i: f64) -> f64 {
    0.5 + 0.3 * (0.37 * i).sin() + 0.1 * (0.011 * i * i).cos()
}

fn restored(i: f64) -> f64 {
    wave(i) + 0.08 * (1.9 * i + 0.3).sin()
}

/// scikit-image 0.26; ms-ssim from its Gaussian filter and numpy's block means.
#[test]
fn similarities_equal_scikit_image() {
    let at = folder("measure-similarity");
    let shape = [50, 47];
    npy(&at.join("t.npy"), shape, &made(shape, |_, _, i| wave(i)));
    npy(&at.join("x.npy"), shape, &made(shape, |_, _, i| restored(i)));
    let got = one(
        "measure --truth t.npy --image x.npy --range 1.3 --metric psnr,ssim,ssim-gaussian,ms-ssim,nrmse,mae --json",
        &at,
    );
    close(&got, "psnr", 27.22859098106405, 1e-11);
    close(&got, "ssim", 0.9686674752840507, 1e-11);
    close(&got, "ssim_gaussian", 0.9689793745294774, 1e-11);
    close(&got, "ms_ssim", 0.991424746206735, 1e-11);
    close(&got, "nrmse", 0.10266228810018405, 1e-11);
    close(&got, "mae", 0.050926495458821296, 1e-11);
    assert_eq!(got["ms_ssim_scales"], 3.0);
}

/// Two images against numpy's transform, window and rings; the curve crosses 1/7 behind its sixth ring.
#[test]
fn ring_correlation_of_two_images_equals_numpy() {
    let at = folder("measure-frc");
    let shape = [48, 48];
    let scene = |y: f64, x: f64| {
        (0.21 * y + 0.13 * x).cos() + (0.4 * x - 0.3 * y).sin() + (0.002 * (y * y + x * x)).cos()
    };
    npy(&at.join("a.npy"), shape, &made(shape, |y, x, i| scene(y, x) + 0.6 * (1.7 * i * i + 0.4).sin()));
    npy(&at.join("b.npy"), shape, &made(shape, |y, x, i| scene(y, x) + 0.6 * (2.3 * i * i + 1.1).sin()));
    let got = one("measure --truth a.npy --image b.npy --metric frc --json", &at);
    close(&got, "frc", 6.987430231954659, 1e-7);
    assert_eq!(got["frc_unit"], "px");
    let curve = got["frc_curve"].as_array().unwrap();
    assert_eq!(curve.len(), 24);
    for (ring, expected) in [(0, 0.9992284979157176), (3, 0.995481977556297), (23, -0.09550867023777118)] {
        close(&curve[ring], "correlation", expected, 1e-6);
        close(&curve[ring], "frequency", (ring + 1) as f64 / 48.0, 1e-12);
    }
    let text = must("measure --truth a.npy --image b.npy --metric frc", &at);
    assert!(text.contains("frc 6.9874 px"), "{text}");
    let out = clearshot("measure --truth a.npy --image a.npy --metric frc --json", &at);
    let (said, record) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
    assert!(said.contains("finer than the sampling") && record.contains("\"frc\":null"), "{said} {record}");
}

/// One image with all frequencies up to 12 of 64 and nothing beyond but a little noise: 64 / 12 pixels, within a ring that the
/// window widens.
#[test]
fn ring_correlation_of_one_image_finds_its_band_limit() {
    let at = folder("measure-frc-split");
    let n = 64;
    let waves: Vec<[f64; 2]> = (0..=12i32)
        .flat_map(|ky| (-12..=12i32).map(move |kx| [ky, kx]))
        .filter(|[ky, kx]| ky * ky + kx * kx <= 144)
        .map(|k| k.map(f64::from))
        .collect();
    let turn = std::f64::consts::TAU / n as f64;
    let image = made([n, n], |y, x, i| {
        let wave =
            |(j, [ky, kx]): (usize, &[f64; 2])| (turn * (ky * y + kx * x) + 2.4 * (j * j) as f64).cos();
        waves.iter().enumerate().map(wave).sum::<f64>() + 1e-3 * (1.7 * i * i).sin()
    });
    npy(&at.join("x.npy"), [n, n], &image);
    let got = one("measure --image x.npy --metric frc-split --frc-threshold half --json", &at);
    let found = got["frc_split"].as_f64().unwrap();
    assert!((64.0 / 14.0..64.0 / 11.0).contains(&found), "{found}");
}

/// scikit-image's Otsu, scipy's labels and distances, cellpose's formula: see crates/metrics/tests/objects.rs.
#[test]
fn objects_equal_scipy() {
    let at = folder("measure-objects");
    let shape = [40, 37];
    let scene = |shift: f64| {
        made(shape, |y, x, i| {
            (0.45 * y + 0.2 + shift).sin() * (0.58 * x + 0.2 + 2.0 * shift).sin() + 0.25 * (2.3 * i).sin()
        })
    };
    npy(&at.join("t.npy"), shape, &scene(0.0));
    npy(&at.join("x.npy"), shape, &scene(0.25));
    let got = one("measure --truth t.npy --image x.npy --metric dice,iou,hausdorff,ap,count --json", &at);
    close(&got, "dice", 0.8341168569509738, 1e-12);
    close(&got, "iou", 0.7154377880184332, 1e-12);
    close(&got, "hausdorff", 4.123105625617661, 1e-12);
    assert_eq!(
        (&got["ap"], &got["ap_found"], &got["ap_invented"], &got["ap_missed"]),
        (&0.2.into(), &1.0.into(), &0.0.into(), &4.0.into())
    );
    assert_eq!((&got["count"], &got["count_true"]), (&1.0.into(), &5.0.into()));
}

/// IoUs of 2/3, 1/3 and none, and one object that is invented; labels need not be in order.
#[test]
fn labels_by_hand() {
    let at = folder("measure-labels");
    let (truth, found) = ([1, 1, 1, 0, 7, 7, 7, 0, 3, 0, 0], [4, 4, 0, 0, 2, 0, 0, 0, 0, 0, 9]);
    npy(&at.join("t.npy"), [1, 11], &truth.map(f64::from));
    npy(&at.join("x.npy"), [1, 11], &found.map(f64::from));
    for (threshold, ap) in [("0.3", 0.5), ("0.5", 0.2), ("0.75", 0.0)] {
        let line = format!(
            "measure --truth t.npy --image x.npy --labels --metric ap,dice,hausdorff --iou {threshold} --json"
        );
        let got = one(&line, &at);
        assert_eq!(got["ap"], ap, "{threshold}");
        assert_eq!((&got["dice"], &got["hausdorff"]), (&(6.0 / 11.0).into(), &2.0.into()));
    }
    npy(&at.join("half.npy"), [1, 11], &[0.5; 11]);
    let said = refused("measure --truth t.npy --image half.npy --labels --metric ap", &at);
    assert!(said.contains("label is 0.5 at pixel 0") && said.contains("whole number"), "{said}");
}

/// Light that is dimmed to 80 %, the third source lost and another invented.
#[test]
fn sources_by_closed_form() {
    let at = folder("measure-sources");
    let shape = [60, 60];
    let spot =
        |y: f64, x: f64, at: [f64; 2]| 100.0 * (-((y - at[0]).powi(2) + (x - at[1]).powi(2)) / 4.5).exp();
    let (a, b, c, d) = ([15.0, 15.0], [15.25, 44.5], [44.0, 15.0], [45.0, 45.0]);
    npy(&at.join("t.npy"), shape, &made(shape, |y, x, _| 10.0 + spot(y, x, a) + spot(y, x, b)));
    npy(&at.join("dim.npy"), shape, &made(shape, |y, x, _| 10.0 + 0.8 * (spot(y, x, a) + spot(y, x, b))));
    let got = one("measure --truth t.npy --image dim.npy --metric flux,completeness --json", &at);
    close(&got, "flux", 0.8, 1e-9);
    close(&got, "flux_rms_error", 0.2, 1e-9);
    assert_eq!((&got["flux_sources"], &got["completeness"]), (&2.0.into(), &1.0.into()));
    npy(
        &at.join("x.npy"),
        shape,
        &made(shape, |y, x, _| 10.0 + spot(y, x, a) + spot(y, x, b) + spot(y, x, d)),
    );
    std::fs::write(
        at.join("s.csv"),
        format!("y,x\n{},{}\n{},{}\n{},{}\n", a[0], a[1], b[0], b[1], c[0], c[1]),
    )
    .unwrap();
    let got = one("measure --image x.npy --sources s.csv --metric completeness --json", &at);
    close(&got, "completeness", 2.0 / 3.0, 1e-12);
    assert_eq!((&got["completeness_found"], &got["completeness_spurious"]), (&2.0.into(), &1.0.into()));
    // A circle of 12 pixels has all of a spot: 100 * 4.5 pi.
    std::fs::write(at.join("f.csv"), format!("15, 15, {}\n", 450.0 * std::f64::consts::PI)).unwrap();
    let line =
        "measure --image t.npy --sources f.csv --metric flux --aperture 12 --annulus 13,14 --crop 1 --json";
    close(&one(line, &at), "flux", 1.0, 1e-3);
    let said = refused("measure --image x.npy --sources s.csv --metric flux", &at);
    assert!(said.contains("true flux") && said.contains("third column"), "{said}");
    std::fs::write(at.join("bad.csv"), "x,y\n1,2\n").unwrap();
    assert!(refused("measure --image x.npy --sources bad.csv --metric completeness", &at).contains("line 1"));
}

fn sum_of_sines(i: f64) -> f64 {
    let sines = (12.9898 * i).sin()
        + (78.233 * i + 1.0).sin()
        + (37.719 * i * 1.7 + 2.0).sin()
        + (4.1414 * i + 3.0).sin();
    sines / 2f64.sqrt()
}

/// scipy's kstest and t-test, numpy's periodogram.
#[test]
fn residuals_equal_scipy() {
    let at = folder("measure-residuals");
    let shape = [24, 31];
    npy(&at.join("x.npy"), shape, &made(shape, |_, _, i| restored(i)));
    npy(&at.join("m.npy"), shape, &made(shape, |_, _, i| restored(i) + 0.05 * sum_of_sines(i) + 0.003));
    let got = one(
        "measure --image x.npy --measured m.npy --noise 0.05 --metric chi2,ks,whiteness,bias --json",
        &at,
    );
    close(&got, "chi2", 1.0030537703545501, 1e-9);
    close(&got, "chi2_tolerance", 0.1555427542095638, 1e-9);
    close(&got, "ks", 0.048661493063217987, 1e-9);
    close(&got, "ks_p", 0.057061016493374916, 1e-6);
    close(&got, "whiteness", 0.03190595155793923, 1e-6);
    assert!(got["whiteness_p"].as_f64().unwrap() < 1e-6);
    close(&got, "bias", 0.003074221990633168, 1e-8);
    close(&got, "bias_low", -0.000525540872068137, 1e-7);
    close(&got, "bias_high", 0.006673984853334473, 1e-8);
    close(&got, "bias_p", 0.09405045196969171, 1e-7);
}

/// The true image passes every test of its own noise, and one that is moved by a pixel fails them. The noise is a camera's.
#[test]
fn the_truth_passes_and_a_shifted_image_fails() {
    let at = folder("measure-faithful");
    must("synth --scene nuclei --count 1 --size 128 --peak 200 --read-noise 2 --seed 4 --out s", &at);
    let name = "nuclei_0000.tif";
    let camera = "--gain 1 --offset 0 --read-noise 2 --metric chi2,ks,whiteness --json";
    let truth = one(&format!("measure --image s/truth/{name} --measured s/noisy/{name} {camera}"), &at);
    let value = |record: &Value, key: &str| record[key].as_f64().unwrap();
    assert!((value(&truth, "chi2") - 1.0).abs() < value(&truth, "chi2_tolerance"), "{truth}");
    assert!(value(&truth, "whiteness_p") > 0.01, "{truth}");
    must(&format!("convert s/truth/{name} t.npy"), &at);
    must(&format!("convert s/noisy/{name} m.npy"), &at);
    let file = std::fs::read(at.join("t.npy")).unwrap();
    let split = file.len() - 4 * 128 * 128;
    let mut moved = file.clone();
    moved[split..].rotate_left(4);
    std::fs::write(at.join("x.npy"), moved).unwrap();
    let shifted = one(&format!("measure --image x.npy --measured m.npy {camera}"), &at);
    assert!((value(&shifted, "chi2") - 1.0).abs() > value(&shifted, "chi2_tolerance"), "{shifted}");
    assert!(value(&shifted, "whiteness_p") < 0.01, "{shifted}");
}

/// A scene of 2 everywhere; half of a square of ones comes through: 10 log10(4 / 0.25) dB.
#[test]
fn inserted_patterns_by_hand() {
    let at = folder("measure-pattern");
    let shape = [8, 8];
    let square = |y: f64, x: f64| f64::from((2.0..4.0).contains(&y) && (2.0..4.0).contains(&x));
    npy(&at.join("p.npy"), shape, &made(shape, |y, x, _| square(y, x)));
    npy(&at.join("without.npy"), shape, &[2.0; 64]);
    npy(&at.join("with.npy"), shape, &made(shape, |y, x, _| 2.0 + 0.5 * square(y, x)));
    npy(&at.join("true.npy"), shape, &made(shape, |y, x, _| 2.0 + square(y, x)));
    let line = "measure --image with.npy --without without.npy --truth true.npy --range 5 --pattern p.npy --metric sar,pattern-gain,omission --json";
    let got = one(line, &at);
    close(&got, "sar", 10.0 * 16f64.log10(), 1e-12);
    close(&got, "pattern_gain", 0.5, 1e-12);
    close(&got, "omission", 10.0 * 100f64.log10(), 1e-12);
    // A disk of radius 1 is 5 pixels; inserted and not restored at all, it comes through whole.
    must("measure --image without.npy --pattern disk:4,4,1,3 --insert disk.npy", &at);
    let got = one(
        "measure --image disk.npy --without without.npy --pattern disk:4,4,1,3 --metric pattern-gain,sar --json",
        &at,
    );
    close(&got, "pattern_gain", 1.0, 1e-9);
    close(&got, "sar", 10.0 * (4f64 / 9.0).log10(), 1e-9);
    let sum: f64 = one("info --json disk.npy", &at)["statistics"]["mean"].as_f64().unwrap() * 64.0;
    assert!((sum - (2.0 * 64.0 + 5.0 * 3.0)).abs() < 1e-6, "{sum}");
    for (pattern, word) in [
        ("disk:1,2", "RADIUS"),
        ("line:1,2,3", "WIDTH"),
        ("none.npy", "no such file"),
        ("disk:50,50,1,1", "no pixel"),
    ] {
        let said = refused(
            &format!("measure --image with.npy --without without.npy --pattern {pattern} --metric sar"),
            &at,
        );
        assert!(said.contains(word), "{pattern}: {said}");
    }
    let said = refused("measure --image without.npy --pattern disk:4,4,1,3 --insert disk.npy", &at);
    assert!(said.contains("disk.npy") && said.contains("exists"), "{said}");
}

#[test]
fn strata_by_hand() {
    let at = folder("measure-strata");
    npy(&at.join("t.npy"), [2, 3], &[5.0, 100.0, 99.0, 2500.0, f64::NAN, -1.0]);
    npy(&at.join("x.npy"), [2, 3], &[8.0, 90.0, 98.0, 2500.0, 7.0, 3.0]);
    let line = "measure --truth t.npy --image x.npy --range 100 --metric mae --strata 0,100,500,2000,inf";
    let got = one(&format!("{line} --json"), &at);
    let rows = got["strata"].as_array().unwrap();
    let pixels: Vec<u64> = rows.iter().map(|r| r["pixels"].as_u64().unwrap()).collect();
    assert_eq!(pixels, [2, 1, 0, 1]);
    assert_eq!((&rows[0]["bias"], &rows[0]["mae"], &rows[0]["mse"]), (&1.0.into(), &2.0.into(), &5.0.into()));
    assert_eq!((&rows[1]["bias"], &rows[1]["psnr"]), (&(-10.0).into(), &20.0.into()));
    assert!(rows[2]["mse"].is_null() && rows[3]["high"].is_null());
    assert!(must(line, &at).contains("from 100 to 500: 1 pixels, bias -10.0000"));
    assert!(refused("measure --truth t.npy --image x.npy --range 100 --strata 5,1", &at).contains("rising"));
}

/// Images that are off by constants: MAE is the constant. scipy's wilcoxon, ttest_rel, and bootstrap by BCa of 400,000 draws,
/// which ours of 10,000 meets within the draws' own spread.
#[test]
fn methods_are_compared_as_scipy_does() {
    let at = folder("measure-against");
    let ours = [1.0, 2.5, 3.25, 0.5, 4.0, 2.0, 6.5, 1.75];
    let theirs = [1.5, 2.75, 3.125, 1.375, 4.75, 3.5, 6.1875, 3.75];
    for name in ["t", "a", "b"] {
        std::fs::create_dir(at.join(name)).unwrap();
    }
    for i in 0..8 {
        let file = format!("{i}.npy");
        let ramp = |off: f64| made([8, 9], |_, _, i| i + off);
        npy(&at.join("t").join(&file), [8, 9], &ramp(0.0));
        npy(&at.join("a").join(&file), [8, 9], &ramp(ours[i]));
        npy(&at.join("b").join(&file), [8, 9], &ramp(theirs[i]));
    }
    let all = lines("measure --truth t --image a --against b --range 72 --metric mae,psnr --json", &at);
    assert_eq!(all.len(), 17);
    close(&all[0], "mae", 1.0, 1e-12);
    close(&all[1], "mae", 1.5, 1e-12);
    let mae = &all[16]["summary"]["mae"];
    assert_eq!((&mae["mean"], &mae["images"]), (&2.6875.into(), &8.into()));
    let near = |record: &Value, [low, high]: [f64; 2]| {
        for (key, expected) in [("low", low), ("high", high)] {
            let got = record[key].as_f64().unwrap();
            assert!((got - expected).abs() < 0.04 * (high - low), "{key}: {got}, and {expected} is right");
        }
    };
    near(mae, [1.6875, 4.28125]);
    close(&mae["against"]["difference"], "mean", -0.6796875, 1e-12);
    near(&mae["against"]["difference"], [-1.2421875, -0.21875]);
    assert_eq!(mae["against"]["wilcoxon"]["statistic"], 4.0);
    close(&mae["against"]["wilcoxon"], "p", 0.0546875, 1e-12);
    close(&mae["against"]["paired_t"], "p", 0.04407295768867782, 1e-9);
    // Two metrics: the smaller of the two p-values counts twice.
    let of = |name: &str, key: &str| all[16]["summary"][name]["against"]["wilcoxon"][key].as_f64().unwrap();
    let (least, most) = (of("mae", "p").min(of("psnr", "p")), of("mae", "p").max(of("psnr", "p")));
    let adjusted = [of("mae", "p_holm"), of("psnr", "p_holm")];
    assert!((adjusted[0].min(adjusted[1]) - 2.0 * least).abs() < 1e-12);
    assert!((adjusted[0].max(adjusted[1]) - most.max(2.0 * least)).abs() < 1e-12);
    let text = must("measure --truth t --image a --against b --metric mae", &at);
    assert!(text.contains("Wilcoxon p 0.0547") && text.contains("difference of mae: -0.6797"), "{text}");
    // Without another method: means alone, and JSON only where they are asked for.
    assert_eq!(lines("measure --truth t --image a --metric mae --json", &at).len(), 8);
    let all = lines("measure --truth t --image a --metric mae --json --summary", &at);
    assert!(all[8]["summary"]["mae"]["mean"] == 2.6875 && all[8]["summary"]["mae"]["against"].is_null());
}

/// Without --range the truth's is taken and printed: 255 for 8 bits, otherwise its greatest less its least value.
#[test]
fn ranges_are_those_of_the_truth() {
    let at = folder("measure-range");
    npy(&at.join("x.npy"), [16, 16], &made([16, 16], |y, x, _| y * x + 1.0));
    npy(&at.join("t.npy"), [16, 16], &made([16, 16], |y, x, _| y * x));
    let own = one("measure --image x.npy --truth t.npy --json", &at);
    let given = one("measure --image x.npy --truth t.npy --range 225 --json", &at);
    assert!(own == given && own["range"] == 225.0, "{own} {given}");
    let text = must("measure --image x.npy --truth t.npy", &at);
    assert!(text.contains("(range 225)"), "{text}");
    numbers(&at.join("bytes.npy"), [16, 16], "|u1", (0..=255u8).map(|i| i / 16 * (i % 16)));
    let bits = one("measure --image x.npy --truth bytes.npy --metric psnr --json", &at);
    assert!(bits["range"] == 255.0, "{bits}");
    assert!((bits["psnr"].as_f64().unwrap() - 20.0 * 255f64.log10()).abs() < 1e-3, "{bits}");
}

#[test]
fn missing_inputs_are_named() {
    let at = folder("measure-missing");
    npy(&at.join("x.npy"), [16, 16], &made([16, 16], |y, x, _| y * x));
    npy(&at.join("even.npy"), [16, 16], &made([16, 16], |_, _, _| 3.0));
    for (line, words) in [
        ("measure --image x.npy", "--truth"),
        ("measure --image x.npy --truth even.npy", "--range"),
        ("measure --image x.npy --metric chi2", "--measured"),
        ("measure --image x.npy --metric sar", "--pattern"),
        ("measure --image x.npy --metric flux", "--sources"),
        ("measure --image x.npy --truth x.npy --metric psnrr", "not a metric"),
        ("measure --image x.npy --truth x.npy --metric mae --crop 8", "--crop 8"),
        ("measure --image x.npy --truth x.npy --metric frc --frc-threshold 3", "half-bit"),
        ("measure --image x.npy --metric count --annulus 3", "two rising radii"),
        ("measure --image x.npy --truth x.npy --metric ap --iou 2", "above 0 and at most 1"),
    ] {
        let said = refused(line, &at);
        assert!(said.contains(words), "{line}: {said}");
    }
    // All that an image alone allows.
    let got = one("measure --image x.npy --metric all --json", &at);
    assert!(
        got["frc_split_curve"].is_array() && got["count"].is_number() && got.get("psnr").is_none(),
        "{got}"
    );
    assert!(must("measure --help", &at).contains("whiteness      flatness of the residuals' spectrum"));
}
