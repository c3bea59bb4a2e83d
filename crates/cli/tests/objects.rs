//! Objects one by one as users meet them: learned from generated nuclei and from files with labels, found in files by `predict`, touching ones too.

mod program;

use program::{folder, must, refused};
use serde_json::Value;
use std::path::Path;

/// Some seconds of training: enough to find the foreground, and too short to tell objects apart, which takes minutes (docs/segmentation.md has what that reaches).
const SHORT: &str = "experiment=instances model.network.channels=[12,24,32] data.pool=24 data.sizes=[96] data.camera.peak=[100,200] trainer.crop=48 optimizer.rate=4e-3 \
    schedule.warm_up=10 trainer.ema_half_life=80 validation.images=4 validation.every=60 validation.crop=96 checkpoint.every=20 records.every=10 ~trainer.seconds";

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
fn objects_are_predicted_independently_of_tiles_and_threads() {
    let here = folder("objects");
    let summary = last(&must(&format!("train {SHORT} trainer.iterations=60 --out run --json"), &here));
    let precision = summary["ap"].as_f64().expect("a score");
    assert!((0.0..=1.0).contains(&precision), "average precision {precision} in validation");
    let records = std::fs::read_to_string(here.join("run/records.jsonl")).expect("records");
    assert!(records.contains("\"ap\"") && !records.contains("psnr"), "{records}");
    let losses: Vec<f64> = records
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).expect("JSON")["loss"].as_f64())
        .collect();
    assert!(losses[losses.len() - 1] < 0.7 * losses[0], "{losses:?}");

    // Interrupted and resumed: bit-identical.
    must(&format!("train {SHORT} trainer.iterations=60 --out again --stop-at 35"), &here);
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["ap"]), (&summary["digest"], &summary["ap"]));

    must(
        "synth --scene nuclei --size 160x144 --count 2 --peak 150 --bits 16 --seed 5 --labels --out data",
        &here,
    );
    let said = must("predict data/noisy -o found --model run/best.clearshot", &here);
    assert!(said.contains("objects"), "{said}");
    assert!(must("info found/nuclei_0000.tif", &here).contains("uint16"));
    must("predict data/noisy -o classes --model run/best.clearshot --segments classes", &here);
    for i in 0..2 {
        let truth = format!("data/labels/nuclei_000{i}.tif");
        let dice = score(&truth, &format!("classes/nuclei_000{i}.tif"), "dice", &here);
        assert!(dice > 0.8, "Dice {dice} of the foreground");
    }

    // The same objects whatever the tiles and threads.
    let one = "data/noisy/nuclei_0000.tif";
    must(&format!("predict {one} -o tiled.npy --model run/best.clearshot --tile 48 --threads 1"), &here);
    must(&format!("predict {one} -o whole.npy --model run/best.clearshot --threads 2"), &here);
    let bytes = |name: &str| std::fs::read(here.join(name)).expect("a file");
    assert_eq!(bytes("tiled.npy"), bytes("whole.npy"));
    must(&format!("predict {one} -o p.npy --model run/best.clearshot --segments probabilities"), &here);
    let p = bytes("p.npy");
    let p: Vec<f32> =
        p[p.len() - 4 * 160 * 144..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert!(p.iter().all(|p| (0.0..=1.0).contains(p)) && p.iter().any(|p| *p > 0.9));

    // Unsupported uses are refused with the reason.
    assert!(refused("export run/best.clearshot -o m.onnx", &here).contains("clearshot predict"));
    assert!(refused("quantize run/best.clearshot -o q.clearshot", &here).contains("segment"), "quantize");
    let said = refused(&format!("restore {one} -o r.tif --model run/best.clearshot --samples 4"), &here);
    assert!(said.contains("--samples") && said.contains("segments"), "{said}");
    let begun = refused(
        "train experiment=segmentation model.init=run/best.clearshot ~trainer.seconds trainer.iterations=4 --out no",
        &here,
    );
    assert!(begun.contains("model.init") && begun.contains("task=instances"), "{begun}");
    let wrong =
        |changes: &str| refused(&format!("train {SHORT} {changes} trainer.iterations=4 --out no"), &here);
    assert!(wrong("task.classes=3").contains("task.classes"));
    assert!(wrong("data=filaments").contains("data.scenes"));
    assert!(wrong("model=growing").contains("model.network"));
}

/// CytoDL's experiment: stacks with labels, by its DynUNet in three dimensions.
#[test]
fn stacks_with_labels_train_cytodls_network() {
    let here = folder("objects-stacks");
    must("synth --scene nuclei --size 16x48x48 --count 4 --peak 80 --bits 16 --labels --out data", &here);
    let line = "train experiment=im2im/instance_seg data.inputs=data/noisy data.targets=data/labels trainer.device=cpu trainer.batch=2 validation.images=2 \
        validation.every=4 ~trainer.epochs trainer.iterations=4 checkpoint.every=2 records.every=2";
    let whole = last(&must(&format!("{line} --out run --json"), &here));
    must(&format!("{line} --out again --stop-at 3"), &here);
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["ap"]), (&whole["digest"], &whole["ap"]));
    must("predict data/noisy/nuclei_0001.tif -o out.tif --model run/best.clearshot", &here);
    let info = must("info out.tif", &here);
    assert!(info.contains("Z 16 x Y 48 x X 48") && info.contains("uint16"), "{info}");
}
