//! Training data: sample `i` is a pure function of (seed, `i`), independent of the threads that make it.
//!
//! Clean images come from generated scenes ([`scenes`]) or files ([`files`]) and pass through a simulated camera
//! ([`camera`]), with masks of their objects for segmentation ([`segments`]), on a coarser grid for super-resolution
//! ([`finer`]), or scaled by their own range for training without labels ([`views`]). Files may also be pairs ([`fit`]),
//! repeats, or only noisy, with their own camera ([`real`]). Tasks without clean images convert these samples
//! ([`learning`]). The domain of a sample may follow from shares ([`draws`]). Batches are prepared by threads ([`feed`]).

pub mod blind;
pub mod camera;
mod division;
pub mod draws;
pub mod feed;
pub mod files;
pub mod finer;
pub mod fit;
pub mod learning;
pub mod pace;
pub mod real;
pub mod scenes;
pub mod segments;
mod shared;
pub mod split;
pub mod views;

use crate::config::{DataConfig, DataKind, RunConfig, SignalKind, TaskKind};
use crate::error::{Result, setting};
use crate::run::init_model;
use clearshot_image::dataset::{Balance, Store};
use clearshot_model::familiar::{LEAST, statistics};
use clearshot_model::{Familiar, Signal};
use clearshot_tensor::{Shape, Tensor};
use files::{Files, Shared};
use finer::Finer;
use learning::Learning;
use real::RealCameras;
use scenes::{Pool, Scenes};
use segments::{Segments, Wanted};
use std::path::Path;
use std::sync::Arc;
use views::Views;

/// Numbers that go with a measured image; see [`camera::numbers`].
pub const NUMBERS: usize = 8 + clearshot_model::signal::LAGS;

/// One image to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The measurement, channels last: electrons, or a normalised input.
    pub measured: Vec<f32>,
    /// The target, approximately in [-1, 1].
    pub clean: Vec<f32>,
    pub numbers: [f32; NUMBERS],
    /// What a scene's brightest value is in `clean`, above -1.
    pub scale: f32,
    /// Which of [`Source::domains`] it belongs to.
    pub domain: usize,
    /// 1 for pixels that hold a measurement and 0 for others, which are filled from their neighbours; nothing where all count.
    pub valid: Option<Vec<f32>>,
}

impl Sample {
    /// A sample of files, all of whose pixels count.
    pub fn plain(measured: Vec<f32>, clean: Vec<f32>, numbers: [f32; NUMBERS]) -> Sample {
        Sample { measured, clean, numbers, scale: 2.0, domain: 0, valid: None }
    }
}

impl DataConfig {
    /// Whether a simulated camera takes the images.
    pub fn is_simulated(&self) -> bool {
        matches!(self.kind, DataKind::Scenes | DataKind::Clean)
    }

    /// Whether there are images that stand for the truth.
    pub fn has_truth(&self) -> bool {
        self.is_simulated() || self.kind == DataKind::Pairs
    }
}

/// The basis for estimating errors against an unknown truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorsFrom {
    /// Splits of the images by the noise that their camera has.
    Splits,
    /// The mean of so many other exposures of the same field.
    Repeats { averaged: usize },
}

/// Where samples come from.
pub trait Source: Send + Sync {
    /// A sample of one of [`Source::domains`], or of whichever falls to its number.
    ///
    /// # Errors
    /// If a file cannot be read.
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample>;

    /// The kinds of images.
    fn domains(&self) -> Vec<String>;

    /// How many files each of them has; 1 where none has any.
    fn files_of_domains(&self) -> Vec<usize> {
        vec![1; self.domains().len()]
    }

    /// Channels of what is measured and of what is clean.
    fn channels(&self) -> [usize; 2];

    /// Names of the clean image's channels; empty if unknown.
    fn names(&self) -> Vec<String> {
        vec![]
    }

    /// How numbers of files become the network's.
    fn signal(&self) -> Signal {
        Signal::Photons
    }

    /// Whether its samples say which of their pixels are valid.
    fn is_masked(&self) -> bool {
        false
    }

    /// How many images there are, if they end.
    fn images(&self) -> Option<usize> {
        None
    }

    /// How many crops there are that share no pixel, if they end.
    fn distinct(&self) -> Option<f64> {
        None
    }

