//! Runs `measure.py`, which compares `clearshot measure` with scikit-image and scipy on random images. It needs a Python that has
//! them (`CLEARSHOT_PYTHON`), which `.ci/run` makes, and takes seconds.

use std::path::Path;
use std::process::Command;

#[test]
fn scikit_image_and_scipy_agree() {
    let Some(python) = std::env::var_os("CLEARSHOT_PYTHON") else {
        eprintln!("skipped: CLEARSHOT_PYTHON names no Python with scikit-image, scipy and tifffile");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/measure.py");
    let done = Command::new(python).arg(script).arg(env!("CARGO_BIN_EXE_clearshot")).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
}
