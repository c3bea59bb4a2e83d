//! Cameras: round trips, what frames tell of them, and what is refused.

use clearshot_physics::anscombe::{Inverse, expectation, forward, inverse_closed_form};
use clearshot_physics::calibration::blind::{self, Known};
use clearshot_physics::calibration::estimate::{
    Frames, NoiseFit, from_darks, from_flats, from_pair, from_repeats,
};
use clearshot_physics::calibration::flats::{Darkness, from_flat_fields};
use clearshot_physics::calibration::measurement::CameraMeasurement;
use clearshot_physics::calibration::{Calibration, check_exposure, exposure_ratio, movie, repeats};
use clearshot_physics::noise::{Window, poisson_gaussian};
use clearshot_physics::{Adu, Electrons, Map, PhysicsError};
use clearshot_tensor::noise::Key;

const SIDE: usize = 256;

fn camera(gain: f64, read_noise: f64) -> Calibration {
    Calibration { saturation: Some(16_383.0), ..Calibration::uniform(gain, 512.0, read_noise).unwrap() }
}

/// A scene of blobs in electrons: dark to `peak`, smooth and with single bright pixels.
fn scene(peak: f64) -> Vec<f64> {
    let key = Key { seed: 1, step: 9, stream: 9 };
    (0..SIDE * SIDE)
        .map(|i| {
            let (y, x) = ((i / SIDE) as f64, (i % SIDE) as f64);
            let smooth = 0.5 + 0.5 * (y / 17.0).sin() * (x / 23.0).cos();
            let speck = if key.uniform(i as u64) < 0.01 { 0.5 } else { 0.0 };
            peak * (smooth * smooth + speck)
        })
        .collect()
}

fn frame(camera: &Calibration, mean: &[f64], exposure: f64, seed: u64) -> Vec<f64> {
    let mean: Vec<f64> = mean.iter().map(|m| m * exposure).collect();
    let key = Key { seed, step: 0, stream: 0 };
    let window = Window::all([1, SIDE, SIDE]);
    let electrons = poisson_gaussian(Electrons(&mean), &camera.read_noise, &window, key).unwrap();
    camera.digitise(Electrons(&electrons.0)).unwrap().0
}

fn known() -> Frames {
    Frames { shape: [SIDE, SIDE], offset: 512.0, saturation: Some(16_383.0), rounded: true }
}

fn check(fit: &NoiseFit, gain: f64, read_noise: f64, what: &str) {
    assert!((fit.gain / gain - 1.0).abs() < 0.03, "{what}: {fit:?} for gain {gain}");
    assert!((fit.read_noise / read_noise - 1.0).abs() < 0.05, "{what}: {fit:?} for read noise {read_noise}");
    // The stated errors are honest: neither boastful nor useless.
    assert!(
        (fit.gain - gain).abs() < 5.0 * fit.gain_error && fit.gain_error < 0.02 * gain,
        "{what}: {fit:?}"
    );
    assert!((fit.read_noise - read_noise).abs() < 5.0 * fit.read_noise_error, "{what}: {fit:?}");
}

#[test]
fn repeats_tell_gain_and_read_noise() {
    for (gain, read_noise, peak, repeats) in
        [(1.0, 3.0, 60.0, 4), (0.46, 1.6, 25.0, 8), (2.2, 7.0, 2000.0, 6), (1.0, 3.0, 40.0, 2)]
    {
        let camera = camera(gain, read_noise);
        let scene = scene(peak);
        let frames: Vec<Vec<f64>> = (0..repeats).map(|i| frame(&camera, &scene, 1.0, 100 + i)).collect();
        let frames: Vec<Adu<&[f64]>> = frames.iter().map(|f| Adu(&f[..])).collect();
        let fit = from_repeats(&frames, &known()).unwrap();
        check(&fit, gain, read_noise, "repeats");
    }
}

#[test]
fn pairs_tell_gain_and_read_noise() {
    for (gain, read_noise, peak, ratio) in
        [(1.0, 3.0, 40.0, 1.0), (1.0, 3.0, 40.0, 10.0), (0.8, 4.0, 90.0, 50.0), (1.7, 5.0, 150.0, 2.5)]
    {
        let camera = camera(gain, read_noise);
        let scene = scene(peak);
        let (short, long) = (frame(&camera, &scene, 1.0, 7), frame(&camera, &scene, ratio, 8));
        let fit = from_pair(Adu(&short), Adu(&long), ratio, &known()).unwrap();
        check(&fit, gain, read_noise, "pair");
    }
}

