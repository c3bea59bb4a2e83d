//! Circles whose areas are known, and stars whose fluxes are.

use super::*;
use clearshot_tensor::noise::Key;
use std::f64::consts::PI;

#[test]
fn overlaps_have_closed_forms() {
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-14, "{a} {b}");
    close(overlap(0.0, 0.0, 0.3), PI * 0.09);
    close(overlap(0.0, 0.0, 1.0), 1.0);
    close(overlap(0.5, -0.5, 1.0), PI / 4.0);
    close(overlap(0.5, 0.0, 0.25), PI * 0.0625 / 2.0);
    close(overlap(2.0, 0.0, 1.0), 0.0);
    close(overlap(1.0, 1.0, 0.5), 0.0);
    // A cap of height 0.1 on the square's left side.
    let (r, d) = (0.6f64, 0.5f64);
    close(overlap(0.0, 1.0, r), r * r * (d / r).acos() - d * (r * r - d * d).sqrt());
}

#[test]
fn a_circle_has_its_area_anywhere() {
    let flat = vec![2.0; 21 * 23];
    let image = ImageRef::new(&flat, &[21, 23]).unwrap();
    let key = Key { seed: 1, step: 0, stream: 0 };
    for i in 0..300 {
        let [a, b, c] = [0, 1, 2].map(|k| f64::from(key.uniform(3 * i + k)));
        let radius = 0.05 + 7.0 * c;
        let got = aperture(image, [9.0 + 2.0 * a, 10.0 + 2.0 * b], radius).unwrap();
        assert!((got.area - PI * radius * radius).abs() < 1e-11, "{got:?} radius {radius}");
        assert!((got.sum - 2.0 * got.area).abs() < 1e-11);
    }
    let quarter = aperture(image, [-0.5, 22.5], 3.0).unwrap();
    assert!((quarter.area - PI * 9.0 / 4.0).abs() < 1e-12);
    assert_eq!(aperture(image, [-50.0, 1e300], 3.0).unwrap().area, 0.0);
}

/// Stars on a sky with the noise of counted photons: fluxes come back within five standard errors.
#[test]
fn fluxes_are_recovered_within_shot_noise() {
    let (n, sky, sigma) = (64usize, 20.0, 1.5);
    let sources = [([20.3, 18.8], 5000.0), ([40.0, 44.5], 800.0), ([15.7, 47.1], 20_000.0)];
    let key = Key { seed: 5, step: 0, stream: 0 };
    let pixel = |i: usize| {
        let star = |&([y, x], flux): &([f64; 2], f64)| {
            let square = ((i / n) as f64 - y).powi(2) + ((i % n) as f64 - x).powi(2);
            flux * (-square / (2.0 * sigma * sigma)).exp() / (2.0 * PI * sigma * sigma)
        };
        let mean = sky + sources.iter().map(star).sum::<f64>();
        mean + mean.sqrt() * f64::from(key.normal(i as u64))
    };
    let data: Vec<f64> = (0..n * n).map(pixel).collect();
    let image = ImageRef::new(&data, &[64, 64]).unwrap();
    for (centre, truth) in sources {
        let got = flux(image, centre, 7.0, 9.0, 13.0).unwrap();
        let error = (truth + 2.0 * sky * got.area).sqrt();
        assert!((got.flux - truth).abs() < 5.0 * error, "{got:?} against {truth}, error {error}");
        assert!((got.background - sky).abs() < 2.0);
    }
}

#[test]
fn the_background_is_a_median() {
    let mut data = vec![3.0; 81];
    (data[40], data[4]) = (13.0, 1e6);
    let image = ImageRef::new(&data, &[9, 9]).unwrap();
    let got = flux(image, [4.0, 4.0], 1.5, 3.0, 4.0).unwrap();
    assert!((got.background - 3.0).abs() < 1e-12 && (got.flux - 10.0).abs() < 1e-12, "{got:?}");
    assert!(flux(image, [4.0, 4.0], 1.5, 5.0, 4.0).is_err());
    data[4] = f64::NAN;
    assert!(flux(ImageRef::new(&data, &[9, 9]).unwrap(), [4.0, 4.0], 1.5, 3.0, 4.0).is_err());
}

#[test]
fn sources_are_matched_once() {
    let source = |y, x, flux| Source { centre: [y, x], flux };
    let sources = [source(0.0, 0.0, 1.0), source(0.0, 2.0, 5.0), source(9.0, 9.0, 50.0)];
    // The first detection is near both of the first two and nearer to the second.
    let found = [[0.0, 1.2], [9.0, 8.0], [30.0, 30.0]];
    let got = match_sources(&sources, &found, 1.5).unwrap();
    assert_eq!(got, Matches { of_source: vec![None, Some(0), Some(1)], spurious: 1 });
    assert_eq!(got.completeness(&sources, 0.0, 10.0), 0.5);
    assert_eq!(got.completeness(&sources, 10.0, f64::INFINITY), 1.0);
    assert!(got.completeness(&sources, 100.0, 200.0).is_nan());
    assert!(match_sources(&sources, &found, 0.0).is_err());
}

#[test]
fn odd_input_is_refused() {
    let data = [1.0; 8];
    let volume = ImageRef::new(&data, &[2, 2, 2]).unwrap();
    assert!(matches!(aperture(volume, [0.0; 2], 1.0), Err(MetricError::NotPlane { .. })));
    let plane = ImageRef::new(&data, &[2, 4]).unwrap();
    assert!(aperture(plane, [f64::NAN, 0.0], 1.0).is_err() && aperture(plane, [0.0; 2], -1.0).is_err());
}

/// photutils 3.0, `CircularAperture.do_photometry(method='exact')`: sums, and the areas inside the image.
#[test]
fn apertures_equal_photutils() {
    let data: Vec<f64> =
        (0..24 * 31).map(|i| 3.0 + 2.0 * (f64::from(i) * 0.37).sin() + (f64::from(i) * 0.11).cos()).collect();
    let image = ImageRef::new(&data, &[24, 31]).unwrap();
    for (centre, radius, sum, area) in [
        ([10.3, 14.7], 4.2, 162.539_647_122_498_2, 55.417_694_409_323_964),
        ([0.2, 29.9], 3.5, 45.731_097_738_683_03, 14.564_363_202_231_412),
        ([12.0, 15.0], 0.6, 1.457_067_439_866_475, 1.130_973_355_292_325_8),
        ([22.75, 1.1], 7.3, 189.724_950_084_593_93, 60.105_019_286_783_76),
    ] {
        let got = aperture(image, centre, radius).unwrap();
        assert!((got.sum - sum).abs() < 1e-10 * sum && (got.area - area).abs() < 1e-10 * area, "{got:?}");
    }
}
