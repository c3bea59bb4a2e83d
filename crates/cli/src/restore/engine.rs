//! The models of a run: the one for planes or the user's own, and the one for stacks, which is loaded when a file needs it.

use super::{Restore, Voice};
use crate::items;
use anyhow::Result;
use clearshot_image::Axis;
use clearshot_model::Model;
use clearshot_restore::learned::Restorer;
use serde_json::{Value, json};
use std::path::Path;

/// Planes from which on a stack is restored as a volume.
const LEAST_PLANES: usize = 4;

/// A model at work, and the settings as the record has them.
pub struct Engine {
    pub restorer: Restorer,
    pub asked: Value,
}

/// See the module.
pub struct Engines {
    pub usual: Engine,
    stacks: Option<Engine>,
}

impl Engines {
    pub fn new(usual: Engine) -> Engines {
        Engines { usual, stacks: None }
    }

    /// The model for a file; that for stacks is made by `start` when it is first needed, and it is said that it is taken.
    ///
    /// # Errors
    /// If the file cannot be opened, or the model for stacks cannot do what is asked.
    pub fn of(
        &mut self,
        input: &Path,
        restore: &Restore,
        voice: &Voice,
        start: impl FnOnce(Model) -> Result<Engine>,
    ) -> Result<&mut Engine> {
        if !restore.takes_stacks() {
            return Ok(&mut self.usual);
        }
        let planes =
            items::open(input, restore.item.as_deref())?.description.dim(Axis::Z).map_or(1, |z| z.len);
        if planes < LEAST_PLANES {
            return Ok(&mut self.usual);
        }
        if self.stacks.is_none() {
            self.stacks = Model::volumes()?.map(start).transpose()?;
        }
        let Some(engine) = &mut self.stacks else { return Ok(&mut self.usual) };
        let name = &engine.restorer.model().about.name;
        let text = format!(
            "a stack of {planes} planes, restored as a volume by the model {name}; --planes goes plane by plane"
        );
        voice.say(&text, json!({"event": "volume", "input": input, "model": name, "planes": planes}))?;
        Ok(engine)
    }
}
