//! What is trained on: scenes or files, and the cameras that look at them.

use clearshot_image::dataset::{Balance, Range, Repeats};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Generated scenes before a simulated camera.
    #[default]
    Scenes,
    /// Files without noise before a simulated camera.
    Clean,
    /// Files in pairs: inputs and their targets.
    Pairs,
    /// Noisy files alone.
    Noisy,
    /// Noisy files of which several show the same scene.
    Repeats,
}

/// The numbers that a network is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Electrons on each image's own scale, with how much noise there is beside them.
    Photons,
    /// The files' numbers between fixed limits.
    Fixed,
}

/// What is trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    pub kind: DataKind,
    /// Kinds of scenes and how often each is drawn; every batch has its share of each.
    pub scenes: BTreeMap<String, f64>,
    /// Side lengths of the scenes that crops are cut from, taken in turn.
    pub sizes: Vec<usize>,
    /// Scenes of each kind that crops are cut from at any time.
    pub pool: usize,
    /// New scenes of each kind per thousand crops; they take the place of the oldest.
    pub refresh: f64,
    /// A folder, a glob pattern, a file or the address of Zarr (s3://, https://): images, or the inputs of pairs.
    pub inputs: Option<String>,
    /// The same for the targets of pairs, which have the names of their inputs.
    pub targets: Option<String>,
    /// A CSV file with the columns input, target, scene, domain, split, sha256, target_sha256, in place of the two;
    /// `clearshot manifest` writes it.
    pub manifest: Option<PathBuf>,
    /// Masks of inputs, which have their names: pixels other than zero are left out of the loss, as NaN and infinite ones are. A
    /// folder, a glob pattern or a file; or the column mask of a manifest.
    pub masks: Option<String>,
    /// Inputs at or above it are left out of the loss, as NaN and infinite ones are.
    pub saturation: Option<f64>,
    /// Whether NaN and infinite pixels are left out of the loss. Default: yes for files of floating-point numbers.
    pub invalid: Option<bool>,
    /// Noisy files of one scene: `t`, along T of each file; `files`, those of a folder below `inputs` or whose names differ in their
    /// last number. Default: t where every file has T, else files.
    #[schemars(with = "Option<String>")]
    pub repeats: Option<Repeats>,
    /// Pairs for task=noise2noise: the target of each is the mean of so many other exposures of its input's field, as bright as the input. Errors against
    /// the truth are then estimated. Default: not known, and scores are against noisy targets.
    pub averaged: Option<usize>,
    /// The numbers that the network is given: `photons`, electrons on each image's own scale, or `fixed`, the files' numbers between fixed limits.
    /// Default: as `model.init` was trained; without it, photons for simulated cameras and task=splitting, else fixed.
    pub signal: Option<SignalKind>,
    /// Whether gain and offset of each target are fitted to its input by least squares. Default: where the files' own differ
    /// and the two show the same thing.
    pub fit: Option<bool>,
    /// The camera of noisy files, for signal=photons: electrons per count. Default: estimated from each file.
    pub gain: Option<f64>,
    /// Counts without light. Default: estimated from each file.
    pub offset: Option<f64>,
    /// Standard deviation of the read noise in electrons. Default: estimated from each file.
    pub read_noise: Option<f64>,
    /// Memory that decoded files may take, as 4GiB; files beyond it are read again for each crop. Default: a quarter of the free memory.
    pub memory: Option<String>,
    /// The share of scenes that is kept for validation.
    pub validation: f64,
    /// How often each domain is drawn: `files`, every file alike and scenes by their weights; `domains`, every domain alike;
    /// `inverse_frequency`, by one over the number of its files; `adaptive`, half of the draws by the domains' losses.
    #[schemars(with = "String")]
    pub balance: Balance,
    /// The least number of samples of each domain in a batch, unless files are drawn alike. Default: one, where the batch has room for it.
    pub least: Option<usize>,
    /// Iterations after which draws by losses are decided again.
    pub balance_every: u64,
    /// Limits of values that become -1 and 1, for inputs and targets each.
    #[schemars(with = "serde_json::Value")]
    pub normalise: Range,
    /// Whether values outside of these limits become the limits; otherwise they lie below -1 and above 1. For files whose values are scaled by these limits alone.
    pub clip: bool,
    /// Turns and flips.
    pub augment: bool,
    /// Files: intensity is multiplied by up to this much more or less than one, input and target alike.
    pub intensity: f64,
    /// Files: a crop with less light than this is drawn again, at most sixteen times: the mean of its input, of which the limits
    /// are -1 and 1.
    pub least_mean: Option<f64>,
    /// Pairs: normal noise of this standard deviation is added to inputs, where their limits are -1 and 1.
    pub noise: f64,
    pub camera: CameraConfig,
    /// Cameras of kinds of generated scenes by their names, in place of `camera`: every domain has its own. What is not said of one has its default.
    pub cameras: BTreeMap<String, CameraConfig>,
}

