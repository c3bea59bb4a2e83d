//! `clearshot dump`: prints graphs and plans as text.

use crate::network::NetworkArgs;
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::io::Write;

#[derive(Clone, Copy, ValueEnum)]
enum Stage {
    /// As the network was built.
    Built,
    /// After all passes.
    Graph,
    /// With the place of every value.
    Plan,
}

#[derive(Args)]
pub struct Dump {
    #[command(flatten)]
    network: NetworkArgs,
    /// Print the graph or the plan.
    #[arg(long, value_enum, default_value = "graph")]
    stage: Stage,
}

impl Dump {
    pub fn run(self) -> Result<()> {
        let network = self.network.build()?;
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        if let Stage::Built = self.stage {
            write!(out, "{}", network.graph)?;
            out.flush()?;
            return Ok(());
        }
        let plan = clearshot_runtime::plan(network.graph, &self.network.device()?, &self.network.options())?;
        match self.stage {
            Stage::Plan => write!(out, "{plan}")?,
            _ => write!(out, "{}", plan.graph)?,
        }
        out.flush()?;
        Ok(())
    }
}
