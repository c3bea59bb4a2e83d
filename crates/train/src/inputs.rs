//! The inputs of an iteration or validation: every input of the compiled graph gets its value here.
//!
//! Which inputs exist depends on network, task and data, and unused ones are removed in compiling. Names are therefore
//! looked up once, and an input without a value is an error before anything runs.

use crate::conditioning::PREFIX;
use crate::data::{Batch, NUMBERS, image_shape};
use crate::engine::Numbers;
use crate::error::{Result, TrainError};
use crate::task::{Task, Term, key};
use clearshot_diffusion::{Level, LevelInputs};
use clearshot_nn::models::vit::Masks;
use clearshot_runtime::Session;
use clearshot_tensor::Tensor;
use std::borrow::Cow;

/// Streams of the noise of training, of validation, and of what networks drop.
const TRAINING: u32 = 0x401;
const VALIDATION: u32 = 0x7A1;
const DROPPED: u32 = 0xD0;

/// Streams of which patches are hidden, and of whose embeddings are predicted.
const PATCHES: u32 = 0x3A5;
const PARTNER: u32 = 0x1D3;
const OF_VALIDATION: u32 = 0x800;

/// One input of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Measured,
    Clean,
    Numbers,
    NoiseKey,
    /// How much each sample counts.
    Balance,
    /// Which domain each sample is of.
    Domains,
    Valid,
    ValidFactors,
    /// Of what a network drops.
    DropKey,
    Rate,
    EmaDecay,
    Alpha,
    /// Whether gradients of runs before are added.
    Carry,
    /// Infinite in the runs before the last.
    Gate,
    /// Of a further term of the loss.
    Weight(Term),
    /// The conditions of the network other than the measurement, by their names in the network.
    Condition(&'static str),
    /// Rows of patches that are seen and that are hidden, and where each stands when those lie behind each other.
    Visible,
    Hidden,
    Order,
    /// Whose embeddings are predicted of each sample: 0 for its own, 1 for its partner's; and the same as a factor.
    Partner,
    PartnerShare,
    /// One that follows from the levels.
    Level,
}

impl Input {
    fn named(name: &str) -> Option<Input> {
        Some(match name {
            "measured" => Input::Measured,
            "clean" => Input::Clean,
            "numbers" => Input::Numbers,
            "noise_key" => Input::NoiseKey,
            "balance" => Input::Balance,
            "domains" => Input::Domains,
            "valid" => Input::Valid,
            "valid_factors" => Input::ValidFactors,
            "key" => Input::DropKey,
            "rate" => Input::Rate,
            "ema_decay" => Input::EmaDecay,
            "alpha" => Input::Alpha,
            "carry" => Input::Carry,
            "gate" => Input::Gate,
            "visible" => Input::Visible,
            "hidden" => Input::Hidden,
            "order" => Input::Order,
            "partner" => Input::Partner,
            "partner_share" => Input::PartnerShare,
            _ if name.starts_with(PREFIX) => {
                let known = ["class", "vector", "context"];
                Input::Condition(known.into_iter().find(|port| name.ends_with(port))?)
            }
            _ => {
                let term = name.strip_prefix("weight.")?;
                Input::Weight(Term::ALL.into_iter().find(|t| t.name() == term)?)
            }
        })
    }
}

/// The inputs of a compiled graph.
pub(crate) struct Inputs {
    all: Vec<(String, Input)>,
    levels: Option<LevelInputs>,
    domains: usize,
    masks: Option<Masks>,
}

/// What one run of a graph is of.
pub(crate) struct Given<'a> {
    pub batch: &'a Batch,
    pub task: &'a Task,
    pub seed: u64,
    /// The number of its first sample.
    pub first: u64,
    /// The level of each sample, where there are levels.
    pub levels: &'a [Level],
    pub numbers: Numbers,
    /// Whether it is the first and the last run of its iteration.
    pub ends: [bool; 2],
    pub is_validation: bool,
}

impl Inputs {
    /// # Errors
    /// If the graph has an unknown input.
    pub fn of(
        session: &Session,
        levels: Option<LevelInputs>,
        domains: usize,
        masks: Option<Masks>,
    ) -> Result<Inputs> {
        let mut all = Vec::new();
        for (name, _) in session.plan().graph.inputs() {
            let is_level = levels.as_ref().is_some_and(|l| l.has(name));
            let input = if is_level { Some(Input::Level) } else { Input::named(name) };
            let Some(input) = input else {
                return Err(TrainError::Input { name: name.into(), why: "training has no value for it" });
            };
            all.push((name.to_string(), input));
        }
        Ok(Inputs { all, levels, domains, masks })
    }

