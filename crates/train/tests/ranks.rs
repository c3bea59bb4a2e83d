//! Several ranks train like one process with all of their images. Ranks are threads here; `tests/ranks_mpi.rs` of the
//! program uses processes.

mod tiny;

use clearshot_collectives::threads::Threads;
use clearshot_collectives::{Collective, CollectiveError};
use clearshot_nn::Weights;
use clearshot_train::distributed::Ranks;
use clearshot_train::records::console::Show;
use clearshot_train::run::{Summary, never};
use clearshot_train::{Run, RunConfig, checkpoint};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tiny::{config, network};

/// The result of every rank, or its error.
fn train(
    ranks: usize,
    folder: &Path,
    resume: bool,
    stop_at: Option<u64>,
    config_of: impl Fn(usize) -> RunConfig + Sync,
) -> Vec<Result<Summary, String>> {
    let config_of = &config_of;
    let one = |rank: Threads| {
        let config = config_of(rank.rank());
        let ranks = Ranks::of(Arc::new(rank), &config).map_err(|e| e.to_string())?;
        // One rank is not the others' file system.
        let folder = if ranks.is_first() { folder.to_owned() } else { folder.join("not there") };
        let run = Run::open_among(&ranks, config, &folder, resume, Show::Quiet);
        let end = run.and_then(|mut run| run.train(&never(), stop_at)).map_err(|e| e.to_string())?;
        ranks.finish().map_err(|e| e.to_string())?;
        Ok(end)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = Threads::group(ranks).into_iter().map(|r| s.spawn(move || one(r))).collect();
        all.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

/// The digest, which all ranks have, the states and the lines of the records that are not clocks.
fn whole(ranks: usize, changes: &Value, folder: &Path, stops: &[u64]) -> (u64, Weights, Vec<Value>) {
    let mut last = vec![];
    for (i, stop) in stops.iter().map(|s| Some(*s)).chain([None]).enumerate() {
        last = train(ranks, folder, i > 0, stop, |_| config(changes.clone()));
    }
    let ends: Vec<Summary> = last.into_iter().map(|end| end.expect("an end")).collect();
    assert!(ends.iter().all(|end| end.digest == ends[0].digest), "ranks have the same states");
    let states = checkpoint::read(&ends[0].checkpoint).expect("a checkpoint").states;
    let text = std::fs::read_to_string(folder.join("records.jsonl")).expect("records");
    let timeless = |line: &str| {
        let mut record: Value = serde_json::from_str(line).expect("JSON");
        for clock in [
            "seconds",
            "images_per_second",
            "waiting",
            "ranks_waiting",
            "ranks_bytes",
            "slowest_rank",
            "slowest_ratio",
        ] {
            record.as_object_mut().expect("an object").remove(clock);
        }
        record
    };
    (ends[0].digest, states, text.lines().map(timeless).collect())
}

/// The relative error of all parameters as one vector.
fn distance(a: &Weights, b: &Weights) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    let counts = |name: &str| name.ends_with("weight") || name.contains("running_");
    for (name, value) in a.iter().filter(|(name, _)| counts(name) && !name.contains("exchange")) {
        for (x, y) in value.to_f64().into_iter().zip(b[name].to_f64()) {
            off += (x - y) * (x - y);
            size += y * y;
        }
    }
    (off / size).sqrt()
}

fn merged(mut base: Value, changes: &Value) -> Value {
    tiny::merge(&mut base, changes.clone());
    base
}

/// Ranks with a batch of four beside one process with all of their images: plain gradient descent uses gradients unchanged.
#[track_caller]
fn check(ranks: usize, changes: &Value) {
    check_within(ranks, changes, [1e-6, 1e-5]);
}

/// As [`check`], with limits of parameters and of losses.
#[track_caller]
fn check_within(ranks: usize, changes: &Value, [of_parameters, of_losses]: [f64; 2]) {
    let sgd = json!({
        "optimizer": {"kind": "sgd", "rate": 0.05, "momentum": 0.0, "clip": 0.5},
        "trainer": {"iterations": 4}, "validation": {"every": 0}, "distributed": {"bucket": "2kiB"},
    });
    let of = |batch: usize| merged(merged(sgd.clone(), changes), &json!({"trainer": {"batch": batch}}));
    let dir = tempfile::tempdir().expect("a folder");
    let (_, one, alone) = whole(1, &of(4 * ranks), &dir.path().join("one"), &[]);
    let (_, many, together) = whole(ranks, &of(4), &dir.path().join("many"), &[]);
    let off = distance(&many, &one);
    eprintln!("{ranks} ranks: parameters are off by {off:.1e}");
    assert!(off < of_parameters, "{ranks} ranks: {off}");
    let losses =
        |records: &[Value]| -> Vec<f64> { records.iter().filter_map(|r| r["loss"].as_f64()).collect() };
    let (alone, together) = (losses(&alone), losses(&together));
    assert_eq!(alone.len(), together.len());
    for (a, b) in alone.iter().zip(&together) {
        assert!((a - b).abs() <= of_losses * a.abs(), "{ranks} ranks: {a} {b}");
    }
}

#[test]
fn ranks_train_on_the_same_images_as_one_process() {
    for ranks in [2, 3, 4] {
        check(ranks, &json!({}));
    }
}

#[test]
fn supervised_with_terms_and_accumulation() {
    let supervised = json!({"model": {"network": network(0)}, "task": {"kind": "supervised", "gradient": {"weight": 0.1}}});
    check(2, &supervised);
    check(3, &merged(supervised, &json!({"trainer": {"accumulate": 2}})));
}

/// Means and variances are those of the images of all ranks (SyncBN), and so are gradients through them and the running averages.
#[test]
fn batch_norms_see_the_images_of_all_ranks() {
    let dncnn = json!({"_class_name": "DnCNN", "in_channels": 0, "out_channels": 0, "channels": 6, "layers": 5, "norm": "batch"});
    let changes = json!({"model": {"network": dncnn}, "task": {"kind": "supervised"}});
    for ranks in [2, 3] {
        check(ranks, &changes);
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (first, states, _) = whole(2, &changes, &dir.path().join("first"), &[]);
    let running = |name: &str| states[&format!("model.3.running_{name}")].to_f64();
    assert!(running("mean").iter().any(|m| m.abs() > 1e-3) && running("var").iter().all(|v| *v > 0.0));
    assert_eq!(first, whole(2, &changes, &dir.path().join("resumed"), &[3]).0, "resumed to the bit");
}

/// On one GPU, which NCCL refuses for two ranks: through the host.
mod on_a_gpu {
    use super::*;
    use clearshot_runtime::Device;

    /// Where there is a GPU, changes laid over those that train on it; else nothing with a line that says why.
    fn gpu(changes: Value) -> Option<Value> {
        if let Err(why) = Device::cuda(0) {
            eprintln!("skipped: {why}");
            return None;
        }
        let on_it = json!({"trainer": {"device": "cuda:0"}, "performance": {"precision": "fp32"}});
        Some(merged(on_it, &changes))
    }

    /// Kernels are chosen for the size of the batch, and round otherwise in another.
    const LIMITS: [f64; 2] = [5e-6, 1e-4];

    #[test]
    fn two_ranks_train_on_the_same_images_as_one_process() {
        let supervised = json!({"model": {"network": network(0)}, "task": {"kind": "supervised"}});
        for changes in
            [json!({}), supervised.clone(), merged(supervised, &json!({"trainer": {"accumulate": 2}}))]
        {
            let Some(changes) = gpu(changes) else { return };
            check_within(2, &changes, LIMITS);
        }
    }

    #[test]
    fn batch_norms_see_the_images_of_both_ranks() {
        let dncnn = json!({"_class_name": "DnCNN", "in_channels": 0, "out_channels": 0, "channels": 8, "layers": 5, "norm": "batch"});
        let Some(changes) = gpu(json!({"model": {"network": dncnn}, "task": {"kind": "supervised"}})) else {
            return;
        };
        check_within(2, &changes, LIMITS);
    }

    #[test]
    fn the_same_bits_resumed_and_compressed() {
        let dir = tempfile::tempdir().expect("a folder");
        for compression in ["none", "bf16", "powersgd"] {
            let changes =
                json!({"distributed": {"bucket": "2kiB", "compression": compression, "rank": 1, "start": 2}});
            let Some(changes) = gpu(changes) else { return };
            let folder = |what: &str| dir.path().join(format!("{compression} {what}"));
            let first = whole(2, &changes, &folder("first"), &[]);
            let again = whole(2, &changes, &folder("resumed"), &[3, 5]);
            assert_eq!((first.0, first.2), (again.0, again.2), "{compression}");
        }
    }

    #[test]
    fn nccl_is_refused_by_key_on_every_rank() {
        let Some(changes) = gpu(json!({"distributed": {"backend": "nccl"}})) else { return };
        let dir = tempfile::tempdir().expect("a folder");
        for end in train(2, &dir.path().join("run"), false, None, |_| config(changes.clone())) {
            let text = end.expect_err("refused");
            assert!(text.contains("distributed.backend: rank 0") && text.contains("share one GPU"), "{text}");
        }
    }
}

/// NCCL carries between GPUs alone; what is asked for and cannot be is refused by its key, on every rank.
#[test]
fn nccl_without_gpus_is_refused_on_every_rank() {
    let dir = tempfile::tempdir().expect("a folder");
    let changes = json!({"distributed": {"backend": "nccl"}});
    for end in train(3, &dir.path().join("run"), false, None, |_| config(changes.clone())) {
        let text = end.expect_err("refused");
        assert!(text.contains("distributed.backend: nccl with ranks on processors"), "{text}");
    }
    let told =
        train(2, &dir.path().join("auto"), false, None, |_| config(json!({"trainer": {"iterations": 2}})));
    let settings = std::fs::read_to_string(dir.path().join("auto/settings.json")).expect("settings");
    assert!(
        told.iter().all(Result::is_ok)
            && settings.contains("distributed.backend")
            && settings.contains("mpi"),
        "{settings}"
    );
}

/// Domains are drawn by the losses of all ranks together.
#[test]
fn domains_that_follow_their_losses() {
    let data = json!({"scenes": {"nuclei": 1.0, "stars": 2.0}, "balance": "adaptive", "balance_every": 2});
    check(2, &json!({"data": data}));
}

#[test]
fn the_same_bits_from_run_to_run_overlapped_or_not_and_resumed() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, changes) in [
        ("plain", json!({})),
        ("accumulated", json!({"trainer": {"accumulate": 2}})),
        ("compressed", json!({"distributed": {"compression": "powersgd", "rank": 1, "start": 2}})),
    ] {
        let changes = merged(json!({"distributed": {"bucket": "2kiB"}}), &changes);
        let folder = |what: &str| dir.path().join(format!("{name} {what}"));
        let first = whole(3, &changes, &folder("first"), &[]);
        let again = whole(3, &changes, &folder("resumed"), &[3, 5]);
        assert_eq!((first.0, first.2), (again.0, again.2), "{name}");
        let waiting = merged(changes, &json!({"distributed": {"overlap": false}}));
        assert_eq!(first.0, whole(3, &waiting, &folder("waiting"), &[]).0, "{name}");
    }
}