#[test]
fn flat_fields_tell_gain_and_read_noise() {
    let camera = camera(0.7, 2.5);
    // Pixels differ in sensitivity by 2 %.
    let key = Key { seed: 6, step: 0, stream: 3 };
    let flat: Vec<f64> = (0..(SIDE * SIDE) as u64).map(|i| 1.0 + 0.02 * f64::from(key.normal(i))).collect();
    let frames: Vec<[Vec<f64>; 2]> = [2.0, 30.0, 300.0, 3000.0]
        .iter()
        .zip(0..)
        .map(|(&light, i)| [10 + i, 20 + i].map(|seed| frame(&camera, &flat, light, seed)))
        .collect();
    let pairs: Vec<[Adu<&[f64]>; 2]> = frames.iter().map(|p| p.each_ref().map(|f| Adu(&f[..]))).collect();
    check(&from_flats(&pairs, &known()).unwrap(), 0.7, 2.5, "flat fields");
    let e = from_flats(&pairs[..1], &known()).unwrap_err();
    assert!(e.to_string().contains("levels that differ"), "{e}");
    assert!(from_flats(&[], &known()).is_err());
}

#[test]
fn saturated_and_broken_pixels_are_left_out() {
    let camera = camera(1.0, 3.0);
    let scene: Vec<f64> =
        scene(60.0).iter().enumerate().map(|(i, m)| if i % 50 == 0 { 5e4 } else { *m }).collect();
    let mut frames: Vec<Vec<f64>> = (0..4).map(|i| frame(&camera, &scene, 1.0, i)).collect();
    frames[1][12_345] = f64::NAN;
    let frames: Vec<Adu<&[f64]>> = frames.iter().map(|f| Adu(&f[..])).collect();
    let fit = from_repeats(&frames, &known()).unwrap();
    check(&fit, 1.0, 3.0, "with saturated pixels");
    assert_eq!(fit.pixels, SIDE * SIDE - SIDE * SIDE / 50 - 1 - 1);
}

#[test]
fn darks_tell_offset_and_read_noise() {
    let sigma: Vec<f64> = (0..SIDE * SIDE).map(|i| if i % 2 == 0 { 2.0 } else { 5.0 }).collect();
    let camera = Calibration { read_noise: Map::Pixels(sigma), ..camera(1.0, 3.0) };
    let frames: Vec<Vec<f64>> = (0..40).map(|i| frame(&camera, &[0.0; SIDE * SIDE], 1.0, i)).collect();
    let frames: Vec<Adu<&[f64]>> = frames.iter().map(|f| Adu(&f[..])).collect();
    let (Adu(offset), Adu(noise)) = from_darks(&frames, true).unwrap();
    assert!((offset.mean() - 512.0).abs() < 0.02);
    let mean_of = |parity: usize| {
        (0..SIDE * SIDE).filter(|i| i % 2 == parity).map(|i| noise.at(i).powi(2)).sum::<f64>()
            / (SIDE * SIDE / 2) as f64
    };
    assert!((mean_of(0).sqrt() / 2.0 - 1.0).abs() < 0.01 && (mean_of(1).sqrt() / 5.0 - 1.0).abs() < 0.01);
    assert!(from_darks(&frames[..1], true).is_err());
}

/// Read noise of half a count: a third more variance is seen than there is, and that is the rounding's.
#[test]
fn rounding_is_no_read_noise() {
    let camera = camera(1.0, 0.5);
    let frames: Vec<Vec<f64>> = (0..40).map(|i| frame(&camera, &[0.0; SIDE * SIDE], 1.0, i)).collect();
    let frames: Vec<Adu<&[f64]>> = frames.iter().map(|f| Adu(&f[..])).collect();
    let square = |rounded: bool| {
        let (_, Adu(noise)) = from_darks(&frames, rounded).unwrap();
        (0..SIDE * SIDE).map(|i| noise.at(i).powi(2)).sum::<f64>() / (SIDE * SIDE) as f64
    };
    assert!((square(true) - 0.25).abs() < 0.01, "{}", square(true));
    assert!((square(false) - 0.25 - 1.0 / 12.0).abs() < 0.01, "{}", square(false));
}

