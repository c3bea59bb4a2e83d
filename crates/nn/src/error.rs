//! Errors of configurations and weight files.

use clearshot_graph::BuildError;
use clearshot_graph::grad::GradError;
use clearshot_tensor::Shape;
use clearshot_tensor::store::StoreError;
use std::fmt;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the configuration is not a JSON object: {reason}")]
    NotJson { reason: String },
    #[error("unknown key `{key}` in the configuration{}", nearest.as_ref().map_or(String::new(), |n| format!("; did you mean `{n}`?")))]
    UnknownKey { key: String, nearest: Option<String> },
    #[error("`{key}` in the configuration: {reason}")]
    Kind { key: String, reason: String },
    #[error("`{key}` is {got}; supported: {supported}")]
    Unsupported { key: &'static str, got: String, supported: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the weights do not fit the network: {0}")]
    Weights(Box<Misfit>),
    #[error(transparent)]
    Build(Box<BuildError>),
    #[error(transparent)]
    Grad(Box<GradError>),
}

impl From<GradError> for Error {
    fn from(e: GradError) -> Error {
        Error::Grad(Box::new(e))
    }
}

impl From<BuildError> for Error {
    fn from(e: BuildError) -> Error {
        Error::Build(Box::new(e))
    }
}

/// Everything in which weights differ from what a network has. Shapes are as PyTorch's files have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Misfit {
    /// Name and expected shape.
    pub missing: Vec<(String, Shape)>,
    /// Name and shape.
    pub extra: Vec<(String, Shape)>,
    /// Name, expected shape and the shape that is there.
    pub misshapen: Vec<(String, Shape, Shape)>,
    /// Names of constants that the configuration gives, and whose values are others.
    pub contradicting: Vec<String>,
}

/// How many names of each kind are printed in full.
const SHOWN: usize = 5;

impl Misfit {
    pub fn is_empty(&self) -> bool {
        let Misfit { missing, extra, misshapen, contradicting } = self;
        missing.is_empty() && extra.is_empty() && misshapen.is_empty() && contradicting.is_empty()
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |list: &[(String, Shape)]| -> Vec<String> {
            list.iter().map(|(name, shape)| format!("{name} {shape}")).collect()
        };
        let misshapen: Vec<String> = self
            .misshapen
            .iter()
            .map(|(name, want, got)| format!("{name} is {got}, expected {want}"))
            .collect();
        let kinds = [
            ("missing", named(&self.missing)),
            ("not in the network", named(&self.extra)),
            ("misshapen", misshapen),
            ("not what the configuration says", self.contradicting.clone()),
        ];
        let parts = kinds.iter().filter(|(_, list)| !list.is_empty()).map(|(what, list)| {
            let shown = list.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
            let more = list.len().saturating_sub(SHOWN);
            let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
            format!("{} {what} ({shown}{rest})", list.len())
        });
        f.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}
