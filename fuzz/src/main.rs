//! `fuzz [TARGET...] [--seconds N] [--seed N]`: runs targets by mutations, all of them by default, and keeps what they panic at.

use clearshot_fuzz::{TARGETS, Target, by_name, mutate};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Where inputs go that a target panics at.
const FOUND: &str = "fuzz-found";

fn main() -> ExitCode {
    let mut targets: Vec<&'static Target> = Vec::new();
    let (mut seconds, mut seed) = (60u64, 1u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = |text: Option<String>| text.and_then(|t| t.parse::<u64>().ok());
        match argument.as_str() {
            "--seconds" | "--seed" => match number(arguments.next()) {
                Some(n) if argument == "--seconds" => seconds = n,
                Some(n) => seed = n,
                None => return refuse(&format!("{argument}: a whole number is needed")),
            },
            name => match by_name(name) {
                Some(target) => targets.push(target),
                None => return refuse(&format!("{name}: not a target")),
            },
        }
    }
    if targets.is_empty() {
        targets = TARGETS.iter().collect();
    }
    let found: usize = targets.iter().map(|t| run(t, Duration::from_secs(seconds), seed)).sum();
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(why: &str) -> ExitCode {
    let names: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
    eprintln!(
        "fuzz: {why}; usage: fuzz [TARGET...] [--seconds N] [--seed N], targets being {}",
        names.join(", ")
    );
    ExitCode::FAILURE
}

/// How many inputs the target panicked at.
fn run(target: &Target, time: Duration, seed: u64) -> usize {
    let (seeds, folder) = ((target.seeds)(), tempfile::tempdir().expect("a temporary folder"));
    let (start, mut rounds, mut found, mut slowest) = (Instant::now(), 0u64, 0, Duration::ZERO);
    while start.elapsed() < time && found < 10 {
        let input = mutate::input(&seeds, seed, rounds);
        let begin = Instant::now();
        if std::panic::catch_unwind(|| (target.read)(&input, folder.path())).is_err() {
            found += 1;
            keep(target.name, rounds, &input);
        }
        slowest = slowest.max(begin.elapsed());
        rounds += 1;
    }
    let (spent, slowest) = (start.elapsed().as_secs(), slowest.as_millis());
    println!("{}: {rounds} inputs in {spent} s, {found} panics, the slowest took {slowest} ms", target.name);
    found
}

fn keep(target: &str, round: u64, input: &[u8]) {
    let path = Path::new(FOUND).join(format!("{target}-{round}"));
    let kept = std::fs::create_dir_all(FOUND).and_then(|()| std::fs::File::create(&path)?.write_all(input));
    match kept {
        Ok(()) => eprintln!("fuzz: kept {}", path.display()),
        Err(e) => eprintln!("fuzz: {}: {e}", path.display()),
    }
}
