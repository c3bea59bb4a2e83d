//! Samples from files: pairs, noisy files, repeats, or clean images with a simulated camera.

use super::camera::{self, Cameras, Ends};
use super::division::{Division, listed, may_lack_pixels};
use super::fit::{self, Fits};
use super::real::RealCameras;
use super::segments::{self, AS_THEY_ARE, Labels, Wanted};
use super::views::OwnRanges;
use super::{NUMBERS, Part, Sample, Source, shrunk};
use crate::config::{DataConfig, DataKind, RunConfig, TaskKind};
use crate::error::{Result, setting};
use clearshot_graph::plan::human;
use clearshot_image::dataset::{
    Balance, Crop, CropSpec, Dataset, Invalid, Normaliser, Part as FilePart, Store,
};
use clearshot_model::Signal;
use clearshot_restore::invalid;
use clearshot_restore::saturated::NoiseLevel;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Crops whose values say what the limits of a data set are.
const LOOKED_AT: u64 = 64;

/// Files that are named where some are left out.
const NAMED: usize = 5;

/// What all sources of a run's files share.
pub struct Shared {
    pub store: Arc<Store>,
    pub real: Arc<RealCameras>,
    /// How the model that a run begins from takes its numbers.
    pub init: Option<Signal>,
    /// The input of the network is in electrons.
    pub photons: bool,
}

/// Crops of a data set's files.
pub struct Files {
    dataset: Dataset,
    scale: Scale,
    /// Where targets are fitted to their inputs.
    fits: Option<Fits>,
    pub input: Normaliser,
    pub target: Normaliser,
    /// Targets have limits of their own: they are in another unit than their inputs.
    own_limits: bool,
    channels: [usize; 2],
    names: Vec<String>,
    cut: Vec<usize>,
    size: Vec<usize>,
    identity: String,
    masked: bool,
    warnings: Vec<String>,
    notes: Vec<String>,
}

/// The unit of the values of a sample.
enum Scale {
    /// Electrons of a simulated camera.
    Simulated(Box<Cameras>),
    /// Electrons of the camera that took the files.
    Real(Arc<RealCameras>),
    /// The files' numbers between limits.
    Fixed,
    /// Between each image's own ends; targets are labels.
    Labels(Labels),
    /// Between each image's own ends, as targets are.
    Own(OwnRanges),
}

/// Why targets are fitted to their inputs, where they are; nothing needs to be said of what was asked for.
fn fitting(data: &DataConfig, training: &Dataset, photons: bool, same: bool) -> Result<Option<String>> {
    match data.fit {
        None if photons && same => {
            Ok(Some("targets are fitted to their inputs file by file; data.fit=false turns this off".into()))
        }
        None => fit::is_due(training),
        Some(true) if !same => {
            setting("data.fit", "true", "false: targets have other channels than their inputs")
        }
        Some(asked) => Ok(asked.then(String::new)),
    }
}

impl Scale {
    /// The channels of samples in so many dimensions, from those of the files.
    fn channels(&self, [inputs, targets]: [usize; 2], dims: usize) -> Result<[usize; 2]> {
        match self {
            Scale::Simulated(_) if inputs != 1 => setting(
                "data.inputs",
                format!("{inputs} channels"),
                "clean images of one channel: the camera counts electrons of one colour",
            ),
            Scale::Simulated(_) => Ok(camera::CHANNELS),
            Scale::Labels(labels) => Ok([inputs, labels.channels(dims)]),
            Scale::Real(_) | Scale::Fixed | Scale::Own(_) => {
                Ok([inputs, if targets == 0 { inputs } else { targets }])
            }
        }
    }
}

