//! Files that many jobs share (`--part`): what they make is what one run makes, also where jobs are killed and started again, by
//! schedulers' variables, on a server, and where something is wrong.

mod program;
#[path = "../../image/tests/server/mod.rs"]
mod server;

use program::{clearshot, folder, must, refused};
use serde_json::Value;
use server::{Server, files_below};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A folder with `raw`: noisy scenes of several sizes.
fn begin(name: &str) -> PathBuf {
    let at = folder(name);
    std::fs::create_dir(at.join("raw")).expect("a folder");
    for (n, (count, size)) in [(7, "40x48"), (3, "96x64"), (2, "160x130")].into_iter().enumerate() {
        let out = at.join(format!("s{n}"));
        must(
            &format!("synth --scene nuclei --count {count} --peak 60 --size {size} --bits 12 --out s{n}"),
            &at,
        );
        for (file, data) in files_below(&out.join("noisy")) {
            std::fs::write(at.join("raw").join(format!("{n}_{file}")), data).expect("a file");
        }
    }
    at
}

fn files(at: &Path, below: &str) -> BTreeMap<String, Vec<u8>> {
    files_below(&at.join(below))
}

#[track_caller]
fn same(at: &Path, one: &str, other: &str) {
    let (one_files, other_files) = (files(at, one), files(at, other));
    let names = |all: &BTreeMap<String, Vec<u8>>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one_files), names(&other_files), "{one} and {other}");
    for (name, data) in &one_files {
        assert!(*data == other_files[name], "{name} differs between {one} and {other}");
    }
}