#[test]
fn frames_that_tell_nothing_are_refused() {
    let flat = vec![700.0; SIDE * SIDE];
    let e = from_repeats(&[Adu(&flat[..]), Adu(&flat[..])], &known()).unwrap_err();
    assert!(e.to_string().contains("levels that differ"), "{e}");
    assert!(matches!(
        from_repeats(&[Adu(&flat[..])], &known()).unwrap_err(),
        PhysicsError::TooFew { what: "frames", .. }
    ));
    let full = vec![16_383.0; SIDE * SIDE];
    let e = from_pair(Adu(&full), Adu(&flat), 2.0, &known()).unwrap_err();
    assert!(matches!(e, PhysicsError::TooFew { what: "usable pixels", .. }), "{e}");
    assert!(
        from_pair(Adu(&flat), Adu(&flat), 0.5, &known()).unwrap_err().to_string().contains("exposure ratio")
    );
    assert!(from_pair(Adu(&flat[1..]), Adu(&flat), 2.0, &known()).is_err());
}

/// Fluxes in SI units, whose squares are below what 32-bit floats hold, tell the same camera as counts.
#[test]
fn the_unit_of_an_image_does_not_matter() {
    // Not whole numbers, whose rounding is taken off the read noise.
    let counts: Vec<f32> =
        frame(&camera(0.5, 3.0), &scene(80.0), 1.0, 5).iter().map(|&v| (0.7 * (v - 512.0)) as f32).collect();
    let unit = 2f64.powi(-90);
    let fluxes: Vec<f32> = counts.iter().map(|&v| (f64::from(v) * unit) as f32).collect();
    let fit = |values: &[f32], known: &Known| blind::estimate(&[Adu(values)], [SIDE, SIDE], known).unwrap();
    let known = Known { offset: Some(0.0), ..Known::default() };
    let (a, b) = (fit(&counts, &known), fit(&fluxes, &known));
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    assert!(near(a.gain, b.gain * unit) && near(a.read_noise, b.read_noise), "{a:?} {b:?}");
    assert!(near(a.line.slope, b.line.slope / unit) && near(a.line.pivot, b.line.pivot / unit));
    assert!(near(a.line.at_pivot, b.line.at_pivot / (unit * unit)), "{a:?} {b:?}");
    assert_eq!((a.blocks, &a.doubts), (b.blocks, &b.doubts));
    let deviation = b.line.deviation(40.0 * unit);
    assert!(near(a.line.deviation(40.0), deviation / unit));
    // What is known is in the image's unit too.
    let known = Known { gain: Some(0.5 / unit), ..known };
    assert!(near(fit(&fluxes, &known).gain, 0.5 / unit));
}

#[test]
fn cameras_round_trip() {
    let camera = Calibration {
        gain: Map::Pixels(vec![0.5, 1.0, 2.0]),
        offset: Map::Pixels(vec![100.0, 110.0, 90.0]),
        ..Calibration::scientific_cmos()
    };
    let counts = [100.0, 4000.5, 70.0];
    let electrons = camera.to_electrons(Adu(&counts)).unwrap();
    assert_eq!(electrons.0, [0.0, 3890.5, -40.0]);
    assert_eq!(camera.to_adu(Electrons(&electrons.0)).unwrap().0, counts);
    assert_eq!(camera.digitise(Electrons(&[1e9, 0.4, -1e3])).unwrap().0, [65_535.0, 110.0, 0.0]);
    assert_eq!(camera.valid(Adu(&[65_535.0, f64::NAN, 3.0])), [false, false, true]);
    let photo = Calibration::photography();
    assert_eq!(photo.full_well(), Some(Electrons(15_871.0)));
    assert!((photo.dynamic_range_db().unwrap() - 74.4697).abs() < 1e-3);
    assert!(Calibration::ccd().check(1).is_ok());
    let text = serde_json::to_string(&camera).unwrap();
    assert_eq!(serde_json::from_str::<Calibration>(&text).unwrap(), camera);
    assert!(serde_json::from_str::<Calibration>(&text.replace("\"gain\"", "\"gian\"")).is_err());
}

