//! The files of one image, read plane by plane or volume by volume for the metrics.

use super::pattern::Inserted;
use super::settings::{MeasureSettings, lacking};
use super::together::Set;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::observer::Ear;
use crate::validity::{Mask, Validity};
use clearshot_image::grid::Region;
use clearshot_image::{Dim, Image, lengths};
use clearshot_metrics::artefacts::Pattern;
use clearshot_metrics::stratify::{Stratum, stratify};
use clearshot_metrics::table::{Measured, Metric, Need, Options, Score, Subject};
use clearshot_restore::invalid::Invalid;
use clearshot_restore::learned::Camera;
use clearshot_restore::saturated::NoiseLevel;
use clearshot_restore::stream::Frames;
use std::ops::Range;
use std::path::Path;

/// What is known of the noise of a measurement.
enum Noise {
    Uniform(f64),
    Camera(Box<Camera>),
}

impl Noise {
    /// Where the mean is so many counts.
    fn variance(&self, mean: f64) -> f64 {
        match self {
            Noise::Uniform(deviation) => deviation * deviation,
            Noise::Camera(camera) => camera.deviation(mean).powi(2),
        }
    }
}

/// An image with its partners.
pub struct Frame<'a> {
    image: Image,
    truth: Option<Image>,
    without: Option<Image>,
    measured: Option<(Image, Noise)>,
    mask: Option<Mask>,
    pattern: Option<&'a Inserted>,
    frames: Frames,
    crop: usize,
    options: Options,
    unit: String,
}

/// The scores of a file, one per metric, and its strata.
pub struct Scored {
    pub scores: Vec<Score>,
    pub strata: Vec<Stratum>,
}

/// The noise of a region: the variance of each pixel and, where neighbours share the noise of a plane, its spectrum and how much
/// they share.
struct Spread {
    variance: Vec<f64>,
    spectrum: Option<Vec<f64>>,
    shared: f64,
}

/// What one region of the files holds.
struct Values {
    image: Vec<f64>,
    truth: Option<Vec<f64>>,
    without: Option<Vec<f64>>,
    measured: Option<Vec<f64>>,
}

