//! Evaluates a network over all tiles of whole images.
//!
//! One graph takes a batch of tiles and returns the clean estimate of their cores. Images stay on the host;
//! [`Tiles::ask`] cuts them, runs the graph batch by batch, and assembles the results. Tiles of several images of one
//! size may share a batch, because results do not depend on the other tiles of a batch.

use super::Error;
use super::error::origin;
use super::field::Field;
use super::layout::Layout;
use super::restorer::Place;
use clearshot_diffusion::{Condition, Denoiser, Estimate, Level, LevelInputs};
use clearshot_graph::plan::Plan;
use clearshot_graph::{Builder, Graph, StateInit, Type, Value};
use clearshot_model::ConditionInput;
use clearshot_runtime::{Device, Options, Session, compile, plan};
use clearshot_tensor::{DType, Shape, Tensor};
use clearshot_timeline::{Phase, span};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::time::Instant;

const X: &str = "x";
/// The input with the channels of the condition.
pub const CONDITION: &str = "condition";
/// Pixels that one thread cuts at once.
const PART: usize = 1 << 14;
const ESTIMATE: &str = "x0";
const UNCLIPPED: &str = "unclipped";
const ERROR: &str = "error";
/// In front of the names of inputs that are about an image as a whole.
const WHOLE: &str = "image.";

/// The network to evaluate over tiles.
pub enum Question<'a> {
    /// A denoiser, with x and a noise level.
    Denoise(&'a dyn Denoiser),
    /// A network that computes the clean image from the condition alone.
    Regress(&'a dyn Fn(&mut Builder, Value, &Condition) -> Estimate),
}

/// The conditions of a network that concern each image as a whole, with the number of vectors of contexts.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    pub inputs: Vec<ConditionInput>,
    pub tokens: usize,
}

impl Conditions {
    /// Adds its inputs to the graph of a batch, beside an image; all are 32-bit floats, which the graph converts to
    /// classes.
    pub fn condition(&self, b: &mut Builder, batch: usize, image: Option<Value>) -> Condition {
        let mut given = Condition { image, ..Condition::default() };
        for input in &self.inputs {
            let sizes: Vec<usize> = [batch].into_iter().chain(input.shape(self.tokens)).collect();
            let mut value = b.input(&format!("{WHOLE}{}", input.port), Type::f32(Shape::new(&sizes)));
            if input.dtype == DType::I32 {
                value = b.cast(value, DType::I32);
            }
            match input.port {
                "class" | "labels" => given.class = Some(value),
                "vector" => given.vector = Some(value),
                _ => given.context = Some(value),
            }
        }
        given
    }

    /// The inputs of a graph that are of this kind, with their shapes.
    pub fn of(graph: &Graph) -> Vec<(String, Shape)> {
        let of =
            |(name, v): (&str, Value)| name.starts_with(WHOLE).then(|| (name.to_string(), graph.ty(v).shape));
        graph.inputs().filter_map(of).collect()
    }

    /// The values of one of them for the images of a batch, from [`Beside`]; `frame` returns the image at each
    /// position.
    pub fn values(
        (name, shape): &(String, Shape),
        frame: impl Fn(usize) -> usize,
        beside: &Beside<'_>,
    ) -> Tensor {
        let mut values = vec![0.0; shape.len()];
        let each = shape.len() / shape[0].max(1);
        for (slot, out) in values.chunks_exact_mut(each).enumerate() {
            beside(frame(slot), &name[WHOLE.len()..], &[], out);
        }
        Tensor::f32(*shape, values)
    }
}

/// What is wanted beside the estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Also {
    /// The estimate before clipping.
    pub unclipped: bool,
    /// The error stated by the network.
    pub error: bool,
}

/// The specification of a graph.
pub struct Asked<'a> {
    pub question: Question<'a>,
    /// Channels of the image.
    pub channels: usize,
    /// Channels of the condition.
    pub condition: Option<usize>,
    /// What is wanted beside the estimate.
    pub also: Also,
    pub conditions: Conditions,
}

