//! Plans of whole networks: tight, without overlap, quick to make, and able to fit a budget.

use clearshot_graph::cost::total_flops;
use clearshot_graph::train::Training;
use clearshot_nn::models::unet2d::{NETWORKS, network};
use clearshot_runtime::{Device, Options, plan};
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
