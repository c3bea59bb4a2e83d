//! The evaluation of a model on an image: its graph, its tiling, and the network's input from the measurement, on the
//! scale of the image.

use super::Error;
use super::choose::Cut;
use super::layout::Layout;
use super::measured::{Camera, Measured};
use super::tiles::{Also, Asked, Conditions, Question, TileGraph};
use clearshot_diffusion::precondition::Clipped;
use clearshot_diffusion::{ClassifierFree, Condition, Denoiser, Estimate, LevelInputs};
use clearshot_graph::ops::Unary;
use clearshot_graph::reach::{least_common_multiple, reach};
use clearshot_graph::{Builder, Value};
use clearshot_model::signal::CHANNELS;
use clearshot_model::{ConditionInput, ConditionKind, InputKind, Model, Photons, Process, Signal, Task};
use clearshot_nn::models::Answer;
use clearshot_tensor::Tensor;

/// How an image's numbers and the network's belong together.
pub(super) struct ImageScale {
    pub camera: Option<Camera>,
    pub photons: Option<Photons>,
    /// The camera and scale under which the network sees the image.
    pub seen: Option<(Camera, Photons)>,
    /// Whether the result of the network is averaged with the measurement.
    pub weighed: bool,
    /// The file value of the network's zero, and of its unit.
    pub file: [f64; 2],
}

/// What is not known of images in classifier-free guidance, in place of what is given: their class and context where training dropped those, and else the
/// measurement with the camera's part of the vector. Where training dropped the measurement it was zero everywhere.
fn nothing(b: &mut Builder, inputs: &[ConditionInput], drops_class: bool, given: &Condition) -> Condition {
    let zeros = |b: &mut Builder, like: Value| {
        let (zero, shape) = (b.scalar(0.0), b.shape(like));
        b.broadcast(zero, shape)
    };
    let mut without = *given;
    if !drops_class {
        without.image = given.image.map(|image| zeros(b, image));
    }
    for input in inputs {
        let slot = match input.port {
            "class" | "labels" => &mut without.class,
            "vector" => &mut without.vector,
            _ => &mut without.context,
        };
        let Some(value) = *slot else { continue };
        *slot = Some(match (input.kind, input.kept_without(drops_class)) {
            (_, Some(factors)) => {
                let factors = b.constant(Tensor::f32([1, factors.len()], factors));
                b.mul(value, factors)
            }
            (InputKind::Class { rows: Some(rows) }, _) if drops_class => {
                let shape = b.shape(value);
                b.constant(Tensor::i32(shape, vec![rows as i32 - 1; shape.len()]))
            }
            (InputKind::OneHot { .. } | InputKind::Context { .. }, _) if drops_class => zeros(b, value),
            _ => value,
        });
    }
    without
}

