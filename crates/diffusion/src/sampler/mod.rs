//! Samplers: sequences of steps from noise to an image.
//!
//! A sampler is a function from levels to a [`Program`]: a list of calls, each of which evaluates a denoiser once and gives
//! the next x as a linear combination of known values. All coefficients follow from the levels, so a program is known in
//! f64 before anything runs. There are two interpreters: [`crate::host`] on f64 numbers with any function as the denoiser,
//! and [`crate::Sampler`], which compiles one call into a graph and replays it.

mod ddim;
mod ddpm;
mod dpm_solver;
mod euler;
mod heun;

pub use ddim::{Ddim, ddim};
pub use ddpm::{Ddpm, Variance, ddpm};
pub use dpm_solver::{DpmSolver, Second, Third, dpm_solver_pp};
pub use euler::{Churn, euler};
pub use heun::heun;

pub(crate) use ddpm::variances;

use crate::Error;
use crate::level::{Level, Levels};
use crate::written::{Setting, count, form, number, parse, values};

/// A sampler by name.
pub struct Named {
    pub name: &'static str,
    pub about: &'static str,
    pub settings: &'static [Setting],
    /// From the settings' values, in their order.
    make: fn(&Levels, &[f64]) -> Result<Program, Error>,
}

const NO_SETTINGS: &[Setting] = &[];

const CHURN: &[Setting] = &[
    number("churn", 0.0, "noise that is added before steps, shared by all of them; S_churn"),
    number("from", 0.0, "the least sigma at which it is added; S_tmin"),
    number("to", f64::INFINITY, "the greatest; S_tmax"),
    number("noise", 1.0, "what the noise is multiplied by; S_noise"),
];

fn churn(s: &[f64]) -> Churn {
    Churn { amount: s[0], range: [s[1], s[2]], noise: s[3] }
}

/// Every sampler.
pub const SAMPLERS: &[Named] = &[
    Named {
        name: "ddpm",
        about: "Ho et al. 2020; stochastic, for all timesteps of a schedule",
        settings: &[
            count("large", 0.0, "1 for the variance of the forward step in place of the posterior's"),
            number("temperature", 1.0, "what the noise is multiplied by"),
            count("learned", 0.0, "1 for the variance that the network has learned"),
        ],
        make: |l, s| {
            let variance = match (s[0] > 0.0, s[2] > 0.0) {
                (_, true) => Variance::Learned,
                (true, _) => Variance::FixedLarge,
                _ => Variance::FixedSmall,
            };
            ddpm(l, &Ddpm { variance, temperature: s[1] })
        },
    },
    Named {
        name: "ddim",
        about: "Song et al. 2021; deterministic, or with noise of up to DDPM's variance",
        settings: &[number("eta", 0.0, "the share of DDPM's noise, from 0 to 1")],
        make: |l, s| ddim(l, &Ddim { eta: s[0], ..Ddim::default() }),
    },
    Named {
        name: "dpmpp",
        about: "Lu et al. 2022, DPM-Solver++ of order 1",
        settings: NO_SETTINGS,
        make: |l, _| dpm_solver_pp(l, &DpmSolver { order: 1, ..DpmSolver::default() }),
    },
    Named {
        name: "dpmpp-2m",
        about: "Lu et al. 2022, DPM-Solver++ of order 2; good images in 20 to 30 steps",
        settings: NO_SETTINGS,
        make: |l, _| dpm_solver_pp(l, &DpmSolver::default()),
    },
    Named {
        name: "dpmpp-3m",
        about: "Lu et al. 2022, DPM-Solver++ of order 3",
        settings: NO_SETTINGS,
        make: |l, _| dpm_solver_pp(l, &DpmSolver { order: 3, ..DpmSolver::default() }),
    },
    Named {
        name: "dpmpp-2m-sde",
        about: "Lu et al. 2022, stochastic DPM-Solver++ of order 2",
        settings: NO_SETTINGS,
        make: |l, _| dpm_solver_pp(l, &DpmSolver { stochastic: true, ..DpmSolver::default() }),
    },
    Named {
        name: "euler",
        about: "Karras et al. 2022, first order",
        settings: CHURN,
        make: |l, s| euler(l, &churn(s)),
    },
    Named {
        name: "heun",
        about: "Karras et al. 2022, algorithm 2; two questions a step",
        settings: CHURN,
        make: |l, s| heun(l, &churn(s)),
    },
];

