//! Scenes with a known band, and noise of a known power.

use super::*;
use clearshot_tensor::noise::Key;

fn noise(n: usize, stream: u32) -> Vec<f64> {
    let mut values = vec![0.0f32; n];
    Key { seed: 11, step: 0, stream }.fill_normal(0, &mut values);
    values.iter().map(|&x| f64::from(x)).collect()
}

/// White noise with everything above `cut` cycles per pixel removed.
fn band_limited(shape: &[usize], cut: f64, stream: u32) -> Vec<f64> {
    let n: usize = shape.iter().product();
    let spectrum = forward(&noise(n, stream), shape);
    let mut at = vec![0; shape.len()];
    let kept: Vec<Complex<f64>> = spectrum
        .iter()
        .enumerate()
        .map(|(i, &s)| {
            unravel(i, shape, &mut at);
            let f =
                at.iter().zip(shape).map(|(&k, &n)| (signed(k, n) / n as f64).powi(2)).sum::<f64>().sqrt();
            if f <= cut { s } else { Complex::default() }
        })
        .collect();
    // The inverse by two forward transforms of real arrays; the result is real.
    let part = |f: fn(&Complex<f64>) -> f64| forward(&kept.iter().map(f).collect::<Vec<_>>(), shape);
    let (re, im) = (part(|s| s.re), part(|s| s.im));
    re.iter().zip(&im).map(|(re, im)| (re.re + im.im) / n as f64).collect()
}

fn plus(a: &[f64], b: &[f64], scale: f64) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + scale * b).collect()
}

fn curve_of(shape: &[usize], cut: f64, pixel: &[f64]) -> Curve {
    let scene = band_limited(shape, cut, 1);
    let (a, b) = (plus(&scene, &noise(scene.len(), 2), 0.1), plus(&scene, &noise(scene.len(), 3), 0.1));
    two_images(ImageRef::new(&a, shape).unwrap(), ImageRef::new(&b, shape).unwrap(), pixel, Taper::None)
        .unwrap()
}

fn frequency(curve: &Curve, threshold: Threshold) -> f64 {
    match curve.resolution(threshold) {
        Resolution::At { frequency, length } => {
            assert!((frequency * length - 1.0).abs() < 1e-12);
            frequency
        }
        other => panic!("{other:?}"),
    }
}

const THRESHOLDS: [Threshold; 3] = [Threshold::OneSeventh, Threshold::Half, Threshold::HalfBit];

#[test]
fn the_cut_off_is_found_within_a_ring() {
    for cut in [8.0, 20.0, 41.0, 55.0] {
        // 65 nm pixels: a ring is 1 / (128 * 65) per nm wide.
        let curve = curve_of(&[128, 128], cut / 128.0, &[65.0, 65.0]);
        assert_eq!(curve.rings.len(), 64);
        for threshold in THRESHOLDS {
            let ring = frequency(&curve, threshold) * 128.0 * 65.0;
            assert!((ring - cut).abs() <= 1.0, "{threshold:?}: {ring} against {cut}");
        }
    }
}

/// A slope does not fit its opposite border: the step's spectrum agrees in both images up to the last
/// ring, until a taper takes it away.
#[test]
fn a_taper_removes_the_border() {
    let shape = [128, 128];
    let scene = band_limited(&shape, 30.0 / 128.0, 1);
    let slope: Vec<f64> = (0..scene.len()).map(|i| (i % 128) as f64 + (i / 128) as f64).collect();
    let scene = plus(&scene, &slope, 1.0);
    let (a, b) = (plus(&scene, &noise(scene.len(), 2), 0.1), plus(&scene, &noise(scene.len(), 3), 0.1));
    let view = |x| ImageRef::new(x, &shape).unwrap();
    let curve = |taper| two_images(view(&a), view(&b), &[1.0; 2], taper).unwrap();
    assert_eq!(curve(Taper::None).resolution(Threshold::OneSeventh), Resolution::BeyondSampling);
    let ring = frequency(&curve(Taper::Hann), Threshold::OneSeventh) * 128.0;
    assert!((ring - 30.0).abs() <= 2.0, "{ring}");
    assert_eq!(weights(8, Taper::Hann).unwrap(), weights(8, Taper::Tukey(1.0)).unwrap());
    assert_eq!(weights(8, Taper::Tukey(0.0)).unwrap(), weights(8, Taper::None).unwrap());
    let tukey = weights(8, Taper::Tukey(0.5)).unwrap();
    assert!(tukey[2..6] == [1.0; 4] && (tukey[1] - 0.853_553_390_593_273_8).abs() < 1e-15);
}

