//! A uniform value, or one value per pixel.

use crate::error::PhysicsError;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Map {
    Uniform(f64),
    /// One value for each pixel of the image, row-major.
    Pixels(Vec<f64>),
}

impl Map {
    pub fn at(&self, pixel: usize) -> f64 {
        match self {
            Map::Uniform(x) => *x,
            Map::Pixels(x) => x[pixel],
        }
    }

    /// The mean over the pixels.
    pub fn mean(&self) -> f64 {
        match self {
            Map::Uniform(x) => *x,
            Map::Pixels(x) => x.iter().sum::<f64>() / x.len().max(1) as f64,
        }
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Map {
        match self {
            Map::Uniform(x) => Map::Uniform(f(*x)),
            Map::Pixels(x) => Map::Pixels(x.iter().map(|&v| f(v)).collect()),
        }
    }

    /// All values for an image of `pixels`.
    pub fn expanded(&self, pixels: usize) -> Vec<f64> {
        (0..pixels).map(|i| self.at(i)).collect()
    }

    /// # Errors
    /// If a value is not finite or out of range, or the number of pixels differs.
    pub fn check(
        &self,
        name: &'static str,
        pixels: usize,
        holds: impl Fn(f64) -> bool,
        needed: &'static str,
    ) -> Result<(), PhysicsError> {
        let good = |x: f64| x.is_finite() && holds(x);
        match self {
            Map::Uniform(x) if !good(*x) => Err(PhysicsError::Parameter { name, got: *x, needed }),
            Map::Uniform(_) => Ok(()),
            Map::Pixels(x) if x.len() != pixels => {
                Err(PhysicsError::Length { what: name, got: x.len(), needed: pixels })
            }
            Map::Pixels(x) => match x.iter().position(|&v| !good(v)) {
                Some(index) => Err(PhysicsError::Pixel { name, index, got: x[index], needed }),
                None => Ok(()),
            },
        }
    }
}
