//! Segmentation and super-resolution networks on whole images, which use no camera: class probabilities of every pixel,
//! the maps of [`clearshot_model::instances`], or an image on a finer grid. They use the same tiles as restoring.
//!
//! The result of a network with a bounded receptive field does not depend on the tiles. A network with a global one
//! (instance normalisation, attention) uses windows of its training size, which overlap by a quarter and are blended.
//! The image is scaled between its own dark and bright end ([`OwnRange`]), which are those of the whole image and not
//! of a tile.

use super::choose::{Cut, Wanted, choose};
use super::field::{Field, Scratch};
use super::measured::Measured;
use super::question::{asked, cut};
use super::tiles::{Also, Frame, Tiles};
use super::{Error, Forecast};
use clearshot_diffusion::Level;
use clearshot_model::{Model, OwnRange};
use clearshot_runtime::{Device, Options, Precision};

/// Bytes that a network may take.
const MEMORY: usize = 512 << 20;

/// How a network is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Pixels along each side of a tile. Default: chosen by memory, or the training size.
    pub tile: Option<usize>,
    /// The number of tiles run at once. Default: as many as keep the device busy.
    pub batch: Option<usize>,
    /// Memory limit of the network in bytes. Default: 512 MiB.
    pub memory: Option<usize>,
    pub precision: Precision,
}

/// See the module.
pub struct Predictor {
    model: Model,
    device: Device,
    cut: Cut,
    ready: Option<Ready>,
}

/// The network compiled for images of one size.
struct Ready {
    size: Vec<usize>,
    run: Run,
    tiles: Tiles,
    bytes: usize,
}

impl Predictor {
    /// # Errors
    /// If the model has another task.
    pub fn new(model: Model, device: Device) -> Result<Predictor, Error> {
        if !model.about.task.knows_no_camera() {
            let (model, is) = (model.about.name.clone(), model.about.task.name());
            return Err(Error::Task {
                model,
                is,
                reason: "it restores images and does not segment or enlarge them",
            });
        }
        if !model.condition_inputs().is_empty() {
            let what = "a network that segments takes an image and no class, vector or context".into();
            return Err(Error::Condition { what });
        }
        let cut = cut(&model, false)?;
        Ok(Predictor { model, device, cut, ready: None })
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same on another device.
    pub fn on(self, device: Device) -> Predictor {
        Predictor { device, ready: None, ..self }
    }

    /// The number of values per pixel.
    pub fn channels(&self) -> usize {
        self.model.about.channels
    }

    /// Whether the result depends on the size of tiles.
    pub fn depends_on_tiles(&self) -> bool {
        matches!(self.cut, Cut::Whole { .. })
    }

    /// Prepares the network for images of a size; returns the time and memory for this number of images.
    ///
    /// # Errors
    /// If no tiles fit.
    pub fn prepare(&mut self, size: &[usize], images: usize, run: &Run) -> Result<Forecast, Error> {
        if size.len() != self.model.about.dims || size.contains(&0) {
            return Err(Error::Size { size: size.to_vec() });
        }
        if self.ready.as_ref().is_none_or(|r| r.size != size || r.run != *run) {
            self.ready = None;
            let options = Options { precision: run.precision, ..Options::default() };
            let wanted = Wanted { tile: run.tile, batch: run.batch, limit: run.memory.unwrap_or(MEMORY) };
            let chosen = asked(&self.model, 1.0, Also::default(), 1, |asked| {
                choose(asked, &self.cut, size, 1, &wanted, &self.device, &options)
            })?;
            let tiles =
                Tiles::compile(chosen.graph, chosen.layout, &self.model.weights, &self.device, &options)?;
            self.ready = Some(Ready { size: size.to_vec(), run: *run, tiles, bytes: chosen.bytes });
        }
        let ready = self.ready.as_ref().ok_or(Error::Stopped)?;
        let layout = ready.tiles.layout();
        Ok(Forecast {
            tile: layout.core(),
            halo: layout.around(),
            tiles: layout.count(),
            batch: ready.tiles.batch(),
            blends: layout.blends(),
            device_bytes: ready.bytes,
            host_bytes: layout.pixels()
                * (2 * self.model.about.input_channels() + self.channels())
                * size_of::<f32>(),
            resident: false,
            computes_in: ready.tiles.session().arithmetic(),
            runs: ready.tiles.runs(1) * images,
            seconds_a_run: None,
        })
    }

    /// The probabilities or maps of an image of the prepared size, channels last; `ran` is called after each run.
    ///
    /// # Errors
    /// If the device fails, or `ran` says to stop.
    pub fn maps(
        &mut self,
        image: &Measured,
        scratch: &Scratch,
        ran: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Field, Error> {
        let (channels, needed) = (image.channels, self.model.about.input_channels());
        if channels != needed {
            return Err(Error::Channels { needed, got: channels });
        }
        let Some(ready) = self.ready.as_mut().filter(|r| r.size == image.size) else {
            return Err(Error::Size { size: image.size.clone() });
        };
        let range = OwnRange::of(&image.values, &image.size, channels);
        let mut estimate = scratch.field(image.values.len() / channels * self.model.about.channels)?;
        let beside = |_: usize, _: &str, pixels: &[usize], out: &mut [f32]| {
            for (to, &p) in out.chunks_exact_mut(channels).zip(pixels) {
                to.copy_from_slice(&image.values[p * channels..(p + 1) * channels]);
            }
            range.apply(out);
        };
        let mut frames = [Frame { x: &[], estimate: &mut estimate, unclipped: None, error: None }];
        ready.tiles.ask(&Level::CLEAN, &mut frames, None, &beside, ran)?;
        Ok(estimate)
    }
}
