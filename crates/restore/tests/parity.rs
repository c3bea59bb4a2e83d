//! The restorers beside those of SciPy and scikit-image, on the files of `refs/restore` and `refs/metric`.

use clearshot_physics::{Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Edges, Method, Noise, gaussian, median, tv, wiener};
use clearshot_tensor::store::Store;
use std::path::Path;

fn store(name: &str) -> Store {
    Store::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs").join(name)).unwrap()
}

fn values(store: &Store, key: &str) -> (Vec<f64>, Vec<usize>) {
    let tensor = &store.tensors[key];
    (tensor.to_f64(), tensor.shape().to_vec())
}

fn single(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&v| v as f32).collect()
}

/// The largest difference relative to the largest value.
fn apart(got: &[f32], truth: &[f64]) -> f64 {
    let largest = truth.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    assert_eq!(got.len(), truth.len());
    got.iter().zip(truth).fold(0.0, |m: f64, (a, b)| m.max((f64::from(*a) - b).abs())) / largest
}

#[test]
fn filters_are_those_of_scipy_and_scikit_image() {
    for file in ["plane", "volume"] {
        let store = store(&format!("restore/{file}.safetensors"));
        let (y, shape) = values(&store, "in.y");
        let y = single(&y);
        let tv = tv::TotalVariation { strength: 1.2, tolerance: 1e-9, most_steps: 60, steps: None };
        for (name, method, limit) in [
            ("gaussian", Method::Gaussian(gaussian::Gaussian { sigma: 1.3 }), 1e-6),
            ("median", Method::Median(median::Median { radius: 1 }), 0.0),
            ("wiener", Method::Wiener(wiener::LocalWiener { radius: 2 }), 1e-6),
            ("tv", Method::TotalVariation(tv), 2e-6),
        ] {
            let got = method.run(&y, &shape, Noise::white(0.7)).unwrap();
            let difference = apart(&got, &values(&store, &format!("out.{name}")).0);
            assert!(difference <= limit, "{file}, {name}: {difference:e}");
        }
    }
}

#[test]
fn richardson_lucy_is_that_of_scikit_image() {
    let cases = [
        ("metric/richardson_lucy", "in.image", "out.y", 20),
        ("restore/plane", "in.blurred", "out.richardson_lucy", 15),
        ("restore/volume", "in.blurred", "out.richardson_lucy", 15),
    ];
    for (file, image, truth, steps) in cases {
        let store = store(&format!("{file}.safetensors"));
        let (y, shape) = values(&store, image);
        let (psf, psf_shape) = values(&store, "in.psf");
        let psf = Psf::new(&psf_shape[..], psf).unwrap();
        let settings = RichardsonLucy {
            edges: Edges::Zero,
            make_up_for_edges: false,
            stop: Stop::Steps(steps),
            ..RichardsonLucy::USUAL
        };
        let got = settings.run(Electrons(&single(&y)), &shape, &psf).unwrap();
        assert_eq!(got.steps, steps);
        let difference = apart(&got.values, &values(&store, truth).0);
        // Twenty steps of FFTs in 32 bits.
        assert!(difference < 2e-5, "{file}: {difference:e}");
    }
}
