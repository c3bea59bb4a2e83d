//! What carries a run's buckets: a thread of the host's ([`Exchanger`]), or NCCL, which averages them on the GPUs inside of the run itself.

use super::Ranks;
use super::exchanger::{Exchanger, Travelled};
use crate::config::{Compression, RunConfig};
use crate::error::{Result, TrainError};
use clearshot_collectives::{Collective, CollectiveError};
use clearshot_graph::train::is_of_gradients;
use clearshot_graph::{Graph, Op};
use clearshot_nn::Weights;
use clearshot_runtime::{Communicator, Session, ValueError};
use clearshot_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub enum Carrier {
    Host(Exchanger),
    Nccl(OverNccl),
}

/// What is counted of exchanges on the GPUs.
pub struct OverNccl {
    collective: Arc<dyn Collective>,
    communicator: Arc<Communicator>,
    /// Of one run: values of gradients, of others, and the bytes of each of the two.
    values: [u64; 2],
    widths: [u64; 2],
    /// Runs that were begun, and those of them in which gradients travelled.
    runs: AtomicU64,
    last_runs: AtomicU64,
}

impl Carrier {
    /// For the buckets of a session, which is told of it; nothing of one rank.
    ///
    /// # Errors
    /// If the device has not the memory, or ranks would exchange in different orders.
    pub fn of(ranks: &Ranks, session: &mut Session, config: &RunConfig) -> Result<Option<Carrier>> {
        let Some(all) = ranks.collective() else { return Ok(None) };
        // Whoever carries them counts on every rank to hand them over alike.
        ranks.same("buckets of gradients", &order(&session.plan().graph))?;
        let Some(communicator) = &ranks.communicator else {
            let exchanger = Exchanger::new(&session.plan().graph, all, config);
            session.set_exchange(exchanger.exchange())?;
            return Ok(Some(Carrier::Host(exchanger)));
        };
        let dtype = match config.distributed.compression {
            Compression::Bf16 => DType::BF16,
            Compression::Fp16 => DType::F16,
            Compression::None | Compression::Powersgd => DType::F32,
        };
        session.set_communicator(Arc::clone(communicator), dtype, config.distributed.overlap)?;
        Ok(Some(Carrier::Nccl(OverNccl {
            collective: Arc::clone(all),
            communicator: Arc::clone(communicator),
            values: values(&session.plan().graph),
            widths: [dtype.bytes() as u64, DType::F32.bytes() as u64],
            runs: AtomicU64::new(0),
            last_runs: AtomicU64::new(0),
        })))
    }

    /// What the next run of the graph is.
    pub fn begin_run(&self, iteration: u64, is_last: bool) {
        match self {
            Carrier::Host(exchanger) => exchanger.begin_run(iteration, is_last),
            Carrier::Nccl(nccl) => {
                nccl.runs.fetch_add(1, Ordering::Relaxed);
                nccl.last_runs.fetch_add(u64::from(is_last), Ordering::Relaxed);
            }
        }
    }

    /// After a run, and after its results were read.
    ///
    /// # Errors
    /// Why values did not come back: what was computed is not to be used.
    pub fn check(&self) -> Result<()> {
        match self {
            Carrier::Host(exchanger) => exchanger.check(),
            Carrier::Nccl(nccl) => match nccl.collective.fault() {
                Some(fault) => Err(CollectiveError::Fault(fault).into()),
                None => nccl.communicator.check().map_err(|e| TrainError::Value(ValueError::from(e))),
            },
        }
    }

    pub fn travelled(&self) -> Travelled {
        match self {
            Carrier::Host(exchanger) => exchanger.travelled(),
            Carrier::Nccl(nccl) => nccl.travelled(),
        }
    }

    /// What compression keeps from iteration to iteration, of all ranks; 16 bits keep nothing.
    ///
    /// # Errors
    /// If a rank is gone.
    pub fn states(&self) -> Result<Weights> {
        match self {
            Carrier::Host(exchanger) => exchanger.states(),
            Carrier::Nccl(_) => Ok(Weights::new()),
        }
    }

    /// Goes on with what was kept. Says whether all of it fits.
    pub fn load(&self, states: &Weights) -> bool {
        match self {
            Carrier::Host(exchanger) => exchanger.load(states),
            Carrier::Nccl(_) => true,
        }
    }
}

impl OverNccl {
    fn travelled(&self) -> Travelled {
        let times = [&self.last_runs, &self.runs].map(|n| n.load(Ordering::Relaxed));
        let size = self.communicator.size() as u64;
        // As many as a ring sends, whatever way NCCL takes.
        let bytes: u64 = (0..2).map(|i| times[i] * self.values[i] * self.widths[i]).sum();
        let values = times[0] * self.values[0];
        Travelled { waited: None, bytes: 2 * (size - 1) * bytes / size, values, sent_values: values }
    }
}

/// Values of gradients and of other buckets.
fn values(graph: &Graph) -> [u64; 2] {
    let mut values = [0; 2];
    for node in &graph.nodes {
        if let Op::AllReduceBegin(a) = node.op {
            let count: usize = node.inputs.iter().map(|v| graph.shape(*v).len()).sum();
            values[usize::from(!is_of_gradients(a.bucket))] += count as u64;
        }
    }
    values
}

/// Buckets in the order in which they are handed over, with their lengths.
fn order(graph: &Graph) -> String {
    let bucket = |node: &clearshot_graph::Node| match node.op {
        Op::AllReduceBegin(a) => {
            let count: usize = node.inputs.iter().map(|v| graph.shape(*v).len()).sum();
            Some(format!("{}:{count}", a.bucket))
        }
        _ => None,
    };
    graph.nodes.iter().filter_map(bucket).collect::<Vec<_>>().join(" ")
}
