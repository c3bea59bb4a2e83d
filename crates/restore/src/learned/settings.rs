//! Settings of restoring, and their names on the command line.

use super::Error;
use clearshot_diffusion::Law;
use clearshot_diffusion::guide::{LAWS, Proximal, named};
use clearshot_diffusion::written;
use clearshot_model::Context;
use clearshot_physics::{Likelihood, Psf};
use clearshot_runtime::Precision;
use std::path::PathBuf;

/// The number of samples for a standard deviation if the network does not predict it.
pub const USUAL_SAMPLES: usize = 8;

/// How the restored image is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// One evaluation of the network: an estimate of the posterior mean.
    Direct,
    /// The mean of samples.
    Samples,
}

/// The likelihood of a measurement and its weight relative to the prior.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    pub likelihood: Likelihood,
    pub law: Law,
    /// The largest root mean square of a correction, normalised.
    pub clip: Option<f64>,
    /// Corrects only while the noise relative to the signal is between these values.
    pub gate: Option<[f64; 2]>,
}

/// Given camera parameters for the conditioning vector, in electrons; the others are those of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TakenByGiven {
    pub scale: Option<f64>,
    pub read_noise: Option<f64>,
    pub background: Option<f64>,
}

/// See the module. Values that are `None` are chosen automatically.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Default: [`Output::Direct`] if the model is conditioned on the measurement and the number of samples is not 1.
    pub output: Option<Output>,
    /// The number of posterior samples.
    pub samples: usize,
    pub keep_samples: bool,
    /// Returns the standard deviation of the error: as predicted by the network, or, if it predicts none or samples are
    /// requested, the spread of the samples ([`USUAL_SAMPLES`] if their number is not set).
    pub deviation: bool,
    /// A name of [`clearshot_diffusion::sampler::SAMPLERS`], with its settings: `ddim:eta=0.5`.
    pub sampler: String,
    pub steps: usize,
    /// How the levels of the steps are spaced; see [`clearshot_model::Process::levels_by`].
    pub levels: Option<String>,
    /// Starts from the measurement with this much noise relative to the signal, instead of from pure noise.
    pub begin: Option<f64>,
    /// Keeps measured pixels as they are, and fills in only the others.
    pub inpaint: bool,
    /// Stages from coarse to fine, each with twice as many pixels along Y and X as the one before; 1 for the full image
    /// only.
    pub cascade: usize,
    /// The weight of classifier-free guidance: 1 is the conditional prediction; larger values move away from the
    /// unconditional one.
    pub classifier_free: f64,
    /// The class of the images and their context, for models that are conditioned on them.
    pub class: Option<usize>,
    pub context: Option<Context>,
    /// Camera parameters for the conditioning vector, instead of the estimated ones.
    pub taken_by: TakenByGiven,
    pub chi2: bool,
    pub seed: u64,
    pub psf: Option<Psf>,
    pub guidance: Option<Guidance>,
    /// Report every guidance correction.
    pub trace: bool,
    pub tile: Option<usize>,
    pub batch: Option<usize>,
    /// Memory limit of the network's graph on the device, in bytes.
    pub device_memory: Option<usize>,
    /// Memory limit of the images' states, in bytes; beyond it they are mapped files in `scratch`.
    pub host_memory: usize,
    pub scratch: Option<PathBuf>,
    /// The precision of the network; [`Precision::F32`] gives the same results on every device, [`Precision::Auto`]
    /// takes the fastest whose measured error is far below the noise ([`super::precision`]).
    pub precision: Precision,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            output: None,
            samples: 0,
            keep_samples: false,
            deviation: false,
            sampler: "dpmpp-2m".into(),
            steps: 25,
            levels: None,
            begin: None,
            inpaint: false,
            cascade: 1,
            classifier_free: 1.0,
            class: None,
            context: None,
            taken_by: TakenByGiven::default(),
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
    /// The default with a PSF; `sd` is the standard deviation of the prior's training images.
    pub fn usual(sd: f64) -> Guidance {
        Guidance {
            likelihood: Likelihood::ShiftedPoisson,
            law: Law::Proximal(Proximal::new(sd)),
            clip: None,
            gate: None,
        }
    }

    /// A likelihood by its name with hyphens, for example `poisson-gaussian`.
    ///
    /// # Errors
    /// If there is no likelihood of that name.
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

/// A law from `NAME` or `NAME:key=value,key=value`; `sd` is the default for the standard deviation of the prior's
/// images.
///
/// # Errors
/// If the law or a key is unknown, or a value is not a number or is out of range.
pub fn law(text: &str, sd: f64) -> Result<Law, Error> {
    let refuse = || Error::Unknown {
        what: "no law is written",
        got: text.into(),
        known: {
            let all: Vec<String> = LAWS.iter().map(|l| written::form(l.name, l.settings)).collect();
            format!("there are {}", all.join(", "))
        },
    };
    let (name, mut given) = written::parse(text).map_err(|_| refuse())?;
    let row = named(name).map_err(|_| refuse())?;
    if row.settings.iter().any(|s| s.name == "sd") && !given.iter().any(|(key, _)| *key == "sd") {
        given.push(("sd", sd));
    }
    Ok(row.law(&given)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_and_likelihoods_by_name() {
        assert_eq!(law("proximal", 0.5).unwrap(), Law::Proximal(Proximal::new(0.5)));
        let Law::Proximal(p) = law("proximal:strength=0.5,iterations=3", 0.5).unwrap() else { panic!() };
        assert_eq!((p.strength, p.iterations, p.sd), (0.5, 3, 0.5));
        assert_eq!(law("proximal:sd=0.3", 0.5).unwrap(), Law::Proximal(Proximal::new(0.3)));
        assert_eq!(law("sigma-squared:kappa=2", 0.5).unwrap(), Law::SigmaSquared { kappa: 2.0 });
        assert_eq!(law("sigma", 0.5).unwrap(), Law::Sigma { kappa: 1.0 });
        let said = law("prox", 0.5).unwrap_err().to_string();
        assert!(
            said.contains("proximal[:strength=1,sd=0.5,passes=2,iterations=8], covariance[:strength=1"),
            "{said}"
        );
        assert!(said.contains("norm-adaptive[:lambda=0.1,eps=0.00000001], discrepancy"), "{said}");
        assert!(law("proximal:passes=2.5", 0.5).unwrap_err().to_string().contains("2.5"));
        for wrong in ["prox", "proximal:kappa=1", "sigma:kappa", "sigma:kappa=x", ""] {
            assert!(law(wrong, 0.5).is_err(), "{wrong}");
        }
        assert_eq!(law("through:kappa=2", 0.5).unwrap(), Law::Through { kappa: 2.0 });
        assert_eq!(Guidance::likelihood("poisson-gaussian").unwrap(), Likelihood::PoissonGaussian);
        assert_eq!(Guidance::likelihood("shifted_poisson").unwrap(), Likelihood::ShiftedPoisson);
        assert!(Guidance::likelihood("best").unwrap_err().to_string().contains("poisson-gaussian"));
    }
}
