//! One evaluation of a model as a graph: raw pixels in, restored pixels out.

use super::level::{self, LevelValues};
use super::settings::Settings;
use super::signal::{NUMBERS, Scale};
use crate::error::ExportError;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_model::{ConditionKind, Model, PredictionKind, Process, Signal, Task};
use clearshot_nn::models::Given;
use clearshot_tensor::{Shape, Tensor};

/// The measured image, and the restored one in the same unit.
pub(crate) const IMAGE: &str = "image";
pub(crate) const RESTORED: &str = "restored";
/// The noisy image of a diffusion model and its clean estimate, both in the network's unit.
const X: &str = "x";
const ESTIMATE: &str = "x0";

/// The graph for `batch` images of a size.
///
/// # Errors
/// If the network does not take that size.
pub fn graph(model: &Model, settings: &Settings, batch: usize, size: &[usize]) -> Result<Graph, ExportError> {
    let about = &model.about;
    let mut b = Builder::new();
    let shape = |channels: usize| {
        let sizes: Vec<usize> = [batch].into_iter().chain(size.iter().copied()).chain([channels]).collect();
        Shape::new(&sizes)
    };
    let measured = |b: &mut Builder| b.input(IMAGE, Type::f32(shape(about.input_channels())));
    match &about.task {
        Task::Segmentation { .. } | Task::Instances | Task::Enlarging { .. } => {
            let why = "a model that segments or enlarges sees each image between its own dark and bright end, which the graph cannot find; run it by `clearshot predict`";
            return Err(ExportError::Setting(why.into()));
        }
        Task::MaskedAutoencoder | Task::JointEmbedding => {
            let why = "a model that was trained without labels is there for its encoder; `clearshot predict -o NAME.csv` writes its embeddings, \
                model.encoder takes it over for segmentation";
            return Err(ExportError::Setting(why.into()));
        }
        Task::Regression => {
            let image = measured(&mut b);
            let scale = Scale::new(&mut b, &about.signal, settings);
            let seen = scale.condition(&mut b, image);
            let y = network(&mut b, model, seen, None);
            let restored = scale.pixels(&mut b, y);
            b.output(RESTORED, restored);
        }
        Task::Diffusion { prediction, process, condition } => {
            let image = (*condition == ConditionKind::Measurement).then(|| measured(&mut b));
            if settings.direct && image.is_none() {
                return Err(ExportError::Setting("a prior has no measurement to answer for at once".into()));
            }
            let x = match settings.direct {
                true => None,
                false => Some(b.input(X, Type::f32(shape(about.channels)))),
            };
            let level = LevelValues::new(&mut b, process, batch, settings.direct)?;
            let beside = image.map(|image| {
                let scale = Scale::new(&mut b, &about.signal, settings);
                (scale.condition(&mut b, image), scale)
            });
            let x = x.unwrap_or_else(|| {
                let zero = b.constant(Tensor::zeros(Shape::from([1]).padded_to(size.len() + 2)));
                b.broadcast(zero, shape(about.channels))
            });
            let estimate = denoised(&mut b, model, *prediction, level, x, beside.as_ref().map(|(c, _)| *c));
            let clipped = match (process, &about.signal) {
                (Process::Timesteps { .. } | Process::Betas { .. }, Signal::Fixed { .. }) => {
                    b.unary(Unary::Clamp(-1.0, 1.0), estimate)
                }
                _ => estimate,
            };
            if let Some((_, scale)) = &beside {
                let restored = scale.pixels(&mut b, clipped);
                b.output(RESTORED, restored);
            }
            if !settings.direct {
                b.output(ESTIMATE, clipped);
            }
        }
    }
    Ok(b.finish()?.tidy())
}

/// The clean image behind x.
fn denoised(
    b: &mut Builder,
    model: &Model,
    prediction: PredictionKind,
    level: LevelValues,
    x: Value,
    condition: Option<Value>,
) -> Value {
    let with_condition = |b: &mut Builder, seen: Value| {
        let parts: Vec<Value> = [seen].into_iter().chain(condition).collect();
        b.concat_channels(&parts)
    };
    let batch = b.shape(x)[0];
    let each = |b: &mut Builder, v: Value| b.broadcast(v, [batch]);
    match prediction.prediction() {
        Some(prediction) => level.denoised(b, x, prediction, |b, seen| {
            let seen = with_condition(b, seen);
            let time = each(b, level.time);
            network(b, model, seen, Some(("t", time)))
        }),
        None => {
            let ratio = level.ratio(b);
            let alpha = clearshot_nn::layers::per_sample(b, level.alpha, x);
            let seen = b.div(x, alpha);
            let seen = with_condition(b, seen);
            let sigma = each(b, ratio);
            network(b, model, seen, Some(("sigma", sigma)))
        }
    }
}

/// Adds the network. Whatever else it cannot do without becomes an input of the file.
fn network(b: &mut Builder, model: &Model, seen: Value, time: Option<(&str, Value)>) -> Value {
    let mut given = Given::image(seen);
    if let Some((name, value)) = time {
        given = given.with(name, value);
    }
    for port in model.network.ports(b.shape(seen)) {
        if !port.optional && given.get(port.name).is_none() {
            let value = b.input(port.name, port.ty);
            given = given.with(port.name, value);
        }
    }
    model.network.build_on(b, &given)
}

/// What an input or output is, with its unit.
pub(super) fn meaning(model: &Model, name: &str) -> String {
    let photons = model.about.signal == Signal::Photons;
    let unit = if photons { "in counts of the camera" } else { "in the unit of the model's training files" };
    if let Some(number) = NUMBERS.iter().find(|n| n.name == name) {
        return number.about.into();
    }
    match (name, &model.about.task) {
        (IMAGE, _) => format!("the measured image, {unit}"),
        (RESTORED, _) => format!("the restored image, {unit}"),
        (X, _) => "the noisy image of this step, in the network's unit (-1 to 1)".into(),
        (ESTIMATE, _) => "the clean estimate of x, in the network's unit (-1 to 1)".into(),
        ("sigma" | "timestep", Task::Diffusion { process, .. }) => level::about(process),
        _ => format!("the network's input {name}"),
    }
}
