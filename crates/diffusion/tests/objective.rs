//! Objectives: values by hand, gradients by finite differences, weights in closed form.

use clearshot_diffusion::objective::{
    Consistency, Distance, FirstStep, LevelLaw, Ramp, Weight, distance, forward_consistency, frequency,
    gradient, intensity, kl_normal, noised, poisson_nll, target, variational_bound, wavelet,
};
use clearshot_diffusion::precondition::{Preconditioned, Prediction};
use clearshot_diffusion::schedule::{BetaLaw, Schedule};
use clearshot_diffusion::{Condition, Estimate, Level, LevelInputs};
use clearshot_graph::grad::grad;
use clearshot_graph::reference::{self, Precision};
use clearshot_graph::{Array, Builder, Type, Value};
use clearshot_tensor::Shape;
use clearshot_tensor::noise::Key;
use std::collections::BTreeMap;

type Inputs = BTreeMap<String, Array>;

fn values(shape: impl Into<Shape>, stream: u32) -> Array {
    let shape = shape.into();
    let key = Key { seed: 77, step: 0, stream };
    Array::new(shape, (0..shape.len()).map(|i| f64::from(key.normal(i as u64))).collect())
}

/// The scalar that `build` makes of inputs `x` and `y`, in f64.
fn evaluate(build: &dyn Fn(&mut Builder, Value, Value) -> Value, x: &Array, y: &Array) -> f64 {
    let mut b = Builder::new();
    let [vx, vy] = [("x", x), ("y", y)].map(|(n, a)| b.input(n, Type::f32(a.shape)));
    let loss = build(&mut b, vx, vy);
    b.output("loss", loss);
    let mut given: Inputs = [("x".into(), x.clone()), ("y".into(), y.clone())].into();
    reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap()["loss"].data[0]
}

/// Compares the gradient with respect to x with central differences.
fn check_gradient(what: &str, build: &dyn Fn(&mut Builder, Value, Value) -> Value, x: &Array, y: &Array) {
    let mut b = Builder::new();
    let [vx, vy] = [("x", x), ("y", y)].map(|(n, a)| b.input(n, Type::f32(a.shape)));
    let loss = build(&mut b, vx, vy);
    let g = grad(&mut b, loss, None, &[vx]).unwrap()[0];
    b.output("g", g);
    let mut given: Inputs = [("x".into(), x.clone()), ("y".into(), y.clone())].into();
    let g = reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap()["g"].clone();
    let h = 1e-5;
    for i in 0..x.data.len() {
        let at = |d: f64| {
            let mut moved = x.clone();
            moved.data[i] += d;
            evaluate(build, &moved, y)
        };
        let numeric = (at(h) - at(-h)) / (2.0 * h);
        assert!(
            (numeric - g.data[i]).abs() < 1e-6 * numeric.abs().max(0.1),
            "{what}: {numeric} {}",
            g.data[i]
        );
    }
}

