//! The destination of restored values: a file (written as they are computed), memory, or the caller.

use crate::error::Result;
use crate::items::Spot;
use crate::outlet::Outlet;
use crate::shared_run::SharedRun;
use clearshot_image::grid::{Region, copy_common, extent};
use clearshot_image::{DType, Description, Image, Writer};
use clearshot_restore::stream::Sink;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The destination of a restored image.
#[derive(Clone, Copy)]
pub enum Destination<'a> {
    /// Files; `replace` allows replacing existing ones, and `run` is set if several jobs share the image.
    File { input: &'a Path, spot: &'a Spot, replace: bool, run: Option<&'a SharedRun> },
    /// The caller, as 32-bit floats: in memory, or in a destination that it provides.
    Caller(&'a dyn Outlet),
}

impl Destination<'_> {
    /// The description on which that of the output is based: that of the image, or of its copy in the output file.
    pub fn description<'d>(&'d self, d: &'d Description) -> &'d Description {
        match self {
            Destination::File { spot, .. } => spot.kept.as_ref().unwrap_or(d),
            Destination::Caller(_) => d,
        }
    }

    /// The run of several jobs that share the image.
    pub fn run(&self) -> Option<&SharedRun> {
        match self {
            Destination::File { run, .. } => *run,
            Destination::Caller(_) => None,
        }
    }

    pub fn spot(&self) -> Option<&Spot> {
        match self {
            Destination::File { spot, .. } => Some(spot),
            Destination::Caller(_) => None,
        }
    }
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

/// A file being written, or values in memory.
pub enum Target {
    /// With the chunks along which tiles are cut.
    File {
        path: PathBuf,
        writer: Box<Writer>,
        chunk: Vec<usize>,
    },
    Memory {
        shape: Vec<usize>,
        bytes: Vec<u8>,
    },
    Outlet(Box<dyn Sink>),
}

/// A finished target.
pub enum Made {
    File(PathBuf),
    Values(Vec<f32>),
    /// The caller already has the values.
    Given,
}

impl Target {
    pub fn file(path: &Path, writer: Writer) -> Target {
        let chunk = writer.chunk();
        Target::File { path: path.to_path_buf(), writer: Box::new(writer), chunk }
    }

    /// Cuts along the chunks of an image, as for held tiles, so that the tiles are the same.
    pub fn cut_as(mut self, image: Option<&Image>) -> Target {
        if let (Target::File { chunk, .. }, Some(image)) = (&mut self, image) {
            chunk.clone_from(&image.grid(0).chunk);
        }
        self
    }

    /// For an image of floats with a name for the caller (`image`, `std`, ...).
    ///
    /// # Errors
    /// If the caller provides no destination for it.
    pub fn caller(outlet: &dyn Outlet, name: &str, d: &Description) -> Result<Target> {
        if let Some(sink) = outlet.sink(name, d)? {
            return Ok(Target::Outlet(sink));
        }
        let shape = d.shape();
        let bytes = vec![0; shape.iter().product::<usize>() * DType::F32.bytes()];
        Ok(Target::Memory { shape, bytes })
    }

    /// # Errors
    /// If the file cannot be completed.
    pub fn finish(self) -> Result<Made> {
        match self {
            Target::File { path, writer, .. } => {
                writer.finish()?;
                Ok(Made::File(path))
            }
            Target::Memory { bytes, .. } => Ok(Made::Values(DType::F32.decode_f32(&bytes, None))),
            Target::Outlet(_) => Ok(Made::Given),
        }
    }
}

impl Sink for Target {
    fn chunk(&self) -> Vec<usize> {
        match self {
            Target::File { chunk, .. } => chunk.clone(),
            Target::Memory { shape, .. } => shape.clone(),
            Target::Outlet(sink) => sink.chunk(),
        }
    }

    fn wanted(&self, place: &Region) -> Vec<Vec<Range<usize>>> {
        match self {
            Target::File { writer, .. } => writer.wanted(place),
            Target::Outlet(sink) => sink.wanted(place),
            Target::Memory { .. } => vec![place.to_vec()],
        }
    }

    fn put(&mut self, place: &Region, data: &[u8]) -> clearshot_image::Result<()> {
        match self {
            Target::File { writer, .. } => writer.write(place, data),
            Target::Outlet(sink) => sink.put(place, data),
            Target::Memory { shape, bytes } => {
                let (size, first): (Vec<usize>, Vec<usize>) =
                    (extent(place), place.iter().map(|r| r.start).collect());
                let whole: Vec<_> = shape.iter().map(|&n| 0..n).collect();
                copy_common(DType::F32.bytes(), data, &size, &first, bytes, &whole);
                Ok(())
            }
        }
    }
}
