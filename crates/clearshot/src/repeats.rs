//! Finds repeats among the user's images and makes training pairs from them.
//!
//! Candidates for repeats are frames along T of a file, the files of a folder, or files whose names differ in their
//! last number. Names can mislead (cell_1 and cell_2 are more often two cells than one cell twice), so every image is
//! compared with the nearest others of its field ([`compare`]). Images that are not repeats are listed and left out:
//! another field, a copy, motion, a subpixel shift. The others are written to the run's folder as pairs: each image,
//! and the mean of some others that are shifted to it by whole pixels and scaled to its brightness. From such pairs a
//! network learns the mean signal, whatever the noise is like.

use crate::camera::KnownCamera;
use crate::error::{Error, Result};
use crate::observer::Observer;
use clearshot_image::dataset::{CropSpec, Dataset, Entry, Listing, Part, Repeats, Store};
use clearshot_image::{Axis, DType, Description, Dim, WriteOptions, Writer};
use clearshot_physics::Adu;
use clearshot_physics::calibration::blind::{Known, estimate};
use clearshot_restore::learned::Camera;
use clearshot_restore::series::repeat::{Repeat, Unlike, compare};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Exposures of one field that are used at the most, and how far apart two may be in their order to be compared.
const MOST_OF_A_FIELD: usize = 24;
const REACH: usize = 6;
/// Bytes of pixels that are written, and that are held while images are compared, at the most.
const MOST_BYTES: usize = 1 << 30;
/// The share of the images that must be repeats for the rest to be left out without being asked.
const LEAST_SHARE: f64 = 0.5;
/// Fields from which on some are held out whole.
const ENOUGH_FIELDS: usize = 5;
/// Images that are named where some are left out.
const NAMED: usize = 5;

/// Pairs that were written.
pub(crate) struct Pairs {
    pub manifest: PathBuf,
    /// The number of exposures averaged in each target.
    pub averaged: usize,
    /// Whether pixels of the images may be NaN.
    pub gaps: bool,
    /// A description of the repeats.
    pub note: String,
}

/// What came of looking for repeats.
pub(crate) enum Found {
    Pairs(Pairs),
    /// Too few repeats; the reason, if there were candidates.
    Few(Option<String>),
}

/// One exposure: an entry of the data set, and a time in it.
struct Shot {
    entry: usize,
    time: usize,
    name: String,
}

/// An exposure's pixels, one plane for each channel.
struct Planes {
    values: Vec<Vec<f32>>,
    size: [usize; 2],
}

/// How another exposure lies to one, channel by channel.
type Link = (usize, Vec<Repeat>);

/// Exposures of one field with what each may learn from.
struct Field {
    name: String,
    shots: Vec<Shot>,
    links: Vec<Vec<Link>>,
}

/// Looks for repeats and writes what can be learned from into `folder`.
///
/// # Errors
/// If a file cannot be read or written, or the observer stops it.
pub(crate) fn find(
    images: &[PathBuf],
    known: &KnownCamera,
    folder: &Path,
    observer: &mut dyn Observer,
) -> Result<Found> {
    let store = Arc::new(Store::new(MOST_BYTES));
    let Some((dataset, fields)) = listed(images, &store)? else { return Ok(Found::Few(None)) };
    let reader = Reader { dataset, known };
    let mut left_out = vec![];
    let (mut compared, mut linked) = (0, vec![]);
    for (name, shots) in fields {
        compared += shots.len();
        linked.push(reader.linked(name, shots, &mut left_out, observer)?);
    }
    let counts: Vec<usize> = linked.iter().flat_map(|f| f.links.iter().map(Vec::len)).collect();
    let averaged = best_average(&counts);
    let kept = counts.iter().filter(|n| **n >= averaged).count();
    if averaged == 0 || (kept as f64) < LEAST_SHARE * compared as f64 {
        return Ok(Found::Few(Some(refusal(&left_out))));
    }
    let note = in_words(&linked, averaged, kept, &left_out);
    let manifest = reader.write(&linked, averaged, folder, observer)?;
    let float = |e: &Entry| store.description(&e.input).is_ok_and(|d| d.dtype.is_float());
    let gaps = reader.dataset.entries.iter().any(float);
    Ok(Found::Pairs(Pairs { manifest, averaged, gaps, note }))
}

