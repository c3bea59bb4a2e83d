//! Tasks beside restoration as users meet them: segmentation trained on generated nuclei and on files with labels, and image-to-image by CytoDL's network; resumed
//! to the bit, run on files by `predict`, scored.

mod program;

use program::{clearshot, folder, must, refused};
use serde_json::Value;
use std::path::Path;

/// Some seconds of training; Dice of about 0.95 on generated nuclei.
const SHORT: &str = "experiment=segmentation data.pool=24 data.sizes=[96] data.camera.peak=[40,200] trainer.crop=48 optimizer.rate=4e-3 \
    schedule.warm_up=10 trainer.ema_half_life=80 validation.images=8 validation.every=40 validation.crop=96 checkpoint.every=20 records.every=10 ~trainer.seconds";

/// A network for it.
const SMALL: &str = "model.network.channels=[8,16,24]";

fn last(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

fn score(truth: &str, image: &str, metric: &str, here: &Path) -> f64 {
    let said =
        must(&format!("measure --truth {truth} --image {image} --labels --metric {metric} --json"), here);
    let rows = said.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    rows.filter_map(|r| r[metric].as_f64()).next().unwrap_or_else(|| panic!("no {metric} in {said}"))
}

#[test]
fn nuclei_are_learned_found_in_files_and_scored() {
    let here = folder("segmentation");
    let said = must(&format!("train {SHORT} {SMALL} trainer.iterations=60 --out run --json"), &here);
    let summary = last(&said);
    let dice = summary["dice"].as_f64().expect("a score");
    assert!(dice > 0.9, "Dice {dice} in validation");
    let records = std::fs::read_to_string(here.join("run/records.jsonl")).expect("records");
    assert!(records.lines().any(|l| l.contains("\"dice\"") && l.contains("\"iou\"")), "{records}");
    assert!(!records.contains("psnr"), "{records}");

    // Interrupted and resumed: bit-identical.
    must(&format!("train {SHORT} {SMALL} trainer.iterations=60 --out again --stop-at 25"), &here);
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["dice"]), (&summary["digest"], &summary["dice"]));

    // Files: labels with the input's metadata, in any unit, whatever the tiles.
    must(
        "synth --scene nuclei --size 112x96 --count 2 --peak 100 --bits 16 --seed 5 --labels --out data",
        &here,
    );
    let said = must("predict data/noisy -o found --model run/best.clearshot", &here);
    assert!(said.contains("objects"), "{said}");
    for i in 0..2 {
        let (truth, image) = (format!("data/labels/nuclei_000{i}.tif"), format!("found/nuclei_000{i}.tif"));
        let dice = score(&truth, &image, "dice", &here);
        let iou = score(&truth, &image, "iou", &here);
        assert!(dice > 0.9 && (iou - dice / (2.0 - dice)).abs() < 1e-9, "Dice {dice}, IoU {iou}");
    }
    let info = must("info found/nuclei_0000.tif", &here);
    assert!(info.contains("uint16") && info.contains("predict") && info.contains("model_hash"), "{info}");
    // Again: nothing is done twice, and nothing else is written over.
    assert!(must("predict data/noisy -o found --model run/best.clearshot", &here).contains("already done"));
    let other = refused("predict data/noisy -o found --model run/best.clearshot --segments classes", &here);
    assert!(other.contains("--force"), "{other}");
    must("predict data/noisy/nuclei_0000.tif -o tiled.tif --model run/best.clearshot --tile 32", &here);
    let pixels = |name: &str| std::fs::read(here.join(name)).expect("a file");
    assert_eq!(score("found/nuclei_0000.tif", "tiled.tif", "dice", &here), 1.0);
    must(
        "predict data/noisy/nuclei_0000.tif -o p.npy --model run/best.clearshot --segments probabilities",
        &here,
    );
    must("predict data/noisy/nuclei_0000.tif -o c.npy --model run/best.clearshot --segments classes", &here);
    let header = |name: &str| String::from_utf8_lossy(&pixels(name)[..80]).into_owned();
    assert!(header("p.npy").contains("<f4") && header("c.npy").contains("|u1"), "{}", header("c.npy"));
    let of = |bytes: &[u8], n: usize| bytes[bytes.len() - n * 112 * 96..].to_vec();
    let (p, c) = (of(&pixels("p.npy"), 4), of(&pixels("c.npy"), 1));
    let p: Vec<f32> = p.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert!(p.iter().zip(&c).all(|(p, c)| (0.0..=1.0).contains(p) && u8::from(*p > 0.5) == *c));

    // An image of one value holds nothing.
    let mut flat = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    flat.extend(
        format!("{:<117}\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (40, 40), }").bytes(),
    );
    flat.extend([7u16; 1600].iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(here.join("flat.npy"), flat).expect("room");
    let said = must("predict flat.npy -o nothing.npy --model run/best.clearshot", &here);
    assert!(said.contains("(0 objects"), "{said}");

    // Unsupported uses are refused with the reason.
    let said =
        refused("restore data/noisy/nuclei_0000.tif -o r.tif --model run/best.clearshot --samples 4", &here);
    assert!(said.contains("--samples") && said.contains("segments"), "{said}");
    assert!(refused("export run/best.clearshot -o m.onnx", &here).contains("clearshot predict"));
    assert!(refused("quantize run/best.clearshot -o q.clearshot", &here).contains("segment"), "quantize");
    let said = refused("eval run/best.clearshot --scenes nuclei --count 1", &here);
    assert!(said.contains("clearshot predict"), "{said}");
    assert!(refused("predict data/noisy -o x", &here).contains("--model"));
}

