//! Fuzzing of everything that reads files of others: one [`Target`] a reader, with good small files to begin from.
//!
//! A target takes bytes and must come back: errors are answers, panics are what is sought. `cargo test` runs every target for a
//! second by the mutations of [`mutate`], which need no special compiler and are the same each time; the binary `fuzz` runs one
//! for as long as it is told; `coverage` is the same for libFuzzer, which learns which bytes lead to new code.

pub mod mutate;
pub mod seeds;

#[path = "../../crates/tensor/tests/archive/mod.rs"]
mod archive;
#[path = "../../crates/onnx/tests/zoo/mod.rs"]
mod zoo;

use archive::archive;
use clearshot_image::Image;
use clearshot_model::Model;
use clearshot_onnx::file::OnnxModel;
use clearshot_onnx::import::{import, input_sizes};
use clearshot_onnx::package::read::Package;
use clearshot_restore::camera::file as camera;
use clearshot_tensor::store::Store;
use std::path::{Path, PathBuf};

/// A reader.
pub struct Target {
    pub name: &'static str,
    /// Reads bytes as a file of its kind. The folder is empty, and stays as it was when the target is done with it.
    pub read: fn(&[u8], &Path),
    /// Files that are read well.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every reader.
pub const TARGETS: &[Target] = &[
    Target { name: "tiff", read: |b, f| image(b, &f.join("x.tif")), seeds: seeds::tiff },
    Target {
        name: "ome_tiff",
        read: |b, f| image(b, &f.join("x.ome.tif")),
        seeds: || seeds::written("x.ome.tif"),
    },
    Target { name: "fits", read: |b, f| image(b, &f.join("x.fits")), seeds: || seeds::written("x.fits") },
    Target {
        name: "fits_gz",
        read: |b, f| image(b, &f.join("x.fits.gz")),
        seeds: || seeds::written("x.fits.gz"),
    },
    Target { name: "nifti", read: |b, f| image(b, &f.join("x.nii")), seeds: || seeds::written("x.nii") },
    Target {
        name: "nifti_gz",
        read: |b, f| image(b, &f.join("x.nii.gz")),
        seeds: || seeds::written("x.nii.gz"),
    },
    Target { name: "dicom", read: |b, f| image(b, &f.join("x.dcm")), seeds: seeds::dicom },
    Target { name: "png", read: |b, f| image(b, &f.join("x.png")), seeds: || seeds::written("x.png") },
    Target { name: "jpeg", read: |b, f| image(b, &f.join("x.jpg")), seeds: seeds::jpeg },
    Target { name: "npy", read: |b, f| image(b, &f.join("x.npy")), seeds: || seeds::written("x.npy") },
    Target { name: "npz", read: |b, f| image(b, &f.join("x.npz")), seeds: || seeds::written("x.npz") },
    Target {
        name: "zarr_zip",
        read: |b, f| image(b, &f.join("x.zarr.zip")),
        seeds: || seeds::written("x.zarr.zip"),
    },
    Target { name: "zarr_metadata", read: zarr_metadata, seeds: seeds::zarr_metadata },
    Target { name: "safetensors", read: safetensors, seeds: seeds::safetensors },
    Target { name: "checkpoint", read: checkpoint, seeds: seeds::checkpoint },
    Target { name: "pickle", read: pickle, seeds: seeds::pickle },
    Target { name: "camera", read: camera_file, seeds: seeds::camera },
    Target { name: "model", read: model, seeds: seeds::model },
    Target { name: "network", read: network, seeds: seeds::network },
    Target { name: "onnx", read: onnx, seeds: seeds::onnx },
    Target { name: "package", read: package, seeds: seeds::package },
    Target { name: "package_description", read: package_description, seeds: seeds::package_description },
    Target { name: "configuration", read: configuration, seeds: seeds::configuration },
];

/// The target of a name.
pub fn by_name(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// Writes a file, has it read, and takes it away.
fn with_file(bytes: &[u8], path: &Path, read: impl Fn(&Path)) {
    std::fs::write(path, bytes).expect("room for a file");
    read(path);
    std::fs::remove_file(path).expect("a file of our own");
}

/// The corners of the first images and levels.
fn corners(path: &Path) {
    let Ok(first) = Image::open(path) else { return };
    for item in 0..first.description.items.len().clamp(1, 4) {
        let Ok(image) = Image::open_number(path, item) else { continue };
        for (level, shape) in image.description.levels.iter().enumerate().take(3) {
            let corner = |n: usize| n.min(if shape.len() > 4 { 16 } else { 200 });
            let start: Vec<_> = shape.iter().map(|&n| 0..corner(n)).collect();
            let end: Vec<_> = shape.iter().map(|&n| n - corner(n)..n).collect();
            let _ = image.read_level(level, &start);
            let _ = image.read_level(level, &end);
        }
    }
}

fn image(bytes: &[u8], path: &Path) {
    with_file(bytes, path, corners);
}

/// The bytes are the metadata of an array, of a group, and of a group of arrays that has a chunk.
fn zarr_metadata(bytes: &[u8], folder: &Path) {
    let store = folder.join("x.zarr");
    std::fs::create_dir_all(store.join("0/c/0")).expect("a folder");
    let chunk = store.join("0/c/0/0");
    std::fs::write(&chunk, [7; 64]).expect("room for a file");
    let files = ["zarr.json", "0/zarr.json", ".zattrs", ".zgroup", "0/.zarray"];
    files.iter().for_each(|f| std::fs::write(store.join(f), bytes).expect("room for a file"));
    corners(&store);
    corners(&store.join("0"));
    std::fs::remove_dir_all(&store).expect("a folder of our own");
}

/// A network of others, made for small images.
fn onnx(bytes: &[u8], folder: &Path) {
    let Ok(model) = OnnxModel::parse(bytes) else { return };
    let Ok(sizes) = input_sizes(&model, 1, &[8, 8]) else { return };
    let _ = import(&model, Some(folder), &sizes);
}

/// An archive of the BioImage Model Zoo, and its network for a small image.
fn package(bytes: &[u8], folder: &Path) {
    with_file(bytes, &folder.join("x.zip"), |path| {
        if let Ok(package) = Package::open(path) {
            let _ = package.import(1, &[8, 8, 8][..package.dims().min(3)]);
        }
    });
}

/// The description in a package; the archive around it is whole.
fn package_description(bytes: &[u8], folder: &Path) {
    let mut files = zoo::files("");
    files[0].1 = bytes.to_vec();
    let members: Vec<(&str, &[u8])> = files.iter().map(|(name, b)| (*name, b.as_slice())).collect();
    package(&archive(&members), folder);
}

fn safetensors(bytes: &[u8], _: &Path) {
    let _ = Store::parse(bytes, Path::new("x.safetensors"));
}

fn checkpoint(bytes: &[u8], _: &Path) {
    let _ = Store::parse(bytes, Path::new("x.pt"));
}

/// The pickle in a checkpoint: the archive around it is whole, for its checksums would stop all else.
fn pickle(bytes: &[u8], _: &Path) {
    let _ = Store::parse(&archive(&[("x/data.pkl", bytes), ("x/data/0", &[7; 64])]), Path::new("x.pt"));
}

fn camera_file(bytes: &[u8], folder: &Path) {
    with_file(bytes, &folder.join("camera.json"), |path| drop(camera::read(path)));
}

fn model(bytes: &[u8], folder: &Path) {
    with_file(bytes, &folder.join("x.clearshot"), |path| drop(Model::load(path)));
}

/// A network's configuration, of which parameters are only counted.
fn network(bytes: &[u8], _: &Path) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = clearshot_nn::models::read(text);
    }
}

/// A user's file of a training run, and each of its lines as an override.
fn configuration(bytes: &[u8], folder: &Path) {
    let groups = clearshot_train::presets::groups(None).expect("groups that are built in");
    let compose = |files: &[&Path], overrides: &[String]| {
        let _ = clearshot_config::compose_with(&groups, "train", files, overrides).map(|tree| tree.yaml());
    };
    with_file(bytes, &folder.join("x.yaml"), |path| compose(&[path], &[]));
    if let Ok(text) = std::str::from_utf8(bytes) {
        // A line that names a file would have it read.
        let lines: Vec<String> = text.lines().filter(|l| l.contains('=')).map(String::from).collect();
        compose(&[], &lines);
    }
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
