//! The files that a restored image becomes: the image itself, and beside it its standard deviation, chi2 and samples.

use super::parts::{Form, Parts};
use crate::items::Spot;
use anyhow::{Context, Result, bail};
use clearshot_image::address::{exists, is_address, same_place};
use clearshot_image::dataset::list::stem;
use clearshot_image::{DType, Description, Error as ImageError, Image, WriteOptions, Writer};
use clearshot_restore::learned::field::Field;
use clearshot_restore::learned::{Restored, Restorer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What is written beside an image.
#[derive(Clone, Copy)]
pub enum Beside {
    Deviation,
    Chi2,
    Sample(usize),
}

/// What is written beside an image, by the ends of names.
pub fn beside(std: bool, restorer: &Restorer) -> Vec<(String, Beside)> {
    let settings = restorer.settings();
    let deviation = std.then_some(("std".to_string(), Beside::Deviation));
    let chi2 = settings.chi2.then_some(("chi2".to_string(), Beside::Chi2));
    let samples = if settings.keep_samples { settings.samples } else { 0 };
    let samples = (0..samples).map(|k| (format!("sample{}", k + 1), Beside::Sample(k)));
    deviation.into_iter().chain(chi2).chain(samples).collect()
}

/// The same image in floats.
pub fn as_float(d: &Description) -> Description {
    let mut d = d.clone();
    if d.dtype != DType::F32 {
        d.dtype = DType::F32;
        d.bits = 32;
        d.rescale = None;
    } else if d.rescale.is_some() {
        d.rescale = None;
        d.native = None;
    }
    d
}

/// The files that are being written. The main one gets its name last, so that it is there only when all are.
pub struct Outputs {
    main: Writer,
    path: PathBuf,
    float: Form,
    beside: Vec<(Beside, PathBuf, Writer)>,
}

impl Outputs {
    /// # Errors
    /// If a file cannot be made, or would replace the input.
    pub fn create(
        input: &Path,
        spot: &Spot,
        d: &Description,
        maps: Vec<(String, Beside)>,
        replace: bool,
        provenance: Value,
    ) -> Result<Outputs> {
        let mut float = as_float(d);
        if spot.is_shared {
            // A map is of one image, so that its file has no place for the others.
            float.native = None;
        }
        let options = WriteOptions { replace, provenance: Some(provenance) };
        let mut beside = Vec::new();
        for (suffix, what) in maps {
            if beside_paths(&spot.base, &suffix).iter().any(|path| same_place(input, path)) {
                bail!("OUT_{suffix} would replace the input; choose another name or folder");
            }
            let (path, writer) = writer_beside(&spot.base, &suffix, &float, &options)?;
            beside.push((what, path, writer));
        }
        let main = Writer::create(&spot.write, d, &options)?;
        Ok(Outputs { main, path: spot.output.clone(), float: Form::of(&float), beside })
    }

    /// Writes a part; returns how many of its values did not fit.
    pub fn write(&mut self, parts: &Parts, number: usize, restored: &Restored, form: &Form) -> Result<usize> {
        let part = &parts.all[number];
        for (what, _, writer) in &mut self.beside {
            let field: Option<&Field> = match *what {
                Beside::Deviation => restored.deviation.as_ref(),
                Beside::Chi2 => restored.chi2.as_ref(),
                Beside::Sample(k) => restored.samples.get(k),
            };
            let field = field.context("a map that was asked for was not made")?;
            parts.write(part, field, &self.float, writer)?;
        }
        parts.write(part, &restored.image, form, &mut self.main)
    }

    /// Copies what is not restored, and gives the files their names.
    pub fn finish(mut self, image: &Image, parts: &Parts, form: &Form) -> Result<Vec<PathBuf>> {
        for (.., writer) in &mut self.beside {
            parts.copy(image, &self.float, writer)?;
        }
        parts.copy(image, form, &mut self.main)?;
        let mut paths = Vec::new();
        for (_, path, writer) in self.beside {
            writer.finish()?;
            paths.push(path);
        }
        self.main.finish()?;
        paths.insert(0, self.path);
        Ok(paths)
    }
}

/// The names that OUT_suffix may have: in the output's format, or as a TIFF.
pub fn beside_paths(output: &Path, suffix: &str) -> [PathBuf; 2] {
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = stem(output);
    let ending = &name[stem.len()..];
    [ending, ".tif"].map(|ending| output.with_file_name(format!("{stem}_{suffix}{ending}")))
}

/// A writer for OUT_suffix, as a TIFF where the output's format holds no floats. One that an interrupted run of this
/// verb left is replaced.
fn writer_beside(
    output: &Path,
    suffix: &str,
    d: &Description,
    options: &WriteOptions,
) -> Result<(PathBuf, Writer)> {
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
        Ok(writer) => Ok((path, writer)),
        Err(
            e @ (ImageError::Exists { .. }
            | ImageError::Io { .. }
            | ImageError::DiskFull { .. }
            | ImageError::ReadOnly { .. }
            | ImageError::Remote { .. }),
        ) => Err(e.into()),
        Err(e) if is_address(output) => Err(e.into()),
        Err(_) => {
            let writer = create(&fallback, d)?;
            Ok((fallback, writer))
        }
    }
}
