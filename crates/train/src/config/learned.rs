//! Configuration of the model: the network, the task and its loss.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;

/// How a graph becomes a program, in PyTorch's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CompileMode {
    /// Every node by itself.
    None,
    /// Fused, launched kernel by kernel.
    Default,
    /// Fused, replayed as one launch.
    ReduceOverhead,
    /// The same: kernels are always chosen by measuring.
    #[default]
    MaxAutotune,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A network's `config.json`: `_class_name` and its keys. With 0, `in_channels` and `out_channels` follow from the task and the
    /// data.
    pub network: Map<String, Json>,
    /// A model to start from: a `.clearshot` file, a folder, a checkpoint, or `default`, the built-in model. Default: none, random weights.
    pub init: Option<PathBuf>,
    /// A model whose encoder initialises this network, as written by `train experiment=mae`: RUN/best.clearshot. The network takes its patch sizes and widths;
    /// model.only=[decoder] keeps the encoder fixed. Default: none.
    pub encoder: Option<PathBuf>,
    /// Weights to train, by the beginnings of their names, for example [up.0, conv_out]; the others stay fixed. Default: all.
    pub only: Vec<String>,
    /// How the graph is compiled, in PyTorch's terms: `none`, every node by itself; `default`, fused; `reduce-overhead` and `max-autotune`,
    /// fused and replayed as one launch.
    pub compile_mode: CompileMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// A diffusion model that is given the measurement.
    #[default]
    Conditional,
    /// A diffusion model of clean images alone.
    Prior,
    /// From the measurement to the clean image at once.
    Supervised,
    /// From one noisy image of a scene to another one of it.
    Noise2noise,
    /// From a pixel's surroundings to the noisy pixel itself, which the network does not see.
    Noise2void,
    /// From one part of an image's electrons to the other.
    Splitting,
    /// From the measurement to what each pixel is part of, by labels.
    Segmentation,
    /// From the measurement to an image that a discriminator takes for a real one.
    Gan,
    /// From the measurement to objects one by one, touching ones too, by labels.
    Instances,
    /// From some patches of an image to the others: a masked autoencoder.
    Mae,
    /// From some patches of an image to the embeddings of others (I-JEPA).
    Ijepa,
    /// From some patches of an image to the embeddings of others, of that image or of its partner (IWM).
    Iwm,
}

impl TaskKind {
    /// Whether no clean image is needed.
    pub fn is_of_noise(self) -> bool {
        matches!(self, TaskKind::Noise2noise | TaskKind::Noise2void | TaskKind::Splitting)
    }

    /// Whether it learns what pixels are part of, and targets are labels.
    pub fn is_of_labels(self) -> bool {
        matches!(self, TaskKind::Segmentation | TaskKind::Instances)
    }

    /// Whether an encoder is trained for later tasks, by images without labels.
    pub fn is_pretraining(self) -> bool {
        matches!(self, TaskKind::Mae | TaskKind::Ijepa | TaskKind::Iwm)
    }

    /// Whether embeddings are compared, with those of a teacher.
    pub fn has_teacher(self) -> bool {
        matches!(self, TaskKind::Ijepa | TaskKind::Iwm)
    }

    /// Whether images are seen between their own dark and bright end, whatever the camera.
    pub fn knows_no_camera(self) -> bool {
        self.is_of_labels() || self.is_pretraining()
    }

    /// The score of its validations.
    pub fn score(self) -> ScoreKind {
        match self {
            TaskKind::Segmentation => ScoreKind::Dice,
            TaskKind::Instances => ScoreKind::Precision,
            TaskKind::Mae => ScoreKind::MaskedPsnr,
            TaskKind::Ijepa | TaskKind::Iwm => ScoreKind::Explained,
            _ => ScoreKind::Psnr,
        }
    }
}

/// The score of validations; more is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoreKind {
    /// Of estimates against clean images, in dB.
    #[default]
    Psnr,
    /// The overlap of masks, from 0 to 1.
    Dice,
    /// The average precision of objects at an IoU of a half, from 0 to 1.
    Precision,
    /// Of hidden patches against the image, in dB of the range from its dark to its bright end.
    MaskedPsnr,
    /// The share of the variance of an image's embeddings that is predicted, at most 1; 0 for predicting their mean.
    Explained,
}

impl ScoreKind {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            ScoreKind::Psnr => "psnr",
            ScoreKind::Dice => "dice",
            ScoreKind::Precision => "ap",
            ScoreKind::MaskedPsnr => "masked_psnr",
            ScoreKind::Explained => "explained",
        }
    }

    /// What is recorded beside it, where there is something.
    pub fn beside(self) -> Option<&'static str> {
        match self {
            ScoreKind::Psnr | ScoreKind::Precision => None,
            ScoreKind::Dice => Some("iou"),
            ScoreKind::MaskedPsnr => Some("masked_mse"),
            ScoreKind::Explained => Some("embedding_std"),
        }
    }

    /// A score for people.
    pub fn in_words(self, score: f64) -> String {
        match self {
            ScoreKind::Psnr => format!("{score:.2} dB"),
            ScoreKind::Dice => format!("Dice {score:.4}"),
            ScoreKind::Precision => format!("AP {score:.4}"),
            ScoreKind::MaskedPsnr => format!("{score:.2} dB of hidden patches"),
            ScoreKind::Explained => format!("{:.1} % of the embeddings' variance", 100.0 * score),
        }
    }
}