#[test]
fn terms_equal_their_definition_and_have_correct_gradients() {
    let (x, y) = (values([2, 4, 5, 1], 1), values([2, 4, 5, 1], 2));
    let positive = |a: &Array| a.map(|v| v.abs() + 0.3);
    let (px, py) = (positive(&x), positive(&y));
    let n = x.data.len() as f64;
    let mean = |f: &dyn Fn(f64, f64) -> f64, a: &Array, b: &Array| {
        a.data.iter().zip(&b.data).map(|(p, q)| f(*p, *q)).sum::<f64>() / n
    };
    type Term = Box<dyn Fn(&mut Builder, Value, Value) -> Value>;
    let of = |kind: Distance| -> Term { Box::new(move |b, x, y| distance(b, kind, x, y, None)) };
    let consistent =
        |kind: Consistency| -> Term { Box::new(move |b, x, y| forward_consistency(b, kind, x, y)) };
    let huber = |d: f64, e: f64| if e.abs() <= d { 0.5 * e * e } else { d * (e.abs() - 0.5 * d) };
    let bright = |t: f64| (t + 1.0).clamp(0.1, 2.0);
    let cases: Vec<(&str, Term, &Array, &Array, f64)> = vec![
        ("l1", of(Distance::L1), &x, &y, mean(&|p, q| (p - q).abs(), &x, &y)),
        ("l2", of(Distance::L2), &x, &y, mean(&|p, q| (p - q).powi(2), &x, &y)),
        ("huber", of(Distance::Huber(0.7)), &x, &y, mean(&|p, q| huber(0.7, p - q), &x, &y)),
        ("smooth l1", of(Distance::SmoothL1(0.7)), &x, &y, mean(&|p, q| huber(0.7, p - q) / 0.7, &x, &y)),
        ("poisson", Box::new(poisson_nll), &px, &py, mean(&|p, q| p - q * (p + 1e-6).ln(), &px, &py)),
        ("fc l2", consistent(Consistency::L2), &x, &y, mean(&|p, q| (p - q).powi(2), &x, &y)),
        (
            "fc gaussian",
            consistent(Consistency::Gaussian { variance: 0.4 }),
            &x,
            &y,
            mean(&|p, q| (p - q).powi(2) / 0.8, &x, &y),
        ),
        (
            "fc poisson",
            consistent(Consistency::Poisson { read_variance: 0.5 }),
            &px,
            &py,
            mean(&|p, q| (1.0 - (q + 0.500001) / (p + 0.500001)).powi(2), &px, &py),
        ),
        (
            "intensity",
            Box::new(|b, x, y| intensity(b, Distance::L2, x, y)),
            &x,
            &y,
            mean(&|p, q| bright(q) * (p - q).powi(2), &x, &y),
        ),
    ];
    for (what, build, x, y, truth) in &cases {
        let got = evaluate(build, x, y);
        assert!((got - truth).abs() < 1e-12 * truth.abs().max(1.0), "{what}: {got} for {truth}");
        check_gradient(what, build, x, y);
    }
    check_gradient("sobel", &|b, x, y| gradient(b, x, y), &x, &y);
    check_gradient(
        "sobel 3-D",
        &|b, x, y| gradient(b, x, y),
        &values([1, 2, 3, 4, 2], 3),
        &values([1, 2, 3, 4, 2], 4),
    );
}

#[test]
fn consistency_is_least_where_the_measurement_is_expected() {
    // Also with read noise: the ancestor's fixed point was off by its variance.
    let y = values([1, 3, 3, 1], 5).map(|v| 4.0 + v);
    for read_variance in [0.0, 2.0] {
        let build = |b: &mut Builder, x: Value, y: Value| {
            forward_consistency(b, Consistency::Poisson { read_variance }, x, y)
        };
        assert_eq!(evaluate(&build, &y, &y), 0.0);
        assert!(evaluate(&build, &y.map(|v| v + 0.1), &y) > 0.0);
        assert!(evaluate(&build, &y.map(|v| v - 0.1), &y) > 0.0);
    }
    let poisson = |b: &mut Builder, x: Value, y: Value| poisson_nll(b, x, y);
    let best = evaluate(&poisson, &y, &y);
    assert!([0.9, 1.1].iter().all(|f| evaluate(&poisson, &y.map(|v| v * f), &y) > best));
}

#[test]
fn sobel_sees_slopes_and_not_levels() {
    let ramp = |slope_y: f64, slope_x: f64| {
        Array::from_fn([1, 5, 6, 1], |i| 3.0 + slope_y * i[1] as f64 + slope_x * i[2] as f64)
    };
    let build = |b: &mut Builder, x: Value, y: Value| gradient(b, x, y);
    let got = evaluate(&build, &ramp(0.5, 2.0), &ramp(0.0, 0.0));
    // Eight times each slope, and the mean of the two directions.
    assert!((got - 8.0 * (0.5 + 2.0) / 2.0).abs() < 1e-12, "{got}");
    assert_eq!(evaluate(&build, &ramp(1.0, 1.0), &ramp(1.0, 1.0).map(|v| v + 7.0)), 0.0);
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, 2, 8, 1]));
    gradient(&mut b, x, x);
    assert!(b.finish().unwrap_err().to_string().contains("planes of 2 by 8"));
}