impl Files {
    /// # Errors
    /// If no file can be used: why, for each.
    pub fn open(
        config: &RunConfig,
        part: Part,
        seed: u64,
        cut: &[usize],
        size: &[usize],
        shared: &Shared,
    ) -> Result<Files> {
        let (data, store) = (&config.data, &shared.store);
        let (listing, repeats) = listed(data, store)?;
        let masked = may_lack_pixels(data, &listing, store);
        let division = Division::of(config, &listing, store);
        let mut warnings: Vec<String> =
            left_out("files without a partner", &listing.unpaired).into_iter().collect();
        warnings.extend(division.warnings());
        let mut notes: Vec<String> = division.note().into_iter().collect();
        let spec = |seed, rows| CropSpec {
            augment: data.augment && part == Part::Training,
            invalid: masked.then_some(Invalid { saturation: data.saturation }),
            repeats,
            rows: division.rows(rows),
            ..CropSpec::plain(cut, seed)
        };
        // Limits are those of the training files, for validation too.
        let training = Dataset::held(
            division.entries(Part::Training),
            spec(super::mixed(config.seed ^ 0x11), Part::Training),
            Arc::clone(store),
        )?;
        let (looks, channels) = Looks::at(&training, data, cut)?;
        if data.kind == DataKind::Pairs && channels[1] == 0 {
            return setting("data.targets", "files without targets", "pairs, or data.kind: clean");
        }
        let labels = Wanted::of(&config.task).map(|wanted| Labels::new(wanted, channels[1])).transpose()?;
        let is_target = data.kind == DataKind::Pairs
            && config.task.kind != TaskKind::Noise2noise
            && !config.task.kind.knows_no_camera();
        let fitted = match is_target {
            true => fitting(data, &training, shared.photons, channels[0] == channels[1])?,
            false => None,
        };
        notes.extend(fitted.iter().filter(|why| !why.is_empty()).cloned());
        let (input, target, own_limits) = match &shared.init {
            // Numbers are scaled as the model that is begun from knows them.
            Some(Signal::Fixed { input, target }) => (*input, target.unwrap_or(*input), target.is_some()),
            _ => {
                let own = is_target && fitted.is_none();
                let (input, target) = looks.limits(data, own)?;
                (input, target, own)
            }
        };
        let scale = match (labels, data.kind, shared.photons) {
            (Some(labels), ..) => Scale::Labels(labels),
            _ if config.task.kind.is_pretraining() => Scale::Own(OwnRanges::default()),
            (_, DataKind::Clean, _) => Scale::Simulated(Box::new(Cameras::new(&data.camera, seed))),
            (_, _, true) => Scale::Real(Arc::clone(&shared.real)),
            (_, _, false) => Scale::Fixed,
        };
        let channels = scale.channels(channels, size.len())?;
        if let Scale::Real(real) = &scale {
            notes.push(real.look(&training)?);
        }
        let mut varied = spec(seed, part);
        if part == Part::Training {
            let half_range = 0.5 * (input.high - input.low);
            (varied.scale, varied.noise) = (data.intensity as f32, (data.noise * half_range) as f32);
            varied.least_mean = data.least_mean.map(|mean| (input.low + (mean + 1.0) * half_range) as f32);
        }
        let dataset = Dataset::held(division.entries(part), varied, Arc::clone(store))?;
        let unusable: Vec<String> = dataset.skipped.iter().map(|(path, why)| named(path, why)).collect();
        warnings.extend(left_out("files that cannot be used", &unusable));
        let decoded = listing.files().into_iter().filter_map(|p| store.bytes_of(p).ok()).sum();
        notes.push(memory_note(decoded, store.limit()));
        let is_named = data.kind != DataKind::Clean && !matches!(scale, Scale::Labels(_) | Scale::Own(_));
        let names = if is_named { dataset.channel_names()? } else { vec![] };
        Ok(Files {
            dataset,
            scale,
            fits: fitted.is_some().then(Fits::default),
            input,
            target,
            own_limits,
            channels,
            names,
            cut: cut.to_vec(),
            size: size.to_vec(),
            identity: listing.identity(),
            masked,
            warnings,
            notes,
        })
    }

