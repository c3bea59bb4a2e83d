//! The table, and the combination of planes. The metrics themselves are tested in their own files, and through the program.

use super::*;
use crate::frc::{Curve, Ring};
use std::collections::BTreeSet;

fn options() -> Options {
    Options {
        range: Some(1.0),
        spacing: vec![1.0; 2],
        frc_threshold: Threshold::OneSeventh,
        labels: false,
        iou: 0.5,
        percentile: 100.0,
        sources: None,
        aperture: 1.0,
        annulus: [2.0, 3.0],
        reach: 1.0,
    }
}

#[test]
fn names_are_distinct_and_found() {
    let names: BTreeSet<&str> = METRICS.iter().map(|m| m.name).collect();
    assert_eq!(names.len(), METRICS.len());
    assert!(USUAL.iter().all(|n| by_name(n).is_some()) && by_name("psnrr").is_none());
}

/// A metric refuses, and does not panic, where what it needs is absent; with nothing but an image exactly those work that say so.
#[test]
fn required_inputs_are_required() {
    let (image, options) = ((0..1024).map(|i| f64::from(i % 37)).collect::<Vec<_>>(), options());
    let alone = Subject {
        shape: &[32, 32],
        image: &image,
        truth: None,
        counts: None,
        measured: None,
        pattern: None,
        without: None,
        options: &options,
    };
    for metric in METRICS {
        assert_eq!((metric.score)(&alone).is_ok(), metric.needs.is_empty(), "{}", metric.name);
    }
}

#[test]
fn planes_come_together_by_their_rules() {
    let part = |v: f64, p: f64, n: f64, e: f64| {
        Score::of(v).with("p", p, Rule::P).with("n", n, Rule::Sum).with("e", e, Rule::Error)
    };
    let both = Score::together(&[part(1.0, 0.2, 3.0, 0.3), part(2.0, 0.04, 4.0, 0.4)]);
    assert_eq!(both.value, 1.5);
    let details: Vec<f64> = both.details.iter().map(|d| d.value).collect();
    assert_eq!(details, [0.08, 7.0, 0.25]);
    assert_eq!(Score::together(&[part(1.0, 0.8, 0.0, 0.0), part(1.0, 0.9, 0.0, 0.0)]).details[0].value, 1.0);
    assert!(Score::together(&[]).value.is_nan());
    let why = Score::together(&[Score::of(1.0), Score::missing("no room".into())]);
    assert!(why.value.is_nan() && why.remark.as_deref() == Some("no room"));
}

/// Curves of 0.9 and 0.1 at the second ring: their mean 0.5 crosses one half there.
#[test]
fn a_resolution_is_that_of_the_mean_curve() {
    let score = |second: f64| {
        let ring = |frequency, correlation| Ring { frequency, correlation, bins: 10 };
        Score::of_curve(
            Curve { rings: vec![ring(0.1, 1.0), ring(0.2, second), ring(0.3, -0.5)] },
            Threshold::Half,
        )
    };
    let both = Score::together(&[score(0.9), score(0.1)]);
    assert!((both.value - 5.0).abs() < 1e-12, "{both:?}");
    assert_eq!(both.curve.unwrap().0.rings[0].bins, 20);
}
