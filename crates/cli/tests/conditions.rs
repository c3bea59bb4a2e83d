//! Models that are conditioned on a class, a vector or a context: the keys of `train`, what `info` says of them, and the
//! options of `restore`.

mod measured;
mod program;

use clearshot_image::DType;
use clearshot_tensor::noise::Key;
use measured::{CAMERA, conditional, counts, model, read, write};
use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// Two kinds of scenes, in a run of a second.
const SCENES: &str = "data=nuclei +data.scenes.stars=1 task=conditional trainer.device=cpu trainer.crop=16 trainer.batch=4 data.sizes=[32] data.pool=4 \
    data.balance=domains validation.images=4 validation.crop=16 validation.every=0 records.every=2 checkpoint.every=0 performance.threads=1 \
    calibration.images=8 calibration.samples=2 calibration.steps=2 schedule.warm_up=2 trainer.iterations=6";
const LOCAL: &str = "model=local model.network.channels=[4,8] model.network.blocks=1";

/// The last line of a run as JSON.
fn trained(options: &str, out: &str, at: &Path) -> Value {
    let text = must(&format!("train {options} --out {out} --json"), at);
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

/// One direct estimate, or a sample where the options ask for one.
fn restored(at: &Path, model: &str, options: &str) -> Vec<f64> {
    let line = format!(
        "restore in.tif -o out.tif --model {model} --method model --float --device cpu --threads 1 --quiet --force {options}"
    );
    must(&line, at);
    read(at.join("out.tif")).1
}

fn mean_square(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64
}

/// Weights far from zero, so that everything that a network is given acts.
fn shaken(at: &Path, model: &str, to: &str) {
    let mut model = clearshot_model::Model::load(&at.join(model)).expect("a model");
    for (i, t) in model.weights.values_mut().enumerate() {
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
        let values = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.1 * n).collect();
        *t = clearshot_tensor::Tensor::f32(t.shape(), values);
    }
    model.save_file(&at.join(to), clearshot_tensor::DType::F32).expect("a file");
}

#[test]
fn vectors_of_class_and_camera_from_training_to_restoring() {
    let at = folder("conditions_vector");
    let options = format!("{SCENES} {LOCAL} task.vector=[domain,camera] task.drop_class=0.25");
    trained(&options, "run", &at);
    write(&at.join("in.tif"), "YX", &[40, 48], DType::F32, &counts(&[40, 48], 5));
    let said = must("info run/best.clearshot", &at);
    assert!(said.contains("one of nuclei, stars (--class); can be left out"), "{said}");
    assert!(said.contains("--condition"), "{said}");
    shaken(&at, "run/best.clearshot", "m.clearshot");
    let of = |options: &str| restored(&at, "m.clearshot", &format!("{CAMERA} {options}"));
    let (nuclei, stars, none) = (of("--class nuclei"), of("--class stars"), of(""));
    assert!(mean_square(&nuclei, &stars) > 1e-6 && mean_square(&nuclei, &none) > 1e-6);
    assert_eq!(stars, of("--class 1"), "classes have numbers too");
    // The camera parameters are those of the image, and can be overridden.
    assert_ne!(nuclei, of("--class nuclei --condition scale=5000"));
    let told = of("--class nuclei --condition read-noise=1.5");
    assert!(mean_square(&nuclei, &told) < 1e-9, "the read noise that the camera has");
    // Classifier-free guidance: with weight 0 the result is that without a class, with 1 that with it.
    let free = |weight: &str| of(&format!("--class stars --classifier-free {weight}"));
    assert!(mean_square(&free("0"), &none) < 1e-9 && free("1") == stars);
    let expected: Vec<f64> = stars.iter().zip(&none).map(|(with, without)| 2.0 * with - without).collect();
    assert!(mean_square(&free("2"), &expected) < 1e-4 * mean_square(&stars, &none));
    // Tiles and samples get the same condition.
    let tiled = of("--class stars --tile 16");
    assert!(mean_square(&tiled, &stars) < 1e-6, "{}", mean_square(&tiled, &stars));
    let sample = |options: &str| of(&format!("--samples 1 --steps 3 {options}"));
    let (whole, parts) = (sample("--class nuclei"), sample("--class nuclei --tile 16"));
    assert!(mean_square(&whole, &parts) < 1e-4, "{}", mean_square(&whole, &parts));
    assert!(mean_square(&whole, &sample("--class stars")) > 1e-6);
    // A missing class gives a notice, and an unknown one an error with its name.
    let line =
        |rest: &str| format!("restore in.tif -o no.tif --model m.clearshot --method model {CAMERA} {rest}");
    let out = clearshot(&line(""), &at);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("nuclei, stars (--class, --context)"), "{said}");
    let record = read(at.join("out.tif")).0.description.provenance.expect("a record");
    assert_eq!(record["parameters"]["settings"]["conditions"]["class"], "stars");
    write(&at.join("a.npy"), "YX", &[2, 3], DType::F32, &[0.5; 6]);
    for (options, words) in [
        ("--class dogs", "one of nuclei, stars is needed"),
        ("--class 2", "one of nuclei, stars is needed"),
        ("--context a.npy", "attends to no context"),
        ("--condition gain=2", "scale, read-noise or background"),
        ("--condition scale=0", "positive numbers of electrons"),
    ] {
        let said = refused(&line(&format!("{options} --force")), &at);
        assert!(said.contains(words), "{options}: {said}");
    }
    model(&at, "plain", 1, 2, conditional());
    let said =
        refused(&format!("restore in.tif -o no2.tif --model plain.clearshot --class nuclei {CAMERA}"), &at);
    assert!(said.contains("--class") && said.contains("not conditioned on classes"), "{said}");
}

