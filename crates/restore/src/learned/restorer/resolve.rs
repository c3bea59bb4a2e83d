//! Resolves settings for a model: fills in every default and makes every check before anything is compiled.

use crate::learned::Error;
use crate::learned::settings::{Guidance, Output, Settings, USUAL_SAMPLES};
use clearshot_diffusion::sampler::{self, Program};
use clearshot_model::{ConditionKind, Model, Task};
use clearshot_runtime::{Device, Precision};

/// See the module.
pub(super) struct Resolved {
    pub settings: Settings,
    pub output: Output,
    pub guidance: Option<Guidance>,
    pub program: Option<Program>,
    /// The program of the first stage of a cascade.
    pub first_program: Option<Program>,
    /// Whether the network predicts the error.
    pub error: bool,
    /// Whether the precision is chosen by measurements on images.
    pub open: bool,
}

impl Resolved {
    /// # Errors
    /// If the model does not support the settings, or the sampler is unknown.
    pub fn of(model: &Model, settings: Settings, device: &Device) -> Result<Resolved, Error> {
        let error = asks_for_error(model, &settings);
        let untold = settings.deviation && !error && settings.samples == 0;
        let samples = if untold { USUAL_SAMPLES } else { settings.samples };
        let settings = Settings { samples, ..settings };
        let output = output(model, &settings)?;
        let samples = match output {
            Output::Samples => settings.samples.max(1),
            Output::Direct => settings.samples,
        };
        let open = settings.precision == Precision::Auto;
        // A GPU's is settled later; the CPU's is fp32, or what goes with a model in 8 bits.
        let first = if matches!(device, Device::Cpu { .. }) { Precision::Auto } else { Precision::F32 };
        let precision = if open { first } else { settings.precision };
        // What a coarse stage has found is far above the noise of this level, and what it could not see is below.
        let begin = settings.begin.or((settings.cascade > 1).then(|| model.about.sigma_data()));
        let settings = Settings { samples, precision, begin, ..settings };
        let guidance =
            settings.guidance.or(settings.psf.as_ref().map(|_| Guidance::usual(model.about.sigma_data())));
        let mut first_program = None;
        let program = match samples {
            0 => match &settings.levels {
                None => None,
                Some(levels) => {
                    let known = "they are those of posterior samples, and none are asked for".into();
                    return Err(Error::Unknown { what: "noise levels", got: levels.clone(), known });
                }
            },
            _ => {
                let mut levels = model.levels_by(settings.levels.as_deref(), settings.steps)?;
                if settings.cascade > 1 {
                    first_program = Some(sampler::program(&settings.sampler, &levels)?);
                }
                if let Some(noise) = settings.begin {
                    levels = levels.starting_below(noise)?;
                }
                Some(sampler::program(&settings.sampler, &levels)?)
            }
        };
        let through = guidance.filter(|g| g.law.goes_through());
        if let Some(guidance) =
            through.filter(|_| settings.begin.is_some() || settings.inpaint || settings.trace)
        {
            let why =
                "here images begin at the measurement, are inpainted or traced, which is done outside of it";
            return Err(Error::Through { law: guidance.law.name(), why });
        }
        Ok(Resolved { settings, output, guidance, program, first_program, error, open })
    }
}

/// Whether the network is asked for the error: of an image that it gives at once, beside which no samples are asked for.
fn asks_for_error(model: &Model, settings: &Settings) -> bool {
    settings.deviation
        && settings.samples == 0
        && settings.guidance.is_none()
        && settings.psf.is_none()
        && model.network.says_error()
        && matches!(output(model, settings), Ok(Output::Direct))
}

/// What the restored image is.
fn output(model: &Model, settings: &Settings) -> Result<Output, Error> {
    let about = &model.about;
    let conditional = matches!(about.task, Task::Diffusion { condition: ConditionKind::Measurement, .. });
    let guided = settings.psf.is_some() || settings.guidance.is_some();
    let through = settings.guidance.is_some_and(|g| g.law.goes_through());
    let drops_class = about.conditioning.as_ref().is_some_and(|c| c.dropped > 0.0);
    let sampled = settings.begin.is_some() || settings.inpaint || settings.cascade > 1;
    let refuse = |reason| Err(Error::Task { model: about.name.clone(), is: about.task.name(), reason });
    match (&about.task, settings.output) {
        (Task::Segmentation { .. } | Task::Instances, _) => {
            refuse("it gives labels and no image; `clearshot predict` runs it")
        }
        (Task::Enlarging { .. }, _) => {
            refuse("it gives an image on a finer grid; `clearshot predict` runs it")
        }
        (Task::MaskedAutoencoder | Task::JointEmbedding, _) => refuse(
            "it was trained without labels and restores nothing; `clearshot predict -o NAME.csv` writes its embeddings",
        ),
        (Task::Regression, _) if guided => refuse("a PSF or guidance needs a diffusion model"),
        (Task::Regression, _) if sampled || settings.classifier_free != 1.0 => {
            refuse("inpainting, a begin, a cascade and classifier-free guidance need a diffusion model")
        }
        (_, _) if settings.cascade > 1 && (settings.psf.is_some() || settings.inpaint) => {
            refuse("a cascade goes without a PSF and without inpainting")
        }
        (_, _) if settings.classifier_free != 1.0 && !drops_class && (!conditional || guided) => refuse(
            "classifier-free guidance needs a model that is given the measurement, without other guidance, or one whose training dropped classes",
        ),
        (_, _) if settings.classifier_free != 1.0 && through => {
            refuse("classifier-free guidance and a law that differentiates the network do not go together")
        }
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
        (_, Some(Output::Direct)) if sampled => {
            refuse("what it answers at once knows nothing of a begin, of a cascade or of pixels to inpaint")
        }
        (_, Some(output)) => Ok(output),
        (_, None) if conditional && !guided && !sampled && settings.samples != 1 => Ok(Output::Direct),
        (_, None) => Ok(Output::Samples),
    }
}
