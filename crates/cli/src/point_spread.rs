//! PSFs as the command line names them (a file, `gaussian:1.5px`, `airy:na=1.4,em=520nm`), made or cropped to a size that
//! fits an image, and what there is to say of that.
//!
//! What a text means is found once ([`PointSpread::parse`]); pixels of an image, which lengths and optics become pixels by,
//! may be another size in each ([`PointSpread::of`]).

use anyhow::{Context, Result, bail};
use clearshot_image::address::exists;
use clearshot_image::{Axis, DType, Description, Image};
use clearshot_physics::psf::{Fitted, NEGLIGIBLE, Optics};
use clearshot_physics::{PhysicsError, Psf};
use clearshot_restore::stream::Frames;
use std::path::Path;

/// A PSF as it was asked for; each image has its own size of it.
pub enum PointSpread {
    /// Standard deviations with their units, of every axis or one for all.
    Gaussian {
        text: String,
        widths: Vec<Width>,
    },
    Airy {
        text: String,
        optics: Optics,
    },
    Measured {
        text: String,
        psf: Psf,
    },
}

/// A length along an axis: in pixels, or in nanometres.
#[derive(Clone, Copy)]
pub enum Width {
    Pixels(f64),
    Nanometres(f64),
}

impl PointSpread {
    /// What a text names, for images of so many axes.
    ///
    /// # Errors
    /// If there is no such file, it has 8 bits or is no one PSF of these axes, or the text is none.
    pub fn parse(text: &str, axes: usize) -> Result<PointSpread> {
        if let Some(rest) = text.strip_prefix("gaussian:") {
            let widths = rest.split(',').map(width).collect::<Result<Vec<_>>>()?;
            if widths.len() != 1 && widths.len() != axes {
                bail!("--psf {text}: one number is needed, or one for each of {axes} axes");
            }
            return Ok(PointSpread::Gaussian { text: text.into(), widths });
        }
        if let Some(rest) = text.strip_prefix("airy:") {
            return Ok(PointSpread::Airy { text: text.into(), optics: optics(text, rest)? });
        }
        let path = Path::new(text);
        if !exists(path)? {
            bail!("--psf {text}: no such file; or write gaussian:1.5px, or airy:na=1.4,em=520nm");
        }
        let image = Image::open(path)?;
        refuse_eight_bits(&image)?;
        let frames = Frames::of(&image.description, axes == 3).with_context(|| text.to_string())?;
        let [region] = &frames.regions()[..] else {
            bail!("{text}: {} planes or volumes, and a PSF is one", frames.regions().len());
        };
        let values = image.read_f64(region)?.iter().map(|v| v.max(0.0)).collect();
        let psf = Psf::new(&frames.size()[..], values).with_context(|| text.to_string())?;
        Ok(PointSpread::Measured { text: text.into(), psf })
    }

    /// The PSF for an image of this size, and what there is to say of it.
    ///
    /// # Errors
    /// If it does not fit the image, or the size of its pixels is needed and not known.
    pub fn of(&self, d: &Description, size: &[usize]) -> Result<(Psf, Option<String>)> {
        match self {
            PointSpread::Gaussian { text, widths } => {
                let axes = size.len();
                let of_axis = |axis: usize| match widths[..] {
                    // One width is that of every axis, whose pixels may differ.
                    [one] => pixels(one, d, axis, axes),
                    _ => pixels(widths[axis], d, axis, axes),
                };
                let sigmas = (0..axes).map(of_axis).collect::<Result<Vec<f64>>>()?;
                gaussian(&sigmas, size).with_context(|| format!("--psf {text}"))
            }
            PointSpread::Airy { text, optics } => Ok((airy(text, optics, d, size)?, None)),
            PointSpread::Measured { text, psf } => measured(psf, size).with_context(|| text.clone()),
        }
    }
}

/// The file of a PSF, which is refused where its values have 8 bits.
fn refuse_eight_bits(psf: &Image) -> Result<()> {
    let dtype = match psf.dtype() {
        DType::U8 => clearshot_tensor::DType::U8,
        _ => return Ok(()),
    };
    Err(PhysicsError::EightBitPsf { dtype }).with_context(|| psf.description.path.display().to_string())
}

