//! Calibration of the standard deviation of a model's samples: images outside the training set are restored, and the ratio
//! of errors to standard deviations becomes part of the model.
//!
//! Runs do this at their end, with the best model and within a limited time ([`calibrate_within`]); [`data_of`]
//! reconstructs the training data of a model for a later calibration.

use crate::conditioning::Conditioned;
use crate::config::{CalibrationConfig, RunConfig, TaskKind};
use crate::data::{Data, Part, Sample, camera};
use crate::error::{Result, TrainError};
use crate::presets;
use crate::records::console::duration;
use crate::watch::Watch;
use clearshot_model::{Model, Signal};
use clearshot_restore::learned::{self, Calibrated, Camera, Example, Measured, Restorer, Settings, Values};
use clearshot_runtime::Device;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Images that a calibration needs, and seconds from one word about its progress to the next.
pub const LEAST_IMAGES: usize = 8;
const SAID_EVERY: f64 = 5.0;

/// The reason if there is no uncertainty to calibrate.
pub fn needless(config: &RunConfig) -> Option<&'static str> {
    match config.task.kind {
        TaskKind::Conditional => None,
        TaskKind::Prior => {
            Some("the uncertainty of a prior's samples depends on the measurement that guides it")
        }
        kind if kind.is_of_noise() => Some("its task learns only the mean"),
        _ => Some("it gives one image and no samples"),
    }
}

/// The configuration that a model was trained by.
///
/// # Errors
/// If the model does not say.
pub fn data_of(model: &Model) -> Result<RunConfig> {
    let training = &model.about.training;
    let unknown = |why: String| TrainError::Unknown { model: model.about.name.clone(), why };
    match training["experiment"].as_str() {
        Some(name) => {
            let changes = [format!("experiment={name}"), format!("seed={}", training["seed"])];
            presets::read(None, &changes).map_err(|e| unknown(e.to_string()))
        }
        None => serde_json::from_value(training["config"].clone()).map_err(|e| unknown(e.to_string())),
    }
}

/// Finds what a model's spread is to be multiplied by, on validation images of `sizes`, which are taken in turn, and lets the
/// model say so. `told` is called with the number of finished images after every run of the graph.
///
/// # Errors
/// If an image cannot be loaded or restored, or `told` stops it.
pub fn calibrate(
    model: Model,
    data: &Data,
    sizes: &[Vec<usize>],
    config: &CalibrationConfig,
    device: Device,
    told: &mut dyn FnMut(usize) -> std::result::Result<(), learned::Error>,
) -> Result<(Model, Option<Calibrated>)> {
    let settings = Settings { samples: config.samples, steps: config.steps, ..Settings::default() };
    let signal = model.about.signal.clone();
    let conditioned = Conditioned::of_model(&model, data.contexts())?;
    let mut restorer = Restorer::new(model, settings, device)?;
    let sources: Vec<_> =
        sizes.iter().map(|size| data.source(Part::Validation, size, None)).collect::<Result<_>>()?;
    let mut examples = Vec::new();
    for number in 0..config.images {
        // In pairs: of every size, one image is in either half of them.
        let (turn, round) = (number / 2 % sizes.len().max(1), number / 2 / sizes.len().max(1));
        let (size, source) = (&sizes[turn], &sources[turn]);
        let sample = source.sample(number as u64, data.in_turn(&**source, round as u64))?;
        let mut made = example(&sample, &signal, source.channels(), size, &restorer)?;
        if let Some(conditioned) = &conditioned {
            let domain = source.domains().swap_remove(sample.domain);
            let known = conditioned.conditions(&domain, None, false)?;
            (made.class, made.context) = (known.class, known.context);
        }
        examples.push(made);
    }
    let found = restorer.calibrate(&examples, told)?;
    let mut model = restorer.into_model();
    if let Some(found) = &found {
        model.about.spread = Some(found.factor.clone());
    }
    Ok((model, found))
}

