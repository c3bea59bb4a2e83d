//! What must hold for the classical restorers whatever the image: oracles, refusals, threads.

use clearshot_physics::{Boundary, Correlation, Electrons, Operator, Psf};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{Edges, METHODS, Method, Noise, nlm, stabilised, wiener};
use clearshot_tensor::noise::Key;

fn noise(n: usize, stream: u32) -> Vec<f32> {
    let mut x = vec![0f32; n];
    Key { seed: 3, step: 0, stream }.fill_normal(0, &mut x);
    x
}

/// A square on a slope with noise.
fn picture(shape: &[usize]) -> Vec<f32> {
    let (h, w) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let pixel = |i: usize| {
        let (y, x) = (i / w % h, i % w);
        let inside = (h / 4..h / 2 + 1).contains(&y) && (w / 4..w / 2 + 1).contains(&x);
        10.0 + 0.1 * x as f32 + if inside { 8.0 } else { 0.0 }
    };
    let n = shape.iter().product();
    noise(n, 1).iter().enumerate().map(|(i, v)| pixel(i) + v).collect()
}

#[test]
fn a_constant_stays_one_at_any_size() {
    for shape in [&[1, 1][..], &[1, 9], &[5, 3], &[8, 8], &[17, 31], &[3, 11, 9], &[1, 12, 13]] {
        let flat = vec![7.25f32; shape.iter().product()];
        for row in &METHODS {
            let out = row.method.run(&flat, shape, Noise::white(1.0)).unwrap();
            assert!(out.iter().all(|v| (v - 7.25).abs() < 1e-4), "{} {shape:?}: {out:?}", row.name);
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let shape = [2, 61, 47];
    let image = picture(&shape);
    let psf = Psf::gaussian_fitting(&[0.8, 1.5, 1.5], &shape).unwrap().psf;
    let all = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut out: Vec<Vec<f32>> =
                METHODS.iter().map(|r| r.method.run(&image, &shape, Noise::white(1.0)).unwrap()).collect();
            let lucy = RichardsonLucy { total_variation: 0.01, ..RichardsonLucy::USUAL };
            out.push(lucy.run(Electrons(&image), &shape, &psf).unwrap().values);
            out.push(wiener::deconvolve(&image, &shape, &psf, 0.01, &Correlation::WHITE).unwrap());
            out
        })
    };
    let one = all(1);
    for threads in [2, 3, 5] {
        assert!(all(threads) == one, "{threads} threads");
    }
}

/// The definition, pixel by pixel in f64; in correlated noise the planes of a volume are independent.
#[test]
fn non_local_means_is_its_definition() {
    let (white, correlated) = (Correlation::WHITE, Correlation::gaussian([0.5, 0.9]));
    let (plane, volume) = ([1usize, 13, 18], [5, 9, 8]);
    for (shape, correlation) in [(plane, white), (volume, white), (plane, correlated), (volume, correlated)] {
        let image = picture(&shape);
        let (p, s, h) = (1isize, 2isize, 0.9);
        let settings = nlm::NonLocalMeans { patch_radius: 1, search_radius: 2, strength: h as f32 };
        let noise = Noise { deviation: 1.0, correlation };
        let got = Method::NonLocalMeans(settings).run(&image, &shape, noise).unwrap();
        let mirror = |q: isize, n: usize| {
            let q = q.rem_euclid(2 * n as isize) as usize;
            if q < n { q } else { 2 * n - 1 - q }
        };
        let at = |q: [isize; 3]| {
            let [z, y, x] = [0, 1, 2].map(|a| mirror(q[a], shape[a]));
            f64::from(image[(z * shape[1] + y) * shape[2] + x])
        };
        let range = |a: usize, r: isize| if shape[a] > 1 { -r..=r } else { 0..=0 };
        let offsets = |r: isize| {
            let mut all = Vec::new();
            for z in range(0, r) {
                for y in range(1, r) {
                    all.extend(range(2, r).map(|x| [z, y, x]));
                }
            }
            all
        };
        let plus = |a: [isize; 3], b: [isize; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        for (i, value) in got.iter().enumerate() {
            let here = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]].map(|v| v as isize);
            let (mut total, mut weights) = (0.0, 0.0);
            for d in offsets(s) {
                let patch = offsets(p);
                let distance: f64 = patch
                    .iter()
                    .map(|&o| (at(plus(here, o)) - at(plus(plus(here, o), d))).powi(2))
                    .sum::<f64>();
                let shared = if d[0] == 0 { correlation.at(d[1], d[2]) } else { 0.0 };
                let free = 2.0 * (1.0 - shared) * patch.len() as f64;
                let x = (distance - free).max(0.0) / (h * h * patch.len() as f64);
                let weight = if x > 5.0 { 0.0 } else { (-x).exp() };
                total += weight * at(plus(here, d));
                weights += weight;
            }
            assert!((f64::from(*value) - total / weights).abs() < 2e-4, "{i}: {value} {}", total / weights);
        }
    }
}

