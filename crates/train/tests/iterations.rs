//! The effect of an iteration on the weights.

mod tiny;

use clearshot_nn::{Weights, models, weights};
use clearshot_runtime::Device;
use clearshot_tensor::Tensor;
use clearshot_train::checkpoint;
use clearshot_train::data::{Batch, NUMBERS, Valid};
use clearshot_train::engine::{Engine, Numbers};
use clearshot_train::iteration::Shapes;
use clearshot_train::records::console::Show;
use clearshot_train::run::never;
use clearshot_train::task::Task;
use clearshot_train::{Run, TrainError};
use serde_json::{Value, json};
use tiny::{config, network};

/// The states after a run.
fn states(changes: Value) -> Weights {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Run::open(config(changes), folder.path(), false, Show::Quiet).expect("a run");
    let end = run.train(&never(), None).expect("an end");
    checkpoint::read(&end.checkpoint).expect("a checkpoint").states
}

/// The relative error of all parameters as one vector.
fn distance(a: &Weights, b: &Weights) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for (name, value) in a.iter().filter(|(name, _)| b.contains_key(*name) && name.contains("weight")) {
        for (x, y) in value.to_f64().into_iter().zip(b[name].to_f64()) {
            off += (x - y) * (x - y);
            size += y * y;
        }
    }
    (off / size).sqrt()
}

#[test]
fn two_runs_of_eight_are_one_of_sixteen() {
    let changes = |accumulate: usize| {
        json!({
            "optimizer": {"kind": "sgd", "rate": 0.05, "clip": 0.5},
            "trainer": {"iterations": 4, "batch": 16, "accumulate": accumulate},
            "validation": {"every": 0},
        })
    };
    let (whole, parts) = (states(changes(1)), states(changes(2)));
    assert!(distance(&parts, &whole) < 1e-6, "{}", distance(&parts, &whole));
    // The norm of sums is clipped, not the sum of clipped ones: with other runs it would be another step.
    assert!(distance(&states(changes(1)), &states(json!({"trainer": {"iterations": 4}}))) > 1e-3);
}

#[test]
fn averages_follow_their_closed_form() {
    let after = |iterations: u64| {
        states(json!({
            "schedule": {"shape": "constant"},
            "trainer": {"iterations": iterations, "ema_half_life": 6.0},
            "validation": {"every": 0},
        }))
    };
    let [one, two, three] = [1, 2, 3].map(after);
    // Batches of 4 keep 0.5^(4 / 6) at the most, and (1 + n) / (10 + n) in the beginning.
    let name = "conv_in.weight";
    let value = |s: &Weights, prefix: &str| s[&format!("{prefix}{name}")].to_f64();
    let expect = |before: &Weights, now: &Weights, decay: f64| {
        let old = value(before, "ema.");
        let want = old.iter().zip(value(now, "")).map(|(e, p)| decay * e + (1.0 - decay) * p);
        let worst = want.zip(value(now, "ema.")).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-7, "{worst}");
    };
    expect(&one, &two, 2.0 / 11.0);
    expect(&two, &three, 3.0 / 12.0);
    assert_ne!(value(&three, "ema."), value(&three, ""));
}

/// Wide layers without norms multiply what comes through them where Adam moves all weights alike.
#[test]
fn wide_networks_without_norms_train_at_usual_rates() {
    let refused = |base_fan_in: Value| {
        let states = states(json!({
            "model": {"network": {"_class_name": "Local", "in_channels": 0, "out_channels": 0, "channels": [64, 128, 256, 256], "blocks": 1, "time": false}},
            "task": {"kind": "supervised"},
            "data": {"scenes": {"nuclei": 1.0}, "sizes": [64], "pool": 8},
            "optimizer": {"rate": 1e-3, "base_fan_in": base_fan_in},
            "schedule": {"warm_up": 20},
            "trainer": {"iterations": 40, "batch": 2, "crop": 32, "returns": 0, "skips": 1000},
            "validation": {"every": 0},
        }));
        states["guard.refused"].to_f64()[0]
    };
    assert_eq!(refused(Value::Null), 0.0);
    assert!(refused(json!(0)) > 0.0);
}

