//! What the verbs that restore files share: which file becomes which, the planes or volumes of a file one after
//! another, and a line that says how long it will take.

use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::dataset::list::files;
use clearshot_image::{Axis, DType, Image, Provenance, WriteOptions, Writer};
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct Files {
    /// A file, a folder or a glob pattern (several are allowed).
    #[arg(required = true)]
    inputs: Vec<String>,
    /// A file whose ending names the format; for several inputs a folder.
    output: PathBuf,
    /// Restore volumes along Z, Y and X instead of plane after plane.
    #[arg(long)]
    volume: bool,
    /// Write 32-bit numbers instead of the input's type.
    #[arg(long)]
    float: bool,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
    /// One JSON line a file.
    #[arg(long)]
    json: bool,
}

/// One plane or volume of a file: its values in the file's unit and its shape.
pub type Restore<'a> = dyn FnMut(&[f32], &[usize]) -> Result<Vec<f32>> + 'a;

impl Files {
    pub fn is_volume(&self) -> bool {
        self.volume
    }

    /// Restores each file; one that fails does not keep the others from being restored.
    pub fn each(
        &self,
        operation: &str,
        parameters: &serde_json::Value,
        restore: &mut Restore<'_>,
    ) -> Result<()> {
        let mut inputs = Vec::new();
        for source in &self.inputs {
            inputs.extend(files(source)?);
        }
        let named = clearshot_image::format::has_known_extension(&self.output);
        if named && inputs.len() > 1 {
            bail!("{} files into the one file {}: name a folder", inputs.len(), self.output.display());
        }
        if !named {
            std::fs::create_dir_all(&self.output).with_context(|| self.output.display().to_string())?;
        }
        let total = inputs.len();
        let mut failed = 0;
        let mut taken = std::collections::HashSet::new();
        for (number, input) in inputs.iter().enumerate() {
            let output = if named {
                self.output.clone()
            } else {
                self.output.join(input.file_name().unwrap_or_default())
            };
            let outcome = if taken.insert(output.clone()) {
                let name = format!("{}/{total} {}", number + 1, output.display());
                self.one(input, &output, name, operation, parameters, restore)
            } else {
                Err(anyhow::anyhow!("{}: another input has become {}", input.display(), output.display()))
            };
            if let Err(e) = outcome {
                if total == 1 {
                    return Err(e);
                }
                failed += 1;
                eprintln!("clearshot: {e:#}");
            }
        }
        if failed > 0 {
            bail!("{failed} of {total} files could not be restored");
        }
        Ok(())
    }

    fn one(
        &self,
        input: &Path,
        output: &Path,
        name: String,
        operation: &str,
        parameters: &serde_json::Value,
        restore: &mut Restore<'_>,
    ) -> Result<()> {
        let image = Image::open(input)?;
        let regions = regions(&image, self.volume).with_context(|| input.display().to_string())?;
        let mut description = image.description.clone();
        if self.float && description.dtype != DType::F32 {
            description.dtype = DType::F32;
            description.bits = 32;
            description.rescale = None;
            description.native = None;
        }
        let provenance = Provenance::new(operation, &image.description, parameters.clone()).value();
        let options = WriteOptions { replace: self.force, provenance: Some(provenance) };
        let mut writer = Writer::create(output, &description, &options)?;
        let start = Instant::now();
        let mut line = Line::new(name);
        let mut clipped = 0;
        for (i, (region, shape)) in regions.iter().enumerate() {
            let values: Vec<f32> = image.read_f64(region)?.iter().map(|&v| v as f32).collect();
            let restored = restore(&values, shape)
                .with_context(|| format!("{}, part {} of {}", input.display(), i + 1, regions.len()))?;
            let stored: Vec<f64> = restored
                .iter()
                .map(|&v| match description.rescale {
                    Some(r) if r.slope != 0.0 => (f64::from(v) - r.intercept) / r.slope,
                    _ => f64::from(v),
                })
                .collect();
            let mut bytes = Vec::with_capacity(stored.len() * description.dtype.bytes());
            clipped += description.dtype.encode(&stored, &mut bytes);
            writer.write(region, &bytes)?;
            line.show(i + 1, regions.len());
        }
        writer.finish()?;
        line.end();
        if clipped > 0 {
            let name = description.dtype.name();
            eprintln!(
                "clearshot: {}: {clipped} values did not fit {name} and were clipped; --float keeps them",
                output.display()
            );
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut out = std::io::stdout().lock();
        if self.json {
            let record = serde_json::json!({
                "input": input, "output": output, "parts": regions.len(), "seconds": seconds, "clipped": clipped,
            });
            writeln!(out, "{record}")?;
        } else {
            writeln!(out, "{} -> {} ({seconds:.2} s)", input.display(), output.display())?;
        }
        Ok(())
    }
}

type Part = (Vec<Range<usize>>, Vec<usize>);

/// The planes or volumes of an image, each with its shape.
pub fn regions(image: &Image, volume: bool) -> Result<Vec<Part>> {
    let dims = &image.description.dims;
    let place = |axis: Axis| dims.iter().position(|d| d.axis == axis);
    let mut inner: Vec<usize> = Vec::new();
    if volume {
        inner.push(place(Axis::Z).context("--volume needs an image with a Z axis")?);
    }
    for axis in [Axis::Y, Axis::X] {
        let letters = image.description.axes();
        inner.push(place(axis).with_context(|| format!("axes {letters}: Y and X are needed"))?);
    }
    if inner.windows(2).any(|w| w[0] > w[1]) {
        bail!("axes {}: they must come in the order Z, Y, X", image.description.axes());
    }
    let shape: Vec<usize> = inner.iter().map(|&a| dims[a].len).collect();
    let outer: Vec<usize> = (0..dims.len()).filter(|a| !inner.contains(a)).collect();
    let count: usize = outer.iter().map(|&a| dims[a].len).product();
    Ok((0..count)
        .map(|number| {
            let mut rest = number;
            let mut region: Vec<Range<usize>> = dims.iter().map(|d| 0..d.len).collect();
            for &a in outer.iter().rev() {
                let i = rest % dims[a].len;
                rest /= dims[a].len;
                region[a] = i..i + 1;
            }
            (region, shape.clone())
        })
        .collect())
}

/// A line on a terminal that says how far things are and how long they will take.
pub struct Line {
    name: String,
    start: Instant,
    shown: bool,
}

impl Line {
    pub fn new(name: String) -> Line {
        Line { name, start: Instant::now(), shown: false }
    }

    pub fn show(&mut self, done: usize, total: usize) {
        if !std::io::stderr().is_terminal() || done == 0 {
            return;
        }
        self.shown = true;
        let left = self.start.elapsed().as_secs_f64() * (total as f64 / done as f64 - 1.0);
        eprint!("\r\x1b[K{}: {done} of {total}, {left:.0} s left", self.name);
    }

    pub fn end(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
