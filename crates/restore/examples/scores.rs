//! The scores of the classical restorers on generated scenes: PSNR in dB with range 1 after clipping to [0, 1.5], the
//! mean over some images (the first argument, 4 if there is none) of a seed (the second, 1). First noise alone, unless a
//! third argument says `blurred`, then noise and a Gaussian PSF.
//!
//! `cargo run --release -p clearshot-restore --example scores [-- 6 93 [blurred]]`

use clearshot_metrics::{Crop, ImageRef, Pair, Rounding, intensity};
use clearshot_physics::{Correlation, Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Method, Noise, gaussian::Gaussian, stabilised, wiener};
use clearshot_scenes::{Camera, Scene};

const ROWS: [(Scene, f64); 11] = [
    (Scene::Filaments, 5.0),
    (Scene::Filaments, 20.0),
    (Scene::Filaments, 100.0),
    (Scene::Nuclei, 5.0),
    (Scene::Nuclei, 20.0),
    (Scene::Nuclei, 100.0),
    (Scene::Stars, 5.0),
    (Scene::Stars, 20.0),
    (Scene::Stars, 100.0),
    (Scene::Phantom, 5.0),
    (Scene::Phantom, 20.0),
];
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
const SHAPE: [usize; 2] = [128, 128];
/// Steps of Richardson-Lucy that the best is looked for among.
const STEPS: usize = 300;

fn main() {
    let argument =
        |i: usize, usual: u32| std::env::args().nth(i).and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (images, seed) = (argument(1, 4), u64::from(argument(2, 1)));
    if std::env::args().nth(3).is_none_or(|a| a != "blurred") {
        noise_alone(images, seed);
    }
    noise_and_blur(images, seed);
}

fn noise_alone(images: u32, seed: u64) {
    let names = ["noisy", "Gaussian*", "GAT+median", "GAT+Wiener", "GAT+NLM", "GAT+TV", "BM3D", "GAT+BM3D"];
    print!("{:<10} {:>5}", "scene", "peak");
    names.iter().for_each(|n| print!(" {n:>10}"));
    println!("\n(* the best of seven widths)");
    for (scene, peak) in ROWS {
        let mut means = [0.0; 8];
        for index in 0..images {
            let scores = scores(scene, peak, seed, index);
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / f64::from(images));
        }
        print!("{:<10} {peak:>5}", scene.name());
        means.iter().for_each(|m| print!(" {m:>10.1}"));
        println!();
    }
    println!();
}

fn noise_and_blur(images: u32, seed: u64) {
    let names =
        ["noisy", "RL30", "RL best", "RL stop", "steps", "best at", "RL-TV best", "RL-TV stop", "Wiener*"];
    print!("{:<10} {:>5} {:>5}", "scene", "sigma", "peak");
    names.iter().for_each(|n| print!(" {n:>10}"));
    println!("\n(* the best of six balances)");
    for (scene, sigma, peak) in BLURRED {
        let mut means = [0.0; 9];
        for index in 0..images {
            let scores = deconvolved(scene, sigma, peak, seed, index);
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / f64::from(images));
        }
        print!("{:<10} {sigma:>5} {peak:>5}", scene.name());
        means.iter().for_each(|m| print!(" {m:>10.2}"));
        println!();
    }
}

