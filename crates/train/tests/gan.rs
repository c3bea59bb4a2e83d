//! Adversarial training compared with PyTorch: the activations of the discriminator, all parts of both losses, and two
//! whole iterations with both optimisers in one graph, each with its own gradient clipping.

use clearshot_graph::ops::Adam;
use clearshot_graph::train::{Optimizer, Training};
use clearshot_graph::{Builder, Type};
use clearshot_nn::layers::Scope;
use clearshot_nn::models::discriminator::Discriminator;
use clearshot_nn::models::{self, Network};
use clearshot_nn::weights::from_torch;
use clearshot_nn::{Param, Weights};
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::store::Store;
use clearshot_tensor::{Shape, Tensor};
use clearshot_train::config::{GanConfig, TaskConfig, TaskKind};
use clearshot_train::data::NUMBERS;
use clearshot_train::gan::{PARTS, PREFIX};
use clearshot_train::iteration::{self, Shapes};
use clearshot_train::task::Task;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

struct Case {
    tensors: BTreeMap<String, Tensor>,
    attrs: Json,
    dims: usize,
    size: Vec<usize>,
    discriminator: Discriminator,
    generator: Box<dyn Network>,
}

impl Case {
    fn read(name: &str) -> Case {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs/gan").join(format!("{name}.safetensors"));
        let Store { tensors, metadata } = Store::read(&path).expect("a case");
        let attrs: Json = serde_json::from_str(&metadata["attrs"]).expect("attributes");
        let of = |key: &str| attrs[key].as_u64().expect("a number") as usize;
        let (dims, scales, layers, filters) = (of("dims"), of("scales"), of("layers"), of("filters"));
        let size = tensors["real"].shape()[2..].to_vec();
        let text = format!(
            r#"{{"_class_name": "DnCNN", "spatial_dims": {dims}, "in_channels": 1, "out_channels": 1, "channels": 5, "layers": 3}}"#
        );
        let generator = models::read(&text).expect("a network");
        let discriminator = Discriminator { scales, layers, filters };
        Case { tensors, attrs, dims, size, discriminator, generator }
    }

    fn image(&self, name: &str) -> Tensor {
        self.tensors[name].channels_last()
    }

    /// Weights that both sides know, by PyTorch's names.
    fn first(&self, params: &[Param]) -> Weights {
        let mut named: Vec<_> = params.iter().map(|p| (p.name.clone(), torch_shape(p.shape))).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let weights = named.into_iter().enumerate().map(|(k, (name, s))| (name, rule(k, s))).collect();
        from_torch(weights, params).expect("weights that fit")
    }

    /// Those that the iterations of the other side left.
    fn last(&self, whose: &str, params: &[Param]) -> Weights {
        let own = |(name, w): (&String, &Tensor)| Some((name.strip_prefix(whose)?.to_string(), w.clone()));
        from_torch(self.tensors.iter().filter_map(own).collect(), params).expect("weights that fit")
    }

    fn rivals(&self) -> Vec<Param> {
        self.discriminator.parameters(self.dims, 2).expect("parameters")
    }
}

fn torch_shape(ours: Shape) -> Shape {
    match *ours {
        [k, y, x, c] => Shape::from([k, c, y, x]),
        [k, z, y, x, c] => Shape::from([k, c, z, y, x]),
        _ => ours,
    }
}

/// The rule of `refs/make_gan.py`: value `i` of parameter `k`.
fn rule(k: usize, shape: Shape) -> Tensor {
    let fan_in: usize = shape[1..].iter().product();
    let value = |i: usize| {
        let wave = (0.7 * i as f64 + 1.3 * k as f64 + 0.01 * (i % 97) as f64 * (k + 1) as f64).sin();
        if shape.rank() == 1 { 0.1 * wave } else { wave * (2.0 / fan_in as f64).sqrt() }
    };
    Tensor::f32(shape, (0..shape.len()).map(|i| value(i) as f32).collect())
}

fn off(got: &Tensor, truth: &Tensor) -> f64 {
    let (got, truth) = (got.to_f64(), truth.to_f64());
    assert_eq!(got.len(), truth.len());
    let most = truth.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    got.iter().zip(&truth).fold(0.0, |off: f64, (a, b)| off.max((a - b).abs())) / most
}

fn compiled(b: Builder) -> Session {
    compile(b.finish().expect("a graph"), &Device::cpu(Some(2)), &Options::default()).expect("a program")
}

