//! Crops of a data set. File, position and orientation follow only from the seed and the number of the crop; unusable files
//! are left out and listed with the reason.

use super::augment::{Symmetry, intensity};
use super::list::Entry;
use super::normalise::Normaliser;
use super::repeats::Repeats;
use super::store::{Pixels, Store};
use crate::error::{Result, request};
use crate::image::{Axis, Description, Dim};
use clearshot_tensor::noise::Key;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct CropSpec {
    /// Lengths along Y X, or along Z Y X.
    pub size: Vec<usize>,
    pub seed: u64,
    /// Whether crops are rotated by multiples of 90 degrees and flipped at random.
    pub augment: bool,
    /// Intensity is multiplied by up to this much more or less than one, input and target alike.
    pub scale: f32,
    /// Normal noise of this standard deviation is added to the input (after normalisation), not to the target.
    pub noise: f32,
    /// A crop whose input has a lower mean (after normalisation) is drawn again, at most sixteen times.
    pub least_mean: Option<f32>,
    pub normaliser: Option<Normaliser>,
    /// Crops say which of their pixels hold no measurement.
    pub invalid: Option<Invalid>,
    /// The target of a crop is another repeat of its scene, drawn again for every crop.
    pub repeats: Option<Repeats>,
    /// Where in every image crops are cut.
    pub rows: Rows,
}

/// A part of every image's rows; those of crops in one part and those in the other have no pixel in common.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rows {
    #[default]
    All,
    /// All but the last ones.
    First(LastRows),
    Last(LastRows),
}

/// How many rows are the last ones of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastRows {
    pub share: f64,
    pub least: usize,
}

impl Rows {
    /// Of an image of so many rows; none where crops of so many do not fit into both parts.
    pub fn range(self, height: usize, crop: usize) -> Option<Range<usize>> {
        let border = |LastRows { share, least }| {
            let last = ((share * height as f64).ceil() as usize).max(least);
            (last >= crop && height >= last + crop).then(|| height - last)
        };
        match self {
            Rows::All => Some(0..height),
            Rows::First(last) => Some(0..border(last)?),
            Rows::Last(last) => Some(border(last)?..height),
        }
    }
}

/// Which pixels hold no measurement, besides those that are NaN or infinite or marked in a mask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Invalid {
    /// Those of inputs at or above it, before normalisation.
    pub saturation: Option<f64>,
}

impl CropSpec {
    pub fn plain(size: &[usize], seed: u64) -> CropSpec {
        CropSpec {
            size: size.to_vec(),
            seed,
            augment: false,
            scale: 0.0,
            noise: 0.0,
            least_mean: None,
            normaliser: None,
            invalid: None,
            repeats: None,
            rows: Rows::All,
        }
    }
}

/// One crop: values of shape `[Z,] Y, X, C`.
#[derive(Clone, Debug, PartialEq)]
pub struct Crop {
    pub number: u64,
    pub entry: usize,
    /// Where the crop begins along each axis of the file.
    pub origin: Vec<usize>,
    pub symmetry: Symmetry,
    pub shape: Vec<usize>,
    pub input: Vec<f32>,
    pub target: Option<Vec<f32>>,
    /// Of each pixel, whatever its channels, whether it holds no measurement; where that was asked for.
    pub invalid: Option<Vec<bool>>,
}

pub struct Dataset {
    pub entries: Vec<Entry>,
    /// Files that were left out, and why.
    pub skipped: Vec<(PathBuf, String)>,
    spec: CropSpec,
    domains: Vec<Domain>,
    /// The domain of each entry.
    domain_of: Vec<usize>,
    /// Of each entry, those that are repeats of it.
    partners: Vec<Vec<usize>>,
    store: Arc<Store>,
}

/// The input of an entry, or its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Input,
    Target,
}

/// A whole image of a file, channels last.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub values: Vec<f32>,
    /// (Z,) Y, X.
    pub size: Vec<usize>,
    pub channels: usize,
}

/// Files that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub name: String,
    /// Which of [`Dataset::entries`].
    pub entries: Vec<usize>,
}

impl Dataset {
    /// [`Dataset::held`] with files that are read for every crop.
    ///
    /// # Errors
    /// The same.
    pub fn new(entries: Vec<Entry>, spec: CropSpec) -> Result<Dataset> {
        Dataset::held(entries, spec, Arc::new(Store::new(0)))
    }

