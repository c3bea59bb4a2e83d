//! Configuration of the data: scenes or files, and cameras.

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

/// The training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Where training images come from: generated scenes, clean files with a simulated camera, pairs of files, noisy files, or repeats of the same scenes.
    pub kind: DataKind,
    /// Kinds of scenes and their weights; every batch contains each kind in proportion to its weight.
    pub scenes: BTreeMap<String, f64>,
    /// Side lengths of the scenes that crops are cut from, taken in turn.
    pub sizes: Vec<usize>,
    /// Number of scenes of each kind that are held in memory and from which crops are cut.
    pub pool: usize,
    /// New scenes of each kind per thousand crops; they replace the oldest.
    pub refresh: f64,
    /// A folder, a glob pattern, a file or the address of Zarr (s3://, https://): images, or the inputs of pairs.
    pub inputs: Option<String>,
    /// The same for the targets of pairs; a target has the same file name as its input.
    pub targets: Option<String>,
    /// A CSV file with the columns input, target, scene, domain, split, sha256, target_sha256, instead of data.inputs and
    /// data.targets; `clearshot manifest` writes it.
    pub manifest: Option<PathBuf>,
    /// Masks of the inputs, with the same file names: pixels where a mask is not zero are excluded from the loss, as NaN and infinite pixels are. A
    /// folder, a glob pattern or a file; or the column mask of a manifest.
    pub masks: Option<String>,
    /// Input pixels at or above this value are excluded from the loss, as NaN and infinite pixels are. Default: none.
    pub saturation: Option<f64>,
    /// Whether NaN and infinite pixels are excluded from the loss. Default: true for files of floating-point numbers.
    pub invalid: Option<bool>,
    /// How repeats of a scene are stored: `t`, along T of each file; `files`, as the files of a folder below `inputs`, or files whose names differ only in their
    /// last number. Default: t if every file has a T axis, otherwise files.
    #[schemars(with = "Option<String>")]
    pub repeats: Option<Repeats>,
    /// For pairs and task=noise2noise: the number of other exposures of the same field whose mean, scaled to the brightness of the input, is the target. Scores
    /// against the truth are then estimated. Default: unknown, and scores are against noisy targets.
    pub averaged: Option<usize>,
    /// The values that the network gets: `photons`, electrons on a scale of each image's own, or `fixed`, the files' values between fixed limits. Default:
    /// as in the training of `model.init`; without it, photons for simulated cameras and task=splitting, otherwise fixed.
    pub signal: Option<SignalKind>,
    /// Whether gain and offset of each target are fitted to its input by least squares. Default: true if they differ and input and
    /// target show the same structures.
    pub fit: Option<bool>,
    /// Gain of the camera of noisy files, in electrons per count, for signal=photons. Default: estimated from each file.
    pub gain: Option<f64>,
    /// Offset of the camera: the counts without light. Default: estimated from each file.
    pub offset: Option<f64>,
    /// Standard deviation of the read noise in electrons. Default: estimated from each file.
    pub read_noise: Option<f64>,
    /// Memory for decoded files, for example 4GiB; files that do not fit are read again for each crop. Default: a quarter of the free memory.
    pub memory: Option<String>,
    /// Share of the scenes or files that is kept for validation.
    pub validation: f64,
    /// How often each domain is drawn: `files`, every file equally often and scenes by their weights; `domains`, every domain equally often;
    /// `inverse_frequency`, in inverse proportion to the number of its files; `adaptive`, half of the draws in proportion to the losses of the domains.
    #[schemars(with = "String")]
    pub balance: Balance,
    /// Smallest number of samples of each domain in a batch; not used with balance=files. Default: 1 if the batch is large enough.
    pub least: Option<usize>,
    /// Iterations after which balance=adaptive updates how often domains are drawn.
    pub balance_every: u64,
    /// Values that become -1 and 1, separately for inputs and targets.
    #[schemars(with = "serde_json::Value")]
    pub normalise: Range,
    /// Whether values outside of these limits are clipped to -1 and 1. For files whose values are scaled only by these limits.
    pub clip: bool,
    /// Whether crops are rotated by multiples of 90 degrees and flipped at random.
    pub augment: bool,
    /// For files: multiply the intensity of input and target by the same random factor between 1 minus and 1 plus this number.
    pub intensity: f64,
    /// For files: draw a crop again, at most sixteen times, if the mean of its input, scaled to -1 to 1, is below this number. Default:
    /// no limit.
    pub least_mean: Option<f64>,
    /// For pairs: add Gaussian noise of this standard deviation to the inputs, which are scaled to -1 to 1.
    pub noise: f64,
    pub camera: CameraConfig,
    /// Cameras for kinds of generated scenes by their names, instead of `camera`. Keys that are not given have their defaults.
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
    /// Range of the mean electrons at the brightest value.
    pub peak: [f64; 2],
    /// Range of the mean electrons of the background. Default: typical for the peak, multiplied or divided by up to `spread`.
    pub background: Option<[f64; 2]>,
    /// Range of the standard deviation of the read noise in electrons. Default: as for the background.
    pub read_noise: Option<[f64; 2]>,
    /// Largest factor between the typical and the actual background and read noise, if these are not given.
    pub spread: f64,
    /// Largest relative error of the peak that is given to the network.
    pub peak_error: f64,
    /// Largest share of the overestimation of the peak due to noise that is contained in the peak given to the network.
    pub peak_noise: f64,
    /// Share of crops that are blurred before the camera, including the target.
    pub blur: f64,
    /// Range of the standard deviation of this Gaussian blur in pixels.
    pub blur_sigma: [f64; 2],
    /// Share of crops whose noise hardly depends on the light: a read noise of `uniform_noise` times the peak.
    pub uniform: f64,
    /// Range of this read noise relative to the peak.
    pub uniform_noise: [f64; 2],
    /// Share of crops of photon-counting detectors, with almost no background and little read noise.
    pub counting: f64,
    /// Share of crops in which each electron is multiplied by a random factor, as in photomultipliers and EMCCDs.
    pub amplified: f64,
    /// Share of crops with noise that is correlated between neighbouring pixels, as after resampling, demosaicing or scanning: smoothed
    /// by Gaussians of `correlated_sigma` pixels along X, Y or both.
    pub correlated: f64,
    /// Range of the standard deviation of these Gaussians in pixels.
    pub correlated_sigma: [f64; 2],
    /// Share of these in which a part of the noise is correlated over many pixels.
    pub correlated_far: f64,
    /// Share of these with the noise of a colour camera after demosaicing by interpolation.
    pub mosaic: f64,
    /// Standard deviation of the error of the correlation that is given to the network.
    pub correlation_error: f64,
    /// Standard deviation of the error of the logarithm of the noise that is given to the network: gain and read noise are as inaccurate as estimated ones.
    pub noise_error: f64,
    /// Share of crops for which the network gets the background as it would be estimated from the image, from its darkest regions.
    pub found: f64,
    /// Share of crops that are clipped at the dark end, the bright end or both.
    pub clipped: f64,
    /// Share of crops that are rounded to steps of up to the standard deviation of the noise in the dark.
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
