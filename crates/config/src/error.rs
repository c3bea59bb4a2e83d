//! Errors of configurations: which key, in which file, and the nearest known name.

use crate::nearest::meant;
use crate::tree::Origin;
use std::fmt;
use std::path::PathBuf;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("{origin}: not YAML that can be used here: {why}")]
    Yaml { origin: Origin, why: String },
    #[error("there is no configuration '{name}'{}", meant(name, known))]
    Primary { name: String, known: Vec<String> },
    #[error("{origin}: group '{group}' has no option '{option}'{}", meant(option, known))]
    Option { origin: Origin, group: String, option: String, known: Vec<String> },
    #[error("{origin}: there is no group '{group}'{}", meant(group, known))]
    Group { origin: Origin, group: String, known: Vec<String> },
    #[error("{origin}: {why}")]
    Defaults { origin: Origin, why: String },
    #[error("override '{text}': {why}")]
    Override { text: String, why: String },
    #[error("{}; only one of {} can be used: leave out the others", places(given), listed(keys))]
    Exclusive { given: Vec<(&'static str, Origin)>, keys: &'static [&'static str] },
    #[error("{path} ({origin}): {why}")]
    Interpolation { path: String, origin: Origin, why: String },
    #[error(transparent)]
    Read(#[from] ReadError),
}

fn places(given: &[(&'static str, Origin)]) -> String {
    let each: Vec<String> = given.iter().map(|(key, origin)| format!("{key} ({origin})")).collect();
    format!("{} are given together", listed(&each))
}

/// `a, b and c`.
fn listed<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => words.join(""),
    }
}

/// Why a configuration is not what a typed struct asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadError {
    /// The dotted key.
    pub path: String,
    pub origin: Option<Origin>,
    pub why: Why,
}

/// Errors of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// No such key; `known` are those of its group.
    Unknown {
        known: Vec<String>,
    },
    /// A key that must be there and is not.
    Missing,
    /// The value is `???`.
    NotGiven,
    Other(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "the configuration" } else { &self.path };
        let place = self.origin.as_ref().map(|o| format!(" ({o})")).unwrap_or_default();
        match &self.why {
            Why::Unknown { known } => {
                let (group, key) = self.path.rsplit_once('.').unwrap_or(("", &self.path));
                let full: Vec<String> = known.iter().map(|k| crate::tree::joined(group, k)).collect();
                let full_key = crate::tree::joined(group, key);
                write!(f, "{path}{place}: there is no such key{}", meant(&full_key, &full))
            }
            Why::Missing => write!(f, "{path}{place}: the key is missing; give it as {path}=VALUE"),
            Why::NotGiven => write!(f, "{path}{place}: a value must be given, as {path}=VALUE"),
            Why::Other(why) => write!(f, "{path}{place}: {why}"),
        }
    }
}

impl std::error::Error for ReadError {}
