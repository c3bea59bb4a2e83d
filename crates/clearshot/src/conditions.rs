//! The conditions of a model besides the measurement, taken from the settings: the class by name, the context, and the
//! camera parameters. A missing condition is refused here, before any image is read.

use crate::error::{Error, Result};
use crate::settings::Settings;
use clearshot_model::conditioning::TakenBy;
use clearshot_model::{ConditionInput, Conditions, Context, InputKind, MissingCondition, Model};
use clearshot_restore::learned::{Candidate, Restorer};
use serde_json::{Value, json};

/// The classes of a model by name, or how they are counted where they have no names.
fn named(model: &Model, count: usize) -> String {
    match model.about.conditioning.as_ref().map(|c| &c.classes[..]) {
        Some(names @ [_, ..]) => format!("one of {}", names.join(", ")),
        _ if count == usize::MAX => "a number".into(),
        _ => format!("a number from 0 to {}", count.saturating_sub(1)),
    }
}

/// The number of a class.
fn class(model: &Model, inputs: &[ConditionInput], text: &str) -> Result<usize> {
    let Some(count) = inputs.iter().filter_map(ConditionInput::classes).min() else {
        return Err(Error::setting(
            "class",
            format!("the model {} is not conditioned on classes; leave it out", model.about.name),
        ));
    };
    let names = model.about.conditioning.as_ref().map_or(&[][..], |c| &c.classes);
    let by_name = names.iter().position(|name| name == text);
    let found = by_name.or_else(|| text.parse().ok().filter(|n| *n < count));
    found.ok_or_else(|| Error::value("class", text, format!("{} is needed", named(model, count))))
}

impl Settings {
    /// The class and the context for a model.
    ///
    /// # Errors
    /// If the model wants one that is not given, or is given one that it does not want, know or have room for.
    pub(crate) fn conditions(&self, model: &Model) -> Result<(Option<usize>, Option<Context>)> {
        let inputs = model.condition_inputs();
        let width = inputs.iter().find_map(|i| match i.kind {
            InputKind::Context { width } => Some(width),
            _ => None,
        });
        let class = self.class.as_deref().map(|text| class(model, &inputs, text)).transpose()?;
        let context = match (&self.context, width) {
            (None, _) => None,
            (Some(_), None) => {
                let why = format!("the model {} attends to no context; leave it out", model.about.name);
                return Err(Error::setting("context", why));
            }
            (Some(context), Some(width)) if context.width != width => {
                let why = format!("has vectors of {} numbers, and the model takes {width}", context.width);
                return Err(Error::setting("context", why));
            }
            (Some(context), Some(_)) => Some(context.clone()),
        };
        let t = self.taken_by;
        let given = t.scale.is_some() || t.read_noise.is_some() || t.background.is_some();
        let has_camera = inputs.iter().any(|i| matches!(i.kind, InputKind::Vector(code) if code.camera));
        if given && !has_camera {
            let why = format!(
                "the model {} is not conditioned on numbers of the camera; leave it out",
                model.about.name
            );
            return Err(Error::setting("condition", why));
        }
        let camera = TakenBy {
            scale: t.scale.unwrap_or(1.0),
            read_noise: t.read_noise.unwrap_or(0.0),
            background: t.background.unwrap_or(0.0),
        };
        if let Err(e) = camera.check() {
            return Err(Error::setting("condition", e.to_string()));
        }
        let known = Conditions { class, camera: Some(camera), context: context.clone() };
        let uses_model = self.only.is_none_or(|only| only == Candidate::Model);
        match inputs.iter().find_map(|i| i.missing(&known)).filter(|_| uses_model) {
            None => Ok((class, context)),
            Some(MissingCondition::Class) => {
                let count = inputs.iter().filter_map(ConditionInput::classes).min().unwrap_or(0);
                let why = format!(
                    "the model {} is conditioned on the class of an image: {} is needed",
                    model.about.name,
                    named(model, count)
                );
                Err(Error::setting("class", why))
            }
            Some(missing @ MissingCondition::Context { .. }) => {
                let why =
                    format!("{missing}; name a file with an array of [vectors, numbers], such as FILE.npy");
                Err(Error::setting("context", why))
            }
            Some(missing) => Err(Error::Unsuited(format!("{}: {missing}", model.about.name))),
        }
    }

    /// What a model is conditioned on, for the record; nothing for models that are not.
    pub(crate) fn conditions_record(&self, restorer: &Restorer) -> Option<Value> {
        let (model, asked) = (restorer.model(), restorer.settings());
        if model.condition_inputs().is_empty() {
            return None;
        }
        let names = model.about.conditioning.as_ref().map_or(&[][..], |c| &c.classes);
        let class = asked.class.map(|n| names.get(n).map_or(json!(n), |name| json!(name)));
        let context = asked.context.as_ref().map(|c| {
            json!({"vectors": c.tokens, "numbers": c.width, "fingerprint": format!("{:016x}", c.fingerprint())})
        });
        let t = asked.taken_by;
        Some(json!({
            "class": class, "context": context, "scale": t.scale, "read_noise": t.read_noise, "background": t.background,
        }))
    }
}

/// The classes of a model that does without one here.
pub(crate) fn classes_left_out(restorer: &Restorer) -> Option<Vec<String>> {
    let (model, asked) = (restorer.model(), restorer.settings());
    let conditioning = model.about.conditioning.as_ref().filter(|c| c.dropped > 0.0)?;
    let is_open = |i: &ConditionInput| match i.kind {
        InputKind::Context { .. } => asked.context.is_none(),
        _ => i.classes().is_some() && asked.class.is_none(),
    };
    model.condition_inputs().iter().any(is_open).then(|| conditioning.classes.clone())
}
