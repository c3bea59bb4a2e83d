//! Schedules: tables of noise levels by timestep, as used in the training of networks.
//!
//! Other libraries store betas and cumulative products of alphas in 32-bit floats, and networks were trained with these
//! values. The tables here are therefore rounded in the same places; everything after the table is f64.
//!
//! Two schedules are called "linear" by their authors: DDPM's, with equal steps of beta, and latent diffusion's, with equal
//! steps of its square root. Here the first is [`BetaLaw::Linear`] and the second [`BetaLaw::ScaledLinear`]; names are
//! looked up together with the library that uses them.

use crate::Error;
use crate::level::{Clock, Level, Levels, Step, karras_sigmas};
use crate::spacing::Spacing;
use std::sync::Arc;

/// How beta, the variance that a timestep adds, runs from the first timestep to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetaLaw {
    /// Equal steps (Ho et al. 2020). Latent diffusion calls it `sqrt_linear`.
    Linear,
    /// Equal steps of the square root (Rombach et al. 2022, who call it `linear`; DDPM's `quad`).
    ScaledLinear,
    /// Such that the product of alphas is a squared cosine, beta at most 0.999 (Nichol and Dhariwal 2021).
    SquaredCosine,
    /// The square root of equal steps; latent diffusion's `sqrt`.
    Sqrt,
    /// A logistic curve from -6 to 6.
    Sigmoid,
    /// Equal ratios.
    Exponential,
    /// Such that the product of alphas is exp(-12 t), beta at most 0.999; diffusers' `exp`.
    ExponentialDecay,
}

type Names = &'static [(&'static str, BetaLaw)];

const DIFFUSERS: Names = &[
    ("linear", BetaLaw::Linear),
    ("scaled_linear", BetaLaw::ScaledLinear),
    ("squaredcos_cap_v2", BetaLaw::SquaredCosine),
    ("sigmoid", BetaLaw::Sigmoid),
    ("exp", BetaLaw::ExponentialDecay),
];

const LATENT_DIFFUSION: Names = &[
    ("linear", BetaLaw::ScaledLinear),
    ("sqrt_linear", BetaLaw::Linear),
    ("cosine", BetaLaw::SquaredCosine),
    ("sqrt", BetaLaw::Sqrt),
];

const OURS: Names = &[
    ("ddpm_linear", BetaLaw::Linear),
    ("scaled_linear", BetaLaw::ScaledLinear),
    ("quadratic", BetaLaw::ScaledLinear),
    ("cosine", BetaLaw::SquaredCosine),
    ("sqrt", BetaLaw::Sqrt),
    ("sigmoid", BetaLaw::Sigmoid),
    ("exponential", BetaLaw::Exponential),
    ("exponential_decay", BetaLaw::ExponentialDecay),
];

fn look_up(names: Names, kind: &'static str, name: &str) -> Result<BetaLaw, Error> {
    let found = names.iter().find(|(n, _)| *n == name).map(|(_, law)| *law);
    found.ok_or_else(|| Error::Unknown {
        kind,
        name: name.into(),
        known: names.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
    })
}

impl BetaLaw {
    /// By this project's own name; no law is called "linear" alone.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn named(name: &str) -> Result<BetaLaw, Error> {
        look_up(OURS, "beta schedule", name)
    }

    /// By diffusers' name: `linear` is DDPM's.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn of_diffusers(name: &str) -> Result<BetaLaw, Error> {
        look_up(DIFFUSERS, "beta schedule of diffusers", name)
    }

    /// By latent diffusion's name: `linear` is the scaled one.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn of_latent_diffusion(name: &str) -> Result<BetaLaw, Error> {
        look_up(LATENT_DIFFUSION, "beta schedule of latent diffusion", name)
    }

    /// Whether the law uses the first and last beta.
    fn has_ends(self) -> bool {
        !matches!(self, BetaLaw::SquaredCosine | BetaLaw::ExponentialDecay)
    }

    fn betas(self, [first, last]: [f64; 2], total: usize) -> Vec<f64> {
        let between = |from: f64, to: f64, i: usize| match total {
            1 => from,
            _ => from + (to - from) * i as f64 / (total - 1) as f64,
        };
        let of_products = |product: fn(f64) -> f64, i: usize| {
            let at = |i: usize| product(i as f64 / total as f64);
            (1.0 - at(i + 1) / at(i)).min(LARGEST_BETA)
        };
        let beta = |i: usize| match self {
            BetaLaw::Linear => between(first, last, i),
            BetaLaw::ScaledLinear => between(first.sqrt(), last.sqrt(), i).powi(2),
            BetaLaw::SquaredCosine => of_products(squared_cosine, i),
            BetaLaw::Sqrt => between(first, last, i).sqrt(),
            BetaLaw::Sigmoid => first + (last - first) / (1.0 + (-between(-6.0, 6.0, i)).exp()),
            BetaLaw::Exponential => between(first.ln(), last.ln(), i).exp(),
            BetaLaw::ExponentialDecay => of_products(|t| (-12.0 * t).exp(), i),
        };
        (0..total).map(beta).collect()
    }
}

