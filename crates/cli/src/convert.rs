//! `clearshot convert`: image files into other files, streamed, with what they carry. Files may be addresses.

use crate::outputs;
use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::collection::written;
use clearshot_image::{Axis, Description, Image, copy_with, not_kept};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct Convert {
    /// A file, a folder, a glob pattern or the address of Zarr (s3://, https://); several are allowed.
    #[arg(required = true)]
    inputs: Vec<String>,
    /// A file whose ending names the format, or s3://BUCKET/NAME.zarr; for several inputs a folder.
    output: PathBuf,
    /// Give files in a folder this ending (tif, ome.tif, ome.zarr, nii.gz ...). Default: the input's own.
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
        let pairs = outputs::pairs(&self.inputs, &self.output, self.to.as_deref())?;
        outputs::each(&pairs, "converted", |input, output, name| self.one(input, output, name))
    }

    fn one(&self, input: &Path, output: &Path, name: String) -> Result<()> {
        let mut image = Image::open_named(input, self.item.as_deref())?;
        if let Some(letters) = &self.axes {
            rename_axes(&mut image.description, letters)?;
        }
        for warning in &image.description.warnings {
            eprintln!("clearshot: {}: {warning}", input.display());
        }
        let start = Instant::now();
        let mut line = Line::new(name);
        copy_with(&image, output, self.force, &mut |p| line.show(p.done, p.total))?;
        line.end();
        let seconds = start.elapsed().as_secs_f64();
        let lost = not_kept(&image.description, &written(&image.description, output)?.description);
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
