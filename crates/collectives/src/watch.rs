//! Who of the ranks is still there: links beside the library's own, so that a rank that dies is named on all others.
//!
//! MPI waits for a dead rank without end. Here rank 0 holds a connection to every other rank. The system closes the connections of a process that
//! is killed, however it is killed, and a word every two seconds tells a machine that is gone from one that is busy. Who hears of an end tells the others. The links carry nothing
//! else; a rank that cannot make them is left to whoever started it, and that is said.

use crate::hello::Peer;
use crate::{Collective, Result};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// From one word to the next, and after how long without one a rank is taken for gone.
const EVERY: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(25);
/// How long making the links may take.
const CONNECTING: Duration = Duration::from_secs(15);
/// What a rank has left, after it heard of a fault, to end by itself.
const GRACE: Duration = Duration::from_secs(8);

/// A rank that is gone, or that ended all.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub rank: usize,
    /// Where it ran.
    pub peer: String,
    pub why: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} ({}): {}; all ranks end", self.rank, self.peer, self.why)
    }
}

/// The links of one rank.
pub struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    rank: usize,
    peers: Vec<Peer>,
    fault: Mutex<Option<Fault>>,
    /// As `fault`, without a lock.
    raised: AtomicBool,
    /// This rank ends as it should.
    leaving: AtomicBool,
    /// With the rank at the other end.
    links: Mutex<Vec<(usize, TcpStream)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

impl Watch {
    /// Makes the links; `first` is where rank 0 is reached, else it is the name of its machine. Nothing where some rank cannot, on all ranks alike.
    ///
    /// # Errors
    /// What went wrong with the collective that it is arranged by.
    pub fn start(ranks: &dyn Collective, peers: &[Peer], first: Option<IpAddr>) -> Result<Option<Watch>> {
        let is_one_machine = peers.iter().all(|p| p.host == peers[0].host);
        let listener = (ranks.rank() == 0).then(|| {
            let from = if is_one_machine { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
            TcpListener::bind((from, 0))
        });
        let token = format!("{:016x}{:016x}", random(), random());
        let port = listener.as_ref().and_then(|l| Some(l.as_ref().ok()?.local_addr().ok()?.port()));
        let offer = ranks.broadcast(0, format!("{} {token}", port.unwrap_or(0)).as_bytes())?;
        let offer = String::from_utf8_lossy(&offer).into_owned();
        let (port, token) = offer.split_once(' ').unwrap_or(("0", ""));
        let links = match listener {
            Some(listener) => listener.ok().and_then(|l| accept(&l, token, 1..ranks.size())),
            None => {
                let named = || first.map_or_else(|| peers[0].host.clone(), |ip| ip.to_string());
                let host = if is_one_machine { "127.0.0.1".into() } else { named() };
                let port = port.parse().unwrap_or(0);
                connect(&host, port, token, ranks.rank()).map(|stream| vec![(0, stream)])
            }
        };
        let made = ranks.all_gather(&[u8::from(links.is_some())])?;
        let Some(links) = links.filter(|_| made.iter().all(|m| m == &[1])) else { return Ok(None) };
        let shared = Arc::new(Shared {
            rank: ranks.rank(),
            peers: peers.to_vec(),
            fault: Mutex::new(None),
            raised: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            links: Mutex::new(vec![]),
        });
        for (rank, stream) in links {
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(SILENCE));
            let Ok(reading) = stream.try_clone() else { continue };
            locked(&shared.links).push((rank, stream));
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.listen(rank, reading));
        }
        let beating = Arc::clone(&shared);
        std::thread::spawn(move || {
            while !beating.leaving.load(Ordering::Relaxed) && !beating.raised.load(Ordering::Relaxed) {
                beating.say("here");
                std::thread::sleep(EVERY);
            }
        });
        Ok(Some(Watch { shared }))
    }

    /// Who is gone, if somebody is.
    pub fn fault(&self) -> Option<Fault> {
        if !self.shared.raised.load(Ordering::Relaxed) {
            return None;
        }
        locked(&self.shared.fault).clone()
    }

    /// Tells all others that this rank ends them, and why.
    pub fn end_all(&self, why: &str) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        self.shared.raise(self.shared.rank, why);
    }

    /// This rank ends as it should.
    pub fn leave(&self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        self.shared.say("bye");
    }
}

impl Shared {
    fn say(&self, what: &str) {
        for (_, stream) in locked(&self.links).iter() {
            // A link that is broken is found by who listens to it.
            let _ = (&*stream).write_all(format!("{what}\n").as_bytes());
        }
    }

