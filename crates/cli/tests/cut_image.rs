//! One image that several jobs make (`--part` where the output is one OME-Zarr): the chunks are those of a single run, also where jobs are
//! killed and started again, with shards, and on a server; and what cannot be cut is refused.

mod program;
#[path = "../../image/tests/server/mod.rs"]
mod server;

use program::{clearshot, folder, must, refused};
use serde_json::{Value, json};
use server::{Server, files_below};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

type Files = BTreeMap<String, Vec<u8>>;

const CAMERA: &str = "--gain 1 --offset 100 --read-noise 2";

/// A folder with `raw.tif`, a noisy plane.
fn begin(name: &str, size: &str) -> PathBuf {
    let at = folder(name);
    must(&format!("synth --scene nuclei --count 1 --peak 60 --size {size} --bits 12 --out scene"), &at);
    std::fs::rename(at.join("scene/noisy/nuclei_0000.tif"), at.join("raw.tif")).expect("a scene");
    at
}

/// The record without what is counted: of an image that is written as it comes it says null.
fn without_counts(text: &[u8]) -> Value {
    let mut record: Value = serde_json::from_slice(text).expect("JSON");
    let counted = ["clipped", "filled", "saturated", "chi2", "left_over", "pooled_choices", "exposures"];
    if let Some(parameters) = record["attributes"]["clearshot"]["parameters"].as_object_mut() {
        counted.iter().for_each(|key| drop(parameters.remove(*key)));
    }
    record
}

/// All files the same but for the root's metadata, which are so up to counts.
#[track_caller]
fn same(one: &Files, other: &Files) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, data) in one {
        match name.as_str() {
            "zarr.json" => {
                let name_of = |v: &mut Value| drop(v["attributes"]["ome"]["multiscales"][0]["name"].take());
                let (mut a, mut b) = (without_counts(data), without_counts(&other[name]));
                // The output's own name.
                [&mut a, &mut b].into_iter().for_each(name_of);
                assert_eq!(a, b);
            }
            _ => assert!(*data == other[name], "{name} differs"),
        }
    }
}

fn files(at: &Path, below: &str) -> Files {
    files_below(&at.join(below))
}

/// What is left beside an output.
fn hidden(at: &Path) -> Vec<String> {
    let names = std::fs::read_dir(at).expect("a folder").flatten();
    names.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n.starts_with('.')).collect()
}

#[test]
fn eight_parts_of_one_image_are_one_run() {
    let at = begin("cut-image", "1030x1540");
    for (verb, one, cut) in [
        (format!("denoise --method bm3d {CAMERA} raw.tif"), "bm3d.ome.zarr", "bm3d8.ome.zarr"),
        // The noise is estimated by each job, from all of the image.
        ("denoise --method nlm --tile 300 raw.tif".into(), "nlm.ome.zarr", "nlm8.ome.zarr"),
        ("denoise --method tv --tile 400 raw.tif".into(), "tv.ome.zarr", "tv8.ome.zarr"),
        // Pieces that are blended.
        (
            format!("deconvolve --psf-sigma 1 {CAMERA} --steps 3 --tile 500 raw.tif"),
            "rl.ome.zarr",
            "rl8.ome.zarr",
        ),
        ("convert raw.tif".into(), "same.ome.zarr", "same8.ome.zarr"),
    ] {
        must(&format!("{verb} {one}"), &at);
        for part in [5, 1, 8, 3, 2, 7, 4, 6] {
            let said = must(&format!("{verb} {cut} --part {part}/8"), &at);
            assert!(said.contains(&format!("part {part}/8 of one image")), "{said}");
            assert!(!at.join(cut).exists(), "it has its name when all is there");
        }
        // A part that has come to its end is not done again.
        let said = must(&format!("{verb} {cut} --part 3/8"), &at);
        assert!(said.contains("1 already done"), "{said}");
        let said = must(&format!("{verb} {cut}"), &at);
        assert!(said.contains("all 8 parts of one image are finished"), "{said}");
        same(&files(&at, one), &files(&at, cut));
        assert_eq!(hidden(&at), Vec::<String>::new());
    }
}