/// The graph of one batch of tiles.
pub struct TileGraph {
    graph: Graph,
    levels: LevelInputs,
    batch: usize,
    channels: usize,
    reads_x: bool,
    /// Whether [`UNCLIPPED`] is an output of its own.
    unclipped: bool,
    /// Whether [`ERROR`] is an output.
    error: bool,
    /// Inputs beside x and the level's numbers, with their channels.
    beside: Vec<(String, usize)>,
    /// Inputs that are about an image as a whole.
    conditions: Vec<(String, Shape)>,
}

impl TileGraph {
    /// The output with the clean estimate.
    pub const OUTPUT: &str = ESTIMATE;
    /// The output with the predicted error.
    pub const ERROR: &str = ERROR;

    /// # Errors
    /// If the network does not accept tiles of that size.
    pub fn new(asked: &Asked<'_>, layout: &Layout, batch: usize) -> Result<TileGraph, Error> {
        let mut b = Builder::new();
        let mut levels = LevelInputs::new(batch);
        let image = |channels: usize| {
            let sizes: Vec<usize> = [batch].into_iter().chain(layout.seen()).chain([channels]).collect();
            Type::f32(Shape::new(&sizes))
        };
        let condition = asked.condition.map(|c| b.input(CONDITION, image(c)));
        let given = asked.conditions.condition(&mut b, batch, condition);
        let reads_x = matches!(asked.question, Question::Denoise(_));
        let estimate = match asked.question {
            Question::Denoise(denoiser) => {
                let x = b.input(X, image(asked.channels));
                denoiser.denoise(&mut b, x, &mut levels, &given)
            }
            Question::Regress(network) => match condition {
                Some(condition) => network(&mut b, condition, &given),
                None => Estimate::of(b.refuse("tiles", "a network without x needs a condition".into())),
            },
        };
        let unclipped = asked.also.unclipped && estimate.unclipped != estimate.x0;
        let error = estimate.error.filter(|_| asked.also.error);
        let mut give = |name: &str, mut v: Value| {
            for (a, part) in layout.given().iter().enumerate() {
                if part.len() != layout.seen()[a] {
                    v = b.slice(v, 1 + a, part.start, part.len());
                }
            }
            b.output(name, v);
        };
        give(ESTIMATE, estimate.x0);
        if unclipped {
            give(UNCLIPPED, estimate.unclipped);
        }
        error.into_iter().for_each(|error| give(ERROR, error));
        let graph = b.finish().map_err(clearshot_diffusion::Error::from)?;
        let own = |name: &str| name == X || name.starts_with("level.") || name.starts_with(WHOLE);
        let beside = graph
            .inputs()
            .filter(|(n, _)| !own(n))
            .map(|(n, v)| (n.to_string(), graph.ty(v).shape.channels()));
        let (beside, conditions) = (beside.collect(), Conditions::of(&graph));
        Ok(TileGraph {
            graph,
            levels,
            batch,
            channels: asked.channels,
            reads_x,
            unclipped,
            error: error.is_some(),
            beside,
            conditions,
        })
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The inputs that are images.
    pub fn image_inputs(&self) -> Vec<String> {
        let x = self.reads_x.then(|| X.to_string());
        x.into_iter().chain(self.beside.iter().map(|(name, _)| name.clone())).collect()
    }

    /// The memory and operations of running it.
    ///
    /// # Errors
    /// If the device cannot run it.
    pub fn plan(&self, device: &Device, options: &Options) -> Result<Plan, Error> {
        plan(self.graph.clone(), device, options).map_err(|e| clearshot_diffusion::Error::from(e).into())
    }
}

/// Fills in the values of an image at some of its pixels, for inputs other than x: (image, name, pixels, values). For
/// inputs that concern an image as a whole the name is that of the network's input, and there are no pixels.
pub type Beside<'a> = dyn Fn(usize, &str, &[usize], &mut [f32]) + Sync + 'a;

/// An image to evaluate, and the destination of the result.
pub struct Frame<'a> {
    pub x: &'a [f32],
    pub estimate: &'a mut Field,
    pub unclipped: Option<&'a mut Field>,
    pub error: Option<&'a mut Field>,
}

/// A tile graph compiled for a device.
pub struct Tiles {
    session: Session,
    graph: TileGraph,
    layout: Layout,
}

