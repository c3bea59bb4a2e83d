//! Preparation for images of a size: chooses tiles and batch by memory, compiles the network, and forecasts the time.

use super::Restorer;
use crate::learned::choose::{Chosen, Wanted, choose};
use crate::learned::layout::Layout;
use crate::learned::question::asked;
use crate::learned::resident::Resident;
use crate::learned::settings::Output;
use crate::learned::tiles::{Also, Question, Tiles};
use crate::learned::{Error, walk};
use clearshot_runtime::{Arithmetic, Device, Options, gpus};

/// What the network's graph may take on a CPU by default: tiles beyond this size gain nothing.
const CPU_MEMORY: usize = 512 << 20;

/// A compiled network, and what it was compiled for.
pub(super) struct Ready {
    pub size: Vec<usize>,
    pub images: usize,
    pub samples: usize,
    /// The margin of tiles, if it is smaller than the receptive field.
    pub margin: Option<usize>,
    /// Whether it returns the predicted error.
    pub error: bool,
    pub tiles: Tiles,
    /// Sampling on the device, if it fits there.
    pub resident: Option<Resident>,
    pub forecast: Forecast,
}

/// The expected time and memory of restoring.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The largest core of a tile in pixels along each axis.
    pub tile: Vec<usize>,
    /// The halo in pixels on each side: reflected pixels for a single tile; zero if tiles are blended.
    pub halo: Vec<usize>,
    pub tiles: usize,
    pub batch: usize,
    /// Whether the result depends on the tile, because the network has a global receptive field.
    pub blends: bool,
    /// The memory of the network's graph on the device in bytes.
    pub device_bytes: usize,
    /// The memory of the images' states on the host in bytes.
    pub host_bytes: usize,
    /// Whether sampling stays on the device from the first call to the last.
    pub resident: bool,
    /// What the network computes in, which is not what was asked for if it has nothing that computes in that.
    pub computes_in: Arithmetic,
    /// The number of runs of the graph, and the time of one; `None` if timing it would take as long as restoring.
    pub runs: usize,
    pub seconds_a_run: Option<f64>,
}

/// Fewer runs than this are not worth measuring one.
const WORTH_MEASURING: usize = 4;

impl Restorer {
    /// Samples that are on their way at once, for so many images.
    pub(super) fn together(&self, pixels: usize, images: usize) -> usize {
        let fields = self.program.as_ref().map_or(2, walk::fields);
        let each = images * pixels * self.model.about.channels * fields * size_of::<f32>();
        (self.settings.host_memory / 2 / each.max(1)).clamp(1, self.settings.samples.max(1))
    }

    /// Bytes that the network's graph may take on the device.
    pub(super) fn memory_limit(&self) -> usize {
        self.settings.device_memory.unwrap_or_else(|| match self.device {
            Device::Cpu { .. } => CPU_MEMORY,
            Device::Cuda { ordinal } => {
                let all = gpus().unwrap_or_default();
                all.iter().find(|g| g.ordinal == ordinal).map_or(CPU_MEMORY, |g| g.memory / 2)
            }
        })
    }

