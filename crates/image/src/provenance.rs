//! The record of how a file was made, kept inside the file if the format has a place for it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What was done, by what, to which file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    pub program: String,
    pub version: String,
    pub operation: String,
    /// The name of the file that was read.
    pub source: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub parameters: Value,
    /// The record that the input carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Value>,
}

impl Provenance {
    pub fn new(operation: &str, input: &crate::Description, parameters: Value) -> Provenance {
        Provenance {
            program: "clearshot".to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            operation: operation.to_string(),
            source: input.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            parameters,
            earlier: input.provenance.clone(),
        }
    }

    pub fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}