    /// Hears of rank `of`, until it is gone.
    fn listen(self: Arc<Self>, of: usize, stream: TcpStream) {
        let mut lines = BufReader::new(&stream).lines();
        let why = loop {
            match lines.next() {
                Some(Ok(line)) if line == "bye" => return,
                Some(Ok(line)) if line == "here" => {}
                Some(Ok(line)) => {
                    if let Some((rank, why)) = read_fault(&line) {
                        return self.raise(rank, why);
                    }
                }
                Some(Err(e))
                    if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
                {
                    break format!("not heard of for {} s", SILENCE.as_secs());
                }
                Some(Err(_)) | None => break "it was killed or has crashed".to_string(),
            }
        };
        if !self.leaving.load(Ordering::Relaxed) {
            self.raise(of, &why);
        }
    }

    /// Keeps the first fault, tells the others of it, and makes sure that this process ends.
    fn raise(self: &Arc<Self>, rank: usize, why: &str) {
        {
            let mut fault = locked(&self.fault);
            if fault.is_some() {
                return;
            }
            let peer = self.peers.get(rank).map(Peer::to_string).unwrap_or_default();
            *fault = Some(Fault { rank, peer, why: why.into() });
        }
        self.raised.store(true, Ordering::Relaxed);
        self.say(&format!("fault {rank} {}", why.replace('\n', " ")));
        if self.leaving.load(Ordering::Relaxed) {
            for (_, stream) in locked(&self.links).iter() {
                let _ = stream.shutdown(Shutdown::Write);
            }
            return;
        }
        let ending = Arc::clone(self);
        std::thread::spawn(move || {
            std::thread::sleep(GRACE);
            if let Some(fault) = &*locked(&ending.fault) {
                eprintln!("clearshot: rank {}: {fault}", ending.rank);
            }
            std::process::exit(1);
        });
    }
}

fn read_fault(line: &str) -> Option<(usize, &str)> {
    let (rank, why) = line.strip_prefix("fault ")?.split_once(' ')?;
    Some((rank.parse().ok()?, why))
}

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A connection from each of these ranks, which know the word.
pub(crate) fn accept(
    listener: &TcpListener,
    token: &str,
    wanted: Range<usize>,
) -> Option<Vec<(usize, TcpStream)>> {
    let until = Instant::now() + CONNECTING;
    listener.set_nonblocking(true).ok()?;
    let mut links: Vec<(usize, TcpStream)> = vec![];
    while links.len() < wanted.len() {
        match listener.accept() {
            Ok((stream, _)) => {
                // Whoever else comes has no word for it.
                if let Some(rank) = greeting(&stream, token)
                    .filter(|r| wanted.contains(r) && links.iter().all(|(other, _)| other != r))
                {
                    links.push((rank, stream));
                }
            }
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => return None,
        }
    }
    Some(links)
}

fn greeting(mut stream: &TcpStream, token: &str) -> Option<usize> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    // What follows the line is read by others.
    let (mut line, mut byte) = (vec![], [0]);
    while line.len() < 128 && byte != *b"\n" {
        stream.read_exact(&mut byte).ok()?;
        line.extend(byte);
    }
    let line = String::from_utf8(line).ok()?;
    let (said, rank) = line.trim().split_once(' ')?;
    if said == token { rank.parse().ok() } else { None }
}

/// A connection to a rank that accepts those which know the word.
pub(crate) fn connect(host: &str, port: u16, token: &str, rank: usize) -> Option<TcpStream> {
    let until = Instant::now() + CONNECTING;
    if port == 0 {
        return None;
    }
    while Instant::now() < until {
        for address in (host, port).to_socket_addrs().ok()? {
            if let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                stream.write_all(format!("{token} {rank}\n").as_bytes()).ok()?;
                return Some(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;

    fn group(size: usize) -> Vec<Watch> {
        let peers = vec![Peer::here(); size];
        std::thread::scope(|s| {
            let ranks = Threads::group(size).into_iter();
            let made: Vec<_> = ranks
                .map(|r| {
                    s.spawn(|| {
                        let r = r;
                        Watch::start(&r, &peers, None)
                    })
                })
                .collect();
            made.into_iter().map(|t| t.join().unwrap().unwrap().unwrap()).collect()
        })
    }

    fn heard(watch: &Watch) -> Fault {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            match watch.fault() {
                Some(fault) => return fault,
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                None => panic!("nobody told rank {}", watch.shared.rank),
            }
        }
    }

    #[test]
    fn a_rank_that_is_gone_is_named_on_all_others() {
        let mut all = group(4);
        // Leaving is no fault.
        all.pop().unwrap().leave();
        let gone = all.pop().unwrap();
        // What the system does to the connections of a process that is killed.
        for (_, stream) in locked(&gone.shared.links).iter() {
            stream.shutdown(Shutdown::Both).unwrap();
        }
        for watch in &all {
            let fault = heard(watch);
            assert_eq!((fault.rank, fault.why.as_str()), (2, "it was killed or has crashed"));
            // The test goes on.
            watch.shared.leaving.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_rank_that_ends_all_says_why() {
        let all = group(3);
        all[1].end_all("the disk is full");
        for watch in [&all[0], &all[2]] {
            let fault = heard(watch);
            assert_eq!((fault.rank, fault.why.as_str()), (1, "the disk is full"));
        }
    }
}
