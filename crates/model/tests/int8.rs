//! Models with convolutions in 8 bits come back from their files to the byte, and files with wrong scales are refused.

use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Quantisation, Signal, Task};
use clearshot_nn::models::{self, Quantised};
use clearshot_nn::weights;
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Data, Tensor};
use std::path::PathBuf;

const LOCAL: &str = r#"{"_class_name": "Local", "channels": [64, 96], "blocks": 2, "in_channels": 10}"#;

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("clearshot-int8-{name}-{}.clearshot", std::process::id()))
}

fn model(quantised: bool) -> Model {
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 10.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    let task = Task::Diffusion { prediction, process, condition: ConditionKind::Measurement };
    let about = About::new("test", task, Signal::Photons, 1, &[16, 16]);
    let mut params = weights::initial(&models::read(LOCAL).unwrap().parameters().unwrap(), 5);
    for weight in params.values_mut().filter(|w| w.shape().rank() == 2) {
        *weight = weight.to_f16().to_f32();
    }
    let mut model = Model::new(about, LOCAL.into(), params).unwrap();
    if quantised {
        let grid = |i: usize| Grid::between(-1.0 - i as f32, 0.5);
        let table = Table::from([
            ("down.0.blocks.0.conv1.weight".into(), Rounding::Static((0..64).map(grid).collect())),
            ("middle.blocks.1.conv1.weight".into(), Rounding::Dynamic),
        ]);
        model.network = Box::new(Quantised::new(model.network, table).unwrap());
        model.about.quantised = Some(Quantisation {
            mode: "static".into(),
            calibration: "error".into(),
            images: 8,
            convolutions: 2,
            kept: vec!["conv_in.weight".into()],
            scores: serde_json::json!({"relative_error": 0.01}),
        });
    }
    model
}

#[test]
fn a_file_in_8_bits_comes_back_to_the_byte() {
    let (first, again, wide) = (file("first"), file("again"), file("wide"));
    let made = model(true);
    made.save_file(&first, DType::F32).unwrap();
    let read = Model::load(&first).unwrap();
    assert_eq!((read.network.int8(), &read.about), (made.network.int8(), &made.about));
    // What the bytes stand for is rounded to the same bytes.
    read.save_file(&again, DType::F32).unwrap();
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&again).unwrap());
    assert_eq!(read.hash(), Model::load(&again).unwrap().hash());
    model(false).save_file(&wide, DType::F32).unwrap();
    assert_ne!(read.hash(), Model::load(&wide).unwrap().hash());
    // Only what is in 8 bits changed, by half a unit at the most.
    let name = "down.0.blocks.0.conv1.weight";
    for (key, weight) in &made.weights {
        let (a, b) = (weight.as_f32().unwrap(), read.weights[key].as_f32().unwrap());
        let rounded = key == name || key == "middle.blocks.1.conv1.weight";
        let most = a.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        assert!(rounded || a == b, "{key}");
        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Of a channel with the finest step, whose unit is 64 times that of the widest.
        assert!(far <= most * 64.0 / 254.0, "{key}: {far} of {most}");
    }
    for path in [first, again, wide] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_file_with_wrong_scales_is_refused_by_name() {
    let path = file("wrong");
    model(true).save_file(&path, DType::F32).unwrap();
    let name = "down.0.blocks.0.conv1.weight";
    let tensor = |data: Data| Tensor::new([data.len()], data).unwrap();
    let part = |what: &str| format!("int8/{name}/{what}");
    let changes: [(String, Option<Tensor>, &str); 7] = [
        (part("scale"), None, "no `int8/"),
        (part("scale"), Some(Tensor::f32([64], vec![f32::NAN; 64])), "above 0"),
        (part("scale"), Some(Tensor::f32([3], vec![1.0; 3])), "expected [64]"),
        (part("step"), Some(Tensor::f32([64], vec![0.0; 64])), "above 0"),
        (part("step"), None, "zeros without steps"),
        (part("zero"), Some(tensor(Data::I8(vec![1; 64]))), "of u8"),
        ("int8/nothing/scale".into(), Some(Tensor::f32([1], vec![1.0])), "belongs to no weight"),
    ];
    for (key, value, says) in changes {
        let mut store = Store::read(&path).unwrap();
        match value {
            Some(value) => store.tensors.insert(key.clone(), value),
            None => store.tensors.remove(&key),
        };
        let bad = file("bad");
        store.write(&bad).unwrap();
        let refused = Model::load(&bad).unwrap_err().to_string();
        assert!(refused.contains(says), "{key}: {refused}");
        std::fs::remove_file(bad).unwrap();
    }
    std::fs::remove_file(path).unwrap();
}
