//! The same corrections in plain f64 on the host, for oracles and as the reference for the graph's.
//!
//! For a single image with one channel. [`Law::Through`] needs the derivative of the denoiser, which the caller provides.

use super::{Covariance, Discrepancy, Guide, Law, Measurement, Proximal};
use crate::Error;
use crate::level::Level;
use clearshot_physics::{Electrons, Likelihood, Normalised, PhysicsError, Whitening};

/// The likelihood of the measurement at a point.
struct Evidence {
    mean: Vec<f64>,
    slope: Vec<f64>,
    information: Vec<f64>,
    score: Vec<f64>,
    whitening: Option<Whitening>,
}

impl Evidence {
    /// The measurement's precision times a change of its mean.
    fn precise(&self, change: &[f64]) -> Vec<f64> {
        let known = |x: &[f64], f: fn(f64) -> f64| -> Vec<f64> {
            x.iter().zip(&self.information).map(|(x, i)| x * f(*i)).collect()
        };
        match &self.whitening {
            Some(whitening) => known(&whitening.apply_twice(&known(change, f64::sqrt)), f64::sqrt),
            None => known(change, |i| i),
        }
    }

    /// A direction of the measurement's space with white noise.
    fn whitened(&self, w: &[f64]) -> Vec<f64> {
        self.whitening.as_ref().map_or_else(|| w.to_vec(), |whitening| whitening.apply(w))
    }
}

impl Guide {
    /// What is added to the estimate `x0` at a level. `back` multiplies by the transposed derivative of the
    /// denoiser, dx0/dx; only [`Law::Through`] and [`Law::Covariance`] ask for it.
    ///
    /// # Errors
    /// If sizes differ, or a valid pixel is not finite.
    pub fn correction_on_host(
        &self,
        x0: &[f64],
        level: &Level,
        measurement: &Measurement<'_>,
        back: impl Fn(&[f64]) -> Vec<f64>,
    ) -> Result<Vec<f64>, Error> {
        if self.law.is_off() || self.gate_at(level) == 0.0 {
            return Ok(vec![0.0; x0.len()]);
        }
        let gradient = || self.forward.gradient(Normalised(x0), measurement.y, measurement.valid);
        let change = match self.law {
            Law::Proximal(law) => self.proximal(&law, x0, level, measurement)?,
            Law::Covariance(law) => self.covariance(&law, x0, level, measurement, back)?,
            Law::Discrepancy(law) => self.down_to_target(&law, x0, measurement)?,
            Law::NormAdaptive(law) => {
                let g = gradient()?;
                let size = (dot(&g, &g) / g.len() as f64).sqrt() + law.eps;
                scaled(&g, -law.weight(level) / size)
            }
            Law::Through { .. } => scaled(&back(&gradient()?), -self.law.weight(level).unwrap_or(0.0)),
            Law::SigmaSquared { .. } | Law::Sigma { .. } | Law::Constant { .. } => {
                scaled(&gradient()?, -self.law.weight(level).unwrap_or(0.0))
            }
        };
        let size = (dot(&change, &change) / change.len().max(1) as f64).sqrt();
        Ok(if size > self.clip { scaled(&change, self.clip / size) } else { change })
    }

    fn evidence(&self, z: &[f64], m: &Measurement<'_>) -> Result<Evidence, PhysicsError> {
        let Electrons(mean) = self.forward.mean(Normalised(z))?;
        let whitening = self.forward.whitening();
        let measured = self.forward.measured(m.y, m.valid, whitening.as_ref());
        let likelihood: Likelihood = self.forward.likelihood;
        let slope = measured.slopes(likelihood, Electrons(&mean))?;
        let one = |i: usize| match m.valid.is_none_or(|v| v[i]) {
            true => likelihood.information(m.y.0[i], mean[i], self.forward.read_noise.at(i).powi(2)),
            false => 0.0,
        };
        let information = (0..mean.len()).map(one).collect();
        let score = measured.scores(likelihood, Electrons(&mean));
        Ok(Evidence { mean, slope, information, score, whitening })
    }

    fn proximal(
        &self,
        law: &Proximal,
        x0: &[f64],
        level: &Level,
        m: &Measurement<'_>,
    ) -> Result<Vec<f64>, Error> {
        let weight = law.strength * law.variance(level);
        let s = self.forward.sensitivity();
        let operator = &self.forward.operator;
        let passes = if self.forward.likelihood.is_quadratic() { 1 } else { law.passes };
        let mut change = vec![0.0; x0.len()];
        for _ in 0..passes {
            let z = sum(x0, &change, 1.0);
            let evidence = self.evidence(&z, m)?;
            let back = operator.adjoint(&evidence.slope)?;
            let target: Vec<f64> = back.iter().zip(&change).map(|(g, c)| -weight * s * g - c).collect();
            let apply = |p: &[f64]| -> Result<Vec<f64>, PhysicsError> {
                let known = evidence.precise(&operator.apply(p)?);
                Ok(sum(p, &operator.adjoint(&known)?, weight * s * s))
            };
            let step = if operator.is_diagonal() && evidence.whitening.is_none() {
                let ones = apply(&vec![1.0; x0.len()])?;
                target.iter().zip(ones).map(|(t, d)| t / d).collect()
            } else {
                let smeared = operator.adjoint(&evidence.information)?;
                let own = weight * s * s * evidence.whitening.as_ref().map_or(1.0, Whitening::precision);
                let divisor: Vec<f64> = smeared.iter().map(|f| 1.0 + own * f).collect();
                conjugate_gradients(&target, &divisor, law.iterations, apply)?
            };
            change = sum(&change, &step, 1.0);
        }
        Ok(change)
    }