/// Fields by name, each with its exposures.
type Fields = BTreeMap<String, Vec<Shot>>;

/// The files with the fields that their names, or their times, say that they show; nothing where they say none.
fn listed(images: &[PathBuf], store: &Arc<Store>) -> Result<Option<(Dataset, Fields)>> {
    let single = match images {
        [one] => Listing::single(&one.to_string_lossy()),
        several => Ok(Listing::of_files(several.to_vec())),
    };
    let times = |e: &Entry| store.description(&e.input).map_or(1, |d| Repeats::T.inside(&d));
    let along_t = single.as_ref().is_ok_and(|l| l.entries.iter().all(|e| times(e) > 1));
    let by = if along_t { Repeats::T } else { Repeats::Files };
    let grouped = match (by, images) {
        (Repeats::T, _) => single,
        (Repeats::Files, [one]) => Listing::repeats(&one.to_string_lossy(), by),
        (Repeats::Files, several) => Listing::named_alike(several.to_vec()),
    };
    let Ok(listing) = grouped else { return Ok(None) };
    let spec = CropSpec { repeats: Some(by), ..CropSpec::plain(&[1, 1], 0) };
    let Ok(dataset) = Dataset::held(listing.entries, spec, Arc::clone(store)) else { return Ok(None) };
    let mut fields = Fields::new();
    for (entry, e) in dataset.entries.iter().enumerate() {
        let d = store.description(&e.input)?;
        let is_plane =
            |dim: &Dim| matches!(dim.axis, Axis::T | Axis::Y | Axis::X | Axis::C | Axis::S) || dim.len == 1;
        // Planes of a stack would have to be compared one by one.
        if !d.dims.iter().all(is_plane) {
            return Ok(None);
        }
        let times = if by == Repeats::T { times(e) } else { 1 };
        let file = e.input.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shots = fields.entry(e.scene.clone()).or_default();
        for time in 0..times.min(MOST_OF_A_FIELD.saturating_sub(shots.len())) {
            let name = if times > 1 { format!("{file}, frame {time}") } else { file.clone() };
            shots.push(Shot { entry, time, name });
        }
    }
    Ok(Some((dataset, fields)))
}

/// How many others to average: many make quiet targets, but not every image has many.
fn best_average(counts: &[usize]) -> usize {
    let worth = |k: usize| counts.iter().filter(|n| **n >= k).count() as f64 * k as f64 / (k + 1) as f64;
    (1..=REACH).fold(0, |best, k| if worth(k) > worth(best) { k } else { best })
}

/// Reads exposures and compares them.
struct Reader<'a> {
    dataset: Dataset,
    known: &'a KnownCamera,
}

