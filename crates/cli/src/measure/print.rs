//! Scores as lines of text or of JSON.

use crate::voice::worded;
use anyhow::Result;
use clearshot::{CONFIDENCE, Error, Event, ImageScores, MetricSummary, Observer, Tests};
use clearshot_metrics::frc::Ring;
use clearshot_metrics::statistics::Interval;
use clearshot_metrics::stratify::Stratum;
use clearshot_metrics::table::{Metric, Need, Score, Unit};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

pub struct Printer {
    json: bool,
    /// Whether the user gave the range of PSNR and SSIM; otherwise it is printed with the scores.
    is_range_given: bool,
    crop: usize,
    /// What was said of scores that are missing; once is enough.
    said: BTreeSet<String>,
    /// The error that ended it.
    failed: Option<anyhow::Error>,
}

/// Names of metrics as keys.
fn key(name: &str) -> String {
    name.replace('-', "_")
}

fn unit(metric: &Metric, length: &str) -> String {
    match metric.unit {
        Unit::Length => format!(" {length}"),
        Unit::Plain | Unit::Decibel => String::new(),
    }
}

impl Printer {
    pub fn new(json: bool, is_range_given: bool, crop: usize) -> Printer {
        Printer { json, is_range_given, crop, said: BTreeSet::new(), failed: None }
    }

    /// What the library gave; an error that made it stop takes the place of its own.
    ///
    /// # Errors
    /// Why it failed.
    pub fn end<T>(&mut self, outcome: Result<T, Error>) -> Result<T> {
        match (outcome, self.failed.take()) {
            (Err(Error::Stopped), Some(why)) => Err(why),
            (outcome, _) => Ok(outcome?),
        }
    }

    /// The scores of one image.
    fn scores(&mut self, metrics: &[&Metric], scored: &ImageScores) -> Result<()> {
        let (image, length) = (scored.image.as_path(), scored.unit.as_str());
        for (metric, score) in metrics.iter().zip(&scored.scores) {
            let Some(remark) = &score.remark else { continue };
            let text = format!("no {}: {remark}", metric.name);
            if self.said.insert(text.clone()) {
                eprintln!("clearshot: {}: {text}", image.display());
            }
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", Value::Object(self.record(metrics, scored)))?;
            return Ok(());
        }
        let part = |(m, s): (&&Metric, &Score)| {
            let details: Vec<String> = s
                .details
                .iter()
                .map(|d| format!("{} {}", d.name.replace('_', " "), number(d.value)))
                .collect();
            let details =
                if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
            format!("{} {:.4}{}{details}", m.name, s.value, unit(m, length))
        };
        let parts: Vec<String> = metrics.iter().zip(&scored.scores).map(part).collect();
        let needs_range = metrics.iter().any(|m| m.needs.contains(&Need::Range)) || !scored.strata.is_empty();
        let range = match scored.range.filter(|_| needs_range && !self.is_range_given) {
            Some(range) => format!(" (range {range})"),
            None => String::new(),
        };
        writeln!(out, "{}: {}{range}", image.display(), parts.join(", "))?;
        for s in &scored.strata {
            writeln!(
                out,
                "  from {} to {}: {} pixels, bias {:.4}, mae {:.4}, mse {:.4}, psnr {:.4}",
                s.low, s.high, s.pixels, s.bias, s.mae, s.mse, s.psnr
            )?;
        }
        Ok(())
    }