impl<'a> Frame<'a> {
    pub fn open(
        settings: &MeasureSettings,
        set: &Set,
        image: &Path,
        pattern: Option<&'a Inserted>,
        options: &Options,
        ear: &mut Ear<'_>,
    ) -> Result<Frame<'a>> {
        let image = Image::open(image)?;
        let partner = |path: &Option<std::path::PathBuf>, name: &str| -> Result<Option<Image>> {
            let Some(path) = path else { return Ok(None) };
            let other = Image::open(path)?;
            if other.shape() != image.shape() {
                let (theirs, ours) = (lengths(&other.shape()), lengths(&image.shape()));
                return Err(Error::Unsuited(format!("the {name} has {theirs} pixels and the image {ours}")));
            }
            Ok(Some(other))
        };
        let truth = partner(&set.truth, "truth")?;
        let without = partner(&set.without, "image without the pattern")?;
        let measured = match partner(&set.measured, "measurement")? {
            Some(image) => {
                let noise = settings.noise_of(&image, ear)?;
                Some((image, noise))
            }
            None => None,
        };
        let frames = Frames::of(&image.description, settings.volume)?;
        let crop = settings.crop;
        if let Some(size) = frames.size().iter().find(|&&n| crop.saturating_mul(2) >= n) {
            let why = format!("so many pixels at each edge leave nothing of {size}");
            return Err(Error::value("crop", crop, why));
        }
        let mask = settings.mask.as_ref().map(|path| Mask::open(path, &image.description)).transpose()?;
        let dims: Vec<&Dim> = frames.inner().iter().map(|&a| &image.description.dims[a]).collect();
        let (spacing, unit) = spacing(&dims);
        let mut options = Options { spacing, ..options.clone() };
        if let (None, Some(truth)) = (options.range, &truth) {
            options.range = usual_range(truth, &frames)?;
        }
        Ok(Frame { image, truth, without, measured, mask, pattern, frames, crop, options, unit })
    }

    /// The unit of lengths: that of the pixel size, or pixels.
    pub fn unit(&self) -> String {
        self.unit.clone()
    }

    /// The range of PSNR and SSIM, if there is one.
    pub fn range(&self) -> Option<f64> {
        self.options.range
    }

    /// Where each plane or volume lies, without the edges that are left out.
    fn regions(&self) -> Vec<Vec<Range<usize>>> {
        let mut regions = self.frames.regions();
        for region in &mut regions {
            for &axis in self.frames.inner() {
                region[axis] = region[axis].start + self.crop..region[axis].end - self.crop;
            }
        }
        regions
    }

    pub fn scores(&self, metrics: &[&Metric], edges: &[f64]) -> Result<Scored> {
        // A true image of one value alone has no range of its own.
        let needs_range =
            metrics.iter().find(|m| m.needs.contains(&Need::Range)).map(|m| format!("metric {}", m.name));
        let needs_range = needs_range.or_else(|| (!edges.is_empty()).then(|| "strata".into()));
        if let (None, Some(key)) = (self.options.range, needs_range) {
            return Err(lacking(key, Need::Range));
        }
        let shape: Vec<usize> = self.frames.size().iter().map(|n| n - 2 * self.crop).collect();
        let mut parts: Vec<Vec<Score>> = metrics.iter().map(|_| Vec::new()).collect();
        let mut strata: Vec<Stratum> = Vec::new();
        for region in self.regions() {
            let mut values = self.read(&region)?;
            let marks = self.mask.as_ref().map(|m| m.marks(&region, values.image.len())).transpose()?;
            let counts = values.counting(&shape, marks.as_deref(), self.options.labels);
            let pattern = self.pattern.map(|p| p.of(&self.frames, &region)).transpose()?;
            let noise = self.spread(&values, &shape);
            let subject = self.subject(&values, &shape, counts.as_deref(), pattern.as_ref(), noise.as_ref());
            for (metric, parts) in metrics.iter().zip(&mut parts) {
                parts.push((metric.score)(&subject).map_err(|e| Error::from(e).at(metric.name))?);
            }
            if !edges.is_empty() {
                add(&mut strata, stratify(&subject.pair()?, edges, self.options.range.unwrap_or(0.0))?);
            }
        }
        finish(&mut strata, self.options.range.unwrap_or(0.0));
        Ok(Scored { scores: parts.iter().map(|p| Score::together(p)).collect(), strata })
    }

    fn read(&self, region: &Region) -> Result<Values> {
        let of = |image: Option<&Image>| image.map(|i| i.read_f64(region)).transpose();
        Ok(Values {
            image: self.image.read_f64(region)?,
            truth: of(self.truth.as_ref())?,
            without: of(self.without.as_ref())?,
            measured: of(self.measured.as_ref().map(|m| &m.0))?,
        })
    }

    fn spread(&self, values: &Values, shape: &[usize]) -> Option<Spread> {
        let (_, noise) = self.measured.as_ref()?;
        let variance = values.image.iter().map(|&v| noise.variance(v)).collect();
        match (noise, shape) {
            (Noise::Camera(camera), &[h, w]) if !camera.correlation.is_white() => {
                let spectrum = Some(camera.correlation.spectrum([h, w]));
                Some(Spread { variance, spectrum, shared: camera.correlation.squares() })
            }
            _ => Some(Spread { variance, spectrum: None, shared: 1.0 }),
        }
    }

    fn subject<'s>(
        &'s self,
        values: &'s Values,
        shape: &'s [usize],
        counts: Option<&'s [bool]>,
        pattern: Option<&'s Pattern>,
        noise: Option<&'s Spread>,
    ) -> Subject<'s> {
        let measured = values.measured.as_deref().zip(noise).map(|(values, noise)| Measured {
            values,
            variance: &noise.variance,
            spectrum: noise.spectrum.as_deref(),
            shared: noise.shared,
        });
        Subject {
            shape,
            image: &values.image,
            truth: values.truth.as_deref(),
            counts,
            measured,
            pattern,
            without: values.without.as_deref(),
            options: &self.options,
        }
    }
}

