//! Guidance corrections by a measurement: a separate graph that runs on whole images after the network's tiles. They
//! are therefore exact with a PSF and for laws that depend on the whole image, and the graph of the network is the same
//! for all images and cameras.

use super::Error;
use super::error::origin;
use clearshot_diffusion::guide::{DIAGNOSTICS, Measurement, NAME};
use clearshot_diffusion::{Condition, Denoiser, Estimate, Guide, Level, LevelInputs};
use clearshot_graph::{Builder, Graph, Type, Value};
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::{Shape, Tensor};

const ESTIMATE: &str = "estimate";
const CORRECTED: &str = "corrected";

/// Diagnostics of one correction; magnitudes are root mean squares over the image, normalised.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GuideStep {
    pub sample: usize,
    /// The number of the network's call within the sample, from 0.
    pub call: usize,
    /// Noise relative to the signal.
    pub sigma: f64,
    /// The law's weight; see [`Guide::weight_at`].
    pub weight: Option<f64>,
    /// The mean squared residual divided by its variance, before the correction.
    pub chi2: f64,
    pub gradient: f64,
    pub moved: f64,
    /// The fraction of the correction that remains after clipping.
    pub kept: f64,
}

/// A guide compiled for whole images.
pub struct WholeGuide {
    guide: Guide,
    graph: Graph,
    session: Session,
    /// Diagnostics of the corrections, if the guide has them.
    pub steps: Vec<GuideStep>,
    levels: LevelInputs,
    shape: Shape,
}

impl WholeGuide {
    /// For an image of the guide's domain, with one measurement for each channel.
    ///
    /// # Errors
    /// If the law differentiates the network, measurements do not match, or the device does not have enough memory.
    pub fn compile(
        guide: Guide,
        measured: &[Measurement<'_>],
        device: &Device,
        options: &Options,
    ) -> Result<WholeGuide, Error> {
        if guide.law().goes_through() {
            return Err(Error::Through { law: guide.law().name(), why: "here is none" });
        }
        let domain = guide.forward().operator.domain();
        let sizes: Vec<usize> =
            [1].into_iter().chain(domain.iter().copied()).chain([measured.len()]).collect();
        let shape = Shape::new(&sizes);
        let inputs = guide.inputs(shape, measured)?;
        let mut b = Builder::new();
        let mut levels = LevelInputs::new(1);
        let x = b.input(ESTIMATE, Type::f32(shape));
        let as_it_is =
            |_: &mut Builder, x: Value, _: &mut LevelInputs, _: &Condition| -> Estimate { Estimate::of(x) };
        let corrected = guide.clone().guides(as_it_is).denoise(&mut b, x, &mut levels, &Condition::default());
        b.output(CORRECTED, corrected.x0);
        let graph = b.finish().map_err(clearshot_diffusion::Error::from)?;
        let mut session =
            compile(graph.clone(), device, options).map_err(clearshot_diffusion::Error::from)?;
        // A law without weight adds nothing to the graph, the measurement neither.
        for (name, value) in inputs.into_iter().filter(|_| !guide.law().is_off()) {
            session.set(&name, &value).map_err(clearshot_diffusion::Error::from)?;
        }
        Ok(WholeGuide { guide, graph, session, steps: Vec::new(), levels, shape })
    }

    pub fn bytes(&self) -> usize {
        self.session.plan().bytes()
    }

    /// Corrects an estimate of a sample.
    ///
    /// # Errors
    /// If the device fails, or a result is not finite.
    pub fn correct(&mut self, sample: usize, level: &Level, estimate: &mut [f32]) -> Result<(), Error> {
        let fail = clearshot_diffusion::Error::from;
        for (name, value) in self.levels.at(level) {
            self.session.set(name, &value).map_err(fail)?;
        }
        self.session.set(ESTIMATE, &Tensor::f32(self.shape, estimate.to_vec())).map_err(fail)?;
        self.session.run().map_err(fail)?;
        let corrected = self.session.get(CORRECTED).map_err(fail)?;
        let values = corrected.as_f32().map_err(|e| Error::Answer { what: e.to_string() })?;
        if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
            let (value, sigma) = (*bad, level.ratio());
            let origin = origin(&self.graph, &self.session);
            return Err(Error::Diverged { value, sigma, origin });
        }
        estimate.copy_from_slice(values);
        if self.guide.has_diagnostics() {
            let mut found = [0.0; DIAGNOSTICS.len()];
            for (value, part) in found.iter_mut().zip(DIAGNOSTICS) {
                let output = self.session.get(&format!("{NAME}.{part}")).map_err(fail)?;
                *value = output.to_f64().first().copied().unwrap_or(f64::NAN);
            }
            let [chi2, gradient, moved, kept] = found;
            let call = self.steps.iter().filter(|s| s.sample == sample).count();
            let (sigma, weight) = (level.ratio(), self.guide.weight_at(level));
            self.steps.push(GuideStep { sample, call, sigma, weight, chi2, gradient, moved, kept });
        }
        Ok(())
    }
}
