//! Noise levels, and the lists of levels that samplers follow.
//!
//! `x = alpha x0 + sigma noise`. Variance-preserving levels have alpha^2 + sigma^2 = 1, variance-exploding ones alpha = 1;
//! they differ only in the scale of x, and everything in this crate works for both. Levels are ordered by sigma / alpha. A
//! level also has a `time`, the value that the network gets, which is the only place where discrete timesteps occur.

use crate::Error;
use std::sync::Arc;

/// A noise level, and the value of it that a network gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    pub alpha: f64,
    pub sigma: f64,
    pub time: f64,
}

impl Level {
    /// No noise.
    pub const CLEAN: Level = Level { alpha: 1.0, sigma: 0.0, time: 0.0 };

    pub fn new(alpha: f64, sigma: f64, time: f64) -> Level {
        Level { alpha, sigma, time }
    }

    /// Noise per signal: sigma where alpha is 1.
    pub fn ratio(&self) -> f64 {
        self.sigma / self.alpha
    }

    /// Signal-to-noise ratio of variances.
    pub fn snr(&self) -> f64 {
        (self.alpha / self.sigma).powi(2)
    }

    pub fn log_snr(&self) -> f64 {
        2.0 * (self.alpha.ln() - self.sigma.ln())
    }

    /// What DPM-Solver calls lambda: half the logarithm of the signal-to-noise ratio.
    pub fn lambda(&self) -> f64 {
        self.alpha.ln() - self.sigma.ln()
    }

    /// The standard deviation of x where images have standard deviation 1.
    pub fn norm(&self) -> f64 {
        self.alpha.hypot(self.sigma)
    }

    /// The same noise per signal with alpha^2 + sigma^2 = 1.
    pub fn preserving(self) -> Level {
        let norm = self.norm();
        Level { alpha: self.alpha / norm, sigma: self.sigma / norm, ..self }
    }

    /// The same noise per signal with alpha = 1.
    pub fn exploding(self) -> Level {
        Level { alpha: 1.0, sigma: self.ratio(), ..self }
    }
}

/// From one level to a lower one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub from: Level,
    pub to: Level,
}

/// How the time of a level follows from its noise, for levels that a sampler makes up on its way.
#[derive(Clone, Debug)]
pub enum Clock {
    /// ln(sigma / alpha) / 4, the time input of EDM's networks.
    LogSigma,
    /// The place in a table of ln(sigma / alpha) by timestep, between entries by linear interpolation.
    Table(Arc<[f64]>),
}

impl Clock {
    /// The time of a level with this noise per signal.
    pub fn time(&self, ratio: f64) -> f64 {
        match self {
            Clock::LogSigma => 0.25 * ratio.ln(),
            Clock::Table(table) => place_in(table, ratio.max(1e-10).ln()),
        }
    }
}

/// The place of `x` in an ascending table, between its entries by linear interpolation.
fn place_in(table: &[f64], x: f64) -> f64 {
    let above = table.partition_point(|&entry| entry <= x);
    let low = above.saturating_sub(1).min(table.len().saturating_sub(2));
    let Some(&high) = table.get(low + 1) else { return 0.0 };
    let weight = ((table[low] - x) / (table[low] - high)).clamp(0.0, 1.0);
    (1.0 - weight) * low as f64 + weight * (low + 1) as f64
}

/// The steps of a sampler, from much noise to little.
///
/// Usually each step begins where the last one ended. It need not: diffusers' DDIM steps by T / S timesteps
/// whatever the next timestep is, and its networks' trajectories are to be had here too.
#[derive(Clone, Debug)]
pub struct Levels {
    steps: Vec<Step>,
    clock: Clock,
}

impl Levels {
    /// Through `list`, the first being where sampling begins and the last where it ends.
    ///
    /// # Errors
    /// If there are fewer than two levels, one is not a level, or they do not decrease.
    pub fn new(list: &[Level], clock: Clock) -> Result<Levels, Error> {
        Levels::of_steps(list.windows(2).map(|w| Step { from: w[0], to: w[1] }).collect(), clock)
    }

