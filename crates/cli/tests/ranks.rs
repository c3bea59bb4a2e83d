//! Training in several processes, as users start it: by `--devices`, by torchrun's variables, by mpiexec. Where there is no MPICH, what needs it says that it is skipped:
//! CLEARSHOT_MPI=/path/to/libmpi.so.12 names it, or an mpiexec in the path does.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

/// A run of a second or so.
const TINY: &str = "experiment=default trainer.device=cpu trainer.crop=16 model.network.channels=[4,8] model.network.blocks=1 data.sizes=[32] data.pool=4 \
    validation.images=4 validation.crop=16 validation.every=0 records.every=1 checkpoint.every=2 performance.threads=1 calibration.images=0";

fn mpiexec() -> Option<PathBuf> {
    let beside =
        std::env::var_os("CLEARSHOT_MPI").and_then(|l| Some(Path::new(&l).parent()?.parent()?.join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside.into_iter().chain(std::env::split_paths(&path)).map(|f| f.join("mpiexec.hydra"));
    let found = found.into_iter().find(|p| p.is_file());
    if found.is_none() {
        eprintln!("skipped: no MPICH; CLEARSHOT_MPI=/path/to/libmpi.so.12 names it");
    }
    found
}

fn train(changes: &str, out: &Path, more: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
    command.arg("train").args(TINY.split_whitespace()).args(changes.split_whitespace());
    command.arg("--out").arg(out).args(more.split_whitespace());
    command
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
}

fn losses(out: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
    let record = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    text.lines().map(record).filter_map(|r| r["loss"].as_f64()).collect()
}

/// Runs the same command as torchrun does: one process for each rank, with these variables.
fn by_variables(
    ranks: usize,
    changes: &str,
    out: &Path,
    more: &str,
    set: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> Vec<Output> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("a port").port();
    drop(listener);
    let start = |rank: usize| {
        let mut command = train(changes, out, more);
        let torchrun =
            [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", rank), ("MASTER_PORT", port.into())];
        command.envs(torchrun.map(|(name, n)| (name, n.to_string()))).env("MASTER_ADDR", "localhost");
        command.envs(set(rank)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs")
    };
    let all: Vec<_> = (0..ranks).map(start).collect();
    all.into_iter().map(|process| process.wait_with_output().expect("an end")).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn processes_train_as_one_and_to_the_same_bits() {
    let dir = folder("ranks as one");
    let run = |name: &str, batch: usize, more: &str| {
        let changes = format!("trainer.iterations=10 trainer.batch={batch}");
        let out = dir.join(name);
        let summary = summary(&train(&changes, &out, &format!("--json {more}")).output().expect("runs"));
        (summary, losses(&out))
    };
    for ranks in [2, 3, 4] {
        let (_, alone) = run(&format!("one for {ranks}"), 2 * ranks, "");
        let (together, of_ranks) = run(&format!("{ranks}"), 2, &format!("--devices {ranks}"));
        assert_eq!(together["ranks"]["size"], ranks);
        assert!(together["ranks"]["bytes_per_iteration"].as_f64().is_some_and(|b| b > 0.0));
        assert_eq!((alone.len(), of_ranks.len()), (10, 10));
        for (a, b) in alone.iter().zip(&of_ranks) {
            assert!((a - b).abs() <= 1e-4 * a, "{ranks} ranks: {a} {b}");
        }
        assert_eq!(together["ranks"]["backend"], "tcp");
        // Rank 0 alone speaks.
        let (changes, out) = ("trainer.iterations=10 trainer.batch=2", dir.join(format!("torchrun {ranks}")));
        let outputs = by_variables(ranks, changes, &out, "--json", |_| vec![]);
        assert_eq!(summary(&outputs[0])["digest"], together["digest"]);
        assert!(outputs[1..].iter().all(|o| o.status.success() && o.stdout.is_empty()));
        assert_eq!(losses(&out), of_ranks);
        if ranks == 3 {
            let (again, _) = run("again", 2, "--devices 3 distributed.overlap=false");
            assert_eq!(again["digest"], together["digest"]);
            let Some(mpiexec) = mpiexec() else { continue };
            let over_mpi = train(changes, &dir.join("mpi"), "--json");
            let mut command = Command::new(mpiexec);
            command.args(["-n", "3"]).arg(over_mpi.get_program()).args(over_mpi.get_args());
            let over_mpi = summary(&command.output().expect("runs"));
            assert_eq!(over_mpi["ranks"]["backend"], "mpi");
            assert_eq!(over_mpi["digest"], together["digest"]);
        }
    }
}

/// The process of a rank, among those that train into this folder.
fn process_of(rank: usize, out: &Path) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        let read = |name: &str| std::fs::read(format!("/proc/{id}/{name}")).unwrap_or_default();
        let environment = read("environ");
        let is_rank =
            environment.split(|b| *b == 0).any(|v| v == format!("CLEARSHOT_RANK={rank}").as_bytes());
        is_rank && String::from_utf8_lossy(&read("cmdline")).contains(&*out.to_string_lossy())
    })
}

/// kill -9 of each rank in turn: the others name it and end, the checkpoints are whole, and the run is resumed.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_rank_ends_all_and_the_run_resumes() {
    let out = folder("ranks killed").join("run");
    for (time, victim) in [2, 0].into_iter().enumerate() {
        let more = if time == 0 { "--devices 3" } else { "--devices 3 --resume" };
        let changes = "trainer.iterations=100000 trainer.batch=2";
        let mut command = match time {
            0 => train(changes, &out, more),
            _ => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
                command.args(["train", "--out"]).arg(&out).args(more.split_whitespace());
                command
            }
        };
        let before = checkpoints(&out);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        let begun = Instant::now();
        while checkpoints(&out) == before || checkpoints(&out).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint");
            std::thread::sleep(Duration::from_millis(10));
        }
        let id = process_of(victim, &out).expect("the rank's process");
        assert!(Command::new("kill").args(["-9", &id.to_string()]).status().expect("kill").success());
        let output = child.wait_with_output().expect("an end");
        let text = stderr(&output);
        assert!(!output.status.success());
        // Both others say it, and the program that started them.
        assert_eq!(text.matches(&format!("rank {victim} (process {id} on ")).count(), 3, "{text}");
        assert!(text.contains("all ranks end; complete checkpoints are intact"), "{text}");
    }
    // A single process can resume the run where all ranks stopped.
    let last = *checkpoints(&out).last().expect("a checkpoint");
    let end = (last + 3).to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
    command.args(["train", "--out"]).arg(&out).args([
        "--resume",
        "--json",
        "--stop-at",
        &end,
        "trainer.devices=1",
    ]);
    assert!(summary(&command.output().expect("runs"))["iteration"].as_u64().is_some_and(|i| i >= last));
}

