//! Lists of sources: CSV files with y, x and, if known, the flux.

use crate::error::{Error, Result};
use clearshot_metrics::photometry::Source;
use std::path::Path;

/// # Errors
/// If the file cannot be read or a line is not two or three numbers.
pub fn read(path: &Path) -> Result<Vec<Source>> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.into(), source })?;
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
            _ => {
                let number = number + 1;
                let why = format!(
                    "line {number}: '{line}' is not y, x or y, x, flux; a first line of names must be y,x or y,x,flux"
                );
                return Err(Error::Unsuited(why).at(path.display()));
            }
        }
    }
    if sources.is_empty() {
        let why = "no sources; each line is y, x and, if known, the flux";
        return Err(Error::Unsuited(why.into()).at(path.display()));
    }
    Ok(sources)
}