#[test]
fn weights_are_those_of_their_papers() {
    let levels = [Level::new(0.6, 0.8, 0.0), Level::new(0.995, (1.0f64 - 0.995 * 0.995).sqrt(), 0.0)];
    for l in levels {
        let snr = l.snr();
        let of = |w: Weight, p: Prediction| w.of(p, &l);
        let near = |got: f64, truth: f64| assert!((got / truth - 1.0).abs() < 1e-12, "{got} {truth}");
        near(of(Weight::Snr, Prediction::Noise), 1.0);
        near(of(Weight::Snr, Prediction::Sample), snr);
        near(of(Weight::MinSnr(5.0), Prediction::Noise), snr.min(5.0) / snr);
        near(of(Weight::MinSnr(5.0), Prediction::Sample), snr.min(5.0));
        near(of(Weight::MinSnr(5.0), Prediction::Velocity), snr.min(5.0) / (snr + 1.0));
        let sigma_data = 0.5;
        // EDM's weight is what makes its network's own error count equally everywhere.
        near(of(Weight::Edm { sigma_data }, Prediction::Edm { sigma_data }), 1.0);
        let s = l.ratio();
        near(of(Weight::Edm { sigma_data }, Prediction::Sample), (s * s + 0.25) / (s * 0.5).powi(2));
    }
    let s = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 1000).unwrap();
    let bound = Weight::bound(&s);
    let snr = |t: usize| s.level(t).unwrap().snr();
    for t in [1, 2, 50, 999] {
        let level = s.level(t).unwrap();
        let half = 0.5 * (snr(t - 1) - snr(t));
        assert!((bound.of(Prediction::Sample, &level) / half - 1.0).abs() < 1e-6, "{t}");
        // Latent diffusion's form: beta^2 / (2 variance alpha (1 - product)).
        let products = s.alphas_cumprod();
        let beta = 1.0 - products[t] / products[t - 1];
        let variance = beta * (1.0 - products[t - 1]) / (1.0 - products[t]);
        let theirs = beta * beta / (2.0 * variance * (1.0 - beta) * (1.0 - products[t]));
        assert!((bound.of(Prediction::Noise, &level) / theirs - 1.0).abs() < 1e-6, "{t}");
    }
    let first = bound.of(Prediction::Sample, &s.level(0).unwrap());
    assert_eq!(first, bound.of(Prediction::Sample, &s.level(1).unwrap()));
}

#[test]
fn a_network_that_hits_its_target_denoises_exactly() {
    let shape = Shape::from([3, 2, 2, 1]);
    let levels = [Level::new(0.6, 0.8, 3.0), Level::new(1.0, 20.0, 4.0), Level::new(0.9, 0.1, 5.0)];
    let kinds =
        [Prediction::Noise, Prediction::Sample, Prediction::Velocity, Prediction::Edm { sigma_data: 0.5 }];
    for prediction in kinds {
        let mut b = Builder::new();
        let mut level = LevelInputs::new(3);
        let [x0, noise] = ["x0", "noise"].map(|n| b.input(n, Type::f32(shape)));
        let x = noised(&mut b, x0, noise, &mut level);
        let right = target(&mut b, prediction, x0, noise, &mut level);
        let network = move |_: &mut Builder, _: Value, _: Value, _: &Condition| right;
        let net = Preconditioned { network, prediction, learned_variance: false };
        let predicted = net.predict(&mut b, x, &mut level, &Condition::default()).value;
        let clean = net.clean(&mut b, x, predicted, &mut level);
        let weight = Weight::MinSnr(5.0).input(&mut b, prediction, &mut level);
        let loss = distance(&mut b, Distance::L2, clean, x0, Some(weight));
        b.output("clean", clean);
        b.output("loss", loss);
        let mut given: Inputs = [("x0".into(), values(shape, 1)), ("noise".into(), values(shape, 2))].into();
        for (name, value) in level.at_each(&levels) {
            given.insert(name.into(), Array::from_tensor(&value));
        }
        let got = reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap();
        let error = got["clean"].relative_error(&given["x0"]);
        assert!(error < 2e-6, "{prediction:?}: {error}");
        assert!(got["loss"].data[0] < 1e-10);
    }
}

