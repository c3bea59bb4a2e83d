//! Classical restorers on images of any size: an image is processed plane by plane or volume by volume, in tiles if it
//! is large, with invalid pixels filled in.

mod deconvolve;
mod denoise;
pub(crate) mod place;

use crate::error::{Error, Result};
use crate::learned::Map;
use crate::learned::image::Finished;
use crate::notice::Notice;
use crate::observer::Ear;
use crate::report::ImageReport;
use crate::settings::{Settings, Stacks};
use crate::target::{Destination, as_float};
use crate::validity::{Validity, may_be_none};
use clearshot_image::grid::Region;
use clearshot_image::{Description, Image};
use clearshot_restore::RestoreError;
use clearshot_restore::classical::{Method, Reach};
use clearshot_restore::invalid::Invalid;
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::{self, NoiseLevel, raise};
use clearshot_restore::stream::{self, Cut, Frames, Piece, PieceError, TileSide, Work};
use place::Place;
use serde_json::{Value, json};
use std::ops::{ControlFlow, Range};
use std::time::Instant;

pub use deconvolve::Deconvolution;

/// A restorer that needs no training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Classical {
    /// A denoiser.
    Denoise(Method),
    /// The signal above the offset divided by this ratio of exposures, without denoising.
    Exposure(f32),
    /// No restoration: pixels are copied.
    Raw,
    /// Richardson-Lucy deconvolution.
    RichardsonLucy(Deconvolution),
    /// Wiener deconvolution, with the ratio of noise power to image power.
    Wiener(f32),
}

/// Restores the values of one plane or volume, in the file's unit, of a shape, which lie at a region of the image.
type Restore = Box<dyn FnMut(&[f32], &[usize], &Region) -> Result<Vec<f32>, RestoreError>>;

/// What is to be done to one image.
struct Job {
    /// What goes into the record.
    parameters: Value,
    reach: Reach,
    /// Nothing is done without one.
    restore: Option<Restore>,
    /// Where pixels are saturated, if the image's own values said so.
    saturation: Option<f32>,
    /// What saturated pixels are estimated with.
    noise: NoiseLevel,
    /// Whether a pixel of the result is not the mean of the same pixel of the image.
    sharpens: bool,
    camera: Option<Camera>,
}

impl Job {
    /// What does no more than look at each pixel.
    fn pixel_by_pixel(parameters: Value, restore: Option<Restore>) -> Job {
        let (reach, sharpens) = (Reach::Within { halo: 0, align: 1 }, restore.is_some());
        let (saturation, noise, camera) = (None, NoiseLevel::Unknown, None);
        Job { parameters, reach, restore, saturation, noise, sharpens, camera }
    }
}

/// An image that is to be restored, and what is known of it.
struct Subject<'a> {
    settings: &'a Settings,
    image: &'a Image,
    /// As it was given.
    validity: Validity,
    volume: bool,
}

/// A piece of an image, and what of it is not its surroundings.
struct Looked {
    values: Vec<f32>,
    shape: Vec<usize>,
    region: Vec<Range<usize>>,
    core: Vec<Range<usize>>,
}

impl Classical {
    /// The name of the operation in the record.
    pub fn operation(&self) -> &'static str {
        match self {
            Classical::Denoise(_) | Classical::Exposure(_) | Classical::Raw => "denoise",
            Classical::RichardsonLucy(_) | Classical::Wiener(_) => "deconvolve",
        }
    }

    /// Refuses settings that only apply to models.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self, settings: &Settings) -> Result<()> {
        settings.check()?;
        let sharpens = self.operation() == "deconvolve";
        let blurred = settings.psf.is_some() && !sharpens;
        if let Some(key) = settings.asks_for_a_model().or(blurred.then_some("psf")) {
            return Err(Error::setting(key, "a classical restorer cannot do that; use a model"));
        }
        if settings.background.is_some() && !matches!(self, Classical::RichardsonLucy(_)) {
            return Err(Error::setting(
                "background",
                "models and Richardson-Lucy take the background from a file",
            ));
        }
        match (&settings.psf, sharpens) {
            (None, true) => Err(Error::setting("psf", "deconvolution needs a point-spread function")),
            (Some(psf), true) => psf.check(if settings.stacks == Stacks::Volumes { 3 } else { 2 }),
            _ => Ok(()),
        }
    }

    /// The description of the output for an image.
    pub fn written(d: &Description, float: bool) -> Description {
        if float { as_float(d) } else { d.clone() }
    }

    /// Restores one image.
    ///
    /// # Errors
    /// If it cannot be read, restored or written, or the observer stops it.
    pub fn run(
        &self,
        settings: &Settings,
        image: &Image,
        validity: Validity,
        to: Destination<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<(Finished, Validity)> {
        let volume = settings.stacks == Stacks::Volumes;
        let subject = Subject { settings, image, validity, volume };
        Frames::of(&image.description, volume)?;
        if *self != Classical::Raw {
            image.check_single()?;
        }
        let job = match self {
            Classical::Raw => Job::pixel_by_pixel(json!({ "method": "none" }), None),
            Classical::Exposure(ratio) => denoise::exposure(*ratio, settings)?,
            Classical::Denoise(method) => denoise::prepare(*method, &subject, ear)?,
            Classical::RichardsonLucy(steps) => deconvolve::richardson_lucy(steps, &subject, ear)?,
            Classical::Wiener(balance) => deconvolve::wiener(*balance, &subject, ear)?,
        };
        subject.run(self.operation(), job, to, ear)
    }
}

