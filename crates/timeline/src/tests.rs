use super::*;
use crate::memory::{leak, steady_growth};
use crate::report::{ITERATION, OTHER};
use std::thread::sleep;
use std::time::Duration;

const MS: u64 = 1_000_000;

/// What, from when, until when, and how deep inside of others.
type Written = (What, u64, u64, u32);

/// A timeline whose first row has these spans, in milliseconds, in one window of so many.
fn made(window: u64, rows: &[(&str, &[Written])]) -> Timeline {
    let timeline = Timeline::new();
    for (name, spans) in rows {
        let spans = spans
            .iter()
            .map(|&(what, start, end, depth)| Span { what, start: start * MS, end: end * MS, depth })
            .collect();
        lock(&timeline.0.rows).push(Arc::new(Row { name: name.to_string(), spans: Mutex::new(spans) }));
    }
    lock(&timeline.0.windows).push(Window {
        start: 0,
        end: Some(window * MS),
        processor: 1e-3 * window as f64,
    });
    timeline.begin_iteration(0);
    timeline
}

fn phase(p: Phase) -> What {
    What::Phase(p)
}

#[test]
fn moments_belong_to_the_innermost_phase_and_all_together_are_the_whole() {
    let iteration = What::Group(ITERATION);
    let timeline = made(
        100,
        &[(
            "main",
            &[
                (iteration, 0, 60, 0),
                (phase(Phase::Waiting), 0, 10, 1),
                (phase(Phase::Decoding), 10, 30, 1),
                (phase(Phase::Reading), 12, 20, 2),
                (phase(Phase::Forward), 30, 50, 1),
                (phase(Phase::Validating), 60, 90, 0),
                (phase(Phase::Forward), 65, 85, 1),
                // Half of it lies behind the window.
                (phase(Phase::Saving), 95, 105, 0),
            ],
        )],
    );
    let report = timeline.report();
    let of = |p: Phase| (1e3 * report.seconds(p)).round() as u64;
    assert_eq!(of(Phase::Waiting), 10);
    assert_eq!((of(Phase::Decoding), of(Phase::Reading)), (12, 8));
    assert_eq!((of(Phase::Forward), of(Phase::Validating), of(Phase::Saving)), (20, 30, 5));
    let other = report.phases.iter().find(|s| s.phase == OTHER).unwrap();
    assert!((other.seconds - 0.015).abs() < 1e-9);
    let sum: f64 = report.phases.iter().map(|s| s.percent).sum();
    assert!((sum - 100.0).abs() < 1e-9, "{sum}");
    assert!((report.device_busy - 20.0).abs() < 1e-9);
}

#[test]
fn a_slow_loader_is_reported_with_its_work_and_a_healthy_run_gets_no_advice() {
    let slow = made(
        100,
        &[
            ("main", &[(phase(Phase::Waiting), 0, 50, 0), (phase(Phase::Forward), 50, 100, 0)]),
            ("loader 1", &[(phase(Phase::Decoding), 0, 90, 0), (phase(Phase::Reading), 10, 20, 1)]),
        ],
    );
    let advice = slow.report().advice;
    assert_eq!(advice.len(), 1, "{advice:?}");
    for word in ["The loader is the bottleneck", "50 %", "50.0 ms", "decoding"] {
        assert!(advice[0].contains(word), "{word}: {}", advice[0]);
    }
    let healthy = made(
        100,
        &[
            (
                "main",
                &[
                    (phase(Phase::Waiting), 0, 2, 0),
                    (phase(Phase::Forward), 2, 60, 0),
                    (phase(Phase::Backward), 60, 98, 0),
                ],
            ),
            ("loader 1", &[(phase(Phase::Decoding), 0, 90, 0)]),
        ],
    );
    assert_eq!(healthy.report().advice, Vec::<String>::new());
}

#[test]
fn each_piece_of_advice_stands_on_its_own_figure() {
    for (one, word) in [
        (Phase::Copying, "Copies"),
        (Phase::Saving, "checkpoint.every"),
        (Phase::Validating, "validation.every"),
        (Phase::Reading, "disk of this machine"),
        (Phase::Decoding, "clearshot convert"),
    ] {
        let timeline = made(100, &[("main", &[(phase(one), 0, 60, 0), (phase(Phase::Forward), 60, 100, 0)])]);
        let advice = timeline.report().advice;
        assert!(advice.len() == 1 && advice[0].contains(word), "{one:?}: {advice:?}");
    }
}

