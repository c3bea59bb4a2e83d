//! Reading configurations, and the checks that all of them need.
//!
//! What a user wrote is a struct of plain values whose keys are known or refused; it resolves to another struct in which
//! every choice is made. The functions here are for this conversion: each error names the key, its value, and what is
//! supported.

use crate::Error;
use clearshot_config::nearest;
use clearshot_graph::ops::Unary;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Bounds on what is plausible, so that a damaged file is refused and not built.
pub(crate) const MOST_CHANNELS: usize = 1 << 16;
pub(crate) const MOST_LEVELS: usize = 12;
pub(crate) const MOST_LAYERS: usize = 64;
pub(crate) const MOST_ROWS: usize = 1 << 24;

/// A JSON object.
///
/// # Errors
/// If the text is something else.
pub(crate) fn object(text: &str) -> Result<Map<String, Json>, Error> {
    serde_json::from_str(text).map_err(|e| Error::NotJson { reason: e.to_string() })
}

/// A configuration from an object. Keys that begin with `_` are bookkeeping of the program that wrote the file: they
/// are kept where `C` has a place for them.
///
/// # Errors
/// If there is a key that is not known, or a value of another kind than the key's.
pub(crate) fn from_map<C>(map: Map<String, Json>) -> Result<C, Error>
where
    C: DeserializeOwned + Serialize + Default,
{
    let known = known_keys::<C>();
    let foreign = |key: &&String| !key.starts_with('_') && !known.contains(key);
    if let Some(key) = map.keys().find(foreign) {
        let nearest = nearest(key, known.iter().map(String::as_str)).map(String::from);
        return Err(Error::UnknownKey { key: key.clone(), nearest });
    }
    serde_json::from_value(Json::Object(map.clone())).map_err(|whole| {
        // serde does not say which key it was: the one that alone fails too.
        let alone = |(key, value): (&String, &Json)| {
            let one = Map::from_iter([(key.clone(), value.clone())]);
            let error = serde_json::from_value::<C>(Json::Object(one)).err()?;
            Some(Error::Kind { key: key.clone(), reason: format!("{value}: {error}") })
        };
        map.iter().find_map(alone).unwrap_or(Error::NotJson { reason: whole.to_string() })
    })
}

fn known_keys<C: Serialize + Default>() -> Vec<String> {
    match serde_json::to_value(C::default()) {
        Ok(Json::Object(map)) => map.into_iter().map(|(key, _)| key).collect(),
        _ => vec![],
    }
}

/// A value for all levels, or a list with one for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrEach<T> {
    One(T),
    Each(Vec<T>),
}

impl<T: Clone> OneOrEach<T> {
    /// One value a level.
    ///
    /// # Errors
    /// If it is a list of another length.
    pub(crate) fn of(&self, key: &'static str, count: usize) -> Result<Vec<T>, Error> {
        match self {
            OneOrEach::One(x) => Ok(vec![x.clone(); count]),
            OneOrEach::Each(list) if list.len() == count => Ok(list.clone()),
            OneOrEach::Each(list) => {
                let supported = format!("one value, or a list of {count}");
                Err(unsupported(key, format!("a list of {}", list.len()), &supported))
            }
        }
    }
}

pub(crate) fn unsupported(key: &'static str, got: String, supported: &str) -> Error {
    Error::Unsupported { key, got, supported: supported.into() }
}

/// Refuses a value other than the only one that is supported.
pub(crate) fn only<T: PartialEq + Serialize>(key: &'static str, got: &T, supported: &T) -> Result<(), Error> {
    let text = |x: &T| serde_json::to_string(x).unwrap_or_default();
    if got == supported { Ok(()) } else { Err(unsupported(key, text(got), &text(supported))) }
}

pub(crate) fn count(key: &'static str, got: usize, most: usize) -> Result<usize, Error> {
    if (1..=most).contains(&got) {
        return Ok(got);
    }
    Err(unsupported(key, got.to_string(), &format!("1 to {most}")))
}

/// As [`count`] for every entry of a list that may not be empty or longer than `longest`.
pub(crate) fn counts(key: &'static str, got: &[usize], longest: usize, most: usize) -> Result<(), Error> {
    if got.is_empty() || got.len() > longest {
        return Err(unsupported(key, format!("a list of {}", got.len()), &format!("1 to {longest} entries")));
    }
    got.iter().try_for_each(|&x| count(key, x, most).map(|_| ()))
}

pub(crate) fn positive(key: &'static str, got: f64) -> Result<f64, Error> {
    if got > 0.0 && got.is_finite() {
        return Ok(got);
    }
    Err(unsupported(key, got.to_string(), "positive numbers"))
}

/// Planes or volumes.
pub(crate) fn spatial_dims(got: usize) -> Result<(), Error> {
    if (2..=3).contains(&got) {
        return Ok(());
    }
    Err(unsupported("spatial_dims", got.to_string(), "2 and 3"))
}

/// The share of activations that are dropped.
pub(crate) fn dropout_rate(key: &'static str, got: f64) -> Result<f64, Error> {
    if (0.0..1.0).contains(&got) {
        return Ok(got);
    }
    Err(unsupported(key, got.to_string(), "from 0 up to, but not, 1"))
}

/// Which of `known` a word is.
pub(crate) fn choice(key: &'static str, got: &str, known: &[&str]) -> Result<usize, Error> {
    let at = known.iter().position(|k| *k == got);
    at.ok_or_else(|| unsupported(key, format!("`{got}`"), &known.join(", ")))
}

/// An activation by diffusers' name.
pub(crate) fn activation(key: &'static str, got: &str) -> Result<Unary, Error> {
    let known = ["silu", "swish", "relu", "gelu"];
    Ok(match choice(key, &got.to_lowercase(), &known)? {
        0 | 1 => Unary::Silu,
        2 => Unary::Relu,
        _ => Unary::Gelu,
    })
}

/// Channels that a norm of so many groups can take.
pub(crate) fn divides(key: &'static str, groups: usize, channels: usize) -> Result<(), Error> {
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(());
    }
    Err(unsupported(key, groups.to_string(), &format!("divisors of all channels, {channels} among them")))
}
