//! Training without labels compared with PyTorch and timm (`refs/make_vit.py`): masked autoencoders and joint embeddings
//! with the same weights, outputs, losses and the gradients of every parameter; and the update of the teacher.

use clearshot_diffusion::objective::{Distance, distance};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, StateInit, Type};
use clearshot_nn::layers::Scope;
use clearshot_nn::models::vit::jepa::JepaConfig;
use clearshot_nn::models::vit::masks::Masks;
use clearshot_nn::models::{Given, Network, read};
use clearshot_nn::weights::from_torch;
use clearshot_nn::{Param, Weights};
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::store::Store;
use clearshot_tensor::{Shape, Tensor};
use clearshot_train::data::{Data, Part, batch};
use clearshot_train::engine::{Engine, Numbers};
use clearshot_train::iteration::Shapes;
use clearshot_train::presets;
use clearshot_train::schedule::{Place, momentum};
use clearshot_train::task::Task;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

fn case(name: &str) -> (BTreeMap<String, Tensor>, Json) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs/tasks").join(format!("{name}.safetensors"));
    let store = Store::read(&path).expect("a case");
    let attrs: Json = serde_json::from_str(&store.metadata["attrs"]).expect("attributes");
    (store.tensors, attrs["config"].clone())
}

/// The rule of `refs/make_vit.py`: value `i` of parameter `k`.
fn rule(k: usize, shape: Shape) -> Tensor {
    let fan_in: usize = shape[1..].iter().product();
    let value = |i: usize| {
        let wave = (0.7 * i as f64 + 1.3 * k as f64 + 0.01 * (i % 97) as f64 * (k + 1) as f64).sin();
        match (shape.rank(), k % 2) {
            (1, 1) => 1.0 + 0.2 * wave,
            (1, _) => 0.1 * wave,
            _ => wave * (2.0 / fan_in as f64).sqrt(),
        }
    };
    Tensor::f32(shape, (0..shape.len()).map(|i| value(i) as f32).collect())
}

fn torch_shape(ours: Shape) -> Shape {
    match *ours {
        [k, y, x, c] => Shape::from([k, c, y, x]),
        [k, z, y, x, c] => Shape::from([k, c, z, y, x]),
        _ => ours,
    }
}

/// Weights by the rule, counted from `first`.
fn ruled(params: &[Param], first: usize) -> Weights {
    let mut sorted: Vec<&Param> = params.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let each = |(k, p): (usize, &&Param)| (p.name.clone(), rule(first + k, torch_shape(p.shape)));
    from_torch(sorted.iter().enumerate().map(each).collect(), params).expect("weights that fit")
}

/// Patches of each sample as rows of all.
fn rows(index: &Tensor, each: usize) -> Tensor {
    let width = index.shape()[1];
    let values = index.to_f64();
    Tensor::i32(
        index.shape(),
        values.iter().enumerate().map(|(i, v)| *v as i32 + (i / width * each) as i32).collect(),
    )
}

fn off(got: &Tensor, truth: &Tensor) -> f64 {
    let (got, truth) = (got.to_f64(), truth.to_f64());
    assert_eq!(got.len(), truth.len());
    let most = truth.iter().fold(1e-6, |most: f64, v| most.max(v.abs()));
    got.iter().zip(&truth).fold(0.0, |off: f64, (a, b)| off.max((a - b).abs())) / most
}

fn session(b: Builder) -> Session {
    compile(b.finish().expect("a graph"), &Device::cpu(None), &Options::default()).expect("a program")
}

/// Compares the gradients of all parameters, which are outputs `g.NAME`.
fn check_gradients(session: &Session, params: &[Param], tensors: &BTreeMap<String, Tensor>, name: &str) {
    // Relative to the largest gradient of all: those of keys' biases are zero but for rounding.
    let largest = params
        .iter()
        .flat_map(|p| tensors[&format!("g.{}", p.name)].to_f64())
        .fold(0.0, |most: f64, v| most.max(v.abs()));
    for p in params {
        let key = format!("g.{}", p.name);
        let (got, truth) =
            (session.get(&key).expect("a gradient").to_f64(), tensors[&key].channels_last().to_f64());
        let worst = got.iter().zip(&truth).fold(0.0, |off: f64, (a, b)| off.max((a - b).abs())) / largest;
        assert!(worst < 1e-5, "{name}: the gradient of {} is off by {worst:e}", p.name);
    }
}