    fn covariance(
        &self,
        law: &Covariance,
        x0: &[f64],
        level: &Level,
        m: &Measurement<'_>,
        back: impl Fn(&[f64]) -> Vec<f64>,
    ) -> Result<Vec<f64>, Error> {
        let (s, operator) = (self.forward.sensitivity(), &self.forward.operator);
        let evidence = self.evidence(x0, m)?;
        let root: Vec<f64> = evidence.information.iter().map(|f| f.sqrt()).collect();
        let weighted =
            |x: &[f64], c: f64| -> Vec<f64> { x.iter().zip(&root).map(|(x, r)| c * x * r).collect() };
        let moved = |w: &[f64]| -> Result<Vec<f64>, PhysicsError> {
            let own = weighted(&evidence.whitened(w), s);
            Ok(back(&scaled(&operator.adjoint(&own)?, law.weight(level))))
        };
        let apply =
            |w: &[f64]| Ok(sum(w, &evidence.whitened(&weighted(&operator.apply(&moved(w)?)?, s)), 1.0));
        let target = scaled(&evidence.whitened(&evidence.score), -1.0);
        let guess = s * s * law.first_guess(level);
        let divisor: Vec<f64> = evidence.information.iter().map(|f| 1.0 + guess * f).collect();
        Ok(moved(&conjugate_gradients(&target, &divisor, law.iterations, apply)?)?)
    }

    fn down_to_target(&self, law: &Discrepancy, x0: &[f64], m: &Measurement<'_>) -> Result<Vec<f64>, Error> {
        let s = self.forward.sensitivity();
        let mut z = x0.to_vec();
        for _ in 0..law.steps {
            let evidence = self.evidence(&z, m)?;
            let down = scaled(&self.forward.operator.adjoint(&evidence.slope)?, -s);
            let moved = scaled(&self.forward.operator.apply(&down)?, s);
            let valid = |i: usize| m.valid.is_none_or(|v| v[i]);
            let residual: Vec<f64> = (0..evidence.mean.len())
                .map(|i| if valid(i) { m.y.0[i] - evidence.mean[i] } else { 0.0 })
                .collect();
            let count = (0..residual.len()).filter(|&i| valid(i)).count().max(1) as f64;
            let mean_of = |p: &[f64], q: &[f64]| {
                (0..p.len()).map(|i| p[i] * q[i] * evidence.information[i]).sum::<f64>() / count
            };
            let (c0, c1, c2) =
                (mean_of(&residual, &residual), mean_of(&residual, &moved), mean_of(&moved, &moved));
            let above = (c0 - law.target).max(0.0);
            let t = above / (c1 + (c1 * c1 - c2 * above).max(0.0).sqrt() + super::correct::TINY);
            z = sum(&z, &down, t.min(c1 / (c2 + super::correct::TINY)));
        }
        Ok(sum(&z, x0, -1.0))
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn scaled(a: &[f64], c: f64) -> Vec<f64> {
    a.iter().map(|x| c * x).collect()
}

/// a + c b.
fn sum(a: &[f64], b: &[f64], c: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(x, y)| x + c * y).collect()
}

/// Solves `apply(d) = target`, which `divisor` resembles.
fn conjugate_gradients(
    target: &[f64],
    divisor: &[f64],
    iterations: usize,
    apply: impl Fn(&[f64]) -> Result<Vec<f64>, PhysicsError>,
) -> Result<Vec<f64>, PhysicsError> {
    let divided = |r: &[f64]| -> Vec<f64> { r.iter().zip(divisor).map(|(r, d)| r / d).collect() };
    let mut residual = target.to_vec();
    let mut direction = divided(&residual);
    let mut solution = vec![0.0; target.len()];
    let mut size = dot(&residual, &direction);
    for _ in 0..iterations {
        if size == 0.0 {
            break;
        }
        let image = apply(&direction)?;
        let length = size / dot(&direction, &image);
        solution = sum(&solution, &direction, length);
        residual = sum(&residual, &image, -length);
        let near = divided(&residual);
        let next = dot(&residual, &near);
        direction = sum(&near, &direction, next / size);
        size = next;
    }
    Ok(solution)
}