impl Tiles {
    /// # Errors
    /// If the device cannot run the graph, or a parameter is missing.
    pub fn compile(
        graph: TileGraph,
        layout: Layout,
        weights: &BTreeMap<String, Tensor>,
        device: &Device,
        options: &Options,
    ) -> Result<Tiles, Error> {
        let mut session =
            compile(graph.graph.clone(), device, options).map_err(clearshot_diffusion::Error::from)?;
        for (name, ..) in graph.graph.states().filter(|(_, init, _)| *init == StateInit::Given) {
            let weight = weights.get(name).ok_or_else(|| Error::NoWeight { name: name.to_string() })?;
            session.set(name, weight).map_err(clearshot_diffusion::Error::from)?;
        }
        Ok(Tiles { session, graph, layout })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn batch(&self) -> usize {
        self.graph.batch
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Whether the estimate before clipping differs and is returned.
    pub fn has_unclipped(&self) -> bool {
        self.graph.unclipped
    }

    /// The number of runs for this number of images.
    pub fn runs(&self, frames: usize) -> usize {
        (frames * self.layout.count()).div_ceil(self.graph.batch)
    }

    /// Times one run, on images of zeros.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_a_run(&mut self) -> Result<f64, Error> {
        let zeros: Vec<(String, Tensor)> = self
            .graph
            .graph
            .inputs()
            .map(|(name, v)| (name.to_string(), Tensor::zeros(self.graph.graph.ty(v).shape)))
            .collect();
        let run = |session: &mut Session| -> Result<(), Error> {
            for (name, value) in &zeros {
                session.set(name, value).map_err(clearshot_diffusion::Error::from)?;
            }
            session.run().map_err(clearshot_diffusion::Error::from)?;
            session.get(ESTIMATE).map_err(clearshot_diffusion::Error::from)?;
            Ok(())
        };
        // On a GPU the first run loads what the libraries need.
        if matches!(self.session.device(), Device::Cuda { .. }) {
            run(&mut self.session)?;
        }
        let start = Instant::now();
        run(&mut self.session)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Evaluates every image, or only the `wanted` boxes of each; `ran` is called after each run.
    ///
    /// # Errors
    /// If the device fails, a result is not finite, or `ran` requests a stop.
    pub fn ask(
        &mut self,
        level: &Level,
        frames: &mut [Frame<'_>],
        wanted: Option<&[Place]>,
        beside: &Beside<'_>,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let levels: Vec<(String, Tensor)> =
            self.graph.levels.at(level).map(|(name, value)| (name.to_string(), value)).collect();
        for (name, value) in levels {
            self.session.set(&name, &value).map_err(clearshot_diffusion::Error::from)?;
        }
        if self.layout.blends() || wanted.is_some() {
            for frame in frames.iter_mut() {
                frame.estimate.fill(0.0);
                let also = frame.unclipped.iter_mut().chain(&mut frame.error);
                also.for_each(|field| field.fill(0.0));
            }
        }
        let tiles = self.layout.count();
        let is_wanted = |job: &usize| {
            wanted.is_none_or(|all| self.layout.answers_in(&self.layout.place(job % tiles), all))
        };
        let jobs: Vec<usize> = (0..frames.len() * tiles).filter(is_wanted).collect();
        let batches: Vec<&[usize]> = jobs.chunks(self.graph.batch).collect();
        let mut next = batches.first().map(|batch| self.cut(batch, frames, beside));
        for (i, batch) in batches.iter().enumerate() {
            for (name, value) in next.take().unwrap_or_default() {
                self.session.set(&name, &value).map_err(clearshot_diffusion::Error::from)?;
            }
            self.session.run().map_err(clearshot_diffusion::Error::from)?;
            // On a GPU the run is under way: the next tiles are cut beside it.
            next = batches.get(i + 1).map(|batch| self.cut(batch, frames, beside));
            self.put(batch, frames, level)?;
            ran()?;
        }
        Ok(())
    }

    /// The inputs of a batch of tiles; a batch that is not full is filled up with its last tile.
    fn cut(&self, batch: &[usize], frames: &[Frame<'_>], beside: &Beside<'_>) -> Vec<(String, Tensor)> {
        let _tiling = span(Phase::Tiling);
        let (tiles, c) = (self.layout.count(), self.graph.channels);
        let shape = |channels: usize| {
            let seen = self.layout.seen();
            Shape::new(&[self.graph.batch].into_iter().chain(seen).chain([channels]).collect::<Vec<_>>())
        };
        let mut x = vec![0.0; if self.graph.reads_x { shape(c).len() } else { 0 }];
        let mut others: Vec<Vec<f32>> =
            self.graph.beside.iter().map(|(_, channels)| vec![0.0; shape(*channels).len()]).collect();
        let mut pixels = Vec::new();
        for slot in 0..self.graph.batch {
            let job = batch[slot.min(batch.len() - 1)];
            let (frame, place) = (job / tiles, self.layout.place(job % tiles));
            self.layout.sees(&place, &mut pixels);
            if self.graph.reads_x {
                let (values, each) = (frames[frame].x, pixels.len() * c);
                let out = &mut x[slot * each..(slot + 1) * each];
                out.par_chunks_mut(PART * c).zip(pixels.par_chunks(PART)).for_each(|(out, pixels)| {
                    for (out, &p) in out.chunks_exact_mut(c).zip(pixels) {
                        out.copy_from_slice(&values[p * c..(p + 1) * c]);
                    }
                });
            }
            for ((name, channels), values) in self.graph.beside.iter().zip(&mut others) {
                let each = pixels.len() * channels;
                let out = &mut values[slot * each..(slot + 1) * each];
                out.par_chunks_mut(PART * channels)
                    .zip(pixels.par_chunks(PART))
                    .for_each(|(out, pixels)| beside(frame, name, pixels, out));
            }
        }
        let mut inputs = Vec::new();
        if self.graph.reads_x {
            inputs.push((X.to_string(), Tensor::f32(shape(c), x)));
        }
        for ((name, channels), values) in self.graph.beside.iter().zip(others) {
            inputs.push((name.clone(), Tensor::f32(shape(*channels), values)));
        }
        let frame = |slot: usize| batch[slot.min(batch.len() - 1)] / tiles;
        inputs.extend(
            self.graph
                .conditions
                .iter()
                .map(|input| (input.0.clone(), Conditions::values(input, frame, beside))),
        );
        inputs
    }

    /// Takes the answers of a batch.
    fn put(&self, batch: &[usize], frames: &mut [Frame<'_>], level: &Level) -> Result<(), Error> {
        let _tiling = span(Phase::Tiling);
        let (tiles, c) = (self.layout.count(), self.graph.channels);
        let got = |name: &str| -> Result<Tensor, Error> {
            Ok(self.session.get(name).map_err(clearshot_diffusion::Error::from)?)
        };
        let each: usize = self.layout.given().iter().map(|g| g.len()).product::<usize>() * c;
        let blends = self.layout.blends();
        let both = self.graph.unclipped && frames.iter().all(|f| f.unclipped.is_some());
        let error = self.graph.error && frames.iter().all(|f| f.error.is_some());
        let mut take = |name: &str| -> Result<(), Error> {
            let answers = got(name)?;
            let answers = answers.as_f32().map_err(|e| Error::Answer { what: e.to_string() })?;
            for (slot, &job) in batch.iter().enumerate() {
                let (frame, place) = (job / tiles, self.layout.place(job % tiles));
                let values = &answers[slot * each..(slot + 1) * each];
                if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
                    let (value, sigma) = (*bad, level.ratio());
                    let origin = origin(self.graph.graph(), &self.session);
                    return Err(Error::NonFinite { value, tile: place, sigma, origin });
                }
                let frame = &mut frames[frame];
                let into = match (name, &mut frame.unclipped, &mut frame.error) {
                    (UNCLIPPED, Some(field), _) | (ERROR, _, Some(field)) => &mut field[..],
                    _ => &mut frame.estimate[..],
                };
                self.layout.answers(&place, |to, from, weight| {
                    for ch in 0..c {
                        let (to, value) = (&mut into[to * c + ch], values[from * c + ch]);
                        *to = if blends { *to + weight * value } else { value };
                    }
                });
            }
            Ok(())
        };
        take(ESTIMATE)?;
        if both {
            take(UNCLIPPED)?;
        }
        if error {
            take(ERROR)?;
        }
        Ok(())
    }
}