impl Named {
    /// With its usual settings.
    ///
    /// # Errors
    /// As the sampler's own function.
    pub fn program(&self, levels: &Levels) -> Result<Program, Error> {
        self.program_with(levels, &[])
    }

    /// With settings by name, and the defaults of the others.
    ///
    /// # Errors
    /// If a setting is unknown or impossible.
    pub fn program_with(&self, levels: &Levels, given: &[(&str, f64)]) -> Result<Program, Error> {
        (self.make)(levels, &values(self.settings, given, "setting of this sampler")?)
    }
}

/// A sampler as users write it: `ddim`, `ddim:eta=0.5`, `heun:churn=40,noise=1.003`.
///
/// # Errors
/// If there is no such sampler or setting, or a number is impossible.
pub fn program(text: &str, levels: &Levels) -> Result<Program, Error> {
    let (name, given) = parse(text)?;
    named(name)?.program_with(levels, &given)
}

/// The sampler of that name.
///
/// # Errors
/// If there is none.
pub fn named(name: &str) -> Result<&'static Named, Error> {
    SAMPLERS.iter().find(|s| s.name == name).ok_or_else(|| Error::Unknown {
        kind: "sampler",
        name: name.into(),
        known: SAMPLERS.iter().map(|s| form(s.name, s.settings)).collect::<Vec<_>>().join(", "),
    })
}

/// A sum of what there is after a denoiser was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// The inputs of the denoiser.
    pub x: f64,
    /// The answer.
    pub x0: f64,
    /// The result without clipping.
    pub unclipped: f64,
    /// The call's noise.
    pub noise: f64,
    /// The values kept by earlier calls.
    pub kept: [f64; KEPT],
}

/// How many images a program can keep from call to call.
pub const KEPT: usize = 2;

/// The number of terms of a [`Mix`].
pub(crate) const TERMS: usize = 4 + KEPT;

impl Mix {
    /// The factors in the order of their names in [`TERM_NAMES`].
    pub(crate) fn terms(&self) -> [f64; TERMS] {
        [self.x, self.x0, self.unclipped, self.noise, self.kept[0], self.kept[1]]
    }
}

pub(crate) const TERM_NAMES: [&str; TERMS] = ["x", "x0", "unclipped", "noise", "kept0", "kept1"];

/// One question to a denoiser and what becomes of the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The number of the step that it belongs to; a step may take several calls.
    pub step: usize,
    /// The level that the denoiser is asked at.
    pub level: Level,
    /// Before asking, so much of the call's noise is added to x.
    pub raise: f64,
    pub x: Mix,
    pub kept: [Mix; KEPT],
    /// The level of x afterwards.
    pub arrives: Level,
    /// The noise of `x` is multiplied by exp of something between these two, where the denoiser's learned
    /// variance says.
    pub spread: [f64; 2],
}

impl Call {
    /// Asks at `level` and makes `x`.
    pub(crate) fn new(step: usize, level: Level, arrives: Level, x: Mix) -> Call {
        Call { step, level, raise: 0.0, x, kept: [Mix::default(); KEPT], arrives, spread: [0.0; 2] }
    }
}

/// A sampler's calls in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    calls: Vec<Call>,
    start: Level,
    steps: usize,
    learned_variance: bool,
}

impl Program {
    pub(crate) fn new(levels: &Levels, calls: Vec<Call>) -> Program {
        Program { calls, start: levels.start(), steps: levels.len(), learned_variance: false }
    }

    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The level that x must be at when the program begins.
    pub fn start(&self) -> Level {
        self.start
    }

    /// Whether the noise is scaled by the denoiser's learned variance.
    pub fn learned_variance(&self) -> bool {
        self.learned_variance
    }

    /// Whether any call adds noise.
    pub fn stochastic(&self) -> bool {
        self.calls.iter().any(|c| c.raise != 0.0 || c.x.noise != 0.0)
    }
}

fn within(what: &'static str, got: f64, low: f64, high: f64) -> Result<(), Error> {
    if (low..=high).contains(&got) {
        return Ok(());
    }
    let must = if high.is_finite() { format!("from {low} to {high}") } else { format!("at least {low}") };
    Err(Error::Setting { what, got: got.to_string(), must })
}

/// The deterministic step that DDIM, Euler and the first order of DPM-Solver++ share: x and x0 that give x
/// at the level `to` with the same noise in it.
fn deterministic(from: &Level, to: &Level) -> Mix {
    let ratio = to.sigma / from.sigma;
    Mix { x: ratio, x0: to.alpha - from.alpha * ratio, ..Mix::default() }
}
