//! Where ranks without MPI find each other: one process listens at a port that all know, every rank connects to it and says who it is, and when all have come each is told where
//! the others listen. It is rank 0 that listens, or the process that started the ranks. Whoever connects and is not a rank of the job is ignored; what keeps the
//! ranks from training together is told to all that have come, so that all end.

use crate::hello::Peer;
use crate::launch::{Launch, OWN, Place, Way};
use crate::watch::random;
use crate::{CollectiveError, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// What a listener of this program says first, with the version of what follows.
const BANNER: &str = "clearshot ranks 1";
/// How long a connection may be silent that has something to say.
const SILENCE: Duration = Duration::from_secs(10);
/// From one look to the next, at a port and at connections.
const PAUSE: Duration = Duration::from_millis(5);
/// A line may not be longer.
const LINE: u64 = 1 << 20;

/// What a rank says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub job: String,
    pub rank: usize,
    pub size: usize,
    /// Where it listens.
    pub port: u16,
    pub peer: Peer,
}

/// What all ranks are told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Met(Met),
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Met {
    /// Where each rank listens; without a machine where it is the one of whoever holds the meeting.
    pub places: Vec<(Option<IpAddr>, u16)>,
    pub peers: Vec<Peer>,
    /// By which ranks know each other.
    pub word: String,
}

/// A meeting that a thread holds.
pub struct Meeting {
    shared: Arc<Shared>,
    job: String,
    size: usize,
    pub(crate) port: u16,
}

#[derive(Default)]
struct Shared {
    /// Nobody is answered any more.
    over: AtomicBool,
    /// Why the ranks cannot meet.
    refused: Mutex<Option<String>>,
}

/// A rank that has come.
struct Come {
    greeting: Greeting,
    stream: TcpStream,
}

impl Meeting {
    /// For so many processes of this machine, which this one starts with [`Meeting::variables`].
    ///
    /// # Errors
    /// If the system gives no port of this machine.
    pub fn of_children(size: usize, wait: Duration) -> std::io::Result<Meeting> {
        let job = format!("{:016x}{:016x}", random(), random());
        Meeting::hold(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, &job, size, wait)
    }

    /// What a rank's process finds in its variables.
    pub fn launch(&self, rank: usize) -> Launch {
        let (way, job) = (Way::Parent(self.port), self.job.clone());
        Launch { rank, size: self.size, by: "clearshot", way, job }
    }

    /// What a rank's process is to be started with.
    pub fn variables(&self, rank: usize) -> [(&'static str, String); 4] {
        let values = [rank.to_string(), self.size.to_string(), self.port.to_string(), self.job.clone()];
        let mut values = values.into_iter();
        OWN.map(|name| (name, values.next().expect("a value for each")))
    }

    /// Waits for the ranks of a job, for so long, on a thread of its own.
    ///
    /// # Errors
    /// If the listener cannot be used.
    pub(crate) fn hold(
        listener: TcpListener,
        job: &str,
        size: usize,
        wait: Duration,
    ) -> std::io::Result<Meeting> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let (of, holds) = (job.to_string(), Arc::clone(&shared));
        std::thread::spawn(move || holds.gather(&listener, &of, size, wait));
        Ok(Meeting { shared, job: job.to_string(), size, port })
    }

