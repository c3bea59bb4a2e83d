//! The overhead of profiling: training iterations alternately with and without a timeline, in processor time of the
//! computing thread.
//!
//! `cargo run --release -p clearshot-train --example overhead`

use clearshot_graph::train::Training;
use clearshot_nn::init::example;
use clearshot_nn::models::named::named;
use clearshot_runtime::{Device, Options, compile, memory_in_use};
use clearshot_timeline::{ITERATION, Timeline, group};
use std::error::Error;

/// Pairs of iterations for each network.
const PAIRS: usize = 60;

/// Nanoseconds that this thread has had of the processor.
fn processor() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("no number")?.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    for (name, side) in [("tiny", 32), ("tiny", 64), ("local", 64)] {
        let network = named(name).ok_or(name)?;
        let graph = network.training(2, &vec![side; network.dims()], &Training::default())?;
        let mut session = compile(graph.clone(), &Device::cpu(Some(1)), &Options::default())?;
        for p in network.parameters()? {
            session.set(&p.name, &p.initial(0))?;
        }
        for (input, v) in graph.inputs() {
            session.set(input, &example(input, graph.ty(v), 0))?;
        }
        for (what, timeline) in [("time", Timeline::new()), ("memory", Timeline::with_memory(memory_in_use))]
        {
            let _attached = timeline.attach("main");
            let mut ratios = vec![];
            for pair in 0..PAIRS + 3 {
                let mut took = [0.0; 2];
                for with in [pair % 2 == 0, pair % 2 == 1] {
                    timeline.set_active(with);
                    let before = processor()?;
                    {
                        let _iteration = group(ITERATION);
                        session.run()?;
                    }
                    took[usize::from(with)] = processor()? - before;
                }
                // The first ones pack and describe nodes.
                if pair >= 3 {
                    ratios.push((took[1] / took[0], took[0]));
                }
            }
            ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (middle, each) = ratios[PAIRS / 2];
            println!(
                "{name} {side} x {side}, {} nodes, {:.1} ms: {what} {:+.2} % in the middle, quartiles {:+.2} and {:+.2} %",
                session.plan().graph.nodes.len(),
                each * 1e-6,
                100.0 * (middle - 1.0),
                100.0 * (ratios[PAIRS / 4].0 - 1.0),
                100.0 * (ratios[PAIRS * 3 / 4].0 - 1.0)
            );
        }
    }
    Ok(())
}
