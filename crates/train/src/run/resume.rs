//! Resuming a run with another configuration: which keys may change, and which would make it a different run.
//!
//! Samples are numbered by the batch, stages by their sizes, states by the network and the optimiser; with other data,
//! another task or seed a run would be inconsistent. Lengths, rates, devices, records and the location of the same files
//! may change.

use crate::checkpoint::Progress;
use crate::config::{RunConfig, TrainerConfig};
use crate::error::{Result, TrainError};
use crate::schedule::asked_batch;
use serde_json::Value as Json;

/// Keys that the meaning of an iteration depends on, with all below them.
const FIXED: [&str; 11] = [
    "seed",
    "data",
    "model.network",
    "task",
    "optimizer.kind",
    "model.only",
    "trainer.crop",
    "trainer.depth",
    "trainer.accumulate",
    "trainer.growth.stages",
    "trainer.growth.most",
];
/// Keys below those that only say where things are.
const PLACES: [&str; 5] = ["data.inputs", "data.targets", "data.masks", "data.manifest", "data.memory"];

/// The progress of a run that was saved with one configuration and resumes with another, whose length counts.
///
/// # Errors
/// If a key has changed that may not.
pub(super) fn continued(mut progress: Progress, before: &RunConfig, now: &RunConfig) -> Result<Progress> {
    let (old, new) = (&before.trainer, &now.trainer);
    if new.batch != old.batch && asked_batch(new) != Some(progress.batch) {
        let got = serde_json::to_string(&new.batch).unwrap_or_default();
        return Err(TrainError::Changed {
            key: "trainer.batch".into(),
            got,
            began: progress.batch.to_string(),
        });
    }
    let [began, goes_on] = [before, now].map(|config| serde_json::to_value(config).unwrap_or_default());
    for key in FIXED {
        let pointer = format!("/{}", key.replace('.', "/"));
        let [began, goes_on] = [&began, &goes_on].map(|json| json.pointer(&pointer).unwrap_or(&Json::Null));
        if let Some((key, began, got)) = difference(key.into(), began, goes_on) {
            return Err(TrainError::Changed { key, got, began });
        }
    }
    let length = |t: &TrainerConfig| (t.iterations, t.seconds, t.epochs);
    if length(new) != length(old) {
        // Time that is over already is the end; otherwise it is found out again how many iterations fit.
        let over = new.seconds.is_some_and(|s| s <= progress.seconds);
        progress.total = if over { Some(progress.iteration) } else { new.iterations };
    }
    Ok(progress)
}

/// The first key whose value is another, with both values.
fn difference(key: String, began: &Json, got: &Json) -> Option<(String, String, String)> {
    if PLACES.contains(&key.as_str()) {
        return None;
    }
    match (began, got) {
        (Json::Object(a), Json::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let of = |map: &serde_json::Map<String, Json>, name: &String| map.get(name).cloned();
            names.into_iter().find_map(|name| {
                let [a, b] = [of(a, name), of(b, name)].map(Option::unwrap_or_default);
                difference(format!("{key}.{name}"), &a, &b)
            })
        }
        (Json::Array(a), Json::Array(b)) if a.len() == b.len() => {
            let changed = a.iter().zip(b).any(|(a, b)| difference(key.clone(), a, b).is_some());
            changed.then(|| (key, began.to_string(), got.to_string()))
        }
        // A number that went through a file of text may be another in its last bit.
        (Json::Number(a), Json::Number(b)) => {
            let (x, y) = (a.as_f64()?, b.as_f64()?);
            let same = a == b || (a.is_f64() && (x - y).abs() <= 4.0 * f64::EPSILON * x.abs().max(y.abs()));
            (!same).then(|| (key, a.to_string(), b.to_string()))
        }
        _ => (began != got).then(|| (key, began.to_string(), got.to_string())),
    }
}