/// The iterations of checkpoints that bear a name.
fn checkpoints(out: &Path) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(out.join("checkpoints")) else { return vec![] };
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("iteration-")?.parse().ok();
    let mut all: Vec<u64> = entries.flatten().filter_map(|e| number(e.file_name())).collect();
    all.sort_unstable();
    all
}

#[test]
fn mismatches_are_reported_on_every_rank() {
    let dir = folder("ranks that do not fit");
    let out = dir.join("run");
    let said =
        |ranks: usize, changes: &str, set: &dyn Fn(usize) -> Vec<(&'static str, String)>, said: &str| {
            let outputs = by_variables(ranks, changes, &out, "", set);
            for (rank, output) in outputs.iter().enumerate() {
                let text = stderr(output);
                assert!(!output.status.success() && text.contains(said), "{text}");
                assert!(text.contains(&format!("clearshot: rank {rank}: ")), "{text}");
            }
        };
    said(2, "trainer.iterations=2 trainer.devices=3", &|_| vec![], "3 ranks, and 2 were started");
    let size = |rank: usize| vec![("WORLD_SIZE", (2 + rank).to_string())];
    said(2, "trainer.iterations=2", &size, "was started as one of 3 ranks, and here are 2");
    let size = |_: usize| vec![("WORLD_SIZE", "3".to_string())];
    said(2, "trainer.iterations=2 distributed.wait=5", &size, "rank 2 of 3 has not come within 5 s");
    let none = |_: usize| vec![("MASTER_PORT", "none".to_string())];
    for output in by_variables(2, "trainer.iterations=2", &out, "", none) {
        assert!(stderr(&output).contains("MASTER_PORT=none"), "{}", stderr(&output));
    }
    if let Some(mpiexec) = mpiexec() {
        let command = train("trainer.iterations=2 trainer.devices=3", &out, "");
        let mut over_mpi = Command::new(mpiexec);
        over_mpi.args(["-n", "2"]).arg(command.get_program()).args(command.get_args());
        let text = stderr(&over_mpi.output().expect("runs"));
        assert_eq!(text.matches("3 ranks, and 2 were started").count(), 2, "{text}");
    }
    assert!(!out.exists());
}

#[test]
fn devices_need_no_mpi() {
    let out = folder("ranks without mpi").join("run");
    let mut command = train("trainer.iterations=2", &out, "--json --devices 2");
    let output = command.env("PATH", "").env_remove("CLEARSHOT_MPI").output().expect("runs");
    assert_eq!(summary(&output)["ranks"]["size"], 2);
    let mut alone = train("trainer.iterations=2 trainer.devices=2 trainer.nodes=2", &out, "");
    let text = stderr(&alone.output().expect("runs"));
    assert!(
        text.contains("trainer.devices x trainer.nodes is 4, and this process was started alone"),
        "{text}"
    );
}

/// A request to end reaches the program that started the ranks alone: they write a checkpoint, and the run is resumed from there.
#[test]
#[cfg(target_os = "linux")]
fn ranks_finish_when_the_one_that_started_them_is_asked_to() {
    let out = folder("ranks asked to end").join("run");
    let mut command =
        train("trainer.iterations=100000 trainer.batch=2 checkpoint.every=0", &out, "--devices 2");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let begun = Instant::now();
    while losses_so_far(&out) < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no iteration");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill").success());
    let output = child.wait_with_output().expect("an end");
    assert!(!output.status.success(), "{}", stderr(&output));
    assert_eq!(checkpoints(&out).len(), 1, "{}", stderr(&output));
}

fn losses_so_far(out: &Path) -> usize {
    std::fs::read_to_string(out.join("records.jsonl")).map_or(0, |text| text.lines().count())
}
