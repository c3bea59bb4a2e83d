//! Metrics of the contents of an image: foregrounds, objects and sources.
//!
//! Objects are the values of label images, or the connected components (corners included) above Otsu's threshold. Excluded
//! pixels are background in both images.

use super::{Rule, Score, Subject, given};
use crate::photometry::{self, Source};
use crate::segment::{Connectivity, Labels};
use crate::{ImageRef, MetricError, hausdorff as distance, overlap};
use std::collections::BTreeMap;

fn objects(s: &Subject<'_>, image: ImageRef<'_>) -> Result<Labels, MetricError> {
    let mut labels = match s.options.labels {
        true => as_labels(image)?,
        false => Labels::by_otsu(image, Connectivity::Corners)?,
    };
    (0..labels.data.len()).filter(|&i| !s.counts(i)).for_each(|i| labels.data[i] = 0);
    labels.count = centres(&labels).len();
    Ok(labels)
}

fn as_labels(image: ImageRef<'_>) -> Result<Labels, MetricError> {
    let label = |(index, &got): (usize, &f64)| match got {
        v if v >= 0.0 && v <= f64::from(u32::MAX) && v.fract() == 0.0 => Ok(v as u32),
        _ => Err(MetricError::Pixel { what: "label", index, got, needed: "a whole number of 0 or more" }),
    };
    let data = image.data().iter().enumerate().map(label).collect::<Result<Vec<u32>, _>>()?;
    Ok(Labels { data, shape: image.shape().to_vec(), count: 0 })
}

/// The mean place of each object's pixels along the last two axes.
fn centres(labels: &Labels) -> Vec<[f64; 2]> {
    let (width, height) = (labels.shape[labels.shape.len() - 1], labels.shape[labels.shape.len() - 2]);
    let mut sums: BTreeMap<u32, [f64; 3]> = BTreeMap::new();
    for (i, &label) in labels.data.iter().enumerate().filter(|&(_, &l)| l > 0) {
        let sum = sums.entry(label).or_default();
        let part = [(i / width % height) as f64, (i % width) as f64, 1.0];
        sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
    }
    sums.values().map(|[y, x, n]| [y / n, x / n]).collect()
}

fn foregrounds(s: &Subject<'_>) -> Result<[Vec<bool>; 2], MetricError> {
    let mask = |image| -> Result<Vec<bool>, MetricError> {
        Ok(objects(s, image)?.data.iter().map(|&l| l > 0).collect())
    };
    Ok([mask(s.truth()?)?, mask(s.image()?)?])
}

pub fn dice(s: &Subject<'_>) -> Result<Score, MetricError> {
    let [truth, image] = foregrounds(s)?;
    Ok(Score::of(overlap::dice(&truth, &image)?))
}

pub fn iou(s: &Subject<'_>) -> Result<Score, MetricError> {
    let [truth, image] = foregrounds(s)?;
    Ok(Score::of(overlap::iou(&truth, &image)?))
}

pub fn hausdorff(s: &Subject<'_>) -> Result<Score, MetricError> {
    let [truth, image] = foregrounds(s)?;
    let o = s.options;
    Ok(Score::of(distance::hausdorff(&truth, &image, s.shape, &o.spacing, o.percentile)?))
}

pub fn precision(s: &Subject<'_>) -> Result<Score, MetricError> {
    let (truth, image) = (objects(s, s.truth()?)?, objects(s, s.image()?)?);
    let found = overlap::precision(&truth, &image, &[s.options.iou])?;
    let p = given(found.first(), "the threshold of IoU")?;
    let score = Score::of(p.average_precision()).with("found", p.found as f64, Rule::Sum);
    Ok(score.with("invented", p.invented as f64, Rule::Sum).with("missed", p.missed as f64, Rule::Sum))
}

pub fn count(s: &Subject<'_>) -> Result<Score, MetricError> {
    let score = Score::of(objects(s, s.image()?)?.count as f64);
    match s.truth {
        Some(_) => Ok(score.with("true", objects(s, s.truth()?)?.count as f64, Rule::Mean)),
        None => Ok(score),
    }
}

/// The sources that are listed, or the truth's objects; with the flux that is listed, or the truth's.
fn sources(s: &Subject<'_>) -> Result<Vec<Source>, MetricError> {
    let listed = match &s.options.sources {
        Some(sources) => sources.clone(),
        None => {
            let of = |centre| Source { centre, flux: f64::NAN };
            centres(&objects(s, s.truth()?)?).into_iter().map(of).collect()
        }
    };
    let complete = |source: Source| match s.truth {
        Some(_) if source.flux.is_nan() => {
            Ok(Source { flux: flux_at(s, s.truth()?, source.centre)?, ..source })
        }
        _ => Ok(source),
    };
    listed.into_iter().map(complete).collect()
}

fn flux_at(s: &Subject<'_>, image: ImageRef<'_>, centre: [f64; 2]) -> Result<f64, MetricError> {
    let [inner, outer] = s.options.annulus;
    Ok(photometry::flux(image, centre, s.options.aperture, inner, outer)?.flux)
}

/// With the root mean square of the relative errors.
pub fn flux(s: &Subject<'_>) -> Result<Score, MetricError> {
    let sources = sources(s)?;
    let share = |source: &Source| -> Result<f64, MetricError> {
        if source.flux.is_nan() {
            let needed = "a third column of the sources, or the truth";
            return Err(MetricError::Count { what: "the true flux", got: 0, needed });
        }
        Ok(flux_at(s, s.image()?, source.centre)? / source.flux)
    };
    let shares = sources.iter().map(share).collect::<Result<Vec<f64>, _>>()?;
    if shares.is_empty() {
        return Ok(Score::missing("there are no sources".into()));
    }
    let n = shares.len() as f64;
    let square = shares.iter().map(|q| (q - 1.0).powi(2)).sum::<f64>() / n;
    let score = Score::of(shares.iter().sum::<f64>() / n).with("rms_error", square.sqrt(), Rule::Mean);
    Ok(score.with("sources", n, Rule::Sum))
}

/// A source is found if an object's centre lies near it.
pub fn completeness(s: &Subject<'_>) -> Result<Score, MetricError> {
    let sources = match &s.options.sources {
        Some(sources) => sources.clone(),
        None => sources(s)?,
    };
    if sources.is_empty() {
        return Ok(Score::missing("there are no sources".into()));
    }
    let matches = photometry::match_sources(&sources, &centres(&objects(s, s.image()?)?), s.options.reach)?;
    let found = matches.of_source.iter().flatten().count() as f64;
    let score = Score::of(found / sources.len() as f64).with("found", found, Rule::Sum);
    Ok(score.with("spurious", matches.spurious as f64, Rule::Sum))
}
