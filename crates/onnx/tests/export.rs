//! Files of every architecture and task. With `CLEARSHOT_ONNX_CASES` set to a folder, they are also written there with inputs and
//! what our reference interpreter makes of them, for `bench/onnx_check.py` to compare with ONNX Runtime.

mod common;

use clearshot_diffusion::Level;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Type};
use clearshot_model::Photons;
use clearshot_onnx::export::{self, Dim, Settings};
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Tensor};
use common::{Case, arrays, cases, inputs};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn every_architecture_and_task_is_written() {
    let folder = std::env::var_os("CLEARSHOT_ONNX_CASES");
    for case in cases() {
        let mut bytes = vec![];
        let exported = export::write(&case.model, &case.settings, &mut bytes).unwrap();
        let open = |d: &Dim| matches!(d, Dim::Any(_));
        let image = exported.inputs.iter().find(|p| p.dims.len() > 3).unwrap();
        if case.name == "crossattn" {
            // Its places are numbers for the size that it was trained on.
            let trained: Vec<Dim> = case.model.about.crop.iter().map(|&n| Dim::Fixed(n)).collect();
            assert_eq!(image.dims[2..], trained, "{}", case.name);
        } else {
            assert!(
                open(&image.dims[0]) && image.dims[2..].iter().all(open),
                "{}: {:?}",
                case.name,
                image.dims
            );
        }
        assert!(exported.inputs.iter().chain(&exported.outputs).all(|p| !p.about.is_empty()));
        if let Some(folder) = &folder {
            write_case(&case, &bytes, Path::new(folder));
        }
    }
}

/// In ONNX's layout.
fn tensor(array: &Array, dtype: DType) -> Tensor {
    let tensor = array.to_tensor(dtype);
    if array.shape.rank() > 3 { tensor.channels_second() } else { tensor }
}

fn write_case(case: &Case, bytes: &[u8], folder: &Path) {
    let graph = export::graph(&case.model, &case.settings, case.batch, &case.size).unwrap();
    let mut values = inputs(&graph);
    let given = values.clone();
    values.extend(arrays(&case.model.weights));
    let outs = run(&graph, &mut values, Precision::F64).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, v) in graph.inputs() {
        let dtype = graph.ty(v).dtype;
        tensors.insert(format!("in.{name}"), tensor(&given[name], dtype));
    }
    for (name, array) in &outs {
        tensors.insert(format!("out.{name}"), tensor(array, DType::F32));
    }
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(format!("{}.onnx", case.name)), bytes).unwrap();
    let store = Store { tensors, metadata: BTreeMap::new() };
    store.write(&folder.join(format!("{}.safetensors", case.name))).unwrap();
}

/// The level's numbers in the graph are those that our samplers compute on the host.
#[test]
fn the_level_in_the_file_is_that_of_the_samplers() {
    for case in cases().iter().filter(|c| !c.settings.direct) {
        let clearshot_model::Task::Diffusion { process, .. } = &case.model.about.task else { continue };
        let level = process.levels(4).unwrap().steps()[1].from;
        let graph = export::graph(&case.model, &case.settings, 1, &case.size).unwrap();
        let mut values = inputs(&graph);
        // Priors without classes: what stands beside x is another test's.
        if values.keys().any(|name| !["x", "sigma", "timestep"].contains(&name.as_str())) {
            continue;
        }
        values.extend(arrays(&case.model.weights));
        values.insert("sigma".into(), Array::new([1], vec![level.sigma]));
        values.insert("timestep".into(), Array::new([1], vec![level.time]));
        let ours = run(&graph, &mut values, Precision::F64).unwrap().remove("x0").unwrap();
        let host = on_the_host(case, level, &values);
        assert!(ours.relative_error(&host) < 1e-6, "{}: {}", case.name, ours.relative_error(&host));
    }
}

fn on_the_host(case: &Case, level: Level, values: &BTreeMap<String, Array>) -> Array {
    use clearshot_diffusion::{Condition, Denoiser, LevelInputs};
    let mut b = Builder::new();
    let mut levels = LevelInputs::new(1);
    let x = b.input("x", Type::f32(values["x"].shape));
    let estimate = case.model.denoiser().unwrap().denoise(&mut b, x, &mut levels, &Condition::default());
    b.output("x0", estimate.x0);
    let mut values = values.clone();
    for (name, value) in levels.at(&level) {
        values.insert(name.into(), Array::from_tensor(&value));
    }
    run(&b.finish().unwrap(), &mut values, Precision::F64).unwrap().remove("x0").unwrap()
}

/// Counts become what the network is given as restoring makes them.
#[test]
fn pixels_become_the_networks_numbers() {
    let case = cases().into_iter().find(|c| c.name == "local").unwrap();
    let graph = export::graph(&case.model, &case.settings, 1, &case.size).unwrap();
    let mut values = inputs(&graph);
    let image = values["image"].clone();
    values.extend(arrays(&case.model.weights));
    // The condition stands in front of the first convolution, behind x.
    let mut b = Builder::extend(graph);
    let first = b.graph().nodes.iter().find(|n| n.op.name() == "conv").unwrap().inputs[0];
    b.output("seen", first);
    let seen = run(&b.finish().unwrap(), &mut values, Precision::F64).unwrap().remove("seen").unwrap();
    let lags: [f64; 4] = values["noise_correlation"].data.clone().try_into().unwrap();
    let photons = Photons::new(3.0, 1.5, 80.0).unwrap();
    let photons = photons.with_correlation(clearshot_model::signal::from_lags(lags));
    let electrons: Vec<f32> = image.data.iter().map(|v| ((v - 100.0) * 0.5) as f32).collect();
    let mut want = vec![0.0; 9 * electrons.len()];
    photons.condition(&electrons, &mut want);
    for (pixel, want) in seen.data.chunks(10).zip(want.chunks(9)) {
        for (got, want) in pixel[1..].iter().zip(want) {
            assert!((got - f64::from(*want)).abs() < 1e-6, "{pixel:?} {want}");
        }
    }
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let case = cases().into_iter().find(|c| c.name == "local").unwrap();
    let refused =
        |settings: Settings| export::write(&case.model, &settings, &mut vec![]).unwrap_err().to_string();
    let fixed = |name: &str, values: Vec<f32>| Settings {
        fixed: [(name.to_string(), values)].into(),
        ..Settings::default()
    };
    assert!(refused(fixed("gian", vec![1.0])).contains("gain"));
    assert!(refused(fixed("peak", vec![1.0, 2.0])).contains("peak"));
    assert!(refused(Settings { size: Some(vec![7, 8]), ..Settings::default() }).contains("multiple"));
    let prior = cases().into_iter().find(|c| c.name == "song").unwrap();
    let direct = Settings { direct: true, ..Settings::default() };
    assert!(export::write(&prior.model, &direct, &mut vec![]).is_err());
}