/// A masked autoencoder with weights by the rule, its loss and gradients, run on a case: outputs `y`, `loss` and `g.NAME`.
fn run_mae(network: &dyn Network, params: &[Param], tensors: &BTreeMap<String, Tensor>) -> Session {
    let x = tensors["in.x"].channels_last();
    let size = x.shape()[1..x.shape().rank() - 1].to_vec();
    let masks: Masks = network.masks(&size).expect("a network that hides patches");
    let (each, hidden) = (masks.patches(), masks.hidden);
    assert_eq!([2, masks.visible], tensors["visible"].shape()[..]);
    let mut b = Builder::new();
    let mut given = Given::image(b.input("x", Type::f32(x.shape())));
    for port in network.ports(x.shape()) {
        given = given.with(port.name, b.input(port.name, port.ty));
    }
    let y = network.build_on(&mut b, &given);
    b.output("y", y);
    let [made, wanted] = match network.scale_of_errors(&mut b, given.x()) {
        Some(scale) => [y, given.x()].map(|v| b.div(v, scale)),
        None => [y, given.x()],
    };
    let whole = distance(&mut b, Distance::L2, made, wanted, None);
    let loss = b.mul_scalar(whole, each as f64 / hidden as f64);
    b.output("loss", loss);
    let states: Vec<_> =
        params.iter().map(|p| b.state(&p.name, Type::f32(p.shape), StateInit::Given)).collect();
    let gradients = grad(&mut b, loss, None, &states).expect("gradients");
    params.iter().zip(gradients).for_each(|(p, g)| b.output(&format!("g.{}", p.name), g));
    let mut session = session(b);
    ruled(params, 0).iter().for_each(|(name, value)| session.set(name, value).expect("a weight"));
    let [visible, asked] = ["visible", "hidden"].map(|name| rows(&tensors[name], each));
    let mut order = vec![0; 2 * each];
    for sample in 0..2 {
        let of = |t: &Tensor| t.to_f64()[sample * t.shape()[1]..][..t.shape()[1]].to_vec();
        let both = of(&visible).into_iter().chain(of(&asked)).enumerate();
        both.for_each(|(place, row)| order[row as usize] = (sample * each + place) as i32);
    }
    session.set("x", &x).expect("an input");
    session.set("visible", &visible).expect("an input");
    session.set("hidden", &asked).expect("an input");
    session.set("order", &Tensor::i32([2, each], order)).expect("an input");
    session.run().expect("a run");
    session
}

fn mae(config: &Json) -> (Box<dyn Network>, Vec<Param>) {
    let mut config = config.clone();
    config["_class_name"] = "MAE".into();
    let network = read(&config.to_string()).expect("a network");
    let params = network.parameters().expect("parameters");
    (network, params)
}

#[test]
fn masked_autoencoders_equal_pytorch() {
    for name in ["mae2d", "mae3d_cross"] {
        let (tensors, config) = case(name);
        let (network, params) = mae(&config);
        let session = run_mae(&*network, &params, &tensors);
        let y = off(&session.get("y").expect("an output"), &tensors["out.y"].channels_last());
        assert!(y < 1e-5, "{name}: output off by {y:e}");
        let loss = off(&session.get("loss").expect("a loss"), &tensors["loss"]);
        assert!(loss < 1e-5, "{name}: loss off by {loss:e}");
        check_gradients(&session, &params, &tensors, name);
    }
}

