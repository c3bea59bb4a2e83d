//! Networks exported by others, and our own files read back, compared with the reference interpreter.

mod common;

use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Op};
use clearshot_onnx::export;
use clearshot_onnx::file::{Attribute, OnnxDim, OnnxGraph, OnnxModel, OnnxNode, OnnxTensor, ValueInfo};
use clearshot_onnx::import::{Imported, ImportedPort, import};
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Tensor};
use common::{arrays, cases, inputs};
use std::collections::BTreeMap;
use std::path::Path;

/// A file's tensor as the graph has it.
fn inward(port: &ImportedPort, tensor: &Tensor) -> Array {
    let tensor = if port.is_image() { tensor.channels_last() } else { tensor.clone() };
    Array::from_tensor(&tensor)
}

/// The outputs of an imported network, as the file has them.
fn outputs(imported: &Imported, given: &BTreeMap<String, Tensor>) -> BTreeMap<String, Array> {
    let mut values = arrays(&imported.weights);
    for port in &imported.inputs {
        values.insert(port.name.clone(), inward(port, &given[&port.name]));
    }
    let mut outs = run(&imported.graph, &mut values, Precision::F64).unwrap();
    let back = |port: &ImportedPort| {
        let array = outs.remove(&port.name).unwrap();
        let tensor = array.to_tensor(DType::F64);
        let tensor = if port.is_image() { tensor.channels_second() } else { tensor };
        (port.name.clone(), Array::from_tensor(&tensor))
    };
    imported.outputs.iter().map(back).collect()
}

/// The largest difference over the largest value.
fn difference(got: &Array, want: &Array) -> f64 {
    assert_eq!(got.shape, want.shape);
    let most = |it: &mut dyn Iterator<Item = f64>| it.fold(0.0f64, |m, v| m.max(v.abs()));
    most(&mut got.data.iter().zip(&want.data).map(|(a, b)| a - b)) / most(&mut want.data.iter().copied())
}

/// A value of a graph as a file has it.
fn channels_second(a: &Array) -> Tensor {
    let tensor = a.to_tensor(DType::F64);
    if a.shape.rank() > 3 { tensor.channels_second() } else { tensor }
}

/// Convolutions, norms, attentions and products.
const LAYERS: [fn(&Op) -> bool; 4] = [
    |op| matches!(op, Op::Conv(_) | Op::ConvInputGrad(_)),
    |op| matches!(op, Op::Norm(_)),
    |op| matches!(op, Op::Attention(_)),
    |op| matches!(op, Op::MatMul(_)),
];

fn count(graph: &clearshot_graph::Graph, is: fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|n| is(&n.op)).count()
}

/// What we write and read again computes the same, and has no more convolutions, norms and attentions than before.
#[test]
fn our_own_files_come_back() {
    for case in cases() {
        let mut bytes = vec![];
        export::write(&case.model, &case.settings, &mut bytes).unwrap();
        let graph = export::graph(&case.model, &case.settings, case.batch, &case.size).unwrap();
        let given = inputs(&graph);
        let mut values = given.clone();
        values.extend(arrays(&case.model.weights));
        let want = run(&graph, &mut values, Precision::F64).unwrap();

        let model = OnnxModel::parse(&bytes).unwrap();
        assert_eq!(model.opset(), Some(17));
        let given: BTreeMap<String, Tensor> =
            given.iter().map(|(n, a)| (n.clone(), channels_second(a))).collect();
        let sizes = given.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        let imported = import(&model, None, &sizes).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let got = outputs(&imported, &given);
        for (name, want) in &want {
            let want = Array::from_tensor(&channels_second(want));
            let error = difference(&got[name], &want);
            assert!(error < 1e-6, "{} {name}: {error}", case.name);
        }
        for kind in LAYERS {
            assert_eq!(count(&imported.graph, kind), count(&graph, kind), "{}", case.name);
        }
        let moved = count(&imported.graph, |op| matches!(op, Op::Transpose(_)));
        assert!(
            moved <= count(&graph, |op| matches!(op, Op::Transpose(_))) + 2,
            "{}: {moved} transposes",
            case.name
        );
    }
}

