//! Runs `conformance.py`, which compares this crate with the readers that Python's users trust. It needs a
//! Python that has them (`CLEARSHOT_PYTHON`) and the sample files (`CLEARSHOT_DATA`), and takes a minute; the
//! script can also be run by itself, and then makes an environment of its own.

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
        eprintln!("skipped: no sample files at {} (set CLEARSHOT_DATA)", data.display());
        return;
    }
    let test = std::env::current_exe().unwrap();
    let tool = test.parent().and_then(Path::parent).unwrap().join("examples/dump_image");
    let done = Command::new(python)
        .arg(root.join("tests/conformance.py"))
        .args(["--tool".as_ref(), tool.as_os_str(), "--data".as_ref(), data.as_os_str()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let failed: Vec<&str> = text.lines().filter(|l| l.starts_with("FAIL")).collect();
    assert!(done.status.success(), "{}\n{}", failed.join("\n"), String::from_utf8_lossy(&done.stderr));
}