/// `norm_pix_loss` of He et al.'s models_mae.py, by hand: `target = (target - mean) / (var + 1e-6)^0.5` with PyTorch's variance, of a sample; the loss is the mean over
/// hidden patches of `(pred - target)^2`, where the predictions are PyTorch's.
#[test]
fn normalised_patches_are_compared_as_masked_autoencoders_do() {
    let (tensors, mut config) = case("mae2d");
    let plain = mae(&config);
    config["normalise_patches"] = true.into();
    let (network, params) = mae(&config);
    let session = run_mae(&*network, &params, &tensors);
    let (x, predicted) = (tensors["in.x"].channels_last(), tensors["out.y"].channels_last());
    let [_, height, width, channels] = x.shape()[..] else { panic!("an image") };
    let masks = network.masks(&[height, width]).expect("hidden patches");
    let (down, right) = (height / masks.grid[0], width / masks.grid[1]);
    let (truth, mut wanted) = (x.to_f64(), x.to_f64());
    let (predicted, hidden) = (predicted.to_f64(), tensors["hidden"].to_f64());
    let (mut loss, mut count) = (0.0, 0.0);
    for (k, patch) in hidden.iter().enumerate() {
        let (sample, patch) = (k / masks.hidden, *patch as usize);
        let (top, left) = (patch / masks.grid[1] * down, patch % masks.grid[1] * right);
        let pixels: Vec<usize> = (0..down * right * channels)
            .map(|i| {
                let (y, x) = (top + i / channels / right, left + i / channels % right);
                ((sample * height + y) * width + x) * channels + i % channels
            })
            .collect();
        let mean = pixels.iter().map(|i| truth[*i]).sum::<f64>() / pixels.len() as f64;
        let squares = pixels.iter().map(|i| (truth[*i] - mean).powi(2)).sum::<f64>();
        let deviation = (squares / (pixels.len() - 1) as f64 + 1e-6).sqrt();
        for i in pixels {
            loss += (predicted[i] - (truth[i] - mean) / deviation).powi(2);
            count += 1.0;
            wanted[i] = predicted[i] * deviation + mean;
        }
    }
    let got = session.get("y").expect("an output").to_f64();
    let worst = got.iter().zip(&wanted).fold(0.0, |off: f64, (a, b)| off.max((a - b).abs()));
    assert!(worst < 2e-5, "the output is off by {worst:e}");
    let got = session.get("loss").expect("a loss").to_f64()[0];
    assert!((got / (loss / count) - 1.0).abs() < 1e-5, "a loss of {got} and not {}", loss / count);
    assert!((got / tensors["loss"].to_f64()[0] - 1.0).abs() > 1e-2, "the loss of plain patches is another");
    // What is normalised is the target: the weights are the same.
    assert_eq!(
        plain.1.iter().map(|p| &p.name).collect::<Vec<_>>(),
        params.iter().map(|p| &p.name).collect::<Vec<_>>()
    );
}

