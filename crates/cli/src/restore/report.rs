//! The HTML report of a run: one file with embedded pictures. For every restored file it shows the middle plane before
//! and after, the uncertainty, chi2, and a histogram of residuals.

use anyhow::{Result, bail};
use clearshot::{ImageReport, Middle};
use clearshot_evaluate::report::{RestoredFile, restored};
use clearshot_graph::plan::human;
use clearshot_image::picture::{Colours, Panel, PixelSize, Stretch, side_by_side};
use clearshot_image::{Axis, lengths};
use clearshot_restore::learned::moments::normalised;
use clearshot_restore::learned::residual::LeftOver;
use clearshot_train::records::console::duration;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Pixels along a side of a picture, from the middle of the plane.
const SIDE: usize = 512;
/// Bars of the histogram, and how far it goes to either side.
const BARS: usize = 60;
const REACH: f32 = 6.0;

pub struct Report {
    path: PathBuf,
    force: bool,
    sections: Vec<String>,
    /// The number of sections when they were last asked for.
    latest: usize,
}

/// What a report shows of a file.
pub struct Shown {
    input: PathBuf,
    axes: String,
    png: Vec<u8>,
    residuals: Option<Vec<usize>>,
}

impl Shown {
    /// # Errors
    /// If a picture cannot be made.
    pub fn of(input: &Path, middle: &Middle<'_>) -> Result<Shown> {
        let Middle { image, parts, measured, restored, camera } = *middle;
        let (height, width) = (parts.height(), parts.width());
        let (rows, columns) = (height.min(SIDE), width.min(SIDE));
        let (top, left) = ((height - rows) / 2, (width - columns) / 2);
        let z = parts.pixels() / (height * width) / 2;
        // Of the first channel, however many there are.
        let cut = |values: &[f32]| -> Vec<f32> {
            let c = values.len() / parts.pixels();
            let row = |y: usize| (left..left + columns).map(move |x| ((z * height + y) * width + x) * c);
            (top..top + rows).flat_map(row).map(|i| values[i]).collect()
        };
        let (before, after) = (cut(&measured.values), cut(&restored.image));
        let pixel = PixelSize::of(&image.description);
        let panel = |label: &str, values: Vec<f32>| -> Result<Panel> {
            let mut panel = Panel::new(label, values, [rows, columns])?;
            panel.pixel = pixel.clone();
            Ok(panel)
        };
        let mut panels = vec![panel("measured", before.clone())?, panel("restored", after.clone())?];
        // One contrast for both, the restored one's.
        panels[0].stretch = panels[1].stretch;
        if let Some(deviation) = &restored.deviation {
            let mut shown = panel("standard deviation", cut(deviation))?;
            shown.colours = Colours::Helix;
            panels.push(shown);
        }
        if let Some(chi2) = &restored.chi2 {
            let mut shown = panel("chi2 (1 is noise)", cut(chi2))?;
            shown.stretch = Stretch::range(0.0, 2.0);
            shown.colours = Colours::Helix;
            panels.push(shown);
        }
        let residuals = camera.filter(|_| restored.image.len() == measured.values.len()).map(|camera| {
            let mut bars = vec![0; BARS];
            for (&y, &mean) in before.iter().zip(&after) {
                let read_noise = camera.read_noise as f32;
                let r = normalised(camera.electrons(y), camera.electrons(mean), read_noise);
                if r.abs() < REACH {
                    bars[(((r + REACH) / (2.0 * REACH)) * BARS as f32) as usize] += 1;
                }
            }
            bars
        });
        let png = side_by_side(&panels, 2, 320).png()?;
        Ok(Shown { input: input.to_path_buf(), axes: image.description.axes(), png, residuals })
    }
}

impl Report {
    /// # Errors
    /// If there is a file of that name that must not be replaced.
    pub fn new(path: &Path, force: bool) -> Result<Report> {
        if path.exists() && !force {
            bail!("{} exists already; choose another name, or use --force to replace it", path.display());
        }
        Ok(Report { path: path.to_path_buf(), force, sections: vec![], latest: 0 })
    }

