//! `clearshot convert`: converts image files to other formats, streamed, with their metadata. Files may be addresses.

use crate::outputs::{self, Paths, Turn, Walk};
use crate::part::PartArgs;
use crate::progress::Line;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use clearshot_image::collection::written;
use clearshot_image::{
    Description, Geometry, Image, Mosaic, Progress, Step, Surround, copy_shared, copy_with, not_kept,
    reshape, take_back,
};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
#[command(
    override_usage = "clearshot convert [OPTIONS] <IN>... <OUT>\n       clearshot convert [OPTIONS] <IN>... --output <OUT>"
)]
pub struct Convert {
    #[command(flatten)]
    paths: Paths,
    /// Write files in a folder with this extension (tif, ome.tif, ome.zarr, nii.gz ...). Default: the input's.
    #[arg(long)]
    to: Option<String>,
    /// Name the axes, one letter each in the file's order (T C Z Y X S, I to R for others), if the file does not state them or states them wrongly.
    /// Default: as stated in the file.
    #[arg(long)]
    axes: Option<String>,
    /// Convert this image of a file that contains several, by name or number. Default: the first.
    #[arg(long)]
    item: Option<String>,
    /// Crop every plane to these rows and columns, without the last of each, as in 100:356,0:256. Default: no cropping.
    #[arg(long, value_name = "Y:Y,X:X", value_parser = part)]
    crop: Option<Part>,
    /// Pad every plane with this many reflected pixels at each edge, after --crop. Default: 0.
    #[arg(long, value_name = "PIXELS", default_value_t = 0, hide_default_value = true)]
    pad: usize,
    /// Resize every plane to this size, as in 256x256, after --crop and --pad. Default: no resizing.
    #[arg(long, value_name = "YxX", value_parser = size)]
    resize: Option<Size>,
    /// Undo --crop, --pad and --resize, also after restoring: insert the input into this image, from which it was cut. Default: off.
    #[arg(long, value_name = "ORIGINAL", conflicts_with_all = ["crop", "pad", "resize", "mosaic"])]
    undo: Option<PathBuf>,
    /// Pack a camera's mosaic into one channel for each position in its pattern of colour filters, black at 0 and white at 1, or unpack such channels
    /// into a mosaic. Default: neither.
    #[arg(long, value_name = "pack|unpack", value_parser = ["pack", "unpack"], conflicts_with_all = ["crop", "pad", "resize"])]
    mosaic: Option<String>,
    /// Use this Bayer pattern for --mosaic: RGGB, BGGR, GRBG or GBRG. Default: the one stated in a raw TIFF.
    #[arg(long, value_name = "NAME", requires = "mosaic")]
    pattern: Option<String>,
    /// Set the sensor's black level, for --pattern.
    #[arg(long, requires = "pattern", default_value_t = 0.0)]
    black: f64,
    /// Set the sensor's white level, for --pattern.
    #[arg(long, requires = "pattern", default_value_t = 65535.0)]
    white: f64,
    /// Replace existing files. Default: an existing file is an error.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    part: PartArgs,
    /// Print one line of JSON for each file. Default: text.
    #[arg(long)]
    json: bool,
}

impl Convert {
    pub fn run(self) -> Result<()> {
        let (inputs, output) = self.paths.split()?;
        let pairs = outputs::pairs(inputs, output, self.to.as_deref())?;
        let jobs = self.part.open(&pairs, output, &self.work())?;
        jobs.refuse_cut("--crop, --pad or --resize", self.reshapes())?;
        jobs.refuse_cut("--undo", self.undo.is_some())?;
        jobs.refuse_cut("--mosaic", self.mosaic.is_some())?;
        let walk = Walk { jobs, pairs: &pairs, replace: self.force, json: self.json, done: "converted" };
        walk.each(|turn| self.one(turn))
    }

    /// What is done to each file, for other jobs to compare with.
    fn work(&self) -> String {
        let Convert { to, axes, item, crop, pad, resize, undo, mosaic, pattern, black, white, .. } = self;
        format!("convert {:?}", (to, axes, item, crop, pad, resize, undo, mosaic, pattern, black, white))
    }

