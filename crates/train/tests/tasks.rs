//! Tasks other than restoration compared with MONAI: CytoDL's DynUNets of the `model` group with the same weights, and the
//! losses of segmentation.

use clearshot_graph::grad::grad;
use clearshot_graph::ops::ReduceKind;
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::models::{Given, Network};
use clearshot_nn::weights::from_torch;
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::store::Store;
use clearshot_tensor::{Shape, Tensor};
use clearshot_train::{instances, presets, segmentation};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

fn case(name: &str) -> (BTreeMap<String, Tensor>, Json) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs/tasks").join(format!("{name}.safetensors"));
    let store = Store::read(&path).expect("a case");
    let attrs = serde_json::from_str(&store.metadata["attrs"]).expect("attributes");
    (store.tensors, attrs)
}

/// The network of an option of the `model` group, from one channel to one.
fn network(model: &str) -> (Box<dyn Network>, Json) {
    let changes = ["experiment=im2im/labelfree", "data.inputs=a", "data.targets=b"].map(str::to_string);
    let own = [
        format!("model={model}"),
        "model.network.in_channels=1".into(),
        "model.network.out_channels=1".into(),
    ];
    let config =
        presets::read(None, &changes.into_iter().chain(own).collect::<Vec<_>>()).expect("a configuration");
    let keys = Json::from(config.model.network);
    (clearshot_nn::models::read(&keys.to_string()).expect("a network"), keys)
}

/// The rule of `refs/make_tasks.py`: value `i` of parameter `k`.
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

fn off(got: &Tensor, truth: &Tensor) -> f64 {
    let (got, truth) = (got.to_f64(), truth.to_f64());
    assert_eq!(got.len(), truth.len());
    let most = truth.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    got.iter().zip(&truth).fold(0.0, |off: f64, (a, b)| off.max((a - b).abs())) / most
}

#[test]
fn dynunets_of_cytodl_have_its_parameters_and_equal_monai() {
    for (model, count) in [("dynunet2d", 119_825), ("dynunet3d", 342_321)] {
        let (network, keys) = network(model);
        let (tensors, attrs) = case(model);
        for (key, value) in attrs["config"].as_object().expect("arguments") {
            assert_eq!(&keys[key], value, "{model}: {key}");
        }
        let params = network.parameters().expect("parameters");
        let all: usize = params.iter().map(|p| p.shape.len()).sum();
        assert_eq!((all, attrs["parameters"].as_u64()), (count, Some(count as u64)), "{model}");
        let mut named: Vec<_> = params.iter().map(|p| (p.name.clone(), p.shape)).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let torch = |ours: Shape| match *ours {
            [k, y, x, c] => Shape::from([k, c, y, x]),
            [k, z, y, x, c] => Shape::from([k, c, z, y, x]),
            _ => ours,
        };
        let weights = named.into_iter().enumerate().map(|(k, (name, s))| (name, rule(k, torch(s)))).collect();
        let weights = from_torch(weights, &params).expect("weights that fit");
        let of = |name: &str| tensors[name].channels_last();
        let mut b = Builder::new();
        let x = b.input("x", Type::f32(of("in.x").shape()));
        let dy = b.input("dy", Type::f32(of("gout.y").shape()));
        let y = network.build_on(&mut b, &Given::image(x));
        b.output("y", y);
        let gradients = grad(&mut b, y, Some(dy), &[x]).expect("a gradient");
        b.output("dx", gradients[0]);
        let mut session = compile(b.finish().expect("a graph"), &Device::cpu(None), &Options::default())
            .expect("a program");
        for (name, value) in &weights {
            session.set(name, value).expect("a weight");
        }
        session.set("x", &of("in.x")).expect("an input");
        session.set("dy", &of("gout.y")).expect("an input");
        session.run().expect("a run");
        let [y, dx] = [("y", "out.y"), ("dx", "gin.x")]
            .map(|(own, theirs)| off(&session.get(own).expect("an output"), &of(theirs)));
        assert!(y < 1e-5, "{model}: output off by {y:e} of the largest value");
        assert!(dx < 1e-5, "{model}: gradient off by {dx:e} of the largest value");
    }
}

/// Adds the losses of samples: of what a network gives, its target, and which pixels count.
type Losses = fn(&mut Builder, Value, Value, Option<(Value, Value)>) -> Value;

/// Loss and gradient of a case, against `loss` and `gx` of it.
fn check_loss(tensors: &BTreeMap<String, Tensor>, name: &str, losses: Losses) {
    let of = |what: &str| tensors[&format!("{name}.{what}")].channels_last();
    let mut b = Builder::new();
    let [x, t] = ["x", "t"].map(|what| b.input(what, Type::f32(of(what).shape())));
    let each = losses(&mut b, x, t, None);
    let loss = b.reduce_all(ReduceKind::Mean, each);
    b.output("loss", loss);
    let gradients = grad(&mut b, loss, None, &[x]).expect("a gradient");
    b.output("gx", gradients[0]);
    let mut session =
        compile(b.finish().expect("a graph"), &Device::cpu(Some(1)), &Options::default()).expect("a program");
    ["x", "t"].iter().for_each(|what| session.set(what, &of(what)).expect("an input"));
    session.run().expect("a run");
    let loss = session.get("loss").expect("a loss").to_f64()[0];
    let truth = tensors[&format!("{name}.loss")].to_f64()[0];
    assert!((loss - truth).abs() < 1e-6 * truth, "{name}: {loss} in place of {truth}");
    let gradient = off(&session.get("gx").expect("a gradient"), &of("gx"));
    assert!(gradient < 1e-5, "{name}: gradient off by {gradient:e}");
}

#[test]
fn the_loss_of_segmentation_and_its_gradient_are_monais() {
    let (tensors, _) = case("losses");
    ["sigmoid", "softmax"].iter().for_each(|name| check_loss(&tensors, name, segmentation::losses));
}

#[test]
fn the_loss_of_objects_and_its_gradient_are_cytodls() {
    let (tensors, _) = case("instances");
    ["2", "3"].iter().for_each(|name| check_loss(&tensors, name, instances::losses));
}
