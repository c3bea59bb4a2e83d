//! Scores on generated scenes beside those that SciPy, scikit-image and the bm3d package had on pictures of the same
//! kind: PSNR in dB with range 1 after clipping to [0, 1.5]. `examples/scores.rs` prints the whole table.

use clearshot_metrics::{Crop, ImageRef, Pair, Rounding, intensity};
use clearshot_physics::{Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Method, stabilised};
use clearshot_scenes::{Camera, Scene};

const SHAPE: [usize; 2] = [128, 128];

fn psnr(truth: &[f32], electrons: &[f32], background: f64, peak: f64) -> f64 {
    let wide: Vec<f64> = truth.iter().map(|&v| v.into()).collect();
    let image: Vec<f64> =
        electrons.iter().map(|&v| ((f64::from(v) - background) / peak).clamp(0.0, 1.5)).collect();
    let view = |x| ImageRef::new(x, &SHAPE).unwrap();
    let pair = Pair::new(view(&wide), view(&image), None, Rounding::Keep, Crop::Nothing).unwrap();
    intensity::psnr(&pair, 1.0).unwrap()
}

/// Scene, peak, and the peers' scores: noisy, GAT+NLM, GAT+TV, BM3D, GAT+BM3D.
const DENOISED: [(Scene, f64, [f64; 5]); 11] = [
    (Scene::Filaments, 5.0, [12.9, 21.0, 22.4, 26.0, 25.9]),
    (Scene::Filaments, 20.0, [21.1, 29.2, 26.2, 31.1, 33.1]),
    (Scene::Filaments, 100.0, [30.6, 37.7, 31.7, 36.1, 39.7]),
    (Scene::Nuclei, 5.0, [12.2, 24.5, 24.0, 25.4, 27.1]),
    (Scene::Nuclei, 20.0, [19.8, 29.8, 30.1, 28.5, 31.7]),
    (Scene::Nuclei, 100.0, [28.7, 35.7, 35.0, 33.2, 37.5]),
    (Scene::Stars, 5.0, [13.5, 28.8, 29.0, 31.2, 29.5]),
    (Scene::Stars, 20.0, [22.2, 34.0, 34.7, 35.8, 35.1]),
    (Scene::Stars, 100.0, [32.7, 40.9, 40.9, 42.5, 42.7]),
    (Scene::Phantom, 5.0, [10.8, 20.3, 21.3, 24.3, 25.7]),
    (Scene::Phantom, 20.0, [17.5, 28.2, 26.5, 28.0, 30.3]),
];

#[test]
fn denoisers_score_as_their_peers() {
    let images = 12;
    let mut failures = Vec::new();
    for ((scene, peak, peers), seed) in DENOISED.into_iter().flat_map(|row| [1, 7].map(|seed| (row, seed))) {
        let camera = Camera::for_peak(peak);
        let mut means = [0.0; 5];
        for index in 0..images {
            let truth = scene.generate(seed, index, &SHAPE).unwrap();
            let y = camera.take(&truth, &SHAPE, seed, index).unwrap().values;
            let score = |x: &[f32]| psnr(&truth, x, camera.background, peak);
            let stable = |name: &str| {
                let method = Method::by_name(name).unwrap();
                let read_noise = Electrons(camera.read_noise as f32);
                score(&stabilised(&method, Electrons(&y), &SHAPE, read_noise).unwrap().0)
            };
            // Without the transform, the noise is taken to be that of the mean everywhere.
            let mean = y.iter().map(|&v| f64::from(v).max(0.0)).sum::<f64>() / y.len() as f64;
            let sigma = (mean + camera.read_noise.powi(2)).sqrt() as f32;
            let plain = Method::by_name("bm3d").unwrap().run(&y, &SHAPE, sigma).unwrap();
            let scores = [score(&y), stable("nlm"), stable("tv"), score(&plain), stable("bm3d")];
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / f64::from(images));
        }
        // The scene is as hard as the peers' was.
        let hard = (means[0] - peers[0]).abs() < 0.3;
        let good = means.iter().zip(peers).skip(1).all(|(m, p)| *m >= p - 0.3);
        let line = format!("{} {peak}, seed {seed}: {means:.2?} beside {peers:?}", scene.name());
        println!("{line}");
        if !(hard && good) {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

const BLURRED: [(Scene, f64, f64); 8] = [
    (Scene::Filaments, 1.5, 20.0),
    (Scene::Filaments, 1.5, 100.0),
    (Scene::Filaments, 2.5, 100.0),
    (Scene::Nuclei, 1.5, 20.0),
    (Scene::Nuclei, 2.5, 20.0),
    (Scene::Nuclei, 2.5, 100.0),
    (Scene::Stars, 1.5, 100.0),
    (Scene::Stars, 2.5, 1000.0),
];

/// The mean over images of three seeds of what stopping loses against the best step of the first 200.
#[test]
fn richardson_lucy_stops_near_its_best_step() {
    let seeds = [2, 5, 11];
    let images = 2;
    let mut failures = Vec::new();
    for (scene, sigma, peak) in BLURRED {
        let psf = Psf::gaussian(&[sigma, sigma]).unwrap();
        let camera = Camera { psf: Some(psf.clone()), ..Camera::for_peak(peak) };
        let (mut lost, mut gained) = (0.0, 0.0);
        let count = f64::from(images) * seeds.len() as f64;
        for (seed, index) in seeds.into_iter().flat_map(|seed| (0..images).map(move |index| (seed, index))) {
            let truth = scene.generate(seed, index, &SHAPE).unwrap();
            let y = camera.take(&truth, &SHAPE, seed, index).unwrap().values;
            let settings = RichardsonLucy {
                background: camera.background as f32,
                read_noise: camera.read_noise as f32,
                ..RichardsonLucy::USUAL
            };
            let mut best = 0f64;
            let fixed = RichardsonLucy { stop: Stop::Steps(200), ..settings };
            fixed
                .watched(Electrons(&y), &SHAPE, &psf, |_, x| best = best.max(psnr(&truth, x, 0.0, peak)))
                .unwrap();
            let stopped = settings.run(Electrons(&y), &SHAPE, &psf).unwrap();
            assert_eq!(stopped.chi2.len(), stopped.predicted.len());
            let score = psnr(&truth, &stopped.values, 0.0, peak);
            lost += (best - score) / count;
            gained += (score - psnr(&truth, &y, camera.background, peak)) / count;
        }
        let line = format!("{} {sigma} {peak}: lost {lost:.2} dB, gained {gained:.2} dB", scene.name());
        println!("{line}");
        if lost > 0.5 || gained < 3.0 {
            failures.push(line);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