    fn one(&self, turn: Turn<'_>) -> Result<()> {
        let Turn { input, output, name, replace, run } = turn;
        let mut image = Image::open_named(input, self.item.as_deref())?;
        if let Some(letters) = &self.axes {
            rename_axes(&mut image.description, letters)?;
        }
        for warning in &image.description.warnings {
            eprintln!("clearshot: {}: {warning}", input.display());
        }
        let start = Instant::now();
        let mut line = Line::new(name);
        let lost = match self.mosaic.as_deref() {
            None if self.undo.is_some() || self.reshapes() => {
                match &self.undo {
                    Some(original) => take_back(&image, &Image::open(original)?, output, replace)?,
                    None => reshape(&image, &self.geometry(&image)?, output, replace)?,
                }
                vec![]
            }
            None => {
                let mut tell = |p: Progress| line.show(p.done, p.total);
                match run {
                    Some(run) => copy_shared(&image, output, replace, &run.share(Vec::new()), &mut tell)?,
                    None => copy_with(&image, output, replace, &mut tell)?,
                }
                match run.is_some_and(|run| run.part().is_some()) {
                    // The output is there when the last run has ended.
                    true => vec![],
                    false => not_kept(&image.description, &written(&image.description, output)?.description),
                }
            }
            Some(way) => {
                let mosaic = self.pattern_of(&image)?;
                match way {
                    "pack" => mosaic.pack_image(&image, output, replace)?,
                    _ => mosaic.unpack_image(&image, output, replace)?,
                }
                vec![]
            }
        };
        line.end();
        let seconds = start.elapsed().as_secs_f64();
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

/// Rows and columns, each from the first to before the last.
#[derive(Clone, Debug)]
struct Part([[usize; 2]; 2]);

fn part(text: &str) -> Result<Part, String> {
    let range = |text: &str| {
        let (first, last) = text.split_once(':')?;
        Some([first.trim().parse().ok()?, last.trim().parse().ok()?])
    };
    let both = text.split_once(',').and_then(|(y, x)| Some([range(y)?, range(x)?]));
    both.filter(|r| r.iter().all(|[first, last]| first < last))
        .map(Part)
        .ok_or("write rows and columns as in 100:356,0:256".into())
}

#[derive(Clone, Debug)]
struct Size([usize; 2]);

fn size(text: &str) -> Result<Size, String> {
    let both = text.split_once('x').and_then(|(y, x)| Some([y.trim().parse().ok()?, x.trim().parse().ok()?]));
    both.filter(|[y, x]: &[usize; 2]| *y > 0 && *x > 0)
        .map(Size)
        .ok_or("write rows and columns as in 256x256".into())
}

impl Convert {
    fn reshapes(&self) -> bool {
        self.crop.is_some() || self.pad > 0 || self.resize.is_some()
    }

    /// What is done to each plane.
    fn geometry(&self, image: &Image) -> Result<Geometry> {
        let shape = image.shape();
        let mut geometry = Geometry::new(&shape[shape.len().saturating_sub(2)..])?;
        if let Some(Part([[top, bottom], [left, right]])) = self.crop {
            let size = vec![bottom - top, right - left];
            geometry = geometry.then(Step::Crop { start: vec![top, left], size })?;
        }
        if self.pad > 0 {
            let by = vec![self.pad; 2];
            geometry = geometry.then(Step::Pad { before: by.clone(), after: by, with: Surround::Reflect })?;
        }
        if let Some(Size(size)) = &self.resize {
            geometry = geometry.then(Step::Resize { size: size.to_vec() })?;
        }
        Ok(geometry)
    }

    /// The mosaic that is named, or that the file states.
    fn pattern_of(&self, image: &Image) -> Result<Mosaic> {
        let d = &image.description;
        match (&self.pattern, &d.mosaic) {
            (Some(name), _) => Ok(Mosaic::bayer(name, self.black, self.white)?),
            (None, Some(mosaic)) => Ok(mosaic.clone()),
            (None, None) => bail!(
                "{}: does not state its pattern of colour filters; name it, as in --pattern RGGB --black 512 --white 16383",
                d.path.display()
            ),
        }
    }
}

/// Gives the axes other names. What the file's format keeps for itself says the old ones, and is left behind.
fn rename_axes(description: &mut Description, letters: &str) -> Result<()> {
    let before = description.axes();
    description.name_axes(letters).map_err(|why| anyhow!("--axes {letters}: {why}"))?;
    if description.axes() != before {
        description.native = None;
    }
    Ok(())
}