/// Long axes and coarse steps: rings are of physical frequency.
#[test]
fn oblong_images_and_volumes_work_too() {
    let curve = curve_of(&[96, 160], 0.25, &[2.0, 2.0]);
    let found = frequency(&curve, Threshold::OneSeventh);
    assert!((found - 0.125).abs() <= 1.0 / 192.0, "{found}");
    let curve = curve_of(&[32, 36, 40], 10.0 / 32.0, &[1.0; 3]);
    let found = frequency(&curve, Threshold::OneSeventh);
    assert!((found - 10.0 / 32.0).abs() <= 1.0 / 32.0, "{found}");
}

/// Pixels that are longer along one axis than along the other: the resolution is a length, whichever axis it lies along.
#[test]
fn unequal_pixels_keep_the_physical_cut_off() {
    let cases: [(&[usize], &[f64], f64); 3] = [
        (&[101, 75], &[65.0, 130.0], 1.0 / 700.0),
        (&[64, 200], &[200.0, 65.0], 1.0 / 900.0),
        (&[24, 60, 61], &[0.3, 0.1, 0.1], 1.0 / 1.1),
    ];
    for (shape, pixel, cut) in cases {
        // Band-limited in physical frequency.
        let n = shape.iter().product();
        let spectrum = forward(&noise(n, 21), shape);
        let mut at = vec![0; shape.len()];
        let kept: Vec<Complex<f64>> = (0..n)
            .map(|i| {
                unravel(i, shape, &mut at);
                let along = |a: usize| signed(at[a], shape[a]) / (shape[a] as f64 * pixel[a]);
                let f = (0..shape.len()).map(|a| along(a).powi(2)).sum::<f64>().sqrt();
                if f <= cut { spectrum[i] } else { Complex::default() }
            })
            .collect();
        let part = |f: fn(&Complex<f64>) -> f64| forward(&kept.iter().map(f).collect::<Vec<_>>(), shape);
        let (re, im) = (part(|s| s.re), part(|s| s.im));
        let scene: Vec<f64> = re.iter().zip(&im).map(|(re, im)| (re.re + im.im) / n as f64).collect();
        let (a, b) = (plus(&scene, &noise(n, 22), 0.02), plus(&scene, &noise(n, 23), 0.02));
        let view = |x| ImageRef::new(x, shape).unwrap();
        let curve = two_images(view(&a), view(&b), pixel, Taper::None).unwrap();
        let ring = shape.iter().zip(pixel).map(|(&n, p)| 1.0 / (n as f64 * p)).fold(0.0, f64::max);
        let found = frequency(&curve, Threshold::Half);
        // The ring that holds the cut-off agrees with its inner part, so the crossing lies up to a ring behind its middle.
        assert!(found > cut - ring && found < cut + 1.5 * ring, "{shape:?}: {found} against {cut}");
        // The other way round the pixels would be of other lengths.
        let mut turned = pixel.to_vec();
        turned.reverse();
        let wrong = two_images(view(&a), view(&b), &turned, Taper::None).unwrap();
        assert_ne!(wrong.resolution(Threshold::Half), curve.resolution(Threshold::Half));
    }
}

/// Nothing is resolved in an image without anything in it, whatever its value; a mean that is rounded would leave the
/// same dust in both.
#[test]
fn flat_images_have_no_resolution() {
    for value in [1.0, 0.1, 1.0 / 3.0, 1e9 + 0.1, -7.7] {
        for shape in [&[5usize, 5][..], &[16, 17], &[7, 9, 11]] {
            let x = vec![value; shape.iter().product()];
            let flat = ImageRef::new(&x, shape).unwrap();
            let ones = vec![1.0; shape.len()];
            for taper in [Taper::None, Taper::Hann] {
                for curve in [two_images(flat, flat, &ones, taper), one_image(flat, &ones, taper)] {
                    let curve = curve.unwrap();
                    assert_eq!(
                        curve.resolution(Threshold::OneSeventh),
                        Resolution::Unresolved,
                        "{value} {shape:?}"
                    );
                }
            }
        }
    }
    let x = [1.0, 2.0, 3.0, 5.0, 4.0, 6.0];
    let small = ImageRef::new(&x, &[2, 3]).unwrap();
    let said = two_images(small, small, &[1.0, 2.0], Taper::None).unwrap_err().to_string();
    assert_eq!(
        said,
        "0 values were given for rings below the lowest Nyquist frequency, and one or more is needed"
    );
}

/// With scene and noise both white the correlation is S / (S + N) in every ring.
#[test]
fn white_scenes_correlate_by_their_share_of_power() {
    let n = 256 * 256;
    let scene = noise(n, 1);
    let (a, b) = (plus(&scene, &noise(n, 2), 0.5), plus(&scene, &noise(n, 3), 0.5));
    let view = |x| ImageRef::new(x, &[256, 256]).unwrap();
    let curve = two_images(view(&a), view(&b), &[1.0; 2], Taper::None).unwrap();
    for ring in &curve.rings {
        // Four standard errors of a correlation estimated from so many bins.
        let tolerance = 4.0 * (1.0 - 0.64) / (ring.bins as f64).sqrt();
        assert!((ring.correlation - 0.8).abs() < tolerance, "{ring:?}");
    }
    assert_eq!(curve.resolution(Threshold::Half), Resolution::BeyondSampling);
    let other = two_images(view(&scene), view(&noise(n, 4)), &[1.0; 2], Taper::None).unwrap();
    assert!(!matches!(other.resolution(Threshold::Half), Resolution::BeyondSampling));
}