    /// Sets all of them.
    ///
    /// # Errors
    /// If the batch lacks what the graph was built for, or is of another shape.
    pub fn set(&self, session: &mut Session, given: &Given<'_>) -> Result<()> {
        for (name, input) in self.all.iter().filter(|(_, input)| *input != Input::Level) {
            session.set(name, self.value(*input, given)?.as_ref())?;
        }
        if let Some(levels) = &self.levels {
            let is_there = |name: &str| self.all.iter().any(|(n, i)| *i == Input::Level && n == name);
            for (name, value) in levels.at_each(given.levels).filter(|(name, _)| is_there(name)) {
                session.set(name, &value)?;
            }
        }
        Ok(())
    }

    fn value<'g>(&self, input: Input, given: &Given<'g>) -> Result<Cow<'g, Tensor>> {
        let Given { batch, task, seed, first, numbers: n, .. } = *given;
        let count = batch.domains.len();
        let scalar = |value: f64| Tensor::scalar(value as f32);
        let own = |stream: u32| {
            let stream = if given.is_validation { stream | OF_VALIDATION } else { stream };
            (0..count as u64).map(move |i| key(seed, first + i, stream))
        };
        let rows = || {
            let why = "the network hides no patches";
            let masks = self.masks.as_ref().ok_or(TrainError::Input { name: "visible".into(), why })?;
            Ok::<_, TrainError>(masks.rows(own(PATCHES)))
        };
        let partners = || own(PARTNER).map(|key| f64::from(key.uniform(0)) < task.partner);
        let valid = || {
            let why = "the batch marks no pixels as valid";
            batch.valid.as_ref().ok_or(TrainError::Input { name: "valid".into(), why })
        };
        Ok(Cow::Owned(match input {
            Input::Measured => return Ok(Cow::Borrowed(&batch.measured)),
            Input::Clean => return Ok(Cow::Borrowed(&batch.clean)),
            Input::Numbers => return Ok(Cow::Borrowed(&batch.numbers)),
            Input::NoiseKey => {
                let stream = if given.is_validation { VALIDATION } else { TRAINING };
                let words = (0..count as u64).flat_map(|i| key(seed, first + i, stream).words()).collect();
                Tensor::i32([count, 4], words)
            }
            Input::Balance => {
                let weighed = |(i, n): (usize, &[f32])| task.balance(n, given.levels.get(i)) as f32;
                let numbers = batch.numbers.as_f32()?.chunks(NUMBERS).enumerate();
                Tensor::f32([count], numbers.map(weighed).collect())
            }
            Input::Domains => {
                let mut belongs = vec![0.0; count * self.domains];
                let known = batch.domains.iter().enumerate().filter(|(_, d)| **d < self.domains);
                known.for_each(|(i, d)| belongs[i * self.domains + d] = 1.0);
                Tensor::f32([count, self.domains], belongs)
            }
            Input::Valid => return Ok(Cow::Borrowed(&valid()?.mask)),
            Input::ValidFactors => Tensor::f32([count], valid()?.factors.clone()),
            Input::DropKey => Tensor::i32([4], key(seed, first, DROPPED).words().to_vec()),
            Input::Rate => scalar(n.rate),
            Input::EmaDecay => scalar(n.ema_decay),
            Input::Alpha => scalar(n.alpha),
            Input::Carry => scalar(if given.ends[0] { 0.0 } else { 1.0 }),
            Input::Gate => scalar(if given.ends[1] { 0.0 } else { f64::INFINITY }),
            Input::Weight(term) => {
                let ramp = task.terms.iter().find(|(t, _)| *t == term).map(|(_, ramp)| ramp);
                scalar(ramp.map_or(0.0, |ramp| ramp.at(n.iteration)))
            }
            Input::Condition(port) => {
                let why = "the task is conditioned on nothing";
                let lacks = || TrainError::Input { name: port.into(), why };
                let conditioned = task.conditioned.as_ref().ok_or_else(lacks)?;
                let dropped = |i: usize| !given.is_validation && task.drops_class(seed, first + i as u64);
                conditioned.values(port, batch, dropped)?
            }
            Input::Visible => rows()?.visible,
            Input::Hidden => rows()?.hidden,
            Input::Order => rows()?.order,
            Input::Partner => Tensor::i32([count], partners().map(i32::from).collect()),
            Input::PartnerShare => {
                let shape = image_shape(count, &vec![1; batch.clean.shape().rank() - 2], 1);
                Tensor::f32(shape, partners().map(|p| f32::from(u8::from(p))).collect())
            }
            Input::Level => unreachable!("levels are set together"),
        }))
    }
}
