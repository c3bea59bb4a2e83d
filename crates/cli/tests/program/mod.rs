//! The program as a user starts it, in a folder of the test's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs it with a command line.
pub fn clearshot(arguments: &str, folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearshot"))
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("the program runs")
}

/// What a run that must succeed prints.
#[track_caller]
pub fn must(arguments: &str, folder: &Path) -> String {
    let out = clearshot(arguments, folder);
    assert!(out.status.success(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// What a run that must fail says of it.
#[track_caller]
pub fn refused(arguments: &str, folder: &Path) -> String {
    let out = clearshot(arguments, folder);
    assert!(!out.status.success(), "{arguments} should fail: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stderr).expect("text")
}

/// An empty folder.
pub fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}
