//! The observer of the library: tells a function of Python what is going on, and stops where that raises or a signal (Ctrl-C) came.

use crate::errors::Raised;
use crate::report;
use clearshot::{Event, Observer};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Progress is told so often at most.
const SELDOM: Duration = Duration::from_millis(50);

/// See the module. The function is called with a kind of event and what there is to say of it as JSON.
pub struct Listener {
    hear: Py<PyAny>,
    raised: Raised,
    told: Option<Instant>,
}

impl Listener {
    pub fn new(hear: Py<PyAny>, raised: &Raised) -> Listener {
        Listener { hear, raised: raised.clone(), told: None }
    }

    /// Says something, or only looks for signals.
    fn say(&self, said: Option<(&str, &Value)>) -> ControlFlow<()> {
        let told = Python::attach(|py| {
            py.check_signals()?;
            if let Some((kind, what)) = said {
                self.hear.call1(py, (kind, what.to_string()))?;
            }
            Ok(())
        });
        told.map_or_else(
            |e| {
                self.raised.keep(e);
                ControlFlow::Break(())
            },
            ControlFlow::Continue,
        )
    }
}

impl Observer for Listener {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if done < total && self.told.is_some_and(|t| t.elapsed() < SELDOM) {
            return self.say(None);
        }
        self.told = Some(Instant::now());
        self.say(Some(("progress", &json!([done, total]))))
    }

    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        match report::event(event) {
            Some((kind, mut what)) => {
                what["image"] = json!(image);
                self.say(Some((kind, &what)))
            }
            None => self.say(None),
        }
    }
}
