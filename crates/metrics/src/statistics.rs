//! Paired tests, Holm's correction and bootstrap intervals, to compare methods.
//!
//! Scores of two methods on the same images are compared in pairs, because images differ more than methods do. p-values are
//! two-sided. The bootstrap draws from a keyed stream, so an interval is a function of the scores and the key.

use crate::MetricError;
use crate::error::require;
use crate::law::{normal_below, normal_quantile, student_beyond};
use crate::residual::Test;
use clearshot_tensor::noise::Key;

/// Finite differences of paired scores, at least `least` of them.
fn differences(a: &[f64], b: &[f64], least: usize) -> Result<Vec<f64>, MetricError> {
    if a.len() != b.len() {
        return Err(MetricError::Count {
            what: "the second method",
            got: b.len(),
            needed: "one a score of the first",
        });
    }
    if a.len() < least {
        return Err(MetricError::Count { what: "a paired test", got: a.len(), needed: "two or more" });
    }
    let d: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    match d.iter().position(|d| !d.is_finite()) {
        Some(index) => {
            let (got, needed) = (d[index], "a finite difference");
            Err(MetricError::Pixel { what: "pair of scores", index, got, needed })
        }
        None => Ok(d),
    }
}

/// Student's paired test. Without any difference t is 0 and p is 1; with one and the same difference
/// everywhere t is infinite and p is 0.
///
/// # Errors
/// If the lists differ in length, have fewer than two scores, or a difference is not finite.
pub fn paired_t(a: &[f64], b: &[f64]) -> Result<Test, MetricError> {
    let d = differences(a, b, 2)?;
    let n = d.len() as f64;
    let mean = d.iter().sum::<f64>() / n;
    let variance = d.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = if mean == 0.0 { 0.0 } else { mean / (variance / n).sqrt() };
    Ok(Test { statistic: t, p: student_beyond(t, n - 1.0) })
}

/// Which law the rank sum is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankLaw {
    /// All choices of signs; for differences that are all distinct, and 1000 of them at most.
    Exact,
    /// Its normal limit, corrected for ties, without a correction for continuity.
    Normal,
    /// Exact for up to 50 distinct differences, otherwise normal, as scipy chooses.
    Auto,
}

/// Wilcoxon's signed-rank test; pairs without a difference are left out. The statistic is the smaller
/// of the two rank sums.
///
/// # Errors
/// If the lists differ in length or are empty, a difference is not finite, all are zero, or the exact
/// law is asked for with ties, zeros or more than 1000 pairs.
pub fn wilcoxon(a: &[f64], b: &[f64], law: RankLaw) -> Result<Test, MetricError> {
    let mut d = differences(a, b, 1)?;
    d.retain(|&d| d != 0.0);
    if d.is_empty() {
        return Err(MetricError::Count { what: "non-zero differences", got: 0, needed: "one or more" });
    }
    d.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let (n, zeros) = (d.len(), a.len() - d.len());
    let ranks = ranks(&d);
    let plus: f64 = ranks.rank.iter().zip(&d).filter(|&(_, &d)| d > 0.0).map(|(r, _)| r).sum();
    let total = (n * (n + 1)) as f64 / 2.0;
    let statistic = plus.min(total - plus);
    let distinct = zeros == 0 && ranks.ties == 0.0;
    let p = match law {
        RankLaw::Auto if distinct && n <= 50 => exact_beyond(n, statistic as usize),
        RankLaw::Exact => {
            require(
                distinct && n <= 1000,
                "the number of pairs",
                n as f64,
                "distinct differences, 1000 at most",
            )?;
            exact_beyond(n, statistic as usize)
        }
        RankLaw::Normal | RankLaw::Auto => {
            let n = n as f64;
            let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ranks.ties / 48.0;
            2.0 * normal_below((statistic - total / 2.0) / variance.sqrt())
        }
    };
    Ok(Test { statistic, p })
}

/// Ranks from 1, the mean rank where sizes are equal, and the sum of t^3 - t over groups of t equals.
struct Ranks {
    rank: Vec<f64>,
    ties: f64,
}

fn ranks(sorted: &[f64]) -> Ranks {
    let mut ranks = Ranks { rank: vec![], ties: 0.0 };
    for group in sorted.chunk_by(|a, b| a.abs() == b.abs()) {
        let (before, t) = (ranks.rank.len() as f64, group.len() as f64);
        ranks.rank.extend(std::iter::repeat_n(before + (t + 1.0) / 2.0, group.len()));
        ranks.ties += t * t * t - t;
    }
    ranks
}

/// How often a rank sum of `n` random signs is at most `sum` or as far above the middle.
fn exact_beyond(n: usize, sum: usize) -> f64 {
    // share[s]: of all choices of signs for ranks 1..=k, those whose positive ranks sum to s.
    let mut share = vec![0.0; n * (n + 1) / 2 + 1];
    share[0] = 1.0;
    for k in 1..=n {
        for s in (0..share.len()).rev() {
            share[s] = 0.5 * (share[s] + if s >= k { share[s - k] } else { 0.0 });
        }
    }
    (2.0 * share[..=sum].iter().sum::<f64>()).min(1.0)
}

