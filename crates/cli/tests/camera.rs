//! `clearshot camera`: its file is what other verbs take, nothing is overwritten, and errors say file, axis and what to do.

#[allow(dead_code)]
mod measured;
#[allow(dead_code)]
mod program;

use clearshot_image::DType;
use clearshot_tensor::noise::Key;
use measured::write;
use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::Path;

const SIDE: usize = 96;
const GAIN: f64 = 0.5;
const READ_NOISE: f64 = 2.0;

/// Frames of one ramp from 5 to 200 electrons (of nothing but offset where it is dark), offset 100.
fn frames(count: usize, light: f64, seed: u64) -> Vec<f64> {
    let mut noise = vec![0f32; count * SIDE * SIDE];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let value = |(i, n): (usize, &f32)| {
        let mean = light * (5.0 + 195.0 * (i % SIDE) as f64 / SIDE as f64);
        let electrons = mean + f64::from(*n) * (mean + READ_NOISE * READ_NOISE).sqrt();
        (electrons / GAIN + 100.0).round()
    };
    noise.iter().enumerate().map(value).collect()
}

fn stack(at: &Path, name: &str, count: usize, light: f64, seed: u64) {
    write(&at.join(name), "TYX", &[count, SIDE, SIDE], DType::U16, &frames(count, light, seed));
}

fn json(at: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(at.join(name)).expect(name)).expect("JSON")
}

#[track_caller]
fn near(camera: &Value) {
    let number = |key: &str| camera[key].as_f64().expect(key);
    assert!((number("gain") / GAIN - 1.0).abs() < 0.03, "{camera}");
    assert!((number("read_noise") / READ_NOISE - 1.0).abs() < 0.1, "{camera}");
    assert!((number("offset") - 100.0).abs() < 1.0, "{camera}");
}

#[test]
fn a_camera_is_measured_and_taken_by_other_verbs() {
    let at = folder("camera_measured");
    stack(&at, "movie.tif", 12, 1.0, 1);
    stack(&at, "darks.tif", 8, 0.0, 2);
    for (i, light) in [0.1, 0.5, 1.0].into_iter().enumerate() {
        stack(&at, &format!("flat{i}.tif"), 4, light, 10 + i as u64);
    }
    let said = must("camera movie.tif --repeats --darks darks.tif -o repeats.json --plot repeats.svg", &at);
    for word in
        ["gain", "offset", "read noise", "correlation", "stripes", "fixed pattern", "clipped", "rounding"]
    {
        assert!(said.contains(word), "{word} in {said}");
    }
    assert!(std::fs::read_to_string(at.join("repeats.svg")).expect("a figure").starts_with("<svg"));
    let camera = json(&at, "repeats.json");
    near(&camera);
    assert_eq!(camera["measured"]["source"], "repeats");
    assert_eq!(camera["measured"]["files"].as_array().map(Vec::len), Some(2));
    must("camera movie.tif --movie --offset 100 -o movie.json", &at);
    near(&json(&at, "movie.json"));
    let printed = must("camera --flats flat0.tif flat1.tif flat2.tif --darks darks.tif --json", &at);
    near(&serde_json::from_str(&printed).expect("one object"));

    let denoised = |camera: &str, out: &str| {
        must(&format!("denoise flat2.tif {out} --method gaussian {camera}"), &at);
        must(&format!("denoise flat2.tif b{out} --method bm3d {camera}"), &at);
        std::fs::read(at.join(format!("b{out}"))).expect("an image").len()
    };
    assert!(denoised("--camera repeats.json", "by_file.tif") > 0);
    let record = must("info --json bby_file.tif --quick", &at);
    let record: Value = serde_json::from_str(&record).expect("JSON");
    let told = record.to_string();
    assert!(told.contains("\"noise_estimated\":false"), "{told}");
    must("deconvolve flat2.tif sharp.tif --psf-sigma 1 --steps 2 --camera repeats.json", &at);
}

#[test]
fn existing_files_are_kept_and_errors_give_advice() {
    let at = folder("camera_refused");
    stack(&at, "movie.tif", 3, 1.0, 1);
    write(&at.join("one.tif"), "YX", &[SIDE, SIDE], DType::U16, &frames(1, 1.0, 3));
    write(&at.join("other.tif"), "YX", &[32, 32], DType::U16, &vec![7.0; 1024]);
    std::fs::write(at.join("camera.json"), "{\"gain\": 1, \"colour\": 2}").expect("written");
    for (arguments, words) in [
        ("camera movie.tif --repeats -o camera.json", "camera.json: exists already; --force"),
        ("camera movie.tif --repeats --plot camera.png", "NAME.svg"),
        ("camera one.tif --repeats", "one.tif: axes YX: two frames are needed"),
        ("camera one.tif other.tif --movie", "other.tif: axes YX: frames of 96 x 96 pixels are needed"),
        ("camera movie.tif --movie --axis Z", "there is no axis Z"),
        ("camera movie.tif --movie --axis X", "an axis other than X"),
        ("camera --darks movie.tif", "no gain; add --flats"),
        ("camera missing.tif", "missing.tif"),
        ("camera other.tif", "other.tif"),
        ("denoise one.tif out.tif --camera camera.json", "camera.json: not a camera: unknown field `colour`"),
        ("restore one.tif -o out.tif --camera camera.json", "camera.json: not a camera"),
        ("deconvolve one.tif out.tif --psf-sigma 1 --camera none.json", "none.json"),
        ("compare raw --camera camera.json", "--truth"),
    ] {
        let said = refused(arguments, &at);
        assert!(said.contains(words), "{arguments}: {said}");
    }
    assert!(std::fs::read_to_string(at.join("camera.json")).expect("kept").contains("colour"));
    assert!(clearshot("camera movie.tif --repeats -o camera.json --force", &at).status.success());
}