    /// Looks at every file once. A file that cannot be opened, is too small for a crop, does not fit its
    /// target, or has no repeat where crops need one is left out. Pixels come from the store.
    ///
    /// # Errors
    /// When nothing is left, or the crop is neither two- nor three-dimensional.
    pub fn held(entries: Vec<Entry>, spec: CropSpec, store: Arc<Store>) -> Result<Dataset> {
        if !(2..=3).contains(&spec.size.len()) || spec.size.contains(&0) {
            return request(format!("crops of {:?}; they have a length along Y X or Z Y X", spec.size));
        }
        let mut kept = Vec::new();
        let mut skipped = Vec::new();
        let mut channels = None;
        for entry in entries {
            match check(&entry, &spec, &store) {
                Ok(found) => {
                    let others = *channels.get_or_insert(found);
                    if found == others {
                        kept.push(entry);
                        continue;
                    }
                    let what = format!("has {}, and others have {}", worded(found), worded(others));
                    skipped.push((entry.input, what));
                }
                Err(e) => skipped.push((entry.input, e.to_string())),
            }
        }
        if kept.is_empty() {
            let reasons: Vec<String> =
                skipped.iter().map(|(p, why)| format!("{}: {why}", p.display())).collect();
            return request(format!("no file can be used: {}", reasons.join("; ")));
        }
        let partners = match spec.repeats {
            Some(Repeats::Files) => partners(&mut kept, &mut skipped)?,
            _ => vec![vec![]; kept.len()],
        };
        let mut domains: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (n, entry) in kept.iter().enumerate() {
            domains.entry(&entry.domain).or_default().push(n);
        }
        let named = |(name, entries): (&str, _)| Domain { name: name.to_string(), entries };
        let domains: Vec<Domain> = domains.into_iter().map(named).collect();
        let mut domain_of = vec![0; kept.len()];
        for (d, domain) in domains.iter().enumerate() {
            domain.entries.iter().for_each(|&e| domain_of[e] = d);
        }
        Ok(Dataset { entries: kept, skipped, spec, domains, domain_of, partners, store })
    }

    /// Which of [`Dataset::domains`] an entry is of.
    pub fn domain_of(&self, entry: usize) -> usize {
        self.domain_of[entry]
    }

    pub fn spec(&self) -> &CropSpec {
        &self.spec
    }

    /// How many crops its images are as large as: more of them share pixels.
    pub fn distinct(&self) -> f64 {
        let of = |entry: &Entry| {
            let Ok(d) = self.store.description(&entry.input) else { return 0.0 };
            let lengths = crop_lengths(&d, &self.spec.size);
            let along = |(dim, &crop): (&Dim, &usize)| {
                let rows = (dim.axis == Axis::Y).then(|| self.spec.rows.range(dim.len, crop)).flatten();
                rows.map_or(dim.len, |r| r.len()) as f64 / crop as f64
            };
            d.dims.iter().zip(&lengths).map(along).product::<f64>()
        };
        self.entries.iter().map(of).sum()
    }

    /// In the order of their names.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Crop number `number`, of any file: the same for the same seed, files and specification.
    pub fn crop(&self, number: u64) -> Result<Crop> {
        self.bright(number, None)
    }

    /// Crop number `number` of one domain's files.
    pub fn crop_of(&self, domain: usize, number: u64) -> Result<Crop> {
        match self.domains.get(domain) {
            Some(domain) => self.bright(number, Some(domain)),
            None => request(format!("domain {domain} of {}", self.domains.len())),
        }
    }

    /// The first crop of one entry, unchanged from the file.
    pub fn crop_at(&self, entry: usize) -> Result<Crop> {
        let one = Domain { name: String::new(), entries: vec![entry] };
        self.attempt(0, Some(&one), 0)
    }

    /// Draws again where a crop is dark, if that is asked for.
    fn bright(&self, number: u64, domain: Option<&Domain>) -> Result<Crop> {
        let mut crop = self.attempt(number, domain, 0)?;
        if let Some(least) = self.spec.least_mean {
            for attempt in 1..16 {
                let there = crop.input.iter().filter(|v| v.is_finite());
                let mean = there.clone().sum::<f32>() / there.count() as f32;
                if mean >= least {
                    break;
                }
                crop = self.attempt(number, domain, attempt)?;
            }
        }
        Ok(crop)
    }

