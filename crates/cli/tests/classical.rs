//! The verbs of classical restoration, as a user runs them: scenes are made, restored and scored.

use std::path::PathBuf;
use std::process::{Command, Output};

fn clearshot(arguments: &str, folder: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearshot"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("the program runs")
}

fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

fn must(arguments: &str, folder: &std::path::Path) -> String {
    let out = clearshot(arguments, folder);
    assert!(out.status.success(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn psnr(truth: &str, image: &str, folder: &std::path::Path) -> f64 {
    let said = must(&format!("measure --truth {truth} --image {image} --range 20 --json"), folder);
    let scores: Vec<f64> = said
        .lines()
        .map(|l| {
            serde_json::from_str::<serde_json::Value>(l).expect("JSON")["psnr"].as_f64().expect("a number")
        })
        .collect();
    scores.iter().sum::<f64>() / scores.len() as f64
}

#[test]
fn scenes_are_made_restored_and_scored() {
    let at = folder("denoise");
    must("synth --scene nuclei --count 2 --peak 20 --size 72x90 --seed 4 --out s", &at);
    must("denoise --method bm3d --gain 1 --read-noise 1.5 s/noisy clean", &at);
    let (before, after) = (psnr("s/truth", "s/noisy", &at), psnr("s/truth", "clean", &at));
    assert!(after > before + 8.0, "{before} {after}");
    must("denoise --method median s/noisy/*_0001.tif m.tif", &at);
    // Nothing is replaced unless told to.
    let refused = clearshot("denoise --method median s/noisy/nuclei_0000.tif m.tif", &at);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--force"), "{said}");
    must("denoise --method median --force s/noisy/nuclei_0000.tif m.tif", &at);
    assert!(!clearshot("synth --scene nuclei --out s", &at).status.success());
    for wrong in [
        "denoise s/noisy clean2",
        "denoise --method best --noise 1 s/noisy clean2",
        "denoise --noise 0 s/noisy/nuclei_0000.tif x.tif",
        "denoise --noise 1 s/noisy one.tif",
        "measure --truth s/truth --image s/noisy --range 0",
        "synth --scene nuclei --size 12 --out t",
    ] {
        let out = clearshot(wrong, &at);
        assert!(!out.status.success() && out.stderr.starts_with(b"clearshot: "), "{wrong}");
        assert!(!at.join("x.tif").exists() && !at.join("one.tif").exists());
    }
}

#[test]
fn a_volume_is_deconvolved() {
    let at = folder("deconvolve");
    must("synth --scene filaments --peak 200 --size 16x48x40 --psf-sigma 1.1 --bits 12 --out s", &at);
    let out = "deconvolve --volume --psf-sigma 1.1 --offset 105 --read-noise 2 --background 0 --float";
    must(&format!("{out} s/noisy/filaments_0000.tif r.tif"), &at);
    let score = |image: &str| psnr("s/truth/filaments_0000.tif", image, &at);
    assert!(score("r.tif") > score("s/noisy/filaments_0000.tif") + 1.0);
    // A plane's PSF serves planes.
    must("deconvolve --psf-sigma 1.1,1.1 --steps 3 --offset 100 s/noisy/filaments_0000.tif p.tif", &at);
    let wrong = clearshot("deconvolve --psf-sigma 1,1,1 s/noisy/filaments_0000.tif q.tif", &at);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("one or 2 are needed"));
}
