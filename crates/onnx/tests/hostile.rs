//! Files that are damaged, lie about their sizes, or ask for too much: clear errors, never a panic, bounded memory.

use clearshot_onnx::ReadError;
use clearshot_onnx::file::{OnnxModel, OnnxTensor};
use clearshot_onnx::import::{import, input_sizes};
use clearshot_onnx::values::tensor;
use proptest::prelude::*;
use std::path::Path;

/// Protobuf by hand: a field of bytes, and one of a number.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = content.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend(content);
    out
}

fn int(number: u8, value: u64) -> Vec<u8> {
    let mut out = vec![number << 3];
    let mut value = value;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut n = vec![];
    inputs.iter().for_each(|i| n.extend(bytes(1, i.as_bytes())));
    n.extend(bytes(2, output.as_bytes()));
    n.extend(bytes(3, format!("the_{op}").as_bytes()));
    n.extend(bytes(4, op.as_bytes()));
    attributes.iter().for_each(|a| n.extend(bytes(5, a)));
    bytes(1, &n)
}

fn list(name: &str, values: &[u64]) -> Vec<u8> {
    let mut a = bytes(1, name.as_bytes());
    values.iter().for_each(|v| a.extend(int(8, *v)));
    a.extend([0xa0, 0x01, 7]);
    a
}

/// An initializer of whole numbers.
fn numbers(name: &str, dims: &[u64], values: &[u64]) -> Vec<u8> {
    let mut t = vec![];
    dims.iter().for_each(|d| t.extend(int(1, *d)));
    t.extend(int(2, 7));
    t.extend(bytes(8, name.as_bytes()));
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    t.extend(bytes(9, &raw));
    bytes(5, &t)
}

fn port(number: u8, name: &str, dims: &[u64]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|d| bytes(1, &int(1, *d))).collect();
    let tensor = [int(1, 1), bytes(2, &dims)].concat();
    bytes(number, &[bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat())
}

/// A model of these parts with an input `x` `[1, 2, 4, 4]` and an output `y`.
fn model(parts: &[Vec<u8>]) -> Vec<u8> {
    let graph = [parts.concat(), port(11, "x", &[1, 2, 4, 4]), port(12, "y", &[])].concat();
    [int(1, 8), bytes(7, &graph), bytes(8, &int(2, 17))].concat()
}

fn refused(file: &[u8]) -> String {
    let model = OnnxModel::parse(file).unwrap();
    let sizes = input_sizes(&model, 1, &[4, 4]).unwrap();
    import(&model, None, &sizes).unwrap_err().to_string()
}

fn golden() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/unet_opset17.onnx")).unwrap()
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let whole = golden();
    for len in (0..whole.len()).step_by(7) {
        match OnnxModel::parse(&whole[..len]) {
            Err(_) => {}
            // Cut between fields it is whole protobuf; the network then lacks something.
            Ok(model) => {
                let sizes = input_sizes(&model, 1, &[8, 8]).unwrap();
                import(&model, None, &sizes).unwrap_err();
            }
        }
    }
    assert_eq!(OnnxModel::parse(&whole[..whole.len() - 1]).unwrap_err(), ReadError::Truncated);
}

#[test]
fn operators_that_there_are_not_are_named_with_node_and_opset() {
    let error = refused(&model(&[node("Einsum", &["x"], "y", &[])]));
    for part in ["Einsum", "the_Einsum", "17"] {
        assert!(error.contains(part), "{error}");
    }
    let error = refused(&model(&[node("Conv", &["x", "w"], "y", &[])]));
    assert!(error.contains("`w`") && error.contains("the_Conv"), "{error}");
}

#[test]
fn cycles_are_found() {
    let cycle =
        [node("Relu", &["b"], "a", &[]), node("Relu", &["a"], "b", &[]), node("Add", &["x", "b"], "y", &[])];
    assert!(refused(&model(&cycle)).contains("cycle"));
    assert!(refused(&model(&[node("Relu", &["y"], "y", &[])])).contains("cycle"));
}