    /// Which files there are, as one number; see [`clearshot_image::dataset::Listing::identity`].
    fn identity(&self) -> Option<String> {
        None
    }

    /// Warnings about the data.
    fn warnings(&self) -> Vec<String> {
        vec![]
    }

    /// Properties of the data, and decisions based on them.
    fn notes(&self) -> Vec<String> {
        vec![]
    }
}

/// Samples of one run of the graph, as its inputs.
pub struct Batch {
    pub measured: Tensor,
    pub clean: Tensor,
    pub numbers: Tensor,
    /// As each [`Sample::scale`].
    pub scales: Vec<f32>,
    pub domains: Vec<usize>,
    /// The names of the domains.
    pub domain_names: Vec<String>,
    pub valid: Option<Valid>,
}

/// Which pixels of a batch hold a measurement.
pub struct Valid {
    /// 1 or 0, of one channel.
    pub mask: Tensor,
    /// All pixels over those that count, of each sample; 0 where none does.
    pub factors: Vec<f32>,
}

impl Valid {
    fn new(mask: Tensor, each: usize) -> Result<Valid> {
        let factor = |part: &[f32]| {
            let kept: f32 = part.iter().sum();
            if kept > 0.0 { each as f32 / kept } else { 0.0 }
        };
        let factors = mask.as_f32()?.chunks_exact(each).map(factor).collect();
        Ok(Valid { mask, factors })
    }
}

/// The batch of samples `first` and on; `size` is (Z,) Y, X. Some have a given domain, and of some the condition is
/// dropped.
///
/// # Errors
/// If a sample cannot be had.
pub fn batch(
    source: &dyn Source,
    first: u64,
    count: usize,
    size: &[usize],
    domain: impl Fn(u64) -> Option<usize>,
    drops: impl Fn(u64) -> bool,
) -> Result<Batch> {
    let [from, to] = source.channels();
    let pixels: usize = size.iter().product();
    let mut measured = Vec::with_capacity(count * pixels * from);
    let mut clean = Vec::with_capacity(count * pixels * to);
    let mut numbers = Vec::with_capacity(count * NUMBERS);
    let mut valid = source.is_masked().then(|| Vec::with_capacity(count * pixels));
    let (mut scales, mut domains) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for number in first..first + count as u64 {
        let sample = source.sample(number, domain(number))?;
        measured.extend_from_slice(&sample.measured);
        clean.extend_from_slice(&sample.clean);
        numbers.extend_from_slice(&if drops(number) { [0.0; NUMBERS] } else { sample.numbers });
        if let Some(all) = &mut valid {
            match &sample.valid {
                Some(valid) => all.extend_from_slice(valid),
                None => all.resize(all.len() + pixels, 1.0),
            }
        }
        scales.push(sample.scale);
        domains.push(sample.domain);
    }
    Ok(Batch {
        measured: Tensor::f32(image_shape(count, size, from), measured),
        clean: Tensor::f32(image_shape(count, size, to), clean),
        numbers: Tensor::f32(image_shape(count, &vec![1; size.len()], NUMBERS), numbers),
        scales,
        domains,
        domain_names: source.domains(),
        valid: valid.map(|v| Valid::new(Tensor::f32(image_shape(count, size, 1), v), pixels)).transpose()?,
    })
}

/// N, (Z,) Y, X, C.
pub(crate) fn image_shape(count: usize, size: &[usize], channels: usize) -> Shape {
    let sizes: Vec<usize> = [count].into_iter().chain(size.iter().copied()).chain([channels]).collect();
    Shape::new(&sizes)
}

/// Which images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Training,
    Validation,
}

/// All that a run's samples are made of, for crops of any size.
pub struct Data {
    config: RunConfig,
    pools: Option<[Arc<Pool>; 2]>,
    shared: Shared,
}

/// The share of the free memory that decoded files take at the most, unless the configuration says how much.
const MEMORY_SHARE: usize = 4;

