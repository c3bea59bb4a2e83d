//! `clearshot profile`: profiles a network alone ([`network`]), a training run ([`train`]) or restoring files
//! ([`restore`]).

mod network;
mod restore;
mod train;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use clearshot_timeline::{Report, Timeline};
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Profile {
    #[command(subcommand)]
    of: Option<Of>,
    #[command(flatten)]
    network: network::NetworkProfile,
}

#[derive(Subcommand)]
enum Of {
    /// Train a few iterations and say where their time and memory went: phases, loader threads, nodes, and what to do about it.
    Train(train::TrainProfile),
    /// Restore files as `restore` does, and say where the time and memory went.
    Restore(Box<restore::RestoreProfile>),
}

impl Profile {
    pub fn run(self) -> Result<()> {
        match self.of {
            None => self.network.run(),
            Some(Of::Train(v)) => v.run(),
            Some(Of::Restore(v)) => v.run(),
        }
    }
}

/// What is written and shown of a profile.
#[derive(Args)]
struct ProfileArgs {
    /// Write trace.json (for ui.perfetto.dev and chrome://tracing), stacks.txt (for flame graphs), memory.json, memory.csv and profile.json
    /// to this folder. Default: nothing is written.
    #[arg(long, value_name = "FOLDER")]
    profile: Option<PathBuf>,
    /// Replace a profile that is in the folder already.
    #[arg(long)]
    replace_profile: bool,
    /// Measure the memory before and after every phase, and look for growth. Default: times alone, and the memory of the plan.
    #[arg(long)]
    profile_memory: bool,
    /// List so many of the slowest nodes.
    #[arg(long, default_value_t = 8, value_name = "N")]
    top: usize,
}

impl ProfileArgs {
    /// # Errors
    /// If there is a profile in the folder, and it is not to be replaced.
    fn check(&self) -> Result<()> {
        match self.profile.as_deref().map(|folder| folder.join("profile.json")) {
            Some(there) if there.exists() && !self.replace_profile => {
                bail!("{} exists already; give another folder, or --replace-profile", there.display())
            }
            _ => Ok(()),
        }
    }

    fn write(&self, timeline: &Timeline, report: &Report) -> Result<()> {
        match &self.profile {
            Some(folder) => written(timeline.write(folder, report)),
            None => Ok(()),
        }
    }

    /// Where the files lie, for people.
    fn place(&self) -> String {
        match &self.profile {
            Some(folder) => format!("{}: trace.json opens in ui.perfetto.dev\n", folder.display()),
            None => String::new(),
        }
    }
}

fn written(outcome: Result<(), (PathBuf, std::io::Error)>) -> Result<()> {
    outcome.map_err(|(path, e)| anyhow::anyhow!("{}: {e}", path.display()))
}

/// Copies the files of a profile.
fn copied(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)?.flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
