//! Networks that others exported, and our own files read back, beside the reference interpreter.

mod common;

use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Op};
use clearshot_onnx::export;
use clearshot_onnx::file::OnnxModel;
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
        let second = |a: &Array| {
            let tensor = a.to_tensor(DType::F64);
            if a.shape.rank() > 3 { tensor.channels_second() } else { tensor }
        };
        let given: BTreeMap<String, Tensor> = given.iter().map(|(n, a)| (n.clone(), second(a))).collect();
        let sizes = given.iter().map(|(n, t)| (n.clone(), t.shape().to_vec())).collect();
        let imported = import(&model, None, &sizes).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let got = outputs(&imported, &given);
        for (name, want) in &want {
            let want = Array::from_tensor(&second(want));
            let error = difference(&got[name], &want);
            assert!(error < 1e-6, "{} {name}: {error}", case.name);
        }
        let count = |graph: &clearshot_graph::Graph, is: fn(&Op) -> bool| {
            graph.nodes.iter().filter(|n| is(&n.op)).count()
        };
        let kinds: [fn(&Op) -> bool; 4] = [
            |op| matches!(op, Op::Conv(_) | Op::ConvInputGrad(_)),
            |op| matches!(op, Op::Norm(_)),
            |op| matches!(op, Op::Attention(_)),
            |op| matches!(op, Op::MatMul(_)),
        ];
        for kind in kinds {
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

/// Small networks that PyTorch and the peers' libraries exported, with what ONNX Runtime computes of them;
/// `golden/make.py` makes them.
#[test]
fn networks_of_others_compute_what_onnx_runtime_does() {
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
