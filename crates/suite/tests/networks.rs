//! The CPU's kernels on networks that no peer has computed: against the interpreter, alone and in a batch, and
//! for any number of threads.

use clearshot_graph::grad::grad;
use clearshot_graph::train::Training;
use clearshot_graph::{Builder, Graph, Type};
use clearshot_nn::acquisition::{Acquisition, Code, TakenBy};
use clearshot_nn::init::example;
use clearshot_nn::models::{Network, read};
use clearshot_nn::weights;
use clearshot_runtime::{Device, Options, compile};
use clearshot_suite::engine::{Engine, Session};
use clearshot_suite::report::{Class, relative_error};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;
use std::collections::BTreeMap;
use std::ops::Range;

/// Configurations and sizes.
const CASES: &[(&str, &[usize])] = &[
    (
        r#"{"_class_name": "MultiScale", "scales": 3, "channels": 16, "blocks": 2, "vector_dim": 7}"#,
        &[16, 24],
    ),
    (
        r#"{"_class_name": "MultiScale", "spatial_dims": 3, "scales": 2, "channels": 8, "blocks": 1}"#,
        &[4, 8, 6],
    ),
    (
        r#"{"_class_name": "Growing", "channels": 16, "channel_mult": [1, 2], "resolution": 96, "vector_dim": 7}"#,
        &[12, 24],
    ),
    (
        r#"{"_class_name": "Growing", "spatial_dims": 3, "channels": 8, "channel_mult": [1, 1],
            "attention_head_dim": 4, "resolutions": [2, 3], "resolution": 3}"#,
        &[6, 12, 6],
    ),
    (
        r#"{"_class_name": "EDM", "model_type": "DhariwalUNet", "img_resolution": 16, "model_channels": 64,
            "channel_mult": [1], "num_blocks": 1, "attn_resolutions": [16], "label_dim": 7, "condition_channels": 1}"#,
        &[8, 12],
    ),
];

/// Networks that the parity cases hold against their peers.
const OTHERS: &[(&str, &[usize])] = &[
    (
        r#"{"_class_name": "UNet2DModel", "in_channels": 2, "out_channels": 1, "block_out_channels": [32, 64, 96],
            "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 16,
            "down_block_types": ["DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"],
            "up_block_types": ["AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"]}"#,
        &[32, 24],
    ),
    (
        r#"{"_class_name": "UNet2DConditionModel", "in_channels": 2, "out_channels": 1,
            "block_out_channels": [16, 24], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
            "cross_attention_dim": 5, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "resnet_time_scale_shift": "scale_shift"}"#,
        &[12, 10],
    ),
    (
        r#"{"_class_name": "RosinalityUNet", "channel": 32, "channel_multiplier": [1, 2], "n_res_blocks": 1,
            "attn_strides": [2], "attn_heads": 2, "use_affine_time": true, "dropout": 0.0}"#,
        &[16, 12],
    ),
    (
        r#"{"_class_name": "EDM", "model_type": "SongUNet", "model_channels": 32, "channel_mult": [1, 2],
            "num_blocks": 1, "img_resolution": 16, "attn_resolutions": [8], "label_dim": 3, "dropout": 0.0,
            "encoder_type": "residual", "resample_filter": [1, 3, 3, 1]}"#,
        &[16, 16],
    ),
    (
        r#"{"_class_name": "DynUNet", "spatial_dims": 3, "kernel_size": [[1, 3, 3], 3, 3],
            "strides": [1, [1, 2, 2], 2], "upsample_kernel_size": [[1, 2, 2], 2], "filters": [4, 6, 8]}"#,
        &[2, 8, 8],
    ),
];

fn network((config, _): &(&str, &[usize])) -> Box<dyn Network> {
    read(config).unwrap()
}

/// The network with the gradient of its input.
fn with_gradient(network: &dyn Network, batch: usize, size: &[usize]) -> Graph {
    let mut b = Builder::extend(network.inference(batch, size).unwrap());
    let (x, y) = (b.graph().inputs().find(|(n, _)| *n == "x").unwrap().1, b.graph().output("y").unwrap());
    let dy = b.input("dy", Type::f32(b.shape(y)));
    let dx = grad(&mut b, y, Some(dy), &[x]).unwrap()[0];
    b.output("dx", dx);
    b.finish().unwrap()
}

fn inputs(graph: &Graph) -> BTreeMap<String, Tensor> {
    graph.inputs().map(|(name, v)| (name.to_string(), example(name, graph.ty(v), 8))).collect()
}

fn fill(session: &mut dyn Session, network: &dyn Network, inputs: &BTreeMap<String, Tensor>) {
    // ADM's last layers begin as zeros: then nothing in front of them would be seen.
    let awake = |name: &str, t: &Tensor| {
        let zero = t.to_f64().iter().all(|v| *v == 0.0);
        let drawn = clearshot_nn::init::initial(name, t.shape(), clearshot_nn::Init::Normal(0.05), 2);
        if zero { drawn } else { t.clone() }
    };
    for (name, value) in &weights::initial(&network.parameters().unwrap(), 2) {
        session.set(name, &awake(name, value)).unwrap();
    }
    for (name, value) in inputs {
        session.set(name, value).unwrap();
    }
}

fn results(
    session: &mut dyn Session,
    network: &dyn Network,
    inputs: &BTreeMap<String, Tensor>,
) -> [Tensor; 2] {
    fill(session, network, inputs);
    session.run().unwrap();
    ["y", "dx"].map(|name| session.get(name).unwrap())
}

