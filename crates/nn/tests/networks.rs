//! Every architecture of the table: errors, inputs that affect the output, and gradients.

use clearshot_graph::grad::grad;
use clearshot_graph::reach::reach;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::train::Training;
use clearshot_graph::{Array, Builder, Graph, Type};
use clearshot_nn::init::example;
use clearshot_nn::models::dncnn::DnCnnConfig;
use clearshot_nn::models::dynunet::DynUNetConfig;
use clearshot_nn::models::edm::EdmConfig;
use clearshot_nn::models::growing::{GrowingConfig, grow};
use clearshot_nn::models::local::LocalConfig;
use clearshot_nn::models::multiscale::MultiScaleConfig;
use clearshot_nn::models::n2v::N2vConfig;
use clearshot_nn::models::rosinality::RosinalityConfig;
use clearshot_nn::models::unet2d_condition::UNet2DConditionConfig;
use clearshot_nn::models::vit::jepa::JepaConfig;
use clearshot_nn::models::vit::mae::MaeConfig;
use clearshot_nn::models::vit::segmentation::VitSegmentationConfig;
use clearshot_nn::models::{ARCHITECTURES, Given, Network, Preconditioned, architecture, read};
use clearshot_nn::{Error, Param, Precondition, Weights, weights};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape, Tensor};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

fn network(name: &str, config: Json) -> Box<dyn Network> {
    resolved(name, config).unwrap()
}

fn resolved(name: &str, config: Json) -> Result<Box<dyn Network>, Error> {
    let Json::Object(map) = config else { panic!("{config} is no object") };
    (architecture(name).unwrap().read)(map)
}

const UNET: &str = "UNet2DModel";
const CONDITION: &str = "UNet2DConditionModel";
const CONDITIONED: &str = "Conditioned";
const ROSINALITY: &str = "RosinalityUNet";
const EDM: &str = "EDM";
const DYNUNET: &str = "DynUNet";
const MULTI_SCALE: &str = "MultiScale";
/// Values of conditioning vectors: of four domains and a camera.
const VECTOR: usize = 7;
const GROWING: &str = "Growing";
const LOCAL: &str = "Local";
const DNCNN: &str = "DnCNN";
const N2V: &str = "N2VUNet";
const ENLARGED: &str = "Enlarged";
const MAE: &str = "MAE";
const JEPA: &str = "JEPA";
const VIT: &str = "VitSegmentation";
/// Networks in which a pixel depends on a bounded neighbourhood.
const BOUNDED: [&str; 4] = [LOCAL, DNCNN, N2V, ENLARGED];

