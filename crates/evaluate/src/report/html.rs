//! The report as one HTML file: plots as inline SVG, pictures as inline PNG.

use super::inline::{base64, escape, head};
use super::plot::{Series, lines};
use super::{peaks, scenes};
use crate::summary::{Comparison, Summary, Verdict};
use std::fmt::Write;

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

impl Illustration {
    fn html(&self) -> String {
        let caption = escape(&self.caption);
        let figure = match &self.figure {
            Figure::Png(png) => {
                format!("<img alt=\"{caption}\" src=\"data:image/png;base64,{}\">", base64(png))
            }
            Figure::Svg(svg) => svg.clone(),
        };
        format!("<figure>{figure}<figcaption>{caption}</figcaption></figure>")
    }
}

/// A report under a title. `about` says how it was made; `next` what to try then.
pub fn html(
    title: &str,
    about: &[String],
    summary: &Summary,
    pictures: &[Illustration],
    next: &[String],
) -> String {
    let mut out = String::new();
    let mut put = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    put(&head(title));
    put(&list(about));
    pictures.iter().for_each(|picture| put(&picture.html()));
    if !summary.cells.is_empty() {
        put("<h2>PSNR in dB</h2>");
        if !summary.files {
            put("<p>Bars are 95 % intervals of the mean over images.</p>");
            scenes(summary).into_iter().for_each(|scene| put(&plot(summary, scene)));
        }
        put(&table(summary));
        put(&means(summary));
        put(&losses(summary));
    }
    if !summary.failures.is_empty() {
        let failures: Vec<String> = summary
            .failures
            .iter()
            .map(|(method, scene, peak, index, why)| {
                format!("{method} on {scene} at peak {peak}, image {index}: {why}")
            })
            .collect();
        put("<h2>What failed</h2>");
        put(&list(&failures));
    }
    if !next.is_empty() {
        put("<h2>What to try next</h2>");
        put(&list(next));
    }
    put("</body></html>");
    out
}

fn list(items: &[String]) -> String {
    let items: String = items.iter().map(|t| format!("<li>{}</li>", escape(t))).collect();
    if items.is_empty() { items } else { format!("<ul>{items}</ul>") }
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

fn table(summary: &Summary) -> String {
    let keys = if summary.files { ["group", "n"] } else { ["scene", "peak"] };
    let mut out = format!("<table><tr><th>{}</th><th>{}</th>", keys[0], keys[1]);
    for row in &summary.rows {
        write!(out, "<th>{}</th>", escape(&row.method)).expect("writing to a string");
    }
    out.push_str("</tr>\n");
    for scene in scenes(summary) {
        for peak in peaks(summary, scene) {
            let found: Vec<_> = summary.rows.iter().map(|r| summary.cell(&r.method, scene, peak)).collect();
            let images = found.iter().flatten().map(|c| c.images).max().unwrap_or(0);
            let second = if summary.files { images.to_string() } else { peak.to_string() };
            write!(out, "<tr><td>{}</td><td>{second}</td>", escape(scene)).expect("writing to a string");
            // An oracle is not among those that can be the best.
            let best = found
                .iter()
                .flatten()
                .filter(|c| !c.oracle)
                .map(|c| c.psnr.0)
                .fold(f64::NEG_INFINITY, f64::max);
            for cell in found {
                match cell {
                    Some(c) if c.psnr.0 == best && !c.oracle => {
                        write!(out, "<td><b>{:.2}</b></td>", c.psnr.0)
                    }
                    Some(c) => write!(out, "<td>{:.2}</td>", c.psnr.0),
                    None => write!(out, "<td>failed</td>"),
                }
                .expect("writing to a string");
            }
            out.push_str("</tr>\n");
        }
    }
    out + "</table>"
}

fn means(summary: &Summary) -> String {
    let mut out = String::from(
        "<h2>Means over the table</h2>\n<table><tr><th>method</th><th>PSNR</th><th>SSIM</th><th>chi2</th><th>coverage of 90 % intervals</th></tr>\n",
    );
    for r in &summary.rows {
        let covered = r.coverage.map_or("-".into(), |c| format!("{:.1} %", 100.0 * c));
        writeln!(
            out,
            "<tr><td>{}</td><td>{:.2}</td><td>{:.4}</td><td>{:.3}</td><td>{covered}</td></tr>",
            escape(&r.method),
            r.psnr,
            r.ssim,
            r.chi2
        )
        .expect("writing to a string");
    }
    out + "</table>"
}

fn losses(summary: &Summary) -> String {
    if summary.comparisons.is_empty() {
        return String::new();
    }
    let item = |c: &Comparison| {
        let verdict = match c.verdict {
            Verdict::Worse => "worse than",
            _ if c.gain.0 > 0.0 => "better than, but not clearly,",
            _ => "not better than",
        };
        format!(
            "{}, peak {}: {} is {verdict} {} ({:+.2} dB, {:+.2} to {:+.2})",
            c.scene, c.peak, c.method, c.against, c.gain.0, c.gain.1, c.gain.2
        )
    };
    let (lower, unclear): (Vec<String>, Vec<String>) =
        (summary.lower().map(item).collect(), summary.unclear().map(item).collect());
    let all = summary.comparisons.len();
    let other = "that of the best method there that needs no training";
    let mut out = String::from("<h2>Where the trained methods do not win</h2>\n");
    if lower.is_empty() {
        write!(out, "<p>Nowhere: in all {all} cells their mean is above {other}.</p>")
    } else {
        write!(
            out,
            "<p>In {} of {all} cells their mean is not above {other}:</p>\n{}",
            lower.len(),
            list(&lower)
        )
    }
    .expect("writing to a string");
    if !unclear.is_empty() {
        write!(
            out,
            "\n<p>In {} of {all} cells it is above, but with so few images the paired test does not call that clear:</p>\n{}",
            unclear.len(),
            list(&unclear)
        )
        .expect("writing to a string");
    }
    out
}
