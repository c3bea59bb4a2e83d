//! Tests for invented and missed structure, with a known truth.
//!
//! [`blank_field`]: empty images, in which a method should find nothing. [`faint_line`]: a line of a given brightness in an
//! otherwise empty image; how much of it is recovered, and its contrast to the residual structure around it.

use crate::case::{BLANK, Bench, Case, pictured};
use crate::method::Method;
use crate::{Assumed, EvaluateError};
use clearshot_metrics::residual::{Bias, bias};
use serde::Serialize;

/// What a method gives back of nothing, in units of the peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Blank {
    pub method: String,
    pub peak: f64,
    /// The mean over images of the mean signal, and its 95 % interval.
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// The brightest pixel of all, in standard deviations of the measurement's noise: structure that is not there.
    pub brightest: f64,
}

fn fail(method: &dyn Method, why: String) -> EvaluateError {
    EvaluateError::Method { name: method.name().into(), meant: format!(" that works here: {why}") }
}

/// # Errors
/// If the method fails, or there are fewer than two images.
pub fn blank_field(method: &dyn Method, peak: f64, bench: &Bench) -> Result<Blank, EvaluateError> {
    let bench =
        Bench { scenes: vec![BLANK.into()], peaks: vec![peak], assumed: Assumed::default(), ..bench.clone() };
    let mut means = Vec::new();
    let mut brightest = f64::NEG_INFINITY;
    for number in 0..bench.len() {
        let case = bench.case(number)?;
        let signal = signal(method, &case)?;
        means.push(signal.iter().sum::<f64>() / signal.len() as f64);
        let noise = (case.background + case.read_noise * case.read_noise).sqrt() / peak;
        brightest = signal.iter().fold(brightest, |b, s| b.max(s / noise));
    }
    let Bias { mean, low, high, .. } = bias(&means, 0.95)?;
    Ok(Blank { method: method.name().into(), peak, mean, low, high, brightest })
}

fn signal(method: &dyn Method, case: &Case) -> Result<Vec<f64>, EvaluateError> {
    let restored = method.restore_case(case).map_err(|why| fail(method, why))?;
    Ok(restored.mean.iter().map(|&v| (f64::from(v) - case.background) / case.peak).collect())
}

/// How a line came back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub method: String,
    pub peak: f64,
    /// The line's brightness as a share of the peak.
    pub amplitude: f64,
    /// The mean brightness on the line after restoring, less that beside it, as a share of the amplitude.
    pub recovered: f64,
    /// The same difference in units of its spread over the pieces of line where there is none: above 3 it is seen.
    pub contrast: f64,
}

/// # Errors
/// If the method fails or the picture is too small.
pub fn faint_line(
    method: &dyn Method,
    peak: f64,
    amplitude: f64,
    bench: &Bench,
) -> Result<Line, EvaluateError> {
    let n = bench.size;
    if n < 32 {
        return Err(EvaluateError::Setting {
            name: "the size",
            got: n.to_string(),
            needed: "32 or more pixels",
        });
    }
    let row = n / 2;
    // Two pixels wide, from a quarter to three quarters.
    let on = |y: usize, x: usize| (row..row + 2).contains(&y) && (n / 4..3 * n / 4).contains(&x);
    let values: Vec<f32> =
        (0..n * n).map(|i| if on(i / n, i % n) { amplitude as f32 } else { 0.0 }).collect();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for index in 0..bench.count {
        let case = pictured("line", peak, index, values.clone(), vec![n, n], bench)?;
        let signal = signal(method, &case)?;
        let mean_at = |row: usize| {
            let inner = n / 4..3 * n / 4;
            let pixels = (row..row + 2).flat_map(|y| inner.clone().map(move |x| y * n + x));
            pixels.map(|at| signal[at]).sum::<f64>() / (2 * inner.len()) as f64
        };
        with.push(mean_at(row));
        // Rows without a line, away from it.
        let empty = (0..n / 4 - 1).map(|k| 4 * k).filter(|y| y.abs_diff(row) > 8);
        without.extend(empty.map(mean_at));
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let (line, floor) = (mean(&with), mean(&without));
    let variance =
        without.iter().map(|v| (v - floor).powi(2)).sum::<f64>() / (without.len().max(2) - 1) as f64;
    let spread = variance.sqrt().max(1e-12);
    Ok(Line {
        method: method.name().into(),
        peak,
        amplitude,
        recovered: (line - floor) / amplitude,
        contrast: (line - floor) / spread,
    })
}