/// Planes of a stack, in the input's own shards, and more jobs than there is to do.
#[test]
fn shards_stay_whole() {
    let at = folder("cut-shards");
    must("synth --scene nuclei --count 5 --peak 60 --size 96x80 --bits 12 --out scene", &at);
    let plane = |n: usize| std::fs::read(at.join(format!("scene/noisy/nuclei_{n:04}.tif"))).expect("a scene");
    assert!(!plane(0).is_empty());
    // Five planes of 96 x 80 in shards of 2 x 64 x 64 that hold chunks of 1 x 32 x 32.
    let inside = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
    let index = json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [5, 96, 80], "data_type": "uint16", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 64, 64]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [1, 32, 32], "codecs": inside, "index_codecs": index, "index_location": "end"}}],
        "attributes": {}, "dimension_names": ["z", "y", "x"],
    });
    let axes: Vec<Value> = ["z", "y", "x"].iter().map(|n| json!({"name": n, "type": "space"})).collect();
    let scale = json!([{"type": "scale", "scale": [1.0, 1.0, 1.0]}]);
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5", "multiscales": [
        {"name": "s", "axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}]}}});
    let root = at.join("raw.ome.zarr");
    std::fs::create_dir_all(root.join("0")).expect("a folder");
    std::fs::write(root.join("zarr.json"), group.to_string()).expect("metadata");
    std::fs::write(root.join("0/zarr.json"), array.to_string()).expect("metadata");
    for [z, y, x] in (0..12).map(|n| [n / 4, n / 2 % 2, n % 2]) {
        let (mut data, mut table) = (Vec::new(), Vec::new());
        for [cz, cy, cx] in (0..8).map(|n| [n / 4, n / 2 % 2, n % 2]) {
            table.extend([data.len() as u64, 2048].iter().flat_map(|n| n.to_le_bytes()));
            for [py, px] in (0..1024).map(|n| [n / 32, n % 32]) {
                let [z, y, x] = [z * 2 + cz, y * 64 + cy * 32 + py, x * 64 + cx * 32 + px];
                let value = 100 + (z * 7919 + y * 104_729 + x * 1_299_709) % 61;
                data.extend((value as u16).to_le_bytes());
            }
        }
        let sum = crc32c(&table);
        data.extend(table);
        data.extend(sum.to_le_bytes());
        let file = root.join(format!("0/c/{z}/{y}/{x}"));
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, data).expect("a shard");
    }
    for (verb, name, jobs) in [
        (format!("denoise --method gaussian {CAMERA} raw.ome.zarr"), "blur", 8),
        ("convert raw.ome.zarr".into(), "copy", 8),
        (format!("deconvolve --psf-sigma 1 {CAMERA} --steps 2 raw.ome.zarr"), "rl", 3),
        (format!("restore raw.ome.zarr --method model --planes {CAMERA} --threads 1 -o"), "model", 2),
    ] {
        must(&format!("{verb} {name}.ome.zarr"), &at);
        for part in 1..=jobs {
            must(&format!("{verb} {name}-cut.ome.zarr --part {part}/{jobs}"), &at);
        }
        must(&format!("{verb} {name}-cut.ome.zarr"), &at);
        let made = files(&at, &format!("{name}.ome.zarr"));
        assert!(made.contains_key("0/c/2/1/1"), "shards: {:?}", made.keys());
        same(&made, &files(&at, &format!("{name}-cut.ome.zarr")));
    }
}

