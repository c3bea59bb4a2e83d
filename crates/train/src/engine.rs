//! A compiled iteration with its states, and the same for validation.

use crate::config::{CompileMode, OptimizerConfig, OptimizerKind, RunConfig};
use crate::data::{Batch, NUMBERS};
use crate::error::Result;
use crate::iteration::{self, Built, DOMAIN_LOSSES, DOMAIN_SAMPLES, Shapes};
use crate::task::{Task, key};
use clearshot_diffusion::{Level, LevelInputs};
use clearshot_graph::ops::{Adam, LossScale, Sgd};
use clearshot_graph::train::{Guard, Optimizer, Training};
use clearshot_nn::Weights;
use clearshot_nn::models::Network;
use clearshot_runtime::{Device, Options, Precision, Session, compile};
use clearshot_tensor::{Data, Fnv1a, Tensor};
use std::collections::BTreeSet;

/// States that an iteration need not find as it left them.
const PASSING: &str = "sum.";

/// Numbers of one iteration.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub rate: f64,
    pub ema_decay: f64,
    /// How far a growing network's last stage is blended in.
    pub alpha: f64,
    pub iteration: u64,
    /// The number of the iteration's first sample.
    pub first: u64,
}

/// See the module.
pub struct Engine {
    session: Session,
    levels: Option<LevelInputs>,
    inputs: BTreeSet<String>,
    task: Task,
    seed: u64,
    runs: usize,
    domains: usize,
}

/// What an iteration's end is like.
pub fn training_of(network: &dyn Network, config: &RunConfig) -> Training {
    let o: &OptimizerConfig = &config.optimizer;
    let [beta1, beta2] = o.betas;
    let adam = |decoupled| {
        Optimizer::Adam(Adam { beta1, beta2, eps: o.eps, weight_decay: o.weight_decay, decoupled })
    };
    let optimizer = match o.kind {
        OptimizerKind::Adamw => adam(true),
        OptimizerKind::Adam => adam(false),
        OptimizerKind::Sgd => {
            Optimizer::Sgd(Sgd { momentum: o.momentum, nesterov: false, weight_decay: o.weight_decay })
        }
    };
    let narrow = config.performance.precision == Precision::F16.to_string();
    let scaling = LossScale { growth: 2.0, backoff: 0.5, interval: 2000.0 };
    Training {
        optimizer,
        clip_norm: if o.clip > 0.0 { o.clip } else { f64::INFINITY },
        ema_decay: (config.trainer.ema_half_life > 0.0).then_some(0.0),
        ema_input: true,
        loss_scale: narrow.then_some((65_536.0, scaling)),
        runs: config.trainer.accumulate,
        base_fan_in: o
            .base_fan_in
            .or(network.base_fan_in())
            .filter(|n| *n > 0 && o.kind != OptimizerKind::Sgd),
        guard: (config.trainer.guard > 0.0).then_some(Guard { ratio: config.trainer.guard, ..Guard::USUAL }),
    }
}

fn open(
    built: Built,
    config: &RunConfig,
    device: &Device,
    options: &Options,
) -> Result<(Session, Option<LevelInputs>)> {
    let mut session = compile(built.graph, device, options)?;
    session.set_replay(matches!(
        config.model.compile_mode,
        CompileMode::ReduceOverhead | CompileMode::MaxAutotune
    ));
    Ok((session, built.levels))
}

fn inputs_of(session: &Session) -> BTreeSet<String> {
    session.plan().graph.inputs().map(|(name, _)| name.to_string()).collect()
}

fn states_of(session: &Session) -> Vec<String> {
    session.plan().graph.states().map(|(name, ..)| name.to_string()).collect()
}