impl Default for DataConfig {
    fn default() -> DataConfig {
        DataConfig {
            kind: DataKind::Scenes,
            scenes: clearshot_scenes::benchmark_scenes().map(|k| (k.name.to_string(), 1.0)).collect(),
            sizes: vec![128],
            pool: 128,
            refresh: 0.0,
            inputs: None,
            targets: None,
            manifest: None,
            masks: None,
            saturation: None,
            invalid: None,
            repeats: None,
            averaged: None,
            signal: None,
            fit: None,
            gain: None,
            offset: None,
            read_noise: None,
            memory: None,
            validation: 0.1,
            balance: Balance::Files,
            least: None,
            balance_every: 100,
            normalise: Range::Percentiles { low: 0.1, high: 99.9 },
            clip: false,
            augment: true,
            intensity: 0.0,
            least_mean: None,
            noise: 0.0,
            camera: CameraConfig::default(),
            cameras: BTreeMap::new(),
        }
    }
}

impl DataConfig {
    /// Whether no simulated camera blurs what it sees.
    pub fn is_sharp(&self) -> bool {
        [&self.camera].into_iter().chain(self.cameras.values()).all(|c| c.blur == 0.0)
    }
}

/// The cameras that look at clean images. Ranges are drawn from log-uniformly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CameraConfig {
    /// Electrons of the brightest value.
    pub peak: [f64; 2],
    /// Electrons of the background. Default: what usually goes with the peak, times or divided by up to `spread`.
    pub background: Option<[f64; 2]>,
    /// Standard deviation of the read noise in electrons; the same.
    pub read_noise: Option<[f64; 2]>,
    pub spread: f64,
    /// The peak that a network is told is off by up to this factor less one.
    pub peak_error: f64,
    /// How much of what noise adds to the peak that is found in an image a network is told, at the most.
    pub peak_noise: f64,
    /// The share of crops that are blurred before the camera, target and all.
    pub blur: f64,
    /// Of a Gaussian's standard deviation in pixels.
    pub blur_sigma: [f64; 2],
    /// The share of crops whose noise is mostly there without light: a read noise of `uniform_noise` times the peak.
    pub uniform: f64,
    pub uniform_noise: [f64; 2],
    /// The share of crops of detectors that count photons: hardly an electron without light, and little read noise.
    pub counting: f64,
    /// The share of crops whose electrons are amplified each by a random factor, as in photomultipliers and EMCCDs.
    pub amplified: f64,
    /// The share of crops whose noise neighbouring pixels share, as after resampling, demosaicing or scanning: smoothed by
    /// Gaussians of `correlated_sigma` pixels along X, Y or both.
    pub correlated: f64,
    pub correlated_sigma: [f64; 2],
    /// Of these, the share in which a part of the noise is shared over many pixels.
    pub correlated_far: f64,
    /// Of these, the share whose noise is that of a colour camera's mosaic, put together by interpolation.
    pub mosaic: f64,
    /// The standard deviation of the errors of the correlation that a network is told.
    pub correlation_error: f64,
    /// The same of the logarithm of its noise: gain and read noise are told as wrong as they are estimated.
    pub noise_error: f64,
    /// The share of crops whose background is told as it would be found in the image: the light of its darkest places.
    pub found: f64,
    /// The share of crops that are clipped, at the dark end, the bright end or both.
    pub clipped: f64,
    /// The share of crops that are rounded to steps of up to the noise of the dark.
    pub rounded: f64,
}

impl Default for CameraConfig {
    fn default() -> CameraConfig {
        CameraConfig {
            peak: [20.0, 20.0],
            background: None,
            read_noise: None,
            spread: 1.0,
            peak_error: 0.0,
            peak_noise: 0.0,
            blur: 0.0,
            blur_sigma: [0.5, 2.5],
            uniform: 0.0,
            uniform_noise: [0.01, 0.3],
            counting: 0.0,
            amplified: 0.0,
            correlated: 0.0,
            correlated_sigma: [0.35, 1.0],
            correlated_far: 0.0,
            mosaic: 0.0,
            correlation_error: 0.0,
            noise_error: 0.0,
            found: 0.0,
            clipped: 0.0,
            rounded: 0.0,
        }
    }
}
