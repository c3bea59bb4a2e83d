//! Which engine carries gradients between ranks: NCCL, where every rank has a GPU of its own, or the collective by way of the host's memory (MPI, or TCP without it).
//!
//! Every rank tells all others what it has, and all come to the same choice, or to the same refusal, from the same facts. Ranks join NCCL by an id that the first makes and
//! the collective carries.

use super::Ranks;
use crate::config::{Backend, Compression, RunConfig};
use crate::error::{Result, TrainError, setting};
use clearshot_collectives::{Collective, CollectiveError};
use clearshot_runtime::{Communicator, Device, ID_BYTES, NCCL_VARIABLE, NcclId, gpus, nccl_version};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a rank trains on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    /// The card's own number; none for a processor.
    card: Option<String>,
    /// The version of NCCL, or why there is none.
    nccl: std::result::Result<String, String>,
}

impl Place {
    fn of(device: &Device) -> Place {
        let Device::Cuda { ordinal } = *device else {
            return Place { card: None, nccl: Err("it trains on a processor".into()) };
        };
        let found = gpus().ok().and_then(|all| all.into_iter().find(|g| g.ordinal == ordinal));
        let card = found.map_or_else(|| format!("cuda:{ordinal}"), |g| g.uuid);
        Place { card: Some(card), nccl: nccl_version().map_err(|e| e.to_string()) }
    }
}

/// What carries gradients.
#[derive(Debug, PartialEq)]
enum Choice {
    /// By way of the host; on GPUs, why.
    Host(Option<String>),
    /// Of that version.
    Nccl(String),
}

/// The same on every rank, from the same facts. `named` is a rank in words.
fn choose(
    asked: Backend,
    compression: Compression,
    places: &[Place],
    named: impl Fn(usize) -> String,
) -> Result<Choice> {
    let on_card = |p: &Place| p.card.is_some();
    if !places.iter().any(on_card) {
        let needed = "trainer.device=cuda, for NCCL carries between GPUs alone; or distributed.backend=host";
        return match asked {
            Backend::Nccl => setting("distributed.backend", "nccl with ranks on processors", needed),
            _ => Ok(Choice::Host(None)),
        };
    }
    if let Some(other) = places.iter().position(|p| on_card(p) != on_card(&places[0])) {
        let [gpu, cpu] = if on_card(&places[0]) { [0, other] } else { [other, 0] };
        let got = format!("a GPU on {} and a processor on {}", named(gpu), named(cpu));
        return setting("trainer.device", got, "GPUs on every rank, or processors on every rank");
    }
    if asked == Backend::Host {
        return Ok(Choice::Host(Some("distributed.backend=host".into())));
    }
    match obstacle(compression, places, named) {
        None => Ok(Choice::Nccl(places[0].nccl.clone().unwrap_or_default())),
        Some((key, got, needed)) if asked == Backend::Nccl => setting(key, got, needed),
        Some((_, got, _)) => Ok(Choice::Host(Some(got))),
    }
}

/// What keeps ranks on GPUs from NCCL: the key that could change it, what is so, and what to do.
fn obstacle(
    compression: Compression,
    places: &[Place],
    named: impl Fn(usize) -> String,
) -> Option<(&'static str, String, String)> {
    if compression == Compression::Powersgd {
        let needed =
            "none, bf16 or fp16 with NCCL; PowerSGD goes by way of the host, with distributed.backend=host";
        return Some((
            "distributed.compression",
            "powersgd, which NCCL does not carry".into(),
            needed.into(),
        ));
    }
    let key = "distributed.backend";
    for (rank, place) in places.iter().enumerate() {
        if let Some(other) = places[..rank].iter().position(|p| p.card == place.card) {
            let got = format!("{} and {} share one GPU, which NCCL refuses", named(other), named(rank));
            let needed = "a GPU for each rank, or distributed.backend=host, which goes by way of the host";
            return Some((key, got, needed.into()));
        }
    }
    for (rank, place) in places.iter().enumerate() {
        let got = match (&place.nccl, &places[0].nccl) {
            (Err(why), _) => format!("{}: {why}", named(rank)),
            (Ok(own), Ok(first)) if own != first => {
                format!("{} has NCCL {own}, and {} has {first}", named(rank), named(0))
            }
            _ => continue,
        };
        let needed = format!(
            "the same NCCL for every rank ({NCCL_VARIABLE}=/path/to/libnccl.so.2 names it), or distributed.backend=host"
        );
        return Some((key, got, needed));
    }
    None
}

