//! Conditions in addition to image and measurement, from the configuration to the values of each sample: the class of an
//! image, a vector of acquisition parameters, and a context.
//!
//! Classes are the domains of the training data: the column `domain` of a manifest, or the kinds of generated scenes.
//! Samples in training get the same values as images in restoring ([`clearshot_model::conditioning`]). A class is dropped
//! together with its context in a share of the samples (`task.drop_class`), so that the model works without it, and
//! classifier-free guidance can weight one against the other.

use crate::config::{ConditionPart, RunConfig};
use crate::data::{Batch, Data, NUMBERS, Part, camera};
use crate::error::{Result, TrainError, setting};
use crate::run::init_model;
use crate::task::Task;
use clearshot_graph::Type;
use clearshot_model::{
    ConditionInput, Conditioning, Conditions, Context, InputKind, Model, Photons, VectorPart,
};
use clearshot_nn::acquisition::TakenBy;
use clearshot_nn::models;
use clearshot_tensor::{DType, Shape, Tensor};
use serde_json::{Map, Value as Json};
use std::path::Path;
use std::sync::Arc;

/// In front of the names of a graph's inputs.
pub(crate) const PREFIX: &str = "condition.";

/// The numbers of the vector of an image's camera.
pub(crate) fn taken_by(p: &Photons) -> TakenBy {
    TakenBy { scale: p.peak, read_noise: p.read_noise, background: p.background }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Conditioned {
    /// The model's description of it.
    pub about: Conditioning,
    inputs: Vec<ConditionInput>,
    /// Of each class, where there are any.
    contexts: Vec<Context>,
}

impl Conditioned {
    /// What a configuration asks for; the network's keys that follow from it are filled in.
    ///
    /// # Errors
    /// If the network takes nothing of the kind, a key says otherwise, classes have no names, or a context is missing.
    pub(crate) fn of(config: &mut RunConfig, data: &Data) -> Result<Option<Arc<Conditioned>>> {
        let task = &config.task;
        if !task.class && task.vector.is_empty() && task.context.is_none() {
            return Ok(None);
        }
        if task.vector.contains(&ConditionPart::Camera) && !data.photons() {
            let needed = "[domain]: the camera is known only for data in electrons (data.signal=photons)";
            return setting("task.vector", "[camera]", needed);
        }
        let classes = classes(config, data)?;
        let contexts = match &task.context {
            Some(folder) => contexts(folder, &classes)?,
            None => vec![],
        };
        let about = Conditioning {
            vector: task.vector.iter().map(|part| (*part).into()).collect(),
            tokens: contexts.first().map(|c| c.tokens),
            dropped: task.drop_class,
            classes,
        };
        fill_keys(&mut config.model.network, task.class, &about, contexts.first())?;
        let network = models::read(&Json::from(config.model.network.clone()).to_string())?;
        let rows = config.model.network.get("num_class_embeds").and_then(Json::as_u64).map(|n| n as usize);
        let inputs = ConditionInput::of(&*network, rows, Some(&about));
        Ok(Some(Arc::new(Conditioned { about, inputs, contexts })))
    }

    /// The same for a model that is there already; its contexts lie in a folder.
    ///
    /// # Errors
    /// If a context is missing.
    pub(crate) fn of_model(model: &Model, folder: Option<&Path>) -> Result<Option<Arc<Conditioned>>> {
        let Some(about) = model.about.conditioning.clone() else { return Ok(None) };
        let contexts = match folder {
            Some(folder) => contexts(folder, &about.classes)?,
            None => vec![],
        };
        Ok(Some(Arc::new(Conditioned { about, inputs: model.condition_inputs(), contexts })))
    }

    /// The type of one of the network's inputs in a graph of so many samples, if it is one of these.
    pub(crate) fn ty(&self, port: &str, batch: usize) -> Option<Type> {
        let input = self.input(port)?;
        let sizes: Vec<usize> =
            [batch].into_iter().chain(input.shape(self.about.tokens.unwrap_or(1))).collect();
        let shape = Shape::new(&sizes);
        Some(if input.dtype == DType::I32 { Type::i32(shape) } else { Type::f32(shape) })
    }

    fn input(&self, port: &str) -> Option<&ConditionInput> {
        let known = |i: &&ConditionInput| match i.kind {
            InputKind::Unknown { .. } => false,
            InputKind::Context { .. } => !self.contexts.is_empty(),
            _ => true,
        };
        self.inputs.iter().filter(known).find(|i| i.port == port)
    }

    /// What is known of an image of a domain; the numbers that go with it are zeros where its measurement is dropped.
    ///
    /// # Errors
    /// If the domain is none of the classes, and none was dropped in training.
    pub(crate) fn conditions(
        &self,
        domain: &str,
        numbers: Option<&[f32; NUMBERS]>,
        dropped: bool,
    ) -> Result<Conditions> {
        let class = self.about.classes.iter().position(|name| name == domain);
        if class.is_none() && self.about.dropped == 0.0 {
            let needed = format!("a class that is trained on: {}", self.about.classes.join(", "));
            return setting("task.class", format!("images of the domain `{domain}`"), needed);
        }
        let kept = numbers.filter(|n| n[NUMBERS - 1] != 0.0 && self.about.code().camera);
        let camera = kept.map(|n| Ok::<_, TrainError>(taken_by(&camera::photons(n)?))).transpose()?;
        let class = class.filter(|_| !dropped);
        Ok(Conditions { class, camera, context: class.and_then(|c| self.contexts.get(c).cloned()) })
    }

    /// The values of one of the network's inputs for a batch, of which the samples that `dropped` tells have no class.
    ///
    /// # Errors
    /// As [`Conditioned::conditions`].
    pub(crate) fn values(
        &self,
        port: &str,
        batch: &Batch,
        dropped: impl Fn(usize) -> bool,
    ) -> Result<Tensor> {
        let unknown = || TrainError::Input { name: port.into(), why: "the network has no such input" };
        let (input, ty) = (self.input(port), self.ty(port, batch.domains.len()));
        let (input, shape) = (input.ok_or_else(unknown)?, ty.ok_or_else(unknown)?.shape);
        let each = shape.len() / batch.domains.len().max(1);
        let mut values = vec![0.0; shape.len()];
        let numbers = batch.numbers.as_f32()?.as_chunks::<NUMBERS>().0;
        for (i, out) in values.chunks_exact_mut(each).enumerate() {
            let domain = batch.domain_names.get(batch.domains[i]).map_or("", String::as_str);
            let known = self.conditions(domain, numbers.get(i), dropped(i))?;
            input.fill(&known, out).map_err(|why| TrainError::Setting {
                key: "task.class".into(),
                got: format!("an image of `{domain}`"),
                needed: why,
            })?;
        }
        Ok(match input.dtype {
            DType::I32 => Tensor::i32(shape, values.into_iter().map(|v| v as i32).collect()),
            _ => Tensor::f32(shape, values),
        })
    }
}

impl From<ConditionPart> for VectorPart {
    fn from(part: ConditionPart) -> VectorPart {
        match part {
            ConditionPart::Domain => VectorPart::Domain,
            ConditionPart::Camera => VectorPart::Camera,
        }
    }
}

impl From<VectorPart> for ConditionPart {
    fn from(part: VectorPart) -> ConditionPart {
        match part {
            VectorPart::Domain => ConditionPart::Domain,
            VectorPart::Camera => ConditionPart::Camera,
        }
    }
}

/// The key that would let training give a network this input.
pub(crate) fn key_for(task: &Task, port: &str, ty: Type) -> String {
    let say = match (port, ty.shape.rank()) {
        ("context", _) => "set task.context=FOLDER, with a NAME.npy for each class",
        ("class", 1) => "say task.class=true",
        ("class" | "vector", _) => "say task.vector=[domain,camera]",
        _ => "training data do not have it",
    };
    let given = if task.conditioned.is_some() { ", in addition to what it has" } else { "" };
    format!("the network needs the input `{port}`{given}: {say}")
}

/// The names of classes: those of the model that a run begins from, or the domains of its data.
fn classes(config: &RunConfig, data: &Data) -> Result<Vec<String>> {
    let size: Vec<usize> = config.trainer.depth.into_iter().chain([config.trainer.crop; 2]).collect();
    let found = data.source(Part::Training, &size, None)?.domains();
    let known = init_model(config)?.and_then(|m| m.about.conditioning).map(|c| c.classes).unwrap_or_default();
    if found.iter().any(String::is_empty) {
        let needed = "images with classes: a column `domain` in data.manifest, or generated scenes";
        let key = if config.task.class { "task.class" } else { "task.vector" };
        return setting(key, "images without a domain", needed);
    }
    match found.iter().find(|name| !known.is_empty() && !known.contains(name)) {
        Some(other) => {
            let needed = format!("one of the classes of the model in model.init: {}", known.join(", "));
            setting("task.class", format!("images of `{other}`"), needed)
        }
        None => Ok(if known.is_empty() { found } else { known }),
    }
}

/// The context of each class, NAME.npy in a folder, all of one shape.
pub(crate) fn contexts(folder: &Path, classes: &[String]) -> Result<Vec<Context>> {
    let mut all: Vec<Context> = vec![];
    for name in classes {
        let path = folder.join(format!("{name}.npy"));
        if !path.is_file() {
            let needed = format!("a folder with NAME.npy for each class; {} is missing", path.display());
            return setting("task.context", folder.display(), needed);
        }
        let context = Context::read(&path)?;
        if let Some(first) = all.first().filter(|f| (f.tokens, f.width) != (context.tokens, context.width)) {
            let got = format!("{}: {} x {} numbers", path.display(), context.tokens, context.width);
            let needed = format!("{} x {}, as the first class has", first.tokens, first.width);
            return setting("task.context", got, needed);
        }
        all.push(context);
    }
    Ok(all)
}

/// Fills in the keys of a network that follow from what it is conditioned on, and refuses those that say otherwise.
fn fill_keys(
    network: &mut Map<String, Json>,
    class: bool,
    about: &Conditioning,
    context: Option<&Context>,
) -> Result<()> {
    let kind = network.get("_class_name").and_then(Json::as_str).unwrap_or(models::unet2d::CLASS_NAME);
    let (plain, cross) = (kind == models::unet2d::CLASS_NAME, kind == models::unet2d_condition::CLASS_NAME);
    let own = ["Local", "MultiScale", "Growing"].contains(&kind);
    let kind = kind.to_string();
    let mut keep = |key: &str, value: Json, what: &str| -> Result<()> {
        match network.get(key) {
            Some(said) if !said.is_null() && said.as_u64() != Some(0) && *said != value => {
                let needed = format!("{value}: {what}; leave it out, and it is filled in");
                Err(TrainError::Setting { key: "model.network".into(), got: format!("{key}={said}"), needed })
            }
            _ => {
                network.insert(key.into(), value);
                Ok(())
            }
        }
    };
    let count = about.classes.len();
    if class {
        if !plain && !cross {
            let needed = "a UNet2DModel or UNet2DConditionModel, which have a table of classes; others take task.vector=[domain]";
            return setting("task.class", format!("a {kind}"), needed);
        }
        if cross && !about.vector.is_empty() {
            let needed = "false: a UNet2DConditionModel takes a class or a vector, and task.vector=[domain] contains the class";
            return setting("task.class", "true beside task.vector", needed);
        }
        let (rows, more) = match about.dropped > 0.0 {
            true => (count + 1, ", and one for images whose class is dropped"),
            false => (count, ""),
        };
        keep("num_class_embeds", rows.into(), &format!("a row for each of {count} classes{more}"))?;
    }
    if !about.vector.is_empty() {
        let width = about.code().width();
        let what = format!("the vector has {width} numbers");
        if own {
            keep("vector_dim", width.into(), &what)?;
        } else if cross {
            keep("class_embed_type", "projection".into(), "a vector is projected")?;
            keep("projection_class_embeddings_input_dim", width.into(), &what)?;
        } else {
            let needed = "a Local, MultiScale, Growing or UNet2DConditionModel, which take a vector";
            return setting("task.vector", format!("a {kind}"), needed);
        }
    }
    if let Some(context) = context {
        if !cross {
            return setting(
                "task.context",
                format!("a {kind}"),
                "a UNet2DConditionModel, which attends to a context",
            );
        }
        keep(
            "cross_attention_dim",
            context.width.into(),
            &format!("contexts are vectors of {} numbers", context.width),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(network: &str, class: bool, about: &Conditioning) -> Result<Map<String, Json>> {
        let mut map = serde_json::from_str(network).expect("an object");
        fill_keys(&mut map, class, about, None).map(|()| map)
    }

    #[test]
    fn keys_follow_from_the_request_and_contradictions_are_named() {
        let about = Conditioning {
            classes: vec!["a".into(), "b".into(), "c".into()],
            vector: vec![VectorPart::Domain, VectorPart::Camera],
            ..Conditioning::default()
        };
        let local = filled(r#"{"_class_name": "Local"}"#, false, &about).expect("a network");
        assert_eq!(local["vector_dim"], 6);
        let said =
            filled(r#"{"_class_name": "Local", "vector_dim": 4}"#, false, &about).unwrap_err().to_string();
        assert!(said.contains("vector_dim=4") && said.contains("6 numbers"), "{said}");
        let said = filled(r#"{"_class_name": "DnCNN"}"#, false, &about).unwrap_err().to_string();
        assert!(said.starts_with("task.vector") && said.contains("Local"), "{said}");
        let table = Conditioning { vector: vec![], dropped: 0.1, ..about.clone() };
        assert_eq!(filled("{}", true, &table).expect("a network")["num_class_embeds"], 4);
        let said = filled(r#"{"num_class_embeds": 3}"#, true, &table).unwrap_err().to_string();
        assert!(said.contains("whose class is dropped"), "{said}");
        let cross = r#"{"_class_name": "UNet2DConditionModel"}"#;
        let projected = filled(cross, false, &about).expect("a network");
        assert_eq!(projected["projection_class_embeddings_input_dim"], 6);
        assert!(filled(cross, true, &about).unwrap_err().to_string().starts_with("task.class"));
        assert!(
            filled(r#"{"_class_name": "Local"}"#, true, &table)
                .unwrap_err()
                .to_string()
                .contains("task.vector")
        );
    }
}