impl Data {
    /// # Errors
    /// If there is no such kind of scene, or the model to begin from cannot be read or takes other numbers.
    pub fn new(config: &RunConfig) -> Result<Data> {
        let free = || clearshot_runtime::available_bytes().unwrap_or(1 << 30) / MEMORY_SHARE;
        let init = init_model(config)?.map(|m| m.about.signal);
        let shared = Shared {
            store: Arc::new(Store::new(config.file_memory()?.unwrap_or_else(free))),
            real: Arc::new(RealCameras::new(&config.data)),
            photons: takes_photons(config, init.as_ref())?,
            init,
        };
        let pool = |seed: u64, window: usize, refresh: f64| -> Result<Arc<Pool>> {
            let pool = Pool::new(&config.data, mixed(config.seed ^ seed), window, refresh)?;
            let is_labelled = config.task.kind.is_of_labels();
            Ok(Arc::new(if is_labelled { pool.labelled() } else { pool }))
        };
        let pools = match config.data.kind {
            DataKind::Scenes => Some([
                pool(0x7EA1_5CE0, config.data.pool, config.data.refresh)?,
                // Scenes of other seeds, as many as are asked for.
                pool(0x7A11_DA7E, config.validation.images, 0.0)?,
            ]),
            _ => None,
        };
        Ok(Data { config: config.clone(), pools, shared })
    }

    /// Whether there are images that stand for the truth.
    pub fn has_truth(&self) -> bool {
        self.config.data.has_truth()
    }

    /// The folder with the contexts of classes.
    pub(crate) fn contexts(&self) -> Option<&Path> {
        self.config.task.context.as_deref()
    }

    /// Whether what the network is given are electrons.
    pub fn photons(&self) -> bool {
        self.shared.photons
    }

    /// The basis for estimating the error against an unknown truth.
    pub(crate) fn errors_from(&self) -> Option<ErrorsFrom> {
        match (self.config.task.kind, self.config.data.averaged) {
            (TaskKind::Splitting, _) if !self.config.data.has_truth() => Some(ErrorsFrom::Splits),
            (TaskKind::Noise2noise, Some(averaged)) => Some(ErrorsFrom::Repeats { averaged }),
            _ => None,
        }
    }

    /// Samples of one part, as crops of `size`: (Z,) Y, X. With `from`, they are cut that large and shrunk.
    ///
    /// # Errors
    /// If crops do not fit, or no file can be used.
    pub fn source(&self, part: Part, size: &[usize], from: Option<&[usize]>) -> Result<Arc<dyn Source>> {
        let inner = self.plain_source(part, size, from)?;
        // Scores are against the truth where there is one, and of splitting by an estimate of it.
        if part == Part::Validation && (self.config.data.has_truth() || self.errors_from().is_some()) {
            return Ok(inner);
        }
        let seed = mixed(self.config.seed ^ 0x1EA2 ^ part as u64);
        Ok(Learning::of(inner, &self.config, seed, size))
    }

    /// The same as they were measured, whatever the task makes of them.
    fn plain_source(&self, part: Part, size: &[usize], from: Option<&[usize]>) -> Result<Arc<dyn Source>> {
        let seed = match part {
            Part::Training => mixed(self.config.seed),
            Part::Validation => mixed(self.config.seed ^ 0x7A11),
        };
        let cut = from.unwrap_or(size);
        match &self.pools {
            Some([training, validation]) => {
                let pool = if part == Part::Training { training } else { validation };
                if let Some(wanted) = Wanted::of(&self.config.task) {
                    let empty = if part == Part::Training { segments::EMPTY } else { 0.0 };
                    let (pool, data) = (Arc::clone(pool), &self.config.data);
                    return Ok(Arc::new(Segments::new(pool, data, wanted, empty, seed, cut, size)?));
                }
                if self.config.task.enlarge > 1 {
                    let (pool, factor) = (Arc::clone(pool), self.config.task.enlarge);
                    return Ok(Arc::new(Finer::new(pool, &self.config.data, factor, seed, size)?));
                }
                if self.config.task.kind.is_pretraining() {
                    let paired = self.config.task.kind == TaskKind::Iwm;
                    let source = Views::new(Arc::clone(pool), &self.config.data, paired, seed, cut, size)?;
                    return Ok(Arc::new(source));
                }
                let source = Scenes::new(Arc::clone(pool), &self.config.data, seed, cut, size)?;
                Ok(Arc::new(source))
            }
            None => Ok(Arc::new(Files::open(&self.config, part, seed, cut, size, &self.shared)?)),
        }
    }

    /// The domain of images to judge by: each in turn, unless files are drawn whatever their domain.
    pub(crate) fn in_turn(&self, source: &dyn Source, turn: u64) -> Option<usize> {
        let domains = source.domains().len() as u64;
        (self.config.data.balance != Balance::Files).then(|| (turn % domains) as usize)
    }
}

