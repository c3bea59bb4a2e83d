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
    // The output as an option is the same, and one that is not named at all is asked for.
    must("denoise --method median s/noisy/*_0001.tif -o o.tif", &at);
    assert_eq!(std::fs::read(at.join("m.tif")).unwrap(), std::fs::read(at.join("o.tif")).unwrap());
    assert!(refused("denoise --method median m.tif", &at).contains("IN... --output OUT"));
    // Nothing is replaced by default.
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
fn noise_is_estimated_and_printed() {
    let at = folder("estimate");
    must("synth --scene nuclei --peak 100 --size 160x160 --bits 12 --seed 2 --out s", &at);
    let out = clearshot("denoise s/noisy/nuclei_0000.tif e.tif --png --float", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("camera estimated from the image: gain"), "{said}");
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
fn the_identity_changes_no_bit_and_tiles_leave_no_seams() {
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

/// A float NPY of 40 x 30 pixels around 50, some of them NaN.
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
        assert!(y[77].is_nan(), "{method}: given back");
        let others = y.iter().enumerate().filter(|(i, _)| *i != 77);
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
fn an_interrupt_leaves_no_files() {
    let at = folder("interrupt");
    // More than is held back until all of it is known.
    must("synth --scene nuclei --size 3000x3000 --out s", &at);
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

/// 32-bit numbers as an NPY file.
fn npy(path: &std::path::Path, [height, width]: [usize; 2], values: &[f32]) {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({height}, {width}), }}");
    header.push_str(&" ".repeat((118 - header.len()) % 64 + 64 - 1));
    header.truncate(117);
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(path, file).unwrap();
}

fn values(path: &std::path::Path, pixels: usize) -> Vec<f32> {
    let file = std::fs::read(path).unwrap();
    let data = &file[file.len() - 4 * pixels..];
    data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Something smooth with noise.
fn measured(size: [usize; 2]) -> Vec<f32> {
    let mut state = 7u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..size[0] * size[1])
        .map(|i| 60.0 + 0.3 * (i % size[1]) as f32 + (0..6).map(|_| 5.0 * noise()).sum::<f32>())
        .collect()
}

#[test]
fn masked_pixels_do_not_affect_the_result() {
    let at = folder("marked");
    let size @ [height, width] = [72, 90];
    let image = measured(size);
    let marked: Vec<bool> =
        (0..height * width).map(|i| i < 14 * width && i % 7 == 5 || i % 997 == 7).collect();
    npy(&at.join("mask.npy"), size, &marked.iter().map(|m| f32::from(*m)).collect::<Vec<_>>());
    for verb in [
        "denoise --method nlm",
        "denoise --method tv --noise 3 --tile 40",
        "denoise --method median --saturation 500",
        "deconvolve --psf-sigma 1 --gain 1 --tile 45",
    ] {
        let restored = [0.0, 400.0, -3e4].map(|odd| {
            let given: Vec<f32> = image.iter().zip(&marked).map(|(v, m)| if *m { odd } else { *v }).collect();
            npy(&at.join("x.npy"), size, &given);
            must(&format!("{verb} --force --mask mask.npy x.npy y.npy"), &at);
            values(&at.join("y.npy"), height * width)
        });
        assert!(restored[0] == restored[1] && restored[0] == restored[2], "{verb}");
        assert_ne!(restored[0], image, "{verb}");
    }
}

#[test]
fn pixels_without_a_number_do_not_show_where_an_image_is_cut() {
    let at = folder("holes");
    let size @ [height, width] = [70, 96];
    let mut image = measured(size);
    (0..image.len()).filter(|i| i % 13 == 4 || i % 17 == 3).for_each(|i| image[i] = f32::NAN);
    npy(&at.join("x.npy"), size, &image);
    for method in ["gaussian", "median", "wiener", "nlm", "bm3d"] {
        let restored = ["200", "32", "17"].map(|tile| {
            must(&format!("denoise --force --method {method} --noise 4 --tile {tile} x.npy y.npy"), &at);
            values(&at.join("y.npy"), height * width).iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        });
        assert!(restored[0] == restored[1] && restored[0] == restored[2], "{method}");
        let kept = restored[0].iter().zip(&image).all(|(y, x)| f32::from_bits(*y).is_nan() == x.is_nan());
        assert!(kept, "{method}");
    }
}

#[test]
fn blank_values_of_a_file_stay_blank() {
    let at = folder("blanks");
    let (height, width) = (24, 30);
    let cards = [
        "SIMPLE  = T",
        "BITPIX  = 16",
        "NAXIS   = 2",
        "NAXIS1  = 30",
        "NAXIS2  = 24",
        "BLANK   = -99",
        "BSCALE  = 0.5",
        "BZERO   = 7.0",
        "END",
    ];
    let mut file: Vec<u8> = cards.iter().flat_map(|c| format!("{c:<80}").into_bytes()).collect();
    file.resize(2880, b' ');
    let stored = |i: usize| if i % 29 == 3 { -99i16 } else { 100 + (i % 7) as i16 };
    file.extend((0..height * width).flat_map(|i| stored(i).to_be_bytes()));
    file.resize(file.len().next_multiple_of(2880), 0);
    std::fs::write(at.join("x.fits"), file).unwrap();
    let blanks = |name: &str| {
        let said: serde_json::Value =
            serde_json::from_str(&must(&format!("info --json {name}"), &at)).unwrap();
        (said["statistics"]["not_finite"].clone(), said["statistics"]["min"].as_f64().unwrap())
    };
    let (before, least) = blanks("x.fits");
    assert!(before.as_u64().unwrap() > 20 && least == 57.0, "{before} {least}");
    for method in ["median", "gaussian"] {
        must(&format!("denoise --method {method} --force x.fits y.fits"), &at);
        let (after, least) = blanks("y.fits");
        assert_eq!(after, before, "{method}");
        assert!(least > 50.0, "{method}: {least}");
    }
}

/// Images that have no room for SSIM's window have the other scores.
#[test]
fn small_images_are_scored_without_a_window() {
    let at = folder("small_scores");
    npy(&at.join("t.npy"), [2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    npy(&at.join("x.npy"), [2, 3], &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let out = must("measure --truth t.npy --image x.npy --range 10 --json", &at);
    let record: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(record["ssim"].is_null() && record["mae"] == 1.0, "{out}");
    assert!((record["psnr"].as_f64().expect("a score") - 20.0).abs() < 1e-9, "{out}");
    assert!(must("measure --truth t.npy --image x.npy --range 10", &at).contains("psnr 20.0000"));
}

/// The light over the ratio of exposures, above the offset; nothing else.
#[test]
fn exposure_scaling_is_its_formula() {
    let at = folder("exposure");
    let short: Vec<f32> = (0..35).map(|i| 100.0 + i as f32).collect();
    npy(&at.join("short.npy"), [5, 7], &short);
    must("denoise --method exposure --set ratio=0.25 --offset 100 short.npy long.npy", &at);
    for (v, s) in values(&at.join("long.npy"), 35).iter().zip(&short) {
        assert_eq!(*v, 100.0 + 4.0 * (s - 100.0));
    }
    let said = refused("denoise --method exposure short.npy x.npy", &at);
    assert!(said.contains("ratio="), "{said}");
    for bad in ["0", "-1", "nan", "x"] {
        let said = refused(&format!("denoise --method exposure --set ratio={bad} short.npy x.npy"), &at);
        assert!(said.contains("above zero"), "{said}");
    }
}

/// One parser of PSFs: a width in pixels is --psf-sigma's, and one in micrometres needs the file's pixel size.
#[test]
fn deconvolve_takes_every_kind_of_psf() {
    let at = folder("psf_kinds");
    must("synth --scene nuclei --peak 100 --size 40x41 --psf-sigma 1.2 --out s", &at);
    let deconvolve = "deconvolve --gain 1 --steps 5 --float s/noisy/nuclei_0000.tif";
    must(&format!("{deconvolve} a.npy --psf-sigma 1.2"), &at);
    must(&format!("{deconvolve} b.npy --psf gaussian:1.2px"), &at);
    let (a, b) = (values(&at.join("a.npy"), 40 * 41), values(&at.join("b.npy"), 40 * 41));
    assert!(a == b && a != values_of_noise(&at));
    // The width of an Airy pattern follows from the size of pixels, which may be said with it.
    must(&format!("{deconvolve} d.npy --psf airy:na=1.4,em=520nm,pixel=65nm"), &at);
    must(&format!("{deconvolve} e.npy --psf airy:na=1.4,em=0.52um,pixel=130"), &at);
    assert!(values(&at.join("d.npy"), 40 * 41) != values(&at.join("e.npy"), 40 * 41));
    for (psf, said) in [
        ("gaussian:0.1um", "pixels"),
        ("airy:na=1.4,em=520nm", "pixel=65nm"),
        ("airy:na=1.4,em=520nm,pixel=0", "pixel=65nm"),
        ("airy:na=1.4", "em="),
        ("gaussian:1px,2px,3px", "one or 2 are needed"),
        ("nothing.tif", "gaussian:1.5px"),
    ] {
        let refused = refused(&format!("{deconvolve} c.npy --psf {psf}"), &at);
        assert!(refused.contains(said), "{psf}: {refused}");
    }
}

fn values_of_noise(at: &std::path::Path) -> Vec<f32> {
    must("convert s/noisy/nuclei_0000.tif noise.npy", at);
    values(&at.join("noise.npy"), 40 * 41)
}

/// What a file's record says of how it was made: the pieces, and what did not fit.
#[test]
fn the_record_has_the_number_of_clipped_pixels_and_the_tiles() {
    let at = folder("record");
    must("synth --scene nuclei --peak 200 --size 50x60 --bits 8 --out s", &at);
    must("denoise --method gaussian --tile 32 s/noisy/nuclei_0000.tif a.tif", &at);
    let record = |name: &str| -> serde_json::Value {
        let out = must(&format!("info --json {name}"), &at);
        let info: serde_json::Value =
            serde_json::from_str(out.lines().next().expect("a line")).expect("JSON");
        info["provenance"]["parameters"].clone()
    };
    let said = record("a.tif");
    assert_eq!(said["plan"]["tile"], serde_json::json!([32, 32]), "{said}");
    assert_eq!((&said["plan"]["pieces"], &said["plan"]["halo"]), (&4.into(), &5.into()), "{said}");
    assert_eq!((&said["clipped"], &said["filled"]), (&0.into(), &0.into()), "{said}");
    // A thousand times the light does not fit 16 bits everywhere.
    let out = must(
        "denoise --method exposure --set ratio=0.001 --offset 100 s/noisy/nuclei_0000.tif b.tif --json",
        &at,
    );
    let told: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let said = record("b.tif");
    assert!(said["clipped"].as_u64().is_some_and(|n| n > 0), "{said}");
    assert_eq!(said["clipped"], told["clipped"]);
    assert!(refused("denoise --method gaussian s/noisy/nuclei_0000.tif a.tif", &at).contains("--force"));
}
