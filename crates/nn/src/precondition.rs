//! Preconditioning: from a raw network F to a denoiser D, as nodes around the network's.
//!
//! ```text
//! D(x; sigma) = c_skip x + c_out F(c_in x; c_noise)
//! ```
//!
//! where x = clean + sigma noise, and the four are functions of sigma: those of the variance-preserving and
//! the variance-exploding formulation of Song et al., and of EDM (Karras et al. 2022, table 1).

use crate::layers::per_sample;
use clearshot_graph::ops::Unary;
use clearshot_graph::{Builder, Value};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Precondition {
    /// Variance preserving: the network predicts the noise and is told a time from 0 to `steps` - 1 on the
    /// schedule beta(t) = beta_min + beta_d t.
    Vp { beta_d: f64, beta_min: f64, steps: f64 },
    /// Variance exploding: the network predicts the noise with the other sign and is told ln(sigma / 2).
    Ve,
    /// What goes into the network and what it has to give have variance 1 at every level, where the data's
    /// standard deviation is `sigma_data`; it is told ln(sigma) / 4.
    Edm { sigma_data: f64 },
}

/// What a level means, each `[N]`; none stands for 1.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients {
    pub skip: Option<Value>,
    pub out: Value,
    pub input: Option<Value>,
    pub noise: Value,
}

impl Precondition {
    /// With the constants of Song et al.
    pub const VP: Precondition = Precondition::Vp { beta_d: 19.9, beta_min: 0.1, steps: 1000.0 };

    /// The four functions of sigma `[N]`.
    pub fn coefficients(&self, b: &mut Builder, sigma: Value) -> Coefficients {
        let squared = b.unary(Unary::Square, sigma);
        let rsqrt = |b: &mut Builder, x: Value| {
            let root = b.unary(Unary::Sqrt, x);
            b.unary(Unary::Recip, root)
        };
        match *self {
            Precondition::Vp { beta_d, beta_min, steps } => {
                let one_more = b.add_scalar(squared, 1.0);
                let log = b.unary(Unary::Log, one_more);
                let under = b.mul_scalar(log, 2.0 * beta_d);
                let under = b.add_scalar(under, beta_min * beta_min);
                let root = b.unary(Unary::Sqrt, under);
                let above = b.add_scalar(root, -beta_min);
                let noise = b.mul_scalar(above, (steps - 1.0) / beta_d);
                let out = b.unary(Unary::Neg, sigma);
                Coefficients { skip: None, out, input: Some(rsqrt(b, one_more)), noise }
            }
            Precondition::Ve => {
                let half = b.mul_scalar(sigma, 0.5);
                let noise = b.unary(Unary::Log, half);
                Coefficients { skip: None, out: sigma, input: None, noise }
            }
            Precondition::Edm { sigma_data } => {
                let variance = b.add_scalar(squared, sigma_data * sigma_data);
                let input = rsqrt(b, variance);
                let precision = b.unary(Unary::Recip, variance);
                let skip = b.mul_scalar(precision, sigma_data * sigma_data);
                let scaled = b.mul_scalar(sigma, sigma_data);
                let out = b.mul(scaled, input);
                let log = b.unary(Unary::Log, sigma);
                let noise = b.mul_scalar(log, 0.25);
                Coefficients { skip: Some(skip), out, input: Some(input), noise }
            }
        }
    }

    /// The denoiser of the network that `network` adds, which is called with the builder, the scaled image and
    /// what it is told of the level, `[N]`. The image is `[N, .., C]`, sigma `[N]`.
    pub fn wrap(
        &self,
        b: &mut Builder,
        x: Value,
        sigma: Value,
        network: impl FnOnce(&mut Builder, Value, Value) -> Value,
    ) -> Value {
        let c = self.coefficients(b, sigma);
        let input = c.network_input(b, x);
        let raw = network(b, input, c.noise);
        c.denoised(b, x, raw)
    }
}

impl Coefficients {
    /// c_in x.
    pub fn network_input(&self, b: &mut Builder, x: Value) -> Value {
        scaled(b, self.input, x)
    }

