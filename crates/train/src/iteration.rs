//! One training iteration as one graph, and the estimate that validation scores, from the same nodes.
//!
//! Noise and the channels of the condition are made inside the graph, so that a sample is transferred to the device as two
//! images and a dozen numbers.

use crate::conditioning::{PREFIX, key_for};
use crate::config::TaskKind;
use crate::counted::Counted;
use crate::data::{NUMBERS, image_shape};
use crate::error::{Result, setting};
use crate::errors::{self, ErrorSaid};
use crate::gan;
use crate::instances;
use crate::pretraining;
use crate::segmentation::{self, probabilities};
use crate::task::{Compared, Task};
use clearshot_diffusion::objective::{FirstStep, distance_of_each, noised, target, variational_bound};
use clearshot_diffusion::precondition::{self, Preconditioned, Predicted};
use clearshot_diffusion::{Condition, Estimate, LevelInputs};
use clearshot_graph::ops::{Binary, NoiseKind, ReduceKind, Unary};
use clearshot_graph::train::{LOSS_BUCKET, Training, finish_iteration, mean_over_ranks};
use clearshot_graph::{Builder, Graph, StateInit, Type, Value};
use clearshot_model::signal::CHANNELS;
use clearshot_nn::models::{Answer, ERROR, Given, Learning, Network};
use clearshot_tensor::Shape;

/// What a graph is built for.
#[derive(Clone, Copy)]
pub struct Shapes<'a> {
    /// Samples of a run.
    pub batch: usize,
    /// (Z,) Y, X.
    pub size: &'a [usize],
    /// Of what is measured and what is clean.
    pub channels: [usize; 2],
    /// The measurement is in electrons.
    pub photons: bool,
    /// Number of domains with separate losses; 0 if losses are not separated.
    pub domains: usize,
    /// Whether some pixels are left out of the loss.
    pub masked: bool,
}

impl Shapes<'_> {
    /// Channels of the condition.
    pub fn condition(&self) -> usize {
        if self.photons { CHANNELS * self.channels[0] } else { self.channels[0] }
    }

    /// Channels that a network for this task gives.
    pub fn network_outputs(&self, task: &Task) -> usize {
        let made = task.made_channels(self.size.len(), self.channels[1]);
        if task.learned_variance { 2 * made } else { made }
    }

    /// Channels that a network for this task takes.
    pub fn network_inputs(&self, task: &Task) -> usize {
        let x = if task.diffusion.is_some() { self.channels[1] } else { 0 };
        x + if task.is_conditional() { self.condition() } else { 0 }
    }
}

/// A graph, and the inputs of it that follow from noise levels.
pub struct Built {
    pub graph: Graph,
    pub levels: Option<LevelInputs>,
}

pub(crate) struct Forward {
    pub clean: Value,
    /// 1 for pixels that count.
    pub valid: Option<Value>,
    /// Of each sample, `[N]`.
    pub losses: Value,
    pub estimate: Value,
    /// The target of the estimate, if the graph makes it.
    pub wanted: Option<Value>,
    /// Electrons and the numbers that scale them, where those were measured.
    pub measured: Option<(Value, Vec<Value>)>,
    /// Where the variance is learned.
    pub bound: Option<Value>,
    /// The error stated by the network.
    pub error: Option<ErrorSaid>,
    /// Of adversarial training.
    pub rival: Option<gan::Losses>,
    pub levels: Option<LevelInputs>,
}

/// The condition's channels, and what they are made of.
struct Seen {
    channels: Value,
    measured: Value,
    numbers: Vec<Value>,
}

fn condition(b: &mut Builder, shapes: &Shapes<'_>) -> Seen {
    let measured = b.input("measured", Type::f32(image_shape(shapes.batch, shapes.size, shapes.channels[0])));
    let one = vec![1; shapes.size.len()];
    let numbers = b.input("numbers", Type::f32(image_shape(shapes.batch, &one, NUMBERS)));
    let axis = shapes.size.len() + 1;
    let number = |b: &mut Builder, i: usize| b.slice(numbers, axis, i, 1);
    if !shapes.photons {
        let kept = number(b, NUMBERS - 1);
        return Seen { channels: b.mul(measured, kept), measured, numbers: Vec::new() };
    }
    let n: Vec<Value> = (0..NUMBERS).map(|i| number(b, i)).collect();
    // Each channel of an image becomes several, side by side.
    let mut parts = vec![];
    for channel in 0..shapes.channels[0] {
        let one = if shapes.channels[0] == 1 { measured } else { b.slice(measured, axis, channel, 1) };
        parts.extend(channels_of(b, one, &n));
    }
    Seen { channels: b.concat_channels(&parts), measured, numbers: n }
}

