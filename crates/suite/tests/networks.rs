//! The CPU's kernels on networks that no peer has computed: against the interpreter, alone and in a batch, and
//! for any number of threads.

use clearshot_graph::grad::grad;
use clearshot_graph::train::Training;
use clearshot_graph::{Builder, Graph, Type};
use clearshot_nn::acquisition::{self, Acquisition, DOMAINS};
use clearshot_nn::init::example;
use clearshot_nn::models::{Network, read};
use clearshot_nn::weights;
use clearshot_runtime::{Device, Options, compile};
use clearshot_suite::engine::{Engine, Session};
use clearshot_suite::report::{Class, relative_error};
use clearshot_tensor::Tensor;
use clearshot_tensor::noise::Key;
use std::collections::BTreeMap;

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

fn network((config, _): &(&str, &[usize])) -> Box<dyn Network> {
    read(config).unwrap()
}

/// The relative difference that another order of sums may make.
const SAME: f64 = 1e-5;

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

/// One sample's part of every input that has samples.
fn sample(inputs: &BTreeMap<String, Tensor>, i: usize, batch: usize) -> BTreeMap<String, Tensor> {
    let part = |t: &Tensor| {
        let shape = t.shape();
        if shape.rank() == 0 {
            return t.clone();
        }
        let each = shape.len() / batch;
        let values = t.as_f32().unwrap()[i * each..(i + 1) * each].to_vec();
        Tensor::f32(shape.with(0, 1), values)
    };
    inputs.iter().map(|(name, t)| (name.clone(), part(t))).collect()
}

#[test]
fn threads_change_nothing_and_a_batch_only_rounding() {
    for case in CASES {
        let network = network(case);
        let open = |batch: usize, threads: usize| {
            let graph = with_gradient(&*network, batch, case.1);
            let inputs = inputs(&graph);
            (compile(graph, &Device::cpu(Some(threads)), &Options::default()).unwrap(), inputs)
        };
        let (mut session, all) = open(3, 2);
        let together = results(&mut session, &*network, &all);
        let (mut session, _) = open(3, 1);
        assert!(together == results(&mut session, &*network, &all), "{}: threads", case.0);
        let (mut session, _) = open(1, 2);
        for i in 0..3 {
            let alone = results(&mut session, &*network, &sample(&all, i, 3));
            for (alone, together) in alone.iter().zip(&together) {
                let each = alone.shape().len();
                let together = &together.to_f64()[i * each..(i + 1) * each];
                // Small images may take another algorithm in a batch, so not to the bit.
                let error = relative_error(&alone.to_f64(), together, 0.0);
                assert!(error < SAME, "{}: sample {i} of a batch: {error:.1e}", case.0);
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
    let taken = |i: usize| Acquisition {
        domain: DOMAINS[i % DOMAINS.len()],
        scale: 300.0,
        read_noise: 2.0,
        background: 1.0,
    };
    let vectors: Vec<f32> = (0..BATCH).flat_map(|i| taken(i).encode().unwrap().map(|v| v as f32)).collect();
    let give = |session: &mut clearshot_runtime::Session, step: u32, shift: usize, rate: f32| -> f64 {
        let mut x = vec![0.0; BATCH * 64];
        Key { seed: 1, step, stream: 0 }.fill_normal(0, &mut x);
        let target = x.iter().enumerate().map(|(i, v)| v * gains[i / 64 % gains.len()]).collect();
        let mut shuffled = vectors.clone();
        shuffled.rotate_left(shift * acquisition::WIDTH);
        session.set("x", &Tensor::f32([BATCH, 8, 8, 1], x)).unwrap();
        session.set("target", &Tensor::f32([BATCH, 8, 8, 1], target)).unwrap();
        session.set("vector", &Tensor::f32([BATCH, acquisition::WIDTH], shuffled)).unwrap();
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