/// CRC-32C bit by bit.
fn crc32c(data: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// The model on one plane: what is chosen is chosen for all of it, and each job runs the network on its own tiles.
#[test]
fn a_model_restores_a_plane_in_parts() {
    let at = begin("cut-model", "528x544");
    let verb = "restore raw.tif --threads 1 --tile 128";
    must(&format!("{verb} -o one.ome.zarr"), &at);
    for part in [2, 1, 3] {
        must(&format!("{verb} -o cut.ome.zarr --part {part}/3"), &at);
    }
    must(&format!("{verb} -o cut.ome.zarr"), &at);
    same(&files(&at, "one.ome.zarr"), &files(&at, "cut.ome.zarr"));
}

/// Jobs that end by kill -9 and are started again; the last run completes it.
#[test]
fn parts_that_are_killed_are_completed() {
    let at = begin("cut-killed", "1100x1600");
    let verb = format!("denoise --method bm3d {CAMERA} --tile 256 raw.tif");
    must(&format!("{verb} one.ome.zarr"), &at);
    let (mut state, mut killed) = (11u64, 0);
    for round in 0..4 {
        for part in 1..=4 {
            let line = format!("{verb} many.ome.zarr --part {part}/4");
            let mut child = Command::new(env!("CARGO_BIN_EXE_clearshot"))
                .args(line.split_whitespace())
                .current_dir(&at)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("the program starts");
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_millis((state >> 33) % (150 << round)));
            killed += usize::from(child.try_wait().expect("a status").is_none());
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        assert!(!at.join("many.ome.zarr").exists(), "it has its name when all is there");
    }
    assert!(killed > 0, "no job was killed in the middle");
    must(&format!("{verb} many.ome.zarr --part 2/4"), &at);
    must(&format!("{verb} many.ome.zarr"), &at);
    same(&files(&at, "one.ome.zarr"), &files(&at, "many.ome.zarr"));
    assert_eq!(hidden(&at), Vec::<String>::new());
}

#[test]
fn parts_of_one_image_share_a_bucket() {
    let (at, server) = (begin("cut-bucket", "1100x1600"), Server::start());
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
    let verb = format!("denoise --method nlm {CAMERA} --tile 300 raw.tif");
    assert!(run(&format!("{verb} s3://lab/one.ome.zarr")).0);
    for part in [3, 1] {
        let (ended, said) = run(&format!("{verb} s3://lab/many.ome.zarr --part {part}/3"));
        assert!(ended, "{said}");
    }
    let (ended, said) = run(&format!("{verb} s3://lab/many.ome.zarr --part 1/4"));
    assert!(!ended && said.contains("one of 3 parts"), "{said}");
    assert!(!server.below("lab/many.ome.zarr").contains_key("zarr.json"), "no image before the last run");
    // What was asked before is forgotten.
    server.asked();
    let (ended, said) = run(&format!("{verb} s3://lab/many.ome.zarr"));
    assert!(ended, "{said}");
    let full = server.asked().into_iter().filter(|a| a.method == "PUT" && a.path.contains("/0/c/"));
    assert_eq!(full.count(), 4, "the last run makes the chunks of the part that did not run, and no others");
    same(&server.below("lab/one.ome.zarr"), &server.below("lab/many.ome.zarr"));
    assert!(
        server
            .below("lab")
            .keys()
            .all(|name| !name.contains("clearshot-parts") && !name.contains("unfinished"))
    );
    // What another run has begun there is not taken for this one's.
    assert!(run(&format!("{verb} s3://lab/two.ome.zarr --part 1/2")).0);
    for name in server.below("lab/.two.ome.zarr.clearshot-parts").keys() {
        server.objects().remove(&format!("lab/.two.ome.zarr.clearshot-parts/{name}"));
    }
    let (ended, said) = run("denoise --method median raw.tif s3://lab/two.ome.zarr --part 1/2");
    assert!(!ended && said.contains("begun here by another run"), "{said}");
}

#[test]
fn images_that_cannot_be_divided_are_refused() {
    let at = begin("cut-refused", "600x700");
    for (line, words) in [
        ("restore raw.tif -o a.ome.zarr --part 1/2 --std --samples 2", "std"),
        ("restore raw.tif -o b.ome.zarr --part 1/2 --report page.html", "--report"),
        (
            "restore raw.tif -o c.ome.zarr --part 1/2 --method model --estimate samples --samples 1 --steps 1 --gain 1 --offset 100 --read-noise 2",
            "cannot be cut",
        ),
        (
            "deconvolve raw.tif d.ome.zarr --psf-sigma 1 --gain 1 --offset 100 --steps 2 --part 1/2",
            "cannot be cut",
        ),
        ("convert raw.tif e.ome.zarr --pad 3 --part 1/2", "--pad"),
        ("denoise raw.tif f.ome.zarr --method median --png --part 1/2", "png"),
    ] {
        let said = refused(line, &at);
        assert!(said.contains(words) && said.contains("--part"), "{line}: {said}");
    }
    // Other formats are whole files: one job has it.
    must("denoise raw.tif whole.tif --method median --part 1/2", &at);
    // The camera that one job found is that of all.
    must("denoise raw.tif g.ome.zarr --method nlm --part 1/2", &at);
    let note = at.join(".g.ome.zarr.clearshot-parts/decided.json");
    let mut decided: Value = serde_json::from_slice(&std::fs::read(&note).expect("a note")).expect("JSON");
    assert!(
        decided["noise_estimated"] == true && decided["gain"].as_f64().is_some_and(|g| g > 0.0),
        "{decided}"
    );
    decided["gain"] = 3.5.into();
    std::fs::write(&note, decided.to_string()).expect("written");
    let said = refused("denoise raw.tif g.ome.zarr --method nlm --part 2/2", &at);
    assert!(said.contains("gain: 3.5 there"), "{said}");
    let said = String::from_utf8(clearshot("adapt --help", &at).stdout).expect("text");
    assert!(said.contains("--part"), "{said}");
}
