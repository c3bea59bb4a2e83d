//! Runs the program of a sampler over whole images: every call evaluates the network on all tiles and then combines the
//! results on the host, before any tile continues.
//!
//! Tiles therefore use each other's results at every step, nothing has to be blended at the end, and noise depends on
//! absolute pixel positions: the result does not depend on the tiling.

use super::Error;
use super::field::{Field, Scratch};
use super::tiles::{Beside, Frame, Tiles};
use clearshot_diffusion::Level;
use clearshot_diffusion::noise::{Keys, Stream, Tile};
use clearshot_diffusion::sampler::{Call, KEPT, Mix, Program};
use clearshot_diffusion::step_graph::known_step;
use clearshot_tensor::{Data, Shape};
use clearshot_timeline::{Phase, span};
use rayon::prelude::*;

/// A guidance correction, called with the number of the image, the level, and the estimate to correct.
pub type Correct<'a> = dyn FnMut(usize, &Level, &mut [f32]) -> Result<(), Error> + 'a;

/// Rows that are drawn and mixed at once.
const BAND: usize = 16;

/// Rows of one plane of an image.
struct Band {
    z: usize,
    y: usize,
    rows: usize,
}

/// How images of one size are cut into bands.
struct Bands {
    all: Vec<Band>,
    width: usize,
    channels: usize,
}

impl Bands {
    fn new(size: &[usize], channels: usize) -> Bands {
        let (width, height) = (size[size.len() - 1], size[size.len() - 2]);
        let planes: usize = size[..size.len() - 2].iter().product();
        let of = |z| (0..height).step_by(BAND).map(move |y| Band { z, y, rows: BAND.min(height - y) });
        Bands { all: (0..planes).flat_map(of).collect(), width, channels }
    }

    fn len(&self, band: &Band) -> usize {
        band.rows * self.width * self.channels
    }

    fn split<'a>(&self, mut values: &'a [f32]) -> Vec<&'a [f32]> {
        let part = |band: &Band| {
            let (first, rest) = values.split_at(self.len(band));
            values = rest;
            first
        };
        self.all.iter().map(part).collect()
    }

    fn split_mut<'a>(&self, mut values: &'a mut [f32]) -> Vec<&'a mut [f32]> {
        let part = |band: &Band| {
            let (first, rest) = std::mem::take(&mut values).split_at_mut(self.len(band));
            values = rest;
            first
        };
        self.all.iter().map(part).collect()
    }

    /// Normal noise that belongs to (seed, step, pixel).
    fn noise(&self, band: &Band, seed: u64, step: usize, stream: Stream) -> Result<Vec<f32>, Error> {
        let shape = Shape::from([1, band.rows, self.width, self.channels]);
        let keys = Keys::new(shape, &[Tile { seed, origin: [band.z, band.y, 0] }])?;
        match keys.draw(step as u32, stream).into_data() {
            Data::F32(values) => Ok(values),
            other => Err(Error::Answer { what: format!("noise of type {}", other.dtype()) }),
        }
    }

    /// Calls `f(noise, values)` for each band.
    fn with_noise(
        &self,
        values: &mut [f32],
        seed: u64,
        step: usize,
        stream: Stream,
        f: impl Fn(&[f32], &mut [f32]) + Sync,
    ) -> Result<(), Error> {
        let parts = self.split_mut(values);
        self.all.par_iter().zip(parts).try_for_each(|(band, part)| {
            f(&self.noise(band, seed, step, stream)?, part);
            Ok(())
        })
    }
}

/// An image by the number of its frame.
pub type BeginOf<'a> = dyn Fn(usize) -> Vec<f32> + 'a;
/// An image by the number of its frame, and which of its values stay as they are.
pub type KeptOf<'a> = dyn Fn(usize) -> (Vec<f32>, Vec<bool>) + 'a;

/// Known images, on the network's scale, by the number of the frame.
pub struct Known<'a> {
    /// The image from which sampling starts, instead of pure noise.
    pub begin: Option<&'a BeginOf<'a>>,
    /// An image, and which of its values are kept.
    pub kept: Option<&'a KeptOf<'a>>,
}

