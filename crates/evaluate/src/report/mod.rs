//! Reports of a summary (and the figure of a measured camera): Markdown for people, CSV for spreadsheets, JSON for programs, HTML with plots and pictures.
//! The same summary gives the same bytes.

mod camera;
mod csv;
mod html;
mod markdown;
mod plot;

pub use camera::camera;
pub use csv::csv;
pub use html::{Figure, Illustration, RestoredFile, html, restored};
pub use markdown::markdown;
pub use plot::{Series, lines};

use crate::summary::Summary;

/// The summary as JSON.
pub fn json(summary: &Summary) -> String {
    let mut text = serde_json::to_string_pretty(summary).expect("a summary has no keys that are not text");
    text.push('\n');
    text
}

/// Scenes in the order in which they come.
pub(crate) fn scenes(summary: &Summary) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    for cell in &summary.cells {
        if !out.contains(&cell.scene.as_str()) {
            out.push(&cell.scene);
        }
    }
    out
}

pub(crate) fn peaks(summary: &Summary, scene: &str) -> Vec<f64> {
    let mut out: Vec<f64> = Vec::new();
    for cell in summary.cells.iter().filter(|c| c.scene == scene) {
        if !out.contains(&cell.peak) {
            out.push(cell.peak);
        }
    }
    out
}
