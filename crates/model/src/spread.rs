//! Calibration of the standard deviation of posterior samples.
//!
//! The differences between samples of a network do not equal its errors: in uniform dark regions they are too large,
//! because the sampler leaves a little noise where the network is certain; around bright uniform regions they are too
//! small. The standard deviation is therefore multiplied by a factor, fitted where the truth is known. A single factor does
//! not fit everywhere: [`SpreadTable`] has it as a function of two numbers that every pixel has in any scene, both in units
//! of the local camera noise: the standard deviation of the samples, and the light above the background.

use serde::{Deserialize, Serialize};

/// The factor between the standard deviation of samples and that of errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SpreadFactor {
    /// The same everywhere.
    One(f64),
    Table(SpreadTable),
}

impl SpreadFactor {
    /// What makes intervals of `reach` spreads hold nine errors in ten, from images whose truth is known: a table where light
    /// and noise are known of every pixel. None where there are no pixels.
    pub fn of(images: &[Vec<Known>], reach: f64) -> Option<SpreadFactor> {
        if images.iter().flatten().all(|p| p.light.is_some()) {
            return SpreadTable::of(images, reach).map(SpreadFactor::Table);
        }
        let mut ratios: Vec<f64> = images.iter().flatten().filter_map(|p| p.ratio(reach)).collect();
        Some(SpreadFactor::One(percentile(&mut ratios)?.max(1e-3)))
    }

    /// The factor at a pixel, all in one unit; what light and noise are is not always known.
    pub fn at(&self, spread: f64, light: Option<Light>) -> f64 {
        match (self, light) {
            (SpreadFactor::One(factor), _) => *factor,
            (SpreadFactor::Table(table), Some(light)) => table.at(spread, light),
            (SpreadFactor::Table(_), None) => 1.0,
        }
    }

    /// Whether it is for spreads that were pooled with those of the pixels around, as tables are: what a few samples say of one
    /// pixel is mostly chance.
    pub fn is_of_pooled(&self) -> bool {
        matches!(self, SpreadFactor::Table(_))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            SpreadFactor::One(factor) if factor.is_finite() && *factor > 0.0 => Ok(()),
            SpreadFactor::One(factor) => Err(format!("a factor on spreads of {factor}; it is above zero")),
            SpreadFactor::Table(table) => table.check(),
        }
    }
}

/// What a camera has at a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Light {
    /// The estimate above the background.
    pub signal: f64,
    /// The measurement's standard deviation there.
    pub noise: f64,
}

/// The version of what a table's axes mean.
const VERSION: u32 = 1;
/// Knots of ln(spread / noise).
const SPREADS: [f64; 6] = [-4.5, -3.5, -2.5, -1.75, -1.0, 0.0];
/// Knots of ln(1 + signal / noise). They are dense near the background: an estimate that is a little above it is mostly
/// wrong by just that little, and one that is at it by far less than its samples differ. How many pixels are of the one and
/// of the other kind differs from scene to scene.
const SIGNALS: [f64; 9] = [0.0, 0.01, 0.035, 0.1, 0.25, 0.6, 1.2, 2.0, 3.0];
/// The share of errors that intervals are to hold.
const SHARE: f64 = 0.9;
/// What differences between neighbouring knots cost, in pixels of each image.
const SMOOTH: f64 = 0.003;
/// Where there is this much light, spreads are narrowed no further than this: samples of images that are finer than those
/// at hand are wrong by more there, and what makes samples differ too much is the dark.
const LIT: f64 = 0.6;
const NARROWEST: f64 = 0.9;
/// Rounds of weighing pixels again, at most; residuals below this count as this.
const ROUNDS: usize = 60;
const NEAR: f64 = 0.02;

/// See the module. Between knots the logarithm of the factor is linear along either axis, beyond them it is that of the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpreadTable {
    version: u32,
    /// Knots of ln(spread / noise).
    spread: Vec<f64>,
    /// Knots of ln(1 + signal / noise).
    signal: Vec<f64>,
    /// Logarithms of factors, a row for each knot of the spread.
    logarithms: Vec<Vec<f64>>,
}

/// A pixel whose truth is known; for a table, with its pooled spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    pub spread: f64,
    pub light: Option<Light>,
    /// How far the truth is from the estimate.
    pub error: f64,
}

impl Known {
    /// The error in units of the interval's half width, where there is one.
    fn ratio(&self, reach: f64) -> Option<f64> {
        Some(self.error / (reach * self.spread)).filter(|r| r.is_finite())
    }
}

/// The 90th.
fn percentile(values: &mut [f64]) -> Option<f64> {
    let at = (values.len().checked_sub(1)? as f64 * SHARE) as usize;
    Some(*values.select_nth_unstable_by(at, f64::total_cmp).1)
}

/// Knots about a place: their numbers in a row of all, and their weights.
type Knots = [(usize, f64); 4];

