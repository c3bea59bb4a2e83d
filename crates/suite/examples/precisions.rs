//! Times a network in bf16, fp8 and int8, in turns in one process: `precisions NET BATCH SIZE`. Ranges of the quantised network are made up.

use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::passes::int8::{Candidate, candidates, round};
use clearshot_nn::init::example;
use clearshot_nn::models::named::named;
use clearshot_runtime::{Device, Options, Precision, Session, compile};
use std::error::Error;
use std::time::Instant;

const ASKED: [Precision; 3] = [Precision::Bf16, Precision::Fp8, Precision::Int8];
const WARM_UP: usize = 3;
const RUNS: usize = 20;
const TURNS: usize = 3;

/// The median of single runs, in milliseconds.
fn median(session: &mut Session) -> Result<f64, Box<dyn Error>> {
    let mut times = vec![];
    for i in 0..WARM_UP + RUNS {
        let start = Instant::now();
        session.run()?;
        session.wait()?;
        if i >= WARM_UP {
            times.push(1e3 * start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [net, batch, size] = &args[..] else { return Err("give a network, a batch and a size".into()) };
    let (batch, size) = (batch.parse()?, size.parse()?);
    let model = named(net).ok_or("there is no such network")?;
    let (params, graph) = (model.parameters()?, model.inference(batch, &[size, size])?);
    let made_up = |c: Candidate| (c.name, Rounding::Static(vec![Grid::between(-4.0, 4.0); c.channels]));
    let table: Table = candidates(&graph).into_iter().map(made_up).collect();
    let rounded = round(graph.clone(), &table).map_err(|(layer, e)| format!("{layer}: {e}"))?;
    let device = Device::cuda(0)?;
    let mut sessions = vec![];
    for precision in ASKED {
        let graph = if precision == Precision::Int8 { &rounded } else { &graph };
        let mut session = compile(graph.clone(), &device, &Options { precision, ..Options::default() })?;
        params.iter().try_for_each(|p| session.set(&p.name, &p.initial(0)))?;
        for (name, v) in graph.inputs() {
            session.set(name, &example(name, graph.ty(v), 0))?;
        }
        sessions.push(session);
    }
    for _ in 0..TURNS {
        for session in &mut sessions {
            print!("{} {:.3} ms  ", session.arithmetic().name(), median(session)?);
        }
        println!("({net}, batch {batch}, {size} x {size})");
    }
    Ok(())
}
