//! The laws that weight the measurement against the prior, and their parameters. The module above explains them.

use crate::Error;
use crate::level::Level;

/// How the measurement and the prior are weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    Proximal(Proximal),
    Covariance(Covariance),
    SigmaSquared { kappa: f64 },
    Sigma { kappa: f64 },
    Constant { kappa: f64 },
    NormAdaptive(NormAdaptive),
    Discrepancy(Discrepancy),
    Through { kappa: f64 },
}

/// Precision-weighted: see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proximal {
    /// The measurement's logarithm is multiplied by this; 1 is what it says.
    pub strength: f64,
    /// Standard deviation of the images that the prior was trained on, normalised.
    pub sd: f64,
    /// How often a likelihood that is not quadratic is made so again; one pass is enough for one that is.
    pub passes: usize,
    /// Conjugate gradients in each pass; pixels that do not depend on each other need none.
    pub iterations: usize,
}

impl Proximal {
    pub fn new(sd: f64) -> Proximal {
        Proximal { strength: 1.0, sd, passes: 2, iterations: 8 }
    }

    /// The variance of x0 given x, for a level.
    pub fn variance(&self, level: &Level) -> f64 {
        white_variance(level, self.sd)
    }
}

/// The variance of x0 given x, for images without correlation.
fn white_variance(level: &Level, sd: f64) -> f64 {
    let (noise, signal) = (level.ratio().powi(2), sd * sd);
    noise * signal / (noise + signal)
}

/// Precision-weighted by the covariance that the denoiser's own derivative says: see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Covariance {
    /// The measurement's logarithm is multiplied by this; 1 is what it says.
    pub strength: f64,
    /// Standard deviation of the images that the prior was trained on, normalised. It says where the solution is looked
    /// for first, and not what it is.
    pub sd: f64,
    /// Conjugate gradients, each of which goes back through the denoiser once.
    pub iterations: usize,
}

impl Covariance {
    pub fn new(sd: f64) -> Covariance {
        Covariance { strength: 1.0, sd, iterations: 1 }
    }

    /// What the denoiser's transposed derivative is multiplied by to be the covariance of x0 given x, times the
    /// strength.
    pub fn weight(&self, level: &Level) -> f64 {
        self.strength * level.sigma * level.ratio()
    }

    /// The variance that the search begins with, times the strength.
    pub fn first_guess(&self, level: &Level) -> f64 {
        self.strength * white_variance(level, self.sd)
    }
}

/// A step of given size along the gradient's direction: see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormAdaptive {
    /// Root mean square of the step, normalised.
    pub lambda: f64,
    /// Added to the gradient's root mean square.
    pub eps: f64,
    /// No guidance at the first of these times, all of it from the second on, linear in between.
    pub warm_up: [f64; 2],
}

impl NormAdaptive {
    /// The step's size at a level.
    pub fn weight(&self, level: &Level) -> f64 {
        let [none, all] = self.warm_up;
        self.lambda * ((none - level.time) / (none - all)).clamp(0.0, 1.0)
    }
}

/// Driven by chi2: see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Discrepancy {
    pub target: f64,
    /// Steps down the gradient, each as far as the target or the lowest chi2 along it.
    pub steps: usize,
}

impl Default for Discrepancy {
    fn default() -> Discrepancy {
        Discrepancy { target: 1.0, steps: 3 }
    }
}

impl Law {
    pub(super) fn check(&self) -> Result<(), Error> {
        let not_negative = |what: &'static str, x: f64| match x.is_finite() && x >= 0.0 {
            true => Ok(()),
            false => Err(Error::Setting { what, got: x.to_string(), must: "finite and not negative".into() }),
        };
        let positive = |what: &'static str, x: f64| match x.is_finite() && x > 0.0 {
            true => Ok(()),
            false => Err(Error::Setting { what, got: x.to_string(), must: "finite and positive".into() }),
        };
        match *self {
            Law::Proximal(p) => {
                not_negative("the guide's strength", p.strength)?;
                positive("the images' standard deviation", p.sd)?;
                positive("the guide's passes", p.passes as f64)?;
                positive("the guide's iterations", p.iterations as f64)
            }
            Law::Covariance(c) => {
                not_negative("the guide's strength", c.strength)?;
                positive("the images' standard deviation", c.sd)?;
                positive("the guide's iterations", c.iterations as f64)
            }
            Law::SigmaSquared { kappa }
            | Law::Sigma { kappa }
            | Law::Constant { kappa }
            | Law::Through { kappa } => not_negative("the guide's kappa", kappa),
            Law::NormAdaptive(n) => {
                not_negative("the guide's lambda", n.lambda)?;
                positive("the guide's eps", n.eps)?;
                let [none, all] = n.warm_up;
                match none.is_finite() && all.is_finite() && none > all {
                    true => Ok(()),
                    false => {
                        let got = format!("{none} to {all}");
                        Err(Error::Setting { what: "the guide's warm-up", got, must: "falling times".into() })
                    }
                }
            }
            Law::Discrepancy(d) => {
                not_negative("the target of chi2", d.target)?;
                positive("the guide's steps", d.steps as f64)
            }
        }
    }

    /// Whether it never changes anything.
    pub fn is_off(&self) -> bool {
        match *self {
            Law::Proximal(p) => p.strength == 0.0,
            Law::Covariance(c) => c.strength == 0.0,
            Law::SigmaSquared { kappa }
            | Law::Sigma { kappa }
            | Law::Constant { kappa }
            | Law::Through { kappa } => kappa == 0.0,
            Law::NormAdaptive(n) => n.lambda == 0.0,
            Law::Discrepancy(_) => false,
        }
    }

    /// Whether it differentiates the denoiser, which must then be in the same graph.
    pub fn goes_through(&self) -> bool {
        matches!(self, Law::Covariance(_) | Law::Through { .. })
    }

    /// What the gradient is multiplied by at a level, for the laws that are a weight times the gradient.
    pub fn weight(&self, level: &Level) -> Option<f64> {
        match *self {
            Law::SigmaSquared { kappa } => Some(kappa * level.ratio().powi(2)),
            Law::Sigma { kappa } => Some(kappa * level.ratio()),
            Law::Constant { kappa } => Some(kappa),
            Law::Through { kappa } => Some(kappa * level.sigma * level.ratio()),
            Law::Proximal(_) | Law::Covariance(_) | Law::NormAdaptive(_) | Law::Discrepancy(_) => None,
        }
    }
}