/// What was imported, exported and imported again has the same layers and computes the same. Reshapes of vectors beside images may differ: a file
/// has channels second, and where a vector gets its axes is then another place.
#[test]
fn a_round_trip_keeps_layers_and_results() {
    for case in cases() {
        let mut bytes = vec![];
        export::write(&case.model, &case.settings, &mut bytes).unwrap();
        let graph = export::graph(&case.model, &case.settings, case.batch, &case.size).unwrap();
        let given: BTreeMap<String, Tensor> =
            inputs(&graph).iter().map(|(name, a)| (name.clone(), channels_second(a))).collect();
        let sizes = given.iter().map(|(name, t)| (name.clone(), t.shape().to_vec())).collect();
        let first = import(&OnnxModel::parse(&bytes).unwrap(), None, &sizes).unwrap();
        let mut again = vec![];
        export::write_graph("again", &first.graph, &first.weights, &mut again).unwrap();
        let second = import(&OnnxModel::parse(&again).unwrap(), None, &sizes)
            .unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!((&first.inputs, &first.outputs), (&second.inputs, &second.outputs), "{}", case.name);
        for kind in LAYERS {
            assert_eq!(count(&first.graph, kind), count(&second.graph, kind), "{}", case.name);
        }
        let [mut before, after] = [&first, &second].map(|imported| outputs(imported, &given));
        for (name, after) in after {
            let error = difference(&after, &before.remove(&name).unwrap());
            assert!(error < 1e-9, "{} {name}: {error}", case.name);
        }
    }
}

/// The default model's estimate through its own file, by the kernels that users have.
#[test]
fn the_default_model_restores_the_same_through_its_own_file() {
    let model = clearshot_model::Model::builtin().unwrap();
    let numbers =
        [("gain", 0.5), ("offset", 100.0), ("read_noise", 1.5), ("background", 3.0), ("peak", 80.0)];
    let mut fixed: BTreeMap<String, Vec<f32>> =
        numbers.map(|(name, value)| (name.to_string(), vec![value])).into();
    fixed.insert("noise_correlation".into(), vec![0.0; clearshot_model::signal::LAGS]);
    let settings = export::Settings { fixed, direct: true, ..export::Settings::default() };
    let mut bytes = vec![];
    export::write(&model, &settings, &mut bytes).unwrap();
    let graph = export::graph(&model, &settings, 1, &[64, 96]).unwrap();
    let mut counts = vec![0.0; 64 * 96];
    clearshot_tensor::noise::Key { seed: 5, step: 0, stream: 0 }.fill_normal(0, &mut counts);
    let bright = |i: usize| if (i / 96 / 16 + i % 96 / 16).is_multiple_of(2) { 40.0 } else { 5.0 };
    counts.iter_mut().enumerate().for_each(|(i, v)| *v = (100.0 + 2.0 * (bright(i) + 6.0 * *v)).round());
    let restored = |graph: &clearshot_graph::Graph, weights: &clearshot_nn::Weights| {
        let options = clearshot_runtime::Options::default();
        let device = clearshot_runtime::Device::cpu(None);
        let mut session = clearshot_runtime::compile(graph.clone(), &device, &options).unwrap();
        for (name, _, _) in graph.states() {
            session.set(name, &weights[name]).unwrap();
        }
        session.set("image", &Tensor::f32([1, 64, 96, 1], counts.clone())).unwrap();
        session.run().unwrap();
        Array::from_tensor(&session.get("restored").unwrap())
    };
    let want = restored(&graph, &model.weights);
    let sizes = [("image".to_string(), vec![1, 1, 64, 96])].into();
    let imported = import(&OnnxModel::parse(&bytes).unwrap(), None, &sizes).unwrap();
    let error = difference(&restored(&imported.graph, &imported.weights), &want);
    assert!(error < 1e-5, "{error}");
}

/// Small networks that PyTorch and the peers' libraries exported, with what ONNX Runtime computes of them;
/// `golden/make.py` makes them.
#[test]
fn foreign_networks_equal_onnx_runtime() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "onnx"));
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let bytes = std::fs::read(&path).unwrap();
        let store = Store::read(&path.with_extension("safetensors")).unwrap();
        let part = |prefix: &str| -> BTreeMap<String, Tensor> {
            let named = store
                .tensors
                .iter()
                .filter_map(|(n, t)| Some((n.strip_prefix(prefix)?.to_string(), t.clone())));
            named.collect()
        };
        let (given, want) = (part("in."), part("out."));
        let sizes = given.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        let model = OnnxModel::parse(&bytes).unwrap();
        let imported =
            import(&model, Some(&folder), &sizes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let got = outputs(&imported, &given);
        for (name, want) in &want {
            let error = difference(&got[name], &Array::from_tensor(want));
            assert!(error < 1e-5, "{} {name}: {error}", path.display());
        }
    }
}

