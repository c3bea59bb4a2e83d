//! What the ranks of a data-parallel training say to each other.
//!
//! [`Collective`] is all that training needs: sums, broadcasts, gathering, waiting for all. [`mpi`] moves the bytes by an MPI library that is found at
//! run time, [`tcp`] by plain connections where there is no MPI, [`threads`] between threads of one process, for tests. All add in the order of ranks, each element on one rank, so
//! results are the same bits from run to run, whatever algorithm a library would have chosen for its own reductions, and the same bits with all three.
//!
//! [`launch`] reads from the environment which rank a process is and how it finds the others; [`meeting`] is where they find each other without MPI, with torchrun by its [`store`];
//! [`hello`] is the first exchange, in which ranks that do not fit together find out; [`watch`] tells the others who died.

pub mod hello;
pub mod launch;
pub mod meeting;
mod message;
pub mod mpi;
pub mod store;
pub mod tcp;
pub mod threads;
pub mod watch;

pub use hello::{Hello, Peer};
pub use launch::{Launch, Way};
pub use meeting::Meeting;
pub use watch::Fault;

use half::{bf16, f16};

/// What can go wrong between ranks.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CollectiveError {
    #[error("no MPI library that can be used: {0}")]
    Library(String),
    #[error("{function} failed: {reason}")]
    Call { function: &'static str, reason: String },
    #[error("{0}")]
    Launch(String),
    #[error("the ranks do not fit together: {0}")]
    Mismatch(String),
    #[error("{0}")]
    Fault(Fault),
}

pub type Result<T> = std::result::Result<T, CollectiveError>;

/// What a rank can do together with all others. Every rank calls the same functions in the same order, with values of the same length where they are added.
pub trait Collective: Send + Sync {
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// What moves the bytes, in a word.
    fn transport(&self) -> &'static str;

    /// The bytes of every rank, in their order; they may be of different lengths.
    ///
    /// # Errors
    /// If a rank is gone, or what the library says.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Replaces values by their sums over ranks.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn sum_f32(&self, values: &mut [f32]) -> Result<()> {
        let all = self.all_gather(bytes_of(values))?;
        add_in_order(values, &all)
    }

    /// Replaces values by their sums over ranks.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn sum_f64(&self, values: &mut [f64]) -> Result<()> {
        let all = self.all_gather(bytes_of(values))?;
        add_in_order(values, &all)
    }

    /// Replaces values in 16 bits by their sums over ranks, each sum rounded.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn sum_bf16(&self, values: &mut [bf16]) -> Result<()> {
        let all = self.all_gather(bytes_of(values))?;
        add_in_order(values, &all)
    }

    /// Replaces values in 16 bits by their sums over ranks, each sum rounded.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn sum_f16(&self, values: &mut [f16]) -> Result<()> {
        let all = self.all_gather(bytes_of(values))?;
        add_in_order(values, &all)
    }

    /// The bytes that one rank has.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn broadcast(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        let own: &[u8] = if self.rank() == root { bytes } else { &[] };
        Ok(self.all_gather(own)?.swap_remove(root))
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    /// As [`Collective::all_gather`].
    fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Ends all ranks, which are told why.
    fn abort(&self, why: &str);

    /// Lets ranks hear of each other's end. Says whether they do; where not, only who started them knows.
    ///
    /// # Errors
    /// What went wrong with arranging it.
    fn watch(&self, _peers: &[Peer]) -> Result<bool> {
        Ok(true)
    }

    /// Who is gone or has ended all, as far as this rank has heard. May be asked by any thread, beside what else is under way.
    fn fault(&self) -> Option<Fault> {
        None
    }

    /// Leaves the others as it should, when every rank has come so far.
    ///
    /// # Errors
    /// If one is gone.
    fn finish(&self) -> Result<()> {
        self.barrier()
    }

    /// Bytes that this rank has sent so far.
    fn bytes_sent(&self) -> u64;
}

/// Plain numbers that travel as their bytes.
///
/// # Safety
/// Every bit pattern is a value, and there is no padding.
pub unsafe trait Plain: Copy + Default + std::ops::AddAssign {}
// SAFETY: floats have no padding, and all of their bit patterns are floats.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}

pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain`: no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub(crate) fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: `Plain`: no padding, and all bit patterns are values.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Values of a part that is added at once, so that it stays in the processor's cache.
const PART: usize = 4096;

/// Sums of what ranks have, the first one's first.
pub(crate) fn add_in_order<T: Plain>(sums: &mut [T], all: &[impl AsRef<[u8]>]) -> Result<()> {
    let bytes = size_of_val(sums);
    if let Some(rank) = all.iter().position(|given| given.as_ref().len() != bytes) {
        let given = all[rank].as_ref().len();
        return Err(CollectiveError::Mismatch(format!(
            "rank {rank} adds {given} bytes where this rank adds {bytes}"
        )));
    }
    let mut given = vec![T::default(); sums.len().min(PART)];
    for (i, sums) in sums.chunks_mut(PART).enumerate() {
        let given = &mut given[..sums.len()];
        let at = i * PART * size_of::<T>();
        for (rank, bytes) in all.iter().enumerate() {
            bytes_of_mut(given).copy_from_slice(&bytes.as_ref()[at..at + size_of_val(sums)]);
            match rank {
                0 => sums.copy_from_slice(given),
                _ => sums.iter_mut().zip(&*given).for_each(|(sum, x)| *sum += *x),
            }
        }
    }
    Ok(())
}
