//! Denoisers: functions that estimate the clean image, as nodes of a graph.
//!
//! A denoiser is a function (x, level, condition) -> x0 that adds its nodes to a builder. Networks become denoisers by
//! preconditioning; clipping, classifier-free guidance and physical guidance map a denoiser to another one. Numbers that
//! depend only on the noise level are computed in f64 on the host and enter the graph through [`LevelInputs`]: a denoiser
//! names a number and gives its formula, and the caller that runs the graph sets it.

use crate::level::Level;
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::{Shape, Tensor};

/// What a denoiser is given beside x and its level. A network takes what it knows and refuses the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    /// An image that stands beside x along channels, `[N, [Z,] Y, X, C]`.
    pub image: Option<Value>,
    /// Whole numbers `[N]`, or what else the network's class embedding takes.
    pub class: Option<Value>,
    /// Numbers that describe each image, `[N, E]`.
    pub vector: Option<Value>,
    /// Tokens for cross-attention, `[N, S, E]`.
    pub context: Option<Value>,
}

/// What a denoiser says about x.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The clean image.
    pub x0: Value,
    /// The same before it was clipped to the range of images; `x0` where it was not.
    pub unclipped: Value,
    /// Where the logarithm of a reverse step's variance lies between the smallest (0) and the largest (1)
    /// that make sense, for each element; from networks that learned it.
    pub variance: Option<Value>,
    /// The error of `x0` stated by the network, in its own unit.
    pub error: Option<Value>,
}

impl Estimate {
    pub fn of(x0: Value) -> Estimate {
        Estimate { x0, unclipped: x0, variance: None, error: None }
    }
}

/// See the module.
pub trait Denoiser {
    /// Adds the nodes that estimate the clean image behind `x`, which is at the level of `level`. What
    /// cannot be built becomes the builder's error.
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate;
}

impl<F: Fn(&mut Builder, Value, &mut LevelInputs, &Condition) -> Estimate> Denoiser for F {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        self(b, x, level, given)
    }
}

type OfLevel = Box<dyn Fn(&Level) -> f64 + Send>;

/// The inputs of a graph that follow from the noise level: one number for each image, by name.
pub struct LevelInputs {
    batch: usize,
    entries: Vec<(String, OfLevel, Value)>,
}

/// In front of the names of inputs.
const PREFIX: &str = "level.";

impl LevelInputs {
    /// For graphs that run `batch` images at once.
    pub fn new(batch: usize) -> LevelInputs {
        LevelInputs { batch, entries: vec![] }
    }

    /// The number called `name`, `[N]`, which follows from the level by `of`. A name asked for again is
    /// the same input, so one name must always mean one function.
    #[track_caller]
    pub fn number(
        &mut self,
        b: &mut Builder,
        name: &str,
        of: impl Fn(&Level) -> f64 + Send + 'static,
    ) -> Value {
        let name = format!("{PREFIX}{name}");
        if let Some((.., value)) = self.entries.iter().find(|(n, ..)| *n == name) {
            return *value;
        }
        let value = b.input(&name, Type::f32([self.batch]));
        self.entries.push((name, Box::new(of), value));
        value
    }

    /// As [`LevelInputs::number`], with axes of size 1 behind the first, so that it broadcasts over images
    /// of the same rank as `like`.
    #[track_caller]
    pub fn factor(
        &mut self,
        b: &mut Builder,
        like: Value,
        name: &str,
        of: impl Fn(&Level) -> f64 + Send + 'static,
    ) -> Value {
        let value = self.number(b, name, of);
        let rank = b.shape(like).rank();
        b.reshape(value, Shape::new(&[1]).padded_to(rank.max(1)).with(0, self.batch))
    }

    /// The value of every input where all images are at one level.
    pub fn at(&self, level: &Level) -> impl Iterator<Item = (&str, Tensor)> {
        self.entries.iter().map(move |(name, of, _)| {
            let value = of(level) as f32;
            (name.as_str(), Tensor::f32([self.batch], vec![value; self.batch]))
        })
    }

    /// Whether an input of this name follows from the level.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(n, ..)| n == name)
    }

    /// The value of every input where each image has its own level.
    ///
    /// # Panics
    /// If there are not as many levels as images.
    pub fn at_each(&self, levels: &[Level]) -> impl Iterator<Item = (&str, Tensor)> {
        assert_eq!(levels.len(), self.batch, "one level for each image");
        self.entries.iter().map(move |(name, of, _)| {
            let values = levels.iter().map(|level| of(level) as f32).collect();
            (name.as_str(), Tensor::f32([self.batch], values))
        })
    }
}