#[test]
fn kernels_compute_what_the_interpreter_does() {
    for case in CASES {
        let network = network(case);
        let graph = with_gradient(&*network, 2, case.1);
        let inputs = inputs(&graph);
        let mut truth = Engine::Reference.open(graph.clone()).unwrap();
        let [y, dx] = results(&mut *truth, &*network, &inputs);
        for engine in [Engine::Fused, Engine::CpuPlain, Engine::Cpu] {
            let mut session = engine.open(graph.clone()).unwrap();
            let [got_y, got_dx] = results(&mut *session, &*network, &inputs);
            for (class, got, truth) in [(Class::UNetOutput, got_y, &y), (Class::UNetGradient, got_dx, &dx)] {
                let error = relative_error(&got.to_f64(), &truth.to_f64(), 0.0);
                assert!(error <= class.limit(), "{} by {}: {class:?} {error:.1e}", case.0, engine.name());
            }
        }
    }
}

/// Some samples' part of every input that has samples.
fn samples(inputs: &BTreeMap<String, Tensor>, some: Range<usize>, batch: usize) -> BTreeMap<String, Tensor> {
    let part = |t: &Tensor| {
        let shape = t.shape();
        if shape.rank() == 0 {
            return t.clone();
        }
        let each = shape.len() / batch;
        let (range, shape) = (some.start * each..some.end * each, shape.with(0, some.len()));
        Tensor::f32(shape, t.as_f32().unwrap()[range].to_vec())
    };
    inputs.iter().map(|(name, t)| (name.clone(), part(t))).collect()
}

#[test]
fn threads_and_batches_change_nothing() {
    const MOST: usize = 7;
    for case in CASES.iter().chain(OTHERS) {
        let network = network(case);
        let open = |batch: usize, threads: usize| {
            let graph = with_gradient(&*network, batch, case.1);
            let inputs = inputs(&graph);
            (compile(graph, &Device::cpu(Some(threads)), &Options::default()).unwrap(), inputs)
        };
        let (mut session, all) = open(MOST, 2);
        let together = results(&mut session, &*network, &all);
        let (mut session, _) = open(MOST, 1);
        assert!(together == results(&mut session, &*network, &all), "{}: threads", case.0);
        for (batch, first) in [(1, 0), (1, 3), (1, 6), (4, 0), (4, 2)] {
            let (mut session, _) = open(batch, 2);
            let few = results(&mut session, &*network, &samples(&all, first..first + batch, MOST));
            for (name, (few, together)) in ["y", "dx"].iter().zip(few.iter().zip(&together)) {
                let each = few.shape().len() / batch;
                let together = &together.as_f32().unwrap()[first * each..(first + batch) * each];
                let same =
                    few.as_f32().unwrap().iter().zip(together).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}: {name} of samples from {first}, {batch} alone and in {MOST}", case.0);
            }
        }
    }
}

/// Trained where the answer depends on how an image was taken, a network uses the vector that says so: given
/// another image's, it is worse.
#[test]
fn a_shuffled_vector_raises_the_loss() {
    const BATCH: usize = 8;
    let config = r#"{"_class_name": "MultiScale", "in_channels": 1, "scales": 2, "channels": 16, "blocks": 1,
        "vector_dim": 7}"#;
    let network = read(config).unwrap();
    let graph = network.training(BATCH, &[8, 8], &Training::default()).unwrap();
    let mut session = compile(graph, &Device::cpu(Some(2)), &Options::default()).unwrap();
    for (name, value) in &weights::initial(&network.parameters().unwrap(), 4) {
        session.set(name, value).unwrap();
    }
    session.set("t", &Tensor::zeros([BATCH])).unwrap();
    // The image times 1, -1, 2 or -2, as the domain has it.
    let gains = [1.0f32, -1.0, 2.0, -2.0];
    let code = Code { domains: gains.len(), camera: true };
    let camera = Some(TakenBy { scale: 300.0, read_noise: 2.0, background: 1.0 });
    let taken = |i: usize| Acquisition { domain: Some(i % gains.len()), camera };
    let vectors: Vec<f32> =
        (0..BATCH).flat_map(|i| code.encode(&taken(i)).unwrap()).map(|v| v as f32).collect();
    let give = |session: &mut clearshot_runtime::Session, step: u32, shift: usize, rate: f32| -> f64 {
        let mut x = vec![0.0; BATCH * 64];
        Key { seed: 1, step, stream: 0 }.fill_normal(0, &mut x);
        let target = x.iter().enumerate().map(|(i, v)| v * gains[i / 64 % gains.len()]).collect();
        let mut shuffled = vectors.clone();
        shuffled.rotate_left(shift * code.width());
        session.set("x", &Tensor::f32([BATCH, 8, 8, 1], x)).unwrap();
        session.set("target", &Tensor::f32([BATCH, 8, 8, 1], target)).unwrap();
        session.set("vector", &Tensor::f32([BATCH, code.width()], shuffled)).unwrap();
        session.set("rate", &Tensor::scalar(rate)).unwrap();
        session.run().unwrap();
        session.get("loss").unwrap().to_f64()[0]
    };
    let first = give(&mut session, 0, 0, 3e-3);
    for step in 1..150 {
        give(&mut session, step, 0, 3e-3);
    }
    let (right, wrong) = (give(&mut session, 1000, 0, 0.0), give(&mut session, 1000, 1, 0.0));
    assert!(right < 0.3 * first, "trained: {first} to {right}");
    assert!(wrong > 3.0 * right, "with its own vector {right}, with another's {wrong}");
}
