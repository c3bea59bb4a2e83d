//! The verbs of classical restoration, as a user runs them: scenes are made, restored and scored.

mod program;

use program::{clearshot, folder, must, refused};
use std::process::Command;

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
    let said = refused("denoise --method median s/noisy/nuclei_0000.tif m.tif", &at);
    assert!(said.contains("--force"), "{said}");
    must("denoise --method median --force s/noisy/nuclei_0000.tif m.tif", &at);
    assert!(!clearshot("synth --scene nuclei --out s", &at).status.success());
    for wrong in [
        "denoise --method nlm --set patch_radius=2 s/noisy clean2",
        "denoise --method nlm --set strength s/noisy clean2",
        "denoise --method none --set a=1 s/noisy clean2",
        "denoise --method median --tile 3 s/noisy clean2",
        "denoise --method best --noise 1 s/noisy clean2",
        "denoise --noise 0 s/noisy/nuclei_0000.tif x.tif",
        "denoise --noise 1 s/noisy one.tif",
        "measure --truth s/truth --image s/noisy --range 0",
        "synth --scene nuclei --size 12x --out t",
        "synth --scene nuclei --size 2x3x4x5 --out t",
    ] {
        let out = clearshot(wrong, &at);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && (said.starts_with("clearshot: ") || said.starts_with("error: ")),
            "{wrong}: {said}"
        );
        assert!(!at.join("x.tif").exists() && !at.join("one.tif").exists());
    }
}

#[test]
fn a_volume_is_deconvolved() {
    let at = folder("deconvolve");
    must("synth --scene filaments --peak 200 --size 16x48x40 --psf-sigma 1.1 --bits 12 --out s", &at);
    let out =
        "deconvolve --volume --psf-sigma 1.1 --gain 1 --offset 105 --read-noise 2 --background 0 --float";
    must(&format!("{out} s/noisy/filaments_0000.tif r.tif"), &at);
    let score = |image: &str| psnr("s/truth/filaments_0000.tif", image, &at);
    assert!(score("r.tif") > score("s/noisy/filaments_0000.tif") + 1.0);
    // A plane's PSF serves planes.
    must(
        "deconvolve --psf-sigma 1.1,1.1 --steps 3 --gain 1 --offset 100 s/noisy/filaments_0000.tif p.tif",
        &at,
    );
    let said = refused("deconvolve --psf-sigma 1,1,1 s/noisy/filaments_0000.tif q.tif", &at);
    assert!(said.contains("one or 2 are needed"), "{said}");
}

#[test]
fn noise_is_estimated_and_said() {
    let at = folder("estimate");
    must("synth --scene nuclei --peak 100 --size 160x160 --bits 12 --seed 2 --out s", &at);
    let out = clearshot("denoise s/noisy/nuclei_0000.tif e.tif --png --float", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("noise estimated from the image: gain"), "{said}");
    must("denoise --gain 1 --offset 100 --read-noise 2 --float s/noisy/nuclei_0000.tif k.tif", &at);
    let score = |image: &str| psnr("s/truth/nuclei_0000.tif", image, &at);
    let (noisy, blind, known) = (score("s/noisy/nuclei_0000.tif"), score("e.tif"), score("k.tif"));
    assert!(blind > known - 0.5 && blind > noisy + 3.0, "{noisy} {blind} {known}");
    assert!(std::fs::read(at.join("e.tif.png")).expect("a picture").starts_with(b"\x89PNG"));
    // The picture is not replaced either, and nothing is written then.
    std::fs::remove_file(at.join("e.tif")).expect("a file");
    assert!(!clearshot("denoise s/noisy/nuclei_0000.tif e.tif --png", &at).status.success());
    assert!(!at.join("e.tif").exists());
}