/// The condition's channels of one channel of electrons.
fn channels_of(b: &mut Builder, measured: Value, n: &[Value]) -> Vec<Value> {
    let scaled = b.mul(measured, n[0]);
    let linear = b.add(scaled, n[1]);
    let shifted = b.add(measured, n[2]);
    let positive = b.unary(Unary::Relu, shifted);
    let root = b.unary(Unary::Sqrt, positive);
    let root = b.mul(root, n[3]);
    let stabilised = b.add(root, n[4]);
    let shape = b.shape(measured);
    let mut channels = vec![linear, stabilised];
    channels.extend((5..NUMBERS).map(|i| b.broadcast(n[i], shape)));
    channels
}

/// The network's nodes, for x and the time where it takes one.
fn network_on(
    b: &mut Builder,
    network: &dyn Network,
    task: &Task,
    x: Value,
    time: Option<Value>,
    learning: Option<Learning>,
) -> Answer {
    match given_to(b, network, task, x, time, learning) {
        Ok(given) if learns_error(network, task) => network.answer_on(b, &given),
        Ok(given) => Answer::of(network.build_on(b, &given)),
        Err(refused) => Answer::of(refused),
    }
}

/// Whether the network learns to say its error: where it is shown the truth of an image.
fn learns_error(network: &dyn Network, task: &Task) -> bool {
    network.says_error() && matches!(task.kind, TaskKind::Conditional | TaskKind::Supervised)
}

/// The network in training, if it has a time input.
struct Learned<'a> {
    network: &'a dyn Network,
    task: &'a Task,
    learning: Option<Learning>,
}

impl precondition::Network for Learned<'_> {
    fn build(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> Value {
        self.answer(b, x, time, given).0
    }

    fn answer(&self, b: &mut Builder, x: Value, time: Value, _: &Condition) -> (Value, Option<Value>) {
        let Answer { image, error } = network_on(b, self.network, self.task, x, Some(time), self.learning);
        (image, error)
    }
}

/// All that the network gives to be compared with a target, each with its weight: its result, and where it is supervised
/// deeply those of lower levels.
fn outputs_on(
    b: &mut Builder,
    network: &dyn Network,
    task: &Task,
    x: Value,
    learning: Learning,
) -> Vec<(f64, Value)> {
    match given_to(b, network, task, x, None, Some(learning)) {
        Ok(given) => network.outputs_on(b, &given),
        Err(refused) => vec![(1.0, refused)],
    }
}

/// The input of the network, or the builder's error.
fn given_to(
    b: &mut Builder,
    network: &dyn Network,
    task: &Task,
    x: Value,
    time: Option<Value>,
    learning: Option<Learning>,
) -> std::result::Result<Given, Value> {
    let mut given = Given::image(x).learning(learning);
    let image = b.shape(x);
    for port in network.ports(image).iter().filter(|p| !p.optional) {
        let value = match (port.name, time) {
            ("t", Some(time)) => time,
            // Nothing depends on a time where there is no noise.
            ("t", None) => {
                let zero = b.scalar(0.0);
                b.broadcast(zero, port.ty.shape)
            }
            ("alpha", _) => b.input("alpha", port.ty),
            (name @ ("visible" | "hidden" | "order"), _) => b.input(name, port.ty),
            (name, _) => match task.conditioned.as_ref().and_then(|c| c.ty(name, image[0])) {
                Some(ty) => b.input(&format!("{PREFIX}{name}"), ty),
                None => return Err(b.refuse("training", key_for(task, name, port.ty))),
            },
        };
        given = given.with(port.name, value);
    }
    if learning.is_some() && network.drops() {
        given = given.with("key", b.input("key", Type::i32([4])));
    }
    Ok(given)
}

