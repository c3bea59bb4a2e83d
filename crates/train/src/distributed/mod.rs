//! Training over several ranks: processes that run the same graph on samples of their own and average gradients.
//!
//! What is decided on the way (when to stop, which checkpoint to go back to, how many seconds are gone) is decided by rank 0 and shared, or follows on every rank from
//! the same numbers; states are the same bits everywhere. Rank 0 alone writes: records, checkpoints and models.

mod backend;
mod carrier;
mod compress;
mod exchanger;

pub use carrier::Carrier;
pub(crate) use compress::PREFIX as KEPT;
pub use compress::values_sent;
pub use exchanger::Travelled;

pub use clearshot_collectives::{Fault, Launch, Meeting, Peer, Way};

use crate::checkpoint::{Progress, Saved};
use crate::config::RunConfig;
use crate::error::{Result, TrainError};
use clearshot_collectives::mpi::Mpi;
use clearshot_collectives::tcp::Tcp;
use clearshot_collectives::{Collective, CollectiveError, Hello};
use clearshot_runtime::{Communicator, Device, gpus};
use clearshot_tensor::store::Store;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The ranks of a run, as one of them sees the others.
#[derive(Clone, Default)]
pub struct Ranks {
    collective: Option<Arc<dyn Collective>>,
    peers: Vec<Peer>,
    /// From GPU to GPU, where gradients travel so.
    communicator: Option<Arc<Communicator>>,
    /// Ranks that share this one's GPU, with it.
    on_this_device: usize,
    /// What whoever trains should know of them.
    pub notes: Vec<String>,
}

impl Ranks {
    /// One process alone.
    pub fn alone() -> Ranks {
        Ranks::default()
    }

    /// Ranks that belong together already; checks that they fit.
    ///
    /// # Errors
    /// The same on every rank: which rank differs in what.
    pub fn of(collective: Arc<dyn Collective>, config: &RunConfig) -> Result<Ranks> {
        if collective.size() == 1 {
            return Ok(Ranks::alone());
        }
        let hello = Hello {
            version: env!("CARGO_PKG_VERSION").into(),
            expected: expected(config),
            agreed: agreed(config),
            peer: Peer::here(),
        };
        let peers = hello.exchange(&*collective)?;
        Ok(Ranks { collective: Some(collective), peers, ..Ranks::default() })
    }

    /// The ranks that this process was started among; alone, where it was not.
    ///
    /// # Errors
    /// If they do not fit together, or cannot reach each other.
    pub fn join(config: &RunConfig) -> Result<Ranks> {
        let Some(launch) = Launch::from_environment()?.filter(|l| l.size > 1) else {
            return match expected(config) {
                Some(ranks) => Err(CollectiveError::Launch(format!(
                    "trainer.devices x trainer.nodes is {ranks}, and this process was started alone; start them by `clearshot train --devices N` on one \
                     machine, or by torchrun, srun or mpiexec with the same command"
                ))
                .into()),
                None => Ok(Ranks::alone()),
            };
        };
        let all: Arc<dyn Collective> = match launch.way {
            Way::Mpi => Arc::new(Mpi::start()?),
            _ => Arc::new(Tcp::start(&launch, Duration::from_secs(config.distributed.wait))?),
        };
        if launch.size != all.size() {
            return Err(CollectiveError::Launch(format!(
                "{} says that there are {} ranks, and MPI knows of {}: start them by the mpiexec that belongs to the MPI library, or by srun --mpi=pmi2",
                launch.by,
                launch.size,
                all.size()
            ))
            .into());
        }
        let mut ranks = Ranks::of(Arc::clone(&all), config)?;
        if !all.watch(&ranks.peers)? {
            ranks.notes.push(
                "the ranks cannot reach each other over the network: one that dies is noticed by who started them alone".into(),
            );
        }
        Ok(ranks)
    }

    pub fn rank(&self) -> usize {
        self.collective.as_ref().map_or(0, |c| c.rank())
    }

    pub fn size(&self) -> usize {
        self.collective.as_ref().map_or(1, |c| c.size())
    }

    /// Whether this one writes and decides.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Ranks on this machine, which share its processors.
    pub fn on_this_machine(&self) -> usize {
        let here = self.peers.get(self.rank()).map(|p| &p.host);
        self.peers.iter().filter(|p| Some(&p.host) == here).count().max(1)
    }

    /// Ranks that share this one's device, as far as it is a GPU.
    pub fn on_this_device(&self) -> usize {
        self.on_this_device.max(1)
    }

    /// The rank among those of this machine.
    fn local_rank(&self) -> usize {
        let here = self.peers.get(self.rank()).map(|p| &p.host);
        self.peers.iter().take(self.rank()).filter(|p| Some(&p.host) == here).count()
    }