/// What a blind spot is filled with: never with the pixel itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlindFill {
    /// The median of its surroundings.
    #[default]
    Median,
    /// One of its neighbours.
    Uniform,
}

/// The axis along which noise is correlated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Along {
    X,
    Y,
}

/// Blind spots of task=noise2void.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BlindConfig {
    /// Share of the pixels that are blind spots.
    pub share: f64,
    /// Radius in pixels of the neighbourhood from which a blind spot is filled.
    pub radius: usize,
    /// How a blind spot is filled.
    pub fill: BlindFill,
    /// Direction along which noise is correlated, rows (x) or columns (y): neighbours in this direction are filled too. Default: none.
    pub along: Option<Along>,
    /// Number of neighbours on either side that are filled too, if noise is correlated.
    pub reach: usize,
}

impl Default for BlindConfig {
    fn default() -> BlindConfig {
        BlindConfig { share: 0.01, radius: 5, fill: BlindFill::Median, along: None, reach: 4 }
    }
}

/// The discriminator of task=gan and how much the parts of the generator's loss count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GanConfig {
    /// Number of scales of the discriminator, each half of the one before.
    pub scales: usize,
    /// Convolutions of each scale that halve the image.
    pub layers: usize,
    /// Channels of the first of them.
    pub filters: usize,
    /// Weight of the adversarial loss.
    pub adversarial: f64,
    /// Weight of the feature matching loss: absolute differences between the activations of the discriminator for the estimate and the real image.
    pub features: f64,
    /// Weight of the difference from the real image, measured by task.distance.
    pub reconstruction: f64,
}

impl Default for GanConfig {
    fn default() -> GanConfig {
        let (adversarial, features, reconstruction) = (1.0, 10.0, 100.0);
        GanConfig { scales: 2, layers: 2, filters: 16, adversarial, features, reconstruction }
    }
}

/// How a network is asked for the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormKind {
    /// At once.
    Regression,
    /// As conditional diffusion at its noisiest level.
    Conditional,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PredictionKind {
    #[default]
    Edm,
    Epsilon,
    Sample,
    VPrediction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightKind {
    #[default]
    Uniform,
    Snr,
    MinSnr,
    Edm,
    Bound,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DistanceKind {
    L1,
    #[default]
    L2,
    Huber,
    SmoothL1,
}

/// A part of the vector that a network is conditioned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConditionPart {
    /// 1 at the place of the image's class.
    Domain,
    /// How bright the image is, log10 of its electrons, and read noise and background relative to that.
    Camera,
}

/// A further term of the loss, whose weight rises linearly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TermConfig {
    /// Full weight of the term; 0 for none.
    pub weight: f64,
    /// Share of the full weight at the start.
    pub from: f64,
    /// Iteration at which the full weight is reached.
    pub over: u64,
}