#[test]
fn threads_record_only_on_an_active_timeline() {
    drop(span(Phase::Forward));
    let timeline = Timeline::new();
    let attached = timeline.attach("main");
    drop(span(Phase::Forward));
    timeline.set_active(true);
    {
        let _iteration = group(ITERATION);
        drop(span(Phase::Copying));
        let other = current().unwrap();
        std::thread::spawn(move || {
            let _attached = other.attach("loader 1");
            let _span = span(Phase::Reading);
            sleep(Duration::from_millis(3));
        })
        .join()
        .unwrap();
    }
    timeline.set_active(false);
    drop(span(Phase::Forward));
    drop(attached);
    assert!(current().is_none());
    let report = timeline.report();
    assert_eq!(report.seconds(Phase::Forward), 0.0);
    assert!(report.seconds(Phase::Copying) > 0.0);
    assert_eq!(report.threads.len(), 1);
    assert!(report.threads[0].phases[0].seconds >= 0.003);
    // Warming up is forgotten.
    let warm = Timeline::new();
    let _attached = warm.attach("main");
    warm.set_active(true);
    drop(span(Phase::Forward));
    warm.discard();
    warm.set_active(true);
    drop(span(Phase::Backward));
    warm.set_active(false);
    let report = warm.report();
    assert!(report.seconds(Phase::Forward) == 0.0 && report.seconds(Phase::Backward) > 0.0);
}

#[test]
fn the_schedule_waits_warms_up_and_counts_twice() {
    let schedule = Schedule { wait: 1, warm_up: 1, active: 3, repeat: 2 };
    use State::{Active, Over, Wait, WarmUp};
    let states: Vec<State> = (0..12).map(|i| schedule.state(i)).collect();
    assert_eq!(
        states,
        [Wait, WarmUp, Active, Active, Active, Wait, WarmUp, Active, Active, Active, Over, Over]
    );
}

#[test]
fn traces_and_stacks_hold_threads_nodes_and_copies() {
    let timeline =
        made(100, &[("main", &[(What::Group(ITERATION), 0, 60, 0), (phase(Phase::Waiting), 0, 10, 1)])]);
    let info = |op, phase| NodeInfo {
        op,
        scope: "down.0".into(),
        line: format!("%1 = {op}"),
        phase,
        bytes: 7,
        reach: 9,
    };
    let nodes = Arc::new(vec![info("conv", Phase::Forward), info("conv_grad", Phase::Backward)]);
    timeline.ran(&nodes, timeline.0.began + Duration::from_millis(20), &[2 * MS, 3 * MS]);
    timeline.copied("x", 64, Instant::now());
    let trace = timeline.chrome_trace();
    let events = trace["traceEvents"].as_array().unwrap();
    let find = |name: &str| events.iter().find(|e| e["name"] == name && e["ph"] == "X").unwrap();
    assert_eq!((find("conv")["ts"].as_f64(), find("conv")["dur"].as_f64()), (Some(20_000.0), Some(2000.0)));
    assert_eq!(find("conv_grad")["ts"].as_f64(), Some(22_000.0));
    assert_eq!(find("conv")["args"]["layer"], "down.0");
    assert_eq!(find("x")["args"]["bytes"], 64);
    let rows: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "thread_name")
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    assert_eq!(rows, ["main", "nodes on the device", "copies"]);
    let stacks = timeline.folded_stacks();
    assert!(stacks.contains("main;iteration;waiting_for_data 10000\n"), "{stacks}");
    assert!(stacks.contains("main;iteration 50000\n"), "{stacks}");
    assert!(stacks.contains("device;forward;down;0;conv 2000\n"), "{stacks}");
    let peak = |phase| PlannedPeak { phase, bytes: 7, reach: 9 };
    assert_eq!(timeline.planned_peaks(), [peak("forward"), peak("backward")]);
    let report = timeline.report();
    assert_eq!((report.nodes[0].op, report.nodes[0].runs), ("conv_grad", 1));
}

#[test]
fn memory_that_rises_in_every_part_is_a_leak_and_oscillation_is_not() {
    let leaking = |i: usize| (i * 1_000_000 + (i % 7) * 3_000_000) as f64;
    let values: Vec<f64> = (0..200).map(leaking).collect();
    let found = steady_growth(&values, 8e6).unwrap();
    assert!((found - 1e6).abs() < 1e5, "{found}");
    let waves: Vec<f64> = (0..200).map(|i| ((i * 37) % 23) as f64 * 4e6).collect();
    assert_eq!(steady_growth(&waves, 8e6), None);
    // Memory that is allocated once at the start is not a leak.
    let once: Vec<f64> = (0..200).map(|i| if i < 30 { i as f64 * 1e7 } else { 3e8 }).collect();
    assert_eq!(steady_growth(&once, 8e6), None);
    let memory = |allocated: usize| Memory { allocated, ..Memory::default() };
    let mut all = vec![];
    for i in 0..200u32 {
        let base = i as usize * 1_000_000;
        let mut at = |name, before: usize, after: usize| {
            all.push(Snapshot {
                name,
                iteration: i,
                seconds: f64::from(i),
                before: memory(before),
                after: memory(after),
            });
        };
        at("copying", base, base);
        at("augmenting", base, base + 1_000_000);
        at(ITERATION, base, base + 1_000_000);
    }
    let found = leak(&all).unwrap();
    assert_eq!(found.phase, "augmenting");
    assert!((found.per_iteration - 1e6).abs() < 1e3);
}