/// An encoder's layers move by Adam's first step, which is the rate, times their share; see `EncoderRates` for the shares.
#[test]
fn an_encoder_learns_at_its_own_rates() {
    let with = |rates: &[&str]| {
        let mut changes: Vec<String> = [
            "experiment=segmentation",
            "model=vit_segmentation",
            "model.network.in_channels=1",
            "model.network.out_channels=1",
            "model.network.emb_dim=16",
            "model.network.encoder_layer=2",
            "data.pool=2",
            "data.sizes=[48]",
            "optimizer.weight_decay=0",
            "~trainer.seconds",
            "trainer.iterations=10",
        ]
        .map(String::from)
        .to_vec();
        changes.extend(rates.iter().map(|r| r.to_string()));
        presets::read(None, &changes).expect("a configuration")
    };
    let config = with(&["optimizer.encoder_rate=0.5", "optimizer.layer_decay=0.25"]);
    config.check().expect("a run");
    let network = read(&Json::from(config.model.network.clone()).to_string()).expect("a network");
    let task = Task::new(&config.task).expect("a task");
    let (size, each) = ([16, 16], 2);
    let data = Data::new(&config).expect("data");
    let source = data.source(Part::Training, &size, None).expect("samples");
    let shapes = Shapes {
        batch: each,
        size: &size,
        channels: source.channels(),
        photons: false,
        domains: 0,
        masked: false,
    };
    let mut engine = Engine::new(&*network, &task, &shapes, &config, &Device::cpu(None)).expect("an engine");
    let params = network.parameters().expect("parameters");
    engine.load(&clearshot_nn::weights::initial(&params, 1)).expect("weights");
    let before = engine.states().expect("states");
    let numbers = Numbers { rate: 1e-2, ema_decay: 0.0, alpha: 1.0, iteration: 0, first: 0 };
    engine.step(|| batch(&*source, 0, each, &size, |_| None, |_| false), &numbers).expect("an iteration");
    let after = engine.states().expect("states");
    for (name, share) in [
        ("decoder.up.0.conv.weight", 1.0),
        ("encoder.norm.weight", 0.5),
        ("encoder.blocks.1.mlp.fc1.weight", 0.5 * 0.25),
        ("encoder.blocks.0.attn.proj.weight", 0.5 * 0.25 * 0.25),
        ("encoder.patch_embed.proj.weight", 0.5 * 0.25 * 0.25 * 0.25),
    ] {
        let moved = before[name].to_f64().into_iter().zip(after[name].to_f64()).map(|(a, b)| (a - b).abs());
        let most = moved.fold(0.0, f64::max);
        assert!((most / (1e-2 * share) - 1.0).abs() < 1e-2, "{name} moved by {most}, not {}", 1e-2 * share);
    }
    // A network without an encoder has no such rates.
    let config = with(&["model=local_small", "optimizer.layer_decay=0.5"]);
    let network = read(r#"{"_class_name": "Local", "in_channels": 1, "out_channels": 1, "time": false}"#);
    let network = network.expect("a network");
    let said = Engine::new(&*network, &task, &shapes, &config, &Device::cpu(None)).err().expect("a refusal");
    assert!(said.to_string().contains("optimizer.layer_decay"), "{said}");
    for bad in ["optimizer.layer_decay=0", "optimizer.layer_decay=1.5", "optimizer.encoder_rate=-1"] {
        assert!(with(&[bad]).check().is_err(), "{bad}");
    }
}

#[test]
fn joint_embeddings_equal_pytorch_and_their_teacher_has_no_gradient() {
    for name in ["jepa2d", "jepa3d"] {
        let (tensors, config) = case(name);
        let Json::Object(map) = config else { panic!("{name}") };
        let network = JepaConfig::from_map(map).expect("keys").resolve().expect("a network");
        let params = network.parameters().expect("parameters");
        let taught: Vec<Param> = params.iter().filter(|p| p.name.starts_with("encoder.")).cloned().collect();
        let (weights, teacher) = (ruled(&params, 0), ruled(&taught, 5));
        let [x, z] = ["in.x", "in.z"].map(|name| tensors[name].channels_last());
        let size = x.shape()[1..x.shape().rank() - 1].to_vec();
        let masks = network.masks(&size).expect("a network that hides patches");
        let mut b = Builder::new();
        let [seen, shown] = ["x", "z"].map(|name| b.input(name, Type::f32(x.shape())));
        let of = [("visible", masks.visible), ("hidden", masks.hidden)]
            .map(|(name, count)| b.input(name, Type::i32([2, count])));
        let domain = b.input("domain", Type::i32([2]));
        let mut declared = vec![];
        let mut scope = Scope::new(&mut b, &mut declared);
        let wanted = network.taught(&mut scope, Some("ema."), shown, of[1]);
        let made = network.predicted(&mut scope, seen, of, Some(domain));
        drop(scope);
        let loss = distance(&mut b, Distance::L1, made, wanted, None);
        for (name, value) in [("made", made), ("wanted", wanted), ("loss", loss)] {
            b.output(name, value);
        }
        let state =
            |b: &mut Builder, name: &str, shape: Shape| b.state(name, Type::f32(shape), StateInit::Given);
        let mut states: Vec<_> = params.iter().map(|p| state(&mut b, &p.name, p.shape)).collect();
        states.extend(taught.iter().map(|p| state(&mut b, &format!("ema.{}", p.name), p.shape)));
        let gradients = grad(&mut b, loss, None, &states).expect("gradients");
        let names =
            params.iter().map(|p| p.name.clone()).chain(taught.iter().map(|p| format!("ema.{}", p.name)));
        names.zip(gradients).for_each(|(name, g)| b.output(&format!("g.{name}"), g));
        let mut session = session(b);
        weights.iter().for_each(|(name, value)| session.set(name, value).expect("a weight"));
        teacher
            .iter()
            .for_each(|(name, value)| session.set(&format!("ema.{name}"), value).expect("a weight"));
        session.set("x", &x).expect("an input");
        session.set("z", &z).expect("an input");
        for name in ["visible", "hidden"] {
            session.set(name, &rows(&tensors[name], masks.patches())).expect("an input");
        }
        session.set("domain", &tensors["domain"]).expect("an input");
        session.run().expect("a run");
        for (own, theirs) in [("made", "out.made"), ("wanted", "out.wanted"), ("loss", "loss")] {
            let off = off(&session.get(own).expect("an output"), &tensors[theirs]);
            assert!(off < 1e-5, "{name}: {own} off by {off:e}");
        }
        check_gradients(&session, &params, &tensors, name);
        for p in &taught {
            let gradient = session.get(&format!("g.ema.{}", p.name)).expect("a gradient").to_f64();
            assert!(gradient.iter().all(|g| *g == 0.0), "{name}: ema.{} has a gradient", p.name);
        }
    }
}

/// What a run's engine does with a teacher, iteration by iteration.
#[test]
fn the_teacher_follows_the_average_alone_by_a_momentum_in_closed_form() {
    for (experiment, parts) in [("im2im/ijepa", 0), ("im2im/iwm", 2)] {
        let changes = [
            format!("experiment={experiment}"),
            "model.network.in_channels=1".into(),
            "model.network.patch_size=4".into(),
            "model.network.emb_dim=16".into(),
            "model.network.encoder_layer=1".into(),
            "model.network.predictor_dim=8".into(),
            "model.network.predictor_layer=1".into(),
            "data.pool=2".into(),
            "data.sizes=[48]".into(),
            "trainer.iterations=10".into(),
        ];
        let config = presets::read(None, &changes).expect("a configuration");
        config.check().expect("a run");
        assert_eq!(config.model.network.get("domains").and_then(Json::as_u64).unwrap_or(0), parts);
        let network = read(&Json::from(config.model.network.clone()).to_string()).expect("a network");
        let task = Task::new(&config.task).expect("a task");
        let (size, each) = ([16, 16], 3);
        let data = Data::new(&config).expect("data");
        let source = data.source(Part::Training, &size, None).expect("samples");
        let shapes = Shapes {
            batch: each,
            size: &size,
            channels: source.channels(),
            photons: false,
            domains: 0,
            masked: false,
        };
        let mut engine =
            Engine::new(&*network, &task, &shapes, &config, &Device::cpu(None)).expect("an engine");
        // Every state that begins with ema. is updated by the rule of averages.
        let graph = &engine.session().plan().graph;
        let names: Vec<String> = graph.states().map(|(name, ..)| name.to_string()).collect();
        assert!(names.iter().any(|n| n.starts_with("ema.encoder.")), "{names:?}");
        assert!(!names.iter().any(|n| n.starts_with("adam.m.ema.")), "{names:?}");
        let params = network.parameters().expect("parameters");
        engine.load(&clearshot_nn::weights::initial(&params, 1)).expect("weights");
        let mut before = engine.states().expect("states");
        for iteration in 0..4u64 {
            let place = Place { iteration, total: Some(10), since_switch: None };
            let kept = momentum(config.task.momentum, &place);
            assert!((kept - (0.998 + 0.002 * iteration as f64 / 10.0)).abs() < 1e-15);
            let numbers = Numbers {
                rate: 1e-2,
                ema_decay: kept,
                alpha: 1.0,
                iteration,
                first: iteration * each as u64,
            };
            let next = || batch(&*source, numbers.first, each, &size, |_| None, |_| false);
            engine.step(next, &numbers).expect("an iteration");
            let after = engine.states().expect("states");
            for p in &params {
                let of = |states: &Weights, name: &str| states[name].to_f64();
                let average = format!("ema.{}", p.name);
                let (old, new, own) = (of(&before, &average), of(&after, &average), of(&after, &p.name));
                for ((old, new), own) in old.iter().zip(&new).zip(&own) {
                    let rule = kept * old + (1.0 - kept) * own;
                    assert!(
                        (new - rule).abs() < 1e-6 * (1.0 + rule.abs()),
                        "{average}: {new} and not {rule}"
                    );
                }
            }
            let moved = |name: &str| before[name] != after[name];
            assert!(
                moved("encoder.patch_embed.proj.weight") && moved("predictor.mask_token"),
                "{experiment}"
            );
            before = after;
        }
        let loss = engine.number("loss").expect("a number").expect("a loss");
        assert!(loss.is_finite() && loss > 0.0, "{loss}");
    }
    let at = |iteration, total| momentum([0.998, 1.0], &Place { iteration, total, since_switch: None });
    assert_eq!((at(0, Some(100)), at(100, Some(100)), at(7, None)), (0.998, 1.0, 0.998));
}
