//! Guidance by a measurement: a denoiser becomes one that knows y and its physics.
//!
//! A denoiser estimates E[x0 | x]. What a sampler needs to draw from the posterior is E[x0 | x, y], and a
//! guide corrects the one towards the other before the sampler's step: graph -> graph, so the
//! correction is compiled with the network. What each law does with g, the gradient in x0 of
//! -ln p(y | x0) in normalised units, where r is the noise per signal of x (its sigma where alpha is 1):
//!
//! | law | x0 becomes |
//! |---|---|
//! | [`Law::Proximal`] | the minimum of `\|z - x0\|^2 / 2 v + strength * -ln p(y \| z)` over z, `v = r^2 sd^2 / (r^2 + sd^2)` |
//! | [`Law::Covariance`] | the minimum of `d' C^-1 d / 2 + strength * -ln p(y \| z)` over z, `d = z - x0`, `C = (sigma^2 / alpha) dx0/dx`, the likelihood as its parabola at x0 |
//! | [`Law::SigmaSquared`] | `x0 - kappa r^2 g` |
//! | [`Law::Sigma`] | `x0 - kappa r g` |
//! | [`Law::Constant`] | `x0 - kappa g` |
//! | [`Law::NormAdaptive`] | `x0 - lambda ramp(time) g / (rms(g) + eps)`, the root mean square over the image |
//! | [`Law::Discrepancy`] | down g until chi2, the mean squared residual over its variance, is the target |
//! | [`Law::Through`] | `x0 - kappa (sigma^2 / alpha) dx0/dx' g`: through the network (DPS) |
//!
//! # Which are exact
//!
//! *At every level:* the proximal law with strength 1, where images are Gaussian around their mean with
//! standard deviation `sd` and no correlation, and the likelihood is quadratic: x0 given x is then Gaussian
//! with variance v, and its mean given y is the minimum. Any operator will do; under a blur the minimum is
//! approached by [`Proximal::iterations`] of conjugate gradients. Every sampler that is right for the prior is
//! then right for the posterior.
//!
//! *At every level, with correlations too:* the covariance law with strength 1 and iterations enough, where images
//! are Gaussian around their mean, whatever their covariance, and the likelihood is quadratic. Nothing is
//! assumed of the prior there: (sigma^2 / alpha) dx0/dx is the covariance of x0 given x for every prior
//! (Tweedie's formula, once more). Neighbours that go together are corrected together, so the measurement's
//! own noise averages out, where the proximal law hands it on to the denoiser pixel by pixel. For images that are not
//! Gaussian it approaches the best estimate that is linear in y. A network's derivative is a covariance only as nearly as the
//! network is right, and one iteration has been best there (docs/diffusion.md). Each goes back through the
//! denoiser, which is twice the denoiser's own work. (Song, Vahdat, Mardani and Kautz 2023 take one product with C and a
//! chosen variance in place of the equations.)
//!
//! *As noise vanishes:* the proximal and the covariance law with strength 1, `SigmaSquared` and `Through` with kappa 1, for any
//! prior and likelihood. As r falls below the posterior's own width, the corrected estimate differs from
//! E[x0 | x, y] by ever smaller parts of r^2, so x moves by the posterior's own score. A sampler that adds
//! noise at low levels (churn) forgets what went wrong before and draws from the posterior, as far as its
//! modes are not apart; one that does not keeps the errors of high levels, where these laws are
//! approximations. There the proximal and the covariance law are those that cannot overshoot: the others multiply a
//! residual by up to `r^2 sensitivity^2 information`, which has no bound in r.
//!
//! *Never:* `Sigma`, `Constant`, `NormAdaptive` weigh the measurement ever more against the prior as noise
//! vanishes; they end near the best fit. `Discrepancy` ends where the residual is as large as its noise. They
//! are heuristics, for comparison and for models whose noise is not known well.
//!
//! What they reach on pixels of two levels (0.2 and 1, eight electrons a unit, half an electron of background,
//! Poisson noise; 40 samples of 60 Heun steps with churn), as the root mean square distance of the samples'
//! mean from the posterior's, of which 0.030 is the samples' own: `Through` 0.033, `SigmaSquared` 0.038, `Covariance` 0.060,
//! `Sigma` 0.10, `Discrepancy` 0.11, `Proximal` 0.12, `Constant` 0.19, `NormAdaptive` 0.26. Two levels are as far from
//! Gaussian as a prior gets; the proximal law's bound holds back there what should not be. Under the blur of
//! the tests' Gaussian images `SigmaSquared` and `Through` diverge unless they are gated to low noise. They
//! also need some background or read noise: the slope of Poisson's likelihood is unbounded in the dark.
//!
//! A weight of zero adds nothing to the graph, so it is no guidance to the bit. All sums are over one image,
//! so an image's result does not depend on those beside it.
//!
//! ```
//! use clearshot_diffusion::guide::{Measurement, Proximal};
//! use clearshot_diffusion::{Guide, Law};
//! use clearshot_physics::{Boundary, Correlation, Electrons, Forward, Likelihood, Map, Operator, Psf, Scale};
//! use clearshot_tensor::Shape;
//!
//! let psf = Psf::gaussian(&[1.5, 1.5])?;
//! let forward = Forward {
//!     operator: Operator::blur([32, 32], &psf, Boundary::Reflect)?,
//!     scale: Scale::symmetric(Electrons(0.0), Electrons(200.0))?,
//!     exposure: 1.0,
//!     background: Map::Uniform(4.0),
//!     read_noise: Map::Uniform(1.6),
//!     correlation: Correlation::WHITE,
//!     likelihood: Likelihood::ShiftedPoisson,
//! };
//! let guide = Guide::new(forward, Law::Proximal(Proximal::new(0.5)))?;
//! // `guide.clone().guides(denoiser)` goes to the sampler, which is then given the measurement:
//! let y = vec![10.0; 32 * 32];
//! let measurement = Measurement { y: Electrons(&y), valid: None };
//! for (name, value) in guide.inputs(Shape::from([1, 32, 32, 1]), &[measurement])? {
//!     println!("{name} {}", value.shape());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod conjugate;
mod correct;
mod covariance;
pub mod host;
mod law;
pub mod posterior;
mod proximal;
mod table;

