//! The conditions of the network that concern an image as a whole: class, camera, context.

use super::Restorer;
use crate::learned::Error;
use crate::learned::measured::Measured;
use crate::learned::question::{ImageScale, condition};
use crate::learned::settings::Settings;
use crate::learned::tiles::CONDITION;
use clearshot_model::{ConditionInput, Conditions, Context, Signal};
use clearshot_nn::acquisition::TakenBy;

impl Restorer {
    /// Vectors of a context: as given, or as training had them.
    pub(super) fn tokens(&self) -> usize {
        let given = self.settings.context.as_ref().map(|c| c.tokens);
        given.or(self.model.about.conditioning.as_ref().and_then(|c| c.tokens)).unwrap_or(1)
    }

    /// Sets another class and context; nothing is recompiled if the context has the same number of vectors.
    pub fn tell(&mut self, class: Option<usize>, context: Option<Context>) {
        let before = self.tokens();
        (self.settings.class, self.settings.context) = (class, context);
        if self.tokens() != before {
            self.ready.clear();
        }
    }

    /// What fills in the network's inputs beside x.
    pub(super) fn teller(&self) -> Teller<'_> {
        Teller {
            signal: &self.model.about.signal,
            guided: self.guidance.is_some(),
            inputs: &self.conditions,
            settings: &self.settings,
        }
    }

    /// Refuses to restore where a condition of the network is missing.
    pub(super) fn check_conditions(&self) -> Result<(), Error> {
        // The camera is found in every image where the model takes electrons.
        let camera = Some(TakenBy { scale: 1.0, read_noise: 0.0, background: 0.0 });
        let known = Conditions {
            class: self.settings.class,
            camera: camera.filter(|_| self.model.about.signal == Signal::Photons),
            context: self.settings.context.clone(),
        };
        for input in &self.conditions {
            if let Some(missing) = input.missing(&known) {
                return Err(Error::ConditionMissing { missing });
            }
            let mut out = vec![0.0; input.shape(self.tokens()).iter().product()];
            input.fill(&known, &mut out).map_err(|what| Error::Condition { what })?;
        }
        Ok(())
    }
}

/// What fills in the network's inputs beside x; threads share it.
#[derive(Clone, Copy)]
pub(super) struct Teller<'a> {
    signal: &'a Signal,
    guided: bool,
    inputs: &'a [ConditionInput],
    settings: &'a Settings,
}

impl Teller<'_> {
    /// What is known of an image.
    fn conditions(&self, scale: &ImageScale) -> Conditions {
        let given = self.settings.taken_by;
        // Guidance says what was measured: the network is then given as little of it as where training dropped the measurement.
        let seen = scale.seen.filter(|_| !self.guided);
        let camera = seen.map(|(_, photons)| TakenBy {
            scale: given.scale.unwrap_or(photons.peak),
            read_noise: given.read_noise.unwrap_or(photons.read_noise),
            background: given.background.unwrap_or(photons.background),
        });
        Conditions { class: self.settings.class, camera, context: self.settings.context.clone() }
    }

    /// Fills in a network input of an image other than x, by its name: at some pixels of the image, or for the whole
    /// image.
    pub fn fill(&self, image: &Measured, scale: &ImageScale, name: &str, pixels: &[usize], out: &mut [f32]) {
        if name == CONDITION {
            condition(self.signal, self.guided, image, scale, pixels, out);
        } else if let Some(input) = self.inputs.iter().find(|input| input.port == name)
            && input.fill(&self.conditions(scale), out).is_err()
        {
            // Classes and contexts were checked before; numbers of a camera are those of photons, which are possible.
            out.fill(0.0);
        }
    }
}
