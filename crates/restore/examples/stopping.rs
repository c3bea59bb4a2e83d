//! Where Richardson-Lucy stops, image by image: the best of the first 300 steps, the steps of its own stop (at dark and at
//! bright places), and the PSNR of both (range 1, clipped to [0, 1.5]). Every kind of scene, four peaks, three PSFs, sides
//! of 64 to 256; the argument is the seeds. The example `scores` has means.
//!
//! `cargo run --release -p clearshot-restore --example stopping -- 31,32`

use clearshot_physics::{Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_scenes::{Camera, Scene, benchmark_scenes};

const SIDES: [usize; 8] = [64, 128, 96, 128, 64, 96, 160, 256];
const STEPS: usize = 300;

fn main() {
    let seeds = std::env::args().nth(1).unwrap_or_else(|| "31".into());
    let seeds: Vec<u64> = seeds.split(',').map(|s| s.parse().expect("a seed")).collect();
    println!("scene        peak sigma side seed | best at, dB | stop at, dB | lost");
    let mut rows: Vec<(Scene, usize, f64)> = Vec::new();
    for &seed in &seeds {
        for kind in benchmark_scenes() {
            for (i, peak) in [5.0, 20.0, 100.0, 1000.0].into_iter().enumerate() {
                for (j, sigma) in [1.0, 1.5, 2.5].into_iter().enumerate() {
                    let side = SIDES[(rows.len() + seed as usize) % SIDES.len()];
                    let lost = row(kind.scene, peak, sigma, side, seed, (3 * i + j) as u32);
                    rows.push((kind.scene, side, lost));
                }
            }
        }
    }
    let summary = |name: &str, lost: Vec<f64>| {
        let within = lost.iter().filter(|l| **l <= 0.5).count();
        let (mean, worst) =
            (lost.iter().sum::<f64>() / lost.len() as f64, lost.iter().fold(0.0, |a: f64, b| a.max(*b)));
        println!("{name}: {within} of {} within 0.5 dB, mean {mean:.2}, worst {worst:.2}", lost.len());
    };
    for kind in benchmark_scenes() {
        summary(kind.name, rows.iter().filter(|r| r.0 == kind.scene).map(|r| r.2).collect());
    }
    for side in [64, 96, 128, 160, 256] {
        summary(&format!("side {side}"), rows.iter().filter(|r| r.1 == side).map(|r| r.2).collect());
    }
    summary("all", rows.iter().map(|r| r.2).collect());
}

/// Prints what one image loses, and returns it.
fn row(scene: Scene, peak: f64, sigma: f64, side: usize, seed: u64, index: u32) -> f64 {
    let shape = [side, side];
    let psf = Psf::gaussian(&[sigma, sigma]).expect("a PSF");
    let camera = Camera { psf: Some(psf.clone()), ..Camera::for_peak(peak) };
    let truth = scene.generate(seed, index, &shape).expect("a scene");
    let y = camera.take(&truth, &shape, seed, index).expect("a picture").values;
    let psnr = |x: &[f32]| {
        let square = |(x, t): (&f32, &f32)| ((f64::from(*x) / peak).clamp(0.0, 1.5) - f64::from(*t)).powi(2);
        -10.0 * (x.iter().zip(&truth).map(square).sum::<f64>() / x.len() as f64).log10()
    };
    let settings = RichardsonLucy {
        background: camera.background as f32,
        read_noise: camera.read_noise as f32,
        ..RichardsonLucy::USUAL
    };
    let (mut best, mut at) = (f64::NEG_INFINITY, 0);
    let watch = |step, x: &[f32]| {
        let score = psnr(x);
        if score > best {
            (best, at) = (score, step);
        }
    };
    let fixed = RichardsonLucy { stop: Stop::Steps(STEPS), ..settings };
    fixed.watched(Electrons(&y), &shape, &psf, watch).expect("an image");
    let stopped = settings.run(Electrons(&y), &shape, &psf).expect("an image");
    let score = psnr(&stopped.values);
    let (least, most) = stopped.levels.map_or((0, 0), |l| (l.least(), l.most()));
    println!(
        "{:<12} {peak:>4} {sigma:>5} {side:>4} {seed:>4} | {at:>3} {best:.2} | {least:>3} {most:>3} {score:.2} | {:.2}",
        scene.name(),
        best - score
    );
    best - score
}
