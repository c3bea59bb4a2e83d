//! The network of a command: a benchmark network by name, a configuration file or an ONNX file, for inference or as a
//! whole training iteration.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_graph::Graph;
use clearshot_graph::ops::int8::{Grid, Rounding, Table};
use clearshot_graph::passes::int8::{Candidate, candidates, round};
use clearshot_graph::train::{BUCKET_OF_GPUS, Training};
use clearshot_nn::init::example;
use clearshot_nn::models::{self, named};
use clearshot_nn::{Param, Weights};
use clearshot_onnx::OnnxNetwork;
use clearshot_runtime::{
    Communicator, CompileError, Device, DeviceName, NcclId, Options, Precision, Session, bytes,
};
use clearshot_tensor::DType;
use std::path::PathBuf;
use std::sync::Arc;

/// The seed of the bench's weights and data.
const SEED: u64 = 0;

#[derive(Args, Clone)]
pub struct NetworkArgs {
    /// Use this network: heads8, base, small or tiny of the benchmarks, or condition, rosinality, ddpmpp,
    /// ncsnpp, adm, dynunet2d, dynunet3d, multiscale, growing, local.
    #[arg(long, default_value = "small", conflicts_with = "config")]
    net: String,
    /// Use the network of this config.json, whose architecture is its _class_name (UNet2DModel if it has none). Default: --net.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Use the network of this ONNX file; sizes that the file leaves open are those of --batch and --size. Default: --net.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["net", "config", "train"])]
    onnx: Option<PathBuf>,
    /// Compute this many images at once; `bench` accepts several numbers, as in 1,2,4,8.
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    batch: Vec<u32>,
    /// Set the side length of images in pixels.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// Compute a whole training iteration: forward, loss, backward, AdamW. Default: inference.
    #[arg(long)]
    pub train: bool,
    /// In training, average gradients over NCCL as several ranks do, but with a single rank: `bench` compares it with no exchange. Default: no exchange.
    #[arg(long, requires = "train")]
    pub nccl: bool,
    /// Limit memory, for example to 4GiB; what does not fit is recomputed. Default: no limit.
    #[arg(long, value_parser = bytes::parse, value_name = "BYTES")]
    pub budget: Option<usize>,
    /// Run every operation separately, as the graph was built. Default: passes optimise the graph.
    #[arg(long)]
    no_passes: bool,
    /// Multiply in 8 bits where `quantize` would, with arbitrary ranges: for timing only. Default: off.
    #[arg(long, conflicts_with_all = ["onnx", "train"])]
    int8: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// What a network is computed on and in.
#[derive(Args, Clone)]
pub struct ComputeArgs {
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
    /// Compute in fp32, tf32, bf16, fp16, fp8 (bf16 with e4m3 convolutions, inference on compute capability 9.0), int8 (of a quantised network: there bf16 with
    /// int8 convolutions, on the CPU as auto), or auto, which is the fastest that is safe on the device, and on a GPU neither fp8 nor int8.
    #[arg(long, default_value = "auto")]
    pub precision: Precision,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl ComputeArgs {
    /// # Errors
    /// If there is no such device.
    pub fn device(&self) -> Result<Device> {
        Ok(self.device.device(self.threads.map(usize::from))?)
    }
}

/// A network with its graph.
pub struct Network {
    pub name: String,
    pub batch: usize,
    pub size: usize,
    pub train: bool,
    pub graph: Graph,
    values: Values,
}

/// Where the values of a network's parameters come from.
enum Values {
    Drawn(Vec<Param>),
    Given(Weights),
}

impl NetworkArgs {
    /// # Errors
    /// If there is no such network, the configuration is refused, or the size does not suit it.
    pub fn build(&self) -> Result<Network> {
        let [batch] = self.batch[..] else { bail!("--batch takes one number here, and several in `bench`") };
        let (batch, size) = (batch as usize, self.size as usize);
        if let Some(path) = &self.onnx {
            let imported = OnnxNetwork::open(path)?.import_for(batch, &[size; 3])?;
            let values = Values::Given(imported.weights);
            let name = path.display().to_string();
            return Ok(Network { name, batch, size, train: false, graph: imported.graph, values });
        }
        let (name, model) = self.model()?;
        let params = model.parameters().with_context(|| name.clone())?;
        let sizes = vec![size; model.dims()];
        let graph = if self.train {
            model.training(
                batch,
                &sizes,
                &Training { bucket: self.nccl.then_some(BUCKET_OF_GPUS), ..Training::default() },
            )
        } else {
            model.inference(batch, &sizes)
        };
        let mut graph = graph.with_context(|| name.clone())?;
        if self.int8 {
            let made_up =
                |c: Candidate| (c.name, Rounding::Static(vec![Grid::between(-4.0, 4.0); c.channels]));
            let table: Table = candidates(&graph).into_iter().map(made_up).collect();
            graph = round(graph, &table).map_err(|(layer, e)| anyhow::anyhow!("{name}: {layer}: {e}"))?;
        }
        Ok(Network { name, batch, size, train: self.train, graph, values: Values::Drawn(params) })
    }

