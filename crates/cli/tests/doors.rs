//! What samplers, guidance and files can do beyond the usual, each through the option that reaches it.

mod measured;
mod program;

use clearshot_image::DType;
use clearshot_model::{ConditionKind, PredictionKind, Process, Task};
use measured::{CAMERA, conditional, counts, model, read, shake, write};
use program::{folder, must, refused};
use serde_json::Value;
use std::path::Path;

const SIZE: [usize; 2] = [48, 40];

/// A folder with counts of a camera and three small models: one that is given the measurement, a prior, and one of timesteps.
fn prepared(name: &str) -> std::path::PathBuf {
    let at = folder(name);
    write(&at.join("in.tif"), "YX", &SIZE, DType::F32, &counts(&SIZE, 5));
    model(&at, "given", 1, 2, conditional());
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    model(&at, "prior", 1, 2, Task::Diffusion { prediction, process, condition: ConditionKind::None });
    let process =
        Process::Timesteps { law: "ddpm_linear".into(), first: 1e-4, last: 0.02, steps: 100, finer: 1.0 };
    let prediction = PredictionKind::Epsilon;
    model(&at, "steps", 1, 2, Task::Diffusion { prediction, process, condition: ConditionKind::Measurement });
    ["given", "prior", "steps"].iter().for_each(|name| shake(&at, name));
    at
}

