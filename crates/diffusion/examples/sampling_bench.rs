//! Times whole sampling runs of a benchmark network, as one JSON line for each sampler.
//!
//!     cargo run --release --example sampling_bench -p clearshot-diffusion -- [NETWORK] [SIZE] [BATCH] [RUNS] [THREADS]
//!
//! 25 steps of DPM-Solver++ 2M and 18 of Heun, both on Karras' levels, conditioned on a noisy image.
//! `bench/sampling.sh` runs it beside diffusers.

use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::precondition::{Preconditioned, Prediction};
use clearshot_diffusion::sampler::{Program, named};
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{Condition, Sampler, Start};
use clearshot_graph::{Builder, Type};
use clearshot_nn::models::unet2d::network;
use clearshot_nn::weights;
use clearshot_runtime::{Device, peak_bytes};
use clearshot_tensor::Tensor;
use std::error::Error;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let net = args.first().map_or("small", String::as_str);
    let (size, batch, runs) = (number(1, 128)?, number(2, 1)?, number(3, 3)?.max(1));
    let device = Device::cpu(args.get(4).map(|a| a.parse()).transpose()?);
    let schedule = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 1000)?;
    let levels =
        |steps: usize| schedule.karras_levels(schedule.range(), 7.0, steps, Rounding::None, End::Clean);
    let programs = [
        ("dpmpp-2m 25", named("dpmpp-2m")?.program(&levels(25)?)?),
        ("heun 18", named("heun")?.program(&levels(18)?.exploding())?),
    ];
    for (work, program) in programs {
        time(net, work, program, [batch, size, size, 1], runs, &device)?;
    }
    Ok(())
}

fn time(
    net: &str,
    work: &str,
    program: Program,
    shape: [usize; 4],
    runs: usize,
    device: &Device,
) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let network = network(net).ok_or("no such benchmark network")?.resolve()?;
    let parameters = network.parameters()?;
    let mut b = Builder::new();
    let image = b.input("image", Type::f32(shape));
    let given = Condition { image: Some(image), ..Condition::default() };
    let denoiser = Preconditioned { network, prediction: Prediction::Noise, learned_variance: false };
    let calls = program.calls().len();
    let mut sampler = Sampler::compile(b, &denoiser, &given, shape, program, Setup::default(), device)?;
    for (name, value) in weights::initial(&parameters, 0) {
        sampler.set(&name, &value)?;
    }
    sampler.set("image", &Tensor::full(shape, 0.25))?;
    let tiles: Vec<Tile> = (0..shape[0] as u64).map(Tile::whole).collect();
    sampler.run(Start::Noise, &tiles)?;
    let setup = begin.elapsed().as_secs_f64();
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        sampler.run(Start::Noise, &tiles)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let (batch, size) = (shape[0], shape[1]);
    let (planned, peak) = (sampler.session().plan().bytes(), peak_bytes().unwrap_or(0));
    println!(
        "{{\"engine\": \"clearshot\", \"mode\": \"compiled\", \"net\": \"{net}\", \"work\": \"{work}\", \"batch\": {batch}, \
         \"size\": {size}, \"calls\": {calls}, \"median_ms\": {:.1}, \"setup_s\": {setup:.2}, \
         \"planned_bytes\": {planned}, \"peak_bytes\": {peak}}}",
        times[times.len() / 2]
    );
    Ok(())
}
