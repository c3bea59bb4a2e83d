//! Karras, Aittala, Aila and Laine 2022, algorithm 2 without its second half: Euler's method.

use super::{Call, Program, deterministic, within};
use crate::Error;
use crate::level::{Level, Levels, Step};

/// Noise that is added before each step, so that errors of earlier ones are forgotten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Churn {
    /// Shared by all steps; S_churn.
    pub amount: f64,
    /// Only where sigma / alpha lies between these; S_tmin and S_tmax.
    pub range: [f64; 2],
    /// The noise is multiplied by this; S_noise.
    pub noise: f64,
}

impl Churn {
    pub const NONE: Churn = Churn { amount: 0.0, range: [0.0, f64::INFINITY], noise: 1.0 };

    pub(super) fn check(&self) -> Result<(), Error> {
        within("churn", self.amount, 0.0, f64::MAX)?;
        within("churn's noise", self.noise, 0.0, f64::MAX)?;
        within("churn's lowest sigma", self.range[0], 0.0, f64::MAX)?;
        within("churn's highest sigma", self.range[1], self.range[0], f64::INFINITY)
    }

    /// The level that a step really begins at, and how much noise takes x there.
    pub(super) fn raised(&self, from: &Level, levels: &Levels) -> (Level, f64) {
        let within = (self.range[0]..=self.range[1]).contains(&from.ratio());
        let gamma = (self.amount / levels.len() as f64).min(std::f64::consts::SQRT_2 - 1.0);
        if !within || gamma == 0.0 {
            return (*from, 0.0);
        }
        let sigma = from.sigma * (1.0 + gamma);
        let raised = Level { sigma, ..*from };
        let added = (sigma * sigma - from.sigma * from.sigma).sqrt() * self.noise;
        (Level { time: levels.clock().time(raised.ratio()), ..raised }, added)
    }
}

/// # Errors
/// If a number of churn is negative or its range falls.
pub fn euler(levels: &Levels, churn: &Churn) -> Result<Program, Error> {
    churn.check()?;
    let calls = levels.steps().iter().enumerate().map(|(i, Step { from, to })| {
        let (at, raise) = churn.raised(from, levels);
        Call { raise, ..Call::new(i, at, *to, deterministic(&at, to)) }
    });
    Ok(Program::new(levels, calls.collect()))
}
