//! Summarises records: means with intervals, comparisons of methods, and where models do not win.

use crate::case::rounded;
use crate::run::{Outcome, Record};
use clearshot_metrics::MetricError;
use clearshot_metrics::statistics::{Interval, bootstrap, holm, paired_t};
use clearshot_tensor::noise::Key;
use serde::Serialize;
use std::collections::BTreeMap;

const DRAWS: usize = 2000;
const CONFIDENCE: f64 = 0.95;

/// One method on one kind of scene at one light level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    pub method: String,
    pub learned: bool,
    /// Whether the method looks at the truth: it is a bound, and in no comparison.
    pub oracle: bool,
    /// The kind of scene, or the group of files.
    pub scene: String,
    /// Of a group of files the mean over its images.
    pub peak: f64,
    pub images: usize,
    /// (mean, low, high): the mean over images and its 95 % bootstrap interval.
    pub psnr: (f64, f64, f64),
    pub ssim: (f64, f64, f64),
    pub chi2: f64,
    pub coverage: Option<f64>,
}

/// A method over all cells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub method: String,
    pub learned: bool,
    pub oracle: bool,
    pub psnr: f64,
    pub ssim: f64,
    pub chi2: f64,
    pub coverage: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    NoDifference,
    Worse,
}

/// A trained method beside the best untrained one of the same cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub method: String,
    pub against: String,
    pub scene: String,
    pub peak: f64,
    /// dB, image by image: (mean, low, high) of the difference.
    pub gain: (f64, f64, f64),
    /// Of the paired test, corrected for the number of comparisons (Holm); none for a single image.
    pub p: Option<f64>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Whether cells are groups of files, in place of scenes at light levels.
    pub files: bool,
    pub cells: Vec<Cell>,
    pub rows: Vec<Row>,
    pub comparisons: Vec<Comparison>,
    /// (method, scene, peak, index, why) of what failed.
    pub failures: Vec<(String, String, f64, u32, String)>,
}

impl Summary {
    /// # Errors
    /// Where there are scores that are not finite.
    pub fn of(records: &[Record]) -> Result<Summary, MetricError> {
        let mut summary = Summary { failures: failures(records), ..Summary::default() };
        let methods = distinct(records.iter().map(|r| (r.method.clone(), r.learned, r.oracle)));
        let places = distinct(records.iter().map(|r| (r.scene.clone(), r.peak)));
        for (scene, peak) in &places {
            for (method, learned, oracle) in &methods {
                let own = own(records, method, scene, *peak);
                if !own.is_empty() {
                    summary.cells.push(cell(method, [*learned, *oracle], scene, *peak, &own)?);
                }
            }
        }
        for (method, learned, oracle) in &methods {
            let own: Vec<&Cell> = summary.cells.iter().filter(|c| c.method == *method).collect();
            if !own.is_empty() {
                let over =
                    |f: &dyn Fn(&Cell) -> f64| own.iter().map(|c| f(c)).sum::<f64>() / own.len() as f64;
                let covered: Option<Vec<f64>> = own.iter().map(|c| c.coverage).collect();
                let row = Row {
                    method: method.clone(),
                    learned: *learned,
                    oracle: *oracle,
                    psnr: over(&|c| c.psnr.0),
                    ssim: over(&|c| c.ssim.0),
                    chi2: over(&|c| c.chi2),
                    coverage: covered.map(|v| v.iter().sum::<f64>() / v.len() as f64),
                };
                summary.rows.push(row);
            }
        }
        summary.comparisons = comparisons(records, &summary.cells)?;
        Ok(summary)
    }

    /// The same of files, with all images of a group in one cell under their mean peak: each file has a peak of its own,
    /// and of a single image there is neither an interval nor a test. `group` gets a file's name.
    ///
    /// # Errors
    /// As [`Summary::of`].
    pub fn grouped(records: &[Record], group: &dyn Fn(&str) -> String) -> Result<Summary, MetricError> {
        let mut peaks: BTreeMap<String, (f64, usize)> = BTreeMap::new();
        for r in records {
            let peak = peaks.entry(group(&r.scene)).or_default();
            (peak.0, peak.1) = (peak.0 + r.peak, peak.1 + 1);
        }
        let placed = |r: &Record| {
            let scene = group(&r.scene);
            let (sum, count) = peaks[&scene];
            Record { scene, peak: rounded(sum / count as f64), ..r.clone() }
        };
        let mut summary = Summary::of(&records.iter().map(placed).collect::<Vec<_>>())?;
        summary.files = true;
        // What failed keeps its file's name.
        summary.failures = failures(records);
        summary.failures.iter_mut().for_each(|f| f.2 = rounded(f.2));
        Ok(summary)
    }

