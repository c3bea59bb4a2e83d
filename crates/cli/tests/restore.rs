//! `clearshot restore` as users start it, with small models of random weights: files of several kinds come back as they
//! went in with a record of what was done, a second run finds nothing to do, and an interrupted one resumes.

mod measured;
mod program;

use clearshot_image::dataset::{Normaliser, Range};
use clearshot_image::{Axis, DType, Image};
use clearshot_model::{About, Model, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;
use measured::{CAMERA, conditional, counts, model, read, write};
use program::{clearshot, folder, must, refused};
use serde_json::{Value, json};

/// Frames along an axis that a file does not name are restored one by one, with a notice; named on the command line they are
/// a movie, and the file that is written is still the input's kind.
#[test]
fn axes_can_be_named() {
    let at = folder("restore_axes");
    model(&at, "m", 1, 2, conditional());
    let shape = [5, 40, 40];
    let frames: Vec<f64> = (0..5).flat_map(|frame| counts(&shape[1..], frame)).collect();
    write(&at.join("named.tif"), "TYX", &shape, DType::U16, &frames);
    write(&at.join("plain.npy"), "IYX", &shape, DType::U16, &frames);
    let line = |rest: &str| format!("restore {rest} {CAMERA} --model m.clearshot --float --method model");
    let said = clearshot(&line("plain.npy -o apart.npy"), &at);
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && words.contains("--axes TYX for a movie, --axes ZYX"), "{words}");
    let said = clearshot(&line("plain.npy -o movie.npy --axes TYX"), &at);
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && !words.contains("--axes TYX"), "{words}");
    must(&line("named.tif -o named-out.tif"), &at);
    let [apart, movie, named] = ["apart.npy", "movie.npy", "named-out.tif"].map(|name| read(at.join(name)).1);
    assert!(movie == named && apart != named);
    let (found, _) = read(at.join("movie.npy"));
    assert_eq!(found.description.axes(), "IYX");
    for (letters, why) in
        [("TY", "3 letters are needed"), ("TYY", "twice"), ("T?X", "letters are T C Z Y X S")]
    {
        let said = refused(&line(&format!("plain.npy -o x.npy --axes {letters}")), &at);
        assert!(said.contains("--axes") && said.contains(why), "{said}");
    }
}

/// A network from one channel to two, and back: the file gets the axes that it needs, and the same planes as they would be
/// alone.
#[test]
fn channels_that_come_out_need_not_be_those_that_go_in() {
    let at = folder("restore_channels");
    let limits = Normaliser { range: Range::MinMax, low: 0.0, high: 400.0, clip: false };
    for (inputs, channels) in [(1, 2), (2, 1)] {
        let config = json!({
            "_class_name": "Local", "channels": [4, 4], "blocks": 1, "in_channels": inputs, "out_channels": channels,
            "time": false,
        });
        let config = config.to_string();
        let params = models::read(&config).expect("a network").parameters().expect("parameters");
        let signal = Signal::Fixed { input: limits, target: None };
        let about = About::new("m", Task::Regression, signal, channels, &[16, 16]);
        let refused = Model::new(about.clone(), config.clone(), weights::initial(&params, 3));
        assert!(refused.is_err(), "a model that does not say what goes in");
        let about = About { inputs: Some(inputs), ..about };
        let mut weights = weights::initial(&params, 3);
        // What begins at zero would hide what the network is given.
        for (i, t) in weights.values_mut().enumerate() {
            let mut noise = vec![0.0; t.shape().len()];
            Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
            let values = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.1 * n).collect();
            *t = Tensor::f32(t.shape(), values);
        }
        let model = Model::new(about, config, weights).expect("a model");
        let name = format!("{inputs}to{channels}.clearshot");
        model.save_file(&at.join(name), clearshot_tensor::DType::F32).expect("a file");
    }
    let shape = [3, 24, 28];
    let values = counts(&shape, 5);
    write(&at.join("in.ome.tif"), "ZYX", &shape, DType::U16, &values);
    must("restore in.ome.tif -o two.ome.tif --model 1to2.clearshot --float --report r.html", &at);
    let (two, made) = read(at.join("two.ome.tif"));
    assert_eq!((two.description.dim(Axis::C).map(|d| d.len), made.len()), (Some(2), 2 * values.len()));
    assert_eq!(two.description.dim(Axis::Z).map(|d| d.len), Some(3));
    // The same plane alone, in a file of another order, cut otherwise.
    write(&at.join("one.ome.tif"), "YX", &shape[1..], DType::U16, &values[24 * 28..2 * 24 * 28]);
    must("restore one.ome.tif -o one2.ome.tif --model 1to2.clearshot --float --tile 16", &at);
    let (one, alone) = read(at.join("one2.ome.tif"));
    let plane = |image: &Image, values: &[f64], z: usize, c: usize| -> Vec<f64> {
        let d = &image.description;
        let strides = clearshot_image::grid::strides(&image.shape());
        let at = |axis: Axis| d.position(axis).map_or(0, |a| strides[a]);
        let (z, c) = (z * at(Axis::Z), c * at(Axis::C));
        (0..24 * 28).map(|i| values[z + c + i / 28 * at(Axis::Y) + i % 28 * at(Axis::X)]).collect()
    };
    for c in 0..2 {
        let (a, b) = (plane(&two, &made, 1, c), plane(&one, &alone, 0, c));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-2), "channel {c}");
    }
    assert!(plane(&two, &made, 1, 0) != plane(&two, &made, 1, 1), "both channels are the same");
    must("restore two.ome.tif -o back.ome.tif --model 2to1.clearshot --float", &at);
    let (back, values) = read(at.join("back.ome.tif"));
    assert_eq!((back.description.dim(Axis::C).map_or(1, |d| d.len), values.len()), (1, made.len() / 2));
    for (what, why) in [
        ("two.ome.tif --model 1to2.clearshot", "a file of their own"),
        ("in.ome.tif --model 2to1.clearshot", "2 channels together"),
        ("in.ome.tif --model 1to2.clearshot --chi2 --gain 1 --offset 0 --read-noise 1", "other channels"),
    ] {
        let said = refused(&format!("restore {what} -o x.ome.tif"), &at);
        assert!(said.contains(why), "{what}: {said}");
    }
}

