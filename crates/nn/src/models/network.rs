//! The trait of all networks: inputs with types, and a function that adds nodes for them.
//!
//! Inputs have names. `x` is the image, `[N, (Z,) Y, X, C]`; the others are the [`Port`]s of the network: times `t`, noise
//! levels `sigma`, classes, vectors, context. The list of parameters, the graph for inference and the graph of a training
//! iteration follow from these, in the same way for all networks.

use crate::Error;
use crate::init::Param;
use crate::layers::Scope;
use crate::models::vit::jepa::Jepa;
use crate::models::vit::{Encoder, Masks};
use clearshot_graph::ops::int8::Table;
use clearshot_graph::train::{Training, finish_iteration};
use clearshot_graph::{Builder, Graph, StateInit, Type, Value, losses};
use clearshot_tensor::{DType, Shape};
use std::collections::BTreeMap;
use std::fmt;

/// An input beside the image.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    pub name: &'static str,
    pub ty: Type,
    /// An axis that may have any size: the length of a context.
    pub free: Option<usize>,
    /// Whether the network can do without.
    pub optional: bool,
}

impl Port {
    pub fn new(name: &'static str, ty: Type) -> Port {
        Port { name, ty, free: None, optional: false }
    }

    /// One number a sample.
    pub fn scalar(name: &'static str, image: Shape) -> Port {
        Port::new(name, Type::f32([image[0]]))
    }

    /// A vector a sample.
    pub fn vector(name: &'static str, image: Shape, width: usize) -> Port {
        Port::new(name, Type::f32([image[0], width]))
    }

    pub fn optional(self) -> Port {
        Port { optional: true, ..self }
    }

    pub fn free(self, axis: usize) -> Port {
        Port { free: Some(axis), ..self }
    }

    fn takes(&self, ty: Type) -> bool {
        let (want, got) = (self.ty.shape, ty.shape);
        let same = |i: usize| want[i] == got[i] || self.free == Some(i);
        ty.dtype == self.ty.dtype && want.rank() == got.rank() && (0..want.rank()).all(same)
    }
}

/// What a network is given: values by the names of its inputs. `key` is that of dropout, `[4]` or
/// `[N, 4]`; without it nothing is dropped.
#[derive(Clone, Debug, Default)]
pub struct Given {
    values: BTreeMap<String, Value>,
    learning: Option<Learning>,
}

/// What a network says of an image.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// What [`Network::add`] gives.
    pub image: Value,
    /// How large the image's error may be, of a network that learns it: the logarithm of the error, in standard deviations of the
    /// noise and [`LEAST_ERROR`] more, that [`ERROR_SHARE`] of pixels like this one stay below.
    pub error: Option<Value>,
}

impl Answer {
    pub fn of(image: Value) -> Answer {
        Answer { image, error: None }
    }
}

/// How the names of the weights begin that say the error.
pub const ERROR: &str = "error.";
/// The share of errors below the stated one, and the smallest stated error, in standard deviations of the noise.
pub const ERROR_SHARE: f64 = 0.9;
pub const LEAST_ERROR: f64 = 3e-3;

/// A network in training, for layers that do something else then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// Ranks that train together, each with a batch of its own.
    pub ranks: usize,
}

impl Given {
    pub fn image(x: Value) -> Given {
        Given::default().with("x", x)
    }

    pub fn with(mut self, name: &str, value: Value) -> Given {
        self.values.insert(name.into(), value);
        self
    }

    /// The same in training, or not.
    pub fn learning(mut self, learning: Option<Learning>) -> Given {
        self.learning = learning;
        self
    }

    /// Whether the network is in training.
    pub fn is_learning(&self) -> Option<Learning> {
        self.learning
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied()
    }

    /// The image.
    pub fn x(&self) -> Value {
        self.need("x")
    }

    /// An input that was checked to be there.
    pub(crate) fn need(&self, name: &str) -> Value {
        self.get(name).unwrap_or_else(|| panic!("`{name}` was checked to be there"))
    }

    pub(crate) fn key(&self) -> Option<Value> {
        self.get("key")
    }
}

/// A checked description of a network; see the module.
pub trait Network: fmt::Debug + Send + Sync {
    /// Channels of the image that goes in.
    fn in_channels(&self) -> usize;

    /// Channels of the image that comes out.
    fn out_channels(&self) -> usize;

    /// Spatial axes: 2 or 3.
    fn dims(&self) -> usize {
        2
    }

    /// The inputs beside the image, for an image of this shape.
    fn ports(&self, image: Shape) -> Vec<Port>;

