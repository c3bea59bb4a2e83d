//! The resolved task: inputs of the network, its prediction, and the weight of its errors.

use crate::conditioning::Conditioned;
use crate::config::{DistanceKind, PredictionKind, TaskConfig, TaskKind, TermConfig, WeightKind};
use crate::counted::Counted;
use crate::error::{Result, setting};
use crate::gan::Gan;
use clearshot_diffusion::objective::{self, Distance, LevelLaw, Ramp, Weight};
use clearshot_diffusion::precondition::Prediction;
use clearshot_diffusion::schedule::{BetaLaw, Schedule};
use clearshot_diffusion::{Clock, Level};
use clearshot_graph::{Builder, Value};
use clearshot_model as model;
use clearshot_tensor::noise::Key;
use std::sync::Arc;

/// Levels and what is predicted at them.
#[derive(Clone, Debug)]
pub struct Diffusion {
    pub prediction: Prediction,
    pub weight: Weight,
    law: LevelLaw,
    /// The share of images at the noisiest level, and that level.
    most: (f64, Level),
    range: [f64; 2],
}

/// The variance of images in the network's units, and the share of a measurement's noise that a network leaves.
const TYPICAL: f64 = 0.25;
const LEFT: f64 = 0.1;

/// The schedule whose betas are a table of one's own.
pub(crate) const OWN_BETAS: &str = "custom";

/// See the module.
#[derive(Clone, Debug)]
pub struct Task {
    pub kind: TaskKind,
    pub diffusion: Option<Diffusion>,
    /// Of adversarial training.
    pub gan: Option<Gan>,
    pub distance: Distance,
    /// Whether the network learns the variance of the reverse step beside its prediction.
    pub learned_variance: bool,
    pub drop: f64,
    pub balance: f64,
    /// Further terms of the loss, with their weights.
    pub terms: Vec<(Term, Ramp)>,
    /// The conditions of the network other than the measurement, known once there are data.
    pub conditioned: Option<Arc<Conditioned>>,
    /// The share of samples without their class.
    pub drop_class: f64,
    /// The share of samples whose partner's embeddings are predicted.
    pub partner: f64,
}

/// A comparison of the estimate with the clean image or the measurement that counts beside the main one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Term {
    Intensity,
    Gradient,
    Frequency,
    Wavelet,
    Poisson,
    Consistency,
    Bound,
}

/// The inputs of the terms.
pub struct Compared {
    pub estimate: Value,
    pub clean: Value,
    /// Where the measurement is in electrons.
    pub counted: Option<Counted>,
    /// Where the variance is learned.
    pub bound: Option<Value>,
}

impl Term {
    pub const ALL: [Term; 7] = [
        Term::Intensity,
        Term::Gradient,
        Term::Frequency,
        Term::Wavelet,
        Term::Poisson,
        Term::Consistency,
        Term::Bound,
    ];

    /// Its key below `task`, and the last part of its record's name.
    pub fn name(self) -> &'static str {
        match self {
            Term::Intensity => "intensity",
            Term::Gradient => "gradient",
            Term::Frequency => "frequency",
            Term::Wavelet => "wavelet",
            Term::Poisson => "poisson",
            Term::Consistency => "consistency",
            Term::Bound => "bound",
        }
    }

    /// The key of its weight.
    pub fn key(self) -> &'static str {
        match self {
            Term::Intensity => "task.intensity.weight",
            Term::Gradient => "task.gradient.weight",
            Term::Frequency => "task.frequency.weight",
            Term::Wavelet => "task.wavelet.weight",
            Term::Poisson => "task.poisson.weight",
            Term::Consistency => "task.consistency.weight",
            Term::Bound => "task.bound.weight",
        }
    }

    pub fn config(self, task: &TaskConfig) -> TermConfig {
        match self {
            Term::Intensity => task.intensity,
            Term::Gradient => task.gradient,
            Term::Frequency => task.frequency,
            Term::Wavelet => task.wavelet,
            Term::Poisson => task.poisson,
            Term::Consistency => task.consistency,
            Term::Bound => task.bound,
        }
    }

    /// Adds it to a graph.
    #[track_caller]
    pub fn build(self, b: &mut Builder, distance: Distance, compared: &Compared) -> Value {
        let Compared { estimate, clean, counted, bound } = *compared;
        let needs =
            |b: &mut Builder, what: &str| b.refuse("training", format!("task.{}: {what}", self.name()));
        match self {
            Term::Intensity => objective::intensity(b, distance, estimate, clean),
            Term::Gradient => objective::gradient(b, estimate, clean),
            Term::Frequency => objective::frequency(b, estimate, clean),
            Term::Wavelet => objective::wavelet(b, estimate, clean),
            Term::Poisson | Term::Consistency => match counted {
                Some(counted) if self == Term::Poisson => counted.poisson(b),
                Some(counted) => counted.consistency(b),
                None => needs(b, "the measurement must be in electrons (data.signal=photons)"),
            },
            Term::Bound => match bound {
                Some(bound) => bound,
                None => needs(b, "say task.learned_variance=true"),
            },
        }
    }
}