/// One sample by these options.
fn sample(at: &Path, model: &str, options: &str) -> Vec<f64> {
    let line = format!(
        "restore in.tif -o out.tif --model {model}.clearshot --method model --samples 1 --steps 4 --device cpu --threads 1 --quiet --force {CAMERA} {options}"
    );
    must(&line, at);
    read(at.join("out.tif")).1
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn samplers_take_their_settings_and_levels_their_spacing() {
    let at = prepared("doors_samplers");
    let ddim = sample(&at, "given", "--sampler ddim");
    assert_eq!(ddim, sample(&at, "given", "--sampler ddim:eta=0"), "eta is 0 by default");
    assert!(largest_difference(&ddim, &sample(&at, "given", "--sampler ddim:eta=1")) > 0.1);
    let heun = sample(&at, "given", "--sampler heun");
    assert_eq!(heun, sample(&at, "given", "--sampler heun:churn=0,noise=1.003"), "no churn adds no noise");
    assert!(largest_difference(&heun, &sample(&at, "given", "--sampler heun:churn=4")) > 0.1);
    // Churn outside of all levels is none.
    assert_eq!(heun, sample(&at, "given", "--sampler heun:churn=4,from=100,to=200"));
    // The spacing that a model has by default, by its name, and others.
    let usual = sample(&at, "given", "");
    assert_eq!(usual, sample(&at, "given", "--levels karras:rho=7,min=0.01,max=20"));
    assert_ne!(usual, sample(&at, "given", "--levels karras:rho=3"));
    let trailing = sample(&at, "steps", "");
    assert_eq!(trailing, sample(&at, "steps", "--levels trailing"));
    for other in ["leading", "leading:offset=1", "linspace", "quadratic", "karras"] {
        assert_ne!(trailing, sample(&at, "steps", &format!("--levels {other}")), "{other}");
    }
    let line =
        |rest: &str| format!("restore in.tif -o no.tif --model given.clearshot --samples 1 {CAMERA} {rest}");
    for (options, words) in [
        ("--sampler ddim:eta=2", "from 0 to 1"),
        ("--sampler ddim:beta=1", "there are: eta"),
        ("--sampler ddin", "ddim[:eta=0]"),
        ("--levels leading", "timesteps"),
        ("--levels karras:max=80", "trained at"),
        ("--levels even", "quadratic"),
    ] {
        let said = refused(&line(options), &at);
        assert!(said.contains(words), "{options}: {said}");
    }
}

#[test]
fn samples_begin_at_the_measurement_or_keep_it() {
    let at = prepared("doors_begin");
    let measured = read(at.join("in.tif")).1;
    // With next to no noise, in one step or few, nearly nothing changes.
    let near = sample(&at, "prior", "--begin 0.011");
    let far = sample(&at, "prior", "");
    // A sample from noise is about a full range away (0.013 of that was measured here).
    assert!(largest_difference(&near, &measured) < 0.03 * largest_difference(&far, &measured));
    // A mask marks what is drawn; all else is as it was measured.
    let marked = |i: usize| (8..12).contains(&(i / SIZE[1])) && (5..9).contains(&(i % SIZE[1]));
    let mask: Vec<f64> = (0..measured.len()).map(|i| f64::from(u8::from(marked(i)))).collect();
    write(&at.join("mask.tif"), "YX", &SIZE, DType::U8, &mask);
    let drawn = sample(&at, "prior", "--inpaint --mask mask.tif");
    for (i, (a, b)) in drawn.iter().zip(&measured).enumerate() {
        assert_eq!(a != b, marked(i), "pixel {i}: {a} for {b}");
    }
    // NaN is drawn too, and comes back as a number.
    let holes: Vec<f64> =
        measured.iter().enumerate().map(|(i, &v)| if marked(i) { f64::NAN } else { v }).collect();
    write(&at.join("holes.tif"), "YX", &SIZE, DType::F32, &holes);
    must(
        &format!(
            "restore holes.tif -o full.tif --model prior.clearshot --method model --samples 1 --steps 4 --inpaint --quiet {CAMERA}"
        ),
        &at,
    );
    assert!(read(at.join("full.tif")).1.iter().all(|v| v.is_finite()));
    let said = refused(
        &format!("restore in.tif -o no.tif --model prior.clearshot --samples 1 --inpaint {CAMERA}"),
        &at,
    );
    assert!(said.contains("pixels to fill"), "{said}");
}

#[test]
fn guidance_is_gated_goes_through_the_network_and_is_free_of_classifiers() {
    let at = prepared("doors_guidance");
    let none = sample(&at, "prior", "--law sigma-squared:kappa=0");
    let guided = sample(&at, "prior", "--law proximal");
    assert!(largest_difference(&none, &guided) > 0.1);
    let scale = none.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let open = sample(&at, "prior", "--law proximal --gate 0,1000");
    assert_eq!(guided, open, "a gate that is always open");
    let shut = sample(&at, "prior", "--law proximal --gate 100,200");
    assert_eq!(none, shut, "one that is always shut");
    // Through the network, in one graph on the device: without weight it is the same walk up to rounding.
    let through = sample(&at, "prior", "--law through:kappa=0");
    assert!(largest_difference(&none, &through) < 1e-6 * scale, "a few roundings of f32");
    let through = sample(&at, "prior", "--law through:kappa=0.01");
    assert!(largest_difference(&none, &through) > 1e-3 && through.iter().all(|v| v.is_finite()));
    assert!(sample(&at, "prior", "--law covariance").iter().all(|v| v.is_finite()));
    let said = refused(
        &format!(
            "restore in.tif -o no.tif --model prior.clearshot --samples 1 --tile 8 --law through {CAMERA}"
        ),
        &at,
    );
    assert!(said.contains("one tile") && said.contains("proximal"), "{said}");
    // Classifier-free guidance: 1 is the network's own answer, and only a model with a condition has another.
    let own = sample(&at, "given", "");
    assert_eq!(own, sample(&at, "given", "--classifier-free 1"));
    let twice = sample(&at, "given", "--classifier-free 2");
    let free = sample(&at, "given", "--classifier-free 0");
    assert!(largest_difference(&own, &twice) > 1e-3 && largest_difference(&own, &free) > 1e-3);
    let said = refused(
        &format!("restore in.tif -o no.tif --model prior.clearshot --samples 1 --classifier-free 2 {CAMERA}"),
        &at,
    );
    assert!(said.contains("given the measurement"), "{said}");
}

#[test]
fn mosaics_are_packed_and_unpacked() {
    let at = folder("doors_mosaic");
    let shape = [2, 6, 8];
    let values: Vec<f64> = (0..96).map(|i| f64::from(i * 37 % 90 + 10)).collect();
    write(&at.join("m.ome.tif"), "TYX", &shape, DType::U16, &values);
    let levels = "--pattern RGGB --black 10 --white 110";
    must(&format!("convert m.ome.tif packed.ome.tif --mosaic pack {levels}"), &at);
    let (image, packed) = read(at.join("packed.ome.tif"));
    assert_eq!((image.description.axes(), image.shape()), ("TCYX".into(), vec![2, 4, 3, 4]));
    // The second green of the second frame's second row of patterns, first column: row 3, column 0.
    assert!((packed[48 + 2 * 12 + 4] - (values[48 + 3 * 8] - 10.0) / 100.0).abs() < 1e-6);
    must(&format!("convert packed.ome.tif back.ome.tif --mosaic unpack {levels}"), &at);
    assert_eq!(read(at.join("back.ome.tif")).1, values);
    assert!(refused("convert m.ome.tif no.tif --mosaic pack", &at).contains("--pattern RGGB"));
    assert!(refused("convert m.ome.tif no.tif --mosaic pack --pattern RGBG", &at).contains("one of RGGB"));
    write(&at.join("odd.tif"), "YX", &[5, 8], DType::U16, &values[..40]);
    assert!(refused(&format!("convert odd.tif no.tif --mosaic pack {levels}"), &at).contains("5 x 8"));
}

/// A crop goes back into its image, also after something was done to it.
#[test]
fn crops_go_back_to_where_they_came_from() {
    let at = folder("doors_geometry");
    let values: Vec<f64> = (0..2 * 30 * 40).map(|i| f64::from(i * 7919 % 251)).collect();
    write(&at.join("whole.tif"), "ZYX", &[2, 30, 40], DType::U16, &values);
    must("convert whole.tif part.tif --crop 5:21,8:40 --pad 3", &at);
    let (part, cut) = read(at.join("part.tif"));
    assert_eq!(part.shape(), [2, 22, 38]);
    // Behind the padding, the first pixel of the second plane's part.
    assert_eq!(cut[22 * 38 + 3 * 38 + 3], values[1200 + 5 * 40 + 8]);
    must("convert part.tif same.tif --undo whole.tif", &at);
    assert_eq!(read(at.join("same.tif")).1, values);
    must("denoise part.tif dark.tif --method gaussian", &at);
    must("convert dark.tif back.tif --undo whole.tif", &at);
    let (dark, back) = (read(at.join("dark.tif")).1, read(at.join("back.tif")).1);
    for (i, &v) in back.iter().enumerate() {
        let (z, y, x) = (i / 1200, i / 40 % 30, i % 40);
        let inside = (5..21).contains(&y) && x >= 8;
        let expected = if inside { dark[z * 22 * 38 + (y - 2) * 38 + x - 5] } else { values[i] };
        assert_eq!(v, expected, "{z} {y} {x}");
    }
    must("convert whole.tif small.tif --resize 15x20", &at);
    assert_eq!(read(at.join("small.tif")).0.shape(), [2, 15, 20]);
    assert!(refused("convert whole.tif no.tif --undo whole.tif", &at).contains("no record"));
    assert!(refused("convert whole.tif no.tif --crop 5:50,0:8", &at).contains("30 x 40"));
    assert!(refused("convert whole.tif no.tif --crop 5,8", &at).contains("100:356,0:256"));
}

#[test]
fn beads_become_a_psf_that_fits_other_pixels() {
    let at = folder("doors_psf");
    let size = [96, 96];
    let (places, sigma) = ([[20.0, 24.0], [60.3, 30.6], [40.0, 70.2], [75.5, 76.0]], 2.0f64);
    let light = |i: usize| -> f64 {
        let (y, x) = ((i / 96) as f64, (i % 96) as f64);
        let bead = |[v, u]: [f64; 2]| (-((y - v).powi(2) + (x - u).powi(2)) / (2.0 * sigma * sigma)).exp();
        100.0 + 1000.0 * places.iter().map(|&p| bead(p)).sum::<f64>()
    };
    let values: Vec<f64> = (0..96 * 96).map(light).collect();
    write(&at.join("beads.tif"), "YX", &size, DType::U16, &values);
    let said: Value =
        serde_json::from_str(&must("psf beads.tif -o psf.tif --radius 9 --json", &at)).expect("JSON");
    assert_eq!(said["beads"], 4);
    assert!((said["pixel_nm"][0].as_f64().expect("a size") - 100.0).abs() < 0.01, "{said}");
    // A Gaussian's full width is 2.355 standard deviations.
    let width = said["fwhm_pixels"][0].as_f64().expect("a width");
    // 0.013 wider: beads between pixels are centred by interpolation.
    assert!((width - 2.3548 * sigma).abs() < 0.03, "{width}");
    // An image with pixels twice as large: the PSF has half the width there, as one that says so at once.
    let coarse: Vec<f64> =
        (0..48 * 48).map(|i| 50.0 + 400.0 * f64::from(u8::from(i == 24 * 48 + 20))).collect();
    let d = clearshot_image::Description::new(
        "TIFF",
        &at.join("x.tif"),
        [clearshot_image::Axis::Y, clearshot_image::Axis::X]
            .map(|a| clearshot_image::Dim::stepped(a, 48, Some(0.2), "um"))
            .to_vec(),
        DType::F32,
    );
    let mut writer =
        clearshot_image::Writer::create(at.join("x.tif"), &d, &clearshot_image::WriteOptions::default())
            .expect("a writer");
    let mut bytes = Vec::new();
    DType::F32.encode(&coarse, &mut bytes);
    writer.write(&[0..48, 0..48], &bytes).expect("written");
    writer.finish().expect("finished");
    let deconvolve =
        |psf: &str, to: &str| format!("deconvolve x.tif {to} --psf {psf} --steps 5 --gain 1 --float");
    let out = program::clearshot(&deconvolve("psf.tif", "a.tif"), &at);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("rescaled"), "{said}");
    must(&deconvolve("gaussian:1px", "b.tif"), &at);
    must(&deconvolve("gaussian:2px", "c.tif"), &at);
    let [a, b, c] = ["a", "b", "c"].map(|name| read(at.join(format!("{name}.tif"))).1);
    let (near, far) = (largest_difference(&a, &b), largest_difference(&a, &c));
    // 0.8 % of what the wrong width does is left, since the measured PSF is that much wider.
    assert!(near < 0.02 * far, "{near} {far}");
    assert!(refused("psf beads.tif -o psf.tif", &at).contains("exists"));
}

