//! HTML pages: the comparison of methods, and the report of a run of `restore`. Each is a single file with plots as inline
//! SVG and pictures as inline PNG.
//!
//! The text is in `templates/` of this crate. Everything inserted is escaped, except the SVG drawn by this program.

use super::plot::{Series, lines};
use super::{peaks, scenes};
use crate::summary::{Comparison, Summary, Verdict};
use askama::Template;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// A picture in a report.
pub struct Illustration {
    pub caption: String,
    pub figure: Figure,
}

/// What a picture is.
pub enum Figure {
    /// The bytes of a PNG file.
    Png(Vec<u8>),
    /// The text of an SVG file.
    Svg(String),
}

#[derive(Template)]
#[template(path = "comparison.html")]
struct ComparisonPage<'a> {
    title: &'a str,
    about: &'a [String],
    pictures: &'a [Illustration],
    summary: &'a Summary,
    plots: Vec<String>,
    columns: Vec<&'a str>,
    rows: Vec<Row<'a>>,
    lower: Vec<String>,
    unclear: Vec<String>,
    failures: Vec<String>,
    next: &'a [String],
}

/// A row of the table of scores.
struct Row<'a> {
    name: &'a str,
    second: String,
    scores: Vec<Score>,
}

/// A cell of the table of scores: PSNR in dB.
enum Score {
    Best(String),
    Other(String),
    Failed,
}

/// A report under a title. `about` says how it was made; `next` what to try then.
pub fn html(
    title: &str,
    about: &[String],
    summary: &Summary,
    pictures: &[Illustration],
    next: &[String],
) -> String {
    let plotted = if summary.files { vec![] } else { scenes(summary) };
    let keys = if summary.files { ["group", "n"] } else { ["scene", "peak"] };
    let failure = |(method, scene, peak, index, why): &(String, String, f64, u32, String)| {
        format!("{method} on {scene} at peak {peak}, image {index}: {why}")
    };
    rendered(&ComparisonPage {
        title,
        about,
        pictures,
        summary,
        plots: plotted.into_iter().map(|scene| plot(summary, scene)).collect(),
        columns: keys.into_iter().chain(summary.rows.iter().map(|r| r.method.as_str())).collect(),
        rows: rows(summary),
        lower: summary.lower().map(in_words).collect(),
        unclear: summary.unclear().map(in_words).collect(),
        failures: summary.failures.iter().map(failure).collect(),
        next,
    })
}

/// The section of a run's page for one restored file.
#[derive(Template)]
#[template(path = "restored_file.html")]
pub struct RestoredFile {
    /// The file that was restored.
    pub input: String,
    /// Names and values.
    pub facts: Vec<(&'static str, String)>,
    /// The bytes of a PNG file: before and after.
    pub png: Vec<u8>,
    /// The text of an SVG file: residuals.
    pub histogram: Option<String>,
}

impl RestoredFile {
    /// The section of the page.
    pub fn section(&self) -> String {
        rendered(self)
    }
}

#[derive(Template)]
#[template(path = "restored.html")]
struct RestoredPage<'a> {
    title: &'a str,
    facts: &'a [(String, String)],
    sections: &'a [String],
    failed: &'a [(String, String)],
}

/// The page of a run: its settings, a section of each file ([`RestoredFile::section`]), and the files that failed with the reason.
pub fn restored(facts: &[(String, String)], sections: &[String], failed: &[(String, String)]) -> String {
    rendered(&RestoredPage { title: "Restored images", facts, sections, failed })
}

fn rendered(page: &impl Template) -> String {
    page.render().expect("writing to a string")
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn plot(summary: &Summary, scene: &str) -> String {
    let series: Vec<Series> = summary
        .rows
        .iter()
        .map(|row| {
            let own = peaks(summary, scene).into_iter().filter_map(|p| summary.cell(&row.method, scene, p));
            let points = own.map(|c| (c.peak, c.psnr.0, c.psnr.1, c.psnr.2)).collect();
            Series { name: row.method.clone(), points, strong: row.learned }
        })
        .collect();
    lines(scene, "peak in electrons", "PSNR in dB", &series)
}

fn rows(summary: &Summary) -> Vec<Row<'_>> {
    let row = |scene, peak: f64| {
        let found: Vec<_> = summary.rows.iter().map(|r| summary.cell(&r.method, scene, peak)).collect();
        let images = found.iter().flatten().map(|c| c.images).max().unwrap_or(0);
        // An oracle is not among those that can be the best.
        let best =
            found.iter().flatten().filter(|c| !c.oracle).map(|c| c.psnr.0).fold(f64::NEG_INFINITY, f64::max);
        let score = |cell: Option<&crate::summary::Cell>| match cell {
            Some(c) if c.psnr.0 == best && !c.oracle => Score::Best(format!("{:.2}", c.psnr.0)),
            Some(c) => Score::Other(format!("{:.2}", c.psnr.0)),
            None => Score::Failed,
        };
        Row {
            name: scene,
            second: if summary.files { images.to_string() } else { peak.to_string() },
            scores: found.into_iter().map(score).collect(),
        }
    };
    scenes(summary)
        .into_iter()
        .flat_map(|scene| peaks(summary, scene).into_iter().map(move |peak| (scene, peak)))
        .map(|(scene, peak)| row(scene, peak))
        .collect()
}

fn in_words(c: &Comparison) -> String {
    let verdict = match c.verdict {
        Verdict::Worse => "worse than",
        _ if c.gain.0 > 0.0 => "better than, but not clearly,",
        _ => "not better than",
    };
    format!(
        "{}, peak {}: {} is {verdict} {} ({:+.2} dB, {:+.2} to {:+.2})",
        c.scene, c.peak, c.method, c.against, c.gain.0, c.gain.1, c.gain.2
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_escaped() {
        let file = RestoredFile {
            input: "<script>\"a&b\"</script>.tif".into(),
            facts: vec![("axes", "Y<X".into())],
            png: vec![0xFF, 0xFE, 0xFD],
            histogram: Some("<svg></svg>".into()),
        };
        let page = restored(
            &[("model".into(), "<b>".into())],
            &[file.section()],
            &[("<i>.tif".into(), "not a <tiff>".into())],
        );
        for markup in ["<script", "Y<X", "<b>", "<i>", "<tiff>"] {
            assert!(!page.contains(markup), "{markup}: {page}");
        }
        assert!(page.contains("<svg></svg>") && page.contains("base64,//79\""), "{page}");
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"), "{page}");
    }
}
