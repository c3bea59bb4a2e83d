//! Guides as graphs: single corrections against the host and finite differences (`corrections`), and guides compiled into
//! samplers (`samplers`). This file has what both use.

mod corrections;
mod samplers;

use clearshot_diffusion::guide::{Covariance, Discrepancy, NormAdaptive, Proximal};
use clearshot_diffusion::{Condition, Denoiser, Estimate, Guide, Law, Level, LevelInputs};
use clearshot_graph::ops::Geometry;
use clearshot_graph::reference::{Precision, run};
use clearshot_graph::{Array, Builder, Graph, Type, Value};
use clearshot_physics::{
    Boundary, Correlation, Electrons, Forward, Likelihood, Map, Normalised, Operator, Pooling, Psf, Scale,
};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;

const SIDE: usize = 12;

fn normals(n: usize, stream: u32) -> Vec<f64> {
    let key = Key { seed: 23, step: 0, stream };
    (0..n as u64).map(|i| key.normal(i).into()).collect()
}

/// The optics: a flat field, or a blur and binning.
fn operators() -> [(&'static str, Operator); 3] {
    let image = [SIDE, SIDE];
    let flat = (0..SIDE * SIDE).map(|i| 0.8 + 0.4 * (i % 5) as f64 / 5.0).collect();
    let psf = Psf::gaussian_within(&[1.0, 1.5], &[5, 7]).unwrap();
    let blur = |boundary| Operator::blur(image, &psf, boundary).unwrap();
    let binned = blur(Boundary::Reflect).then(Operator::down(image, &[2, 3], Pooling::Sum).unwrap()).unwrap();
    [
        ("flat field", Operator::diagonal(image, flat).unwrap()),
        ("periodic blur", blur(Boundary::Periodic)),
        ("blur and binning", binned),
    ]
}

fn model(operator: Operator, likelihood: Likelihood) -> Forward {
    Forward {
        operator,
        scale: Scale::symmetric(Electrons(1.0), Electrons(41.0)).unwrap(),
        exposure: 0.7,
        background: Map::Uniform(2.0),
        read_noise: Map::Uniform(1.5),
        correlation: Correlation::WHITE,
        likelihood,
    }
}

fn laws() -> Vec<Law> {
    vec![
        Law::Proximal(Proximal::new(0.5)),
        Law::Covariance(Covariance { iterations: 2, ..Covariance::new(0.5) }),
        Law::SigmaSquared { kappa: 0.4 },
        Law::Sigma { kappa: 0.1 },
        Law::Constant { kappa: 0.02 },
        Law::NormAdaptive(NormAdaptive { lambda: 0.1, eps: 1e-3, warm_up: [900.0, 700.0] }),
        Law::Discrepancy(Discrepancy::default()),
        Law::Through { kappa: 0.5 },
    ]
}

/// A measurement of a scene, with some pixels broken.
fn measurement(model: &Forward, stream: u32) -> (Vec<f64>, Vec<bool>) {
    let scene: Vec<f64> = normals(SIDE * SIDE, stream).iter().map(|v| 0.4 * v.clamp(-2.0, 2.0)).collect();
    let mean = model.mean(Normalised(&scene)).unwrap().0;
    let noise = normals(mean.len(), stream + 50);
    let valid: Vec<bool> = (0..mean.len()).map(|i| i % 13 != 4).collect();
    let y = mean.iter().zip(noise).zip(&valid);
    let y = y.map(|((m, e), ok)| if *ok { (m + (m + 2.25).sqrt() * e).round() } else { f64::NAN });
    (y.collect(), valid)
}

/// `0.8 x + 0.1`, a denoiser that the host can do too.
fn affine(b: &mut Builder, x: Value, _: &mut LevelInputs, _: &Condition) -> Estimate {
    let scaled = b.mul_scalar(x, 0.8);
    Estimate::of(b.add_scalar(scaled, 0.1))
}

/// A small network with fixed weights.
fn network(b: &mut Builder, x: Value, level: &mut LevelInputs, _: &Condition) -> Estimate {
    let weight = |b: &mut Builder, shape: [usize; 4], stream: u32| {
        let values = normals(shape.iter().product(), stream).iter().map(|v| 0.3 * *v as f32).collect();
        b.constant(Tensor::f32(shape, values))
    };
    let w = weight(b, [4, 3, 3, 1], 90);
    let v = weight(b, [1, 3, 3, 4], 91);
    let scale = level.factor(b, x, "network.scale", |l| 1.0 / l.norm());
    let seen = b.mul(x, scale);
    let hidden = b.conv(seen, w, None, Geometry::new(2, 1, 1));
    let hidden = b.silu(hidden);
    Estimate::of(b.conv(hidden, v, None, Geometry::new(2, 1, 1)))
}

/// One estimate of a denoiser as a graph.
fn estimate(denoiser: &dyn Denoiser, shape: Shape) -> (Graph, LevelInputs) {
    let mut b = Builder::new();
    let mut level = LevelInputs::new(shape[0]);
    let x = b.input("x", Type::f32(shape));
    let e = denoiser.denoise(&mut b, x, &mut level, &Condition::default());
    b.output("x0", e.x0);
    b.output("unclipped", e.unclipped);
    (b.finish().unwrap(), level)
}

fn evaluate(
    graph: &Graph,
    level: &LevelInputs,
    at: &Level,
    x: &Array,
    more: &[(String, Tensor)],
) -> BTreeMap<String, Array> {
    let mut values = BTreeMap::from([("x".to_string(), x.clone())]);
    values.extend(level.at(at).map(|(n, t)| (n.to_string(), Array::from_tensor(&t))));
    values.extend(more.iter().map(|(n, t)| (n.clone(), Array::from_tensor(t))));
    run(graph, &mut values, Precision::F64).unwrap()
}

fn guide(law: Law) -> Guide {
    Guide::new(model(operators()[1].1.clone(), Likelihood::ShiftedPoisson), law).unwrap()
}