#[test]
fn images_count_by_their_weights() {
    let (x, y) = (values([2, 3, 1], 1), values([2, 3, 1], 2));
    let mut b = Builder::new();
    let [vx, vy] = [("x", &x), ("y", &y)].map(|(n, a)| b.input(n, Type::f32(a.shape)));
    let w = b.input("w", Type::f32([2]));
    let loss = distance(&mut b, Distance::L1, vx, vy, Some(w));
    b.output("loss", loss);
    let mut given: Inputs =
        [("x".into(), x.clone()), ("y".into(), y.clone()), ("w".into(), Array::new([2], vec![3.0, 0.5]))]
            .into();
    let got = reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap()["loss"].data[0];
    let each = |i: usize| (0..3).map(|p| (x.data[3 * i + p] - y.data[3 * i + p]).abs()).sum::<f64>() / 3.0;
    assert!((got - (3.0 * each(0) + 0.5 * each(1)) / 2.0).abs() < 1e-12);
}

#[test]
fn kl_is_that_of_normal_laws() {
    let (mean1, log1, mean2, log2) = (0.4f64, -1.0f64, -0.2f64, 0.3f64);
    let mut b = Builder::new();
    let [a, p, c, q] = [mean1, log1, mean2, log2].map(|v| b.scalar(v as f32));
    let kl = kl_normal(&mut b, [a, p], [c, q]);
    b.output("kl", kl);
    let got = reference::run(&b.finish().unwrap(), &mut Inputs::new(), Precision::F64).unwrap()["kl"].data[0];
    // By a sum over the first law.
    let (d1, d2) = ((0.5 * log1).exp(), (0.5 * log2).exp());
    let log_density = |x: f64, m: f64, d: f64| -0.5 * ((x - m) / d).powi(2) - d.ln();
    let h = 1e-3;
    let sum: f64 = (-12_000..12_000)
        .map(|i| {
            let x = mean1 + f64::from(i) * h * d1;
            let p = log_density(x, mean1, d1);
            p.exp() / (std::f64::consts::TAU).sqrt() * (p - log_density(x, mean2, d2)) * h * d1
        })
        .sum();
    assert!((got - sum).abs() < 1e-6, "{got} {sum}");
}