    /// Chooses tiles and batch for `images` images of one size, compiles the network and measures one run. The last
    /// preparation is kept, and the one before it if both fit.
    ///
    /// # Errors
    /// If the model does not accept the size, nothing fits the device's memory, or the device fails.
    pub fn prepare(&mut self, size: &[usize], images: usize) -> Result<Forecast, Error> {
        let (samples, margin, error) = (self.settings.samples, self.margin, self.says_error());
        let asked_for = (images, samples, margin, error);
        let same = |r: &Ready| r.size == size && (r.images, r.samples, r.margin, r.error) == asked_for;
        if let Some(at) = self.ready.iter().position(same) {
            // The last one is the one in use.
            self.ready[at..].rotate_left(1);
            return Ok(self.ready[self.ready.len() - 1].forecast.clone());
        }
        let about = &self.model.about;
        if size.len() != about.dims {
            let needed = if about.dims == 2 { "planes (Y, X)" } else { "volumes (Z, Y, X)" };
            return Err(Error::Axes { needed, got: size.len() });
        }
        if size.contains(&0) {
            return Err(Error::Size { size: size.to_vec() });
        }
        let before = match self.settings.cascade > 1 {
            true => self.coarse_runs(size, images)?,
            false => 0,
        };
        self.ready.drain(..self.ready.len().saturating_sub(1));
        let about = &self.model.about;
        let pixels: usize = size.iter().product();
        let together = self.together(pixels, images);
        let options = Options { precision: self.settings.precision, ..Options::default() };
        let limit = self.memory_limit();
        let cut = margin.map_or_else(|| self.cut.clone(), |m| self.cut.within(m));
        let wanted = Wanted { tile: self.settings.tile, batch: self.settings.batch, limit };
        let at_once = images * together;
        let also = Also { unclipped: self.program.as_ref().is_some_and(walk::wants_unclipped), error };
        let Chosen { layout, graph, batch, bytes } =
            asked(&self.model, self.settings.classifier_free, also, self.tokens(), |asked| {
                choose(asked, &cut, size, at_once, &wanted, &self.device, &options)
            })?;
        self.ready.retain(|r| r.forecast.device_bytes + bytes <= limit);
        let mut tiles = Tiles::compile(graph, layout, &self.model.weights, &self.device, &options)?;
        let mut resident = self.resident(tiles.layout(), batch, limit, &options)?;
        let calls = self.program.as_ref().map_or(0, |p| p.calls().len());
        let mut runs = match self.output {
            Output::Direct => tiles.runs(images),
            Output::Samples => 0,
        };
        let mut left = self.settings.samples;
        while left > 0 {
            let now = left.min(together);
            runs += calls * tiles.runs(images * now);
            left -= now;
        }
        let seconds_a_run = match &mut resident {
            _ if runs < WORTH_MEASURING => None,
            Some(resident) => Some(resident.time_a_run()?),
            None => Some(tiles.time_a_run()?),
        };
        let fields = self.program.as_ref().map_or(2, walk::fields) * together
            + 1
            + if self.settings.samples > 1 { 2 } else { 0 }
            + if error { 2 } else { 0 }
            + usize::from(self.output == Output::Direct && self.settings.samples > 0);
        let layout = tiles.layout();
        let forecast = Forecast {
            tile: layout.core(),
            halo: layout.around(),
            tiles: layout.count(),
            batch,
            blends: layout.blends(),
            device_bytes: bytes + resident.as_ref().map_or(0, |r| r.bytes),
            host_bytes: fields * images * pixels * about.channels * size_of::<f32>(),
            resident: resident.is_some(),
            computes_in: tiles.session().arithmetic(),
            runs: runs + before,
            seconds_a_run,
        };
        let size = size.to_vec();
        self.ready.push(Ready {
            size,
            images,
            samples,
            margin,
            error,
            tiles,
            resident,
            forecast: forecast.clone(),
        });
        Ok(forecast)
    }

    /// The walk on the device, where the image is one tile that fits and nothing on the host corrects or fills it.
    fn resident(
        &self,
        layout: &Layout,
        batch: usize,
        limit: usize,
        options: &Options,
    ) -> Result<Option<Resident>, Error> {
        let on_host = self.guidance.is_some() || self.settings.begin.is_some() || self.settings.inpaint;
        let Some(program) = self.program.as_ref().filter(|_| !on_host) else {
            return Ok(None);
        };
        let also = Also { unclipped: walk::wants_unclipped(program), error: false };
        let (weight, tokens) = (self.settings.classifier_free, self.tokens());
        asked(&self.model, weight, also, tokens, |asked| match asked.question {
            Question::Regress(_) => Ok(None),
            Question::Denoise(denoiser) => Resident::compile(
                denoiser,
                program,
                asked.channels,
                asked.condition,
                &asked.conditions,
                layout,
                batch,
                limit,
                None,
                &self.model.weights,
                &self.device,
                options,
            ),
        })
    }
}