    /// The pixels of a crop's target, or of its repeat, in the unit of its input where they are fitted.
    fn target(&self, crop: &Crop) -> Result<Vec<f32>> {
        let values = crop.target.as_deref().unwrap_or(&crop.input);
        let mut values = self.filled(crop, values).into_owned();
        if let Some(fits) = &self.fits {
            let cell = fits.of(&self.dataset, crop.entry, &crop.origin)?;
            let lines = cell.get().map_or(&[][..], Vec::as_slice);
            for (i, v) in values.iter_mut().enumerate() {
                if let Some(line) = lines.get(i % lines.len().max(1)) {
                    *v = (line.gain * f64::from(*v) + line.offset) as f32;
                }
            }
        }
        Ok(values)
    }

    /// Values normalised, and averaged down where crops are cut larger than they are used.
    fn finish(&self, values: &[f32], by: &Normaliser, channels: usize) -> Vec<f32> {
        self.smaller(values.iter().map(|&v| by.forward(f64::from(v)) as f32).collect(), channels)
    }

    /// Averaged down where crops are cut larger than they are used.
    fn smaller(&self, values: Vec<f32>, channels: usize) -> Vec<f32> {
        let with = |size: &[usize]| [size, &[channels]].concat();
        shrunk(values, &with(&self.cut), &with(&self.size))
    }
}

/// The values of some crops.
struct Looks {
    inputs: Vec<f64>,
    targets: Vec<f64>,
}

impl Looks {
    /// With the channels of inputs and targets.
    fn at(training: &Dataset, data: &DataConfig, cut: &[usize]) -> Result<(Looks, [usize; 2])> {
        let mut looks = Looks { inputs: vec![], targets: vec![] };
        let mut channels = [0; 2];
        for number in 0..LOOKED_AT {
            let crop = match data.balance {
                Balance::Files => training.crop(number)?,
                _ => training.crop_of((number % training.domains().len() as u64) as usize, number)?,
            };
            let pixels: usize = cut.iter().product();
            channels = [crop.input.len() / pixels, crop.target.as_ref().map_or(0, |t| t.len() / pixels)];
            for (all, values, channels) in [
                (&mut looks.inputs, Some(&crop.input), channels[0]),
                (&mut looks.targets, crop.target.as_ref(), channels[1]),
            ] {
                // What holds no measurement does not move the limits.
                let is_invalid =
                    |i: usize| crop.invalid.as_ref().is_some_and(|marks| marks[i / channels.max(1)]);
                let values = values.into_iter().flatten().enumerate();
                all.extend(values.filter(|(i, _)| !is_invalid(*i)).map(|(_, &v)| f64::from(v)));
            }
        }
        Ok((looks, channels))
    }

    /// Of inputs, and of targets where they have some of their own.
    fn limits(self, data: &DataConfig, own: bool) -> Result<(Normaliser, Normaliser)> {
        let input = Normaliser::fit(self.inputs, data.normalise, data.clip)?;
        let target = if own { Normaliser::fit(self.targets, data.normalise, data.clip)? } else { input };
        Ok((input, target))
    }
}

fn memory_note(bytes: usize, limit: usize) -> String {
    match bytes <= limit {
        true => format!("files: {} when decoded, held in memory", human(bytes)),
        false => format!(
            "files: {} when decoded, of which {} are held in memory and the rest is read for every crop; data.memory sets the limit",
            human(bytes),
            human(limit)
        ),
    }
}

/// A file and why it is left out; some reasons begin with its name.
fn named(path: &Path, why: &str) -> String {
    let name = path.display().to_string();
    if why.starts_with(&name) { why.to_string() } else { format!("{name}: {why}") }
}

/// The warning about files that are left out, if any are.
fn left_out(what: &str, files: &[String]) -> Option<String> {
    let some: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
    let more = if files.len() > NAMED { "; ..." } else { "" };
    (!files.is_empty()).then(|| format!("{what}, left out: {} ({}{more})", files.len(), some.join("; ")))
}

