//! Messages of `clearshot restore` about cameras, images and options that it refuses, and those that it accepts.

mod measured;
mod program;

use clearshot_image::DType;
use clearshot_model::Task;
use clearshot_tensor::noise::Key;
use measured::{CAMERA, conditional, counts, model, read, write};
use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::Path;

fn kinds(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

/// What the command line says of the background, the image may contradict; what an image does not tell is assumed aloud.
#[test]
fn cameras_that_do_not_fit_or_are_undetermined_are_reported() {
    let at = folder("restore_camera_said");
    model(&at, "m", 1, 2, conditional());
    must("synth --scene filaments --count 1 --size 96x96 --peak 100 --out scene --seed 3", &at);
    let noisy =
        std::fs::read_dir(at.join("scene/noisy")).expect("pictures").flatten().next().expect("a picture");
    let path = noisy.path().display().to_string();
    let said = |more: &str| {
        let out = clearshot(
            &format!("restore {path} -o out.tif --force --model m.clearshot --steps 2 {more}"),
            &at,
        );
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        said
    };
    let told = "--gain 1 --offset 0 --read-noise 2";
    // 5 electrons is what the scenes of this peak have.
    for fits in [0, 4, 5] {
        assert!(!said(&format!("{told} --background {fits}")).contains("contradicts"), "{fits}");
    }
    for too_high in [6, 8, 20] {
        let said = said(&format!("{told} --background {too_high}"));
        assert!(said.contains("contradicts the image") && said.contains("--background"), "{said}");
    }
    // A flat image tells no gain.
    let flat: Vec<f64> =
        counts(&[64, 64], 5).iter().enumerate().map(|(i, v)| 100.0 + (v + i as f64) % 7.0).collect();
    write(&at.join("flat.tif"), "YX", &[64, 64], DType::U16, &flat);
    let out = clearshot("restore flat.tif -o flat_out.tif --model m.clearshot --steps 2", &at);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && text.contains("could not be estimated from this image"), "{text}");
    assert!(text.contains("--gain") && !text.contains("inf") && !text.contains("NaN"), "{text}");
}

