//! Refused requests: a status and a sentence for the client.

use crate::http::Answer;
use serde_json::json;

/// See the module.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub why: String,
}

impl Refusal {
    pub fn new(status: u16, why: impl Into<String>) -> Refusal {
        Refusal { status, why: why.into() }
    }

    pub fn bad(why: impl Into<String>) -> Refusal {
        Refusal::new(400, why)
    }

    pub fn missing(what: &str) -> Refusal {
        Refusal::new(404, format!("{what}: not found"))
    }

    /// An internal error, whose details are not revealed to clients.
    pub fn ours() -> Refusal {
        Refusal::new(500, "the server could not do this; see the server's own output for the reason")
    }

    pub fn answer(&self) -> Answer {
        let answer = Answer::json(&json!({"error": self.why})).status(self.status);
        match self.status {
            401 => answer.with("WWW-Authenticate", "Bearer"),
            429 | 503 => answer.with("Retry-After", "5"),
            _ => answer,
        }
    }
}

/// An image that cannot be read is the sender's; the path that the text begins with is the server's.
pub fn of_image(e: &clearshot_image::Error, path: &std::path::Path) -> Refusal {
    Refusal::new(422, without(&e.to_string(), path))
}

/// A text without the folder that a file lies in.
pub fn without(text: &str, path: &std::path::Path) -> String {
    match path.parent().map(|p| format!("{}/", p.display())) {
        Some(folder) if folder.len() > 1 => text.replace(&folder, ""),
        _ => text.into(),
    }
}