#[test]
fn files_come_back_as_they_were_with_a_record() {
    let at = folder("restore_files");
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 3, 40, 52];
    write(&at.join("in.ome.tif"), "CZYX", &shape, DType::U16, &counts(&shape, 1));
    let said = must(
        &format!(
            "restore in.ome.tif -o out.ome.tif --model m.clearshot {CAMERA} --method model --std --samples 2 --steps 3 --chi2 --report r.html"
        ),
        &at,
    );
    assert!(said.starts_with("plan: ") && said.contains("chi2"), "{said}");
    let ((before, _), (after, values)) = (read(at.join("in.ome.tif")), read(at.join("out.ome.tif")));
    assert_eq!(after.description.axes(), before.description.axes());
    assert_eq!((after.shape(), after.dtype()), (before.shape(), DType::U16));
    assert_eq!(after.description.channels, before.description.channels);
    assert_eq!(after.description.dim(Axis::X), before.description.dim(Axis::X));
    assert!(values.iter().all(|v| *v > 50.0 && *v < 400.0));
    let record = after.description.provenance.expect("provenance");
    let p = &record["parameters"];
    assert_eq!((record["operation"].as_str(), p["clipped"].as_u64()), (Some("restore"), Some(0)));
    assert_eq!(p["settings"]["model_hash"].as_str().map(str::len), Some(64));
    assert_eq!((p["settings"]["seed"].as_u64(), p["camera"]["gain"].as_f64()), (Some(0), Some(0.5)));
    assert!(p["plan"]["tile"].is_array());
    for map in ["out_std.ome.tif", "out_chi2.ome.tif"] {
        let (image, values) = read(at.join(map));
        assert_eq!((image.dtype(), image.shape()), (DType::F32, shape.to_vec()), "{map}");
        assert!(values.iter().all(|v| v.is_finite() && *v >= 0.0), "{map}");
    }
    let page = std::fs::read_to_string(at.join("r.html")).expect("a report");
    for part in ["data:image/png;base64,iVBOR", "<svg", "in.ome.tif", "model_hash", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    // Tiles do not show, down to the file's type.
    must(
        &format!(
            "restore in.ome.tif -o tiled.ome.tif --model m.clearshot {CAMERA} --tile 16 --batch 3 --threads 1"
        ),
        &at,
    );
    must(&format!("restore in.ome.tif -o whole.ome.tif --model m.clearshot {CAMERA}"), &at);
    let (tiled, whole) = (read(at.join("tiled.ome.tif")).1, read(at.join("whole.ome.tif")).1);
    assert!(tiled.iter().zip(&whole).all(|(a, b)| (a - b).abs() <= 1.0));
    let same = tiled.iter().zip(&whole).filter(|(a, b)| a == b).count();
    assert!(same as f64 > 0.999 * whole.len() as f64, "{same} of {}", whole.len());
}

