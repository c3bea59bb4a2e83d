//! The start of a run and of its stages: networks, initial weights, batches, sources of samples.

use super::init::{ENCODER, encoder_model};
use super::save::{lock, refuse_begun};
use super::{Run, Working, init_model};
use crate::checkpoint::{self, Saved};
use crate::config::{DataKind, RunConfig, TaskKind, epochs};
use crate::data::camera;
use crate::data::draws::{Draws, From};
use crate::data::feed::Feed;
use crate::data::{Data, ErrorsFrom, Part, batch};
use crate::distributed::{KEPT, Ranks};
use crate::engine::{Engine, training_of};
use crate::error::{Result, TrainError, io, setting};
use crate::gan;
use crate::iteration::{self, Shapes};
use crate::pretraining::DOMAINS;
use crate::schedule::{asked_batch, batch_of};
use crate::task::Task;
use clearshot_graph::plan::human;
use clearshot_image::dataset::Balance;
use clearshot_image::lengths;
use clearshot_model::instances;
use clearshot_nn::models::{self, Network};
use clearshot_nn::{Param, Weights};
use clearshot_runtime::{CompileError, Device, available_bytes, gpus, plan};
use clearshot_tensor::Tensor;
use serde_json::{Map, Value as Json};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The last biases of networks, and how many images tell their first values.
const OUTPUT_BIASES: [&str; 2] = ["conv_out.bias", "output_block.conv.conv.bias"];
const CENTRED_BY: u64 = 16;

/// What the guard knows; at another size it knows nothing.
pub(super) const GUARD: &str = "guard.";

/// What is there of a run in a folder, for the rank that writes: its lock and which checkpoints are damaged go to `begun`.
pub(super) fn found(
    out: &Path,
    resume: bool,
    begun: &mut Option<(File, Vec<String>)>,
) -> Result<Option<Saved>> {
    std::fs::create_dir_all(out).map_err(io(out))?;
    let lock = lock(out)?;
    checkpoint::tidy(out)?;
    let (newest, damaged) = checkpoint::newest(out)?;
    let saved = match (newest, resume) {
        (Some(last), true) => Some(last),
        (None, true) => {
            let nothing = "no checkpoint to resume from; train without --resume in another --out".to_string();
            let reason = damaged.into_iter().chain([nothing]).collect::<Vec<_>>().join("; ");
            return Err(TrainError::Checkpoint { path: out.into(), reason });
        }
        (Some(_), false) => {
            let reason =
                "contains a run already; resume it with --resume, or choose another --out".to_string();
            return Err(TrainError::Checkpoint { path: out.into(), reason });
        }
        (None, false) => {
            refuse_begun(out)?;
            None
        }
    };
    *begun = Some((lock, damaged));
    Ok(saved)
}

/// Refuses what several ranks cannot do.
pub(super) fn check_ranks(ranks: &Ranks, config: &RunConfig) -> Result<()> {
    if ranks.size() > 1 && config.task.kind == TaskKind::Gan {
        let needed = "another task, or one rank: several ranks support tasks with one optimiser only";
        return setting("task.kind", "gan", needed);
    }
    Ok(())
}

