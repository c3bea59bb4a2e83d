//! Noise of a known law, and the numbers that scipy gives for a fixed list.

use super::*;
use clearshot_tensor::noise::Key;

// mean, interval and p of scipy.stats.ttest_1samp; statistic and p of kstest(mode="asymp").
const BIAS: [f64; 4] = [0.19760145244146077, -0.05817967217410752, 0.45338257705702906, 0.12748794137869865];
const KS: [f64; 2] = [0.16416545579476893, 0.07004794396445602];

fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut values = vec![0.0f32; n];
    Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut values);
    values.iter().map(|&x| f64::from(x)).collect()
}

fn list() -> Vec<f64> {
    (0..60).map(|i| 1.4 * (f64::from(i) * 1.7).sin() + 0.2).collect()
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-10 * b.abs(), "{a} {b}");
}

/// The truth under its own noise is consistent; a wrong variance and a shifted scene are not.
#[test]
fn chi2_of_the_truth_is_one() {
    let shape = [64, 64];
    let view = |x| ImageRef::new(x, &shape).unwrap();
    let truth: Vec<f64> = (0..4096).map(|i| 50.0 + 40.0 * (f64::from(i % 64) * 0.5).sin()).collect();
    let variance: Vec<f64> = truth.iter().map(|t| t + 4.0).collect();
    let observed: Vec<f64> =
        truth.iter().zip(&variance).zip(noise(4096, 1)).map(|((t, v), z)| t + v.sqrt() * z).collect();
    let good = chi2(view(&observed), view(&truth), view(&variance), None).unwrap();
    assert!(good.is_consistent(), "{good:?}");
    let double: Vec<f64> = variance.iter().map(|v| 1.2 * v).collect();
    assert!(!chi2(view(&observed), view(&truth), view(&double), None).unwrap().is_consistent());
    let mut shifted = truth.clone();
    shifted.rotate_right(1);
    assert!(!chi2(view(&observed), view(&shifted), view(&variance), None).unwrap().is_consistent());
}

#[test]
fn chi2_by_hand() {
    let view = |x| ImageRef::new(x, &[2, 2]).unwrap();
    let (y, m, v) = ([3.0, 5.0, 1.0, 9.0], [1.0, 5.0, 2.0, 0.0], [4.0, 1.0, 0.5, 0.0]);
    let mask = [true, true, true, false];
    let got = chi2(view(&y), view(&m), view(&v), Some(&mask)).unwrap();
    close(got.value, 1.0);
    assert_eq!(got.pixels, 3);
    close(got.tolerance(), 6f64.sqrt());
    let refused = chi2(view(&y), view(&m), view(&v), None).unwrap_err().to_string();
    assert_eq!(refused, "the variance is 0 at pixel 3, and a finite number above zero is needed");
}

/// Under white noise the p-value is uniform; colour of any strength that matters is seen.
#[test]
fn whiteness_is_calibrated() {
    let shape = [48, 50];
    let test = |x: &[f64]| whiteness(ImageRef::new(x, &shape).unwrap(), None).unwrap();
    let mut ps: Vec<f64> = (0..200).map(|seed| test(&noise(2400, seed + 10)).p).collect();
    ps.sort_by(f64::total_cmp);
    let far = ps.iter().enumerate().map(|(i, p)| (p - (i as f64 + 0.5) / 200.0).abs()).fold(0.0, f64::max);
    assert!(kolmogorov_beyond(200, far) > 0.01, "distance from uniform {far}");
    let white = noise(2400, 3);
    assert!((test(&white).flatness - 0.5615).abs() < 0.05);
    let coloured: Vec<f64> = (0..2400).map(|i| white[i] + 0.5 * white[(i + 1) % 2400]).collect();
    assert!(test(&coloured).p < 1e-4, "{:?}", test(&coloured));
}

/// Where bins are few the law is skewed, and the p-value is uniform all the same.
#[test]
fn whiteness_is_calibrated_in_small_images() {
    for (shape, seeds) in [(&[5usize, 5][..], 3000), (&[8, 8], 3000), (&[3, 6, 5], 3000)] {
        let p = |seed| {
            whiteness(ImageRef::new(&noise(shape.iter().product(), seed), shape).unwrap(), None).unwrap().p
        };
        let ps: Vec<f64> = (0..seeds).map(p).collect();
        for level in [0.01, 0.05, 0.5, 0.95] {
            let below = ps.iter().filter(|p| **p < level).count() as f64 / seeds as f64;
            let error = (level * (1.0 - level) / seeds as f64).sqrt();
            assert!((below - level).abs() < 4.0 * error, "{shape:?}: {below} below {level}");
        }
    }
}

#[test]
fn equal_residuals_have_no_spectrum() {
    for value in [0.0, 1.0, 0.1] {
        for shape in [[16, 16], [9, 9]] {
            let x = vec![value; shape[0] * shape[1]];
            let said = whiteness(ImageRef::new(&x, &shape).unwrap(), None).unwrap_err().to_string();
            assert_eq!(
                said,
                format!(
                    "the residual is {value} at pixel 0, and residuals that differ from each other is needed"
                )
            );
        }
    }
}