/// A ratio of exposures that differs from the files gives a notice, and an error if it is far off.
#[test]
fn exposures_are_what_files_show() {
    let at = folder("doors_exposure");
    let truth: Vec<f64> = (0..32 * 32).map(|i| 100.0 + f64::from(i % 32) * 40.0).collect();
    let short: Vec<f64> = truth.iter().map(|v| 100.0 + (v - 100.0) * 0.25).collect();
    write(&at.join("t.tif"), "YX", &[32, 32], DType::F32, &truth);
    write(&at.join("s.tif"), "YX", &[32, 32], DType::F32, &short);
    let line = |ratio: &str| {
        format!(
            "eval raw --truth t.tif --noisy s.tif --gain 1 --offset 100 --read-noise 1 --exposure {ratio}"
        )
    };
    let said =
        |ratio: &str| String::from_utf8_lossy(&program::clearshot(&line(ratio), &at).stderr).into_owned();
    assert!(!said("0.25").contains("ratio"), "{}", said("0.25"));
    assert!(said("0.29").contains("a ratio of 0.250"), "{}", said("0.29"));
    let far = refused(&line("0.5"), &at);
    assert!(far.contains("--exposure 0.5") && far.contains("0.25"), "{far}");
}

#[test]
fn scenes_have_the_noise_that_is_asked_for() {
    let at = folder("doors_noise");
    let line = |rest: &str, out: &str| {
        format!(
            "synth --scene nuclei --size 96x96 --peak 100000 --read-noise 0 --background 0 --seed 3 {rest} --out {out}"
        )
    };
    let noisy = |out: &str| read(at.join(out).join("noisy/nuclei_0000.tif")).1;
    must(&line("", "plain"), &at);
    must(&line("--speckle 0.3", "speckle"), &at);
    must(&line("--salt-and-pepper 0.2", "salt"), &at);
    let truth = read(at.join("plain/truth/nuclei_0000.tif")).1;
    // Where there is much light the ratio to the truth has the spread of the speckle, and hardly any of the photons.
    let bright: Vec<usize> = (0..truth.len()).filter(|&i| truth[i] > 20_000.0).collect();
    let spread = |values: &[f64]| {
        let ratios: Vec<f64> = bright.iter().map(|&i| values[i] / truth[i]).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / ratios.len() as f64).sqrt()
    };
    assert!(bright.len() > 500, "{}", bright.len());
    assert!(spread(&noisy("plain")) < 0.01);
    let speckle = spread(&noisy("speckle"));
    assert!((speckle - 0.3).abs() < 0.03, "{speckle}");
    let salted = noisy("salt");
    let share = |value: f64| salted.iter().filter(|&&v| v == value).count() as f64 / salted.len() as f64;
    assert!((share(100_000.0) - 0.1).abs() < 0.02 && share(0.0) > 0.08, "{}", share(100_000.0));
    assert!(refused(&line("--salt-and-pepper 2", "no"), &at).contains("from 0 to 1"));
}

