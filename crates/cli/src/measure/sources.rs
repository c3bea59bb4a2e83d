//! Lists of sources: CSV files with y, x and the flux where it is known.

use anyhow::{Context, Result, bail};
use clearshot_metrics::photometry::Source;
use std::path::Path;

/// # Errors
/// If the file cannot be read or a line is not two or three numbers.
pub fn read(path: &Path) -> Result<Vec<Source>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut sources = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let values: Option<Vec<f64>> =
            fields.iter().map(|f| f.parse().ok().filter(|v: &f64| v.is_finite())).collect();
        match values.as_deref() {
            Some(&[y, x]) => sources.push(Source { centre: [y, x], flux: f64::NAN }),
            Some(&[y, x, flux]) => sources.push(Source { centre: [y, x], flux }),
            // A first line of words names the columns, which must be in this order.
            None if number == 0
                && ["y,x", "y,x,flux"].contains(&fields.join(",").to_lowercase().as_str()) => {}
            _ => bail!(
                "{}: line {}: '{line}' is not y, x or y, x, flux; a first line of names must be y,x or y,x,flux",
                path.display(),
                number + 1
            ),
        }
    }
    if sources.is_empty() {
        bail!("{}: no sources; each line is y, x and, if known, the flux", path.display());
    }
    Ok(sources)
}
