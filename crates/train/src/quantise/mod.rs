//! Quantisation of models: convolutions that multiply in 8 bits.
//!
//! The inputs of the convolutions are recorded on images like those of the training, or on a user's files, and determine
//! their rounding ([`ranges`]). Each convolution is then rounded by itself, which gives its sensitivity, on the image with
//! the largest loss; the most sensitive stay in f32 until the whole is close enough to the network in f32 ([`exam`]). The
//! final decision uses scores on images that were not used before. Rounding costs most where there is little noise to hide
//! it, so generated scenes are also exposed with a perfect camera and much light ([`clear`]), and the worst image has its
//! own limit.

pub mod exam;
pub mod ranges;
pub mod tuning;

use crate::conditioning::Conditioned;
use crate::config::{CameraConfig, DataKind, RunConfig};
use crate::data::{Data, Part};
use crate::error::{Result, setting};
use crate::task::Task;
use clearshot_graph::ops::int8::{Rounding, Table};
use clearshot_graph::passes::int8::candidates;
use clearshot_model::{Model, Quantisation};
use clearshot_nn::Weights;
use clearshot_nn::models::Quantised;
use clearshot_runtime::Device;
use exam::{Exam, Scores, Taken};
use ranges::{By, Inputs};
use tuning::{Tuning, tuned};

/// When ranges of inputs are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Once, now.
    Static,
    /// In every run, of each image.
    Dynamic,
    /// Once, now, and weights are then trained on with them.
    Qat(Tuning),
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Static => "static",
            Mode::Dynamic => "dynamic",
            Mode::Qat(_) => "qat",
        }
    }
}

/// How to quantise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub mode: Mode,
    pub by: By,
    /// Images to calibrate on; the gate has as many others.
    pub samples: usize,
    pub limits: Limits,
}

/// What a model in 8 bits must reach beside itself in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The most that PSNR against the truth may fall in the mean, in dB.
    pub loss: f64,
    /// The same of each image.
    pub worst: f64,
    /// The largest relative error and the least cosine, of all estimates together.
    pub error: f64,
    pub cosine: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { loss: 0.1, worst: 0.5, error: 0.05, cosine: 0.998 }
    }
}

impl Limits {
    /// The limits that the scores miss, as text.
    pub fn missed(&self, s: &Scores) -> Vec<String> {
        let mut missed = vec![];
        if s.loss().is_some_and(|loss| loss.is_nan() || loss > self.loss) {
            let loss = s.loss().unwrap_or(f64::NAN);
            missed.push(format!("PSNR against the truth falls by {loss:.3} dB, more than {}", self.loss));
        }
        if let Some((worst, loss)) = s.worst().and_then(|c| Some((c, c.loss()?)))
            && (loss.is_nan() || loss > self.worst)
        {
            let name = &worst.name;
            missed
                .push(format!("PSNR of one image falls by {loss:.3} dB, more than {} ({name})", self.worst));
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
        Limits {
            loss: SPARE * self.loss,
            worst: SPARE * self.worst,
            error: SPARE * self.error,
            cosine: 1.0 - SPARE * gap,
        }
    }
}

/// The share of the limits that calibration images may use up.
const SPARE: f64 = 0.6;
/// The largest share of convolutions that stay in f32.
const MOST_KEPT: f64 = 0.5;
/// Electrons of the brightest value of scenes that are seen clearly.
const CLEAR_PEAK: f64 = 100.0;

/// One convolution that could be in 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub name: String,
    /// The relative error of the estimate when only it is in 8 bits.
    pub error: f64,
    /// What that costs the image that it costs most ([`Scores::burden`]): the largest stay in f32 first.
    pub burden: f64,
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
    /// The images for finding ranges.
    pub calibration: &'a Data,
    /// What the gate's images are of, other ones.
    pub gate: &'a Data,
    /// Scenes that are seen clearly, for both, where there are scenes.
    pub clear: Option<&'a Data>,
}

