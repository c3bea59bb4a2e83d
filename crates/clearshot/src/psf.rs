//! Point-spread functions in the notation of the command line (a file, `gaussian:1.5px`, `airy:na=1.4,em=520nm`), made
//! or cropped to a size that fits an image.
//!
//! The text is parsed once ([`PointSpread::from_str`]). The conversion of lengths and optics to pixels needs the pixel
//! size, which may differ from image to image (`PointSpread::fit`).

use crate::error::{Error, Result};
use crate::notice::Notice;
use clearshot_image::address::exists;
use clearshot_image::{Axis, DType, Description, Image, fingerprint};
use clearshot_physics::psf::{Fitted, NEGLIGIBLE, Optics};
use clearshot_physics::{PhysicsError, Psf};
use clearshot_restore::stream::Frames;
use std::path::PathBuf;
use std::str::FromStr;

/// A requested point-spread function, which is sampled at the pixel size of each image.
///
/// ```
/// let psf: clearshot::PointSpread = "airy:na=1.4,em=520nm".parse()?;
/// assert_eq!(psf.to_string(), "airy:na=1.4,em=520nm");
/// assert!("airy:na=1.4".parse::<clearshot::PointSpread>().is_err());
/// # Ok::<(), clearshot::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PointSpread {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Standard deviations with their units, of every axis or one for all.
    Gaussian(Vec<Width>),
    /// Standard deviations in pixels, given as numbers.
    Sigmas(Vec<f64>),
    Airy(Optics, Spacing),
    File(PathBuf),
    Computed(Psf),
}

/// Pixel sizes in nanometres that replace those of the file, within planes and along Z.
#[derive(Clone, Copy, Debug, Default)]
struct Spacing {
    pixel: Option<f64>,
    z: Option<f64>,
}

/// A length along an axis: in pixels, or in nanometres.
#[derive(Clone, Copy, Debug)]
enum Width {
    Pixels(f64),
    Nanometres(f64),
}

impl FromStr for PointSpread {
    type Err = Error;

    fn from_str(text: &str) -> Result<PointSpread> {
        let kind = if let Some(rest) = text.strip_prefix("gaussian:") {
            Kind::Gaussian(rest.split(',').map(width).collect::<Result<_>>()?)
        } else if let Some(rest) = text.strip_prefix("airy:") {
            let (optics, spacing) = optics(text, rest)?;
            Kind::Airy(optics, spacing)
        } else {
            let path = PathBuf::from(text);
            if !exists(&path)? {
                return refuse(format!(
                    "{text}: no such file; or write gaussian:1.5px, or airy:na=1.4,em=520nm"
                ));
            }
            Kind::File(path)
        };
        Ok(PointSpread { text: text.into(), kind })
    }
}

impl From<Psf> for PointSpread {
    fn from(psf: Psf) -> PointSpread {
        PointSpread { text: format!("a PSF of {} pixels", psf.shape()), kind: Kind::Computed(psf) }
    }
}

impl std::fmt::Display for PointSpread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::setting("psf", why))
}

impl PointSpread {
    /// A Gaussian of these standard deviations in pixels: one for all axes, or one for each of (Z,) Y and X.
    pub fn gaussian(sigmas: &[f64]) -> PointSpread {
        let words: Vec<String> = sigmas.iter().map(f64::to_string).collect();
        PointSpread { text: format!("gaussian:{}", words.join(",")), kind: Kind::Sigmas(sigmas.to_vec()) }
    }

    /// The text that named it, if one did.
    pub(crate) fn text(&self) -> Option<&str> {
        (!matches!(self.kind, Kind::Sigmas(_))).then_some(self.text.as_str())
    }

    /// The standard deviations, if it was given by numbers.
    pub(crate) fn sigmas(&self) -> &[f64] {
        if let Kind::Sigmas(sigmas) = &self.kind { sigmas } else { &[] }
    }

    /// The fingerprint of the file, if it is one: the file may be replaced under the same name.
    pub(crate) fn fingerprint(&self) -> Result<Option<String>> {
        match &self.kind {
            Kind::File(path) => Ok(Some(fingerprint(path)?)),
            _ => Ok(None),
        }
    }

    /// Refuses widths whose number is neither one nor that of the axes.
    ///
    /// # Errors
    /// See above.
    pub(crate) fn check(&self, axes: usize) -> Result<()> {
        let count = match &self.kind {
            Kind::Gaussian(widths) => widths.len(),
            Kind::Sigmas(sigmas) => sigmas.len(),
            _ => return Ok(()),
        };
        match count == 1 || count == axes {
            true => Ok(()),
            false => refuse(format!("{self} has {count} numbers, and one or {axes} are needed")),
        }
    }

