//! Profiles of runs: a slow loader, growing memory, and healthy runs are recognised.

mod tiny;

use clearshot_graph::{Builder, Op, Type};
use clearshot_runtime::{Device, MemoryScope, Options, compile, memory_in_use};
use clearshot_tensor::Tensor;
use clearshot_timeline::{ITERATION, Phase, Timeline, group, memory, span};
use clearshot_train::data::feed::Feed;
use clearshot_train::run::{PROFILE, SETTINGS, never};
use clearshot_train::{Run, presets};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Memory is the whole process's: tests that measure it take turns with all others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|p| p.into_inner())
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_run_is_profiled_by_its_schedule_and_computes_the_same_bits() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let digest = |name: &str, debug: Value| {
        let config = tiny::config(json!({
            "trainer": {"iterations": 12, "crop": 32, "batch": 8}, "validation": {"every": 4}, "debug": debug,
            "performance": {"workers": 2},
        }));
        let mut run = Run::open(
            config,
            &folder.path().join(name),
            false,
            Box::new(()) as Box<dyn clearshot_train::Watch>,
        )
        .unwrap();
        let is_kernel = |op: &Op| !matches!(op, Op::Input(_) | Op::State(_) | Op::Const(_)) && !op.is_view();
        let nodes = run.session().plan().graph.nodes.clone();
        let layers: BTreeSet<String> =
            nodes.iter().filter(|n| is_kernel(&n.op)).map(|n| n.scope.to_string()).collect();
        (run.train(&never(), None).unwrap().digest, run.planned_bytes(), layers)
    };
    let (plain, ..) = digest("plain", json!({}));
    let (profiled, planned, layers) = digest("profiled", json!({"profile": "time"}));
    assert_eq!(plain, profiled, "a profile changed the run");
    let at = folder.path().join("profiled").join(PROFILE);
    let report = json_of(&at.join("profile.json"));
    // 1 to wait, 1 to warm up and 3 that count, twice.
    assert_eq!(report["iterations"], 6);
    let phases = report["phases"].as_array().unwrap();
    let sum: f64 = phases.iter().map(|p| p["percent"].as_f64().unwrap()).sum();
    assert!((sum - 100.0).abs() < 1e-6, "{sum}");
    let times = |name: &str| phases.iter().find(|p| p["phase"] == name).map(|p| p["times"].as_u64().unwrap());
    assert_eq!(["waiting for data", "forward", "backward", "optimiser"].map(times), [Some(6); 4]);
    assert_eq!(times("validating"), Some(2), "of iterations 4 and 8, which count");
    // Either of the two may have made all samples of the counted iterations.
    let is_loader = |t: &Value| t["name"].as_str().is_some_and(|name| name.starts_with("loader "));
    assert!(report["threads"].as_array().unwrap().iter().any(is_loader), "{}", report["threads"]);
    // The trace has every layer, and the copies.
    let trace = json_of(&at.join("trace.json"));
    let events = trace["traceEvents"].as_array().unwrap();
    let of_layer = |layer: &str| events.iter().any(|e| e["ph"] == "X" && e["args"]["layer"] == layer);
    assert!(layers.len() > 8 && layers.contains("update"), "{layers:?}");
    layers.iter().for_each(|layer| assert!(of_layer(layer), "{layer}"));
    let rows: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "thread_name")
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    for row in ["training", "nodes on the device", "copies"] {
        assert!(rows.contains(&row), "{rows:?}");
    }
    // Phases are within the plan, and the highest is all of it.
    let peaks = json_of(&at.join("memory.json"))["planned_peaks"].clone();
    let peaks: Vec<f64> = peaks.as_array().unwrap().iter().map(|p| p["reach"].as_f64().unwrap()).collect();
    let highest = peaks.iter().copied().fold(0.0, f64::max);
    assert!((highest / planned as f64 - 1.0).abs() < 0.01, "{highest} of {planned}");
    let stacks = std::fs::read_to_string(at.join("stacks.txt")).unwrap();
    assert!(
        stacks.contains("training;iteration;network;backward ") && stacks.contains("device;forward;"),
        "{stacks}"
    );
    let settings = json_of(&folder.path().join("profiled").join(SETTINGS));
    let value =
        |key: &str| settings.as_array().unwrap().iter().find(|s| s["key"] == key).unwrap()["value"].clone();
    assert_eq!(
        (value("trainer.batch"), value("performance.workers"), value("performance.ahead")),
        (json!(8), json!(2), json!(4))
    );
}

