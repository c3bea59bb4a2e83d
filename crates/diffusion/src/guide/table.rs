//! The laws by name, for command lines and configurations: name, parameters and a short description.

use super::law::{Covariance, Discrepancy, Law, NormAdaptive, Proximal};
use crate::Error;
pub use crate::written::Setting;
use crate::written::{count, number, values};

/// A law by name.
#[derive(Debug)]
pub struct NamedLaw {
    pub name: &'static str,
    pub about: &'static str,
    pub settings: &'static [Setting],
    /// From the settings' values, in their order.
    make: fn(&[f64]) -> Law,
}

/// Falling times that lie behind any level's: no warm-up.
const ALWAYS: [f64; 2] = [f64::MAX / 4.0, f64::MAX / 8.0];

/// Every law; the first is the one to take unless there is a reason for another.
pub const LAWS: &[NamedLaw] = &[
    NamedLaw {
        name: "proximal",
        about: "measurement and prior weighed by their precisions; cannot overshoot",
        settings: &[
            number("strength", 1.0, "what the measurement's logarithm is multiplied by"),
            number("sd", 0.5, "standard deviation of the prior's images, normalised; EDM's sigma_data"),
            count("passes", 2.0, "how often a likelihood that is not quadratic is made so again"),
            count("iterations", 8.0, "conjugate gradients in each pass, where there is a blur"),
        ],
        make: |s| {
            let (passes, iterations) = (s[2] as usize, s[3] as usize);
            Law::Proximal(Proximal { strength: s[0], sd: s[1], passes, iterations })
        },
    },
    NamedLaw {
        name: "covariance",
        about: "as proximal, with the covariance that the network's own derivative says; three times the time",
        settings: &[
            number("strength", 1.0, "what the measurement's logarithm is multiplied by"),
            number("sd", 0.5, "standard deviation of the prior's images, normalised; EDM's sigma_data"),
            count("iterations", 1.0, "conjugate gradients, each of which goes back through the network"),
        ],
        make: |s| Law::Covariance(Covariance { strength: s[0], sd: s[1], iterations: s[2] as usize }),
    },
    NamedLaw {
        name: "sigma-squared",
        about: "kappa times the squared noise per signal times the gradient; exact as noise vanishes with kappa 1",
        settings: &[number("kappa", 1.0, "the weight")],
        make: |s| Law::SigmaSquared { kappa: s[0] },
    },
    NamedLaw {
        name: "sigma",
        about: "kappa times the noise per signal times the gradient",
        settings: &[number("kappa", 1.0, "the weight")],
        make: |s| Law::Sigma { kappa: s[0] },
    },
    NamedLaw {
        name: "constant",
        about: "kappa times the gradient at every level",
        settings: &[number("kappa", 1.0, "the weight")],
        make: |s| Law::Constant { kappa: s[0] },
    },
    NamedLaw {
        name: "norm-adaptive",
        about: "a step of a given size along each image's gradient, with a warm-up if asked for (PKL)",
        settings: &[
            number("lambda", 0.1, "root mean square of the step, normalised"),
            number("eps", 1e-8, "added to the gradient's root mean square"),
            number("warm-up-from", ALWAYS[0], "the network's time of no guidance"),
            number(
                "warm-up-to",
                ALWAYS[1],
                "the network's time from which on there is all of it; before any time unless given",
            ),
        ],
        make: |s| Law::NormAdaptive(NormAdaptive { lambda: s[0], eps: s[1], warm_up: [s[2], s[3]] }),
    },
    NamedLaw {
        name: "discrepancy",
        about: "down the gradient until the residual is as large as its noise",
        settings: &[
            number("target", 1.0, "chi2, the mean squared residual over its variance"),
            count("steps", 3.0, "steps down the gradient"),
        ],
        make: |s| Law::Discrepancy(Discrepancy { target: s[0], steps: s[1] as usize }),
    },
    NamedLaw {
        name: "through",
        about: "the gradient through the network (DPS); exact as noise vanishes with kappa 1, twice the time",
        settings: &[number("kappa", 1.0, "the weight")],
        make: |s| Law::Through { kappa: s[0] },
    },
];

