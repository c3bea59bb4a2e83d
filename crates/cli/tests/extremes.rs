//! Images that no microscope makes, through every verb that restores: a finite result, or a message that names what is wrong.

mod measured;
mod program;

use clearshot_image::DType;
use clearshot_model::Task;
use clearshot_tensor::noise::Key;
use measured::{CAMERA, conditional, counts, model, read, write};
use program::{clearshot, folder, must};

#[test]
fn extreme_images_give_a_message_or_a_finite_result() {
    let at = folder("extremes");
    model(&at, "m", 1, 2, conditional());
    let noise = |n: usize| counts(&[1, n], 3);
    let mut holes = noise(1024);
    holes.iter_mut().step_by(3).for_each(|v| *v = f64::NAN);
    let images: Vec<(&str, [usize; 2], DType, Vec<f64>)> = vec![
        ("nan", [32, 32], DType::F32, vec![f64::NAN; 1024]),
        ("holes", [32, 32], DType::F32, holes),
        ("clipped", [32, 32], DType::U8, vec![255.0; 1024]),
        ("half", [32, 32], DType::U8, (0..1024).map(|i| if i % 32 < 14 { 255.0 } else { 90.0 }).collect()),
        ("constant", [32, 32], DType::U16, vec![700.0; 1024]),
        ("zero", [32, 32], DType::F32, vec![0.0; 1024]),
        ("negative", [32, 32], DType::F32, noise(1024).iter().map(|v| -v).collect()),
        ("huge", [32, 32], DType::F32, noise(1024).iter().map(|v| 1e30 * v).collect()),
        // Fluxes in SI units.
        ("flux", [32, 32], DType::F32, noise(1024).iter().map(|v| 1e-25 * v).collect()),
        ("subnormal", [32, 32], DType::F32, noise(1024).iter().map(|v| 1e-43 * v).collect()),
        ("one", [1, 1], DType::U16, vec![150.0]),
        ("row", [1, 40], DType::U16, noise(40)),
        ("two", [2, 2], DType::U16, noise(4)),
        ("seven", [7, 7], DType::U16, noise(49)),
    ];
    let lines = [
        format!("restore IN -o OUT --model m.clearshot {CAMERA}"),
        "restore IN -o OUT --model m.clearshot".to_string(),
        format!("restore IN -o OUT --model m.clearshot --method bm3d {CAMERA}"),
        "restore IN -o OUT --model m.clearshot --method gaussian".to_string(),
        "denoise --method bm3d IN OUT".to_string(),
        "deconvolve --psf-sigma 0.5 --gain 0.5 --offset 100 --steps 2 IN OUT".to_string(),
    ];
    for (name, size, dtype, values) in &images {
        write(&at.join(format!("{name}.tif")), "YX", size, *dtype, values);
        for (i, line) in lines.iter().enumerate() {
            let output = format!("{name}_{i}.tif");
            let line = line.replace("IN", &format!("{name}.tif")).replace("OUT", &output);
            let ran = clearshot(&line, &at);
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(!said.contains("panicked"), "{line}: {said}");
            match ran.status.success() {
                true => {
                    let (_, made) = read(at.join(&output));
                    let fits = |(v, x): (&f64, &f64)| v.is_finite() || !x.is_finite();
                    assert!(made.len() == values.len() && made.iter().zip(values).all(fits), "{line}");
                }
                false => assert!(said.trim().len() > 20 && !at.join(&output).exists(), "{line}: {said}"),
            }
        }
    }
}

