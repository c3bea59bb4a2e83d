//! Every reference case of kind `metric`: what scikit-image computes for the same images.
//!
//! The cases are those below the folder that `CLEARSHOT_REFS` names, or the project's own.

use clearshot_metrics::intensity::{self, Normalisation};
use clearshot_metrics::ssim::Ssim;
use clearshot_metrics::{Crop, ImageRef, MetricError, Pair, Rounding};
use clearshot_tensor::store::Store;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const TOLERANCE: f64 = 1e-10;

fn cases() -> Vec<PathBuf> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs");
    let root = std::env::var_os("CLEARSHOT_REFS").map_or_else(own, PathBuf::from);
    let entries = std::fs::read_dir(root.join("metric")).expect("a folder of metric cases");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    paths
}

fn compute(name: &str, pair: &Pair<'_>, range: f64) -> Result<f64, MetricError> {
    match name {
        "psnr" => intensity::psnr(pair, range),
        "nrmse" => Ok(intensity::nrmse(pair, Normalisation::Euclidean)),
        "ssim_uniform7" => Ssim::uniform7(range).mean(pair),
        "ssim_gaussian" => Ssim::wang2004(range).mean(pair),
        other => panic!("no metric is called `{other}`"),
    }
}

/// The worst error of a case relative to the peer's value.
fn check(store: &Store, attrs: &Json, name: &str) -> f64 {
    let (truth, image) = (&store.tensors["in.truth"], &store.tensors["in.image"]);
    let (t, x) = (truth.to_f64(), image.to_f64());
    let (ts, xs) = (truth.shape(), image.shape());
    let (t, x) = (ImageRef::new(&t, &ts).unwrap(), ImageRef::new(&x, &xs).unwrap());
    let pair = Pair::new(t, x, None, Rounding::Keep, Crop::Nothing).unwrap();
    let range = attrs["data_range"].as_f64().unwrap();
    let mut worst: f64 = 0.0;
    for (metric, expected) in attrs["values"].as_object().unwrap() {
        let (got, expected) = (compute(metric, &pair, range).unwrap(), expected.as_f64().unwrap());
        let error = (got - expected).abs() / expected.abs();
        println!("{name} {metric}: {got} against {expected}, {error:.1e}");
        assert!(error <= TOLERANCE, "{name} {metric}: {got} against {expected}");
        worst = worst.max(error);
    }
    worst
}

#[test]
fn every_case_matches_scikit_image() {
    let mut compared = 0;
    for path in cases() {
        let store = Store::read(&path).unwrap();
        let name = &store.metadata["name"];
        let attrs: Json = serde_json::from_str(&store.metadata["attrs"]).unwrap();
        match attrs["op"].as_str() {
            Some(op) => println!("{name}: skipped, `{op}` restores and is no metric"),
            None => {
                println!("{name}: worst {:.1e}", check(&store, &attrs, name));
                compared += 1;
            }
        }
    }
    assert!(compared > 0, "no case was compared");
}
