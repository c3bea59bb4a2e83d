//! What the verbs that restore files share: the files, how they are cut, which of their pixels are invalid, and pictures.

use crate::items::{self, Spot};
use crate::mask::{Validity, mask_path, may_be_none};
use crate::outputs;
use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_image::address::{exists, is_address};
use clearshot_image::grid::Region;
use clearshot_image::picture::{Panel, side_by_side};
use clearshot_image::{Collection, DType, Description, Image, Provenance, WriteOptions, Writer};
use clearshot_physics::calibration::blind::{BlindFit, Known};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::Reach;
use clearshot_restore::estimate::camera_of;
use clearshot_restore::invalid::Invalid;
use clearshot_restore::saturated::{self, NoiseLevel, raise};
use clearshot_restore::stream::{self, Cut, Frames, Piece, TileSide, Work};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
pub struct Files {
    /// A file, a folder, a glob pattern or the address of Zarr (s3://, https://); several are allowed.
    #[arg(required = true)]
    inputs: Vec<String>,
    /// A file whose ending names the format, or s3://BUCKET/NAME.zarr; for several inputs a folder.
    #[arg(required = true)]
    output: Option<PathBuf>,
    /// List the methods with their settings, and do nothing else.
    #[arg(long, exclusive = true)]
    pub list: bool,
    /// Restore this image of files that have several, by name or number. Default: all images.
    #[arg(long, value_name = "NAME")]
    item: Option<String>,
    /// Restore volumes along Z, Y and X instead of plane after plane.
    #[arg(long)]
    volume: bool,
    /// The side of the pieces that large planes and volumes are cut into, in pixels, or `auto`.
    #[arg(long, default_value = "auto", value_parser = tile_side)]
    tile: TileSide,
    #[command(flatten)]
    validity: Validity,
    /// Write 32-bit numbers instead of the input's type.
    #[arg(long)]
    float: bool,
    /// Write a picture of the middle plane before and after, with a scale bar, beside each output (NAME.png).
    #[arg(long)]
    png: bool,
    /// Replace files that are there already.
    #[arg(long)]
    force: bool,
    /// One JSON line a file.
    #[arg(long)]
    json: bool,
}

fn tile_side(text: &str) -> Result<TileSide, String> {
    match text.parse() {
        _ if text == "auto" => Ok(TileSide::Auto),
        Ok(side) if side >= 8 => Ok(TileSide::Pixels(side)),
        _ => Err("`auto`, or a whole number of at least 8 pixels".into()),
    }
}

/// Restores the values of one plane or volume, in the file's unit, of a shape.
pub type Restore<'a> = Box<dyn FnMut(&[f32], &[usize]) -> Result<Vec<f32>, RestoreError> + 'a>;

/// A piece of an image, and what of it is not its surroundings.
pub struct Looked {
    pub values: Vec<f32>,
    pub shape: Vec<usize>,
    pub core: Vec<Range<usize>>,
}

/// What is to be done to one file.
pub struct Job<'a> {
    /// What goes into the provenance record.
    pub parameters: serde_json::Value,
    pub reach: Reach,
    /// Nothing is done without one.
    pub restore: Option<Restore<'a>>,
    /// Where pixels are saturated, if the file's own values said so.
    pub saturation: Option<f32>,
    /// What saturated pixels are estimated with.
    pub noise: NoiseLevel,
    /// Whether a pixel of the result is not the mean of the same pixel of the file.
    pub sharpens: bool,
}

impl Files {
    pub fn is_volume(&self) -> bool {
        self.volume
    }

    pub fn cut(&self, reach: Reach) -> Cut {
        Cut { volume: self.volume, tile: self.tile, reach }
    }

    /// What an image's own pixels say of the camera, invalid ones apart.
    pub fn camera_of(&self, image: &Image, known: Known) -> Result<BlindFit> {
        let mask = self.validity.mask_of(image)?;
        let marks = |region: &Region, pixels: usize| {
            mask.as_ref().map(|m| m.marks(region, pixels).map_err(|e| format!("{e:#}"))).transpose()
        };
        Ok(camera_of(image, &Known { saturation: self.validity.saturation.map(f64::from), ..known }, &marks)?)
    }

