//! `clearshot manifest` as a user types it.

mod program;

use program::{clearshot, folder, must, refused};
use serde_json::Value;

#[test]
fn a_data_set_is_written_down_and_checked_later() {
    let at = folder("manifest");
    must("synth --scene nuclei --count 3 --size 32 --out nuclei", &at);
    must("synth --scene stars --count 2 --size 32 --to ome.zarr --out stars", &at);
    let inputs = "nuclei/noisy stars/noisy --targets nuclei/truth stars/truth";
    let said = must(&format!("manifest {inputs} --domains nuclei stars --out list.csv --json"), &at);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["rows"], &said["files"]), (&5.into(), &10.into()));
    let text = std::fs::read_to_string(at.join("list.csv")).expect("a manifest");
    assert!(
        text.contains("nuclei/noisy/")
            && text.contains(",stars/")
            && !text.contains(at.to_str().expect("a name"))
    );
    assert!(refused(&format!("manifest {inputs} --out list.csv"), &at).contains("list.csv: exists already"));
    assert!(must("manifest --check list.csv", &at).contains("10 of 10 files match"));
    // The domains are called as their folders are.
    must(&format!("manifest {inputs} --out list.csv --force"), &at);
    assert!(std::fs::read_to_string(at.join("list.csv")).expect("a manifest").contains(",noisy/"));
    must(
        "train experiment=supervised data.kind=pairs data.manifest=list.csv trainer.seconds=null trainer.iterations=1 \
          trainer.crop=32 validation.crop=32 trainer.batch=2 trainer.device=cpu calibration.images=0 --out run",
        &at,
    );
    // Any image is a mask, where it has the name.
    must("manifest nuclei/noisy --masks nuclei/truth --out masked.csv", &at);
    let text = std::fs::read_to_string(at.join("masked.csv")).expect("a manifest");
    assert!(text.lines().skip(1).all(|l| l.contains(",,nuclei/truth/")), "{text}");
    // One bit of a chunk of one image.
    let chunk = walk(&at.join("stars/truth"))
        .into_iter()
        .filter(|p| p.to_string_lossy().contains("/c/"))
        .min()
        .expect("a chunk");
    let mut bytes = std::fs::read(&chunk).expect("a chunk");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&chunk, bytes).expect("a chunk");
    let name = walk(&at.join("nuclei/truth")).into_iter().min().expect("a file");
    std::fs::remove_file(&name).expect("a file");
    let done = clearshot("manifest --check list.csv --json", &at);
    assert_eq!(done.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let is: Vec<&str> =
        said["altered"].as_array().expect("files").iter().filter_map(|f| f["is"].as_str()).collect();
    assert_eq!(is, ["missing", "changed"], "{said}");
    let said = refused("manifest --check list.csv", &at);
    assert!(said.contains("2 of 10 files are missing or have changed"), "{said}");
}

#[test]
fn mistakes_are_named() {
    let at = folder("manifest-mistakes");
    must("synth --scene nuclei --count 2 --size 32 --out nuclei", &at);
    assert!(refused("manifest nuclei/noisy", &at).contains("--out"));
    assert!(
        refused("manifest nuclei/noisy nuclei/truth --targets nuclei/truth --out a.csv", &at)
            .contains("--targets: 1 given for 2")
    );
    assert!(refused("manifest --check nuclei/noisy", &at).contains("noisy"));
    assert!(refused("manifest nothing --out a.csv", &at).contains("nothing"));
    std::fs::write(at.join("image.tif"), [73, 73, 42, 0, 255, 254]).expect("a file");
    assert!(
        refused("manifest --check image.tif", &at)
            .contains("image.tif: not a text file; a manifest is a CSV file")
    );
    assert!(!at.join("a.csv").exists());
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path());
    entries.flat_map(|p| if p.is_dir() { walk(&p) } else { vec![p] }).collect()
}