/// A rank that is late in every iteration.
struct Late(Threads);

impl Collective for Late {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.0.all_gather(bytes)
    }

    fn broadcast(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>, CollectiveError> {
        let got = self.0.broadcast(root, bytes);
        // Whether to go on is asked before each iteration, in one byte.
        if bytes.len() == 1 {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        got
    }

    fn abort(&self, why: &str) {
        self.0.abort(why);
    }

    fn bytes_sent(&self) -> u64 {
        self.0.bytes_sent()
    }
}

#[test]
fn a_straggler_is_named_in_the_records() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let config =
        config(json!({"trainer": {"iterations": 20}, "validation": {"every": 0}, "records": {"every": 10}}));
    let one = |rank: Threads| {
        let first = rank.rank() == 0;
        let rank: Arc<dyn Collective> = if rank.rank() == 1 { Arc::new(Late(rank)) } else { Arc::new(rank) };
        let ranks = Ranks::of(rank, &config).expect("ranks");
        let folder = if first { out.clone() } else { out.join("not there") };
        let mut run = Run::open_among(&ranks, config.clone(), &folder, false, Show::Quiet).expect("a run");
        run.train(&never(), None).expect("an end");
        ranks.finish().expect("an end");
    };
    std::thread::scope(|s| {
        let one = &one;
        Threads::group(3).into_iter().for_each(|rank| drop(s.spawn(move || one(rank))));
    });
    let text = std::fs::read_to_string(out.join("records.jsonl")).expect("records");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let slow: Vec<&Value> = records.iter().filter(|r| r.get("slowest_rank").is_some()).collect();
    assert_eq!(slow.len(), 2);
    for record in slow {
        assert_eq!(record["slowest_rank"], 1.0, "{record}");
        assert!(record["slowest_ratio"].as_f64().is_some_and(|r| r > 1.0), "{record}");
    }
}

