//! Karras, Aittala, Aila and Laine 2022, algorithm 2: Heun's method with churn.
//!
//! A step is two calls: Euler's step to the next level, then, from there, the mean of the two slopes. The
//! last step, to no noise, is Euler's alone. In between, half of the way is kept.

use super::{Call, Churn, KEPT, Mix, Program, deterministic};
use crate::Error;
use crate::level::{Levels, Step};

/// # Errors
/// If a number of churn is negative or its range falls.
pub fn heun(levels: &Levels, churn: &Churn) -> Result<Program, Error> {
    churn.check()?;
    let mut calls = Vec::with_capacity(2 * levels.len());
    for (i, Step { from, to }) in levels.steps().iter().enumerate() {
        let (at, raise) = churn.raised(from, levels);
        let first = Call { raise, ..Call::new(i, at, *to, deterministic(&at, to)) };
        if to.sigma == 0.0 {
            calls.push(first);
            continue;
        }
        // In x / alpha, whose noise per signal is r: x + (r' - r) (d + d') / 2, d = (x - x0) / r.
        let shrink = to.ratio() / at.ratio();
        let half = Mix {
            x: to.alpha / at.alpha * 0.5 * (1.0 + shrink),
            x0: to.alpha * 0.5 * (1.0 - shrink),
            ..Mix::default()
        };
        let slope = 0.5 * (1.0 - 1.0 / shrink);
        let mut kept = [Mix::default(); KEPT];
        kept[0] = half;
        calls.push(Call { kept, ..first });
        let second = Mix { x: slope, x0: -slope * to.alpha, kept: [1.0, 0.0], ..Mix::default() };
        calls.push(Call::new(i, *to, *to, second));
    }
    Ok(Program::new(levels, calls))
}
