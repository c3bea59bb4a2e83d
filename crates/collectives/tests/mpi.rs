//! Collectives over MPI, with as many processes as ranks: the test starts itself by mpiexec. Where there is no MPICH, it says that it is skipped.

use clearshot_collectives::hello::Peer;
use clearshot_collectives::mpi::{Mpi, mpiexec};
use clearshot_collectives::threads::Threads;
use clearshot_collectives::{Collective, CollectiveError, Fault, Hello, Keeper};
use std::process::{Command, Output};

/// Which part a process of the test plays.
const PART: &str = "CLEARSHOT_TEST_PART";

/// Runs a part in so many processes, and says who died; nothing where there is no MPI.
fn ranks(size: usize, part: &str) -> Option<(Output, Option<Fault>)> {
    let Ok(mpiexec) = mpiexec() else {
        eprintln!("skipped: no mpiexec; CLEARSHOT_MPI=/path/to/libmpi.so.12 names MPICH");
        return None;
    };
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(mpiexec);
    let keeper = Keeper::start().unwrap();
    let (name, value) = keeper.variable();
    command.arg("-n").arg(size.to_string()).arg(own).env(name, value);
    command.args(["--ignored", "--exact", "rank", "--nocapture"]).env(PART, part);
    Some((command.output().unwrap(), keeper.fault()))
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Values of a rank whose sums depend on the order in which they are added.
fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + rank * 101) % 97) as f32 * 1.7e-3 * 10f32.powi((rank % 3) as i32)).collect()
}

/// What every rank of a group says, whatever the group is made of: bits of sums, and what was gathered.
fn exercise(ranks: &dyn Collective) -> Vec<u64> {
    let mut said = vec![];
    for len in [0, 1, 5, 1000, 40_009] {
        let mut own = values(ranks.rank(), len);
        ranks.sum_f32(&mut own).unwrap();
        said.extend(own.iter().map(|x| u64::from(x.to_bits())));
        let mut own: Vec<f64> = values(ranks.rank(), len).iter().map(|x| f64::from(*x) / 3.0).collect();
        ranks.sum_f64(&mut own).unwrap();
        said.extend(own.iter().map(|x| x.to_bits()));
    }
    let unequal = vec![ranks.rank() as u8; 3 * ranks.rank()];
    for bytes in ranks.all_gather(&unequal).unwrap() {
        said.push(bytes.len() as u64);
        said.extend(bytes.iter().map(|b| u64::from(*b)));
    }
    let last = ranks.size() - 1;
    let word = if ranks.rank() == last { &b"from the last"[..] } else { b"ignored" };
    assert_eq!(ranks.broadcast(last, word).unwrap(), b"from the last");
    ranks.barrier().unwrap();
    said
}

fn hello() -> Hello {
    Hello { version: "1".into(), expected: None, agreed: vec![], peer: Peer::here() }
}

#[test]
#[ignore = "one process of the tests below"]
fn rank() {
    let mpi = Mpi::start().unwrap();
    let peers = hello().exchange(&mpi).unwrap();
    assert!(mpi.watch(&peers).unwrap());
    match std::env::var(PART).unwrap().as_str() {
        "exercise" => {
            let said = exercise(&mpi);
            let group = Threads::group(mpi.size());
            let by_threads: Vec<Vec<u64>> = std::thread::scope(|s| {
                let all: Vec<_> = group.into_iter().map(|r| s.spawn(move || exercise(&r))).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(said, by_threads[mpi.rank()]);
            assert!(mpi.bytes_sent() > 0);
            mpi.finish().unwrap();
            println!("rank {} agrees", mpi.rank());
        }
        "killed" => {
            if mpi.rank() == 1 {
                // SAFETY: ends this process at once, as the system does when there is no memory.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            let mut own = values(mpi.rank(), 100_000);
            let told = mpi.sum_f32(&mut own).unwrap_err();
            let CollectiveError::Fault(fault) = &told else { panic!("{told}") };
            assert_eq!(fault.rank, 1);
            // MPI waits for the dead in its own end.
            std::process::exit(3);
        }
        // Not a test: what docs/scaling.md has its terms from.
        "timing" => {
            for len in [1, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22] {
                let mut own = values(mpi.rank(), len);
                let mut seconds: Vec<f64> = (0..40)
                    .map(|_| {
                        mpi.barrier().unwrap();
                        let begun = std::time::Instant::now();
                        mpi.sum_f32(&mut own).unwrap();
                        begun.elapsed().as_secs_f64()
                    })
                    .collect();
                seconds.sort_by(f64::total_cmp);
                if mpi.rank() == 0 {
                    println!("{} ranks, {} bytes: {:.1} us", mpi.size(), 4 * len, 1e6 * seconds[20]);
                }
            }
            mpi.finish().unwrap();
        }
        other => panic!("no part {other}"),
    }
}

#[test]
fn sums_over_processes_are_those_over_threads_to_the_bit() {
    for size in [2, 3, 4] {
        let Some((output, fault)) = ranks(size, "exercise") else { return };
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(fault, None);
        assert_eq!(text.matches("agrees").count(), size, "{text}");
    }
}

/// The others hear of it if mpiexec lets them live for long enough; who started them always does.
#[test]
fn a_rank_that_is_killed_is_named() {
    let Some((output, fault)) = ranks(3, "killed") else { return };
    let text = text(&output);
    assert!(!output.status.success());
    let fault = fault.expect(&text);
    assert!(fault.rank == 1 && fault.why.starts_with("it was killed"), "{fault}");
}
