//! A budget of time: how many steps samples may take so that restoring an image ends within it.
//!
//! One run of the network is measured before anything is restored, and a sampler of n steps costs n times as much as one of a single step. So the steps
//! that are asked for are kept where they fit, and lowered where they do not; below [`LEAST_STEPS`] samples are no longer worth their name, and the budget is
//! refused with what it would take. What goes on beside the network (reading, guidance, the choice of a method) is not counted.

use super::engine::Engine;
use super::image::together;
use super::parts::Parts;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::Ear;
use crate::settings::Settings;
use clearshot_image::Description;

/// Samples of fewer steps are refused.
const LEAST_STEPS: usize = 4;

/// The settings with as many steps as fit; nothing where there is no budget, or it is enough.
///
/// # Errors
/// If there is no such budget for this image, or the device fails.
pub fn fitted(
    engine: &mut Engine,
    settings: &Settings,
    d: &Description,
    ear: &mut Ear<'_>,
) -> Result<Option<Settings>> {
    let Some(budget) = settings.max_seconds else { return Ok(None) };
    let restorer = engine.ready(settings)?;
    let about = &restorer.model().about;
    let parts = Parts::of(d, about.dims, about.input_channels())?;
    let at_once = together(restorer, &parts);
    let forecast = restorer.prepare(&parts.size, at_once)?;
    // Few runs are not measured: there is nothing to spare.
    let Some(each) = forecast.seconds_a_run else { return Ok(None) };
    let seconds = each * (forecast.runs * parts.all.len().div_ceil(at_once)) as f64;
    if seconds <= budget {
        return Ok(None);
    }
    let steps = fitting(settings.steps, seconds, budget);
    if settings.samples == 0 || steps < LEAST_STEPS {
        let least = seconds * (LEAST_STEPS as f64 / settings.steps as f64).min(1.0);
        let why = match settings.samples {
            0 => format!(
                "is {budget} s, and the model takes {seconds:.1} s on this image without samples; allow more, or crop the image"
            ),
            n => format!(
                "is {budget} s, and {n} samples of {LEAST_STEPS} steps take {least:.1} s on this image; allow more, or draw fewer samples"
            ),
        };
        return Err(Error::setting("max_seconds", why));
    }
    ear.notice(Notice::FewerSteps { asked: settings.steps, steps, seconds, budget })?;
    Ok(Some(Settings { steps, ..settings.clone() }))
}

/// Of so many steps, which take so many seconds, those that a budget has room for.
fn fitting(steps: usize, seconds: f64, budget: f64) -> usize {
    (steps as f64 * budget / seconds) as usize
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_are_those_that_fit() {
        assert_eq!(super::fitting(25, 10.0, 5.0), 12);
        assert_eq!(super::fitting(25, 10.0, 0.1), 0);
        assert_eq!(super::fitting(1000, 20.0, 10.0), 500);
    }
}
