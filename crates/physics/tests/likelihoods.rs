//! Likelihoods against finite differences, brute force, their limits and their graphs.

use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Type};
use clearshot_physics::likelihood::FLOOR;
use clearshot_physics::poisson::log_pmf;
use clearshot_physics::{
    Boundary, Correlation, Electrons, Forward, Likelihood, Map, Measured, MeasuredValues, Normalised,
    Operator, Pooling, Psf, Scale, Whitening,
};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{DType, Shape, Tensor};
use std::collections::BTreeMap;

/// Measurements, means and read variances, usual and unusual.
fn points() -> Vec<(f64, f64, f64)> {
    let mut all = Vec::new();
    for mean in [-3.0, 1e-5, 0.02, 0.9, 5.0, 47.3, 300.0, 2e4] {
        for offset in [-6.0, -1.0, 0.0, 0.7, 4.0] {
            for variance in [0.09, 1.0, 9.0, 400.0] {
                let y: f64 = mean + offset * f64::max(mean + variance, 0.1).sqrt();
                all.push((y, mean, variance));
            }
        }
    }
    // Outliers, where a sum with a fixed number of terms fails.
    all.extend([
        (120.0, 50.0, 1.0),
        (3000.0, 2.0, 1.0),
        (-40.0, 30.0, 0.25),
        (1e6, 10.0, 4.0),
        (310.0, 300.0, 1.0),
    ]);
    all
}

#[test]
fn slopes_are_derivatives() {
    for likelihood in Likelihood::ALL {
        for (y, m, v) in points() {
            let value = |m: f64| likelihood.value(y, m, v);
            // Sixth-order central differences: exact to rounding with a step of a hundredth of the scale.
            let h = 0.01 * if m > 0.01 { f64::min(m, (m + v).sqrt()) } else { f64::max(m.abs(), 1e-5) };
            let d = |k: f64| value(m + k * h) - value(m - k * h);
            let numeric = (45.0 * d(1.0) - 9.0 * d(2.0) + d(3.0)) / (60.0 * h);
            let slope = likelihood.slope(y, m, v);
            // What rounding of the value leaves, plus the difference's own error.
            let rounding = 4.0 * f64::EPSILON * value(m).abs() / h;
            let scale = slope.abs().max(likelihood.information(y, m, v).sqrt());
            assert!(
                (slope - numeric).abs() < 1e-6 * scale + rounding,
                "{likelihood:?} at y {y} m {m} v {v}: {slope} {numeric}"
            );
        }
    }
}

#[test]
fn a_small_step_down_the_slope_lowers_the_value() {
    for likelihood in Likelihood::ALL {
        for (y, m, v) in points() {
            let slope = likelihood.slope(y, m, v);
            let step = 1e-4
                * f64::min(
                    1.0 / likelihood.information(y, m, v),
                    if m > 0.0 { m } else { 1e-3 } / slope.abs(),
                );
            let (before, after) = (likelihood.value(y, m, v), likelihood.value(y, m - step * slope, v));
            let gain = step * slope * slope;
            assert!(
                before - after > 0.4 * gain - 1e-13 * before.abs().max(1e-9),
                "{likelihood:?} {y} {m} {v}: {before} {after}"
            );
        }
    }
}

/// The information is the variance of the slope at the truth, and the slope's mean there is zero.
#[test]
fn information_is_the_slopes_variance() {
    for (mean, variance) in [(6.0, 1.0), (40.0, 4.0)] {
        for likelihood in [Likelihood::Poisson, Likelihood::ShiftedPoisson, Likelihood::PoissonGaussian] {
            let sigma: f64 = if likelihood == Likelihood::Poisson { 0.0 } else { f64::sqrt(variance) };
            let (mut first, mut second) = (0.0, 0.0);
            for k in 0..160 {
                let p = log_pmf(f64::from(k), mean).exp();
                // 41 points of the read noise's law.
                let nodes: Vec<(f64, f64)> = (-20..=20)
                    .map(|j| (f64::from(j) * 0.3, (-0.5 * (f64::from(j) * 0.3f64).powi(2)).exp()))
                    .collect();
                let total: f64 = nodes.iter().map(|n| n.1).sum();
                for (z, w) in nodes {
                    let slope = likelihood.slope(f64::from(k) + sigma * z, mean, sigma * sigma);
                    first += p * w / total * slope;
                    second += p * w / total * slope * slope;
                }
            }
            let information = likelihood.information(mean, mean, sigma * sigma);
            // Shifted Poisson cuts off below -v, Poisson-Gaussian's information is exact to 1/m of it.
            assert!(first.abs() < 2e-3 * information.sqrt(), "{likelihood:?}: {first}");
            let allowed = if likelihood == Likelihood::PoissonGaussian { 1.0 / mean } else { 2e-3 };
            assert!((second / information - 1.0).abs() < allowed, "{likelihood:?}: {second} {information}");
        }
    }
}