/// The law of that name.
///
/// # Errors
/// If there is none.
pub fn named(name: &str) -> Result<&'static NamedLaw, Error> {
    LAWS.iter().find(|l| l.name == name).ok_or_else(|| Error::Unknown {
        kind: "guide law",
        name: name.into(),
        known: LAWS.iter().map(|l| l.name).collect::<Vec<_>>().join(", "),
    })
}

impl NamedLaw {
    /// The law with these settings, and the defaults of the others.
    ///
    /// # Errors
    /// If a setting is unknown, given twice or impossible.
    pub fn law(&self, given: &[(&str, f64)]) -> Result<Law, Error> {
        let all = values(self.settings, given, "setting of this guide law")?;
        let law = (self.make)(&all);
        law.check()?;
        Ok(law)
    }
}

impl Law {
    /// What [`LAWS`] calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Law::Proximal(_) => "proximal",
            Law::Covariance(_) => "covariance",
            Law::SigmaSquared { .. } => "sigma-squared",
            Law::Sigma { .. } => "sigma",
            Law::Constant { .. } => "constant",
            Law::NormAdaptive(_) => "norm-adaptive",
            Law::Discrepancy(_) => "discrepancy",
            Law::Through { .. } => "through",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_is_found_and_made() {
        for row in LAWS {
            let law = named(row.name).unwrap().law(&[]).unwrap();
            assert_eq!(law.name(), row.name);
            assert!(!law.is_off(), "{}", row.name);
        }
        // Without a warm-up all of it is there at every level, EDM's and DDPM's.
        let Law::NormAdaptive(steady) = named("norm-adaptive").unwrap().law(&[]).unwrap() else { panic!() };
        for time in [-2.0, 0.0, 999.0] {
            assert_eq!(steady.weight(&crate::Level::new(1.0, 1.0, time)), steady.lambda);
        }
        assert_eq!(named("proximal").unwrap().law(&[]).unwrap(), Law::Proximal(Proximal::new(0.5)));
        let default = named("discrepancy").unwrap().law(&[]).unwrap();
        assert_eq!(default, Law::Discrepancy(Discrepancy::default()));
    }

    #[test]
    fn settings_go_where_they_are_called() {
        let given = [("iterations", 3.0), ("sd", 0.4), ("passes", 5.0), ("strength", 2.0)];
        let law = named("proximal").unwrap().law(&given).unwrap();
        assert_eq!(law, Law::Proximal(Proximal { strength: 2.0, sd: 0.4, passes: 5, iterations: 3 }));
        let given = [("warm-up-to", 0.3), ("lambda", 0.05), ("warm-up-from", 0.6), ("eps", 0.01)];
        let law = named("norm-adaptive").unwrap().law(&given).unwrap();
        assert_eq!(law, Law::NormAdaptive(NormAdaptive { lambda: 0.05, eps: 0.01, warm_up: [0.6, 0.3] }));
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        let refusal = |law: &str, given: &[(&str, f64)]| {
            named(law).and_then(|l| l.law(given)).expect_err("must be refused").to_string()
        };
        assert!(refusal("proximate", &[]).contains("sigma-squared"));
        assert!(refusal("proximal", &[("kappa", 1.0)]).contains("strength, sd"));
        assert!(refusal("proximal", &[("passes", 1.5)]).contains("passes is 1.5"));
        assert!(refusal("proximal", &[("passes", 0.0)]).contains("passes"));
        assert!(refusal("discrepancy", &[("steps", f64::NAN)]).contains("steps is NaN"));
        assert!(refusal("through", &[("kappa", 1.0), ("kappa", 2.0)]).contains("1 and 2"));
        assert!(refusal("constant", &[("kappa", -1.0)]).contains("-1"));
        assert!(
            refusal("norm-adaptive", &[("warm-up-from", 1000.0), ("warm-up-to", 2000.0)]).contains("warm-up")
        );
    }
}
