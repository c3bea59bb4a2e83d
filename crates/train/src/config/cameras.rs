//! What is refused of simulated cameras: of the one of all data, and of those that kinds of scenes have of their own.

use super::check::{range, share};
use super::{CameraConfig, DataKind, RunConfig, TaskKind};
use crate::error::{Result, require};

impl RunConfig {
    /// The simulated cameras.
    pub(super) fn check_cameras(&self) -> Result<()> {
        let data = &self.data;
        for name in data.cameras.keys() {
            let known: Vec<&str> = data.scenes.keys().map(String::as_str).collect();
            let needed = format!("kinds of data.scenes: {}", known.join(", "));
            require(
                data.kind == DataKind::Scenes && data.scenes.contains_key(name),
                "data.cameras",
                name,
                &needed,
            )?;
            let kind = self.task.kind;
            let seen = matches!(kind, TaskKind::Conditional | TaskKind::Supervised | TaskKind::Prior)
                && self.task.enlarge <= 1;
            require(
                seen,
                "data.cameras",
                name,
                "left out: for task=conditional, supervised and prior alone",
            )?;
        }
        [&data.camera].into_iter().chain(data.cameras.values()).try_for_each(check_camera)
    }
}

/// One simulated camera.
fn check_camera(camera: &CameraConfig) -> Result<()> {
    require(range(camera.peak), "data.camera.peak", camera.peak, "two rising numbers above zero")?;
    for (key, given) in
        [("data.camera.background", camera.background), ("data.camera.read_noise", camera.read_noise)]
    {
        let Some(given) = given else { continue };
        let fits = range(given) || given == [0.0; 2];
        require(fits, key, given, "two rising numbers above zero, or two zeros")?;
    }
    require(range([1.0, camera.spread]), "data.camera.spread", camera.spread, "a number from 1 on")?;
    require(
        camera.peak_error.is_finite() && camera.peak_error >= 0.0,
        "data.camera.peak_error",
        camera.peak_error,
        "a number from 0 on",
    )?;
    require(share(camera.peak_noise), "data.camera.peak_noise", camera.peak_noise, "a share from 0 to 1")?;
    for (key, given) in [
        ("data.camera.blur", camera.blur),
        ("data.camera.uniform", camera.uniform),
        ("data.camera.correlated", camera.correlated),
        ("data.camera.correlated_far", camera.correlated_far),
        ("data.camera.mosaic", camera.mosaic),
        ("data.camera.counting", camera.counting),
        ("data.camera.amplified", camera.amplified),
        ("data.camera.found", camera.found),
        ("data.camera.clipped", camera.clipped),
        ("data.camera.rounded", camera.rounded),
    ] {
        require(share(given), key, given, "a share from 0 to 1")?;
    }
    for (key, given) in [
        ("data.camera.blur_sigma", camera.blur_sigma),
        ("data.camera.uniform_noise", camera.uniform_noise),
        ("data.camera.correlated_sigma", camera.correlated_sigma),
    ] {
        require(range(given), key, given, "two rising numbers above zero")?;
    }
    for (key, given) in [
        ("data.camera.correlation_error", camera.correlation_error),
        ("data.camera.noise_error", camera.noise_error),
    ] {
        require((0.0..=1.0).contains(&given), key, given, "a number from 0 to 1")?;
    }
    Ok(())
}
