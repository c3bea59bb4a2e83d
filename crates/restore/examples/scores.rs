//! The scores of the classical denoisers on generated scenes: PSNR in dB with range 1 after clipping to [0, 1.5], the
//! mean over some images (the first argument, 4 if there is none).
//!
//! `cargo run --release -p clearshot-restore --example scores`

use clearshot_metrics::{Crop, ImageRef, Pair, Rounding, intensity};
use clearshot_physics::Electrons;
use clearshot_restore::classical::{Method, gaussian::Gaussian, stabilised};
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
const SHAPE: [usize; 2] = [128, 128];

fn main() {
    let images: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(4);
    let names = ["noisy", "Gaussian*", "GAT+median", "GAT+Wiener", "GAT+NLM", "GAT+TV", "BM3D", "GAT+BM3D"];
    print!("{:<10} {:>5}", "scene", "peak");
    names.iter().for_each(|n| print!(" {n:>10}"));
    println!("\n(* the best of seven widths)");
    for (scene, peak) in ROWS {
        let mut means = [0.0; 8];
        for index in 0..images {
            let scores = scores(scene, peak, index);
            means.iter_mut().zip(scores).for_each(|(m, s)| *m += s / f64::from(images));
        }
        print!("{:<10} {peak:>5}", scene.name());
        means.iter().for_each(|m| print!(" {m:>10.1}"));
        println!();
    }
}

fn scores(scene: Scene, peak: f64, index: u32) -> [f64; 8] {
    let truth = scene.generate(1, index, &SHAPE).expect("a scene of this size");
    let camera = Camera::for_peak(peak);
    let y = camera.take(&truth, &SHAPE, 1, index).expect("a picture").values;
    let wide: Vec<f64> = truth.iter().map(|&v| v.into()).collect();
    let score = |electrons: &[f32]| {
        let clip = |&v: &f32| ((f64::from(v) - camera.background) / peak).clamp(0.0, 1.5);
        let image: Vec<f64> = electrons.iter().map(clip).collect();
        let view = |x| ImageRef::new(x, &SHAPE).expect("an image");
        let pair = Pair::new(view(&wide), view(&image), None, Rounding::Keep, Crop::Nothing).expect("a pair");
        intensity::psnr(&pair, 1.0).expect("a range")
    };
    let run = |m: &Method, x: &[f32], s: f32| m.run(x, &SHAPE, s).expect("a denoised image");
    let stable = |name: &str| {
        let method = Method::by_name(name).expect("a method");
        let done = stabilised(&method, Electrons(&y), &SHAPE, Electrons(camera.read_noise as f32));
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
