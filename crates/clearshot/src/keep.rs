//! Models of restorers: their properties, and saving them.

use crate::error::{Error, Result};
use crate::restorer::{Kind, Restorer};
use clearshot_model::Model;
use clearshot_tensor::DType;
use serde_json::{Value, json};
use std::path::Path;

impl Restorer {
    /// The properties of the model: name, task, channels, axes and crops. `None` for a network of another project or a
    /// classical method.
    pub fn about(&self) -> Option<Value> {
        match &self.kind {
            Kind::Learned(learned) => Some(learned.with_model(|model| json!(model.about))),
            Kind::Predictor(predictor) => Some(predictor.with_model(|model| json!(model.about))),
            Kind::Foreign(_) | Kind::Classical(_) => None,
        }
    }

    /// A copy of the model.
    ///
    /// # Errors
    /// If it is a network of another project or a classical method.
    pub fn model(&self) -> Result<Model> {
        let copy =
            |model: &Model| Model::new(model.about.clone(), model.config.clone(), model.weights.clone());
        match &self.kind {
            Kind::Learned(learned) => Ok(learned.with_model(copy)?),
            Kind::Predictor(predictor) => Ok(predictor.with_model(copy)?),
            Kind::Foreign(_) | Kind::Classical(_) => {
                Err(Error::Unsuited(format!("{} is not a model of Clearshot", self.name())))
            }
        }
    }

    /// Writes the model: a file if the name ends in `.clearshot`, else a folder.
    ///
    /// # Errors
    /// If it is a network of another project or a classical method, the path exists already, or it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let model = self.model()?;
        if path.exists() {
            return Err(clearshot_image::Error::Exists { path: path.into() }.into());
        }
        let is_file = path.extension().is_some_and(|e| e == "clearshot");
        Ok(match is_file {
            true => model.save_file(path, DType::F32),
            false => model.save_folder(path),
        }?)
    }
}
