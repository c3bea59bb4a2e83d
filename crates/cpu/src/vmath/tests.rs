//! Worst errors over dense grids, against f64, and the values at the ends.

use super::{Function, Function::*, map};
use crate::simd::Level;

const POINTS: usize = 40_000;

/// One function, its range, and what is promised there: ulps where the result is normal and above
/// `floor` in size, `absolute` below.
struct Case {
    f: Function,
    low: f64,
    high: f64,
    exact: fn(f64) -> f64,
    ulps: f64,
    floor: f64,
    absolute: f64,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// erf by its series, and far out by the continued fraction of erfc.
fn erf(x: f64) -> f64 {
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..120 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let a = x.abs();
    let fraction = (1..60).rev().fold(a, |t, n| a + n as f64 / 2.0 / t);
    x.signum() * (1.0 - (-a * a).exp() / fraction / std::f64::consts::PI.sqrt())
}

fn phi(x: f64) -> f64 {
    0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

fn silu_slope(x: f64) -> f64 {
    let g = sigmoid(x);
    g * (1.0 + x * (1.0 - g))
}

fn inner(x: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

fn gelu_tanh_slope(x: f64) -> f64 {
    let g = sigmoid(inner(x));
    let dz = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
    g * (1.0 + x * (1.0 - g) * dz)
}

const fn case(f: Function, range: (f64, f64), exact: fn(f64) -> f64, ulps: f64) -> Case {
    Case { f, low: range.0, high: range.1, exact, ulps, floor: 1.2e-38, absolute: 0.0 }
}

const fn near_zero(case: Case, floor: f64, absolute: f64) -> Case {
    Case { floor, absolute, ..case }
}

fn cases() -> Vec<Case> {
    vec![
        case(Exp, (-87.3, 88.72), f64::exp, 1.6),
        near_zero(case(Exp, (-104.0, -87.3), f64::exp, 1.6), 1e-37, 2e-45),
        case(Exp2Nonpositive, (-125.9, 0.5), f64::exp2, 2.2),
        case(Ln, (1e-38, 1e-30), f64::ln, 1.0),
        case(Ln, (1e-3, 4.0), f64::ln, 1.5),
        case(Ln, (4.0, 1e6), f64::ln, 1.0),
        case(Ln, (1e-44, 1e-38), f64::ln, 1.0),
        case(Log1p, (-0.99, 4.0), f64::ln_1p, 2.5),
        case(Log1p, (-1e-4, 1e-4), f64::ln_1p, 2.5),
        case(Sigmoid, (-86.0, 90.0), sigmoid, 2.5),
        case(SigmoidSlope, (-86.0, 86.0), |x| sigmoid(x) * sigmoid(-x), 4.0),
        case(Silu, (-80.0, 90.0), |x| x * sigmoid(x), 2.5),
        near_zero(case(SiluSlope, (-40.0, 40.0), silu_slope, 6.0), 0.2, 2e-7),
        case(Tanh, (-20.0, 20.0), f64::tanh, 2.0),
        case(Tanh, (-1e-3, 1e-3), f64::tanh, 1.0),
        case(TanhSlope, (-40.0, 40.0), |x| 4.0 * sigmoid(2.0 * x) * sigmoid(-2.0 * x), 4.0),
        case(Softplus, (-86.0, 90.0), |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), 3.0),
        near_zero(case(Erf, (-8.0, 8.0), erf, 3.0), 0.5, 1.2e-7),
        near_zero(case(Gelu, (-12.0, 12.0), |x| x * phi(x), 4.0), 0.5, 1.5e-7),
        near_zero(case(GeluSlope, (-12.0, 12.0), |x| phi(x) + x * density(x), 4.0), 0.5, 2e-7),
        near_zero(case(GeluTanh, (-12.0, 12.0), |x| x * sigmoid(inner(x)), 4.0), 0.5, 1.5e-7),
        near_zero(case(GeluTanhSlope, (-12.0, 12.0), gelu_tanh_slope, 5.0), 0.5, 4e-7),
        near_zero(case(Sin, (-10.0, 10.0), f64::sin, 2.0), 0.1, 1e-7),
        near_zero(case(Sin, (-1e4, 1e4), f64::sin, 2.5), 0.1, 1e-7),
        near_zero(case(Cos, (-10.0, 10.0), f64::cos, 2.0), 0.1, 1e-7),
        near_zero(case(Cos, (-1e4, 1e4), f64::cos, 2.5), 0.1, 1e-7),
    ]
}

/// The distance of two neighbouring f32 around y.
fn ulp(y: f64) -> f64 {
    2f64.powi((y.abs().log2().floor() as i32).max(-126) - 23)
}

/// The worst error in ulps above the floor, and the worst absolute error below it.
fn worst(level: Level, case: &Case) -> (f64, f64) {
    let step = (case.high - case.low) / (POINTS - 1) as f64;
    let x: Vec<f32> = (0..POINTS).map(|i| (case.low + step * i as f64) as f32).collect();
    let mut y = vec![0.0; POINTS];
    map(level, case.f, &x, &mut y);
    x.iter().zip(&y).fold((0.0, 0.0), |(ulps, absolute), (&x, &y)| {
        let exact = (case.exact)(x as f64);
        let error = (y as f64 - exact).abs();
        assert!(!error.is_nan(), "{:?}({x}) = {y}", case.f);
        if exact.abs() >= case.floor {
            (f64::max(ulps, error / ulp(exact)), absolute)
        } else {
            (ulps, f64::max(absolute, error))
        }
    })
}

#[test]
fn worst_errors() {
    let mut wrong = Vec::new();
    for level in Level::available() {
        for case in cases() {
            let (ulps, absolute) = worst(level, &case);
            println!(
                "{level:?} {:?} [{:e}, {:e}]: {ulps:.2} ulp, {absolute:.1e} below {:e}",
                case.f, case.low, case.high, case.floor
            );
            if ulps > case.ulps || absolute > case.absolute {
                wrong.push(format!("{level:?} {:?} {ulps} {absolute}", case.f));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn special_values() {
    let inf = f32::INFINITY;
    let nan = f32::NAN;
    let table: &[(Function, &[(f32, f32)])] = &[
        (Exp, &[(0.0, 1.0), (inf, inf), (-inf, 0.0), (89.0, inf), (-105.0, 0.0), (nan, nan)]),
        (Exp2Nonpositive, &[(0.0, 1.0), (-1.0, 0.5), (-inf, f32::MIN_POSITIVE), (nan, nan)]),
        (Ln, &[(1.0, 0.0), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, inf), (nan, nan)]),
        (Log1p, &[(0.0, 0.0), (-1.0, -inf), (-2.0, nan), (inf, inf), (nan, nan)]),
        (Sigmoid, &[(0.0, 0.5), (inf, 1.0), (nan, nan)]),
        (SigmoidSlope, &[(0.0, 0.25), (nan, nan)]),
        (Silu, &[(0.0, 0.0), (inf, inf), (nan, nan)]),
        (SiluSlope, &[(0.0, 0.5), (100.0, 1.0), (nan, nan)]),
        (Tanh, &[(0.0, 0.0), (inf, 1.0), (-inf, -1.0), (nan, nan)]),
        (TanhSlope, &[(0.0, 1.0), (nan, nan)]),
        (Softplus, &[(inf, inf), (100.0, 100.0), (nan, nan)]),
        (Erf, &[(0.0, 0.0), (inf, 1.0), (-inf, -1.0), (nan, nan)]),
        (Gelu, &[(0.0, 0.0), (inf, inf), (1e6, 1e6), (nan, nan)]),
        (GeluSlope, &[(0.0, 0.5), (1e6, 1.0), (nan, nan)]),
        (GeluTanh, &[(0.0, 0.0), (1e6, 1e6), (nan, nan)]),
        (GeluTanhSlope, &[(0.0, 0.5), (1e6, 1.0), (nan, nan)]),
        (Sin, &[(0.0, 0.0), (inf, nan), (-inf, nan), (nan, nan)]),
        (Cos, &[(0.0, 1.0), (inf, nan), (nan, nan)]),
    ];
    for level in Level::available() {
        for (f, values) in table {
            for &(x, want) in *values {
                let mut y = [0.0];
                map(level, *f, &[x], &mut y);
                assert!(y[0] == want || (y[0].is_nan() && want.is_nan()), "{level:?} {f:?}({x}) = {}", y[0]);
            }
        }
    }
}

#[test]
fn far_below_zero_is_nearly_zero() {
    for level in Level::available() {
        for f in [Sigmoid, Silu, SiluSlope, Softplus, Gelu, GeluSlope, GeluTanh, GeluTanhSlope] {
            let mut y = [1.0; 3];
            map(level, f, &[-100.0, -1e3, -1e4], &mut y);
            assert!(y.iter().all(|y| y.abs() < 1e-12), "{level:?} {f:?} {y:?}");
        }
    }
}