    /// Adds the section of a file.
    pub fn add(&mut self, shown: &Shown, report: &ImageReport) {
        let mut facts = vec![("axes", shown.axes.clone())];
        let mut fact = |name, value| facts.push((name, value));
        if let Some(c) = report.camera {
            fact(
                "camera",
                format!(
                    "{:.4} electrons per count, offset {:.2} counts, read noise {:.2} electrons{}",
                    c.gain,
                    c.offset,
                    c.read_noise,
                    clearshot::correlation_in_words(&c.correlation),
                ),
            );
        }
        if let Some(trusted) = trusted(report) {
            fact("restored by", trusted);
        }
        if let Some(chi2) = report.chi2 {
            fact("chi2", format!("{chi2:.3} (1 if the residual is noise)"));
        }
        if let Some(LeftOver { along_x, along_y }) = report.left_over {
            let text = format!("{along_x:.2} along X, {along_y:.2} along Y (0 if the residual is noise)");
            fact("correlation of whitened residuals", text);
        }
        if let Some(f) = &report.forecast {
            fact(
                "plan",
                format!(
                    "{} tiles of {} pixels, {} at once, {} on the device",
                    f.tiles,
                    lengths(&f.tile),
                    f.batch,
                    human(f.device_bytes)
                ),
            );
        }
        fact("time", duration(report.seconds));
        let file = RestoredFile {
            input: shown.input.display().to_string(),
            facts,
            png: shown.png.clone(),
            histogram: shown.residuals.as_deref().map(histogram),
        };
        self.sections.push(file.section());
    }

    /// What was added since this was asked last, for the run that ends a walk of many jobs.
    pub fn latest(&mut self) -> Value {
        let section = self.sections[self.latest..].concat().into();
        self.latest = self.sections.len();
        section
    }

    /// Adds what another job has noted of a file.
    pub fn repeat(&mut self, section: &Value) {
        self.sections.push(section.as_str().unwrap_or_default().into());
        self.latest = self.sections.len();
    }

    /// Writes the page.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self, settings: &Value, failed: &[(String, String)]) -> Result<PathBuf> {
        let facts: Vec<(String, String)> = settings
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| {
                (name.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_string))
            })
            .collect();
        if self.path.exists() && !self.force {
            bail!("{} was created meanwhile and is not replaced", self.path.display());
        }
        let io = |source| anyhow::anyhow!("{}: {source}", self.path.display());
        std::fs::write(&self.path, restored(&facts, &self.sections, failed)).map_err(io)?;
        Ok(self.path)
    }
}

/// What restored an image, and how much neighbouring frames helped.
fn trusted(report: &ImageReport) -> Option<String> {
    let pooled =
        report.pooled.iter().map(|p| format!("means of {} exposures: {}", p.exposures, p.choice.in_words()));
    let series = report.along.zip(report.exposures).map(|(along, mean)| match along {
        Axis::Z => format!("a stack: {mean:.1} planes per pixel on average"),
        _ => format!("a movie: {mean:.1} frames per pixel on average"),
    });
    let words: Vec<String> = report.choice.iter().map(|c| c.in_words()).chain(pooled).chain(series).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Bars of residuals under the curve that pure noise would have.
fn histogram(bars: &[usize]) -> String {
    let (width, height) = (600.0, 160.0);
    let total: usize = bars.iter().sum();
    let step = 2.0 * f64::from(REACH) / bars.len() as f64;
    let expected = |r: f64| total as f64 * step * (-0.5 * r * r).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let most = bars.iter().map(|&b| b as f64).fold(expected(0.0), f64::max).max(1.0);
    let mut svg = format!("<svg viewBox=\"0 0 {width} {}\" width=\"{width}\" role=\"img\">\n", height + 20.0);
    let bar = width / bars.len() as f64;
    for (i, &count) in bars.iter().enumerate() {
        let tall = height * count as f64 / most;
        let (x, y) = (i as f64 * bar, height - tall);
        svg += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"#7a9cc6\"/>\n",
            bar - 1.0
        );
    }
    let points: Vec<String> = (0..=120)
        .map(|i| {
            let r = (f64::from(i) / 60.0 - 1.0) * f64::from(REACH);
            format!("{:.1},{:.1}", f64::from(i) / 120.0 * width, height - height * expected(r) / most)
        })
        .collect();
    svg += &format!(
        "<polyline fill=\"none\" stroke=\"#b33\" stroke-width=\"1.5\" points=\"{}\"/>\n",
        points.join(" ")
    );
    for r in [-4, -2, 0, 2, 4] {
        let x = (f64::from(r) / f64::from(REACH) + 1.0) / 2.0 * width;
        svg += &format!(
            "<text x=\"{x:.1}\" y=\"{}\" font-size=\"12\" text-anchor=\"middle\">{r}</text>\n",
            height + 15.0
        );
    }
    svg + "</svg>\n"
}
