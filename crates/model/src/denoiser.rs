//! The network of a model as a denoiser, for every kind of prediction.

use crate::about::{About, ConditionKind, Task};
use crate::error::ModelError;
use crate::instances;
use clearshot_diffusion::precondition::{self, Preconditioned, Prediction};
use clearshot_diffusion::{Condition, Denoiser, Estimate, LevelInputs};
use clearshot_graph::{Builder, Value};
use clearshot_nn::models::{Answer, Given, Network};

/// See the module. A condition that is an image stands beside x along channels; what the network has no input for is
/// refused.
pub struct ModelDenoiser<'a> {
    network: &'a dyn Network,
    /// None for a network that is itself the denoiser.
    prediction: Option<Prediction>,
    /// The network gives twice the channels of images: behind its prediction stands the learned variance of the reverse step.
    learned_variance: bool,
}

impl<'a> ModelDenoiser<'a> {
    /// # Errors
    /// If it is not a diffusion model.
    pub fn new(about: &About, network: &'a dyn Network) -> Result<ModelDenoiser<'a>, ModelError> {
        match &about.task {
            Task::Diffusion { prediction, .. } => {
                let learned_variance = network.out_channels() == 2 * about.channels;
                Ok(ModelDenoiser { network, prediction: prediction.prediction(), learned_variance })
            }
            other => Err(ModelError::OtherTask { is: other.name(), needed: "diffusion" }),
        }
    }

    /// Adds the network with the inputs that it knows.
    fn add(&self, b: &mut Builder, x: Value, told: (&str, Value), given: &Condition) -> Answer {
        let mut all = Given::image(x).with(told.0, told.1);
        for (name, value) in conditions(self.network, b, x, given) {
            all = all.with(name, value);
        }
        self.network.answer_on(b, &all)
    }
}

/// The network itself, of a model that predicts.
impl precondition::Network for &ModelDenoiser<'_> {
    fn build(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> Value {
        self.answer(b, x, time, given).0
    }

    fn answer(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> (Value, Option<Value>) {
        let Answer { image, error } = self.add(b, x, ("t", time), given);
        (image, error)
    }
}

/// Whether a network has an input of this name.
fn takes(network: &dyn Network, b: &Builder, x: Value, name: &str) -> bool {
    let image = b.shape(x);
    image.rank() == network.dims() + 2 && network.ports(image).iter().any(|p| p.name == name)
}

/// What a network is given beside the image, by its own names: classes are labels to some.
fn conditions(network: &dyn Network, b: &Builder, x: Value, given: &Condition) -> Vec<(&'static str, Value)> {
    let labels = takes(network, b, x, "labels");
    let class = if labels { "labels" } else { "class" };
    let all = [(class, given.class), ("vector", given.vector), ("context", given.context)];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl Denoiser for ModelDenoiser<'_> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        if let Some(prediction) = self.prediction {
            return Preconditioned { network: self, prediction, learned_variance: self.learned_variance }
                .denoise(b, x, level, given);
        }
        let scale = level.factor(b, x, "denoiser.scale", |l| 1.0 / l.alpha);
        let sigma = level.number(b, "denoiser.sigma", |l| l.ratio());
        let mut seen = b.mul(x, scale);
        if let Some(image) = given.image {
            seen = b.concat_channels(&[seen, image]);
        }
        let Answer { image, error } = self.add(b, seen, ("sigma", sigma), given);
        Estimate { error, ..Estimate::of(image) }
    }
}

/// The nodes of a network that makes the clean image of the measurement `y` at once. If it has a time input, the time is zero, as
/// training tells it.
pub(crate) fn at_once(network: &dyn Network, b: &mut Builder, y: Value, given: &Condition) -> Answer {
    let mut all = Given::image(y);
    if takes(network, b, y, "t") {
        let (zero, batch) = (b.scalar(0.0), b.shape(y)[0]);
        let time = b.broadcast(zero, [batch]);
        all = all.with("t", time);
    }
    for (name, value) in conditions(network, b, y, given) {
        all = all.with(name, value);
    }
    network.answer_on(b, &all)
}

/// Whether what a model says of itself fits its network.
pub(crate) fn check(about: &About, network: &dyn Network) -> Result<(), String> {
    let (takes, gives) = (network.in_channels(), network.out_channels());
    let measured = about.signal.condition_channels(about.input_channels());
    let beside = match &about.task {
        Task::Regression
        | Task::Segmentation { .. }
        | Task::Instances
        | Task::Enlarging { .. }
        | Task::MaskedAutoencoder
        | Task::JointEmbedding => measured,
        Task::Diffusion { condition: ConditionKind::None, .. } => about.channels,
        Task::Diffusion { condition: ConditionKind::Measurement, .. } => about.channels + measured,
    };
    let is_diffusion = matches!(about.task, Task::Diffusion { .. });
    if is_diffusion && about.input_channels() != about.channels {
        return Err(format!(
            "{} from {} channels to {}",
            about.task.name(),
            about.input_channels(),
            about.channels
        ));
    }
    if let Task::Segmentation { classes } = about.task
        && classes != about.channels
    {
        return Err(format!("segmentation into {classes} classes with {} channels", about.channels));
    }
    if about.task == Task::Instances && about.channels != instances::channels(about.dims) {
        let needed = instances::channels(about.dims);
        return Err(format!(
            "objects in {} dimensions by {} channels in place of {needed}",
            about.dims, about.channels
        ));
    }
    if about.dims != network.dims() {
        return Err(format!("it is for {} spatial axes, the network for {}", about.dims, network.dims()));
    }
    let timesteps = matches!(&about.task, Task::Diffusion { process, .. } if process.timesteps().is_some());
    let learns_variance = timesteps && gives == 2 * about.channels;
    let embeds = about.task == Task::JointEmbedding;
    if !(gives == about.channels || learns_variance || embeds) || takes != beside {
        let channels = about.channels;
        return Err(format!(
            "images of {channels} channels need a network from {beside} to {channels}, this one goes from {takes} to {gives}"
        ));
    }
    Ok(())
}
