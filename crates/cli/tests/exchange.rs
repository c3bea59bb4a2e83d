//! Our model as an ONNX file, run by `predict` as a network of others is.

mod program;

use clearshot_image::Image;
use program::{folder, must, refused};

const NUMBERS: &str = "--set gain=1 --set offset=100 --set read_noise=1.5 --set background=4 --set peak=80 --set noise_correlation=0,0,0,0";

fn psnr(line: &str) -> f64 {
    let at = line.find("psnr ").expect("a score") + 5;
    line[at..].split(',').next().and_then(|v| v.parse().ok()).expect("a number")
}

#[test]
fn an_exported_model_restores_an_image() {
    let here = folder("exchange");
    must("synth --scene nuclei --size 72x96 --peak 80 --bits 16 --out data", &here);
    let said = must(&format!("export default -o model.onnx --direct {NUMBERS}"), &here);
    assert!(said.contains("opset 17") && said.contains("restored"), "{said}");
    must("predict model.onnx data/noisy/nuclei_0000.tif -o clean.tif --tile 96", &here);
    let score = |image: &str| {
        psnr(&must(&format!("measure --truth data/truth/nuclei_0000.tif --image {image} --range 80"), &here))
    };
    let (before, after) = (score("data/noisy/nuclei_0000.tif"), score("clean.tif"));
    assert!(after > before + 8.0, "{before} dB before, {after} dB after");
    assert!(must("plan --onnx model.onnx --size 64", &here).contains("model.onnx"));
    // `restore` runs it as `predict` does, in tiles too.
    must("restore data/noisy/nuclei_0000.tif --model model.onnx -o tiled.tif --tile 32", &here);
    let tiled = score("tiled.tif");
    assert!((tiled - after).abs() < 1e-3, "{after} dB at once, {tiled} dB in tiles");
    // The built-in model has a name that every verb takes.
    must("predict data/noisy/nuclei_0000.tif --model default -o named.tif", &here);
    must("restore data/noisy/nuclei_0000.tif -o builtin.tif", &here);
    let values = |name: &str| {
        let image = Image::open(here.join(name)).expect("an image");
        image.read_f64(&image.whole()).expect("values")
    };
    assert_eq!(values("named.tif"), values("builtin.tif"));
    assert!(must("info default", &here).contains("weights, 23.76 MB"));
    assert!(refused("info defaults", &here).contains("defaults"));
    let samples =
        refused("restore data/noisy/nuclei_0000.tif --model model.onnx -o no.tif --samples 4", &here);
    assert!(samples.contains("samples") && samples.contains("ONNX"), "{samples}");
}

#[test]
fn a_package_is_checked_and_restores() {
    let here = folder("exchange-package");
    must("synth --scene nuclei --size 64x64 --peak 80 --bits 16 --out data", &here);
    must(&format!("export default --bioimageio package --author A {NUMBERS}"), &here);
    assert!(must("check package", &here).contains("the package's own test passes"));
    must("restore data/noisy/nuclei_0000.tif --model package -o clean.tif", &here);
    assert!(must("info clean.tif", &here).contains("Clearshot"), "the record names the model");
    // Another test output than the network makes.
    let other = std::fs::read(here.join("package/test_input.npy")).expect("a file");
    std::fs::write(here.join("package/test_output.npy"), other).expect("room");
    for line in ["check package", "restore data/noisy/nuclei_0000.tif --model package -o never.tif"] {
        let why = refused(line, &here);
        assert!(why.contains("its own test"), "{why}");
    }
    assert!(!here.join("never.tif").exists());
}

#[test]
fn networks_that_cannot_run_are_refused_with_the_reason() {
    let here = folder("exchange-refused");
    std::fs::write(here.join("text.onnx"), "not a network").expect("room");
    assert!(refused("bench --onnx text.onnx", &here).contains("text.onnx"));
    assert!(refused("export default -o m.onnx --set gian=1", &here).contains("gain"));
    let missing = refused("export default --bioimageio package --author A --set gain=1", &here);
    assert!(missing.contains("peak"), "{missing}");
    // The step of a sampler needs more than an image.
    must("export default -o step.onnx", &here);
    must("synth --scene nuclei --size 64x64 --out data", &here);
    let more = refused("predict step.onnx data/noisy/nuclei_0000.tif -o clean.tif --tile 64", &here);
    assert!(more.contains("sigma"), "{more}");
}