#[test]
fn bad_input_gives_clear_errors() {
    let at = folder("restore_bad");
    model(&at, "m", 1, 2, conditional());
    model(&at, "colour", 3, 2, conditional());
    model(&at, "volume", 1, 3, conditional());
    model(&at, "regression", 1, 2, Task::Regression);
    write(&at.join("good.tif"), "YX", &[32, 32], DType::U16, &counts(&[32, 32], 1));
    write(&at.join("line.npy"), "X", &[50], DType::F32, &counts(&[50], 1));
    let full: Vec<f64> = (0..1024).map(|i| if i % 3 == 0 { 500.0 } else { 65_535.0 }).collect();
    write(&at.join("saturated.tif"), "YX", &[32, 32], DType::U16, &full);
    let mut part = counts(&[32, 32], 4);
    part[..50].fill(65_535.0);
    write(&at.join("bright.tif"), "YX", &[32, 32], DType::U16, &part);
    write(&at.join("psf8.tif"), "YX", &[3, 3], DType::U8, &[0.0, 9.0, 0.0, 9.0, 255.0, 9.0, 0.0, 9.0, 0.0]);
    write(&at.join("large.tif"), "YX", &[99, 99], DType::F32, &[1.0; 99 * 99]);
    write(&at.join("huge.tif"), "YX", &[3, 299], DType::F32, &[1.0; 3 * 299]);
    std::fs::create_dir(at.join("empty")).expect("a folder");
    std::fs::write(at.join("broken.tif"), b"II*\0 no more of a TIFF than this").expect("a file");
    for (arguments, words) in [
        ("restore line.npy -o x.tif --model m.clearshot", "Y and X"),
        ("restore good.tif -o x.tif --model colour.clearshot", "3 channels"),
        ("restore good.tif -o x.tif --model volume.clearshot", "no Z axis"),
        ("restore saturated.tif -o x.tif --model m.clearshot", "shorter exposure"),
        ("restore empty -o x --model m.clearshot", "no images"),
        ("restore good.tif -o x.tif --model nothing.clearshot", "no model"),
        ("restore good.tif -o x.tif --model good.tif", "not a model"),
        ("restore good.tif -o x.tif --model regression.clearshot --samples 4", "regression"),
        ("restore good.tif -o x.tif --model regression.clearshot --psf gaussian:1px", "diffusion model"),
        ("restore good.tif -o x.tif --model m.clearshot --memory 1000", "more memory"),
        ("restore good.tif -o x.tif --model m.clearshot --device cuda:99", ""),
        ("restore good.tif -o good.tif --model m.clearshot --force", "its own input"),
        ("restore good.tif -o x.tif --model m.clearshot --gain 0", "above zero"),
        (
            "denoise good.tif x.tif --gain -1",
            "'--gain <GAIN>': the gain, in electrons per count, must be a number above zero",
        ),
        (
            "deconvolve good.tif x.tif --psf-sigma 1 --gain nan",
            "'--gain <GAIN>': the gain, in electrons per count,",
        ),
        (
            "eval raw --truth good.tif --noisy good.tif --gain 0",
            "'--gain <GAIN>': the gain, in electrons per count,",
        ),
        (
            "denoise good.tif x.tif --gain 1 --read-noise -1",
            "'--read-noise <READ_NOISE>': a number not below zero",
        ),
        ("denoise good.tif x.tif --gain 1 --offset inf", "'--offset <OFFSET>': a number is needed"),
        ("restore good.tif -o x.tif --model m.clearshot --sampler best --samples 1", "heun"),
        ("restore good.tif -o x.tif --model m.clearshot --psf airy:na=1.4", "em="),
        ("restore good.tif -o x.tif --model m.clearshot --psf blur", "gaussian:1.5px"),
        ("restore good.tif -o x.tif --model m.clearshot --psf psf8.tif", "8 bits"),
        ("restore good.tif -o x.tif --model m.clearshot --psf large.tif --steps 2", "does not fit an image"),
        ("restore good.tif -o x.tif --model m.clearshot --gain=-1", "above zero"),
        ("deconvolve good.tif x.tif --psf psf8.tif --gain 1", "8 bits"),
        (
            "deconvolve good.tif x.tif --psf huge.tif --gain 1",
            "[3,299] pixels does not fit an image of [32,32]",
        ),
        (
            "deconvolve good.tif x.tif --psf large.tif --gain 1",
            "[99,99] pixels does not fit an image of [32,32]",
        ),
        ("deconvolve good.tif x.tif --psf-sigma 20 --gain 1", "would lie outside an image of [32,32]"),
        (
            "restore good.tif -o x.tif --model m.clearshot --psf gaussian:40px",
            "would lie outside an image of [32,32]",
        ),
        ("deconvolve good.tif x.tif --psf-sigma 1 --gain=-1", "above zero"),
        ("restore good.tif -o x.tif --model m.clearshot --guidance best", "poisson-gaussian"),
        ("restore good.tif -o x.tif --model m.clearshot --law best", "proximal"),
        ("restore good.tif -o x.tif --model m.clearshot --std --samples 1", "8 samples"),
        ("restore good.tif bright.tif -o x.tif --model m.clearshot", "name a folder"),
        ("restore good.tif -o x.tif --model m.clearshot --camera good.tif", "camera"),
        ("restore broken.tif -o x.tif --model m.clearshot", "broken.tif"),
        ("restore nothing.tif -o x.tif --model m.clearshot", "no such file"),
    ] {
        let camera = if arguments.contains("--gain") { "" } else { CAMERA };
        let said = refused(&format!("{arguments} {camera}"), &at);
        assert!(said.contains(words), "{arguments}: {said}");
        assert!(!said.contains("panicked") && !at.join("x.tif").exists(), "{arguments}: {said}");
    }
    let warned = clearshot(&format!("restore bright.tif -o y.tif --model m.clearshot {CAMERA}"), &at);
    let said = String::from_utf8_lossy(&warned.stderr).into_owned();
    assert!(warned.status.success() && said.contains("4.9 % of the pixels are saturated"), "{said}");
    // What became of a file begins with its name, once.
    let said = refused(&format!("restore good.tif nothing.tif -o most --model m.clearshot {CAMERA}"), &at);
    assert!(
        said.contains("nothing.tif: there is no such file") && !said.contains("nothing.tif: nothing.tif"),
        "{said}"
    );
    // One that cannot be read does not stop the others, and the end says which it was.
    let batch = clearshot(
        &format!("restore good.tif broken.tif bright.tif -o many --model m.clearshot {CAMERA}"),
        &at,
    );
    let (out, err) = (String::from_utf8_lossy(&batch.stdout), String::from_utf8_lossy(&batch.stderr));
    assert!(
        !batch.status.success() && out.contains("2 restored, 1 failed") && err.contains("broken.tif"),
        "{out}{err}"
    );
    assert_eq!(kinds(&at.join("many")), 2);
}