    fn model(&self) -> Result<(String, Box<dyn models::Network>)> {
        let Some(path) = &self.config else {
            let Some(model) = named::named(&self.net) else {
                let known: Vec<&str> = named::names().collect();
                bail!("unknown network `{}`; choose one of {}, or give --config", self.net, known.join(", "));
            };
            return Ok((self.net.clone(), model));
        };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let model = models::read(&text).with_context(|| path.display().to_string())?;
        Ok((path.display().to_string(), model))
    }

    /// The same with another batch.
    pub fn with_batch(&self, batch: u32) -> NetworkArgs {
        NetworkArgs { batch: vec![batch], ..self.clone() }
    }

    /// The same with an exchange of gradients, or without.
    pub fn with_nccl(&self, nccl: bool) -> NetworkArgs {
        NetworkArgs { nccl, ..self.clone() }
    }

    /// The batches that were asked for.
    pub fn batches(&self) -> &[u32] {
        &self.batch
    }

    /// # Errors
    /// If a GPU is asked for and there is none: why.
    pub fn device(&self) -> Result<Device> {
        self.compute.device()
    }

    pub fn options(&self) -> Options {
        Options { optimise: !self.no_passes, budget: self.budget, precision: self.compute.precision }
    }
}

impl NetworkArgs {
    /// The network compiled for the device.
    ///
    /// # Errors
    /// If it is impossible; if it does not fit in memory, with a batch that does.
    pub fn compile(&self, network: &Network, device: &Device) -> Result<Session> {
        let options = self.options();
        let mut session = match clearshot_runtime::compile(network.graph.clone(), device, &options) {
            Err(e @ CompileError::NoRoom { needed, free, fixed }) => {
                let each = needed.saturating_sub(fixed).max(1) as f64 / network.batch as f64;
                let fits = (free.saturating_sub(fixed) as f64 / each) as usize;
                return Err(match fits {
                    0 => anyhow::Error::from(e).context("not even a batch of 1 fits"),
                    n => anyhow::Error::from(e).context(format!("a batch of about {n} fits")),
                });
            }
            other => other?,
        };
        if self.nccl {
            let Device::Cuda { ordinal } = *device else { bail!("--nccl needs a GPU: give --device cuda") };
            let communicator = Communicator::new(ordinal, NcclId::new()?, 0, 1, || None)?;
            session.set_communicator(Arc::new(communicator), DType::F32, true)?;
        }
        Ok(session)
    }
}

impl Network {
    pub fn work(&self) -> &'static str {
        if self.train { "train" } else { "infer" }
    }

    /// Gives a session weights, random ones where a file has none, and random data, one tensor at a time.
    ///
    /// # Errors
    /// If the session is not of this network.
    pub fn fill(&self, session: &mut Session) -> Result<()> {
        match &self.values {
            Values::Drawn(params) => {
                params.iter().try_for_each(|p| session.set(&p.name, &p.initial(SEED)))?;
            }
            Values::Given(weights) => weights.iter().try_for_each(|(name, w)| session.set(name, w))?,
        }
        for (name, v) in self.graph.inputs() {
            session.set(name, &example(name, self.graph.ty(v), SEED))?;
        }
        Ok(())
    }
}
