//! The first exchange: every rank says what it is, and all find out together whether they fit.

use crate::{Collective, CollectiveError, Result};
use serde::{Deserialize, Serialize};

/// What a rank says of itself. What must be equal on all ranks is `version`, `expected` and `agreed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Of the program.
    pub version: String,
    /// How many ranks it was told that there are; none for however many come.
    pub expected: Option<usize>,
    /// Names and texts that must be the same everywhere: parts of the configuration.
    pub agreed: Vec<(String, String)>,
    pub peer: Peer,
}

/// Where a rank runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    pub host: String,
    pub process: u32,
}

impl Peer {
    /// This process.
    pub fn here() -> Peer {
        Peer { host: host_name(), process: std::process::id() }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.process, self.host)
    }
}

#[cfg(unix)]
fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer and its length, one byte of which stays a zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|b| *b == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

impl Hello {
    /// Exchanges them: where all ranks run.
    ///
    /// # Errors
    /// The same on every rank: which rank differs in what.
    pub fn exchange(&self, ranks: &dyn Collective) -> Result<Vec<Peer>> {
        let own = serde_json::to_vec(self).unwrap_or_default();
        let all: Vec<std::result::Result<Hello, String>> = ranks
            .all_gather(&own)?
            .iter()
            .map(|bytes| serde_json::from_slice(bytes).map_err(|e| e.to_string()))
            .collect();
        match fitting(&all) {
            Ok(peers) => Ok(peers),
            Err(why) => Err(CollectiveError::Mismatch(why)),
        }
    }
}

fn fitting(all: &[std::result::Result<Hello, String>]) -> std::result::Result<Vec<Peer>, String> {
    let mut hellos = vec![];
    for (rank, hello) in all.iter().enumerate() {
        match hello {
            Ok(hello) => hellos.push(hello),
            Err(e) => {
                return Err(format!(
                    "what rank {rank} says of itself cannot be read ({e}): it runs another version of the program"
                ));
            }
        }
    }
    let Some(first) = hellos.first() else { return Ok(vec![]) };
    for (rank, hello) in hellos.iter().enumerate() {
        let at = format!("rank {rank} ({})", hello.peer);
        if hello.version != first.version {
            return Err(format!(
                "{at} runs version {}, rank 0 ({}) version {}; start the same program everywhere",
                hello.version, first.peer, first.version
            ));
        }
        if let Some(expected) = hello.expected.filter(|n| *n != all.len()) {
            return Err(format!(
                "{at} was told to train on {expected} ranks, and {} were started; start trainer.devices x trainer.nodes processes",
                all.len()
            ));
        }
        let differs = hello.agreed.iter().zip(&first.agreed).find(|(a, b)| a != b);
        if let Some(((name, text), (_, began))) = differs {
            return Err(format!(
                "{at} has {name} = {text}, rank 0 has {began}; give every rank the same configuration and files"
            ));
        }
    }
    Ok(hellos.iter().map(|h| h.peer.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;

    fn hello(version: &str, expected: Option<usize>, seed: &str) -> Hello {
        let agreed = vec![("seed".to_string(), seed.to_string())];
        Hello { version: version.into(), expected, agreed, peer: Peer::here() }
    }

    /// What each of the ranks is told.
    fn told(hellos: Vec<Hello>) -> Vec<Result<Vec<Peer>>> {
        let group = Threads::group(hellos.len());
        std::thread::scope(|s| {
            let each = group.into_iter().zip(&hellos);
            let all: Vec<_> = each.map(|(rank, hello)| s.spawn(move || hello.exchange(&rank))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_that_do_not_fit_are_told_so_on_every_rank() {
        let fits = told(vec![hello("1", Some(3), "7"), hello("1", Some(3), "7"), hello("1", Some(3), "7")]);
        assert!(fits.iter().all(|r| r.as_ref().is_ok_and(|peers| peers.len() == 3)));
        for (hellos, said) in [
            (vec![hello("1", None, "7"), hello("1.1", None, "7")], "rank 1 ("),
            (vec![hello("1", Some(4), "7"), hello("1", Some(4), "7")], "4 ranks, and 2 were started"),
            (vec![hello("1", None, "7"), hello("1", None, "7"), hello("1", None, "8")], "seed = 8"),
        ] {
            for told in told(hellos) {
                let text = told.unwrap_err().to_string();
                assert!(text.contains(said), "{text}");
            }
        }
    }
}
