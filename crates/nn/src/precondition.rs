//! Preconditioning: from a raw network F to a denoiser D, as nodes around the network's.
//!
//! ```text
//! D(x; sigma) = c_skip x + c_out F(c_in x; c_noise)
//! ```
//!
//! where x = clean + sigma noise, and the four are functions of sigma: those of the variance-preserving and
//! the variance-exploding formulation of Song et al., of improved DDPM (Nichol and Dhariwal 2021), and of EDM, all as
//! EDM has them (Karras et al. 2022, table 1).

use crate::layers::per_sample;
use clearshot_graph::ops::{Binary, Unary};
use clearshot_graph::{Builder, Value};
use clearshot_tensor::Tensor;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Precondition {
    /// Variance preserving: the network predicts the noise and gets a time from 0 to `steps` - 1 on the
    /// schedule beta(t) = beta_min + beta_d t.
    Vp { beta_d: f64, beta_min: f64, steps: f64 },
    /// Variance exploding: the network predicts the noise with the other sign and gets ln(sigma / 2).
    Ve,
    /// Improved DDPM's cosine schedule: the network predicts the noise and gets the nearest of `steps` whole
    /// times. `c1` is the least share of the signal that a step keeps, `c2` the schedule's offset.
    Iddpm { c1: f64, c2: f64, steps: usize },
    /// What goes into the network and what it has to give have variance 1 at every level, where the data's
    /// standard deviation is `sigma_data`; it gets ln(sigma) / 4.
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

    /// With EDM's constants.
    pub const IDDPM: Precondition = Precondition::Iddpm { c1: 0.001, c2: 0.008, steps: 1000 };

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
            Precondition::Iddpm { c1, c2, steps } => {
                let one_more = b.add_scalar(squared, 1.0);
                // Levels fall with their number: the nearest one's is how many midpoints lie above sigma.
                let levels = iddpm_levels(c1, c2, steps);
                let middle = levels.windows(2).map(|w| (0.5 * (w[0] + w[1])) as f32).collect();
                let middle = b.constant(Tensor::f32([1, steps], middle));
                let n = b.shape(sigma)[0];
                let column = b.reshape(sigma, [n, 1]);
                let above = b.binary(Binary::Greater, middle, column);
                let index = b.sum(above, &[1]);
                let index = b.reshape(index, [n]);
                let back = b.unary(Unary::Neg, index);
                let noise = b.add_scalar(back, steps as f64 - 1.0);
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
    /// its time input, `[N]`. The image is `[N, .., C]`, sigma `[N]`.
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

/// The noise levels of improved DDPM, from the highest down to 0: `steps` + 1 of them.
pub fn iddpm_levels(c1: f64, c2: f64, steps: usize) -> Vec<f64> {
    let product =
        |j: usize| (0.5 * std::f64::consts::PI * j as f64 / steps as f64 / (c2 + 1.0)).sin().powi(2);
    let mut levels = vec![0.0f64; steps + 1];
    for j in (1..=steps).rev() {
        let kept = (product(j - 1) / product(j)).max(c1);
        levels[j - 1] = ((levels[j].powi(2) + 1.0) / kept - 1.0).sqrt();
    }
    levels
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

    const ALL: [Precondition; 4] =
        [Precondition::VP, Precondition::Ve, Precondition::Edm { sigma_data: 0.5 }, Precondition::IDDPM];

    /// c_skip, c_out, c_in and c_noise at a level.
    fn at(p: Precondition, sigma: f64) -> [f64; 4] {
        let mut b = Builder::new();
        let level = b.input("sigma", Type::f32([1]));
        let c = p.coefficients(&mut b, level);
        let one = |b: &mut Builder, v: Option<Value>| v.unwrap_or_else(|| b.constant(Tensor::full([1], 1.0)));
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

    /// Levels and times of EDM's recurrence and of its search for the nearest level, computed by PyTorch in f64.
    #[test]
    fn improved_ddpm_has_whole_times() {
        let levels = iddpm_levels(0.001, 0.008, 1000);
        let known = [
            (0, 20291.16961002147),
            (1, 641.6623451182552),
            (10, 64.1610911404052),
            (500, 1.0123895639480036),
            (998, 0.009350492835615898),
            (999, 0.006425412771141183),
            (1000, 0.0),
        ];
        for (j, level) in known {
            assert!((levels[j] - level).abs() <= 1e-9 * level, "level {j}: {} {level}", levels[j]);
        }
        let times = [
            (0.002, -1.0),
            (0.01, 1.0),
            (0.3, 178.0),
            (1.0, 495.0),
            (2.0, 701.0),
            (7.0, 908.0),
            (80.0, 991.0),
            (1e4, 998.0),
        ];
        for (sigma, time) in times {
            let [skip, out, input, noise] = at(Precondition::IDDPM, sigma);
            assert_eq!((skip, out, noise), (1.0, -sigma, time), "{sigma}");
            assert!((input - 1.0 / sigma.hypot(1.0)).abs() < 1e-12);
        }
        // At a level of the schedule the time is that level's.
        for j in [0, 3, 400, 999] {
            assert_eq!(at(Precondition::IDDPM, levels[j])[3], 999.0 - j as f64);
        }
    }

    /// sigma(t) of the variance-preserving schedule, at the network's time input, is sigma again.
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