#[test]
fn divergence_is_reported_with_its_iteration() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(json!({
        "optimizer": {"kind": "sgd", "rate": 1e30, "clip": 0.0},
        "schedule": {"warm_up": 0},
        "trainer": {"iterations": 60, "skips": 5, "returns": 2},
        "validation": {"every": 0},
    }));
    let mut run = Run::open(config, folder.path(), false, Show::Quiet).expect("a run");
    match run.train(&never(), None) {
        Err(TrainError::Diverged { iteration, count, returns, rate }) => {
            assert!(count >= 5 && iteration < 20 && returns == 2, "{count} {iteration} {returns}");
            assert_eq!(rate, 0.25e30);
        }
        other => panic!("{other:?}"),
    }
}

/// Of supervised training on two crops of 16 x 16 pixels, in so many runs an iteration; losses of so many domains are told
/// apart.
fn engine(runs: u64, domains: usize) -> Engine {
    engine_of(runs, domains, false)
}

/// The same; some pixels may be left out of the loss.
fn engine_of(runs: u64, domains: usize, masked: bool) -> Engine {
    let config = config(json!({
        "model": {"network": network(1)}, "task": {"kind": "supervised"}, "trainer": {"accumulate": runs},
    }));
    let net = models::read(&network(1).to_string()).expect("a network");
    let task = Task::new(&config.task).expect("a task");
    let shapes = Shapes { batch: 2, size: &[16, 16], channels: [1, 1], photons: false, domains, masked };
    let mut engine = Engine::new(&*net, &task, &shapes, &config, &Device::cpu(Some(1))).expect("an engine");
    engine.load(&weights::initial(&net.parameters().expect("parameters"), 3)).expect("weights");
    engine
}

#[test]
fn a_batch_that_is_not_finite_costs_its_own_iteration() {
    for runs in [1, 2] {
        let mut engine = engine(runs, 0);
        let batch = |first: f32| {
            let mut pixels: Vec<f32> = (0..512).map(|i| (i % 7) as f32 * 0.1).collect();
            let clean = Tensor::f32([2, 16, 16, 1], pixels.clone());
            pixels[0] = first;
            Batch {
                measured: Tensor::f32([2, 16, 16, 1], pixels),
                clean,
                numbers: Tensor::f32([2, 1, 1, NUMBERS], vec![1.0; 2 * NUMBERS]),
                scales: vec![2.0; 2],
                domains: vec![0; 2],
                domain_names: vec![],
                valid: None,
            }
        };
        // What the first run of each iteration is given; good iterations so far, and bad ones less a quarter of the good since.
        let expected =
            [(0.5, 1.0, 0.0), (f32::NAN, 1.0, 1.0), (f32::NAN, 1.0, 2.0), (0.5, 2.0, 1.75), (0.5, 3.0, 1.5)];
        for (iteration, (first, good, skips)) in (0..).zip(expected) {
            let numbers =
                Numbers { rate: 1e-3, ema_decay: 0.5, alpha: 1.0, iteration, first: 2 * runs * iteration };
            let mut values = [first, 0.5].into_iter();
            engine.step(|| Ok(batch(values.next().expect("a run"))), &numbers).expect("an iteration");
            let number = |name: &str| engine.number(name).expect("a number");
            assert_eq!((number("train.step"), number("record.skips")), (Some(good), Some(skips)), "{runs}");
        }
    }
}

