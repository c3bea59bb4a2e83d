//! A camera as a file: what every verb takes by `--camera`, with what was measured beside it.
//!
//! `{"gain": 0.46, "offset": 100, "read_noise": 1.6}` is such a file. One that was measured also has the correlation of the noise, and
//! under `measured` where the numbers come from and how sure they are, which nothing reads but people.

use crate::learned::Camera;
use clearshot_physics::calibration::measurement::CameraMeasurement;
use std::path::{Path, PathBuf};

/// Why a file is no camera.
#[derive(Debug, thiserror::Error)]
pub enum CameraFileError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: not a camera: {why}; one looks like {{\"gain\": 0.46, \"offset\": 100, \"read_noise\": 1.6}}, and `clearshot camera` writes one",
        path.display()
    )]
    Content { path: PathBuf, why: String },
}

const MEASURED: &str = "measured";

/// # Errors
/// If the file cannot be read, is no camera, or a number in it is impossible.
pub fn read(path: &Path) -> Result<Camera, CameraFileError> {
    let text = std::fs::read(path).map_err(|source| CameraFileError::Read { path: path.into(), source })?;
    let refused = |why: String| CameraFileError::Content { path: path.into(), why };
    let mut value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| refused(e.to_string()))?;
    if let Some(keys) = value.as_object_mut() {
        keys.remove(MEASURED);
    }
    let camera: Camera = serde_json::from_value(value).map_err(|e| refused(e.to_string()))?;
    camera.check().map_err(|e| refused(e.to_string()))?;
    Ok(camera)
}

/// What a measurement says to restorers.
pub fn camera(measured: &CameraMeasurement) -> Camera {
    crate::estimate::as_camera(&measured.fit)
}

/// The contents of a file, which [`read`] gives back.
pub fn record(measured: &CameraMeasurement, files: &[String]) -> serde_json::Value {
    let mut value = serde_json::to_value(camera(measured)).expect("a camera is JSON");
    let mut about = serde_json::to_value(measured).expect("a measurement is JSON");
    about["files"] = serde_json::json!(files);
    value[MEASURED] = about;
    value
}