#[test]
fn keys_of_the_pages_ask_for_it() {
    for (name, active) in [("profile_gpu", 3), ("profile_memory", 100)] {
        let texts = ["experiment=supervised".to_string(), format!("debug={name}")];
        let config = presets::read(None, &texts).unwrap();
        assert_eq!((config.debug.wait, config.debug.warm_up, config.debug.active), (1, 1, active));
    }
}

/// A network of next to nothing behind a loader that takes 50 ms for each batch.
#[test]
fn fifty_milliseconds_in_the_loader_are_found_and_named() {
    let _alone = alone();
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([16]));
    let y = b.silu(x);
    b.output("y", y);
    let mut session = compile(b.finish().unwrap(), &Device::cpu(Some(1)), &Options::default()).unwrap();
    let timeline = Timeline::new();
    let _attached = timeline.attach("main");
    let mut feed = Feed::new(0, 1, 2, |_| {
        let _reading = span(Phase::Reading);
        std::thread::sleep(Duration::from_millis(50));
        Ok(Tensor::f32([16], vec![1.0; 16]))
    });
    timeline.set_active(true);
    for i in 0..8 {
        timeline.begin_iteration(i);
        let _iteration = group(ITERATION);
        session.set("x", &feed.take().unwrap()).unwrap();
        session.run().unwrap();
    }
    timeline.set_active(false);
    let report = timeline.report();
    let advice = &report.advice;
    let names = |a: &String| a.contains("The loader is the bottleneck") && a.contains("reading");
    assert!(advice.iter().any(names), "{advice:?}\n{}", report.table(3));
    // All the time is accounted for.
    let other = report.phases.iter().find(|p| p.phase == "other").unwrap();
    assert!(other.percent < 5.0, "{}", report.table(3));
}

/// 200 iterations that copy, augment and compute, and keep so many bytes each.
fn memory_of(kept: usize) -> Vec<memory::Snapshot> {
    let timeline = Timeline::with_memory(memory_in_use);
    let _attached = timeline.attach("main");
    let mut leaked: Vec<Vec<u8>> = vec![];
    timeline.set_active(true);
    for i in 0..200 {
        timeline.begin_iteration(i);
        let _iteration = group(ITERATION);
        {
            let _copying = span(Phase::Copying);
            drop(std::hint::black_box(vec![1u8; 4 << 20]));
        }
        {
            let _augmenting = span(Phase::Augmenting);
            if kept > 0 {
                leaked.push(std::hint::black_box(vec![1u8; kept]));
            }
        }
    }
    timeline.set_active(false);
    timeline.snapshots()
}

#[test]
fn a_leak_of_a_megabyte_an_iteration_is_found_and_named_and_a_clean_loop_is_not() {
    let _alone = alone();
    let leak = memory::leak(&memory_of(1_000_000)).expect("a leak");
    assert_eq!(leak.phase, "augmenting");
    assert!((leak.per_iteration / 1e6 - 1.0).abs() < 0.02, "{leak:?}");
    assert_eq!(memory::leak(&memory_of(0)), None);
}

#[test]
fn a_memory_scope_reports_its_growth() {
    let _alone = alone();
    let scope = MemoryScope::begin("forward_pass");
    let kept = std::hint::black_box(vec![1u8; 256 << 20]);
    let change = scope.end();
    assert!((change.bytes as f64 * 1e-9 / 0.268_435_456 - 1.0).abs() < 0.01, "{change}");
    assert!(
        change.to_string().starts_with("forward_pass: ") && change.to_string().contains("+0.268 GB"),
        "{change}"
    );
    let scope = MemoryScope::begin("freed");
    drop(kept);
    assert!((scope.end().bytes as f64 * -1e-9 / 0.268_435_456 - 1.0).abs() < 0.01);
}