    /// Whether an image of these sizes can be taken.
    ///
    /// # Errors
    /// Says which sizes can.
    fn check_size(&self, size: &[usize]) -> Result<(), String>;

    /// Small sizes that can be taken, (Z,) Y, X.
    fn example_size(&self) -> Vec<usize>;

    /// Whether training drops activations, and so needs a key.
    fn drops(&self) -> bool {
        false
    }

    /// The values that a result may sum over for a weight to learn at the whole rate, where the network has no norms that would
    /// hold together wider layers; see `rate_share` of the graph's training.
    fn base_fan_in(&self) -> Option<usize> {
        None
    }

    /// Which of its convolutions are in 8 bits, where some are.
    fn int8(&self) -> Option<&Table> {
        None
    }

    /// Which patches of images of this size it sees and which it is asked for, where it learns by that.
    fn masks(&self, _size: &[usize]) -> Option<Masks> {
        None
    }

    /// What errors of its result count relative to, pixel by pixel, given the image that it learns from; none where all count alike.
    fn scale_of_errors(&self, _b: &mut Builder, _image: Value) -> Option<Value> {
        None
    }

    /// The vision transformer that it has for an encoder, whose parameters' names begin with `encoder.`, if it has one.
    fn encoder(&self) -> Option<&Encoder> {
        None
    }

    /// Its predictor of embeddings, if it has one.
    fn joint_embedding(&self) -> Option<&Jepa> {
        None
    }

    /// Whether it says how large the error of its image may be.
    fn says_error(&self) -> bool {
        false
    }

    /// Adds the network's nodes. What is given has been checked.
    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value;

    /// As [`Network::add`], with what the network says of the error. The image's nodes are the same.
    fn answer(&self, s: &mut Scope<'_>, given: &Given) -> Answer {
        Answer::of(self.add(s, given))
    }

    /// The outputs that training compares with the target, with their weights in the loss.
    fn outputs(&self, s: &mut Scope<'_>, given: &Given) -> Vec<(f64, Value)> {
        vec![(1.0, self.add(s, given))]
    }

    /// Adds the network to `b`, and its parameters to the states, those included that only training reads.
    /// Mismatches with the network become errors of the builder.
    #[track_caller]
    fn build_on(&self, b: &mut Builder, given: &Given) -> Value {
        match checked_parameters(self, b, given) {
            Ok(params) => {
                let y = self.add(&mut Scope::new(b, &mut vec![]), given);
                params.iter().for_each(|p| _ = b.param(&p.name, p.shape));
                y
            }
            Err(reason) => b.refuse("network", reason),
        }
    }

    /// As [`Network::build_on`], with what the network says of the error.
    #[track_caller]
    fn answer_on(&self, b: &mut Builder, given: &Given) -> Answer {
        match checked_parameters(self, b, given) {
            Ok(params) => {
                let answer = self.answer(&mut Scope::new(b, &mut vec![]), given);
                params.iter().for_each(|p| _ = b.param(&p.name, p.shape));
                answer
            }
            Err(reason) => Answer::of(b.refuse("network", reason)),
        }
    }

    /// As [`Network::build_on`], with all that training compares with the target; the network's result comes first.
    #[track_caller]
    fn outputs_on(&self, b: &mut Builder, given: &Given) -> Vec<(f64, Value)> {
        match checked_parameters(self, b, given) {
            Ok(params) => {
                let outputs = self.outputs(&mut Scope::new(b, &mut vec![]), given);
                params.iter().for_each(|p| _ = b.param(&p.name, p.shape));
                outputs
            }
            Err(reason) => vec![(1.0, b.refuse("network", reason))],
        }
    }

    /// Every parameter, in the order in which the network uses them.
    ///
    /// # Errors
    /// If the network cannot be built.
    fn parameters(&self) -> Result<Vec<Param>, Error> {
        let mut b = Builder::new();
        let given = declare(self, &mut b, 1, &self.example_size(), false);
        let mut params = vec![];
        let mut scope = Scope::new(&mut b, &mut params);
        if self.says_error() {
            self.answer(&mut scope, &given);
        } else {
            self.outputs(&mut scope, &given);
        }
        drop(scope);
        b.finish()?;
        Ok(params)
    }