    /// In words, for a rank by its number.
    pub fn named(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.peers.get(rank).cloned().unwrap_or_default())
    }

    pub(crate) fn collective(&self) -> Option<&Arc<dyn Collective>> {
        self.collective.as_ref()
    }

    /// What rank 0 has.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn from_first(&self, own: &[u8]) -> Result<Vec<u8>> {
        match &self.collective {
            Some(all) => Ok(all.broadcast(0, own)?),
            None => Ok(own.to_vec()),
        }
    }

    /// What rank 0 finds.
    ///
    /// # Errors
    /// As [`Ranks::from_first`].
    pub fn decided(&self, own: bool) -> Result<bool> {
        if self.collective.is_none() {
            return Ok(own);
        }
        Ok(self.from_first(&[u8::from(own)])? == [1])
    }

    /// What rank 0's clock says.
    ///
    /// # Errors
    /// As [`Ranks::from_first`].
    pub fn timed(&self, own: f64) -> Result<f64> {
        if self.collective.is_none() {
            return Ok(own);
        }
        let bytes = self.from_first(&own.to_le_bytes())?;
        Ok(<[u8; 8]>::try_from(&bytes[..]).map_or(own, f64::from_le_bytes))
    }

    /// Numbers of every rank, in their order.
    ///
    /// # Errors
    /// As [`Ranks::from_first`].
    pub fn gathered(&self, own: &[f64]) -> Result<Vec<Vec<f64>>> {
        let Some(all) = &self.collective else { return Ok(vec![own.to_vec()]) };
        let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
        let read =
            |bytes: &Vec<u8>| bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
        Ok(all.all_gather(&bytes)?.iter().map(read).collect())
    }

    /// Refuses what is not the same on every rank.
    ///
    /// # Errors
    /// Which rank has another one.
    pub fn same(&self, what: &str, own: &str) -> Result<()> {
        let Some(all) = &self.collective else { return Ok(()) };
        let texts = all.all_gather(own.as_bytes())?;
        match texts.iter().position(|text| text != &texts[0]) {
            Some(other) => {
                let why = format!("{} has other {what} than {}", self.named(other), self.named(0));
                Err(CollectiveError::Mismatch(why).into())
            }
            None => Ok(()),
        }
    }

    /// What rank 0 read of a checkpoint, on all ranks, which need not see its folder.
    ///
    /// # Errors
    /// What kept rank 0 from reading it, on every rank.
    pub fn share_saved(&self, found: Result<Option<Saved>>) -> Result<Option<Saved>> {
        let Some(all) = &self.collective else { return found };
        if !self.is_first() {
            let note = all.broadcast(0, &[])?;
            let states = all.broadcast(0, &[])?;
            let note: Note = serde_json::from_slice(&note).map_err(unreadable)?;
            return match note {
                Note::Refused(why) => Err(TrainError::Elsewhere { rank: self.named(0), why }),
                Note::Nothing => Ok(None),
                Note::Saved { path, config, progress } => {
                    let states = Store::parse(&states, &path)?.tensors;
                    Ok(Some(Saved { path, config: *config, progress: *progress, states }))
                }
            };
        }
        let (note, states) = match &found {
            Err(e) => (Note::Refused(e.to_string()), vec![]),
            Ok(None) => (Note::Nothing, vec![]),
            Ok(Some(saved)) => {
                let file = saved.path.join(crate::checkpoint::STATES);
                let states = std::fs::read(&file).map_err(crate::error::io(&file))?;
                let (config, progress) = (Box::new(saved.config.clone()), Box::new(saved.progress.clone()));
                (Note::Saved { path: saved.path.clone(), config, progress }, states)
            }
        };
        all.broadcast(0, &serde_json::to_vec(&note).map_err(unreadable)?)?;
        all.broadcast(0, &states)?;
        found
    }

    /// Lets an error of this rank end all others, which are told of it. What another rank said is passed on as it is.
    pub fn end_on_error<T>(&self, result: Result<T>) -> Result<T> {
        if let (Err(e), Some(all)) = (&result, &self.collective)
            && !matches!(e, TrainError::Ranks(_) | TrainError::Elsewhere { .. })
        {
            all.abort(&e.to_string());
        }
        result
    }

    /// Leaves the others, when every rank is done.
    ///
    /// # Errors
    /// If one is gone.
    pub fn finish(&self) -> Result<()> {
        match &self.collective {
            Some(all) => Ok(all.finish()?),
            None => Ok(()),
        }
    }

    /// A device for one of the ranks of this machine: the processors are shared out, and GPUs, unless one is named; where there are more ranks than GPUs, some share one.
    pub fn share_of(&self, device: Device, config: &RunConfig) -> Device {
        match device {
            Device::Cpu { threads, level } if config.performance.threads == 0 => {
                Device::Cpu { threads: (threads / self.on_this_machine()).max(1), level }
            }
            Device::Cuda { .. } if self.size() > 1 && !config.trainer.device.starts_with("cuda:") => {
                let all = gpus().unwrap_or_default();
                match all.len() {
                    0 => device,
                    n => Device::Cuda { ordinal: all[self.local_rank() % n].ordinal },
                }
            }
            other => other,
        }
    }
}

/// What rank 0 tells of a checkpoint.
#[derive(serde::Serialize, serde::Deserialize)]
enum Note {
    Nothing,
    Refused(String),
    Saved { path: PathBuf, config: Box<RunConfig>, progress: Box<Progress> },
}

fn unreadable(e: serde_json::Error) -> TrainError {
    let reason = format!("what rank 0 tells of it cannot be read: {e}");
    TrainError::Checkpoint { path: Path::new("checkpoint").into(), reason }
}

/// How many ranks the configuration asks for; none where it leaves that to who starts them.
fn expected(config: &RunConfig) -> Option<usize> {
    let t = &config.trainer;
    Some(t.devices.max(1) * t.nodes.max(1)).filter(|n| *n > 1)
}

/// Keys that may differ from rank to rank, with all below them.
const OWN: [&str; 2] = ["performance", "trainer.device"];

/// Every key with its value.
fn agreed(config: &RunConfig) -> Vec<(String, String)> {
    fn walk(key: String, value: &Json, all: &mut Vec<(String, String)>) {
        match value {
            _ if OWN.contains(&key.as_str()) => {}
            Json::Object(map) => {
                let join =
                    |name: &String| if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                map.iter().for_each(|(name, value)| walk(join(name), value, all));
            }
            other => all.push((key, other.to_string())),
        }
    }
    let mut all = vec![];
    walk(String::new(), &serde_json::to_value(config).unwrap_or_default(), &mut all);
    all
}