#[test]
fn impossible_cameras_are_refused_by_name() {
    let e = Calibration::uniform(-1.0, 0.0, 1.0).unwrap_err();
    assert_eq!(e.to_string(), "gain is -1, and a finite number above zero is needed");
    for (gain, offset, read_noise, name) in [
        (0.0, 0.0, 1.0, "gain"),
        (f64::NAN, 0.0, 1.0, "gain"),
        (1.0, f64::NAN, 1.0, "offset"),
        (1.0, 0.0, -2.0, "read noise"),
    ] {
        let e = Calibration::uniform(gain, offset, read_noise).unwrap_err().to_string();
        assert!(e.starts_with(name), "{e}");
    }
    let camera = Calibration { gain: Map::Pixels(vec![1.0, -0.5]), ..Calibration::ccd() };
    let e = camera.to_electrons(Adu(&[1.0, 2.0])).unwrap_err();
    assert_eq!(e.to_string(), "gain is -0.5 at pixel 1, and a finite number above zero is needed");
    assert!(camera.to_electrons(Adu(&[1.0])).is_err());
    let camera = Calibration { saturation: Some(10.0), ..Calibration::photography() };
    assert!(camera.check(1).unwrap_err().to_string().starts_with("saturation"));
    assert!(Calibration { dark: Map::Uniform(-1.0), ..Calibration::ccd() }.check(1).is_err());
}

#[test]
fn exposure_ratios_are_measured_and_compared() {
    let (short, long) = ([2.0, 3.0, f64::NAN, 900.0], [21.0, 31.0, 5.0, 1.0]);
    let ratio =
        exposure_ratio(Electrons(&short), Electrons(&long), [0.0, 1.0], Some(&[true, true, true, false]))
            .unwrap();
    assert!((ratio - 0.1).abs() < 1e-12);
    assert!(check_exposure(0.1, ratio).unwrap() && !check_exposure(0.1, 0.115).unwrap());
    assert!(check_exposure(0.1, 0.13).unwrap_err().to_string().contains("20 %"));
    assert!(check_exposure(0.1, f64::NAN).is_err());
    assert!(exposure_ratio(Electrons(&short), Electrons(&[0.0; 4]), [0.0; 2], None).is_err());
}

/// The inverse of the expectation, for light from a tenth of an electron to ten thousand.
#[test]
fn the_unbiased_inverse_is_unbiased() {
    for sigma in [0.0, 0.4, 1.5, 6.0] {
        let inverse = Inverse::new(Electrons(sigma)).unwrap();
        for i in 0..=60 {
            let mean = 0.1 * 10f64.powf(i as f64 / 12.0);
            let back = inverse.mean(expectation(mean, sigma * sigma));
            assert!((back - mean).abs() < 1e-3 * mean.max(1.0), "sigma {sigma}: {mean} comes back as {back}");
        }
        assert_eq!(inverse.mean(0.0), 0.0);
        assert!(inverse.mean(f64::NAN).is_nan());
    }
    assert!(Inverse::new(Electrons(-1.0)).is_err());
}

/// The expectation by simulation, and the stabilised variance.
#[test]
fn the_expectation_is_that_of_draws() {
    let n = 200_000;
    for (mean, sigma) in [(0.5, 0.0), (2.0, 1.0), (30.0, 3.0)] {
        let key = Key { seed: 8, step: 0, stream: 0 };
        let y =
            poisson_gaussian(Electrons(&vec![mean; n]), &Map::Uniform(sigma), &Window::all([1, 1, n]), key)
                .unwrap()
                .0;
        let f: Vec<f64> = y.iter().map(|v| forward(*v, sigma * sigma)).collect();
        let average = f.iter().sum::<f64>() / n as f64;
        let variance = f.iter().map(|v| (v - average).powi(2)).sum::<f64>() / n as f64;
        let expected = expectation(mean, sigma * sigma);
        assert!(
            (average - expected).abs() < 5.0 * (variance / n as f64).sqrt(),
            "{mean} {sigma}: {average} {expected}"
        );
        if mean > 10.0 {
            assert!((variance - 1.0).abs() < 0.03, "{mean} {sigma}: {variance}");
        }
    }
    assert!((inverse_closed_form(expectation(1000.0, 4.0), 4.0) - 1000.0).abs() < 1e-2);
}