/// The sum written down, over all counts that matter.
fn brute(y: f64, mean: f64, variance: f64) -> (f64, f64) {
    let last = (mean.max(y) + 60.0 * (mean.sqrt() + variance.sqrt()) + 200.0) as u64;
    let term = |k: f64| log_pmf(k, mean) - 0.5 * (y - k).powi(2) / variance;
    let terms: Vec<f64> = (0..last).map(|k| term(k as f64)).collect();
    let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = terms.iter().map(|t| (t - top).exp()).sum();
    let counts: f64 = terms.iter().enumerate().map(|(k, t)| k as f64 * (t - top).exp()).sum();
    (0.5 * (std::f64::consts::TAU * variance).ln() - top - sum.ln(), 1.0 - counts / sum / mean)
}

#[test]
fn the_exact_likelihood_is_the_sum() {
    let exact = Likelihood::PoissonGaussian;
    for (y, m, v) in points().into_iter().filter(|p| p.1 >= 1e-4 && p.0 < 1e5) {
        let (value, slope) = brute(y, m, v);
        let (got, slope_got) = (exact.value(y, m, v), exact.slope(y, m, v));
        assert!((got - value).abs() < 1e-8 * value.abs().max(1.0), "y {y} m {m} v {v}: {got} {value}");
        assert!(
            (slope_got - slope).abs() < 1e-8 * slope.abs().max(1e-3),
            "y {y} m {m} v {v}: {slope_got} {slope}"
        );
    }
    // Where a sum up to 200 counts gives -1; the truth by brute force.
    assert!((exact.slope(120.0, 50.0, 1.0) + 1.382).abs() < 0.01, "{}", exact.slope(120.0, 50.0, 1.0));
    assert!(exact.slope(320.0, 300.0, 1.0).abs() < 0.07);
}

#[test]
fn the_exact_likelihood_has_its_limits() {
    let exact = Likelihood::PoissonGaussian;
    for (y, m) in [(0.0, 0.3), (3.0, 5.0), (60.0, 47.0)] {
        // No read noise: Poisson. Its density at a whole number is the law's over that of the noise.
        for v in [0.0, 1e-6] {
            assert!((exact.slope(y, m, v) - Likelihood::Poisson.slope(y, m, 0.0)).abs() < 1e-9);
        }
        let density = exact.value(y, m, 1e-6) - 0.5 * (std::f64::consts::TAU * 1e-6).ln();
        assert!((density - Likelihood::Poisson.value(y, m, 0.0)).abs() < 1e-9);
        // Much read noise: Gaussian with the sum of the variances.
        let v: f64 = 1e8;
        let gaussian = Likelihood::Heteroscedastic.slope(y, m, v);
        assert!((exact.slope(y, m, v) - gaussian).abs() < 1e-3 * gaussian.abs() + 1e-12);
    }
    // Much light: residual over variance, with corrections of one over the mean.
    for mean in [1e6, 1e9, 1e12] {
        let (v, y): (f64, f64) = (1e4, mean + 2.0 * f64::sqrt(mean));
        let weighted = (mean - y) / (mean + v);
        let slope = exact.slope(y, mean, v);
        assert!((slope / weighted - 1.0).abs() < 5.0 / f64::sqrt(mean), "{mean}: {slope} {weighted}");
    }
    // Anything finite gives something finite.
    for y in [-1e9, -5.0, 0.0, 1e3, 1e12] {
        for m in [-1e6, 0.0, 1e-300, 1.0, 1e12] {
            for v in [0.0, 1e-12, 1.0, 1e12] {
                let (value, slope) = (exact.value(y, m, v), exact.slope(y, m, v));
                assert!(value.is_finite() && slope.is_finite(), "y {y} m {m} v {v}: {value} {slope}");
            }
        }
    }
    // No number gives no number, and infinity an answer at all.
    for likelihood in Likelihood::ALL {
        assert!(
            likelihood.value(f64::NAN, 3.0, 1.0).is_nan() && likelihood.slope(f64::NAN, 3.0, 1.0).is_nan()
        );
        assert!(
            likelihood.value(3.0, f64::NAN, 1.0).is_nan() && likelihood.slope(3.0, f64::NAN, 1.0).is_nan()
        );
        assert!(!likelihood.value(f64::INFINITY, 3.0, 1.0).is_finite(), "{likelihood:?}");
    }
}