/// What a model is asked over tiles, with contexts of so many vectors.
pub(super) fn asked<T>(
    model: &Model,
    classifier_free: f64,
    also: Also,
    tokens: usize,
    mut f: impl FnMut(&Asked<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let about = &model.about;
    let measured = about.signal.condition_channels(about.input_channels());
    let conditions = Conditions { inputs: model.condition_inputs(), tokens };
    match &about.task {
        Task::Regression
        | Task::Segmentation { .. }
        | Task::Instances
        | Task::Enlarging { .. }
        | Task::MaskedAutoencoder
        | Task::JointEmbedding => {
            let network = |b: &mut Builder, y: Value, given: &Condition| at_once(model, b, y, given);
            let question = Question::Regress(&network);
            let condition = Some(measured);
            let also = Also { unclipped: false, ..also };
            f(&Asked { question, channels: about.channels, condition, also, conditions })
        }
        Task::Diffusion { condition, process, .. } => {
            let alone = model.denoiser()?;
            let drops_class = about.conditioning.as_ref().is_some_and(|c| c.dropped > 0.0);
            let inputs = conditions.inputs.clone();
            let denoiser = |b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition| {
                let nothing = match classifier_free == 1.0 {
                    true => Condition::default(),
                    false => nothing(b, &inputs, drops_class, given),
                };
                let inner =
                    |b: &mut Builder, x: Value, l: &mut LevelInputs, g: &Condition| alone.denoise(b, x, l, g);
                ClassifierFree { denoiser: inner, weight: classifier_free, nothing }
                    .denoise(b, x, level, given)
            };
            let condition = (*condition == ConditionKind::Measurement).then_some(measured);
            let mut f = |denoiser: &dyn Denoiser| {
                let (question, conditions) = (Question::Denoise(denoiser), conditions.clone());
                f(&Asked { question, channels: about.channels, condition, also, conditions })
            };
            match (process, &about.signal) {
                // Images of a fixed range: estimates are clipped to it, as diffusers' schedulers do. At the first
                // timesteps the network's smallest error is a hundred times that range.
                (Process::Timesteps { .. } | Process::Betas { .. }, Signal::Fixed { .. }) => {
                    f(&Clipped { denoiser, range: [-1.0, 1.0] })
                }
                _ => f(&denoiser),
            }
        }
    }
}

/// What a network makes of an image at once: the image, the probabilities of what pixels are part of, or the maps of instances. One that takes a time is given zero, as in
/// training.
fn at_once(model: &Model, b: &mut Builder, y: Value, given: &Condition) -> Estimate {
    let Answer { image, error } = model.regress(b, y, given);
    let made = match model.about.task {
        Task::Segmentation { classes: 1 } => b.unary(Unary::Sigmoid, image),
        Task::Segmentation { .. } => b.softmax(image),
        _ => image,
    };
    Estimate { error, ..Estimate::of(made) }
}

/// How a model may be cut: by what its graph looks at, for its image and where that is wanted for what it says of the error.
pub(super) fn cut(model: &Model, error: bool) -> Result<Cut, Error> {
    let size = model.network.example_size();
    let layout = Layout::windows(&size, &size, &vec![0; size.len()]);
    let also = Also { error, ..Also::default() };
    let graph = asked(model, 1.0, also, 1, |asked| TileGraph::new(asked, &layout, 1))?;
    let inputs: Vec<String> = graph.image_inputs();
    let outputs = [TileGraph::OUTPUT].into_iter().chain(error.then_some(TileGraph::ERROR));
    let pairs = outputs.flat_map(|output| inputs.iter().map(move |input| (input, output)));
    let mut radius = vec![0; size.len()];
    let mut stride = vec![1; size.len()];
    for (input, output) in pairs {
        let Some(found) = reach(graph.graph(), input, output) else {
            return Ok(Cut::Whole { tile: trained_size(model) });
        };
        for a in 0..size.len() {
            let axis = a + 3 - size.len();
            radius[a] = radius[a].max(found.radius[axis]);
            stride[a] = least_common_multiple(stride[a], found.stride[axis]);
        }
    }
    Ok(Cut::Local { radius, stride })
}

/// What the network is given of a measurement at some of its pixels; nothing under guidance: the correction then says what
/// was measured, and saying it twice would be too sure.
pub(super) fn condition(
    signal: &Signal,
    guided: bool,
    image: &Measured,
    scale: &ImageScale,
    pixels: &[usize],
    out: &mut [f32],
) {
    let c = image.channels;
    let width = signal.condition_channels(c);
    if guided {
        out.fill(0.0);
        return;
    }
    match (signal, &scale.seen) {
        (Signal::Photons, Some((camera, photons))) => {
            // Each channel of the image becomes five, side by side.
            let mut electrons = vec![0.0; pixels.len()];
            let mut made = vec![0.0; pixels.len() * CHANNELS];
            for ch in 0..c {
                let of = |&p: &usize| camera.electrons(image.values[p * c + ch]);
                electrons.iter_mut().zip(pixels.iter().map(of)).for_each(|(e, v)| *e = v);
                if c == 1 {
                    photons.condition(&electrons, out);
                    return;
                }
                photons.condition(&electrons, &mut made);
                for (to, from) in out.chunks_exact_mut(width).zip(made.chunks_exact(CHANNELS)) {
                    to[ch * CHANNELS..(ch + 1) * CHANNELS].copy_from_slice(from);
                }
            }
        }
        (Signal::Fixed { input, .. }, _) => {
            for (to, &p) in out.chunks_exact_mut(c).zip(pixels) {
                for (to, &v) in to.iter_mut().zip(&image.values[p * c..(p + 1) * c]) {
                    *to = input.forward(f64::from(v)) as f32;
                }
            }
        }
        (Signal::Photons, None) => {}
    }
}

/// The size that a network was trained at: what the model says, or the `sample_size` of a configuration of diffusers.
/// Where neither says more than the smallest size that the network takes, one that shows it something.
fn trained_size(model: &Model) -> Vec<usize> {
    let (crop, smallest) = (&model.about.crop, model.network.example_size());
    if *crop != smallest {
        return crop.clone();
    }
    let config: serde_json::Value = serde_json::from_str(&model.config).unwrap_or_default();
    let number = |v: &serde_json::Value| v.as_u64().map(|n| n as usize);
    let said = match &config["sample_size"] {
        serde_json::Value::Array(sizes) => sizes.iter().map(number).collect(),
        one => number(one).map(|n| vec![n; crop.len()]),
    };
    let enough: Vec<usize> = smallest.iter().map(|&s| ENOUGH.next_multiple_of(s.max(1))).collect();
    let fits = |size: &Vec<usize>| size.len() == crop.len() && model.network.check_size(size).is_ok();
    said.filter(fits).or(Some(enough).filter(fits)).unwrap_or_else(|| crop.clone())
}

/// Pixels along a side that show a network something.
const ENOUGH: usize = 64;