    fn attempt(&self, number: u64, domain: Option<&Domain>, attempt: u32) -> Result<Crop> {
        let spec = &self.spec;
        // The number takes the place of the step and of the upper half of the stream.
        let key = Key { seed: spec.seed ^ (number >> 32) << 32, step: number as u32, stream: 0xC0 + attempt };
        let draw = |slot: u64, below: usize| -> usize {
            let [a, b, ..] = key.block(slot);
            ((u128::from(u64::from(a) | u64::from(b) << 32) * below as u128) >> 64) as usize
        };
        let entry = match domain {
            None => draw(0, self.entries.len()),
            Some(domain) => domain.entries[draw(1, domain.entries.len())],
        };
        let image = self.store.pixels(&self.entries[entry].input)?;
        let d = image.description();
        let lengths = crop_lengths(d, &spec.size);
        let begin = |a: usize| {
            let (len, crop) = (d.dims[a].len, lengths[a]);
            let all = match d.dims[a].axis {
                Axis::Y => spec.rows.range(len, crop).unwrap_or(0..len),
                _ => 0..len,
            };
            all.start + draw(16 + a as u64, all.len() - crop.min(all.len()) + 1)
        };
        let origin: Vec<usize> = (0..d.dims.len()).map(begin).collect();
        let square = spec.size[spec.size.len() - 1] == spec.size[spec.size.len() - 2];
        let symmetry = match spec.augment {
            true => Symmetry::from_number(draw(2, 8) as u32, square),
            false => Symmetry::NONE,
        };
        let pixels: usize = spec.size.iter().product();
        let mut invalid = spec.invalid.map(|_| vec![false; pixels]);
        let at = |image: &Pixels, origin: &[usize], normaliser: Option<Normaliser>| {
            let (values, channels) = self.read(image, origin, normaliser)?;
            let [.., y, x] = spec.size[..] else { return request("a crop without Y and X") };
            let outer = values.len() / (y * x * channels);
            Ok((symmetry.apply(&values, outer, y, x, channels), channels))
        };
        let turned = |image: &Pixels, normaliser: Option<Normaliser>| {
            at(image, &origin_in(image.description(), d, &origin), normaliser)
        };
        let mut mark = |values: &[f32], channels: usize, is_invalid: &dyn Fn(f32) -> bool| {
            let Some(marks) = &mut invalid else { return };
            for (mark, pixel) in marks.iter_mut().zip(values.chunks_exact(channels)) {
                *mark |= pixel.iter().any(|v| is_invalid(*v));
            }
        };
        let vary = |values: &mut [f32], noise: f32| {
            if spec.scale > 0.0 || noise > 0.0 {
                intensity(values, Key { stream: 0x1C0 + attempt, ..key }, spec.scale, noise);
            }
        };
        let full = spec.invalid.and_then(|i| i.saturation);
        let full = full.map_or(f32::INFINITY, |v| spec.normaliser.map_or(v, |n| n.forward(v)) as f32);
        let (mut input, channels) = turned(&image, spec.normaliser)?;
        mark(&input, channels, &|v| !v.is_finite() || v >= full);
        vary(&mut input, spec.noise);
        let mut target = None;
        if let Some(path) = &self.entries[entry].target {
            let (mut values, channels) = turned(&self.store.pixels(path)?, spec.normaliser)?;
            mark(&values, channels, &|v| !v.is_finite());
            vary(&mut values, 0.0);
            target = Some(values);
        }
        if let Some(repeats) = spec.repeats {
            let (mut values, channels) = match repeats {
                Repeats::Files => {
                    let others = &self.partners[entry];
                    let other = &self.entries[others[draw(3, others.len())]].input;
                    turned(&self.store.pixels(other)?, spec.normaliser)?
                }
                Repeats::T => at(&image, &another_time(d, &origin, |n| draw(3, n)), spec.normaliser)?,
            };
            mark(&values, channels, &|v| !v.is_finite() || v >= full);
            vary(&mut values, spec.noise);
            target = Some(values);
        }
        if let (Some(path), Some(_)) = (&self.entries[entry].mask, spec.invalid) {
            let (values, channels) = turned(&self.store.pixels(path)?, None)?;
            mark(&values, channels, &|v| v != 0.0);
        }
        let shape = [&spec.size[..], &[channels]].concat();
        Ok(Crop { number, entry, origin, symmetry, shape, input, target, invalid })
    }