/// The estimate where something was measured, and the target elsewhere.
fn where_measured(b: &mut Builder, estimate: Value, clean: Value, valid: Value) -> Value {
    let off = b.sub(estimate, clean);
    let off = b.mul(off, valid);
    b.add(clean, off)
}

fn forward(
    b: &mut Builder,
    network: &dyn Network,
    task: &Task,
    shapes: &Shapes<'_>,
    learning: Option<Learning>,
) -> Forward {
    let train = learning.is_some();
    if let Some(network) = network.joint_embedding() {
        return pretraining::forward(b, network, task, shapes, train);
    }
    let clean = b.input("clean", Type::f32(image_shape(shapes.batch, shapes.size, shapes.channels[1])));
    let given = task.is_conditional().then(|| condition(b, shapes));
    let seen = given.as_ref().map(|g| g.channels);
    let measured = given.filter(|_| shapes.photons).map(|g| (g.measured, g.numbers));
    let balance = (train && task.weighs_samples()).then(|| b.input("balance", Type::f32([shapes.batch])));
    let masked = train && shapes.masked;
    let valid = masked.then(|| b.input("valid", Type::f32(image_shape(shapes.batch, shapes.size, 1))));
    let mut weights = balance;
    if masked {
        // The mean is that of the pixels that count.
        let factors = b.input("valid_factors", Type::f32([shapes.batch]));
        weights = Some(weights.map_or(factors, |w| b.mul(w, factors)));
    }
    let Some(diffusion) = &task.diffusion else {
        let x = seen.unwrap_or(clean);
        let (outputs, said) = match learning {
            Some(learning) if !learns_error(network, task) => {
                (outputs_on(b, network, task, x, learning), None)
            }
            _ => {
                let Answer { image, error } = network_on(b, network, task, x, None, learning);
                (vec![(1.0, image)], error)
            }
        };
        let first = outputs[0].1;
        let estimate = if task.kind == TaskKind::Segmentation { probabilities(b, first) } else { first };
        let each = outputs.into_iter().map(|(weight, output)| {
            let own = match task.kind {
                TaskKind::Segmentation => segmentation::losses(b, output, clean, valid.zip(weights)),
                TaskKind::Instances => instances::losses(b, output, clean, valid.zip(weights)),
                _ => {
                    let [output, clean] = match network.scale_of_errors(b, clean) {
                        Some(scale) => [b.div(output, scale), b.div(clean, scale)],
                        None => [output, clean],
                    };
                    distance_of_each(b, task.distance, output, clean, weights, valid)
                }
            };
            // Patches that are seen are without error: the mean is that of hidden ones.
            let hidden = network.masks(shapes.size).map(|m| m.patches() as f64 / m.hidden as f64);
            let weight = weight * hidden.unwrap_or(1.0);
            if weight == 1.0 { own } else { b.mul_scalar(own, weight) }
        });
        let each: Vec<Value> = each.collect();
        let losses = each[1..].iter().fold(each[0], |sum, own| b.add(sum, *own));
        let rival = task.gan.filter(|_| train).map(|gan| {
            let shown = valid.map_or(estimate, |valid| where_measured(b, estimate, clean, valid));
            gan.losses(b, x, clean, shown, losses)
        });
        let losses = rival.as_ref().map_or(losses, |r| r.generator);
        let error = said.map(|said| {
            let numbers = measured.as_ref().map(|(_, numbers)| &numbers[..]);
            ErrorSaid::new(b, said, [estimate, clean], numbers, valid, weights)
        });
        let (wanted, bound, levels) = (None, None, None);
        return Forward { clean, valid, losses, estimate, wanted, measured, bound, error, rival, levels };
    };
    let mut levels = LevelInputs::new(shapes.batch);
    let key = b.input("noise_key", Type::i32([shapes.batch, 4]));
    let shape = b.shape(clean);
    let noise = b.noise(NoiseKind::Normal, key, shape);
    let from_noise = task.kind.is_of_noise();
    let x = match from_noise {
        // A network that is shown a noisy target learns its noise: x is noise alone, as where restoring begins.
        true => {
            let sigma = levels.factor(b, clean, "sigma", |l| l.sigma);
            b.mul(noise, sigma)
        }
        false => noised(b, clean, noise, &mut levels),
    };
    let denoiser = Preconditioned {
        network: Learned { network, task, learning },
        prediction: diffusion.prediction,
        learned_variance: task.learned_variance,
    };
    let given = Condition { image: seen, ..Condition::default() };
    let Predicted { value: predicted, variance, error: said } = denoiser.predict(b, x, &mut levels, &given);
    let estimate = denoiser.clean(b, x, predicted, &mut levels);
    if from_noise {
        // There is one level alone, and what the network predicts of x's noise is not part of the error.
        let losses = distance_of_each(b, task.distance, estimate, clean, weights, valid);
        let (wanted, measured, bound, error, rival) = (None, None, None, None, None);
        return Forward {
            clean,
            valid,
            losses,
            estimate,
            wanted,
            measured,
            bound,
            error,
            rival,
            levels: Some(levels),
        };
    }
    let error = said.map(|said| {
        let numbers = measured.as_ref().map(|(_, numbers)| &numbers[..]);
        ErrorSaid::new(b, said, [estimate, clean], numbers, valid, weights)
    });
    let wanted = target(b, diffusion.prediction, clean, noise, &mut levels);
    let of_level = diffusion.weight.input(b, diffusion.prediction, &mut levels);
    let weights = weights.map_or(of_level, |w| b.mul(of_level, w));
    let losses = distance_of_each(b, task.distance, predicted, wanted, Some(weights), valid);
    let bound = diffusion.schedule().filter(|_| train && variance.is_some()).map(|schedule| {
        let said = Estimate { variance, ..Estimate::of(estimate) };
        variational_bound(b, &said, clean, &mut levels, schedule, FirstStep::Gaussian)
    });
    let (wanted, rival, levels) = (None, None, Some(levels));
    Forward { clean, valid, losses, estimate, wanted, measured, bound, error, rival, levels }
}

