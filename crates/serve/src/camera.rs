//! The camera of an image, estimated on the first request and cached.

use crate::refusal::{Refusal, without};
use clearshot::{CameraSettings, estimate_camera};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const KEPT: usize = 32;

/// The file, its item, the numbers and the figure.
type Known = (PathBuf, Option<String>, Value, String);

#[derive(Default)]
pub struct Cameras {
    known: Mutex<VecDeque<Known>>,
}

impl Cameras {
    /// The numbers, and a figure as SVG.
    ///
    /// # Errors
    /// If the image does not tell.
    pub fn of(&self, path: &Path, item: Option<&str>) -> Result<(Value, String), Refusal> {
        let lock = || self.known.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = lock().iter().find(|k| k.0 == path && k.1.as_deref() == item) {
            return Ok((known.2.clone(), known.3.clone()));
        }
        let settings = CameraSettings { item: item.map(str::to_string), ..CameraSettings::default() };
        let source = path.to_str().ok_or_else(|| Refusal::new(422, "the file's name is not text"))?;
        let report = estimate_camera(&[source], &settings, &mut ())
            .map_err(|e| Refusal::new(422, without(&e.to_string(), path)))?;
        let mut record = report.record();
        // The path of the file is not revealed to clients.
        for part in record.as_object_mut().into_iter().flat_map(|r| r.values_mut()) {
            if let Some(files) = part.get_mut("files") {
                *files = json!([path.file_name().map(|n| n.to_string_lossy())]);
            }
        }
        let figure = report.figure();
        let mut known = lock();
        known.push_back((path.to_path_buf(), item.map(str::to_string), record.clone(), figure.clone()));
        if known.len() > KEPT {
            known.pop_front();
        }
        Ok((record, figure))
    }
}
