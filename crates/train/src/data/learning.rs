//! Learning from noise: samples of a source turned into what a task that needs no clean image is trained on.
//!
//! `noise2noise` gets a second exposure of simulated images (files have theirs), `noise2void` blind spots, `splitting` two parts of the electrons.
//! What was clean stays out of training; where there is such, validation has it untouched.

use super::{AS_PAIR, Sample, Source, blind, camera, split};
use crate::config::{BlindConfig, RunConfig, TaskKind};
use crate::error::Result;
use crate::task::key;
use clearshot_model::Signal;
use clearshot_physics::poisson;
use clearshot_tensor::noise::Key;
use std::sync::Arc;

/// See the module.
pub struct Learning {
    inner: Arc<dyn Source>,
    how: How,
    seed: u64,
    size: Vec<usize>,
}

enum How {
    Again,
    Blind(BlindConfig),
    Split([f64; 2]),
}

impl Learning {
    /// The source itself where the task takes its samples as they are.
    pub fn of(inner: Arc<dyn Source>, config: &RunConfig, seed: u64, size: &[usize]) -> Arc<dyn Source> {
        let how = match config.task.kind {
            TaskKind::Noise2noise if config.data.is_simulated() => How::Again,
            TaskKind::Noise2void => How::Blind(config.task.blind.clone()),
            TaskKind::Splitting => How::Split(config.task.split),
            _ => return inner,
        };
        Arc::new(Learning { inner, how, seed, size: size.to_vec() })
    }
}

/// The truth of a simulated sample seen by its camera once more.
fn again(sample: Sample, seed: u64, number: u64) -> Result<Sample> {
    let p = camera::photons(&sample.numbers)?;
    let (shots, noise) = (key(seed, number, 0xA61), key(seed, number, 0xA62));
    let second = |(i, &x): (usize, &f32)| {
        let mean = p.electrons(f64::from(x)).max(0.0);
        let electrons =
            poisson::draw(mean, shots, i as u64) + p.read_noise * f64::from(noise.normal(i as u64));
        p.normalised(electrons) as f32
    };
    let clean = sample.clean.iter().enumerate().map(second).collect();
    Ok(Sample { clean, ..sample })
}

impl Learning {
    fn key(&self, number: u64, stream: u32) -> Key {
        key(self.seed, number, stream)
    }

    /// One of two mirrored splits: two samples in a row are of one crop.
    fn mirrored(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let sample = self.inner.sample(number & !1, domain)?;
        let sign = if number.is_multiple_of(2) { 1.0 } else { -1.0 };
        split::mirrored(sample, &self.size, SHARED, self.key(number & !1, 0x592), sign)
    }

    /// Blind spots that hide noise as the file has it; a mirrored split where nothing hides it. Where whole images are given too, each comes before
    /// itself with blind spots.
    fn blinded(&self, number: u64, domain: Option<usize>, config: &BlindConfig) -> Result<Sample> {
        let number_of_crop = if config.whole { number & !1 } else { number };
        let sample = self.inner.sample(number_of_crop, domain)?;
        let photons = self.inner.signal() == Signal::Photons;
        let mut config = config.clone();
        if photons && config.along.is_none() {
            match blind::hiding(&config, &camera::photons(&sample.numbers)?.correlation) {
                Some(hiding) => config = hiding,
                None => return self.mirrored(number, domain),
            }
        }
        if config.whole && number.is_multiple_of(2) {
            return Ok(Sample { clean: blind::as_measured(&sample, photons), ..sample });
        }
        let weight = if config.whole { AS_PAIR } else { sample.weight };
        let blinded = blind::blinded(sample, &config, &self.size, photons, self.key(number_of_crop, 0xB11));
        Ok(Sample { weight, ..blinded })
    }
}

/// The share that is given where noise is shared in every direction.
const SHARED: f64 = 0.9;

impl Source for Learning {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        match &self.how {
            How::Again => again(self.inner.sample(number, domain)?, self.seed, number),
            How::Blind(config) => self.blinded(number, domain, config),
            How::Split([low, high]) => {
                let share = low + (high - low) * f64::from(self.key(number, 0x591).uniform(0));
                let sample = self.inner.sample(number, domain)?;
                split::split(sample, &self.size, share, self.key(number, 0x592))
            }
        }
    }

    fn is_masked(&self) -> bool {
        matches!(self.how, How::Blind(_)) || self.inner.is_masked()
    }

    fn domains(&self) -> Vec<String> {
        self.inner.domains()
    }

    fn files_of_domains(&self) -> Vec<usize> {
        self.inner.files_of_domains()
    }

    fn channels(&self) -> [usize; 2] {
        let [from, _] = self.inner.channels();
        [from, from]
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn signal(&self) -> Signal {
        self.inner.signal()
    }

    fn images(&self) -> Option<usize> {
        self.inner.images()
    }

    fn identity(&self) -> Option<String> {
        self.inner.identity()
    }

    fn warnings(&self) -> Vec<String> {
        self.inner.warnings()
    }

    fn notes(&self) -> Vec<String> {
        self.inner.notes()
    }
}