/// The graph of an iteration, or of one of its runs. Inputs: `measured`, `clean`, `numbers`, `noise_key`, the levels',
/// `rate`, and where they have a meaning `balance`, `valid`, `valid_factors`, `domains`, `key`, `alpha`, `weight.NAME` of each further term, `ema_decay`, `carry`, `gate`.
/// Of the weights, those change whose names begin as one of `only` says, or all where it says nothing.
/// The state `record.loss` sums up losses until it is set; `record.skips` counts the latest iterations that were skipped.
///
/// # Errors
/// If the network does not fit the task.
pub fn training(
    network: &dyn Network,
    task: &Task,
    shapes: &Shapes<'_>,
    only: &[String],
    training: &Training,
) -> Result<Built> {
    let mut b = Builder::new();
    let Forward { clean, valid, losses, mut estimate, measured, bound, error, rival, levels, .. } =
        forward(&mut b, network, task, shapes, Some(Learning { ranks: training.ranks }));
    if let Some(valid) = valid.filter(|_| !task.terms.is_empty()) {
        // Further terms look at neighbours.
        estimate = where_measured(&mut b, estimate, clean, valid);
    }
    let scalar = Type::f32(Shape::SCALAR);
    let main = b.reduce_all(ReduceKind::Mean, losses);
    let mut loss = main;
    let counted =
        measured.map(|(electrons, numbers)| Counted::new(&mut b, electrons, &numbers, estimate, valid));
    let compared = Compared { estimate, clean, counted, bound };
    let mut terms = vec![];
    for (term, _) in &task.terms {
        let (name, term) = (term.name(), term.build(&mut b, task.distance, &compared));
        terms.push((format!("{TERM}{name}"), term));
        let weight = b.input(&format!("weight.{name}"), scalar);
        let weighted = b.mul(term, weight);
        loss = b.add(loss, weighted);
    }
    if let Some(error) = &error {
        let own = b.reduce_all(ReduceKind::Mean, error.losses);
        terms.push((format!("{TERM}error"), own));
        // The image is what it is where nothing else is learned.
        loss = if errors::is_all(only) { own } else { b.add(loss, own) };
    }
    if loss != main {
        terms.push((format!("{TERM}main"), main));
    }
    let all = network.parameters()?;
    if training.encoder.is_some() && network.encoder().is_none() {
        let needed = "1 for both: optimizer.encoder_rate and optimizer.layer_decay are for networks with an encoder, as model=vit_segmentation";
        return setting("optimizer", "the rate of an encoder", needed);
    }
    if let Some(begins) = only.iter().find(|begins| !all.iter().any(|p| p.name.starts_with(*begins))) {
        let some: Vec<&str> = all.iter().step_by(all.len().div_ceil(6)).map(|p| p.name.as_str()).collect();
        return setting(
            "model.only",
            begins,
            format!("beginnings of the network's names, as {}", some.join(", ")),
        );
    }
    let is_chosen = |name: &str| {
        let is_shown = error.is_some() || !name.starts_with(ERROR);
        is_shown && (only.is_empty() || only.iter().any(|begins| name.starts_with(begins)))
    };
    let params: Vec<Value> = all
        .iter()
        .filter(|p| p.trainable && is_chosen(&p.name))
        .map(|p| b.state(&p.name, Type::f32(p.shape), StateInit::Given))
        .collect();
    finish_iteration(&mut b, loss, &params, training)?;
    if let Some(rival) = &rival {
        // Its own widths suit its rate, and it is not saved.
        let own = Training {
            name: Some(gan::NAME),
            ema_decay: None,
            base_fan_in: None,
            encoder: None,
            ..*training
        };
        finish_iteration(&mut b, rival.discriminator, &rival.params, &own)?;
        terms.extend(gan::PARTS.iter().zip(rival.parts).map(|(name, part)| (format!("{TERM}{name}"), part)));
    }
    // Over several ranks, what is recorded is the mean of all.
    let loss = b.graph().output("loss").unwrap_or(loss);
    let before = b.state("record.loss", scalar, StateInit::Constant(0.0));
    let after = b.add(before, loss);
    b.update(before, after);
    let mut numbers: Vec<Value> = terms.iter().map(|(_, v)| *v).collect();
    if shapes.domains > 0 {
        numbers.extend(parts_of_domains(&mut b, losses, shapes.domains));
    }
    if training.bucket.is_some() && !numbers.is_empty() {
        numbers = mean_over_ranks(&mut b, RECORDS_BUCKET, &numbers);
    }
    for ((name, _), value) in terms.iter().zip(&numbers) {
        b.output(name, *value);
    }
    sum_by_domain(&mut b, &numbers[terms.len()..]);
    count_skips(&mut b);
    Ok(Built { graph: b.finish()?, levels })
}

