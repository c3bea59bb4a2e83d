//! Images at a coarser resolution: samples from coarse to fine, and budgets of time that have no room for every pixel.

mod measured;
mod program;

use clearshot_image::DType;
use measured::{CAMERA, conditional, counts, model, read, shake, write};
use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SIZE: [usize; 2] = [48, 40];
const COMMON: &str = "--model given.clearshot --method model --device cpu --threads 1 --force";

/// A folder with counts of a camera and a small model, whose weights are far from zero.
fn prepared(name: &str) -> PathBuf {
    let at = folder(name);
    write(&at.join("in.tif"), "YX", &SIZE, DType::F32, &counts(&SIZE, 5));
    model(&at, "given", 1, 2, conditional());
    shake(&at, "given");
    at
}

fn restored(at: &Path, input: &str, options: &str) -> Vec<f64> {
    must(&format!("restore {input} -o out.tif --quiet {COMMON} {options}"), at);
    read(at.join("out.tif")).1
}

/// The options of the camera of means over blocks.
fn camera(side: usize) -> String {
    format!("--gain {} --offset 100 --read-noise {}", 0.5 * (side * side) as f64, 1.5 * side as f64)
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Means over blocks of pixels.
fn means(values: &[f64], [height, width]: [usize; 2], side: usize) -> Vec<f64> {
    let (rows, columns) = (height / side, width / side);
    let mean = |i: usize| {
        let (top, left) = (i / columns * side, i % columns * side);
        let block = (0..side * side).map(|k| values[(top + k / side) * width + left + k % side]);
        block.sum::<f64>() / (side * side) as f64
    };
    (0..rows * columns).map(mean).collect()
}

/// From coarse to fine: what comes out has the coarse result as the means of its blocks, and that is the result of the binned file.
#[test]
fn finer_stages_keep_what_coarse_ones_found() {
    let at = prepared("resolution_cascade");
    let measured = read(at.join("in.tif")).1;
    for (stages, side) in [(2, 2), (3, 4)] {
        let fine = restored(&at, "in.tif", &format!("--samples 1 --steps 4 {CAMERA} --cascade {stages}"));
        let small = format!("small{side}.tif");
        write(&at.join(&small), "YX", &SIZE.map(|n| n / side), DType::F32, &means(&measured, SIZE, side));
        let coarse = restored(&at, &small, &format!("--samples 1 --steps 4 {}", camera(side)));
        let (low, high) = coarse.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        let apart = largest_difference(&means(&fine, SIZE, side), &coarse);
        assert!(apart < 1e-4 * (high - low), "{stages} stages: {apart} of {}", high - low);
        // Within blocks there is something that the coarse image has not.
        let flat: Vec<f64> = (0..fine.len())
            .map(|i| coarse[i / SIZE[1] / side * (SIZE[1] / side) + i % SIZE[1] / side])
            .collect();
        assert!(largest_difference(&fine, &flat) > 0.01 * (high - low));
    }
    let line = |rest: &str| format!("restore in.tif -o no.tif --model given.clearshot {CAMERA} {rest}");
    assert!(refused(&line("--cascade 2 --psf gaussian:1px"), &at).contains("without a PSF"));
    assert!(refused(&line("--cascade 2 --method bm3d"), &at).contains("cascade"));
    assert!(refused(&line("--cascade 0"), &at).contains("--cascade"));
}

/// Where not even the fewest steps fit, fewer pixels do, if that is allowed: never without a word.
#[test]
fn budgets_choose_a_resolution_where_that_is_allowed() {
    let at = prepared("resolution_binning");
    let size = [256, 208];
    let measured = counts(&size, 7);
    write(&at.join("large.tif"), "YX", &size, DType::F32, &measured);
    let line = |rest: &str, out: &str| {
        format!("restore large.tif -o {out} {COMMON} --samples 2 --steps 4 {CAMERA} {rest}")
    };
    let said = refused(&line("--max-seconds 1e-9", "no.tif"), &at);
    assert!(
        said.contains("binned 2 x 2 it would take about") && said.contains("(--allow-binning)"),
        "{said}"
    );
    assert!(!at.join("no.tif").exists());
    // Budgets that grow until one is met: long before there is room for all pixels there is for some.
    let met = (0..20).map(|k| 1e-4 * 2f64.powi(k)).find_map(|budget| {
        let out =
            clearshot(&line(&format!("--max-seconds {budget} --allow-binning --json"), "small.tif"), &at);
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    });
    let said = met.expect("a budget that is met");
    let file =
        said.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON")).find(|l| l["event"] == "file");
    let side = file.expect("a file")["binning"].as_u64().expect("a side") as usize;
    assert!([2, 4, 8].contains(&side), "{said}");
    let (image, made) = read(at.join("small.tif"));
    assert_eq!(image.shape(), size.map(|n| n / side));
    for dim in &image.description.dims {
        assert!((dim.step.expect("a pixel size") - 0.1 * side as f64).abs() < 1e-6, "{dim:?}");
    }
    let record = image.description.provenance.as_ref().expect("a record");
    assert_eq!(record["parameters"]["binning"], side);
    // It is what the binned file becomes, with the camera of its means.
    write(&at.join("binned.tif"), "YX", &size.map(|n| n / side), DType::F32, &means(&measured, size, side));
    let same = restored(&at, "binned.tif", &format!("--samples 2 --steps 4 {}", camera(side)));
    let apart = largest_difference(&made, &same);
    assert!(apart < 1e-2, "{apart}");
    // A budget that is enough changes nothing, and what is about the file's own pixels does not go with it.
    must(&line("--max-seconds 86400 --allow-binning", "all.tif"), &at);
    assert_eq!(read(at.join("all.tif")).0.shape(), size);
    assert!(refused(&line("--allow-binning", "no.tif"), &at).contains("--allow-binning"));
    let masked = line("--max-seconds 1 --allow-binning --mask in.tif", "no.tif");
    assert!(refused(&masked, &at).contains("mask"));
}
