//! Which rank a process is and how it finds the others, from the variables of whoever started it: `clearshot train --devices`, mpiexec (PMI), srun, torchrun.

use crate::{CollectiveError, Result};

/// What the process that started this one says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub rank: usize,
    pub size: usize,
    /// The name of who started it: its variables' family.
    pub by: &'static str,
    pub way: Way,
    /// Tells the processes of one job from those of another that use the same port.
    pub job: String,
}

/// How ranks find each other. There is one way for each launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the MPI library that mpiexec or srun has prepared.
    Mpi,
    /// At a port of this machine, where the process that started them listens.
    Parent(u16),
    /// At a port where rank 0 listens.
    First(Place),
    /// At a port that rank 0 writes into torchrun's store, which listens here.
    Store(Place),
}

/// A machine and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: String,
    pub port: u16,
}

impl Place {
    /// Whether no other machine reaches it.
    pub fn is_local(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Variables of `clearshot train --devices`: rank, number of ranks, the port where the starting process listens, and the job.
pub const OWN: [&str; 4] = ["CLEARSHOT_RANK", "CLEARSHOT_RANKS", "CLEARSHOT_PORT", "CLEARSHOT_JOB"];

/// Rank and size of each launcher, the innermost first: `--devices` may run inside of an srun, and srun sets PMI's variables where it prepares MPI.
const FAMILIES: [(&str, [&str; 2]); 4] = [
    ("clearshot", [OWN[0], OWN[1]]),
    ("mpiexec", ["PMI_RANK", "PMI_SIZE"]),
    // A batch script has SLURM_PROCID and SLURM_NTASKS too; only srun's processes have a step of their own.
    ("srun", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]),
    ("torchrun", ["RANK", "WORLD_SIZE"]),
];

/// What srun sets where it prepares MPI without PMI_RANK.
const PREPARED: [&str; 3] = ["PMIX_NAMESPACE", "PMIX_RANK", "PMI_CONTROL_PORT"];

/// Ports for Slurm's jobs: the first, and how many.
const SLURM_PORTS: [u64; 2] = [12_000, 20_000];

impl Launch {
    /// Nothing where the process was started alone.
    ///
    /// # Errors
    /// If a variable has a value that is not possible, or is missing.
    pub fn from_environment() -> Result<Option<Launch>> {
        Launch::from(&|name| std::env::var(name).ok())
    }

    fn from(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
        for (by, [rank, size]) in FAMILIES {
            let (Some(r), Some(s)) = (variable(rank), variable(size)) else { continue };
            let (r, s) = (number(by, rank, &r)?, number(by, size, &s)?);
            if r >= s {
                return Err(CollectiveError::Launch(format!(
                    "{rank}={r} and {size}={s}: ranks are numbered from 0 to {size} - 1; start all processes with the same {size}"
                )));
            }
            let way = if s == 1 { Way::Mpi } else { way(by, variable)? };
            let text = |name: &str| variable(name).unwrap_or_default();
            let job = match by {
                "clearshot" => text(OWN[3]),
                "srun" => format!("{}.{}", text("SLURM_JOB_ID"), text("SLURM_STEP_ID")),
                _ => ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"].map(text).join("."),
            };
            return Ok(Some(Launch { rank: r, size: s, by, way, job }));
        }
        Ok(None)
    }
}

fn number<T: std::str::FromStr>(by: &str, name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| {
        CollectiveError::Launch(format!("{name}={text}, which {by} sets, is not a whole number in its range"))
    })
}

fn way(by: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Way> {
    let port = |name: &str| variable(name).map(|text| number(by, name, &text)).transpose();
    let missing = |name: &str, example: &str| {
        CollectiveError::Launch(format!(
            "{name} is not set, and {by}'s ranks find each other by it; set {name}={example} on all ranks"
        ))
    };
    match by {
        "mpiexec" => Ok(Way::Mpi),
        "clearshot" => Ok(Way::Parent(port(OWN[2])?.ok_or_else(|| missing(OWN[2], "PORT"))?)),
        "srun" if PREPARED.iter().any(|name| variable(name).is_some()) => Ok(Way::Mpi),
        "srun" => {
            let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"].into_iter().find_map(variable);
            let first = || nodes.as_deref().and_then(first_host);
            let host = variable("MASTER_ADDR").or_else(first);
            let host = host.ok_or_else(|| missing("MASTER_ADDR", "the machine of rank 0"))?;
            let id = |name: &str| variable(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let of_job = SLURM_PORTS[0] + (id("SLURM_JOB_ID") + 31 * id("SLURM_STEP_ID")) % SLURM_PORTS[1];
            let port = port("MASTER_PORT")?.unwrap_or(of_job as u16);
            Ok(Way::First(Place { host, port }))
        }
        _ => {
            let host =
                variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR", "the machine of rank 0"))?;
            let port = port("MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT", "a free port of it"))?;
            let place = Place { host, port };
            // Then torchrun itself listens there.
            let has_store = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text == "True");
            Ok(if has_store { Way::Store(place) } else { Way::First(place) })
        }
    }
}

