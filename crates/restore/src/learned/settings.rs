//! What the user decides about restoring, and its names on the command line.

use super::Error;
use clearshot_diffusion::Law;
use clearshot_diffusion::guide::{Discrepancy, NormAdaptive, Proximal};
use clearshot_physics::{Likelihood, Psf};
use clearshot_runtime::Precision;
use std::path::PathBuf;

/// What the restored image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// What the network says at once: an estimate of the posterior's mean.
    Direct,
    /// The mean of samples.
    Samples,
}

/// A measurement's likelihood and how it is weighed against the prior.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    pub likelihood: Likelihood,
    pub law: Law,
    /// The largest root mean square of a correction, normalised.
    pub clip: Option<f64>,
}

/// See the module. Numbers that are none are chosen.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unless told: [`Output::Direct`] where the model knows the measurement and more than one sample, or none, is
    /// asked for.
    pub output: Option<Output>,
    /// Samples of the posterior.
    pub samples: usize,
    pub keep_samples: bool,
    /// A name of [`clearshot_diffusion::sampler::SAMPLERS`].
    pub sampler: String,
    pub steps: usize,
    pub chi2: bool,
    pub seed: u64,
    pub psf: Option<Psf>,
    pub guidance: Option<Guidance>,
    /// Tell of every correction by the measurement.
    pub trace: bool,
    pub tile: Option<usize>,
    pub batch: Option<usize>,
    /// Bytes that the network's graph may take on the device.
    pub device_memory: Option<usize>,
    /// Bytes of the images' states in memory; beyond it they are mapped files in `scratch`.
    pub host_memory: usize,
    pub scratch: Option<PathBuf>,
    /// What is computed in; [`Precision::F32`] for results that are the same on every device.
    pub precision: Precision,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            output: None,
            samples: 0,
            keep_samples: false,
            sampler: "dpmpp-2m".into(),
            steps: 25,
            chi2: false,
            seed: 0,
            psf: None,
            guidance: None,
            trace: false,
            tile: None,
            batch: None,
            device_memory: None,
            host_memory: 768 << 20,
            scratch: None,
            precision: Precision::F32,
        }
    }
}

impl Guidance {
    /// What is used under a PSF unless told otherwise; `sd` is the standard deviation of the images that the prior was
    /// trained on.
    pub fn usual(sd: f64) -> Guidance {
        Guidance { likelihood: Likelihood::ShiftedPoisson, law: Law::Proximal(Proximal::new(sd)), clip: None }
    }

    /// A likelihood by its name, words joined by hyphens: `poisson-gaussian`, say.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn likelihood(name: &str) -> Result<Likelihood, Error> {
        let called = |l: &Likelihood| {
            let text = format!("{l:?}");
            let mut out = String::new();
            for (i, c) in text.chars().enumerate() {
                if c.is_uppercase() && i > 0 {
                    out.push('-');
                }
                out.push(c.to_ascii_lowercase());
            }
            out
        };
        let wanted = name.replace('_', "-");
        Likelihood::ALL.into_iter().find(|l| called(l) == wanted).ok_or_else(|| Error::Unknown {
            what: "no guidance is called",
            got: name.into(),
            known: format!("there are {}", Likelihood::ALL.iter().map(called).collect::<Vec<_>>().join(", ")),
        })
    }
}

/// The laws by name, with the numbers that each takes.
const LAWS: &str = "proximal[:strength=1,sd=0.5,passes=2,iterations=8], sigma-squared[:kappa=1], sigma[:kappa=1], \
                    constant[:kappa=1], norm-adaptive[:lambda=0.1,eps=1e-8], discrepancy[:target=1,steps=3]";

/// A law from `NAME` or `NAME:key=value,key=value`.
///
/// # Errors
/// If there is no such law or key, or a value is no number.
pub fn law(text: &str, sd: f64) -> Result<Law, Error> {
    let refuse = |got: &str| Error::Unknown {
        what: "no law is written",
        got: got.into(),
        known: format!("there are {LAWS}"),
    };
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut numbers = Vec::new();
    for part in rest.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(|| refuse(text))?;
        numbers.push((key.trim(), value.trim().parse::<f64>().map_err(|_| refuse(text))?));
    }
    let mut take = |key: &str, default: f64| match numbers.iter().position(|(k, _)| *k == key) {
        Some(at) => numbers.swap_remove(at).1,
        None => default,
    };
    let law = match name {
        "proximal" => Law::Proximal(Proximal {
            strength: take("strength", 1.0),
            sd: take("sd", sd),
            passes: take("passes", 2.0) as usize,
            iterations: take("iterations", 8.0) as usize,
        }),
        "sigma-squared" => Law::SigmaSquared { kappa: take("kappa", 1.0) },
        "sigma" => Law::Sigma { kappa: take("kappa", 1.0) },
        "constant" => Law::Constant { kappa: take("kappa", 1.0) },
        "norm-adaptive" => Law::NormAdaptive(NormAdaptive {
            lambda: take("lambda", 0.1),
            eps: take("eps", 1e-8),
            warm_up: [f64::MAX / 4.0, f64::MAX / 8.0],
        }),
        "discrepancy" => {
            Law::Discrepancy(Discrepancy { target: take("target", 1.0), steps: take("steps", 3.0) as usize })
        }
        "through" => return Err(Error::Through { law: "through" }),
        "covariance" => return Err(Error::Through { law: "covariance" }),
        _ => return Err(refuse(text)),
    };
    match numbers.is_empty() {
        true => Ok(law),
        false => Err(refuse(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_and_likelihoods_by_name() {
        assert_eq!(law("proximal", 0.5).unwrap(), Law::Proximal(Proximal::new(0.5)));
        let Law::Proximal(p) = law("proximal:strength=0.5,iterations=3", 0.5).unwrap() else { panic!() };
        assert_eq!((p.strength, p.iterations, p.sd), (0.5, 3, 0.5));
        assert_eq!(law("sigma-squared:kappa=2", 0.5).unwrap(), Law::SigmaSquared { kappa: 2.0 });
        for wrong in ["prox", "proximal:kappa=1", "sigma:kappa", "sigma:kappa=x", "through", ""] {
            assert!(law(wrong, 0.5).is_err(), "{wrong}");
        }
        for through in ["through", "covariance"] {
            let refused = law(through, 0.5).unwrap_err().to_string();
            assert!(refused.contains(through) && refused.contains("tiles"), "{refused}");
        }
        assert_eq!(Guidance::likelihood("poisson-gaussian").unwrap(), Likelihood::PoissonGaussian);
        assert_eq!(Guidance::likelihood("shifted_poisson").unwrap(), Likelihood::ShiftedPoisson);
        assert!(Guidance::likelihood("best").unwrap_err().to_string().contains("poisson-gaussian"));
    }
}