    /// Tells all who have come, and who still come, why they cannot meet.
    pub fn refuse(&self, why: &str) {
        self.shared.refuse(why.into());
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// The first reason counts.
    fn refuse(&self, why: String) {
        self.refused.lock().unwrap_or_else(|p| p.into_inner()).get_or_insert(why);
    }

    fn refused(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    fn gather(&self, listener: &TcpListener, job: &str, size: usize, wait: Duration) {
        let until = Instant::now() + wait;
        let (send, receive) = mpsc::channel::<Come>();
        let mut come: Vec<Come> = vec![];
        while !self.over.load(Ordering::Relaxed) {
            while let Ok((stream, _)) = listener.accept() {
                let (send, job) = (send.clone(), job.to_string());
                // Each on a thread of its own: a stranger that says nothing keeps nobody waiting.
                std::thread::spawn(move || greeted(stream, &job).map(|come| send.send(come)));
            }
            for new in receive.try_iter() {
                if let Some(why) = unfit(&new.greeting, &come, size) {
                    self.refuse(why);
                }
                come.push(new);
            }
            if let Some(gone) = come.iter().find(|c| has_ended(&c.stream)) {
                self.refuse(format!("{} ended before all ranks had come", named(&gone.greeting)));
            }
            if Instant::now() > until {
                self.refuse(missing(&come, size, wait));
            }
            if let Some(why) = self.refused() {
                // Whoever still comes is told the same.
                answer_all(&mut come, &Answer::Refused(why));
            }
            if come.len() == size {
                let met = Answer::Met(met(&mut come));
                return answer_all(&mut come, &met);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Rank 0 last: its process may hold the meeting, and may end upon the answer.
fn answer_all(come: &mut Vec<Come>, answer: &Answer) {
    let line = serde_json::to_string(answer).unwrap_or_default();
    come.sort_by_key(|c| std::cmp::Reverse(c.greeting.rank));
    for mut rank in come.drain(..) {
        // One that is gone needs no answer.
        let _ = rank.stream.set_nonblocking(false);
        let _ = rank.stream.write_all(format!("{line}\n").as_bytes());
    }
}

/// What ranks are told that have all come.
fn met(come: &mut [Come]) -> Met {
    come.sort_by_key(|c| c.greeting.rank);
    let ip = |c: &Come| c.stream.peer_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_loopback());
    Met {
        places: come.iter().map(|c| (ip(c), c.greeting.port)).collect(),
        peers: come.iter().map(|c| c.greeting.peer.clone()).collect(),
        word: format!("{:016x}{:016x}", random(), random()),
    }
}

fn missing(come: &[Come], size: usize, wait: Duration) -> String {
    let is_missing = |rank: &usize| come.iter().all(|c| c.greeting.rank != *rank);
    let missing: Vec<String> = (0..size).filter(is_missing).map(|rank| rank.to_string()).collect();
    format!(
        "rank {} of {size} has not come within {:.0} s; see whether it was started and can reach the others, or raise distributed.wait",
        missing.join(", "),
        wait.as_secs_f64()
    )
}

fn named(greeting: &Greeting) -> String {
    format!("rank {} ({})", greeting.rank, greeting.peer)
}

/// Why a rank that has come cannot be one of them.
fn unfit(new: &Greeting, come: &[Come], size: usize) -> Option<String> {
    if new.size != size {
        return Some(format!(
            "{} was started as one of {} ranks, and here are {size}; start all with the same number of ranks",
            named(new),
            new.size
        ));
    }
    if new.rank >= size {
        return Some(format!("{} is not one of {size}", named(new)));
    }
    let same = come.iter().find(|c| c.greeting.rank == new.rank)?;
    Some(format!(
        "two processes are rank {}: {} and {}; give each a rank of its own",
        new.rank, same.greeting.peer, new.peer
    ))
}

fn has_ended(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// A rank of this job; whoever else comes is sent away.
fn greeted(mut stream: TcpStream, job: &str) -> Option<Come> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    stream.write_all(format!("{BANNER}\n").as_bytes()).ok()?;
    let greeting: Greeting = serde_json::from_str(&line(&stream).ok()?).ok()?;
    if greeting.job != job {
        let why = format!(
            "here meet the ranks of job '{job}', not of '{}'; choose another MASTER_PORT",
            greeting.job
        );
        let answer = serde_json::to_string(&Answer::Refused(why)).ok()?;
        let _ = stream.write_all(format!("{answer}\n").as_bytes());
        return None;
    }
    stream.set_nonblocking(true).ok()?;
    Some(Come { greeting, stream })
}

/// One line, of which not a byte too many is taken from the connection by whoever says one line alone.
fn line(stream: &TcpStream) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE)).read_line(&mut line)?;
    Ok(line.trim_end().to_string())
}

/// Comes to a meeting: the address at which it is held, and what is told there. `greeting` makes what is said, from the connection.
///
/// # Errors
/// If nobody holds it in that time, somebody else listens there, or the ranks do not fit together.
pub(crate) fn attend(
    place: &Place,
    wait: Duration,
    greeting: impl FnOnce(&TcpStream) -> std::io::Result<Greeting>,
) -> Result<(SocketAddr, Met)> {
    let refused = |why: String| CollectiveError::Launch(why);
    let mut stream = connect(place, wait)?;
    let met = (|| -> std::io::Result<std::result::Result<(SocketAddr, String), String>> {
        stream.set_read_timeout(Some(SILENCE))?;
        let mut reader = BufReader::new(stream.try_clone()?.take(LINE));
        let mut said = String::new();
        reader.read_line(&mut said)?;
        if said.trim_end() != BANNER {
            return Ok(Err(said));
        }
        let own = serde_json::to_string(&greeting(&stream)?)?;
        stream.write_all(format!("{own}\n").as_bytes())?;
        // Whoever holds it knows when to give up.
        stream.set_read_timeout(Some(wait + SILENCE))?;
        said.clear();
        reader.read_line(&mut said)?;
        Ok(Ok((stream.peer_addr()?, said)))
    })();
    match met {
        Ok(Ok((at, said))) => match serde_json::from_str(&said) {
            Ok(Answer::Met(met)) => Ok((at, met)),
            Ok(Answer::Refused(why)) => Err(CollectiveError::Mismatch(why)),
            Err(_) => Err(refused(format!("the rank that listens at {place} ended before all had come"))),
        },
        Ok(Err(said)) => Err(refused(format!(
            "what listens at {place} is not rank 0 of this job, or runs another version of the program: it says {:?}; choose another port",
            said.chars().take(60).collect::<String>()
        ))),
        Err(e) => Err(refused(format!(
            "what listens at {place} is not rank 0 of this job, or has ended ({e}); see its own message, or choose another port"
        ))),
    }
}

fn connect(place: &Place, wait: Duration) -> Result<TcpStream> {
    let until = Instant::now() + wait;
    loop {
        let failed = match (place.host.as_str(), place.port).to_socket_addrs() {
            Ok(addresses) => {
                let mut failed = "its name has no address".to_string();
                for address in addresses {
                    match TcpStream::connect_timeout(&address, SILENCE) {
                        Ok(stream) => return Ok(stream),
                        Err(e) => failed = e.to_string(),
                    }
                }
                failed
            }
            Err(e) => e.to_string(),
        };
        if Instant::now() > until {
            return Err(CollectiveError::Launch(format!(
                "rank 0 does not listen at {place} after {:.0} s: {failed}; see whether it was started there, or raise distributed.wait",
                wait.as_secs_f64()
            )));
        }
        std::thread::sleep(10 * PAUSE);
    }
}
