//! Training: runs by a configuration, and models fitted to noisy images.

use crate::errors::{Raised, named};
use crate::listener::Listener;
use crate::report;
use crate::restorer::{Restorer, device};
use crate::settings::camera;
use clearshot::{AdaptFrom, AdaptSettings, TrainSettings};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Trains, or resumes a run; gives its folder, the best model's file and the summary as JSON.
#[pyfunction]
#[pyo3(signature = (overrides, out, resume, configs, stop_at, hear))]
pub fn train(
    py: Python<'_>,
    overrides: Vec<String>,
    out: Option<PathBuf>,
    resume: bool,
    configs: Option<PathBuf>,
    stop_at: Option<u64>,
    hear: Py<PyAny>,
) -> PyResult<(PathBuf, Option<PathBuf>, String)> {
    let settings = TrainSettings { overrides, out, resume, configs, stop_at };
    let raised = Raised::default();
    let mut listener = Listener::new(hear, &raised);
    let done = py.detach(|| clearshot::train(&settings, &mut listener)).map_err(|e| raised.or(e))?;
    let summary = report::training(&done).to_string();
    // A run that a callback ended has its checkpoint, and the callback's exception is what the caller hears of.
    match raised.take() {
        Some(e) => Err(e),
        None => Ok((done.folder, done.model, summary)),
    }
}

/// Fits a model to noisy images; gives the model to restore with, whether it is another one, the record as JSON, and that in words.
#[pyfunction]
#[pyo3(signature = (images, start, seconds, known, device_name, overrides, folder, anyway, source, hear))]
pub fn adapt(
    py: Python<'_>,
    images: Vec<PathBuf>,
    start: &Bound<'_, Restorer>,
    seconds: Option<f64>,
    known: &str,
    device_name: &str,
    overrides: Vec<String>,
    folder: Option<PathBuf>,
    anyway: bool,
    source: &str,
    hear: Py<PyAny>,
) -> PyResult<(Restorer, bool, String, String)> {
    let (start, raised) = (&start.get().inner, Raised::default());
    let settings = AdaptSettings {
        seconds,
        camera: camera(known)?,
        device: device_name.parse().map_err(|e| named("DeviceError", e))?,
        overrides,
        folder,
        anyway,
        from: match source {
            "auto" => AdaptFrom::Auto,
            "repeats" => AdaptFrom::Repeats,
            "noise" => AdaptFrom::Noise,
            other => {
                return Err(named(
                    "SettingError",
                    format!("source={other:?}: auto, repeats or noise is needed"),
                ));
            }
        },
        ..AdaptSettings::default()
    };
    let on = device(device_name, None)?;
    let mut listener = Listener::new(hear, &raised);
    let fit = || -> clearshot::Result<_> {
        let adapted = clearshot::adapt(&images, start.model()?, &settings, &mut listener)?;
        let (kept, record, text) = (adapted.kept, adapted.record(), adapted.in_words());
        let origin = if kept { record.clone() } else { serde_json::json!({ "kept": false }) };
        let restorer = clearshot::Restorer::from_model(adapted.into_model(), on)?.with_origin(Some(origin));
        Ok((Restorer::new(restorer), kept, record.to_string(), text))
    };
    let made = py.detach(fit).map_err(|e| raised.or(e))?;
    raised.take().map_or(Ok(made), Err)
}
