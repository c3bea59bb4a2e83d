//! `clearshot convert`: image files into other files, streamed, with what they carry.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::dataset::list::{files, stem};
use clearshot_image::{Axis, Description, Image, Progress, copy_with, not_kept};
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Convert {
    /// A file, a folder or a glob pattern (several are allowed).
    #[arg(required = true)]
    inputs: Vec<String>,
    /// A file whose ending names the format; for several inputs a folder.
    output: PathBuf,
    /// The ending of files that are written into a folder (tif, ome.tif, ome.zarr, nii.gz ...); unless told, the
    /// input's own.
    #[arg(long)]
    to: Option<String>,
    /// What the axes are, one letter each in the file's order (T C Z Y X S, I to R for others), where the file does
    /// not say or says it wrongly.
    #[arg(long)]
    axes: Option<String>,
    /// Which image of a file that has several, by name or number.
    #[arg(long)]
    item: Option<String>,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
    /// One JSON line a file.
    #[arg(long)]
    json: bool,
}

impl Convert {
    pub fn run(self) -> Result<()> {
        let mut inputs = Vec::new();
        for source in &self.inputs {
            inputs.extend(files(source)?);
        }
        let pairs = self.outputs(inputs)?;
        let mut failed = 0;
        let total = pairs.len();
        for (number, (input, output)) in pairs.iter().enumerate() {
            if let Err(e) = self.one(input, output, number, total) {
                if total == 1 {
                    return Err(e);
                }
                failed += 1;
                eprintln!("clearshot: {e:#}");
            }
        }
        if failed > 0 {
            bail!("{failed} of {total} files could not be converted");
        }
        Ok(())
    }

    /// Which file each input becomes; two inputs must not become one.
    fn outputs(&self, inputs: Vec<PathBuf>) -> Result<Vec<(PathBuf, PathBuf)>> {
        let named = clearshot_image::format::has_known_extension(&self.output);
        let folder = inputs.len() > 1 || self.to.is_some() || !named;
        if !folder {
            return Ok(inputs.into_iter().map(|input| (input, self.output.clone())).collect());
        }
        if named && inputs.len() > 1 {
            bail!("{} files into the one file {}: name a folder", inputs.len(), self.output.display());
        }
        std::fs::create_dir_all(&self.output).with_context(|| self.output.display().to_string())?;
        let mut taken: HashMap<PathBuf, PathBuf> = HashMap::new();
        let mut pairs = Vec::new();
        for input in inputs {
            let name = match &self.to {
                Some(ending) => format!("{}.{}", stem(&input), ending.trim_start_matches('.')),
                None => input.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            };
            let output = self.output.join(name);
            if let Some(other) = taken.insert(output.clone(), input.clone()) {
                bail!("{} and {} would both become {}", other.display(), input.display(), output.display());
            }
            pairs.push((input, output));
        }
        Ok(pairs)
    }

    fn one(&self, input: &Path, output: &Path, number: usize, total: usize) -> Result<()> {
        let mut image = match &self.item {
            Some(item) => Image::open_item(input, item)?,
            None => Image::open(input)?,
        };
        if let Some(letters) = &self.axes {
            rename_axes(&mut image.description, letters)?;
        }
        for warning in &image.description.warnings {
            eprintln!("clearshot: {}: {warning}", input.display());
        }
        let start = Instant::now();
        let mut line = Line::new(format!("{}/{total} {}", number + 1, output.display()));
        copy_with(&image, output, self.force, &mut |progress| line.show(progress, start))?;
        line.end();
        let seconds = start.elapsed().as_secs_f64();
        let lost = not_kept(&image.description, &Image::open(output)?.description);
        for what in &lost {
            eprintln!("clearshot: {}: the format does not keep {what}", output.display());
        }
        let bytes = image.shape().iter().product::<usize>() * image.dtype().bytes();
        let mut out = std::io::stdout().lock();
        if self.json {
            let record = serde_json::json!({
                "input": input, "output": output, "bytes": bytes, "seconds": seconds, "not_kept": lost,
            });
            writeln!(out, "{record}")?;
        } else {
            let rate = bytes as f64 / 1e6 / seconds.max(1e-9);
            writeln!(out, "{} -> {} ({seconds:.2} s, {rate:.0} MB/s)", input.display(), output.display())?;
        }
        Ok(())
    }
}

/// Gives the axes other names. What the file's format keeps for itself says the old ones, and is left behind.
fn rename_axes(description: &mut Description, letters: &str) -> Result<()> {
    let axes: Option<Vec<Axis>> = letters.chars().map(Axis::from_letter).collect();
    let axes = axes.with_context(|| format!("--axes {letters}: letters are T C Z Y X S, and I to R"))?;
    let twice = (0..axes.len()).any(|a| axes[..a].contains(&axes[a]));
    if axes.len() != description.dims.len() || twice {
        bail!("--axes {letters} for an image of axes {} {:?}", description.axes(), description.shape());
    }
    for (dim, axis) in description.dims.iter_mut().zip(axes) {
        if dim.axis != axis {
            dim.axis = axis;
            description.native = None;
        }
    }
    Ok(())
}

/// A line on a terminal that says how far things are and how long they will take.
struct Line {
    name: String,
    terminal: bool,
    last: Option<Instant>,
}

impl Line {
    fn new(name: String) -> Line {
        Line { name, terminal: std::io::stderr().is_terminal(), last: None }
    }

    fn show(&mut self, progress: Progress, start: Instant) {
        let recent = self.last.is_some_and(|t| t.elapsed() < Duration::from_millis(200));
        if !self.terminal || recent || progress.done == 0 {
            return;
        }
        self.last = Some(Instant::now());
        let part = progress.done as f64 / progress.total.max(1) as f64;
        let left = start.elapsed().as_secs_f64() * (1.0 / part - 1.0);
        eprint!("\r\x1b[K{}: {:.0} %, {left:.0} s left", self.name, 100.0 * part);
    }

    fn end(&self) {
        if self.last.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