/// Small networks of every kind, with image sizes for them.
fn all() -> Vec<(&'static str, Json, Vec<usize>)> {
    let unet = json!({"in_channels": 2, "out_channels": 1, "block_out_channels": [8, 8], "layers_per_block": 1,
        "norm_num_groups": 4, "attention_head_dim": 4,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]});
    let condition = json!({"in_channels": 2, "out_channels": 1, "block_out_channels": [8, 8],
        "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2, "cross_attention_dim": 5,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "resnet_time_scale_shift": "scale_shift",
        "class_embed_type": "projection", "projection_class_embeddings_input_dim": VECTOR});
    let inside = json!({"block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"], "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"]});
    let conditioned = |way: &str| json!({"conditioning_key": way, "width": 8, "patch_size": 2, "depth": 2, "network": inside.clone()});
    let rosinality = json!({"channel": 32, "channel_multiplier": [1, 1], "n_res_blocks": 1,
        "attn_strides": [2], "attn_heads": 2, "use_affine_time": true, "dropout": 0.0, "fold": 2});
    let song = json!({"model_type": "SongUNet", "model_channels": 8, "channel_mult": [1, 1], "num_blocks": 1,
        "img_resolution": 8, "attn_resolutions": [4], "label_dim": 3, "dropout": 0.0, "precond": "VPPrecond",
        "encoder_type": "skip", "decoder_type": "skip", "resample_filter": [1, 3, 3, 1],
        "condition_channels": 1});
    let ncsn = json!({"model_type": "SongUNet", "model_channels": 8, "channel_mult": [1, 1], "num_blocks": 1,
        "img_resolution": 8, "attn_resolutions": [], "dropout": 0.0, "precond": "VEPrecond",
        "encoder_type": "residual", "embedding_type": "fourier", "channel_mult_noise": 2, "augment_dim": 2});
    let iddpm = json!({"model_channels": 8, "channel_mult": [1, 1], "num_blocks": 1, "img_resolution": 8,
        "attn_resolutions": [], "dropout": 0.0, "precond": "iDDPMPrecond"});
    let adm = json!({"model_channels": 8, "channel_mult": [1, 1], "num_blocks": 1, "img_resolution": 8,
        "attn_resolutions": [4], "label_dim": 3, "dropout": 0.0});
    let dynunet = json!({"spatial_dims": 3, "kernel_size": [[1, 3, 3], 3, 3], "strides": [1, [1, 2, 2], 2],
        "upsample_kernel_size": [[1, 2, 2], 2], "filters": [4, 6, 8], "res_block": true, "trans_bias": true,
        "deep_supervision": true});
    let multi = json!({"scales": 3, "channels": 8, "blocks": 1, "groups": 4,
        "vector_dim": VECTOR});
    let multi3 = json!({"spatial_dims": 3, "scales": 2, "channels": 4, "blocks": 1, "groups": 2});
    let growing = json!({"resolution": 96, "channels": 8, "channel_mult": [1, 1], "groups": 4,
        "attention_head_dim": 4, "vector_dim": VECTOR});
    let local = json!({"in_channels": 2, "channels": [4, 6, 8], "blocks": [1, 2, 1],
        "vector_dim": VECTOR});
    let local3 = json!({"spatial_dims": 3, "in_channels": 1, "channels": [4, 6], "blocks": 1, "time": false});
    let planar =
        json!({"spatial_dims": 3, "planar": true, "in_channels": 1, "channels": [4, 6], "blocks": 1});
    let tokens =
        json!({"in_channels": 2, "patch_size": 2, "emb_dim": 8, "encoder_layer": 2, "encoder_head": 2});
    let volumes = json!({"spatial_dims": 3, "patch_size": [2, 1, 2], "emb_dim": 6, "encoder_layer": 1, "encoder_head": 3});
    let with = |encoder: &Json, own: Json| {
        let mut all = encoder.clone();
        own.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        all
    };
    vec![
        (UNET, unet, vec![4, 6]),
        (CONDITION, condition, vec![5, 4]),
        (CONDITIONED, conditioned("concat"), vec![4, 6]),
        (CONDITIONED, conditioned("crossattn"), vec![4, 6]),
        (CONDITIONED, conditioned("adm"), vec![4, 6]),
        (ROSINALITY, rosinality, vec![4, 8]),
        (EDM, song, vec![4, 6]),
        (EDM, ncsn, vec![4, 4]),
        (EDM, adm, vec![6, 4]),
        (EDM, iddpm, vec![4, 4]),
        (DYNUNET, dynunet, vec![2, 4, 8]),
        (MULTI_SCALE, multi, vec![4, 8]),
        (MULTI_SCALE, multi3, vec![2, 4, 2]),
        (GROWING, growing, vec![6, 12]),
        (LOCAL, local, vec![4, 8]),
        (LOCAL, local3, vec![2, 4, 6]),
        (LOCAL, planar, vec![3, 4, 6]),
        (DNCNN, json!({"in_channels": 4, "out_channels": 2, "channels": 5, "layers": 4}), vec![5, 6]),
        (DNCNN, json!({"spatial_dims": 3, "channels": 4, "layers": 3}), vec![3, 4, 5]),
        (
            ENLARGED,
            json!({"factor": 2, "features": 3,
                "network": {"_class_name": "Local", "channels": [4, 6], "blocks": 1, "time": false}}),
            vec![8, 12],
        ),
        (
            ENLARGED,
            json!({"in_channels": 2, "factor": 2, "features": 3, "norm": true,
                "network": {"_class_name": "Local", "spatial_dims": 3, "channels": [4, 6], "blocks": 1, "time": false}}),
            vec![4, 4, 8],
        ),
        (DNCNN, json!({"channels": 4, "layers": 4, "norm": "batch"}), vec![5, 6]),
        (N2V, json!({"in_channels": 2, "channels": 12, "depth": 1}), vec![4, 6]),
        (N2V, json!({"spatial_dims": 3, "channels": 6, "depth": 1, "n2v2": false}), vec![2, 4, 6]),
        (MAE, with(&tokens, json!({"decoder_dim": 8, "decoder_layer": 1, "decoder_head": 2})), vec![4, 6]),
        (
            MAE,
            with(
                &volumes,
                json!({"decoder_dim": 6, "decoder_layer": 1, "decoder_head": 1, "use_crossmae": true}),
            ),
            vec![4, 2, 4],
        ),
        (
            JEPA,
            with(
                &tokens,
                json!({"predictor_dim": 8, "predictor_layer": 1, "predictor_head": 2, "domains": 2}),
            ),
            vec![4, 6],
        ),
        (VIT, with(&tokens, json!({"out_channels": 3, "decoder_dim": 4})), vec![4, 6]),
        (VIT, with(&volumes, json!({"decoder_dim": 8, "image_skip": true})), vec![4, 2, 4]),
    ]
}

/// Random values for every parameter, those included that begin as zero.
fn random_weights(params: &[Param]) -> Weights {
    let draw = |p: &Param| {
        let fan: usize = if p.shape.rank() > 1 { p.shape[1..].iter().product() } else { 4 };
        let hash = p.name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let key = Key { seed: 3, step: hash, stream: 1 };
        let mut values = vec![0.0; p.shape.len()];
        key.fill_normal(0, &mut values);
        values.iter_mut().for_each(|v| *v /= (fan.max(1) as f32).sqrt());
        let trained = p.trainable.then(|| Tensor::f32(p.shape, values));
        (p.name.clone(), trained.unwrap_or_else(|| p.initial(1)))
    };
    params.iter().map(draw).collect()
}

fn arrays(weights: &Weights) -> BTreeMap<String, Array> {
    weights.iter().map(|(n, w)| (n.clone(), Array::from_tensor(w))).collect()
}

/// Values for all of a graph's inputs.
fn inputs(graph: &Graph, seed: u64) -> BTreeMap<String, Array> {
    let value = |(name, v)| {
        let mut a = Array::from_tensor(&example(name, graph.ty(v), seed));
        if name == "t" {
            a = a.map(|t| t / 50.0);
        }
        (name.to_string(), a)
    };
    graph.inputs().map(value).collect()
}

/// Patches that are seen and hidden, of a network that tells them apart.
fn hide(network: &dyn Network, size: &[usize], batch: u32, values: &mut BTreeMap<String, Array>) {
    let Some(masks) = network.masks(size).filter(|_| values.contains_key("visible")) else { return };
    let rows = masks.rows((0..batch).map(|step| Key { seed: 1, step, stream: 2 }));
    for (name, rows) in [("visible", rows.visible), ("hidden", rows.hidden), ("order", rows.order)] {
        values.insert(name.into(), Array::from_tensor(&rows));
    }
}

fn output(graph: &Graph, values: &BTreeMap<String, Array>) -> Array {
    run(graph, &mut values.clone(), Precision::F64).unwrap().remove("y").unwrap()
}

