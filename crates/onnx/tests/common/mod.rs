//! Small models of every architecture and task, with inputs for them. Each test file uses a part of it.
#![allow(dead_code)]

use clearshot_graph::{Array, Graph};
use clearshot_image::dataset::{Normaliser, Range};
use clearshot_model::{About, ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::init::example;
use clearshot_nn::models::{ARCHITECTURES, read};
use clearshot_nn::{Param, Weights};
use clearshot_onnx::export::Settings;
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Tensor};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

pub struct Case {
    pub name: String,
    pub model: Model,
    pub settings: Settings,
    pub batch: usize,
    pub size: Vec<usize>,
}

/// Random values for every parameter, those included that begin as zero.
fn random_weights(params: &[Param]) -> Weights {
    let draw = |p: &Param| {
        let fan: usize = if p.shape.rank() > 1 { p.shape[1..].iter().product() } else { 4 };
        let hash = p.name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let mut values = vec![0.0; p.shape.len()];
        Key { seed: 3, step: hash, stream: 1 }.fill_normal(0, &mut values);
        values.iter_mut().for_each(|v| *v /= (fan.max(1) as f32).sqrt());
        let trained = p.trainable.then(|| Tensor::f32(p.shape, values));
        (p.name.clone(), trained.unwrap_or_else(|| p.initial(1)))
    };
    params.iter().map(draw).collect()
}

pub fn fixed() -> Signal {
    let input = Normaliser { range: Range::MinMax, low: 90.0, high: 700.0, clip: false };
    Signal::Fixed { input, target: Some(Normaliser { low: 10.0, high: 300.0, ..input }) }
}

fn edm() -> Process {
    Process::Edm { sigma_min: 0.01, sigma_max: 20.0, rho: 7.0 }
}

fn timesteps() -> Process {
    Process::Timesteps { law: "cosine".into(), first: 1e-4, last: 0.02, steps: 100, finer: 1.0 }
}

fn diffusion(prediction: PredictionKind, process: Process, measured: bool) -> Task {
    let condition = if measured { ConditionKind::Measurement } else { ConditionKind::None };
    Task::Diffusion { prediction, process, condition }
}

pub fn model(config: Json, task: Task, signal: Signal) -> Model {
    let text = config.to_string();
    let network = read(&text).unwrap();
    let weights = random_weights(&network.parameters().unwrap());
    let about = About::new("case", task, signal, network.out_channels(), &network.example_size());
    Model::new(about, text, weights).unwrap()
}

/// Networks whose tasks `export` refuses: those of training without labels, and one for segmentation alone.
const NEVER_EXPORTED: [&str; 3] = ["MAE", "JEPA", "VitSegmentation"];