/// Frames in small units tell the same camera as counts, in every way of measuring one.
#[test]
fn the_unit_of_frames_does_not_matter() {
    let (taken, mean, shape) = (camera(0.5, 3.0), scene(80.0), [SIDE, SIDE]);
    // A lamp that changes, and values that are not whole numbers.
    let frames = |scene: &[f64], unit: f64, first: u64| -> Vec<Vec<f32>> {
        let of = |i: u64| frame(&taken, scene, 1.0 + 0.05 * (i % 3) as f64, first + i);
        (0..6).map(|i| of(i).iter().map(|&v| (0.7 * (v - 512.0) * unit) as f32).collect()).collect()
    };
    let unit = 2f64.powi(-78);
    let measured = |unit: f64| {
        let series = frames(&mean, unit, 10);
        let (darks, flats) = (frames(&[0.0; SIDE * SIDE], unit, 20), frames(&[60.0; SIDE * SIDE], unit, 30));
        let [series, darks, flats] = [&series, &darks, &flats]
            .map(|frames| frames.iter().map(|f| Adu(&f[..])).collect::<Vec<Adu<&[f32]>>>());
        let dark = Darkness::of(&darks, shape).unwrap();
        let all = [series];
        let known = Known { offset: Some(0.0), ..Known::default() };
        let given = Known { gain: Some(0.7 / unit), ..known };
        [
            repeats::from_series(&all, shape, &known).unwrap(),
            movie::from_movies(&all, shape, &known).unwrap(),
            movie::from_movies(&all, shape, &given).unwrap(),
            from_flat_fields(&flats, Some(&dark), shape, &Known::default()).unwrap(),
        ]
    };
    for (a, b) in measured(1.0).iter().zip(&measured(unit)) {
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-6 * a.abs().max(1e-3), "{a} {b}");
        near(a.fit.gain, b.fit.gain * unit);
        near(a.fit.offset, b.fit.offset / unit);
        near(a.fit.read_noise, b.fit.read_noise);
        near(a.fit.line.variance(40.0), b.fit.line.variance(40.0 * unit) / (unit * unit));
        near(a.fit.levels[1], b.fit.levels[1] / unit);
        near(a.ends.highest, b.ends.highest / unit);
        let stripes = |m: &CameraMeasurement| m.changing_stripes.expect("enough lines").rows.error;
        near(stripes(a), stripes(b) / unit);
        assert_eq!((a.fit.blocks, &a.fit.doubts), (b.fit.blocks, &b.fit.doubts));
    }
}

/// Frames that no camera takes give a camera or an error: blocks whose squares are zero or infinite in 32-bit floats are no quiet ones.
#[test]
fn no_frames_are_too_odd_for_a_movie() {
    let normal = |frame: u32, i: usize| Key { seed: 7, step: frame, stream: 0 }.normal(i as u64);
    type Value<'a> = &'a dyn Fn(u32, usize) -> f32;
    let cases: [(&str, Value<'_>); 7] = [
        ("small", &|f, i| 5e-24 + 2e-25 * normal(f, i)),
        ("smallest", &|f, i| 1e-43 * normal(f, i)),
        ("still in part", &|f, i| normal(if i % 64 < 32 { 0 } else { f }, i)),
        ("holes", &|f, i| if i % 64 == 0 { f32::INFINITY } else { normal(f, i) }),
        ("one bright spot", &|f, i| if i < 100 { 1.0 } else { 5e-30 + 1e-30 * normal(f, i) }),
        ("vast", &|f, i| 1e25 + 1e24 * normal(f, i)),
        ("still", &|_, i| normal(0, i)),
    ];
    for (name, value) in cases {
        let frames: Vec<Vec<f32>> = (0..6).map(|f| (0..64 * 64).map(|i| value(f, i)).collect()).collect();
        let views: Vec<Adu<&[f32]>> = frames.iter().map(|f| Adu(&f[..])).collect();
        for series in [&views[..], &views[..2]] {
            let told = movie::from_movies(&[series.to_vec()], [64, 64], &Known::default());
            match name {
                // Nearly still blocks may leave no noise to measure.
                "still in part" => {}
                "one bright spot" | "vast" | "still" => {
                    assert!(matches!(told, Err(PhysicsError::TooFew { .. })), "{name}: {told:?}");
                }
                _ => assert!(told.as_ref().is_ok_and(|m| m.fit.line.at_pivot > 0.0), "{name}: {told:?}"),
            }
        }
    }
}
