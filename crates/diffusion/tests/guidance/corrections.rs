//! A single correction as a graph: equal to the host's, with the right gradient, decreasing its objective, independent for
//! each image.

use crate::{SIDE, affine, estimate, evaluate, guide, laws, measurement, model, network, normals, operators};
use clearshot_diffusion::guide::{DIAGNOSTICS, Discrepancy, Measurement, NormAdaptive, Proximal};
use clearshot_diffusion::precondition::Clipped;
use clearshot_diffusion::{Condition, Denoiser, Guide, Guided, Law, Level, LevelInputs};
use clearshot_graph::{Array, Builder, Type};
use clearshot_physics::{
    Boundary, Correlation, Electrons, Forward, Likelihood, Map, Normalised, Operator, Psf, Scale,
};
use clearshot_runtime::{Device, Options, compile};
use clearshot_tensor::{DType, Shape};

#[test]
fn graphs_are_the_host() {
    let shape = Shape::from([2, SIDE, SIDE, 1]);
    let levels = [Level::new(1.0, 0.3, 750.0), Level::new(0.6, 0.8, 850.0), Level::new(1.0, 20.0, 100.0)];
    let shared = Correlation::gaussian([0.5, 0.3]);
    let plain = operators().map(|(name, operator)| (name, operator, Correlation::WHITE));
    let flat = operators()[0].1.clone();
    for (name, operator, correlation) in plain.into_iter().chain([("shared noise", flat, shared)]) {
        // The interpreter convolves by plain sums: under a blur a few of everything must do.
        let (likelihoods, levels) = match operator.is_diagonal() && correlation.is_white() {
            true => (&Likelihood::ALL[..], &levels[..]),
            false => (&[Likelihood::Gaussian, Likelihood::ShiftedPoisson][..], &levels[1..2]),
        };
        for &likelihood in likelihoods {
            let model = Forward { correlation, ..model(operator.clone(), likelihood) };
            let seen = [measurement(&model, 1), measurement(&model, 2)];
            let planes = seen.each_ref().map(|(y, v)| Measurement { y: Electrons(y), valid: Some(v) });
            for law in laws() {
                let law = match law {
                    Law::Proximal(p) => Law::Proximal(Proximal { iterations: 4, ..p }),
                    other => other,
                };
                let guide = Guide::new(model.clone(), law).unwrap();
                let inputs = guide.inputs(shape, &planes).unwrap();
                let (graph, level) = estimate(&guide.clone().guides(affine), shape);
                for at in levels {
                    let x = Array::new(shape, normals(shape.len(), 3).iter().map(|v| 0.5 * v).collect());
                    let got = &evaluate(&graph, &level, at, &x, &inputs)["x0"];
                    let mut expected = Vec::new();
                    for (x, plane) in x.data.chunks(SIDE * SIDE).zip(&planes) {
                        let x0: Vec<f64> = x.iter().map(|v| 0.8 * v + 0.1).collect();
                        let back = |g: &[f64]| g.iter().map(|v| 0.8 * v).collect();
                        let change = guide.correction_on_host(&x0, at, plane, back).unwrap();
                        assert!(change.iter().any(|c| *c != 0.0));
                        expected.extend(x0.iter().zip(change).map(|(a, c)| a + c));
                    }
                    let error = got.relative_error(&Array::new(shape, expected));
                    assert!(error < 1e-4, "{name} {likelihood:?} {law:?} at {at:?}: {error:e}");
                }
            }
        }
    }
}

