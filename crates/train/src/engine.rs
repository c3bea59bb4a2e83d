//! A compiled iteration with its states, and the same for validation.

use crate::config::{CompileMode, OptimizerConfig, OptimizerKind, RunConfig};
use crate::data::Batch;
use crate::distributed::{Carrier, Ranks};
use crate::error::Result;
use crate::inputs::{Given, Inputs};
use crate::iteration::{self, BEYOND, Built, DOMAIN_LOSSES, DOMAIN_SAMPLES, Shapes, TERM};
use crate::task::Task;
use clearshot_diffusion::{Level, LevelInputs};
use clearshot_graph::Graph;
use clearshot_graph::ops::{Adam, LossScale, Sgd};
use clearshot_graph::train::{EncoderRates, Guard, Optimizer, Training};
use clearshot_nn::Weights;
use clearshot_nn::models::Network;
use clearshot_nn::models::vit::Encoder;
use clearshot_runtime::{Device, Options, Precision, Session, compile};
use clearshot_tensor::{Data, Fnv1a, Tensor};
use clearshot_timeline::{Phase, span};
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
    inputs: Inputs,
    task: Task,
    seed: u64,
    runs: usize,
    domains: usize,
    /// This rank and how many there are; what carries gradients between them.
    ranks: [usize; 2],
    carrier: Option<Carrier>,
}

