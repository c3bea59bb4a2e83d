//! Images that nobody means to take and everybody has: dark, full, almost without light, one pixel wide, with holes. Every
//! method gives finite numbers or says what is wrong.

use clearshot_physics::{Correlation, Electrons, Psf};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::richardson_lucy::{RichardsonLucy, Stop};
use clearshot_restore::classical::{METHODS, Noise, stabilised, wiener};
use clearshot_tensor::noise::Key;

type Outcome = Result<Vec<f32>, RestoreError>;

/// Every restorer by name, run on one image.
fn all(image: &[f32], shape: &[usize], noise: f32) -> Vec<(String, Outcome)> {
    let mut out = Vec::new();
    for row in &METHODS {
        out.push((row.name.to_string(), row.method.run(image, shape, Noise::white(noise))));
        let stable = stabilised(&row.method, Electrons(image), shape, Electrons(noise), &Correlation::WHITE);
        out.push((format!("stabilised {}", row.name), stable.map(|e| e.0)));
    }
    let sigmas = vec![0.9; shape.len()];
    let psf = Psf::gaussian_fitting(&sigmas, shape).unwrap().psf;
    for (name, stop, tv) in [
        ("least predicted error", Stop::Predicted { most: 12 }, 0.0),
        ("discrepancy", Stop::Discrepancy { target: 1.0, most: 12 }, 0.0),
        ("steps with total variation", Stop::Steps(5), 0.01),
    ] {
        let lucy = RichardsonLucy { read_noise: noise, total_variation: tv, stop, ..RichardsonLucy::USUAL };
        out.push((name.to_string(), lucy.run(Electrons(image), shape, &psf).map(|d| d.values)));
    }
    out.push((
        "wiener deconvolution".to_string(),
        wiener::deconvolve(image, shape, &psf, 0.01, &Correlation::WHITE),
    ));
    out
}

fn finite(what: &str, image: &[f32], shape: &[usize], noise: f32) {
    for (name, outcome) in all(image, shape, noise) {
        match outcome {
            Ok(values) => {
                assert_eq!(values.len(), image.len(), "{what}: {name}");
                assert!(values.iter().all(|v| v.is_finite()), "{what}: {name}");
            }
            Err(e) => panic!("{what}: {name}: {e}"),
        }
    }
}

fn drawn(n: usize) -> Vec<f32> {
    let mut values = vec![0f32; n];
    Key { seed: 9, step: 0, stream: 0 }.fill_uniform(0, &mut values);
    values
}

#[test]
fn dark_flat_and_full_images() {
    let shape = [24, 31];
    finite("zero", &[0.0; 24 * 31], &shape, 1.0);
    finite("full", &[65_535.0; 24 * 31], &shape, 2.0);
    finite("below zero", &[-40.0; 24 * 31], &shape, 2.0);
    let mut one = vec![0f32; 24 * 31];
    one[400] = 65_535.0;
    finite("one bright pixel", &one, &shape, 0.5);
    finite(
        "two values",
        &drawn(744).iter().map(|v| if *v < 0.5 { 0.0 } else { 65_535.0 }).collect::<Vec<_>>(),
        &shape,
        1.0,
    );
}

#[test]
fn less_than_a_photon() {
    // One pixel in fifty has an electron, without read noise to speak of.
    let image: Vec<f32> = drawn(40 * 40).iter().map(|v| f32::from(*v < 0.02)).collect();
    finite("0.02 electrons a pixel", &image, &[40, 40], 0.01);
    let tiny: Vec<f32> = drawn(40 * 40).iter().map(|v| v * 1e-20).collect();
    finite("1e-20", &tiny, &[40, 40], 1e-20);
}

/// Fluxes in SI units: what comes out is what the same image in another unit gives, to the bit for powers of two.
#[test]
fn the_unit_does_not_matter() {
    let shape = [40, 43];
    let image: Vec<f32> = drawn(40 * 43).iter().enumerate().map(|(i, v)| (i % 43) as f32 + 8.0 * v).collect();
    for row in &METHODS {
        let plain = row.method.run(&image, &shape, Noise::white(2.5)).unwrap();
        for power in [-110, -85, -50, -20, 9, 30] {
            let unit = 2f32.powi(power);
            let other: Vec<f32> = image.iter().map(|v| v * unit).collect();
            let got = row.method.run(&other, &shape, Noise::white(2.5 * unit)).unwrap();
            for (g, p) in got.iter().zip(&plain) {
                assert!((g / unit - p).abs() <= 1e-4, "{} at 2^{power}: {} for {p}", row.name, g / unit);
            }
            let core = [0..40, 0..43];
            let said =
                |x: &[f32], noise: f32| row.method.says(x, &shape, &core, Noise::white(noise)).unwrap();
            let (here, there) = (said(&image, 2.5), said(&other, 2.5 * unit));
            assert_eq!(
                row.method.settled(here.as_slice()),
                row.method.settled(there.as_slice()),
                "{}",
                row.name
            );
        }
    }
}

#[test]
fn sizes_of_one_pixel_and_long_strips() {
    for shape in [
        &[1usize, 1][..],
        &[1, 2],
        &[2, 1],
        &[1, 700],
        &[700, 1],
        &[2, 900],
        &[1, 1, 1],
        &[1, 5, 9],
        &[30, 1, 2],
    ] {
        let n = shape.iter().product();
        finite(&format!("{shape:?}"), &drawn(n).iter().map(|v| 30.0 * v).collect::<Vec<_>>(), shape, 2.0);
    }
}

#[test]
fn holes_are_named() {
    for hole in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut image = drawn(20 * 20);
        image[33] = hole;
        for (name, outcome) in all(&image, &[20, 20], 1.0) {
            assert!(matches!(outcome, Err(RestoreError::Pixel { index: 33, .. })), "{name}");
        }
    }
}

#[test]
fn numbers_too_large_to_square_are_named() {
    let image: Vec<f32> = drawn(20 * 20).iter().map(|v| v * 1e30).collect();
    for row in &METHODS {
        let said = row.method.run(&image, &[20, 20], Noise::white(1.0)).unwrap_err().to_string();
        assert!(said.contains("the largest value"), "{}: {said}", row.name);
    }
}