/// What the names of the parts of a loss begin with, in the outputs and in the records.
pub const TERM: &str = "term.";

/// The bucket of numbers that are recorded alone.
const RECORDS_BUCKET: u32 = LOSS_BUCKET + 1;

/// Sums of losses and numbers of samples, domain by domain, until they are set.
pub const DOMAIN_LOSSES: &str = "record.domain_losses";
pub const DOMAIN_SAMPLES: &str = "record.domain_samples";

/// The losses of each domain's samples in this run, and how many those are. The input `domains`, `[N, D]`, has a 1 for the domain of each sample.
fn parts_of_domains(b: &mut Builder, losses: Value, domains: usize) -> [Value; 2] {
    let samples = b.shape(losses)[0];
    let belongs = b.input("domains", Type::f32([samples, domains]));
    let losses = b.reshape(losses, [samples, 1]);
    let parts = b.mul(belongs, losses);
    [parts, belongs].map(|parts| {
        let sum = b.sum(parts, &[0]);
        b.reshape(sum, [domains])
    })
}

/// Adds what [`parts_of_domains`] gives up. Summed here, for a host that looks at every loss would wait for every iteration.
fn sum_by_domain(b: &mut Builder, parts: &[Value]) {
    for (name, sum) in [DOMAIN_LOSSES, DOMAIN_SAMPLES].into_iter().zip(parts) {
        let shape = b.shape(*sum);
        let before = b.state(name, Type::f32(shape), StateInit::Constant(0.0));
        let after = b.add(before, *sum);
        b.update(before, after);
    }
}

/// What a good iteration takes back of the skips before it: a network that falls apart is good on a batch now and then.
const TAKEN_BACK: f64 = 0.25;