/// What stands before an id that travels.
const ID: u8 = 1;

/// The first rank's id, on all of them.
///
/// # Errors
/// Why the first could not make one, on every rank.
fn shared_id(
    all: &dyn Collective,
    make: impl FnOnce() -> std::result::Result<NcclId, String>,
) -> Result<NcclId> {
    // A byte tells an id from a reason.
    let own = match all.rank() {
        0 => make().map_or_else(|why| [&[!ID], why.as_bytes()].concat(), |id| [&[ID], &id.0[..]].concat()),
        _ => vec![],
    };
    match &all.broadcast(0, &own)?[..] {
        [ID, id @ ..] if id.len() == ID_BYTES => {
            let mut made = NcclId([0; ID_BYTES]);
            made.0.copy_from_slice(id);
            Ok(made)
        }
        told => {
            setting("distributed.backend", "nccl", String::from_utf8_lossy(told.get(1..).unwrap_or_default()))
        }
    }
}

/// This rank's end of NCCL.
fn joined(all: &Arc<dyn Collective>, ordinal: usize) -> Result<Communicator> {
    let id = shared_id(&**all, || NcclId::new().map_err(|e| e.to_string()))?;
    let asked = Arc::clone(all);
    let fault = move || asked.fault().map(|fault| fault.to_string());
    // An error here ends all others, which are told of it.
    Communicator::new(ordinal, id, all.rank(), all.size(), fault).map_err(|e| match all.fault() {
        Some(fault) => CollectiveError::Fault(fault).into(),
        None => TrainError::Setting {
            key: "distributed.backend".into(),
            got: "nccl".into(),
            needed: format!("{e}; distributed.backend=host goes by way of the host"),
        },
    })
}

