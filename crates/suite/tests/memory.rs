//! What the plan says is what the process takes.
//!
//! One test in a file of its own, so that nothing else runs in the process meanwhile.

use clearshot_graph::train::Training;
use clearshot_nn::models::unet2d::network;
use clearshot_runtime::{Device, Options, compile, peak_bytes};
use clearshot_suite::bench_data::fill;

const MIB: usize = 1 << 20;

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
