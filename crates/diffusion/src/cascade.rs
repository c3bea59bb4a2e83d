//! Coarse-to-fine sampling: a small image is sampled first, and finer ones from it.
//!
//! A stage starts from the enlarged coarser result with the noise of an intermediate level. An [`Anchored`] denoiser also
//! keeps the block means of every estimate equal to the coarse image, so that averaging the fine result gives the coarse
//! one.

use crate::Error;
use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use crate::noise::Tile;
use crate::run::{Sampler, Start};
use clearshot_graph::ops::{Geometry, PoolKind, ResizeMode};
use clearshot_graph::{Builder, Type, Value};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::{Shape, Tensor};

/// The input that an [`Anchored`] denoiser's coarse image is set by.
pub const COARSE: &str = "coarse";

/// A denoiser whose estimate has the means over blocks of `factor` pixels that the input [`COARSE`] says.
pub struct Anchored<D> {
    pub denoiser: D,
    pub factor: usize,
}

/// The shape of an image shrunk by a factor; nothing where it does not divide.
fn shrunk(shape: Shape, factor: usize) -> Option<Shape> {
    let rank = shape.rank();
    let whole = |axis: usize| factor > 0 && shape[axis].is_multiple_of(factor);
    if rank < 4 || !(1..rank - 1).all(whole) {
        return None;
    }
    Some((1..rank - 1).fold(shape, |s, axis| s.with(axis, shape[axis] / factor)))
}

/// Means over blocks.
fn block_means(b: &mut Builder, x: Value, factor: usize) -> Value {
    let dims = b.shape(x).rank().saturating_sub(2);
    let kernel = if dims == 2 { [1, factor, factor] } else { [factor; 3] };
    b.pool(x, PoolKind::Average, kernel, Geometry::new(dims, factor, 0))
}

impl<D: Denoiser> Denoiser for Anchored<D> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let inner = self.denoiser.denoise(b, x, level, given);
        let shape = b.shape(x);
        let Some(small) = shrunk(shape, self.factor) else {
            let why = format!("{shape} is not a batch of images that blocks of {} divide", self.factor);
            return Estimate::of(b.refuse("anchored", why));
        };
        let coarse = b.input(COARSE, Type::f32(small));
        let means = block_means(b, inner.x0, self.factor);
        let missing = b.sub(coarse, means);
        let missing = b.upsample(missing, ResizeMode::Nearest, self.factor);
        let x0 = b.add(inner.x0, missing);
        Estimate { variance: inner.variance, ..Estimate::of(x0) }
    }
}

/// An image enlarged by whole factors, as a stage begins from it.
///
/// # Errors
/// If it is not a batch of images.
pub fn enlarged(image: &Tensor, factor: usize, mode: ResizeMode, device: &Device) -> Result<Tensor, Error> {
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(image.shape()));
    let y = b.upsample(x, mode, factor);
    b.output("y", y);
    let mut session = compile(b.finish()?, device, &Options::default())?;
    session.set("x", &image.to_f32())?;
    session.run()?;
    Ok(session.get("y")?)
}

/// One size of a cascade.
pub struct Stage {
    pub sampler: Sampler,
    /// How much larger than the stage before; 1 for the first.
    pub factor: usize,
    /// The denoiser is [`Anchored`] to the stage before.
    pub anchored: bool,
}

/// Samples every stage in turn, each from the one before; the result of each.
///
/// # Errors
/// If a stage fails, or does not fit the one before.
pub fn run(stages: &mut [Stage], mode: ResizeMode, tiles: &[Tile]) -> Result<Vec<Tensor>, Error> {
    let mut results: Vec<Tensor> = vec![];
    for stage in stages {
        let result = match results.last() {
            None => stage.sampler.run(Start::Noise, tiles)?,
            Some(coarse) => {
                let device = *stage.sampler.session().device();
                let image = enlarged(coarse, stage.factor, mode, &device)?;
                if stage.anchored {
                    stage.sampler.set(COARSE, coarse)?;
                }
                stage.sampler.run(Start::Image(&image), tiles)?
            }
        };
        results.push(result);
    }
    Ok(results)
}
