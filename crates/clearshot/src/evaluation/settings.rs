//! What is evaluated: on which images, under which settings.

use crate::camera::KnownCamera;
use crate::job_part::JobPart;
use clearshot_evaluate::Bench;
use clearshot_evaluate::budget::Limits;
use clearshot_model::Context;
use clearshot_restore::learned::TakenByGiven;
use clearshot_runtime::DeviceName;
use std::path::PathBuf;

/// How methods are evaluated: on generated scenes, or on pairs of files where `files` names them.
#[derive(Clone, Debug)]
pub struct EvaluateSettings {
    /// Heads the report.
    pub title: String,
    /// Kinds of generated scenes.
    pub scenes: Vec<String>,
    /// Mean electrons of the brightest value of scenes.
    pub peaks: Vec<f64>,
    /// Scenes of each kind at each peak.
    pub count: u32,
    /// Pixels along each side of scenes; several are tried one after the other.
    pub sizes: Vec<usize>,
    /// Of the scenes, their noise and the models' samples.
    pub seed: u64,
    /// Blurs scenes by a Gaussian of this standard deviation in pixels.
    pub psf_sigma: Option<f64>,
    /// Pairs of files in place of scenes.
    pub files: Option<EvaluateFiles>,
    /// Tries several values, `KEY=A,B,...`: samples, steps and sampler of models, or the numbers of the camera that methods are told, as factors.
    pub sweep: Vec<String>,
    /// Posterior samples of models, for intervals; 0 for none.
    pub samples: usize,
    /// The sampler of models.
    pub sampler: String,
    /// Its steps.
    pub steps: usize,
    /// The class of the images, by its name or number, for the models that are conditioned on it; others do without.
    pub class: Option<String>,
    /// The context for the models that attend to one.
    pub context: Option<Context>,
    /// Numbers of the camera for the models that are conditioned on them, in place of each image's own.
    pub taken_by: TakenByGiven,
    /// What models run on.
    pub device: DeviceName,
    /// Threads of the CPU; by default one for each core.
    pub threads: Option<usize>,
    /// Also tests what methods invent in empty images and miss of faint lines.
    pub stress: bool,
    /// What a recommended size must keep.
    pub limits: Limits,
    /// A folder for reports and records; a second run into it makes only what is missing.
    pub out: Option<PathBuf>,
    /// Makes the records of one part of the images alone, for jobs that share them; a run without a part then makes what is missing, and the reports. Needs `out`.
    pub part: Option<JobPart>,
}

/// Clean and noisy files, paired by name, and how they are scored.
#[derive(Clone, Debug)]
pub struct EvaluateFiles {
    /// The clean files: a file, a folder or a glob pattern.
    pub truth: String,
    /// The noisy ones.
    pub noisy: String,
    /// What is known of the camera; the rest is estimated from each noisy file.
    pub camera: KnownCamera,
    /// Fits gain and offset of each result to its clean file by least squares before scoring.
    pub fit: bool,
    /// The range of values for PSNR and SSIM; by default 255 for files of 8 bits, otherwise that of each clean image.
    pub range: Option<f64>,
    /// Groups files into rows by a regular expression on their names; `all` makes one group.
    pub group: Option<String>,
    /// How many times the light of the clean files the noisy ones have.
    pub exposure: f64,
}

impl EvaluateFiles {
    /// Files as they are, with a camera that is estimated.
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