#[test]
fn the_variational_bound_is_the_divergence_of_reverse_steps() {
    let s = Schedule::new(BetaLaw::Linear, [1e-3, 0.2], 50).unwrap();
    let shape = Shape::from([3, 2, 1]);
    let levels = [0, 1, 30].map(|t| s.level(t).unwrap());
    let bound = |first_is_poisson: bool, said: &Array, truth: &Array, fraction: &Array| {
        let mut b = Builder::new();
        let mut level = LevelInputs::new(3);
        let [x0, est, v] = ["x0", "est", "v"].map(|n| b.input(n, Type::f32(shape)));
        let estimate = Estimate { variance: Some(v), ..Estimate::of(est) };
        let first = match first_is_poisson {
            true => FirstStep::Poisson { expected: est, counts: x0 },
            false => FirstStep::Gaussian,
        };
        let loss = variational_bound(&mut b, &estimate, x0, &mut level, &s, first);
        b.output("loss", loss);
        let mut given: Inputs =
            [("x0".into(), truth.clone()), ("est".into(), said.clone()), ("v".into(), fraction.clone())]
                .into();
        for (name, value) in level.at_each(&levels) {
            given.insert(name.into(), Array::from_tensor(&value));
        }
        reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap()["loss"].data[0]
    };
    let (truth, said) = (values(shape, 1).map(|v| v.abs() + 0.5), values(shape, 2).map(|v| v.abs() + 0.5));
    let fraction = values(shape, 3).map(|v| 1.0 / (1.0 + (-v).exp()));
    let products = s.alphas_cumprod();
    let beta = |t: usize| 1.0 - products[t] / if t == 0 { 1.0 } else { products[t - 1] };
    let small = |t: usize| beta(t) * (1.0 - products[t - 1]) / (1.0 - products[t]);
    let mut total = [0.0, 0.0];
    for (i, t) in [0usize, 1, 30].into_iter().enumerate() {
        for p in 0..2 {
            let at = 2 * i + p;
            let (x0, est, v) = (truth.data[at], said.data[at], fraction.data[at]);
            let log = v * beta(t).ln() + (1.0 - v) * small(t.max(1)).ln();
            if t == 0 {
                total[0] += 0.5 * ((x0 - est).powi(2) / log.exp() + log + std::f64::consts::TAU.ln());
                total[1] += est - x0 * (est + 1e-6).ln();
                continue;
            }
            let mean = products[t - 1].sqrt() * beta(t) / (1.0 - products[t]) * (x0 - est);
            let (v1, v2) = (small(t), log.exp());
            let kl = 0.5 * ((v2 / v1).ln() + v1 / v2 + mean * mean / v2 - 1.0);
            total.iter_mut().for_each(|sum| *sum += kl);
        }
    }
    for (poisson, sum) in [(false, total[0]), (true, total[1])] {
        let got = bound(poisson, &said, &truth, &fraction);
        assert!((got - sum / 6.0).abs() < 1e-4 * (sum / 6.0).abs(), "{got} {}", sum / 6.0);
    }
    // It teaches the variance, and the mean only where counts are scored.
    for poisson in [false, true] {
        let mut b = Builder::new();
        let mut level = LevelInputs::new(3);
        let [x0, est, v] = ["x0", "est", "v"].map(|n| b.input(n, Type::f32(shape)));
        let estimate = Estimate { variance: Some(v), ..Estimate::of(est) };
        let first = match poisson {
            true => FirstStep::Poisson { expected: est, counts: x0 },
            false => FirstStep::Gaussian,
        };
        let loss = variational_bound(&mut b, &estimate, x0, &mut level, &s, first);
        let gradients = grad(&mut b, loss, None, &[est, v]).unwrap();
        b.output("mean", gradients[0]);
        b.output("variance", gradients[1]);
        let mut given: Inputs =
            [("x0".into(), truth.clone()), ("est".into(), said.clone()), ("v".into(), fraction.clone())]
                .into();
        for (name, value) in level.at_each(&levels) {
            given.insert(name.into(), Array::from_tensor(&value));
        }
        let got = reference::run(&b.finish().unwrap(), &mut given, Precision::F64).unwrap();
        for at in 0..6 {
            let counted = poisson && at < 2;
            assert_eq!(got["mean"].data[at] != 0.0, counted, "the mean's {at}: {:?}", got["mean"].data);
            let h = 1e-5;
            let moved = |d: f64| {
                let mut fraction = fraction.clone();
                fraction.data[at] += d;
                bound(poisson, &said, &truth, &fraction)
            };
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            let error = (got["variance"].data[at] - slope).abs();
            assert!(error < 1e-6 * slope.abs().max(0.1), "the variance's {at}: {slope}");
            assert_eq!(slope == 0.0, counted);
        }
    }
    let mut b = Builder::new();
    let x = b.input("x", Type::f32(shape));
    variational_bound(&mut b, &Estimate::of(x), x, &mut LevelInputs::new(3), &s, FirstStep::Gaussian);
    assert!(b.finish().unwrap_err().to_string().contains("learned variance"));
}

#[test]
fn ramps_run_from_their_share_to_all() {
    let ramp = Ramp { full: 0.8, from: 0.5, over: 1000 };
    assert_eq!([0, 500, 1000, 5000].map(|i| ramp.at(i)), [0.4, 0.8 * 0.75, 0.8, 0.8]);
    assert_eq!(Ramp { full: 2.0, from: 0.0, over: 0 }.at(0), 2.0);
}

#[test]
fn levels_are_drawn_by_their_law() {
    let n = 20_000u32;
    let key = |i: u32| Key { seed: 3, step: i, stream: 0 };
    let edm = LevelLaw::LogNormal { mean: -1.2, deviation: 1.2 };
    edm.check().unwrap();
    let logs: Vec<f64> = (0..n).map(|i| edm.draw(key(i)).sigma.ln()).collect();
    let mean = logs.iter().sum::<f64>() / f64::from(n);
    let deviation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / f64::from(n)).sqrt();
    assert!((mean + 1.2).abs() < 4.0 * 1.2 / f64::from(n).sqrt(), "{mean}");
    assert!((deviation - 1.2).abs() < 4.0 * 1.2 / f64::from(2 * n).sqrt(), "{deviation}");
    let schedule = Schedule::new(BetaLaw::Linear, [1e-4, 0.02], 10).unwrap();
    let some = LevelLaw::Timesteps { schedule: schedule.clone(), below: 0.4 };
    let mut counts = [0u32; 10];
    (0..n).for_each(|i| counts[some.draw(key(i)).time as usize] += 1);
    assert_eq!(counts[4..], [0; 6]);
    for c in &counts[..4] {
        let expected = f64::from(n) / 4.0;
        assert!((f64::from(*c) - expected).abs() < 4.0 * (expected * 0.75).sqrt(), "{counts:?}");
    }
    assert!(LevelLaw::Timesteps { schedule, below: 0.0 }.check().is_err());
    assert!(LevelLaw::LogNormal { mean: 0.0, deviation: -1.0 }.check().is_err());
}

