//! Segmentation and super-resolution models on images of any axes. They use no camera. Planes or volumes are formed as
//! for restoring ([`Parts`]), with invalid pixels filled in, and run in tiles
//! ([`clearshot_restore::learned::predictor`]). The output contains labels, classes, probabilities or an enlarged
//! image, with the metadata of the input.

use crate::classical::place::Place;
use crate::error::{Error, Result};
use crate::learned::decide::computed_in;
use crate::learned::image::Finished;
use crate::learned::parts::Form;
use crate::learned::session::Standing;
use crate::learned::{Map, Parts};
use crate::notice::Notice;
use crate::observer::{Ear, Event, Plan};
use crate::report::ImageReport;
use crate::segments::Segments;
use crate::settings::{Settings, Stacks};
use crate::target::{Destination, as_float};
use crate::validity::{Validity, may_be_none};
use clearshot_image::address::exists;
use clearshot_image::{Axis, DType, Description, Image};
use clearshot_model::{Model, OwnRange, Task};
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::predictor::{Predictor as Engine, Run};
use clearshot_restore::learned::{self, Measured};
use clearshot_runtime::{Device, available_bytes};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Pixels of a plane or volume up to which objects are numbered in 16 bits.
const SMALL: usize = 1 << 24;

/// See the module.
pub struct Predictor {
    engine: Mutex<Engine>,
    hash: String,
    pub segments: Segments,
}

impl Predictor {
    /// # Errors
    /// If the model has another task.
    pub fn new(model: Model, device: Device) -> Result<Predictor> {
        let hash = model.hash();
        let engine = Mutex::new(Engine::new(model, device)?);
        Ok(Predictor { engine, hash, segments: Segments::default() })
    }

    /// A thread that panicked leaves nothing in an engine that the next image would see.
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn on(self, device: Device) -> Predictor {
        let engine = self.engine.into_inner().unwrap_or_else(PoisonError::into_inner);
        Predictor { engine: Mutex::new(engine.on(device)), ..self }
    }

    pub fn name(&self) -> String {
        self.engine().model().about.name.clone()
    }

