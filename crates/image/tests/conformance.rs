//! Runs `conformance.py`, which compares this crate with the readers that Python's users trust, and `object_store.py`, which
//! does so on an S3 server. They need a Python that has them (`CLEARSHOT_PYTHON`), which `.ci/run` makes, and take a minute; where
//! there are sample files (`CLEARSHOT_DATA`), the first compares these too. The scripts can also be run by themselves, and then
//! make an environment of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn python_readers_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(python) = std::env::var_os("CLEARSHOT_PYTHON") else {
        eprintln!(
            "skipped: CLEARSHOT_PYTHON names no Python with tifffile, zarr, nibabel, pydicom and astropy"
        );
        return;
    };
    let data = std::env::var_os("CLEARSHOT_DATA").map_or(root.join("../../../shared/data"), PathBuf::from);
    if !data.is_dir() {
        eprintln!(
            "skipped: no sample files at {} (set CLEARSHOT_DATA); generated ones are compared",
            data.display()
        );
    }
    agrees(Command::new(python).arg(root.join("tests/conformance.py")).arg("--data").arg(data));
}

#[test]
fn python_agrees_on_an_object_store() {
    let Some(python) = std::env::var_os("CLEARSHOT_PYTHON") else {
        eprintln!("skipped: CLEARSHOT_PYTHON names no Python with zarr, s3fs and moto[server]");
        return;
    };
    let has = Command::new(&python).args(["-c", "import moto.server, s3fs, zarr"]).output().unwrap();
    if !has.status.success() {
        eprintln!("skipped: {} has no zarr, s3fs and moto[server]", Path::new(&python).display());
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/object_store.py");
    agrees(Command::new(python).arg(script));
}

/// Runs a script with the tool that it compares.
fn agrees(script: &mut Command) {
    let test = std::env::current_exe().unwrap();
    let tool = test.parent().and_then(Path::parent).unwrap().join("examples/dump_image");
    let done = script.arg("--tool").arg(tool).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let failed: Vec<&str> = text.lines().filter(|l| l.starts_with("FAIL")).collect();
    assert!(done.status.success(), "{}\n{}", failed.join("\n"), String::from_utf8_lossy(&done.stderr));
}