impl Run<'_> {
    /// The network of a stage and the keys of its `config.json`.
    pub(super) fn network(&self, stage: usize) -> Result<(Box<dyn Network>, Map<String, Json>)> {
        let mut map = self.config.model.network.clone();
        if map.is_empty() {
            let needed = "a network: _class_name and its keys; model=... chooses one of the groups";
            return setting("model.network", "nothing", needed);
        }
        if self.is_growing() {
            let sizes: Vec<usize> = self.stages.iter().map(|s| s.size).collect();
            map.insert("resolutions".into(), sizes.into());
            map.insert("resolution".into(), self.stages[stage].size.into());
            map.insert("blend".into(), (stage > 0).into());
        }
        Ok((models::read(&Json::from(map.clone()).to_string())?, map))
    }

    /// The first stage, or that of a checkpoint.
    pub(super) fn begin(&mut self, states: Option<Weights>) -> Result<()> {
        if self.progress.batch == 0 {
            self.progress.batch = match asked_batch(&self.config.trainer) {
                Some(batch) => batch,
                None => {
                    // The same on all ranks: what suits the one with the least memory.
                    let own = self.largest_batch()? as f64;
                    let all = self.ranks.gathered(&[own])?.concat();
                    all.into_iter().fold(own, f64::min) as usize
                }
            };
        }
        let (network, _) = self.network(self.progress.stage)?;
        let states = match states {
            Some(states) => states,
            None => self.initial(&*network)?.into_iter().chain(self.initial_rival(&*network)?).collect(),
        };
        self.enter(states)?;
        if let (None, Some(complexity)) = (self.progress.total, self.config.trainer.epochs) {
            let source = self.data.source(Part::Training, &self.size(self.config.trainer.crop), None)?;
            let images = source.images().unwrap_or(1);
            let each = images.div_ceil(self.progress.batch * self.ranks.size()).max(1) as u64;
            self.progress.total = Some(epochs(images, complexity) * each);
        }
        Ok(())
    }

    /// Weights to start from.
    pub(super) fn initial(&self, network: &dyn Network) -> Result<Weights> {
        let params = network.parameters()?;
        let (Some(path), Some(model)) = (&self.config.model.init, init_model(&self.config)?) else {
            let mut weights = clearshot_nn::weights::initial(&params, self.config.seed);
            if let Some(model) = encoder_model(&self.config)? {
                let own = model.weights.into_iter().filter(|(name, _)| name.starts_with(ENCODER));
                weights.extend(own);
            }
            self.centre(&mut weights)?;
            return Ok(weights);
        };
        // What says the error is learned beside the rest, and a model may be without.
        let may_miss = |p: &Param| p.name.starts_with(models::ERROR) && !model.weights.contains_key(&p.name);
        let fits =
            |p: &&Param| may_miss(p) || model.weights.get(&p.name).is_some_and(|w| w.shape() == p.shape);
        let count = params.iter().filter(fits).count();
        if count < params.len() && !self.is_growing() {
            let needed = format!(
                "{count} of the {} weights of model.network fit those of the model; leave model.network out to take the model's own, \
                 and give it images of as many channels as it was trained on",
                params.len()
            );
            return setting("model.init", path.display(), needed);
        }
        Ok(models::growing::grow(&model.weights, &params, self.config.seed))
    }

    /// Weights that the discriminator of adversarial training starts from.
    fn initial_rival(&self, network: &dyn Network) -> Result<Weights> {
        let Some(gan) = &self.task.gan else { return Ok(Weights::new()) };
        // It is shown what the network is given, and what it makes.
        let params = gan.parameters(network.dims(), network.in_channels() + network.out_channels())?;
        Ok(clearshot_nn::weights::initial(&params, self.config.seed))
    }

    /// Lets the first output of a network that gives the image at once be the mean of images. Otherwise all weights move alike at
    /// first to get there, far beyond it before they turn back.
    fn centre(&self, weights: &mut Weights) -> Result<()> {
        let name = OUTPUT_BIASES.into_iter().find(|name| weights.contains_key(*name));
        let Some(bias) = name.and_then(|name| weights.get_mut(name)) else { return Ok(()) };
        let kind = self.task.kind;
        if self.task.diffusion.is_some() || kind == TaskKind::Segmentation || kind.is_pretraining() {
            return Ok(());
        }
        let size = self.size(self.stages[self.progress.stage].size);
        let whole = self.size(self.config.trainer.crop);
        let from = self.is_growing().then_some(&whole[..]);
        let source = self.data.source(Part::Training, &size, from)?;
        let targets = source.channels()[1];
        let channels = self.task.made_channels(size.len(), targets);
        if bias.shape().len() != channels {
            return Ok(());
        }
        let mut sums = vec![0f64; channels];
        let mut count = 0.0;
        for number in 0..CENTRED_BY {
            let sample = source.sample(number, self.data.in_turn(&*source, number))?;
            for pixel in sample.clean.chunks_exact(targets) {
                sums.iter_mut().zip(pixel).for_each(|(sum, v)| *sum += f64::from(*v));
                count += 1.0;
            }
        }
        *bias = Tensor::f32([channels], sums.iter().map(|sum| (sum / count) as f32).collect());
        Ok(())
    }

    /// Compiles the present stage and sets its states.
    pub(super) fn enter(&mut self, states: Weights) -> Result<()> {
        // The memory of the stage before is given back first.
        self.work = None;
        let (network, keys) = self.network(self.progress.stage)?;
        let states = models::growing::grow(&states, &network.parameters()?, self.config.seed)
            .into_iter()
            .chain(states.into_iter().filter(|(name, _)| is_kept(name)))
            .collect();
        let side = self.stages[self.progress.stage].size;
        let size = self.size(side);
        let whole = self.size(self.config.trainer.crop);
        let from = self.is_growing().then_some(&whole[..]);
        let source = self.data.source(Part::Training, &size, from)?;
        self.ranks.same("training files", &source.identity().unwrap_or_default())?;
        self.keep_to_files(source.identity())?;
        let own = batch_of(self.progress.batch, &self.config.trainer, side);
        let runs = self.config.trainer.accumulate;
        let each = own / runs;
        let (rank, ranks) = (self.ranks.rank() as u64, self.ranks.size() as u64);
        let images = own * self.ranks.size();
        let from_here = From { iteration: self.progress.iteration, sample: self.progress.images, images };
        let draws =
            Draws::new(&self.config.data, &*source, from_here, &mut self.progress.shares)?.map(Arc::new);
        let shapes = Shapes {
            batch: each,
            size: &size,
            channels: source.channels(),
            photons: self.data.photons(),
            domains: draws.as_ref().and_then(|d| d.followed()).unwrap_or(0),
            masked: source.is_masked(),
        };
        check_channels(&*network, &self.task, &shapes)?;
        // Errors of a validation are reported now, and not hundreds of iterations later.
        let judged = self.judged_size();
        let mut warnings = source.warnings();
        self.notes = source.notes();
        let estimated = self.data.errors_from().map(|from| match from {
            ErrorsFrom::Splits => {
                "scores are estimated from splits of the images by the noise of their camera"
            }
            ErrorsFrom::Repeats { .. } => "scores are estimated from other exposures of the same fields",
        });
        if let Some(said) = estimated {
            self.notes.push(said.into());
        } else if self.task.kind.is_of_noise() && !self.config.data.has_truth() {
            self.notes.push("scores are against noisy images: they can compare models, but are lower than against the truth".into());
        }
        let also = self.data.source(Part::Validation, &judged, from)?.warnings();
        warnings.extend(also.into_iter().filter(|w| !source.warnings().contains(w)));
        if let Err(why) = network.check_size(&judged) {
            return setting("validation.crop", lengths(&judged), why);
        }
        let mut engine =
            Engine::among(&self.ranks, &*network, &self.task, &shapes, &self.config, &self.device)
                .map_err(|e| with_room(e, each))?;
        let kept = engine.load(&states)?;
        if !kept && self.progress.iteration > 0 {
            self.notes.push(
                "the number of ranks has changed: what the compression of gradients had carried over is lost"
                    .into(),
            );
        }
        self.notes.extend(self.ranks.notes.iter().cloned());
        let first = self.progress.images;
        let (signal, [inputs, targets], lengths_of) = (source.signal(), source.channels(), size.clone());
        let channels = self.task.made_channels(size.len(), targets);
        let names = source.names();
        let (task, seed) = (self.task.clone(), self.config.seed);
        self.warnings = self.damaged.iter().cloned().chain(warnings).collect();
        let [workers, ahead] = self.workers();
        // Nothing is made before its domain is known.
        let ahead =
            draws.as_ref().map_or(ahead, |d| ahead.min(d.ahead().saturating_mul(runs as u64) as usize));
        let (dealt, domains) = (draws.clone(), source.domains());
        let feed = Feed::new(0, workers, ahead, move |i| {
            let domain = |n| dealt.as_ref().map(|d| d.domain(n));
            batch(&*source, first + (i * ranks + rank) * each as u64, each, &size, domain, |n| {
                task.drops(seed, n)
            })
        });
        self.work = Some(Working {
            network,
            keys,
            signal,
            size: lengths_of,
            inputs,
            channels,
            names,
            domains,
            draws,
            engine,
            feed,
            images,
            judge: None,
        });
        Ok(())
    }

    /// The files of a run are those that it began with, wherever they lie now.
    fn keep_to_files(&mut self, found: Option<String>) -> Result<()> {
        let key = if self.config.data.manifest.is_some() { "data.manifest" } else { "data.inputs" };
        match (&self.progress.files, &found) {
            (Some(began), Some(found)) if began != found => {
                let named = |what: &str, identity: &str| {
                    format!("{what} (identity {})", &identity[..12.min(identity.len())])
                };
                let (got, began) = (named("other files, or in other splits", found), named("its own", began));
                return Err(TrainError::Changed { key: key.into(), got, began });
            }
            _ => self.progress.files = found,
        }
        Ok(())
    }

    /// Threads that make samples, and batches made ahead.
    pub(super) fn workers(&self) -> [usize; 2] {
        let p = &self.config.performance;
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        let suited = match self.device {
            Device::Cpu { .. } => all.div_ceil(4),
            Device::Cuda { .. } => all.saturating_sub(1).max(1),
        };
        let suited = suited.div_ceil(self.ranks.on_this_machine());
        let workers = if p.workers > 0 { p.workers } else { suited };
        [workers, if p.ahead > 0 { p.ahead } else { 2 * workers }]
    }

    /// As many images as fit into the memory, by the plan.
    pub(super) fn largest_batch(&self) -> Result<usize> {
        let asked = self.config.memory()?;
        let memory = match (asked, self.device) {
            (Some(bytes), _) => bytes,
            (None, Device::Cpu { .. }) => {
                available_bytes().unwrap_or(1 << 30) / self.ranks.on_this_machine() / 10 * 9
            }
            (None, Device::Cuda { ordinal }) => {
                let found = gpus()?.into_iter().find(|g| g.ordinal == ordinal);
                found.map_or(1 << 30, |g| g.memory / self.ranks.on_this_device() / 10 * 9)
            }
        };
        let (network, _) = self.network(self.stages.len() - 1)?;
        let size = self.size(self.config.trainer.crop);
        let source = self.data.source(Part::Training, &size, None)?;
        let channels = source.channels();
        let follows = self.config.data.balance == Balance::Adaptive;
        let domains = if follows { source.domains().len() } else { 0 };
        let masked = source.is_masked();
        let photons = self.data.photons();
        let (training, options) = (training_of(&*network, &self.config, None, 1), self.config.options()?);
        let bytes = |batch: usize| -> Result<usize> {
            let shapes = Shapes { batch, size: &size, channels, photons, domains, masked };
            check_channels(&*network, &self.task, &shapes)?;
            let built =
                iteration::training(&*network, &self.task, &shapes, &self.config.model.only, &training)?;
            Ok(plan(built.graph, &self.device, &options)?.bytes())
        };
        let holds = |batch: usize| match bytes(batch) {
            // Not even by recomputing.
            Err(TrainError::Compile(CompileError::Budget(_))) => Ok(false),
            other => other.map(|needed| needed <= memory),
        };
        let needed = bytes(1)?;
        if needed > memory {
            let least = format!("one image of {} pixels takes {needed} bytes", lengths(&size));
            return setting("performance.memory", format!("{memory} bytes"), least);
        }
        let (mut fits, mut too_many) = (1, 2);
        while too_many <= 4096 && holds(too_many)? {
            (fits, too_many) = (too_many, 2 * too_many);
        }
        while too_many - fits > 1 {
            let middle = fits.midpoint(too_many);
            if holds(middle)? { fits = middle } else { too_many = middle }
        }
        Ok(fits * self.config.trainer.accumulate)
    }
}

