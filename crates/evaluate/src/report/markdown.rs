//! The report as Markdown: the table of PSNR, the means of everything else, and where a model does not win.

use super::{peaks, scenes};
use crate::summary::{Comparison, Summary, Verdict};
use std::fmt::Write;

/// A report under a title. `about` says how it was made, one line each.
pub fn markdown(title: &str, about: &[String], summary: &Summary) -> String {
    let mut out = String::new();
    let line = |out: &mut String, text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    line(&mut out, &format!("# {title}\n"));
    for text in about {
        line(&mut out, &format!("- {}", cell(text)));
    }
    line(
        &mut out,
        "\n## PSNR in dB\n\nMean over images and half the width of its 95 % interval; the best of a row in bold.\n",
    );
    let methods: Vec<&str> = summary.rows.iter().map(|r| r.method.as_str()).collect();
    let head: Vec<String> = methods.iter().map(|m| cell(m)).collect();
    line(&mut out, &format!("| scene | peak | {} |", head.join(" | ")));
    line(&mut out, &format!("|---|---|{}", "---|".repeat(methods.len())));
    for scene in scenes(summary) {
        for peak in peaks(summary, scene) {
            let found: Vec<_> = methods.iter().map(|m| summary.cell(m, scene, peak)).collect();
            let best = found.iter().flatten().map(|c| c.psnr.0).fold(f64::NEG_INFINITY, f64::max);
            let values: Vec<String> = found
                .iter()
                .map(|c| match c {
                    None => "failed".into(),
                    Some(c) => {
                        let text = format!("{:.2} ± {:.2}", c.psnr.0, 0.5 * (c.psnr.2 - c.psnr.1));
                        if c.psnr.0 == best { format!("**{text}**") } else { text }
                    }
                })
                .collect();
            line(&mut out, &format!("| {} | {peak} | {} |", cell(scene), values.join(" | ")));
        }
    }
    line(
        &mut out,
        "\n## Means over the table\n\n| method | PSNR | SSIM | chi2 | coverage of 90 % intervals |\n|---|---|---|---|---|",
    );
    for r in &summary.rows {
        let covered = r.coverage.map_or("-".into(), |c| format!("{:.1} %", 100.0 * c));
        let name = cell(&r.method);
        line(&mut out, &format!("| {name} | {:.2} | {:.4} | {:.3} | {covered} |", r.psnr, r.ssim, r.chi2));
    }
    out.push_str(&where_models_do_not_win(summary));
    if !summary.failures.is_empty() {
        line(&mut out, "\n## What failed\n");
        for (method, scene, peak, index, why) in &summary.failures {
            line(
                &mut out,
                &format!(
                    "- {} on {} at peak {peak}, image {index}: {}",
                    cell(method),
                    cell(scene),
                    cell(why)
                ),
            );
        }
    }
    out
}

fn where_models_do_not_win(summary: &Summary) -> String {
    let mut out = String::from("\n## Where the trained methods do not win\n\n");
    if summary.comparisons.is_empty() {
        out.push_str("No trained method is in this table.\n");
        return out;
    }
    let (lower, unclear): (Vec<&Comparison>, Vec<&Comparison>) =
        (summary.lower().collect(), summary.unclear().collect());
    let all = summary.comparisons.len();
    let other = "that of the best method there that needs no training";
    if lower.is_empty() {
        writeln!(out, "Nowhere: in all {all} cells their mean is above {other}.")
            .expect("writing to a string");
    } else {
        writeln!(out, "In {} of {all} cells their mean is not above {other}:\n", lower.len())
            .expect("writing to a string");
        out.push_str(&compared(&lower));
    }
    if !unclear.is_empty() {
        writeln!(
            out,
            "\nIn {} of {all} cells it is above, but with so few images the paired test does not call that clear:\n",
            unclear.len()
        )
        .expect("writing to a string");
        out.push_str(&compared(&unclear));
    }
    out
}

fn compared(comparisons: &[&Comparison]) -> String {
    let mut out = String::from(
        "| method | scene | peak | against | difference in dB | p | |\n|---|---|---|---|---|---|---|\n",
    );
    for c in comparisons {
        let verdict = if c.verdict == Verdict::Worse { "worse" } else { "no clear difference" };
        let p = c.p.map_or("-".into(), |p| format!("{p:.3}"));
        writeln!(
            out,
            "| {} | {} | {} | {} | {:+.2} ({:+.2} to {:+.2}) | {p} | {verdict} |",
            cell(&c.method),
            cell(&c.scene),
            c.peak,
            cell(&c.against),
            c.gain.0,
            c.gain.1,
            c.gain.2
        )
        .expect("writing to a string");
    }
    out
}

/// Text inside a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
