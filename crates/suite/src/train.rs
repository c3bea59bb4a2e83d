//! Cases of training: parameters before, a few iterations on given images, noises and times, the losses
//! and gradient norms on the way, parameters after.

use crate::Result;
use crate::case::{Attrs, Case};
use crate::engine::Engine;
use crate::report::{Checks, Class, relative_error};
use crate::unet2d::{config, parameters, trained_states};
use clearshot_graph::losses::mse;
use clearshot_graph::ops::Adam;
use clearshot_graph::train::{Optimizer, Training, finish_iteration};
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_nn::models::unet2d::{Extras, UNet2D};
use clearshot_tensor::{Shape, Tensor};

/// How far what training changes may be off in bfloat16, all parameters as one vector; of an optimiser that does nothing it is 1. Adam's first
/// steps have the size of the rate whatever the gradient's is, so a gradient near zero that rounding turns around is two steps off.
const NARROW_CHANGE: f64 = 0.15;

/// Trains as the case did and compares every step.
///
/// # Errors
/// If the case asks for something that is not known, or the engine refuses the graph.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    run_at(case, engine, 1.0)
}

/// As [`run`], at the case's rate times `factor`.
///
/// # Errors
/// As [`run`].
pub fn run_at(case: &Case, engine: Engine, factor: f64) -> Result<Checks> {
    let network = config(case)?.resolve()?;
    let batches = batches(case)?;
    let first = batches.first().ok_or("the case has no iterations")?;
    let graph = iteration(&network, first.input.shape(), first.noise.shape(), &training(&case.attrs)?)?;
    let mut session = engine.open(graph)?;
    let begun = parameters(case, "param0.", &network)?;
    for (name, value) in &begun {
        session.set(name, value)?;
    }
    session.set("rate", &Tensor::scalar((factor * case.attrs.number("lr")?) as f32))?;
    let mut checks = Checks::default();
    let (losses, norms) = (case.tensor("out.loss")?.to_f64(), case.tensor("out.grad_norm")?.to_f64());
    for (i, batch) in batches.iter().enumerate() {
        for (name, value) in [("x", &batch.input), ("t", &batch.time), ("noise", &batch.noise)] {
            session.set(name, value)?;
        }
        session.run()?;
        let relative = |got: Tensor, truth: f64| ((got.to_f64()[0] - truth) / truth).abs();
        checks.error(Class::Loss, format!("loss {i}"), relative(session.get("loss")?, losses[i]));
        checks.error(Class::GradientNorm, format!("norm {i}"), relative(session.get("grad_norm")?, norms[i]));
    }
    let trained = parameters(case, "param1.", &network)?;
    // Parameters hardly move in a few iterations, so that those which did not are near the truth too: what counts is the way.
    let (mut moved, mut way) = (vec![], vec![]);
    for ((name, truth), (_, first)) in trained.iter().zip(&begun) {
        let change = |to: Tensor| to.to_f64().into_iter().zip(first.to_f64()).map(|(a, b)| a - b);
        moved.extend(change(session.get(name)?));
        way.extend(change(truth.clone()));
    }
    let limit = if engine.is_narrow() { NARROW_CHANGE } else { Class::TrainedChange.limit() };
    checks.limited(
        Class::TrainedChange,
        "change of all parameters",
        relative_error(&moved, &way, 0.0),
        limit,
    );
    if engine.is_narrow() {
        // Single small biases are off by chance; all parameters are one vector.
        let (mut got, mut truth) = (vec![], vec![]);
        for (name, value) in &trained {
            got.extend(session.get(name)?.to_f64());
            truth.extend(value.to_f64());
        }
        checks.error(Class::TrainedParameters, "all parameters", relative_error(&got, &truth, 0.0));
        return Ok(checks);
    }
    for (name, truth) in &trained {
        checks.tensor(Class::TrainedParameters, name.as_str(), &session.get(name)?, truth);
    }
    Ok(checks)
}

/// One iteration: predict the noise, square the error, update every parameter.
fn iteration(network: &UNet2D, input: Shape, noise: Shape, training: &Training) -> Result<Graph> {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(input));
    let t = b.input("t", Type::f32([input[0]]));
    let noise = b.input("noise", Type::f32(noise));
    let y = network.build(&mut b, x, t, Extras::default());
    let loss = mse(&mut b, y, noise);
    let params: Vec<Value> = trained_states(network, &b)?.into_iter().map(|(_, v)| v).collect();
    finish_iteration(&mut b, loss, &params, training)?;
    Ok(b.finish()?)
}

