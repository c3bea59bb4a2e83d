//! Collectives over MPI, with as many processes as ranks: the test starts itself by mpiexec. Where there is no MPICH, it says that it is skipped.

mod exercise;

use clearshot_collectives::mpi::Mpi;
use clearshot_collectives::{Collective, CollectiveError, Hello, Peer};
use exercise::{by_threads, exercise, timing, values};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Which part a process of the test plays.
const PART: &str = "CLEARSHOT_TEST_PART";

fn mpiexec() -> Option<PathBuf> {
    let library = std::env::var_os("CLEARSHOT_MPI").map(PathBuf::from);
    let beside = library.and_then(|l| Some(l.parent()?.parent()?.join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = beside.into_iter().chain(std::env::split_paths(&path)).map(|f| f.join("mpiexec.hydra"));
    all.find(|p| p.is_file())
}

/// Runs a part in so many processes; nothing where there is no MPI.
fn ranks(size: usize, part: &str) -> Option<Output> {
    let Some(mpiexec) = mpiexec() else {
        eprintln!("skipped: no mpiexec; CLEARSHOT_MPI=/path/to/libmpi.so.12 names MPICH");
        return None;
    };
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new(mpiexec);
    command.arg("-n").arg(size.to_string()).arg(own);
    command.args(["--ignored", "--exact", "rank", "--nocapture"]).env(PART, part);
    Some(command.output().unwrap())
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
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
            assert_eq!(exercise(&mpi), by_threads(mpi.size())[mpi.rank()]);
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
            println!("rank {} heard of it", mpi.rank());
            // MPI waits for the dead in its own end.
            std::process::exit(3);
        }
        "timing" => {
            timing(&mpi);
            mpi.finish().unwrap();
        }
        other => panic!("no part {other}"),
    }
}

#[test]
fn sums_over_processes_are_those_over_threads_to_the_bit() {
    for size in [2, 3, 4] {
        let Some(output) = ranks(size, "exercise") else { return };
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("agrees").count(), size, "{text}");
    }
}

/// mpiexec ends the others as soon as one has died, often before they can say which; nobody waits for the dead, and nobody succeeds.
#[test]
fn a_rank_that_is_killed_ends_all() {
    let Some(output) = ranks(3, "killed") else { return };
    let text = text(&output);
    assert!(!output.status.success() && !text.contains("panicked"), "{text}");
}