#[test]
fn constants_of_a_billion_elements_are_refused() {
    let many = numbers("n", &[1], &[1 << 30]);
    let filled = |op: &str, inputs: &[&str]| model(&[many.clone(), node(op, inputs, "y", &[])]);
    assert!(refused(&filled("ConstantOfShape", &["n"])).contains("most"));
    let wide = [numbers("n", &[3], &[1 << 20, 1 << 20, 1]), numbers("one", &[1], &[1])];
    let expand = model(&[wide.concat(), node("Expand", &["one", "n"], "y", &[])]);
    assert!(refused(&expand).contains("most"));
    let range = [numbers("a", &[], &[0]), many, numbers("s", &[], &[1])];
    assert!(
        refused(&model(&[range.concat(), node("Range", &["a", "n", "s"], "y", &[])])).contains("numbers")
    );
    let times = numbers("n", &[4], &[1, 1, 1 << 20, 1 << 20]);
    assert!(refused(&model(&[times, node("Tile", &["x", "n"], "y", &[])])).contains("repeats"));
}

/// Each for itself would be allowed.
#[test]
fn many_large_constants_are_refused_together() {
    let mut parts = vec![numbers("n", &[1], &[1 << 24])];
    parts.extend((0..1000).map(|i| node("ConstantOfShape", &["n"], &format!("c{i}"), &[])));
    assert!(refused(&model(&parts)).contains("in all"));
}

#[test]
fn sizes_that_do_not_fit_are_reported() {
    let weight = |dims: &[u64], floats: usize| {
        let mut t = vec![];
        dims.iter().for_each(|d| t.extend(int(1, *d)));
        t.extend([int(2, 1), bytes(8, b"w"), bytes(9, &vec![0; 4 * floats])].concat());
        bytes(5, &t)
    };
    let conv = |w: Vec<u8>, attributes: &[Vec<u8>]| model(&[w, node("Conv", &["x", "w"], "y", attributes)]);
    assert!(refused(&conv(weight(&[3, 5, 3, 3], 135), &[])).contains("channels"));
    assert!(refused(&conv(weight(&[3, 2, 3, 3], 7), &[])).contains("bytes"));
    assert!(refused(&conv(weight(&[3, 2, 3, 3], 54), &[list("strides", &[0, 1])])).contains("strides"));
    assert!(refused(&conv(weight(&[3, 2, 9, 9], 486), &[])).contains("kernel"));
    let pads = list("pads", &[u64::MAX, 0, 0, 0]);
    assert!(refused(&conv(weight(&[3, 2, 3, 3], 54), &[pads])).contains("pads"));
    let huge = conv(weight(&[1 << 40, 1 << 40], 0), &[]);
    assert!(refused(&huge).contains("impossible"));
    let shape = numbers("s", &[2], &[5, 7]);
    assert!(refused(&model(&[shape, node("Reshape", &["x", "s"], "y", &[])])).contains("cannot become"));
}

#[test]
fn values_outside_of_the_folder_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("model");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(folder.path().join("secret"), [0u8; 16]).unwrap();
    std::fs::write(inner.join("weights"), [0u8; 16]).unwrap();
    let read = |location: &str, offset: &str, folder: Option<&Path>| {
        let external = vec![("location", location), ("offset", offset), ("length", "8")];
        let t =
            OnnxTensor { dims: vec![2], element: 1, external, is_external: true, ..OnnxTensor::default() };
        tensor(&t, folder)
    };
    assert!(read("weights", "8", Some(&inner)).is_ok());
    let outside = [("../secret", "0"), ("/etc/hostname", "0"), ("weights/../../secret", "0")];
    for (location, offset) in outside {
        let error = read(location, offset, Some(&inner)).unwrap_err().to_string();
        assert!(error.contains("not in the model's folder"), "{error}");
    }
    assert!(read("weights", "12", Some(&inner)).unwrap_err().to_string().contains("16 bytes"));
    assert!(read("weights", "99999999999999999999", Some(&inner)).is_err());
    assert!(read("missing", "0", Some(&inner)).is_err());
    assert!(read("weights", "0", None).is_err());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path().join("secret"), inner.join("link")).unwrap();
        assert!(
            read("link", "0", Some(&inner)).unwrap_err().to_string().contains("not in the model's folder")
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever bytes of a good file are changed: an error or a graph, never a panic.
    #[test]
    fn changed_bytes_do_not_panic(at in prop::collection::vec((0usize..4500, any::<u8>()), 1..6)) {
        let mut file = golden();
        for (place, value) in at {
            let len = file.len();
            file[place % len] = value;
        }
        if let Ok(model) = OnnxModel::parse(&file)
            && let Ok(sizes) = input_sizes(&model, 1, &[8, 8])
            && sizes.values().flatten().product::<usize>() < 1 << 20
        {
            let _ = import(&model, None, &sizes);
        }
    }
}
