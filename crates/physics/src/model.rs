//! The complete forward model: from normalised images to camera measurements, and their likelihood.
//!
//! `mean = exposure * A(electrons of x) + background`, in electrons, with x normalised; the measurement is
//! Poisson noise of that mean plus read noise. The electrons of x are those of the reference exposure of [`Scale`];
//! `exposure` is the ratio of the measurement's light to it.

use crate::correlation::Correlation;
use crate::error::{NOT_BELOW_ZERO, PhysicsError, require_length, require_positive};
use crate::likelihood::{Likelihood, Measured, not_below};
use crate::map::Map;
use crate::noise::{Window, poisson_gaussian};
use crate::operator::{Operator, Whitening};
use crate::units::{Electrons, Normalised, Scale};
use clearshot_graph::grad::{GradError, grad};
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};

/// See the module.
#[derive(Clone, Debug)]
pub struct Forward {
    pub operator: Operator,
    pub scale: Scale,
    /// The exposure of the measurement relative to the reference exposure.
    pub exposure: f64,
    /// Electrons that do not come from the image (dark current, stray light), in the operator's range.
    pub background: Map,
    /// Standard deviation of the read noise in electrons, in the operator's range.
    pub read_noise: Map,
    /// The correlation of the noise between neighbouring pixels of the operator's range.
    pub correlation: Correlation,
    pub likelihood: Likelihood,
}

/// The measurement as values of a graph.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredValues {
    /// Electrons, `[N, (Z,) Y, X, C]` of the operator's range; finite everywhere.
    pub y: Value,
    /// 1 where a pixel is valid and 0 elsewhere; broadcasts to y.
    pub valid: Option<Value>,
    /// Maps that replace those of the model, which are constants of the graph; for tiles of a larger image.
    pub maps: Option<MapValues>,
}

/// Maps as values of a graph.
#[derive(Clone, Copy, Debug)]
pub struct MapValues {
    /// Electrons; broadcasts to y.
    pub background: Value,
    /// Electrons squared; broadcasts to y.
    pub read_variance: Value,
}

impl MeasuredValues {
    /// A measurement with the maps of the model.
    pub fn new(y: Value, valid: Option<Value>) -> MeasuredValues {
        MeasuredValues { y, valid, maps: None }
    }
}

/// The likelihood of a measurement, as values of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The mean of the measurement, in electrons.
    pub mean: Value,
    /// d(-ln p)/d(mean) with the covariance of the noise, zero at invalid pixels.
    pub slope: Value,
    /// The Fisher information of each pixel about its mean, without correlation, zero at invalid pixels.
    pub information: Value,
    /// The slope of each pixel, without correlation, divided by the square root of its information, zero at invalid
    /// pixels. Its variance is 1.
    pub score: Value,
}

/// Keeps quotients of invalid pixels finite, where both are zero.
const TINY: f64 = 1e-30;

impl Forward {
    /// # Errors
    /// If a map does not have the size of the operator's range or a number is impossible.
    pub fn check(&self) -> Result<(), PhysicsError> {
        let pixels = self.operator.range().len();
        require_positive("exposure", self.exposure)?;
        Scale::new(Electrons(self.scale.at_zero), Electrons(self.scale.per_unit))?;
        self.background.check("background", pixels, |x| x >= 0.0, NOT_BELOW_ZERO)?;
        let needed = match self.likelihood {
            Likelihood::Gaussian => "a finite number above zero (the Gaussian likelihood has no other noise)",
            _ => NOT_BELOW_ZERO,
        };
        let least = |x: f64| if self.likelihood == Likelihood::Gaussian { x > 0.0 } else { x >= 0.0 };
        self.read_noise.check("read noise", pixels, least, needed)
    }

    /// d(mean)/d(x) is this times the operator.
    pub fn sensitivity(&self) -> f64 {
        self.exposure * self.scale.per_unit
    }

    /// # Errors
    /// If the image is not in the operator's domain, or the model is invalid.
    pub fn mean(&self, x: Normalised<&[f64]>) -> Result<Electrons<Vec<f64>>, PhysicsError> {
        self.check()?;
        require_length("the image", x.0.len(), self.operator.domain().len())?;
        let light: Vec<f64> = x.0.iter().map(|&v| self.scale.to_electrons(Normalised(v)).0).collect();
        let mut mean = self.operator.apply(&light)?;
        mean.iter_mut().enumerate().for_each(|(i, m)| *m = self.exposure * *m + self.background.at(i));
        Ok(Electrons(mean))
    }

    /// A simulated measurement of x, with noise that depends on (key, absolute voxel). Negative means count as zero.
    ///
    /// # Errors
    /// If sizes differ, or the model is impossible.
    pub fn measure(
        &self,
        x: Normalised<&[f64]>,
        window: &Window,
        key: Key,
    ) -> Result<Electrons<Vec<f64>>, PhysicsError> {
        let Electrons(mut mean) = self.mean(x)?;
        mean.iter_mut().for_each(|m| *m = not_below(*m, 0.0));
        poisson_gaussian(Electrons(&mean), &self.read_noise, window, key)
    }

    /// The whitening of the noise; `None` for white noise.
    pub fn whitening(&self) -> Option<Whitening> {
        Whitening::new(&self.correlation, self.operator.range())
    }

