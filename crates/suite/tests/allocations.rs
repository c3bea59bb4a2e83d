//! A run allocates nothing: every allocation of the process is counted.
//!
//! One test in a file of its own, so that nothing else runs in the process meanwhile.

use clearshot_graph::train::Training;
use clearshot_nn::models::unet2d::{UNet2DConfig, network};
use clearshot_runtime::{Device, Options, compile};
use clearshot_suite::bench_data::fill;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_run_allocates_nothing() {
    let config = UNet2DConfig {
        block_out_channels: vec![16, 32, 48],
        attention_head_dim: Some(16),
        norm_num_groups: 8,
        ..network("small").expect("a benchmark network")
    };
    let net = config.resolve().unwrap();
    let params = net.parameters().unwrap();
    let training = Training { ema_decay: None, clip_norm: 1.0, ..Training::default() };
    for graph in [net.inference(2, [32, 32]).unwrap(), net.training(2, [32, 32], &training).unwrap()] {
        let mut session = compile(graph.clone(), &Device::cpu(Some(2)), &Options::default()).unwrap();
        fill(&mut session, &graph, &params).unwrap();
        session.prepare().unwrap();
        for run in 0..3 {
            let before = ALLOCATIONS.load(Relaxed);
            session.run().unwrap();
            let made = ALLOCATIONS.load(Relaxed) - before;
            assert_eq!(made, 0, "run {run} of a graph of {} nodes", graph.nodes.len());
        }
    }
}
