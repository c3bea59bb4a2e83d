//! A time limit: the number of steps that samples may take so that an image is restored in time.
//!
//! One run of the network is timed before anything is restored; a sampler with n steps costs n times as much as one
//! with a single step. The requested number of steps is reduced if it does not fit. Below [`LEAST_STEPS`] samples are
//! not useful: the limit is then refused with the time that would be needed, or met by binning if that is allowed
//! ([`super::binning`]). Work outside the network (reading, guidance, the choice of a method) is not counted.

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

/// The result of a time limit for an image.
pub enum Verdict {
    /// There is no limit, or it is sufficient.
    Enough,
    /// Only this many steps fit; all would take this many seconds.
    Fewer { steps: usize, seconds: f64 },
    /// Not even the fewest steps fit (or one evaluation, if there are no samples): the seconds for all steps, and for
    /// the fewest.
    TooLong { seconds: f64, least: f64 },
}

/// Times a run of the network, if there are several, and returns what fits.
///
/// # Errors
/// If the model cannot restore the image, or the device fails.
pub fn verdict(engine: &mut Engine, settings: &Settings, d: &Description) -> Result<Verdict> {
    let Some(budget) = settings.max_seconds else { return Ok(Verdict::Enough) };
    let restorer = engine.ready(settings)?;
    let about = &restorer.model().about;
    let parts = Parts::of(d, about.dims, about.input_channels())?;
    let at_once = together(restorer, &parts);
    let forecast = restorer.prepare(&parts.size, at_once)?;
    // Few runs are not measured: there is nothing to spare.
    let Some(each) = forecast.seconds_a_run else { return Ok(Verdict::Enough) };
    let seconds = each * (forecast.runs * parts.all.len().div_ceil(at_once)) as f64;
    if seconds <= budget {
        return Ok(Verdict::Enough);
    }
    let steps = fitting(settings.steps, seconds, budget);
    Ok(match settings.samples == 0 || steps < LEAST_STEPS {
        true if settings.samples == 0 => Verdict::TooLong { seconds, least: seconds },
        true => {
            let least = seconds * (LEAST_STEPS as f64 / settings.steps as f64).min(1.0);
            Verdict::TooLong { seconds, least }
        }
        false => Verdict::Fewer { steps, seconds },
    })
}

/// The settings with as many steps as fit; `None` if there is no limit, or it is sufficient.
///
/// # Errors
/// If the limit is too short for this image, or the device fails.
pub fn fitted(
    engine: &mut Engine,
    settings: &Settings,
    d: &Description,
    ear: &mut Ear<'_>,
) -> Result<Option<Settings>> {
    let budget = settings.max_seconds.unwrap_or(f64::INFINITY);
    match verdict(engine, settings, d)? {
        Verdict::Enough => Ok(None),
        Verdict::Fewer { steps, seconds } => {
            ear.notice(Notice::FewerSteps { asked: settings.steps, steps, seconds, budget })?;
            Ok(Some(Settings { steps, ..settings.clone() }))
        }
        Verdict::TooLong { least, .. } => {
            // A quarter of the pixels takes about a quarter of the time.
            let binned = match settings.allow_binning {
                true => "; binned it would take too long as well, or too few pixels would be left".into(),
                false => format!("; binned 2 x 2 it would take about {:.1} s (allow_binning)", 0.25 * least),
            };
            let why = match settings.samples {
                0 => format!(
                    "{budget} s are too short: the model takes {least:.1} s on this image without samples; allow more, or crop the image{binned}"
                ),
                n => format!(
                    "{budget} s are too short: {n} samples of {LEAST_STEPS} steps take {least:.1} s on this image; allow more, or draw fewer samples{binned}"
                ),
            };
            Err(Error::setting("max_seconds", why))
        }
    }
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
