//! Decides whether a new model may replace an old one: no metric may be below 95 % of the old one's.
//!
//! PSNR and SSIM are compared directly. chi2 and coverage have a best value (1 and 0.9), so the distance to it is compared:
//! 1 minus the distance, at least 0. Images that only the old model restored count as a metric of their own.

use crate::EvaluateError;
use crate::summary::{Cell, Summary};
use serde::Serialize;

/// The share of the old metric that the new one must reach.
pub const SHARE: f64 = 0.95;

/// One metric of both, higher being better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    pub metric: &'static str,
    /// A scene and a peak, or `all`.
    pub place: String,
    pub old: f64,
    pub new: f64,
    pub passes: bool,
}

/// Every metric, in each cell that both have and over all of them, and the images that are lost.
///
/// # Errors
/// If the two have no cell in common.
pub fn compare(
    old: &Summary,
    old_method: &str,
    new: &Summary,
    new_method: &str,
) -> Result<Vec<Check>, EvaluateError> {
    let mut out = Vec::new();
    let mut pairs = Vec::new();
    let place = |c: &Cell| format!("{} at peak {}", c.scene, c.peak);
    for a in old.cells.iter().filter(|c| c.method == old_method) {
        let b = new.cell(new_method, &a.scene, a.peak);
        pairs.extend(b.map(|b| (a, b)));
        // What it failed on is in no mean.
        let restored = b.map_or(0, |b| b.images);
        if restored < a.images {
            out.push(check("images", place(a), a.images as f64, restored as f64));
        }
    }
    if pairs.is_empty() {
        return Err(EvaluateError::NothingCommon(old_method.into(), new_method.into()));
    }
    let near = |value: f64, aim: f64| (1.0 - (value - aim).abs()).max(0.0);
    let mut sums = [[0.0; 2]; 4];
    let mut counts = [0usize; 4];
    const METRICS: [&str; 4] = ["psnr", "ssim", "chi2", "coverage"];
    for (a, b) in &pairs {
        let values = [
            Some((a.psnr.0, b.psnr.0)),
            Some((a.ssim.0, b.ssim.0)),
            Some((near(a.chi2, 1.0), near(b.chi2, 1.0))),
            // A new model without intervals where the old one had them has lost them.
            a.coverage.map(|c| (near(c, 0.9), b.coverage.map_or(0.0, |d| near(d, 0.9)))),
        ];
        for (i, pair) in values.into_iter().enumerate() {
            let Some((old, new)) = pair else { continue };
            sums[i][0] += old;
            sums[i][1] += new;
            counts[i] += 1;
            out.push(check(METRICS[i], place(a), old, new));
        }
    }
    for i in 0..METRICS.len() {
        if counts[i] > 0 {
            let [old, new] = sums[i].map(|s| s / counts[i] as f64);
            out.push(check(METRICS[i], "all".into(), old, new));
        }
    }
    Ok(out)
}

fn check(metric: &'static str, place: String, old: f64, new: f64) -> Check {
    // A negative score (SSIM can be) is not to fall further.
    let floor = if old >= 0.0 { SHARE * old } else { old / SHARE };
    Check { metric, place, old, new, passes: new >= floor }
}