/// A background of each pixel, as the mean of frames without an object.
#[test]
fn backgrounds_come_from_frames_without_an_object() {
    let at = prepared("doors_background");
    let [height, width] = SIZE;
    let gradient = |i: usize| 104.0 + (i % width) as f64 * 0.5 + (i / width) as f64 * 0.25;
    let pixels = height * width;
    // Two frames whose noise cancels.
    let blank: Vec<f64> =
        (0..2 * pixels).map(|i| gradient(i % pixels) + if i < pixels { 3.0 } else { -3.0 }).collect();
    write(&at.join("blank.tif"), "TYX", &[2, height, width], DType::F32, &blank);
    let mean = (0..pixels).map(gradient).sum::<f64>() / pixels as f64;
    let restored = |options: &str| {
        must(&format!("restore in.tif -o out.tif --model given.clearshot --quiet --force {options}"), &at);
        read(at.join("out.tif")).1
    };
    let camera = "--gain 1 --offset 100 --read-noise 1";
    // The measurement itself, and what a network makes of it, less the uneven part; four decimals of some hundred counts are f32's.
    for method in ["raw", "model"] {
        let levelled = restored(&format!("{camera} --method {method} --background blank.tif"));
        let number = restored(&format!("{camera} --method {method} --background {}", mean - 100.0));
        let expected: Vec<f64> = number.iter().enumerate().map(|(i, v)| v - (gradient(i) - mean)).collect();
        let apart = largest_difference(&levelled, &expected);
        assert!(apart < 2e-4, "{method}: {apart}");
    }
    // Richardson-Lucy: without an object nothing is left above the offset, however uneven the background; a number leaves half of it.
    let plane: Vec<f64> = (0..pixels).map(gradient).collect();
    write(&at.join("empty.tif"), "YX", &SIZE, DType::F32, &plane);
    let sharp = |background: &str| {
        must(
            &format!(
                "deconvolve empty.tif sharp.tif --psf gaussian:1px --gain 1 --offset 100 --read-noise 1 --steps 200 --float --force --background {background}"
            ),
            &at,
        );
        read(at.join("sharp.tif")).1.iter().copied().fold(0.0, f64::max) - 100.0
    };
    let (map, number) = (sharp("blank.tif"), sharp(&(mean - 100.0).to_string()));
    assert!(map < 0.02 && number > 5.0, "{map} {number}");
    // A flat file is a number, to the bit.
    write(&at.join("flat.tif"), "YX", &SIZE, DType::F32, &vec![104.0; pixels]);
    let line = |background: &str, out: &str| {
        format!(
            "deconvolve in.tif {out} --psf gaussian:1px --gain 1 --offset 100 --float --background {background}"
        )
    };
    must(&line("flat.tif", "a.tif"), &at);
    must(&line("4", "b.tif"), &at);
    assert_eq!(read(at.join("a.tif")).1, read(at.join("b.tif")).1);
    write(&at.join("small.tif"), "YX", &[8, 8], DType::F32, &[104.0; 64]);
    assert!(refused(&line("small.tif", "no.tif"), &at).contains("8 x 8"));
    assert!(refused(&line("-1", "no.tif"), &at).contains("not below zero"));
    assert!(refused(&line("missing.tif", "no.tif"), &at).contains("missing.tif"));
}

