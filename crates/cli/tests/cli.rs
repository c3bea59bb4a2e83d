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
fn a_missing_gpu_is_refused_with_the_reason() {
    let text = complaint(&["bench", "--net", "tiny", "--size", "16", "--device", "cuda:99"]);
    assert!(text.contains("NVIDIA") || text.contains("number 99"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--device", "gpu"]);
    assert!(text.contains("cpu, cuda, cuda:N and auto"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--precision", "half"]);
    assert!(text.contains("bf16"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--size", "16", "--precision", "fp16"]);
    assert!(text.contains("fp16 needs a GPU"), "{text}");
    let text = complaint(&["bench", "--net", "tiny", "--size", "16", "--precision", "bf16", "--train"]);
    assert!(text.contains("the CPU trains in fp32"), "{text}");
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
        for field in [
            "median_ms",
            "max_ms",
            "setup_s",
            "peak_gib",
            "avg_latency_ms",
            "p50_ms",
            "p95_ms",
            "total_time_ms",
        ] {
            assert!(row[field].as_f64().unwrap() > 0.0, "{field}");
        }
        assert_eq!(row["num_iterations"], 1);
        assert_eq!(row["input_shape"][0], row["batch"]);
        let fps = 1e3 / row["avg_latency_ms"].as_f64().unwrap();
        assert!((row["throughput_fps"].as_f64().unwrap() / fps - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_sweep_has_a_row_for_every_batch_and_continues_after_one_that_does_not_fit() {
    let args = ["bench", "--net", "tiny", "--size", "16", "--runs", "2", "--warm-up", "1", "--json"];
    let text = stdout(&[&args[..], &["--batch", "1,2000000000,2"]].concat());
    let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(rows.iter().map(|r| r["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2_000_000_000, 2]);
    assert!(rows[1]["needed_bytes"].as_u64().unwrap() > rows[1]["free_bytes"].as_u64().unwrap());
    assert!(rows[2]["planned_bytes"].as_u64().unwrap() > rows[0]["planned_bytes"].as_u64().unwrap());
    assert!(complaint(&["plan", "--net", "tiny", "--batch", "1,2"]).contains("--batch takes one number"));
}

#[test]
fn optimisations_are_compared_one_by_one_with_their_errors() {
    let args = ["bench", "--net", "tiny", "--size", "16", "--runs", "2", "--warm-up", "1", "--threads", "2"];
    for train in [false, true] {
        let more: &[&str] =
            if train { &["--compare", "--json", "--train"] } else { &["--compare", "--json"] };
        let text = stdout(&[&args[..], more].concat());
        let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let name = |r: &Value| r["optimisations"].as_str().unwrap().to_string();
        let names: Vec<String> = rows.iter().map(name).collect();
        assert_eq!((names[0].as_str(), names.contains(&"all".into())), ("none", true), "{names:?}");
        assert!(names.contains(&"only fused operations".into()), "{names:?}");
        assert!(names.contains(&"all but fused operations".into()), "{names:?}");
        for row in &rows {
            assert!(row["relative_error"].as_f64().unwrap() < 1e-4, "{row}");
            assert!(row["cosine"].as_f64().unwrap() > 1.0 - 1e-6, "{row}");
            assert_eq!(row["samples_ms"].as_array().unwrap().len(), 2);
        }
        // Fused graphs keep less; threads and vectors have workspaces of their own.
        let bytes =
            |of: &str| rows[names.iter().position(|n| n == of).unwrap()]["planned_bytes"].as_u64().unwrap();
        assert!(bytes("all") < bytes("all but fused operations"));
    }
    assert!(complaint(&["bench", "--compare", "--no-passes"]).contains("cannot be used with"));
}

#[test]
fn attention_in_one_kernel_stores_no_attention_matrix() {
    let args = ["bench", "--runs", "1", "--warm-up", "1", "--json", "--attention", "512,1024"];
    let text = stdout(&args);
    let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let bytes = |tokens: u64, net: &str| {
        let row =
            rows.iter().find(|r| r["tokens"] == tokens && r["net"].as_str().unwrap().contains(net)).unwrap();
        assert!(row["relative_error"].as_f64().unwrap() < 1e-5, "{row}");
        row["planned_bytes"].as_u64().unwrap() as f64
    };
    assert!(bytes(1024, "kernel") / bytes(512, "kernel") < 2.1);
    assert!(bytes(1024, "products") / bytes(512, "products") > 3.0);
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
