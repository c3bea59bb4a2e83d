//! Collectives over TCP: ranks are threads of this process that know of each other by a port alone, or processes where one is killed.

mod exercise;

use clearshot_collectives::launch::Place;
use clearshot_collectives::tcp::Tcp;
use clearshot_collectives::{Collective, CollectiveError, Hello, Launch, Meeting, Peer, Way};
use exercise::{by_threads, exercise, timing, values};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(3);

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// As torchrun's variables have it.
fn launch(rank: usize, size: usize, port: u16) -> Launch {
    let place = Place { host: "localhost".into(), port };
    Launch { rank, size, by: "torchrun", way: Way::First(place), job: "test".into() }
}

/// What each of these comes to, as a thread of its own.
fn each<T: Send>(
    launches: Vec<Launch>,
    wait: Duration,
    work: impl Fn(Tcp) -> T + Sync,
) -> Vec<Result<T, CollectiveError>> {
    let work = &work;
    std::thread::scope(|s| {
        let all: Vec<_> =
            launches.into_iter().map(|l| s.spawn(move || Tcp::start(&l, wait).map(work))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[track_caller]
fn all_say<T>(ends: Vec<Result<T, CollectiveError>>, said: &str) {
    for end in ends {
        let Err(e) = end else { panic!("nothing was refused") };
        assert!(e.to_string().contains(said), "{e}");
    }
}

fn hello(version: &str) -> Hello {
    Hello { version: version.into(), expected: None, agreed: vec![], peer: Peer::here() }
}

#[test]
fn sums_are_those_over_threads_to_the_bit() {
    for size in [2, 3, 4] {
        let port = free_port();
        let all = each((0..size).map(|rank| launch(rank, size, port)).collect(), LONG, |tcp| {
            let peers = hello("1").exchange(&tcp).unwrap();
            assert!(tcp.watch(&peers).unwrap());
            let said = exercise(&tcp);
            assert!(tcp.bytes_sent() > 0 && tcp.fault().is_none());
            tcp.finish().unwrap();
            said
        });
        let all: Vec<Vec<u64>> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, by_threads(size));
    }
}

/// A stranger that says nothing, one that says something else, one of another job; and the last rank comes late.
#[test]
fn strangers_are_ignored_and_a_late_rank_is_waited_for() {
    let port = free_port();
    let strangers = std::thread::spawn(move || {
        let connected = || loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                return stream;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let silent = connected();
        connected().write_all(&[0xff; 5000]).unwrap();
        connected().write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let other = Launch { job: "another".into(), ..launch(1, 2, port) };
        let refused = Tcp::start(&other, LONG).err().expect("refused").to_string();
        assert!(refused.contains("job 'test', not of 'another'"), "{refused}");
        let late = Tcp::start(&launch(2, 3, port), LONG).unwrap();
        drop(silent);
        exercise(&late)
    });
    let mut all = each((0..2).map(|rank| launch(rank, 3, port)).collect(), LONG, |tcp| exercise(&tcp));
    all.push(Ok(strangers.join().unwrap()));
    let all: Vec<Vec<u64>> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all, by_threads(3));
}

#[test]
fn what_keeps_ranks_from_meeting_is_said_on_every_rank() {
    let port = free_port();
    all_say(
        each(vec![launch(0, 3, port), launch(1, 3, port)], SHORT, |_| ()),
        "rank 2 of 3 has not come within 3 s",
    );
    let port = free_port();
    all_say(
        each(vec![launch(0, 2, port), launch(1, 3, port)], LONG, |_| ()),
        "was started as one of 3 ranks, and here are 2",
    );
    let port = free_port();
    let twice = vec![launch(0, 3, port), launch(1, 3, port), launch(1, 3, port)];
    all_say(each(twice, LONG, |_| ()), "two processes are rank 1");
    // Rank 0 never comes.
    all_say(each(vec![launch(1, 2, free_port())], SHORT, |_| ()), "rank 0 does not listen at localhost:");
}

#[test]
fn a_port_in_use_is_said_on_every_rank() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in taken.incoming().flatten() {
            // One that has gone away has read it.
            let _ = stream.write_all(b"SSH-2.0-somebody else\r\n");
        }
    });
    let mut ends = each(vec![launch(0, 2, port), launch(1, 2, port)], LONG, |_| ()).into_iter();
    all_say(vec![ends.next().unwrap()], &format!("rank 0 cannot listen at port {port} (MASTER_PORT)"));
    all_say(vec![ends.next().unwrap()], "is not rank 0 of this job");
}

#[test]
fn another_version_is_refused_on_every_rank() {
    let port = free_port();
    let ends = each((0..3).map(|rank| launch(rank, 3, port)).collect(), LONG, |tcp| {
        hello(if tcp.rank() == 1 { "2" } else { "1" }).exchange(&tcp).unwrap_err().to_string()
    });
    for end in ends {
        let text = end.unwrap();
        assert!(text.contains("rank 1 (") && text.contains("runs version 2"), "{text}");
    }
}

