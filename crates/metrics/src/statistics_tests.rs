//! scipy's numbers for fixed lists, and intervals with a known law.

use super::*;

// Of scipy.stats: ttest_rel, wilcoxon (exact, and approx without correction), and wilcoxon of ties.
const T: [f64; 2] = [1.9905321616932619, 0.05803760567963746];
const EXACT: [f64; 2] = [45.0, 0.0009118914604187012];
const NORMAL: [f64; 2] = [45.0, 0.0015692533679152953];
const TIES: [f64; 2] = [12.0, 0.03375728251926588];

fn scores() -> (Vec<f64>, Vec<f64>) {
    let a = |i: f64| 30.0 + (1.3 * i).sin() * 2.0;
    (0..25).map(f64::from).map(|i| (a(i), a(i) - 0.3 + 0.9 * (2.1 * i).cos())).unzip()
}

fn equal(got: Test, expected: [f64; 2]) {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-10 * b.abs();
    assert!(close(got.statistic, expected[0]) && close(got.p, expected[1]), "{got:?} {expected:?}");
}

#[test]
fn paired_t_equals_scipy() {
    let (a, b) = scores();
    equal(paired_t(&a, &b).unwrap(), T);
    assert_eq!(paired_t(&a, &a).unwrap(), Test { statistic: 0.0, p: 1.0 });
    assert_eq!(paired_t(&[2.0, 3.0], &[1.0, 2.0]).unwrap().p, 0.0);
    assert!(paired_t(&a, &b[1..]).is_err() && paired_t(&[1.0], &[2.0]).is_err());
    assert!(paired_t(&[1.0, f64::NAN], &[1.0, 2.0]).is_err());
}

#[test]
fn wilcoxon_equals_scipy() {
    let (a, b) = scores();
    equal(wilcoxon(&a, &b, RankLaw::Exact).unwrap(), EXACT);
    equal(wilcoxon(&a, &b, RankLaw::Normal).unwrap(), NORMAL);
    let d = [1.0, -2.0, 2.0, 3.0, 0.0, 4.0, -1.0, 5.0, 2.0, 6.0, 0.0, 7.0, -3.0, 8.0];
    equal(wilcoxon(&d, &[0.0; 14], RankLaw::Normal).unwrap(), TIES);
    assert!(wilcoxon(&d, &[0.0; 14], RankLaw::Exact).is_err());
    assert!(wilcoxon(&a, &a, RankLaw::Normal).is_err());
    // Three of one sign: two of the eight choices of signs are as extreme.
    assert_eq!(
        wilcoxon(&[1.0, 2.0, 3.0], &[0.0; 3], RankLaw::Exact).unwrap(),
        Test { statistic: 0.0, p: 0.25 }
    );
}

#[test]
fn holm_by_hand() {
    // Sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, never falling.
    assert_eq!(holm(&[0.04, 0.01, 0.03, 0.02]).unwrap(), [0.06, 0.04, 0.06, 0.06]);
    assert_eq!(holm(&[0.9, 0.6]).unwrap(), [1.0, 1.0]);
    assert!(holm(&[]).unwrap().is_empty());
    assert!(holm(&[f64::NAN]).is_err() && holm(&[1.5]).is_err());
}

/// The mean of normal values: the interval covers the true mean about as often as it says.
#[test]
fn bootstrap_covers() {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let mut covered = 0;
    for seed in 0..200 {
        let key = Key { seed, step: 0, stream: 0 };
        let values: Vec<f64> = (0..60).map(|i| f64::from(key.normal(i))).collect();
        let found = bootstrap(&values, mean, 300, 0.9, Key { stream: 1, ..key }).unwrap();
        assert!(found.low <= found.value && found.value <= found.high);
        covered += usize::from(found.low <= 0.0 && 0.0 <= found.high);
    }
    // 180 expected, with a standard error of 4.2; small samples cover a little less.
    assert!((164..=194).contains(&covered), "{covered} of 200");
}

#[test]
fn bootstrap_is_a_function_of_its_key() {
    let values = [1.0, 5.0, 2.0, 8.0, 3.0, 9.5];
    let sum = |x: &[f64]| x.iter().sum::<f64>();
    let at = |seed| bootstrap(&values, sum, 99, 0.8, Key { seed, step: 0, stream: 0 }).unwrap();
    assert_eq!(at(1), at(1));
    assert_ne!(at(1), at(2));
    let key = Key { seed: 0, step: 0, stream: 0 };
    let one = bootstrap(&[4.0], sum, 10, 0.9, key).unwrap();
    assert_eq!(one, Interval { value: 4.0, low: 4.0, high: 4.0 });
    assert!(bootstrap(&[], sum, 10, 0.9, key).is_err() && bootstrap(&[1.0], sum, 0, 0.9, key).is_err());
    assert!(bootstrap(&[1.0], sum, 10, 1.0, key).is_err());
    assert!(bootstrap(&[f64::NAN], sum, 10, 0.9, key).unwrap().value.is_nan());
}

/// scipy.stats.bootstrap with method BCa and 200000 resamples: skewed scores, a mean and a deviation.
#[test]
fn corrected_bootstrap_equals_scipy() {
    let values = [1.2, 0.3, 2.5, 7.1, 0.8, 1.9, 3.3, 0.2, 5.0, 1.1, 0.6, 2.2];
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let deviation =
        |x: &[f64]| (x.iter().map(|v| (v - mean(x)).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
    let key = Key { seed: 5, step: 0, stream: 0 };
    let near = |got: Interval, low: f64, high: f64| {
        assert!((got.low - low).abs() < 0.02 && (got.high - high).abs() < 0.03, "{got:?}");
    };
    near(bootstrap_bca(&values, mean, 50_000, 0.9, key).unwrap(), 1.425, 3.4176);
    near(bootstrap_bca(&values, deviation, 50_000, 0.9, key).unwrap(), 1.2924, 2.8612);
    near(bootstrap(&values, mean, 50_000, 0.9, key).unwrap(), 1.3083, 3.1833);
    let one = bootstrap_bca(&[4.0], mean, 10, 0.9, key).unwrap();
    assert_eq!(one, Interval { value: 4.0, low: 4.0, high: 4.0 });
    assert!(bootstrap_bca(&[], mean, 10, 0.9, key).is_err());
}
