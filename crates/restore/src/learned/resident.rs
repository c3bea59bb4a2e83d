//! Sampling entirely on the device, for images that fit into one tile: the graph of the sampler, which also computes
//! the reflected surroundings of the image, so that nothing is copied between calls. The noise of each pixel is the
//! same as in [`super::walk`], and the result is the same up to rounding.

use super::Error;
use super::field::{Field, Scratch};
use super::layout::Layout;
use super::tiles::{CONDITION, Conditions};
use super::walk;
use clearshot_diffusion::guide::Measurement;
use clearshot_diffusion::noise::{Keys, Tile};
use clearshot_diffusion::sampler::Program;
use clearshot_diffusion::step_graph::{Noise, Setup, StepGraph, X};
use clearshot_diffusion::{Condition, Denoiser, Error as Failed, Estimate, Guide, LevelInputs, trace};
use clearshot_graph::ops::PadMode;
use clearshot_graph::{Builder, StateInit, Type, Value};
use clearshot_runtime::{Device, Options, Session, compile, plan};
use clearshot_tensor::{DType, MAX_RANK, Shape, Tensor};
use std::collections::BTreeMap;
use std::time::Instant;

/// A denoiser that sees its image with reflected surroundings.
struct Surrounded<'a> {
    inner: &'a dyn Denoiser,
    pad: [[usize; 2]; MAX_RANK],
    size: &'a [usize],
}

impl Denoiser for Surrounded<'_> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let wide = b.pad(x, self.pad, PadMode::Reflect);
        let inner = self.inner.denoise(b, wide, level, given);
        let mut cut = |mut v: Value| {
            for (a, &len) in self.size.iter().enumerate() {
                v = b.slice(v, 1 + a, self.pad[1 + a][0], len);
            }
            v
        };
        let x0 = cut(inner.x0);
        let unclipped = if inner.unclipped == inner.x0 { x0 } else { cut(inner.unclipped) };
        let variance = inner.variance.map(cut);
        // Samples tell their own error.
        Estimate { x0, unclipped, variance, error: None }
    }
}

/// A sampler that keeps its images on the device.
pub struct Resident {
    step: StepGraph,
    session: Session,
    shape: Shape,
    /// What the network sees of an image.
    seen: Vec<usize>,
    pub bytes: usize,
}

impl Resident {
    /// The largest number of reflected pixels beyond an edge of a single tile, along each axis.
    pub fn margin(layout: &Layout) -> Vec<usize> {
        let (size, seen, given) = (layout.size(), layout.seen(), layout.given());
        let beyond = |a: usize| given[a].start.max(seen[a] - given[a].start - size[a].min(seen[a]));
        (0..size.len()).map(beyond).collect()
    }

    /// `None` if the layout has several tiles, the image is too small to be reflected, or the graph takes more than
    /// `limit` bytes.
    ///
    /// # Errors
    /// If the graph cannot be built or the device fails.
    pub fn compile(
        denoiser: &dyn Denoiser,
        program: &Program,
        channels: usize,
        condition: Option<usize>,
        conditions: &Conditions,
        layout: &Layout,
        batch: usize,
        limit: usize,
        guide: Option<&Guide>,
        weights: &BTreeMap<String, Tensor>,
        device: &Device,
        options: &Options,
    ) -> Result<Option<Resident>, Error> {
        let (size, seen, given) = (layout.size(), layout.seen(), layout.given());
        let mut pad = [[0; 2]; MAX_RANK];
        for a in 0..size.len() {
            pad[1 + a] = [given[a].start, seen[a] - given[a].start - size[a].min(seen[a])];
        }
        let reflects = Resident::margin(layout).iter().zip(&size).all(|(m, n)| m < n);
        if layout.count() != 1 || layout.blends() || !reflects {
            return Ok(None);
        }
        let of = |size: &[usize], channels: usize| {
            Shape::new(&[batch].into_iter().chain(size.iter().copied()).chain([channels]).collect::<Vec<_>>())
        };
        let mut b = Builder::new();
        let image = condition.map(|c| b.input(CONDITION, Type::f32(of(&seen, c))));
        let surrounded = Surrounded { inner: denoiser, pad, size: &size };
        let guided = |b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition| {
            let inner = |b: &mut Builder, x: Value, l: &mut LevelInputs, g: &Condition| {
                surrounded.denoise(b, x, l, g)
            };
            match guide {
                Some(guide) => guide.clone().guides(inner).denoise(b, x, level, given),
                None => surrounded.denoise(b, x, level, given),
            }
        };
        let shape = of(&size, channels);
        let given = conditions.condition(&mut b, batch, image);
        let step = StepGraph::new(b, &guided, &given, shape, program, Setup::default())?;
        let bytes = plan(step.graph().clone(), device, options).map_err(Failed::from)?.bytes();
        if bytes > limit {
            return Ok(None);
        }
        let mut session = compile(step.graph().clone(), device, options).map_err(Failed::from)?;
        for (name, ..) in step.graph().states().filter(|(_, init, _)| *init == StateInit::Given) {
            if name == X {
                continue;
            }
            let weight = weights.get(name).ok_or_else(|| Error::NoWeight { name: name.to_string() })?;
            session.set(name, weight).map_err(Failed::from)?;
        }
        Ok(Some(Resident { step, session, shape, seen, bytes }))
    }