#[test]
fn classes_and_contexts_are_trained_and_asked_for() {
    let at = folder("conditions_class");
    write(&at.join("in.tif"), "YX", &[32, 32], DType::F32, &counts(&[32, 32], 5));
    std::fs::create_dir(at.join("contexts")).expect("a folder");
    for (name, seed) in [("nuclei", 1), ("stars", 2)] {
        let mut values = vec![0.0f32; 6];
        Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut values);
        let values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
        write(&at.join(format!("contexts/{name}.npy")), "YX", &[2, 3], DType::F32, &values);
    }
    let blocks = "model.network.in_channels=0 model.network.out_channels=0 model.network.block_out_channels=[8,8] model.network.layers_per_block=1 \
        model.network.norm_num_groups=4 model.network.attention_head_dim=2";
    let unet = "model=unet2d_prior model.network.down_block_types=[DownBlock2D,DownBlock2D] model.network.up_block_types=[UpBlock2D,UpBlock2D]";
    let cross = "model=unet2d_prior model.network._class_name=UNet2DConditionModel model.network.down_block_types=[CrossAttnDownBlock2D,DownBlock2D] \
        model.network.up_block_types=[UpBlock2D,CrossAttnUpBlock2D]";
    let cases = [
        ("table", format!("{SCENES} {unet} {blocks} task.class=true")),
        ("cross", format!("{SCENES} {cross} {blocks} task.context=contexts task.drop_class=0.3")),
    ];
    for (name, options) in &cases {
        trained(options, name, &at);
    }
    // A table of classes without a row for none: a class is needed.
    shaken(&at, "table/best.clearshot", "table.clearshot");
    shaken(&at, "cross/best.clearshot", "cross.clearshot");
    let said = refused(&format!("restore in.tif -o no.tif --model table.clearshot {CAMERA}"), &at);
    assert!(said.contains("--class") && said.contains("one of nuclei, stars is needed"), "{said}");
    let table = |class: &str| restored(&at, "table.clearshot", &format!("{CAMERA} --class {class}"));
    assert!(mean_square(&table("nuclei"), &table("stars")) > 1e-9);
    // Whatever does not use the model does not ask.
    must(&format!("restore in.tif -o raw.tif --model table.clearshot --method raw {CAMERA}"), &at);
    let said = must("info cross.clearshot", &at);
    assert!(said.contains("2 vectors of 3 numbers (--context FILE.npy); can be left out"), "{said}");
    let attending = |options: &str| restored(&at, "cross.clearshot", &format!("{CAMERA} {options}"));
    let (a, b, none) = (
        attending("--context contexts/nuclei.npy"),
        attending("--context contexts/stars.npy"),
        attending(""),
    );
    assert!(mean_square(&a, &b) > 1e-9 && mean_square(&a, &none) > 1e-9);
    let free = attending("--context contexts/stars.npy --classifier-free 0");
    assert!(mean_square(&free, &none) < 1e-9 * (1.0 + mean_square(&a, &none)));
    write(&at.join("wide.npy"), "YX", &[2, 5], DType::F32, &[0.0; 10]);
    let line = |rest: &str| format!("restore in.tif -o no.tif --model cross.clearshot {CAMERA} {rest}");
    assert!(refused(&line("--context wide.npy"), &at).contains("the model takes 3"));
    assert!(refused(&line("--context none.npy"), &at).contains("none.npy"));
    // Keys that contradict each other are named before anything runs.
    let say = |more: &str| refused(&format!("train {SCENES} {more} --out no"), &at);
    assert!(say(&format!("{LOCAL} task.class=true")).contains("task.vector=[domain]"));
    assert!(say(&format!("{LOCAL} task.drop_class=0.1")).contains("task.drop_class"));
    assert!(
        say(&format!("{LOCAL} task.context=nowhere task.vector=[domain]")).contains("nuclei.npy is missing")
    );
    assert!(say(&format!("{unet} {blocks} task.vector=[camera]")).contains("task.vector"));
    assert!(say(&format!("{cross} {blocks}")).contains("task.context=FOLDER"));
}

