//! A model that stays compiled from one image to the next as long as the settings stay the same.

use crate::error::{Error, Result};
use crate::settings::Settings;
use clearshot_model::Model;
use clearshot_restore::learned::{self, Restorer};
use clearshot_runtime::{CompileError, Device, Precision};

/// See the module.
pub struct Engine {
    restorer: Restorer,
    /// The settings that it has at present, in words.
    made_for: String,
    /// The model's fingerprint, once it was asked for.
    hash: Option<String>,
}

impl Engine {
    /// # Errors
    /// If the network cannot be cut into tiles.
    pub fn new(model: Model, device: Device) -> Result<Engine> {
        let restorer = Restorer::new(model, learned::Settings::default(), device)?;
        Ok(Engine { restorer, made_for: String::new(), hash: None })
    }

    /// The model, compiled for these settings.
    ///
    /// # Errors
    /// If the model does not support the settings.
    pub fn ready(&mut self, settings: &Settings) -> Result<&mut Restorer> {
        // Before anything is estimated from the image.
        let refused = |why: CompileError| Error::setting("precision", why.to_string());
        settings.precision.check(self.restorer.device()).map_err(refused)?;
        if settings.precision == Precision::Int8 && self.restorer.model().network.int8().is_none() {
            return Err(refused(CompileError::NotQuantised));
        }
        let wanted = settings.learned(self.restorer.model())?;
        let made_for = format!("{wanted:?}");
        if self.made_for != made_for {
            self.restorer.set(wanted)?;
            self.made_for = made_for;
        }
        if settings.std && self.restorer.spread().is_none() {
            let why =
                "one sample has no standard deviation; draw 8 samples, or leave the number to the model";
            return Err(Error::setting("std", why));
        }
        Ok(&mut self.restorer)
    }

    pub fn model(&self) -> &Model {
        self.restorer.model()
    }

    /// The model's fingerprint.
    pub fn hash(&mut self) -> String {
        let _loading = clearshot_timeline::span(clearshot_timeline::Phase::Loading);
        self.hash.get_or_insert_with(|| self.restorer.model().hash()).clone()
    }

    pub fn device(&self) -> &Device {
        self.restorer.device()
    }

    pub fn into_model(self) -> Model {
        self.restorer.into_model()
    }
}