impl Known<'_> {
    pub const NOTHING: Known<'static> = Known { begin: None, kept: None };
}

/// An image of noise at a level, around `image` or zero: the start of sampling, and the input of one evaluation at the
/// highest level.
///
/// # Errors
/// If there is not enough memory or disk space.
pub fn start(
    level: &Level,
    size: &[usize],
    channels: usize,
    seed: u64,
    scratch: &Scratch,
    image: Option<&[f32]>,
) -> Result<Field, Error> {
    let mut x = scratch.field(size.iter().product::<usize>() * channels)?;
    let (alpha, sigma) = (level.alpha as f32, level.sigma as f32);
    if let Some(image) = image {
        x.iter_mut().zip(image).for_each(|(x, v)| *x = alpha * v);
    }
    let is_empty = image.is_none();
    Bands::new(size, channels).with_noise(&mut x, seed, 0, Stream::Start, |noise, x| {
        // Without an image the values are as they were made, whatever that is.
        x.iter_mut().zip(noise).for_each(|(x, n)| *x = if is_empty { sigma * n } else { *x + sigma * n });
    })?;
    Ok(x)
}

/// One image on its way.
struct Traveller {
    seed: u64,
    x: Field,
    estimate: Field,
    unclipped: Option<Field>,
    kept: [Option<Field>; KEPT],
}

/// The number of fields of a whole image that a program needs at once, including x and the estimate.
pub fn fields(program: &Program) -> usize {
    2 + (0..KEPT).filter(|&slot| reads(program, slot)).count()
}

fn reads(program: &Program, slot: usize) -> bool {
    let mixes = |c: &Call| [c.x, c.kept[0], c.kept[1]];
    program.calls().iter().flat_map(mixes).any(|m| m.kept[slot] != 0.0)
}

/// Whether a program uses the estimate before clipping.
pub fn wants_unclipped(program: &Program) -> bool {
    let mixes = |c: &Call| [c.x, c.kept[0], c.kept[1]];
    program.calls().iter().flat_map(mixes).any(|m| m.unclipped != 0.0)
}