    /// # Errors
    /// If there is no step, a level is not a number above zero, or a step does not go down, or begins above the one before.
    pub fn of_steps(steps: Vec<Step>, clock: Clock) -> Result<Levels, Error> {
        if steps.is_empty() {
            let must = "at least 1".into();
            return Err(Error::Setting { what: "the number of steps", got: "0".into(), must });
        }
        for (index, s) in steps.iter().enumerate() {
            for (index, l) in [(index, s.from), (index + 1, s.to)] {
                let sound = l.alpha.is_finite() && l.sigma.is_finite() && l.alpha > 0.0 && l.sigma >= 0.0;
                if !sound {
                    return Err(Error::Level { index, alpha: l.alpha, sigma: l.sigma });
                }
            }
            let (from, to) = (s.from.ratio(), s.to.ratio());
            if from <= to {
                return Err(Error::NotDecreasing { step: index, from, to, between: false });
            }
            match steps.get(index + 1).map(|next| next.from.ratio()) {
                Some(next) if next >= from => {
                    return Err(Error::NotDecreasing { step: index, from, to: next, between: true });
                }
                _ => {}
            }
        }
        Ok(Levels { steps, clock })
    }

    /// Karras et al. 2022, equation 5: sigma^(1/rho) in equal parts from `sigma_max` to `sigma_min`, then
    /// none; alpha is 1, and networks get ln(sigma) / 4.
    ///
    /// # Errors
    /// If there is no step, or the range or rho is not positive and rising.
    pub fn karras([sigma_min, sigma_max]: [f64; 2], rho: f64, steps: usize) -> Result<Levels, Error> {
        let sigmas = karras_sigmas([sigma_min, sigma_max], rho, steps)?;
        let clock = Clock::LogSigma;
        let mut list: Vec<Level> = sigmas.iter().map(|&s| Level::new(1.0, s, clock.time(s))).collect();
        list.push(Level::CLEAN);
        Levels::new(&list, clock)
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Where sampling begins.
    pub fn start(&self) -> Level {
        self.steps[0].from
    }

    /// Where it ends.
    pub fn end(&self) -> Level {
        self.steps[self.steps.len() - 1].to
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The steps from number `first` on: sampling that starts from an image with noise.
    ///
    /// # Errors
    /// If no step is left.
    pub fn from_step(&self, first: usize) -> Result<Levels, Error> {
        Levels::of_steps(self.steps.get(first..).unwrap_or(&[]).to_vec(), self.clock.clone())
    }

    /// The steps from the first that begins with at most this much noise per signal.
    ///
    /// # Errors
    /// If every step begins with more.
    pub fn starting_below(&self, ratio: f64) -> Result<Levels, Error> {
        let first = self.steps.iter().position(|s| s.from.ratio() <= ratio).ok_or_else(|| {
            let last = self.steps[self.steps.len() - 1].from.ratio();
            let must = format!("at least {last}, where the last step begins");
            Error::Setting { what: "the noise to start from", got: ratio.to_string(), must }
        })?;
        self.from_step(first)
    }

    /// The same with alpha = 1.
    pub fn exploding(&self) -> Levels {
        self.map(Level::exploding)
    }

    /// The same with alpha^2 + sigma^2 = 1.
    pub fn preserving(&self) -> Levels {
        self.map(Level::preserving)
    }

    fn map(&self, f: impl Fn(Level) -> Level) -> Levels {
        let steps = self.steps.iter().map(|s| Step { from: f(s.from), to: f(s.to) }).collect();
        Levels { steps, clock: self.clock.clone() }
    }
}

/// The sigmas of [`Levels::karras`] without the final zero.
pub(crate) fn karras_sigmas(
    [sigma_min, sigma_max]: [f64; 2],
    rho: f64,
    steps: usize,
) -> Result<Vec<f64>, Error> {
    let range = sigma_min > 0.0 && sigma_max >= sigma_min && sigma_max.is_finite();
    if !range || (steps > 1 && sigma_max == sigma_min) {
        let got = format!("{sigma_min} to {sigma_max}");
        return Err(Error::Setting { what: "the range of sigma", got, must: "positive and rising".into() });
    }
    if !(rho.is_finite() && rho > 0.0) {
        return Err(Error::Setting { what: "rho", got: rho.to_string(), must: "positive".into() });
    }
    let (high, low) = (sigma_max.powf(1.0 / rho), sigma_min.powf(1.0 / rho));
    let sigma = |i: usize| match i {
        0 => sigma_max,
        _ if i + 1 == steps => sigma_min,
        _ => (high + i as f64 / (steps - 1) as f64 * (low - high)).powf(rho),
    };
    Ok((0..steps).map(sigma).collect())
}