/// What an iteration's end is like. `bucket` is for several ranks: the bytes of gradients that travel together.
pub fn training_of(
    network: &dyn Network,
    config: &RunConfig,
    bucket: Option<usize>,
    ranks: usize,
) -> Training {
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
        // A teacher is the average.
        ema_decay: (config.trainer.ema_half_life > 0.0 || config.task.kind.has_teacher()).then_some(0.0),
        ema_input: true,
        loss_scale: narrow.then_some((65_536.0, scaling)),
        runs: config.trainer.accumulate,
        base_fan_in: o
            .base_fan_in
            .or(network.base_fan_in())
            .filter(|n| *n > 0 && o.kind != OptimizerKind::Sgd),
        encoder: (o.encoder_rate != 1.0 || o.layer_decay != 1.0).then(|| EncoderRates {
            share: o.encoder_rate,
            decay: o.layer_decay,
            blocks: network.encoder().map_or(0, Encoder::blocks),
        }),
        bucket,
        name: None,
        ranks,
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
        Engine::among(&Ranks::alone(), network, task, shapes, config, device)
    }

    /// One of several ranks.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn among(
        ranks: &Ranks,
        network: &dyn Network,
        task: &Task,
        shapes: &Shapes<'_>,
        config: &RunConfig,
        device: &Device,
    ) -> Result<Engine> {
        let bucket = ranks.collective().map(|_| config.bucket(device)).transpose()?;
        let training = training_of(network, config, bucket, ranks.size());
        let built = iteration::training(network, task, shapes, &config.model.only, &training)?;
        let (mut session, levels) = open(built, config, device, &config.options()?)?;
        let carrier = Carrier::of(ranks, &mut session, config)?;
        let inputs = Inputs::of(&session, levels, shapes.domains, network.masks(shapes.size))?;
        let (task, runs) = (task.clone(), config.trainer.accumulate);
        let (seed, domains) = (config.seed, shapes.domains);
        let ranks = [ranks.rank(), ranks.size()];
        Ok(Engine { session, inputs, task, seed, runs, domains, ranks, carrier })
    }

    /// The exchange of gradients with other ranks, if there are any.
    pub fn carrier(&self) -> Option<&Carrier> {
        self.carrier.as_ref()
    }

    /// What was read of the session, unless another rank is gone: what a GPU waited for in vain is not to be used.
    fn sound<T>(&self, read: Result<T>) -> Result<T> {
        self.carrier.as_ref().map_or(Ok(()), Carrier::check)?;
        read
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sets what it has a place for. An average or a moment that is not given starts where a new one does. Says whether what compression of
    /// gradients keeps fits; with another number of ranks it begins again.
    ///
    /// # Errors
    /// If a parameter is missing, or of another shape.
    pub fn load(&mut self, states: &Weights) -> Result<bool> {
        for name in states_of(&self.session) {
            let given = states.get(&name).or_else(|| states.get(name.strip_prefix("ema.")?));
            if let Some(value) = given {
                self.session.set(&name, value)?;
            }
        }
        Ok(self.carrier.as_ref().is_none_or(|c| c.load(states)))
    }

    /// All that an iteration needs to find: parameters, moments, averages, counters, and what compression keeps. Every rank asks together.
    ///
    /// # Errors
    /// Errors of the device, or of another rank.
    pub fn states(&self) -> Result<Weights> {
        let names = states_of(&self.session).into_iter().filter(|n| !n.starts_with(PASSING));
        let read = names.map(|name| Ok((name.clone(), self.session.get(&name)?))).collect::<Result<_>>();
        let mut all: Weights = self.sound(read)?;
        if let Some(carrier) = &self.carrier {
            all.extend(carrier.states()?);
        }
        Ok(all)
    }

    /// The weights that become the model: averages where there are any.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn weights(&self, network: &dyn Network) -> Result<Weights> {
        let states: BTreeSet<String> = states_of(&self.session).into_iter().collect();
        let value = |name: &String| {
            let average = format!("ema.{name}");
            let from = if states.contains(&average) { &average } else { name };
            Ok((name.clone(), self.session.get(from)?))
        };
        network.parameters()?.iter().map(|p| value(&p.name)).collect()
    }

    /// One iteration over the batches of its runs; on a GPU it is begun, and ended where it has several. Of the samples of a run, ranks have stretches
    /// one behind the other, so that together they see what one process would that has as many images.
    ///
    /// # Errors
    /// If a batch is of another shape, or what went wrong on the device.
    pub fn step(&mut self, mut next: impl FnMut() -> Result<Batch>, n: &Numbers) -> Result<()> {
        let [rank, ranks] = self.ranks;
        for run in 0..self.runs {
            let batch = next()?;
            let count = batch.domains.len() as u64;
            let first = n.first + (run * ranks + rank) as u64 * count;
            let is_last = run + 1 == self.runs;
            let level = |i: u64| Some(self.task.diffusion.as_ref()?.level(self.seed, first + i));
            let levels: Vec<Level> = (0..count).filter_map(level).collect();
            let given = Given {
                batch: &batch,
                task: &self.task,
                seed: self.seed,
                first,
                levels: &levels,
                numbers: *n,
                ends: [run == 0, is_last],
                is_validation: false,
            };
            let copying = span(Phase::Copying);
            self.inputs.set(&mut self.session, &given)?;
            drop(copying);
            if let Some(carrier) = &self.carrier {
                carrier.begin_run(n.iteration, is_last);
                self.session.set_gradients_travel(is_last);
            }
            let ran = self.session.run();
            self.sound(ran.map_err(Into::into))?;
        }
        if self.runs > 1 && self.number("grad_norm")?.is_none_or(|norm| !norm.is_finite()) {
            self.clear_sums()?;
        }
        Ok(())
    }

    /// A number of the last run, if the graph gives it.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let graph = &self.session.plan().graph;
        if graph.output(name).is_none() && !graph.states().any(|(n, ..)| n == name) {
            return Ok(None);
        }
        let read = self.sound(self.session.get(name).map_err(Into::into))?;
        Ok(read.to_f64().first().copied())
    }

    /// The parts of the last run's loss, whatever the graph says that they are.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn terms(&self) -> Result<Vec<(String, f64)>> {
        let names = self.session.plan().graph.outputs.iter().map(|o| &o.name);
        let parts = names.filter(|name| name.starts_with(TERM));
        parts.map(|name| Ok((name.clone(), self.number(name)?.unwrap_or(f64::NAN)))).collect()
    }

    /// The sum of losses starts again.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn clear_loss(&mut self) -> Result<()> {
        Ok(self.session.set("record.loss", &Tensor::scalar(0.0))?)
    }

    /// The mean loss of each domain since this was last asked for, if they are separated; NaN for one without samples.
    ///
    /// # Errors
    /// Errors of the device.
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
    inputs: Inputs,
    task: Task,
    batch: usize,
    /// How far a growing network's last stage is blended in.
    alpha: f64,
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
        Judge::changed(network, task, shapes, config, device, Ok)
    }

    /// With its graph changed before it is compiled.
    ///
    /// # Errors
    /// As [`Judge::new`], or what `change` says.
    pub fn changed(
        network: &dyn Network,
        task: &Task,
        shapes: &Shapes<'_>,
        config: &RunConfig,
        device: &Device,
        change: impl FnOnce(Graph) -> Result<Graph>,
    ) -> Result<Judge> {
        let mut built = iteration::validation(network, task, shapes)?;
        built.graph = change(built.graph)?;
        let options = Options { budget: None, ..config.options()? };
        let (session, levels) = open(built, config, device, &options)?;
        let inputs = Inputs::of(&session, levels, 0, network.masks(shapes.size))?;
        Ok(Judge { session, inputs, task: task.clone(), batch: shapes.batch, alpha: 1.0 })
    }

    /// # Errors
    /// If a weight is missing.
    pub fn load(&mut self, weights: &Weights, alpha: f64) -> Result<()> {
        for name in states_of(&self.session) {
            if let Some(value) = weights.get(&name) {
                self.session.set(&name, value)?;
            }
        }
        self.alpha = alpha;
        Ok(())
    }

    /// Whether the network says how large its errors may be.
    pub fn says_error(&self) -> bool {
        self.session.plan().graph.output(BEYOND).is_some()
    }

    /// An output of the last estimate.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn output(&self, name: &str) -> Result<Tensor> {
        Ok(self.session.get(name)?)
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
        let levels = vec![*level.unwrap_or(&Level::CLEAN); self.batch];
        let numbers = Numbers { rate: 0.0, ema_decay: 0.0, alpha: self.alpha, iteration: 0, first };
        let given = Given {
            batch,
            task: &self.task,
            seed,
            first,
            levels: &levels,
            numbers,
            ends: [true, true],
            is_validation: true,
        };
        self.inputs.set(&mut self.session, &given)?;
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