impl<'a> Images<'a> {
    /// As many clear scenes as others.
    fn taken(&self, data: &'a Data, part: Part, count: usize) -> Vec<Taken<'a>> {
        let own = Taken { data, part, count, name: "the model's images" };
        let clear = self.clear.map(|data| Taken { data, part, count, name: "clear scenes" });
        [own].into_iter().chain(clear).collect()
    }
}

/// The same data as a camera without faults sees it in much light; nothing where it is not scenes in electrons that a model was trained on.
pub fn clear(config: &RunConfig) -> Option<RunConfig> {
    let mut clear = config.clone();
    clear.data.camera = CameraConfig { peak: [CLEAR_PEAK; 2], ..CameraConfig::default() };
    clear.data.cameras.clear();
    (config.data.kind == DataKind::Scenes).then_some(clear)
}

/// A model with convolutions in 8 bits. `told` is called with the current work, and how much of it is done.
///
/// # Errors
/// If images cannot be loaded, the network cannot be run, nothing in it suits 8 bits, or `told` stops it.
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
    if model.about.task.knows_no_camera() {
        let needed = "a model that restores images: what 8 bits cost is judged by the PSNR of restored images, and this one segments, enlarges or embeds them";
        return setting("model", &model.about.name, needed);
    }
    let conditioned = Conditioned::of_model(&model, config.task.context.as_deref())?;
    let task = Task { conditioned, ..Task::new(&config.task)? };
    let original = model.weights.clone();
    stored(&mut model.weights);
    let size = model.about.crop.clone();
    let exam = |taken: &[Taken<'_>]| Exam::new(taken, &size, &task, config, device, &original);
    let calibration = exam(&images.taken(images.calibration, Part::Training, how.samples))?;
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
        Mode::Static | Mode::Qat(_) => Rounding::Static(input.grids(&original[&input.name], how.by)),
    };
    let all: Table = inputs.iter().map(|i| (i.name.clone(), rounding(i))).collect();
    // Sensitivities are those of the weights that will be rounded.
    let mut weights = original.clone();
    if let Some(tuning) = how.mode.tuning() {
        let network = Quantised::new(model.network, all.clone())?;
        let told = &mut |done: usize, of: usize| told("training on in 8 bits", done, of);
        weights = tuned(&network, &original, (&task, config), images.gate, &size, tuning, device, told)?;
        model.network = network.into_network();
        model.weights = weights.clone();
        stored(&mut model.weights);
    }
    let whole = calibration.scores(&calibration.runs(), &*model.network, &all, &model.weights, &reference)?;
    // Sensitivities are measured on the first images and on those that 8 bits cost most.
    let mut probed = vec![0];
    probed.extend(whole.hardest_run().filter(|run| *run != 0));
    let mut layers = vec![];
    for (i, input) in inputs.iter().enumerate() {
        told("rounding one convolution after the other", i, inputs.len())?;
        let alone: Table =
            all.iter().filter(|(n, _)| **n == input.name).map(|(n, r)| (n.clone(), r.clone())).collect();
        let scores = calibration.scores(&probed, &*model.network, &alone, &weights, &reference)?;
        let name = input.name.clone();
        layers.push(Layer { name, error: scores.error, burden: scores.burden(), kept: false });
    }
    let mut order: Vec<usize> = (0..layers.len()).collect();
    order.sort_by(|a, b| layers[*b].burden.total_cmp(&layers[*a].burden));
    let most = (MOST_KEPT * layers.len() as f64) as usize;
    let mut table = all;
    let fits = |s: &Scores| how.limits.stricter().missed(s).is_empty();
    let everything = calibration.runs();
    let most = if fits(&whole) { 0 } else { most };
    for (kept, &worst) in order.iter().enumerate().take(most) {
        told("choosing what stays in f32", kept, most)?;
        layers[worst].kept = true;
        table.remove(&layers[worst].name);
        if let Some(weight) = model.weights.get_mut(&layers[worst].name) {
            *weight = weight.to_f16().to_f32();
        }
        let score =
            |runs: &[usize]| calibration.scores(runs, &*model.network, &table, &model.weights, &reference);
        if fits(&score(&probed)?) {
            // What holds on these images must hold on all; where it does not, the worst is looked at from now on.
            let all = score(&everything)?;
            if fits(&all) {
                break;
            }
            probed.extend(all.hardest_run().filter(|run| !probed.contains(run)));
        }
    }
    told("scoring", 0, 1)?;
    let gate = exam(&images.taken(images.gate, Part::Validation, how.samples))?;
    let (reference, _) = gate.watched(&*model.network, &mut |done, of| told("scoring", done, 2 * of))?;
    let scores = gate.scores(&gate.runs(), &*model.network, &table, &model.weights, &reference)?;
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

/// Weights as the file will hold them: what is in 8 bits is rounded where it is used, products' weights have 16 bits, as those of
/// convolutions that stay in f32 will, and all else is as it was.
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

#[cfg(test)]
mod tests {
    use super::exam::Case;
    use super::*;

    /// Twelve kinds of images that lose nothing but for one of them: the mean is within its limit, and so are error and cosine.
    #[test]
    fn a_loss_on_one_kind_of_image_is_found_and_named() {
        let cases = |stars: f64| {
            let loss = |i: usize| if i == 8 { stars } else { 0.004 };
            let case = |i: usize| {
                let kind = if i == 8 { "stars" } else { "fibres" };
                let name = format!("{kind}, number {i} of clear scenes");
                Case::new(&name, 50.0, Some([40.0, 40.0 - loss(i)]))
            };
            Scores { error: 0.01, cosine: 0.9999, images: 12, cases: (0..12).map(case).collect() }
        };
        let limits = Limits::default();
        assert!(limits.missed(&cases(0.2)).is_empty());
        let planted = cases(0.9);
        assert!(planted.loss().is_some_and(|l| l < limits.loss), "the mean does not tell it");
        let missed = limits.missed(&planted);
        assert_eq!(missed.len(), 1, "{missed:?}");
        assert!(missed[0].contains("0.900 dB") && missed[0].contains("stars, number 8"), "{missed:?}");
        // An estimate that is not a number has no PSNR, or one of minus infinity.
        for broken in [f64::NAN, f64::INFINITY] {
            let missed = limits.missed(&cases(broken));
            assert!(missed.iter().any(|m| m.contains("stars")), "{missed:?}");
        }
        // As much as the image's own error, where f32 and 8 bits are as far from each other as f32 from the truth.
        let near = Scores { cases: vec![Case::new("a", 40.0, Some([40.0, 37.0]))], ..planted.clone() };
        assert!((near.burden() - 1.0).abs() < 1e-12 && planted.burden() < 0.11);
        // Without a truth nothing is lost against it.
        let blind = Scores { cases: vec![Case::new("a file", 50.0, None)], ..planted };
        assert!(limits.missed(&blind).is_empty() && blind.hardest_run() == Some(0));
    }
}
