//! Good small files of every kind, to begin from: written here, or kept with the tests of their readers.

use crate::repository;
use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::{models, weights};
use std::path::Path;

/// Kept files.
fn kept(folder: &str, names: &[&str]) -> Vec<Vec<u8>> {
    let read = |name: &&str| {
        let path = repository(folder).join(name);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    names.iter().map(read).collect()
}

fn write(path: &Path, dims: Vec<Dim>, dtype: DType) {
    let description = Description::new("made", path, dims, dtype);
    let count = description.shape().iter().product::<usize>();
    let values: Vec<f64> = (0..count).map(|i| (i * i % 251) as f64).collect();
    let mut pixels = Vec::new();
    dtype.encode(&values, &mut pixels);
    let mut writer =
        Writer::create(path, &description, &WriteOptions::default()).expect("a format that is written");
    let whole: Vec<_> = description.shape().iter().map(|&n| 0..n).collect();
    writer.write(&whole, &pixels).expect("room for a file");
    writer.finish().expect("room for a file");
}

/// A plane of bytes, and but for PNG a stack of numbers of 16 bits and one of floats, in the format of a name's ending.
pub fn written(name: &str) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plane = || vec![Dim::new(Axis::Y, 11), Dim::new(Axis::X, 13)];
    let stack = || [vec![Dim::stepped(Axis::Z, 2, Some(0.5), "um")], plane()].concat();
    let mut kinds = vec![(plane(), DType::U8)];
    match name.ends_with(".png") {
        true => kinds.push((plane(), DType::U16)),
        false => kinds.extend([(stack(), DType::U16), (stack(), DType::F32)]),
    }
    let file = |(number, (dims, dtype)): (usize, (Vec<Dim>, DType))| {
        let path = folder.path().join(format!("{number}{name}"));
        write(&path, dims, dtype);
        std::fs::read(&path).expect("a file of our own")
    };
    kinds.into_iter().enumerate().map(file).collect()
}

/// With compressions that are not written.
pub fn tiff() -> Vec<Vec<u8>> {
    let names = [
        "fax_huffman.tif",
        "fax_group3.tif",
        "fax_group3_2d.tif",
        "fax_group4.tif",
        "lzw_old.tif",
        "j2k_33003.tif",
        "j2k_34712.tif",
        "lerc_u16.tif",
        "lerc_f32_zstd.tif",
        "webp_alpha.tif",
        "webp_lossy.tif",
    ];
    [written("x.tif"), kept("crates/image/tests/pictures", &names)].concat()
}

pub fn jpeg() -> Vec<Vec<u8>> {
    kept("crates/image/tests/pictures", &["grey.jpg", "colour.jpg"])
}

fn element(group: u16, number: u16, kind: &[u8; 2], value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    if value.len() % 2 == 1 {
        value.push(if kind == b"UI" { 0 } else { b' ' });
    }
    let long = [b"OB", b"OW", b"SQ", b"UN"].contains(&kind);
    let length = match long {
        true => [vec![0, 0], (value.len() as u32).to_le_bytes().to_vec()].concat(),
        false => (value.len() as u16).to_le_bytes().to_vec(),
    };
    [&group.to_le_bytes()[..], &number.to_le_bytes(), kind, &length, &value].concat()
}

/// Two rows of four pixels: plain, and as fragments of JPEG; and pixels packed in every other way.
pub fn dicom() -> Vec<Vec<u8>> {
    let jpeg = &kept("crates/image/tests/pictures", &["grey.jpg"])[0];
    let item = |length: usize, number: u16| {
        [&0xFFFEu16.to_le_bytes()[..], &number.to_le_bytes(), &(length as u32).to_le_bytes()].concat()
    };
    let fragments = [
        [&0x7FE0u16.to_le_bytes()[..], &0x10u16.to_le_bytes(), b"OB", &[0, 0], &[0xFF; 4]].concat(),
        item(0, 0xE000),
        item(jpeg.len(), 0xE000),
        jpeg.clone(),
        item(0, 0xE0DD),
    ];
    let plain: Vec<u8> = (0..16).collect();
    let packed = [
        "ls_12.dcm",
        "ls_colour_2.dcm",
        "ls_near.dcm",
        "j2k_precincts.dcm",
        "j2k_lossy_colour.dcm",
        "bits.dcm",
    ];
    let mut files = kept("crates/image/tests/pictures", &packed);
    files.push(dicom_file(b"1.2.840.10008.1.2.1", 16, &element(0x7FE0, 0x10, b"OW", &plain)));
    files.push(dicom_file(b"1.2.840.10008.1.2.4.50", 8, &fragments.concat()));
    files
}

fn dicom_file(syntax: &[u8], bits: u16, pixels: &[u8]) -> Vec<u8> {
    let short = |number: u16, value: u16| element(0x28, number, b"US", &value.to_le_bytes());
    let meta = element(2, 0x10, b"UI", syntax);
    let length = element(2, 0, b"UL", &(meta.len() as u32).to_le_bytes());
    let set = [
        element(8, 0x18, b"UI", b"1.2.3.4"),
        short(2, 1),
        element(0x28, 4, b"CS", b"MONOCHROME2"),
        short(0x10, 2),
        short(0x11, 4),
        element(0x28, 0x30, b"DS", b"0.5\\0.5"),
        short(0x100, bits),
        short(0x101, bits),
        short(0x103, 0),
        pixels.to_vec(),
    ];
    [&[0; 128][..], b"DICM", &length, &meta, &set.concat()].concat()
}

