//! Pairs of files as cases: their planes, the camera of each, and their groups.
//!
//! Camera parameters that are not given are estimated from each noisy file by the function that `restore` and `denoise`
//! use, so that the scores are those of a user with default settings. Scores are in the unit of the files, as in
//! scikit-image: see [`Scale::Counts`].

use crate::EvaluateError;
use crate::case::{Case, Scale};
use crate::method::View;
use crate::score::fitted;
use clearshot_image::dataset::list::{Listing, files, stem};
use clearshot_image::{Image, fingerprint};
use clearshot_physics::Electrons;
use clearshot_physics::calibration::blind::Known;
use clearshot_physics::calibration::exposure_ratio;
use clearshot_restore::estimate::{as_camera, camera_of};
use clearshot_restore::learned::{self, Camera};
use clearshot_restore::stream::Frames;
use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How pairs of files are looked at and scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The given camera parameters; the others are estimated.
    pub known: Known,
    /// How many times the light of the true files the noisy ones have.
    pub exposure: f64,
    /// The range of PSNR and SSIM; unless given, 255 for true files of 8 bits, and otherwise the largest value of the
    /// true plane less its smallest.
    pub range: Option<f64>,
    /// Whether gain and offset of each result are fitted to the truth before it is scored.
    pub fit: bool,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { known: Known::default(), exposure: 1.0, range: None, fit: false }
    }
}

/// Planes of pairs of files.
pub struct Pairs {
    parts: Vec<Part>,
    terms: Terms,
    /// Names of files that found no partner.
    pub unpaired: Vec<String>,
    /// The file whose camera was asked for last.
    last: RefCell<Option<(PathBuf, Seen)>>,
}

/// A plane of a pair.
struct Part {
    truth: PathBuf,
    noisy: PathBuf,
    region: Vec<Range<usize>>,
    shape: Vec<usize>,
    /// Which plane of which contents.
    name: String,
}

/// What a noisy file says of its camera, or what was said of it.
#[derive(Clone, Debug)]
struct Seen {
    camera: Camera,
    /// Counts at which pixels are saturated, if values pile up there.
    saturation: Option<f64>,
}

impl Pairs {
    /// Every plane of every pair: of two files, or of files with the same name in two folders.
    ///
    /// # Errors
    /// If a file cannot be read or has no Y and X, or no two files go together.
    pub fn new(truth: &str, noisy: &str, terms: Terms) -> Result<Pairs, EvaluateError> {
        let (truths, images) = (files(truth)?, files(noisy)?);
        let mut unpaired = Vec::new();
        let pairs: Vec<(PathBuf, PathBuf)> = if truths.len() == 1 && images.len() == 1 {
            vec![(truths[0].clone(), images[0].clone())]
        } else {
            let listing = Listing::pairs(noisy, truth)?;
            unpaired = listing.unpaired;
            listing.entries.into_iter().filter_map(|e| Some((e.target?, e.input))).collect()
        };
        if pairs.is_empty() {
            let why = format!("no file there has the same name as one in {noisy}");
            return Err(EvaluateError::File { path: truth.into(), why });
        }
        let mut parts = Vec::new();
        for (truth, noisy) in pairs {
            parts.extend(planes(&truth, &noisy)?);
        }
        Ok(Pairs { parts, terms, unpaired, last: RefCell::new(None) })
    }

    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The inputs of the scores of plane `number`, as text.
    ///
    /// # Errors
    /// If the camera cannot be estimated.
    pub fn name(&self, number: usize) -> Result<String, EvaluateError> {
        let part = &self.parts[number];
        let Seen { camera, saturation } = self.seen(&part.noisy)?;
        let Terms { exposure, range, fit, .. } = self.terms;
        let full = saturation.map_or(String::new(), |v| format!(" saturation {v}"));
        let exposed = if exposure == 1.0 { String::new() } else { format!(" exposure {exposure}") };
        let range = range.map_or("own".to_string(), |r| r.to_string());
        let fitted = if fit { " fitted" } else { "" };
        // The number is what its pair is found by among the images of the cell.
        Ok(format!("pair {number} {} {camera:?}{full}{exposed} range {range}{fitted}", part.name))
    }

    /// How many times the light of its true plane a noisy one really has, by their sums above the camera's offset.
    ///
    /// # Errors
    /// As [`Pairs::case`].
    pub fn measured_exposure(&self, number: usize) -> Result<f64, EvaluateError> {
        let part = &self.parts[number];
        let Camera { offset, gain, .. } = self.seen(&part.noisy)?.camera;
        let electrons = |path: &Path| -> Result<Vec<f64>, EvaluateError> {
            let counts = finite(&Image::open(path)?, path, &part.region)?;
            Ok(counts.iter().map(|v| (v - offset) * gain).collect())
        };
        let (noisy, truth) = (electrons(&part.noisy)?, electrons(&part.truth)?);
        Ok(exposure_ratio(Electrons(&noisy[..]), Electrons(&truth[..]), [0.0; 2], None)?)
    }