impl Reader<'_> {
    fn planes(&self, shot: &Shot) -> Result<Planes> {
        let first = self.dataset.crop_at(shot.entry)?;
        let mut origin = self.dataset.frame_origin(shot.entry, &first.origin)?;
        if let Some(t) = self.dataset.position(shot.entry, Axis::T)? {
            origin[t] = shot.time;
        }
        let frame = self.dataset.frame(shot.entry, &origin, Part::Input)?;
        let values = (0..frame.channels)
            .map(|c| frame.values.iter().skip(c).step_by(frame.channels).copied().collect())
            .collect();
        let [.., height, width] = frame.size[..] else {
            return Err(Error::Refused(format!("{}: Y and X are needed", shot.name)));
        };
        Ok(Planes { values, size: [height, width] })
    }

    /// The camera by which differences are judged, channel by channel.
    fn cameras(&self, planes: &Planes) -> Option<Vec<Camera>> {
        let KnownCamera { gain, offset, read_noise, saturation, correlation, .. } = *self.known;
        let known = Known { gain, offset, read_noise, saturation, correlation };
        let of = |plane: &Vec<f32>| {
            let fit = estimate(&[Adu(&plane[..])], planes.size, &known).ok()?;
            let (gain, offset, read_noise) = (fit.gain, fit.offset, fit.read_noise);
            Some(Camera { gain, offset, read_noise, background: None, correlation: fit.correlation })
        };
        planes.values.iter().map(of).collect()
    }

    /// Compares every exposure of a field with those near it.
    fn linked(
        &self,
        name: String,
        shots: Vec<Shot>,
        left_out: &mut Vec<String>,
        observer: &mut dyn Observer,
    ) -> Result<Field> {
        let mut links: Vec<Vec<Link>> = shots.iter().map(|_| vec![]).collect();
        let mut copies = vec![false; shots.len()];
        for i in 0..shots.len() {
            let own = self.planes(&shots[i])?;
            let Some(cameras) = self.cameras(&own) else {
                left_out.push(format!(
                    "{}: its noise cannot be estimated; give gain, offset and read noise",
                    shots[i].name
                ));
                continue;
            };
            for j in (i + 1..shots.len()).take(REACH) {
                if observer.progress(i, shots.len()).is_break() {
                    return Err(Error::Stopped);
                }
                if copies[i] || copies[j] {
                    continue;
                }
                let other = self.planes(&shots[j])?;
                match alike(&own, &other, &cameras) {
                    Ok(found) => {
                        links[j].push((i, found.iter().map(Repeat::reversed).collect()));
                        links[i].push((j, found));
                    }
                    Err(why) => {
                        copies[j] |= why == Unlike::Copy;
                        left_out.push(format!("{} beside {}: {why}", shots[j].name, shots[i].name));
                    }
                }
            }
        }
        // Neither a copy nor what was found beside it before is learned from.
        for (i, of) in links.iter_mut().enumerate() {
            of.retain(|(j, _)| !copies[i] && !copies[*j]);
            of.sort_by_key(|(j, _)| i.abs_diff(*j));
        }
        Ok(Field { name, shots, links })
    }

    /// Writes pairs and the list of them.
    fn write(
        &self,
        fields: &[Field],
        averaged: usize,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<PathBuf> {
        let mut text = "input,target,scene,split\n".to_string();
        // Of few fields none can be spared: the last rows of each are held out.
        let used = fields.iter().filter(|f| f.links.iter().any(|of| of.len() >= averaged)).count();
        let split = if used < ENOUGH_FIELDS { "train" } else { "" };
        let (mut count, mut bytes) = (0, 0);
        for field in fields {
            for (i, links) in field.links.iter().enumerate().filter(|(_, of)| of.len() >= averaged) {
                if bytes > MOST_BYTES {
                    break;
                }
                if observer.progress(i, field.shots.len()).is_break() {
                    return Err(Error::Stopped);
                }
                let own = self.planes(&field.shots[i])?;
                let others: Vec<(Planes, &[Repeat])> = links[..averaged]
                    .iter()
                    .map(|(j, how)| Ok((self.planes(&field.shots[*j])?, &how[..])))
                    .collect::<Result<_>>()?;
                let [input, target] = pair(&own, &others);
                for (what, planes) in [("image", &input), ("others", &target)] {
                    save(&folder.join(format!("{what}_{count:04}.tif")), planes)?;
                    bytes += 4 * planes.values.iter().map(Vec::len).sum::<usize>();
                }
                let scene = field.name.replace('"', "\"\"");
                text += &format!("image_{count:04}.tif,others_{count:04}.tif,\"{scene}\",{split}\n");
                count += 1;
            }
        }
        let list = folder.join("repeats.csv");
        std::fs::write(&list, text).map_err(|source| Error::Io { path: list.clone(), source })?;
        Ok(list)
    }
}

