//! The output of `--trace`: a JSON line for every guidance correction.

use anyhow::{Context, Result, bail};
use clearshot_restore::learned::GuideStep;
use clearshot_tensor::store::write_whole;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

pub struct Trace {
    path: PathBuf,
    lines: String,
}

impl Trace {
    pub fn new(path: &Path, force: bool) -> Result<Trace> {
        if path.exists() && !force {
            bail!("{} exists already; choose another name, or use --force to replace it", path.display());
        }
        Ok(Trace { path: path.to_path_buf(), lines: String::new() })
    }

    /// The corrections of one image of a file.
    pub fn add(&mut self, input: &Path, image: usize, steps: &[GuideStep]) -> Result<()> {
        for s in steps {
            let line = json!({
                "input": input, "image": image, "sample": s.sample, "step": s.call, "sigma": s.sigma,
                "weight": s.weight, "chi2": s.chi2, "gradient": s.gradient, "moved": s.moved, "kept": s.kept,
            });
            writeln!(self.lines, "{line}")?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        write_whole(&self.path, self.lines.as_bytes()).with_context(|| self.path.display().to_string())
    }
}
