//! Methods: the raw input, classical restorers with and without the generalised Anscombe transform, and models.

use crate::EvaluateError;
use crate::case::Case;
use crate::oracle::{self, BestGaussian};
use clearshot_config::nearest;
use clearshot_physics::{Correlation, Electrons, Psf};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::richardson_lucy::RichardsonLucy;
use clearshot_restore::classical::{self, METHODS, Noise};
use clearshot_restore::invalid::{Filled, Invalid};
use clearshot_restore::saturated::{Least, NoiseLevel, raise};
use std::borrow::Cow;

/// The input of a method: electrons and the assumed camera.
#[derive(Clone, Debug)]
pub struct View {
    pub electrons: Vec<f32>,
    /// Electrons per count and counts without light: what the camera's counts became electrons by.
    pub gain: f64,
    pub offset: f64,
    /// `[y, x]` or `[z, y, x]`.
    pub shape: Vec<usize>,
    /// Mean electrons without light.
    pub background: f64,
    /// Standard deviation of the read noise in electrons.
    pub read_noise: f64,
    /// The correlation of the noise between neighbouring pixels.
    pub correlation: Correlation,
    /// Electrons from which on pixels are saturated, where values pile up at the top of the range.
    pub saturation: Option<f32>,
    pub psf: Option<Psf>,
    /// The seed of random methods.
    pub seed: u64,
}

/// Mean electrons, the background included, and how far they may be off.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    pub mean: Vec<f32>,
    pub std: Option<Vec<f32>>,
    /// Standard deviations to either side of the mean that a 90 % interval reaches; Default: those of the normal law.
    pub reach: Option<f64>,
}

/// A restorer that can be scored.
pub trait Method {
    /// As it stands in tables.
    fn name(&self) -> &str;

    /// Its name in records: everything that its results depend on, including a model's weights.
    fn identity(&self) -> String {
        self.name().to_string()
    }

    /// Whether it was trained: reports say where such a method does not beat the others.
    fn is_learned(&self) -> bool {
        false
    }

    /// Whether it looks at the truth. What does is a bound and no method: it is in no comparison.
    fn is_oracle(&self) -> bool {
        false
    }

    /// The method as threads can share it, where they can.
    fn shared(&self) -> Option<&(dyn Method + Sync)> {
        None
    }

    /// Whether it can do nothing without a PSF.
    fn needs_psf(&self) -> bool {
        false
    }

    /// # Errors
    /// As the restorer says.
    fn restore(&self, view: &View) -> Result<Restored, String>;

    /// The same for a case, of which only an oracle looks at more than the view.
    ///
    /// # Errors
    /// As the restorer says.
    fn restore_case(&self, case: &Case) -> Result<Restored, String> {
        self.restore(&case.view)
    }
}

/// The measurement itself.
pub struct Raw;

impl Method for Raw {
    fn name(&self) -> &str {
        "raw"
    }

    fn shared(&self) -> Option<&(dyn Method + Sync)> {
        Some(self)
    }

    fn restore(&self, view: &View) -> Result<Restored, String> {
        Ok(Restored { mean: view.electrons.clone(), std: None, reach: None })
    }
}

/// A denoiser of [`METHODS`], with one noise level for the whole image, or under the Anscombe transform.
pub struct Classical {
    name: String,
    method: classical::Method,
    stabilised: bool,
}

impl Method for Classical {
    fn name(&self) -> &str {
        &self.name
    }

    fn shared(&self) -> Option<&(dyn Method + Sync)> {
        Some(self)
    }

    fn restore(&self, view: &View) -> Result<Restored, String> {
        // The blur and the median ask for no noise, so that nothing is known of saturation either.
        let asks = !matches!(self.method, classical::Method::Gaussian(_) | classical::Method::Median(_));
        let (values, least) = match asks {
            true => filled(view),
            false => (Cow::Borrowed(&view.electrons[..]), Least::new()),
        };
        let outcome = if self.stabilised {
            let (electrons, read_noise) = (Electrons(&values[..]), Electrons(view.read_noise as f32));
            classical::stabilised(&self.method, electrons, &view.shape, read_noise, &view.correlation)
                .map(|e| e.0)
        } else {
            let noise = Noise { deviation: uniform_noise(view), correlation: view.correlation };
            self.method.run(&values, &view.shape, noise)
        };
        let mut mean = outcome.map_err(|e: RestoreError| e.to_string())?;
        raise(&mut mean, &least);
        Ok(Restored { mean, std: None, reach: None })
    }
}