impl Task {
    /// # Errors
    /// If two keys contradict each other, or there is no such schedule.
    pub fn new(config: &TaskConfig) -> Result<Task> {
        let distance = match config.distance {
            DistanceKind::L1 => Distance::L1,
            DistanceKind::L2 => Distance::L2,
            DistanceKind::Huber => Distance::Huber(config.bend),
            DistanceKind::SmoothL1 => Distance::SmoothL1(config.bend),
        };
        let term = |term: Term| {
            let t = term.config(config);
            (t.weight > 0.0).then_some((term, Ramp { full: t.weight, from: t.from, over: t.over }))
        };
        let diffusion = match config.kind {
            TaskKind::Conditional | TaskKind::Prior => Some(Diffusion::new(config)?),
            // The mean alone can be learned from noise: at the level where the condition tells all.
            _ if config.is_conditional_form() => {
                Some(Diffusion::new(&TaskConfig { at_most: 1.0, ..config.clone() })?)
            }
            _ => None,
        };
        let drop = if config.kind == TaskKind::Conditional { config.drop } else { 0.0 };
        let (balance, terms) = (config.balance, Term::ALL.into_iter().filter_map(term).collect());
        let learned_variance = config.learned_variance;
        let (conditioned, drop_class) = (None, config.drop_class);
        let (kind, partner) = (config.kind, config.partner);
        let gan = (kind == TaskKind::Gan).then(|| Gan::new(&config.gan));
        Ok(Task {
            kind,
            diffusion,
            gan,
            distance,
            learned_variance,
            drop,
            balance,
            terms,
            conditioned,
            drop_class,
            partner,
        })
    }

    /// Whether samples count differently.
    pub fn weighs_samples(&self) -> bool {
        self.balance > 0.0
    }

    /// Channels that a network gives, of images in so many dimensions whose targets have so many.
    pub fn made_channels(&self, dims: usize, targets: usize) -> usize {
        if self.kind == TaskKind::Instances { model::instances::channels(dims) } else { targets }
    }

    /// Whether the network is given the measurement.
    pub fn is_conditional(&self) -> bool {
        self.kind != TaskKind::Prior
    }

    /// How much an image counts by how much its measurement tells, given the numbers that go with it.
    ///
    /// With noise of variance v in the measurement, a tenth of which a network leaves, and A the variance of what the
    /// noisy image alone leaves open, the error to expect is that of both together, A B / (A + B); relative
    /// to A, which the loss counts in, it is B / (A + B), and an image counts by a power of the inverse.
    pub fn balance(&self, numbers: &[f32], level: Option<&Level>) -> f64 {
        let [slope, _, _, _, _, _, dark, .., kept] = numbers[..] else { return 1.0 };
        if self.balance == 0.0 || kept == 0.0 || slope == 0.0 {
            return 1.0;
        }
        // In units of the network, where the peak is 2: without light, and the light of a scene of mean a tenth.
        let variance = 4.0 * f64::from(dark).powi(2) + 0.2 * f64::from(slope);
        let open = match (&self.diffusion, level) {
            (Some(d), Some(level)) => match d.prediction {
                Prediction::Edm { .. } => d.prediction.coefficients(level).output.powi(2),
                _ => TYPICAL * level.ratio().powi(2) / (TYPICAL + level.ratio().powi(2)),
            },
            _ => TYPICAL,
        };
        let left = LEFT * variance;
        ((open + left) / left).powf(self.balance)
    }

    /// Whether the condition of this sample is dropped.
    pub fn drops(&self, seed: u64, number: u64) -> bool {
        self.drop > 0.0 && f64::from(key(seed, number, 0xD20).uniform(0)) < self.drop
    }

    /// Whether the class of this sample is dropped, and its context.
    pub fn drops_class(&self, seed: u64, number: u64) -> bool {
        self.drop_class > 0.0 && f64::from(key(seed, number, 0xD21).uniform(0)) < self.drop_class
    }
}

