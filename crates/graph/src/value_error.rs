//! What sessions on any device answer when values are set, asked for or computed.

/// What is wrong with a value that is set or asked for, or with a run.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ValueError {
    #[error("there is no {kind} called `{name}`; there are: {known}")]
    Unknown { kind: &'static str, name: String, known: String },
    #[error("`{name}` is {expected}, it was given {got}")]
    Type { name: String, expected: String, got: String },
    #[error("`{0}` has not been set")]
    NotSet(String),
    #[error("`{0}` is computed by a run, and there was none yet")]
    NotRun(String),
    /// What the device says.
    #[error("{0}")]
    Device(String),
}

impl ValueError {
    /// There is none of that name; the message lists some that there are.
    pub fn unknown<'a>(
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a String>,
    ) -> ValueError {
        let mut known: Vec<&str> = known.map(String::as_str).collect();
        known.sort_unstable();
        let shown = known.iter().take(12).copied().collect::<Vec<_>>().join(", ");
        let more = known.len().saturating_sub(12);
        let known = if more > 0 { format!("{shown} and {more} more") } else { shown };
        ValueError::Unknown { kind, name: name.into(), known }
    }
}