    /// A measurement with the noise of this model.
    pub fn measured<'a>(
        &'a self,
        y: Electrons<&'a [f64]>,
        valid: Option<&'a [bool]>,
        whitening: Option<&'a Whitening>,
    ) -> Measured<'a> {
        Measured { y, read_noise: &self.read_noise, valid, whitening }
    }

    /// The negative logarithm of the likelihood of x.
    ///
    /// # Errors
    /// If sizes differ, a valid pixel is not finite, or the model is impossible.
    pub fn value(
        &self,
        x: Normalised<&[f64]>,
        y: Electrons<&[f64]>,
        valid: Option<&[bool]>,
    ) -> Result<f64, PhysicsError> {
        let mean = self.mean(x)?;
        self.measured(y, valid, self.whitening().as_ref()).value(self.likelihood, Electrons(&mean.0))
    }

    /// Its gradient in x.
    ///
    /// # Errors
    /// If sizes differ, a valid pixel is not finite, or the model is impossible.
    pub fn gradient(
        &self,
        x: Normalised<&[f64]>,
        y: Electrons<&[f64]>,
        valid: Option<&[bool]>,
    ) -> Result<Vec<f64>, PhysicsError> {
        let mean = self.mean(x)?;
        let whitening = self.whitening();
        let measured = self.measured(y, valid, whitening.as_ref());
        let slopes = measured.slopes(self.likelihood, Electrons(&mean.0))?;
        let back = self.operator.adjoint(&slopes)?;
        Ok(back.into_iter().map(|g| g * self.sensitivity()).collect())
    }

    /// The mean squared residual divided by its variance: 1 for the truth.
    ///
    /// # Errors
    /// If sizes differ, a valid pixel is not finite, or the model is impossible.
    pub fn chi2(
        &self,
        x: Normalised<&[f64]>,
        y: Electrons<&[f64]>,
        valid: Option<&[bool]>,
    ) -> Result<Option<f64>, PhysicsError> {
        let mean = self.mean(x)?;
        self.measured(y, valid, None).chi2(Electrons(&mean.0))
    }

    /// Adds the mean of a normalised image `[N, (Z,) Y, X, C]` to a graph.
    #[track_caller]
    pub fn build_mean(&self, b: &mut Builder, x: Value) -> Value {
        self.build_mean_over(b, x, None)
    }

    #[track_caller]
    fn build_mean_over(&self, b: &mut Builder, x: Value, background: Option<Value>) -> Value {
        let scaled = b.mul_scalar(x, self.sensitivity());
        let light = b.add_scalar(scaled, self.exposure * self.scale.at_zero);
        let mean = self.operator.build(b, light);
        if let Some(background) = background {
            return b.add(mean, background);
        }
        match &self.background {
            Map::Uniform(0.0) => mean,
            Map::Uniform(level) => b.add_scalar(mean, *level),
            map => {
                let map = self.constant(b, map);
                b.add(mean, map)
            }
        }
    }

    /// Adds the likelihood terms of x, in electrons.
    #[track_caller]
    pub fn build_evidence(&self, b: &mut Builder, x: Value, measured: MeasuredValues) -> Evidence {
        let mean = self.build_mean_over(b, x, measured.maps.map(|m| m.background));
        let variance = match measured.maps {
            Some(maps) => maps.read_variance,
            None => self.constant(b, &self.read_noise.map(|s| s * s)),
        };
        let slope = self.likelihood.build_slope(b, measured.y, mean, variance);
        let information = self.likelihood.build_information(b, measured.y, mean, variance);
        let masked = |b: &mut Builder, v: Value| match measured.valid {
            Some(valid) => b.mul(v, valid),
            None => v,
        };
        let (slope, information) = (masked(b, slope), masked(b, information));
        let root = b.unary(Unary::Sqrt, information);
        let above_zero = b.add_scalar(root, TINY);
        let score = b.div(slope, above_zero);
        let slope = match self.whitening() {
            Some(whitening) => {
                let shared = whitening.build_twice(b, score);
                b.mul(shared, root)
            }
            None => slope,
        };
        Evidence { mean, slope, information, score }
    }

    /// Adds the product of the measurement's precision with a change of its mean: the information F for independent
    /// pixels, or sqrt(F) R^-1 sqrt(F) for correlated noise.
    #[track_caller]
    pub fn build_precision(&self, b: &mut Builder, information: Value, change: Value) -> Value {
        let Some(whitening) = self.whitening() else { return b.mul(change, information) };
        let root = b.unary(Unary::Sqrt, information);
        let seen = b.mul(change, root);
        let shared = whitening.build_twice(b, seen);
        b.mul(shared, root)
    }

    /// Adds the gradient in x of the negative log-likelihood.
    ///
    /// # Errors
    /// If x does not fit the operator.
    #[track_caller]
    pub fn build_gradient(
        &self,
        b: &mut Builder,
        x: Value,
        measured: MeasuredValues,
    ) -> Result<Value, GradError> {
        let evidence = self.build_evidence(b, x, measured);
        Ok(grad(b, evidence.mean, Some(evidence.slope), &[x])?[0])
    }

    /// A map as a constant that broadcasts to images of the operator's range.
    #[track_caller]
    fn constant(&self, b: &mut Builder, map: &Map) -> Value {
        match map {
            Map::Uniform(x) => b.scalar(*x as f32),
            Map::Pixels(x) => {
                let mut sizes = self.operator.range().to_vec();
                sizes.push(1);
                b.constant(Tensor::f32(Shape::new(&sizes), x.iter().map(|&v| v as f32).collect()))
            }
        }
    }
}
