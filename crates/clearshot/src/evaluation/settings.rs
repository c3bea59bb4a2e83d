//! What to evaluate: images and settings.

use crate::camera::KnownCamera;
use crate::job_part::JobPart;
use clearshot_evaluate::Bench;
use clearshot_evaluate::budget::Limits;
use clearshot_model::Context;
use clearshot_restore::learned::TakenByGiven;
use clearshot_runtime::DeviceName;
use std::path::PathBuf;

/// How methods are evaluated: on generated scenes, or on pairs of files if `files` is set.
#[derive(Clone, Debug)]
pub struct EvaluateSettings {
    /// The title of the report.
    pub title: String,
    /// Kinds of generated scenes.
    pub scenes: Vec<String>,
    /// Mean electrons at the brightest pixel of scenes.
    pub peaks: Vec<f64>,
    /// Scenes of each kind at each peak.
    pub count: u32,
    /// Pixels along each side of scenes; several sizes are evaluated one after the other.
    pub sizes: Vec<usize>,
    /// The seed of the scenes, their noise and posterior samples.
    pub seed: u64,
    /// Blurs scenes with a Gaussian of this standard deviation in pixels.
    pub psf_sigma: Option<f64>,
    /// Pairs of files instead of scenes.
    pub files: Option<EvaluateFiles>,
    /// Sweeps values, `KEY=A,B,...`: samples, steps and sampler of models, or factors on the camera parameters that
    /// methods are given.
    pub sweep: Vec<String>,
    /// Posterior samples of models, for intervals; 0 for none.
    pub samples: usize,
    /// The sampler of models.
    pub sampler: String,
    /// Its steps.
    pub steps: usize,
    /// The class of the images, by name or number, for models that are conditioned on it; others ignore it.
    pub class: Option<String>,
    /// The context for models with cross-attention.
    pub context: Option<Context>,
    /// Camera parameters for models that are conditioned on them, instead of those of each image.
    pub taken_by: TakenByGiven,
    /// The device for models.
    pub device: DeviceName,
    /// CPU threads. Default: one for each core.
    pub threads: Option<usize>,
    /// Also tests whether methods invent structure in empty images and miss faint lines.
    pub stress: bool,
    /// The limits for a recommended size.
    pub limits: Limits,
    /// A folder for reports and records; a second run into it only makes missing records.
    pub out: Option<PathBuf>,
    /// Makes only the records of one part of the images, for jobs that share the work; a run without a part then makes
    /// missing records and the reports. Needs `out`.
    pub part: Option<JobPart>,
}

/// Clean and noisy files, paired by name, and how they are scored.
#[derive(Clone, Debug)]
pub struct EvaluateFiles {
    /// The clean files: a file, a folder or a glob pattern.
    pub truth: String,
    /// The noisy ones.
    pub noisy: String,
    /// Known camera parameters; the others are estimated from each noisy file.
    pub camera: KnownCamera,
    /// Fits gain and offset of each result to its clean file by least squares before scoring.
    pub fit: bool,
    /// The range of values for PSNR and SSIM. Default: 255 for 8-bit files, otherwise the range of each clean image.
    pub range: Option<f64>,
    /// Groups files into rows by a regular expression on their names; `all` makes one group.
    pub group: Option<String>,
    /// The brightness of the noisy files relative to the clean ones.
    pub exposure: f64,
}

impl EvaluateFiles {
    /// Files with default settings and an estimated camera.
    pub fn new(truth: impl Into<String>, noisy: impl Into<String>) -> EvaluateFiles {
        EvaluateFiles {
            truth: truth.into(),
            noisy: noisy.into(),
            camera: KnownCamera::default(),
            fit: false,
            range: None,
            group: None,
            exposure: 1.0,
        }
    }
}

impl Default for EvaluateSettings {
    fn default() -> EvaluateSettings {
        let Bench { scenes, seed, .. } = Bench::default();
        EvaluateSettings {
            title: "Evaluation".into(),
            scenes,
            peaks: vec![5.0, 20.0, 100.0],
            count: 8,
            sizes: vec![128],
            seed,
            psf_sigma: None,
            files: None,
            sweep: vec![],
            samples: 0,
            sampler: "dpmpp-2m".into(),
            steps: 25,
            class: None,
            context: None,
            taken_by: TakenByGiven::default(),
            device: DeviceName::Auto,
            threads: None,
            stress: false,
            limits: Limits::default(),
            out: None,
            part: None,
        }
    }
}
