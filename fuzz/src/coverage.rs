//! The targets for libFuzzer. `CLEARSHOT_FUZZ` names one of them.
#![no_main]

use clearshot_fuzz::{Target, by_name};
use std::sync::LazyLock;
use tempfile::TempDir;

static CHOSEN: LazyLock<(&Target, TempDir)> = LazyLock::new(|| {
    let name = std::env::var("CLEARSHOT_FUZZ").unwrap_or_default();
    let target = by_name(&name).unwrap_or_else(|| panic!("CLEARSHOT_FUZZ={name}: not a target"));
    (target, tempfile::tempdir().expect("a temporary folder"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (CHOSEN.0.read)(data, CHOSEN.1.path()));