/// With a PSF of one pixel, one step gives the data less the background.
#[test]
fn richardson_lucy_without_blur_is_done_in_one_step() {
    let y: Vec<f32> = (0..35).map(|i| (i % 7) as f32 + 0.5).collect();
    let psf = Psf::delta(2).unwrap();
    for edges in [Edges::Zero, Edges::Reflect, Edges::Periodic] {
        let settings = RichardsonLucy { edges, stop: Stop::Steps(1), ..RichardsonLucy::USUAL };
        let got = settings.run(Electrons(&y), &[5, 7], &psf).unwrap().values;
        assert!(got.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn richardson_lucy_keeps_the_flux_and_leaves_the_background_out() {
    let shape = [40, 33];
    let mut truth = vec![0f32; 40 * 33];
    truth[20 * 33 + 15] = 4000.0;
    truth[12 * 33 + 22] = 2500.0;
    let psf = Psf::gaussian(&[1.7, 1.7]).unwrap();
    let operator =
        clearshot_physics::Operator::blur(shape, &psf, clearshot_physics::Boundary::Periodic).unwrap();
    let blurred = operator.apply(&truth).unwrap();
    let settings = RichardsonLucy { edges: Edges::Periodic, stop: Stop::Steps(3), ..RichardsonLucy::USUAL };
    let sum: f32 = settings.run(Electrons(&blurred), &shape, &psf).unwrap().values.iter().sum();
    assert!((sum - 6500.0).abs() < 0.1, "{sum}");
    let y: Vec<f32> = blurred.iter().map(|v| v + 10.0).collect();
    let settings = RichardsonLucy { background: 10.0, stop: Stop::Steps(200), ..settings };
    let got = settings.run(Electrons(&y), &shape, &psf).unwrap();
    // Most of the light is back in its pixel and the neighbours.
    let near = |c: usize| -> f32 { (0..9).map(|k| got.values[c - 34 + k / 3 * 33 + k % 3]).sum() };
    assert!(near(20 * 33 + 15) > 3900.0 && near(12 * 33 + 22) > 2430.0);
    assert!(got.chi2.windows(2).all(|w| w[1] <= w[0] * (1.0 + 1e-6)));
}

/// Every step makes the data likelier, with a background, read noise, a TV term as weak as is usual, at every edge, in planes and
/// volumes; and without a background each step's prediction has the light of the data.
#[test]
fn every_step_of_richardson_lucy_is_likelier_and_keeps_the_flux() {
    let cases: [(&[usize], &[f64]); 2] = [(&[41, 38], &[1.1, 1.6]), (&[9, 21, 18], &[0.8, 1.2, 1.2])];
    for (shape, sigmas) in cases {
        let n: usize = shape.iter().product();
        let psf = Psf::gaussian_fitting(sigmas, shape).unwrap().psf;
        let key = Key { seed: 31, step: 0, stream: 0 };
        let scene: Vec<f64> =
            (0..n).map(|i| if key.uniform(i as u64) < 0.02 { 900.0 } else { 4.0 }).collect();
        for (edges, boundary) in [
            (Edges::Periodic, Boundary::Periodic),
            (Edges::Reflect, Boundary::Reflect),
            (Edges::Zero, Boundary::Zero),
        ] {
            let operator = Operator::blur(shape, &psf, boundary).unwrap();
            let mean = operator.apply(&scene).unwrap();
            for (background, total_variation) in [(0.0, 0.0), (7.0, 0.0), (7.0, 0.01)] {
                let draw =
                    |i: usize| clearshot_physics::poisson::draw(mean[i].max(0.0) + background, key, i as u64);
                let y: Vec<f32> = (0..n).map(|i| draw(i) as f32).collect();
                let settings = RichardsonLucy {
                    background: background as f32,
                    total_variation,
                    edges,
                    stop: Stop::Steps(40),
                    ..RichardsonLucy::USUAL
                };
                let (mut last, total) = (f64::INFINITY, y.iter().map(|&v| f64::from(v)).sum::<f64>());
                let watch = |step: usize, x: &[f32]| {
                    let x: Vec<f64> = x.iter().map(|&v| v.into()).collect();
                    let seen = operator.apply(&x).unwrap();
                    let likely = |(m, y): (&f64, &f32)| {
                        let m = m.max(0.0) + background;
                        m - f64::from(*y) * m.max(1e-30).ln()
                    };
                    let now: f64 = seen.iter().zip(&y).map(likely).sum();
                    let what = format!(
                        "{shape:?} {edges:?} background {background} TV {total_variation} step {step}"
                    );
                    assert!(now < last, "{what}: {now} after {last}");
                    last = now;
                    if background == 0.0 {
                        let flux = seen.iter().sum::<f64>();
                        assert!((flux / total - 1.0).abs() < 1e-6, "{what}: {flux} for {total}");
                    }
                };
                settings.watched(Electrons(&y), shape, &psf, watch).unwrap();
            }
        }
    }
}

#[test]
fn total_variation_flattens_what_it_deconvolves() {
    let shape = [48, 48];
    let image: Vec<f32> = picture(&shape).iter().map(|v| v.max(0.0)).collect();
    let psf = Psf::gaussian(&[1.5, 1.5]).unwrap();
    let run = |total_variation| {
        let settings = RichardsonLucy { total_variation, stop: Stop::Steps(40), ..RichardsonLucy::USUAL };
        settings.run(Electrons(&image), &shape, &psf).unwrap().values
    };
    let roughness = |x: &[f32]| x.windows(2).map(|w| (w[1] - w[0]).abs()).sum::<f32>();
    assert!(roughness(&run(0.02)) < 0.8 * roughness(&run(0.0)));
}

/// Data of unit noise about a flat field: the mean of what comes back is the mean that was measured.
#[test]
fn stabilising_is_unbiased() {
    let shape = [64, 64];
    for (mean, sigma) in [(0.8, 1.0), (4.0, 1.5), (60.0, 2.0)] {
        let key = Key { seed: 5, step: 0, stream: 0 };
        let y: Vec<f32> = (0..64 * 64)
            .map(|i| {
                clearshot_physics::poisson::draw(mean, key, i) as f32 + sigma * key.normal(i + (1 << 40))
            })
            .collect();
        let average = y.iter().sum::<f32>() / 4096.0;
        for name in ["gaussian", "bm3d"] {
            let method = Method::by_name(name).unwrap();
            let out =
                stabilised(&method, Electrons(&y), &shape, Electrons(sigma), &Correlation::WHITE).unwrap().0;
            let got = out.iter().sum::<f32>() / 4096.0;
            // What remains of the noise bends through the inverse; BM3D leaves less of it than the Gaussian.
            let limit = 0.06 * ((mean as f32) + sigma * sigma).sqrt();
            assert!((got - average).abs() < limit, "{name} {mean}: {got} for {average}");
        }
    }
}

#[test]
fn wrong_input_is_named() {
    let image = picture(&[12, 12]);
    let psf = Psf::gaussian(&[1.0, 1.0]).unwrap();
    for row in &METHODS {
        let mut bad = image.clone();
        bad[5] = f32::INFINITY;
        let said = row.method.run(&bad, &[12, 12], Noise::white(1.0)).unwrap_err();
        assert_eq!(said, RestoreError::Pixel { index: 5, got: f32::INFINITY });
        assert!(matches!(row.method.run(&image, &[144], Noise::white(1.0)), Err(RestoreError::Shape { .. })));
        assert!(matches!(
            row.method.run(&image, &[11, 12], Noise::white(1.0)),
            Err(RestoreError::Length { .. })
        ));
    }
    for noise in [0.0, -1.0, f32::NAN] {
        assert!(Method::by_name("bm3d").unwrap().run(&image, &[12, 12], Noise::white(noise)).is_err());
    }
    let said = Method::by_name("bm4d").unwrap_err().to_string();
    assert_eq!(said, "no method is called 'bm4d'; there are gaussian, median, wiener, nlm, tv, bm3d");
    let lucy = RichardsonLucy::USUAL;
    let said = lucy.run(Electrons(&image), &[1, 12, 12], &psf).unwrap_err().to_string();
    assert_eq!(said, "a PSF of 2 axes for an image of 3: give a PSF with the image's axes");
    for bad in [
        RichardsonLucy { background: -1.0, ..lucy },
        RichardsonLucy { read_noise: f32::NAN, ..lucy },
        RichardsonLucy { total_variation: 3.0, ..lucy },
        RichardsonLucy { stop: Stop::Steps(0), ..lucy },
        RichardsonLucy { stop: Stop::Discrepancy { target: 0.0, most: 9 }, ..lucy },
    ] {
        assert!(matches!(bad.run(Electrons(&image), &[12, 12], &psf), Err(RestoreError::Parameter { .. })));
    }
    assert!(wiener::deconvolve(&image, &[12, 12], &psf, 0.0, &Correlation::WHITE).is_err());
}

/// Wiener's deconvolution of a blurred image without noise is the image, as far as the PSF leaves of it.
#[test]
fn wiener_undoes_a_blur() {
    let shape = [32, 45];
    // Waves that their mirror images continue.
    let cosine = |k: f32, i: usize, n: f32| (k * std::f32::consts::PI * (i as f32 + 0.5) / n).cos();
    let wave = |i: usize| cosine(3.0, i / 45, 32.0) + cosine(4.0, i % 45, 45.0) + 3.0;
    let truth: Vec<f32> = (0..32 * 45).map(wave).collect();
    let psf = Psf::gaussian(&[1.0, 1.0]).unwrap();
    let operator =
        clearshot_physics::Operator::blur(shape, &psf, clearshot_physics::Boundary::Reflect).unwrap();
    let y = operator.apply(&truth).unwrap();
    let got = wiener::deconvolve(&y, &shape, &psf, 1e-5, &Correlation::WHITE).unwrap();
    let error = |x: &[f32]| x.iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error(&got) < 2e-4 && error(&y) > 0.05, "{} {}", error(&got), error(&y));
}