/// Slopes and informations of one likelihood at all points, by the interpreter or by kernels.
fn by_graph(
    likelihood: Likelihood,
    points: &[(f64, f64, f64)],
    precision: Option<Precision>,
) -> [Vec<f64>; 2] {
    let n = points.len();
    let mut b = Builder::new();
    let [y, m, v] = ["y", "m", "v"].map(|name| b.input(name, Type::f32([1, 1, n, 1])));
    let slope = likelihood.build_slope(&mut b, y, m, v);
    let information = likelihood.build_information(&mut b, y, m, v);
    b.output("slope", slope);
    b.output("information", information);
    let graph = b.finish().unwrap();
    let field = |f: fn(&(f64, f64, f64)) -> f64| Array::new([1, 1, n, 1], points.iter().map(f).collect());
    let fields = [("y", field(|p| p.0)), ("m", field(|p| p.1)), ("v", field(|p| p.2))];
    match precision {
        Some(precision) => {
            let mut values = fields.map(|(k, a)| (k.to_string(), a)).into_iter().collect::<BTreeMap<_, _>>();
            let out = run(&graph, &mut values, precision).unwrap();
            ["slope", "information"].map(|k| out[k].data.clone())
        }
        None => {
            let mut session = compile(graph, &Device::cpu(Some(1)), &Options::default()).unwrap();
            fields.iter().for_each(|(k, a)| session.set(k, &a.to_tensor(DType::F32)).unwrap());
            session.run().unwrap();
            ["slope", "information"].map(|k| session.get(k).unwrap().to_f64())
        }
    }
}