fn scores(scene: Scene, peak: f64, seed: u64, index: u32) -> [f64; 8] {
    let truth = scene.generate(seed, index, &SHAPE).expect("a scene of this size");
    let camera = Camera::for_peak(peak);
    let y = camera.take(&truth, &SHAPE, seed, index).expect("a picture").values;
    let wide: Vec<f64> = truth.iter().map(|&v| v.into()).collect();
    let score = |electrons: &[f32]| psnr(&wide, electrons, camera.background, peak);
    let run = |m: &Method, x: &[f32], s: f32| m.run(x, &SHAPE, Noise::white(s)).expect("a denoised image");
    let stable = |name: &str| {
        let method = Method::by_name(name).expect("a method");
        let (electrons, read_noise) = (Electrons(y.as_slice()), Electrons(camera.read_noise as f32));
        let done = stabilised(&method, electrons, &SHAPE, read_noise, &Correlation::WHITE);
        score(&done.expect("a denoised image").0)
    };
    let widths = [0.5, 0.7, 0.9, 1.2, 1.6, 2.2, 3.0];
    let blurred = |sigma| score(&run(&Method::Gaussian(Gaussian { sigma }), &y, 1.0));
    // One standard deviation for the whole image: that of its mean. The background goes off first: BM3D has a
    // threshold, and zero is where it pulls.
    let mean = y.iter().map(|&v| f64::from(v).max(0.0)).sum::<f64>() / y.len() as f64;
    let sigma = (mean + camera.read_noise.powi(2)).sqrt() as f32;
    let level = camera.background as f32;
    let lifted: Vec<f32> = y.iter().map(|v| v - level).collect();
    let plain: Vec<f32> =
        run(&Method::by_name("bm3d").expect("a method"), &lifted, sigma).iter().map(|v| v + level).collect();
    [
        score(&y),
        widths.map(blurred).into_iter().fold(0.0, f64::max),
        stable("median"),
        stable("wiener"),
        stable("nlm"),
        stable("tv"),
        score(&plain),
        stable("bm3d"),
    ]
}

fn psnr(truth: &[f64], electrons: &[f32], background: f64, peak: f64) -> f64 {
    let image: Vec<f64> =
        electrons.iter().map(|&v| ((f64::from(v) - background) / peak).clamp(0.0, 1.5)).collect();
    let view = |x| ImageRef::new(x, &SHAPE).expect("an image");
    let pair = Pair::new(view(truth), view(&image), None, Rounding::Keep, Crop::Nothing).expect("a pair");
    intensity::psnr(&pair, 1.0).expect("a range")
}

fn deconvolved(scene: Scene, sigma: f64, peak: f64, seed: u64, index: u32) -> [f64; 9] {
    let truth = scene.generate(seed, index, &SHAPE).expect("a scene of this size");
    let psf = Psf::gaussian(&[sigma, sigma]).expect("a PSF");
    let camera = Camera { psf: Some(psf.clone()), ..Camera::for_peak(peak) };
    let y = camera.take(&truth, &SHAPE, seed, index).expect("a picture").values;
    let wide: Vec<f64> = truth.iter().map(|&v| v.into()).collect();
    let usual = RichardsonLucy {
        background: camera.background as f32,
        read_noise: camera.read_noise as f32,
        ..RichardsonLucy::USUAL
    };
    let smooth = RichardsonLucy { total_variation: 0.01, ..usual };
    let curve = |settings: RichardsonLucy| {
        let mut curve = Vec::new();
        let fixed = RichardsonLucy { stop: Stop::Steps(STEPS), ..settings };
        fixed
            .watched(Electrons(&y), &SHAPE, &psf, |_, x| curve.push(psnr(&wide, x, 0.0, peak)))
            .expect("a deconvolved image");
        // Its own result is a mixture of steps, which no one step of the curve is.
        let stopped = settings.run(Electrons(&y), &SHAPE, &psf).expect("a deconvolved image");
        (curve, psnr(&wide, &stopped.values, 0.0, peak), stopped.steps)
    };
    let (plain, stopped, steps) = curve(usual);
    let (flat, flat_stopped, _) = curve(smooth);
    let best = |c: &[f64]| (0..c.len()).max_by(|&a, &b| c[a].total_cmp(&c[b])).expect("steps");
    let lifted: Vec<f32> = y.iter().map(|v| v - camera.background as f32).collect();
    let balances = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0];
    let filtered = |b| {
        psnr(
            &wide,
            &wiener::deconvolve(&lifted, &SHAPE, &psf, b, &Correlation::WHITE).expect("an image"),
            0.0,
            peak,
        )
    };
    [
        psnr(&wide, &y, camera.background, peak),
        plain[29],
        plain[best(&plain)],
        stopped,
        steps as f64,
        (best(&plain) + 1) as f64,
        flat[best(&flat)],
        flat_stopped,
        balances.map(filtered).into_iter().fold(0.0, f64::max),
    ]
}
