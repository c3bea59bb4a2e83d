//! Metrics of the residual between a restoration and its measurement: `chi2`, `ks`, `whiteness`, `bias`.

use super::{Measured, Rule, Score, Subject, given};
use crate::residual;
use crate::{ImageRef, MetricError};

const CONFIDENCE: f64 = 0.95;

fn measured<'a>(s: &Subject<'a>) -> Result<Measured<'a>, MetricError> {
    given(s.measured, "the measurement")
}

fn standardised(s: &Subject<'_>) -> Result<Vec<f64>, MetricError> {
    let m = measured(s)?;
    residual::standardised(s.view(m.values)?, s.image()?, s.view(m.variance)?, s.counts)
}

/// The tolerance is three standard errors: a faithful restoration's chi2 is 1 within it.
pub fn chi2(s: &Subject<'_>) -> Result<Score, MetricError> {
    let m = measured(s)?;
    let found = residual::chi2(s.view(m.values)?, s.image()?, s.view(m.variance)?, s.counts)?;
    let found = found.with_shared(m.shared);
    Ok(Score::of(found.value).with("tolerance", found.tolerance(), Rule::Error))
}

pub fn normality(s: &Subject<'_>) -> Result<Score, MetricError> {
    let test = residual::kolmogorov_smirnov(&standardised(s)?)?;
    Ok(Score::of(test.statistic).with("p", test.p, Rule::P))
}

/// Pixels that do not count are taken as explained: zeros among white noise leave it white.
pub fn whiteness(s: &Subject<'_>) -> Result<Score, MetricError> {
    let m = measured(s)?;
    let z = |i: usize| match s.counts(i) {
        true => (m.values[i] - s.image[i]) / m.variance[i].sqrt(),
        false => 0.0,
    };
    let residuals: Vec<f64> = (0..s.image.len()).map(z).collect();
    let found = residual::whiteness(ImageRef::new(&residuals, s.shape)?, m.spectrum)?;
    let axes = ["neighbours_z", "neighbours_y", "neighbours_x"];
    let named = axes[axes.len() - found.neighbours.len()..].iter().zip(&found.neighbours);
    let score = Score::of(found.flatness).with("p", found.p, Rule::P);
    Ok(named.fold(score, |score, (name, value)| score.with(name, *value, Rule::Mean)))
}

/// In values of the images, with its 95 % interval.
pub fn bias(s: &Subject<'_>) -> Result<Score, MetricError> {
    let m = measured(s)?;
    let left = (0..s.image.len()).filter(|&i| s.counts(i)).map(|i| m.values[i] - s.image[i]);
    let found = residual::bias(&left.collect::<Vec<_>>(), CONFIDENCE)?;
    let score = Score::of(found.mean).with("low", found.low, Rule::Mean).with("high", found.high, Rule::Mean);
    Ok(score.with("p", found.p, Rule::P))
}
