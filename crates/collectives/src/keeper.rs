//! Who of the ranks died, as the process that started them hears it.
//!
//! mpiexec ends all ranks as soon as one has died, often before the others can say which. So the program that runs mpiexec listens to all of them: a rank that
//! hears of another's end says so here at once, and the system closes the connection of one that is killed.

use crate::hello::Peer;
use crate::watch::{Fault, random, read_fault};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The variable by which ranks find it: port, word.
const VARIABLE: &str = "CLEARSHOT_KEEPER";
/// From one look at the connections to the next.
const PAUSE: Duration = Duration::from_millis(2);

/// Listens until it is asked.
pub struct Keeper {
    place: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What was heard of one rank.
struct Heard {
    rank: usize,
    peer: String,
    stream: TcpStream,
    text: String,
    /// In which look its connection was found closed.
    ended: Option<u64>,
}

impl Keeper {
    /// # Errors
    /// If the system gives no port of this machine.
    pub fn start() -> std::io::Result<Keeper> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let word = format!("{:016x}{:016x}", random(), random());
        let place = format!("{} {word}", listener.local_addr()?.port());
        let (heard, stop) = (Arc::new(Mutex::new(vec![])), Arc::new(AtomicBool::new(false)));
        let (all, stopped) = (Arc::clone(&heard), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut looks = 0;
            // One look more after the end: what lies in the connections is still read.
            loop {
                let last = stopped.load(Ordering::Relaxed);
                let mut all = all.lock().unwrap_or_else(|p| p.into_inner());
                while let Ok((stream, _)) = listener.accept() {
                    all.extend(greeted(stream, &word));
                }
                all.iter_mut().for_each(|heard| heard.look(looks));
                drop(all);
                looks += 1;
                if last {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Keeper { place, heard, stop, thread: Some(thread) })
    }

    /// The variable that ranks are to be started with.
    pub fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.place)
    }

    /// Who ended all, when they have ended; nobody where all left as they should.
    pub fn fault(mut self) -> Option<Fault> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let heard = self.heard.lock().unwrap_or_else(|p| p.into_inner());
        let peer_of =
            |rank: usize| heard.iter().find(|h| h.rank == rank).map(|h| h.peer.clone()).unwrap_or_default();
        let said = heard.iter().flat_map(|h| h.text.lines()).find_map(read_fault);
        if let Some((rank, why)) = said {
            return Some(Fault { rank, peer: peer_of(rank), why: why.into() });
        }
        // Nobody had the time to say it: the first that was gone.
        let gone = heard.iter().filter(|h| !h.text.lines().any(|line| line == "bye"));
        let first = gone.filter(|h| h.ended.is_some()).min_by_key(|h| h.ended)?;
        let others = heard.iter().filter(|h| h.ended == first.ended && h.rank != first.rank).count();
        let why = match others {
            0 => "it was killed or has crashed".to_string(),
            n => format!("it was killed or has crashed, or one of {n} others that ended at the same moment"),
        };
        Some(Fault { rank: first.rank, peer: first.peer.clone(), why })
    }
}

impl Heard {
    fn look(&mut self, looks: u64) {
        let mut bytes = [0; 1024];
        while self.ended.is_none() {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.ended = Some(looks),
                Ok(n) => self.text.push_str(&String::from_utf8_lossy(&bytes[..n])),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.ended = Some(looks),
            }
        }
    }
}

/// A rank that knows the word; whoever else comes is sent away.
fn greeted(stream: TcpStream, word: &str) -> Option<Heard> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    // Word, rank, process: one line, of which not a byte too many is read.
    let (mut line, mut byte) = (vec![], [0]);
    while line.len() < 256 {
        (&stream).read_exact(&mut byte).ok()?;
        match byte {
            [b'\n'] => break,
            [byte] => line.push(byte),
        }
    }
    let line = String::from_utf8(line).ok()?;
    let (said, rest) = line.split_once(' ')?;
    let (rank, peer) = rest.split_once(' ')?;
    stream.set_nonblocking(true).ok()?;
    let rank = rank.parse().ok().filter(|_| said == word)?;
    Some(Heard { rank, peer: peer.into(), stream, text: String::new(), ended: None })
}

/// A rank's connection to who started it, where that listens.
pub(crate) fn connect(rank: usize) -> Option<TcpStream> {
    let place = std::env::var(VARIABLE).ok()?;
    let (port, word) = place.split_once(' ')?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().ok()?)).ok()?;
    let _ = stream.set_nodelay(true);
    stream.write_all(format!("{word} {rank} {}\n", Peer::here()).as_bytes()).ok()?;
    Some(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(keeper: &Keeper, rank: usize) -> TcpStream {
        let (port, word) = keeper.place.split_once(' ').unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
        stream.write_all(format!("{word} {rank} process {rank} on here\n").as_bytes()).unwrap();
        stream
    }

    #[test]
    fn what_survivors_say_goes_before_who_was_gone_first() {
        let keeper = Keeper::start().unwrap();
        let mut all: Vec<TcpStream> = (0..3).map(|r| rank(&keeper, r)).collect();
        all[2].write_all(b"fault 1 it was killed or has crashed\n").unwrap();
        drop(all);
        let fault = keeper.fault().unwrap();
        assert_eq!((fault.rank, fault.peer.as_str()), (1, "process 1 on here"));
    }

    #[test]
    fn the_first_that_is_gone_is_named_and_who_leaves_is_not() {
        let keeper = Keeper::start().unwrap();
        let mut all: Vec<TcpStream> = (0..3).map(|r| rank(&keeper, r)).collect();
        all[0].write_all(b"bye\n").unwrap();
        all.remove(0);
        std::thread::sleep(10 * PAUSE);
        all.remove(1);
        std::thread::sleep(10 * PAUSE);
        drop(all);
        assert_eq!(keeper.fault().unwrap().rank, 2);
        let keeper = Keeper::start().unwrap();
        rank(&keeper, 0).write_all(b"bye\n").unwrap();
        assert_eq!(keeper.fault(), None);
    }
}
