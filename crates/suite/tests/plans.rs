//! Plans of whole networks: tight, without overlap, quick to make, and able to fit a budget.

use clearshot_cuda::TARGET;
use clearshot_graph::cost::total_flops;
use clearshot_graph::passes::delay::delay;
use clearshot_graph::passes::recompute::spare;
use clearshot_graph::passes::{optimise, precision};
use clearshot_graph::plan::{Backend, Plan};
use clearshot_graph::train::Training;
use clearshot_graph::{Graph, Op, Output, Value};
use clearshot_nn::models::unet2d::{NETWORKS, network};
use clearshot_runtime::{Device, Options, plan};
use clearshot_tensor::DType;
use std::time::{Duration, Instant};

#[test]
fn arenas_are_tight_and_nothing_overlaps() {
    for net in NETWORKS {
        let model = net.config().resolve().unwrap();
        let infer = model.inference(2, [64, 64]).unwrap();
        let train = model.training(2, [64, 64], &Training::default()).unwrap();
        for graph in [infer, train] {
            let plan = plan(graph, &Device::cpu(Some(2)), &Options::default()).unwrap();
            assert_eq!(plan.overlap(), None, "{}", net.name);
            let (arena, least) = (plan.arena, plan.largest_live());
            assert!(arena * 10 <= least * 11, "{}: an arena of {arena} for {least} alive", net.name);
        }
    }
}

#[test]
fn recomputing_saves_two_fifths_of_the_activations() {
    let model = network("small").unwrap().resolve().unwrap();
    let device = Device::cpu(Some(2));
    let graph = || model.training(8, [128, 128], &Training::default()).unwrap();
    let whole = plan(graph(), &device, &Options::default()).unwrap();
    let budget = whole.bytes() - whole.arena * 2 / 5;
    let options = Options { budget: Some(budget), ..Options::default() };
    let tight = plan(graph(), &device, &options).unwrap();
    assert!(tight.arena * 10 <= whole.arena * 6, "{} of {}", tight.arena, whole.arena);
    // Time follows operations here; what it really is, docs/benchmarks.md says.
    let (more, all) = (total_flops(&tight.graph), total_flops(&whole.graph));
    assert!(more * 100 <= all * 135, "{more} operations in place of {all}");
}

#[test]
fn a_large_network_is_planned_quickly() {
    let model = network("base").unwrap().resolve().unwrap();
    let graph = model.training(8, [256, 256], &Training::default()).unwrap();
    let start = Instant::now();
    let plan = plan(graph, &Device::cpu(Some(2)), &Options::default()).unwrap();
    // The promise is 2 seconds; ten times that is no measurement but a broken algorithm.
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?} for {} nodes",
        start.elapsed(),
        plan.graph.nodes.len()
    );
}

/// What plans ask of a GPU, but for the scratch of its kernels.
struct Gpu;

impl Backend for Gpu {
    fn workspace(&self, _: &Graph, _: usize) -> usize {
        0
    }

    fn prepared(&self, _: &Graph, _: usize) -> usize {
        0
    }

    fn norm_gradient_in_place(&self) -> bool {
        true
    }

    fn keeps_states_on_host(&self) -> bool {
        true
    }

    fn operations_per_byte(&self) -> u64 {
        190
    }
}

#[test]
fn the_host_keeps_weights_that_are_read_in_16_bits_alone() {
    let model = network("small").unwrap().resolve().unwrap();
    let narrow = |graph| Plan::new(precision::narrow(optimise(graph, &TARGET).unwrap(), DType::BF16), &Gpu);
    let infer = narrow(model.inference(2, [64, 64]).unwrap());
    // Weights of convolutions and products go by copies; gains and offsets of norms are read as they are.
    let (kept, copied) = (infer.on_host, 2 * infer.state_copies);
    // But for the rounding up of small ones.
    assert!(kept.abs_diff(copied) * 100 < kept, "{kept} bytes and {copied}: copies have half of the bits");
    let parameters: usize = model.parameters().unwrap().iter().map(|p| p.shape.len() * 4).sum();
    assert!(infer.states > 0 && infer.states * 20 < parameters, "{} of {parameters}", infer.states);
    assert_eq!(infer.overlap(), None);
    let train = narrow(model.training(2, [64, 64], &Training::default()).unwrap());
    assert_eq!(train.on_host, 0, "an optimiser reads every weight");
}

/// A training iteration as a GPU runs it.
fn on_gpu(name: &str, batch: usize, size: usize) -> Graph {
    let model = network(name).unwrap().resolve().unwrap();
    let graph = model.training(batch, [size, size], &Training::default()).unwrap();
    precision::narrow(optimise(graph, &clearshot_cuda::TARGET).unwrap(), DType::BF16)
}

#[test]
fn orders_and_cheap_recomputation_spare_memory() {
    for net in NETWORKS {
        let graph = on_gpu(net.name, 2, 64);
        let as_built = Plan::new(graph.clone(), &Gpu);
        let late = delay(graph.clone(), &Gpu);
        late.verify("delay").unwrap();
        assert_eq!(late.nodes.len(), graph.nodes.len(), "{}: only the order changes", net.name);
        let delayed = Plan::new(late.clone(), &Gpu);
        assert!(delayed.largest_live() < as_built.largest_live(), "{}", net.name);
        let cheap = spare(late, 0.02, &Gpu);
        cheap.verify("spare").unwrap();
        let (more, all) = (total_flops(&cheap), total_flops(&graph));
        assert!(more as f64 <= 1.02 * all as f64, "{}: {more} operations in place of {all}", net.name);
        let spared = Plan::new(cheap, &Gpu);
        assert!(spared.largest_live() <= delayed.largest_live(), "{}", net.name);
        for plan in [&as_built, &delayed, &spared] {
            assert_eq!(plan.overlap(), None, "{}", net.name);
        }
    }
}

#[test]
fn training_the_benchmark_networks_takes_the_memory_that_docs_say() {
    for (name, batch, most) in [("base", 8, 7.42), ("base", 1, 1.96), ("heads8", 8, 9.2)] {
        let graph = spare(delay(on_gpu(name, batch, 256), &Gpu), 0.02, &Gpu);
        let gib = Plan::new(graph, &Gpu).bytes() as f64 / (1u64 << 30) as f64;
        assert!(gib <= most, "{name}, batch {batch}: {gib:.2} GiB");
    }
}

#[test]
fn a_parameter_whose_copy_is_read_after_its_update_is_not_updated_in_place() {
    let graph = on_gpu("tiny", 1, 32);
    let copy = (0..graph.nodes.len()).find(|&i| graph.is_state_copy(i)).unwrap();
    let state = graph.nodes[copy].inputs[0];
    let update = graph.updates.iter().find(|u| u.state == state.node).unwrap().value;
    let in_place = |graph: &Graph| {
        let plan = Plan::new(graph.clone(), &Gpu);
        plan.place(update) == plan.place(state)
    };
    assert!(in_place(&graph));
    let mut late = graph.clone();
    let mut reader = late.nodes[copy].clone();
    (reader.op, reader.inputs) = (Op::Cast(DType::F32), vec![Value::new(copy, 0)]);
    reader.outs = vec![graph.ty(state)];
    late.nodes.push(reader);
    late.outputs.push(Output { name: "late".into(), value: Value::new(graph.nodes.len(), 0) });
    late.verify("a late reader").unwrap();
    assert!(!in_place(&late));
}