pub use law::{Covariance, Discrepancy, Law, NormAdaptive, Proximal};
pub use table::{LAWS, NamedLaw, Setting, named};

use crate::Error;
use crate::denoiser::{Condition, Denoiser, Estimate, LevelInputs};
use crate::level::Level;
use clearshot_graph::{Builder, Type, Value};
use clearshot_physics::{Electrons, Forward, Map, MapValues, MeasuredValues, PhysicsError};
use clearshot_tensor::{Shape, Tensor};
use std::sync::Arc;

/// The first part of the names of a guide's inputs and outputs, unless [`Guide::named`] gives it another.
pub const NAME: &str = "guide";

/// The last parts of the names of what [`Guide::with_diagnostics`] adds: the mean squared residual over its variance
/// before the correction, the root mean square of the gradient that the law takes, that of the correction, and the share of
/// the correction that clipping left.
pub const DIAGNOSTICS: [&str; 4] = ["chi2", "gradient", "moved", "kept"];

/// A measurement of one image and channel, in electrons. Pixels that are not valid may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    pub y: Electrons<&'a [f64]>,
    pub valid: Option<&'a [bool]>,
}

/// A measurement's physics and how it is weighed.
#[derive(Clone, Debug)]
pub struct Guide {
    forward: Forward,
    law: Law,
    gate: [f64; 2],
    clip: f64,
    diagnostics: bool,
    maps: bool,
    name: Arc<str>,
}

impl Guide {
    /// # Errors
    /// If the model or a number of the law is impossible.
    pub fn new(forward: Forward, law: Law) -> Result<Guide, Error> {
        forward.check()?;
        law.check()?;
        let (gate, clip, name) = ([0.0, f64::INFINITY], f64::INFINITY, NAME.into());
        Ok(Guide { forward, law, gate, clip, diagnostics: false, maps: false, name })
    }

