//! The report as Markdown: the table of PSNR, the means of everything else, and where a model does not win.

use super::{peaks, scenes};
use crate::summary::{Cell, Comparison, Row, Summary, Verdict};
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
    out.push_str(&table(summary, 2, &|c| c.psnr, &|r| r.psnr));
    if summary.files {
        line(&mut out, "\n## SSIM\n");
        out.push_str(&table(summary, 4, &|c| c.ssim, &|r| r.ssim));
    }
    let over = if summary.files { "groups" } else { "table" };
    line(
        &mut out,
        &format!(
            "\n## Means over the {over}\n\n| method | PSNR | SSIM | chi2 | coverage of 90 % intervals |\n|---|---|---|---|---|"
        ),
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

/// A row for each kind of scene and light level, or for each group of files with their mean as the last row.
fn table(
    summary: &Summary,
    digits: usize,
    value: &dyn Fn(&Cell) -> (f64, f64, f64),
    mean: &dyn Fn(&Row) -> f64,
) -> String {
    let head: Vec<String> = summary.rows.iter().map(|r| cell(&r.method)).collect();
    let keys = if summary.files { "group | n" } else { "scene | peak" };
    let mut out = format!("| {keys} | {} |\n|---|---|{}\n", head.join(" | "), "---|".repeat(head.len()));
    let mut put = |key: &str, second: &str, values: &[Option<(f64, String)>]| {
        // An oracle is not among those that can be the best.
        let may = values.iter().zip(&summary.rows).filter(|(_, r)| !r.oracle);
        let best = may.filter_map(|(v, _)| v.as_ref()).map(|v| v.0).fold(f64::NEG_INFINITY, f64::max);
        let shown = |(v, row): (&Option<(f64, String)>, &Row)| match v {
            None => "failed".into(),
            Some((v, text)) if *v == best && !row.oracle => format!("**{text}**"),
            Some((_, text)) => text.clone(),
        };
        let values: Vec<String> = values.iter().zip(&summary.rows).map(shown).collect();
        writeln!(out, "| {key} | {second} | {} |", values.join(" | ")).expect("writing to a string");
    };
    let (mut groups, mut images) = (0, 0);
    for scene in scenes(summary) {
        for peak in peaks(summary, scene) {
            let found: Vec<_> = summary.rows.iter().map(|r| summary.cell(&r.method, scene, peak)).collect();
            let count = found.iter().flatten().map(|c| c.images).max().unwrap_or(0);
            (groups, images) = (groups + 1, images + count);
            let text = |c: &Cell| {
                let (mean, low, high) = value(c);
                // Of a single image there is no interval.
                let text = match c.images {
                    1 if summary.files => format!("{mean:.digits$}"),
                    _ => format!("{mean:.digits$} ± {:.digits$}", 0.5 * (high - low)),
                };
                (mean, text)
            };
            let values: Vec<_> = found.iter().map(|c| c.map(text)).collect();
            let second = if summary.files { count.to_string() } else { peak.to_string() };
            put(&cell(scene), &second, &values);
        }
    }
    if summary.files && groups > 1 {
        let text = |r: &Row| Some((mean(r), format!("{:.digits$}", mean(r))));
        let values: Vec<_> = summary.rows.iter().map(text).collect();
        put(&format!("mean of {groups} groups"), &images.to_string(), &values);
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
    let other = "that of the best untrained method";
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
