//! Models whose convolutions multiply in 8 bits.
//!
//! The network is asked about images like those that it was trained on, or about a user's files, and what goes into its convolutions
//! says how that is rounded ([`ranges`]). Each convolution is then rounded alone, which says how sensitive it is; the most
//! sensitive stay in f32 until the whole is near enough to the network in f32 ([`exam`]). What counts is decided on images that
//! were not used before: the scores of the gate.

pub mod exam;
pub mod ranges;

use crate::config::RunConfig;
use crate::data::{Data, Part};
use crate::error::{Result, setting};
use crate::task::Task;
use clearshot_graph::ops::int8::{Rounding, Table};
use clearshot_graph::passes::int8::candidates;
use clearshot_model::{Model, Quantisation};
use clearshot_nn::Weights;
use clearshot_nn::models::Quantised;
use clearshot_runtime::Device;
use exam::{Exam, Scores};
use ranges::{By, Inputs};

/// When ranges of inputs are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Once, now.
    Static,
    /// In every run, of each image.
    Dynamic,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Static => "static",
            Mode::Dynamic => "dynamic",
        }
    }
}

/// How to quantise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub mode: Mode,
    pub by: By,
    /// Images to calibrate on; half as many are kept for the gate.
    pub samples: usize,
    pub limits: Limits,
}

/// What a model in 8 bits must reach beside itself in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The most that PSNR against the truth may fall, in dB.
    pub loss: f64,
    /// The largest relative error and the least cosine, of all estimates together.
    pub error: f64,
    pub cosine: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { loss: 0.1, error: 0.05, cosine: 0.998 }
    }
}

impl Limits {
    /// What the scores do not reach, in words.
    pub fn missed(&self, s: &Scores) -> Vec<String> {
        let mut missed = vec![];
        if s.loss().is_some_and(|loss| loss.is_nan() || loss > self.loss) {
            let loss = s.loss().unwrap_or(f64::NAN);
            missed.push(format!("PSNR against the truth falls by {loss:.3} dB, more than {}", self.loss));
        }
        if s.error.is_nan() || s.error > self.error {
            missed.push(format!("the relative error is {:.4}, more than {}", s.error, self.error));
        }
        if s.cosine.is_nan() || s.cosine < self.cosine {
            missed.push(format!("the cosine is {:.5}, less than {}", s.cosine, self.cosine));
        }
        missed
    }

    /// The same with room to spare: what images that are not known yet may cost more.
    fn stricter(&self) -> Limits {
        let gap = 1.0 - self.cosine;
        Limits { loss: SPARE * self.loss, error: SPARE * self.error, cosine: 1.0 - SPARE * gap }
    }
}

/// The share of the limits that calibration images may use up.
const SPARE: f64 = 0.6;
/// Images that sensitivities are measured on, and the largest share of convolutions that stay in f32.
const PROBED: usize = 4;
const MOST_KEPT: f64 = 0.5;

/// One convolution that could be in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub name: String,
    /// The relative error of the estimate when only it is in 8 bits.
    pub error: f64,
    pub kept: bool,
}

pub struct Outcome {
    pub model: Model,
    /// In running order.
    pub layers: Vec<Layer>,
    /// On images that were not calibrated on.
    pub scores: Scores,
}

/// Where images come from.
pub struct Images<'a> {
    /// What ranges are found on.
    pub calibration: &'a Data,
    /// What the gate's images are of, other ones.
    pub gate: &'a Data,
}

/// A model with convolutions in 8 bits. `told` hears what is done, how much of it, and of how much.
///
/// # Errors
/// If images cannot be had, the network cannot be run, nothing in it is worth 8 bits, or `told` says to stop.
pub fn quantise(
    mut model: Model,
    config: &RunConfig,
    images: &Images<'_>,
    how: &Settings,
    device: Device,
    told: &mut dyn FnMut(&str, usize, usize) -> Result<()>,
) -> Result<Outcome> {
    if model.network.int8().is_some() {
        return setting(
            "model",
            &model.about.name,
            "a model in floating point: this one is in 8 bits already",
        );
    }
    let task = Task::new(&config.task)?;
    let original = model.weights.clone();
    stored(&mut model.weights);
    let size = model.about.crop.clone();
    let exam = |data: &Data, part: Part, count: usize| {
        Exam::new(data, part, &size, count, &task, config, device, &original)
    };
    let calibration = exam(images.calibration, Part::Training, how.samples)?;
    let (reference, inputs) =
        calibration.watched(&*model.network, &mut |done, of| told("calibrating", done, of))?;
    if inputs.is_empty() {
        return setting(
            "model",
            &model.about.name,
            "a network with convolutions from 16 channels to 16 or more",
        );
    }
    let rounding = |input: &Inputs| match how.mode {
        Mode::Dynamic => Rounding::Dynamic,
        Mode::Static => Rounding::Static(input.grids(&original[&input.name], how.by)),
    };
    let all: Table = inputs.iter().map(|i| (i.name.clone(), rounding(i))).collect();
    let mut layers = vec![];
    for (i, input) in inputs.iter().enumerate() {
        told("rounding one convolution after the other", i, inputs.len())?;
        let alone: Table =
            all.iter().filter(|(n, _)| **n == input.name).map(|(n, r)| (n.clone(), r.clone())).collect();
        let scores = calibration.scores(PROBED, &*model.network, &alone, &original, &reference)?;
        layers.push(Layer { name: input.name.clone(), error: scores.error, kept: false });
    }
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|a, b| layers[*b].error.total_cmp(&layers[*a].error));
    let most = (MOST_KEPT * layers.len() as f64) as usize;
    let mut table = all;
    for (kept, &worst) in order.iter().enumerate().take(most + 1) {
        told("choosing what stays in f32", kept, most)?;
        let scores = calibration.scores(PROBED, &*model.network, &table, &model.weights, &reference)?;
        if how.limits.stricter().missed(&scores).is_empty() || kept == most {
            break;
        }
        layers[worst].kept = true;
        table.remove(&layers[worst].name);
    }
    told("scoring", 0, 1)?;
    let gate = exam(images.gate, Part::Validation, (how.samples / 2).max(2))?;
    let (reference, _) = gate.watched(&*model.network, &mut |done, of| told("scoring", done, 2 * of))?;
    let scores = gate.scores(how.samples, &*model.network, &table, &model.weights, &reference)?;
    model.about.quantised = Some(Quantisation {
        mode: how.mode.name().into(),
        calibration: how.by.name(how.mode),
        images: how.samples,
        convolutions: table.len(),
        kept: layers.iter().filter(|l| l.kept).map(|l| l.name.clone()).collect(),
        scores: scores.record(),
    });
    model.network = Box::new(Quantised::new(model.network, table)?);
    Ok(Outcome { model, layers, scores })
}

/// Weights as the file will hold them: what is in 8 bits is rounded where it is used, products' weights have 16 bits, and all
/// else, convolutions that stay in f32 among it, is as it was.
fn stored(weights: &mut Weights) {
    for weight in weights.values_mut().filter(|w| w.shape().rank() == 2) {
        *weight = weight.to_f16().to_f32();
    }
}

/// Names and inputs of the convolutions that could be in 8 bits.
fn watch(mut graph: clearshot_graph::Graph) -> (clearshot_graph::Graph, Vec<(String, usize)>) {
    let found = candidates(&graph);
    for c in &found {
        graph.outputs.push(clearshot_graph::Output { name: watched_name(&c.name), value: c.input });
    }
    (graph, found.into_iter().map(|c| (c.name, c.channels)).collect())
}

fn watched_name(weight: &str) -> String {
    format!("input of {weight}")
}