/// A golden file for its own sizes, with its input and ONNX Runtime's output.
fn golden(name: &str) -> (Imported, BTreeMap<String, Tensor>, Array) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bytes = std::fs::read(folder.join(format!("{name}.onnx"))).unwrap();
    let store = Store::read(&folder.join(format!("{name}.safetensors"))).unwrap();
    let given: BTreeMap<String, Tensor> = [("x".to_string(), store.tensors["in.x"].clone())].into();
    let sizes = given.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
    let imported = import(&OnnxModel::parse(&bytes).unwrap(), Some(&folder), &sizes).unwrap();
    (imported, given, Array::from_tensor(&store.tensors["out.y"]))
}

/// An image through a Resize with these scales of Y and X.
fn resized(mode: &str, size: [usize; 2], scales: [f32; 2]) -> Array {
    let info = |name| ValueInfo { name, element: 1, dims: Some(vec![OnnxDim::Unknown; 4]) };
    let resize = OnnxNode {
        op: "Resize",
        inputs: vec!["x", "", "scales"],
        outputs: vec!["y"],
        attributes: [
            ("mode", mode),
            ("coordinate_transformation_mode", "asymmetric"),
            ("nearest_mode", "floor"),
        ]
        .map(|(name, text)| (name, Attribute::Text(text.as_bytes())))
        .to_vec(),
        ..OnnxNode::default()
    };
    let scales = OnnxTensor {
        name: "scales",
        dims: vec![4],
        element: 1,
        floats: vec![1.0, 1.0, scales[0], scales[1]],
        ..OnnxTensor::default()
    };
    let graph = OnnxGraph {
        nodes: vec![resize],
        initializers: vec![scales],
        inputs: vec![info("x")],
        outputs: vec![info("y")],
        ..OnnxGraph::default()
    };
    let model = OnnxModel { ir_version: 8, opsets: vec![("", 13)], graph, ..OnnxModel::default() };
    let values = (0..size[0] * size[1]).map(|i| (10 * (i / size[1]) + i % size[1]) as f32).collect();
    let given = Tensor::f32([1, 1, size[0], size[1]], values);
    let sizes = [("x".to_string(), given.shape().to_vec())].into();
    let imported = import(&model, None, &sizes).unwrap();
    outputs(&imported, &[("x".to_string(), given)].into()).remove("y").unwrap()
}

/// Where a scale other than 1 leaves an axis as long as it was, since lengths are rounded down, its pixels move all the same; ONNX Runtime
/// returns an image unchanged only if no axis changes its length.
#[test]
fn axes_that_keep_their_length_are_resized_by_their_scale() {
    let rows = |places: [f64; 4]| -> Vec<f64> {
        places.iter().flat_map(|y| [0.0, 0.5, 1.0, 1.0].map(|x| 10.0 * y + x)).collect()
    };
    // Four rows by 1.2 are four rows: places 0, 1/1.2, 2/1.2, 3/1.2.
    let linear = resized("linear", [4, 2], [1.2, 2.0]);
    assert_eq!(linear.shape.to_vec(), [1, 1, 4, 4]);
    let wanted = rows([0.0, 1.0 / 1.2, 2.0 / 1.2, 3.0 / 1.2]);
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
    assert!(linear.data.iter().zip(&wanted).all(near), "{:?}", linear.data);
    let nearest = resized("nearest", [4, 2], [1.2, 2.0]);
    let wanted: Vec<f64> =
        [0.0, 0.0, 1.0, 2.0].iter().flat_map(|y| [0.0, 0.0, 1.0, 1.0].map(|x| 10.0 * y + x)).collect();
    assert_eq!(nearest.data, wanted);
    assert_eq!(resized("linear", [4, 2], [1.2, 1.2]).data, [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]);
}

