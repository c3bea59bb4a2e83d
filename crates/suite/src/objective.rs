//! Cases of objectives: training losses and their gradients as PyTorch computes them.

use crate::case::Case;
use crate::engine::Engine;
use crate::report::{Checks, Class};
use crate::{Result, schedule};
use clearshot_diffusion::objective::{self, Distance, Weight};
use clearshot_diffusion::precondition::Prediction;
use clearshot_diffusion::{Clock, Level, LevelInputs};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::Tensor;

fn distance(case: &Case) -> Result<Distance> {
    let bend = case.attrs.number_or("bend", 1.0)?;
    match case.attrs.text("distance") {
        Some("l1") => Ok(Distance::L1),
        Some("l2") => Ok(Distance::L2),
        Some("huber") => Ok(Distance::Huber(bend)),
        Some("smooth_l1") => Ok(Distance::SmoothL1(bend)),
        other => Err(format!("unknown distance {other:?}").into()),
    }
}

/// What the network of a case predicts, and how images count.
fn weighting(case: &Case) -> Result<(Prediction, Weight)> {
    if case.attrs.text("objective") == Some("edm") {
        let sigma_data = case.attrs.number("sigma_data")?;
        return Ok((Prediction::Edm { sigma_data }, Weight::Edm { sigma_data }));
    }
    let prediction = match case.attrs.text("prediction") {
        Some("epsilon") => Prediction::Noise,
        Some("sample") => Prediction::Sample,
        Some("v_prediction") => Prediction::Velocity,
        other => return Err(format!("unknown prediction {other:?}").into()),
    };
    let weight = match case.attrs.text("weight") {
        Some("uniform") => Weight::Uniform,
        Some("snr") => Weight::Snr,
        Some("min_snr") => Weight::MinSnr(case.attrs.number("gamma")?),
        other => return Err(format!("unknown weight {other:?}").into()),
    };
    Ok((prediction, weight))
}

/// The level of each image.
fn levels(case: &Case) -> Result<Vec<Level>> {
    if let Some(sigmas) = case.tensors.get("in.sigma") {
        return Ok(sigmas.to_f64().iter().map(|&s| Level::new(1.0, s, Clock::LogSigma.time(s))).collect());
    }
    let Some(times) = case.tensors.get("in.time") else { return Ok(vec![]) };
    let schedule = schedule::of_diffusers(&case.attrs)?;
    let level = |t: &f64| schedule.level(*t as usize).ok_or_else(|| format!("no timestep {t}").into());
    times.to_f64().iter().map(level).collect()
}

fn loss(case: &Case, b: &mut Builder, predicted: Value, level: &mut LevelInputs) -> Result<Value> {
    let shape = b.shape(predicted);
    let x0 = b.input("x0", Type::f32(shape));
    Ok(match case.attrs.text("objective") {
        Some("prediction" | "edm") => {
            let (prediction, weight) = weighting(case)?;
            let noise = b.input("noise", Type::f32(shape));
            let target = objective::target(b, prediction, x0, noise, level);
            let weight = weight.input(b, prediction, level);
            let kind =
                if matches!(prediction, Prediction::Edm { .. }) { Distance::L2 } else { distance(case)? };
            objective::distance(b, kind, predicted, target, Some(weight))
        }
        Some("gradient") => objective::gradient(b, predicted, x0),
        Some("intensity") => objective::intensity(b, distance(case)?, predicted, x0),
        Some("poisson") => objective::poisson_nll(b, predicted, x0),
        other => return Err(format!("unknown objective {other:?}").into()),
    })
}

/// Builds the case's loss with its gradient, runs it and compares.
///
/// # Errors
/// If the case asks for what there is not.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    let predicted = case.tensor("in.predicted")?.channels_last();
    let mut b = Builder::new();
    let mut level = LevelInputs::new(predicted.shape()[0]);
    let value = b.input("predicted", Type::f32(predicted.shape()));
    let loss = loss(case, &mut b, value, &mut level)?;
    let gradient = grad(&mut b, loss, None, &[value])?[0];
    b.output("loss", loss);
    b.output("gradient", gradient);
    let mut session = engine.open(b.finish()?)?;
    session.set("predicted", &predicted)?;
    for (name, tensor) in [("x0", "in.x0"), ("noise", "in.noise")] {
        if let Some(tensor) = case.tensors.get(tensor) {
            session.set(name, &tensor.channels_last())?;
        }
    }
    let levels = levels(case)?;
    if !levels.is_empty() {
        for (name, tensor) in level.at_each(&levels) {
            session.set(name, &tensor)?;
        }
    }
    session.run()?;
    let mut checks = Checks::default();
    let got = Tensor::f32([1], session.get("loss")?.to_f32().as_f32()?.to_vec());
    checks.tensor(Class::Objective, "loss", &got, case.tensor("out.loss")?);
    let truth = case.tensor("gin.predicted")?.channels_last();
    checks.tensor(Class::OpGradient, "gradient", &session.get("gradient")?, &truth);
    Ok(checks)
}
