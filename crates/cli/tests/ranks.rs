//! Training in several processes over MPI, as users start it. Where there is no MPICH, the tests say that they are skipped: CLEARSHOT_MPI=/path/to/libmpi.so.12 names it, or
//! an mpiexec in the path does.

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

#[test]
fn processes_train_as_one_and_to_the_same_bits() {
    if mpiexec().is_none() {
        return;
    }
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
        if ranks == 3 {
            let (again, _) = run("again", 2, "--devices 3 distributed.overlap=false");
            assert_eq!(again["digest"], together["digest"]);
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
        let is_rank = environment.split(|b| *b == 0).any(|v| v == format!("PMI_RANK={rank}").as_bytes());
        is_rank && String::from_utf8_lossy(&read("cmdline")).contains(&*out.to_string_lossy())
    })
}

/// kill -9 of each rank in turn: the others name it and end, the checkpoints are whole, and the run is resumed.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_rank_ends_all_and_the_run_resumes() {
    if mpiexec().is_none() {
        return;
    }
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
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        // If mpiexec ended the others before they could report, one of them is named, and the message says so.
        let is_named = text.contains(&format!("rank {victim} (process {id} on "))
            || text.contains("others that ended at the same moment");
        assert!(is_named && text.contains("all ranks end"), "{text}");
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
    let Some(mpiexec) = mpiexec() else { return };
    let dir = folder("ranks that do not fit");
    let own = env!("CARGO_BIN_EXE_clearshot");
    let out = dir.join("run");
    let said = |ranks: usize, changes: &str| {
        let mut command = Command::new(&mpiexec);
        command.args(["-n", &ranks.to_string(), own, "train"]);
        command.args(TINY.split_whitespace()).args(changes.split_whitespace()).arg("--out").arg(&out);
        let output = command.output().expect("runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = said(2, "trainer.iterations=2 trainer.devices=3");
    assert_eq!(text.matches("3 ranks, and 2 were started").count(), 2, "{text}");
    // Variables of torchrun announce other ranks that do not exist.
    let alone = train("trainer.iterations=2", &out, "")
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(text.contains("torchrun says that there are 2 ranks, and MPI knows of 1"), "{text}");
    assert!(!out.exists());
}

#[test]
fn errors_without_mpi_give_advice() {
    let out = folder("ranks without mpi").join("run");
    let output = train("trainer.iterations=2", &out, "--devices 2")
        .env("PATH", "")
        .env_remove("CLEARSHOT_MPI")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("no mpiexec") && text.contains("pip install mpich"),
        "{text}"
    );
}