/// p-values adjusted for how many there are (Holm, 1979): reject what is below the level.
///
/// # Errors
/// If one is not from 0 to 1.
pub fn holm(p: &[f64]) -> Result<Vec<f64>, MetricError> {
    p.iter().try_for_each(|&p| require((0.0..=1.0).contains(&p), "a p-value", p, "0 to 1"))?;
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let (mut adjusted, mut largest) = (vec![0.0; p.len()], 0.0f64);
    for (place, &i) in order.iter().enumerate() {
        largest = largest.max((p[i] * (p.len() - place) as f64).min(1.0));
        adjusted[i] = largest;
    }
    Ok(adjusted)
}

/// A statistic of the data and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// The percentile bootstrap: the statistic of `draws` samples with replacement.
///
/// # Errors
/// If there are no values or no draws, or the confidence is not between 0 and 1.
pub fn bootstrap(
    values: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    draws: usize,
    confidence: f64,
    key: Key,
) -> Result<Interval, MetricError> {
    let found = drawn(values, &statistic, draws, confidence, key)?;
    let tail = 0.5 * (1.0 - confidence);
    Ok(Interval { value: statistic(values), low: quantile(&found, tail), high: quantile(&found, 1.0 - tail) })
}

/// The bootstrap corrected for bias and acceleration (BCa; Efron, 1987): better where the statistic's law is skewed,
/// as that of spreads and of means of few scores is.
///
/// # Errors
/// As [`bootstrap`].
pub fn bootstrap_bca(
    values: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    draws: usize,
    confidence: f64,
    key: Key,
) -> Result<Interval, MetricError> {
    let found = drawn(values, &statistic, draws, confidence, key)?;
    let value = statistic(values);
    // How much of the draws' law lies below the value, equals counting half.
    let below = found.iter().map(|&f| if f < value { 1.0 } else { 0.5 * f64::from(f == value) }).sum::<f64>();
    let share = (below / draws as f64).clamp(0.5 / draws as f64, 1.0 - 0.5 / draws as f64);
    let bias = normal_quantile(share);
    // The skewness of the statistic's dependence on each value, by leaving it out.
    let left_out = |i: usize| statistic(&[&values[..i], &values[i + 1..]].concat());
    let jackknife: Vec<f64> =
        if values.len() > 1 { (0..values.len()).map(left_out).collect() } else { vec![] };
    let mean = jackknife.iter().sum::<f64>() / jackknife.len().max(1) as f64;
    let sum = |power: i32| jackknife.iter().map(|j| (mean - j).powi(power)).sum::<f64>();
    let spread = sum(2).powf(1.5);
    let acceleration = if spread > 0.0 { sum(3) / (6.0 * spread) } else { 0.0 };
    let tail = 0.5 * (1.0 - confidence);
    let end = |share: f64| {
        let z = bias + normal_quantile(share);
        quantile(&found, normal_below(bias + z / (1.0 - acceleration * z)).clamp(0.0, 1.0))
    };
    Ok(Interval { value, low: end(tail), high: end(1.0 - tail) })
}

/// The statistic of samples with replacement, sorted.
fn drawn(
    values: &[f64],
    statistic: &impl Fn(&[f64]) -> f64,
    draws: usize,
    confidence: f64,
    key: Key,
) -> Result<Vec<f64>, MetricError> {
    require(confidence > 0.0 && confidence < 1.0, "the confidence", confidence, "a share between 0 and 1")?;
    if values.is_empty() || draws == 0 {
        let got = values.len().min(draws);
        return Err(MetricError::Count { what: "values and draws", got, needed: "one or more of each" });
    }
    let n = values.len();
    let mut sample = vec![0.0; n];
    let draw = |d: usize| {
        for (i, x) in sample.iter_mut().enumerate() {
            *x = values[below(key, (d * n + i) as u64, n)];
        }
        statistic(&sample)
    };
    let mut found: Vec<f64> = (0..draws).map(draw).collect();
    found.sort_by(f64::total_cmp);
    Ok(found)
}

/// Element `i` of a stream of whole numbers below `n`, from 64 bits each.
fn below(key: Key, i: u64, n: usize) -> usize {
    let words = key.block(i / 2);
    let half = 2 * (i % 2) as usize;
    let word = u64::from(words[half]) | u64::from(words[half + 1]) << 32;
    ((u128::from(word) * n as u128) >> 64) as usize
}

/// A quantile of sorted values, interpolated linearly.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, (place.ceil() as usize).min(sorted.len() - 1));
    sorted[low] + (place - low as f64) * (sorted[high] - sorted[low])
}

#[cfg(test)]
#[path = "statistics_tests.rs"]
mod tests;
