//! What is left over beside an image in noise that neighbours share, under the right camera and under one that takes it for white.

use clearshot_metrics::ImageRef;
use clearshot_metrics::residual::{chi2, whiteness};
use clearshot_model::Model;
use clearshot_physics::Correlation;
use clearshot_physics::correlation::FILTER;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_restore::learned::{Camera, Measured, Restorer, Settings, Values};
use clearshot_runtime::Device;
use clearshot_tensor::noise::Key;

const SIDE: usize = 192;
const SIZE: [usize; 2] = [SIDE, SIDE];

fn camera(correlation: Correlation) -> Camera {
    Camera { gain: 0.5, offset: 100.0, read_noise: 2.0, correlation, ..Camera::default() }
}

/// Counts without noise.
fn truth() -> Vec<f32> {
    let light = |i: usize| {
        let (y, x) = ((i / SIDE) as f32, (i % SIDE) as f32);
        let spot = |v: f32, u: f32| (-((y - v).powi(2) + (x - u).powi(2)) / 200.0).exp();
        20.0 + 60.0 * (spot(50.0, 60.0) + spot(130.0, 100.0) + spot(90.0, 150.0))
    };
    (0..SIDE * SIDE).map(|i| 100.0 + light(i) / 0.5).collect()
}

/// The same with noise that neighbours share as the camera says.
fn measured(truth: &[f32], camera: &Camera, seed: u64) -> Vec<f32> {
    let mut white = vec![0f32; SIDE * SIDE];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut white);
    let (taps, half) = (camera.correlation.filter(), FILTER / 2);
    let noise = |i: usize| -> f64 {
        let at = |k: usize| {
            let y = (i / SIDE + k / FILTER + SIDE - half) % SIDE;
            let x = (i % SIDE + k % FILTER + SIDE - half) % SIDE;
            f64::from(white[y * SIDE + x])
        };
        taps.iter().enumerate().map(|(k, t)| t * at(k)).sum()
    };
    (0..SIDE * SIDE).map(|i| truth[i] + (noise(i) * camera.deviation(truth[i].into())) as f32).collect()
}

#[test]
fn the_right_covariance_leaves_white_noise() {
    let correlation = Correlation::gaussian([0.5, 0.7]);
    let (right, wrong) = (camera(correlation), camera(Correlation::WHITE));
    let truth = truth();
    let values = measured(&truth, &right, 5);
    let image = {
        let device = Device::cpu(None);
        let restorer = Restorer::new(Model::builtin().unwrap(), Settings::default(), device).unwrap();
        let source = Values { values: &values, size: &SIZE, channels: 1 };
        Measured::read(&source, restorer.scratch()).unwrap()
    };
    // Beside the truth.
    let found = LeftOver::of(&image, &truth, &right).unwrap();
    assert!(found.along_x.abs() < 0.03 && found.along_y.abs() < 0.03, "{found:?}");
    assert!(found.in_words().is_none());
    let found = LeftOver::of(&image, &truth, &wrong).unwrap();
    for (axis, along) in [(0, found.along_y), (1, found.along_x)] {
        let lag = if axis == 0 { correlation.at(1, 0) } else { correlation.at(0, 1) };
        assert!((along - lag).abs() < 0.03, "{found:?}");
    }
    assert!(found.in_words().unwrap().contains("the noise is correlated in another way"));
    // The same by tests: of whiteness, and of chi2, whose spread grows by what is shared.
    let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let (y, mean) = (wide(&values), wide(&truth));
    let variance: Vec<f64> = mean.iter().map(|m| right.deviation(*m).powi(2)).collect();
    let z: Vec<f64> = (0..y.len()).map(|i| (y[i] - mean[i]) / variance[i].sqrt()).collect();
    let view = |v| ImageRef::new(v, &SIZE).unwrap();
    let spectrum = correlation.spectrum(SIZE);
    assert!(whiteness(view(&z), Some(&spectrum)).unwrap().p > 0.01);
    assert!(whiteness(view(&z), None).unwrap().p < 1e-6);
    let got = chi2(view(&y), view(&mean), view(&variance), None).unwrap();
    let shared = got.with_shared(correlation.squares());
    assert!(shared.is_consistent() && shared.tolerance() > 1.3 * got.tolerance(), "{got:?}");
}

/// Of many images in noise that neighbours share, chi2 strays as far as it says.
#[test]
fn the_spread_of_chi2_knows_what_is_shared() {
    let correlation = Correlation::gaussian([0.8, 0.8]);
    let camera = camera(correlation);
    let flat = vec![150f32; SIDE * SIDE];
    let means: Vec<f64> = (0..24)
        .map(|seed| {
            let noise = measured(&flat, &camera, 100 + seed);
            let square = |v: &f32| (f64::from(v - 150.0) / camera.deviation(150.0)).powi(2);
            noise.iter().map(square).sum::<f64>() / noise.len() as f64
        })
        .collect();
    let spread = (means.iter().map(|m| (m - 1.0).powi(2)).sum::<f64>() / 24.0).sqrt();
    let expected = (2.0 * correlation.squares() / (SIDE * SIDE) as f64).sqrt();
    let white = (2.0 / (SIDE * SIDE) as f64).sqrt();
    // A standard deviation from 24 numbers is known to 15 %.
    assert!((spread / expected - 1.0).abs() < 0.45, "{spread} for {expected}");
    assert!(expected > 1.8 * white);
}

/// The default model in such noise: with the right camera it leaves the noise, with a white one something else.
#[test]
fn the_default_model_leaves_the_noise_it_is_told_of() {
    let right = camera(Correlation::gaussian([0.6, 0.6]));
    let truth = truth();
    let values = measured(&truth, &right, 9);
    let device = Device::cpu(None);
    let mut restorer = Restorer::new(Model::builtin().unwrap(), Settings::default(), device).unwrap();
    let mut judged = |camera: &Camera| {
        let source = Values { values: &values, size: &SIZE, channels: 1 };
        let image = [Measured::read(&source, restorer.scratch()).unwrap()];
        let made = restorer.restore(&image, &[0], Some(camera), &mut || Ok(())).unwrap().remove(0);
        (made.mean_chi2.unwrap(), LeftOver::of(&image[0], &made.image, camera).unwrap())
    };
    let (chi2, found) = judged(&right);
    println!("right camera: chi2 {chi2:.3} {found:?}");
    assert!((0.97..1.07).contains(&chi2) && found.in_words().is_none(), "{chi2} {found:?}");
    let (chi2, found) = judged(&camera(Correlation::WHITE));
    println!("white camera: chi2 {chi2:.3} {found:?}");
    assert!(
        found.in_words().is_some_and(|s| s.contains("the noise is correlated in another way")),
        "{chi2} {found:?}"
    );
}
