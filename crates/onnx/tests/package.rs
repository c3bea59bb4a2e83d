//! Packages of the BioImage Model Zoo: complete, and with weights that give the test output. With `CLEARSHOT_ONNX_CASES`
//! set to a folder they stay there, for `bioimageio test`.

mod common;

use clearshot_graph::Array;
use clearshot_graph::reference::{Precision, run};
use clearshot_image::Image;
use clearshot_onnx::export::Settings;
use clearshot_onnx::file::OnnxModel;
use clearshot_onnx::import::import;
use clearshot_onnx::package::{Card, write};
use clearshot_tensor::Tensor;
use common::{arrays, cases};
use std::path::Path;

fn card() -> Card {
    Card { authors: vec!["A. Author".into()], licence: "MIT".into() }
}

fn npy(path: &Path) -> Tensor {
    let image = Image::open(path).unwrap();
    let values = image.read_f32(&image.whole()).unwrap();
    Tensor::f32(&image.shape()[..], values)
}

#[test]
fn a_package_is_whole_and_its_test_tensors_are_the_networks() {
    let numbers =
        [("gain", 0.5), ("offset", 100.0), ("read_noise", 1.5), ("background", 3.0), ("peak", 80.0)];
    for case in cases().into_iter().filter(|c| ["n2v", "local", "local3"].contains(&c.name.as_str())) {
        let folder = tempfile::tempdir().unwrap();
        let folder = match std::env::var_os("CLEARSHOT_ONNX_CASES") {
            Some(cases) => Path::new(&cases).join(format!("package_{}", case.name)),
            None => folder.path().join("package"),
        };
        let fixed = numbers.map(|(name, value)| (name.to_string(), vec![value])).into();
        let settings = Settings { fixed, ..Settings::default() };
        write(&case.model, &settings, &card(), &folder).unwrap();
        let text = std::fs::read_to_string(folder.join("bioimageio.yaml")).unwrap();
        for part in [
            "format_version: \"0.5",
            "A. Author",
            "opset_version: 17",
            "halo: ",
            "axis_id: \"y\"",
            &case.model.hash(),
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        for file in ["README.md", "cover.png"] {
            assert!(folder.join(file).metadata().unwrap().len() > 100, "{file}");
        }
        let (given, want) = (npy(&folder.join("test_input.npy")), npy(&folder.join("test_output.npy")));
        let bytes = std::fs::read(folder.join("weights.onnx")).unwrap();
        let model = OnnxModel::parse(&bytes).unwrap();
        let sizes = [("image".to_string(), given.shape().to_vec())].into();
        let imported = import(&model, None, &sizes).unwrap();
        let mut values = arrays(&imported.weights);
        values.insert("image".into(), Array::from_tensor(&given.channels_last()));
        let got = run(&imported.graph, &mut values, Precision::F64).unwrap().remove("restored").unwrap();
        let error = got.relative_error(&Array::from_tensor(&want.channels_last()));
        assert!(error < 1e-5, "{}: {error}", case.name);
        assert!(
            write(&case.model, &settings, &card(), &folder).unwrap_err().to_string().contains("not empty")
        );
    }
}

#[test]
fn numbers_that_are_missing_are_named() {
    let case = cases().into_iter().find(|c| c.name == "local").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = write(&case.model, &Settings::default(), &card(), folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("gain") && error.contains("peak") && !error.contains("noise_correlation"),
        "{error}"
    );
}