#[test]
fn losses_are_separated_by_domain() {
    // The second image is so far from what it should be that the network's part in it does not count.
    let far = 100.0;
    let batch = |domains: [usize; 2]| Batch {
        measured: Tensor::f32([2, 16, 16, 1], vec![0.0; 512]),
        clean: Tensor::f32([2, 16, 16, 1], [vec![0.0; 256], vec![far; 256]].concat()),
        numbers: Tensor::f32([2, 1, 1, NUMBERS], vec![1.0; 2 * NUMBERS]),
        scales: vec![2.0; 2],
        domains: domains.to_vec(),
        domain_names: vec![],
        valid: None,
    };
    let mut engine = engine(2, 3);
    let mut runs = [[0, 2], [2, 0]].into_iter();
    let numbers = Numbers { rate: 1e-9, ema_decay: 0.5, alpha: 1.0, iteration: 0, first: 0 };
    engine.step(|| Ok(batch(runs.next().expect("a run"))), &numbers).expect("an iteration");
    let all = engine.number("record.loss").expect("a number").expect("a loss") / 2.0;
    let [small, none, large] = engine.take_domain_losses().expect("losses")[..] else {
        panic!("three domains")
    };
    // Each of the two has either image once.
    assert!((small - all).abs() < 1e-4 * all && (large - all).abs() < 1e-4 * all, "{small} {large} {all}");
    assert!(none.is_nan());
    engine.step(|| Ok(batch([1, 2])), &numbers).expect("an iteration");
    let [none, small, large] = engine.take_domain_losses().expect("losses")[..] else {
        panic!("three domains")
    };
    assert!(none.is_nan() && small < 10.0, "{none} {small}");
    assert!((large / f64::from(far * far) - 1.0).abs() < 0.05, "{large}");
}

/// Whatever stands where nothing was measured changes no bit of anything, and the loss is the mean of the rest.
#[test]
fn masked_pixels_have_no_effect() {
    let half: Vec<f32> = (0..512).map(|i| f32::from(i % 256 < 128)).collect();
    let after = |there: f32, elsewhere: f32| {
        let clean: Vec<f32> = half.iter().map(|v| if *v > 0.0 { there } else { elsewhere }).collect();
        let batch = || Batch {
            measured: Tensor::f32([2, 16, 16, 1], vec![0.0; 512]),
            clean: Tensor::f32([2, 16, 16, 1], clean.clone()),
            numbers: Tensor::f32([2, 1, 1, NUMBERS], vec![1.0; 2 * NUMBERS]),
            scales: vec![2.0; 2],
            domains: vec![0; 2],
            domain_names: vec![],
            valid: Some(Valid { mask: Tensor::f32([2, 16, 16, 1], half.clone()), factors: vec![2.0; 2] }),
        };
        let mut engine = engine_of(1, 0, true);
        let numbers = Numbers { rate: 1e-3, ema_decay: 0.5, alpha: 1.0, iteration: 0, first: 0 };
        engine.step(|| Ok(batch()), &numbers).expect("an iteration");
        let loss = engine.number("record.loss").expect("a number").expect("a loss");
        (loss, engine.states().expect("states"))
    };
    let (loss, states) = after(100.0, 0.0);
    // The network's part in it does not count beside 100.
    assert!((loss / 1e4 - 1.0).abs() < 0.05, "{loss}");
    assert_eq!((loss, states), after(100.0, 1e6));
    assert_ne!(loss, after(99.0, 0.0).0);
}

