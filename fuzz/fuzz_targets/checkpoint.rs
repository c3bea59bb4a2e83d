//! The pickle in a PyTorch checkpoint: the archive around it is whole, for its checksums would stop all else.
#![no_main]

#[path = "../../crates/tensor/tests/archive/mod.rs"]
mod archive;

use archive::archive;
use clearshot_tensor::store::Store;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = Path::new("fuzzed.pt");
    let _ = Store::parse(data, path);
    let _ = Store::parse(&archive(&[("x/data.pkl", data), ("x/data/0", &[7; 64])]), path);
});