    /// Plane `number`, in electrons of its camera. The peak is the 99.8th percentile of the truth above the background,
    /// which is the truth's 0.5th percentile. Noisy files have `exposure` times the light of the true ones, which are
    /// scaled to that before: the raw measurement then scores like one that was only scaled.
    ///
    /// # Errors
    /// If a file cannot be read, the shapes differ, a pixel is not finite, the truth has no light, or the camera cannot be
    /// estimated.
    pub fn case(&self, number: usize) -> Result<Case, EvaluateError> {
        let part = &self.parts[number];
        let seen = self.seen(&part.noisy)?;
        let camera = &seen.camera;
        let (truth_file, noisy_file) = (Image::open(&part.truth)?, Image::open(&part.noisy)?);
        if truth_file.shape() != noisy_file.shape() {
            return Err(EvaluateError::Shapes {
                truth: part.truth.display().to_string(),
                noisy: part.noisy.display().to_string(),
                truth_shape: truth_file.shape(),
                noisy_shape: noisy_file.shape(),
            });
        }
        let electrons = |counts: Vec<f64>| -> Vec<f32> {
            counts.iter().map(|v| ((v - camera.offset) * camera.gain) as f32).collect()
        };
        let measured = electrons(finite(&noisy_file, &part.noisy, &part.region)?);
        let mut truth = electrons(finite(&truth_file, &part.truth, &part.region)?);
        truth.iter_mut().for_each(|v| *v = (f64::from(*v) * self.terms.exposure) as f32);
        let own_range = range_of(&truth) / camera.gain;
        // The light of a clean file with another scale is converted to the scale of the noisy one.
        let mut sorted = if self.terms.fit { on_the_scale_of(&measured, &truth) } else { truth.clone() };
        sorted.sort_by(f32::total_cmp);
        let at = |share: f64| f64::from(sorted[((sorted.len() - 1) as f64 * share).round() as usize]);
        let background = at(0.005).max(0.0);
        let peak = at(0.998) - background;
        // Where less than one pixel in 500 has light, the brightest says what there is.
        let peak = if peak > 0.0 { peak } else { at(1.0) - background };
        if peak <= 0.0 {
            return Err(EvaluateError::Dark { what: part.truth.display().to_string() });
        }
        let eight_bits = truth_file.dtype().bits() == 8;
        let range = self.terms.range.unwrap_or(if eight_bits { 255.0 } else { own_range });
        // What a file of whole numbers holds ends with its type.
        let rescaled = noisy_file.description.rescale.is_some();
        let ends = noisy_file.dtype().range().filter(|_| !rescaled);
        let limits = ends.map_or([f64::NEG_INFINITY, f64::INFINITY], |(low, high)| [low, high]);
        let view = View {
            background: background_of(&measured, &part.shape, camera.read_noise)?,
            saturation: seen.saturation.map(|v| electrons(vec![v])[0]),
            electrons: measured,
            gain: camera.gain,
            offset: camera.offset,
            shape: part.shape.clone(),
            read_noise: camera.read_noise,
            correlation: camera.correlation,
            psf: None,
            seed: number as u64,
        };
        Ok(Case {
            scene: part.noisy.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            peak,
            index: number as u32,
            truth,
            background,
            read_noise: camera.read_noise,
            psf: None,
            scale: Scale::Counts { range, fit: self.terms.fit, limits },
            view,
        })
    }

    fn seen(&self, noisy: &Path) -> Result<Seen, EvaluateError> {
        if let Some((_, seen)) = self.last.borrow().as_ref().filter(|(path, _)| path == noisy) {
            return Ok(seen.clone());
        }
        let seen = self.look(noisy)?;
        *self.last.borrow_mut() = Some((noisy.to_path_buf(), seen.clone()));
        Ok(seen)
    }

    fn look(&self, noisy: &Path) -> Result<Seen, EvaluateError> {
        let known = self.terms.known;
        if let (Some(gain), Some(offset), Some(read_noise)) = (known.gain, known.offset, known.read_noise) {
            let camera = Camera {
                gain,
                offset,
                read_noise,
                background: None,
                correlation: known.correlation.unwrap_or_default(),
            };
            return Ok(Seen { camera, saturation: known.saturation });
        }
        let fit = camera_of(&Image::open(noisy)?, &known, &|_, _| Ok(None))
            .map_err(|e| EvaluateError::File { path: noisy.into(), why: e.to_string() })?;
        Ok(Seen { camera: as_camera(&fit), saturation: fit.saturation })
    }
}

