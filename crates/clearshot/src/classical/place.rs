//! The destination of the result of a classical restorer: tiles as they are completed, and their record.

use crate::error::Result;
use crate::target::{Destination, Made, Target};
use clearshot_image::address::exists;
use clearshot_image::{Description, Image, Provenance, WriteOptions, Writer};
use clearshot_restore::stream::{self, Held};
use serde_json::Value;

/// Bytes of a result that are held until all of it is known.
const HELD: usize = 32 << 20;

/// The destination of the result of one image, with its record.
pub struct Place<'a> {
    pub operation: &'a str,
    pub image: &'a Image,
    pub to: Destination<'a>,
    /// The description of the output.
    pub description: &'a Description,
    /// Axes along which an image shared by several jobs is not cut.
    pub together: Vec<usize>,
}

/// Where restored tiles are stored first. The record of a file is written before its pixels, so its counts are only
/// known if the pixels are held.
pub enum First {
    Held(Held),
    At(Target),
}

impl First {
    pub fn sink(&mut self) -> &mut dyn stream::Sink {
        match self {
            First::Held(held) => held,
            First::At(target) => target,
        }
    }
}

impl Place<'_> {
    /// # Errors
    /// If the output exists and may not be replaced, or cannot be created.
    pub fn begin(&self, parameters: &Value) -> Result<First> {
        let Destination::File { spot, replace, run: None, .. } = self.to else {
            return Ok(First::At(self.target(parameters.clone(), None)?));
        };
        if !self.held() {
            return Ok(First::At(self.target(parameters.clone(), None)?));
        }
        if exists(&spot.write)? && !replace {
            return Err(clearshot_image::Error::Exists { path: spot.output.clone() }.into());
        }
        Writer::check(&spot.write, self.description)?;
        Ok(First::Held(Held::of(self.image)))
    }

    /// Whether it is held until all of it is known.
    fn held(&self) -> bool {
        let bytes = self.description.shape().iter().product::<usize>() * self.description.dtype.bytes();
        bytes <= HELD
    }

    /// Where it goes; a file with its record: how many values were clipped and filled, where that is known already.
    fn target(&self, mut parameters: Value, counts: Option<(usize, usize)>) -> Result<Target> {
        let (spot, replace, run) = match self.to {
            Destination::File { spot, replace, run, .. } => (spot, replace, run),
            Destination::Caller(outlet) => return Target::caller(outlet, "image", self.description),
        };
        let decided = parameters.clone();
        parameters["clipped"] = counts.map(|(clipped, _)| clipped).into();
        parameters["filled"] = counts.map(|(_, filled)| filled).into();
        let provenance = Provenance::new(self.operation, &self.image.description, parameters).value();
        let options = WriteOptions { replace, provenance: Some(provenance) };
        let (path, d) = (&spot.write, self.description);
        let writer = match run {
            Some(run) => run.join(path, d, &options, self.together.clone(), &decided)?,
            None => Writer::create(path, d, &options)?,
        };
        Ok(Target::file(&spot.output, writer).cut_as(self.held().then_some(self.image)))
    }

    /// Completes the result, with the numbers of clipped values and filled pixels.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn end(&self, first: First, parameters: Value, clipped: usize, filled: usize) -> Result<Made> {
        let target = match first {
            First::At(target) => target,
            First::Held(held) => {
                let mut target = self.target(parameters, Some((clipped, filled)))?;
                held.write(&mut target)?;
                target
            }
        };
        target.finish()
    }
}