    /// Where a trained method's mean is not above that of the best untrained one.
    pub fn lower(&self) -> impl Iterator<Item = &Comparison> {
        self.comparisons.iter().filter(|c| c.gain.0 <= 0.0)
    }

    /// Where it is above, but the paired test does not call that clear.
    pub fn unclear(&self) -> impl Iterator<Item = &Comparison> {
        self.comparisons.iter().filter(|c| c.gain.0 > 0.0 && c.verdict != Verdict::Better)
    }

    pub fn cell(&self, method: &str, scene: &str, peak: f64) -> Option<&Cell> {
        self.cells.iter().find(|c| c.method == method && c.scene == scene && c.peak == peak)
    }
}

fn failures(records: &[Record]) -> Vec<(String, String, f64, u32, String)> {
    let failed = |r: &Record| match &r.outcome {
        Outcome::Failed(why) => Some((r.method.clone(), r.scene.clone(), r.peak, r.index, why.clone())),
        Outcome::Scores(_) => None,
    };
    records.iter().filter_map(failed).collect()
}

/// The scored records of a method in a cell, by image.
fn own<'a>(records: &'a [Record], method: &str, scene: &str, peak: f64) -> Vec<&'a Record> {
    let belongs =
        |r: &&Record| r.method == method && r.scene == scene && r.peak == peak && r.scores().is_some();
    let mut own: Vec<&Record> = records.iter().filter(belongs).collect();
    own.sort_by_key(|r| r.index);
    own
}

fn cell(
    method: &str,
    [learned, oracle]: [bool; 2],
    scene: &str,
    peak: f64,
    own: &[&Record],
) -> Result<Cell, MetricError> {
    let values = |f: &dyn Fn(&crate::Scores) -> f64| -> Vec<f64> {
        own.iter().filter_map(|r| r.scores().map(f)).collect()
    };
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let covered: Option<Vec<f64>> = own.iter().map(|r| r.scores().and_then(|s| s.coverage)).collect();
    Ok(Cell {
        method: method.into(),
        learned,
        oracle,
        scene: scene.into(),
        peak,
        images: own.len(),
        psnr: interval(&values(&|s| s.psnr), 0)?,
        ssim: interval(&values(&|s| s.ssim), 1)?,
        chi2: mean(&values(&|s| s.chi2)),
        coverage: covered.map(|v| mean(&v)),
    })
}

fn interval(values: &[f64], stream: u32) -> Result<(f64, f64, f64), MetricError> {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let key = Key { seed: 0xE7A1, step: 0, stream };
    let Interval { value, low, high } = bootstrap(values, mean, DRAWS, CONFIDENCE, key)?;
    Ok((value, low, high))
}

fn comparisons(records: &[Record], cells: &[Cell]) -> Result<Vec<Comparison>, MetricError> {
    let mut out: Vec<Comparison> = Vec::new();
    for cell in cells.iter().filter(|c| c.learned) {
        let is_beside = |c: &&Cell| !c.learned && !c.oracle && c.scene == cell.scene && c.peak == cell.peak;
        let beside = cells.iter().filter(is_beside);
        let Some(best) = beside.max_by(|a, b| a.psnr.0.total_cmp(&b.psnr.0)) else { continue };
        let scores = |method: &str| own(records, method, &cell.scene, cell.peak);
        // Images on which one of the two failed are in no pair.
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let others = scores(&best.method);
        for record in scores(&cell.method) {
            let other = others.iter().find(|o| o.index == record.index).and_then(|o| o.scores());
            if let (Some(x), Some(y)) = (record.scores(), other) {
                a.push(x.psnr);
                b.push(y.psnr);
            }
        }
        if a.is_empty() {
            continue;
        }
        let differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let p = if a.len() > 1 { Some(paired_t(&a, &b)?.p) } else { None };
        out.push(Comparison {
            method: cell.method.clone(),
            against: best.method.clone(),
            scene: cell.scene.clone(),
            peak: cell.peak,
            gain: interval(&differences, 2)?,
            p,
            verdict: Verdict::NoDifference,
        });
    }
    let raw: Vec<f64> = out.iter().filter_map(|c| c.p).collect();
    let mut adjusted = holm(&raw)?.into_iter();
    for c in &mut out {
        c.p = c.p.and_then(|_| adjusted.next());
        // A single image shows nothing clearly.
        let is_clear = c.p.is_some_and(|p| p < 0.05);
        c.verdict = match c.gain.0 {
            g if is_clear && g > 0.0 => Verdict::Better,
            g if is_clear && g < 0.0 => Verdict::Worse,
            _ => Verdict::NoDifference,
        };
    }
    Ok(out)
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    for item in items {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}