impl Engine {
    /// # Errors
    /// If the network does not fit the task, or the device has not the memory.
    pub fn new(
        network: &dyn Network,
        task: &Task,
        shapes: &Shapes<'_>,
        config: &RunConfig,
        device: &Device,
    ) -> Result<Engine> {
        let built =
            iteration::training(network, task, shapes, &config.model.only, &training_of(network, config))?;
        let (session, levels) = open(built, config, device, &config.options()?)?;
        let inputs = inputs_of(&session);
        let (task, runs) = (task.clone(), config.trainer.accumulate);
        Ok(Engine { session, levels, inputs, task, seed: config.seed, runs, domains: shapes.domains })
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sets what it has a place for. An average or a moment that is not given starts where a new one does.
    ///
    /// # Errors
    /// If a parameter is missing, or of another shape.
    pub fn load(&mut self, states: &Weights) -> Result<()> {
        for name in states_of(&self.session) {
            let given = states.get(&name).or_else(|| states.get(name.strip_prefix("ema.")?));
            if let Some(value) = given {
                self.session.set(&name, value)?;
            }
        }
        Ok(())
    }

    /// All that an iteration needs to find: parameters, moments, averages, counters.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn states(&self) -> Result<Weights> {
        let names = states_of(&self.session).into_iter().filter(|n| !n.starts_with(PASSING));
        names.map(|name| Ok((name.clone(), self.session.get(&name)?))).collect()
    }

    /// The weights that become the model: averages where there are any.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn weights(&self, network: &dyn Network) -> Result<Weights> {
        let states: BTreeSet<String> = states_of(&self.session).into_iter().collect();
        let value = |name: &String| {
            let average = format!("ema.{name}");
            let from = if states.contains(&average) { &average } else { name };
            Ok((name.clone(), self.session.get(from)?))
        };
        network.parameters()?.iter().map(|p| value(&p.name)).collect()
    }

    fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        if self.inputs.contains(name) {
            self.session.set(name, value)?;
        }
        Ok(())
    }

    /// Which domain each sample is of, where their losses are told apart.
    fn set_domains(&mut self, of: &[usize]) -> Result<()> {
        let count = self.domains;
        let mut belongs = vec![0.0; of.len() * count];
        of.iter().enumerate().filter(|(_, d)| **d < count).for_each(|(i, d)| belongs[i * count + d] = 1.0);
        self.set("domains", &Tensor::f32([of.len(), count], belongs))
    }

    /// One iteration over the batches of its runs; on a GPU it is begun, and ended where it has several.
    ///
    /// # Errors
    /// If a batch is of another shape, or what went wrong on the device.
    pub fn step(&mut self, mut next: impl FnMut() -> Result<Batch>, n: &Numbers) -> Result<()> {
        let mut first = n.first;
        for run in 0..self.runs {
            let batch = next()?;
            self.set("measured", &batch.measured)?;
            self.set("clean", &batch.clean)?;
            self.set("numbers", &batch.numbers)?;
            let count = batch.domains.len();
            let words = (0..count as u64).flat_map(|i| key(self.seed, first + i, 0x401).words()).collect();
            self.set("noise_key", &Tensor::i32([count, 4], words))?;
            let level = |i: u64| Some(self.task.diffusion.as_ref()?.level(self.seed, first + i));
            let each: Vec<Level> = (0..count as u64).filter_map(level).collect();
            let numbers = batch.numbers.as_f32()?.chunks(NUMBERS).enumerate();
            let weighed =
                |(i, n): (usize, &[f32])| batch.weights[i] * self.task.balance(n, each.get(i)) as f32;
            let balance = numbers.map(weighed).collect();
            self.set("balance", &Tensor::f32([count], balance))?;
            self.set_domains(&batch.domains)?;
            if let Some(valid) = &batch.valid {
                self.set("valid", &valid.mask)?;
                self.set("valid_factors", &Tensor::f32([count], valid.factors.clone()))?;
            }
            if let Some(levels) = &self.levels {
                for (name, value) in levels.at_each(&each).filter(|(name, _)| self.inputs.contains(*name)) {
                    self.session.set(name, &value)?;
                }
            }
            self.set("key", &Tensor::i32([4], key(self.seed, first, 0xD0).words().to_vec()))?;
            for (term, ramp) in &self.task.terms {
                let weight = ramp.at(n.iteration) as f32;
                self.session.set(&format!("weight.{}", term.name()), &Tensor::scalar(weight))?;
            }
            let last = run + 1 == self.runs;
            for (name, value) in [
                ("rate", n.rate as f32),
                ("ema_decay", n.ema_decay as f32),
                ("alpha", n.alpha as f32),
                ("carry", if run == 0 { 0.0 } else { 1.0 }),
                ("gate", if last { 0.0 } else { f32::INFINITY }),
            ] {
                self.set(name, &Tensor::scalar(value))?;
            }
            self.session.run()?;
            first += count as u64;
        }
        if self.runs > 1 && self.number("grad_norm")?.is_none_or(|norm| !norm.is_finite()) {
            self.clear_sums()?;
        }
        Ok(())
    }

    /// A number of the last run, if the graph gives it.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let graph = &self.session.plan().graph;
        if graph.output(name).is_none() && !graph.states().any(|(n, ..)| n == name) {
            return Ok(None);
        }
        Ok(self.session.get(name)?.to_f64().first().copied())
    }

    /// The sum of losses starts again.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn clear_loss(&mut self) -> Result<()> {
        Ok(self.session.set("record.loss", &Tensor::scalar(0.0))?)
    }

    /// The mean loss of each domain since this was last asked for, where they are told apart; no number for one without samples.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn take_domain_losses(&mut self) -> Result<Vec<f64>> {
        if self.domains == 0 {
            return Ok(vec![]);
        }
        let [losses, samples] = [DOMAIN_LOSSES, DOMAIN_SAMPLES].map(|name| self.session.get(name));
        let (losses, samples) = (losses?.to_f64(), samples?.to_f64());
        for name in [DOMAIN_LOSSES, DOMAIN_SAMPLES] {
            self.session.set(name, &Tensor::zeros([self.domains]))?;
        }
        Ok(losses.iter().zip(samples).map(|(loss, n)| loss / n).collect())
    }

    /// Forgets sums that are not finite, which no factor makes zero: the next iteration would be skipped for them too.
    fn clear_sums(&mut self) -> Result<()> {
        for name in states_of(&self.session).into_iter().filter(|n| n.starts_with(PASSING)) {
            let shape = self.session.get(&name)?.shape();
            self.session.set(&name, &Tensor::zeros(shape))?;
        }
        Ok(())
    }
}