fn planes(truth: &Path, noisy: &Path) -> Result<Vec<Part>, EvaluateError> {
    let image = Image::open(noisy)?;
    let contents = format!("{} of {}", fingerprint(noisy)?, fingerprint(truth)?);
    let frames = Frames::of(&image.description, false)
        .map_err(|e| EvaluateError::File { path: noisy.into(), why: e.to_string() })?;
    let part = |(i, region): (usize, Vec<Range<usize>>)| Part {
        truth: truth.into(),
        noisy: noisy.into(),
        region,
        shape: frames.size(),
        name: format!("{} plane {i} contents {contents}", noisy.display()),
    };
    Ok(frames.regions().into_iter().enumerate().map(part).collect())
}

fn finite(image: &Image, path: &Path, region: &[Range<usize>]) -> Result<Vec<f64>, EvaluateError> {
    let values = image.read_f64(region)?;
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        let why = format!("pixel {i} is {}; mask or fill it first", values[i]);
        return Err(EvaluateError::File { path: path.into(), why });
    }
    Ok(values)
}

/// The maximum minus the minimum.
fn range_of(values: &[f32]) -> f64 {
    let ends =
        values.iter().fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], &v| [low.min(v), high.max(v)]);
    f64::from(ends[1]) - f64::from(ends[0])
}

/// A clean image scaled to the noisy one by gain and offset (least squares); unchanged if the two are not correlated.
fn on_the_scale_of(noisy: &[f32], clean: &[f32]) -> Vec<f32> {
    let [from, to] = [clean, noisy].map(|x| x.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>());
    let (gain, offset) = fitted(&from, &to);
    if gain > 0.0 { from.iter().map(|v| (gain * v + offset) as f32).collect() } else { clean.to_vec() }
}

/// The background that a method is given is estimated from the measurement, as in restoring a file.
fn background_of(electrons: &[f32], shape: &[usize], read_noise: f64) -> Result<f64, EvaluateError> {
    let camera = Camera { read_noise, ..Camera::default() };
    let values = learned::Values { values: electrons, size: shape, channels: 1 };
    let measured = learned::Measured::read(&values, &learned::field::Scratch::new(usize::MAX, None))?;
    Ok(learned::measured::background(&measured, &camera))
}

/// How files are put into the groups that are the rows of a table.
#[derive(Clone, Debug)]
pub enum Grouping {
    /// The name up to a last `_` or `-` that only digits follow: `Confocal_BPAE_B_1.tif` is in `Confocal_BPAE_B`.
    Numbered,
    /// All in one.
    All,
    /// What the first group of a regular expression matches in the name, or all that it matches where it has none.
    Pattern(regex_lite::Regex),
}

/// Where files go whose names say nothing of a group.
const FILES: &str = "files";

impl Grouping {
    /// # Errors
    /// If the text is not a regular expression.
    pub fn parse(text: Option<&str>) -> Result<Grouping, EvaluateError> {
        match text {
            None => Ok(Grouping::Numbered),
            Some("all") => Ok(Grouping::All),
            Some(text) => {
                let pattern = regex_lite::Regex::new(text);
                pattern.map(Grouping::Pattern).map_err(|_| EvaluateError::Setting {
                    name: "the pattern of groups",
                    got: format!("'{text}'"),
                    needed: "a regular expression such as '^(.*)_[0-9]+$', or 'all',",
                })
            }
        }
    }

    /// The group of a file's name.
    pub fn of(&self, file: &str) -> String {
        let name = stem(Path::new(file));
        let group = match self {
            Grouping::All => "",
            Grouping::Numbered => {
                let rest = name.trim_end_matches(|c: char| c.is_ascii_digit());
                match rest.strip_suffix(['_', '-']) {
                    Some(group) if rest.len() < name.len() => group,
                    _ if rest.is_empty() => "",
                    _ => &name,
                }
            }
            Grouping::Pattern(pattern) => pattern
                .captures(&name)
                .and_then(|found| found.get(1).or(found.get(0)).map(|m| &name[m.range()]))
                .unwrap_or(""),
        };
        if group.is_empty() { FILES.into() } else { group.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Grouping;

    #[test]
    fn names_make_groups() {
        let usual = Grouping::parse(None).unwrap();
        for (file, group) in [
            ("Confocal_BPAE_B_1.tif", "Confocal_BPAE_B"),
            ("stack-012.ome.tif", "stack"),
            ("actin-20x-noise1.tif", "actin-20x-noise1"),
            ("nuclei.tif", "nuclei"),
            ("0001.tif", "files"),
            ("_7.png", "files"),
        ] {
            assert_eq!(usual.of(file), group, "{file}");
        }
        let channel = Grouping::parse(Some("_([0-9])$")).unwrap();
        assert_eq!((channel.of("082_1.tif"), channel.of("082.tif")), ("1".into(), "files".into()));
        assert_eq!(Grouping::parse(Some("^[a-z]+")).unwrap().of("actin-20x.tif"), "actin");
        assert_eq!(Grouping::parse(Some("all")).unwrap().of("actin-20x.tif"), "files");
        assert!(Grouping::parse(Some("(")).is_err());
    }
}