    fn record(&self, metrics: &[&Metric], scored: &ImageScores) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("image".into(), json!(scored.image.display().to_string()));
        record.insert("range".into(), json!(scored.range));
        record.insert("crop".into(), json!(self.crop));
        for (metric, score) in metrics.iter().zip(&scored.scores) {
            let key = key(metric.name);
            record.insert(key.clone(), json!(score.value));
            for d in &score.details {
                record.insert(format!("{key}_{}", d.name), json!(d.value));
            }
            if metric.unit == Unit::Length {
                record.insert(format!("{key}_unit"), json!(scored.unit));
            }
            if let Some((curve, threshold)) = &score.curve {
                let ring = |r: &Ring| json!({ "frequency": r.frequency, "correlation": r.correlation, "threshold": threshold.at(r) });
                let curve: Vec<Value> = curve.rings.iter().map(ring).collect();
                record.insert(format!("{key}_curve"), json!(curve));
            }
            if let Some(remark) = &score.remark {
                record.insert(format!("{key}_remark"), json!(remark));
            }
        }
        if !scored.strata.is_empty() {
            let row = |s: &Stratum| json!({ "low": s.low, "high": s.high, "pixels": s.pixels, "bias": s.bias, "mae": s.mae, "mse": s.mse, "psnr": s.psnr });
            record.insert("strata".into(), scored.strata.iter().map(row).collect());
        }
        record
    }

    pub fn summary(&self, rows: &[MetricSummary]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.json {
            let all: Map<String, Value> = rows.iter().map(|r| (key(r.name), summarised(r))).collect();
            writeln!(out, "{}", json!({ "summary": all, "confidence": CONFIDENCE }))?;
            return Ok(());
        }
        // Images without a score are in no mean.
        let all = rows.iter().map(|r| r.images).max().unwrap_or(0);
        let mean = |r: &MetricSummary| match &r.mean {
            Some(m) => {
                let of = if r.images < all { format!(" of {} images", r.images) } else { String::new() };
                format!("{} {:.4}{of} ({} to {})", r.name, m.value, number(m.low), number(m.high))
            }
            None => format!("{} none", r.name),
        };
        let parts: Vec<String> = rows.iter().map(mean).collect();
        writeln!(out, "mean (95 % interval): {}", parts.join(", "))?;
        for (row, a) in rows.iter().filter_map(|r| Some((r, r.against.as_ref()?))) {
            let d = &a.difference;
            let (low, high) = (number(d.low), number(d.high));
            write!(out, "difference of {}: {:+.4} ({low} to {high})", row.name, d.value)?;
            match &a.tests {
                Some(t) => writeln!(
                    out,
                    ", Wilcoxon p {}, {} after Holm's correction; paired t p {}",
                    number(t.wilcoxon.1),
                    number(t.wilcoxon_holm),
                    number(t.student)
                )?,
                None => writeln!(out, ", no test: one image, or no difference")?,
            }
        }
        Ok(())
    }
}

impl Observer for Printer {
    fn event(&mut self, image: &Path, event: &Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Measured { metrics, scores } => match self.scores(metrics, scores) {
                Ok(()) => {}
                Err(why) => {
                    self.failed = Some(why);
                    return ControlFlow::Break(());
                }
            },
            Event::Notice(notice) => eprintln!("clearshot: {}: {}", image.display(), worded(notice)),
            Event::Warning(text) => eprintln!("clearshot: {text}"),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn summarised(row: &MetricSummary) -> Value {
    let interval = |i: &Interval| json!({ "mean": i.value, "low": i.low, "high": i.high });
    let mut value = row.mean.as_ref().map_or(json!({ "mean": null }), interval);
    value["images"] = json!(row.images);
    if let Some(a) = &row.against {
        let mut against = json!({ "mean": a.mean, "difference": interval(&a.difference) });
        if let Some(Tests { wilcoxon: (statistic, p), wilcoxon_holm, student }) = &a.tests {
            against["wilcoxon"] = json!({ "statistic": statistic, "p": p, "p_holm": wilcoxon_holm });
            against["paired_t"] = json!({ "p": student });
        }
        value["against"] = against;
    }
    value
}

/// Four significant digits, so that small p-values stay what they are.
fn number(v: f64) -> String {
    match v.abs() {
        a if a == 0.0 || !a.is_finite() || (1e-3..1e6).contains(&a) => {
            let text = format!("{v:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        }
        _ => format!("{v:.3e}"),
    }
}