fn events(said: &str) -> Vec<Value> {
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn eight_parts_of_a_folder_are_one_run() {
    let at = begin("parts-folder");
    for (verb, one, parts) in [
        ("denoise --method nlm --gain 1 --offset 100 --read-noise 2", "nlm", "nlm8"),
        ("deconvolve --psf-sigma 1 --gain 1 --offset 100 --read-noise 2 --steps 3", "rl", "rl8"),
        ("convert --to ome.zarr", "zarr", "zarr8"),
    ] {
        must(&format!("{verb} raw {one}"), &at);
        let mut bytes = Vec::new();
        // In any order.
        for part in [5, 1, 8, 3, 2, 7, 4, 6] {
            let said = must(&format!("{verb} raw {parts} --part {part}/8 --json"), &at);
            let event = &events(&said)[0];
            assert_eq!(
                (&event["event"], &event["part"], &event["parts"]),
                (&"part".into(), &part.into(), &8.into())
            );
            bytes.push(event["bytes"].as_u64().expect("bytes"));
        }
        let all: u64 = std::fs::read_dir(at.join("raw"))
            .expect("a folder")
            .flatten()
            .map(|f| f.metadata().expect("a file").len())
            .sum();
        assert_eq!(bytes.iter().sum::<u64>(), all, "every file in one part");
        let said = must(&format!("{verb} raw {parts} --json"), &at);
        let last = events(&said);
        assert_eq!(last[0]["unfinished"], Value::Array(vec![]), "{said}");
        assert_eq!(last.last().expect("a line")["already_done"], 12, "{said}");
        same(&at, one, parts);
    }
}

#[test]
fn parts_of_a_model_are_one_run_with_one_report() {
    let at = begin("parts-model");
    for file in [
        "1_nuclei_0000.tif",
        "1_nuclei_0001.tif",
        "1_nuclei_0002.tif",
        "2_nuclei_0000.tif",
        "2_nuclei_0001.tif",
    ] {
        std::fs::remove_file(at.join("raw").join(file)).expect("a file");
    }
    let verb = "restore raw --gain 1 --offset 100 --read-noise 2 --threads 1";
    must(&format!("{verb} -o one"), &at);
    for part in [2, 3, 1] {
        must(&format!("{verb} -o three --part {part}/3 --report page.html"), &at);
        assert!(!at.join("page.html").exists(), "a page is of all parts");
    }
    must(&format!("{verb} -o three --report page.html"), &at);
    same(&at, "one", "three");
    let page = std::fs::read_to_string(at.join("page.html")).expect("a page");
    assert_eq!(page.matches("<h2>").count(), 7, "a section for every file");
    let said = refused(&format!("{verb} -o four --part 1/3 --adapt 5"), &at);
    assert!(said.contains("--adapt") && said.contains("--part"), "{said}");
}

/// Jobs that end in the middle by kill -9 and are started again, some of them never; the last run completes it.
#[test]
fn parts_that_are_killed_are_completed() {
    let at = begin("parts-killed");
    let verb = "denoise --method bm3d --gain 1 --offset 100 --read-noise 2";
    must(&format!("{verb} raw one"), &at);
    let mut dice = Dice(7);
    let mut killed = 0;
    for round in 0..4 {
        for part in 1..=4 {
            let line = format!("{verb} raw many --part {part}/4");
            let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
                .args(line.split_whitespace())
                .current_dir(&at)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("the program starts");
            std::thread::sleep(Duration::from_millis(dice.below(60 << round)));
            killed += usize::from(child.try_wait().expect("a status").is_none());
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        // What is there by its name is whole.
        let done = files(&at, "many");
        for (name, data) in files(&at, "one") {
            assert!(done.get(&name).is_none_or(|there| *there == data), "{name} is not whole");
        }
    }
    assert!(killed > 0, "no job was killed in the middle");
    // One of them again to its end, and the rest in the last run.
    must(&format!("{verb} raw many --part 2/4"), &at);
    must(&format!("{verb} raw many"), &at);
    // What a killed process was writing aside is hidden and stays, as after any run that was killed.
    for entry in std::fs::read_dir(at.join("many")).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            assert!(name.ends_with(".part"), "{name} is left");
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }
    same(&at, "one", "many");
}

/// The recipes of docs/cluster, with what a scheduler would do in a loop.
#[test]
#[cfg(unix)]
fn recipes_run_under_an_array_and_under_make() {
    let at = begin("parts-recipes");
    let recipes =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cluster").canonicalize().expect("recipes");
    let program = Path::new(env!("CARGO_BIN_EXE_clearshot"));
    let path = format!(
        "{}:{}",
        program.parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let run = |command: &mut Command| {
        let out = command.current_dir(&at).env("PATH", &path).output().expect("it runs");
        assert!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    };
    must("denoise --method median raw one", &at);
    let (script, work) = (recipes.join("array.sbatch"), ["8", "raw", "slurm", "denoise --method median"]);
    for task in 0..8 {
        let mut job = Command::new("bash");
        job.arg(&script).args(work).env("SLURM_ARRAY_TASK_ID", task.to_string());
        run(job.env("SLURM_ARRAY_TASK_COUNT", "8").env("SLURM_ARRAY_TASK_MIN", "0"));
    }
    run(Command::new("bash").arg(&script).args(work));
    same(&at, "one", "slurm");
    run(Command::new("make").arg("-f").arg(recipes.join("Makefile")).args([
        "-j3",
        "IN=raw",
        "OUT=made",
        "PARTS=5",
        "VERB=denoise --method median",
    ]));
    same(&at, "one", "made");
}

#[test]
fn jobs_that_do_not_belong_together_are_refused() {
    let at = begin("parts-refused");
    let verb = "denoise --method median";
    for (part, words) in [
        ("0/8", "counted from 1"),
        ("9/8", "there are 8 parts"),
        ("x/8", "3/8"),
        ("3", "3/8"),
        ("1/0", "number of parts"),
        ("auto", "SLURM_ARRAY_TASK_ID"),
    ] {
        let said = refused(&format!("{verb} raw out --part {part}"), &at);
        assert!(said.contains("--part") && said.contains(words), "{part}: {said}");
    }
    must(&format!("{verb} raw out --part 1/3"), &at);
    for (line, words) in [
        (format!("{verb} raw out --part 1/4"), "one of 3 parts"),
        ("denoise --method gaussian raw out --part 2/3".to_string(), "other options"),
        ("denoise --method gaussian raw out".to_string(), "other options"),
        (format!("{verb} raw/0_nuclei_0001.tif raw/1_nuclei_0000.tif out --part 2/3"), "12 input files"),
    ] {
        let said = refused(&line, &at);
        assert!(said.contains(words) && said.contains(".clearshot-parts"), "{line}: {said}");
    }
    // An existing file is not replaced; a damaged input keeps its part from finishing.
    std::fs::write(at.join("theirs.tif"), b"theirs").expect("a file");
    std::fs::create_dir(at.join("kept")).expect("a folder");
    for entry in std::fs::read_dir(at.join("raw")).expect("a folder").flatten() {
        std::fs::copy(at.join("theirs.tif"), at.join("kept").join(entry.file_name())).expect("a copy");
    }
    let said = refused(&format!("{verb} raw kept --part 1/12"), &at);
    assert!(said.contains("exists"), "{said}");
    assert!(
        files(&at, "kept")
            .iter()
            .filter(|(name, _)| !name.starts_with('.'))
            .all(|(_, data)| data == b"theirs")
    );
    std::fs::write(at.join("raw/0_nuclei_0000.tif"), b"II*\0damaged").expect("a file");
    for part in 1..=3 {
        let _ = clearshot(&format!("{verb} raw other --part {part}/3"), &at);
    }
    let said = refused(&format!("{verb} raw other"), &at);
    assert!(
        said.contains("1 of 12 files could not be restored") && said.contains("0_nuclei_0000.tif"),
        "{said}"
    );
    assert_eq!(files(&at, "other").keys().filter(|name| !name.starts_with('.')).count(), 11);
}

/// On a server of S3 the notes are objects, and the first of a run is put on the condition that there is none.
#[test]
fn parts_share_a_bucket() {
    let (at, server) = (begin("parts-bucket"), Server::start());
    let run = |line: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_clearshot"))
            .args(line.split_whitespace())
            .current_dir(&at)
            .env("AWS_ACCESS_KEY_ID", "AKIATEST")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "eu-west-2")
            .env("AWS_ENDPOINT_URL", server.url())
            .env("CLEARSHOT_CACHE", at.join("cache"))
            .env_remove("AWS_ENDPOINT_URL_S3")
            .env_remove("AWS_SESSION_TOKEN")
            .output()
            .expect("the program runs");
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let verb = "denoise --method median raw";
    assert!(run(&format!("{verb} s3://lab/one")).0);
    for part in [3, 1] {
        let (ended, said) = run(&format!("{verb} s3://lab/many --part {part}/3"));
        assert!(ended, "{said}");
    }
    let conditional =
        server.asked().into_iter().filter(|a| a.headers.get("if-none-match").is_some_and(|v| v == "*"));
    assert_eq!(conditional.filter(|a| a.path.ends_with("/run.json") && a.method == "PUT").count(), 2);
    let (ended, said) = run(&format!("{verb} s3://lab/many --part 1/4"));
    assert!(!ended && said.contains("one of 3 parts"), "{said}");
    let (ended, said) = run(&format!("{verb} s3://lab/many"));
    assert!(ended, "{said}");
    assert_eq!(server.below("lab/one"), server.below("lab/many"));
}