/// Two kinds of files with different clean images: conditioned on the kind, a network makes the one or the other, and with the wrong kind it is far worse.
#[test]
fn a_network_uses_its_class_condition() {
    let at = folder("conditions_used");
    let mut manifest = String::from("input,target,domain\n");
    for i in 0..8u64 {
        let values: Vec<f64> = counts(&[32, 32], i);
        let shift = if i % 2 == 0 { 0.0 } else { 60.0 };
        let clean: Vec<f64> = values.iter().map(|v| v + shift).collect();
        write(&at.join(format!("in{i}.tif")), "YX", &[32, 32], DType::F32, &values);
        write(&at.join(format!("out{i}.tif")), "YX", &[32, 32], DType::F32, &clean);
        let domain = if shift == 0.0 { "plain" } else { "shifted" };
        writeln!(manifest, "in{i}.tif,out{i}.tif,{domain}").expect("text");
    }
    std::fs::write(at.join("data.csv"), manifest).expect("a manifest");
    let options = "experiment=supervised data=pairs data.manifest=data.csv data.fit=false data.balance=domains trainer.device=cpu trainer.crop=16 \
        trainer.batch=8 model.network.channels=[8,16] model.network.blocks=1 model.network.time=true task.vector=[domain] validation.images=4 validation.crop=16 performance.threads=1 \
        validation.every=0 checkpoint.every=0 calibration.images=0 schedule.warm_up=5 optimizer.rate=3e-3 trainer.seconds=null trainer.iterations=60 trainer.ema_half_life=0";
    trained(options, "run", &at);
    let values = counts(&[32, 32], 77);
    write(&at.join("in.tif"), "YX", &[32, 32], DType::F32, &values);
    let error = |class: &str, shift: f64| {
        let truth: Vec<f64> = values.iter().map(|v| v + shift).collect();
        mean_square(&restored(&at, "run/best.clearshot", &format!("--class {class}")), &truth)
    };
    let (right, wrong) =
        (error("plain", 0.0) + error("shifted", 60.0), error("plain", 60.0) + error("shifted", 0.0));
    assert!(wrong > 5.0 * right, "with its own class {right}, with another's {wrong}");

    // Scores use the class too. Methods without one are scored as well, and if no method takes one it is refused.
    let truth: Vec<f64> = values.iter().map(|v| v + 60.0).collect();
    ["truth", "noisy"].iter().for_each(|name| std::fs::create_dir(at.join(name)).expect("a folder"));
    write(&at.join("truth/a.tif"), "YX", &[32, 32], DType::F32, &truth);
    write(&at.join("noisy/a.tif"), "YX", &[32, 32], DType::F32, &values);
    let files = "--truth truth --noisy noisy --gain 1 --range 200 --device cpu --json";
    let scores =
        |line: &str| -> Value { serde_json::from_str(&must(&format!("{line} {files}"), &at)).expect("JSON") };
    let psnr = |summary: &Value| {
        let cells = summary["cells"].as_array().expect("cells").clone();
        let of_model = cells.iter().find(|c| c["method"] == "run/best.clearshot").expect("the model's cell");
        of_model["psnr"][0].as_f64().expect("a number")
    };
    let shifted = scores("compare raw run/best.clearshot --class shifted --out compared");
    let plain = scores("compare raw run/best.clearshot --class plain --out compared");
    assert!(psnr(&shifted) > psnr(&plain) + 6.0, "{} and {} dB", psnr(&shifted), psnr(&plain));
    assert_eq!(psnr(&scores("eval run/best.clearshot --class 1")), psnr(&shifted), "by number, in eval");
    assert!(refused(&format!("eval run/best.clearshot {files}"), &at).contains("--class"));
    let said = refused(&format!("eval default --class plain {files}"), &at);
    assert!(said.contains("--class") && said.contains("none of the methods"), "{said}");
}