    /// Calls a function with the model.
    pub fn with_model<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        look(self.engine().model())
    }

    /// Refuses settings that only apply to restoring.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        settings.check()?;
        if let Some(key) = settings.asks_for_more_than_a_network() {
            return Err(Error::setting(
                key,
                "the model segments or enlarges images and does not restore them; leave it out",
            ));
        }
        if settings.stacks == Stacks::Volumes && self.engine().model().about.dims == 2 {
            return Err(Error::setting("stacks", "the model takes planes"));
        }
        Ok(())
    }

    /// The settings on which results depend, for the record in outputs.
    pub fn record(&self, settings: &Settings) -> Value {
        let engine = self.engine();
        let tile = settings.tile.filter(|_| engine.depends_on_tiles());
        let output = if engine.model().about.task.segments() { self.segments.name() } else { "image" };
        json!({
            "model": engine.model().about.name, "model_hash": self.hash, "output": output,
            "precision": settings.precision.to_string(), "saturation": settings.saturation(), "mask": settings.mask,
            "axes": settings.axes, "item": settings.item, "tile": tile,
        })
    }

    /// Checks whether the output for a file with this fingerprint already exists.
    ///
    /// # Errors
    /// If another file exists there and may not be replaced.
    pub fn standing(&self, output: &Path, hash: &str, settings: &Settings) -> Result<Standing> {
        if settings.replace {
            return Ok(Standing::InPart);
        }
        if !exists(output)? {
            return Ok(Standing::Missing);
        }
        let earlier = Image::open(output).ok().and_then(|i| i.description.provenance);
        let of = |key: &str| earlier.as_ref().and_then(|p| p["parameters"].get(key));
        let same = of("settings") == Some(&self.record(settings));
        match same && of("input").and_then(Value::as_str) == Some(hash) {
            true => Ok(Standing::Done),
            false => Err(Error::Other { path: output.to_path_buf() }),
        }
    }

    /// The description of the output for an image.
    ///
    /// # Errors
    /// If it does not have the axes or channels that the model needs.
    pub fn written(&self, d: &Description) -> Result<Description> {
        let engine = self.engine();
        let about = &engine.model().about;
        let parts = Parts::of(d, about.dims, about.input_channels())?;
        if let Task::Enlarging { factor } = about.task {
            if !parts.copied.is_empty() || d.mosaic.is_some() {
                let why = "an image with transparency or a pattern of colour filters cannot be enlarged; remove it first";
                return Err(Error::Unsuited(why.into()));
            }
            return Ok(enlarged(d, about.dims, factor));
        }
        let mut written = as_float(d);
        let dtype = match self.segments {
            Segments::Probabilities => DType::F32,
            Segments::Classes => DType::U8,
            Segments::Labels if parts.pixels() <= SMALL => DType::U16,
            Segments::Labels => DType::U32,
        };
        if written.dtype != dtype {
            (written.dtype, written.bits) = (dtype, 8 * dtype.bytes() as u32);
            written.native = None;
        }
        let made = self.channels(&engine);
        if made != about.input_channels() {
            let names: Vec<String> = match made {
                1 => vec![self.segments.name().into()],
                _ => (0..made).map(|i| format!("class {i}")).collect(),
            };
            parts.set_channels(&mut written, made, &names)?;
        }
        Ok(written)
    }

    /// Channels of what is written.
    fn channels(&self, engine: &Engine) -> usize {
        match (self.segments, &engine.model().about.task) {
            (_, Task::Enlarging { .. }) => engine.channels(),
            (Segments::Probabilities, Task::Segmentation { classes }) => *classes,
            _ => 1,
        }
    }

    /// Segments one image; `hash` is the fingerprint of its file.
    ///
    /// # Errors
    /// If it cannot be read, run or written, or the observer stops it.
    pub fn run(
        &self,
        settings: &Settings,
        hash: &str,
        image: &Image,
        validity: Validity,
        to: Destination<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<(Finished, Validity)> {
        let start = Instant::now();
        image.check_single()?;
        let mut description = self.written(to.description(&image.description))?;
        if matches!(to, Destination::Caller(_)) {
            description = as_float(&description);
        }
        let record = self.record(settings);
        let mut engine = self.engine();
        let about = &engine.model().about;
        let factor = match about.task {
            Task::Enlarging { factor } => factor,
            _ => 1,
        };
        let (dims, made) = (about.dims, self.channels(&engine));
        let parts = Parts::of(&image.description, dims, about.input_channels())?;
        let given_back = Parts::of(&description, dims, made)?;
        let form = Form::of(&description);
        let run = Run {
            tile: settings.tile,
            batch: settings.batch,
            memory: settings.memory,
            precision: settings.precision,
        };
        let size: Vec<usize> = parts.size.iter().map(|n| n * factor).collect();
        let forecast = engine.prepare(&size, parts.all.len(), &run)?;
        let runs = forecast.runs;
        let told =
            Plan { forecast: Some(&forecast), instead: None, runs, choosing: 0, device: engine.device() };
        ear.event(&Event::Plan(told))?;
        computed_in(settings.precision, &forecast, engine.device(), ear)?;

        let parameters = json!({
            "settings": record, "input": hash,
            "plan": { "tile": forecast.tile, "halo": forecast.halo, "tiles": forecast.tiles, "blends": forecast.blends, "precision": forecast.computes_in.name() },
        });
        let place =
            Place { operation: "predict", image, to, description: &description, together: Vec::new() };
        let mut first = place.begin(&parameters)?;
        // Half of what is free at most; what is more lies in files.
        let scratch = Scratch::new(available_bytes().unwrap_or(usize::MAX) / 2, settings.scratch.clone());
        let (mut filled, mut clipped, mut done, mut objects) = (0, 0, 0, 0);
        for (number, part) in parts.all.iter().enumerate() {
            let mut measured = Measured::read(&parts.source(image, part, &validity), &scratch)?;
            filled += measured.filled;
            if factor > 1 {
                measured = measured.repeated(factor, &scratch)?;
            }
            let mut ran = || {
                done += 1;
                match ear.observer.progress(done, runs).is_break() {
                    true => Err(learned::Error::Stopped),
                    false => Ok(()),
                }
            };
            let maps = engine.maps(&measured, &scratch, &mut ran)?;
            let mut values = match factor {
                1 => {
                    let one_by_one = engine.model().about.task == Task::Instances;
                    let (values, count) =
                        self.segments.of(&maps, engine.channels(), one_by_one, &parts.size)?;
                    if form.dtype == DType::U16 && count > usize::from(u16::MAX) {
                        return Err(too_many(count, parts.pixels()));
                    }
                    objects += count;
                    values
                }
                _ => {
                    let mut pixels = maps.to_vec();
                    OwnRange::of(&measured.values, &size, engine.channels()).undo(&mut pixels);
                    pixels
                }
            };
            if factor == 1 && measured.filled > 0 && may_be_none(&description) {
                parts.give_back(image, part, &mut values)?;
            }
            clipped += given_back.write(&given_back.all[number], &values, &form, first.sink())?;
        }
        if made == parts.channels {
            parts.copy(image, &form, first.sink())?;
        }
        let made = place.end(first, parameters, clipped, filled)?;
        if filled > 0 {
            ear.notice(Notice::Filled(filled))?;
        }
        let report = ImageReport {
            pieces: parts.all.len(),
            clipped,
            filled,
            objects: (factor == 1 && self.segments == Segments::Labels).then_some(objects),
            forecast: Some(forecast),
            seconds: start.elapsed().as_secs_f64(),
            ..ImageReport::default()
        };
        Ok((Finished { report, made: vec![(Map::Image, made)], description }, validity))
    }
}