#[test]
fn nan_pixels_and_colour_images_are_restored_with_notices() {
    let at = folder("restore_odd");
    model(&at, "m", 1, 2, conditional());
    let mut values = counts(&[40, 40], 2);
    (values[7], values[820]) = (f64::NAN, f64::INFINITY);
    write(&at.join("holes.tif"), "YX", &[40, 40], DType::F32, &values);
    let out = clearshot(&format!("restore holes.tif -o filled.tif --model m.clearshot {CAMERA}"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("2 pixels hold no measurement"), "{said}");
    let (image, values) = read(at.join("filled.tif"));
    // A file of floats can represent missing values.
    assert!(values.iter().enumerate().all(|(i, v)| v.is_nan() == [7, 820].contains(&i)));
    assert_eq!(image.description.provenance.expect("provenance")["parameters"]["filled"].as_u64(), Some(2));
    let rgb: Vec<f64> = counts(&[24, 30, 3], 5).iter().map(|v| (v - 100.0).clamp(0.0, 250.0)).collect();
    write(&at.join("photo.png"), "YXS", &[24, 30, 3], DType::U8, &rgb);
    let out = clearshot(
        "restore photo.png -o photo_clean.png --model m.clearshot --gain 1 --offset 0 --read-noise 1 --chi2",
        &at,
    );
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("8-bit colour image"), "{said}");
    assert_eq!(
        (read(at.join("photo_clean.png")).0.dtype(), read(at.join("photo_clean.png")).0.shape()),
        (DType::U8, vec![24, 30, 3])
    );
    // PNG holds no floats: the map is a TIFF.
    assert_eq!(read(at.join("photo_clean_chi2.tif")).0.dtype(), DType::F32);
    // Without options the camera is estimated and printed.
    must("synth --scene nuclei --count 1 --peak 50 --size 128x128 --seed 1 --out s", &at);
    let out = clearshot("restore s/noisy -o s/clean --model m.clearshot", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("camera estimated from the image: gain"), "{said}");
    std::fs::write(at.join("camera.json"), r#"{"gain": 1.0, "offset": 0, "read_noise": 1.5}"#)
        .expect("a file");
    let out = clearshot("restore s/noisy -o s/known --model m.clearshot --camera camera.json", &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    // A model that learnt nothing explains nothing, and that is all there is to say.
    assert!(out.status.success() && said.lines().all(|l| l.contains("chi2 is")), "{said}");
}

/// The default model says of an image unlike its training's that it is, and of one like them nothing.
#[test]
fn unfamiliar_images_are_reported() {
    let at = folder("restore_strange");
    must("synth --scene nuclei --count 1 --peak 50 --size 128x128 --seed 6 --out s", &at);
    let said = |arguments: &str| {
        let out = clearshot(arguments, &at);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{text}");
        (text, String::from_utf8(out.stdout).expect("text"))
    };
    let (text, _) = said("restore s/noisy/nuclei_0000.tif -o n.tif --gain 1 --offset 0 --read-noise 1.5");
    assert!(!text.contains("unlike"), "{text}");
    let mut noise = vec![0.0f32; 128 * 128];
    Key { seed: 3, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let board = |(i, z): (usize, &f32)| {
        let light = if (i / 128 / 8 + i % 128 / 8) % 2 == 0 { 60.0 } else { 4.0 };
        light + f64::from(*z) * (light + 2.0f64).sqrt()
    };
    let values: Vec<f64> = noise.iter().enumerate().map(board).collect();
    write(&at.join("board.tif"), "YX", &[128, 128], DType::F32, &values);
    let (text, json) = said("restore board.tif -o b.tif --gain 1 --offset 0 --read-noise 1.4 --json");
    assert_eq!(text.matches("unlike what the model was trained on: ").count(), 1, "{text}");
    assert!(text.contains("clearshot denoise"), "{text}");
    let record: Value =
        serde_json::from_str(json.lines().find(|l| l.contains("\"file\"")).expect("a line")).expect("JSON");
    assert!(record["strange"].as_str().expect("why").contains("than in its images of"), "{record}");
}

/// Three planes under PSFs of many: a Gaussian is made to fit, a file is cropped where that costs nothing, and both say so.
#[test]
fn thin_stacks_and_large_psfs() {
    let at = folder("restore_thin");
    model(&at, "m", 1, 3, conditional());
    write(&at.join("thin.tif"), "ZYX", &[3, 40, 36], DType::U16, &counts(&[3, 40, 36], 1));
    // A PSF of 31 planes, with all of its light in the middle one, and with as much in each.
    let plane = |i: usize| if i % 25 == 12 { 8.0 } else { 1.0 };
    let narrow: Vec<f64> = (0..31 * 25).map(|i| if i / 25 == 15 { plane(i) } else { 0.0 }).collect();
    write(&at.join("narrow.tif"), "ZYX", &[31, 5, 5], DType::F32, &narrow);
    write(&at.join("wide.tif"), "ZYX", &[31, 5, 5], DType::F32, &(0..31 * 25).map(plane).collect::<Vec<_>>());
    let run = |line: &str| {
        let out = clearshot(line, &at);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let deconvolve = format!("deconvolve --volume {CAMERA} --steps 2 --float thin.tif");
    let restore = format!("restore thin.tif --model m.clearshot {CAMERA} --steps 2 --float");
    for (i, (line, psf)) in [
        (
            format!("{deconvolve} d"),
            ["--psf-sigma 2,1,1", "--psf-sigma 0.1,1,1", "--psf narrow.tif", "--psf wide.tif"],
        ),
        (
            format!("{restore} -o r"),
            [
                "--psf gaussian:2px,1px,1px",
                "--psf gaussian:0.1px,1px,1px",
                "--psf narrow.tif",
                "--psf wide.tif",
            ],
        ),
    ]
    .iter()
    .enumerate()
    {
        let [part, small, narrow, wide] =
            psf.each_ref().map(|psf| run(&format!("{line}{i}.tif --force {psf}")));
        assert!(part.0 && part.1.contains("limited to [3,11,11]"), "{}", part.1);
        assert!(small.0 && !small.1.contains("limited to"), "{}", small.1);
        assert!(narrow.0 && narrow.1.contains("[31,5,5] pixels is cropped to [3,5,5]"), "{}", narrow.1);
        let said = &wide.1;
        assert!(!wide.0 && said.contains("[31,5,5]") && said.contains("[3,40,36]"), "{said}");
        assert!(said.contains("crop the PSF"), "{said}");
    }
}

/// What users trip over is out of the way, or said with what to do.
#[test]
fn common_mistakes_work_or_give_clear_errors() {
    let at = folder("restore_stumbling");
    let shape = [40, 48];
    write(&at.join("in.tif"), "YX", &shape, DType::U16, &counts(&shape, 5));
    must(&format!("restore in.tif -o new/folder/out.tif {CAMERA}"), &at);
    assert!(at.join("new/folder/out.tif").is_file());

    let text = refused(&format!("restore in.tif -o out.jpg {CAMERA}"), &at);
    assert!(
        text.contains(".jpg files are not written here; write .tif") && !at.join("out.jpg").exists(),
        "{text}"
    );
    for verb in ["restore in.tif -o", "denoise in.tif", "convert in.tif"] {
        let camera = if verb.starts_with("convert") { "" } else { CAMERA };
        let text = refused(&format!("{verb} out.xyz {camera}"), &at);
        assert!(text.contains("out.xyz: .xyz is not") && text.contains(".ome.zarr"), "{text}");
        assert!(!at.join("out.xyz").exists());
    }
    must("convert in.tif out.xyz/", &at);
    must("convert in.tif plain", &at);
    assert!(at.join("out.xyz/in.tif").is_file() && at.join("plain/in.tif").is_file());
    let text = refused(&format!("restore - -o out.tif {CAMERA}"), &at);
    assert!(text.contains("standard input is not read"), "{text}");
    let text = refused("restore in.tif -o out.tif --gain -1", &at);
    assert!(text.contains("gain") && !text.contains("unexpected argument"), "{text}");
    std::fs::write(at.join("empty.tif"), b"").expect("a file");
    let text = refused(&format!("restore empty.tif -o out.tif {CAMERA}"), &at);
    assert!(text.contains("the file is empty"), "{text}");
    std::fs::write(at.join("photo.webp"), b"RIFF").expect("a file");
    let text = refused(&format!("restore photo.webp -o out.tif {CAMERA}"), &at);
    assert!(text.contains("take the original, as TIFF or PNG"), "{text}");
    // A photograph is read, with a warning, and comes back as a TIFF.
    let photograph = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/pictures/grey.jpg");
    std::fs::copy(photograph, at.join("photo.jpg")).expect("a copy");
    let made = clearshot(&format!("restore photo.jpg -o photos {CAMERA}"), &at);
    let text = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && text.contains("8 bits, packed with losses"), "{text}");
    assert!(at.join("photos/photo.tif").exists(), "{text}");

    // A scene of filaments with 5 electrons of background.
    must("synth --scene filaments --count 1 --size 96 --peak 100 --out scene --seed 3", &at);
    let noisy =
        std::fs::read_dir(at.join("scene/noisy")).expect("pictures").flatten().next().expect("a picture");
    let path = noisy.path().display().to_string();
    let told = |name: &str, more: &str| {
        let made = clearshot(&format!("restore {path} -o {name}.tif --read-noise 2 {more}"), &at);
        assert!(made.status.success(), "{more}");
        String::from_utf8_lossy(&made.stderr).into_owned()
    };
    let text = told("high", "--gain 1 --offset 0 --background 20");
    let number = text.split("use --background ").nth(1).and_then(|t| t.split(',').next()).expect("a number");
    let dark: f64 = number.parse().expect("a number");
    assert!((4.0..6.0).contains(&dark), "{text}");
    // And with that number there is nothing to say.
    let text = told("right", &format!("--gain 1 --offset 0 --background {dark}"));
    assert!(!text.contains("contradicts") && !text.contains("chi2"), "{text}");
    // Another camera's numbers: nothing is as dark as that, and noise is never so little.
    for (name, camera) in [("dark", "--gain 1 --offset 300"), ("quiet", "--gain 0.05 --offset 0")] {
        let text = told(name, camera);
        assert!(text.contains("chi2 is ") && text.contains("where about 1 is right"), "{text}");
    }
}