/// Through the network, the correction is minus the weight times the gradient in x of -ln p(y | x0(x)).
#[test]
fn through_the_network_is_the_gradient_of_the_scalar() {
    let shape = Shape::from([1, SIDE, SIDE, 1]);
    let at = Level::new(0.8, 0.6, 0.0);
    for likelihood in Likelihood::ALL {
        let model = model(operators()[2].1.clone(), likelihood);
        let (y, valid) = measurement(&model, 1);
        let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
        let guide = Guide::new(model.clone(), Law::Through { kappa: 2.0 }).unwrap();
        let inputs = guide.inputs(shape, &[plane]).unwrap();
        let (graph, level) = estimate(&guide.clone().guides(network), shape);
        let (bare, bare_level) = estimate(&network, shape);
        let x = Array::new(shape, normals(shape.len(), 3));
        let unguided = |x: &Array| evaluate(&bare, &bare_level, &at, x, &[])["x0"].data.clone();
        let scalar = |x: &Array| model.value(Normalised(&unguided(x)), plane.y, plane.valid).unwrap();
        let guided = &evaluate(&graph, &level, &at, &x, &inputs)["x0"];
        let weight = f64::from((2.0 * 0.36 / 0.8) as f32);
        let gradient: Vec<f64> =
            unguided(&x).iter().zip(&guided.data).map(|(a, b)| (a - b) / weight).collect();
        let scale = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        for i in (0..shape.len()).step_by(29) {
            let moved = |h: f64| {
                let mut x = x.clone();
                x.data[i] += h;
                scalar(&x)
            };
            let h = 1e-3;
            let numeric = (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
            assert!(
                (numeric - gradient[i]).abs() < 1e-6 * scale,
                "{likelihood:?} {i}: {numeric} {}",
                gradient[i]
            );
        }
        // A small step against it lowers the scalar.
        let down =
            Array::new(shape, x.data.iter().zip(&gradient).map(|(x, g)| x - 1e-4 / scale * g).collect());
        assert!(scalar(&down) < scalar(&x), "{likelihood:?}");
    }
}

#[test]
fn corrections_lower_what_they_minimise() {
    let at = Level::new(1.0, 0.3, 100.0);
    let x0: Vec<f64> = normals(SIDE * SIDE, 8).iter().map(|v| 0.3 * v).collect();
    for (name, operator) in operators() {
        for likelihood in Likelihood::ALL {
            let model = model(operator.clone(), likelihood);
            let (y, valid) = measurement(&model, 1);
            let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
            let value = |x: &[f64]| model.value(Normalised(x), plane.y, plane.valid).unwrap();
            for law in laws() {
                let law = match law {
                    Law::Proximal(p) => Law::Proximal(Proximal { iterations: 40, ..p }),
                    other => other,
                };
                let guide = Guide::new(model.clone(), law).unwrap();
                let change = guide.correction_on_host(&x0, &at, &plane, |g| g.to_vec()).unwrap();
                // All point downhill.
                let small: Vec<f64> = x0.iter().zip(&change).map(|(x, c)| x + 1e-4 * c).collect();
                assert!(value(&small) < value(&x0), "{name} {likelihood:?} {law:?}");
                let Law::Proximal(p) = law else { continue };
                let objective = |z: &[f64]| {
                    let far: f64 = z.iter().zip(&x0).map(|(a, b)| (a - b).powi(2)).sum();
                    far / (2.0 * p.variance(&at)) + value(z)
                };
                let z: Vec<f64> = x0.iter().zip(&change).map(|(x, c)| x + c).collect();
                assert!(objective(&z) < objective(&x0), "{name} {likelihood:?}");
                if likelihood.is_quadratic() {
                    // At the minimum the gradient vanishes.
                    let g = model.gradient(Normalised(&z), plane.y, plane.valid).unwrap();
                    let rest = |i: usize| change[i] / p.variance(&at) + g[i];
                    let left = (0..z.len()).map(|i| rest(i).powi(2)).sum::<f64>().sqrt();
                    let all = change.iter().map(|c| (c / p.variance(&at)).powi(2)).sum::<f64>().sqrt();
                    assert!(left < 1e-6 * all, "{name} {likelihood:?}: {left} of {all}");
                }
            }
        }
    }
}

/// Stars on a dark sky: information differs by three orders of magnitude between pixels, and the default number
/// of conjugate gradients is still enough.
#[test]
fn dark_skies_are_solved() {
    let side = 24;
    let psf = Psf::gaussian_within(&[1.2, 1.2], &[7, 7]).unwrap();
    let forward = Forward {
        operator: Operator::blur([side, side], &psf, Boundary::Zero).unwrap(),
        scale: Scale::symmetric(Electrons(0.0), Electrons(400.0)).unwrap(),
        exposure: 1.0,
        background: Map::Uniform(0.2),
        read_noise: Map::Uniform(0.5),
        correlation: Correlation::WHITE,
        likelihood: Likelihood::ShiftedPoisson,
    };
    let star = |i: usize| i % 97 == 40;
    let sky: Vec<f64> = (0..side * side).map(|i| if star(i) { 0.8 } else { -1.0 }).collect();
    let mean = forward.mean(Normalised(&sky)).unwrap().0;
    let y: Vec<f64> = mean.iter().map(|m| m.round()).collect();
    let plane = Measurement { y: Electrons(&y), valid: None };
    // An estimate that misses the stars' heights and is somewhat off in the dark.
    let x0: Vec<f64> =
        normals(side * side, 6).iter().zip(&sky).map(|(n, s)| 0.7 * (s + 1.0) - 1.0 + 0.002 * n).collect();
    for sigma in [0.05, 1.0] {
        let at = Level::new(1.0, sigma, 0.0);
        let solved = |iterations: usize| {
            let law = Proximal { iterations, passes: 3, ..Proximal::new(0.5) };
            let guide = Guide::new(forward.clone(), Law::Proximal(law)).unwrap();
            guide.correction_on_host(&x0, &at, &plane, |g| g.to_vec()).unwrap()
        };
        let objective = |change: &[f64]| {
            let z: Vec<f64> = x0.iter().zip(change).map(|(x, c)| x + c).collect();
            let far: f64 = change.iter().map(|c| c * c).sum();
            let fit = forward.value(Normalised(&z), plane.y, None).unwrap();
            far / (2.0 * Proximal::new(0.5).variance(&at)) + fit
        };
        let (usual, converged) =
            (objective(&solved(Proximal::new(0.5).iterations)), objective(&solved(2000)));
        let before = objective(&vec![0.0; x0.len()]);
        assert!(
            usual - converged < 0.02 * (before - converged),
            "sigma {sigma}: {before} {usual} {converged}"
        );
    }
}

/// One graph for two tiles of different maps, each as if its maps were the model's.
#[test]
fn maps_may_be_inputs() {
    let shape = Shape::from([2, SIDE, SIDE, 1]);
    let at = Level::new(1.0, 0.5, 600.0);
    let x = Array::new(shape, normals(shape.len(), 3));
    let map = |stream: u32, from: f64| {
        Map::Pixels(normals(SIDE * SIDE, stream).iter().map(|v| from + 0.2 * v.abs()).collect())
    };
    let maps = [(map(70, 1.0), map(71, 2.0)), (Map::Uniform(3.0), map(72, 1.0))];
    for law in laws() {
        let shared = guide(law);
        let (y, valid) = measurement(shared.forward(), 1);
        let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
        let inputs = shared.inputs(shape, &[plane, plane]).unwrap();
        let given = shared.map_inputs(shape, &maps.each_ref().map(|(a, b)| (a, b))).unwrap();
        let (graph, level) = estimate(&shared.clone().with_maps().guides(affine), shape);
        let both = [inputs, given].concat();
        let got = evaluate(&graph, &level, &at, &x, &both)["x0"].data.clone();
        for (i, (background, read_noise)) in maps.iter().enumerate() {
            let own = Forward {
                background: background.clone(),
                read_noise: read_noise.clone(),
                correlation: Correlation::WHITE,
                ..shared.forward().clone()
            };
            let x0: Vec<f64> =
                x.data[i * SIDE * SIDE..(i + 1) * SIDE * SIDE].iter().map(|v| 0.8 * v + 0.1).collect();
            let back = |g: &[f64]| g.iter().map(|v| 0.8 * v).collect();
            let change = Guide::new(own, law).unwrap().correction_on_host(&x0, &at, &plane, back).unwrap();
            for (j, c) in change.iter().enumerate() {
                let guided = got[i * SIDE * SIDE + j];
                assert!(
                    (guided - x0[j] - c).abs() < 1e-4 * (1.0 + guided.abs()),
                    "{law:?}: {guided} {}",
                    x0[j] + c
                );
            }
        }
    }
    let few = guide(Law::Constant { kappa: 1.0 });
    assert!(few.map_inputs(shape, &[(&maps[0].0, &maps[0].1)]).is_err());
    let wrong = Map::Uniform(-1.0);
    assert!(
        few.map_inputs(shape, &[(&wrong, &wrong), (&wrong, &wrong)])
            .unwrap_err()
            .to_string()
            .contains("background")
    );
}

/// Volumes and several channels: each channel of each image as if it were alone.
#[test]
fn volumes_and_channels() {
    let (space, at) = (Shape::from([3, 4, 5]), Level::new(1.0, 0.4, 0.0));
    let shape = Shape::from([2, 3, 4, 5, 2]);
    let psf = Psf::gaussian_within(&[0.7, 0.9, 1.1], &[3, 3, 4]).unwrap();
    let blur = Operator::blur(space, &psf, Boundary::Mirror).unwrap();
    let x = Array::new(shape, normals(shape.len(), 3));
    let planes: Vec<Vec<f64>> =
        (0..4).map(|p| normals(60, 80 + p).iter().map(|v| 15.0 + 6.0 * v).collect()).collect();
    let planes: Vec<_> = planes.iter().map(|y| Measurement { y: Electrons(y), valid: None }).collect();
    let cases = [
        (Operator::identity(space).unwrap(), Law::Proximal(Proximal::new(0.5))),
        (blur.clone(), Law::SigmaSquared { kappa: 0.3 }),
        (blur, Law::Proximal(Proximal { iterations: 30, ..Proximal::new(0.5) })),
    ];
    for (operator, law) in cases {
        let guide = Guide::new(model(operator, Likelihood::WeightedLeastSquares), law).unwrap();
        let (graph, level) = estimate(&guide.clone().guides(affine), shape);
        let inputs = guide.inputs(shape, &planes).unwrap();
        let got = &evaluate(&graph, &level, &at, &x, &inputs)["x0"];
        let mut session = compile(graph, &Device::cpu(Some(2)), &Options::default()).unwrap();
        session.set("x", &x.to_tensor(DType::F32)).unwrap();
        inputs.iter().for_each(|(name, value)| session.set(name, value).unwrap());
        level.at(&at).for_each(|(name, value)| session.set(name, &value).unwrap());
        session.run().unwrap();
        let error = Array::from_tensor(&session.get("x0").unwrap()).relative_error(got);
        assert!(error < 2e-5, "{law:?} by kernels: {error:e}");
        for (p, plane) in planes.iter().enumerate() {
            let index = |i: usize| (p / 2 * 60 + i) * 2 + p % 2;
            let x0: Vec<f64> = (0..60).map(|i| 0.8 * x.data[index(i)] + 0.1).collect();
            let change = guide.correction_on_host(&x0, &at, plane, |g| g.to_vec()).unwrap();
            for i in 0..60 {
                let (a, b) = (got.data[index(i)], x0[i] + change[i]);
                assert!((a - b).abs() < 1e-5 * (1.0 + b.abs()), "{law:?} {p} {i}: {a} {b}");
            }
        }
    }
}

#[test]
fn weights_have_closed_forms() {
    let level = |alpha: f64, sigma: f64, time: f64| Level::new(alpha, sigma, time);
    for (alpha, sigma) in [(1.0, 80.0), (1.0, 1.0), (0.6, 0.8), (0.99, 0.14), (1.0, 0.002)] {
        let (at, r) = (level(alpha, sigma, 0.0), sigma / alpha);
        let close = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() <= 1e-14 * b, "{a:?} {b}");
        close(Law::SigmaSquared { kappa: 0.5 }.weight(&at), 0.5 * r * r);
        close(Law::Sigma { kappa: 0.5 }.weight(&at), 0.5 * r);
        close(Law::Constant { kappa: 0.5 }.weight(&at), 0.5);
        close(Law::Through { kappa: 0.5 }.weight(&at), 0.5 * sigma * sigma / alpha);
        close(Some(Proximal::new(0.5).variance(&at)), 1.0 / (1.0 / (r * r) + 4.0));
    }
    // Warm-up: none at 1000, half at 900, all from 800 on.
    let law = NormAdaptive { lambda: 0.3, eps: 1e-3, warm_up: [1000.0, 800.0] };
    for (time, weight) in [(1000.0, 0.0), (900.0, 0.15), (800.0, 0.3), (400.0, 0.3), (1100.0, 0.0)] {
        assert!((law.weight(&level(0.5, 0.5, time)) - weight).abs() < 1e-15);
    }
    // The step's root mean square is lambda, whatever the gradient's size or the image's.
    let guide = guide(Law::NormAdaptive(NormAdaptive { lambda: 0.25, eps: 1e-9, warm_up: [1.0, 0.5] }));
    let (y, valid) = measurement(guide.forward(), 1);
    let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
    let change =
        guide.correction_on_host(&[0.3; SIDE * SIDE], &level(1.0, 1.0, 0.0), &plane, |g| g.to_vec()).unwrap();
    let size = (change.iter().map(|c| c * c).sum::<f64>() / change.len() as f64).sqrt();
    assert!((size - 0.25).abs() < 1e-8, "{size}");
}