/// Every architecture, prediction, process, condition and signal at least once.
pub fn cases() -> Vec<Case> {
    use PredictionKind::*;
    let blocks =
        json!({"block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "out_channels": 1});
    let with = |mut base: Json, more: Json| {
        for (key, value) in more.as_object().unwrap() {
            base[key] = value.clone();
        }
        base
    };
    let attention = json!({"_class_name": "UNet2DModel", "attention_head_dim": 4,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]});
    let unet = with(blocks.clone(), attention);
    let cross = json!({"_class_name": "UNet2DConditionModel", "in_channels": 2, "attention_head_dim": 2,
        "cross_attention_dim": 5, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "resnet_time_scale_shift": "scale_shift",
        "class_embed_type": "projection", "projection_class_embeddings_input_dim": 7});
    let rosinality = json!({"_class_name": "RosinalityUNet", "in_channel": 2, "out_channel": 1, "channel": 32,
        "channel_multiplier": [1, 1], "n_res_blocks": 1, "attn_strides": [2], "attn_heads": 2,
        "use_affine_time": true, "dropout": 0.0, "fold": 2});
    let song = json!({"_class_name": "EDM", "model_type": "SongUNet", "model_channels": 8, "channel_mult": [1, 1],
        "num_blocks": 1, "img_resolution": 8, "attn_resolutions": [4], "label_dim": 3, "dropout": 0.0,
        "precond": "VPPrecond", "encoder_type": "skip", "decoder_type": "skip", "resample_filter": [1, 3, 3, 1]});
    let ncsn = json!({"_class_name": "EDM", "model_type": "SongUNet", "model_channels": 8, "channel_mult": [1, 1],
        "num_blocks": 1, "img_resolution": 8, "attn_resolutions": [], "dropout": 0.0, "precond": "VEPrecond",
        "encoder_type": "residual", "embedding_type": "fourier", "channel_mult_noise": 2, "augment_dim": 2});
    let iddpm = json!({"_class_name": "EDM", "model_channels": 8, "channel_mult": [1, 1], "num_blocks": 1,
        "img_resolution": 8, "attn_resolutions": [4], "dropout": 0.0, "precond": "iDDPMPrecond"});
    let dynunet = json!({"_class_name": "DynUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 1,
        "kernel_size": [[1, 3, 3], 3, 3], "strides": [1, [1, 2, 2], 2],
        "upsample_kernel_size": [[1, 2, 2], 2], "filters": [4, 6, 8], "res_block": true, "trans_bias": true,
        "deep_supervision": true});
    let multi = json!({"_class_name": "MultiScale", "in_channels": 2, "out_channels": 1, "scales": 3, "channels": 8,
        "blocks": 1, "groups": 4, "vector_dim": 7});
    let growing = json!({"_class_name": "Growing", "in_channels": 2, "out_channels": 1, "resolution": 96,
        "channels": 8, "channel_mult": [1, 1], "groups": 4, "attention_head_dim": 4});
    let local = json!({"_class_name": "Local", "in_channels": 10, "out_channels": 1, "channels": [4, 6, 8],
        "blocks": [1, 2, 1]});
    let local3 = json!({"_class_name": "Local", "spatial_dims": 3, "in_channels": 1, "out_channels": 1,
        "channels": [4, 6], "blocks": 1, "time": false});
    let planar = with(local3.clone(), json!({"planar": true, "time": true, "in_channels": 2}));
    let dncnn =
        json!({"_class_name": "DnCNN", "in_channels": 18, "out_channels": 2, "channels": 5, "layers": 4});
    let enlarged = json!({"_class_name": "Enlarged", "in_channels": 1, "out_channels": 1, "factor": 2, "features": 3,
        "network": {"_class_name": "Local", "channels": [4, 6], "blocks": 1, "time": false}});
    let given = |key: &str| {
        json!({"_class_name": "Conditioned", "in_channels": 2, "out_channels": 1, "conditioning_key": key, "width": 8,
            "patch_size": 4, "depth": 2, "network": {"block_out_channels": [8, 8], "layers_per_block": 1,
            "norm_num_groups": 4, "attention_head_dim": 2, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]}})
    };
    let n2v = json!({"_class_name": "N2VUNet", "in_channels": 1, "channels": 12, "depth": 1});
    let rows: Vec<(&str, Json, Task, Signal, Vec<usize>)> = vec![
        (
            "unet_noise",
            with(unet.clone(), json!({"in_channels": 2})),
            diffusion(Epsilon, timesteps(), true),
            fixed(),
            vec![12, 16],
        ),
        (
            "unet_prior",
            with(unet, json!({"in_channels": 1})),
            diffusion(VPrediction, timesteps(), false),
            Signal::Photons,
            vec![8, 12],
        ),
        ("condition", with(blocks, cross), diffusion(Sample, timesteps(), true), fixed(), vec![8, 6]),
        ("concat", given("concat"), diffusion(Sample, timesteps(), true), fixed(), vec![8, 8]),
        ("crossattn", given("crossattn"), diffusion(Epsilon, timesteps(), true), fixed(), vec![4, 4]),
        ("adm", given("adm"), diffusion(Sample, timesteps(), true), fixed(), vec![16, 8]),
        ("rosinality", rosinality, diffusion(VPrediction, edm(), true), fixed(), vec![8, 16]),
        ("song", song, diffusion(Denoiser, edm(), false), fixed(), vec![8, 8]),
        ("ncsn", ncsn, diffusion(Denoiser, edm(), false), fixed(), vec![8, 12]),
        ("iddpm", iddpm, diffusion(Denoiser, edm(), false), fixed(), vec![8, 8]),
        ("dynunet", dynunet, Task::Regression, fixed(), vec![4, 8, 8]),
        ("multi_scale", multi, diffusion(Edm { sigma_data: 0.5 }, edm(), true), fixed(), vec![8, 12]),
        ("growing", growing, diffusion(Epsilon, edm(), true), fixed(), vec![12, 24]),
        ("local", local, diffusion(Edm { sigma_data: 0.5 }, edm(), true), Signal::Photons, vec![12, 8]),
        ("local3", local3, Task::Regression, fixed(), vec![4, 6, 8]),
        ("planar", planar, diffusion(Edm { sigma_data: 0.5 }, edm(), true), fixed(), vec![3, 6, 8]),
        ("dncnn", dncnn, Task::Regression, Signal::Photons, vec![9, 7]),
        ("n2v", n2v, Task::Regression, fixed(), vec![10, 8]),
        ("enlarged", enlarged, Task::Regression, fixed(), vec![8, 12]),
    ];
    let covered = |class: &str| {
        NEVER_EXPORTED.contains(&class) || rows.iter().any(|(_, c, ..)| c["_class_name"] == class)
    };
    assert!(ARCHITECTURES.iter().all(|a| covered(a.name)), "an architecture is left out");
    let made = rows.into_iter().enumerate().map(|(i, (name, config, task, signal, size))| Case {
        name: name.into(),
        model: model(config, task, signal),
        settings: Settings::default(),
        // Its file is for one image of that size.
        batch: if name == "crossattn" { 1 } else { 1 + i % 2 },
        size,
    });
    let mut all: Vec<Case> = made.collect();
    all.push(direct());
    all
}