fn training(attrs: &Attrs) -> Result<Training> {
    let decoupled = match attrs.text("optimizer").unwrap_or("adamw") {
        "adamw" => true,
        "adam" => false,
        other => return Err(format!("unknown optimizer `{other}`").into()),
    };
    if let Some(other) = attrs.text("prediction").filter(|p| *p != "epsilon") {
        return Err(format!("unknown prediction `{other}`").into());
    }
    let betas = attrs.get("betas").and_then(|b| b.as_array()).ok_or("the case has no `betas`")?;
    let beta = |i: usize| betas.get(i).and_then(|b| b.as_f64()).ok_or("`betas` are two numbers");
    let adam = Adam {
        beta1: beta(0)?,
        beta2: beta(1)?,
        eps: attrs.number("eps")?,
        weight_decay: attrs.number_or("weight_decay", 0.0)?,
        decoupled,
    };
    let clip_norm = attrs.number_or("clip_norm", f64::INFINITY)?;
    Ok(Training { optimizer: Optimizer::Adam(adam), clip_norm, ..Training::default() })
}

/// What one iteration is given, in our layout.
struct Batch {
    /// Noisy image and condition, side by side along channels.
    input: Tensor,
    time: Tensor,
    noise: Tensor,
}

fn batches(case: &Case) -> Result<Vec<Batch>> {
    let kept = kept_signal(&case.attrs)?;
    let times = case.tensor("in.t")?;
    let [steps, n] = times.shape()[..] else { return Err("`in.t` is not [steps, batch]".into()) };
    let parts = |name: &str| -> Result<Vec<Tensor>> {
        let whole = case.tensor(name)?;
        let shape = Shape::new(&whole.shape()[1..]);
        let values = whole.to_f32();
        let chunks = values.as_f32()?.chunks(shape.len());
        Ok(chunks.map(|v| Tensor::f32(shape, v.to_vec()).channels_last()).collect())
    };
    let (clean, cond, noise) = (parts("in.x0")?, parts("in.cond")?, parts("in.eps")?);
    let times = times.to_f64();
    (0..steps)
        .map(|i| {
            let t = &times[i * n..(i + 1) * n];
            let input = noisy_input(&clean[i], &cond[i], &noise[i], t, &kept)?;
            let time = Tensor::f32([n], t.iter().map(|&t| t as f32).collect());
            Ok(Batch { input, time, noise: noise[i].clone() })
        })
        .collect()
}

/// `sqrt(kept) clean + sqrt(1 - kept) noise` for each sample, with the condition behind it.
fn noisy_input(clean: &Tensor, cond: &Tensor, noise: &Tensor, t: &[f64], kept: &[f32]) -> Result<Tensor> {
    let (shape, extra) = (clean.shape(), cond.shape().channels());
    let c = shape.channels();
    let pixels = shape.len() / shape[0] / c;
    let (clean, cond, noise) = (clean.as_f32()?, cond.as_f32()?, noise.as_f32()?);
    let mut values = Vec::with_capacity(clean.len() + cond.len());
    for p in 0..shape[0] * pixels {
        let kept = *kept.get(t[p / pixels] as usize).ok_or("a time behind the last timestep")?;
        let (signal, rest) = (kept.sqrt(), (1.0 - kept).sqrt());
        values.extend((p * c..(p + 1) * c).map(|i| signal * clean[i] + rest * noise[i]));
        values.extend(&cond[p * extra..(p + 1) * extra]);
    }
    Ok(Tensor::f32(shape.with(shape.rank() - 1, c + extra), values))
}

/// The share of the signal's variance at each timestep, rounded as diffusers does: betas in f32, their
/// product carried in f64.
fn kept_signal(attrs: &Attrs) -> Result<Vec<f32>> {
    let steps = attrs.count_or("num_train_timesteps", 1000)?;
    match attrs.text("beta_schedule") {
        Some("squaredcos_cap_v2") => {}
        other => return Err(format!("unknown beta_schedule {other:?}").into()),
    }
    let level = |i: usize| {
        let t = i as f64 / steps as f64;
        ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
    };
    let mut product = 1.0;
    let kept = |i: usize| {
        let beta = (1.0 - level(i + 1) / level(i)).min(0.999) as f32;
        product *= f64::from(1.0 - beta);
        product as f32
    };
    Ok((0..steps).map(kept).collect())
}