const LARGEST_BETA: f64 = 0.999;

fn squared_cosine(t: f64) -> f64 {
    ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2)
}

/// Where a list of levels ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Without noise; diffusers' `set_alpha_to_one` and final sigmas `zero`.
    Clean,
    /// At the schedule's first timestep; final sigmas `sigma_min`.
    First,
}

/// The time input for a level between two timesteps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The place between them.
    None,
    Nearest,
    /// The lower one. diffusers' DPM-Solver does it for cosine schedules.
    Down,
}

impl Rounding {
    fn apply(self, t: f64) -> f64 {
        match self {
            Rounding::None => t,
            Rounding::Nearest => t.round_ties_even(),
            Rounding::Down => t.floor(),
        }
    }
}

/// Noise levels by timestep, alpha^2 + sigma^2 = 1.
#[derive(Clone, Debug)]
pub struct Schedule {
    betas: Vec<f64>,
    levels: Vec<Level>,
    /// sigma / alpha in 32 bits.
    ratios: Vec<f32>,
}

impl Schedule {
    /// `total` timesteps; the ends are the first and last beta, where the law has them.
    ///
    /// # Errors
    /// If there is no timestep, or a beta is not between 0 and 1.
    pub fn new(law: BetaLaw, ends: [f64; 2], total: usize) -> Result<Schedule, Error> {
        if law.has_ends() && !ends.iter().all(|b| *b > 0.0 && *b < 1.0) {
            let got = format!("{} and {}", ends[0], ends[1]);
            return Err(Error::Setting { what: "the first and last beta", got, must: BETWEEN.into() });
        }
        Schedule::of_betas(&law.betas(ends, total))
    }

    /// From betas of one's own.
    ///
    /// # Errors
    /// If there is none, or one is not between 0 and 1.
    pub fn of_betas(betas: &[f64]) -> Result<Schedule, Error> {
        if betas.is_empty() {
            let must = "at least 1".into();
            return Err(Error::Setting { what: "the number of timesteps", got: "0".into(), must });
        }
        let mut product = 1.0f64;
        let mut made = Schedule { betas: vec![], levels: vec![], ratios: vec![] };
        for (t, &beta) in betas.iter().enumerate() {
            let beta = beta as f32;
            if !(beta > 0.0 && beta < 1.0) {
                let got = format!("{} at timestep {t}", betas[t]);
                return Err(Error::Setting { what: "beta", got, must: BETWEEN.into() });
            }
            product *= f64::from(1.0 - beta);
            let rounded = product as f32;
            let signal = f64::from(rounded);
            made.betas.push(beta.into());
            made.levels.push(Level::new(signal.sqrt(), (1.0 - signal).sqrt(), t as f64));
            made.ratios.push(((1.0 - rounded) / rounded).sqrt());
        }
        Ok(made)
    }

    /// The schedule for images of another resolution (Hoogeboom et al. 2023): pixels of finer images
    /// average more noise away, so the logarithm of the signal-to-noise ratio is lowered by
    /// 2 ln(resolution / reference).
    ///
    /// # Errors
    /// If a resolution is not positive.
    pub fn for_resolution(&self, resolution: f64, reference: f64) -> Result<Schedule, Error> {
        let factor = resolution / reference;
        if !(factor.is_finite() && factor > 0.0) {
            let got = format!("{resolution} for {reference}");
            return Err(Error::Setting { what: "the resolution", got, must: "positive".into() });
        }
        let shifted = |l: &Level| Level { sigma: l.sigma * factor, ..*l }.preserving();
        let levels: Vec<Level> = self.levels.iter().map(shifted).collect();
        let signal = |t: usize| levels[t].alpha.powi(2);
        let beta = |t: usize| 1.0 - if t == 0 { signal(0) } else { signal(t) / signal(t - 1) };
        Ok(Schedule {
            betas: (0..levels.len()).map(beta).collect(),
            ratios: levels.iter().map(|l| l.ratio() as f32).collect(),
            levels,
        })
    }