/// Images that do not divide evenly: three batches over two ranks, and ranks without any. Means are those of one process to the bit, for the weights are.
#[test]
fn validations_are_those_of_one_process() {
    let still = json!({
        "optimizer": {"rate": 1e-30, "weight_decay": 0.0}, "trainer": {"iterations": 2},
        "validation": {"every": 1, "images": 40}, "data": {"scenes": {"nuclei": 1.0, "stars": 2.0}},
    });
    let dir = tempfile::tempdir().expect("a folder");
    let scores = |ranks: usize| -> Vec<Value> {
        let (.., records) = whole(ranks, &still, &dir.path().join(ranks.to_string()), &[]);
        records.into_iter().filter(|r| r["kind"] == "validation").collect()
    };
    let alone = scores(1);
    assert!(alone[0]["psnr.nuclei"].is_number() && alone[0]["measured_psnr"].is_number(), "{alone:?}");
    assert_eq!(alone, scores(2));
    assert_eq!(alone, scores(4));
}

/// Compressed and in 16 bits, training still learns, and fewer values travel.
#[test]
fn compressed_gradients_train() {
    let dir = tempfile::tempdir().expect("a folder");
    let after = |compression: &str| {
        let changes = json!({
            "trainer": {"iterations": 40}, "validation": {"every": 0}, "records": {"every": 40},
            "optimizer": {"rate": 2e-3},
            "distributed": {"compression": compression, "rank": 2, "start": 4},
        });
        let ends = train(2, &dir.path().join(compression), false, None, |_| config(changes.clone()));
        let end = ends.into_iter().next().expect("two ranks").expect("an end");
        let text =
            std::fs::read_to_string(dir.path().join(compression).join("records.jsonl")).expect("records");
        let record: Value = serde_json::from_str(text.lines().next().expect("a record")).expect("JSON");
        (record["loss"].as_f64().expect("a loss"), end.ranks.expect("ranks"))
    };
    let (plain, all) = after("none");
    for (compression, share) in [("bf16", 0.6), ("fp16", 0.6), ("powersgd", 1.0)] {
        let (loss, sent) = after(compression);
        assert!((loss / plain - 1.0).abs() < 0.05, "{compression}: {loss} beside {plain}");
        assert!(sent.bytes < share * all.bytes, "{compression}: {} of {}", sent.bytes, all.bytes);
        assert_eq!(sent.compression > 1.05, compression == "powersgd", "{compression}");
    }
}