/// Counts in the state `record.skips` the latest iterations whose norm was not finite or that the guard refused, less a
/// quarter for each good one since, and never below zero. Counted here, for a host that looks at every norm would wait for
/// every iteration.
fn count_skips(b: &mut Builder) {
    let norm = ["admitted_norm", "grad_norm"].iter().find_map(|name| b.graph().output(name));
    let Some(norm) = norm else { return };
    let carry = b.graph().inputs().find(|(name, _)| *name == "carry").map(|(_, value)| value);
    let before = b.state("record.skips", Type::f32(Shape::SCALAR), StateInit::Constant(0.0));
    // An iteration is counted in its first run, where nothing is carried over, and taken back in the last if it is good: the
    // runs before that have an infinite norm.
    let counted = match carry {
        Some(carry) => {
            let more = b.sub(before, carry);
            b.add_scalar(more, 1.0)
        }
        None => b.add_scalar(before, 1.0),
    };
    let most = b.scalar(f32::MAX);
    let good = b.binary(Binary::Greater, most, norm);
    let taken = b.mul_scalar(good, 1.0 + TAKEN_BACK);
    let less = b.sub(counted, taken);
    let none = b.scalar(0.0);
    let after = b.binary(Binary::Max, less, none);
    b.update(before, after);
}

/// The share of each sample's errors that lie beyond what the network says of them.
pub const BEYOND: &str = "beyond";

/// The graph that gives the output `estimate`, of inputs as [`training`] has them; `wanted` where a teacher says what it should be, and [`BEYOND`] where the network says its error.
///
/// # Errors
/// If the network does not fit the task.
pub fn validation(network: &dyn Network, task: &Task, shapes: &Shapes<'_>) -> Result<Built> {
    let mut b = Builder::new();
    let Forward { estimate, wanted, error, levels, .. } = forward(&mut b, network, task, shapes, None);
    b.output("estimate", estimate);
    error.into_iter().for_each(|error| b.output(BEYOND, error.beyond));
    wanted.into_iter().for_each(|wanted| b.output("wanted", wanted));
    Ok(Built { graph: b.finish()?, levels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::camera::numbers;
    use clearshot_model::Photons;
    use clearshot_physics::Correlation;
    use clearshot_runtime::{Device, Options, compile};
    use clearshot_tensor::Tensor;

    #[test]
    fn the_graph_makes_the_channels_that_restoring_makes() {
        let size = [3, 5];
        let shapes =
            Shapes { batch: 3, size: &size, channels: [1, 1], photons: true, domains: 0, masked: false };
        let mut b = Builder::new();
        let channels = condition(&mut b, &shapes).channels;
        b.output("channels", channels);
        let mut session = compile(b.finish().unwrap(), &Device::cpu(Some(1)), &Options::default()).unwrap();
        let electrons: Vec<f32> = (0..45).map(|i| i as f32 * 1.7 - 6.0).collect();
        let cameras = [(30.0, 2.0, 1.5), (400.0, 10.0, 3.0)];
        let correlation = Correlation::gaussian([0.2, 0.7]);
        let scale = |&(p, b, s)| Photons::new(b, s, p).unwrap().with_correlation(correlation);
        let mut all: Vec<f32> = cameras.iter().flat_map(|c| numbers(&scale(c))).collect();
        // The third image's condition is dropped.
        all.extend([0.0; NUMBERS]);
        session.set("measured", &Tensor::f32([3, 3, 5, 1], electrons.clone())).unwrap();
        session.set("numbers", &Tensor::f32([3, 1, 1, NUMBERS], all)).unwrap();
        session.run().unwrap();
        let got = session.get("channels").unwrap();
        let got = got.as_f32().unwrap();
        for (i, camera) in cameras.iter().enumerate() {
            let mut want = vec![0.0; 15 * CHANNELS];
            scale(camera).condition(&electrons[15 * i..15 * (i + 1)], &mut want);
            let part = &got[i * want.len()..(i + 1) * want.len()];
            assert!(part.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{part:?} {want:?}");
        }
        assert!(got[2 * 15 * CHANNELS..].iter().all(|v| *v == 0.0));
    }
}
