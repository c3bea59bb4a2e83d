//! Cases of networks by many authors: the output, and the gradients of the input and of every parameter.
//!
//! A case says whose code computed it (`family`) and with which arguments. Tensors `in.NAME` are the inputs
//! of those names. An output with one axis more than the image, behind the samples', is what MONAI's deep
//! supervision stacks: the output and those of the levels below.

use crate::Result;
use crate::case::Case;
use crate::engine::Engine;
use crate::report::{Checks, Class};
use crate::unet2d::{Vanishing, compare_gradients, parameters, trained_states};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, Type, Value};
use clearshot_nn::layers::Scope;
use clearshot_nn::models::{Given, Network, architecture};
use clearshot_tensor::{DType, Shape, Tensor};
use serde_json::{Map, Value as Json};

/// Families as cases call them, and their architectures here.
const FAMILIES: &[(&str, &str)] = &[
    ("monai.DynUNet", "DynUNet"),
    ("rosinality", "RosinalityUNet"),
    ("edm", "EDM"),
    ("diffusers.UNet2DConditionModel", "UNet2DConditionModel"),
];

/// Attributes that stand beside the configuration and belong to it: those of EDM's preconditioning.
const BESIDE: &[&str] =
    &["model_type", "precond", "label_dim", "augment_dim", "img_resolution", "img_channels", "sigma_data"];

/// What is left when large terms cancel: the scale of a weight in front of an instance norm, which only the
/// norm's eps sees. PyTorch's own numbers for DynUNet's are off those that it computes in f64 by 1 to 10 % of
/// themselves, a millionth of a usual gradient; a rule that is wrong would leave far more than ten times that.
const VANISHING: Vanishing = Vanishing { below: 1e-3, beside: 5e-2 };

/// The network that a case's attributes describe.
fn network(case: &Case) -> Result<Box<dyn Network>> {
    let family = case.attrs.text("family").ok_or("the case has no `family`")?;
    let (_, name) =
        FAMILIES.iter().find(|(f, _)| *f == family).ok_or_else(|| format!("unknown family `{family}`"))?;
    let architecture = architecture(name).ok_or_else(|| format!("there is no architecture {name}"))?;
    let mut config: Map<String, Json> =
        case.attrs.get("config").and_then(Json::as_object).ok_or("the case has no `config`")?.clone();
    for key in BESIDE {
        if let Some(value) = case.attrs.get(key) {
            config.insert(key.to_string(), value.clone());
        }
    }
    Ok((architecture.read)(config)?)
}

/// An input as graphs hold it: images with channels last, classes as whole numbers.
fn input(name: &str, network: &dyn Network, case: &Case, value: &Tensor) -> Result<Tensor> {
    let image = case.tensor("in.x")?.channels_last().shape();
    let port = network.ports(image).into_iter().find(|p| p.name == name);
    Ok(match port {
        Some(port) if port.ty.dtype == DType::I32 => {
            Tensor::i32(value.shape(), value.to_f64().iter().map(|&v| v as i32).collect())
        }
        Some(port) if port.ty.shape.rank() < image.rank() => value.to_f32(),
        _ => value.to_f32().channels_last(),
    })
}

/// As [`Tensor::channels_last`] behind the axis of stacked outputs.
fn each_channels_last(t: &Tensor) -> Tensor {
    let order: Vec<usize> = [0, 1].into_iter().chain(3..t.shape().rank()).chain([2]).collect();
    t.permuted(&order)
}

/// Images behind each other along a new second axis.
fn stack(b: &mut Builder, images: impl Iterator<Item = Value>) -> Value {
    let parts: Vec<Value> = images
        .map(|y| {
            let shape = b.shape(y);
            let sizes: Vec<usize> = [shape[0], 1].into_iter().chain(shape[1..].iter().copied()).collect();
            b.reshape(y, Shape::new(&sizes))
        })
        .collect();
    b.concat(&parts, 1)
}

/// Builds the case's network with its gradients, runs it and compares.
///
/// # Errors
/// If the network cannot be built or the engine refuses the graph.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    let network = network(case)?;
    let weights = parameters(case, "param.", &*network)?;
    let stacked = case.tensor("out.y")?.shape().rank() > network.dims() + 2;
    let ours = |t: &Tensor| if stacked { each_channels_last(t) } else { t.channels_last() };
    let upstream = ours(case.tensor("gout.y")?);
    let mut b = Builder::new();
    let mut given = Given::default();
    let mut inputs = vec![("dy".to_string(), upstream.clone())];
    let mut by: Vec<(String, Value)> = vec![];
    for (name, value) in case.tensors_of("in.") {
        let value = input(name, &*network, case, value)?;
        let node = b.input(name, Type { dtype: value.dtype(), shape: value.shape() });
        given = given.with(name, node);
        if case.tensors.contains_key(&format!("gin.{name}")) {
            by.push((name.to_string(), node));
        }
        inputs.push((name.to_string(), value));
    }
    let dy = b.input("dy", Type::f32(upstream.shape()));
    let mut y = network.build_on(&mut b, &given);
    if stacked {
        let outputs = network.outputs(&mut Scope::new(&mut b, &mut vec![]), &given);
        y = stack(&mut b, outputs.into_iter().map(|(_, y)| y));
    }
    b.output("y", y);
    let trained = trained_states(&*network, &b)?;
    let all: Vec<(String, Value)> = trained.iter().cloned().chain(by.iter().cloned()).collect();
    let values: Vec<Value> = all.iter().map(|(_, v)| *v).collect();
    for ((name, _), g) in all.iter().zip(grad(&mut b, y, Some(dy), &values)?) {
        b.output(&format!("gradient {name}"), g);
    }
    let mut session = engine.open(b.finish()?)?;
    for (name, value) in weights.iter().chain(inputs.iter().map(|(n, v)| (n, v))) {
        session.set(name, value)?;
    }
    session.run()?;
    let mut checks = Checks::default();
    checks.tensor(Class::UNetOutput, "y", &session.get("y")?, &ours(case.tensor("out.y")?));
    for (name, _) in &by {
        let (got, truth) = (session.get(&format!("gradient {name}"))?, case.tensor(&format!("gin.{name}"))?);
        let truth = input(name, &*network, case, truth)?;
        checks.tensor(Class::UNetGradient, format!("gradient of {name}"), &got, &truth);
    }
    compare_gradients(case, &*session, trained.iter().map(|(n, _)| n.as_str()), &VANISHING, &mut checks)?;
    Ok(checks)
}
