//! Packages made by others: folders and archives, both formats, and malicious files.

#[path = "../../tensor/tests/archive/mod.rs"]
mod archive;
mod zoo;

use archive::archive;
use clearshot_onnx::package::read::{AxisSize, Package, Step};
use std::path::Path;
use zoo::{FORMATS, files};

fn folder(description: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files(description)
        .iter()
        .for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
    folder
}

fn why(path: &Path) -> String {
    Package::open(path).err().expect("it cannot be read").to_string()
}

#[test]
fn both_formats_say_the_same_as_folder_and_archive() {
    for description in FORMATS {
        let folder = folder(description);
        let members = files(description);
        // Archives have their files at the top or in a folder.
        for prefix in ["", "unet/"] {
            let named: Vec<(String, &[u8])> =
                members.iter().map(|(n, b)| (format!("{prefix}{n}"), b.as_slice())).collect();
            let named: Vec<(&str, &[u8])> = named.iter().map(|(n, b)| (n.as_str(), *b)).collect();
            std::fs::write(folder.path().join("p.zip"), archive(&named)).unwrap();
            for path in [
                folder.path().to_path_buf(),
                folder.path().join("p.zip"),
                folder.path().join("bioimageio.yaml"),
            ] {
                assert!(Package::is_one(&path));
                let package = Package::open(&path).unwrap();
                assert_eq!((package.dims(), package.output.axes[2].halo), (2, Some(12)));
                assert_eq!(package.input.axes[3].size, AxisSize::Open { least: 8, step: 2 });
                let fixed = Step::Fixed { mean: vec![3.0], deviation: vec![2.0] };
                assert_eq!(package.input.steps, [fixed, Step::Clip { low: -5.0, high: 5.0 }]);
                assert_eq!(
                    package.output.steps,
                    [Step::Linear { gain: vec![10.0, 20.0], offset: vec![1.0] }]
                );
                let [given, made] = package.test.as_ref().unwrap();
                assert_eq!(
                    (given.shape().to_vec(), made.shape().to_vec()),
                    (vec![1, 1, 8, 8], vec![1, 2, 8, 8])
                );
                let imported = package.import(1, &[16, 10]).unwrap();
                assert_eq!(imported.outputs[0].sizes, [1, 2, 16, 10]);
            }
        }
    }
}

#[test]
fn an_onnx_file_is_a_package_without_steps() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let package = Package::open(&golden.join("volume_opset13.onnx")).unwrap();
    assert_eq!((package.dims(), package.test.is_none(), package.input.steps.len()), (3, true, 0));
    assert!(!Package::is_one(&golden.join("make.py")) && !Package::is_one(&golden));
}

/// A part of the description replaced, and the error message for it.
#[test]
fn errors_in_a_description_are_named() {
    for (from, to, said) in [
        ("source: weights.onnx", "source: ../weights.onnx", "is missing"),
        ("source: weights.onnx", "source: bioimageio.yaml/../../x", "missing"),
        ("source: weights.onnx", "source: https://example.org/w.onnx", "download the package"),
        ("source: weights.onnx, ", "source: weights.onnx, sha256: 00ff, ", "SHA-256"),
        ("onnx: {source", "tensorflow_js: {source", "keras_hdf5, tensorflow_js"),
        ("id: clip", "id: my_code", "my_code is not known"),
        ("0.5.4", "0.3.6", "0.4 and 0.5 are read"),
        ("type: model", "type: dataset", "a model is needed"),
        ("id: x, size: {min", "id: y, size: {min", "two axes are the same"),
        ("{type: batch}", "{type: time, id: t, size: 3}", "the axis `time`"),
        ("test_input.npy", "weights.onnx", "weights.onnx"),
        ("name: A small", "name: [A small", "YAML"),
    ] {
        assert!(FORMATS[0].contains(from));
        let folder = folder(&FORMATS[0].replacen(from, to, 1));
        let why = why(folder.path());
        assert!(why.contains(said), "{to}: {why}");
    }
}

/// Links out of the folder are not followed; a file of that name outside is not read.
#[cfg(unix)]
#[test]
fn files_outside_a_package_are_not_read() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("weights.onnx"), b"secret").unwrap();
    let folder = folder(FORMATS[0]);
    std::fs::remove_file(folder.path().join("weights.onnx")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("weights.onnx"), folder.path().join("weights.onnx"))
        .unwrap();
    assert!(why(folder.path()).contains("not in the model's folder"));
    let absolute = FORMATS[0]
        .replace("source: weights.onnx", &format!("source: {}/weights.onnx", outside.path().display()));
    std::fs::write(folder.path().join("bioimageio.yaml"), absolute).unwrap();
    assert!(why(folder.path()).contains("not in the model's folder"));
}

/// Members that claim to be huge, and archives that are cut off: an answer at once.
#[test]
fn archives_that_lie_are_refused() {
    let members = files(FORMATS[0]);
    let members: Vec<(&str, &[u8])> = members.iter().map(|(n, b)| (*n, b.as_slice())).collect();
    let whole = archive(&members);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.zip");
    let place = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).rposition(|w| w == text).unwrap();
    // The directory's entry of the description: deflated, and 3 GiB when unpacked.
    let mut bomb = whole.clone();
    let at = place(&bomb, b"bioimageio.yaml") - 46;
    bomb[at + 10] = 8;
    bomb[at + 24..at + 28].copy_from_slice(&(3u32 << 30).to_le_bytes());
    std::fs::write(&path, bomb).unwrap();
    assert!(why(&path).contains("the limit is"), "{}", why(&path));
    for length in [whole.len() / 2, whole.len() - 30] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(why(&path).contains("zip"), "{}", why(&path));
    }
}