impl MeasureSettings {
    /// As it is given, or estimated from the measurement.
    fn noise_of(&self, measured: &Image, ear: &mut Ear<'_>) -> Result<Noise> {
        if let Some(deviation) = self.noise {
            return Ok(Noise::Uniform(deviation));
        }
        let validity = Validity::default();
        let (camera, estimated) = self.camera.of(measured, &validity)?;
        if let Some(estimated) = estimated {
            ear.notice(Notice::Estimated(Box::new(estimated)))?;
        }
        Ok(Noise::Camera(Box::new(camera)))
    }
}

/// The range of a true image where none is given: 255 for 8 bits, otherwise its greatest less its least finite value; none where
/// all are the same.
fn usual_range(truth: &Image, frames: &Frames) -> Result<Option<f64>> {
    if truth.dtype().bits() == 8 && truth.description.rescale.is_none() {
        return Ok(Some(255.0));
    }
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for region in frames.regions() {
        for v in truth.read_f64(&region)?.into_iter().filter(|v| v.is_finite()) {
            (low, high) = (low.min(v), high.max(v));
        }
    }
    Ok((high > low).then_some(high - low))
}

/// The pixel size in a unit that all axes have, or pixels.
fn spacing(dims: &[&Dim]) -> (Vec<f64>, String) {
    let unit = dims.first().and_then(|d| d.unit.clone()).filter(|u| !u.is_empty());
    let steps: Option<Vec<f64>> = dims.iter().map(|d| d.step.filter(|_| d.unit == unit)).collect();
    match (steps, unit) {
        (Some(steps), Some(unit)) => (steps, unit),
        _ => (vec![1.0; dims.len()], "px".into()),
    }
}

impl Values {
    /// Which pixels count; nothing if all do. Those that do not are filled from their neighbours, so that windows and spectra
    /// that reach over them see nothing odd; of labels they become background.
    fn counting(&mut self, shape: &[usize], marks: Option<&[bool]>, labels: bool) -> Option<Vec<bool>> {
        let mut all: Vec<&mut Vec<f64>> = vec![&mut self.image];
        all.extend(self.truth.iter_mut().chain(&mut self.without).chain(&mut self.measured));
        let invalid: Vec<bool> = (0..all[0].len())
            .map(|i| all.iter().any(|v| !v[i].is_finite()) || marks.is_some_and(|m| m[i]))
            .collect();
        if !invalid.contains(&true) {
            return None;
        }
        for values in all {
            let single: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            let filled = match labels {
                true => vec![0.0; single.len()],
                false => {
                    let found = Invalid::find(&single, None, Some(&invalid));
                    found.filled(&single, shape, NoiseLevel::Unknown).values
                }
            };
            for i in (0..values.len()).filter(|&i| invalid[i]) {
                values[i] = filled[i].into();
            }
        }
        Some(invalid.iter().map(|i| !i).collect())
    }
}

/// Adds the strata of another plane as sums over pixels; `finish` makes means of them.
fn add(sums: &mut Vec<Stratum>, plane: Vec<Stratum>) {
    let summed = |s: &Stratum| {
        let times = |mean: f64| if s.pixels == 0 { 0.0 } else { mean * s.pixels as f64 };
        Stratum { bias: times(s.bias), mae: times(s.mae), mse: times(s.mse), ..*s }
    };
    if sums.is_empty() {
        *sums = plane.iter().map(summed).collect();
        return;
    }
    for (sum, part) in sums.iter_mut().zip(plane.iter().map(summed)) {
        sum.pixels += part.pixels;
        (sum.bias, sum.mae, sum.mse) = (sum.bias + part.bias, sum.mae + part.mae, sum.mse + part.mse);
    }
}

fn finish(sums: &mut [Stratum], range: f64) {
    for s in sums {
        let n = s.pixels as f64;
        (s.bias, s.mae, s.mse) = (s.bias / n, s.mae / n, s.mse / n);
        s.psnr = 10.0 * (range * range / s.mse).log10();
    }
}
