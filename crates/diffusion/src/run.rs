//! A sampler compiled for a device.

use crate::Error;
use crate::denoiser::{Condition, Denoiser};
use crate::level::Level;
use crate::noise::{Keys, Stream, Tile};
use crate::sampler::Program;
use crate::step_graph::{KNOWN, MASK, Noise, Replay, Setup, StepGraph, X, known_step};
use crate::trace;
use clearshot_graph::Builder;
use clearshot_runtime::{Device, Options, Session, compile};
use clearshot_tensor::{Shape, Tensor};

/// The start of sampling.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Noise alone, of the first level.
    Noise,
    /// This image with the noise of the first level.
    Image(&'a Tensor),
    /// x itself.
    Given(&'a Tensor),
}

/// A program, a denoiser and a device: one graph, replayed for every call.
pub struct Sampler {
    steps: StepGraph,
    program: Program,
    session: Session,
}

impl Sampler {
    /// Compiles one call of `program`. `b` may already hold the inputs that `given` is made of.
    ///
    /// # Errors
    /// If the denoiser cannot be built or the device cannot run it.
    pub fn compile(
        b: Builder,
        denoiser: &dyn Denoiser,
        given: &Condition,
        shape: impl Into<Shape>,
        program: Program,
        setup: Setup,
        device: &Device,
    ) -> Result<Sampler, Error> {
        let options = Options::default();
        Sampler::compile_with(b, denoiser, given, shape, program, setup, device, &options)
    }

    /// As [`Sampler::compile`] with options: a precision, a budget of memory.
    ///
    /// # Errors
    /// As [`Sampler::compile`], or if the device cannot do what is asked.
    pub fn compile_with(
        b: Builder,
        denoiser: &dyn Denoiser,
        given: &Condition,
        shape: impl Into<Shape>,
        program: Program,
        setup: Setup,
        device: &Device,
        options: &Options,
    ) -> Result<Sampler, Error> {
        let steps = StepGraph::new(b, denoiser, given, shape.into(), &program, setup)?;
        let session = compile(steps.graph().clone(), device, options)?;
        Ok(Sampler { steps, program, session })
    }

    /// Sets a parameter, or an input that stays the same for all calls: a condition, `known`, `mask`.
    ///
    /// # Errors
    /// If there is none of that name, or it has another shape.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        Ok(self.session.set(name, value)?)
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Samples a batch, each image with the noise of its tile.
    ///
    /// # Errors
    /// If values stop being finite, naming the step and the op; or if something has not been set.
    pub fn run(&mut self, start: Start<'_>, tiles: &[Tile]) -> Result<Tensor, Error> {
        self.run_watched(start, tiles, |_, _| Ok(()))
    }

    /// As [`Sampler::run`]; `watch` is called after each call and may look at x.
    ///
    /// # Errors
    /// As [`Sampler::run`], and what `watch` returns.
    pub fn run_watched(
        &mut self,
        start: Start<'_>,
        tiles: &[Tile],
        watch: impl FnMut(usize, &dyn Replay) -> Result<(), Error>,
    ) -> Result<Tensor, Error> {
        let keys = Keys::new(self.steps.shape(), tiles)?;
        let x = self.start(start, &keys)?;
        self.replay(&x, &Noise::Keys(&keys), watch)
    }

    /// Samples with noise that the caller gives for each step; for setups that say so.
    ///
    /// # Errors
    /// As [`Sampler::run`].
    pub fn run_with_noise(
        &mut self,
        x: &Tensor,
        noise: &dyn Fn(usize) -> Tensor,
        watch: impl FnMut(usize, &dyn Replay) -> Result<(), Error>,
    ) -> Result<Tensor, Error> {
        self.replay(x, &Noise::Given(noise), watch)
    }

    fn replay(
        &mut self,
        x: &Tensor,
        noise: &Noise<'_>,
        watch: impl FnMut(usize, &dyn Replay) -> Result<(), Error>,
    ) -> Result<Tensor, Error> {
        trace::replay(&self.steps, &mut self.session, &self.program, x, noise, watch)?;
        Ok(self.session.get(X)?)
    }

    /// x at the program's first level.
    fn start(&self, start: Start<'_>, keys: &Keys) -> Result<Tensor, Error> {
        let level = self.program.start();
        let x = match start {
            Start::Given(x) => x.to_f32(),
            Start::Noise => noised(None, &level, &keys.draw(0, Stream::Start)),
            Start::Image(image) => {
                let expected = self.steps.shape();
                if image.shape() != expected {
                    return Err(Error::Shape {
                        name: "the image to start from",
                        expected,
                        got: image.shape(),
                    });
                }
                noised(Some(image), &level, &keys.draw(0, Stream::Start))
            }
        };
        if !self.steps.setup().inpaint {
            return Ok(x);
        }
        let (mask, known) = (self.session.get(MASK)?.to_f64(), self.session.get(KNOWN)?);
        let known = noised(Some(&known), &level, &keys.draw(known_step(0, false), Stream::Known));
        let both = x.to_f64().into_iter().zip(known.to_f64()).zip(mask);
        let mixed = both.map(|((x, known), m)| (m * known + (1.0 - m) * x) as f32).collect();
        Ok(Tensor::f32(x.shape(), mixed))
    }
}

/// An image, or none, at a level.
fn noised(image: Option<&Tensor>, level: &Level, noise: &Tensor) -> Tensor {
    let mut values = noise.to_f64();
    values.iter_mut().for_each(|v| *v *= level.sigma);
    if let Some(image) = image {
        values.iter_mut().zip(image.to_f64()).for_each(|(v, i)| *v += level.alpha * i);
    }
    Tensor::f32(noise.shape(), values.into_iter().map(|v| v as f32).collect())
}