/// A Gaussian of these standard deviations in pixels for an image of this size, and a word where the image has no room for
/// a part of it that matters.
///
/// # Errors
/// If the numbers are no widths, or more than half of the light would lie outside the image.
pub fn gaussian(sigmas: &[f64], image: &[usize]) -> Result<(Psf, Option<String>), PhysicsError> {
    let Fitted { psf, outside } = Psf::gaussian_fitting(sigmas, image)?;
    let said = (outside >= NEGLIGIBLE).then(|| {
        format!(
            "the image has room for {} pixels of the Gaussian PSF; {:.1} % of its light would lie outside",
            psf.shape(),
            100.0 * outside
        )
    });
    Ok((psf, said))
}

/// A measured PSF for an image of this size, and a word where its outer parts, without light, are left out.
///
/// # Errors
/// If it has other axes, or has light beyond the size of the image.
fn measured(psf: &Psf, image: &[usize]) -> Result<(Psf, Option<String>), PhysicsError> {
    let Fitted { psf: fitted, outside } = psf.fitting(image)?;
    let said = (fitted.shape() != psf.shape()).then(|| {
        format!(
            "the PSF of {} pixels is cropped to {}; {:.2} % of its light lay outside",
            psf.shape(),
            fitted.shape(),
            100.0 * outside
        )
    });
    Ok((fitted, said))
}

fn optics(text: &str, rest: &str) -> Result<Optics> {
    let (mut aperture, mut wavelength, mut index) = (None, None, None);
    for part in rest.split(',') {
        let usage = || {
            format!("--psf {text}: write airy:na=1.4,em=520nm, with n=1.515 for the immersion if it matters")
        };
        let (key, value) = part.split_once('=').with_context(usage)?;
        match key.trim() {
            "na" => aperture = Some(value.trim().parse::<f64>().with_context(usage)?),
            "em" => {
                let (number, unit) = number_and_unit(value).with_context(usage)?;
                wavelength =
                    Some(number * nanometres(if unit.is_empty() { "nm" } else { unit }).with_context(usage)?);
            }
            "n" => index = Some(value.trim().parse::<f64>().with_context(usage)?),
            _ => bail!(usage()),
        }
    }
    let (Some(numerical_aperture), Some(wavelength)) = (aperture, wavelength) else {
        bail!("--psf {text}: the numerical aperture (na=) and the wavelength (em=) are both needed");
    };
    let usual = if numerical_aperture > 1.33 {
        1.515
    } else if numerical_aperture > 0.95 {
        1.33
    } else {
        1.0
    };
    Ok(Optics { wavelength, numerical_aperture, refractive_index: index.unwrap_or(usual) })
}

fn airy(text: &str, optics: &Optics, d: &Description, size: &[usize]) -> Result<Psf> {
    let Optics { wavelength, numerical_aperture, refractive_index } = *optics;
    let pixel = |axis: Axis| {
        pixel_nanometres(d, axis).with_context(|| {
            format!(
                "--psf {text}: the file does not say how large its pixels are along {}; use gaussian:SIGMApx",
                axis.letter()
            )
        })
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

fn pixel_nanometres(d: &Description, axis: Axis) -> Option<f64> {
    let dim = d.dim(axis)?;
    Some(dim.step? * nanometres(dim.unit.as_deref()?)?)
}

/// A length, from pixels or from a unit.
fn width(text: &str) -> Result<Width> {
    let usage = || format!("--psf: `{text}` is no width; write 1.5px or 0.12um");
    let (number, unit) = number_and_unit(text).with_context(usage)?;
    if matches!(unit, "" | "px" | "pixel" | "pixels") {
        return Ok(Width::Pixels(number));
    }
    Ok(Width::Nanometres(number * nanometres(unit).with_context(usage)?))
}

/// A length in pixels along one of an image's axes.
fn pixels(width: Width, d: &Description, place: usize, axes: usize) -> Result<f64> {
    let axis = [Axis::Z, Axis::Y, Axis::X][(place + 3 - axes).min(2)];
    match width {
        Width::Pixels(n) => Ok(n),
        Width::Nanometres(n) => pixel_nanometres(d, axis)
            .map(|pixel| n / pixel)
            .context("the file does not say how large its pixels are; give the PSF in px"),
    }
}
