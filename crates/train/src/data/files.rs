//! Samples from files: pairs, or clean images before a simulated camera.

use super::camera::{self, Cameras, Ends};
use super::{NUMBERS, Part, Sample, Source, shrunk};
use crate::config::{DataKind, RunConfig};
use crate::error::{Result, setting};
use clearshot_image::Image;
use clearshot_image::dataset::{Balance, Crop, CropSpec, Dataset, Invalid, Listing, Normaliser, Split};
use clearshot_model::Signal;
use clearshot_restore::invalid;
use std::borrow::Cow;
use std::path::Path;

/// Crops whose values say what the limits of a data set are.
const LOOKED_AT: u64 = 64;

/// Files that are named where some are left out.
const NAMED: usize = 5;

/// Crops of a data set's files.
pub struct Files {
    dataset: Dataset,
    cameras: Option<Cameras>,
    pub input: Normaliser,
    pub target: Normaliser,
    channels: [usize; 2],
    names: Vec<String>,
    cut: Vec<usize>,
    size: Vec<usize>,
    identity: String,
    masked: bool,
    warnings: Vec<String>,
}

impl Files {
    /// # Errors
    /// If no file can be used: why, for each.
    pub fn open(config: &RunConfig, part: Part, seed: u64, cut: &[usize], size: &[usize]) -> Result<Files> {
        let data = &config.data;
        let listing = match (&data.manifest, &data.inputs, &data.targets) {
            (Some(manifest), ..) => Listing::manifest(manifest)?,
            (None, Some(inputs), Some(targets)) if data.kind == DataKind::Pairs => {
                Listing::pairs(inputs, targets)?
            }
            (None, Some(inputs), _) => Listing::single(inputs)?,
            (None, None, _) => {
                return setting("data.inputs", "nothing", "a folder, a pattern or data.manifest");
            }
        };
        let listing = match &data.masks {
            Some(masks) => listing.with_masks(masks)?,
            None => listing,
        };
        let marked = listing.entries.iter().any(|e| e.mask.is_some());
        let masked = data.saturation.is_some()
            || marked
            || data.invalid.unwrap_or_else(|| listing.files().into_iter().any(may_lack_numbers));
        let of = |part: Part| {
            let which = if part == Part::Training { Split::Train } else { Split::Validation };
            listing.split(which, data.validation, 0.0, config.seed)
        };
        let entries = |part: Part| {
            let entries = of(part);
            // So few files that none falls to a part: all of them are both.
            if entries.is_empty() { listing.entries.clone() } else { entries }
        };
        let mut warnings = vec![];
        if let Some(said) = left_out("files without a partner", &listing.unpaired) {
            warnings.push(said);
        }
        for (part, name) in [(Part::Training, "training"), (Part::Validation, "validation")] {
            if of(part).is_empty() {
                warnings.push(format!(
                    "none of {} files falls to {name} (data.validation: {}): all of them are trained on and scored, so \
                     scores say nothing of other images",
                    listing.entries.len(),
                    data.validation
                ));
            }
        }
        let augment = data.augment && part == Part::Training;
        let invalid = masked.then_some(Invalid { saturation: data.saturation });
        let spec = |seed| CropSpec { augment, invalid, ..CropSpec::plain(cut, seed) };
        // Limits are those of the training files, for validation too.
        let training = Dataset::new(entries(Part::Training), spec(super::mixed(config.seed ^ 0x11)))?;
        let (mut inputs, mut targets) = (vec![], vec![]);
        let mut channels = [0; 2];
        for number in 0..LOOKED_AT {
            let crop = match data.balance {
                Balance::Files => training.crop(number)?,
                _ => training.crop_of((number % training.domains().len() as u64) as usize, number)?,
            };
            let pixels: usize = cut.iter().product();
            channels = [crop.input.len() / pixels, crop.target.as_ref().map_or(0, |t| t.len() / pixels)];
            for (all, values, channels) in [
                (&mut inputs, Some(&crop.input), channels[0]),
                (&mut targets, crop.target.as_ref(), channels[1]),
            ] {
                // What holds no measurement does not move the limits.
                let is_invalid =
                    |i: usize| crop.invalid.as_ref().is_some_and(|marks| marks[i / channels.max(1)]);
                let values = values.into_iter().flatten().enumerate();
                all.extend(values.filter(|(i, _)| !is_invalid(*i)).map(|(_, &v)| f64::from(v)));
            }
        }
        let input = Normaliser::fit(inputs, data.normalise, false)?;
        let target = match data.kind {
            DataKind::Pairs if channels[1] == 0 => {
                return setting("data.targets", "files without targets", "pairs, or data.kind: clean");
            }
            DataKind::Pairs => Normaliser::fit(targets, data.normalise, false)?,
            _ => input,
        };
        let cameras = (data.kind == DataKind::Clean).then(|| Cameras::new(&data.camera, seed));
        if cameras.is_some() {
            if channels[0] != 1 {
                let needed = "clean images of one channel: the camera counts electrons of one colour";
                return setting("data.inputs", format!("{} channels", channels[0]), needed);
            }
            channels = camera::CHANNELS;
        }
        let mut varied = spec(seed);
        if part == Part::Training {
            let half_range = 0.5 * (input.high - input.low);
            (varied.scale, varied.noise) = (data.intensity as f32, (data.noise * half_range) as f32);
            varied.least_mean = data.least_mean.map(|mean| (input.low + (mean + 1.0) * half_range) as f32);
        }
        let dataset = Dataset::new(entries(part), varied)?;
        let unusable: Vec<String> = dataset.skipped.iter().map(|(path, why)| named(path, why)).collect();
        warnings.extend(left_out("files that cannot be used", &unusable));
        let names = if data.kind == DataKind::Pairs { dataset.channel_names()? } else { vec![] };
        Ok(Files {
            dataset,
            cameras,
            input,
            target,
            channels,
            names,
            cut: cut.to_vec(),
            size: size.to_vec(),
            identity: listing.identity(),
            masked,
            warnings,
        })
    }