    /// Sets the measurement of an image for the guide.
    ///
    /// # Errors
    /// If the measurement does not fit.
    pub fn measure(&mut self, guide: &Guide, measured: &[Measurement<'_>]) -> Result<(), Error> {
        // A law without weight adds nothing to the graph, the measurement neither.
        for (name, value) in guide.inputs(self.shape, measured)?.into_iter().filter(|_| !guide.law().is_off())
        {
            self.session.set(&name, &value).map_err(Failed::from)?;
        }
        Ok(())
    }

    pub fn batch(&self) -> usize {
        self.shape[0]
    }

    /// Times one call.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_a_run(&mut self) -> Result<f64, Error> {
        let graph = self.step.graph();
        let inputs: Vec<(String, Tensor)> = graph
            .inputs()
            .map(|(name, v)| {
                let ty = graph.ty(v);
                let zeros = match ty.dtype {
                    DType::I32 => Tensor::i32(ty.shape, vec![0; ty.shape.len()]),
                    _ => Tensor::zeros(ty.shape),
                };
                (name.to_string(), zeros)
            })
            .collect();
        for (name, value) in inputs {
            self.session.set(&name, &value).map_err(Failed::from)?;
        }
        self.session.set(X, &Tensor::zeros(self.shape)).map_err(Failed::from)?;
        // On a GPU the first run loads what the libraries need.
        if matches!(self.session.device(), Device::Cuda { .. }) {
            self.session.run().map_err(Failed::from)?;
            self.session.wait().map_err(Failed::from)?;
        }
        let start = Instant::now();
        self.session.run().map_err(Failed::from)?;
        self.session.wait().map_err(Failed::from)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Samples an image for each seed; `beside` fills in the condition of an image for the tile.
    ///
    /// # Errors
    /// If values stop being finite, the device fails, or `ran` says to stop.
    pub fn walk(
        &mut self,
        program: &Program,
        layout: &Layout,
        seeds: &[u64],
        scratch: &Scratch,
        beside: &super::tiles::Beside<'_>,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Field>, Error> {
        let (batch, channels, size) = (self.batch(), self.shape.channels(), layout.size());
        let each = layout.pixels() * channels;
        let mut pixels = Vec::new();
        layout.sees(&layout.place(0), &mut pixels);
        let conditioned = self
            .step
            .graph()
            .inputs()
            .find(|(name, _)| *name == CONDITION)
            .map(|(_, v)| self.step.graph().ty(v).shape);
        let frames: Vec<usize> = (0..seeds.len()).collect();
        let mut made = Vec::new();
        for group in frames.chunks(batch) {
            // A batch that is not full is filled up with its last image.
            let frame = |slot: usize| group[slot.min(group.len() - 1)];
            for input in Conditions::of(self.step.graph()) {
                let values = Conditions::values(&input, frame, beside);
                self.session.set(&input.0, &values).map_err(Failed::from)?;
            }
            if let Some(shape) = conditioned {
                let width = shape.channels();
                let mut values = vec![0.0; shape.len()];
                for (slot, out) in values.chunks_exact_mut(pixels.len() * width).enumerate() {
                    beside(frame(slot), CONDITION, &pixels, out);
                }
                self.session.set(CONDITION, &Tensor::f32(shape, values)).map_err(Failed::from)?;
            }
            let mut x = Vec::with_capacity(batch * each);
            for slot in 0..batch {
                let noise =
                    walk::start(&program.start(), &size, channels, seeds[frame(slot)], scratch, None)?;
                x.extend_from_slice(&noise);
            }
            let tiles: Vec<Tile> = (0..batch).map(|slot| Tile::whole(seeds[frame(slot)])).collect();
            let keys = Keys::new(self.shape, &tiles)?;
            let mut stop = None;
            let x = Tensor::f32(self.shape, x);
            let noise = Noise::Keys(&keys);
            let walked = trace::replay(&self.step, &mut self.session, program, &x, &noise, |_, _| {
                ran().map_err(|e| {
                    let said = Failed::Session(e.to_string());
                    stop = Some(e);
                    said
                })
            });
            if let Some(e) = stop {
                return Err(e);
            }
            walked?;
            let last = self.session.get(X).map_err(Failed::from)?;
            let values = last.as_f32().map_err(|e| Error::Answer { what: e.to_string() })?;
            for image in values.chunks_exact(each).take(group.len()) {
                let mut field = scratch.field(each)?;
                field.copy_from_slice(image);
                made.push(field);
            }
        }
        Ok(made)
    }

    /// What the network sees of an image.
    pub fn seen(&self) -> &[usize] {
        &self.seen
    }
}