fn too_many(objects: usize, pixels: usize) -> Error {
    Error::Unsuited(format!(
        "{objects} objects in one plane or volume of {pixels} pixels cannot be numbered in 16 bits: the model sees noise, or objects of a few pixels; \
         look at its probabilities"
    ))
}

/// What an enlarged image is: floats, and as many more and smaller pixels.
fn enlarged(d: &Description, dims: usize, factor: usize) -> Description {
    let mut made = as_float(d);
    for axis in [Axis::Z, Axis::Y, Axis::X].into_iter().skip(3 - dims) {
        let Some(position) = d.position(axis) else { continue };
        let dim = &mut made.dims[position];
        dim.len *= factor;
        dim.step = dim.step.map(|step| step / factor as f64);
    }
    made.levels = vec![made.shape()];
    // What the file's own format keeps speaks of the pixels as they were.
    made.native = None;
    made.tag("enlarged", format!("{factor} times along each axis"));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_image::Dim;

    #[test]
    fn pixels_of_enlarged_images_are_as_much_smaller_and_axes_are_kept() {
        let dims = vec![
            Dim::stepped(Axis::T, 3, Some(2.0), "s"),
            Dim::stepped(Axis::Y, 10, Some(0.4), "um"),
            Dim::stepped(Axis::X, 12, Some(0.4), "um"),
        ];
        let made = enlarged(&Description::new("tiff", Path::new("a.tif"), dims, DType::U16), 2, 4);
        let found: Vec<_> = made.dims.iter().map(|d| (d.axis, d.len, d.step, d.unit.as_deref())).collect();
        let wanted = [
            (Axis::T, 3, Some(2.0), Some("s")),
            (Axis::Y, 40, Some(0.1), Some("um")),
            (Axis::X, 48, Some(0.1), Some("um")),
        ];
        assert_eq!((found, made.dtype), (wanted.to_vec(), DType::F32));
        assert_eq!(made.levels, [[3, 40, 48]]);
    }
}
