//! Networks of other projects (ONNX files and packages) on images of any axes: planes or volumes as for Clearshot
//! models ([`Parts`]), with invalid pixels filled in, run in tiles ([`clearshot_restore::foreign`]) and written as
//! 32-bit floats, because the output of a network need not have the unit of the input.

use crate::classical::place::Place;
use crate::error::{Error, Result};
use crate::learned::decide::computed_in;
use crate::learned::image::Finished;
use crate::learned::parts::Form;
use crate::learned::{Map, Parts};
use crate::notice::Notice;
use crate::observer::{Ear, Event, Plan};
use crate::report::ImageReport;
use crate::settings::{Settings, Stacks};
use crate::target::{Destination, as_float};
use crate::validity::{Validity, may_be_none};
use clearshot_image::{Description, Image};
use clearshot_onnx::package::read::Package;
use clearshot_restore::foreign::{self, Checked, ForeignError, Run};
use clearshot_restore::learned::field::Scratch;
use clearshot_restore::learned::layout::Layout;
use clearshot_restore::learned::{Forecast, Measured};
use clearshot_runtime::{Device, available_bytes};
use serde_json::json;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// See the module.
pub struct Foreign {
    engine: Mutex<foreign::Foreign>,
    /// What the package's own test found, once it was run.
    tested: Mutex<Option<Checked>>,
}

/// A thread that panicked leaves nothing in an engine that the next image would see.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Foreign {
    /// Whether a path is an ONNX file or a package.
    pub fn is_one(path: &Path) -> bool {
        Package::is_one(path)
    }

    /// # Errors
    /// If it cannot be read, or does not take and return images.
    pub fn open(path: &Path, device: Device) -> Result<Foreign> {
        let package = Package::open(path).map_err(ForeignError::from)?;
        let engine = foreign::Foreign::new(package, device)?;
        Ok(Foreign { engine: Mutex::new(engine), tested: Mutex::new(None) })
    }

    /// Runs the test of the package; `None` if it has none.
    ///
    /// # Errors
    /// If the output of the network differs from the expected one.
    pub fn test(&self) -> Result<Option<Checked>> {
        let found = lock(&self.engine).check()?;
        *lock(&self.tested) = found;
        Ok(found)
    }

    pub fn on(self, device: Device) -> Foreign {
        let engine = self.engine.into_inner().unwrap_or_else(PoisonError::into_inner);
        Foreign { engine: Mutex::new(engine.on(device)), tested: self.tested }
    }

    pub fn name(&self) -> String {
        lock(&self.engine).package().name.clone()
    }

    /// Refuses settings that only apply to Clearshot models.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        settings.check()?;
        if let Some(key) = settings.asks_for_more_than_a_network() {
            return Err(Error::setting(
                key,
                "an ONNX network cannot do that; leave it out, or use a model of Clearshot",
            ));
        }
        if settings.stacks == Stacks::Volumes && lock(&self.engine).dims() == 2 {
            return Err(Error::setting("stacks", "the network takes planes"));
        }
        Ok(())
    }

    /// The description of the output for an image.
    ///
    /// # Errors
    /// If it does not have the axes or channels that the network needs.
    pub fn written(&self, d: &Description) -> Result<Description> {
        let engine = lock(&self.engine);
        let mut written = as_float(d);
        let parts = Parts::of(d, engine.dims(), engine.channels())?;
        if engine.made() != engine.channels() {
            let names: Vec<String> = (0..engine.made()).map(|i| format!("output {i}")).collect();
            parts.set_channels(&mut written, engine.made(), &names)?;
        }
        Ok(written)
    }

    /// Restores one image.
    ///
    /// # Errors
    /// If it cannot be read, run or written, or the observer stops it.
    pub fn run(
        &self,
        settings: &Settings,
        image: &Image,
        validity: Validity,
        to: Destination<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<(Finished, Validity)> {
        let start = Instant::now();
        image.check_single()?;
        let description = self.written(to.description(&image.description))?;
        let tested = *lock(&self.tested);
        let mut engine = lock(&self.engine);
        let (dims, channels, made) = (engine.dims(), engine.channels(), engine.made());
        let parts = Parts::of(&image.description, dims, channels)?;
        let given_back = Parts::of(&description, dims, made)?;
        let form = Form::of(&description);
        let run = Run { tile: settings.tile, memory: settings.memory, precision: settings.precision };
        let layout = engine.prepare(&parts.size, &run)?;
        let forecast = forecast(&layout, parts.all.len(), channels + made, &engine);
        let runs = forecast.runs;
        let told =
            Plan { forecast: Some(&forecast), instead: None, runs, choosing: 0, device: engine.device() };
        ear.event(&Event::Plan(told))?;
        computed_in(settings.precision, &forecast, engine.device(), ear)?;

        let package = engine.package();
        let parameters = json!({
            "settings": {
                "model": package.name, "model_hash": package.hash, "network": package.path, "mask": settings.mask,
                "precision": settings.precision.to_string(), "saturation": settings.saturation(),
            },
            "test_difference": tested.map(|t| t.difference),
            "plan": { "tile": forecast.tile, "halo": forecast.halo, "tiles": forecast.tiles, "blends": forecast.blends, "precision": forecast.computes_in.name() },
        });
        let place =
            Place { operation: "restore", image, to, description: &description, together: Vec::new() };
        let mut first = place.begin(&parameters)?;
        // Half of what is free at most; what is more lies in files.
        let scratch = Scratch::new(available_bytes().unwrap_or(usize::MAX) / 2, settings.scratch.clone());
        let (mut filled, mut clipped) = (0, 0);
        for (number, part) in parts.all.iter().enumerate() {
            let measured = Measured::read(&parts.source(image, part, &validity), &scratch)?;
            filled += measured.filled;
            let mut tell =
                |done: usize, of: usize| ear.observer.progress(number * of + done, parts.all.len() * of);
            let mut restored = engine.run(&measured.values, &layout, &mut tell)?;
            if measured.filled > 0 && may_be_none(&description) {
                parts.give_back(image, part, &mut restored)?;
            }
            clipped += given_back.write(&given_back.all[number], &restored, &form, first.sink())?;
        }
        if made == channels {
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
            forecast: Some(forecast),
            seconds: start.elapsed().as_secs_f64(),
            ..ImageReport::default()
        };
        Ok((Finished { report, made: vec![(Map::Image, made)], description }, validity))
    }
}

/// Tiles and memory in numbers.
fn forecast(layout: &Layout, parts: usize, channels: usize, engine: &foreign::Foreign) -> Forecast {
    Forecast {
        tile: layout.core(),
        halo: layout.around(),
        tiles: layout.count(),
        batch: 1,
        blends: layout.blends(),
        device_bytes: engine.device_bytes(),
        computes_in: engine.computes_in(),
        host_bytes: layout.pixels() * channels * size_of::<f32>(),
        resident: false,
        runs: layout.count() * parts,
        seconds_a_run: None,
    }
}
