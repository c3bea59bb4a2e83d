//! Fits the noise line to groups of similar level.
//!
//! Structure only adds to a variance, and bright objects may have structure everywhere. The line is therefore fitted to
//! the groups that agree with most blocks (`agreeing`), and groups above it lose their weight, so that sparse bright
//! objects do not bend it even if they cover many levels.

use super::blind::NoiseLine;
use super::groups::{Group, median};

/// The value that half of the weight is below.
fn weighted_median(values: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut values: Vec<(f64, f64)> = values.collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = 0.5 * values.iter().map(|v| v.1).sum::<f64>();
    let mut sum = 0.0;
    values
        .iter()
        .find(|v| {
            sum += v.1;
            sum >= half
        })
        .map_or(f64::NAN, |v| v.0)
}

/// Scatter from which on groups lie on no line.
const NO_LINE: f64 = 3.0;

pub(super) struct Fit {
    pub line: NoiseLine,
    /// The scatter of the groups about the line, relative to that expected by chance.
    pub scatter: f64,
}

impl Fit {
    /// Whether the groups lie on a line, as expected for a camera.
    pub fn is_line(&self) -> bool {
        self.scatter <= NO_LINE
    }
}

/// What is tried as the line through two groups is that of others as well if they are no further from it than this share of the variance, beside their own error.
const NEAR: f64 = 0.1;

/// The groups that most blocks agree with lie on one line, whatever others have more: their trust to begin with. No group has less noise than there is,
/// so those below a line speak against it.
fn agreeing(groups: &[Group], fixed: Option<f64>) -> Vec<f64> {
    let share = |g: &Group, pivot: &Group, slope: f64| {
        let variance = pivot.variance + slope * (g.level - pivot.level);
        let off = (g.variance - variance) / (variance.max(0.02 * g.variance) * g.relative_error.hypot(NEAR));
        1.0 - (off / 2.0).powi(2)
    };
    let score = |pivot: &Group, slope: f64| -> f64 {
        let one = |g: &Group| {
            let near = share(g, pivot, slope);
            let below = g.variance < pivot.variance + slope * (g.level - pivot.level);
            g.count as f64 * if below { near.max(-1.0) } else { near.max(0.0) }
        };
        groups.iter().map(one).sum()
    };
    let mut best = (f64::NEG_INFINITY, 0, 0.0);
    for (i, a) in groups.iter().enumerate() {
        let through = |b: &Group| ((b.variance - a.variance) / (b.level - a.level)).max(0.0);
        let slopes = groups[i + 1..].iter().filter(|b| b.level > a.level).map(through).chain([0.0]);
        for slope in slopes.map(|s| fixed.unwrap_or(s)) {
            let score = score(a, slope);
            if score > best.0 {
                best = (score, i, slope);
            }
        }
    }
    groups.iter().map(|g| share(g, &groups[best.1], best.2).max(0.01)).collect()
}

/// The line through the groups; `fixed` is the slope, if it is known.
pub(super) fn fit(groups: &[Group], fixed: Option<f64>) -> Fit {
    let usual = median(groups.iter().map(|g| g.variance)).max(f64::MIN_POSITIVE);
    let mut expected: Vec<f64> = groups.iter().map(|g| g.variance.max(1e-3 * usual)).collect();
    let mut trust = agreeing(groups, fixed);
    let mut line = NoiseLine::default();
    let mut scatter = 1.0;
    for _ in 0..50 {
        let [mut s0, mut s1, mut s2, mut t0, mut t1] = [0.0; 5];
        // Levels are taken about their middle, which keeps the normal equations well.
        let middle = groups.iter().map(|g| g.level).sum::<f64>() / groups.len() as f64;
        for ((g, &v), &t) in groups.iter().zip(&expected).zip(&trust) {
            let w = t / (v * g.relative_error).powi(2);
            let l = g.level - middle;
            s0 += w;
            s1 += w * l;
            s2 += w * l * l;
            t0 += w * g.variance;
            t1 += w * l * g.variance;
        }
        let determinant = s0 * s2 - s1 * s1;
        let told = determinant > 1e-12 * s0 * s2 && s2 > 0.0;
        let (slope, slope_variance) = match fixed {
            Some(a) => (a, 0.0),
            None if told => ((s0 * t1 - s1 * t0) / determinant, s0 / determinant),
            None => (0.0, f64::INFINITY),
        };
        let slope = slope.max(0.0);
        line = NoiseLine {
            slope,
            slope_error: slope_variance.sqrt(),
            pivot: middle + s1 / s0,
            at_pivot: t0 / s0,
            at_pivot_error: (1.0 / s0).sqrt(),
        };
        let mut moved = 0f64;
        let deviations: Vec<f64> = groups
            .iter()
            .zip(&mut expected)
            .map(|(g, v)| {
                let new = line.variance(g.level).max(0.02 * g.variance);
                moved = moved.max((new / *v - 1.0).abs());
                *v = new;
                (g.variance - new) / (new * g.relative_error)
            })
            .collect();
        scatter = (weighted_median(deviations.iter().zip(groups).map(|(d, g)| (d.abs(), g.count as f64)))
            / 0.6745)
            .max(1.0);
        // Structure can only add: what lies far above the line loses its weight (Tukey's), what lies below keeps it.
        for (t, d) in trust.iter_mut().zip(&deviations) {
            let far = d.max(0.0) / (4.0 * scatter);
            *t = (1.0 - far * far).max(0.01).powi(2);
        }
        if moved < 1e-9 {
            break;
        }
    }
    line.slope_error *= scatter;
    line.at_pivot_error *= scatter;
    Fit { line, scatter }
}