#[test]
fn a_second_run_skips_finished_files_and_an_interrupted_one_resumes() {
    let at = folder("restore_again");
    model(&at, "m", 1, 2, conditional());
    std::fs::create_dir(at.join("in")).expect("a folder");
    for (name, seed) in [("a.tif", 1), ("b.tif", 2), ("c.npy", 3)] {
        write(&at.join("in").join(name), "YX", &[30, 30], DType::F32, &counts(&[30, 30], seed));
    }
    let run = format!("restore in -o out --model m.clearshot {CAMERA} --json");
    let events = |text: &str| -> Vec<Value> {
        text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"))).collect()
    };
    let first = events(&must(&run, &at));
    let summary = first.last().expect("a summary");
    assert_eq!((summary["restored"].as_u64(), summary["already_done"].as_u64()), (Some(3), Some(0)));
    let pixels = std::fs::read(at.join("out/a.tif")).expect("a file");
    // b.tif is as if the run had been stopped before it.
    std::fs::remove_file(at.join("out/b.tif")).expect("removed");
    let second = clearshot(&run, &at);
    let again = events(&String::from_utf8(second.stdout).expect("text"));
    let summary = again.last().expect("a summary");
    let counted = (summary["restored"].as_u64(), summary["already_done"].as_u64());
    // A format without a place for the record cannot be known to be done: it is not replaced, and said.
    match second.status.success() {
        true => assert_eq!(counted, (Some(1), Some(2))),
        false => {
            assert_eq!(counted, (Some(1), Some(1)));
            assert!(
                summary["failed"][0]["error"].as_str().is_some_and(|e| e.contains("--force")),
                "{summary}"
            );
        }
    }
    assert_eq!(std::fs::read(at.join("out/a.tif")).expect("a file"), pixels);
    // Other settings are another result, and nothing is replaced unasked.
    let said =
        refused("restore in/a.tif -o out/a.tif --model m.clearshot --gain 1 --offset 90 --read-noise 1", &at);
    assert!(said.contains("--force"), "{said}");
    must(
        "restore in/a.tif -o out/a.tif --model m.clearshot --gain 1 --offset 90 --read-noise 1 --force --quiet",
        &at,
    );
    assert_ne!(std::fs::read(at.join("out/a.tif")).expect("a file"), pixels);
}

