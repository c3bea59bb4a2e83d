//! `clearshot info`: describes image files and their metadata.

use crate::about_model;
use crate::failure::worded;
use anyhow::{Result, bail};
use clap::Args;
use clearshot::decimals;
use clearshot_image::dataset::list::files;
use clearshot_image::{Image, Statistics};
use clearshot_model::Model;
use std::io::Write;
use std::path::Path;

#[derive(Args)]
pub struct Info {
    /// Describe these files, folders, glob patterns or Zarr addresses (s3://, https://); or a model: NAME.clearshot, or `default` for the built-in
    /// one.
    #[arg(required = true)]
    files: Vec<String>,
    /// Describe this image of a file that contains several, by name or number. Default: the first.
    #[arg(long)]
    item: Option<String>,
    /// Skip the statistics, so that no pixels are read. Default: statistics are printed.
    #[arg(long)]
    quick: bool,
    /// Print one line of JSON for each file. Default: text.
    #[arg(long)]
    json: bool,
}

impl Info {
    pub fn run(self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let (mut failed, mut total) = (0, 0);
        for source in &self.files {
            let paths = match files(source) {
                _ if Model::is_default(source.as_ref()) => vec![source.into()],
                Ok(paths) => paths,
                Err(e) => {
                    eprintln!("clearshot: {e}");
                    (failed, total) = (failed + 1, total + 1);
                    continue;
                }
            };
            for path in paths {
                total += 1;
                if let Err(e) = self.one(&path, &mut out) {
                    if e.downcast_ref::<std::io::Error>().is_some() {
                        return Err(e);
                    }
                    failed += 1;
                    eprintln!("clearshot: {}", worded(&e));
                }
            }
        }
        if failed > 0 {
            bail!("{failed} of {total} files could not be read");
        }
        Ok(())
    }

    fn one(&self, path: &Path, out: &mut impl Write) -> Result<()> {
        if path.extension().is_some_and(|e| e == "clearshot") || Model::is_default(path) {
            return about_model::say(path, self.json, out);
        }
        let image = Image::open_named(path, self.item.as_deref())?;
        let statistics = if self.quick { None } else { Some(Statistics::of(&image)?) };
        if self.json {
            writeln!(out, "{}", as_json(&image, statistics))?;
        } else {
            print(&image, statistics, out)?;
        }
        Ok(())
    }
}

fn as_json(image: &Image, statistics: Option<Statistics>) -> serde_json::Value {
    let d = &image.description;
    let dims: Vec<_> = d
        .dims
        .iter()
        .map(|dim| {
            serde_json::json!({
                "axis": dim.axis.letter().to_string(),
                "length": dim.len,
                "step": dim.step,
                "unit": dim.unit,
            })
        })
        .collect();
    let channels: Vec<_> = d
        .channels
        .iter()
        .map(|c| serde_json::json!({"name": c.name, "color": c.color, "emission_nm": c.emission_nm}))
        .collect();
    let tags: serde_json::Map<String, serde_json::Value> =
        d.tags.iter().map(|(k, v)| (k.clone(), v.clone().into())).collect();
    serde_json::json!({
        "file": d.path,
        "format": d.format,
        "axes": d.axes(),
        "shape": d.shape(),
        "dims": dims,
        "dtype": d.dtype.name(),
        "bits": d.bits,
        "channels": channels,
        "rescale": d.rescale.map(|r| {
            serde_json::json!({"slope": r.slope, "intercept": r.intercept, "blank": r.blank})
        }),
        "mosaic": d.mosaic.as_ref().map(|m| {
            serde_json::json!({"size": m.size, "pattern": m.letters(), "black": m.black, "white": m.white})
        }),
        "levels": d.levels,
        "items": d.items,
        "item": d.item,
        "tags": tags,
        "warnings": d.warnings,
        "statistics": statistics.map(|s| {
            serde_json::json!({
                "count": s.count,
                "not_finite": s.not_finite,
                "min": (s.count > 0).then_some(s.least),
                "max": (s.count > 0).then_some(s.greatest),
                "mean": (s.count > 0).then_some(s.mean),
                "std": (s.count > 0).then_some(s.deviation),
            })
        }),
        "provenance": d.provenance,
    })
}

fn print(image: &Image, statistics: Option<Statistics>, out: &mut impl Write) -> std::io::Result<()> {
    let d = &image.description;
    let lengths: Vec<String> =
        d.dims.iter().map(|dim| format!("{} {}", dim.axis.letter(), dim.len)).collect();
    writeln!(out, "{}: {}, {}", d.path.display(), d.format, lengths.join(" x "))?;
    let mut line = |key: &str, value: String| writeln!(out, "  {key:<12} {value}");
    let bits = if d.bits == d.dtype.bits() { String::new() } else { format!(", {} bits in use", d.bits) };
    line("type", format!("{}{bits}", d.dtype))?;
    if let Some(m) = &d.mosaic {
        let black = m.black.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
        line("mosaic", format!("{}, black {black}, white {}; convert --mosaic pack", m.letters(), m.white))?;
    }
    let steps: Vec<String> = d
        .dims
        .iter()
        .filter_map(|dim| {
            let unit = dim.unit.as_deref().unwrap_or("(no unit)");
            dim.step.map(|step| format!("{} {step} {unit}", dim.axis.letter()))
        })
        .collect();
    line("pixel size", if steps.is_empty() { "not given".to_string() } else { steps.join(", ") })?;
    let names: Vec<&str> = d.channels.iter().filter_map(|c| c.name.as_deref()).collect();
    if !names.is_empty() {
        line("channels", names.join(", "))?;
    }
    if let Some(r) = d.rescale {
        let blank = r.blank.map_or(String::new(), |b| format!(", {b} means no value"));
        line(
            "value",
            format!(
                "{} x stored {} {}{blank}",
                r.slope,
                if r.intercept < 0.0 { '-' } else { '+' },
                r.intercept.abs()
            ),
        )?;
    }
    if d.levels.len() > 1 {
        line("levels", d.levels.iter().map(|l| clearshot_image::lengths(l)).collect::<Vec<_>>().join(", "))?;
    }
    if d.items.len() > 1 {
        let names: Vec<String> = d.items.iter().enumerate().map(|(n, i)| format!("{n} {i:?}")).collect();
        line("images", format!("{}; this is {}", names.join(", "), d.item))?;
    }
    if let Some(s) = statistics {
        let odd = if s.not_finite > 0 { format!(", {} not finite", s.not_finite) } else { String::new() };
        let values = match s.count {
            0 => "no finite value".to_string(),
            _ => format!(
                "min {}, max {}, mean {}, std {}",
                decimals(s.least, 6),
                decimals(s.greatest, 6),
                decimals(s.mean, 6),
                decimals(s.deviation, 6)
            ),
        };
        line("values", format!("{values}{odd}"))?;
    }
    for (key, value) in &d.tags {
        line(key, value.clone())?;
    }
    for warning in &d.warnings {
        line("warning", warning.clone())?;
    }
    if let Some(p) = &d.provenance {
        line("provenance", p.to_string())?;
    }
    Ok(())
}
