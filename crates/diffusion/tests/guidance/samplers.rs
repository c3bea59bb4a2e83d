//! Guides in samplers: bit-identical where nothing may change, and samples from the posterior where it is known.

use crate::{SIDE, affine, estimate, evaluate, guide, laws, measurement, model, network, normals, operators};
use clearshot_diffusion::guide::posterior::{self, Posterior, tile_of_sample};
use clearshot_diffusion::guide::{Discrepancy, Measurement, NormAdaptive, Proximal};
use clearshot_diffusion::noise::Tile;
use clearshot_diffusion::sampler::{Churn, Program, heun};
use clearshot_diffusion::step_graph::Setup;
use clearshot_diffusion::{
    Condition, Denoiser, Estimate, Guide, Law, Level, LevelInputs, Levels, Sampler, Start,
};
use clearshot_graph::{Array, Builder, Value};
use clearshot_physics::{Correlation, Electrons, Forward, Likelihood, Map, Normalised, Operator, Scale};
use clearshot_runtime::Device;
use clearshot_tensor::{Shape, Tensor};

fn program() -> Program {
    let levels = Levels::karras([0.02, 10.0], 7.0, 8).unwrap();
    heun(&levels, &Churn { amount: 4.0, range: [0.0, f64::INFINITY], noise: 1.0 }).unwrap()
}

