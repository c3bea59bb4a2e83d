//! Mean and standard deviation over several samples, computed one sample at a time.
//!
//! The seed of a sample follows from the seed of the image and the number of the sample, so each can be drawn again separately.

use crate::Error;
use crate::noise::Tile;
use crate::run::{Sampler, Start};
use clearshot_tensor::{Shape, Tensor};

/// Welford's running mean and spread of images.
#[derive(Clone, Debug)]
pub struct Posterior {
    shape: Shape,
    count: usize,
    mean: Vec<f64>,
    /// Sums of squared deviations from the mean.
    squares: Vec<f64>,
}

impl Posterior {
    pub fn new(shape: impl Into<Shape>) -> Posterior {
        let shape = shape.into();
        Posterior { shape, count: 0, mean: vec![0.0; shape.len()], squares: vec![0.0; shape.len()] }
    }

    /// # Errors
    /// If the sample has another shape.
    pub fn add(&mut self, sample: &Tensor) -> Result<(), Error> {
        if sample.shape() != self.shape {
            return Err(Error::Shape { name: "a sample", expected: self.shape, got: sample.shape() });
        }
        self.count += 1;
        let n = self.count as f64;
        for (i, v) in sample.to_f64().into_iter().enumerate() {
            let before = v - self.mean[i];
            self.mean[i] += before / n;
            self.squares[i] += before * (v - self.mean[i]);
        }
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn mean(&self) -> Tensor {
        Tensor::f32(self.shape, self.mean.iter().map(|&v| v as f32).collect())
    }

    /// The standard deviation of the samples, with n - 1.
    ///
    /// # Errors
    /// If there are fewer than two samples.
    pub fn sd(&self) -> Result<Tensor, Error> {
        if self.count < 2 {
            let must = "at least 2, to have a standard deviation".into();
            return Err(Error::Setting { what: "the number of samples", got: self.count.to_string(), must });
        }
        let n = (self.count - 1) as f64;
        Ok(Tensor::f32(self.shape, self.squares.iter().map(|&s| (s / n).sqrt() as f32).collect()))
    }
}

/// The tile of an image's sample number `sample`.
pub fn tile_of_sample(tile: Tile, sample: usize) -> Tile {
    Tile { seed: crate::noise::mixed(tile.seed ^ crate::noise::mixed(sample as u64 + 1)), ..tile }
}

/// Draws `samples` and gathers them.
///
/// # Errors
/// As [`Sampler::run`], or if no sample is asked for.
pub fn draw(
    sampler: &mut Sampler,
    start: Start<'_>,
    tiles: &[Tile],
    samples: usize,
) -> Result<Posterior, Error> {
    let mut posterior: Option<Posterior> = None;
    for sample in 0..samples {
        let own: Vec<Tile> = tiles.iter().map(|t| tile_of_sample(*t, sample)).collect();
        let x = sampler.run(start, &own)?;
        posterior.get_or_insert_with(|| Posterior::new(x.shape())).add(&x)?;
    }
    posterior.ok_or_else(|| Error::Setting {
        what: "the number of samples",
        got: "0".into(),
        must: "at least 1".into(),
    })
}