/// Pairs around a convolution are products in 8 bits where its weight has a scale of each channel; on a CPU what they round is then rounded while it is read.
#[test]
fn pairs_become_products_in_8_bits() {
    let in_8_bits: fn(&Op) -> bool = |op| matches!(op, Op::Conv(conv) if conv.int8.is_some());
    use clearshot_graph::ops::Unary;
    let round: fn(&Op) -> bool = |op| matches!(op, Op::Unary(Unary::Round | Unary::Snap(..)));
    // The last number counts pairs behind what only moves rounded values, on the same grid.
    for (name, convolutions, repeated) in
        [("quantised_wide", 2, 0), ("quantised_signed", 2, 0), ("quantised_tensor", 0, 2)]
    {
        let (imported, given, want) = golden(name);
        assert_eq!(count(&imported.graph, in_8_bits), convolutions, "{name}");
        let rounded = count(&imported.graph, round);
        let settled = clearshot_graph::passes::PASSES.iter().find(|p| p.name == "8 bits").unwrap();
        let on_cpu = (settled.run)(imported.graph.clone(), &clearshot_graph::passes::Target::ALL);
        assert_eq!(count(&on_cpu, in_8_bits), convolutions, "{name}");
        // The skip connection reads what was rounded too, so one of the two stays.
        assert_eq!(count(&on_cpu, round), rounded - convolutions / 2 - repeated, "{name}");
        let elsewhere = (settled.run)(imported.graph.clone(), &clearshot_graph::passes::Target::PLAIN);
        assert_eq!((count(&elsewhere, in_8_bits), count(&elsewhere, round)), (0, rounded), "{name}");
        for graph in [on_cpu, elsewhere] {
            let got =
                outputs(&Imported { graph, weights: imported.weights.clone(), ..golden(name).0 }, &given);
            let error = difference(&got["y"], &want);
            assert!(error < 1e-5, "{name}: {error}");
        }
        let device = clearshot_runtime::Device::cpu(None);
        let mut session = clearshot_runtime::compile(
            imported.graph.clone(),
            &device,
            &clearshot_runtime::Options::default(),
        )
        .unwrap();
        imported.weights.iter().for_each(|(name, w)| session.set(name, w).unwrap());
        session.set("x", &given["x"].channels_last()).unwrap();
        session.run().unwrap();
        let got = Array::from_tensor(&session.get("y").unwrap().channels_second());
        let error = difference(&got, &want);
        assert!(error < 1e-5, "{name} on the CPU: {error}");
    }
}

/// A model in 8 bits has pairs in its file, computes the same through it, and is one in 8 bits again when it is read.
#[test]
fn models_in_8_bits_come_back_as_such() {
    use clearshot_graph::ops::int8::{Grid, Rounding, Table, round_weight, scale_of};
    let config = serde_json::json!({"_class_name": "DnCNN", "in_channels": 1, "out_channels": 1, "channels": 16, "layers": 4});
    for shared in [false, true] {
        let mut model = common::model(config.clone(), clearshot_model::Task::Regression, common::fixed());
        let graph = export::graph(&model, &export::Settings::default(), 1, &[8, 12]).unwrap();
        let worth = clearshot_graph::passes::int8::candidates(&graph);
        assert_eq!(worth.len(), 2);
        let grid = |c: usize| Grid::between(-0.1 * if shared { 4.0 } else { (c % 5) as f32 }, 2.0);
        let grids: Vec<Grid> = (0..16).map(grid).collect();
        let rounding = |name: &String| (name.clone(), Rounding::Static(grids.clone()));
        let table: Table = worth.iter().map(|c| rounding(&c.name)).collect();
        for candidate in &worth {
            // As a file in 8 bits has it: whole numbers of a scale of each output channel, with the steps taken out.
            let weight = model.weights.get_mut(&candidate.name).unwrap();
            let row = weight.shape().len() / weight.shape()[0];
            let mut values = weight.as_f32().unwrap().to_vec();
            for of_channel in values.chunks_exact_mut(row) {
                let step = |i: usize| grids[i % 16].step;
                let largest =
                    of_channel.iter().enumerate().fold(0.0f32, |m, (i, w)| m.max((w * step(i)).abs()));
                let scale = scale_of(largest);
                let round = |(i, w): (usize, &mut f32)| {
                    *w = f32::from(round_weight(*w * step(i), scale)) * scale / step(i)
                };
                of_channel.iter_mut().enumerate().for_each(round);
            }
            *weight = Tensor::f32(weight.shape(), values);
        }
        model.network = Box::new(clearshot_nn::models::Quantised::new(model.network, table).unwrap());
        let graph = export::graph(&model, &export::Settings::default(), 1, &[8, 12]).unwrap();
        let in_8_bits: fn(&Op) -> bool = |op| matches!(op, Op::Conv(conv) if conv.int8.is_some());
        assert_eq!(count(&graph, in_8_bits), 2);
        let mut values = inputs(&graph);
        let given: BTreeMap<String, Tensor> =
            values.iter().map(|(n, a)| (n.clone(), channels_second(a))).collect();
        values.extend(arrays(&model.weights));
        let want = run(&graph, &mut values, Precision::F64).unwrap();
        let mut bytes = vec![];
        export::write(&model, &export::Settings::default(), &mut bytes).unwrap();
        let parsed = OnnxModel::parse(&bytes).unwrap();
        assert_eq!(parsed.graph.nodes.iter().filter(|n| n.op == "QuantizeLinear").count(), 2);
        let sizes = given.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        let imported = import(&parsed, None, &sizes).unwrap();
        assert_eq!(count(&imported.graph, in_8_bits), 2);
        for (name, got) in outputs(&imported, &given) {
            let error = difference(&got, &Array::from_tensor(&channels_second(&want[&name])));
            assert!(error < 1e-6, "{name}: {error}");
        }
    }
}