/// Samples with a denoiser on so many threads; the measurement is given where the graph takes one.
fn sampled(
    denoiser: &dyn Denoiser,
    seeds: &[u64],
    streams: &[u32],
    inputs_of: Option<&Guide>,
    threads: usize,
) -> Vec<f32> {
    let shape = Shape::from([seeds.len(), SIDE, SIDE, 1]);
    let device = Device::cpu(Some(threads));
    let mut sampler = Sampler::compile(
        Builder::new(),
        denoiser,
        &Condition::default(),
        shape,
        program(),
        Setup::default(),
        &device,
    )
    .unwrap();
    if let Some(guide) = inputs_of {
        let seen: Vec<_> = streams.iter().map(|s| measurement(guide.forward(), *s)).collect();
        let planes: Vec<_> =
            seen.iter().map(|(y, v)| Measurement { y: Electrons(y), valid: Some(v) }).collect();
        for (name, value) in guide.inputs(shape, &planes).unwrap() {
            sampler.set(&name, &value).unwrap();
        }
    }
    let tiles: Vec<Tile> = seeds.iter().map(|s| Tile::whole(*s)).collect();
    sampler.run(Start::Noise, &tiles).unwrap().as_f32().unwrap().to_vec()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn zero_weight_equals_no_guidance_bit_for_bit() {
    let free = sampled(&network, &[7], &[], None, 2);
    let off = [
        Law::Proximal(Proximal { strength: 0.0, ..Proximal::new(0.5) }),
        Law::SigmaSquared { kappa: 0.0 },
        Law::Sigma { kappa: 0.0 },
        Law::Constant { kappa: 0.0 },
        Law::Through { kappa: 0.0 },
        Law::NormAdaptive(NormAdaptive { lambda: 0.0, eps: 1e-3, warm_up: [1.0, 0.0] }),
    ];
    for law in off {
        assert_eq!(bits(&sampled(&guide(law).guides(network), &[7], &[], None, 2)), bits(&free), "{law:?}");
    }
    // A gate that is shut everywhere.
    for law in laws() {
        let shut = guide(law).gated([1e3, 1e4]).unwrap();
        assert_eq!(
            bits(&sampled(&shut.clone().guides(network), &[7], &[1], Some(&shut), 2)),
            bits(&free),
            "{law:?}"
        );
    }
}

#[test]
fn an_image_alone_or_in_a_batch_and_any_threads() {
    for law in laws() {
        // Constant steps overshoot with this network; small ones do for comparing bits.
        let law = match law {
            Law::Constant { .. } => Law::Constant { kappa: 1e-4 },
            Law::Sigma { .. } => Law::Sigma { kappa: 1e-3 },
            Law::SigmaSquared { .. } => Law::SigmaSquared { kappa: 1e-5 },
            other => other,
        };
        let guide = guide(law);
        let guided = guide.clone().guides(network);
        let alone = sampled(&guided, &[5], &[2], Some(&guide), 1);
        let batch = sampled(&guided, &[7, 5, 6], &[1, 2, 3], Some(&guide), 2);
        let pixels = SIDE * SIDE;
        assert_eq!(bits(&alone), bits(&batch[pixels..2 * pixels]), "{law:?}");
        assert_ne!(bits(&alone), bits(&sampled(&network, &[5], &[], None, 1)), "{law:?}");
    }
}

#[test]
fn invalid_pixels_have_no_effect() {
    let shape = Shape::from([1, SIDE, SIDE, 1]);
    let at = Level::new(1.0, 0.5, 600.0);
    let x = Array::new(shape, normals(shape.len(), 3));
    for law in laws() {
        let guide = guide(law);
        let (y, valid) = measurement(guide.forward(), 1);
        let other: Vec<f64> = y.iter().zip(&valid).map(|(y, ok)| if *ok { *y } else { 1e7 }).collect();
        let (graph, level) = estimate(&guide.clone().guides(affine), shape);
        let [a, b] = [&y, &other].map(|y| {
            let plane = Measurement { y: Electrons(y), valid: Some(&valid) };
            evaluate(&graph, &level, &at, &x, &guide.inputs(shape, &[plane]).unwrap())["x0"].clone()
        });
        assert_eq!(a, b);
        let none = vec![false; y.len()];
        let plane = Measurement { y: Electrons(&y), valid: Some(&none) };
        let free = evaluate(&graph, &level, &at, &x, &guide.inputs(shape, &[plane]).unwrap())["x0"].clone();
        assert_eq!(free.data, x.data.iter().map(|v| 0.8 * v + 0.1).collect::<Vec<_>>(), "{law:?}");
    }
}

/// Two measurements of one image, each with a guide of its own: the second corrects what the first gave.
#[test]
fn two_guides_have_two_names() {
    let shape = Shape::from([1, SIDE, SIDE, 1]);
    let at = Level::new(1.0, 0.4, 0.0);
    let law = Law::Proximal(Proximal::new(0.5));
    let guides = operators().map(|(_, o)| Guide::new(model(o, Likelihood::Gaussian), law).unwrap());
    let [first, _, second] = guides;
    let second = second.named("binned");
    let seen = [measurement(first.forward(), 1), measurement(second.forward(), 2)];
    let planes = seen.each_ref().map(|(y, v)| Measurement { y: Electrons(y), valid: Some(v) });
    let inputs =
        [first.inputs(shape, &planes[..1]).unwrap(), second.inputs(shape, &planes[1..]).unwrap()].concat();
    let (graph, level) = estimate(&second.clone().guides(first.clone().guides(affine)), shape);
    let x = Array::new(shape, normals(shape.len(), 3));
    let got = evaluate(&graph, &level, &at, &x, &inputs)["x0"].clone();
    let mut x0: Vec<f64> = x.data.iter().map(|v| 0.8 * v + 0.1).collect();
    for (guide, plane) in [&first, &second].into_iter().zip(&planes) {
        let change = guide.correction_on_host(&x0, &at, plane, |g| g.to_vec()).unwrap();
        x0.iter_mut().zip(change).for_each(|(x, c)| *x += c);
    }
    assert!(got.relative_error(&Array::new(shape, x0)) < 1e-5);
}

#[test]
fn discrepancy_ends_at_its_target() {
    let at = Level::new(1.0, 0.5, 0.0);
    let x0 = vec![0.0; SIDE * SIDE];
    for likelihood in [Likelihood::Gaussian, Likelihood::ShiftedPoisson] {
        let model = Forward { read_noise: Map::Uniform(3.0), ..model(operators()[0].1.clone(), likelihood) };
        let (y, valid) = measurement(&model, 1);
        let plane = Measurement { y: Electrons(&y), valid: Some(&valid) };
        let chi2 = |x: &[f64]| match likelihood {
            Likelihood::Gaussian => {
                let mean = model.mean(Normalised(x)).unwrap().0;
                let each = (0..y.len()).filter(|i| valid[*i]).map(|i| ((y[i] - mean[i]) / 3.0).powi(2));
                each.sum::<f64>() / valid.iter().filter(|v| **v).count() as f64
            }
            _ => model.chi2(Normalised(x), plane.y, plane.valid).unwrap().unwrap(),
        };
        for target in [0.5, 1.0] {
            let law = Law::Discrepancy(Discrepancy { target, steps: 8 });
            let guide = Guide::new(model.clone(), law).unwrap();
            let change = guide.correction_on_host(&x0, &at, &plane, |g| g.to_vec()).unwrap();
            assert!(chi2(&x0) > target);
            assert!((chi2(&change) - target).abs() < 0.05 * target, "{likelihood:?}: {}", chi2(&change));
        }
        // Already below: nothing moves.
        let guide =
            Guide::new(model.clone(), Law::Discrepancy(Discrepancy { target: 1e6, steps: 3 })).unwrap();
        let change = guide.correction_on_host(&x0, &at, &plane, |g| g.to_vec()).unwrap();
        assert!(change.iter().all(|c| *c == 0.0));
    }
}

/// Compiled, under a PSF, eight samples: mean, spread and coverage of the exact posterior.
#[test]
fn compiled_guidance_draws_from_the_posterior() {
    let (sd, peak, sigma) = (0.5, 20.0, 5.0);
    let (n, side, samples) = (2, 32, 8);
    let shape = Shape::from([n, side, side, 1]);
    let forward = Forward {
        operator: Operator::identity([side, side]).unwrap(),
        scale: Scale::unit(Electrons(peak)).unwrap(),
        exposure: 1.0,
        background: Map::Uniform(0.0),
        read_noise: Map::Uniform(sigma),
        correlation: Correlation::WHITE,
        likelihood: Likelihood::Gaussian,
    };
    let truth: Vec<f64> = normals(shape.len(), 60).iter().map(|v| sd * v).collect();
    let y: Vec<f64> = truth.iter().zip(normals(shape.len(), 61)).map(|(x, e)| peak * x + sigma * e).collect();
    let guide = Guide::new(forward, Law::Proximal(Proximal::new(sd))).unwrap().with_diagnostics();
    let denoiser = move |b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition| {
        let gain = level.factor(b, x, "prior", move |l| {
            l.alpha * sd * sd / (l.alpha.powi(2) * sd * sd + l.sigma.powi(2))
        });
        Estimate::of(b.mul(x, gain))
    };
    let levels = Levels::karras([0.002, 20.0], 7.0, 40).unwrap();
    let program = heun(&levels, &Churn { amount: 10.0, range: [0.0, 1e9], noise: 1.0 }).unwrap();
    let mut sampler = Sampler::compile(
        Builder::new(),
        &guide.clone().guides(denoiser),
        &Condition::default(),
        shape,
        program,
        Setup::default(),
        &Device::cpu(Some(2)),
    )
    .unwrap();
    let planes: Vec<_> =
        y.chunks(side * side).map(|y| Measurement { y: Electrons(y), valid: None }).collect();
    for (name, value) in guide.inputs(shape, &planes).unwrap() {
        sampler.set(&name, &value).unwrap();
    }
    let tiles = [Tile::whole(1), Tile::whole(2)];
    let posterior = posterior::draw(&mut sampler, Start::Noise, &tiles, samples).unwrap();
    let (mean, spread) = (posterior.mean().to_f64(), posterior.sd().unwrap().to_f64());

    let variance = 1.0 / (1.0 / (sd * sd) + (peak / sigma).powi(2));
    let exact: Vec<f64> = y.iter().map(|y| variance * y * peak / (sigma * sigma)).collect();
    let count = shape.len() as f64;
    let off = mean.iter().zip(&exact).map(|(m, e)| (m - e).powi(2)).sum::<f64>() / count;
    assert!((off / (variance / samples as f64) - 1.0).abs() < 4.0 * (2.0 / count).sqrt() + 0.03, "{off}");
    let width = spread.iter().map(|s| s * s).sum::<f64>() / count;
    assert!((width / variance - 1.0).abs() < 4.0 * (2.0 / (count * 7.0)).sqrt() + 0.03, "{width} {variance}");
    // 90 % of Student's law with 7 degrees lies within 1.8946; the truth also differs from the samples' mean
    // by the mean's own error.
    let reach = 1.894_6 * (1.0 + 1.0 / samples as f64).sqrt();
    let inside = (0..truth.len()).filter(|&i| (truth[i] - mean[i]).abs() < reach * spread[i]).count();
    let covered = inside as f64 / count;
    assert!((0.85..=0.95).contains(&covered), "{covered}");

    // A sample of the batch is the same alone, and diagnostics are there to be watched.
    let again: Vec<Tile> = tiles.iter().map(|t| tile_of_sample(*t, 3)).collect();
    let mut last = Vec::new();
    let first = sampler.run(Start::Noise, &again).unwrap();
    let second = sampler
        .run_watched(Start::Noise, &again, |_, session| {
            last = session.get("guide.chi2")?.to_f64();
            assert!(session.get("guide.moved")?.to_f64().iter().all(|v| v.is_finite()));
            Ok(())
        })
        .unwrap();
    assert_eq!(first, second);
    assert!(last.len() == n && last.iter().all(|c| (0.5..1.5).contains(c)), "{last:?}");
}

#[test]
fn running_sums_are_the_moments() {
    let mut gathered = Posterior::new([3]);
    let samples = [[1.0f32, 1e6, -2.0], [2.0, 1e6 + 1.0, -2.0], [6.0, 1e6 + 2.0, -2.0]];
    assert!(gathered.sd().is_err());
    for s in samples {
        gathered.add(&Tensor::f32([3], s.to_vec())).unwrap();
    }
    assert_eq!(gathered.count(), 3);
    assert_eq!(gathered.mean().as_f32().unwrap(), [3.0, 1e6 + 1.0, -2.0]);
    let sd = gathered.sd().unwrap();
    let sd = sd.as_f32().unwrap();
    assert!((sd[0] - 7f32.sqrt()).abs() < 1e-6 && (sd[1] - 1.0).abs() < 1e-6 && sd[2] == 0.0, "{sd:?}");
    assert!(gathered.add(&Tensor::zeros([4])).is_err());
    let tile = Tile { seed: 5, origin: [0, 16, 32] };
    assert_ne!(tile_of_sample(tile, 0), tile_of_sample(tile, 1));
    assert_eq!(tile_of_sample(tile, 0).origin, tile.origin);
}
