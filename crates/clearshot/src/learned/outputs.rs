//! The outputs of restoring an image: the image itself, its standard deviation, chi2 and samples, as files or in
//! memory.

use super::parts::{Form, Parts};
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::shared_run::SharedRun;
use crate::target::{Destination, Made, Target, as_float};
use clearshot_image::address::{exists, is_address, same_place};
use clearshot_image::dataset::list::stem;
use clearshot_image::{Description, Error as ImageError, Image, WriteOptions, Writer};
use clearshot_restore::learned::field::Field;
use clearshot_restore::learned::{Restored, Restorer};
use clearshot_restore::stream::Sink;
use serde_json::Value;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The image, or an additional output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    Image,
    Deviation,
    Chi2,
    Sample(usize),
}

/// The additional outputs of an image, by the suffixes of their names.
pub fn beside(settings: &Settings, restorer: &Restorer) -> Vec<(String, Map)> {
    let engine = restorer.settings();
    let deviation = settings.std.then_some(("std".to_string(), Map::Deviation));
    let chi2 = engine.chi2.then_some(("chi2".to_string(), Map::Chi2));
    let samples = if engine.keep_samples { engine.samples } else { 0 };
    let samples = (0..samples).map(|k| (format!("sample{}", k + 1), Map::Sample(k)));
    deviation.into_iter().chain(chi2).chain(samples).collect()
}

/// The outputs being written. The file of the image is renamed last, so that it exists only when all do.
pub struct Outputs {
    image: Target,
    float: Form,
    beside: Vec<(Map, Target)>,
}

/// An image shared by several jobs.
pub struct Cut<'a> {
    pub run: &'a SharedRun,
    /// Axes along which the image is not cut.
    pub together: Vec<usize>,
    /// The decisions about the image, such as its camera.
    pub decided: Value,
}

impl Outputs {
    /// # Errors
    /// If a file cannot be created, or would replace the input.
    pub fn create(
        to: Destination<'_>,
        d: &Description,
        maps: Vec<(String, Map)>,
        provenance: Value,
        cut: Option<Cut<'_>>,
    ) -> Result<Outputs> {
        let mut float = as_float(d);
        let (input, spot, replace) = match to {
            Destination::File { input, spot, replace, .. } => (input, spot, replace),
            Destination::Caller(outlet) => {
                let map = |(name, map): (String, Map)| Ok((map, Target::caller(outlet, &name, &float)?));
                let beside = maps.into_iter().map(map).collect::<Result<_>>()?;
                let image = Target::caller(outlet, "image", d)?;
                return Ok(Outputs { image, float: Form::of(&float), beside });
            }
        };
        if spot.is_shared {
            // A map is of one image, so that its file has no place for the others.
            float.native = None;
        }
        let options = WriteOptions { replace, provenance: Some(provenance) };
        let mut beside = Vec::new();
        for (suffix, map) in maps {
            if beside_paths(&spot.base, &suffix).iter().any(|path| same_place(input, path)) {
                let place = format!("{}_{suffix}", stem(&spot.base));
                return Err(Error::SameFile.at(place));
            }
            beside.push((map, target_beside(&spot.base, &suffix, &float, &options)?));
        }
        let writer = match cut {
            Some(Cut { run, together, decided }) => run.join(&spot.write, d, &options, together, &decided)?,
            None => Writer::create(&spot.write, d, &options)?,
        };
        let image = Target::file(&spot.output, writer);
        Ok(Outputs { image, float: Form::of(&float), beside })
    }

    /// The boxes of a part to make in this job, along (Z,) Y and X; `None` for the whole part.
    pub fn wanted(&self, parts: &Parts, number: usize, form: &Form) -> Option<Vec<Vec<Range<usize>>>> {
        let whole = parts.whole(number, form);
        let boxes = self.image.wanted(&whole);
        (boxes != [whole]).then(|| boxes.iter().map(|region| parts.in_space(region)).collect())
    }

    /// Writes a part; returns the number of clipped values.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&mut self, parts: &Parts, number: usize, restored: &Restored, form: &Form) -> Result<usize> {
        let part = &parts.all[number];
        for (map, target) in &mut self.beside {
            let field: Option<&Field> = match *map {
                Map::Image => Some(&restored.image),
                Map::Deviation => restored.deviation.as_ref(),
                Map::Chi2 => restored.chi2.as_ref(),
                Map::Sample(k) => restored.samples.get(k),
            };
            let missing = || Error::Unsuited(format!("the map {map:?} was asked for and not made"));
            parts.write(part, field.ok_or_else(missing)?, &self.float, target)?;
        }
        parts.write(part, &restored.image, form, &mut self.image)
    }

    /// Copies values that are not restored, and renames the files; the image comes first.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(mut self, image: &Image, parts: &Parts, form: &Form) -> Result<Vec<(Map, Made)>> {
        for (_, target) in &mut self.beside {
            parts.copy(image, &self.float, target)?;
        }
        parts.copy(image, form, &mut self.image)?;
        let mut made = Vec::new();
        for (map, target) in self.beside {
            made.push((map, target.finish()?));
        }
        made.insert(0, (Map::Image, self.image.finish()?));
        Ok(made)
    }
}

/// The possible names of OUT_suffix: in the format of the output, or as TIFF.
pub fn beside_paths(output: &Path, suffix: &str) -> [PathBuf; 2] {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem(output);
    let ending = &name[stem.len()..];
    [ending, ".tif"].map(|ending| output.with_file_name(format!("{stem}_{suffix}{ending}")))
}

/// OUT_suffix, as a TIFF where the output's format holds no floats. One that an interrupted run left is replaced.
fn target_beside(output: &Path, suffix: &str, d: &Description, options: &WriteOptions) -> Result<Target> {
    let [path, fallback] = beside_paths(output, suffix);
    let ours = |path: &Path| {
        let earlier = Image::open(path).ok().and_then(|i| i.description.provenance);
        earlier.is_some_and(|p| p["operation"] == "restore")
    };
    let create = |path: &Path, d: &Description| {
        let replace = options.replace || (exists(path)? && ours(path));
        Writer::create(path, d, &WriteOptions { replace, ..options.clone() })
    };
    match create(&path, d) {
        Ok(writer) => Ok(Target::file(&path, writer)),
        Err(
            e @ (ImageError::Exists { .. }
            | ImageError::Io { .. }
            | ImageError::DiskFull { .. }
            | ImageError::ReadOnly { .. }
            | ImageError::Remote { .. }),
        ) => Err(e.into()),
        Err(e) if is_address(output) => Err(e.into()),
        Err(_) => Ok(Target::file(&fallback, create(&fallback, d)?)),
    }
}
