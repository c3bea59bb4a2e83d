//! What settings come to for a model: every default filled, every check made, before anything is compiled.

use crate::learned::Error;
use crate::learned::settings::{Guidance, Output, Settings};
use clearshot_diffusion::sampler::{Program, named};
use clearshot_model::{ConditionKind, Model, Task};
use clearshot_runtime::Precision;

/// See the module.
pub(super) struct Resolved {
    pub settings: Settings,
    pub output: Output,
    pub guidance: Option<Guidance>,
    pub program: Option<Program>,
    /// Whether the precision is to be settled by what is measured on images.
    pub open: bool,
}

impl Resolved {
    /// # Errors
    /// If the model cannot do what the settings ask, or there is no such sampler.
    pub fn of(model: &Model, settings: Settings) -> Result<Resolved, Error> {
        let output = output(model, &settings)?;
        let samples = match output {
            Output::Samples => settings.samples.max(1),
            Output::Direct => settings.samples,
        };
        let open = settings.precision == Precision::Auto;
        let precision = if open { Precision::F32 } else { settings.precision };
        let settings = Settings { samples, precision, ..settings };
        let guidance =
            settings.guidance.or(settings.psf.as_ref().map(|_| Guidance::usual(model.about.sigma_data())));
        let program = match samples {
            0 => None,
            _ => Some(named(&settings.sampler)?.program(&model.levels(settings.steps)?)?),
        };
        Ok(Resolved { settings, output, guidance, program, open })
    }
}

/// What the restored image is.
fn output(model: &Model, settings: &Settings) -> Result<Output, Error> {
    let about = &model.about;
    let conditional = matches!(about.task, Task::Diffusion { condition: ConditionKind::Measurement, .. });
    let guided = settings.psf.is_some() || settings.guidance.is_some();
    let refuse = |reason| Err(Error::Task { model: about.name.clone(), is: about.task.name(), reason });
    match (&about.task, settings.output) {
        (Task::Regression, _) if guided => refuse("a PSF or guidance needs a diffusion model"),
        (Task::Regression, _) if settings.samples > 0 || settings.output == Some(Output::Samples) => {
            refuse("it gives one image and no samples; a diffusion model is needed for those")
        }
        (Task::Regression, _) if settings.chi2 && about.input_channels() != about.channels => {
            refuse("its images have other channels than their measurement, which chi2 compares")
        }
        (Task::Regression, _) => Ok(Output::Direct),
        (_, Some(Output::Direct)) if guided || !conditional => {
            refuse("only a model that knows the measurement, without guidance, answers at once")
        }
        (_, Some(output)) => Ok(output),
        (_, None) if conditional && !guided && settings.samples != 1 => Ok(Output::Direct),
        (_, None) => Ok(Output::Samples),
    }
}