/// Draws by losses: the domain that is harder has the larger share once its losses are known, and the records say so.
#[test]
fn the_harder_domain_is_drawn_more_often() {
    let folder = tempfile::tempdir().expect("a folder");
    let changes = json!({
        "data": {"scenes": {"phantom": 1.0, "stars": 9.0}, "balance": "adaptive", "balance_every": 5},
        "trainer": {"iterations": 20, "batch": 16}, "validation": {"every": 0},
    });
    let mut run = Run::open(config(changes), folder.path(), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let text = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
    let told: Vec<[f64; 4]> = lines
        .filter(|l| l["kind"] == "balance")
        .map(|l| {
            ["share.phantom", "share.stars", "loss.phantom", "loss.stars"].map(|k| l[k].as_f64().expect(k))
        })
        .collect();
    assert_eq!(told.len(), 4, "{text}");
    for [dim, bright, of_dim, of_bright] in told {
        assert!(
            (dim + bright - 1.0).abs() < 1e-9 && (dim > bright) == (of_dim > of_bright),
            "{dim} {bright}"
        );
        assert!((dim - 0.25 - 0.5 * of_dim / (of_dim + of_bright)).abs() < 1e-6, "{dim}");
    }
    let progress = run.progress();
    assert_eq!(progress.shares.len(), 2);
    let scenes = json!({"data": {"balance": "inverse_frequency"}});
    let refused = Run::open(config(scenes), &folder.path().join("other"), false, Show::Quiet);
    let said = refused.err().expect("a refusal").to_string();
    assert!(said.starts_with("data.balance: inverse_frequency") && said.contains("data.scenes"), "{said}");
}

/// What the guard refuses leaves everything as it was but the guard's own count, in every way of running, and what is usual
/// goes on.
#[test]
fn a_batch_that_is_far_from_the_others_is_refused() {
    for runs in [1, 2] {
        let mut engine = engine(runs, 0);
        let batch = |target: f32| {
            let pixels: Vec<f32> = (0..512).map(|i| (i % 7) as f32 * 0.1).collect();
            Batch {
                clean: Tensor::f32([2, 16, 16, 1], pixels.iter().map(|p| p * target).collect()),
                measured: Tensor::f32([2, 16, 16, 1], pixels),
                numbers: Tensor::f32([2, 1, 1, NUMBERS], vec![1.0; 2 * NUMBERS]),
                scales: vec![2.0; 2],
                domains: vec![0; 2],
                domain_names: vec![],
                valid: None,
            }
        };
        let step = |engine: &mut Engine, iteration: u64, target: f32| {
            let numbers =
                Numbers { rate: 1e-5, ema_decay: 0.5, alpha: 1.0, iteration, first: 2 * runs * iteration };
            engine.step(|| Ok(batch(target)), &numbers).expect("an iteration");
        };
        // A little of everything before the guard says a word.
        let usual = |i: u64| 1.0 + 0.3 * (i as f32).sin();
        (0..60).for_each(|i| step(&mut engine, i, usual(i)));
        let number =
            |engine: &Engine, name: &str| engine.number(name).expect("a number").expect("it is there");
        assert_eq!((number(&engine, "guard.refused"), number(&engine, "train.step")), (0.0, 60.0), "{runs}");
        let lasting = |engine: &Engine| -> Weights {
            let states = engine.states().expect("states").into_iter();
            states.filter(|(n, _)| !n.starts_with("record.") && n != "guard.refused").collect()
        };
        let before = lasting(&engine);
        step(&mut engine, 60, 1e4);
        assert!(number(&engine, "grad_norm").is_finite(), "the norm is told as it is");
        assert_eq!((number(&engine, "guard.refused"), number(&engine, "record.skips")), (1.0, 1.0), "{runs}");
        assert_eq!(lasting(&engine), before);
        step(&mut engine, 61, usual(61));
        assert_eq!((number(&engine, "guard.refused"), number(&engine, "train.step")), (1.0, 61.0), "{runs}");
    }
}

#[test]
fn networks_for_other_channels_and_sizes_are_refused_by_their_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let complaint = |changes: Value| match Run::open(config(changes), folder.path(), false, Show::Quiet) {
        Err(e) => e.to_string(),
        Ok(_) => panic!("it should be refused"),
    };
    let text = complaint(json!({"model": {"network": network(3)}}));
    assert!(text.starts_with("model.network.in_channels: 3") && text.contains("10 channels"), "{text}");
    let text = complaint(json!({"trainer": {"crop": 17}}));
    assert!(text.starts_with("trainer.crop"), "{text}");
    let text = complaint(json!({"trainer": {"crop": 64}}));
    assert!(text.starts_with("data.sizes"), "{text}");
}

#[test]
fn the_batch_that_fits_is_the_largest() {
    let folder = tempfile::tempdir().expect("a folder");
    let changes = json!({"trainer": {"batch": "auto"}, "performance": {"memory": "4MiB"}});
    let run = Run::open(config(changes), folder.path(), false, Show::Quiet).expect("a run");
    let chosen = run.progress().batch;
    assert!(run.planned_bytes() <= 4 << 20);
    let more = json!({"trainer": {"batch": chosen + 1}});
    let other = tempfile::tempdir().expect("a folder");
    let run = Run::open(config(more), other.path(), false, Show::Quiet).expect("a run");
    assert!(run.planned_bytes() > 4 << 20);
}