    /// The PSF for an image with planes or volumes of this size, and notices about it.
    ///
    /// # Errors
    /// If it does not fit the image, or a required pixel size is unknown.
    pub(crate) fn fit(&self, d: &Description, size: &[usize]) -> Result<(Psf, Option<Notice>)> {
        self.check(size.len())?;
        let named = |e: PhysicsError| Error::from(e).at(format!("psf {self}"));
        match &self.kind {
            Kind::Gaussian(widths) => {
                let axes = size.len();
                // One width is that of every axis, whose pixels may differ.
                let of = |axis: usize| pixels(widths[axis % widths.len()], d, axis, axes);
                let sigmas = (0..axes).map(of).collect::<Result<Vec<f64>>>()?;
                gaussian(&sigmas, size).map_err(named)
            }
            Kind::Sigmas(sigmas) => {
                let all: Vec<f64> = (0..size.len()).map(|axis| sigmas[axis % sigmas.len()]).collect();
                gaussian(&all, size).map_err(named)
            }
            Kind::Airy(optics, given) => Ok((self.airy(optics, *given, d, size)?, None)),
            Kind::File(_) => self.of_file(d, size),
            Kind::Computed(psf) => measured(psf, size).map_err(named),
        }
    }

    /// The PSF of a file, resampled to the pixel size of the image if both files have one.
    fn of_file(&self, d: &Description, size: &[usize]) -> Result<(Psf, Option<Notice>)> {
        let (psf, own) = self.read(size.len())?;
        let theirs = pixel_sizes(d, size.len());
        let at = |e: PhysicsError| Error::from(e).at(self);
        let (Some(from), Some(to)) = (own, theirs) else { return measured(&psf, size).map_err(at) };
        let same = from.iter().zip(&to).all(|(a, b)| (a / b - 1.0).abs() < SAME_PIXELS);
        if same {
            return measured(&psf, size).map_err(at);
        }
        let (psf, _) = measured(&psf.rescaled(&from, &to).map_err(at)?, size).map_err(at)?;
        Ok((psf, Some(Notice::PsfRescaled { from, to })))
    }

    /// The PSF of a file, and its pixel size in nanometres if the file has one.
    fn read(&self, axes: usize) -> Result<(Psf, Option<Vec<f64>>)> {
        let image = Image::open(&self.text)?;
        if image.dtype() == DType::U8 {
            let dtype = clearshot_tensor::DType::U8;
            return Err(Error::from(PhysicsError::EightBitPsf { dtype }).at(self));
        }
        let frames = Frames::of(&image.description, axes == 3).map_err(|e| Error::from(e).at(self))?;
        let [region] = &frames.regions()[..] else {
            return refuse(format!("{self}: {} planes or volumes, and a PSF is one", frames.regions().len()));
        };
        let values = image.read_f64(region)?.iter().map(|v| v.max(0.0)).collect();
        let psf = Psf::new(&frames.size()[..], values).map_err(|e| Error::from(e).at(self))?;
        Ok((psf, pixel_sizes(&image.description, axes)))
    }

    fn airy(&self, optics: &Optics, given: Spacing, d: &Description, size: &[usize]) -> Result<Psf> {
        let Optics { wavelength, numerical_aperture, refractive_index } = *optics;
        let pixel = |axis: Axis| {
            let (given, key) =
                if axis == Axis::Z { (given.z, "z=200nm") } else { (given.pixel, "pixel=65nm") };
            match given.or_else(|| pixel_nanometres(d, axis)) {
                Some(size) => Ok(size),
                None => refuse(format!(
                    "{self}: the file does not say how large its pixels are along {}; add it as in {self},{key}, or use gaussian:SIGMApx",
                    axis.letter()
                )),
            }
        };
        let (y, x) = (pixel(Axis::Y)?, pixel(Axis::X)?);
        // Eight times the radius of the first dark ring, within the image.
        let reach = 8.0 * 0.61 * wavelength / numerical_aperture;
        let odd = |reach: f64, step: f64, len: usize| {
            let most = if len.is_multiple_of(2) { len.saturating_sub(1) } else { len };
            (2 * (reach / step).ceil() as usize + 1).min(most.max(1))
        };
        let n = size.len();
        let [height, width] = [odd(reach, y, size[n - 2]), odd(reach, x, size[n - 1])];
        if n == 2 {
            return Ok(Psf::airy(optics, [y, x], [height, width])?);
        }
        let z = pixel(Axis::Z)?;
        let depth = 4.0 * 2.0 * refractive_index * wavelength / numerical_aperture.powi(2);
        Ok(Psf::born_wolf(optics, [z, y, x], [odd(depth, z, size[0]), height, width])?)
    }
}