    /// The graph that takes the inputs and gives the output `y`.
    ///
    /// # Errors
    /// If the size does not suit the network.
    fn inference(&self, batch: usize, size: &[usize]) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let given = declare(self, &mut b, batch, size, false);
        let y = self.build_on(&mut b, &given);
        b.output("y", y);
        Ok(b.finish()?)
    }

    /// A training iteration: takes the inputs, `target` (as the output), `rate` and, where the network drops
    /// activations, `key`; gives the outputs `loss` (mean squared error) and `grad_norm`, and updates all
    /// trainable parameters.
    ///
    /// # Errors
    /// If the size does not suit the network.
    fn training(&self, batch: usize, size: &[usize], training: &Training) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let learning = Learning { ranks: training.ranks };
        let given = declare(self, &mut b, batch, size, true).learning(Some(learning));
        if let Err(reason) = check(self, &b, &given) {
            b.refuse("network", reason);
            return Ok(b.finish()?);
        }
        let mut params = vec![];
        let outputs = self.outputs(&mut Scope::new(&mut b, &mut params), &given);
        let shape = b.shape(outputs[0].1);
        let target = b.input("target", Type::f32(shape));
        let mut loss = b.scalar(0.0);
        for (i, &(weight, y)) in outputs.iter().enumerate() {
            let each = losses::mse(&mut b, y, target);
            let each = if weight == 1.0 { each } else { b.mul_scalar(each, weight) };
            loss = if i == 0 { each } else { b.add(loss, each) };
        }
        let states: Vec<Value> = params
            .iter()
            .filter(|p| p.trainable)
            .map(|p| b.state(&p.name, Type::f32(p.shape), StateInit::Given))
            .collect();
        finish_iteration(&mut b, loss, &states, training)?;
        Ok(b.finish()?)
    }
}

/// The network's inputs as inputs of a graph.
fn declare<N: Network + ?Sized>(
    network: &N,
    b: &mut Builder,
    batch: usize,
    size: &[usize],
    train: bool,
) -> Given {
    let sizes: Vec<usize> =
        [batch].into_iter().chain(size.iter().copied()).chain([network.in_channels()]).collect();
    if size.len() != network.dims() {
        let reason = format!("{} sizes for an image of {} axes", size.len(), network.dims());
        return Given::image(b.refuse("network", reason));
    }
    let image = Shape::new(&sizes);
    let mut given = Given::image(b.input("x", Type::f32(image)));
    for port in network.ports(image).iter().filter(|p| !p.optional) {
        given = given.with(port.name, b.input(port.name, port.ty));
    }
    if train && network.drops() {
        given = given.with("key", b.input("key", Type::i32([4])));
    }
    given
}

/// Whether what is given is what the network takes.
/// The network's parameters, if what is given fits it.
fn checked_parameters<N: Network + ?Sized>(
    network: &N,
    b: &Builder,
    given: &Given,
) -> Result<Vec<Param>, String> {
    check(network, b, given)?;
    network.parameters().map_err(|e| e.to_string())
}

fn check<N: Network + ?Sized>(network: &N, b: &Builder, given: &Given) -> Result<(), String> {
    let Some(x) = given.get("x") else { return Err("no image `x` was given".into()) };
    let (image, dims, c) = (b.shape(x), network.dims(), network.in_channels());
    let axes = if dims == 2 { "N, Y, X" } else { "N, Z, Y, X" };
    if image.rank() != dims + 2 || image.channels() != c || b.ty(x).dtype != DType::F32 {
        return Err(format!("the image is {}, expected f32[{axes}, {c}]", b.ty(x)));
    }
    network.check_size(&image[1..=dims])?;
    let ports = network.ports(image);
    for port in &ports {
        match given.get(port.name) {
            None if port.optional => {}
            None => return Err(format!("`{}` is missing: expected {}", port.name, port.ty)),
            Some(v) if port.takes(b.ty(v)) => {}
            Some(v) => return Err(format!("`{}` is {}, expected {}", port.name, b.ty(v), port.ty)),
        }
    }
    let known = |name: &String| ["x", "key"].contains(&name.as_str()) || ports.iter().any(|p| p.name == name);
    match given.values.keys().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => {
            let names: Vec<&str> = ["x"].into_iter().chain(ports.iter().map(|p| p.name)).collect();
            Err(format!("`{name}` was given to a network that takes {}", names.join(", ")))
        }
    }
}

/// Refuses sizes that are not multiples of `multiple`, and tells the next that are.
pub(crate) fn multiples(size: &[usize], multiple: &[usize]) -> Result<(), String> {
    if size.iter().zip(multiple).all(|(s, m)| *s > 0 && s % m == 0) {
        return Ok(());
    }
    let text = |each: &[usize]| each.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    let next: Vec<usize> = size.iter().zip(multiple).map(|(s, m)| (*s).max(1).next_multiple_of(*m)).collect();
    Err(format!(
        "an image of {} pixels: the sizes must be multiples of {}, the next are {}",
        text(size),
        text(multiple),
        text(&next)
    ))
}