/// The camera's own noise about the truth passes every test as often as its level says; beside a scene that has moved by a
/// pixel everything fails.
#[test]
fn the_truth_passes_and_a_shifted_image_fails() {
    let shape = [40, 43];
    let (n, seeds) = (40 * 43, 200);
    let truth: Vec<f64> = (0..n).map(|i| 400.0 + 300.0 * (0.4 * (i % 43) as f64).sin()).collect();
    let shifted: Vec<f64> = (0..n).map(|i| truth[i / 43 * 43 + (i % 43 + 1) % 43]).collect();
    let (mut passed, mut wrong) = ([0; 3], [0; 3]);
    for seed in 0..seeds {
        let z = noise(n, 5000 + seed);
        let observed: Vec<f64> = truth.iter().zip(&z).map(|(t, z)| t + (t + 4.0).sqrt() * z).collect();
        for (predicted, counts) in [(&truth, &mut passed), (&shifted, &mut wrong)] {
            let variance: Vec<f64> = predicted.iter().map(|t| t + 4.0).collect();
            let args = [&observed, predicted, &variance].map(|x| ImageRef::new(x, &shape).unwrap());
            let z = standardised(args[0], args[1], args[2], None).unwrap();
            counts[0] += u32::from(chi2(args[0], args[1], args[2], None).unwrap().is_consistent());
            counts[1] += u32::from(kolmogorov_smirnov(&z).unwrap().p > 0.01);
            counts[2] += u32::from(whiteness(ImageRef::new(&z, &shape).unwrap(), None).unwrap().p > 0.01);
        }
    }
    // 99 % of 200 and more, with room for four standard errors of 1.4.
    assert!(passed.iter().all(|&n| n >= 192), "{passed:?}");
    assert_eq!(wrong, [0; 3]);
}

#[test]
fn one_bin_of_each_pair_is_taken() {
    // 5 x 4: of 20 bins, (0, 0) and (0, 2) are their own conjugates.
    assert_eq!(independent(&[5, 4]).count(), 9);
    assert_eq!(independent(&[4, 5]).count(), 9);
    // Of every two conjugates one is taken, and of those that are their own none.
    for shape in [&[4usize, 6][..], &[6, 5], &[2, 4, 6]] {
        let taken: Vec<usize> = independent(shape).collect();
        let mut at = vec![0; shape.len()];
        for i in 0..shape.iter().product() {
            unravel(i, shape, &mut at);
            let conjugate = at.iter().zip(shape).fold(0, |place, (&k, &n)| place * n + (n - k) % n);
            let count = [i, conjugate].iter().filter(|p| taken.contains(p)).count();
            assert_eq!(count, usize::from(conjugate != i), "{shape:?} {at:?}");
        }
    }
    assert_eq!(independent(&[3, 3, 3]).count(), 13);
    assert_eq!(independent(&[1, 1]).count(), 0);
}

#[test]
fn bias_equals_scipy() {
    let got = bias(&list(), 0.95).unwrap();
    close(got.mean, BIAS[0]);
    close(got.low, BIAS[1]);
    close(got.high, BIAS[2]);
    close(got.p, BIAS[3]);
    let none = bias(&[0.0; 5], 0.9).unwrap();
    assert_eq!((none.mean, none.low, none.high, none.p), (0.0, 0.0, 0.0, 1.0));
    assert_eq!(bias(&[2.0; 5], 0.9).unwrap().p, 0.0);
    assert!(bias(&[1.0], 0.9).is_err() && bias(&list(), 1.0).is_err() && bias(&list(), f64::NAN).is_err());
    assert!(bias(&[1.0, f64::NAN], 0.9).unwrap().mean.is_nan());
}

#[test]
fn kolmogorov_smirnov_equals_scipy() {
    let got = kolmogorov_smirnov(&list()).unwrap();
    close(got.statistic, KS[0]);
    close(got.p, KS[1]);
    // Above the law's curve is as far as below it: the list and its mirror image.
    for sign in [1.0, -1.0] {
        let got = kolmogorov_smirnov(&[-1.2, -0.9, -0.7, -0.4, 0.1].map(|z| sign * z)).unwrap();
        close(got.statistic, 0.460_172_162_722_971);
        close(got.p, 0.174_696_463_376_780_24);
    }
    assert!(kolmogorov_smirnov(&noise(5000, 8)).unwrap().p > 0.01);
    let wide: Vec<f64> = noise(5000, 8).iter().map(|z| 1.2 * z).collect();
    assert!(kolmogorov_smirnov(&wide).unwrap().p < 0.01);
    assert!(kolmogorov_smirnov(&[]).is_err() && kolmogorov_smirnov(&[f64::NAN]).is_err());
}

#[test]
fn odd_images_are_refused() {
    assert!(whiteness(ImageRef::new(&[1.0], &[1, 1]).unwrap(), None).is_err());
    assert!(whiteness(ImageRef::new(&[f64::INFINITY; 100], &[10, 10]).unwrap(), None).is_err());
}
