//! Restorers that know how the noise of neighbouring pixels is correlated: beside the bm3d package, beside themselves when
//! they take the noise for white, and in closed form.

use clearshot_physics::correlation::FILTER;
use clearshot_physics::{Correlation, Electrons, Psf};
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{METHODS, Method, Noise, Reach, wiener};
use clearshot_scenes::Scene;
use clearshot_tensor::noise::Key;
use clearshot_tensor::store::Store;
use std::path::Path;

const SHAPE: [usize; 2] = [96, 96];

/// Noise of variance 1, periodic.
fn unit_noise(correlation: &Correlation, [height, width]: [usize; 2], seed: u64) -> Vec<f32> {
    let mut white = vec![0f32; height * width];
    Key { seed, step: 0, stream: 7 }.fill_normal(0, &mut white);
    let (taps, half) = (correlation.filter(), FILTER / 2);
    let at = |i: usize| {
        let tap = |(k, t): (usize, &f64)| {
            let y = (i / width + k / FILTER + height - half) % height;
            let x = (i % width + k % FILTER + width - half) % width;
            t * f64::from(white[y * width + x])
        };
        taps.iter().enumerate().map(tap).sum::<f64>() as f32
    };
    (0..height * width).map(at).collect()
}

fn seen(truth: &[f32], correlation: &Correlation, deviation: f32, seed: u64) -> Vec<f32> {
    let noise = unit_noise(correlation, SHAPE, seed);
    truth.iter().zip(noise).map(|(t, n)| t + deviation * n).collect()
}

/// In dB, with range 1.
fn psnr(image: &[f32], truth: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
    -10.0 * (image.iter().zip(truth).map(square).sum::<f64>() / truth.len() as f64).log10()
}

fn method(name: &str) -> Method {
    Method::by_name(name).unwrap()
}

#[test]
fn bm3d_is_as_good_as_the_bm3d_package() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../refs/restore/bm3d.safetensors");
    let store = Store::read(&path).unwrap();
    let values =
        |key: String| -> Vec<f32> { store.tensors[&key].to_f64().iter().map(|&v| v as f32).collect() };
    let truth = values("in.truth".into());
    for name in ["both", "rows"] {
        let lags = values(format!("in.{name}_lags"));
        let at = |dy: isize, dx: isize| f64::from(lags[dy.unsigned_abs() * 5 + dx.unsigned_abs()]);
        let noise = Noise { deviation: 0.1, correlation: Correlation::from_lags(at) };
        let got = method("bm3d").run(&values(format!("in.{name}")), &[80, 80], noise).unwrap();
        let theirs = values(format!("out.{name}"));
        let (own, peer) = (psnr(&got, &truth), psnr(&theirs, &truth));
        assert!(own > peer - 0.3, "{name}: {own:.2} dB beside {peer:.2}");
        // Nor is it another image: what differs is far less than the noise.
        let apart = psnr(&got, &theirs);
        assert!(apart > 30.0, "{name}: {apart:.2} dB");
    }
}

/// What a method gains by the true correlation, over taking the noise for white.
fn gain(method: &Method, sigma: f64) -> f64 {
    let correlation = Correlation::gaussian([sigma; 2]);
    let mut gain = 0.0;
    for (seed, scene) in [(1, Scene::Nuclei), (2, Scene::Filaments)] {
        let truth = scene.generate(seed, 0, &SHAPE).unwrap();
        let y = seen(&truth, &correlation, 0.1, seed);
        let with = method.run(&y, &SHAPE, Noise { deviation: 0.1, correlation }).unwrap();
        let without = method.run(&y, &SHAPE, Noise::white(0.1)).unwrap();
        gain += 0.5 * (psnr(&with, &truth) - psnr(&without, &truth));
    }
    gain
}

#[test]
fn the_true_correlation_helps() {
    for (name, least) in [("bm3d", 2.0), ("nlm", 0.0)] {
        let got = gain(&method(name), 0.8);
        assert!(got > least, "{name}: {got:.2} dB");
    }
}

#[test]
fn correlation_below_what_counts_changes_no_bit() {
    let truth = Scene::Nuclei.generate(3, 0, &SHAPE).unwrap();
    let y = seen(&truth, &Correlation::WHITE, 0.1, 3);
    let correlation = Correlation::gaussian([0.2, 0.2]);
    assert!(correlation.is_white() && correlation != Correlation::WHITE);
    for name in ["bm3d", "nlm"] {
        let got = method(name).run(&y, &SHAPE, Noise { deviation: 0.1, correlation }).unwrap();
        assert_eq!(got, method(name).run(&y, &SHAPE, Noise::white(0.1)).unwrap(), "{name}");
    }
}

