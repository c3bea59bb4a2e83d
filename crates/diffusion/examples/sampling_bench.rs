//! Times whole sampling runs of a benchmark network, as one JSON line for each sampler.
//!
//!     cargo run --release --example sampling_bench -p clearshot-diffusion -- [NETWORK] [SIZE] [BATCH] [RUNS] [THREADS]
//!         [--device cpu|cuda] [--precision auto|fp32|tf32|bf16|fp16]
//!
//! 25 steps of DPM-Solver++ 2M and 18 of Heun, both on Karras' levels, conditioned on a noisy image. Heun is guided
//! too, by a measurement with shot and read noise under the proximal law. `bench/sampling.sh` runs it beside
//! PyTorch and diffusers.

use clearshot_diffusion::guide::{Measurement, Proximal};
use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::precondition::{Preconditioned, Prediction};
use clearshot_diffusion::sampler::{Program, named};
use clearshot_diffusion::schedule::{BetaLaw, End, Rounding, Schedule};
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{Condition, Denoiser, Guide, Law, Sampler, Start};
use clearshot_graph::{Builder, Type};
use clearshot_nn::models::unet2d::network;
use clearshot_nn::weights;
use clearshot_physics::{Correlation, Electrons, Forward, Likelihood, Map, Operator, Scale};
use clearshot_runtime::{Device, Options, Precision, peak_bytes};
use clearshot_tensor::{Shape, Tensor};
use std::error::Error;
use std::time::Instant;

struct Bench {
    net: String,
    shape: Shape,
    runs: usize,
    device: Device,
    options: Options,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| -> Result<Option<String>, Box<dyn Error>> {
        let Some(at) = args.iter().position(|a| a == name) else { return Ok(None) };
        if at + 1 == args.len() {
            return Err(format!("{name} needs a value").into());
        }
        args.remove(at);
        Ok(Some(args.remove(at)))
    };
    let (device, precision) = (flag("--device")?, flag("--precision")?);
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (size, batch, runs) = (number(1, 128)?, number(2, 1)?, number(3, 3)?.max(1));
    let precision = precision.map_or(Ok(Precision::Auto), |p| p.parse())?;
    let bench = Bench {
        net: args.first().map_or("small".into(), String::clone),
        shape: Shape::from([batch, size, size, 1]),
        runs,
        device: match device.as_deref() {
            None | Some("cpu") => Device::cpu(args.get(4).map(|a| a.parse()).transpose()?),
            Some("cuda") => Device::cuda(0)?,
            Some(other) => return Err(format!("--device is cpu or cuda, not {other}").into()),
        },
        options: Options { precision, ..Options::default() },
    };
    let schedule = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 1000)?;
    let levels =
        |steps: usize| schedule.karras_levels(schedule.range(), 7.0, steps, Rounding::None, End::Clean);
    bench.time("dpmpp-2m 25", named("dpmpp-2m")?.program(&levels(25)?)?, None)?;
    let forward = Forward {
        operator: Operator::identity([size, size])?,
        scale: Scale::symmetric(Electrons(0.0), Electrons(20.0))?,
        exposure: 1.0,
        background: Map::Uniform(2.0),
        read_noise: Map::Uniform(1.5),
        correlation: Correlation::WHITE,
        likelihood: Likelihood::ShiftedPoisson,
    };
    let guide = Guide::new(forward, Law::Proximal(Proximal::new(0.5)))?;
    bench.time("guided heun 18", named("heun")?.program(&levels(18)?.exploding())?, Some(guide))
}

impl Bench {
    fn time(&self, work: &str, program: Program, guide: Option<Guide>) -> Result<(), Box<dyn Error>> {
        let (begin, shape) = (Instant::now(), self.shape);
        let network = network(&self.net).ok_or("no such benchmark network")?.resolve()?;
        let parameters = network.parameters()?;
        let mut b = Builder::new();
        let image = b.input("image", Type::f32(shape));
        let given = Condition { image: Some(image), ..Condition::default() };
        let prior = Preconditioned { network, prediction: Prediction::Noise, learned_variance: false };
        let counts = vec![7.0; shape.len() / shape[0]];
        let planes = vec![Measurement { y: Electrons(&counts), valid: None }; shape[0]];
        let measured = guide.as_ref().map(|g| g.inputs(shape, &planes)).transpose()?;
        let denoiser: Box<dyn Denoiser> = match guide {
            Some(guide) => Box::new(guide.guides(prior)),
            None => Box::new(prior),
        };
        let (calls, setup) = (program.calls().len(), Setup::default());
        let (device, options) = (&self.device, &self.options);
        let mut sampler =
            Sampler::compile_with(b, &*denoiser, &given, shape, program, setup, device, options)?;
        for (name, value) in weights::initial(&parameters, 0) {
            sampler.set(&name, &value)?;
        }
        for (name, value) in measured.into_iter().flatten() {
            sampler.set(&name, &value)?;
        }
        sampler.set("image", &Tensor::full(shape, 0.25))?;
        let tiles: Vec<Tile> = (0..shape[0] as u64).map(Tile::whole).collect();
        sampler.run(Start::Noise, &tiles)?;
        let setup = begin.elapsed().as_secs_f64();
        let mut times = Vec::with_capacity(self.runs);
        for _ in 0..self.runs {
            let start = Instant::now();
            sampler.run(Start::Noise, &tiles)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let (net, batch, size) = (&self.net, shape[0], shape[1]);
        let session = sampler.session();
        let (mode, planned) = (session.arithmetic().name(), session.plan().bytes());
        let peak = session.peak_bytes().or(peak_bytes()).unwrap_or(0);
        println!(
            "{{\"engine\": \"clearshot\", \"mode\": \"{mode}\", \"net\": \"{net}\", \"work\": \"{work}\", \
             \"batch\": {batch}, \"size\": {size}, \"calls\": {calls}, \"median_ms\": {:.1}, \
             \"setup_s\": {setup:.2}, \"planned_bytes\": {planned}, \"peak_bytes\": {peak}}}",
            times[times.len() / 2]
        );
        Ok(())
    }
}