    /// The number of timesteps.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// The variance that each timestep adds.
    pub fn betas(&self) -> &[f64] {
        &self.betas
    }

    /// The product of alphas up to each timestep: the share of the signal in the variance.
    pub fn alphas_cumprod(&self) -> Vec<f64> {
        self.levels.iter().map(|l| l.alpha * l.alpha).collect()
    }

    /// The level of a timestep.
    pub fn level(&self, timestep: usize) -> Option<Level> {
        self.levels.get(timestep).copied()
    }

    /// The level of a time that may lie between two timesteps: sigma / alpha by linear interpolation.
    fn level_at(&self, time: f64) -> Level {
        let last = self.levels.len() - 1;
        let low = (time.max(0.0).floor() as usize).min(last);
        let part = time - low as f64;
        if part == 0.0 || low == last {
            return self.levels[low];
        }
        let [a, b] = [low, low + 1].map(|t| f64::from(self.ratios[t]));
        Level::new(1.0, a + part * (b - a), time).preserving()
    }

    fn end(&self, end: End) -> Level {
        match end {
            End::Clean => Level::CLEAN,
            End::First => self.levels[0],
        }
    }

    pub fn clock(&self) -> Clock {
        // Rounded as the peers' table of logarithms is.
        let table: Arc<[f64]> = self.ratios.iter().map(|r| f64::from(f64::from(*r).ln() as f32)).collect();
        Clock::Table(table)
    }

    /// The levels of `steps` timesteps, each step going to the next timestep and the last to `end`.
    ///
    /// # Errors
    /// As [`Spacing::timesteps`]; or if `end` is not below the last timestep.
    pub fn levels(&self, spacing: Spacing, steps: usize, end: End) -> Result<Levels, Error> {
        let times = spacing.timesteps(self.len(), steps)?;
        let list: Vec<Level> = times.iter().map(|&t| self.level_at(t)).chain([self.end(end)]).collect();
        Levels::new(&list, self.clock())
    }

    /// As [`Schedule::levels`], but every step goes down by T / S timesteps, wherever the next one begins:
    /// diffusers' DDIM.
    ///
    /// # Errors
    /// As [`Schedule::levels`].
    pub fn strided_levels(&self, spacing: Spacing, steps: usize, end: End) -> Result<Levels, Error> {
        let times = spacing.timesteps(self.len(), steps)?;
        let stride = (self.len() / steps) as f64;
        let to = |t: f64| if t < stride { self.end(end) } else { self.level_at(t - stride) };
        let steps = times.iter().map(|&t| Step { from: self.level_at(t), to: to(t) }).collect();
        Levels::of_steps(steps, self.clock())
    }

    /// sigma / alpha of the first and of the last timestep.
    pub fn range(&self) -> [f64; 2] {
        [self.ratios[0].into(), self.ratios[self.ratios.len() - 1].into()]
    }

    /// Karras' levels (see [`Levels::karras`]) between two values of sigma / alpha, for a network of
    /// this schedule; alpha^2 + sigma^2 = 1.
    ///
    /// # Errors
    /// As [`Levels::karras`].
    pub fn karras_levels(
        &self,
        range: [f64; 2],
        rho: f64,
        steps: usize,
        rounding: Rounding,
        end: End,
    ) -> Result<Levels, Error> {
        let sigmas = karras_sigmas(range, rho, steps)?;
        let clock = self.clock();
        let level = |&s: &f64| Level::new(1.0, s, rounding.apply(clock.time(s))).preserving();
        let list: Vec<Level> = sigmas.iter().map(level).chain([self.end(end)]).collect();
        Levels::new(&list, clock)
    }
}

const BETWEEN: &str = "between 0 and 1";
