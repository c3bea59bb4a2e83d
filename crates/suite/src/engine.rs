//! Who runs a case's graph. The suite knows engines only through [`Session`].

use crate::Result;
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
    /// The CPU's kernels, on the graph as it was built.
    CpuPlain,
    /// The CPU's kernels as the product uses them.
    Cpu,
}

/// Every engine, in the order in which they run.
pub const ENGINES: &[Engine] = &[Engine::Reference, Engine::Fused, Engine::CpuPlain, Engine::Cpu];

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Engine::Reference => "reference",
            Engine::Fused => "fused",
            Engine::CpuPlain => "cpu plain",
            Engine::Cpu => "cpu",
        }
    }

    /// Whether cases of this kind are worth its time.
    pub fn takes(self, kind: &str) -> bool {
        match self {
            // Networks take it seconds, so it runs each once.
            Engine::Reference => matches!(kind, "op" | "schedule" | "sampler" | "objective"),
            Engine::Fused | Engine::CpuPlain | Engine::Cpu => {
                matches!(kind, "op" | "unet2d" | "train" | "sampler" | "objective")
            }
        }
    }

    /// # Errors
    /// If the engine cannot run such a graph.
    pub fn open(self, graph: Graph) -> Result<Box<dyn Session>> {
        match self {
            Engine::Reference => Ok(Box::new(Interpreted { graph, ..Interpreted::default() })),
            Engine::Fused => {
                let graph = optimise(graph, &Target::ALL)?;
                Ok(Box::new(Interpreted { graph, ..Interpreted::default() }))
            }
            Engine::CpuPlain | Engine::Cpu => {
                let options = Options { optimise: self == Engine::Cpu, ..Options::default() };
                Ok(Box::new(compile(graph, &Device::cpu(None), &options)?))
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
        self.outputs = reference::run(&self.graph, &mut self.values, Precision::F32)?;
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        let value = self.outputs.get(name).or_else(|| self.values.get(name));
        let value = value.ok_or_else(|| format!("no output or state is called `{name}`"))?;
        Ok(value.to_tensor(DType::F32))
    }
}
