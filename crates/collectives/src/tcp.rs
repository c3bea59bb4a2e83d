//! Ranks without MPI: a connection between every two processes. It is what a few processes of one machine, or of machines that torchrun or srun has started, need to find each other,
//! to share NCCL's id and, on processors, to average gradients; it has none of the topologies of MPI and NCCL, which are the engines for many machines.
//!
//! Every exchange is one message from each rank to each other. As over [`crate::mpi`], a sum sends each rank its part of the values of all others, adds them in the order of
//! ranks and shares the parts, so the bits are those of MPI and of threads. One thread waits for all connections at once (poll) and looks for ranks that are gone.

use crate::hello::Peer;
use crate::launch::{Launch, Place, Way};
use crate::meeting::{Greeting, Meeting, Met, attend};
use crate::message::{Message, wait};
use crate::store::Store;
use crate::watch::{Watch, accept, connect};
use crate::{Collective, CollectiveError, Fault, Plain, Result, add_in_order, bytes_of};
use half::{bf16, f16};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Values whose bytes of all ranks together are fewer than this are gathered everywhere and added there: one exchange in place of two.
const SMALL: usize = 32 << 10;
/// How long a rank whose connection has ended has to be named by the watch, which knows why.
const NAMED: Duration = Duration::from_secs(3);
/// Under which key, with the job behind it, rank 0 writes into torchrun's store where it listens.
const KEY: &str = "clearshot/meeting/";

/// This process as one of several that are connected.
pub struct Tcp {
    rank: usize,
    peers: Vec<Peer>,
    /// The machine of rank 0, as this rank reaches it.
    first: IpAddr,
    state: Mutex<State>,
    watch: OnceLock<Watch>,
    sent: AtomicU64,
}