#[test]
fn training_continues_from_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("first");
    let mut run = Run::open(config(json!({})), &first, false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let trained = clearshot_model::Model::load(&first.join("best.clearshot")).expect("a model");
    let init = first.join("best.clearshot");
    let tuned = json!({"model": {"init": init}, "trainer": {"iterations": 1}, "optimizer": {"rate": 1e-12}});
    let mut run = Run::open(config(tuned), &folder.path().join("tuned"), false, Show::Quiet).expect("a run");
    run.train(&never(), None).expect("an end");
    let (a, b) =
        (&trained.weights["conv_in.weight"], &run.model().expect("a model").weights["conv_in.weight"]);
    assert!(a.to_f64().iter().zip(b.to_f64()).all(|(a, b)| (a - b).abs() < 1e-6));
    let other = json!({"model": {"init": init, "network": {"_class_name": "Local", "in_channels": 10}}});
    let refused = Run::open(config(other), &folder.path().join("other"), false, Show::Quiet);
    assert!(refused.err().expect("a refusal").to_string().starts_with("model.init"));
}

/// Every further term can be chosen by its key, is written down, and has its say.
#[test]
fn further_terms_are_chosen_by_their_keys() {
    // Terms that compare with the measurement need one that is not blurred.
    let data = json!({"camera": {"blur": 0.0}});
    let plain = states(json!({"data": data, "trainer": {"iterations": 3}, "validation": {"every": 0}}));
    for name in ["intensity", "gradient", "frequency", "wavelet", "poisson", "consistency"] {
        let folder = tempfile::tempdir().expect("a folder");
        let changes = json!({
            "task": {name: {"weight": 2.0, "from": 0.5, "over": 2}}, "data": data,
            "trainer": {"iterations": 3}, "validation": {"every": 0}, "records": {"every": 1},
        });
        let mut run = Run::open(config(changes), folder.path(), false, Show::Quiet).expect("a run");
        let end = run.train(&never(), None).expect("an end");
        let moved = distance(&checkpoint::read(&end.checkpoint).expect("a checkpoint").states, &plain);
        assert!(moved > 1e-6, "{name}: {moved:e}");
        let text = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let number = |l: &Value, key: &str| l[key].as_f64();
        let terms: Vec<[f64; 3]> = lines
            .iter()
            .filter_map(|l| {
                Some([number(l, "loss")?, number(l, "term.main")?, number(l, &format!("term.{name}"))?])
            })
            .collect();
        assert_eq!(terms.len(), 3, "{name}: {text}");
        // Half of the weight, three quarters, all of it.
        for ([loss, main, term], weight) in terms.iter().zip([1.0, 1.5, 2.0]) {
            assert!(
                *term > 0.0 && (loss - main - weight * term).abs() < 1e-5 * loss,
                "{name}: {loss} {main} {term}"
            );
        }
        let bad = json!({"task": {name: {"weight": -1.0}}});
        let refused =
            Run::open(config(bad), &folder.path().join("bad"), false, Show::Quiet).err().expect("refused");
        assert!(refused.to_string().contains(&format!("task.{name}")), "{refused}");
    }
}

/// Outputs of lower levels are compared with the target too: without that, the weights that only they read would stay as they began.
#[test]
fn deep_supervision_trains_the_outputs_of_lower_levels() {
    let after = |iterations: u64, deep: bool| {
        let network = json!({
            "_class_name": "DynUNet", "spatial_dims": 2, "in_channels": 0, "out_channels": 1, "kernel_size": [3, 3, 3],
            "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [4, 6, 8], "deep_supervision": deep,
        });
        states(json!({
            "model": {"network": network},
            "task": {"kind": "supervised"},
            "trainer": {"iterations": iterations, "ema_half_life": 0.0},
            "validation": {"every": 0},
        }))
    };
    let (before, trained) = (after(1, true), after(6, true));
    let heads: Vec<&String> =
        before.keys().filter(|n| n.starts_with("deep_supervision_heads.") && n.ends_with("weight")).collect();
    assert!(!heads.is_empty(), "{:?}", before.keys());
    for name in heads {
        assert_ne!(before[name], trained[name], "{name} is as it was");
    }
    // What both have is trained otherwise with them.
    assert!(distance(&after(6, false), &trained) > 1e-4);
}