#[test]
fn graphs_are_the_host() {
    // Measurements that f32 holds exactly, so that only arithmetic differs.
    let points: Vec<_> = points()
        .iter()
        .map(|p| (f64::from(p.0 as f32), f64::from(p.1 as f32), f64::from(p.2 as f32)))
        .collect();
    // As far as the sum with a fixed number of terms is said to hold.
    let far =
        [(1.002e6, 1e6, 100.0), (2.991e5, 3e5, 1e4), (9.98e5, 1e6, 1.0), (1e6, 9.9e5, 1e6), (3.0, 4.0, 1e-4)];
    let points: Vec<_> = points.into_iter().chain(far).collect();
    for likelihood in Likelihood::ALL {
        let runs = [(Some(Precision::F64), 1e-6), (Some(Precision::Stored), 1e-3), (None, 1e-3)];
        for (precision, tolerance) in runs {
            let [slopes, informations] = by_graph(likelihood, &points, precision);
            for (i, &(y, m, v)) in points.iter().enumerate() {
                let (slope, information) = (likelihood.slope(y, m, v), likelihood.information(y, m, v));
                let noise = information.sqrt();
                assert!(
                    (slopes[i] - slope).abs() < tolerance * noise.max(slope.abs()),
                    "{likelihood:?} {precision:?} y {y} m {m} v {v}: {} for {slope}",
                    slopes[i]
                );
                assert!((informations[i] / information - 1.0).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn invalid_pixels_have_no_effect() {
    let y = [3.0, f64::NAN, 5.0, f64::INFINITY];
    let valid = [true, false, true, false];
    let read_noise = Map::Uniform(1.5);
    let mean = [2.0, 4.0, 6.0, 1.0];
    let seen = Measured { y: Electrons(&y), read_noise: &read_noise, valid: Some(&valid), whitening: None };
    for likelihood in Likelihood::ALL {
        let slopes = seen.slopes(likelihood, Electrons(&mean)).unwrap();
        assert!(slopes[1] == 0.0 && slopes[3] == 0.0 && slopes[0] != 0.0);
        let other = [3.0, 77.0, 5.0, -9.0];
        let same = Measured { y: Electrons(&other), ..seen };
        assert_eq!(same.slopes(likelihood, Electrons(&mean)).unwrap(), slopes);
        let value = seen.value(likelihood, Electrons(&mean)).unwrap();
        assert_eq!(same.value(likelihood, Electrons(&mean)).unwrap(), value);
    }
    let all = Measured { valid: None, ..seen };
    let e = all.value(Likelihood::Gaussian, Electrons(&mean)).unwrap_err();
    assert!(e.to_string().starts_with("the measurement is NaN at pixel 1"), "{e}");
    assert!(seen.value(Likelihood::Gaussian, Electrons(&mean[..3])).is_err());
    assert_eq!(Measured { valid: Some(&[false; 4]), ..seen }.chi2(Electrons(&mean)).unwrap(), None);
    // (3 - 2)^2 over 2 + 1.5^2 and (5 - 6)^2 over 6 + 1.5^2; a mean below zero has the noise of darkness.
    let chi2 = seen.chi2(Electrons(&mean)).unwrap().unwrap();
    assert!((chi2 - 0.5 * (1.0 / 4.25 + 1.0 / 8.25)).abs() < 1e-15, "{chi2}");
    let dark = [-2.0, 4.0, 6.0, 1.0];
    let chi2 = seen.chi2(Electrons(&dark)).unwrap().unwrap();
    assert!((chi2 - 0.5 * (25.0 / (2.25 + FLOOR) + 1.0 / 8.25)).abs() < 1e-12, "{chi2}");
}

fn forward(likelihood: Likelihood, boundary: Boundary) -> Forward {
    let blur =
        Operator::blur([10, 12], &Psf::gaussian_within(&[1.0, 1.4], &[5, 7]).unwrap(), boundary).unwrap();
    let operator = blur.then(Operator::down([10, 12], &[2, 2], Pooling::Sum).unwrap()).unwrap();
    Forward {
        operator,
        scale: Scale::symmetric(Electrons(2.0), Electrons(60.0)).unwrap(),
        exposure: 0.3,
        background: Map::Pixels((0..30).map(|i| 1.0 + 0.1 * f64::from(i)).collect()),
        read_noise: Map::Pixels((0..30).map(|i| 1.0 + 0.05 * f64::from(i % 7)).collect()),
        correlation: Correlation::WHITE,
        likelihood,
    }
}

/// Noise that neighbours share: its inverse covariance undoes its covariance, and slopes are those of the value where the likelihood is
/// quadratic.
#[test]
fn shared_noise_has_a_precision_of_its_own() {
    let (n, correlation) = (16usize, Correlation::gaussian([0.45, 0.3]));
    let whitening = Whitening::new(&correlation, Shape::from([n, n])).unwrap();
    let key = Key { seed: 8, step: 0, stream: 0 };
    let z: Vec<f64> = (0..(n * n) as u64).map(|i| key.normal(i).into()).collect();
    // The covariance itself, lag by lag, on a grid whose edges meet.
    let shared = |i: usize| -> f64 {
        let lags = (-4..=4isize).flat_map(|dy| (-4..=4isize).map(move |dx| (dy, dx)));
        let at = |d: isize, p: usize| (p as isize + d).rem_euclid(n as isize) as usize;
        lags.map(|(dy, dx)| correlation.at(dy, dx) * z[at(dy, i / n) * n + at(dx, i % n)]).sum()
    };
    let covered: Vec<f64> = (0..n * n).map(shared).collect();
    let again = whitening.apply_twice(&covered);
    assert!(again.iter().zip(&z).all(|(a, b)| (a - b).abs() < 1e-9));
    let mut one = vec![0.0; n * n];
    one[0] = 1.0;
    assert!((whitening.apply_twice(&one)[0] - whitening.precision()).abs() < 1e-12);
    let y: Vec<f64> = z.iter().map(|v| 20.0 + 4.0 * v).collect();
    let mean: Vec<f64> = (0..n * n).map(|i| 18.0 + (i % 5) as f64).collect();
    let valid: Vec<bool> = (0..n * n).map(|i| i % 13 != 5).collect();
    let read_noise = Map::Uniform(1.5);
    let seen = Measured {
        y: Electrons(&y),
        read_noise: &read_noise,
        valid: Some(&valid),
        whitening: Some(&whitening),
    };
    for likelihood in [Likelihood::Gaussian, Likelihood::WeightedLeastSquares] {
        let slopes = seen.slopes(likelihood, Electrons(&mean)).unwrap();
        for i in (0..n * n).step_by(23) {
            let at = |h: f64| {
                let mut moved = mean.clone();
                moved[i] += h;
                seen.value(likelihood, Electrons(&moved)).unwrap()
            };
            let numeric = 0.5 * (at(1.0) - at(-1.0));
            assert!((numeric - slopes[i]).abs() < 1e-7, "{likelihood:?} {i}: {numeric} {}", slopes[i]);
            assert!(valid[i] || slopes[i] == 0.0);
        }
    }
}

#[test]
fn the_models_gradient_is_the_gradient_of_its_value() {
    let key = Key { seed: 4, step: 0, stream: 0 };
    let x: Vec<f64> = (0..120).map(|i| 0.4 * f64::from(key.normal(i)).clamp(-2.0, 2.0)).collect();
    let valid: Vec<bool> = (0..30).map(|i| i % 11 != 3).collect();
    for likelihood in Likelihood::ALL {
        for boundary in Boundary::ALL {
            let model = forward(likelihood, boundary);
            let mean = model.mean(Normalised(&x)).unwrap().0;
            let y: Vec<f64> = mean
                .iter()
                .enumerate()
                .map(|(i, m)| m + (m.max(0.0) + 1.0).sqrt() * f64::from(key.normal(500 + i as u64)))
                .collect();
            let value = |x: &[f64]| model.value(Normalised(x), Electrons(&y), Some(&valid)).unwrap();
            let gradient = model.gradient(Normalised(&x), Electrons(&y), Some(&valid)).unwrap();
            let scale = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            for (i, g) in gradient.iter().enumerate().step_by(17) {
                let at = |h: f64| {
                    let mut moved = x.clone();
                    moved[i] += h;
                    value(&moved)
                };
                let h = 1e-3;
                let numeric = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
                assert!((numeric - g).abs() < 1e-6 * scale, "{likelihood:?} {boundary:?} {i}: {g} {numeric}");
            }
            let step = 1e-5 / scale;
            let down: Vec<f64> = x.iter().zip(&gradient).map(|(v, g)| v - step * g).collect();
            assert!(value(&down) < value(&x));

            // The same by a graph; the mask's pixels hold anything finite.
            let mut b = Builder::new();
            let xv = b.input("x", Type::f32([1, 10, 12, 1]));
            let yv = b.input("y", Type::f32([1, 5, 6, 1]));
            let mask = b.input("valid", Type::f32([1, 5, 6, 1]));
            let g = model.build_gradient(&mut b, xv, MeasuredValues::new(yv, Some(mask))).unwrap();
            b.output("g", g);
            let graph = b.finish().unwrap();
            let mask: Vec<f64> = valid.iter().map(|&v| f64::from(u8::from(v))).collect();
            let held: Vec<f64> = y.iter().zip(&valid).map(|(v, ok)| if *ok { *v } else { 1e5 }).collect();
            let mut values = BTreeMap::from([
                ("x".into(), Array::new([1, 10, 12, 1], x.clone())),
                ("y".into(), Array::new([1, 5, 6, 1], held)),
                ("valid".into(), Array::new([1, 5, 6, 1], mask)),
            ]);
            let got = run(&graph, &mut values, Precision::F64).unwrap();
            let error = got["g"].relative_error(&Array::new([1, 10, 12, 1], gradient));
            assert!(error < 1e-6, "{likelihood:?} {boundary:?}: graph {error:e}");
        }
    }
}

#[test]
fn models_refuse_what_cannot_be() {
    let good = forward(Likelihood::Gaussian, Boundary::Zero);
    assert!(good.check().is_ok());
    let bad = Forward { exposure: 0.0, ..good.clone() };
    assert_eq!(
        bad.check().unwrap_err().to_string(),
        "exposure is 0, and a finite number above zero is needed"
    );
    let bad = Forward { read_noise: Map::Uniform(0.0), ..good.clone() };
    assert!(bad.check().unwrap_err().to_string().contains("Gaussian"));
    assert!(
        Forward { read_noise: Map::Uniform(0.0), likelihood: Likelihood::Poisson, ..good.clone() }
            .check()
            .is_ok()
    );
    let bad = Forward { background: Map::Pixels(vec![0.0; 29]), ..good.clone() };
    assert!(bad.mean(Normalised(&[0.0; 120])).is_err());
    assert!(good.mean(Normalised(&[0.0; 119])).is_err());
    let shape: Shape = Tensor::scalar(0.0).shape();
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(shape));
    good.build_mean(&mut b, x);
    assert!(b.finish().is_err());
}

#[test]
fn likelihoods_are_found_by_the_name_that_files_hold() {
    for likelihood in Likelihood::ALL {
        assert_eq!(Likelihood::from_name(likelihood.name()).unwrap(), likelihood);
        assert_eq!(serde_json::to_value(likelihood).unwrap(), likelihood.name());
        assert!(!likelihood.about().is_empty());
    }
    let refused = Likelihood::from_name("laplace").unwrap_err().to_string();
    assert!(refused.contains("laplace") && refused.contains("shifted_poisson"), "{refused}");
}