struct State {
    /// To each rank; none to itself.
    links: Vec<Option<TcpStream>>,
    /// What each rank said in the last exchange.
    received: Vec<Vec<u8>>,
    exchanges: u64,
    /// An exchange has failed: no other is made.
    over: Option<CollectiveError>,
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> CollectiveError {
    move |e| CollectiveError::Call { function: what, reason: e.to_string() }
}

impl Tcp {
    /// Finds the other ranks, which have so much time to come.
    ///
    /// # Errors
    /// If they do not all come, or cannot be reached.
    pub fn start(launch: &Launch, wait: Duration) -> Result<Tcp> {
        // Held until this rank has met all others.
        let (_meeting, place) = find(launch, wait)?;
        let mut own = None;
        let (at, met) = attend(&place, wait, |stream| {
            let ip = match (place.is_local(), stream.local_addr()?.ip()) {
                (true, ip) => ip,
                (false, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
                (false, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let listener = TcpListener::bind((ip, 0))?;
            let port = listener.local_addr()?.port();
            own = Some(listener);
            let (job, peer) = (launch.job.clone(), Peer::here());
            Ok(Greeting { job, rank: launch.rank, size: launch.size, port, peer })
        })?;
        let listener = own.expect("a rank that was answered has greeted");
        Tcp::joined(launch.rank, &listener, at.ip(), met)
    }

    /// Connects to all others: this rank to those before it, those behind it to this one.
    fn joined(rank: usize, listener: &TcpListener, meeting: IpAddr, met: Met) -> Result<Tcp> {
        let Met { places, peers, word } = met;
        let size = places.len();
        let mut links: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        for (other, (ip, port)) in places.iter().enumerate().take(rank) {
            let host = ip.unwrap_or(meeting).to_string();
            let unreachable = || {
                let why = format!(
                    "rank {other} ({}) cannot be reached at {host}:{port}: it has ended, or a firewall is between the machines",
                    peers[other]
                );
                CollectiveError::Launch(why)
            };
            links[other] = Some(connect(&host, *port, &word, rank).ok_or_else(unreachable)?);
        }
        let behind = accept(listener, &word, rank + 1..size);
        let behind = behind.ok_or_else(|| {
            let why = format!(
                "not all of ranks {} to {} have connected to this one: one has ended",
                rank + 1,
                size - 1
            );
            CollectiveError::Launch(why)
        })?;
        for (other, link) in behind {
            links[other] = Some(link);
        }
        for link in links.iter().flatten() {
            link.set_nodelay(true).and_then(|()| link.set_nonblocking(true)).map_err(failed("connect"))?;
        }
        let received = vec![vec![]; size];
        let state = Mutex::new(State { links, received, exchanges: 0, over: None });
        let first = places[0].0.unwrap_or(meeting);
        Ok(Tcp { rank, peers, first, state, watch: OnceLock::new(), sent: AtomicU64::new(0) })
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        state.over.clone().map_or(Ok(state), Err)
    }

    /// Sends each rank what is given for it, and receives what each has for this one.
    fn exchange<'g>(&self, state: &mut State, give: impl Fn(usize) -> &'g [u8]) -> Result<()> {
        let number = state.exchanges;
        state.exchanges += 1;
        let mut messages = vec![];
        let State { links, received, .. } = state;
        for (rank, (link, take)) in links.iter_mut().zip(received.iter_mut()).enumerate() {
            let give = give(rank);
            match link {
                None => {
                    take.clear();
                    take.extend_from_slice(give);
                }
                Some(link) => {
                    let message = Message::new(rank, link, number, give, take);
                    self.sent.fetch_add(message.bytes(), Ordering::Relaxed);
                    messages.push(message);
                }
            }
        }
        let result = self.move_all(&mut messages);
        if let Err(e) = &result {
            state.over = Some(e.clone());
        }
        result
    }

    fn move_all(&self, messages: &mut [Message<'_>]) -> Result<()> {
        loop {
            let (mut moved, mut under_way) = (false, false);
            for message in messages.iter_mut() {
                moved |= message.advance().map_err(|e| match e.kind() {
                    ErrorKind::InvalidData => {
                        CollectiveError::Mismatch(format!("rank {}: {e}", message.rank()))
                    }
                    _ => CollectiveError::Fault(self.gone(message.rank())),
                })?;
                under_way |= !message.is_done();
            }
            if !under_way {
                return Ok(());
            }
            if !moved {
                if let Some(fault) = self.fault() {
                    return Err(CollectiveError::Fault(fault));
                }
                wait(messages);
            }
        }
    }

    /// Who ended, where the connection to this rank has.
    fn gone(&self, rank: usize) -> Fault {
        let until = Instant::now() + NAMED;
        while self.watch.get().is_some() && Instant::now() < until {
            if let Some(fault) = self.fault() {
                return fault;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Fault { rank, peer: self.peers[rank].to_string(), why: "it has ended or was killed".into() }
    }

    fn sum<T: Plain>(&self, values: &mut [T]) -> Result<()> {
        let (n, ranks) = (values.len(), self.size());
        let mut state = self.state()?;
        if size_of_val(values) * ranks <= SMALL {
            self.exchange(&mut state, |_| bytes_of(values))?;
            return add_in_order(values, &state.received);
        }
        let part = |rank: usize| rank * n / ranks..(rank + 1) * n / ranks;
        let own = part(self.rank);
        self.exchange(&mut state, |rank| bytes_of(&values[part(rank)]))?;
        add_in_order(&mut values[own.clone()], &state.received)?;
        self.exchange(&mut state, |_| bytes_of(&values[own.clone()]))?;
        for (rank, bytes) in state.received.iter().enumerate() {
            add_in_order(&mut values[part(rank)], std::slice::from_ref(bytes))?;
        }
        Ok(())
    }
}

/// Where the ranks meet, and the meeting itself where this rank holds it.
fn find(launch: &Launch, wait: Duration) -> Result<(Option<Meeting>, Place)> {
    let first = launch.rank == 0;
    let hold = |listener: std::io::Result<TcpListener>, place: &Place| {
        let listening = listener.and_then(|l| Meeting::hold(l, &launch.job, launch.size, wait));
        listening.map_err(|e| {
            CollectiveError::Launch(format!(
                "rank 0 cannot listen at port {} (MASTER_PORT): {e}; choose a free port, the same on all ranks",
                place.port
            ))
        })
    };
    match &launch.way {
        Way::Mpi => Err(CollectiveError::Launch("ranks under mpiexec meet by MPI".into())),
        Way::Parent(port) => Ok((None, Place { host: Ipv4Addr::LOCALHOST.to_string(), port: *port })),
        Way::First(place) if first => {
            let meeting = hold(bind(place), place)?;
            Ok((Some(meeting), place.clone()))
        }
        Way::First(place) => Ok((None, place.clone())),
        Way::Store(place) => {
            let mut store = Store::connect(place)?;
            let key = format!("{KEY}{}", launch.job);
            let host = place.host.clone();
            if first {
                let own = Place { host, port: 0 };
                let meeting = hold(bind(&own), &own)?;
                store.set(&key, &meeting.port.to_string())?;
                let port = meeting.port;
                return Ok((Some(meeting), Place { port, ..own }));
            }
            let port = store.get(&key, wait)?;
            let port = port.parse().map_err(|_| {
                CollectiveError::Launch(format!("{key} in torchrun's store is {port}, not a port"))
            })?;
            Ok((None, Place { host, port }))
        }
    }
}

/// At all addresses of this machine, or at that alone by which no other machine reaches it.
fn bind(place: &Place) -> std::io::Result<TcpListener> {
    if place.is_local() {
        return TcpListener::bind((place.host.as_str(), place.port));
    }
    let is_six =
        (place.host.as_str(), place.port).to_socket_addrs().is_ok_and(|mut all| all.all(|a| a.is_ipv6()));
    match is_six {
        true => TcpListener::bind((Ipv6Addr::UNSPECIFIED, place.port)),
        false => TcpListener::bind((Ipv4Addr::UNSPECIFIED, place.port)),
    }
}

impl Collective for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut state = self.state()?;
        self.exchange(&mut state, |_| bytes)?;
        Ok(state.received.iter_mut().map(std::mem::take).collect())
    }

    fn sum_f32(&self, values: &mut [f32]) -> Result<()> {
        self.sum(values)
    }

    fn sum_f64(&self, values: &mut [f64]) -> Result<()> {
        self.sum(values)
    }

    fn sum_bf16(&self, values: &mut [bf16]) -> Result<()> {
        self.sum(values)
    }

    fn sum_f16(&self, values: &mut [f16]) -> Result<()> {
        self.sum(values)
    }

    fn watch(&self, peers: &[Peer]) -> Result<bool> {
        let Some(watch) = Watch::start(self, peers, Some(self.first))? else { return Ok(false) };
        let _ = self.watch.set(watch);
        Ok(true)
    }

    fn finish(&self) -> Result<()> {
        self.barrier()?;
        if let Some(watch) = self.watch.get() {
            watch.leave();
        }
        Ok(())
    }

    fn abort(&self, why: &str) {
        match self.watch.get() {
            // All others hear of it and end by themselves.
            Some(watch) => watch.end_all(why),
            // They see that the connection has ended, when this process has.
            None => eprintln!("clearshot: rank {}: {why}; all ranks end", self.rank),
        }
    }

    fn fault(&self) -> Option<Fault> {
        self.watch.get().and_then(Watch::fault)
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