    /// Guides only where the noise per signal lies between these.
    ///
    /// # Errors
    /// If the range is negative or falls.
    pub fn gated(self, gate: [f64; 2]) -> Result<Guide, Error> {
        if !(gate[0] >= 0.0 && gate[1] >= gate[0]) {
            let got = format!("{} to {}", gate[0], gate[1]);
            return Err(Error::Setting {
                what: "the guide's gate",
                got,
                must: "not negative and rising".into(),
            });
        }
        Ok(Guide { gate, ..self })
    }

    /// Shrinks a correction whose root mean square over its image is above this, normalised, to this size; its
    /// direction stays, and the images beside it have no part in it.
    ///
    /// # Errors
    /// If the limit is not above zero.
    pub fn clipped(self, clip: f64) -> Result<Guide, Error> {
        if clip.is_nan() || clip <= 0.0 {
            let (got, must) = (clip.to_string(), "above zero".into());
            return Err(Error::Setting { what: "the largest correction of a guide", got, must });
        }
        Ok(Guide { clip, ..self })
    }

    /// What the law multiplies by at a level, gate included: the gradient, its direction, or for the proximal law the
    /// measurement against the prior. None for the discrepancy law, which takes what its target needs.
    pub fn weight_at(&self, level: &Level) -> Option<f64> {
        let weight = match self.law {
            Law::Proximal(law) => Some(law.strength * law.variance(level)),
            Law::Covariance(law) => Some(law.weight(level)),
            Law::NormAdaptive(law) => Some(law.weight(level)),
            other => other.weight(level),
        };
        weight.map(|w| w * self.gate_at(level))
    }

    /// Calls its inputs and outputs by another name. Two guides of one denoiser, for two measurements of one
    /// image, need two.
    pub fn named(self, name: &str) -> Guide {
        Guide { name: name.into(), ..self }
    }