/// What a model that was trained like this says of itself.
pub fn about(config: &TaskConfig) -> model::Task {
    match config.kind {
        TaskKind::Segmentation => return model::Task::Segmentation { classes: config.classes },
        TaskKind::Mae => return model::Task::MaskedAutoencoder,
        TaskKind::Ijepa | TaskKind::Iwm => return model::Task::JointEmbedding,
        _ => {}
    }
    if config.kind == TaskKind::Instances {
        return model::Task::Instances;
    }
    if config.enlarge > 1 {
        return model::Task::Enlarging { factor: config.enlarge };
    }
    if !matches!(config.kind, TaskKind::Conditional | TaskKind::Prior) && !config.is_conditional_form() {
        return model::Task::Regression;
    }
    let (sigma_min, sigma_max) = (config.sigma_min, config.sigma_max);
    let finer = config.finer;
    let timesteps = match (config.schedule == OWN_BETAS, &config.betas[..]) {
        (false, &[first, last]) => model::Process::Timesteps {
            law: config.schedule.clone(),
            first,
            last,
            steps: config.timesteps,
            finer,
        },
        (_, betas) => model::Process::Betas { betas: betas.to_vec(), finer },
    };
    let (prediction, process) = match config.prediction {
        PredictionKind::Edm => (
            model::PredictionKind::Edm { sigma_data: config.sigma_data },
            model::Process::Edm { sigma_min, sigma_max, rho: 7.0 },
        ),
        PredictionKind::Epsilon => (model::PredictionKind::Epsilon, timesteps),
        PredictionKind::Sample => (model::PredictionKind::Sample, timesteps),
        PredictionKind::VPrediction => (model::PredictionKind::VPrediction, timesteps),
    };
    let condition = match config.kind {
        TaskKind::Prior => model::ConditionKind::None,
        _ => model::ConditionKind::Measurement,
    };
    model::Task::Diffusion { prediction, process, condition }
}

impl Diffusion {
    fn new(config: &TaskConfig) -> Result<Diffusion> {
        let range = [config.sigma_min, config.sigma_max];
        let edm = config.prediction == PredictionKind::Edm;
        let (law, last) = if edm {
            let law = LevelLaw::LogNormal { mean: config.mean, deviation: config.deviation };
            (law, exploding(config.sigma_max))
        } else {
            let schedule = match (config.schedule == OWN_BETAS, &config.betas[..]) {
                (true, betas) => Schedule::of_betas(betas)?,
                (false, &[first, last]) => {
                    Schedule::new(BetaLaw::named(&config.schedule)?, [first, last], config.timesteps)?
                }
                (false, betas) => {
                    let needed = "the first and the last beta; say task.schedule=custom for a table of all";
                    return setting("task.betas", format!("{} numbers", betas.len()), needed);
                }
            };
            let schedule =
                if config.finer == 1.0 { schedule } else { schedule.for_resolution(config.finer, 1.0)? };
            let last = schedule.level(schedule.len() - 1).unwrap_or(Level::CLEAN);
            (LevelLaw::Timesteps { schedule, below: 1.0 }, last)
        };
        law.check()?;
        let prediction = match config.prediction {
            PredictionKind::Edm => Prediction::Edm { sigma_data: config.sigma_data },
            PredictionKind::Epsilon => Prediction::Noise,
            PredictionKind::Sample => Prediction::Sample,
            PredictionKind::VPrediction => Prediction::Velocity,
        };
        let weight = match (config.weight, &law) {
            (WeightKind::Uniform, _) => Weight::Uniform,
            (WeightKind::Snr, _) => Weight::Snr,
            (WeightKind::MinSnr, _) => Weight::MinSnr(config.min_snr),
            (WeightKind::Edm, _) => Weight::Edm { sigma_data: config.sigma_data },
            (WeightKind::Bound, LevelLaw::Timesteps { schedule, .. }) => Weight::bound(schedule),
            (WeightKind::Bound, _) => {
                return setting("task.weight", "bound", "goes with timesteps: task.prediction is edm");
            }
        };
        Ok(Diffusion { prediction, weight, law, most: (config.at_most, last), range })
    }

    /// The level that a sample is trained at.
    pub fn level(&self, seed: u64, number: u64) -> Level {
        let key = key(seed, number, 0x1E0);
        // The law draws from the first block of the stream.
        if f64::from(key.uniform(8)) < self.most.0 {
            return self.most.1;
        }
        match self.law {
            LevelLaw::LogNormal { .. } => {
                let sigma = self.law.draw(key).sigma;
                exploding(sigma.clamp(self.range[0], self.range[1]))
            }
            LevelLaw::Timesteps { .. } => self.law.draw(key),
        }
    }

