//! One call of a program as a graph, and the loop that replays it.
//!
//! x and the values that a program keeps are states of the graph, so they stay on the device during the whole run. The
//! coefficients of a call are scalar inputs. Only terms that some call uses are built.

use crate::Error;
use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use crate::noise::{self, Keys, Stream};
use crate::pattern::{Pattern, Term, factor_name};
use crate::sampler::{Call, KEPT, Program};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Graph, StateInit, Type, Value};
use clearshot_tensor::{DType, Shape, Tensor};

/// Where a call's noise comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseFrom {
    /// Drawn on the device, by keys.
    Keys,
    /// Given by the caller for each step.
    Caller,
}

/// What a sampler's graph is made for beside its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub noise: NoiseFrom,
    /// Some pixels are known: the graph takes `known`, an image, and `mask`, 1 where it holds.
    pub inpaint: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { noise: NoiseFrom::Keys, inpaint: false }
    }
}

/// The noise of a run.
pub enum Noise<'a> {
    Keys(&'a Keys),
    /// By step.
    Given(&'a dyn Fn(usize) -> Tensor),
}

/// A graph that can be replayed, with inputs, states and outputs by name.
pub trait Replay {
    /// # Errors
    /// If there is no such input or state, or it has another shape.
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), Error>;

    /// # Errors
    /// If an input is missing.
    fn run(&mut self) -> Result<(), Error>;

    /// # Errors
    /// If there is no such output or state.
    fn get(&self, name: &str) -> Result<Tensor, Error>;
}

impl Replay for clearshot_runtime::Session {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), Error> {
        Ok(clearshot_runtime::Session::set(self, name, value)?)
    }

    fn run(&mut self) -> Result<(), Error> {
        Ok(clearshot_runtime::Session::run(self)?)
    }

    fn get(&self, name: &str) -> Result<Tensor, Error> {
        Ok(clearshot_runtime::Session::get(self, name)?)
    }
}

/// The state that holds x.
pub const X: &str = "sample.x";
const NOISE: &str = "sample.noise";
const NOISE_KEY: &str = "sample.key";
const RAISE: &str = "sample.raise";
const SPREAD: [&str; 2] = ["sample.spread_low", "sample.spread_high"];
/// The input that holds the image that is known in part.
pub const KNOWN: &str = "known";
/// The input that is 1 where it is known and 0 elsewhere, of the same shape.
pub const MASK: &str = "mask";
const KNOWN_KEY: &str = "sample.known_key";
const KNOWN_ALPHA: &str = "sample.known_alpha";
const KNOWN_SIGMA: &str = "sample.known_sigma";
/// The mean size of x's values, for each image: not finite where one of them is not.
const SIZE: &str = "sample.size";

/// The part of a graph that is the sampler's own.
const SCOPE: &str = "sampler";
const SCALAR: Type = Type { dtype: DType::F32, shape: Shape::SCALAR };

fn kept_name(slot: usize) -> String {
    format!("sample.kept{slot}")
}

/// See the module.
pub struct StepGraph {
    graph: Graph,
    shape: Shape,
    levels: LevelInputs,
    pattern: Pattern,
    setup: Setup,
}