/// What is learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskConfig {
    /// What is learned, and from what kind of images.
    pub kind: TaskKind,
    /// Form of a network that learns from noisy images: `regression`, or `conditional`, which evaluates a conditional diffusion model for its mean. Default:
    /// as in the training of `model.init`, otherwise regression.
    pub form: Option<FormKind>,
    /// Blind spots of noise2void.
    pub blind: BlindConfig,
    /// For segmentation: 1 separates the foreground (labels other than 0) from the background; with 2 or more, labels are the numbers of this many classes, of which 0 is the
    /// background.
    pub classes: usize,
    /// Adversarial training: the discriminator and the weights of the loss.
    pub gan: GanConfig,
    /// How many times finer the grid of the target is than that of the measurement, along each axis, for task=gan and generated scenes: 1 for the same, 2 to 8 for super-resolution,
    /// with a network that enlarges (model=superres).
    pub enlarge: usize,
    /// Momentum of the teacher of ijepa and iwm, at the start and at the end; it rises linearly.
    pub momentum: [f64; 2],
    /// Share of the images of iwm for which the embeddings of the partner are predicted; for the others, their own are.
    pub partner: f64,
    /// Smallest and largest share of the electrons that splitting gives to the network; the rest are its target.
    pub split: [f64; 2],
    /// What a diffusion network predicts. `edm` uses noise levels drawn log-normally, the others use the
    /// timesteps of a schedule.
    pub prediction: PredictionKind,
    /// Standard deviation of clean images that EDM's preconditioning assumes.
    pub sigma_data: f64,
    /// Smallest noise level, relative to images scaled to -1 to 1.
    pub sigma_min: f64,
    /// Largest noise level.
    pub sigma_max: f64,
    /// Mean of ln sigma for noise levels drawn log-normally.
    pub mean: f64,
    /// Standard deviation of ln sigma.
    pub deviation: f64,
    /// Share of images that are trained at `sigma_max`, where only the condition carries information.
    pub at_most: f64,
    /// ddpm_linear, scaled_linear, cosine, sigmoid ..., or custom for your own table of betas.
    pub schedule: String,
    /// The first and the last beta; with `task.schedule=custom` the beta of every timestep, which then are as many as there are betas.
    pub betas: Vec<f64>,
    /// Number of timesteps of the schedule.
    pub timesteps: usize,
    /// How many times finer the images are than those for which the schedule was made: the logarithm of the signal-to-noise ratio of every timestep is
    /// lowered by twice the logarithm of this factor, because neighbouring pixels of a finer image average out more noise (Hoogeboom et al. 2023).
    pub finer: f64,
    /// Whether the network has twice as many output channels and learns the variance of the reverse step with the second half (Nichol and Dhariwal
    /// 2021); needs timesteps and `task.bound`.
    pub learned_variance: bool,
    /// Weight of images by their noise level, in addition to the weight that the prediction implies.
    pub weight: WeightKind,
    /// Signal-to-noise ratio at which weight=min_snr stops growing.
    pub min_snr: f64,
    /// Distance between estimate and target.
    pub distance: DistanceKind,
    /// Error at which the Huber and smooth L1 distances change from quadratic to linear.
    pub bend: f64,
    /// Share of the images whose condition is dropped.
    pub drop: f64,
    /// Whether the network is conditioned on the class of each image (its domain in the manifest, or the kind of its scene) by a table of classes
    /// (UNet2DModel, UNet2DConditionModel).
    pub class: bool,
    /// The vector that the network is conditioned on (Local, MultiScale, Growing, UNet2DConditionModel): [domain, camera], or one of them.
    pub vector: Vec<ConditionPart>,
    /// A folder with the context of each class, NAME.npy, an array of [vectors, numbers], which a UNet2DConditionModel attends to.
    pub context: Option<PathBuf>,
    /// Share of the images whose class and context are dropped, so that the model works without them and classifier-free guidance can weight them.
    pub drop_class: f64,
    /// How much more images with little noise count, because their errors are small: 0 averages squared errors, 1 averages
    /// decibels.
    pub balance: f64,
    /// Loss term: intensities of the estimate; bright ones count more.
    pub intensity: TermConfig,
    /// Loss term: edges of the estimate.
    pub gradient: TermConfig,
    /// Loss term: magnitudes of the Fourier coefficients of the estimate.
    pub frequency: TermConfig,
    /// Loss term: magnitudes of the Haar wavelet coefficients of the estimate at three scales.
    pub wavelet: TermConfig,
    /// Loss term: Poisson likelihood of the measured electrons given the estimate, as half of the deviance; for conditional and supervised tasks
    /// in electrons.
    pub poisson: TermConfig,
    /// Loss term: agreement of the estimate with the measured electrons, as squared residuals relative to their expectation; for the same tasks.
    pub consistency: TermConfig,
    /// Loss term: the variational bound, which trains the learned variance; 0.001 is usual.
    pub bound: TermConfig,
}

impl TaskConfig {
    /// Whether a task without diffusion is learned by a conditional diffusion model.
    pub fn is_conditional_form(&self) -> bool {
        self.form == Some(FormKind::Conditional)
    }
}

impl Default for TaskConfig {
    fn default() -> TaskConfig {
        TaskConfig {
            kind: TaskKind::Conditional,
            form: None,
            blind: BlindConfig::default(),
            classes: 1,
            gan: GanConfig::default(),
            enlarge: 1,
            momentum: [0.998, 1.0],
            partner: 0.5,
            split: [0.5, 0.9],
            prediction: PredictionKind::Edm,
            sigma_data: 0.5,
            sigma_min: 0.002,
            sigma_max: 80.0,
            mean: -1.2,
            deviation: 1.2,
            at_most: 0.0,
            schedule: "ddpm_linear".into(),
            betas: vec![1e-4, 0.02],
            timesteps: 1000,
            finer: 1.0,
            learned_variance: false,
            weight: WeightKind::Uniform,
            min_snr: 5.0,
            distance: DistanceKind::L2,
            bend: 0.1,
            drop: 0.0,
            class: false,
            vector: vec![],
            context: None,
            drop_class: 0.0,
            balance: 0.0,
            intensity: TermConfig::default(),
            gradient: TermConfig::default(),
            frequency: TermConfig::default(),
            wavelet: TermConfig::default(),
            poisson: TermConfig::default(),
            consistency: TermConfig::default(),
            bound: TermConfig::default(),
        }
    }
}