impl SpreadTable {
    /// The table under which intervals of `reach` spreads hold nine errors in ten wherever one looks, from images whose truth
    /// is known, each of which counts the same: the 90th percentile of ln(error / (reach x spread)) by quantile regression.
    /// Wider spreads never make narrower intervals. None where there are no pixels.
    fn of(images: &[Vec<Known>], reach: f64) -> Option<SpreadTable> {
        let columns = SIGNALS.len();
        let count = SPREADS.len() * columns;
        let mut pixels: Vec<(Knots, f64, f64)> = Vec::new();
        for image in images {
            let share = 1.0 / image.len().max(1) as f64;
            pixels.extend(image.iter().filter_map(|p| {
                let (ratio, light) = (p.ratio(reach)?, p.light.filter(|l| l.noise > 0.0)?);
                Some((knots(&SPREADS, &SIGNALS, p.spread, light), ratio.max(1e-4).ln(), share))
            }));
        }
        let mut all: Vec<f64> = pixels.iter().map(|p| p.1).collect();
        let mut found = vec![percentile(&mut all)?; count];
        let smooth = smoothness(SMOOTH * images.len() as f64);
        for _ in 0..ROUNDS {
            let (mut matrix, mut right) = (smooth.clone(), vec![0.0; count]);
            for (knots, value, share) in &pixels {
                let off = value - knots.iter().map(|(k, w)| w * found[*k]).sum::<f64>();
                let side = if off > 0.0 { SHARE } else { 1.0 - SHARE };
                let weight = share * side / off.abs().max(NEAR);
                for (i, a) in knots {
                    right[*i] += weight * a * value;
                    for (j, b) in knots {
                        matrix[*i][*j] += weight * a * b;
                    }
                }
            }
            let next = solved(matrix, right);
            let moved = next.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            found = next;
            if moved < 1e-3 {
                break;
            }
        }
        let mut logarithms: Vec<Vec<f64>> = found.chunks(columns).map(<[f64]>::to_vec).collect();
        for (value, signal) in logarithms.iter_mut().flat_map(|row| row.iter_mut().zip(SIGNALS)) {
            if signal >= LIT {
                *value = value.max(NARROWEST.ln());
            }
        }
        for i in 1..SPREADS.len() {
            let least = SPREADS[i - 1] - SPREADS[i];
            for j in 0..columns {
                logarithms[i][j] = logarithms[i][j].max(logarithms[i - 1][j] + least);
            }
        }
        // Four digits are more than the images tell.
        logarithms.iter_mut().flatten().for_each(|v| *v = (*v * 1e4).round() / 1e4);
        Some(SpreadTable { version: VERSION, spread: SPREADS.into(), signal: SIGNALS.into(), logarithms })
    }

    fn at(&self, spread: f64, light: Light) -> f64 {
        let columns = self.signal.len();
        let knots = knots(&self.spread, &self.signal, spread, light);
        knots.iter().map(|(k, w)| w * self.logarithms[k / columns][k % columns]).sum::<f64>().exp()
    }

    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            let version = self.version;
            return Err(format!("a table of spreads of version {version}; this program knows {VERSION}"));
        }
        let rises = |knots: &[f64]| knots.len() > 1 && knots.is_sorted_by(|a, b| a < b);
        let whole = self.logarithms.len() == self.spread.len()
            && self.logarithms.iter().all(|row| row.len() == self.signal.len())
            && self.logarithms.iter().flatten().all(|v| v.abs() < 20.0);
        if rises(&self.spread) && rises(&self.signal) && whole {
            return Ok(());
        }
        Err("a table of spreads whose knots do not rise or whose factors are not all there".into())
    }
}

/// The four knots about a pixel.
fn knots(spreads: &[f64], signals: &[f64], spread: f64, light: Light) -> Knots {
    let noise = light.noise.max(f64::MIN_POSITIVE);
    let (row, down) = between(spreads, (spread / noise).max(f64::MIN_POSITIVE).ln());
    let (column, right) = between(signals, (light.signal / noise).max(0.0).ln_1p());
    let first = row * signals.len() + column;
    let below = first + signals.len();
    [
        (first, (1.0 - down) * (1.0 - right)),
        (first + 1, (1.0 - down) * right),
        (below, down * (1.0 - right)),
        (below + 1, down * right),
    ]
}

/// The knot below a value and the share of the way to the next.
fn between(knots: &[f64], value: f64) -> (usize, f64) {
    let value = value.clamp(knots[0], knots[knots.len() - 1]);
    let below = knots.partition_point(|k| *k <= value).clamp(1, knots.len() - 1) - 1;
    (below, (value - knots[below]) / (knots[below + 1] - knots[below]))
}

/// The quadratic form of differences between neighbouring knots.
fn smoothness(weight: f64) -> Vec<Vec<f64>> {
    let (rows, columns) = (SPREADS.len(), SIGNALS.len());
    let mut form = vec![vec![0.0; rows * columns]; rows * columns];
    let mut pair = |a: usize, b: usize| {
        form[a][a] += weight;
        form[b][b] += weight;
        form[a][b] -= weight;
        form[b][a] -= weight;
    };
    for k in 0..rows * columns {
        if k % columns + 1 < columns {
            pair(k, k + 1);
        }
        if k / columns + 1 < rows {
            pair(k, k + columns);
        }
    }
    form
}