    /// The timesteps that levels are of.
    pub fn schedule(&self) -> Option<&Schedule> {
        match &self.law {
            LevelLaw::Timesteps { schedule, .. } => Some(schedule),
            LevelLaw::LogNormal { .. } => None,
        }
    }

    /// The noisiest level: what a condition alone tells shows there.
    pub fn last_level(&self) -> Level {
        self.most.1
    }

    /// The level with this noise per signal, in the form that the network gets.
    pub fn level_at(&self, ratio: f64) -> Level {
        match &self.law {
            LevelLaw::LogNormal { .. } => exploding(ratio),
            LevelLaw::Timesteps { schedule, .. } => {
                let nearest = |t: &usize| {
                    let level = schedule.level(*t).unwrap_or(Level::CLEAN);
                    (level.ratio() / ratio).ln().abs()
                };
                let best = (0..schedule.len()).min_by(|a, b| nearest(a).total_cmp(&nearest(b)));
                best.and_then(|t| schedule.level(t)).unwrap_or(Level::CLEAN)
            }
        }
    }
}

fn exploding(sigma: f64) -> Level {
    Level::new(1.0, sigma, Clock::LogSigma.time(sigma))
}

/// The key of one of a sample's draws.
pub fn key(seed: u64, number: u64, stream: u32) -> Key {
    Key { seed, step: number as u32, stream: stream | ((number >> 32) as u32) << 12 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_model::Photons;

    #[test]
    fn shares_of_levels_and_drops_are_as_asked() {
        let config = TaskConfig { at_most: 0.25, drop: 0.15, ..TaskConfig::default() };
        let task = Task::new(&config).unwrap();
        let n = 20_000u64;
        let diffusion = task.diffusion.as_ref().unwrap();
        let most = (0..n).filter(|i| diffusion.level(3, *i).sigma == 80.0).count() as f64 / n as f64;
        let dropped = (0..n).filter(|i| task.drops(3, *i)).count() as f64 / n as f64;
        // Four standard errors.
        assert!((most - 0.25).abs() < 4.0 * (0.25f64 * 0.75 / n as f64).sqrt(), "{most}");
        assert!((dropped - 0.15).abs() < 4.0 * (0.15f64 * 0.85 / n as f64).sqrt(), "{dropped}");
        let ln: Vec<f64> =
            (0..n).map(|i| diffusion.level(3, i).sigma.ln()).filter(|s| *s < 80f64.ln()).collect();
        let mean = ln.iter().sum::<f64>() / ln.len() as f64;
        assert!((mean + 1.2).abs() < 4.0 * 1.2 / (ln.len() as f64).sqrt(), "{mean}");
    }

    #[test]
    fn images_are_weighted_by_their_information() {
        let task = Task::new(&TaskConfig { balance: 1.0, ..TaskConfig::default() }).unwrap();
        let numbers = |peak| crate::data::camera::numbers(&Photons::new(2.0, 1.5, peak).unwrap());
        let last = task.diffusion.as_ref().unwrap().last_level();
        let of = |peak: f64| task.balance(&numbers(peak), Some(&last));
        // (4 (2 + 2.25) + 0.4 peak) / peak^2, a tenth of it, beside 0.25.
        let left = 0.1 * (17.0 + 8.0) / 400.0;
        assert!((of(20.0) / ((0.25 + left) / left) - 1.0).abs() < 1e-3, "{}", of(20.0));
        assert!(of(2000.0) > 50.0 * of(20.0) && of(2.0) > 1.0);
        // Where little noise is left in x the measurement tells nothing, and a dropped one never does.
        let clean = task.diffusion.as_ref().unwrap().level_at(1e-3);
        assert!((task.balance(&numbers(20.0), Some(&clean)) - 1.0).abs() < 1e-3);
        assert_eq!(task.balance(&[0.0; crate::data::NUMBERS], Some(&last)), 1.0);
    }

    #[test]
    fn timesteps_and_contradictions() {
        let config = TaskConfig {
            kind: TaskKind::Prior,
            prediction: PredictionKind::Epsilon,
            ..TaskConfig::default()
        };
        let task = Task::new(&config).unwrap();
        let level = task.diffusion.as_ref().unwrap().level_at(0.2);
        assert!((level.ratio() / 0.2 - 1.0).abs() < 0.05 && level.time.fract() == 0.0);
        let config = TaskConfig { weight: WeightKind::Bound, ..TaskConfig::default() };
        assert!(Task::new(&config).unwrap_err().to_string().starts_with("task.weight"));
    }
}