    /// Shows some pieces of an image that is cut, `most` at most, one after the other and without invalid pixels; none of
    /// one that is not cut. Each comes with so many pixels around it as `halo` says. `full` is where the file's own values
    /// say that pixels are.
    pub fn look_at(
        &self,
        image: &Image,
        reach: Reach,
        most: usize,
        halo: usize,
        full: Option<f32>,
        show: &mut dyn FnMut(Looked) -> Result<()>,
    ) -> Result<()> {
        let list = stream::pieces(image, &self.cut(reach))?;
        let frames = Frames::of(&image.description, self.volume)?;
        if list.len() == frames.regions().len() {
            return Ok(());
        }
        let mask = self.validity.mask_of(image)?;
        let (count, size) = (list.len().min(most), image.shape());
        for i in 0..count {
            let mut region = list[(2 * i + 1) * list.len() / (2 * count)].clone();
            let mut core = Vec::new();
            for &axis in frames.inner() {
                let inside = region[axis].clone();
                region[axis] = inside.start.saturating_sub(halo)..(inside.end + halo).min(size[axis]);
                core.push(inside.start - region[axis].start..inside.end - region[axis].start);
            }
            let shape: Vec<usize> = frames.inner().iter().map(|&a| region[a].len()).collect();
            let values = image.read_f32(&region)?;
            let marks = mask.as_ref().map(|m| m.marks(&region, values.len())).transpose()?;
            let full = self.validity.saturation.or(full);
            let invalid = Invalid::find(&values, full, marks.as_deref());
            let values = invalid.filled(&values, &shape, NoiseLevel::Unknown).values;
            show(Looked { values, shape, core })?;
        }
        Ok(())
    }