/// A folder of diffusers says how many classes there are and how wide contexts are, and nothing more.
#[test]
fn folders_of_diffusers_get_their_class_and_context() {
    let at = folder("conditions_diffusers");
    let config = r#"{"_class_name": "UNet2DConditionModel", "sample_size": 16, "in_channels": 1, "out_channels": 1,
        "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
        "cross_attention_dim": 5, "num_class_embeds": 3, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}"#;
    let params = clearshot_nn::models::read(config).expect("a network").parameters().expect("parameters");
    let weights = clearshot_nn::weights::initial(&params, 1);
    clearshot_nn::weights::save_network(&at.join("unet"), config, &weights).expect("a folder");
    let values: Vec<f64> = counts(&[32, 32], 1).iter().map(|v| v * 100.0).collect();
    write(&at.join("in.tif"), "YX", &[32, 32], DType::F32, &values);
    for (name, shape) in [("a.npy", [4, 5]), ("b.npy", [1, 5])] {
        let numbers: Vec<f64> = (0..shape[0] * 5).map(|i| f64::from(i % 7) - 3.0).collect();
        write(&at.join(name), "YX", &[shape[0] as usize, 5], DType::F32, &numbers);
    }
    let of =
        |options: &str| restored(&at, "unet", &format!("--samples 1 --sampler ddim --steps 3 {options}"));
    let first = of("--class 0 --context a.npy");
    assert!(mean_square(&first, &of("--class 2 --context a.npy")) > 1e-9);
    assert!(mean_square(&first, &of("--class 0 --context b.npy")) > 1e-9, "contexts may have any length");
    let line = |rest: &str| format!("restore in.tif -o no.tif --model unet {rest}");
    assert!(refused(&line("--class 0"), &at).contains("a list of vectors of 5 numbers"));
    assert!(refused(&line("--context a.npy"), &at).contains("a number from 0 to 2"));
    assert!(refused(&line("--context a.npy --class 3"), &at).contains("a number from 0 to 2"));
    assert!(refused(&line("--context a.npy --class cats"), &at).contains("a number from 0 to 2"));
}