/// The estimates that a network gives, for scores.
pub struct Judge {
    session: Session,
    levels: Option<LevelInputs>,
    inputs: BTreeSet<String>,
    batch: usize,
}

impl Judge {
    /// # Errors
    /// As [`Engine::new`].
    pub fn new(
        network: &dyn Network,
        task: &Task,
        shapes: &Shapes<'_>,
        config: &RunConfig,
        device: &Device,
    ) -> Result<Judge> {
        let built = iteration::validation(network, task, shapes)?;
        let options = Options { budget: None, ..config.options()? };
        let (session, levels) = open(built, config, device, &options)?;
        let inputs = inputs_of(&session);
        Ok(Judge { session, levels, inputs, batch: shapes.batch })
    }

    /// # Errors
    /// If a weight is missing.
    pub fn load(&mut self, weights: &Weights, alpha: f64) -> Result<()> {
        for name in states_of(&self.session) {
            if let Some(value) = weights.get(&name) {
                self.session.set(&name, value)?;
            }
        }
        if self.inputs.contains("alpha") {
            self.session.set("alpha", &Tensor::scalar(alpha as f32))?;
        }
        Ok(())
    }

    /// Estimates of a batch at a level. `first` numbers the noise.
    ///
    /// # Errors
    /// If the batch is of another shape, or what went wrong on the device.
    pub fn estimate(
        &mut self,
        batch: &Batch,
        level: Option<&Level>,
        seed: u64,
        first: u64,
    ) -> Result<Tensor> {
        for (name, value) in
            [("measured", &batch.measured), ("clean", &batch.clean), ("numbers", &batch.numbers)]
        {
            if self.inputs.contains(name) {
                self.session.set(name, value)?;
            }
        }
        if self.inputs.contains("noise_key") {
            let words = (0..self.batch as u64).flat_map(|i| key(seed, first + i, 0x7A1).words()).collect();
            self.session.set("noise_key", &Tensor::i32([self.batch, 4], words))?;
        }
        if let (Some(levels), Some(level)) = (&self.levels, level) {
            for (name, value) in levels.at(level).filter(|(name, _)| self.inputs.contains(*name)) {
                self.session.set(name, &value)?;
            }
        }
        self.session.run()?;
        Ok(self.session.get("estimate")?)
    }
}

/// A number that two sets of states share only if they are the same bits: FNV-1a over names and values.
pub fn digest(states: &Weights) -> u64 {
    let mut hash = Fnv1a::default();
    for (name, value) in states {
        hash.add(name.as_bytes());
        match value.data() {
            Data::F32(v) => v.iter().for_each(|x| hash.add(&x.to_bits().to_le_bytes())),
            other => hash.add(format!("{other:?}").as_bytes()),
        }
    }
    hash.finish()
}