/// Neither the unit nor a constant matters, and a flat image stays flat, whatever the correlation: also one that no noise
/// can have.
#[test]
fn every_method_holds_in_correlated_noise() {
    let truth = Scene::Filaments.generate(4, 0, &SHAPE).unwrap();
    let correlation = Correlation::gaussian([0.4, 0.9]);
    let impossible = Correlation::from_lags(|dy, dx| if dy + dx.abs() == 1 { -0.9 } else { 0.7 });
    let y = seen(&truth, &correlation, 0.125, 4);
    for row in &METHODS {
        for correlation in [correlation, impossible] {
            let noise = |deviation| Noise { deviation, correlation };
            let plain = row.method.run(&y, &SHAPE, noise(0.125)).unwrap();
            assert!(plain.iter().all(|v| v.is_finite()), "{}", row.name);
            let doubled: Vec<f32> = y.iter().map(|v| 2.0 * v).collect();
            let got = row.method.run(&doubled, &SHAPE, noise(0.25)).unwrap();
            let same = got.iter().zip(&plain).all(|(a, b)| (a - 2.0 * b).abs() < 1e-5);
            assert!(same, "{}", row.name);
            let flat = row.method.run(&[0.75; 96 * 96], &SHAPE, noise(0.125)).unwrap();
            assert!(flat.iter().all(|v| (v - 0.75).abs() < 1e-5), "{}", row.name);
        }
    }
}

/// A piece that sees as much around it as the method asks for has the bits of the whole.
#[test]
fn pieces_have_the_bits_of_the_whole() {
    let shape = [300, 40];
    let correlation = Correlation::gaussian([0.8, 0.5]);
    let y = unit_noise(&correlation, shape, 5);
    let noise = Noise { deviation: 1.0, correlation };
    for name in ["bm3d", "nlm", "wiener"] {
        let Reach::Within { halo, align } = method(name).reach() else { panic!("{name}") };
        let whole = method(name).run(&y, &shape, noise).unwrap();
        let first = (shape[0] - halo - 60) / align * align;
        let from = first.saturating_sub(halo).next_multiple_of(align);
        let piece = method(name).run(&y[from * 40..], &[shape[0] - from, 40], noise).unwrap();
        let kept = (from + halo) * 40;
        assert!(whole[kept..] == piece[kept - from * 40..], "{name}");
    }
}

/// Without a blur each frequency is multiplied by 1 / (1 + balance P): here one row of the cosine transform.
#[test]
fn wiener_deconvolution_weighs_frequencies_by_the_noise() {
    let correlation = Correlation::gaussian([0.6, 0.9]);
    let psf = Psf::new(&[1, 1][..], vec![1.0]).unwrap();
    let [height, width] = [24, 32];
    for (v, u) in [(0, 3), (5, 0), (7, 11), (23, 31)] {
        let line = |k: usize, i: usize, n: usize| {
            (std::f64::consts::PI * (i as f64 + 0.5) * k as f64 / n as f64).cos()
        };
        let wave: Vec<f32> = (0..height * width)
            .map(|i| (line(v, i / width, height) * line(u, i % width, width)) as f32)
            .collect();
        let got = wiener::deconvolve(&wave, &[height, width], &psf, 0.3, &correlation).unwrap();
        let power = correlation.spectrum([2 * height, 2 * width])[v * 2 * width + u];
        let factor = (1.0 / (1.0 + 0.3 * power)) as f32;
        let worst = got.iter().zip(&wave).fold(0f32, |m, (g, w)| m.max((g - factor * w).abs()));
        assert!(worst < 1e-5, "{v} {u}: {worst}");
    }
}

/// Noise that the steps of Richardson-Lucy would take for structure makes them stop earlier, nearer to the best step.
#[test]
fn richardson_lucy_stops_by_the_noise_that_there_is() {
    let psf = Psf::gaussian(&[1.5, 1.5]).unwrap();
    let correlation = Correlation::gaussian([0.8, 0.8]);
    let (mut gain, mut fewer) = (0.0, 0);
    for (seed, scene) in [(1, Scene::Nuclei), (2, Scene::Filaments)] {
        let truth: Vec<f32> = scene.generate(seed, 0, &SHAPE).unwrap().iter().map(|v| 200.0 * v).collect();
        // The blur of one step's prediction is the operator itself.
        let once = RichardsonLucy { stop: Stop::Steps(1), ..RichardsonLucy::USUAL };
        let blurred = blur(&truth, &psf);
        let noise = unit_noise(&correlation, SHAPE, seed);
        let y: Vec<f32> = blurred.iter().zip(noise).map(|(m, n)| m + 10.0 + (m + 10.0).sqrt() * n).collect();
        let run = |correlation| {
            let settings =
                RichardsonLucy { background: 10.0, correlation, stop: RichardsonLucy::USUAL.stop, ..once };
            settings.run(Electrons(&y), &SHAPE, &psf).unwrap()
        };
        let (with, without) = (run(correlation), run(Correlation::WHITE));
        let score = |x: &[f32]| psnr(x, &truth);
        gain += 0.5 * (score(&with.values) - score(&without.values));
        fewer += usize::from(with.steps < without.steps);
    }
    assert!(gain > 0.5 && fewer == 2, "{gain:.2} dB, {fewer}");
}

fn blur(image: &[f32], psf: &Psf) -> Vec<f32> {
    use clearshot_physics::{Boundary, Operator};
    let wide: Vec<f64> = image.iter().map(|&v| v.into()).collect();
    let operator = Operator::blur(&SHAPE[..], psf, Boundary::Reflect).unwrap();
    operator.apply(&wide).unwrap().iter().map(|&v| v.max(0.0) as f32).collect()
}