#[test]
fn clipping_inside_keeps_both_estimates() {
    let shape = Shape::from([1, SIDE, SIDE, 1]);
    let guide = guide(Law::Proximal(Proximal::new(0.5)));
    let clipped: Guided<_> = guide.clone().guides(Clipped { denoiser: affine, range: [-0.2, 0.2] });
    assert_eq!(clipped.guide().law(), guide.law());
    let (graph, level) = estimate(&clipped, shape);
    let (y, valid) = measurement(guide.forward(), 1);
    let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
    let x = Array::new(shape, normals(shape.len(), 3));
    let out =
        evaluate(&graph, &level, &Level::new(1.0, 0.5, 0.0), &x, &guide.inputs(shape, &[plane]).unwrap());
    for i in 0..shape.len() {
        let whole = 0.8 * x.data[i] + 0.1;
        let cut = whole - whole.clamp(-0.2, 0.2);
        assert!((out["unclipped"].data[i] - out["x0"].data[i] - cut).abs() < 1e-6);
    }
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let model = model(operators()[0].1.clone(), Likelihood::Poisson);
    let refused = |law: Law| Guide::new(model.clone(), law).unwrap_err().to_string();
    assert_eq!(
        refused(Law::Sigma { kappa: -1.0 }),
        "the guide's kappa is -1; it must be finite and not negative"
    );
    assert!(refused(Law::Through { kappa: f64::NAN }).contains("kappa"));
    assert!(refused(Law::Proximal(Proximal::new(0.0))).contains("standard deviation"));
    assert!(refused(Law::Proximal(Proximal { passes: 0, ..Proximal::new(1.0) })).contains("passes"));
    assert!(refused(Law::Proximal(Proximal { iterations: 0, ..Proximal::new(1.0) })).contains("iterations"));
    let warm = |warm_up| Law::NormAdaptive(NormAdaptive { lambda: 1.0, eps: 1.0, warm_up });
    assert!(refused(warm([1.0, 2.0])).contains("warm-up") && refused(warm([1.0, 1.0])).contains("warm-up"));
    assert!(refused(Law::Discrepancy(Discrepancy { target: -1.0, steps: 1 })).contains("chi2"));
    let dark = Forward { exposure: -1.0, ..model.clone() };
    assert!(Guide::new(dark, Law::Constant { kappa: 1.0 }).unwrap_err().to_string().contains("exposure"));
    let guide = Guide::new(model, Law::Constant { kappa: 1.0 }).unwrap();
    assert!(guide.clone().gated([2.0, 1.0]).unwrap_err().to_string().contains("gate"));
    let shape = Shape::from([2, SIDE, SIDE, 1]);
    let y = vec![1.0; SIDE * SIDE];
    let plane = Measurement { y: Electrons(&y), valid: None };
    assert!(guide.inputs(shape, &[plane]).unwrap_err().to_string().contains("2, one for each image"));
    let short = Measurement { y: Electrons(&y[1..]), valid: None };
    assert!(guide.inputs(shape, &[plane, short]).unwrap_err().to_string().contains("143 values"));
    let broken = vec![f64::NAN; SIDE * SIDE];
    let broken = Measurement { y: Electrons(&broken), valid: None };
    assert!(guide.inputs(shape, &[plane, broken]).unwrap_err().to_string().contains("at pixel 0"));
    // An image of another size than the physics: the builder's error says so.
    let mut b = Builder::new();
    let x = b.input("x", Type::f32([1, 8, 8, 1]));
    guide.guides(affine).denoise(&mut b, x, &mut LevelInputs::new(1), &Condition::default());
    assert!(b.finish().unwrap_err().to_string().contains("[12,12]"));
}