/// Samples an image for each seed, from pure noise or from known images.
///
/// # Errors
/// If the network fails or makes values that are not finite, there is no room for the states, or `ran` says to
/// stop.
pub fn walk(
    program: &Program,
    tiles: &mut Tiles,
    channels: usize,
    seeds: &[u64],
    scratch: &Scratch,
    beside: &Beside<'_>,
    known: &Known<'_>,
    mut correct: Option<&mut Correct<'_>>,
    ran: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<Vec<Field>, Error> {
    if program.learned_variance() {
        return Err(Error::LearnedVariance);
    }
    let (size, len) = (tiles.layout().size(), tiles.layout().pixels() * channels);
    let unclipped = wants_unclipped(program) && tiles.has_unclipped();
    let bands = Bands::new(&size, channels);
    let mut images = Vec::with_capacity(seeds.len());
    for (number, &seed) in seeds.iter().enumerate() {
        let image = known.begin.map(|of| of(number));
        let x = start(&program.start(), &size, channels, seed, scratch, image.as_deref())?;
        let mut kept = [None, None];
        for slot in (0..KEPT).filter(|&slot| reads(program, slot)) {
            kept[slot] = Some(scratch.field(len)?);
        }
        let second = if unclipped { Some(scratch.field(len)?) } else { None };
        images.push(Traveller { seed, x, estimate: scratch.field(len)?, unclipped: second, kept });
    }
    for call in program.calls() {
        if call.raise != 0.0 {
            for image in &mut images {
                bands.with_noise(&mut image.x, image.seed, call.step, Stream::Steps, |noise, x| {
                    x.iter_mut().zip(noise).for_each(|(x, n)| *x += call.raise as f32 * n);
                })?;
            }
        }
        let mut frames: Vec<Frame<'_>> = images
            .iter_mut()
            .map(|t| Frame {
                x: &t.x,
                estimate: &mut t.estimate,
                unclipped: t.unclipped.as_mut(),
                error: None,
            })
            .collect();
        let named = |e: Error| e.at_step(call.step, program.steps());
        tiles.ask(&call.level, &mut frames, None, beside, ran).map_err(named)?;
        let _sampling = span(Phase::Sampling);
        for (number, image) in images.iter_mut().enumerate() {
            if let Some(correct) = correct.as_deref_mut() {
                image.corrected(number, &call.level, correct).map_err(named)?;
            }
            image.mix(call, &bands)?;
            if let Some(of) = known.kept {
                image.keep(call, &bands, &of(number), program.stochastic())?;
            }
        }
    }
    Ok(images.into_iter().map(|t| t.x).collect())
}

impl Traveller {
    fn corrected(&mut self, number: usize, level: &Level, correct: &mut Correct<'_>) -> Result<(), Error> {
        let Some(unclipped) = &mut self.unclipped else { return correct(number, level, &mut self.estimate) };
        let before = self.estimate.to_vec();
        correct(number, level, &mut self.estimate)?;
        let changes = self.estimate.iter().zip(before).map(|(after, before)| after - before);
        unclipped.iter_mut().zip(changes).for_each(|(u, change)| *u += change);
        Ok(())
    }

    /// Puts what is known, with the noise of x's new level, where it is kept.
    fn keep(
        &mut self,
        call: &Call,
        bands: &Bands,
        (image, kept): &(Vec<f32>, Vec<bool>),
        stochastic: bool,
    ) -> Result<(), Error> {
        let Level { alpha, sigma, .. } = call.arrives;
        let step = known_step(call.step as u32, stochastic) as usize;
        let mut noise = vec![0.0; self.x.len()];
        bands
            .with_noise(&mut noise, self.seed, step, Stream::Known, |drawn, to| to.copy_from_slice(drawn))?;
        for i in (0..noise.len()).filter(|&i| kept[i]) {
            self.x[i] = alpha as f32 * image[i] + sigma as f32 * noise[i];
        }
        Ok(())
    }

    /// x and what is kept after a call.
    fn mix(&mut self, call: &Call, bands: &Bands) -> Result<(), Error> {
        let noisy = [call.x, call.kept[0], call.kept[1]].iter().any(|m| m.noise != 0.0);
        let estimates = bands.split(&self.estimate);
        let unclipped = self.unclipped.as_ref().map(|u| bands.split(u));
        let mut kept = self.kept.each_mut().map(|k| k.as_mut().map(|k| bands.split_mut(k).into_iter()));
        let parts: Vec<Part<'_>> = bands
            .split_mut(&mut self.x)
            .into_iter()
            .enumerate()
            .map(|(i, x)| Part {
                x,
                x0: estimates[i],
                unclipped: unclipped.as_ref().map_or(estimates[i], |u| u[i]),
                kept: kept.each_mut().map(|k| k.as_mut().and_then(Iterator::next)),
            })
            .collect();
        bands.all.par_iter().zip(parts).try_for_each(|(band, part)| {
            let noise = match noisy {
                true => Some(bands.noise(band, self.seed, call.step, Stream::Steps)?),
                false => None,
            };
            part.mix(call, noise.as_deref());
            Ok(())
        })
    }
}

/// A band of everything that a call mixes.
struct Part<'a> {
    x: &'a mut [f32],
    x0: &'a [f32],
    unclipped: &'a [f32],
    kept: [Option<&'a mut [f32]>; KEPT],
}

impl Part<'_> {
    fn mix(mut self, call: &Call, noise: Option<&[f32]>) {
        for i in 0..self.x.len() {
            let kept = self.kept.each_ref().map(|k| k.as_ref().map_or(0.0, |k| f64::from(k[i])));
            let (x, x0, unclipped) =
                (f64::from(self.x[i]), f64::from(self.x0[i]), f64::from(self.unclipped[i]));
            let noise = noise.map_or(0.0, |n| f64::from(n[i]));
            let sum = |m: &Mix| {
                let now = m.x * x + m.x0 * x0 + m.unclipped * unclipped + m.noise * noise;
                (now + m.kept[0] * kept[0] + m.kept[1] * kept[1]) as f32
            };
            self.x[i] = sum(&call.x);
            for (slot, mix) in self.kept.iter_mut().zip(&call.kept) {
                if let Some(slot) = slot {
                    slot[i] = sum(mix);
                }
            }
        }
    }
}