    /// What the first file's channels are called, of targets where there are any; empty where not all of them have names.
    pub fn channel_names(&self) -> Result<Vec<String>> {
        let Some(entry) = self.entries.first() else { return Ok(vec![]) };
        let d = self.store.description(entry.target.as_ref().unwrap_or(&entry.input))?;
        let names: Option<Vec<String>> = d.channels.iter().map(|c| c.name.clone()).collect();
        Ok(names.filter(|n| n.len() == channels_of(&d)).unwrap_or_default())
    }

    /// Where the whole image begins that a crop at `origin` is cut from: the same time and, for planes, the same Z.
    pub fn frame_origin(&self, entry: usize, origin: &[usize]) -> Result<Vec<usize>> {
        let d = self.store.description(&self.entries[entry].input)?;
        let lengths = crop_lengths(&d, &self.spec.size);
        let depth = depth_axis(&d, self.spec.size.len());
        let begins = |a: usize| match d.dims[a].axis {
            Axis::X | Axis::Y | Axis::C | Axis::S => 0,
            _ if Some(a) == depth || lengths[a] > 1 => 0,
            _ => origin[a],
        };
        Ok((0..origin.len()).map(begins).collect())
    }

    /// Where an axis is among those of an entry's input.
    pub fn position(&self, entry: usize, axis: Axis) -> Result<Option<usize>> {
        Ok(self.store.description(&self.entries[entry].input)?.position(axis))
    }

    /// The whole image at a [`Dataset::frame_origin`], or its target.
    pub fn frame(&self, entry: usize, origin: &[usize], part: Part) -> Result<Frame> {
        let of = self.store.description(&self.entries[entry].input)?;
        let path = match (part, &self.entries[entry].target) {
            (Part::Target, Some(target)) => target,
            _ => &self.entries[entry].input,
        };
        let pixels = self.store.pixels(path)?;
        let d = pixels.description();
        let depth = depth_axis(d, self.spec.size.len());
        let begin = origin_in(d, &of, origin);
        let long =
            |a: usize| matches!(d.dims[a].axis, Axis::X | Axis::Y | Axis::C | Axis::S) || Some(a) == depth;
        let lengths: Vec<usize> =
            (0..d.dims.len()).map(|a| if long(a) { d.dims[a].len } else { 1 }).collect();
        let region: Vec<_> = begin.iter().zip(&lengths).map(|(&o, &n)| o..o + n).collect();
        let values = channels_last(pixels.read(&region, None)?, d, &lengths);
        let size =
            depth.into_iter().chain([Axis::Y, Axis::X].into_iter().filter_map(|axis| d.position(axis)));
        Ok(Frame { values, size: size.map(|a| d.dims[a].len).collect(), channels: channels_of(d) })
    }

    /// A crop's values with the channels last.
    fn read(
        &self,
        image: &Pixels,
        origin: &[usize],
        normaliser: Option<Normaliser>,
    ) -> Result<(Vec<f32>, usize)> {
        let d = image.description();
        let lengths = crop_lengths(d, &self.spec.size);
        let region: Vec<_> = origin.iter().zip(&lengths).map(|(&o, &n)| o..o + n).collect();
        let values = image.read(&region, normaliser)?;
        Ok((channels_last(values, d, &lengths), channels_of(d)))
    }
}

/// Values of a region in the order T, Z, Y, X, C.
fn channels_last(values: Vec<f32>, d: &Description, lengths: &[usize]) -> Vec<f32> {
    let rank = |axis: Axis| match axis {
        Axis::T | Axis::Other(_) => 0,
        Axis::Z => 1,
        Axis::Y => 2,
        Axis::X => 3,
        Axis::C => 4,
        Axis::S => 5,
    };
    let long: Vec<Axis> = d.dims.iter().zip(lengths).filter(|(_, n)| **n > 1).map(|(d, _)| d.axis).collect();
    if long.is_sorted_by_key(|axis| rank(*axis)) {
        return values;
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&a| rank(d.dims[a].axis));
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
    let turned = crate::grid::permute(&bytes, lengths, &order, 4);
    turned.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// Of each entry, the others of its scene; entries without any are left out.
fn partners(entries: &mut Vec<Entry>, skipped: &mut Vec<(PathBuf, String)>) -> Result<Vec<Vec<usize>>> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    entries.iter().for_each(|e| *counts.entry(e.scene.clone()).or_default() += 1);
    let alone = |e: &Entry| counts[&e.scene] < 2;
    skipped.extend(entries.iter().filter(|e| alone(e)).map(|e| (e.input.clone(), "no repeat of it".into())));
    entries.retain(|e| !alone(e));
    if entries.is_empty() {
        return request("no file has a repeat that can be used");
    }
    let others = |i: usize| {
        let same = |&j: &usize| j != i && entries[j].scene == entries[i].scene;
        (0..entries.len()).filter(same).collect()
    };
    Ok((0..entries.len()).map(others).collect())
}

