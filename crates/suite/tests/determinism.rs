//! The same bits for any number of threads, from run to run, and with or without recomputation.

use clearshot_graph::Graph;
use clearshot_graph::train::Training;
use clearshot_nn::Param;
use clearshot_nn::models::unet2d::{UNet2DConfig, network};
use clearshot_runtime::{Device, Options, compile};
use clearshot_suite::bench_data::fill;
use clearshot_tensor::Tensor;

const ITERATIONS: usize = 3;

/// A network with attention and skip connections that trains in milliseconds.
fn config() -> UNet2DConfig {
    UNet2DConfig {
        block_out_channels: vec![16, 32, 48],
        attention_head_dim: Some(16),
        norm_num_groups: 8,
        ..network("small").expect("a benchmark network")
    }
}

fn training() -> (Graph, Vec<Param>) {
    let net = config().resolve().unwrap();
    let training = Training { clip_norm: 1.0, ..Training::default() };
    (net.training(2, [32, 48], &training).unwrap(), net.parameters().unwrap())
}

/// Losses, gradient norms and all parameters after some iterations.
fn train(threads: usize, options: &Options) -> Vec<(String, Tensor)> {
    let (graph, params) = training();
    let mut session = compile(graph.clone(), &Device::cpu(Some(threads)), options).unwrap();
    fill(&mut session, &graph, &params).unwrap();
    let mut seen = vec![];
    for i in 0..ITERATIONS {
        session.run().unwrap();
        for name in ["loss", "grad_norm"] {
            seen.push((format!("{name} {i}"), session.get(name).unwrap()));
        }
    }
    seen.extend(params.iter().map(|p| (p.name.clone(), session.get(&p.name).unwrap())));
    seen
}

fn assert_same(a: &[(String, Tensor)], b: &[(String, Tensor)], what: &str) {
    assert_eq!(a.len(), b.len());
    for ((name, x), (_, y)) in a.iter().zip(b) {
        let bits = |t: &Tensor| t.as_f32().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(x), bits(y), "{what}: {name} differs");
    }
}

#[test]
fn threads_and_runs_do_not_change_a_bit() {
    let one = train(1, &Options::default());
    assert!(one[0].1.as_f32().unwrap()[0].is_finite());
    assert_same(&one, &train(1, &Options::default()), "a second run");
    for threads in [2, 3] {
        assert_same(&one, &train(threads, &Options::default()), &format!("{threads} threads"));
    }
}

#[test]
fn inference_does_not_depend_on_threads() {
    let net = config().resolve().unwrap();
    let params = net.parameters().unwrap();
    let graph = net.inference(1, [32, 48]).unwrap();
    let run = |threads: usize| {
        let mut session = compile(graph.clone(), &Device::cpu(Some(threads)), &Options::default()).unwrap();
        fill(&mut session, &graph, &params).unwrap();
        session.run().unwrap();
        vec![("y".to_string(), session.get("y").unwrap())]
    };
    let one = run(1);
    for threads in [2, 3] {
        assert_same(&one, &run(threads), &format!("{threads} threads"));
    }
}

#[test]
fn recomputation_does_not_change_a_bit() {
    let (graph, _) = training();
    let device = Device::cpu(Some(2));
    let whole = clearshot_runtime::plan(graph, &device, &Options::default()).unwrap();
    let budget = whole.bytes() - whole.arena / 4;
    let tight = Options { budget: Some(budget), ..Options::default() };
    let (graph, _) = training();
    let plan = clearshot_runtime::plan(graph, &device, &tight).unwrap();
    assert!(plan.bytes() <= budget, "{} planned of {budget}", plan.bytes());
    assert!(plan.graph.nodes.len() > whole.graph.nodes.len(), "something is recomputed");
    assert_same(&train(2, &Options::default()), &train(2, &tight), "recomputation");
}
