//! The result of a metric: a value, its details, and the combination of several planes.

use crate::frc::{Curve, Resolution, Ring, Threshold};

/// How a number of several planes becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Mean,
    Sum,
    /// The standard error of a mean: that of independent planes falls with their number.
    Error,
    /// A p-value: the smallest times the number of planes (Bonferroni), 1 at most.
    P,
}

impl Rule {
    fn apply(self, values: &[f64]) -> f64 {
        let n = values.len() as f64;
        let sum: f64 = values.iter().sum();
        match self {
            Rule::Mean => sum / n,
            Rule::Sum => sum,
            Rule::Error => values.iter().map(|v| v * v).sum::<f64>().sqrt() / n,
            Rule::P if values.iter().any(|v| v.is_nan()) => f64::NAN,
            Rule::P => (values.iter().copied().fold(1.0, f64::min) * n).min(1.0),
        }
    }
}

/// A number beside a value: a p-value, a count, an end of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detail {
    pub name: &'static str,
    pub value: f64,
    pub rule: Rule,
}

/// What a metric says of a plane or volume, or of all of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// NaN where there is none; `remark` then says why.
    pub value: f64,
    pub details: Vec<Detail>,
    /// Of Fourier ring correlation: the curve that the value was read from, and where it was cut.
    pub curve: Option<(Curve, Threshold)>,
    pub remark: Option<String>,
}

impl Score {
    pub fn of(value: f64) -> Score {
        Score { value, details: vec![], curve: None, remark: None }
    }

    pub fn missing(why: String) -> Score {
        Score { remark: Some(why), ..Score::of(f64::NAN) }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64, rule: Rule) -> Score {
        self.details.push(Detail { name, value, rule });
        self
    }

    /// The resolution that a curve tells.
    pub fn of_curve(curve: Curve, threshold: Threshold) -> Score {
        let mut score = match curve.resolution(threshold) {
            Resolution::At { length, .. } => Score::of(length),
            Resolution::BeyondSampling => {
                Score::missing("the correlation stays above the threshold: finer than the sampling".into())
            }
            Resolution::Unresolved => {
                Score::missing("the correlation is below the threshold everywhere: nothing agrees".into())
            }
        };
        score.curve = Some((curve, threshold));
        score
    }

    /// Those of several planes as one. Means are over planes; a resolution is read from the mean of their curves.
    pub fn together(parts: &[Score]) -> Score {
        let [first, rest @ ..] = parts else { return Score::missing("there are no planes".into()) };
        if rest.is_empty() {
            return first.clone();
        }
        if let Some((_, threshold)) = &first.curve {
            let curves: Vec<&Curve> = parts.iter().filter_map(|p| p.curve.as_ref().map(|c| &c.0)).collect();
            return Score::of_curve(mean_curve(&curves), *threshold);
        }
        let mut score = Score::of(Rule::Mean.apply(&parts.iter().map(|p| p.value).collect::<Vec<_>>()));
        for (i, detail) in first.details.iter().enumerate() {
            let all: Vec<f64> = parts.iter().filter_map(|p| p.details.get(i).map(|d| d.value)).collect();
            score = score.with(detail.name, detail.rule.apply(&all), detail.rule);
        }
        score.remark = parts.iter().find_map(|p| p.remark.clone());
        score
    }
}

/// Planes of one size have the same rings. Bins are counted together, so that thresholds that depend on them know of all planes.
fn mean_curve(curves: &[&Curve]) -> Curve {
    let ring = |(i, ring): (usize, &Ring)| {
        let of = |curve: &&Curve| curve.rings[i];
        let correlation = curves.iter().map(|c| of(c).correlation).sum::<f64>() / curves.len() as f64;
        Ring { correlation, bins: curves.iter().map(|c| of(c).bins).sum(), frequency: ring.frequency }
    };
    Curve { rings: curves.first().map_or(vec![], |c| c.rings.iter().enumerate().map(ring).collect()) }
}