#[test]
fn one_image_and_two_give_the_same_resolution() {
    let shape = [256, 256];
    for cut in [20.0, 50.0] {
        let scene = band_limited(&shape, cut / 256.0, 5);
        let image = plus(&scene, &noise(scene.len(), 6), 0.05);
        let curve = one_image(ImageRef::new(&image, &shape).unwrap(), &[0.1, 0.1], Taper::None).unwrap();
        assert_eq!(curve.rings.len(), 64);
        let ring = frequency(&curve, Threshold::OneSeventh) * 25.6;
        assert!((ring - cut).abs() <= 1.0, "{ring} against {cut}");
        let inside: Vec<_> = curve.rings.iter().filter(|r| r.frequency * 25.6 < cut - 2.0).collect();
        assert!(inside.iter().all(|r| r.correlation > 0.95), "the half-pixel phase is undone");
    }
}

/// Rings go up to the lowest Nyquist frequency and no further, and hold one bin of each two conjugates.
#[test]
fn rings_are_counted() {
    let curve = |shape: &[usize], pixel: &[f64]| {
        let x = noise(shape.iter().product(), 7);
        two_images(ImageRef::new(&x, shape).unwrap(), ImageRef::new(&x, shape).unwrap(), pixel, Taper::None)
            .unwrap()
    };
    // The Nyquist frequency of 5 pixels is two rings and a half.
    assert_eq!(curve(&[5, 5], &[1.0; 2]).rings.len(), 2);
    // 10 pixels of 2 and 40 of 1: rings as wide as the shorter extent's bins, up to where the longer pixels end.
    let oblong = curve(&[10, 40], &[2.0, 1.0]);
    assert_eq!(oblong.rings.len(), 5);
    assert!(
        (oblong.rings[0].frequency - 0.05).abs() < 1e-15 && (oblong.rings[4].frequency - 0.25).abs() < 1e-15
    );
    // Ring 1 of 8 x 8 has the eight neighbours of zero, in four pairs; ring 4 has bins that are their own conjugates.
    let bins: Vec<usize> = curve(&[8, 8], &[1.0; 2]).rings.iter().map(|r| r.bins).collect();
    assert_eq!(bins[..2], [4, 6]);
}

#[test]
fn crossings_are_interpolated() {
    let ring = |frequency, correlation| Ring { frequency, correlation, bins: 50 };
    let curve = Curve { rings: vec![ring(1.0, 0.9), ring(2.0, 0.7), ring(3.0, 0.3), ring(4.0, 0.6)] };
    assert!((frequency(&curve, Threshold::Half) - 2.5).abs() < 1e-12);
    assert_eq!(curve.resolution(Threshold::OneSeventh), Resolution::BeyondSampling);
    let none = Curve { rings: vec![ring(1.0, 0.1)] };
    assert_eq!(none.resolution(Threshold::Half), Resolution::Unresolved);
    // (0.2071 + 1.9102 / 10) / (1.2071 + 0.9102 / 10)
    let at = Threshold::HalfBit.at(&Ring { frequency: 1.0, correlation: 0.0, bins: 100 });
    assert!((at - 0.39812 / 1.29812).abs() < 1e-12);
}

#[test]
fn odd_input_is_refused() {
    let x = [1.0; 16];
    let flat = ImageRef::new(&x, &[4, 4]).unwrap();
    let curve = two_images(flat, flat, &[1.0; 2], Taper::None).unwrap();
    assert!(curve.rings.iter().all(|r| r.correlation == 0.0));
    assert!(two_images(flat, flat, &[1.0], Taper::None).is_err());
    assert!(two_images(flat, flat, &[1.0, 0.0], Taper::None).is_err());
    assert!(two_images(flat, flat, &[1.0; 2], Taper::Tukey(1.5)).is_err());
    let one = ImageRef::new(&x[..1], &[1, 1]).unwrap();
    assert!(
        two_images(one, one, &[1.0; 2], Taper::None).is_err()
            && one_image(one, &[1.0; 2], Taper::None).is_err()
    );
    let mut y = x;
    y[5] = f64::NAN;
    let nan = ImageRef::new(&y, &[4, 4]).unwrap();
    let said = two_images(flat, nan, &[1.0; 2], Taper::None).unwrap_err().to_string();
    assert_eq!(said, "the image is NaN at pixel 5, and a finite value is needed");
}
