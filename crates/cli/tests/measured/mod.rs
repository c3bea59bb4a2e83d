//! Small models of random weights, and files of counts for them to restore.

use clearshot_image::dataset::{Normaliser, Range};
use clearshot_image::{Axis, Channel, DType, Description, Dim, Image, WriteOptions, Writer};
use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::{models, weights};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The camera of [`counts`].
pub const CAMERA: &str = "--gain 0.5 --offset 100 --read-noise 1.5";

/// A small model for images of so many channels and axes.
pub fn model(at: &Path, name: &str, channels: usize, dims: usize, task: Task) {
    let between_ends = Normaliser { range: Range::MinMax, low: -1.0, high: 1.0, clip: false };
    let signal = match task.knows_no_camera() {
        true => Signal::Fixed { input: between_ends, target: None },
        false => Signal::Photons,
    };
    let inputs = match &task {
        Task::Diffusion { condition: ConditionKind::None, .. } => channels,
        Task::Diffusion { .. } => channels + signal.condition_channels(channels),
        _ => signal.condition_channels(channels),
    };
    let config = json!({
        "_class_name": "Local", "spatial_dims": dims, "channels": [4, 4], "blocks": 1, "in_channels": inputs,
        "out_channels": channels, "time": matches!(task, Task::Diffusion { .. }),
    })
    .to_string();
    let params = models::read(&config).expect("a network").parameters().expect("parameters");
    let about = About::new(name, task, signal, channels, &vec![16; dims]);
    let model = Model::new(about, config, weights::initial(&params, 3)).expect("a model");
    model.save_file(&at.join(format!("{name}.clearshot")), clearshot_tensor::DType::F32).expect("a file");
}

pub fn conditional() -> Task {
    let process = Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 };
    let prediction = PredictionKind::Edm { sigma_data: 0.5 };
    Task::Diffusion { prediction, process, condition: ConditionKind::Measurement }
}

/// Counts of a camera that looks at stripes.
pub fn counts(shape: &[usize], seed: u64) -> Vec<f64> {
    let mut noise = vec![0.0f32; shape.iter().product()];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut noise);
    let wave = |i: usize| 30.0 + 20.0 * (i as f64 * 0.1).sin();
    noise
        .iter()
        .enumerate()
        .map(|(i, &n)| 100.0 + 2.0 * (wave(i) + f64::from(n) * (wave(i) + 2.0).sqrt()))
        .collect()
}

pub fn write(path: &Path, axes: &str, shape: &[usize], dtype: DType, values: &[f64]) {
    let dims = axes.chars().zip(shape).map(|(a, &n)| {
        let axis = Axis::from_letter(a).expect("an axis");
        if axis.is_space() { Dim::stepped(axis, n, Some(0.1), "um") } else { Dim::new(axis, n) }
    });
    let mut d = Description::new("TIFF", path, dims.collect(), dtype);
    if let Some(c) = axes.find('C') {
        let name = |i: usize| Some(format!("channel {i}"));
        d.channels = (0..shape[c]).map(|i| Channel { name: name(i), ..Channel::default() }).collect();
    }
    let mut bytes = Vec::new();
    dtype.encode(values, &mut bytes);
    let mut writer = Writer::create(path, &d, &WriteOptions::default()).expect("a writer");
    let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
    writer.write(&whole, &bytes).expect("written");
    writer.finish().expect("finished");
}

pub fn read(path: PathBuf) -> (Image, Vec<f64>) {
    let image = Image::open(&path).unwrap_or_else(|e| panic!("{e}"));
    let values = image.read_f64(&image.whole()).expect("pixels");
    (image, values)
}

/// Moves every weight of a model: what begins at zero would hide what the network is given.
#[allow(dead_code)]
pub fn shake(at: &Path, name: &str) {
    let path = at.join(format!("{name}.clearshot"));
    let mut model = Model::load(&path).expect("a model");
    for (i, t) in model.weights.values_mut().enumerate() {
        let mut noise = vec![0.0; t.shape().len()];
        Key { seed: 9, step: 0, stream: i as u32 }.fill_normal(0, &mut noise);
        let values = t.to_f64().iter().zip(noise).map(|(v, n)| *v as f32 + 0.1 * n).collect();
        *t = Tensor::f32(t.shape(), values);
    }
    model.save_file(&path, clearshot_tensor::DType::F32).expect("a file");
}