/// The same place at another time.
fn another_time(d: &Description, origin: &[usize], draw: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut at = origin.to_vec();
    if let Some(t) = d.position(Axis::T) {
        let other = draw(d.dims[t].len - 1);
        at[t] = if other < at[t] { other } else { other + 1 };
    }
    at
}

/// Where a crop of one file begins in its partner, which may have other axes of channels.
fn origin_in(image: &Description, of: &Description, origin: &[usize]) -> Vec<usize> {
    let mut others = of.dims.iter().zip(origin).filter(|(d, _)| !is_channel(d.axis)).map(|(_, &at)| at);
    image.dims.iter().map(|d| if is_channel(d.axis) { 0 } else { others.next().unwrap_or(0) }).collect()
}

fn is_channel(axis: Axis) -> bool {
    matches!(axis, Axis::C | Axis::S)
}

fn channels_of(d: &Description) -> usize {
    d.dims.iter().filter(|d| is_channel(d.axis)).map(|d| d.len).product()
}

/// How much of each axis of a file a crop takes: its size in space, all channels, one of everything else. An
/// axis without a meaning counts as Z where a three-dimensional crop finds no other.
fn crop_lengths(d: &Description, size: &[usize]) -> Vec<usize> {
    let depth = depth_axis(d, size.len());
    (0..d.dims.len())
        .map(|a| match d.dims[a].axis {
            Axis::X => size[size.len() - 1],
            Axis::Y => size[size.len() - 2],
            Axis::C | Axis::S => d.dims[a].len,
            _ if Some(a) == depth => size[0],
            _ => 1,
        })
        .collect()
}

fn depth_axis(d: &Description, rank: usize) -> Option<usize> {
    if rank < 3 {
        return None;
    }
    d.position(Axis::Z).or_else(|| d.dims.iter().position(|d| matches!(d.axis, Axis::Other(_))))
}

/// Channels of an input and, where there is one, of its target.
fn worded((input, target): (usize, Option<usize>)) -> String {
    let channels = |n: usize| format!("{n} {}", if n == 1 { "channel" } else { "channels" });
    match target {
        Some(target) if target != input => {
            format!("{} and a target with {}", channels(input), channels(target))
        }
        _ => channels(input),
    }
}

/// The channels of an entry's input and target, if both can be used.
fn check(entry: &Entry, spec: &CropSpec, store: &Store) -> Result<(usize, Option<usize>)> {
    let d = &*store.description(&entry.input)?;
    if d.position(Axis::Y).is_none() || d.position(Axis::X).is_none() {
        return request(format!("axes {}; Y and X are needed", d.axes()));
    }
    if spec.size.len() == 3 && depth_axis(d, 3).is_none() {
        return request(format!("axes {}; Z is needed for crops of {:?}", d.axes(), spec.size));
    }
    let lengths = crop_lengths(d, &spec.size);
    if d.dims.iter().zip(&lengths).any(|(dim, &n)| dim.len < n) {
        return request(format!(
            "an image of {} {:?} is smaller than a crop of {:?}",
            d.axes(),
            d.shape(),
            spec.size
        ));
    }
    let fits = |path: &Path, what: &str| -> Result<usize> {
        let o = &*store.description(path)?;
        let lengths = |d: &Description| -> Vec<(Axis, usize)> {
            d.dims.iter().filter(|d| !is_channel(d.axis)).map(|d| (d.axis, d.len)).collect()
        };
        if lengths(o) == lengths(d) {
            return Ok(channels_of(o));
        }
        request(format!(
            "its {what} {} has {} {:?}, and the input {} {:?}",
            path.display(),
            o.axes(),
            o.shape(),
            d.axes(),
            d.shape()
        ))
    };
    if spec.repeats == Some(Repeats::T) && Repeats::T.inside(d) < 2 {
        return request(format!(
            "axes {} {:?}; repeats along T are needed, two or more",
            d.axes(),
            d.shape()
        ));
    }
    if let (Some(mask), Some(_)) = (&entry.mask, spec.invalid) {
        fits(mask, "mask")?;
    }
    let target = entry.target.as_ref().map(|path| fits(path, "target")).transpose()?;
    Ok((channels_of(d), target))
}
