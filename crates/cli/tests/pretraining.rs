//! Training without labels as users meet it: masked autoencoders and joint embeddings on generated images and on files, resumed to the bit, their embeddings as tables, and
//! their encoder in a network that segments.

mod program;

use program::{folder, must, refused};
use serde_json::Value;
use std::path::Path;

/// Some seconds of training.
const SHORT: &str = "data.pool=12 data.sizes=[48] trainer.crop=32 trainer.batch=4 schedule.warm_up=2 validation.images=4 validation.every=6 checkpoint.every=4 records.every=2 \
    trainer.iterations=12 model.network.patch_size=8 model.network.emb_dim=16 model.network.encoder_layer=1 model.network.encoder_head=2";

fn last(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

/// The latest value of a name in a run's records.
fn recorded(run: &Path, name: &str) -> f64 {
    let records = std::fs::read_to_string(run.join("records.jsonl")).expect("records");
    let rows = records.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    fn find(row: &Value, name: &str) -> Option<f64> {
        let map = row.as_object()?;
        map.get(name).and_then(Value::as_f64).or_else(|| map.values().find_map(|v| find(v, name)))
    }
    rows.filter_map(|row| find(&row, name)).next_back().unwrap_or_else(|| panic!("no {name} in {records}"))
}

fn table(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).expect("a table");
    text.lines().map(|line| line.split(',').map(String::from).collect()).collect()
}

/// Interrupted and resumed, a run makes the same bits.
fn resumes(line: &str, score: &str, here: &Path) -> Value {
    let whole = last(&must(&format!("train {line} --out run --json"), here));
    must(&format!("train {line} --out again --stop-at 7"), here);
    let resumed = last(&must("train --out again --resume --json", here));
    assert_eq!((&resumed["digest"], &resumed[score]), (&whole["digest"], &whole[score]), "{line}");
    assert!(whole[score].is_number(), "{whole}");
    whole
}