/// Two images of one batch, whose corrections are of very different sizes: each is clipped, normalised and told of by
/// its own size.
#[test]
fn clipping_and_diagnostics_are_per_image() {
    let shape = Shape::from([2, SIDE, SIDE, 1]);
    let at = Level::new(1.0, 0.3, 600.0);
    let pixels = SIDE * SIDE;
    let rms = |x: &[f64]| (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
    for law in laws() {
        let free = guide(law);
        let seen = [measurement(free.forward(), 1), measurement(free.forward(), 2)];
        let planes = seen.each_ref().map(|(y, v)| Measurement { y: Electrons(y), valid: Some(v) });
        // The first is far from what was measured, the second nearly what it says.
        let scene: Vec<f64> = normals(pixels, 2).iter().map(|v| 0.4 * v.clamp(-2.0, 2.0)).collect();
        let x: Vec<f64> =
            normals(pixels, 9).iter().map(|v| 1.5 + v).chain(scene.iter().map(|v| (v - 0.1) / 0.8)).collect();
        let x = Array::new(shape, x);
        let x0: Vec<f64> = x.data.iter().map(|v| 0.8 * v + 0.1).collect();
        let moves = |guide: &Guide| {
            let (graph, level) = estimate(&guide.clone().guides(affine), shape);
            let out = evaluate(&graph, &level, &at, &x, &guide.inputs(shape, &planes).unwrap());
            let change: Vec<f64> = out["x0"].data.iter().zip(&x0).map(|(a, b)| a - b).collect();
            (change, out)
        };
        let (change, _) = moves(&free);
        let sizes = [rms(&change[..pixels]), rms(&change[pixels..])];
        // A limit between the two sizes, or half of them where the law makes them one.
        let limit = if (sizes[0] / sizes[1] - 1.0).abs() < 0.05 {
            sizes[0] / 2.0
        } else {
            (sizes[0] * sizes[1]).sqrt()
        };
        let clipped = free.clone().clipped(limit).unwrap().with_diagnostics();
        let (shrunk, out) = moves(&clipped);
        for (i, plane) in planes.iter().enumerate() {
            let part = i * pixels..(i + 1) * pixels;
            let share = (limit / sizes[i]).min(1.0);
            let expected: Vec<f64> = change[part.clone()].iter().map(|c| c * share).collect();
            let off: Vec<f64> = shrunk[part.clone()].iter().zip(&expected).map(|(a, b)| a - b).collect();
            assert!(rms(&off) < 1e-5 * rms(&expected) + 1e-12, "{law:?} image {i}");
            let back = |g: &[f64]| g.iter().map(|v| 0.8 * v).collect();
            let host = clipped.correction_on_host(&x0[part.clone()], &at, plane, back).unwrap();
            assert!((rms(&host) - sizes[i].min(limit)).abs() < 1e-4 * limit, "{law:?} image {i} on the host");
            let told = DIAGNOSTICS.map(|name| out[&format!("guide.{name}")].data[i]);
            let gradient = free.forward().gradient(Normalised(&x0[part]), plane.y, plane.valid).unwrap();
            let through = if matches!(law, Law::Through { .. }) { 0.8 } else { 1.0 };
            let truth = [None, Some(through * rms(&gradient)), Some(rms(&expected)), Some(share)];
            for ((name, told), truth) in DIAGNOSTICS.iter().zip(told).zip(truth) {
                let near = truth.is_none_or(|t| (told - t).abs() < 1e-4 * t);
                assert!(told.is_finite() && near, "{law:?} image {i}: {name} is {told}, not {truth:?}");
            }
        }
        let weight = clipped.weight_at(&at);
        assert_eq!(weight.is_none(), matches!(law, Law::Discrepancy(_)));
        assert!(weight.is_none_or(|w| w > 0.0), "{law:?}");
        assert_eq!(free.clone().gated([10.0, 20.0]).unwrap().weight_at(&at).unwrap_or(0.0), 0.0);
        assert!([0.0, -1.0, f64::NAN].iter().all(|&c| free.clone().clipped(c).is_err()));
    }
}
