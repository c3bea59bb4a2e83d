//! Adversarial training as users meet it: images on a finer grid, learned from generated scenes, with both losses recorded; the GAN between pairs of stacks.

mod program;

use program::{folder, must, refused};
use serde_json::Value;

const SHORT: &str = "experiment=superres model.network.network.channels=[8,12] model.network.features=6 task.gan.filters=4 data.pool=12 data.sizes=[96] \
    trainer.crop=64 trainer.batch=2 schedule.warm_up=5 trainer.ema_half_life=20 validation.images=4 validation.every=20 checkpoint.every=10 records.every=10 ~trainer.seconds";

fn last(text: &str) -> Value {
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

#[test]
fn images_get_four_times_as_many_pixels_along_each_axis() {
    let here = folder("superres");
    let summary = last(&must(&format!("train {SHORT} trainer.iterations=40 --out run --json"), &here));
    assert!(summary["psnr"].is_number(), "{summary}");
    // Both optimisers are at work, and what they do is written down.
    let records = std::fs::read_to_string(here.join("run/records.jsonl")).expect("records");
    let records: Vec<Value> = records.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let train: Vec<&Value> = records.iter().filter(|r| r["term.discriminator"].is_number()).collect();
    assert!(train.len() >= 4, "{records:?}");
    for key in ["loss", "term.adversarial", "term.features", "term.reconstruction", "discriminator_grad_norm"]
    {
        assert!(train.iter().all(|r| r[key].as_f64().is_some_and(f64::is_finite)), "{key}: {train:?}");
    }
    // Interrupted and resumed: bit-identical, including the discriminator.
    must(&format!("train {SHORT} trainer.iterations=40 --out again --stop-at 15"), &here);
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["psnr"]), (&summary["digest"], &summary["psnr"]));

    // Files: four times as many pixels, a quarter as large, in the input's unit, whatever the tiles.
    must("synth --scene filaments --size 40x36 --count 1 --peak 300 --bits 16 --out data", &here);
    let input = "data/noisy/filaments_0000.tif";
    must(&format!("predict {input} -o fine.tif --model run/best.clearshot"), &here);
    let info = must("info fine.tif", &here);
    assert!(info.contains("Y 160 x X 144") && info.contains("float32") && info.contains("predict"), "{info}");
    must(&format!("predict {input} -o whole.npy --model run/best.clearshot --threads 2"), &here);
    must(&format!("predict {input} -o tiled.npy --model run/best.clearshot --tile 64 --threads 1"), &here);
    let pixels = |name: &str| -> Vec<f32> {
        let bytes = std::fs::read(here.join(name)).expect("a file");
        let values = &bytes[bytes.len() - 4 * 160 * 144..];
        values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let (whole, tiled) = (pixels("whole.npy"), pixels("tiled.npy"));
    let range = whole.iter().fold(0f32, |most, v| most.max(v.abs()));
    assert!(whole.iter().zip(&tiled).all(|(a, b)| (a - b).abs() <= 1e-5 * range), "tiles show");
    assert!(
        must(&format!("predict {input} -o fine.tif --model run/best.clearshot"), &here)
            .contains("already done")
    );

    // Unsupported uses are refused with the reason.
    assert!(refused("export run/best.clearshot -o m.onnx", &here).contains("clearshot predict"));
    assert!(refused("quantize run/best.clearshot -o q.clearshot", &here).contains("enlarges"), "quantize");
    let said =
        refused(&format!("predict {input} -o x.tif --model run/best.clearshot --segments labels"), &here);
    assert!(said.contains("--segments"), "{said}");
    let wrong =
        |changes: &str| refused(&format!("train {SHORT} {changes} trainer.iterations=4 --out no"), &here);
    assert!(wrong("task.enlarge=1").contains("task.enlarge"));
    assert!(wrong("task.enlarge=2").contains("task.enlarge"));
    assert!(wrong("task=supervised").contains("task"));
    assert!(wrong("trainer.crop=62").contains("trainer.crop"));
    assert!(wrong("task.gan.layers=5").contains("task.gan.layers"));
    let pairs = wrong("data=pairs data.inputs=data/noisy data.targets=data/truth");
    assert!(pairs.contains("data.kind"), "{pairs}");
}

/// CytoDL's experiment between files: stacks by its DynUNet and its discriminator; the model restores like any other.
#[test]
fn pairs_of_stacks_train_cytodls_gan() {
    let here = folder("gan-stacks");
    must("synth --scene nuclei --size 16x48x48 --count 4 --peak 80 --bits 16 --out data", &here);
    let line = "train experiment=im2im/gan data.inputs=data/noisy data.targets=data/truth trainer.device=cpu trainer.batch=2 validation.images=2 \
        validation.every=4 ~trainer.epochs trainer.iterations=4 checkpoint.every=2 records.every=2";
    let whole = last(&must(&format!("{line} --out run --json"), &here));
    must(&format!("{line} --out again --stop-at 3"), &here);
    let resumed = last(&must("train --out again --resume --json", &here));
    assert_eq!((&resumed["digest"], &resumed["psnr"]), (&whole["digest"], &whole["psnr"]));
    must("predict data/noisy/nuclei_0001.tif -o out.tif --model run/best.clearshot --float", &here);
    assert!(must("info out.tif", &here).contains("Z 16 x Y 48 x X 48"));
}