    /// The name of one of its inputs, outputs or numbers.
    fn called(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// Adds the outputs [`DIAGNOSTICS`] for a sampler's watch to read, a number for each image.
    pub fn with_diagnostics(self) -> Guide {
        Guide { diagnostics: true, ..self }
    }

    /// Whether it tells what its corrections are like. A law that is off makes none.
    pub fn has_diagnostics(&self) -> bool {
        self.diagnostics && !self.law.is_off()
    }

    /// Takes background and read noise as inputs ([`Guide::map_inputs`]), so that one graph serves tiles whose
    /// maps differ. Otherwise the model's maps are constants of the graph.
    pub fn with_maps(self) -> Guide {
        Guide { maps: true, ..self }
    }

    pub fn forward(&self) -> &Forward {
        &self.forward
    }

    pub fn law(&self) -> Law {
        self.law
    }

    /// A denoiser that knows the measurement.
    pub fn guides<D: Denoiser>(self, denoiser: D) -> Guided<D> {
        Guided { denoiser, guide: self }
    }

    /// A function of the level as it is inside the gate, zero outside.
    fn gate_at(&self, level: &Level) -> f64 {
        f64::from(u8::from((self.gate[0]..=self.gate[1]).contains(&level.ratio())))
    }

    /// The shape of y for batches of this shape.
    pub fn measured_shape(&self, batch: Shape) -> Shape {
        let mut sizes = vec![batch.first().copied().unwrap_or(1)];
        sizes.extend(self.forward.operator.range().iter());
        sizes.push(batch.channels());
        Shape::new(&sizes)
    }

    /// What the inputs of the measurement are set to for a batch of this shape: `guide.y` in electrons and
    /// `guide.valid`, 1 where it holds. One measurement for each image and channel, in that order.
    ///
    /// # Errors
    /// If there are not that many, sizes differ, or a valid pixel is not finite.
    pub fn inputs(&self, batch: Shape, planes: &[Measurement<'_>]) -> Result<[(String, Tensor); 2], Error> {
        let shape = self.measured_shape(batch);
        let (n, c) = (shape[0], shape.channels());
        let pixels = shape.len() / (n * c).max(1);
        if planes.len() != n * c {
            let (got, must) =
                (planes.len().to_string(), format!("{}, one for each image and channel", n * c));
            return Err(Error::Setting { what: "the number of measurements", got, must });
        }
        let (mut y, mut valid) = (vec![0.0; shape.len()], vec![0.0; shape.len()]);
        for (plane, Measurement { y: values, valid: mask }) in planes.iter().enumerate() {
            if values.0.len() != pixels {
                return Err(PhysicsError::Length {
                    what: "a measurement",
                    got: values.0.len(),
                    needed: pixels,
                }
                .into());
            }
            self.forward.measured(*values, *mask, None).check()?;
            for i in (0..pixels).filter(|&i| mask.is_none_or(|m| m[i])) {
                let at = (plane / c * pixels + i) * c + plane % c;
                (y[at], valid[at]) = (values.0[i] as f32, 1.0);
            }
        }
        let measured = [("y", y), ("valid", valid)];
        Ok(measured.map(|(part, values)| (self.called(part), Tensor::f32(shape, values))))
    }

    /// What the inputs of [`Guide::with_maps`] are set to for a batch of this shape, `guide.background` and
    /// `guide.read_variance`, from background and read noise of each image in electrons, the same for its
    /// channels.
    ///
    /// # Errors
    /// If there are not as many as images, a map has another size, or a value is negative or not finite.
    pub fn map_inputs(&self, batch: Shape, images: &[(&Map, &Map)]) -> Result<[(String, Tensor); 2], Error> {
        let shape = self.map_shape(batch);
        let pixels = shape.len() / shape[0].max(1);
        if images.len() != shape[0] {
            let (got, must) = (images.len().to_string(), format!("{}, one for each image", shape[0]));
            return Err(Error::Setting { what: "the number of maps", got, must });
        }
        let (mut background, mut variance) = (Vec::new(), Vec::new());
        for (light, noise) in images {
            let needed = "a finite number not below zero";
            light.check("background", pixels, |x| x >= 0.0, needed)?;
            noise.check("read noise", pixels, |x| x >= 0.0, needed)?;
            background.extend((0..pixels).map(|i| light.at(i) as f32));
            variance.extend((0..pixels).map(|i| noise.at(i).powi(2) as f32));
        }
        let maps = [("background", background), ("read_variance", variance)];
        Ok(maps.map(|(part, values)| (self.called(part), Tensor::f32(shape, values))))
    }

    fn map_shape(&self, batch: Shape) -> Shape {
        let shape = self.measured_shape(batch);
        shape.with(shape.rank() - 1, 1)
    }

    /// The inputs of a graph, which several estimates of it share.
    fn measured(&self, b: &mut Builder, batch: Shape) -> MeasuredValues {
        let mut input = |part: &str, shape: Shape| {
            let name = self.called(part);
            let known = b.graph().inputs().find(|(n, _)| *n == name).map(|(_, v)| v);
            known.unwrap_or_else(|| b.input(&name, Type::f32(shape)))
        };
        let shape = self.measured_shape(batch);
        let (y, valid) = (input("y", shape), input("valid", shape));
        let maps = self.maps.then(|| {
            let shape = self.map_shape(batch);
            let [background, read_variance] = ["background", "read_variance"].map(|part| input(part, shape));
            MapValues { background, read_variance }
        });
        MeasuredValues { y, valid: Some(valid), maps }
    }
}

/// A denoiser with a guide.
pub struct Guided<D> {
    denoiser: D,
    guide: Guide,
}

impl<D> Guided<D> {
    pub fn guide(&self) -> &Guide {
        &self.guide
    }
}

impl<D: Denoiser> Denoiser for Guided<D> {
    fn denoise(&self, b: &mut Builder, x: Value, level: &mut LevelInputs, given: &Condition) -> Estimate {
        let inner = self.denoiser.denoise(b, x, level, given);
        if self.guide.law.is_off() {
            return inner;
        }
        let outer = b.set_scope(&self.guide.name);
        let change = self.guide.correction(b, x, inner.x0, level);
        let x0 = b.add(inner.x0, change);
        let unclipped = if inner.unclipped == inner.x0 { x0 } else { b.add(inner.unclipped, change) };
        b.set_scope(&outer);
        Estimate { x0, unclipped, ..inner }
    }
}