/// The first machine of a list as Slurm writes it: `gpu[03-05,9],cpu1`.
fn first_host(nodes: &str) -> Option<String> {
    let (first, rest) = match nodes.split_once('[') {
        Some((before, inside)) if !before.contains(',') => (before, inside),
        _ => return nodes.split(',').next().map(str::to_string).filter(|host| !host.is_empty()),
    };
    let (inside, behind) = rest.split_once(']')?;
    let number = inside.split([',', '-']).next()?;
    // A cluster's full names have the number in the middle.
    Some(format!("{first}{number}{}", behind.split(',').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
        let found = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Launch::from(&found)
    }

    fn first(host: &str, port: u16) -> Way {
        Way::First(Place { host: host.into(), port })
    }

    #[test]
    fn each_launcher_says_which_rank_and_where() {
        assert_eq!(read(&[]), Ok(None));
        // A batch script's own process is not a rank of anything.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Ok(None));
        let of = |v: &[(&str, &str)]| read(v).unwrap().map(|l| (l.by, l.rank, l.size, l.way));
        let torchrun =
            [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        assert_eq!(of(&torchrun), Some(("torchrun", 3, 4, first("node7", 29500))));
        let store = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert!(matches!(of(&store), Some(("torchrun", 3, 4, Way::Store(_)))));
        let srun = [
            ("SLURM_PROCID", "2"),
            ("SLURM_STEP_NUM_TASKS", "6"),
            ("SLURM_JOB_ID", "20005"),
            ("SLURM_STEP_ID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[03-05,9],cpu1"),
        ];
        assert_eq!(of(&srun), Some(("srun", 2, 6, first("gpu03", 12_036))));
        let named = [&srun[..], &[("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "5")]].concat();
        assert_eq!(of(&named), Some(("srun", 2, 6, first("10.0.0.1", 5))));
        let prepared = [&srun[..], &[("PMIX_RANK", "2")]].concat();
        assert_eq!(of(&prepared), Some(("srun", 2, 6, Way::Mpi)));
        // srun with PMI: what MPI goes by comes first.
        let both = [&srun[..], &[("PMI_RANK", "2"), ("PMI_SIZE", "6")]].concat();
        assert_eq!(of(&both), Some(("mpiexec", 2, 6, Way::Mpi)));
        // Processes of --devices inside of an srun.
        let inside = [&both[..], &[(OWN[0], "1"), (OWN[1], "2"), (OWN[2], "4000")]].concat();
        assert_eq!(of(&inside), Some(("clearshot", 1, 2, Way::Parent(4000))));
    }

    #[test]
    fn slurms_lists_begin_with_a_machine() {
        for (list, host) in [
            ("node7", "node7"),
            ("a,b[1-2]", "a"),
            ("n[1-4]", "n1"),
            ("n[08,12].cluster,x", "n08.cluster"),
            ("rack2-n[003-007]", "rack2-n003"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn what_cannot_be_names_the_variable() {
        let text = |v: &[(&str, &str)]| read(v).unwrap_err().to_string();
        assert!(text(&[("RANK", "4"), ("WORLD_SIZE", "4")]).starts_with("RANK=4 and WORLD_SIZE=4"));
        assert!(text(&[("RANK", "x"), ("WORLD_SIZE", "4")]).starts_with("RANK=x"));
        let two = [("RANK", "1"), ("WORLD_SIZE", "2")];
        assert!(text(&two).starts_with("MASTER_ADDR is not set"));
        let no_port = [&two[..], &[("MASTER_ADDR", "here")]].concat();
        assert!(text(&no_port).starts_with("MASTER_PORT is not set"));
        let large = [&no_port[..], &[("MASTER_PORT", "70000")]].concat();
        assert!(text(&large).starts_with("MASTER_PORT=70000"));
    }
}
