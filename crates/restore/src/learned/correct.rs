//! Corrections by a measurement: a graph of their own, run on whole images after the network's tiles. So they are exact
//! under a PSF and by laws that weigh an image as a whole, and the network's graph serves every image, whatever its
//! camera.

use super::Error;
use clearshot_diffusion::guide::Measurement;
use clearshot_diffusion::{Condition, Denoiser, Estimate, Guide, Law, Level, LevelInputs};
use clearshot_graph::{Builder, Type, Value};
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::{Shape, Tensor};

const ESTIMATE: &str = "estimate";
const CORRECTED: &str = "corrected";

/// A guide compiled for whole images.
pub struct WholeGuide {
    session: Session,
    levels: LevelInputs,
    shape: Shape,
}

impl WholeGuide {
    /// For an image of the guide's domain, with one measurement for each channel.
    ///
    /// # Errors
    /// If the law goes through the network, measurements do not fit, or the device has not the memory.
    pub fn compile(
        guide: Guide,
        measured: &[Measurement<'_>],
        device: &Device,
        options: &Options,
    ) -> Result<WholeGuide, Error> {
        if matches!(guide.law(), Law::Through { .. }) {
            return Err(Error::Through);
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
        let corrected = guide.guides(as_it_is).denoise(&mut b, x, &mut levels, &Condition::default());
        b.output(CORRECTED, corrected.x0);
        let graph = b.finish().map_err(clearshot_diffusion::Error::from)?;
        let mut session = compile(graph, device, options).map_err(clearshot_diffusion::Error::from)?;
        for (name, value) in inputs {
            session.set(&name, &value).map_err(clearshot_diffusion::Error::from)?;
        }
        Ok(WholeGuide { session, levels, shape })
    }

    pub fn bytes(&self) -> usize {
        self.session.plan().bytes()
    }

    /// # Errors
    /// If the device fails, or what it makes is not finite.
    pub fn correct(&mut self, level: &Level, estimate: &mut [f32]) -> Result<(), Error> {
        let fail = clearshot_diffusion::Error::from;
        for (name, value) in self.levels.at(level) {
            self.session.set(name, &value).map_err(fail)?;
        }
        self.session.set(ESTIMATE, &Tensor::f32(self.shape, estimate.to_vec())).map_err(fail)?;
        self.session.run().map_err(fail)?;
        let corrected = self.session.get(CORRECTED).map_err(fail)?;
        let values = corrected.as_f32().map_err(|e| Error::Answer { what: e.to_string() })?;
        if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
            return Err(Error::Diverged { value: *bad, sigma: level.ratio() });
        }
        estimate.copy_from_slice(values);
        Ok(())
    }
}
