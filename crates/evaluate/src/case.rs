//! Cases: generated scenes at chosen light levels. Pairs of files are in `files`.

use crate::EvaluateError;
use crate::method::View;
use clearshot_physics::{Correlation, Psf};
use clearshot_scenes::{Camera, Scene};
use serde::{Deserialize, Serialize};

/// A measurement with its truth.
#[derive(Clone, Debug)]
pub struct Case {
    /// The kind of scene, or the file.
    pub scene: String,
    /// Mean electrons of the brightest value above the background.
    pub peak: f64,
    pub index: u32,
    /// The noise-free mean in electrons, background included, sharp.
    pub truth: Vec<f32>,
    /// The true background and read noise; a view may be given other values.
    pub background: f64,
    pub read_noise: f64,
    pub psf: Option<Psf>,
    pub scale: Scale,
    pub view: View,
}

/// What PSNR, SSIM and mean absolute errors are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Units of the peak above the background with range 1, clipped to [0, 1.5] for PSNR; SSIM with the paper's window.
    Peak,
    /// The file's own unit with a given range: what scikit-image gives with `data_range`. Results are clipped to `limits`, what a
    /// file of the same type holds. With
    /// `fit`, gain and offset of a result are first fitted to the truth by least squares.
    Counts { range: f64, fit: bool, limits: [f64; 2] },
}

/// The camera parameters that methods are given, as factors of the true ones: 1 is right. For finding out what a wrong calibration
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Assumed {
    /// Electrons per count.
    pub gain: f64,
    pub background: f64,
    pub read_noise: f64,
    /// The width of the PSF.
    pub psf: f64,
    /// Not a factor: pixels along X by which the PSF's middle is off; 0 is right.
    pub shift: f64,
}

impl Default for Assumed {
    fn default() -> Assumed {
        Assumed { gain: 1.0, background: 1.0, read_noise: 1.0, psf: 1.0, shift: 0.0 }
    }
}

impl Assumed {
    /// The value of a key that is right.
    pub fn truth(key: &str) -> f64 {
        if key == "shift" { 0.0 } else { 1.0 }
    }
}

/// Generated cases: every kind of scene at every peak, `count` of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    pub scenes: Vec<String>,
    /// Mean electrons of the brightest value; background and read noise are what usually goes with them.
    pub peaks: Vec<f64>,
    pub count: u32,
    /// Pixels along each side.
    pub size: usize,
    pub seed: u64,
    /// Blur by a Gaussian of this standard deviation in pixels.
    pub psf_sigma: Option<f64>,
    /// The camera that methods are given; `told` in files.
    #[serde(rename = "told")]
    pub assumed: Assumed,
}

impl Default for Bench {
    fn default() -> Bench {
        Bench {
            scenes: clearshot_scenes::benchmark_scenes().map(|k| k.name.to_string()).collect(),
            peaks: vec![5.0, 20.0, 100.0],
            count: 8,
            size: 128,
            // Far from the seeds that training starts from.
            seed: 770_001,
            psf_sigma: None,
            assumed: Assumed::default(),
        }
    }
}

impl Bench {
    /// # Errors
    /// If a list is empty or a number is out of its range.
    pub fn check(&self) -> Result<(), EvaluateError> {
        let require = |holds: bool, name, got: String, needed| {
            if holds { Ok(()) } else { Err(EvaluateError::Setting { name, got, needed }) }
        };
        require(!self.scenes.is_empty(), "the list of scenes", "empty".into(), "one or more")?;
        require(!self.peaks.is_empty(), "the list of peaks", "empty".into(), "one or more")?;
        require(self.count > 0, "the number of images", "0".into(), "one or more")?;
        for name in &self.scenes {
            if name != BLANK {
                Scene::by_name(name)?;
            }
        }
        let positive = |v: f64| v.is_finite() && v > 0.0;
        for &peak in &self.peaks {
            require(positive(peak), "a peak", peak.to_string(), "a finite number above zero")?;
        }
        let assumed = [self.assumed.gain, self.assumed.background, self.assumed.read_noise, self.assumed.psf];
        for factor in assumed {
            require(positive(factor), "a factor on the camera", factor.to_string(), "a number above zero")?;
        }
        let Assumed { psf, shift, .. } = self.assumed;
        require(shift.is_finite(), "the PSF's shift", shift.to_string(), "a finite number of pixels")?;
        let needs_psf = psf != 1.0 || shift != 0.0;
        let got = format!("psf={psf} and shift={shift} without a blur");
        require(self.psf_sigma.is_some() || !needs_psf, "what is assumed of the PSF", got, "a --psf-sigma")?;
        Ok(())
    }