#[test]
fn the_table_has_every_architecture_once_and_reads_defaults() {
    for a in ARCHITECTURES {
        assert_eq!(ARCHITECTURES.iter().filter(|b| b.name == a.name).count(), 1, "{}", a.name);
        let network = read(&format!(r#"{{"_class_name": "{}"}}"#, a.name)).unwrap();
        assert!(!network.parameters().unwrap().is_empty(), "{}", a.name);
    }
    let covered: Vec<&str> = all().iter().map(|(name, ..)| *name).collect();
    assert!(ARCHITECTURES.iter().all(|a| covered.contains(&a.name)), "the tests here leave one out");
    let unknown = read(r#"{"_class_name": "UNet4D"}"#).unwrap_err().to_string();
    assert!(unknown.contains("_class_name") && unknown.contains(GROWING), "{unknown}");
    assert!(matches!(read("[]"), Err(Error::NotJson { .. })));
    assert!(matches!(read(r#"{"_class_name": 3}"#), Err(Error::Kind { .. })));
}

/// The gradient of the input against central differences, in f64.
#[test]
fn gradients_of_the_input_are_those_of_finite_differences() {
    for (name, config, size) in all() {
        let network = network(name, config.clone());
        let mut b = Builder::extend(network.inference(2, &size).unwrap());
        let (x, y) = (input_of(&b, "x"), b.graph().output("y").unwrap());
        let dy = b.input("dy", Type::f32(b.shape(y)));
        let dx = grad(&mut b, y, Some(dy), &[x]).unwrap()[0];
        b.output("dx", dx);
        let graph = b.finish().unwrap();
        let mut values = inputs(&graph, 5);
        hide(&*network, &size, 2, &mut values);
        values.extend(arrays(&random_weights(&network.parameters().unwrap())));
        let dy = values["dy"].clone();
        let scalar = |values: &BTreeMap<String, Array>| -> f64 {
            output(&graph, values).data.iter().zip(&dy.data).map(|(a, b)| a * b).sum()
        };
        let got = run(&graph, &mut values.clone(), Precision::F64).unwrap().remove("dx").unwrap();
        let scale = (got.data.iter().map(|v| v * v).sum::<f64>() / got.data.len() as f64).sqrt();
        assert!(scale > 0.0, "{name}");
        for i in (0..got.data.len()).step_by(got.data.len() / 4 + 1) {
            let at = |step: f64| {
                let mut moved = values.clone();
                moved.get_mut("x").unwrap().data[i] += step;
                scalar(&moved)
            };
            let h = 1e-4;
            // Fourth order, so that the step's own error stays below what is asked.
            let difference = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
            let error = (difference - got.data[i]).abs() / scale;
            assert!(error < 1e-6, "{name} {config}: pixel {i}: {difference} {}", got.data[i]);
        }
    }
}

fn input_of(b: &Builder, name: &str) -> clearshot_graph::Value {
    b.graph().inputs().find(|(n, _)| *n == name).unwrap().1
}

/// Whatever a network is given changes its output: nothing is taken and then left out.
#[test]
fn every_input_acts() {
    for (name, config, size) in all() {
        let network = network(name, config.clone());
        let graph = network.inference(1, &size).unwrap();
        let mut values = inputs(&graph, 5);
        hide(&*network, &size, 1, &mut values);
        values.extend(arrays(&random_weights(&network.parameters().unwrap())));
        let before = output(&graph, &values);
        for (input, v) in graph.inputs() {
            let mut changed = values.clone();
            let data = &mut changed.get_mut(input).unwrap().data;
            match graph.ty(v).dtype {
                // The first pixel may be hidden.
                DType::F32 if network.masks(&size).is_some() => data.iter_mut().for_each(|v| *v *= 1.25),
                DType::F32 => data[0] += 0.25,
                // Another patch.
                _ => data[0] = if data[0] > 0.0 { data[0] - 1.0 } else { 1.0 },
            }
            let after = output(&graph, &changed);
            let moved = before.data.iter().zip(&after.data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(moved > 1e-4, "{name}: {input} moves the output by {moved} ({config})");
        }
    }
}

/// The vector of how an image was taken: each of its parts acts, and each by itself.
#[test]
fn each_part_of_the_conditioning_vector_acts() {
    for (name, config, size) in all().into_iter().filter(|(_, c, _)| c.to_string().contains("_dim\":7")) {
        let network = network(name, config);
        let graph = network.inference(1, &size).unwrap();
        let port = ["vector", "class"].into_iter().find(|p| graph.inputs().any(|(n, _)| n == *p)).unwrap();
        let mut values = inputs(&graph, 5);
        values.extend(arrays(&random_weights(&network.parameters().unwrap())));
        let with = |i: usize, by: f64| {
            let mut changed = values.clone();
            changed.get_mut(port).unwrap().data[i] += by;
            output(&graph, &changed).data
        };
        let outputs: Vec<Vec<f64>> = (0..VECTOR).map(|i| with(i, 0.5)).collect();
        let before = with(0, 0.0);
        for (i, changed) in outputs.iter().enumerate() {
            assert!(before.iter().zip(changed).any(|(a, b)| (a - b).abs() > 1e-4), "{name}: part {i}");
            assert!(outputs[..i].iter().all(|o| o != changed), "{name}: part {i} does what another does");
        }
    }
}

#[test]
fn inference_and_training_have_the_same_parameters() {
    // A joint embedding is trained against its teacher, by the crate `train`.
    for (name, config, size) in all().into_iter().filter(|(name, ..)| *name != JEPA) {
        let network = network(name, config);
        let params = network.parameters().unwrap();
        let graphs =
            [network.inference(2, &size).unwrap(), network.training(2, &size, &Training::default()).unwrap()];
        for graph in &graphs {
            for p in &params {
                let state = graph.states().find(|(n, ..)| *n == p.name);
                assert_eq!(state.map(|(.., v)| graph.shape(v)), Some(p.shape), "{name} {}", p.name);
            }
        }
        let given = graphs[0].states().count();
        assert_eq!(given, params.len(), "{name}: states that are not parameters");
        let updated = graphs[1].updates.len();
        let trained = params.iter().filter(|p| p.trainable).count();
        let running = params.iter().filter(|p| p.name.contains("running_")).count();
        let expected = 3 * trained + 1 + running;
        assert_eq!(updated, expected, "{name}: a parameter, two moments; the step, and running averages");
    }
}

/// One iteration on every architecture, by the interpreter: a finite loss, and parameters that move.
#[test]
fn an_iteration_lowers_the_loss() {
    for (name, config, size) in all() {
        let network = network(name, config.clone());
        let graph = network.training(2, &size, &Training::default()).unwrap();
        let mut values = inputs(&graph, 5);
        hide(&*network, &size, 2, &mut values);
        values.extend(arrays(&random_weights(&network.parameters().unwrap())));
        let mut losses = vec![];
        for _ in 0..2 {
            losses.push(run(&graph, &mut values, Precision::F64).unwrap()["loss"].data[0]);
        }
        assert!(losses[1] < losses[0], "{name} {config}: {losses:?}");
    }
}

#[test]
fn keys_and_values_that_are_wrong_are_named() {
    for (name, config, key) in [
        (CONDITION, json!({"cross_attention_dimension": 4}), "cross_attention_dimension"),
        (CONDITION, json!({"attention_head_dim": [8, 8]}), "attention_head_dim"),
        (CONDITION, json!({"attention_head_dim": 400}), "attention_head_dim"),
        (CONDITION, json!({"num_attention_heads": 4}), "num_attention_heads"),
        (CONDITION, json!({"down_block_types": ["AttnDownBlock2D", "A", "B", "C"]}), "down_block_types"),
        (CONDITION, json!({"class_embed_type": "projection"}), "projection_class_embeddings_input_dim"),
        (CONDITION, json!({"norm_num_groups": null}), "norm_num_groups"),
        (CONDITION, json!({"conv_in_kernel": 4}), "conv_in_kernel"),
        (CONDITION, json!({"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}), "mid_block_type"),
        (CONDITION, json!({"addition_embed_type": "image"}), "addition_embed_type"),
        (CONDITION, json!({"encoder_hid_dim_type": "text_proj"}), "encoder_hid_dim"),
        (CONDITION, json!({"class_embeddings_concat": true}), "class_embeddings_concat"),
        (MAE, json!({"mask_ratio": 1.0}), "mask_ratio"),
        (MAE, json!({"encoder_head": 3}), "encoder_head"),
        (MAE, json!({"patch_size": [8, 8, 8]}), "patch_size"),
        (MAE, json!({"emb_dims": 8}), "emb_dims"),
        (MAE, json!({"decoder_dim": 2, "decoder_head": 1}), "decoder_dim"),
        (JEPA, json!({"mask_ratio": 0.7}), "context_ratio"),
        (JEPA, json!({"domains": 100}), "domains"),
        (VIT, json!({"patch_size": 6}), "patch_size"),
        (ROSINALITY, json!({"channel": 48}), "channel"),
        (ROSINALITY, json!({"attn_strides": [3]}), "attn_strides"),
        (ROSINALITY, json!({"attn_heads": 5}), "attn_heads"),
        (ROSINALITY, json!({"fold": 0}), "fold"),
        (ROSINALITY, json!({"channels": 64}), "channels"),
        (EDM, json!({"model_type": "UNet"}), "model_type"),
        (EDM, json!({"precond": "DDPMPrecond"}), "precond"),
        (EDM, json!({"precond": "iDDPMPrecond", "C_1": 0.0}), "C_1"),
        (EDM, json!({"resample_filter": [1, 2, 1], "model_type": "SongUNet"}), "resample_filter"),
        (EDM, json!({"resample_filter": [1, -1], "model_type": "SongUNet"}), "resample_filter"),
        (EDM, json!({"encoder_type": "residual"}), "encoder_type"),
        (EDM, json!({"img_resolution": 4}), "img_resolution"),
        (EDM, json!({"model_channels": 36, "channel_mult": [4], "num_blocks": 1}), "model_channels"),
        (EDM, json!({"model_channels": 2, "channel_mult": [1]}), "model_channels"),
        (EDM, json!({"sigma_data": 0}), "sigma_data"),
        (EDM, json!({"label_dropout": 0.1}), "label_dropout"),
        (EDM, json!({"channel_mult": 2}), "channel_mult"),
        (DYNUNET, json!({"spatial_dims": 4}), "spatial_dims"),
        (DYNUNET, json!({"strides": [1, 2]}), "strides"),
        (DYNUNET, json!({"kernel_size": [3, 2, 3]}), "kernel_size"),
        (DYNUNET, json!({"kernel_size": [3, [3, 3, 3], 3]}), "kernel_size"),
        (DYNUNET, json!({"upsample_kernel_size": [2, 3]}), "upsample_kernel_size"),
        (DYNUNET, json!({"filters": [8, 16]}), "filters"),
        (DYNUNET, json!({"norm_name": "batch"}), "norm_name"),
        (DYNUNET, json!({"norm_name": ["group", {"num_groups": 3}]}), "norm_name"),
        (DYNUNET, json!({"norm_name": ["instance", {"momentum": 0.1}]}), "norm_name"),
        (DYNUNET, json!({"act_name": "prelu"}), "act_name"),
        (DYNUNET, json!({"deep_supervision": true, "deep_supr_num": 2}), "deep_supr_num"),
        (
            DYNUNET,
            json!({"res_block": true, "strides": [1, 3, 2], "upsample_kernel_size": [3, 2]}),
            "strides",
        ),
        (MULTI_SCALE, json!({"groups": 7}), "groups"),
        (MULTI_SCALE, json!({"groups": 0}), "groups"),
        (MULTI_SCALE, json!({"scales": 0}), "scales"),
        (MULTI_SCALE, json!({"spatial_dims": 1}), "spatial_dims"),
        (GROWING, json!({"resolution": 48}), "resolution"),
        (GROWING, json!({"resolutions": [64, 32], "resolution": 32}), "resolutions"),
        (GROWING, json!({"resolutions": []}), "resolutions"),
        (GROWING, json!({"attention_head_dim": 0}), "attention_head_dim"),
        (GROWING, json!({"vector_dim": 1_000_000}), "vector_dim"),
        (LOCAL, json!({"channels": []}), "channels"),
        (LOCAL, json!({"blocks": [1, 2]}), "blocks"),
        (LOCAL, json!({"planar": true}), "planar"),
        (LOCAL, json!({"time": false, "vector_dim": 3}), "vector_dim"),
    ] {
        let error = resolved(name, config.clone()).err().unwrap_or_else(|| panic!("{config} was taken"));
        let named = match &error {
            Error::Unsupported { key, .. } => (*key).to_string(),
            Error::UnknownKey { key, .. } | Error::Kind { key, .. } => key.clone(),
            other => panic!("{config}: {other}"),
        };
        assert_eq!(named, key, "{config}: {error}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused_with_their_names() {
    let refusal =
        |name: &str, config: Json, shape: &[usize], change: &dyn Fn(&mut Builder, Given) -> Given| {
            let network = network(name, config);
            let mut b = Builder::new();
            let x = b.input("x", Type::f32(Shape::new(shape)));
            let given = change(&mut b, Given::image(x));
            network.build_on(&mut b, &given);
            b.finish().map(|_| ()).unwrap_err().to_string()
        };
    let t = |b: &mut Builder, given: Given| {
        let t = b.input("t", Type::f32([1]));
        given.with("t", t)
    };
    let scales = json!({"channels": 8, "scales": 3});
    let text = refusal(MULTI_SCALE, scales.clone(), &[1, 6, 8, 2], &t);
    assert!(text.contains("6 x 8") && text.contains("multiples of 4 x 4, the next are 8 x 8"), "{text}");
    let text = refusal(MULTI_SCALE, scales.clone(), &[1, 8, 8, 3], &t);
    assert!(text.contains("f32[N, Y, X, 2]"), "{text}");
    let text = refusal(MULTI_SCALE, scales.clone(), &[1, 8, 8, 2], &|_, given| given);
    assert!(text.contains("`t` is missing"), "{text}");
    let text = refusal(MULTI_SCALE, scales.clone(), &[2, 8, 8, 2], &t);
    assert!(text.contains("`t` is") && text.contains("expected"), "{text}");
    let text = refusal(MULTI_SCALE, scales, &[1, 8, 8, 2], &|b, given| {
        let v = b.input("vector", Type::f32([1, 7]));
        t(b, given).with("vector", v)
    });
    assert!(text.contains("`vector` was given to a network that takes x, t"), "{text}");
    // 128 pixels become 96, 64 and 32: 4 become 3, 2 and 1, and the core halves twice.
    let text = refusal(GROWING, json!({"blend": false}), &[1, 12, 16, 2], &t);
    assert!(text.contains("multiples of 16 x 16"), "{text}");
    let text = refusal(DYNUNET, json!({"spatial_dims": 3}), &[1, 8, 8, 1], &|_, given| given);
    assert!(text.contains("f32[N, Z, Y, X, 1]"), "{text}");
    let error = network(DYNUNET, json!({})).inference(1, &[8, 8, 8]).unwrap_err().to_string();
    assert!(error.contains("3 sizes for an image of 2 axes"), "{error}");
    let error =
        network(DYNUNET, json!({})).training(1, &[9, 8], &Training::default()).unwrap_err().to_string();
    assert!(error.contains("9 x 8"), "{error}");
}

/// The number of scales is not part of the weights.
#[test]
fn scales_share_their_weights() {
    let scales =
        |n: usize| network(MULTI_SCALE, json!({"scales": n, "channels": 8, "blocks": 2, "groups": 4}));
    let params = scales(1).parameters().unwrap();
    for n in 2..5 {
        assert_eq!(scales(n).parameters().unwrap(), params, "{n} scales");
    }
    let values = |n: usize| {
        let graph = scales(n).inference(1, &[16, 8]).unwrap();
        let mut values = inputs(&graph, 9);
        values.extend(arrays(&random_weights(&params)));
        output(&graph, &values).data
    };
    assert_ne!(values(1), values(2), "a coarser scale acts");
    assert_ne!(values(2), values(3), "and so does the next");
}

fn growing(resolution: usize, blend: bool) -> Box<dyn Network> {
    let config = json!({"resolution": resolution, "blend": blend, "channels": 8, "channel_mult": [1, 2],
        "groups": 4, "attention_head_dim": 8});
    network(GROWING, config)
}

/// A new stage at alpha 0 is the stage below on the shrunk image, enlarged; at alpha 1 it is the whole network.
#[test]
fn a_stage_is_blended_in_from_the_one_below() {
    let resolutions = [32, 64, 96, 128];
    for (i, pair) in resolutions.windows(2).enumerate() {
        let (below, above) = (pair[0] / 8, pair[1] / 8);
        let blending = growing(pair[1], true).inference(2, &[above, 2 * above]).unwrap();
        let mut values = inputs(&blending, 4);
        let weights = random_weights(&growing(pair[1], true).parameters().unwrap());
        values.extend(arrays(&weights));
        let mut at = |alpha: f64| {
            values.insert("alpha".into(), Array::new(Shape::SCALAR, vec![alpha]));
            output(&blending, &values)
        };
        let (first, middle, last) = (at(0.0), at(0.5), at(1.0));

        let mut b = Builder::new();
        let x = b.input("x", Type::f32([2, above, 2 * above, 2]));
        let t = b.input("t", Type::f32([2]));
        let linear = clearshot_graph::ops::ResizeMode::Linear;
        let small = b.resize(x, linear, [1, below, 2 * below]);
        let y = growing(pair[0], false).build_on(&mut b, &Given::image(small).with("t", t));
        let y = b.resize(y, linear, [1, above, 2 * above]);
        b.output("y", y);
        assert_eq!(first.data, output(&b.finish().unwrap(), &values).data, "stage {}", i + 1);

        let whole = growing(pair[1], false).inference(2, &[above, 2 * above]).unwrap();
        let whole = output(&whole, &values);
        for (a, b) in last.data.iter().zip(&whole.data) {
            assert!((a - b).abs() < 1e-12 * b.abs().max(1.0), "stage {}: {a} {b}", i + 1);
        }
        assert!(middle.data != first.data && middle.data != last.data);
    }
}

#[test]
fn growing_keeps_every_weight() {
    let stages = [32, 64, 96, 128].map(|r| growing(r, true).parameters().unwrap());
    for pair in stages.windows(2) {
        assert!(pair[0].iter().all(|p| pair[1].contains(p)), "a stage's parameters are the next one's too");
        assert!(pair[1].len() > pair[0].len());
        let old = random_weights(&pair[0]);
        let grown = grow(&old, &pair[1], 6);
        assert_eq!(grown.len(), pair[1].len());
        assert!(old.iter().all(|(name, w)| grown[name] == *w));
    }
    // The features of the stage below pass through a new stage unchanged.
    let grown = grow(&random_weights(&stages[0]), &stages[1], 6);
    assert!(grown["stages.1.down.conv2.weight"].to_f64().iter().all(|v| *v == 0.0));
    let joined = grown["stages.1.up.conv_shortcut.weight"].to_f64();
    let passed = |i: usize| f64::from(u8::from(i / 16 == i % 16));
    assert!(joined.len() == 8 * 16 && joined.iter().enumerate().all(|(i, v)| *v == passed(i)), "{joined:?}");
    let names = |blend: bool| {
        let params = growing(96, blend).parameters().unwrap();
        params.into_iter().map(|p| (p.name, p.shape.to_vec())).collect::<BTreeMap<_, _>>()
    };
    assert!(names(true) == names(false), "a stage has the same parameters when it is blended in");
}

/// A preconditioned network is what its formula says, and its clean channels stand beside the noisy ones.
#[test]
fn any_network_with_a_time_becomes_a_denoiser() {
    let (name, config, size) = all().remove(0);
    let raw = network(name, config.clone()).inference(1, &size).unwrap();
    let params = network(name, config.clone()).parameters().unwrap();
    let edm = Precondition::Edm { sigma_data: 0.5 };
    let wrapped = Preconditioned::new(network(name, config), edm).unwrap();
    assert_eq!((wrapped.in_channels(), wrapped.out_channels()), (1, 1));
    let graph = wrapped.inference(1, &size).unwrap();
    let mut values = inputs(&graph, 3);
    let sigma = 0.7f64;
    values.insert("sigma".into(), Array::new([1], vec![sigma]));
    values.extend(arrays(&random_weights(&params)));
    let y = output(&graph, &values);

    let variance = sigma * sigma + 0.25;
    let (x, condition) = (values["x"].clone(), values["condition"].clone());
    let both = Array::from_fn([1, size[0], size[1], 2], |i| {
        let at = [i[0], i[1], i[2], 0];
        if i[3] == 0 { x.get(&at) / variance.sqrt() } else { condition.get(&at) }
    });
    values.insert("x".into(), both);
    values.insert("t".into(), Array::new([1], vec![sigma.ln() / 4.0]));
    let raw = output(&raw, &values);
    for i in 0..y.data.len() {
        let want = 0.25 / variance * x.data[i] + 0.5 * sigma / variance.sqrt() * raw.data[i];
        assert!((y.data[i] - want).abs() < 1e-9, "{} {want}", y.data[i]);
    }
    let no_time = network(DYNUNET, json!({}));
    let text = Preconditioned::new(no_time, edm).unwrap_err().to_string();
    assert!(text.contains("told a time"), "{text}");
    let wider = network(MULTI_SCALE, json!({"in_channels": 1, "out_channels": 2}));
    let text = Preconditioned::new(wider, edm).unwrap_err().to_string();
    assert!(text.contains("from 1 to 2 channels"), "{text}");
}

/// MONAI's files have a second name for everything.
#[test]
fn second_names_of_parameters_are_dropped() {
    let dynunet = network(DYNUNET, json!({"filters": [4, 4, 4], "spatial_dims": 3}));
    let params = dynunet.parameters().unwrap();
    let held = random_weights(&params);
    let mut tensors: BTreeMap<String, Tensor> =
        held.iter().map(|(n, t)| (n.clone(), t.channels_second())).collect();
    let first = tensors["input_block.conv1.conv.weight"].clone();
    assert_eq!(first.shape(), Shape::from([4, 1, 3, 3, 3]), "PyTorch's layout");
    tensors.insert("skip_layers.downsample.conv1.conv.weight".into(), first);
    assert_eq!(weights::from_torch(tensors, &params).unwrap(), held);
}

/// Channels beside the image: zeros there leave the network that has no such channels.
#[test]
fn a_condition_of_zeros_has_no_effect() {
    let edm = |channels: usize| {
        let config = json!({"model_type": "SongUNet", "model_channels": 8, "channel_mult": [1, 1],
            "num_blocks": 1, "img_resolution": 8, "dropout": 0.0, "img_channels": 2,
            "condition_channels": channels});
        network(EDM, config)
    };
    let (with, without) = (edm(1), edm(0));
    let weights = random_weights(&with.parameters().unwrap());
    let graph = with.inference(1, &[4, 6]).unwrap();
    let mut values = inputs(&graph, 5);
    values.extend(arrays(&weights));
    let shown = output(&graph, &values);
    values.insert("condition".into(), Array::zeros([1, 4, 6, 1]));
    let hidden = output(&graph, &values);
    assert!(shown.data.iter().zip(&hidden.data).any(|(a, b)| (a - b).abs() > 1e-4), "the condition acts");
    let first = values["model.enc.8x8_conv.weight"].clone();
    let cut = Array::from_fn([8, 3, 3, 2], |i| first.get(i));
    values.insert("model.enc.8x8_conv.weight".into(), cut);
    let plain = output(&without.inference(1, &[4, 6]).unwrap(), &values);
    assert!(plain.data.iter().zip(&hidden.data).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// A file whose filter is not the configuration's would be computed with another one.
#[test]
fn filters_that_contradict_the_configuration_are_refused() {
    let (name, config, _) = all().into_iter().find(|(n, ..)| *n == EDM).unwrap();
    let params = network(name, config).parameters().unwrap();
    let mut tensors: BTreeMap<String, Tensor> =
        random_weights(&params).into_iter().map(|(n, t)| (n, t.channels_second())).collect();
    assert!(weights::from_torch(tensors.clone(), &params).is_ok());
    let filter = "model.enc.4x4_down.conv0.resample_filter";
    tensors.insert(filter.into(), Tensor::full([1, 1, 4, 4], 1.0 / 16.0));
    let text = weights::from_torch(tensors, &params).unwrap_err().to_string();
    assert!(text.contains(filter) && text.contains("not what the configuration says"), "{text}");
}

/// With dropout, training takes a key and follows it; inference drops nothing.
#[test]
fn dropout_follows_its_key() {
    for (name, config, size) in all() {
        if [MULTI_SCALE, GROWING, MAE, JEPA, VIT].contains(&name) || BOUNDED.contains(&name) {
            continue;
        }
        let mut dropping = config.clone();
        let of = if name == CONDITIONED { &mut dropping["network"] } else { &mut dropping };
        of["dropout"] = json!(0.3);
        let (plain, dropping) = (network(name, config), network(name, dropping));
        assert!(dropping.drops() && !plain.drops(), "{name}");
        let weights = arrays(&random_weights(&plain.parameters().unwrap()));
        let loss = |network: &dyn Network, step: f64| {
            let graph = network.training(2, &size, &Training::default()).unwrap();
            assert_eq!(graph.inputs().any(|(n, _)| n == "key"), network.drops(), "{name}");
            let mut values = inputs(&graph, 5);
            values.extend(weights.clone());
            values.insert("key".into(), Array::new([4], vec![1.0, 2.0, step, 0.0]));
            run(&graph, &mut values, Precision::F64).unwrap()["loss"].data[0]
        };
        assert_eq!(loss(&*dropping, 1.0), loss(&*dropping, 1.0), "{name}");
        assert_ne!(loss(&*dropping, 1.0), loss(&*dropping, 2.0), "{name}");
        assert_ne!(loss(&*dropping, 1.0), loss(&*plain, 1.0), "{name}");
        let [a, b] = [&plain, &dropping].map(|network| {
            let graph = network.inference(2, &size).unwrap();
            let mut values = inputs(&graph, 5);
            values.extend(weights.clone());
            output(&graph, &values).data
        });
        assert!(a == b, "{name}: inference drops nothing");
    }
}

/// Whatever stands in a configuration, reading it ends in a network or in an error.
#[test]
fn configurations_of_nonsense_never_panic() {
    let strange = [
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(65_536),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(true),
        json!(null),
        json!("skip"),
        json!("projection"),
        json!([]),
        json!([0]),
        json!([1, 65_536]),
        json!([[2, 2], 1, 3]),
        json!({"a": 1}),
    ];
    let defaults = [
        (CONDITION, serde_json::to_value(UNet2DConditionConfig::default())),
        (ROSINALITY, serde_json::to_value(RosinalityConfig::default())),
        (EDM, serde_json::to_value(EdmConfig::default())),
        (EDM, serde_json::to_value(EdmConfig::ncsnpp())),
        (DYNUNET, serde_json::to_value(DynUNetConfig::default())),
        (MULTI_SCALE, serde_json::to_value(MultiScaleConfig::default())),
        (GROWING, serde_json::to_value(GrowingConfig::default())),
        (LOCAL, serde_json::to_value(LocalConfig::default())),
        (DNCNN, serde_json::to_value(DnCnnConfig::default())),
        (N2V, serde_json::to_value(N2vConfig::default())),
        (MAE, serde_json::to_value(MaeConfig::default())),
        (JEPA, serde_json::to_value(JepaConfig::default())),
        (VIT, serde_json::to_value(VitSegmentationConfig::default())),
    ];
    let (mut taken, mut refused) = (0, 0);
    for (name, default) in defaults {
        let default = default.unwrap();
        for key in default.as_object().unwrap().keys() {
            for value in &strange {
                let mut config = default.clone();
                config[key] = value.clone();
                match resolved(name, config).and_then(|network| network.parameters()) {
                    Ok(params) => {
                        assert!(!params.is_empty());
                        taken += 1;
                    }
                    Err(e) => {
                        assert!(!e.to_string().is_empty());
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(taken > 200 && refused > 800, "{taken} taken, {refused} refused");
}

/// What the authors' networks give before anything is trained: ADM's last layers are zero.
#[test]
fn a_fresh_adm_leaves_only_the_skip() {
    let (name, config, size) = all().into_iter().filter(|(n, ..)| *n == EDM).nth(2).unwrap();
    let network = network(name, config);
    let graph = network.inference(1, &size).unwrap();
    let mut values = inputs(&graph, 3);
    values.insert("sigma".into(), Array::new([1], vec![0.5]));
    values.extend(arrays(&weights::initial(&network.parameters().unwrap(), 1)));
    let y = output(&graph, &values);
    assert!(y.data.iter().zip(&values["x"].data).all(|(y, x)| (y - 0.5 * x).abs() < 1e-12));
}

#[test]
fn folders_of_every_architecture_come_back_as_they_were() {
    let folder = std::env::temp_dir().join(format!("clearshot-nn-networks-{}", std::process::id()));
    for (name, config, _) in all() {
        let params = network(name, config.clone()).parameters().unwrap();
        let held = random_weights(&params);
        let mut config = config;
        config["_class_name"] = json!(name);
        weights::save_network(&folder, &config.to_string(), &held).unwrap();
        let (read, again) = weights::load_network(&folder).unwrap();
        assert_eq!((read.parameters().unwrap().len(), again == held), (params.len(), true), "{name}");
        let mut few = held;
        few.pop_first();
        let refused = weights::save_network(&folder, &config.to_string(), &few);
        assert!(matches!(refused, Err(Error::Weights(_))), "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// As many parameters as the authors' networks have, and sums that can be done by hand.
#[test]
fn baselines_are_the_authors_networks() {
    let count = |network: &dyn Network| -> usize {
        network.parameters().unwrap().iter().map(|p| p.shape.len()).sum()
    };
    // KAIR's dncnn_25: 555 137 numbers; csbdeep's U-Net of 32 channels and depth 2 without batch norms.
    assert_eq!(count(&*network(DNCNN, json!({}))), 555_137);
    let conv = |from: usize, to: usize| 9 * from * to + to;
    let unet = conv(1, 32)
        + conv(32, 32)
        + conv(32, 64)
        + conv(64, 64)
        + conv(64, 128)
        + conv(128, 64)
        + conv(128, 64)
        + conv(64, 32)
        + conv(64, 32)
        + conv(32, 32)
        + 32
        + 1;
    assert_eq!(count(&*network(N2V, json!({"n2v2": false}))), unet);
    assert_eq!(count(&*network(N2V, json!({}))), unet - 9 * 32 * 32);
    // Two layers whose middle taps are 1 and 2: the noise is 2 relu(x), which leaves -x of what is positive and x of the rest.
    let small = network(DNCNN, json!({"channels": 1, "layers": 2}));
    let graph = small.inference(1, &[2, 2]).unwrap();
    let middle =
        |tap: f64| Array::new([1, 3, 3, 1], (0..9).map(|i| if i == 4 { tap } else { 0.0 }).collect());
    let zero = Array::new([1], vec![0.0]);
    let values = BTreeMap::from([
        ("x".to_string(), Array::new([1, 2, 2, 1], vec![1.0, -2.0, 3.0, 0.5])),
        ("model.0.weight".into(), middle(1.0)),
        ("model.2.weight".into(), middle(2.0)),
        ("model.0.bias".into(), zero.clone()),
        ("model.2.bias".into(), zero),
    ]);
    assert_eq!(output(&graph, &values).data, [-1.0, -2.0, -3.0, -0.5]);
}

/// What a local network makes of a tile with a margin is what it makes of the whole image there; other networks
/// are not local.
#[test]
fn tiles_of_a_local_network_are_parts_of_the_whole() {
    let config = json!({"in_channels": 1, "channels": [3, 4], "blocks": 1});
    let local = network(LOCAL, config);
    let reach_of = |graph: &Graph| reach(graph, "x", "y");
    let reach = reach_of(&local.inference(1, &[32, 32]).unwrap()).unwrap();
    assert_eq!(reach.stride, [1, 2, 2]);
    let margin = reach.radius[2].next_multiple_of(2);
    let weights = arrays(&random_weights(&local.parameters().unwrap()));
    let image = Array::from_fn([1, 4, 64, 1], |i| ((i[1] * 5 + i[2] * 7) % 13) as f64 / 6.0 - 1.0);
    let made = |from: usize, to: usize| {
        let tile = Array::from_fn([1, 4, to - from, 1], |i| image.get(&[0, i[1], i[2] + from, 0]));
        let graph = local.inference(1, &[4, to - from]).unwrap();
        let mut values = BTreeMap::from([("x".to_string(), tile), ("t".into(), Array::new([1], vec![0.3]))]);
        values.extend(weights.clone());
        output(&graph, &values)
    };
    // A planar one sees a plane more with each block, and keeps them all.
    let planar =
        json!({"spatial_dims": 3, "planar": true, "in_channels": 1, "channels": [3, 4], "blocks": 1});
    let deep = reach_of(&network(LOCAL, planar).inference(1, &[16, 32, 32]).unwrap()).unwrap();
    assert_eq!((deep.stride, deep.radius), ([1, 2, 2], [5, reach.radius[1], reach.radius[2]]));
    let (whole, from, to) = (made(0, 64), 30 - margin, 34 + margin);
    let tile = made(from, to);
    for x in 30..34 {
        assert_eq!(tile.get(&[0, 1, x - from, 0]), whole.get(&[0, 1, x, 0]), "column {x}");
    }
    for (name, config, size) in all().into_iter().filter(|(name, ..)| !BOUNDED.contains(name)) {
        let graph = network(name, config).inference(1, &size).unwrap();
        assert_eq!(reach_of(&graph), None, "{name}");
    }
}

/// Sizes are of whole patches and of what the network inside halves.
#[test]
fn measurements_in_patches_take_multiples_of_both() {
    let config = json!({"conditioning_key": "crossattn", "width": 8, "patch_size": 3, "network": {
        "block_out_channels": [8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
        "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"]}});
    let network = network(CONDITIONED, config);
    assert_eq!(network.example_size(), [12, 12]);
    assert!(network.check_size(&[12, 24]).is_ok());
    for size in [[4, 4], [3, 3], [6, 6], [12, 16]] {
        assert!(network.check_size(&size).unwrap_err().contains("multiples of 12 x 12"), "{size:?}");
    }
}