/// Frames in fluxes tell a camera in that unit; frames that tell none are refused, and none ends the program.
#[test]
fn frames_of_a_movie_may_have_any_unit() {
    let at = folder("movie_units");
    let mut noise = vec![0.0f32; 6 * 64 * 64];
    Key { seed: 5, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let of = |name: &str, value: &dyn Fn(f64) -> f64| {
        let values: Vec<f64> = noise.iter().map(|&n| value(n.into())).collect();
        write(&at.join(name), "TYX", &[6, 64, 64], DType::F32, &values);
    };
    of("flux.tif", &|n| 5e-24 + 2e-25 * n);
    of("vast.tif", &|n| 5e24 + 2e23 * n);
    of("still.tif", &|_| 7.0);
    for way in ["--movie", "--repeats"] {
        let camera: serde_json::Value =
            serde_json::from_str(&must(&format!("camera {way} flux.tif --json"), &at)).expect("JSON");
        let line = &camera["measured"]["fit"]["line"];
        let deviation = line["at_pivot"].as_f64().expect("a number").sqrt();
        assert!((1e-25..3e-25).contains(&deviation), "{way}: {deviation:e}");
        let said = must(&format!("camera {way} flux.tif"), &at);
        assert!(said.contains("rows by less than") && !said.contains(" 0.000 counts"), "{said}");
        assert!(program::refused(&format!("camera {way} vast.tif"), &at).contains("at most 1e15"));
    }
    let said = program::refused("camera --movie still.tif", &at);
    assert!(said.contains("blocks") && !said.contains("panicked"), "{said}");
}

/// What 32-bit floats would change is refused by its name, by every verb: not restored wrongly, and not taken for saturation.
#[test]
fn values_beyond_32_bits_are_named() {
    let at = folder("beyond_32_bits");
    let noise = counts(&[32, 32], 3);
    write(&at.join("plain.tif"), "YX", &[32, 32], DType::U16, &noise);
    model(&at, "s", 1, 2, Task::Segmentation { classes: 1 });
    model(&at, "r", 1, 2, Task::Regression);
    must(
        "export r.clearshot -o r.onnx --direct --set gain=0.5 --set offset=100 --set read_noise=1.5 --set background=4 --set peak=80 --set noise_correlation=0,0,0,0",
        &at,
    );
    let cases = [
        ("offset", 1.0, 1e9, "take a constant off the image first"),
        ("vast", 1e300, 0.0, "larger than 32-bit numbers can be"),
        ("nothing", 1e-300, 0.0, "which 32-bit numbers do not hold"),
    ];
    for (name, times, more, why) in cases {
        let values: Vec<f64> = noise.iter().map(|&v| v * times + more).collect();
        let input = format!("{name}.tif");
        write(&at.join(&input), "YX", &[32, 32], DType::F64, &values);
        for line in [
            "restore IN -o out.tif --method gaussian".to_string(),
            format!("restore IN -o out.tif --method bm3d {CAMERA}"),
            "denoise --method bm3d IN out.tif".to_string(),
            "denoise --method gaussian IN out.tif".to_string(),
            "deconvolve --psf-sigma 0.5 --gain 0.5 --offset 100 --steps 2 IN out.tif".to_string(),
            "restore IN -o out.tif --model r.onnx".to_string(),
            "predict IN -o out.tif --model s.clearshot".to_string(),
            "camera IN".to_string(),
            "camera --repeats IN IN".to_string(),
            "camera --movie IN IN".to_string(),
            "camera --flats IN IN".to_string(),
            "camera --flats plain.tif plain.tif --darks IN IN".to_string(),
        ] {
            let said = program::refused(&line.replace("IN", &input), &at);
            assert!(said.contains(&input) && said.contains(why), "{line}: {said}");
        }
        // They can be looked at, and their numbers are seen.
        let about = must(&format!("info {input}"), &at);
        assert!(!about.contains("min 0.000000") && about.len() < 1000, "{about}");
    }
}

/// Other methods than the model do not run it, and refuse what only the model can do.
#[test]
fn methods_without_the_model() {
    let at = folder("without_the_model");
    model(&at, "m", 1, 2, conditional());
    write(&at.join("x.tif"), "YX", &[48, 40], DType::U16, &counts(&[48, 40], 4));
    for method in ["bm3d", "gaussian", "raw"] {
        let line =
            format!("restore x.tif -o {method}.tif --model m.clearshot --method {method} --json {CAMERA}");
        let events: Vec<serde_json::Value> =
            must(&line, &at).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let plan = events.iter().find(|e| e["event"] == "plan").expect("a plan");
        assert!(plan["method"] == method && plan["runs"] == 0, "{plan}");
        let file = events.iter().find(|e| e["event"] == "file").expect("a file");
        assert_eq!(file["chi2"].is_null(), method == "raw", "{file}");
    }
    assert_eq!(read(at.join("raw.tif")).1, read(at.join("x.tif")).1);
    let said = program::refused(
        &format!("restore x.tif -o y.tif --model m.clearshot --method bm3d --std {CAMERA}"),
        &at,
    );
    assert!(said.contains("need the model") && said.contains("--method"), "{said}");
    // What to trust is chosen behind the plan, which counts it.
    let out = must(&format!("restore x.tif -o auto.tif --model m.clearshot --json {CAMERA}"), &at);
    let events: Vec<serde_json::Value> =
        out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let place = |name: &str| events.iter().position(|e| e["event"] == name).expect(name);
    assert!(place("plan") < place("choice"));
    let plan = &events[place("plan")];
    assert!(
        plan["runs_choosing"].as_u64() > Some(0) && plan["runs"].as_u64() > plan["runs_choosing"].as_u64()
    );
}
