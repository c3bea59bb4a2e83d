//! How a model is to be written.

use super::signal::NUMBERS;
use crate::error::ExportError;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The size of the images, (Z,) Y, X, where the file is to take no other.
    pub size: Option<Vec<usize>>,
    /// Numbers of the camera that are to be constants instead of inputs, by their names in [`NUMBERS`].
    pub fixed: BTreeMap<String, Vec<f32>>,
    /// A diffusion model answers at once: x is zero and the level that with the most noise, so that neither is an input.
    pub direct: bool,
}

impl Settings {
    /// # Errors
    /// Names the number that there is not, or that has another count of values.
    pub fn check(&self) -> Result<(), ExportError> {
        for (name, values) in &self.fixed {
            let Some(number) = NUMBERS.iter().find(|n| n.name == name) else {
                let known: Vec<&str> = NUMBERS.iter().map(|n| n.name).collect();
                return Err(ExportError::Setting(format!(
                    "there is no number `{name}`; there are {}",
                    known.join(", ")
                )));
            };
            if values.len() != number.count || values.iter().any(|v| !v.is_finite()) {
                return Err(ExportError::Setting(format!(
                    "{name}: {} finite numbers are needed, got {values:?}",
                    number.count
                )));
            }
        }
        Ok(())
    }
}