/// Cameras by name, and what their files say beside gain, offset and read noise.
#[test]
fn cameras_have_names_saturation_and_dark_current() {
    let at = folder("doors_cameras");
    // A ramp of counts, full from 400 on.
    let values: Vec<f64> = (0..32 * 32).map(|i| 100.0 + f64::from(i % 32) * 12.0).collect();
    write(&at.join("in.tif"), "YX", &[32, 32], DType::F32, &values);
    let denoised = |camera: &str| {
        must(&format!("denoise in.tif out.tif --method bm3d --force --float {camera}"), &at);
        let (image, values) = read(at.join("out.tif"));
        (image.description.provenance.expect("a record")["parameters"].clone(), values)
    };
    let (named, by_name) = denoised("--camera scmos");
    assert_eq!(
        [named["gain"].as_f64(), named["offset"].as_f64(), named["read_noise"].as_f64()],
        [Some(0.5), Some(100.0), Some(1.5)]
    );
    assert_eq!(named["saturation"], 65_535.0);
    assert_eq!(by_name, denoised("--gain 0.5 --offset 100 --read-noise 1.5").1);
    // A number goes before the name, and a file before a name that it happens to have.
    assert_eq!(
        denoised("--camera scmos --gain 0.7").0["gain"].as_f64().map(|g| (g * 1e6).round()),
        Some(7e5)
    );
    std::fs::write(
        at.join("ccd"),
        r#"{"gain": 1, "offset": 100, "read_noise": 2, "saturation": 400, "dark": 3}"#,
    )
    .expect("a file");
    let (own, _) = denoised("--camera ccd");
    assert_eq!((own["gain"].as_f64(), own["saturation"].as_f64()), (Some(1.0), Some(400.0)));
    assert!(own["filled"].as_u64().expect("a count") >= 32 * 7, "{own}");
    // The dark current is left out by Richardson-Lucy as a background of as many electrons is.
    let sharp = |options: &str| {
        must(
            &format!(
                "deconvolve in.tif sharp.tif --psf gaussian:1px --steps 5 --saturation 1000 --float --force {options}"
            ),
            &at,
        );
        read(at.join("sharp.tif")).1
    };
    let numbers = "--gain 1 --offset 100 --read-noise 2";
    assert_eq!(sharp("--camera ccd"), sharp(&format!("{numbers} --background 3")));
    assert_ne!(sharp("--camera ccd"), sharp(numbers));
    std::fs::write(at.join("bad.json"), r#"{"gain": 1, "offset": 100, "saturation": 50}"#).expect("a file");
    let line = |camera: &str| format!("denoise in.tif no.tif --camera {camera}");
    assert!(refused(&line("bad.json"), &at).contains("saturation"));
    assert!(refused(&line("scmoss"), &at).contains("photography, scmos, ccd"));
}

/// A budget of time takes steps away, and says so; one that is too small is refused. No time is asserted: the network's is measured.
#[test]
fn budgets_choose_steps() {
    let at = prepared("doors_budget");
    let line = |rest: &str, out: &str| {
        format!(
            "restore in.tif -o {out} --model given.clearshot --method model --samples 2 --device cpu --threads 1 {CAMERA} {rest}"
        )
    };
    // A day is enough for eight steps, and a nanosecond for none.
    let said = refused(&line("--steps 8 --max-seconds 1e-9", "no.tif"), &at);
    assert!(said.contains("--max-seconds") && said.contains("fewer samples"), "{said}");
    must(&line("--steps 8 --max-seconds 86400", "a.tif"), &at);
    must(&line("--steps 8", "b.tif"), &at);
    assert_eq!(read(at.join("a.tif")).1, read(at.join("b.tif")).1);
    let out = program::clearshot(&line("--steps 20000 --max-seconds 1", "c.tif"), &at);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && said.contains("20000 steps would take") && said.contains("1 s are allowed"),
        "{said}"
    );
    // Memory: less of it changes no value.
    must(&line("--steps 8 --max-memory 64MiB", "d.tif"), &at);
    let apart = largest_difference(&read(at.join("d.tif")).1, &read(at.join("b.tif")).1);
    assert!(apart < 1e-2, "{apart}");
    assert!(refused(&line("--memory 64MiB --max-memory 32MiB", "no.tif"), &at).contains("--max-memory"));
}