/// An interrupted stack resumes after the last restored planes, with identical bytes.
#[test]
fn a_stack_resumes_after_an_interruption() {
    let at = folder("restore_stack_again");
    model(&at, "m", 1, 2, conditional());
    let shape = [40, 36, 36];
    write(&at.join("in.tif"), "ZYX", &shape, DType::U16, &counts(&shape, 1));
    let run = format!("restore in.tif -o out.tif --model m.clearshot {CAMERA} --std --samples 2 --steps 2");
    let kept = at.join(".out.tif.parts");
    must(&run.replace("out.tif", "straight.tif"), &at);
    // Somebody else's file stands where the deviation belongs, which is found out when all planes are restored.
    write(&at.join("out_std.tif"), "YX", &[4, 4], DType::F32, &[0.0; 16]);
    refused(&run, &at);
    std::fs::remove_file(at.join("out_std.tif")).expect("removed");
    let parts = || std::fs::read_dir(&kept).expect("kept").count();
    assert_eq!(parts(), 40 + 1);
    // As if it had been interrupted in the second group, and a part of the first been damaged afterwards.
    std::fs::remove_file(kept.join("20.safetensors")).expect("removed");
    std::fs::write(kept.join("3.safetensors"), "no part").expect("damaged");
    let out = clearshot(&run, &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success() && said.contains("8 of 40 planes were restored by an earlier run"),
        "{said}"
    );
    assert!(!kept.exists());
    for suffix in ["", "_std"] {
        let [a, b] = ["out", "straight"].map(|name| read(at.join(format!("{name}{suffix}.tif"))).1);
        assert_eq!(a, b);
    }
    // A folder that is not there is made.
    must(&run.replace("out.tif", "new/out.tif"), &at);
    assert_eq!(read(at.join("new/out.tif")).1, read(at.join("out.tif")).1);
    // Parts of other settings are not taken.
    write(&at.join("other_std.tif"), "YX", &[4, 4], DType::F32, &[0.0; 16]);
    let other = run.replace("out.tif", "other.tif");
    refused(&other, &at);
    std::fs::remove_file(at.join("other_std.tif")).expect("removed");
    let out = clearshot(&format!("{other} --seed 4"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success() && !said.contains("earlier run") && !at.join(".other.tif.parts").exists(),
        "{said}"
    );
}

/// Killed again and again while it restores a stack: the next run resumes from complete parts, nothing has the output's name
/// before it is complete, and the result equals that of an undisturbed run.
#[cfg(unix)]
#[test]
fn a_stack_resumes_after_kills() {
    use std::process::{Command, Stdio};
    let at = folder("restore_stack_killed");
    model(&at, "m", 1, 2, conditional());
    let shape = [96, 32, 32];
    write(&at.join("in.tif"), "ZYX", &shape, DType::U16, &counts(&shape, 2));
    let run = format!("restore in.tif -o out.tif --model m.clearshot {CAMERA} --steps 4 --threads 1");
    let kept = at.join(".out.tif.parts");
    let is_part = |e: &std::fs::DirEntry| e.path().extension().is_some_and(|x| x == "safetensors");
    let parts = || {
        let entries = std::fs::read_dir(&kept).map(|d| d.flatten().filter(is_part).count());
        entries.unwrap_or(0)
    };
    let mut killed = 0;
    // In the middle of a group's computation, and while its parts are being written.
    for (more, pause) in [(1, 0), (1, 1500), (17, 300), (20, 20_000)] {
        let before = parts();
        let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
            .args(run.split_whitespace())
            .current_dir(&at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a start");
        while child.try_wait().expect("a state").is_none() && parts() < before + more {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        std::thread::sleep(std::time::Duration::from_micros(pause));
        let running = child.try_wait().expect("a state").is_none();
        child.kill().expect("a kill");
        child.wait().expect("an end");
        if !running {
            break;
        }
        killed += 1;
        assert!(parts() >= before + more, "{} parts, and {before} before", parts());
        assert!(!at.join("out.tif").exists(), "a torn output");
    }
    assert!(killed > 0, "no run was caught at work");
    let out = clearshot(&run, &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("of 96 planes were restored by an earlier run"), "{said}");
    assert!(!kept.exists());
    must(&run.replace("out.tif", "straight.tif"), &at);
    let [a, b] = ["out.tif", "straight.tif"].map(|name| read(at.join(name)).1);
    assert_eq!(a, b);
}

#[test]
fn volumes_channels_and_blur() {
    let at = folder("restore_volumes");
    model(&at, "volume", 1, 3, conditional());
    model(&at, "colour", 3, 2, conditional());
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 5, 20, 24];
    write(&at.join("stack.ome.tif"), "TZYX", &shape, DType::U16, &counts(&shape, 1));
    must(&format!("restore stack.ome.tif -o v.ome.tif --model volume.clearshot {CAMERA}"), &at);
    let (image, values) = read(at.join("v.ome.tif"));
    assert_eq!((image.description.axes().as_str(), image.shape()), ("TZYX", shape.to_vec()));
    assert!(values.iter().any(|v| *v != values[0]));
    // Channels of one pixel together, wherever they stand in the file.
    let planar = counts(&[3, 20, 24], 7);
    write(&at.join("planar.ome.tif"), "CYX", &[3, 20, 24], DType::F32, &planar);
    must(&format!("restore planar.ome.tif -o p.ome.tif --model colour.clearshot {CAMERA}"), &at);
    assert_eq!(read(at.join("p.ome.tif")).0.shape(), [3, 20, 24]);
    // Under a PSF: from pixels, from the microscope and from a file; the three differ.
    write(&at.join("psf.tif"), "YX", &[3, 3], DType::F32, &[0.0, 1.0, 0.0, 1.0, 8.0, 1.0, 0.0, 1.0, 0.0]);
    let mut made = Vec::new();
    for (i, psf) in [
        "gaussian:1.5px",
        "airy:na=1.4,em=520nm",
        "psf.tif",
        "gaussian:0.15um",
        "airy:na=1.4,em=520nm,pixel=0.1um",
    ]
    .iter()
    .enumerate()
    {
        let run = format!(
            "restore stack.ome.tif -o d{i}.ome.tif --model m.clearshot {CAMERA} --psf {psf} --steps 3 --float"
        );
        must(&run, &at);
        made.push(read(at.join(format!("d{i}.ome.tif"))).1);
    }
    assert!(made[0] != made[1] && made[1] != made[2]);
    // The stack's pixels are 0.1 um wide.
    let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(same(&made[0], &made[3]) && same(&made[1], &made[4]));
    let run = format!(
        "restore stack.ome.tif -o g.ome.tif --model m.clearshot {CAMERA} --guidance poisson-gaussian --law proximal:strength=0.9 --steps 3"
    );
    must(&run, &at);
}

/// A line for each image, sample and step, by the image's own numbers; a clip that is reached holds.
#[test]
fn guidance_can_be_traced_and_clipped() {
    let at = folder("restore_trace");
    model(&at, "m", 1, 2, conditional());
    let shape = [2, 20, 24];
    write(&at.join("two.ome.tif"), "TYX", &shape, DType::U16, &counts(&shape, 1));
    let run = |more: &str| {
        format!(
            "restore two.ome.tif -o out.tif --model m.clearshot {CAMERA} --force --samples 2 --steps 3 {more}"
        )
    };
    must(&run("--guidance shifted-poisson --clip 0.01 --trace t.jsonl"), &at);
    let text = std::fs::read_to_string(at.join("t.jsonl")).expect("a trace");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let number = |l: &serde_json::Value, key: &str| l[key].as_f64().unwrap_or(f64::NAN);
    let at_step =
        |l: &serde_json::Value| ["image", "sample", "step"].map(|key| l[key].as_u64().expect("a number"));
    let mut places: Vec<[u64; 3]> = lines.iter().map(at_step).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!((lines.len(), places.len()), (12, 12), "two images, two samples, three steps: {text}");
    for line in &lines {
        let [chi2, gradient, weight, moved, kept, sigma] =
            ["chi2", "gradient", "weight", "moved", "kept", "sigma"].map(|key| number(line, key));
        assert!(chi2 > 0.0 && gradient > 0.0 && weight > 0.0 && sigma > 0.0, "{line}");
        assert!(moved <= 0.01 * 1.0001 && kept > 0.0 && kept <= 1.0, "{line}");
    }
    assert!(lines.iter().any(|l| number(l, "kept") < 0.999), "{text}");
    let chi2 = |image: u64| -> Vec<f64> {
        lines.iter().filter(|l| l["image"] == image).map(|l| number(l, "chi2")).collect()
    };
    assert_ne!(chi2(0), chi2(1), "each image has numbers of its own");
    let said = clearshot(&run("--trace u.jsonl"), &at);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("--trace") && said.contains("guidance"), "{said}");
    let said = clearshot(&run("--guidance gaussian --clip=-1"), &at);
    assert!(!said.status.success());
}

#[test]
fn a_folder_of_diffusers_restores() {
    let at = folder("restore_diffusers");
    let config = r#"{"_class_name": "UNet2DModel", "sample_size": 16, "in_channels": 1, "out_channels": 1,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
    let params = models::read(config).expect("a network").parameters().expect("parameters");
    weights::save_network(&at.join("unet"), config, &weights::initial(&params, 1)).expect("a folder");
    let values: Vec<f64> = counts(&[40, 50], 1).iter().map(|v| v * 100.0).collect();
    write(&at.join("in.tif"), "YX", &[40, 50], DType::U16, &values);
    let guided = "--guidance shifted-poisson --gain 0.005 --offset 10000 --read-noise 1.5";
    let out =
        clearshot(&format!("restore in.tif -o out.tif --model unet --sampler ddim --steps 6 {guided}"), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("(--tile)"), "{said}");
    let plan = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(plan.contains("tiles of 16 x 16 pixels"), "{plan}");
    let (image, made) = read(at.join("out.tif"));
    assert_eq!((image.dtype(), image.shape()), (DType::U16, vec![40, 50]));
    // The measurement has its say: the result is far nearer to it than to what the prior alone would make up.
    let apart = |a: &[f64]| {
        (a.iter().zip(&values).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
    };
    must("restore in.tif -o alone.tif --model unet --sampler ddim --steps 6", &at);
    let alone = read(at.join("alone.tif")).1;
    assert!(apart(&made) < 0.3 * apart(&alone), "{} {}", apart(&made), apart(&alone));
}
