//! What the user decides about restoring, and its names on the command line.

use super::Error;
use clearshot_diffusion::Law;
use clearshot_diffusion::guide::{LAWS, NamedLaw, Proximal, Setting, named};
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
    /// What is computed in; [`Precision::F32`] for results that are the same on every device, and [`Precision::Auto`] for the fastest
    /// whose error is measured to be far below the noise ([`super::precision`]).
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

/// The laws that tiles can take, with their numbers as they are unless given.
fn laws() -> String {
    let of_tiles = |row: &&NamedLaw| row.law(&[]).is_ok_and(|law| !law.goes_through());
    let shown = |s: &Setting| format!("{}={}", s.name, s.default);
    // A default that is beyond any number says that there is none.
    let has_default = |s: &&Setting| s.default.abs() < 1e9;
    let written = |row: &NamedLaw| {
        let numbers: Vec<String> = row.settings.iter().filter(has_default).map(shown).collect();
        format!("{}[:{}]", row.name, numbers.join(","))
    };
    LAWS.iter().filter(of_tiles).map(written).collect::<Vec<_>>().join(", ")
}

/// A law from `NAME` or `NAME:key=value,key=value`; `sd` is the standard deviation of the prior's images unless given.
///
/// # Errors
/// If there is no such law or key, a value is no number or impossible, or the law differentiates the network.
pub fn law(text: &str, sd: f64) -> Result<Law, Error> {
    let refuse = || Error::Unknown {
        what: "no law is written",
        got: text.into(),
        known: format!("there are {}", laws()),
    };
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let row = named(name).map_err(|_| refuse())?;
    let mut given: Vec<(&str, f64)> = Vec::new();
    for part in rest.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(refuse)?;
        given.push((key.trim(), value.trim().parse::<f64>().map_err(|_| refuse())?));
    }
    if row.settings.iter().any(|s| s.name == "sd") && !given.iter().any(|(key, _)| *key == "sd") {
        given.push(("sd", sd));
    }
    let law = row.law(&given)?;
    match law.goes_through() {
        true => Err(Error::Through { law: law.name() }),
        false => Ok(law),
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
        assert_eq!(law("proximal:sd=0.3", 0.5).unwrap(), Law::Proximal(Proximal::new(0.3)));
        assert_eq!(law("sigma-squared:kappa=2", 0.5).unwrap(), Law::SigmaSquared { kappa: 2.0 });
        assert_eq!(law("sigma", 0.5).unwrap(), Law::Sigma { kappa: 1.0 });
        let said = law("prox", 0.5).unwrap_err().to_string();
        assert!(
            said.contains("proximal[:strength=1,sd=0.5,passes=2,iterations=8], sigma-squared[:kappa=1]"),
            "{said}"
        );
        assert!(said.contains("norm-adaptive[:lambda=0.1,eps=0.00000001], discrepancy"), "{said}");
        assert!(law("proximal:passes=2.5", 0.5).unwrap_err().to_string().contains("2.5"));
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