/// Pairs of files, by a network whose windows are blended; labels that are classes.
#[test]
fn files_with_labels_train_several_classes_and_windows_are_blended() {
    let here = folder("segmentation-files");
    must("synth --scene nuclei --size 96x96 --count 4 --peak 60 --bits 16 --labels --out data", &here);
    let files = "data=pairs data.inputs=data/noisy data.targets=data/labels model=dynunet2d model.network.filters=[4,8,8] validation.crop=48";
    let many =
        refused(&format!("train {SHORT} {files} task.classes=3 trainer.iterations=4 --out many"), &here);
    assert!(many.contains("task.classes") && many.contains("data/labels"), "{many}");
    let most = format!("train {SHORT} {files} task.classes=64 trainer.iterations=4 --out classes --json");
    assert!(last(&must(&most, &here))["dice"].is_number());
    must(
        "predict data/noisy/nuclei_0001.tif -o p.tif --model classes/best.clearshot --segments probabilities",
        &here,
    );
    let info = must("info p.tif", &here);
    assert!(info.contains("float32") && info.contains("C 64"), "{info}");
    let summary =
        last(&must(&format!("train {SHORT} {files} trainer.iterations=80 --out run --json"), &here));
    let best = summary["best"].as_f64().expect("a score");
    let said = must(
        "predict data/noisy/nuclei_0001.tif -o found.tif --model run/best.clearshot --tile 48 --json",
        &here,
    );
    assert!(said.contains("\"blended\":true") && said.contains("\"objects\""), "{said}");
    let dice = score("data/labels/nuclei_0001.tif", "found.tif", "dice", &here);
    assert!(dice > 0.8 && best > 0.8, "Dice {dice} of a file, {best} in validation");

    let wrong = |changes: &str| {
        refused(&format!("train {SHORT} {SMALL} {changes} trainer.iterations=4 --out no"), &here)
    };
    assert!(wrong("data=filaments").contains("data.scenes"));
    assert!(wrong("data=noisy data.inputs=data/noisy").contains("data"));
    assert!(wrong("task.classes=3").contains("data=pairs"));
    assert!(wrong("task.gradient.weight=1").contains("task.gradient.weight"));
    let begun = wrong("model.init=default");
    assert!(begun.contains("model.init"), "{begun}");
    let begun = refused(
        "train experiment=supervised model.init=run/best.clearshot trainer.iterations=4 ~trainer.seconds --out no",
        &here,
    );
    assert!(begun.contains("model.init") && begun.contains("segment"), "{begun}");
}

/// CytoDL's label-free prediction: pairs of stacks by its DynUNet, whose windows are blended.
#[test]
fn stacks_are_translated_by_cytodls_network() {
    let here = folder("labelfree");
    must("synth --scene nuclei --size 16x48x48 --count 4 --peak 80 --bits 16 --out data", &here);
    let line = "train experiment=im2im/labelfree data.inputs=data/noisy data.targets=data/truth trainer.device=cpu trainer.batch=2 validation.images=2 \
        validation.every=4 ~trainer.epochs trainer.iterations=4 checkpoint.every=2 records.every=2";
    let whole = last(&must(&format!("{line} --out run --json"), &here));
    let stopped = clearshot(&format!("{line} --out again --stop-at 3"), &here);
    let said = String::from_utf8(stopped.stderr).expect("text");
    assert!(stopped.status.success() && said.contains("342321 parameters"), "{said}");
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["psnr"]), (&whole["digest"], &whole["psnr"]));
    let said = must(
        "predict data/noisy/nuclei_0001.tif -o out.tif --model run/best.clearshot --float --json",
        &here,
    );
    assert!(said.contains("\"blended\":true") && said.contains("\"tile\":[16,32,32]"), "{said}");
    let info = must("info out.tif", &here);
    assert!(info.contains("Z 16 x Y 48 x X 48") && info.contains("float32"), "{info}");
    let refused = refused("predict data/noisy -o x --model run/best.clearshot --segments labels", &here);
    assert!(refused.contains("--segments"), "{refused}");
}
