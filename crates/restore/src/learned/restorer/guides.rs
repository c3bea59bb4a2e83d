//! Guidance corrections of whole images by their measurements, compiled for the device.

use super::Restorer;
use crate::learned::Error;
use crate::learned::correct::WholeGuide;
use crate::learned::layout::Layout;
use crate::learned::measured::Measured;
use crate::learned::question::{ImageScale, asked};
use crate::learned::resident::Resident;
use crate::learned::settings::Guidance;
use crate::learned::tiles::{Also, Question};
use crate::learned::walk;
use clearshot_diffusion::guide::{Measurement, Proximal};
use clearshot_diffusion::sampler::Program;
use clearshot_diffusion::{Guide, Law};
use clearshot_physics::{Boundary, Electrons, Forward, Map, Operator, Scale};
use clearshot_runtime::{Options, Precision};

/// Conjugate gradients of a correction in noise that neighbours share, at least.
const SHARED_ITERATIONS: usize = 24;

impl Restorer {
    /// The corrections by each image's measurement.
    pub(super) fn guides(
        &self,
        images: &[Measured],
        scales: &[ImageScale],
    ) -> Result<Vec<WholeGuide>, Error> {
        let Some(guidance) = self.guidance.filter(|g| !g.law.goes_through()) else { return Ok(vec![]) };
        let options = Options { precision: Precision::F32, ..Options::default() };
        let mut all = Vec::new();
        for (image, scale) in images.iter().zip(scales) {
            let (guide, planes) = self.guide(&guidance, image, scale)?;
            all.push(WholeGuide::compile(guide, &measurements(&planes, image), &self.device, &options)?);
        }
        Ok(all)
    }

    /// The walk on the device with the guide inside it, for laws that differentiate the network.
    ///
    /// # Errors
    /// If the image is not one tile that fits the device's memory.
    pub(super) fn guided_walk(
        &self,
        program: &Program,
        layout: &Layout,
        limit: usize,
        image: &Measured,
        scale: &ImageScale,
    ) -> Result<Resident, Error> {
        let guidance = self.guidance.ok_or(Error::NoCamera { what: "guidance" })?;
        let (size, margin) = (layout.size(), Resident::margin(layout));
        if layout.count() == 1 && !size.iter().zip(&margin).all(|(n, m)| m < n) {
            let margin = margin.into_iter().max().unwrap_or(0);
            return Err(Error::TooSmall { law: guidance.law.name(), margin, size });
        }
        let (guide, planes) = self.guide(&guidance, image, scale)?;
        let options = Options { precision: self.settings.precision, ..Options::default() };
        let also = Also { unclipped: walk::wants_unclipped(program), error: false };
        let tokens = self.tokens();
        let made = asked(&self.model, 1.0, also, tokens, |asked| match asked.question {
            Question::Regress(_) => Ok(None),
            Question::Denoise(denoiser) => Resident::compile(
                denoiser,
                program,
                asked.channels,
                asked.condition,
                &asked.conditions,
                layout,
                1,
                limit,
                Some(&guide),
                &self.model.weights,
                &self.device,
                &options,
            ),
        })?;
        let why = "it does not, with its derivative";
        let mut resident = made.ok_or(Error::Through { law: guidance.law.name(), why })?;
        resident.measure(&guide, &measurements(&planes, image))?;
        Ok(resident)
    }

    /// The guide of an image, and the electrons of each of its channels.
    fn guide(
        &self,
        guidance: &Guidance,
        image: &Measured,
        scale: &ImageScale,
    ) -> Result<(Guide, Vec<Vec<f64>>), Error> {
        let camera = scale.camera.ok_or(Error::NoCamera { what: "guidance" })?;
        let law = match guidance.law {
            // Noise that neighbours share takes more to solve for.
            Law::Proximal(p) if !camera.correlation.is_white() => {
                Law::Proximal(Proximal { iterations: p.iterations.max(SHARED_ITERATIONS), ..p })
            }
            law => law,
        };
        let operator = match &self.settings.psf {
            Some(psf) => Operator::blur(&image.size[..], psf, Boundary::Reflect)?,
            None => Operator::identity(&image.size[..])?,
        };
        let electrons = |x: f64| (scale.file[0] + scale.file[1] * x - camera.offset) * camera.gain;
        let background = scale.photons.map_or(0.0, |p| p.background);
        let forward = Forward {
            operator,
            scale: Scale::symmetric(
                Electrons(electrons(-1.0) - background),
                Electrons(electrons(1.0) - background),
            )?,
            exposure: 1.0,
            background: Map::Uniform(background),
            read_noise: Map::Uniform(camera.read_noise),
            correlation: camera.correlation,
            likelihood: guidance.likelihood,
        };
        let mut guide = Guide::new(forward, law)?;
        if let Some(limit) = guidance.clip {
            guide = guide.clipped(limit)?;
        }
        if let Some(gate) = guidance.gate {
            guide = guide.gated(gate)?;
        }
        if self.settings.trace {
            guide = guide.with_diagnostics();
        }
        let c = image.channels;
        let planes: Vec<Vec<f64>> = (0..c)
            .map(|ch| {
                let values = image.values.iter().skip(ch).step_by(c);
                values.map(|&v| f64::from(camera.electrons(v))).collect()
            })
            .collect();
        Ok((guide, planes))
    }
}

/// Electrons as measurements of an image.
fn measurements<'m>(planes: &'m [Vec<f64>], image: &'m Measured) -> Vec<Measurement<'m>> {
    planes.iter().map(|y| Measurement { y: Electrons(&y[..]), valid: image.valid.as_deref() }).collect()
}