/// The solution of a symmetric, positive system (Cholesky).
fn solved(mut a: Vec<Vec<f64>>, mut x: Vec<f64>) -> Vec<f64> {
    let n = x.len();
    for i in 0..n {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            let left = a[i][j] - sum;
            a[i][j] = if i == j { left.max(1e-12).sqrt() } else { left / a[j][j] };
        }
        let sum: f64 = (0..i).map(|k| a[i][k] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i][i];
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| a[k][i] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i][i];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// Errors of a normal law whose width is a known function of spread and light: intervals hold nine in ten, in dark and
    /// in bright places, under narrow and under wide spreads.
    #[test]
    fn intervals_hold_nine_in_ten_wherever_one_looks() {
        let drawn = |seed: u64| -> Vec<Known> {
            let [mut normal, mut uniform] = [vec![0f32; 20_000], vec![0f32; 40_000]];
            Key { seed, step: 0, stream: 0 }.fill_normal(0, &mut normal);
            Key { seed, step: 1, stream: 0 }.fill_uniform(0, &mut uniform);
            let pixel = |(z, u): (&f32, &[f32])| {
                let noise = 3.0;
                let spread = noise * (-4.0 + 4.0 * f64::from(u[0])).exp();
                let signal = noise * 15.0 * (f64::from(u[1]) - 0.4).max(0.0).powi(2);
                // From 0.4 times the spread in the dark to 1.3 times where there is light.
                let lit = ((signal / noise).ln_1p() / 0.6).min(1.0);
                let width = spread * 0.4 * (1.3f64 / 0.4).powf(lit);
                let light = Some(Light { signal, noise });
                Known { spread, light, error: width * f64::from(z.abs()) }
            };
            normal.iter().zip(uniform.chunks(2)).map(pixel).collect()
        };
        let reach = 1.645;
        let factor = SpreadFactor::of(&[drawn(1), drawn(2), drawn(3)], reach).expect("pixels");
        let others = drawn(4);
        factor.check().expect("whole");
        for (what, of) in [
            ("dark", (|_, signal| signal < 0.1) as fn(f64, f64) -> bool),
            ("bright", |_, signal| signal > 3.0),
            ("narrow", |spread, signal| spread < 0.05 && signal > 1.0),
            ("wide", |spread, signal| spread > 0.5 && signal > 1.0),
        ] {
            let there = |p: &&Known| p.light.is_some_and(|l| of(p.spread / l.noise, l.signal / l.noise));
            let all: Vec<&Known> = others.iter().filter(there).collect();
            let inside = |p: &&&Known| p.error <= reach * p.spread * factor.at(p.spread, p.light);
            let held = all.iter().filter(inside).count() as f64 / all.len() as f64;
            let plain = all.iter().filter(|p| p.error <= reach * p.spread).count() as f64 / all.len() as f64;
            // Smoothing costs a few per cent in rare regions; the unscaled standard deviation is off by more.
            assert!((held - SHARE).abs() < 0.06, "{what}: {held} of {}", all.len());
            assert!((plain - SHARE).abs() > 0.08, "{what}: {plain} of {} without a factor", all.len());
        }
        // Wider spreads make wider intervals.
        for signal in [0.0, 1.0, 30.0] {
            let light = Light { signal, noise: 3.0 };
            let width = |s: f64| s * factor.at(s, Some(light));
            assert!((1..300).all(|i| width(0.01 * f64::from(i + 1)) >= width(0.01 * f64::from(i)) * 0.9999));
        }
        let text = serde_json::to_string(&factor).expect("JSON");
        assert_eq!(serde_json::from_str::<SpreadFactor>(&text).expect("itself"), factor);
        assert_eq!(factor.at(1.0, None), 1.0);
        assert!(SpreadFactor::of(&[vec![]], reach).is_none());
        // Without light there is one factor for all.
        let blind = |p: &Known| Known { light: None, ..*p };
        let Some(SpreadFactor::One(one)) = SpreadFactor::of(&[others.iter().map(blind).collect()], reach)
        else {
            panic!("a table without light");
        };
        let held = others.iter().filter(|p| p.error <= one * reach * p.spread).count() as f64;
        assert!((held / others.len() as f64 - SHARE).abs() < 1e-3);
    }

    #[test]
    fn invalid_factors_are_refused_and_a_single_number_is_one_factor() {
        let one: SpreadFactor = serde_json::from_str("0.88").expect("a number");
        assert_eq!(one, SpreadFactor::One(0.88));
        assert_eq!(one.at(7.0, Some(Light { signal: 1.0, noise: 2.0 })), 0.88);
        let table = |version: u32, rows: usize| SpreadTable {
            version,
            spread: vec![-1.0, 0.0],
            signal: vec![0.0, 1.0],
            logarithms: vec![vec![0.0, 0.1]; rows],
        };
        assert!(SpreadFactor::Table(table(1, 2)).check().is_ok());
        for broken in [
            SpreadFactor::One(0.0),
            SpreadFactor::One(f64::NAN),
            SpreadFactor::Table(table(2, 2)),
            SpreadFactor::Table(table(1, 1)),
        ] {
            assert!(broken.check().is_err(), "{broken:?}");
        }
    }
}