/// The electrons with saturated pixels estimated, as `denoise` does, and how low those may be restored.
fn filled(view: &View) -> (Cow<'_, [f32]>, Least) {
    let invalid = Invalid::find(&view.electrons, view.saturation, None);
    if invalid.is_empty() {
        return (Cow::Borrowed(&view.electrons), Least::new());
    }
    let Filled { values, least } = invalid.filled(
        &view.electrons,
        &view.shape,
        NoiseLevel::Camera { gain: 1.0, offset: 0.0, read_noise: view.read_noise },
    );
    (Cow::Owned(values), least)
}

/// The root of the mean variance: what one number can say of noise that grows with the light.
fn uniform_noise(view: &View) -> f32 {
    let mean = view.electrons.iter().map(|&v| f64::from(v)).sum::<f64>() / view.electrons.len().max(1) as f64;
    (mean.max(view.background).max(0.0) + view.read_noise * view.read_noise).max(1e-6).sqrt() as f32
}

/// Richardson-Lucy with the camera's background and read noise, stopped at the least predicted error, by brightness.
pub struct Deconvolution;

impl Method for Deconvolution {
    fn name(&self) -> &str {
        "rl"
    }

    fn shared(&self) -> Option<&(dyn Method + Sync)> {
        Some(self)
    }

    fn needs_psf(&self) -> bool {
        true
    }

    fn restore(&self, view: &View) -> Result<Restored, String> {
        let psf = view.psf.as_ref().ok_or("Richardson-Lucy needs a PSF")?;
        let settings = RichardsonLucy {
            background: view.background as f32,
            read_noise: view.read_noise as f32,
            correlation: view.correlation,
            ..RichardsonLucy::USUAL
        };
        let sharp =
            settings.run(Electrons(&view.electrons), &view.shape, psf).map_err(|e| e.to_string())?.values;
        let background = view.background as f32;
        Ok(Restored { mean: sharp.into_iter().map(|v| v + background).collect(), std: None, reach: None })
    }
}

/// The names of every method that needs no training.
pub fn names() -> Vec<String> {
    let plain = METHODS.iter().map(|r| r.name.to_string());
    let stable = METHODS.iter().map(|r| format!("gat+{}", r.name));
    let others = [oracle::NAME, "rl"].map(String::from);
    ["raw".to_string()].into_iter().chain(plain).chain(stable).chain(others).collect()
}

/// A method that needs no training, by its name.
///
/// # Errors
/// If there is none.
pub fn by_name(name: &str) -> Result<Box<dyn Method>, EvaluateError> {
    let (stabilised, plain) = match name.strip_prefix("gat+") {
        Some(rest) => (true, rest),
        None => (false, name),
    };
    match (name, METHODS.iter().find(|r| r.name == plain)) {
        ("raw", _) => Ok(Box::new(Raw)),
        ("rl", _) => Ok(Box::new(Deconvolution)),
        (oracle::NAME, _) => Ok(Box::new(BestGaussian)),
        (_, Some(row)) => Ok(Box::new(Classical { name: name.into(), method: row.method, stabilised })),
        _ => {
            let known = names();
            if name.contains(['/', '\\']) || name.ends_with(".clearshot") {
                let why =
                    "there is no such model: a file NAME.clearshot or a folder with a config.json is needed";
                return Err(EvaluateError::File { path: name.into(), why: why.into() });
            }
            let meant = match nearest(name, known.iter().map(String::as_str)) {
                Some(best) => format!("; the nearest is '{best}'"),
                None => format!("; there are {}, and models by file", known.join(", ")),
            };
            Err(EvaluateError::Method { name: name.into(), meant })
        }
    }
}