/// An iteration of so many images that the device has no room for, with the number that it has room for.
fn with_room(e: TrainError, images: usize) -> TrainError {
    let TrainError::Compile(CompileError::NoRoom { needed, free, fixed }) = e else { return e };
    let of_each = needed.saturating_sub(fixed).max(1) as f64 / images as f64;
    let needed = format!(
        "running them takes {} and {} are free: a batch of about {} fits; trainer.batch=auto finds the largest, \
         performance.budget recomputes what does not fit, trainer.accumulate divides an iteration",
        human(needed),
        human(free),
        (free.saturating_sub(fixed) as f64 / of_each) as usize
    );
    TrainError::Setting { key: "trainer.batch".into(), got: format!("{images} images at once"), needed }
}

/// States other than parameters that a later stage keeps.
fn is_kept(name: &str) -> bool {
    ["adam.", "ema.", "sgd.", "train.", "record.", GUARD, KEPT, gan::PREFIX]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Where a network's channels are 0, makes them those that the task and the data give.
pub(super) fn fill_channels(config: &mut RunConfig, task: &Task, data: &Data) -> Result<()> {
    let left_open = |key: &str| config.model.network.get(key).and_then(Json::as_u64) == Some(0);
    let open: Vec<&str> = ["in_channels", "out_channels"].into_iter().filter(|key| left_open(key)).collect();
    if open.is_empty() {
        return Ok(());
    }
    let size: Vec<usize> = config.trainer.depth.into_iter().chain([config.trainer.crop; 2]).collect();
    let photons = data.photons();
    let exposed = config.data.kind == DataKind::Scenes || !config.task.kind.knows_no_camera();
    let channels = match config.data.is_simulated() && exposed {
        // One measured and one clean channel, or one of the foreground.
        true if task.kind == TaskKind::Instances => [1, instances::target_channels(size.len())],
        true => camera::CHANNELS,
        false => data.source(Part::Training, &size, None)?.channels(),
    };
    let shapes = Shapes { batch: 1, size: &size, channels, photons, domains: 0, masked: false };
    for key in open {
        let count =
            if key == "in_channels" { shapes.network_inputs(task) } else { shapes.network_outputs(task) };
        config.model.network.insert(key.into(), count.into());
    }
    Ok(())
}

/// Refuses networks that are not made for training without labels, and those that are made for nothing else.
fn check_pretraining(network: &dyn Network, task: &Task, shapes: &Shapes<'_>) -> Result<()> {
    let jepa = network.joint_embedding();
    let hides = network.masks(shapes.size).is_some();
    let needed = match task.kind {
        TaskKind::Mae if !hides || jepa.is_some() => {
            "one that hides patches, for task=mae: model=mae2d or mae3d"
        }
        kind if kind.has_teacher() && jepa.is_none() => {
            "one that predicts embeddings, for task=ijepa and iwm: model=jepa2d or jepa3d"
        }
        kind if hides && !kind.is_pretraining() => {
            "another: this one learns without labels (task=mae, ijepa or iwm); model=vit_segmentation takes its encoder"
        }
        _ => "",
    };
    if !needed.is_empty() {
        return setting("model.network", "this network", needed);
    }
    let asked = if task.kind == TaskKind::Iwm { DOMAINS } else { 0 };
    if let Some(got) = jepa.map(|j| j.domains()).filter(|d| *d != asked) {
        let needed = format!("{asked} for this task");
        return setting("model.network.domains", got, needed);
    }
    let [from, to] = shapes.channels;
    if task.kind == TaskKind::Iwm && from != to {
        let got = format!("inputs of {from} and targets of {to} channels");
        return setting(
            "data.targets",
            got,
            "of iwm, a target has as many channels as its input: one encoder sees both",
        );
    }
    Ok(())
}

/// Refuses a network for other channels than the task's, and data that no model could say of itself: it gives back the
/// channels that it is given.
fn check_channels(network: &dyn Network, task: &Task, shapes: &Shapes<'_>) -> Result<()> {
    let [from, to] = shapes.channels;
    if from != to && task.is_conditional() && task.diffusion.is_some() && !shapes.photons {
        let got = format!("inputs of {from} and targets of {to} channels");
        return setting("data.targets", got, "of diffusion, a target has as many channels as its input");
    }
    if shapes.photons && from != to {
        let got = format!("inputs of {from} and targets of {to} channels");
        return setting("data.targets", got, "of electrons, a target has as many channels as its input");
    }
    check_pretraining(network, task, shapes)?;
    let (wants, gets) = (network.in_channels(), shapes.network_inputs(task));
    if wants != gets {
        let needed = format!(
            "this task and these data give a network {gets} channels; set model.network.in_channels={gets}, or 0 for what fits"
        );
        return setting("model.network.in_channels", wants, needed);
    }
    if network.joint_embedding().is_none() && network.out_channels() != shapes.network_outputs(task) {
        let needed = format!(
            "this task and these data ask a network for {0} channels; set model.network.out_channels={0}, or 0 for what fits",
            shapes.network_outputs(task)
        );
        return setting("model.network.out_channels", network.out_channels(), needed);
    }
    if let Some(gan) = &task.gan {
        gan.check_size(shapes.size)?;
    }
    if network.dims() != shapes.size.len() {
        let needed = format!("crops have {} axes; trainer.depth is the third", shapes.size.len());
        return setting("model.network", format!("a network in {} dimensions", network.dims()), needed);
    }
    match network.check_size(shapes.size) {
        Ok(()) => Ok(()),
        Err(why) => setting("trainer.crop", lengths(shapes.size), why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TaskConfig;

    #[test]
    fn pairs_of_other_channels_in_than_out_are_for_supervised_networks() {
        let text = r#"{"_class_name": "UNet2DModel", "in_channels": 3, "out_channels": 1, "sample_size": 16,
            "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 8,
            "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
        let network = models::read(text).unwrap();
        let task = |kind| Task::new(&TaskConfig { kind, ..TaskConfig::default() }).unwrap();
        let shapes =
            Shapes { batch: 1, size: &[16, 16], channels: [3, 1], photons: false, domains: 0, masked: false };
        assert!(check_channels(&*network, &task(TaskKind::Supervised), &shapes).is_ok());
        let refused = check_channels(&*network, &task(TaskKind::Conditional), &shapes);
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with("data.targets: inputs of 3 and targets of 1 channels"), "{text}");
        // Electrons of each channel become nine.
        let colours = Shapes { channels: [3, 3], photons: true, ..shapes };
        let text = check_channels(&*network, &task(TaskKind::Supervised), &colours).unwrap_err().to_string();
        assert!(text.starts_with("model.network.in_channels: 3; ") && text.contains("27 channels"), "{text}");
    }
}