/// The model of the program, answering at once, with the camera's numbers inside.
fn direct() -> Case {
    let numbers = [("gain", 0.5), ("offset", 100.0), ("read_noise", 1.5)];
    let fixed = numbers.map(|(name, value)| (name.to_string(), vec![value])).into();
    let settings = Settings { fixed, direct: true, ..Settings::default() };
    Case { name: "default".into(), model: Model::builtin().unwrap(), settings, batch: 2, size: vec![16, 24] }
}

/// Values for all of a graph's inputs.
pub fn inputs(graph: &Graph) -> BTreeMap<String, Array> {
    let numbers =
        [("gain", 0.5), ("offset", 100.0), ("read_noise", 1.5), ("background", 3.0), ("peak", 80.0)];
    let value = |(name, v)| {
        let ty = graph.ty(v);
        let plain = Array::from_tensor(&example(name, ty, 5));
        let known = numbers.iter().find(|(n, _)| *n == name);
        let array = match (name, known) {
            (_, Some((_, number))) => plain.map(|_| *number),
            ("image", _) => plain.map(|x| (150.0 + 40.0 * x).round()),
            ("noise_correlation", _) => plain.map(|x| 0.1 * x),
            ("timestep", _) => {
                Array::new(ty.shape, (0..ty.shape.len()).map(|i| 17.0 + 40.0 * i as f64).collect())
            }
            _ => plain,
        };
        // As a file would hold them.
        let dtype = if ty.dtype == DType::I32 { DType::I32 } else { DType::F32 };
        (name.to_string(), Array::from_tensor(&array.to_tensor(dtype)))
    };
    graph.inputs().map(value).collect()
}

pub fn arrays(weights: &Weights) -> BTreeMap<String, Array> {
    weights.iter().map(|(n, w)| (n.clone(), Array::from_tensor(w))).collect()
}
