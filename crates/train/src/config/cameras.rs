//! Checks of simulated cameras: of the one for all data, and of those for single kinds of scenes.

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
                "for task=conditional, supervised and prior only; leave it out",
            )?;
        }
        check_camera(&data.camera, "data.camera")?;
        data.cameras
            .iter()
            .try_for_each(|(name, camera)| check_camera(camera, &format!("data.cameras.{name}")))
    }
}

/// One simulated camera; `of` is its key.
fn check_camera(camera: &CameraConfig, of: &str) -> Result<()> {
    let key = |name: &str| format!("{of}.{name}");
    require(range(camera.peak), key("peak"), camera.peak, "two rising numbers above zero")?;
    for (name, given) in [("background", camera.background), ("read_noise", camera.read_noise)] {
        let Some(given) = given else { continue };
        let fits = range(given) || given == [0.0; 2];
        require(fits, key(name), given, "two rising numbers above zero, or two zeros")?;
    }
    require(range([1.0, camera.spread]), key("spread"), camera.spread, "a number of 1 or more")?;
    let fits = camera.peak_error.is_finite() && camera.peak_error >= 0.0;
    require(fits, key("peak_error"), camera.peak_error, "a number of 0 or more")?;
    for (name, given) in [
        ("peak_noise", camera.peak_noise),
        ("blur", camera.blur),
        ("uniform", camera.uniform),
        ("correlated", camera.correlated),
        ("correlated_far", camera.correlated_far),
        ("mosaic", camera.mosaic),
        ("counting", camera.counting),
        ("amplified", camera.amplified),
        ("found", camera.found),
        ("clipped", camera.clipped),
        ("rounded", camera.rounded),
    ] {
        require(share(given), key(name), given, "a share from 0 to 1")?;
    }
    for (name, given) in [
        ("blur_sigma", camera.blur_sigma),
        ("uniform_noise", camera.uniform_noise),
        ("correlated_sigma", camera.correlated_sigma),
    ] {
        require(range(given), key(name), given, "two rising numbers above zero")?;
    }
    for (name, given) in
        [("correlation_error", camera.correlation_error), ("noise_error", camera.noise_error)]
    {
        require((0.0..=1.0).contains(&given), key(name), given, "a number from 0 to 1")?;
    }
    Ok(())
}