/// Terms that compare structure: nothing for equal images, the same both ways, true gradients, in 2-D and 3-D and at odd
/// sizes.
#[test]
fn structure_terms_are_distances_with_true_gradients() {
    type Term = fn(&mut Builder, Value, Value) -> Value;
    let terms: [(&str, Term); 3] = [
        ("gradient", |b, x, y| gradient(b, x, y)),
        ("frequency", |b, x, y| frequency(b, x, y)),
        ("wavelet", |b, x, y| wavelet(b, x, y)),
    ];
    for shape in [vec![2, 4, 8, 1], vec![1, 5, 7, 2], vec![1, 2, 3, 5, 1]] {
        let shape = Shape::new(&shape);
        let (x, y) = (values(shape, 31), values(shape, 32));
        for (name, term) in terms {
            assert_eq!(evaluate(&term, &x, &x), 0.0, "{name} {shape}");
            let (there, back) = (evaluate(&term, &x, &y), evaluate(&term, &y, &x));
            assert!(there > 0.0 && (there - back).abs() < 1e-12 * there, "{name} {shape}: {there} {back}");
            check_gradient(name, &term, &x, &y);
        }
    }
}

/// Against the plain sum over all frequencies.
#[test]
fn frequencies_are_fouriers() {
    for [height, width] in [[4, 6], [5, 7], [1, 8], [3, 1]] {
        let (x, y) = (values([1, height, width, 1], 41), values([1, height, width, 1], 42));
        let mut truth = 0.0;
        for (v, u) in (0..height).flat_map(|v| (0..width).map(move |u| (v, u))) {
            let (mut re, mut im) = (0.0, 0.0);
            for (j, i) in (0..height).flat_map(|j| (0..width).map(move |i| (j, i))) {
                let turn = (v * j) as f64 / height as f64 + (u * i) as f64 / width as f64;
                let d = x.data[j * width + i] - y.data[j * width + i];
                re += d * (std::f64::consts::TAU * turn).cos();
                im += d * (std::f64::consts::TAU * turn).sin();
            }
            let scale = ((height * width) as f64).sqrt();
            truth += ((re / scale).hypot(im / scale).hypot(1e-3) - 1e-3) / (height * width) as f64;
        }
        let got = evaluate(&|b: &mut Builder, x: Value, y: Value| frequency(b, x, y), &x, &y);
        assert!((got / truth - 1.0).abs() < 1e-6, "{height} x {width}: {got} {truth}");
    }
}

/// By hand: a step of 1 between the columns of every pair is a detail of the finest scale alone, and a constant is what
/// is left at the coarsest.
#[test]
fn wavelets_are_haars() {
    let zero = Array::from_fn([1, 8, 8, 1], |_| 0.0);
    let term = |b: &mut Builder, x: Value, y: Value| wavelet(b, x, y);
    let columns = Array::from_fn([1, 8, 8, 1], |i| if i[2] % 2 == 0 { 0.5 } else { -0.5 });
    // One of three details is (0.5 + 0.5 + 0.5 + 0.5) / 2 = 1; four scales count the same.
    assert!((evaluate(&term, &columns, &zero) - 1.0 / 3.0 / 4.0).abs() < 1e-12);
    // Three scales double a constant three times.
    let flat = Array::from_fn([1, 8, 8, 1], |_| 0.25);
    assert!((evaluate(&term, &flat, &zero) - 0.25 * 8.0 / 4.0).abs() < 1e-12);
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([4, 4]));
    wavelet(&mut b, x, x);
    assert!(b.finish().unwrap_err().to_string().contains("not a batch of images"));
}