impl StepGraph {
    /// Builds one call of `program` for batches of `shape`, `[N, [Z,] Y, X, C]`, behind what `b` already
    /// holds: the inputs that `given` is made of.
    ///
    /// # Errors
    /// If the denoiser cannot be built, or has no learned variance where the program needs it, or x would
    /// have no elements.
    pub fn new(
        mut b: Builder,
        denoiser: &dyn Denoiser,
        given: &Condition,
        shape: Shape,
        program: &Program,
        setup: Setup,
    ) -> Result<StepGraph, Error> {
        if shape.is_empty() || shape.rank() == 0 {
            let must = "of a batch with at least one element".into();
            return Err(Error::Setting { what: "the shape of x", got: shape.to_string(), must });
        }
        let pattern = Pattern::of(program);
        let mut levels = LevelInputs::new(shape[0]);
        let outer = b.set_scope(SCOPE);
        let state = b.state(X, Type::f32(shape), StateInit::Given);
        let kept = std::array::from_fn(|slot| {
            let name = kept_name(slot);
            pattern.keeps(slot).then(|| b.state(&name, Type::f32(shape), StateInit::Constant(0.0)))
        });
        let noise = pattern.draws.then(|| drawn(&mut b, shape, setup.noise));
        let x = match noise.filter(|_| pattern.raises) {
            Some(noise) => {
                let factor = b.input(RAISE, SCALAR);
                let added = b.mul(noise, factor);
                b.add(state, added)
            }
            None => state,
        };
        b.set_scope(&outer);
        let estimate = denoiser.denoise(&mut b, x, &mut levels, given);
        b.set_scope(SCOPE);
        let noise = noise.map(|n| if pattern.learned { spread(&mut b, n, &estimate) } else { n });
        let there = There { x, estimate, noise, kept };
        let mut next = there.mixed(&mut b, &pattern, 0).unwrap_or(state);
        if setup.inpaint {
            next = with_known(&mut b, next, shape, setup.noise);
        }
        for slot in 0..KEPT {
            if let (Some(state), Some(value)) = (kept[slot], there.mixed(&mut b, &pattern, 1 + slot)) {
                b.update(state, value);
            }
        }
        b.update(state, next);
        let size = b.unary(Unary::Abs, next);
        let size = b.mean(size, &(1..shape.rank()).collect::<Vec<_>>());
        b.output(SIZE, size);
        b.set_scope(&outer);
        Ok(StepGraph { graph: b.finish()?, shape, levels, pattern, setup })
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Sets x and forgets what was kept.
    ///
    /// # Errors
    /// If x has another shape.
    pub fn begin(&self, session: &mut dyn Replay, x: &Tensor) -> Result<(), Error> {
        if x.shape() != self.shape {
            return Err(Error::Shape { name: "x", expected: self.shape, got: x.shape() });
        }
        session.set(X, x)?;
        for slot in (0..KEPT).filter(|slot| self.pattern.keeps(*slot)) {
            session.set(&kept_name(slot), &Tensor::zeros(self.shape))?;
        }
        Ok(())
    }

    /// Sets everything that a call needs.
    ///
    /// # Errors
    /// If noise of another kind is given than the graph was built for.
    pub fn set_call(
        &self,
        session: &mut dyn Replay,
        call: &Call,
        noise: &Noise<'_>,
        stochastic: bool,
    ) -> Result<(), Error> {
        for (name, value) in self.levels.at(&call.level) {
            session.set(name, &value)?;
        }
        let mut scalar = |name: &str, value: f64| session.set(name, &Tensor::scalar(value as f32));
        for (name, factor) in self.pattern.factors(call) {
            scalar(&name, factor)?;
        }
        if self.pattern.raises {
            scalar(RAISE, call.raise)?;
        }
        if self.pattern.learned {
            scalar(SPREAD[0], call.spread[0])?;
            scalar(SPREAD[1], call.spread[1])?;
        }
        if self.setup.inpaint {
            scalar(KNOWN_ALPHA, call.arrives.alpha)?;
            scalar(KNOWN_SIGMA, call.arrives.sigma)?;
        }
        let step = call.step as u32;
        match (self.setup.noise, noise) {
            (NoiseFrom::Keys, Noise::Keys(keys)) => {
                if self.pattern.draws {
                    session.set(NOISE_KEY, &keys.tensor(step, Stream::Steps))?;
                }
                if self.setup.inpaint {
                    session.set(KNOWN_KEY, &keys.tensor(known_step(step, stochastic), Stream::Known))?;
                }
            }
            (NoiseFrom::Caller, Noise::Given(of)) if self.pattern.draws => {
                session.set(NOISE, &of(call.step))?
            }
            (NoiseFrom::Caller, _) if !self.pattern.draws => {}
            (expected, _) => {
                let must = format!("given as the graph was built for: {expected:?}");
                return Err(Error::Setting { what: "noise", got: "of another kind".into(), must });
            }
        }
        Ok(())
    }

    /// Replays the program from `x`, which is at [`Program::start`]; `watch` may look at the session after
    /// each call. The result is then the state [`X`].
    ///
    /// # Errors
    /// If a call makes values that are not finite, or the session refuses a value.
    pub fn replay(
        &self,
        session: &mut dyn Replay,
        program: &Program,
        x: &Tensor,
        noise: &Noise<'_>,
        mut watch: impl FnMut(usize, &dyn Replay) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.begin(session, x)?;
        for (i, call) in program.calls().iter().enumerate() {
            self.set_call(session, call, noise, program.stochastic())?;
            session.run()?;
            let sizes = session.get(SIZE)?.to_f64();
            if let Some(image) = sizes.iter().position(|s| !s.is_finite()) {
                let (step, steps) = (call.step, program.steps());
                return Err(Error::NonFinite { step, steps, image, origin: "the step's graph".into() });
            }
            watch(i, session)?;
        }
        Ok(())
    }
}

/// The step that the noise of known pixels is drawn for after a step. A deterministic sampler keeps the
/// noise that it began with, so its known pixels do too.
pub fn known_step(step: u32, stochastic: bool) -> u32 {
    if stochastic { step + 1 } else { 0 }
}

/// What a call can mix, as nodes.
struct There {
    x: Value,
    estimate: Estimate,
    noise: Option<Value>,
    kept: [Option<Value>; KEPT],
}

impl There {
    /// What a row of the pattern makes; nothing where it has no terms.
    fn mixed(&self, b: &mut Builder, pattern: &Pattern, row: usize) -> Option<Value> {
        let Estimate { x0, unclipped, .. } = self.estimate;
        let there = [Some(self.x), Some(x0), Some(unclipped), self.noise, self.kept[0], self.kept[1]];
        let mut sum = None;
        for (term, value) in there.into_iter().enumerate() {
            let Some(value) = value else { continue };
            let scaled = match pattern.term(row, term) {
                Term::Absent => continue,
                // A copy where it is a state, which is overwritten.
                Term::Plain if self.kept.contains(&Some(value)) => b.mul_scalar(value, 1.0),
                Term::Plain => value,
                Term::Scaled => {
                    let factor = b.input(&factor_name(row, term), SCALAR);
                    b.mul(value, factor)
                }
            };
            sum = Some(sum.map_or(scaled, |sum| b.add(sum, scaled)));
        }
        sum
    }
}

/// The noise of a call.
fn drawn(b: &mut Builder, shape: Shape, from: NoiseFrom) -> Value {
    match from {
        NoiseFrom::Caller => b.input(NOISE, Type::f32(shape)),
        NoiseFrom::Keys => {
            let key = noise::key_input(b, NOISE_KEY, shape);
            noise::normal(b, key, shape)
        }
    }
}

/// Noise with the standard deviation that the denoiser learned.
fn spread(b: &mut Builder, noise: Value, estimate: &Estimate) -> Value {
    let Some(variance) = estimate.variance else {
        return b.refuse("sampler", "the program needs a learned variance, the denoiser has none".into());
    };
    let [low, high] = SPREAD.map(|name| b.input(name, SCALAR));
    let way = b.sub(high, low);
    let way = b.mul(variance, way);
    let log = b.add(way, low);
    let size = b.unary(Unary::Exp, log);
    b.mul(noise, size)
}

/// Puts the known image, with the noise of x's new level, where the mask is 1.
fn with_known(b: &mut Builder, x: Value, shape: Shape, from: NoiseFrom) -> Value {
    if from == NoiseFrom::Caller {
        return b.refuse("sampler", "inpainting draws its noise by keys".into());
    }
    let known = b.input(KNOWN, Type::f32(shape));
    let mask = b.input(MASK, Type::f32(shape));
    let (alpha, sigma) = (b.input(KNOWN_ALPHA, SCALAR), b.input(KNOWN_SIGMA, SCALAR));
    let key = noise::key_input(b, KNOWN_KEY, shape);
    let noise = noise::normal(b, key, shape);
    let (signal, noise) = (b.mul(known, alpha), b.mul(noise, sigma));
    let known = b.add(signal, noise);
    let opposite = b.mul_scalar(mask, -1.0);
    let opposite = b.add_scalar(opposite, 1.0);
    let (known, free) = (b.mul(known, mask), b.mul(x, opposite));
    b.add(known, free)
}