impl Ranks {
    /// Finds out together with all others what carries gradients, and joins it.
    ///
    /// # Errors
    /// The same on every rank: why what was asked for cannot be.
    pub(crate) fn connect(&mut self, config: &RunConfig, device: &Device) -> Result<()> {
        let Some(all) = self.collective.clone() else { return Ok(()) };
        let own = serde_json::to_vec(&Place::of(device)).unwrap_or_default();
        let places = all.all_gather(&own)?;
        let places: Vec<Place> = places
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| CollectiveError::Mismatch(format!("what a rank tells of its device: {e}")))?;
        let distributed = &config.distributed;
        let choice = choose(distributed.backend, distributed.compression, &places, |r| self.named(r))?;
        let card = &places[all.rank()].card;
        self.on_this_device = places.iter().filter(|p| card.is_some() && &p.card == card).count().max(1);
        match choice {
            Choice::Host(None) => {}
            Choice::Host(Some(why)) => {
                self.notes
                    .push(format!("gradients travel by way of the host, over {}: {why}", all.transport()));
            }
            Choice::Nccl(version) => {
                let Device::Cuda { ordinal } = *device else { return Ok(()) };
                self.communicator = Some(Arc::new(joined(&all, ordinal)?));
                self.notes
                    .push(format!("gradients travel over NCCL {version}, between GPUs of one rank each"));
            }
        }
        Ok(())
    }

    /// What carries gradients: `nccl`, or the collective by its name (`mpi`, `tcp`); nothing of one rank.
    pub fn backend(&self) -> Option<&'static str> {
        let all = self.collective.as_ref()?;
        Some(if self.communicator.is_some() { "nccl" } else { all.transport() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_collectives::threads::Threads;

    fn place(card: &str, nccl: std::result::Result<&str, &str>) -> Place {
        let card = Some(card.to_string()).filter(|c| c != "cpu");
        Place { card, nccl: nccl.map(String::from).map_err(String::from) }
    }

    fn chosen(
        asked: Backend,
        compression: Compression,
        places: &[Place],
    ) -> std::result::Result<Choice, String> {
        choose(asked, compression, places, |r| format!("rank {r}")).map_err(|e| e.to_string())
    }

    #[test]
    fn each_rank_with_a_card_of_its_own_has_nccl() {
        let two = [place("a", Ok("2.27.3")), place("b", Ok("2.27.3"))];
        for asked in [Backend::Auto, Backend::Nccl] {
            assert_eq!(chosen(asked, Compression::Bf16, &two), Ok(Choice::Nccl("2.27.3".into())));
        }
        let host = chosen(Backend::Host, Compression::None, &two);
        assert_eq!(host, Ok(Choice::Host(Some("distributed.backend=host".into()))));
        let cpu = [place("cpu", Err("-")), place("cpu", Err("-"))];
        assert_eq!(chosen(Backend::Auto, Compression::None, &cpu), Ok(Choice::Host(None)));
    }

    #[test]
    fn what_nccl_cannot_do_is_refused_by_key_or_goes_by_the_host() {
        let missing = "no NCCL library that can be used: libnccl.so.2: not found";
        for (compression, places, key, said) in [
            (
                Compression::None,
                [place("a", Ok("2")), place("a", Ok("2"))],
                "distributed.backend",
                "rank 0 and rank 1 share one GPU",
            ),
            (
                Compression::None,
                [place("a", Ok("2")), place("b", Err(missing))],
                "distributed.backend",
                "rank 1: no NCCL library",
            ),
            (
                Compression::None,
                [place("a", Ok("2.20.5")), place("b", Ok("2.27.3"))],
                "distributed.backend",
                "rank 1 has NCCL 2.27.3, and rank 0 has 2.20.5",
            ),
            (
                Compression::Powersgd,
                [place("a", Ok("2")), place("b", Ok("2"))],
                "distributed.compression",
                "powersgd",
            ),
        ] {
            let text = chosen(Backend::Nccl, compression, &places).unwrap_err();
            assert!(text.starts_with(key) && text.contains(said) && text.contains("backend=host"), "{text}");
            let Ok(Choice::Host(Some(why))) = chosen(Backend::Auto, compression, &places) else {
                panic!("{said}")
            };
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn processors_beside_gpus_and_nccl_without_gpus_are_refused() {
        let mixed = [place("cpu", Err("-")), place("a", Ok("2"))];
        for asked in [Backend::Auto, Backend::Nccl, Backend::Host] {
            let text = chosen(asked, Compression::None, &mixed).unwrap_err();
            assert!(text.starts_with("trainer.device: a GPU on rank 1 and a processor on rank 0"), "{text}");
        }
        let cpu = [place("cpu", Err("-")), place("cpu", Err("-"))];
        let text = chosen(Backend::Nccl, Compression::None, &cpu).unwrap_err();
        assert!(text.starts_with("distributed.backend: nccl with ranks on processors"), "{text}");
    }

    /// What every rank has of the first one's id.
    fn ids(
        make: impl Fn() -> std::result::Result<NcclId, String> + Sync,
    ) -> Vec<std::result::Result<NcclId, String>> {
        let make = &make;
        std::thread::scope(|s| {
            let one = |rank: Threads| s.spawn(move || shared_id(&rank, make).map_err(|e| e.to_string()));
            let all: Vec<_> = Threads::group(3).into_iter().map(one).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_id_of_the_first_rank_is_that_of_all_or_its_error_is() {
        let id = NcclId(std::array::from_fn(|i| i as u8 ^ 0x5a));
        assert!(ids(|| Ok(id)).iter().all(|got| got == &Ok(id)));
        for text in
            ids(|| Err("ncclGetUniqueId: no socket".into())).into_iter().map(std::result::Result::unwrap_err)
        {
            assert!(text.contains("distributed.backend: nccl; ncclGetUniqueId: no socket"), "{text}");
        }
    }
}