#[test]
fn hidden_patches_are_learned_and_the_encoder_goes_into_a_network_that_segments() {
    let here = folder("mae");
    let decoder = "model.network.decoder_dim=8 model.network.decoder_layer=1 model.network.decoder_head=2";
    resumes(&format!("experiment=mae {SHORT} {decoder}"), "masked_psnr", &here);
    let mse = recorded(&here.join("run"), "masked_mse");
    let psnr = recorded(&here.join("run"), "masked_psnr");
    assert!(mse > 0.0 && (psnr + 10.0 * (mse / 4.0).log10()).abs() < 3.0, "{psnr} dB, {mse}");

    // A table of embeddings, by planes; other outputs are refused with what the model is for.
    must("synth --scene nuclei --size 48x40 --count 2 --peak 60 --bits 16 --labels --out data", &here);
    let said = must("predict data/noisy -o all.csv --model run/best.clearshot", &here);
    assert!(said.contains("2 rows of 16 numbers"), "{said}");
    let rows = table(&here.join("all.csv"));
    assert_eq!((rows.len(), rows[0].len(), &rows[0][3][..]), (3, 19, "e0"));
    assert!(rows[1][3..].iter().all(|v| v.parse::<f32>().is_ok_and(f32::is_finite)));
    assert_ne!(rows[1][3..], rows[2][3..]);
    assert!(refused("predict data/noisy -o all.csv --model run/best.clearshot", &here).contains("--force"));
    let said = refused("predict data/noisy -o out --model run/best.clearshot", &here);
    assert!(said.contains("NAME.csv") && said.contains("model.encoder"), "{said}");
    assert!(refused("export run/best.clearshot -o m.onnx", &here).contains("encoder"));

    // Its encoder in another network: copied bit for bit, and unchanged if only the decoder is trained.
    let other = "experiment=segmentation model=vit_segmentation model.encoder=run/best.clearshot model.network.decoder_dim=4 model.only=[decoder] data.pool=6 data.sizes=[48] \
        trainer.crop=32 validation.crop=32 trainer.batch=2 validation.images=2 validation.every=4 checkpoint.every=2 records.every=2 ~trainer.seconds trainer.iterations=4";
    let whole = last(&must(&format!("train {other} --out few --json"), &here));
    must(&format!("train {other} --out fewer --stop-at 3"), &here);
    let resumed = last(&must("train --out fewer --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["dice"]), (&whole["digest"], &whole["dice"]));
    must("predict data/noisy -o again.csv --model few/best.clearshot", &here);
    assert_eq!(table(&here.join("again.csv")), rows, "the encoder was to stay as it is");
    must("predict data/noisy -o labels --model few/best.clearshot", &here);
    let wrong = |change: &str| refused(&format!("train {change} trainer.iterations=4 --out no"), &here);
    let said = wrong("experiment=segmentation ~trainer.seconds model.encoder=run/best.clearshot");
    assert!(said.contains("model.encoder") && said.contains("vit_segmentation"), "{said}");
    let said = wrong("experiment=segmentation ~trainer.seconds model=vit_segmentation model.encoder=nowhere");
    assert!(said.contains("model.encoder") && said.contains("experiment=mae"), "{said}");
    assert!(wrong("experiment=mae model=local_small").contains("model=mae2d"));
    assert!(wrong("experiment=mae model.network.mask_ratio=1.5").contains("mask_ratio"));
    assert!(wrong("experiment=segmentation ~trainer.seconds model=mae2d").contains("model=vit_segmentation"));
}

#[test]
fn stacks_and_files_are_learned_from() {
    let here = folder("mae-files");
    let small = "trainer.batch=2 validation.images=2 validation.every=4 checkpoint.every=4 records.every=2 trainer.iterations=4 model.network.emb_dim=12 \
        model.network.encoder_layer=1 model.network.encoder_head=2 model.network.decoder_dim=12 model.network.decoder_head=2";
    must("synth --scene nuclei --size 16x48x48 --count 3 --peak 60 --bits 16 --out data", &here);
    let line =
        format!("train experiment=im2im/mae {small} data=noisy data.inputs=data/noisy --out run --json");
    assert!(last(&must(&line, &here))["masked_psnr"].is_number());
    let said = must("predict data/noisy -o all.csv --model run/best.clearshot", &here);
    assert!(said.contains("3 rows of 12 numbers"), "{said}");
    let said = refused(
        &format!(
            "train experiment=im2im/mae {small} data=pairs data.inputs=data/noisy data.targets=data/truth --out no"
        ),
        &here,
    );
    assert!(said.contains("data.kind") && said.contains("data=noisy"), "{said}");
}

#[test]
fn joint_embeddings_are_learned_with_their_deviation_in_the_records() {
    let here = folder("jepa");
    let predictor =
        "model.network.predictor_dim=8 model.network.predictor_layer=1 model.network.predictor_head=2";
    resumes(&format!("experiment=im2im/ijepa {SHORT} {predictor}"), "explained", &here);
    let deviation = recorded(&here.join("run"), "embedding_std");
    assert!(deviation > 0.05 && deviation < 2.0, "{deviation}");
    let here = folder("iwm");
    resumes(&format!("experiment=im2im/iwm {SHORT} {predictor}"), "explained", &here);
    must("synth --scene nuclei --size 48x48 --count 3 --peak 60 --bits 16 --out data", &here);
    let pairs = "data=pairs data.inputs=data/noisy data.targets=data/truth";
    let summary = last(&must(
        &format!("train experiment=im2im/iwm {SHORT} {predictor} {pairs} --out pairs --json"),
        &here,
    ));
    assert!(summary["explained"].is_number(), "{summary}");
    let said = must("predict data/noisy -o all.csv --model pairs/best.clearshot", &here);
    assert!(said.contains("3 rows of 16 numbers"), "{said}");
    let said = refused(
        &format!("train experiment=im2im/iwm {SHORT} {predictor} model.network.domains=0 --out no"),
        &here,
    );
    assert!(said.contains("model.network.domains"), "{said}");
}
