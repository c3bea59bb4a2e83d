//! The summary of the scores of many images: means with intervals, and tests against another method.

use crate::error::{Error, Result};
use clearshot_metrics::statistics::{Interval, RankLaw, bootstrap_bca, holm, paired_t, wilcoxon};
use clearshot_metrics::table::{Metric, Score};
use clearshot_tensor::noise::Key;

const DRAWS: usize = 10_000;
/// The confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;
/// The same draws for every metric and run: an interval is a function of the scores.
const KEY: Key = Key { seed: 0xBCA, step: 0, stream: 0 };

/// One metric over all images.
#[derive(Clone, Debug)]
pub struct MetricSummary {
    /// The metric.
    pub name: &'static str,
    /// The number of images with a finite score (with another method, of both).
    pub images: usize,
    /// `None` if no image has a finite score.
    pub mean: Option<Interval>,
    /// The comparison with another method.
    pub against: Option<Against>,
}

/// This method's scores compared with another's.
#[derive(Clone, Debug)]
pub struct Against {
    /// The mean of the other method's scores.
    pub mean: f64,
    /// The mean difference, this method minus the other.
    pub difference: Interval,
    /// `None` for a single image, or if all images score the same.
    pub tests: Option<Tests>,
}

/// Whether two methods differ.
#[derive(Clone, Debug)]
pub struct Tests {
    /// The smaller rank sum of Wilcoxon's test, and its p-value.
    pub wilcoxon: (f64, f64),
    /// Corrected for the number of metrics.
    pub wilcoxon_holm: f64,
    /// The p-value of Student's paired test.
    pub student: f64,
}

/// `own` and `other` have one list of scores per image, in the order of the metrics.
///
/// # Errors
/// If a statistic cannot be computed.
pub fn of(
    metrics: &[&Metric],
    own: &[Vec<Score>],
    other: Option<&[Vec<Score>]>,
) -> Result<Vec<MetricSummary>> {
    let mut rows = Vec::new();
    for (i, metric) in metrics.iter().enumerate() {
        let value = |scores: &Vec<Score>| scores[i].value;
        let row = match other {
            None => alone(metric.name, own.iter().map(value).filter(|v| v.is_finite()).collect()),
            Some(other) => {
                let pairs = own.iter().map(value).zip(other.iter().map(value));
                beside(metric.name, pairs.filter(|(a, b)| a.is_finite() && b.is_finite()).unzip())
            }
        };
        rows.push(row.map_err(|e: Error| e.at(metric.name))?);
    }
    correct(&mut rows)?;
    Ok(rows)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn interval(values: &[f64]) -> Result<Interval> {
    Ok(bootstrap_bca(values, mean, DRAWS, CONFIDENCE, KEY)?)
}

fn alone(name: &'static str, values: Vec<f64>) -> Result<MetricSummary> {
    let mean = if values.is_empty() { None } else { Some(interval(&values)?) };
    Ok(MetricSummary { name, images: values.len(), mean, against: None })
}

fn beside(name: &'static str, (own, other): (Vec<f64>, Vec<f64>)) -> Result<MetricSummary> {
    let differences: Vec<f64> = own.iter().zip(&other).map(|(a, b)| a - b).collect();
    let row = alone(name, own.clone())?;
    if differences.is_empty() {
        return Ok(row);
    }
    let tests = match differences.len() > 1 && differences.iter().any(|&d| d != 0.0) {
        true => {
            let test = wilcoxon(&own, &other, RankLaw::Auto)?;
            let student = paired_t(&own, &other)?.p;
            Some(Tests { wilcoxon: (test.statistic, test.p), wilcoxon_holm: test.p, student })
        }
        false => None,
    };
    let against = Against { mean: mean(&other), difference: interval(&differences)?, tests };
    Ok(MetricSummary { against: Some(against), ..row })
}

fn correct(rows: &mut [MetricSummary]) -> Result<()> {
    let mut tests: Vec<&mut Tests> =
        rows.iter_mut().filter_map(|r| r.against.as_mut()?.tests.as_mut()).collect();
    let adjusted = holm(&tests.iter().map(|t| t.wilcoxon.1).collect::<Vec<_>>())?;
    tests.iter_mut().zip(adjusted).for_each(|(t, p)| t.wilcoxon_holm = p);
    Ok(())
}
