//! Records as CSV, one line for each.

use crate::run::{Outcome, Record};
use std::fmt::Write;

pub fn csv(records: &[Record]) -> String {
    let mut out = String::from("method,scene,peak,image,psnr,ssim,mae,chi2,coverage,spread,failure\n");
    for r in records {
        let place = format!("{},{},{},{}", field(&r.method), field(&r.scene), r.peak, r.index);
        let number = |v: Option<f64>| v.map(|v| v.to_string()).unwrap_or_default();
        match &r.outcome {
            Outcome::Scores(s) => writeln!(
                out,
                "{place},{},{},{},{},{},{},",
                s.psnr,
                s.ssim,
                s.mae,
                s.chi2,
                number(s.coverage),
                number(s.spread)
            ),
            Outcome::Failed(why) => writeln!(out, "{place},,,,,,,{}", field(why)),
        }
        .expect("writing to a string");
    }
    out
}

/// A field, in quotes where it has to be; a name that a spreadsheet would take for a formula is made text.
fn field(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_string() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