pub fn zarr_metadata() -> Vec<Vec<u8>> {
    [
        r#"{"zarr_format":3,"node_type":"array","shape":[8,8],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[8,8]}},"chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"codecs":[{"name":"bytes"}],"fill_value":0,"attributes":{}}"#,
        r#"{"zarr_format":3,"node_type":"group","attributes":{"ome":{"version":"0.5","multiscales":[{"axes":[{"name":"y","type":"space","unit":"micrometer"},{"name":"x","type":"space"}],"datasets":[{"path":"0","coordinateTransformations":[{"type":"scale","scale":[0.5,0.5]}]}]}]}}}"#,
        r#"{"zarr_format":2,"shape":[8,8],"chunks":[8,8],"dtype":"|u1","compressor":{"id":"blosc","cname":"lz4","clevel":5,"shuffle":1,"blocksize":0},"fill_value":0,"order":"C","filters":null,"dimension_separator":"/"}"#,
        r#"{"multiscales":[{"version":"0.4","axes":[{"name":"y","type":"space"},{"name":"x","type":"space"}],"datasets":[{"path":"0"}]}]}"#,
        r#"{"zarr_format":3,"node_type":"group","attributes":{"ome":{"version":"0.5","plate":{"columns":[{"name":"1"}],"rows":[{"name":"A"}],"wells":[{"path":"A/1","rowIndex":0,"columnIndex":0}]}}}}"#,
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

pub fn safetensors() -> Vec<Vec<u8>> {
    kept("crates/tensor/tests/checkpoint", &["layer.safetensors", "values.safetensors"])
}

pub fn checkpoint() -> Vec<Vec<u8>> {
    kept(
        "crates/tensor/tests/checkpoint",
        &["layer.pt", "plain.pt", "protocol5.pt", "training.pth", "legacy.pt"],
    )
}

/// The pickles of the checkpoints: members are stored as they are, the first of them first.
pub fn pickle() -> Vec<Vec<u8>> {
    let member = |file: Vec<u8>| {
        let number = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
        let start = 30 + number(26) + number(28);
        // A pickle ends with a full stop; what is behind the last one is of other members.
        let end =
            file.windows(4).position(|w| w == b".PK\x07").map_or(file.len().min(start + 2000), |p| p + 1);
        file[start..end.max(start)].to_vec()
    };
    checkpoint().into_iter().filter(|f| f.starts_with(b"PK")).map(member).collect()
}

pub fn camera() -> Vec<Vec<u8>> {
    let white = r#"{"gain": 0.46, "offset": 100, "read_noise": 1.6}"#.to_string();
    let rows = ["[0,0,0,0,1,0.2,0,0,0]", "[0,0,0,0.1,0.2,0.1,0,0,0]", "[0,0,0,0,0,0,0,0,0]"];
    let rows = [rows[0], rows[1], rows[2], rows[2], rows[2]].join(",");
    let shared = format!(
        r#"{{"gain": 1.5, "background": 3.5, "correlation": [{rows}], "measured": {{"files": ["a.tif"]}}}}"#
    );
    [white, shared].map(String::into_bytes).into()
}

const NETWORK: &str = r#"{"_class_name": "Local", "channels": [8, 8], "blocks": 1, "in_channels": 10}"#;

pub fn network() -> Vec<Vec<u8>> {
    let unet = r#"{"_class_name": "UNet2DModel", "sample_size": 8, "in_channels": 1, "out_channels": 1, "block_out_channels": [8, 8],
        "layers_per_block": 1, "norm_num_groups": 4, "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}"#;
    [NETWORK, unet].iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The small networks of the reader's own tests.
pub fn onnx() -> Vec<Vec<u8>> {
    let files: [&[u8]; 4] = [
        include_bytes!("../../crates/onnx/tests/golden/unet_opset9.onnx"),
        include_bytes!("../../crates/onnx/tests/golden/attention_opset14.onnx"),
        include_bytes!("../../crates/onnx/tests/golden/volume_opset13.onnx"),
        include_bytes!("../../crates/onnx/tests/golden/small_opset18.onnx"),
    ];
    files.iter().map(|f| f.to_vec()).collect()
}

pub fn package() -> Vec<Vec<u8>> {
    let whole = |description: &&str| {
        let files = crate::zoo::files(description);
        let members: Vec<(&str, &[u8])> = files.iter().map(|(name, b)| (*name, b.as_slice())).collect();
        crate::archive::archive(&members)
    };
    crate::zoo::FORMATS.iter().map(whole).collect()
}

pub fn package_description() -> Vec<Vec<u8>> {
    crate::zoo::FORMATS.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn model() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.clearshot");
    let parameters = models::read(NETWORK).expect("a network").parameters().expect("its parameters");
    let task = Task::Diffusion {
        prediction: PredictionKind::Edm { sigma_data: 0.5 },
        process: Process::Edm { sigma_min: 0.01, sigma_max: 10.0, rho: 7.0 },
        condition: ConditionKind::Measurement,
    };
    let about = About::new("seed", task, Signal::Photons, 1, &[16, 16]);
    let model = Model::new(about, NETWORK.into(), weights::initial(&parameters, 5)).expect("a model");
    model.save_file(&path, clearshot_tensor::DType::F32).expect("room for a file");
    vec![std::fs::read(&path).expect("a file of our own")]
}

pub fn configuration() -> Vec<Vec<u8>> {
    [
        "# @package _global_\ndefaults:\n  - override /task: supervised\n  - _self_\ntrainer:\n  iterations: 10\n  crop: ${data.crop}\n",
        "trainer.iterations=10\n+data.note='a, b'\n~optimizer.rate\ntask=supervised\n++a.b={c: [1, 2e3, null, ???]}\n",
        "optimizer: {rate: 1.0e-4, decay: .nan}\nschedule: &x\n  warm_up: 0x10\nother: *x\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}