    /// c_skip x + c_out F.
    pub fn denoised(&self, b: &mut Builder, x: Value, raw: Value) -> Value {
        let raw = scaled(b, Some(self.out), raw);
        let kept = scaled(b, self.skip, x);
        b.add(kept, raw)
    }
}

fn scaled(b: &mut Builder, factor: Option<Value>, x: Value) -> Value {
    match factor {
        None => x,
        Some(factor) => {
            let factor = per_sample(b, factor, x);
            b.mul(factor, x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_graph::reference::{Precision, run};
    use clearshot_graph::{Array, Type};
    use std::collections::BTreeMap;

    const ALL: [Precondition; 3] =
        [Precondition::VP, Precondition::Ve, Precondition::Edm { sigma_data: 0.5 }];

    /// c_skip, c_out, c_in and c_noise at a level.
    fn at(p: Precondition, sigma: f64) -> [f64; 4] {
        let mut b = Builder::new();
        let level = b.input("sigma", Type::f32([1]));
        let c = p.coefficients(&mut b, level);
        let one = |b: &mut Builder, v: Option<Value>| {
            v.unwrap_or_else(|| b.constant(clearshot_tensor::Tensor::full([1], 1.0)))
        };
        let (skip, input) = (one(&mut b, c.skip), one(&mut b, c.input));
        for (name, v) in [("skip", skip), ("out", c.out), ("in", input), ("noise", c.noise)] {
            b.output(name, v);
        }
        let mut values = BTreeMap::from([("sigma".to_string(), Array::new([1], vec![sigma]))]);
        let outs = run(&b.finish().unwrap(), &mut values, Precision::F64).unwrap();
        ["skip", "out", "in", "noise"].map(|name| outs[name].data[0])
    }

    /// Table 1 of Karras et al., worked out by hand at sigma = 2.
    #[test]
    fn coefficients_are_those_of_the_table() {
        let close = |got: [f64; 4], want: [f64; 4]| {
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() < 1e-12 * w.abs().max(1.0), "{got:?} {want:?}");
            }
        };
        let t = ((0.01 + 2.0 * 19.9 * 5f64.ln()).sqrt() - 0.1) / 19.9;
        close(at(Precondition::VP, 2.0), [1.0, -2.0, 0.2f64.sqrt(), 999.0 * t]);
        close(at(Precondition::Ve, 2.0), [1.0, 2.0, 1.0, 0.0]);
        let v = 4.25f64;
        close(at(ALL[2], 2.0), [0.25 / v, 1.0 / v.sqrt(), 1.0 / v.sqrt(), 2f64.ln() / 4.0]);
    }

    /// sigma(t) of the variance-preserving schedule, at the time that the network is told, is sigma again.
    #[test]
    fn the_time_of_vp_inverts_its_schedule() {
        for sigma in [1e-2, 0.3, 1.0, 7.0, 80.0] {
            let t = at(Precondition::VP, sigma)[3] / 999.0;
            let back = ((0.5 * 19.9 * t * t + 0.1 * t).exp() - 1.0).sqrt();
            assert!((back / sigma - 1.0).abs() < 1e-9, "{sigma} {back}");
        }
    }

    /// Without noise there is nothing to remove, whatever the network says.
    #[test]
    fn no_noise_gives_the_image_back() {
        for p in ALL {
            let mut b = Builder::new();
            let x = b.input("x", Type::f32([2, 3, 4, 1]));
            let sigma = b.input("sigma", Type::f32([2]));
            let y = p.wrap(&mut b, x, sigma, |b, x, _| b.mul_scalar(x, 3.0));
            b.output("y", y);
            let image = Array::from_fn([2, 3, 4, 1], |i| i[1] as f64 - 0.3 * i[2] as f64);
            let level = Array::new([2], vec![1e-12, 1e-12]);
            let mut values = BTreeMap::from([("x".to_string(), image.clone()), ("sigma".into(), level)]);
            let y = &run(&b.finish().unwrap(), &mut values, Precision::F64).unwrap()["y"];
            assert!(y.data.iter().zip(&image.data).all(|(a, b)| (a - b).abs() < 1e-9), "{p:?}");
        }
    }
}