impl Files {
    fn made(&self, crop: &Crop) -> Result<Sample> {
        let domain = self.dataset.domain_of(crop.entry);
        let entry = &self.dataset.entries[crop.entry];
        let unmarked = |values: &[f32], path: &Path| match crop.invalid.is_some()
            || values.iter().all(|v| v.is_finite())
        {
            true => Ok(()),
            false => {
                let needed = format!(
                    "{} has NaN or infinite pixels: true leaves them out of the loss",
                    path.display()
                );
                setting("data.invalid", "false", needed)
            }
        };
        unmarked(&crop.input, &entry.input)?;
        if let (Some(path), Some(target)) = (&entry.target, &crop.target) {
            unmarked(target, path)?;
        }
        let valid = self.valid(crop);
        let raw = self.filled(crop, &crop.input);
        let sample = match &self.scale {
            Scale::Simulated(cameras) => {
                let input = self.finish(&raw, &self.input, self.channels[0]);
                let scene = input.iter().map(|v| ((v + 1.0) / 2.0).max(0.0)).collect();
                cameras.expose(scene, &self.size, Ends { bright: 1.0, dark: 0.0 }, crop.number)
            }
            Scale::Real(real) => {
                let (camera, p) = real.of(&self.dataset, crop.entry, &crop.origin)?;
                let electrons = |values: &[f32], channels: usize| {
                    let values = values.iter().map(|&v| camera.electrons(v)).collect();
                    self.smaller(values, channels)
                };
                let measured = electrons(&raw, self.channels[0]);
                let mut clean = electrons(&self.target(crop)?, self.channels[1]);
                clean.iter_mut().for_each(|v| *v = p.normalised(f64::from(*v)) as f32);
                Sample::plain(measured, clean, camera::numbers(&p))
            }
            Scale::Labels(labels) => {
                let seen = labels.seen(&self.dataset, crop, &raw)?;
                let target = crop.target.as_deref().unwrap_or(&[]);
                let path = entry.target.as_deref().unwrap_or(&entry.input);
                let target = labels.target(target, &self.cut, path)?;
                Labels::sample(self.smaller(seen, self.channels[0]), self.smaller(target, self.channels[1]))
            }
            Scale::Own(ranges) => {
                let seen = ranges.seen(&self.dataset, crop, FilePart::Input, &raw)?;
                let seen = self.smaller(seen, self.channels[0]);
                let target = match &crop.target {
                    Some(target) => {
                        let filled = self.filled(crop, target);
                        let target = ranges.seen(&self.dataset, crop, FilePart::Target, &filled)?;
                        self.smaller(target, self.channels[1])
                    }
                    None => seen.clone(),
                };
                segments::sample(seen, target)
            }
            Scale::Fixed => {
                let input = self.finish(&raw, &self.input, self.channels[0]);
                let clean = self.finish(&self.target(crop)?, &self.target, self.channels[1]);
                let mut numbers = [0.0; NUMBERS];
                numbers[NUMBERS - 1] = 1.0;
                Sample::plain(input, clean, numbers)
            }
        };
        Ok(Sample { domain, valid, ..sample })
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
            let invalid = invalid::Invalid::find(&plane, None, Some(marks));
            let filled = invalid.filled(&plane, &self.cut, NoiseLevel::Unknown).values;
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
            Some(domain) => self.dataset.crop_of(domain, number),
            None => self.dataset.crop(number),
        };
        self.made(&crop?)
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
        match self.scale {
            Scale::Fixed => {
                Signal::Fixed { input: self.input, target: self.own_limits.then_some(self.target) }
            }
            Scale::Labels(_) | Scale::Own(_) => AS_THEY_ARE,
            Scale::Simulated(_) | Scale::Real(_) => Signal::Photons,
        }
    }

    fn images(&self) -> Option<usize> {
        Some(self.dataset.entries.len())
    }

    fn distinct(&self) -> Option<f64> {
        Some(self.dataset.distinct())
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

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
