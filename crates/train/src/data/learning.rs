//! Learning from noisy images: turns the samples of a source into inputs and targets of tasks without clean images.
//!
//! `noise2noise` gets a second exposure of simulated images (files have their own), `noise2void` blind spots, `splitting`
//! two parts of the electrons, with every crop used twice. Clean images are not used in training; if they exist, validation
//! uses them.

use super::split::{Cut, Side};
use super::{Sample, Source, blind, camera, split};
use crate::config::{BlindConfig, RunConfig, TaskKind};
use crate::error::Result;
use crate::task::key;
use clearshot_model::Signal;
use clearshot_physics::poisson;
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
    /// The source itself if the task uses its samples unchanged.
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

impl Source for Learning {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        // The two sides of a split follow each other, so that a batch has both.
        let (of, side) = match self.how {
            How::Split(_) if number % 2 == 1 => (number - 1, Side::Second),
            _ => (number, Side::First),
        };
        let sample = self.inner.sample(of, domain)?;
        match &self.how {
            How::Again => again(sample, self.seed, number),
            How::Blind(config) => {
                let photons = self.inner.signal() == Signal::Photons;
                Ok(blind::blinded(sample, config, &self.size, photons, key(self.seed, number, 0xB11)))
            }
            How::Split([low, high]) => {
                let share = low + (high - low) * f64::from(key(self.seed, of, 0x591).uniform(0));
                split::split(sample, &self.size, Cut { share, key: key(self.seed, of, 0x592), side })
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

    fn distinct(&self) -> Option<f64> {
        self.inner.distinct()
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
