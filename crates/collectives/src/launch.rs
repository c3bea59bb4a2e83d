//! Which rank a process is, from the variables of who started it: mpiexec (PMI), srun, torchrun.

use crate::{CollectiveError, Result};

/// Who started the process, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub rank: usize,
    pub size: usize,
    /// The rank among those of the same machine, where it is known.
    pub local_rank: Option<usize>,
    /// How many ranks share the machine, where it is known.
    pub local_size: Option<usize>,
    /// The name of who started it: its variables' family.
    pub by: &'static str,
}

/// Rank, size, rank on the machine, ranks on the machine.
const FAMILIES: [(&str, [&str; 4]); 3] = [
    ("mpiexec", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // A batch script has SLURM_PROCID and SLURM_NTASKS too; only srun's processes have a step of their own.
    ("srun", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
    ("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
];

impl Launch {
    /// Nothing where the process was started alone.
    ///
    /// # Errors
    /// If a variable says what cannot be.
    pub fn from_environment() -> Result<Option<Launch>> {
        Launch::from(|name| std::env::var(name).ok())
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        for (by, [rank, size, local_rank, local_size]) in FAMILIES {
            let (Some(r), Some(s)) = (variable(rank), variable(size)) else { continue };
            let number = |name: &str, text: &str| {
                text.trim().parse::<usize>().map_err(|_| {
                    CollectiveError::Launch(format!("{name}={text}, which {by} sets, is not a whole number"))
                })
            };
            let (r, s) = (number(rank, &r)?, number(size, &s)?);
            if r >= s {
                return Err(CollectiveError::Launch(format!(
                    "{rank}={r} and {size}={s}: ranks are numbered from 0 to {size} - 1; start all processes with the same {size}"
                )));
            }
            // srun writes the number for each node as 4(x2); of one machine it is plain.
            let local = |name: &str| variable(name).and_then(|text| text.trim().parse().ok());
            let (local_rank, local_size) = (local(local_rank), local(local_size));
            return Ok(Some(Launch { rank: r, size: s, local_rank, local_size, by }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
        let found = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Launch::from(found)
    }

    #[test]
    fn each_launcher_says_which_rank() {
        assert_eq!(read(&[]), Ok(None));
        // A batch script's own process is not a rank of anything.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Ok(None));
        let of = |v: &[(&str, &str)]| read(v).unwrap().map(|l| (l.by, l.rank, l.size, l.local_rank));
        assert_eq!(
            of(&[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")]),
            Some(("torchrun", 3, 4, Some(1)))
        );
        assert_eq!(of(&[("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "6")]), Some(("srun", 2, 6, None)));
        // srun with PMI: what MPI goes by comes first.
        let both =
            [("SLURM_PROCID", "2"), ("SLURM_STEP_NUM_TASKS", "6"), ("PMI_RANK", "2"), ("PMI_SIZE", "6")];
        assert_eq!(of(&both), Some(("mpiexec", 2, 6, None)));
    }

    #[test]
    fn what_cannot_be_names_the_variable() {
        let text = |v: &[(&str, &str)]| read(v).unwrap_err().to_string();
        assert!(text(&[("RANK", "4"), ("WORLD_SIZE", "4")]).starts_with("RANK=4 and WORLD_SIZE=4"));
        assert!(text(&[("RANK", "x"), ("WORLD_SIZE", "4")]).starts_with("RANK=x"));
    }
}