/// How a calibration in limited time ended.
pub enum Within {
    Made(Box<Model>, Calibrated),
    /// No image has a spread.
    Nothing,
    Interrupted,
    /// The fewest images would take so many seconds.
    TooLong(f64),
}

/// Calibrates in at most so many seconds, on fewer images where that is needed. `load` gives the model, `watch` hears of the progress.
///
/// # Errors
/// As [`calibrate`].
#[allow(clippy::too_many_arguments)]
pub fn calibrate_within(
    most: f64,
    load: &dyn Fn() -> Result<Model>,
    data: &Data,
    size: &[usize],
    config: &CalibrationConfig,
    device: Device,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> Result<Within> {
    let (all, mut images, mut stopped) = (Instant::now(), config.images, false);
    let least = LEAST_IMAGES.min(images);
    loop {
        watch.note(&format!("calibrating the uncertainty of samples on {images} images"));
        let left = most - all.elapsed().as_secs_f64();
        let (begun, mut each, mut said) = (Instant::now(), 0.0, 0.0);
        let mut told = |done: usize| {
            let spent = begun.elapsed().as_secs_f64();
            each = spent / done.max(1) as f64;
            if done > 0 && spent > said + SAID_EVERY {
                said = spent;
                let rest = each * (images - done) as f64;
                watch.note(&format!("calibrating: {done} of {images} images, {} left", duration(rest)));
            }
            // What the first image takes says whether there is time for all.
            let too_long = match done {
                0 => each * least as f64 > left,
                1 => each * images as f64 > left && images > least,
                _ => false,
            };
            let heard = watch.progress(done as u64, Some(images as u64));
            stopped |= heard.is_break() || stop.load(Ordering::Relaxed);
            match stopped || too_long {
                true => Err(learned::Error::Stopped),
                false => Ok(()),
            }
        };
        let config = CalibrationConfig { images, ..config.clone() };
        match calibrate(load()?, data, &[size.to_vec()], &config, device, &mut told) {
            Err(TrainError::Restore(learned::Error::Stopped)) if stopped => {
                return Ok(Within::Interrupted);
            }
            Err(TrainError::Restore(learned::Error::Stopped)) => {
                images = ((left - begun.elapsed().as_secs_f64()) / each).max(0.0) as usize / 2 * 2;
                if images < least {
                    return Ok(Within::TooLong(each * least as f64));
                }
            }
            made => {
                let (model, found) = made?;
                return Ok(found.map_or(Within::Nothing, |found| Within::Made(Box::new(model), found)));
            }
        }
    }
}

/// A sample as a file would hold it.
fn example(
    sample: &Sample,
    signal: &Signal,
    [from, _]: [usize; 2],
    size: &[usize],
    restorer: &Restorer,
) -> Result<Example> {
    let (values, truth, camera): (Vec<f32>, Vec<f32>, Option<Camera>) = match signal {
        Signal::Photons => {
            let p = camera::photons(&sample.numbers)?;
            let truth = sample.clean.iter().map(|&x| p.electrons(f64::from(x)) as f32).collect();
            let background = Some(p.background);
            let camera = Camera {
                gain: 1.0,
                offset: 0.0,
                read_noise: p.read_noise,
                background,
                correlation: p.correlation,
            };
            (sample.measured.clone(), truth, Some(camera))
        }
        Signal::Fixed { input, target } => {
            let target = target.as_ref().unwrap_or(input);
            let [measured, truth] =
                [(&sample.measured, input), (&sample.clean, target)].map(|(values, n)| {
                    let of =
                        |&x: &f32| (0.5 * (n.low + n.high) + 0.5 * (n.high - n.low) * f64::from(x)) as f32;
                    values.iter().map(of).collect()
                });
            (measured, truth, None)
        }
    };
    let measured = Measured::read(&Values { values: &values, size, channels: from }, restorer.scratch())?;
    Ok(Example { measured, truth, camera, class: None, context: None })
}