/// What training images of a size are like, of so many of each kind; nothing is known of numbers that are not electrons, nor of very
/// small images.
///
/// # Errors
/// If a sample cannot be had.
pub fn familiar(data: &Data, size: &[usize], of_a_kind: usize) -> Result<Option<Familiar>> {
    let [.., height, width] = *size else { return Ok(None) };
    if !data.photons() || height.min(width) < LEAST {
        return Ok(None);
    }
    let source = data.plain_source(Part::Training, size, None)?;
    let (domains, channels) = (source.domains(), source.channels()[0]);
    let mut known = Vec::new();
    for number in 0..(of_a_kind * domains.len()) as u64 {
        let sample = source.sample(number, data.in_turn(&*source, number))?;
        let middle = size[..size.len() - 2].iter().product::<usize>() / 2 * height * width * channels;
        let plane = sample.measured[middle..].iter().step_by(channels).take(height * width);
        let plane: Vec<f32> = plane.copied().collect();
        let numbers = statistics(&plane, [height, width], &camera::photons(&sample.numbers)?);
        known.extend(numbers.map(|n| (sample.domain, n)));
    }
    Ok(Familiar::of(&known, &domains, height.min(width)))
}

/// Whether the network is given electrons: as the configuration says, as the model that it begins from knows them, or as the task needs.
fn takes_photons(config: &RunConfig, init: Option<&Signal>) -> Result<bool> {
    if config.task.kind.knows_no_camera() || config.task.enlarge > 1 {
        return Ok(false);
    }
    let known = init.map(|signal| *signal == Signal::Photons);
    if config.data.is_simulated() {
        return Ok(true);
    }
    let asked = config.data.signal.map(|kind| kind == SignalKind::Photons);
    if let (Some(asked), Some(known)) = (asked, known)
        && asked != known
    {
        let [got, trained] = [asked, known].map(|photons| if photons { "photons" } else { "fixed" });
        let needed = format!("the model in model.init was trained on {trained}: leave data.signal out");
        return setting("data.signal", got, needed);
    }
    Ok(asked.or(known).unwrap_or(config.task.kind == TaskKind::Splitting))
}

/// SplitMix64's step: seeds that differ in a bit have nothing to do with each other.
pub(crate) fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// `values` of sizes `from`, averaged down to sizes `to` along each of their two or three axes; a pixel that
/// spans parts of old ones counts them by how much.
pub(crate) fn shrunk(values: Vec<f32>, from: &[usize], to: &[usize]) -> Vec<f32> {
    let mut sizes = from.to_vec();
    let mut values = values;
    for axis in 0..from.len() {
        if sizes[axis] == to[axis] {
            continue;
        }
        let inner: usize = sizes[axis + 1..].iter().product();
        let outer: usize = sizes[..axis].iter().product();
        let (old, new) = (sizes[axis], to[axis]);
        let step = old as f64 / new as f64;
        let mut out = vec![0f32; outer * new * inner];
        for j in 0..new {
            let (low, high) = (j as f64 * step, (j + 1) as f64 * step);
            for i in low as usize..(high.ceil() as usize).min(old) {
                let part = ((i + 1) as f64).min(high) - (i as f64).max(low);
                let weight = (part / step) as f32;
                for o in 0..outer {
                    let (source, target) = ((o * old + i) * inner, (o * new + j) * inner);
                    for k in 0..inner {
                        out[target + k] += weight * values[source + k];
                    }
                }
            }
        }
        sizes[axis] = new;
        values = out;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_keeps_means_and_averages_blocks() {
        let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
        assert_eq!(shrunk(values.clone(), &[4, 4], &[2, 2]), [2.5, 4.5, 10.5, 12.5]);
        let third = shrunk(values.clone(), &[4, 4], &[3, 3]);
        let mean = |v: &[f32]| v.iter().sum::<f32>() / v.len() as f32;
        assert!((mean(&third) - mean(&values)).abs() < 1e-5);
        // The first pixel is all of the first old one and a third of its neighbours along each axis.
        assert!((third[0] - (0.0 + 1.0 / 3.0 + 4.0 / 3.0 + 5.0 / 9.0) * 9.0 / 16.0).abs() < 1e-5);
    }
}
