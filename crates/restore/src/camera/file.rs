//! Camera files, which every command accepts with `--camera`.
//!
//! `{"gain": 0.46, "offset": 100, "read_noise": 1.6}` is such a file. A measured camera file also contains the
//! correlation of the noise, and under `measured` the sources and uncertainties of the numbers, for information only.
//! It may contain `saturation`, the smallest count of a saturated pixel, and `dark`, the mean electrons of the dark
//! current in one exposure. Typical cameras have names ([`PRESETS`]). There is no key for quantum efficiency, because
//! noise depends on electrons, and photons are not used anywhere.

use crate::learned::Camera;
use clearshot_physics::Map;
use clearshot_physics::calibration::Calibration;
use clearshot_physics::calibration::measurement::CameraMeasurement;
use std::path::{Path, PathBuf};

/// Why a file is not a camera file.
#[derive(Debug, thiserror::Error)]
pub enum CameraFileError {
    #[error(
        "{}: {source}; give a file, or a camera by its name: {}",
        path.display(), PRESETS.map(|(name, _)| name).join(", ")
    )]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: not a camera: {why}; one looks like {{\"gain\": 0.46, \"offset\": 100, \"read_noise\": 1.6}}, and `clearshot camera` writes one",
        path.display()
    )]
    Content { path: PathBuf, why: String },
}

const MEASURED: &str = "measured";

/// A camera of no particular make, by its name.
type Preset = (&'static str, fn() -> Calibration);

/// Typical cameras by name.
pub const PRESETS: [Preset; 3] = [
    ("photography", Calibration::photography),
    ("scmos", Calibration::scientific_cmos),
    ("ccd", Calibration::ccd),
];

/// The contents of a camera file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CameraFile {
    pub camera: Camera,
    /// The smallest count of a saturated pixel.
    pub saturation: Option<f64>,
    /// Mean electrons of the dark current in one exposure.
    pub dark: Option<f64>,
}

impl CameraFile {
    /// A camera by its name.
    pub fn named(name: &str) -> Option<CameraFile> {
        let preset = PRESETS.iter().find(|(n, _)| *n == name)?.1();
        let (gain, offset, read_noise) = (preset.gain.mean(), preset.offset.mean(), preset.read_noise.mean());
        let camera = Camera { gain, offset, read_noise, ..Camera::default() };
        Some(CameraFile { camera, saturation: preset.saturation, dark: Some(preset.dark.mean()) })
    }

    fn check(&self) -> Result<(), String> {
        self.camera.check().map_err(|e| e.to_string())?;
        let Camera { gain, offset, read_noise, .. } = self.camera;
        let numbers = Calibration::uniform(gain, offset, read_noise).map_err(|e| e.to_string())?;
        let dark = Map::Uniform(self.dark.unwrap_or(0.0));
        Calibration { dark, saturation: self.saturation, ..numbers }.check(0).map_err(|e| e.to_string())
    }
}

/// A camera from a file, or by its name if no file has that name.
///
/// # Errors
/// If the file cannot be read, is not a camera file, or contains an impossible number.
pub fn read(path: &Path) -> Result<CameraFile, CameraFileError> {
    if let Some(preset) = path.to_str().filter(|_| !path.exists()).and_then(CameraFile::named) {
        return Ok(preset);
    }
    let text = std::fs::read(path).map_err(|source| CameraFileError::Read { path: path.into(), source })?;
    let refused = |why: String| CameraFileError::Content { path: path.into(), why };
    let mut value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| refused(e.to_string()))?;
    let mut taken = |key: &str| value.as_object_mut().and_then(|keys| keys.remove(key));
    taken(MEASURED);
    let [saturation, dark] = ["saturation", "dark"].map(|key| match taken(key) {
        None => Ok(None),
        Some(number) => {
            number.as_f64().map(Some).ok_or_else(|| refused(format!("`{key}` is {number}, not a number")))
        }
    });
    let camera: Camera = serde_json::from_value(value).map_err(|e| refused(e.to_string()))?;
    let file = CameraFile { camera, saturation: saturation?, dark: dark? };
    file.check().map_err(refused)?;
    Ok(file)
}

/// The camera of a measurement, for restorers.
pub fn camera(measured: &CameraMeasurement) -> Camera {
    crate::estimate::as_camera(&measured.fit)
}

/// The contents of a camera file, which [`read`] can read.
pub fn record(measured: &CameraMeasurement, files: &[String]) -> serde_json::Value {
    let mut value = serde_json::to_value(camera(measured)).expect("a camera is JSON");
    let mut about = serde_json::to_value(measured).expect("a measurement is JSON");
    about["files"] = serde_json::json!(files);
    value[MEASURED] = about;
    value
}
