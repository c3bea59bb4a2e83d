//! The program as its users meet it: what it prints, and what it says when something is wrong.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn clearshot(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearshot")).args(args).output().expect("the program starts")
}

fn stdout(args: &[&str]) -> String {
    let output = clearshot(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What the program says on failing.
fn complaint(args: &[&str]) -> String {
    let output = clearshot(args);
    assert!(!output.status.success(), "{args:?} should fail");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn json(args: &[&str]) -> Value {
    let text = stdout(args);
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// A file in a folder of this test process's own.
fn file(name: &str, text: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("clearshot-cli-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn devices_are_listed() {
    let text = stdout(&["devices"]);
    assert!(text.starts_with("cpu: "));
    // A GPU, or why there is none.
    assert!(text.lines().skip(1).all(|l| l.starts_with("cuda:") || l.starts_with("no cuda: ")), "{text}");
    let lines = stdout(&["devices", "--json"]);
    let rows: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(rows[0]["threads"].as_u64().unwrap() >= 1);
    assert!(rows.len() > 1);
    assert!(rows[1..].iter().all(|r| r["device"].as_str().unwrap().starts_with("cuda")));
    assert!(rows[1..].iter().all(|r| r["unavailable"].is_string() || r["memory_bytes"].is_u64()));
}

#[test]
fn a_gpu_that_is_not_there_is_refused_with_the_reason() {
    let text = complaint(&["bench", "--net", "tiny", "--size", "16", "--device", "cuda:99"]);
    assert!(text.contains("NVIDIA") || text.contains("number 99"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--device", "gpu"]);
    assert!(text.contains("cpu, cuda, cuda:N and auto"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--precision", "half"]);
    assert!(text.contains("bf16"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--size", "16", "--precision", "bf16"]);
    assert!(text.contains("bf16 needs a GPU"), "{text}");
}

#[test]
fn a_bench_is_one_json_line_with_all_fields() {
    let small = ["bench", "--net", "tiny", "--size", "16", "--runs", "1", "--warm-up", "1", "--json"];
    for train in [false, true] {
        let mut args = small.to_vec();
        args.extend(train.then_some("--train"));
        let row = json(&args);
        assert_eq!(row["net"], "tiny");
        assert_eq!(row["work"], if train { "train" } else { "infer" });
        assert_eq!((row["device"].as_str(), row["precision"].as_str()), (Some("cpu"), Some("fp32")));
        assert!(row["engine"].as_str().unwrap().starts_with("clearshot "));
        for field in ["batch", "size", "planned_bytes", "peak_bytes", "flops"] {
            assert!(row[field].as_u64().unwrap() > 0, "{field}");
        }
        for field in ["median_ms", "max_ms", "setup_s", "peak_gib"] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field}");
        }
    }
}

#[test]
fn plans_and_budgets() {
    let args = ["plan", "--net", "base", "--batch", "8", "--size", "256", "--train", "--json"];
    let whole = json(&args);
    let half = whole["planned_bytes"].as_u64().unwrap() * 3 / 4;
    let text = half.to_string();
    let tight = json(&[&args[..], &["--budget", &text]].concat());
    assert!(tight["planned_bytes"].as_u64().unwrap() <= half);
    assert!(tight["recomputed_flops"].as_u64().unwrap() > 0);
    assert!(stdout(&["plan", "--net", "tiny"]).contains("the largest buffers"));
    assert!(complaint(&["plan", "--net", "tiny", "--train", "--budget", "1MiB"]).contains("cannot be met"));
    assert!(complaint(&["plan", "--budget", "much"]).contains("number"));
}

#[test]
fn every_architecture_has_a_name() {
    for (net, layer) in [
        ("condition", "transformer_blocks.0.attn2"),
        ("rosinality", "down.7.attention"),
        ("ncsnpp", "enc.32x32_aux_residual"),
        ("adm", "map_layer0"),
        ("dynunet3d", "bottleneck.conv1"),
        ("multiscale", "scale_embedding"),
        ("growing", "stages.3.down"),
    ] {
        let text = stdout(&["dump", "--net", net, "--size", "32", "--stage", "built"]);
        assert!(text.contains(layer), "{net} has no {layer}");
    }
    let row = json(&["plan", "--net", "ddpmpp", "--size", "32", "--train", "--json"]);
    assert!(row["planned_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn graphs_and_plans_are_printed() {
    let built = stdout(&["dump", "--net", "tiny", "--size", "16", "--stage", "built"]);
    let fused = stdout(&["dump", "--net", "tiny", "--size", "16"]);
    let plan = stdout(&["dump", "--net", "tiny", "--size", "16", "--stage", "plan"]);
    assert!(built.contains("norm 8 groups") && built.contains("silu"));
    assert!(fused.contains("norm 8 silu bias per sample"), "norm, activation and embedding are fused");
    assert!(plan.contains("@arena+0") && plan.contains("total"));
}

#[test]
fn mistakes_are_named() {
    assert!(complaint(&["bench", "--net", "huge"]).contains("heads8, base, small, tiny"));
    assert!(complaint(&["plan", "--net", "tiny", "--size", "30"]).contains("multiples of 4"));
    assert!(complaint(&["plan", "--batch", "0"]).contains("--batch"));
    assert!(complaint(&["plan", "--config", "/nowhere/config.json"]).contains("/nowhere/config.json"));
    let typo = file("typo.json", r#"{"in_chanels": 1}"#);
    let text = complaint(&["plan", "--config", typo.to_str().unwrap()]);
    assert!(text.contains("in_chanels") && text.contains("in_channels"), "{text}");
    let foreign = file("foreign.json", r#"{"_class_name": "Transformer2DModel"}"#);
    let text = complaint(&["plan", "--config", foreign.to_str().unwrap()]);
    assert!(text.contains("_class_name") && text.contains("DynUNet"), "{text}");
    let broken = file("broken.json", "{");
    assert!(complaint(&["plan", "--config", broken.to_str().unwrap()]).contains("broken.json"));
}

#[test]
fn a_configuration_file_is_a_network() {
    let refs =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../refs/unet2d/diffusers_folder/config.json");
    let row = json(&["plan", "--config", refs.to_str().unwrap(), "--size", "32", "--json"]);
    assert!(row["planned_bytes"].as_u64().unwrap() > 0);
}