/// A Gaussian with these standard deviations in pixels for an image of this size, and a notice if a relevant part lies
/// outside the image.
///
/// # Errors
/// If the numbers are not positive widths, or more than half of the light would lie outside the image.
pub fn gaussian(sigmas: &[f64], image: &[usize]) -> Result<(Psf, Option<Notice>), PhysicsError> {
    let fitted = Psf::gaussian_fitting(sigmas, image)?;
    let psf = fitted.psf.clone();
    Ok((psf, (fitted.outside >= NEGLIGIBLE).then_some(Notice::PsfCut { fitted, given: None })))
}

/// A measured PSF for an image of this size, and a notice if its outer parts, without light, are cropped.
///
/// # Errors
/// If it has other axes, or has light beyond the size of the image.
fn measured(psf: &Psf, image: &[usize]) -> Result<(Psf, Option<Notice>), PhysicsError> {
    let fitted: Fitted = psf.fitting(image)?;
    let given = Some(psf.shape());
    let cut = fitted.psf.shape() != psf.shape();
    Ok((fitted.psf.clone(), cut.then_some(Notice::PsfCut { fitted, given })))
}

fn optics(text: &str, rest: &str) -> Result<(Optics, Spacing)> {
    let (mut aperture, mut wavelength, mut index, mut spacing) = (None, None, None, Spacing::default());
    let usage = || {
        Error::setting(
            "psf",
            format!(
                "{text}: write airy:na=1.4,em=520nm, with n=1.515 for the immersion if it matters, and pixel=65nm (of stacks also z=200nm) where the file does not say it"
            ),
        )
    };
    let number = |value: &str| value.trim().parse::<f64>().map_err(|_| usage());
    let length = |value: &str| {
        let (number, unit) = number_and_unit(value).ok_or_else(usage)?;
        let unit = nanometres(if unit.is_empty() { "nm" } else { unit }).ok_or_else(usage)?;
        if number > 0.0 { Ok(number * unit) } else { Err(usage()) }
    };
    for part in rest.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(usage)?;
        match key.trim() {
            "na" => aperture = Some(number(value)?),
            "em" => wavelength = Some(length(value)?),
            "pixel" => spacing.pixel = Some(length(value)?),
            "z" => spacing.z = Some(length(value)?),
            "n" => index = Some(number(value)?),
            _ => return Err(usage()),
        }
    }
    let (Some(numerical_aperture), Some(wavelength)) = (aperture, wavelength) else {
        return refuse(format!(
            "{text}: the numerical aperture (na=) and the wavelength (em=) are both needed"
        ));
    };
    let usual = if numerical_aperture > 1.33 {
        1.515
    } else if numerical_aperture > 0.95 {
        1.33
    } else {
        1.0
    };
    Ok((Optics { wavelength, numerical_aperture, refractive_index: index.unwrap_or(usual) }, spacing))
}

fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

fn nanometres(unit: &str) -> Option<f64> {
    Some(match unit {
        "nm" | "nanometer" | "nanometre" => 1.0,
        "um" | "µm" | "μm" | "micrometer" | "micrometre" | "micron" => 1e3,
        "mm" | "millimeter" | "millimetre" => 1e6,
        _ => return None,
    })
}

/// Pixel sizes that differ by less than this share are the same.
const SAME_PIXELS: f64 = 0.01;

/// The pixel size along (Z,) Y and X in nanometres, if the file has all of them.
pub(crate) fn pixel_sizes(d: &Description, axes: usize) -> Option<Vec<f64>> {
    [Axis::Z, Axis::Y, Axis::X][3 - axes..].iter().map(|&axis| pixel_nanometres(d, axis)).collect()
}

fn pixel_nanometres(d: &Description, axis: Axis) -> Option<f64> {
    let dim = d.dim(axis)?;
    Some(dim.step? * nanometres(dim.unit.as_deref()?)?)
}

/// A length, from pixels or from a unit.
fn width(text: &str) -> Result<Width> {
    let usage = || Error::setting("psf", format!("`{text}` is not a width; write 1.5px or 0.12um"));
    let (number, unit) = number_and_unit(text).ok_or_else(usage)?;
    if matches!(unit, "" | "px" | "pixel" | "pixels") {
        return Ok(Width::Pixels(number));
    }
    Ok(Width::Nanometres(number * nanometres(unit).ok_or_else(usage)?))
}

/// A length in pixels along one of an image's axes.
fn pixels(width: Width, d: &Description, place: usize, axes: usize) -> Result<f64> {
    let axis = [Axis::Z, Axis::Y, Axis::X][(place + 3 - axes).min(2)];
    match (width, pixel_nanometres(d, axis)) {
        (Width::Pixels(n), _) => Ok(n),
        (Width::Nanometres(n), Some(pixel)) => Ok(n / pixel),
        _ => refuse("the file does not say how large its pixels are; give the PSF in px".into()),
    }
}