/// Compares all channels: each has a brightness of its own, and the shift is one.
fn alike(own: &Planes, other: &Planes, cameras: &[Camera]) -> std::result::Result<Vec<Repeat>, Unlike> {
    if own.size != other.size || own.values.len() != other.values.len() {
        return Err(Unlike::Elsewhere);
    }
    let each = |c: usize| compare(&own.values[c], &other.values[c], own.size, &cameras[c]);
    let found: Vec<Repeat> = (0..cameras.len()).map(each).collect::<std::result::Result<_, _>>()?;
    match found.iter().all(|r| r.shift == found[0].shift) {
        true => Ok(found),
        false => Err(Unlike::Shifted(found[found.len() - 1].shift.map(|s| s as f64))),
    }
}

/// The part of an exposure that all others show, and the mean of the others there, as bright as it.
fn pair(own: &Planes, others: &[(Planes, &[Repeat])]) -> [Planes; 2] {
    let [height, width] = own.size;
    let range = |axis: usize, n: usize| {
        let shifts = || others.iter().map(move |(_, how)| how[0].shift[axis]);
        let begin = shifts().map(|s| (-s).max(0)).max().unwrap_or(0) as usize;
        let end = n - shifts().map(|s| s.max(0)).max().unwrap_or(0) as usize;
        begin..end
    };
    let (rows, columns) = (range(0, height), range(1, width));
    let size = [rows.len(), columns.len()];
    let places = || rows.clone().flat_map(|y| columns.clone().map(move |x| (y, x)));
    let mut made = [vec![], vec![]];
    for (c, plane) in own.values.iter().enumerate() {
        made[0].push(places().map(|(y, x)| plane[y * width + x]).collect());
        let at = |(y, x): (usize, usize)| {
            let of = |(planes, how): &(Planes, &[Repeat])| {
                let Repeat { shift, gain, offset, .. } = how[c];
                let moved = |at: usize, by: isize| (at as isize + by) as usize;
                let (y, x) = (moved(y, shift[0]), moved(x, shift[1]));
                gain * f64::from(planes.values[c][y * width + x]) + offset
            };
            (others.iter().map(of).sum::<f64>() / others.len() as f64) as f32
        };
        made[1].push(places().map(at).collect());
    }
    made.map(|values| Planes { values, size })
}

fn save(path: &Path, planes: &Planes) -> Result<()> {
    let ([height, width], channels) = (planes.size, planes.values.len());
    let dims = vec![Dim::new(Axis::C, channels), Dim::new(Axis::Y, height), Dim::new(Axis::X, width)];
    let mut writer =
        Writer::create(path, &Description::new("", path, dims, DType::F32), &WriteOptions::default())?;
    let values: Vec<f64> = planes.values.iter().flatten().map(|v| f64::from(*v)).collect();
    let mut bytes = vec![];
    DType::F32.encode(&values, &mut bytes);
    writer.write(&[0..channels, 0..height, 0..width], &bytes)?;
    writer.finish()?;
    Ok(())
}

/// Some of what was left out.
fn some(left_out: &[String]) -> String {
    let more =
        if left_out.len() > NAMED { format!("; {} more", left_out.len() - NAMED) } else { String::new() };
    format!("{}{more}", left_out.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; "))
}

fn refusal(left_out: &[String]) -> String {
    format!("images that might be repeats of one field are not, or too few of them: {}", some(left_out))
}

fn in_words(fields: &[Field], averaged: usize, kept: usize, left_out: &[String]) -> String {
    let used = || fields.iter().filter(|f| f.links.iter().any(|l| l.len() >= averaged));
    let all = || used().flat_map(|f| f.links.iter().flatten()).flat_map(|(_, how)| how);
    let ends = |of: &dyn Fn(&Repeat) -> f64| {
        all().map(of).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)))
    };
    let (dim, bright) = ends(&|r| r.gain);
    let farthest = all().flat_map(|r| r.shift).map(isize::unsigned_abs).max().unwrap_or(0);
    let mut text = format!(
        "repeats: {kept} images of {} fields, each learned from the mean of {averaged} others; brightness differs by factors of {dim:.3} to {bright:.3} and is fitted",
        used().count()
    );
    if farthest > 0 {
        text += &format!("; shifts of up to {farthest} whole pixels are undone");
    }
    if !left_out.is_empty() {
        text += &format!("; left out: {}", some(left_out));
    }
    text
}