    /// Restores each file as `prepare` says for it.
    pub fn each<'a>(
        &self,
        operation: &str,
        prepare: &mut dyn FnMut(&Image, &Path) -> Result<Job<'a>>,
    ) -> Result<()> {
        let output = self.output.as_deref().context("an output is needed")?;
        let pairs = outputs::pairs(&self.inputs, output, None)?;
        outputs::each(&pairs, "restored", |input, output, name| {
            let mut image = |image: &Image, spot: &Spot, name: String| {
                let say = || spot.shown.display().to_string();
                Frames::of(&image.description, self.volume).with_context(say)?;
                let job = prepare(image, &spot.shown).with_context(say)?;
                self.one(image, input, spot, name, operation, job)
            };
            let first = items::open(input, self.item.as_deref())?;
            let d = &first.description;
            let say = |text: &str| eprintln!("clearshot: {}: {text}", input.display());
            if d.items.len() == 1 {
                return image(&first, &Spot::alone(input, output), name);
            }
            if self.item.is_some() {
                if Collection::brings_others(&self.described(d), output) {
                    say("one image is restored; the others are copied as they are");
                }
                return image(&first, &Spot::alone(input, output), name);
            }
            items::each(input, output, d, &self.described(d), self.force, &say, |one, spot| {
                image(one, spot, format!("{name} {}", one.description.item))
            })
        })
    }

    /// What an image is written as: itself, or the same in floats.
    fn described(&self, d: &Description) -> Description {
        let mut description = d.clone();
        if self.float && description.dtype != DType::F32 {
            description.dtype = DType::F32;
            description.bits = 32;
            description.rescale = None;
        }
        description
    }

    fn one(
        &self,
        image: &Image,
        input: &Path,
        spot: &Spot,
        name: String,
        operation: &str,
        job: Job<'_>,
    ) -> Result<()> {
        let output = &spot.write;
        if self.png && is_address(output) {
            bail!(
                "--png: pictures go beside the output, and {} is no folder of this machine",
                output.display()
            );
        }
        let picture = self.png.then(|| picture_path(&spot.base));
        let mask_file = self.validity.save_mask.then(|| mask_path(&spot.base));
        for path in picture.iter().chain(&mask_file) {
            if exists(path)? && !self.force {
                bail!("{}: exists already; --force replaces it", path.display());
            }
        }
        let mask = self.validity.mask_of(image)?;
        let description = self.described(spot.description(image));
        let mut parameters = job.parameters;
        if let Some(path) = &self.validity.mask {
            parameters["mask"] = serde_json::json!(path);
        }
        let saturation = self.validity.saturation.or(job.saturation);
        if let Some(full) = saturation {
            parameters["saturation"] = full.into();
        }
        let start = Instant::now();
        let mut line = Line::new(name);
        let mut invalid_count = 0;
        // Holes are a few pixels wide; what fills them must be the same in every piece.
        let reach = match job.reach {
            Reach::Within { halo, align }
                if mask.is_some() || saturation.is_some() || may_be_none(&image.description) =>
            {
                Reach::Within { halo: halo + saturated::REACH, align }
            }
            other => other,
        };
        let plan = stream::plan(image, &self.cut(reach))?;
        parameters["plan"] =
            serde_json::json!({ "tile": plan.tile, "halo": plan.halo, "pieces": plan.pieces });
        let writer_of = |mut parameters: serde_json::Value, counts: Option<(usize, usize)>| {
            parameters["clipped"] = counts.map(|(clipped, _)| clipped).into();
            parameters["filled"] = counts.map(|(_, filled)| filled).into();
            let provenance = Provenance::new(operation, &image.description, parameters).value();
            let options = WriteOptions { replace: self.force, provenance: Some(provenance) };
            Writer::create(output, &description, &options)
        };
        // A file's record is written before its pixels, so what is counted in it is known only of pixels that are held.
        let bytes = description.shape().iter().product::<usize>() * description.dtype.bytes();
        let mut place = match bytes <= HELD {
            true if exists(output)? && !self.force => {
                bail!("{}: exists already; --force replaces it", output.display())
            }
            true => Place::Held(stream::Held::of(image)),
            false => Place::File(writer_of(parameters.clone(), None)?),
        };
        let sink: &mut dyn stream::Sink = match &mut place {
            Place::Held(held) => held,
            Place::File(writer) => writer,
        };
        let keeps_none = may_be_none(&description);
        let mut failure = None;
        let report = match job.restore {
            None => stream::run(image, sink, &description, &self.cut(reach), Work::Pass, &mut |d, t| {
                line.show(d, t)
            }),
            Some(mut restore) => {
                let mut each = |piece: &Piece<'_>| {
                    let marks =
                        match mask.as_ref().map(|m| m.marks(piece.place, piece.values.len())).transpose() {
                            Ok(marks) => marks,
                            Err(e) => {
                                failure = Some(e);
                                return Err(RestoreError::Shape { shape: piece.shape.to_vec() });
                            }
                        };
                    let invalid = Invalid::find(piece.values, saturation, marks.as_deref());
                    if invalid.is_empty() {
                        return restore(piece.values, piece.shape);
                    }
                    invalid_count += invalid.count();
                    let filled = invalid.filled(piece.values, piece.shape, job.noise);
                    let mut restored = restore(&filled.values, piece.shape)?;
                    if !job.sharpens {
                        raise(&mut restored, &filled.least);
                    }
                    if keeps_none {
                        invalid.give_back(&mut restored);
                    }
                    Ok(restored)
                };
                let work = Work::Restore(&mut each);
                stream::run(image, sink, &description, &self.cut(reach), work, &mut |d, t| line.show(d, t))
            }
        };
        line.end();
        if let Some(e) = failure {
            return Err(e);
        }
        let report = report.with_context(|| spot.shown.display().to_string())?;
        match place {
            Place::File(writer) => writer.finish()?,
            Place::Held(held) => {
                let mut writer = writer_of(parameters, Some((report.clipped, invalid_count)))?;
                held.write(&mut writer)?;
                writer.finish()?;
            }
        }
        if report.clipped > 0 {
            let (count, name) = (report.clipped, description.dtype.name());
            eprintln!(
                "clearshot: {}: {count} values did not fit {name} and were clipped; --float keeps them",
                spot.output.display()
            );
        }
        if let Some(path) = &mask_file {
            let options = WriteOptions { replace: self.force, provenance: None };
            self.validity.save(image, saturation, path, &options)?;
        }
        if let Some(path) = &picture {
            self.draw(image, output, path)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let bytes = image.shape().iter().product::<usize>() * image.dtype().bytes();
        let rate = bytes as f64 / 1e6 / seconds.max(1e-9);
        let mut out = std::io::stdout().lock();
        if self.json {
            let record = serde_json::json!({
                "input": input, "item": image.description.item, "output": spot.output, "pieces": report.pieces, "seconds": seconds, "bytes": bytes,
                "clipped": report.clipped, "invalid": invalid_count, "picture": picture, "mask": mask_file,
            });
            writeln!(out, "{record}")?;
        } else {
            writeln!(
                out,
                "{} -> {} ({seconds:.2} s, {rate:.0} MB/s)",
                spot.shown.display(),
                spot.output.display()
            )?;
        }
        Ok(())
    }

    /// The middle plane before and after, under one contrast.
    fn draw(&self, before: &Image, output: &Path, path: &Path) -> Result<()> {
        let after = items::written(&before.description, output)?;
        let planes = Frames::of(&before.description, false)?.regions();
        let plane = &planes[planes.len() / 2];
        let mut panels = [
            Panel::of_image("before", before, plane, MOST_PICTURED)?,
            Panel::of_image("after", &after, plane, MOST_PICTURED)?,
        ];
        panels[0].stretch = panels[1].stretch;
        Ok(side_by_side(&panels, 2, LEAST_PICTURED).save(path, self.force)?)
    }
}

/// Where restored pixels go first.
enum Place {
    Held(stream::Held),
    File(Writer),
}

/// Bytes of a result that are held until all of it is known.
const HELD: usize = 32 << 20;
/// Pixels of a picture's panel along its longer side, and its width at least.
const MOST_PICTURED: usize = 1024;
const LEAST_PICTURED: usize = 320;

fn picture_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_os_string();
    name.push(".png");
    PathBuf::from(name)
}