#[test]
fn the_discriminators_activations_are_pytorchs() {
    for name in ["plane", "volume"] {
        let case = Case::read(name);
        let mut b = Builder::new();
        let [given, real] = ["given", "real"].map(|n| b.input(n, Type::f32(case.image(n).shape())));
        let mut params = vec![];
        let all = case.discriminator.features(&mut Scope::new(&mut b, &mut params), given, real);
        let features: Vec<String> = all
            .iter()
            .enumerate()
            .flat_map(|(i, scale)| {
                scale.iter().enumerate().map(move |(k, v)| (format!("features.{i}.{k}"), *v))
            })
            .map(|(name, v)| {
                b.output(&name, v);
                name
            })
            .collect();
        let names = |all: &[Param]| all.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&params), names(&case.rivals()));
        let mut session = compiled(b);
        ["given", "real"].iter().for_each(|n| session.set(n, &case.image(n)).expect("an input"));
        case.first(&params).iter().for_each(|(n, w)| session.set(n, w).expect("a weight"));
        session.run().expect("a run");
        assert_eq!(features.len(), case.tensors.keys().filter(|n| n.starts_with("features.")).count());
        for feature in features {
            let by = off(&session.get(&feature).expect("an output"), &case.image(&feature));
            assert!(by < 1e-5, "{name}, {feature}: off by {by:e}");
        }
    }
}

#[test]
fn two_iterations_of_both_optimisers_are_pytorchs() {
    for name in ["plane", "volume"] {
        let case = Case::read(name);
        let Discriminator { scales, layers, filters } = case.discriminator;
        let gan = GanConfig { scales, layers, filters, ..GanConfig::default() };
        let task =
            Task::new(&TaskConfig { kind: TaskKind::Gan, gan, ..TaskConfig::default() }).expect("a task");
        let shapes = Shapes {
            batch: 2,
            size: &case.size,
            channels: [1, 1],
            photons: false,
            domains: 0,
            masked: false,
        };
        let number = |key: &str| case.attrs[key].as_f64().expect("a number");
        let (beta1, beta2) =
            (case.attrs["betas"][0].as_f64().unwrap(), case.attrs["betas"][1].as_f64().unwrap());
        let adam = Adam { beta1, beta2, eps: 1e-8, weight_decay: number("weight_decay"), decoupled: false };
        let training =
            Training { optimizer: Optimizer::Adam(adam), clip_norm: number("clip"), ..Training::default() };
        let built =
            iteration::training(&*case.generator, &task, &shapes, &[], &training).expect("an iteration");
        let mut session =
            compile(built.graph, &Device::cpu(Some(2)), &Options::default()).expect("a program");
        let (params, rivals) = (case.generator.parameters().unwrap(), case.rivals());
        for (name, value) in case.first(&params) {
            session.set(&name, &value).expect("a weight");
        }
        for (name, value) in case.first(&rivals) {
            session.set(&format!("{PREFIX}{name}"), &value).expect("a weight");
        }
        let mut kept = vec![0.0; 2 * NUMBERS];
        kept.chunks_exact_mut(NUMBERS).for_each(|n| n[NUMBERS - 1] = 1.0);
        let ones = [vec![2], vec![1; case.dims], vec![NUMBERS]].concat();
        session.set("numbers", &Tensor::f32(Shape::new(&ones), kept)).expect("an input");
        session.set("measured", &case.image("given")).expect("an input");
        session.set("clean", &case.image("real")).expect("an input");
        session.set("rate", &Tensor::scalar(number("rate") as f32)).expect("an input");
        let norms = case.tensors["norms"].to_f64();
        let close = |got: f64, truth: f64| (got - truth).abs() < 1e-5 * truth.abs();
        for step in 0..2 {
            session.run().expect("a run");
            let got = |name: &str| session.get(name).expect("an output").to_f64()[0];
            let truth = case.tensors[&format!("parts.{step}")].to_f64();
            assert!(close(got("loss"), truth[0]), "{name} {step}: {} in place of {}", got("loss"), truth[0]);
            for (part, truth) in PARTS.iter().zip(&truth[1..]) {
                let got = got(&format!("term.{part}"));
                assert!(close(got, *truth), "{name} {step}, {part}: {got} in place of {truth}");
            }
            let both = [got("grad_norm"), got("discriminator.grad_norm")];
            for (got, truth) in both.iter().zip(&norms[2 * step..]) {
                assert!(close(*got, *truth), "{name} {step}: norm {got} in place of {truth}");
            }
            // Longer than what steps are clipped to: clipping is part of what agrees.
            assert!(norms[2 * step] > 1.0, "{norms:?}");
        }
        let pairs = case.last("g.", &params).into_iter().map(|(n, w)| (n.clone(), n, w));
        let others = case.last("d.", &rivals).into_iter().map(|(n, w)| (format!("{PREFIX}{n}"), n, w));
        // A bias in front of an instance norm has no gradient: Adam makes steps of what rounding leaves of it, on both sides.
        let has_gradient = |name: &str| (1..=layers).all(|i| !name.ends_with(&format!("block_{i}.0.bias")));
        for (own, name_of, truth) in pairs.chain(others).filter(|(_, name, _)| has_gradient(name)) {
            let by = off(&session.get(&own).expect("a weight"), &truth);
            assert!(by < 1e-5, "{name}, {name_of} after two iterations: off by {by:e}");
        }
    }
}
