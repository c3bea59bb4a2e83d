//! Scores of images, and cameras from their own images.

use crate::errors::{Raised, named};
use crate::listener::Listener;
use crate::settings::camera;
use clearshot::{CameraImages, CameraSettings, MeasureSettings};
use clearshot_image::Axis;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};

/// Scores images; gives the scores of each as JSON.
#[pyfunction]
pub fn measure(py: Python<'_>, images: &str, given: &Bound<'_, PyDict>, hear: Py<PyAny>) -> PyResult<String> {
    let mut s = MeasureSettings::default();
    for (key, value) in given.iter() {
        match key.extract::<&str>()? {
            "truth" => s.truth = value.extract()?,
            "metrics" => s.metrics = value.extract()?,
            "range" => s.range = value.extract()?,
            "against" => s.against = value.extract()?,
            "measured" => s.measured = value.extract()?,
            "noise" => s.noise = value.extract()?,
            "camera" => s.camera = camera(value.extract()?)?,
            "labels" => s.labels = value.extract()?,
            "mask" => s.mask = value.extract()?,
            "crop" => s.crop = value.extract()?,
            "volume" => s.volume = value.extract()?,
            other => return Err(named("SettingError", format!("{other}: there is no such setting"))),
        }
    }
    let raised = Raised::default();
    let mut listener = Listener::new(hear, &raised);
    let found = py.detach(|| clearshot::measure(images, &s, &mut listener)).map_err(|e| raised.or(e))?;
    let scores = |of: &clearshot::ImageScores| -> Value {
        let named =
            found.metrics.iter().zip(&of.scores).map(|(m, score)| (m.name.to_string(), json!(score.value)));
        json!({ "image": of.image, "is_against": of.is_against, "scores": Map::from_iter(named) })
    };
    Ok(found.images.iter().map(scores).collect::<Value>().to_string())
}

/// Measures a camera from files; gives the record as JSON and the figure as SVG.
#[pyfunction]
#[pyo3(signature = (images, kind, axis, known, saturation, item, darks, hear))]
pub fn estimate_camera(
    py: Python<'_>,
    images: Vec<String>,
    kind: &str,
    axis: Option<char>,
    known: &str,
    saturation: Option<f64>,
    item: Option<String>,
    darks: Vec<String>,
    hear: Py<PyAny>,
) -> PyResult<(String, String)> {
    let kind = match kind {
        "single" => CameraImages::Single,
        "repeats" => CameraImages::Repeats,
        "movie" => CameraImages::Movie,
        "flats" => CameraImages::Flats,
        other => {
            let why = format!("kind: {other:?} is not one of single, repeats, movie and flats");
            return Err(named("SettingError", why));
        }
    };
    let axis = axis.and_then(Axis::from_letter);
    let settings = CameraSettings { images: kind, darks, axis, known: camera(known)?, saturation, item };
    let raised = Raised::default();
    let mut listener = Listener::new(hear, &raised);
    let found = py.detach(|| clearshot::estimate_camera(&images, &settings, &mut listener));
    let found = found.map_err(|e| raised.or(e))?;
    Ok((found.record().to_string(), found.figure()))
}