#[test]
fn ranks_that_do_not_fit_all_end_and_say_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let seeds = |rank: usize| config(json!({"seed": if rank == 2 { 4 } else { 3 }}));
    for end in train(3, &dir.path().join("seeds"), false, None, seeds) {
        let text = end.expect_err("refused");
        assert!(text.contains("rank 2") && text.contains("seed = 4"), "{text}");
    }
    for end in train(2, &dir.path().join("size"), false, None, |_| config(json!({"trainer": {"devices": 3}})))
    {
        assert!(end.expect_err("refused").contains("3 ranks, and 2 were started"));
    }
    // Rank 0 alone sees the folder, which holds another run; all hear of it.
    let begun = dir.path().join("begun");
    whole(1, &json!({"trainer": {"iterations": 1}}), &begun, &[]);
    for end in train(3, &begun, false, None, |_| config(json!({}))) {
        let text = end.expect_err("refused");
        assert!(text.contains("contains a run already"), "{text}");
    }
    // One rank that fails on its way ends the others.
    let lacking = |rank: usize| {
        let threads = if rank == 1 { "4 giga" } else { "4GiB" };
        config(json!({"performance": {"budget": threads}}))
    };
    for end in train(3, &dir.path().join("lacking"), false, None, lacking) {
        let text = end.expect_err("ended");
        assert!(text.contains("performance.budget"), "{text}");
    }
}

/// The number of ranks may change during a run: samples continue.
#[test]
fn a_run_resumes_with_another_number_of_ranks() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("run");
    let changes = json!({"distributed": {"compression": "powersgd", "rank": 1, "start": 0}});
    let of = |_: usize| config(changes.clone());
    let first = train(2, &out, false, Some(3), of).remove(0).expect("stopped");
    assert_eq!((first.iteration, first.images), (3, 3 * 2 * 4));
    let second = train(3, &out, true, Some(5), of).remove(0).expect("stopped");
    assert_eq!((second.iteration, second.images), (5, 3 * 2 * 4 + 2 * 3 * 4));
    let last = train(1, &out, true, None, of).remove(0).expect("an end");
    assert_eq!((last.iteration, last.images), (8, 48 + 3 * 4));
}

/// PyTorch's rule (matrices whose values are more than halved) sends 19 255 values for the 342 321 of CytoDL's network.
#[test]
fn powersgd_sends_a_seventeenth_of_a_dynunet() {
    let text = r#"{"_class_name": "DynUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 1, "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [16, 32, 64], "res_block": true}"#;
    let network = clearshot_nn::models::read(text).expect("a network");
    let shapes: Vec<_> = network.parameters().expect("parameters").iter().map(|p| p.shape).collect();
    let all: usize = shapes.iter().map(|s| s.len()).sum();
    assert_eq!((all, clearshot_train::distributed::values_sent(&shapes, 2)), (342_321, 19_255));
}
