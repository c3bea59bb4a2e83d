//! Verbs with addresses in place of files, before a small server: what they read and write, what they refuse, and that no
//! secret is ever said.

mod program;
#[path = "../../image/tests/server/mod.rs"]
mod server;

use program::{folder, must, refused};
use serde_json::Value;
use server::{Mischief, Server, files_below};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SECRET: &str = "wJalrXUtnFEMI-s3cr3t";

/// The program with a server for S3.
fn command(line: &str, at: &Path, server: &Server) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearshot"));
    command
        .args(line.split_whitespace())
        .current_dir(at)
        .env("AWS_ACCESS_KEY_ID", "AKIATEST")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_REGION", "eu-west-2")
        .env("AWS_ENDPOINT_URL", server.url())
        .env("CLEARSHOT_CACHE", at.join("cache"))
        .env_remove("AWS_ENDPOINT_URL_S3")
        .env_remove("AWS_SESSION_TOKEN");
    command
}

fn run(line: &str, at: &Path, server: &Server) -> Output {
    let out = command(line, at, server).output().expect("the program runs");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(!said.contains("s3cr3t"), "{line}: {said}");
    out
}

#[track_caller]
fn done(line: &str, at: &Path, server: &Server) -> String {
    let out = run(line, at, server);
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[track_caller]
fn fails(line: &str, words: &[&str], at: &Path, server: &Server) {
    let out = run(line, at, server);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{line} should fail");
    assert!(words.iter().all(|w| said.contains(w)), "{line}: {said}");
}

/// A server with keys, and a folder with two noisy scenes of 40 x 48.
fn begin(name: &str) -> (std::path::PathBuf, Server) {
    let at = folder(name);
    let server = Server::start();
    server.want_authorization("AWS4-HMAC-SHA256 Credential=AKIATEST/");
    must("synth --scene nuclei --count 2 --peak 60 --size 40x48 --bits 12 --out s", &at);
    (at, server)
}

#[test]
fn images_go_to_a_bucket_and_come_back() {
    let (at, server) = begin("addresses-convert");
    done("convert s/noisy/nuclei_0000.tif s3://lab/raw/a.zarr", &at, &server);
    must("convert s/noisy/nuclei_0000.tif a.zarr", &at);
    assert_eq!(
        server.below("lab/raw/a.zarr").keys().collect::<Vec<_>>(),
        files_below(&at.join("a.zarr")).keys().collect::<Vec<_>>()
    );
    let facts = |line: &str| -> Value {
        let mut said: Value = serde_json::from_str(&done(line, &at, &server)).expect("JSON");
        said.as_object_mut().expect("an object").remove("file");
        said
    };
    assert_eq!(facts("info --json s3://lab/raw/a.zarr"), facts("info --json a.zarr"));
    done("convert s3://lab/raw/a.zarr back.ome.tif", &at, &server);
    done("convert s/noisy/nuclei_0000.tif direct.ome.tif", &at, &server);
    let score = must("measure --truth direct.ome.tif --image back.ome.tif --range 100 --json", &at);
    assert_eq!(serde_json::from_str::<Value>(&score).expect("JSON")["mae"], 0.0);
    // Not again by default; and never over its own input.
    fails(
        "convert s/noisy/nuclei_0001.tif s3://lab/raw/a.zarr",
        &["s3://lab/raw/a.zarr", "--force"],
        &at,
        &server,
    );
    fails("convert --force s3://lab/raw/a.zarr s3://lab/raw/a.zarr", &["own input"], &at, &server);
    done("convert --force s/noisy/nuclei_0001.tif s3://lab/raw/a.zarr", &at, &server);
    // Folders of buckets: what goes there becomes Zarr, and is listed.
    done("convert s/noisy s3://lab/all", &at, &server);
    let said = done("info --quick s3://lab/all", &at, &server);
    assert!(
        said.contains("s3://lab/all/nuclei_0000.ome.zarr") && said.contains("nuclei_0001.ome.zarr"),
        "{said}"
    );
    done("convert s3://lab/all/*_0001* local", &at, &server);
    assert!(at.join("local/nuclei_0001.ome.zarr/zarr.json").is_file());
    done("convert --to ome.tif s3://lab/all local", &at, &server);
    assert!(at.join("local/nuclei_0000.ome.tif").is_file());
    for (line, words) in [
        ("convert a.zarr s3://lab/x.tif", &["TIFF", ".zarr"][..]),
        ("convert --to tif a.zarr s3://lab/folder", &["TIFF", ".zarr"]),
        ("convert a.zarr https://host/x.zarr", &["reading only", "s3://"]),
        ("convert a.zarr https://host/folder", &["reading only", "s3://"]),
        ("info s3://lab/x.tif", &["TIFF", "local disks only"]),
        ("info s3://lab/none.zarr", &["s3://lab/none.zarr", "no Zarr image"]),
        ("denoise --method median --png a.zarr s3://lab/m.zarr", &["--png"]),
    ] {
        fails(line, words, &at, &server);
    }
    assert!(refused("info gs://lab/none.zarr", &at).contains("storage.googleapis.com"));
    assert!(!at.join("s3:").exists() && !at.join("https:").exists(), "no folder of an address's name");
}

#[test]
fn images_at_addresses_are_restored_and_scored() {
    let (at, server) = begin("addresses-restore");
    done("convert s/noisy s3://lab/raw", &at, &server);
    done("convert s/truth s3://lab/truth", &at, &server);
    done("denoise --method median s3://lab/raw s3://lab/median", &at, &server);
    must("denoise --method median s/noisy median", &at);
    let scores = |line: &str| -> Vec<Value> {
        let said = done(line, &at, &server);
        said.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON")["psnr"].clone()).collect()
    };
    let there = scores("measure --truth s3://lab/truth --image s3://lab/median --range 60 --json");
    let here = scores("measure --truth s/truth --image median --range 60 --json");
    assert_eq!((there.len(), &there), (2, &here));
    done(
        "deconvolve --psf-sigma 1 --gain 1 --offset 100 --read-noise 2 --steps 3 s3://lab/raw/nuclei_0000.ome.zarr rl.tif",
        &at,
        &server,
    );
    // A model's restoration, with its map beside it; the second run finds it done.
    let line = "restore s3://lab/raw/nuclei_0000.ome.zarr -o s3://lab/restored/a.zarr --gain 1 --offset 100 --read-noise 2 --chi2 --json";
    let events =
        |said: &str| -> Vec<Value> { said.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect() };
    let first = events(&done(line, &at, &server));
    assert_eq!(first.last().expect("a summary")["restored"], 1);
    assert!(server.below("lab/restored/a_chi2.zarr").contains_key("zarr.json"));
    let again = events(&done(line, &at, &server));
    assert_eq!(again.last().expect("a summary")["already_done"], 1);
    server.objects().get_mut("lab/raw/nuclei_0000.ome.zarr/zarr.json").expect("metadata").push(b'\n');
    fails(line, &["--force"], &at, &server);
    let record = String::from_utf8(server.objects()["lab/restored/a.zarr/zarr.json"].clone()).expect("text");
    assert!(record.contains("nuclei_0000.ome.zarr") && !record.contains("s3cr3t"), "{record}");
    // Over http, where nothing is listed, the input is known by its pixels.
    let open = Server::start();
    open.put_folder(&at.join("s"), "none");
    let objects = server.below("lab/raw/nuclei_0001.ome.zarr");
    open.objects().extend(objects.into_iter().map(|(k, v)| (format!("b.zarr/{k}"), v)));
    let line = format!(
        "restore http://me:s3cr3t@127.0.0.1:{}/b.zarr?token=s3cr3t -o b.tif --gain 1 --offset 100 --read-noise 2 --json",
        open.port
    );
    for count in ["restored", "already_done"] {
        let said = done(&line, &at, &server);
        assert_eq!(events(&said).last().expect("a summary")[count], 1, "{said}");
        assert!(said.contains(&format!("{}/b.zarr\"", open.url())), "{said}");
    }
    assert!(
        open.asked().iter().all(|a| a.query == "token=s3cr3t" && a.headers.contains_key("authorization"))
    );
    let info = must("info --json b.tif", &at);
    assert!(info.contains("b.zarr") && !info.contains("s3cr3t"), "{info}");
    // Somebody's objects are left alone, which is known before the work; with --force they go.
    server.objects().insert("lab/b.zarr/sub/.zarray".into(), b"{}".to_vec());
    let line = "restore s/noisy/nuclei_0000.tif -o s3://lab/b.zarr --gain 1 --offset 100 --read-noise 2";
    fails(line, &["s3://lab/b.zarr", "--force"], &at, &server);
    assert_eq!(server.below("lab/b.zarr").len(), 1);
    done(&format!("{line} --force"), &at, &server);
    assert!(!server.below("lab/b.zarr").contains_key("sub/.zarray"));
    // Missing permission to write is reported before the work.
    server.misbehave(|asked| match asked.method.as_str() {
        "PUT" => Mischief::Status(
            403,
            "<Error><Code>AccessDenied</Code><Message>Look only.</Message></Error>".into(),
        ),
        _ => Mischief::Nothing,
    });
    let line = "restore s/noisy/nuclei_0000.tif -o s3://lab/no.zarr --gain 1 --offset 100 --read-noise 2";
    fails(line, &["Look only.", "s3://lab/no.zarr", "AWS_ACCESS_KEY_ID"], &at, &server);
}

#[test]
fn a_model_is_trained_on_images_of_a_bucket() {
    let (at, server) = begin("addresses-train");
    done("convert s/truth s3://lab/truth", &at, &server);
    let line = "train experiment=default data=clean data.inputs=s3://lab/truth trainer.device=cpu trainer.crop=16 trainer.batch=2 \
        trainer.iterations=2 model.network.channels=[4,8] model.network.blocks=1 validation.images=2 validation.crop=16 \
        validation.every=2 checkpoint.every=2 performance.threads=1 schedule.warm_up=1 --out run";
    done(line, &at, &server);
    assert!(at.join("run/best.clearshot").exists());
}

/// Ctrl-C in the middle of an upload: no image, and the same command finishes it.
#[cfg(unix)]
#[test]
fn an_interrupted_upload_is_finished_by_the_same_command() {
    let at = folder("addresses-interrupt");
    let server = Server::start();
    must("synth --scene nuclei --size 1100x900 --out s", &at);
    let line = "convert s/noisy/nuclei_0000.tif s3://lab/a.zarr";
    server.misbehave(|asked| match asked.method.as_str() {
        "PUT" if asked.path.contains("/c/") => Mischief::Silent,
        _ => Mischief::Nothing,
    });
    let child =
        command(line, &at, &server).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
    let start = Instant::now();
    while !server.asked().iter().any(|a| a.path.contains("/c/")) && start.elapsed().as_secs() < 60 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill").success());
    let out = child.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(130), "{said}");
    assert!(said.contains("s3://lab/a.zarr is incomplete"), "{said}");
    server.behave();
    assert!(!server.objects().contains_key("lab/a.zarr/zarr.json"));
    done(line, &at, &server);
    must("convert s/noisy/nuclei_0000.tif a.zarr", &at);
    assert!(server.below("lab/a.zarr") == files_below(&at.join("a.zarr")));
}

/// Files other than images go to local folders, and no folder with the name of an address is made.
#[test]
fn runs_reports_and_manifests_lie_on_this_machine() {
    let at = folder("addresses-local");
    must("synth --scene nuclei --count 1 --size 32 --out in", &at);
    for command in [
        "train trainer.iterations=1 trainer.seconds=null --out s3://bucket/run",
        "compare raw --count 1 --size 32 --out s3://bucket/report",
        "manifest in/noisy --out s3://bucket/list.csv",
    ] {
        let said = refused(command, &at);
        assert!(said.contains("s3://bucket") && said.contains("local"), "{command}: {said}");
    }
    assert!(!at.join("s3:").exists());
}