impl Subject<'_> {
    fn cut(&self, reach: Reach) -> Cut {
        let tile = self.settings.tile.map_or(TileSide::Auto, TileSide::Pixels);
        Cut { volume: self.volume, tile, reach }
    }

    fn run(
        self,
        operation: &str,
        job: Job,
        to: Destination<'_>,
        ear: &mut Ear<'_>,
    ) -> Result<(Finished, Validity)> {
        let start = Instant::now();
        let is_given = self.settings.saturation().is_some();
        let saturation = self.settings.saturation().or(job.saturation);
        let d = to.description(&self.image.description);
        let float = self.settings.float || matches!(to, Destination::Caller(_));
        let description = Classical::written(d, float);
        let cut = self.cut(self.reach(job.reach, saturation));
        let mut parameters = job.parameters;
        if let Some(path) = &self.settings.mask {
            parameters["mask"] = json!(path);
        }
        if let Some(full) = saturation {
            parameters["saturation"] = full.into();
        }
        let plan = stream::plan(self.image, &cut)?;
        parameters["plan"] = json!({ "tile": plan.tile, "halo": plan.halo, "pieces": plan.pieces });
        let frames = Frames::of(&self.image.description, self.volume)?;
        // What is not local and not cut has to see whole planes.
        let together = match cut.reach {
            Reach::Fading { .. } if plan.tile == frames.size() => frames.inner().to_vec(),
            _ => Vec::new(),
        };
        let place = Place { operation, image: self.image, to, description: &description, together };
        let mut sink = place.begin(&parameters)?;
        let validity = Validity { saturation, is_given, mask: self.validity.mask };
        let mut filled = 0;
        let (noise, sharpens, keeps_none) = (job.noise, job.sharpens, may_be_none(&description));
        let mut restore = job.restore;
        let passes = restore.is_none();
        let mut each = |piece: &Piece<'_>| -> Result<Vec<f32>, PieceError> {
            let Some(restore) = &mut restore else { return Ok(piece.values.to_vec()) };
            let marks = validity.marks(piece.place, piece.values.len()).map_err(PieceError::Mask)?;
            let invalid = Invalid::find(piece.values, saturation, marks.as_deref());
            if invalid.is_empty() {
                return Ok(restore(piece.values, piece.shape, piece.place)?);
            }
            filled += invalid.count();
            let whole = invalid.filled(piece.values, piece.shape, noise);
            let mut restored = restore(&whole.values, piece.shape, piece.place)?;
            if !sharpens {
                raise(&mut restored, &whole.least);
            }
            if keeps_none {
                invalid.give_back(&mut restored);
            }
            Ok(restored)
        };
        let work = if passes { Work::Pass } else { Work::Restore(&mut each) };
        let mut tell = |done: usize, total: usize| -> ControlFlow<()> { ear.observer.progress(done, total) };
        let report = stream::run(self.image, sink.sink(), &description, &cut, work, &mut tell)?;
        let made = place.end(sink, parameters, report.clipped, filled)?;
        if report.clipped > 0 {
            let dtype = description.dtype.name();
            ear.notice(Notice::Clipped { count: report.clipped, dtype })?;
        }
        let report = ImageReport {
            pieces: report.pieces,
            clipped: report.clipped,
            filled,
            camera: job.camera,
            seconds: start.elapsed().as_secs_f64(),
            ..ImageReport::default()
        };
        Ok((Finished { report, made: vec![(Map::Image, made)], description }, validity))
    }
}

impl Subject<'_> {
    /// Holes are a few pixels wide; what fills them must be the same in every piece.
    fn reach(&self, reach: Reach, saturation: Option<f32>) -> Reach {
        let has_holes =
            self.validity.mask.is_some() || saturation.is_some() || may_be_none(&self.image.description);
        match reach {
            Reach::Within { halo, align } if has_holes => {
                Reach::Within { halo: halo + saturated::REACH, align }
            }
            other => other,
        }
    }

    /// Shows some pieces of an image that is cut, `most` at most, one after the other and without invalid pixels; none of
    /// one that is not cut. Each comes with so many pixels around it as `halo` says. `full` is where the image's own values
    /// say that pixels are saturated.
    fn look_at(
        &self,
        reach: Reach,
        most: usize,
        halo: usize,
        full: Option<f32>,
        show: &mut dyn FnMut(Looked) -> Result<()>,
    ) -> Result<()> {
        let image = self.image;
        let list = stream::pieces(image, &self.cut(reach))?;
        let frames = Frames::of(&image.description, self.volume)?;
        if list.len() == frames.regions().len() {
            return Ok(());
        }
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
            let marks = self.validity.marks(&region, values.len()).map_err(Error::Unsuited)?;
            let full = self.settings.saturation().or(full);
            let invalid = Invalid::find(&values, full, marks.as_deref());
            let values = invalid.filled(&values, &shape, NoiseLevel::Unknown).values;
            show(Looked { values, shape, region, core })?;
        }
        Ok(())
    }
}
