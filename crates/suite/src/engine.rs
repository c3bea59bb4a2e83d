//! Who runs a case's graph. The suite knows engines only through [`Session`].

use crate::Result;
use clearshot_graph::passes::precision::narrow;
use clearshot_graph::passes::{Target, optimise};
use clearshot_graph::reference::{self, Precision};
use clearshot_graph::{Array, Graph};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::{DType, Tensor};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The interpreter that is the meaning of the ops.
    Reference,
    /// The same on what the passes make of the graph, fusing all that can be expressed.
    Fused,
    /// The same on what the passes make of the graph for a GPU.
    FusedForGpu,
    /// The same, fused and stored in bfloat16 as for a GPU.
    Narrowed,
    /// The CPU's kernels, on the graph as it was built.
    CpuPlain,
    /// The CPU's kernels as the product uses them.
    Cpu,
    /// The GPU's kernels in fp32, on the graph as it was built.
    CudaPlain,
    /// The GPU's kernels in fp32 as the product uses them.
    Cuda,
    /// The GPU's kernels in bfloat16 as the product uses them.
    CudaBf16,
}

/// Every engine that this machine has, in the order in which they run.
pub fn engines() -> Vec<Engine> {
    let mut all = vec![
        Engine::Reference,
        Engine::Fused,
        Engine::FusedForGpu,
        Engine::Narrowed,
        Engine::CpuPlain,
        Engine::Cpu,
    ];
    match clearshot_runtime::gpus() {
        Ok(_) => all.extend([Engine::CudaPlain, Engine::Cuda, Engine::CudaBf16]),
        Err(why) => eprintln!("skipped: engines on a GPU: {why}"),
    }
    // A machine lent for its GPU need not repeat what every machine can do.
    if std::env::var_os("CLEARSHOT_GPU_ONLY").is_some() {
        all.retain(|e| e.is_gpu());
    }
    all
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Reference => "reference",
            Engine::Fused => "fused",
            Engine::FusedForGpu => "for gpu",
            Engine::Narrowed => "narrowed",
            Engine::CpuPlain => "cpu plain",
            Engine::Cpu => "cpu",
            Engine::CudaPlain => "cuda plain",
            Engine::Cuda => "cuda",
            Engine::CudaBf16 => "cuda bf16",
        }
    }

    pub fn is_gpu(self) -> bool {
        matches!(self, Engine::CudaPlain | Engine::Cuda | Engine::CudaBf16)
    }

    /// Whether images are stored in bfloat16.
    pub fn is_narrow(self) -> bool {
        matches!(self, Engine::CudaBf16 | Engine::Narrowed)
    }

    /// The largest error that is let pass where it is more than a class's own.
    pub fn tolerance(self) -> Option<f64> {
        self.is_narrow().then_some(2e-2)
    }

    /// Whether cases of this kind are worth its time.
    pub fn takes(self, kind: &str) -> bool {
        match self {
            // Networks take it seconds, so it runs each once.
            Engine::Reference => matches!(kind, "op" | "schedule" | "sampler" | "objective"),
            // Trajectories in bfloat16 are compared with nothing.
            Engine::Narrowed | Engine::CudaBf16 => matches!(kind, "op" | "unet2d" | "train"),
            _ => matches!(kind, "op" | "unet2d" | "network" | "train" | "sampler" | "objective"),
        }
    }

    /// # Errors
    /// If the engine cannot run such a graph.
    pub fn open(self, graph: Graph) -> Result<Box<dyn Session>> {
        match self {
            Engine::Reference => Ok(Box::new(Interpreted { graph, ..Interpreted::default() })),
            Engine::Fused | Engine::FusedForGpu | Engine::Narrowed => {
                let target = if self == Engine::Fused { &Target::ALL } else { &clearshot_cuda::TARGET };
                let mut graph = optimise(graph, target)?;
                if self == Engine::Narrowed {
                    graph = narrow(graph, DType::BF16);
                    graph.verify("precision")?;
                }
                Ok(Box::new(Interpreted { graph, ..Interpreted::default() }))
            }
            Engine::CpuPlain | Engine::Cpu => {
                let options = Options { optimise: self == Engine::Cpu, ..Options::default() };
                Ok(Box::new(compile(graph, &Device::cpu(None), &options)?))
            }
            Engine::CudaPlain | Engine::Cuda | Engine::CudaBf16 => {
                let precision = if self == Engine::CudaBf16 {
                    clearshot_runtime::Precision::Bf16
                } else {
                    clearshot_runtime::Precision::F32
                };
                let options =
                    Options { optimise: self != Engine::CudaPlain, precision, ..Options::default() };
                Ok(Box::new(compile(graph, &Device::cuda(0)?, &options)?))
            }
        }
    }
}

/// A graph that can be run again and again, with inputs, states and outputs by name.
pub trait Session {
    /// # Errors
    /// If the graph has no such input or state, or it has another shape.
    fn set(&mut self, name: &str, value: &Tensor) -> Result<()>;

    /// # Errors
    /// If an input is missing, or as the engine says.
    fn run(&mut self) -> Result<()>;

    /// # Errors
    /// If the graph has no such output or state.
    fn get(&self, name: &str) -> Result<Tensor>;
}

impl Session for clearshot_runtime::Session {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        Ok(self.set(name, value)?)
    }

    fn run(&mut self) -> Result<()> {
        Ok(self.run()?)
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        Ok(self.get(name)?)
    }
}

#[derive(Default)]
struct Interpreted {
    graph: Graph,
    values: BTreeMap<String, Array>,
    outputs: BTreeMap<String, Array>,
}

impl Session for Interpreted {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        self.values.insert(name.into(), Array::from_tensor(value));
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        self.outputs = reference::run(&self.graph, &mut self.values, Precision::Stored)?;
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        let value = self.outputs.get(name).or_else(|| self.values.get(name));
        let value = value.ok_or_else(|| format!("no output or state is called `{name}`"))?;
        Ok(value.to_tensor(DType::F32))
    }
}