/// The system closes the connections of a rank that is killed; the others name it.
#[test]
#[cfg(unix)]
fn a_rank_that_is_killed_is_named() {
    let meeting = Meeting::of_children(3, LONG).unwrap();
    let process = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank_of_which_one_is_killed", "--nocapture"]);
        command.envs(meeting.variables(rank)).stderr(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..3).map(process).collect();
    let killed = all[1].id();
    for (rank, process) in all.into_iter().enumerate() {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_named = text.contains(&format!("rank 1 (process {killed} on "));
        assert_eq!((output.status.success(), is_named), (rank != 1, rank != 1), "{text}");
    }
}

/// As one of the processes that torchrun has started: `torchrun --nproc-per-node 4 --no-python TEST --ignored --exact rank_that_is_timed --nocapture`.
#[test]
#[ignore = "times sums"]
fn rank_that_is_timed() {
    let tcp = Tcp::start(&Launch::from_environment().unwrap().unwrap(), LONG).unwrap();
    timing(&tcp);
    tcp.finish().unwrap();
}

#[test]
#[cfg(unix)]
#[ignore = "one process of the test before"]
fn rank_of_which_one_is_killed() {
    let launch = Launch::from_environment().unwrap().unwrap();
    let tcp = Tcp::start(&launch, LONG).unwrap();
    let peers = hello("1").exchange(&tcp).unwrap();
    assert!(tcp.watch(&peers).unwrap());
    if tcp.rank() == 1 {
        // SAFETY: ends this process at once, as the system does when there is no memory.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut own = values(tcp.rank(), 100_000);
    let told = tcp.sum_f32(&mut own).unwrap_err();
    assert!(matches!(&told, CollectiveError::Fault(fault) if fault.rank == 1), "{told}");
    println!("{told}");
    // The same is said again, and nothing is sent.
    assert_eq!(tcp.barrier().unwrap_err(), told);
}

type Kept = Mutex<HashMap<Vec<u8>, Vec<u8>>>;

/// Keys and values as torchrun keeps them, for one connection after another: PyTorch's messages VALIDATE, SET, GET and WAIT.
fn store(listener: TcpListener) {
    let kept: Arc<(Kept, Condvar)> = Arc::default();
    for mut stream in listener.incoming().flatten() {
        let kept = Arc::clone(&kept);
        std::thread::spawn(move || -> std::io::Result<()> {
            fn number(stream: &mut TcpStream) -> std::io::Result<u64> {
                let mut bytes = [0; 8];
                stream.read_exact(&mut bytes)?;
                Ok(u64::from_le_bytes(bytes))
            }
            fn text(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
                let mut bytes = vec![0; number(stream)? as usize];
                stream.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            let mut first = [0; 5];
            stream.read_exact(&mut first)?;
            assert_eq!(first, [0, 0xce, 0xf7, 0x85, 0x3c]);
            loop {
                let mut message = [0];
                stream.read_exact(&mut message)?;
                let (values, changed) = &*kept;
                match message {
                    [1] => {
                        let (key, value) = (text(&mut stream)?, text(&mut stream)?);
                        values.lock().unwrap().insert(key, value);
                        changed.notify_all();
                    }
                    [3] => {
                        let key = text(&mut stream)?;
                        let value = values.lock().unwrap()[&key].clone();
                        stream.write_all(&(value.len() as u64).to_le_bytes())?;
                        stream.write_all(&value)?;
                    }
                    [6] => {
                        assert_eq!(number(&mut stream)?, 1);
                        let key = text(&mut stream)?;
                        let held = values.lock().unwrap();
                        drop(changed.wait_while(held, |values| !values.contains_key(&key)).unwrap());
                        stream.write_all(&[0])?;
                    }
                    other => panic!("message {other:?}"),
                }
            }
        });
    }
}

/// torchrun listens at MASTER_PORT itself; rank 0 says in its store where it listens.
#[test]
fn ranks_meet_by_torchruns_store() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || store(listener));
    let place = Place { host: "127.0.0.1".into(), port };
    let by_store = |rank| Launch { way: Way::Store(place.clone()), ..launch(rank, 3, port) };
    let all = each((0..3).map(by_store).collect(), LONG, |tcp| exercise(&tcp));
    let all: Vec<Vec<u64>> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all, by_threads(3));
    // Rank 0 never comes, and there is no store.
    let place = Place { host: "127.0.0.1".into(), port: free_port() };
    let nowhere = Launch { way: Way::Store(place.clone()), ..launch(1, 3, port) };
    all_say(each(vec![nowhere], SHORT, |_| ()), &format!("torchrun's store at {place}"));
}
