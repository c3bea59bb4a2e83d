//! `clearshot bench`: times a network, measured like the programs in `peers`: some runs after a few warm-up runs. One
//! network, a sweep over batch sizes ([`sweep`]), the speed-up of each optimisation ([`compare`]), attention alone
//! ([`attention`]), or the cost of exchanging gradients ([`exchange`]).

mod attention;
mod compare;
mod exchange;
mod sweep;
mod timing;

use crate::network::{Network, NetworkArgs};
use anyhow::Result;
use clap::Args;
use clearshot_graph::cost::total_flops;
use clearshot_graph::plan::human;
use clearshot_graph::{Graph, Op};
use clearshot_runtime::{Device, Session, SetUp};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};
use timing::{Times, round};

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    network: NetworkArgs,
    /// Time this many runs.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Run this many times before timing.
    #[arg(long, default_value_t = 3)]
    warm_up: u32,
    /// Compare optimisations: each switched off by itself, and each switched on by itself, with its error. Default: off.
    #[arg(long, conflicts_with_all = ["onnx", "no_passes", "int8", "budget", "precision"])]
    compare: bool,
    /// Time only attention, in one kernel and as products and a softmax, for these numbers of tokens. Default: the network.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', num_args = 0.., default_missing_value = "256,512,1024,2048",
          value_parser = clap::value_parser!(u32).range(1..=65536), conflicts_with_all = ["compare", "onnx", "train", "net", "config", "int8"])]
    attention: Option<Vec<u32>>,
    /// Print one line of JSON for each measurement. Default: text.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self) -> Result<()> {
        match &self.attention {
            Some(tokens) => attention::run(&self, tokens),
            None if self.compare => compare::run(&self),
            None if self.network.nccl => exchange::run(&self),
            None if self.network.batches().len() > 1 => sweep::run(&self),
            None => self.one(),
        }
    }

    fn one(&self) -> Result<()> {
        let mut made = Made::of(&self.network)?;
        let times = made.measured(self)?;
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", made.record(&times))?,
            false => write!(out, "{}", made.told(&times))?,
        }
        Ok(())
    }
}

/// A network that has run once.
struct Made {
    network: Network,
    device: Device,
    session: Session,
    /// Seconds until the first run was over.
    ready: f64,
}

impl Made {
    fn of(args: &NetworkArgs) -> Result<Made> {
        let network = args.build()?;
        let start = Instant::now();
        let device = args.device()?;
        let mut session = args.compile(&network, &device)?;
        network.fill(&mut session)?;
        session.run()?;
        session.wait()?;
        Ok(Made { network, device, session, ready: start.elapsed().as_secs_f64() })
    }

    fn measured(&mut self, bench: &Bench) -> Result<Times> {
        measured(&mut self.session, bench)
    }

    fn record(&self, times: &Times) -> Value {
        let (network, session, set_up) = (&self.network, &self.session, self.session.set_up());
        let peak = session.peak_bytes();
        let shape = network.graph.inputs().next().map(|(_, v)| network.graph.ty(v).shape.to_vec());
        let mut record = json!({
            "engine": concat!("clearshot ", env!("CARGO_PKG_VERSION")),
            "mode": "compiled",
            "net": network.name,
            "device": kind(&self.device),
            "precision": session.arithmetic().name(),
            "convolutions": eighths(&session.plan().graph)[0],
            "in_8_bits": eighths(&session.plan().graph)[1],
            "batch": network.batch,
            "size": network.size,
            "input_shape": shape,
            "work": network.work(),
            "setup_s": round(self.ready),
            "start_s": seconds(set_up.start),
            "plan_s": seconds(set_up.plan),
            "compile_s": seconds(set_up.compile),
            "tune_s": seconds(set_up.measure),
            "memory_s": seconds(set_up.memory),
            "compiled": set_up.compiled,
            "tuned": set_up.measured,
            "peak_gib": peak.map(|p| round(p as f64 / (1u64 << 30) as f64)),
            "planned_bytes": session.plan().bytes(),
            "peak_bytes": peak,
            "flops": total_flops(&network.graph),
        });
        extend(&mut record, times.record(network.batch));
        record
    }

    fn told(&self, times: &Times) -> String {
        let (network, session) = (&self.network, &self.session);
        let (size, flops) = (network.size, total_flops(&network.graph) as f64);
        let peak = session.peak_bytes().map_or("not reported by this system".into(), human);
        format!(
            "{} {}, batch {}, {size} x {size} pixels, on {}, in {}\n\
             {}  median {:.2} ms, 95 % within {:.2} ms, slowest {:.2} ms, of {} runs; {:.1} images a second\n  \
             {:.1} GFLOP/s of the plain algorithm's operations\n  \
             ready after {:.2} s: {}\n  \
             memory: {} planned, at most {peak} used\n",
            network.name,
            network.work(),
            network.batch,
            self.device,
            session.arithmetic(),
            in_8_bits(&session.plan().graph),
            times.median(),
            times.quantile(0.95),
            times.quantile(1.0),
            times.count(),
            times.rate(network.batch),
            flops / times.median() * 1e-6,
            self.ready,
            phases(session.set_up()),
            human(session.plan().bytes()),
        )
    }
}

/// How many convolutions multiply in 8 bits, as a line; nothing where none does.
fn in_8_bits(graph: &Graph) -> String {
    let [all, eighths] = eighths(graph);
    match eighths {
        0 => String::new(),
        _ => format!("  {eighths} of {all} convolutions multiply in 8 bits\n"),
    }
}

/// Convolutions, and those that multiply in 8 bits.
fn eighths(graph: &Graph) -> [usize; 2] {
    let convs = || graph.nodes.iter().filter_map(|n| if let Op::Conv(c) = &n.op { Some(c) } else { None });
    [convs().count(), convs().filter(|c| c.scaled || c.int8.is_some()).count()]
}

/// The times of a session that has run once already.
fn measured(session: &mut Session, bench: &Bench) -> Result<Times> {
    for _ in 1..bench.warm_up {
        session.run()?;
    }
    session.wait()?;
    let mut times = Times::default();
    (0..bench.runs).try_for_each(|_| times.take(session))?;
    Ok(times)
}

/// The relative error and the cosine of one result beside another.
fn beside(x: &[f32], reference: &[f32]) -> [f64; 2] {
    let pairs = || x.iter().zip(reference).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let sum = |f: fn((f64, f64)) -> f64| pairs().map(f).sum::<f64>();
    let (far, xx) = (sum(|(a, b)| (a - b).powi(2)), sum(|(a, _)| a * a));
    let (rr, product) = (sum(|(_, b)| b * b), sum(|(a, b)| a * b));
    [(far / rr).sqrt(), product / (xx * rr).sqrt()]
}

/// Adds the fields of one object to another.
fn extend(object: &mut Value, more: Value) {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
}

/// Where set-up went; what is left of it are weights and the first run.
fn phases(s: &SetUp) -> String {
    let mut told = format!("{:.2} s to find the device, {:.2} s to plan", seconds(s.start), seconds(s.plan));
    if s.compiled > 0 || s.measured > 0 {
        told += &format!(
            ", {:.2} s to compile {} programs, {:.2} s to measure {} choices",
            seconds(s.compile),
            s.compiled,
            seconds(s.measure),
            s.measured
        );
    }
    told + &format!(", {:.2} s to allocate memory, then weights and a first run", seconds(s.memory))
}

fn seconds(time: Duration) -> f64 {
    round(time.as_secs_f64())
}

fn kind(device: &Device) -> &'static str {
    match device {
        Device::Cpu { .. } => "cpu",
        Device::Cuda { .. } => "cuda",
    }
}