    /// How many cases there are.
    pub fn len(&self) -> usize {
        self.scenes.len() * self.peaks.len() * self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What case `number` follows from, in words; it names its records.
    pub fn name(&self, number: usize) -> String {
        let (scene, peak, index) = self.place(number);
        let psf = self.psf_sigma.map(|s| format!(" psf {s}")).unwrap_or_default();
        format!("{scene} peak {peak} image {index} size {} seed {}{psf}", self.size, self.seed)
    }

    fn place(&self, number: usize) -> (&str, f64, u32) {
        let count = self.count as usize;
        let peak = self.peaks[number / count % self.peaks.len()];
        let scene = &self.scenes[number / count / self.peaks.len() % self.scenes.len()];
        (scene, peak, (number % count) as u32)
    }

    /// Case `number`; the images of one scene and peak come one after another.
    ///
    /// # Errors
    /// If a scene cannot be generated at this size.
    pub fn case(&self, number: usize) -> Result<Case, EvaluateError> {
        let (scene, peak, index) = self.place(number);
        generated(scene, peak, index, self)
    }
}

/// A scene without anything in it, for finding out what a method invents.
pub(crate) const BLANK: &str = "blank";

fn generated(scene: &str, peak: f64, index: u32, bench: &Bench) -> Result<Case, EvaluateError> {
    let shape = vec![bench.size; 2];
    let values = match scene {
        BLANK => vec![0.0; bench.size * bench.size],
        name => Scene::by_name(name)?.generate(bench.seed, index, &shape)?,
    };
    pictured(scene, peak, index, values, shape, bench)
}

/// The case of a scene with values in [0, 1] that a camera looks at.
pub(crate) fn pictured(
    scene: &str,
    peak: f64,
    index: u32,
    values: Vec<f32>,
    shape: Vec<usize>,
    bench: &Bench,
) -> Result<Case, EvaluateError> {
    let blur = |factor: f64, shift: f64| -> Result<Option<Psf>, EvaluateError> {
        let Some(sigma) = bench.psf_sigma else { return Ok(None) };
        let centred = Psf::gaussian(&[sigma * factor, sigma * factor])?;
        let placed = if shift == 0.0 { centred } else { centred.shifted(&[0.0, shift])? };
        Ok(Some(placed.fitting(&shape[..])?.psf))
    };
    let camera = Camera { psf: blur(1.0, 0.0)?, ..Camera::for_peak(peak) };
    // The noise of one peak is not that of another.
    let seed = bench.seed ^ peak.to_bits().rotate_left(17);
    let electrons = camera.take(&values, &shape, seed, index)?.values;
    let background = camera.background as f32;
    let truth = values.iter().map(|v| (peak * f64::from(*v)) as f32 + background).collect();
    let assumed = bench.assumed;
    let view = View {
        electrons: electrons.iter().map(|&e| (f64::from(e) * assumed.gain) as f32).collect(),
        gain: assumed.gain,
        offset: 0.0,
        shape: shape.clone(),
        background: camera.background * assumed.gain * assumed.background,
        read_noise: camera.read_noise * assumed.gain * assumed.read_noise,
        correlation: Correlation::WHITE,
        saturation: None,
        psf: blur(assumed.psf, assumed.shift)?,
        seed: seed ^ u64::from(index),
    };
    Ok(Case {
        scene: scene.into(),
        peak,
        index,
        truth,
        background: camera.background,
        read_noise: camera.read_noise,
        psf: camera.psf,
        scale: Scale::Peak,
        view,
    })
}

/// A peak as people read it: to three digits. Scores are of the peak itself.
pub fn rounded(peak: f64) -> f64 {
    format!("{peak:.2e}").parse().unwrap_or(peak)
}