    /// Values normalised, and averaged down where crops are cut larger than they are used.
    fn finish(&self, values: &[f32], by: &Normaliser, channels: usize) -> Vec<f32> {
        let values = values.iter().map(|&v| by.forward(f64::from(v)) as f32).collect();
        let with = |size: &[usize]| [size, &[channels]].concat();
        shrunk(values, &with(&self.cut), &with(&self.size))
    }
}

/// Whether pixels of a file can be no numbers.
fn may_lack_numbers(path: &Path) -> bool {
    let of = |image: Image| {
        image.dtype().is_float() || image.description.rescale.is_some_and(|r| r.blank.is_some())
    };
    Image::open(path).is_ok_and(of)
}

/// A file and why it is left out; some reasons begin with its name.
fn named(path: &Path, why: &str) -> String {
    let name = path.display().to_string();
    if why.starts_with(&name) { why.to_string() } else { format!("{name}: {why}") }
}

/// What is said of files that are left out, if any are.
fn left_out(what: &str, files: &[String]) -> Option<String> {
    let some: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
    let more = if files.len() > NAMED { "; ..." } else { "" };
    (!files.is_empty()).then(|| format!("{what}, left out: {} ({}{more})", files.len(), some.join("; ")))
}

impl Files {
    fn made(&self, crop: &Crop) -> Result<Sample> {
        let domain = self.dataset.domains().iter().position(|d| d.entries.contains(&crop.entry)).unwrap_or(0);
        let entry = &self.dataset.entries[crop.entry];
        let unmarked = |values: &[f32], path: &Path| match crop.invalid.is_some()
            || values.iter().all(|v| v.is_finite())
        {
            true => Ok(()),
            false => {
                let needed = format!(
                    "{} has pixels that are no numbers: true leaves them out of the loss",
                    path.display()
                );
                setting("data.invalid", "false", needed)
            }
        };
        unmarked(&crop.input, &entry.input)?;
        let valid = self.valid(crop);
        let input = self.finish(&self.filled(crop, &crop.input), &self.input, self.channels[0]);
        if let Some(cameras) = &self.cameras {
            let scene = input.iter().map(|v| ((v + 1.0) / 2.0).max(0.0)).collect();
            return Ok(Sample {
                domain,
                valid,
                ..cameras.expose(scene, &self.size, Ends { bright: 1.0, dark: 0.0 }, crop.number)
            });
        }
        let target = crop.target.as_deref().unwrap_or(&[]);
        if let Some(path) = &entry.target {
            unmarked(target, path)?;
        }
        let clean = self.finish(&self.filled(crop, target), &self.target, self.channels[1]);
        let mut numbers = [0.0; NUMBERS];
        numbers[NUMBERS - 1] = 1.0;
        Ok(Sample { measured: input, clean, numbers, scale: 2.0, domain, valid })
    }

    /// Pixels that hold no measurement as their neighbours are, so that nothing depends on what they held.
    fn filled<'a>(&self, crop: &Crop, values: &'a [f32]) -> Cow<'a, [f32]> {
        let Some(marks) = crop.invalid.as_ref().filter(|marks| marks.contains(&true)) else {
            return values.into();
        };
        let channels = values.len() / marks.len();
        let mut out = values.to_vec();
        for channel in 0..channels {
            let plane: Vec<f32> = values.iter().skip(channel).step_by(channels).copied().collect();
            let filled = invalid::Invalid::find(&plane, None, Some(marks)).filled(&plane, &self.cut);
            out.iter_mut().skip(channel).step_by(channels).zip(filled).for_each(|(to, v)| *to = v);
        }
        out.into()
    }

    /// Of pixels that are averages, those count whose parts all do.
    fn valid(&self, crop: &Crop) -> Option<Vec<f32>> {
        let marks = crop.invalid.as_ref()?;
        let whole = marks.iter().map(|mark| if *mark { 0.0 } else { 1.0 }).collect();
        let small = shrunk(whole, &self.cut, &self.size);
        Some(small.into_iter().map(|v| if v > 1.0 - 1e-4 { 1.0 } else { 0.0 }).collect())
    }
}

impl Source for Files {
    fn sample(&self, number: u64, domain: Option<usize>) -> Result<Sample> {
        let crop = match domain {
            Some(domain) => self.dataset.crop_of(domain, number)?,
            None => self.dataset.crop(number)?,
        };
        self.made(&crop)
    }

    fn domains(&self) -> Vec<String> {
        self.dataset.domains().iter().map(|d| d.name.clone()).collect()
    }

    fn files_of_domains(&self) -> Vec<usize> {
        self.dataset.domains().iter().map(|d| d.entries.len()).collect()
    }

    fn channels(&self) -> [usize; 2] {
        self.channels
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn signal(&self) -> Signal {
        match self.cameras {
            Some(_) => Signal::Photons,
            None => Signal::Fixed { input: self.input, target: Some(self.target) },
        }
    }

    fn images(&self) -> Option<usize> {
        Some(self.dataset.entries.len())
    }

    fn is_masked(&self) -> bool {
        self.masked
    }

    fn identity(&self) -> Option<String> {
        Some(self.identity.clone())
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}