#[test]
fn methods_and_settings_are_listed() {
    let at = folder("list");
    let said = must("denoise --list", &at);
    for part in ["bm3d", "search-radius-2", "patch-radius", "sigma", "1.2", "none"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(must("deconvolve --list", &at).contains("richardson-lucy"));
    let said = refused("denoise --method nlm --set serch-radius=2 --noise 1 x.tif y.tif", &at);
    assert!(said.contains("did you mean 'search-radius'?"), "{said}");
}

#[test]
fn nothing_done_changes_no_bit_and_pieces_do_not_show() {
    let at = folder("pieces");
    must("synth --scene dead-leaves --peak 50 --size 130x97 --bits 12 --to npy --out s", &at);
    let pixels = |name: &str| std::fs::read(at.join(name)).expect("a file");
    must("denoise --method none --tile 40 s/noisy/dead-leaves_0000.npy n.npy", &at);
    assert!(pixels("n.npy") == pixels("s/noisy/dead-leaves_0000.npy"));
    for method in ["median", "nlm --noise 8", "bm3d --gain 1 --offset 100"] {
        must(&format!("denoise --force --method {method} --tile 33 s/noisy/dead-leaves_0000.npy a.npy"), &at);
        must(&format!("denoise --force --method {method} s/noisy/dead-leaves_0000.npy b.npy"), &at);
        assert!(pixels("a.npy") == pixels("b.npy"), "{method}");
    }
}

/// A float NPY of 40 x 30 pixels around 50 with some that are none.
fn write_npy(path: &std::path::Path, value: impl Fn(usize) -> f32) {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (40, 30), }}{:>48}\n", "");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    (0..1200).for_each(|i| bytes.extend(value(i).to_le_bytes()));
    std::fs::write(path, bytes).expect("a file");
}

fn read_npy(path: &std::path::Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file");
    let values = &bytes[bytes.len() - 4800..];
    values.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn invalid_pixels_stay_out() {
    let at = folder("invalid");
    let odd = |i: usize| match i {
        77 => f32::NAN,
        400 => 900.0,
        801 => 5000.0,
        _ => 50.0 + (i % 7) as f32,
    };
    write_npy(&at.join("x.npy"), odd);
    write_npy(&at.join("t.npy"), |i| 50.0 + (i % 7) as f32);
    write_npy(&at.join("m.npy"), |i| f32::from(i == 801));
    for method in ["gaussian", "median", "wiener", "nlm", "tv", "bm3d"] {
        must(
            &format!("denoise --force --method {method} --noise 2 --saturation 900 --mask m.npy x.npy y.npy"),
            &at,
        );
        let y = read_npy(&at.join("y.npy"));
        assert!(y[77].is_nan() && y[400] == 900.0, "{method}: given back");
        let others = y.iter().enumerate().filter(|(i, _)| ![77, 400].contains(i));
        assert!(others.map(|o| *o.1).all(|v| (45.0..62.0).contains(&v)), "{method}: nothing spread");
    }
    // Scores leave them out.
    let said = must("measure --truth t.npy --image x.npy --range 50 --mask m.npy --json", &at);
    let score: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    // One pixel of 1198 is 850 off or so.
    let mae = score["mae"].as_f64().expect("a number");
    assert!((0.70..0.72).contains(&mae), "{said}");
    let wrong = clearshot("denoise --method median --mask y.npy --saturation 1 x.npy z.npy", &at);
    assert!(wrong.status.success(), "{}", String::from_utf8_lossy(&wrong.stderr));
    write_npy(&at.join("short.npy"), |_| 0.0);
    must("synth --scene nuclei --size 20x20 --to npy --out s", &at);
    let wrong = clearshot("denoise --method median --mask short.npy s/noisy/nuclei_0000.npy q.npy", &at);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("lengths must be equal"));
}

/// Ctrl-C in the middle of writing leaves nothing, hidden or not.
#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing() {
    let at = folder("interrupt");
    must("synth --scene nuclei --size 1500x1500 --out s", &at);
    for output in ["o.tif", "o.ome.zarr"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
            .args(["denoise", "--method", "nlm", "--noise", "2", "--set", "search-radius=20", "--tile", "64"])
            .args(["s/noisy/nuclei_0000.tif", output])
            .current_dir(&at)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the program runs");
        let hidden = || {
            let names = std::fs::read_dir(&at).expect("a folder").flatten();
            names.filter(|e| e.file_name().to_string_lossy().starts_with(".o.")).count()
        };
        let start = std::time::Instant::now();
        while hidden() == 0 && start.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(hidden(), 1, "{output} is being written");
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
        assert_eq!(child.wait().expect("an end").code(), Some(130), "{output}");
        assert_eq!(hidden(), 0, "{output}");
        assert!(!at.join(output).exists());
    }
}
