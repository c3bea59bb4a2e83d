//! What the plan says is what the process takes.
//!
//! The comparison with the real peak stands alone in its process's largest moment, so the tests of
//! plans here run nothing.

use clearshot_graph::cost::total_flops;
use clearshot_graph::train::Training;
use clearshot_nn::models::unet2d::{NETWORKS, network};
use clearshot_runtime::{Device, Options, compile, plan};
use clearshot_suite::bench_data::fill;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// The most memory that the process has had, as Linux counts it.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

#[test]
fn planned_bytes_are_the_real_ones() {
    let Some(before) = peak_bytes() else {
        eprintln!("skipped: this system does not tell a process's peak of memory");
        return;
    };
    let net = network("small").unwrap().resolve().unwrap();
    let params = net.parameters().unwrap();
    let graph = net.training(8, [128, 128], &Training::default()).unwrap();
    let mut session = compile(graph.clone(), &Device::cpu(None), &Options::default()).unwrap();
    fill(&mut session, &graph, &params).unwrap();
    session.run().unwrap();
    let (planned, peak) = (session.plan().bytes(), peak_bytes().unwrap());
    let tolerance = planned / 50 + 16 * MIB;
    assert!(
        peak <= planned + tolerance,
        "{peak} bytes at the peak, {planned} planned, {before} before anything was planned"
    );
    assert!(peak + tolerance >= planned, "{peak} bytes at the peak, {planned} planned");
}

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
