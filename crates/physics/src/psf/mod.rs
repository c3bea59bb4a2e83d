//! Point-spread functions: the image of a single point.
//!
//! A [`Psf`] is a small image of 2 or 3 axes with nonnegative values and unit sum. Its origin is the pixel at half the
//! size (rounded down) of each axis. Models are sampled at pixel centres: the pixels of an image are already integrals,
//! and integrating the PSF too would count the pixel width twice. Measured PSFs are read from an array or averaged over
//! beads ([`beads`]).

pub mod beads;
mod models;
mod resample;

pub use models::Optics;

use crate::error::{PhysicsError, require, require_length};
use crate::grid::{self, for_each};
use clearshot_tensor::{DType, Shape, Tensor};

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Psf {
    shape: Shape,
    values: Vec<f64>,
}

/// The background subtracted from a measured PSF.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Background {
    /// None. Negative values are refused.
    None,
    /// The median; negative values are then set to zero.
    Median,
    /// This value; negative values are then set to zero.
    Value(f64),
}

impl Psf {
    /// From nonnegative values, which are divided by their sum.
    ///
    /// # Errors
    /// If there are not 2 or 3 axes, a value is negative or not finite, or all are zero.
    pub fn new(shape: impl Into<Shape>, values: Vec<f64>) -> Result<Psf, PhysicsError> {
        let shape = shape.into();
        grid::check("a PSF", shape)?;
        require_length("a PSF", values.len(), shape.len())?;
        if let Some(index) = values.iter().position(|x| !(x.is_finite() && *x >= 0.0)) {
            let needed = "a finite value not below zero; take the background off first";
            return Err(PhysicsError::Pixel { name: "the PSF", index, got: values[index], needed });
        }
        let sum: f64 = values.iter().sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Err(PhysicsError::DarkPsf { reason: "its values sum to zero" });
        }
        Ok(Psf { shape, values: values.into_iter().map(|x| x / sum).collect() })
    }

    /// From a measured array.
    ///
    /// # Errors
    /// As [`Psf::new`]; also if the array has 8 bits, or nothing is above the background.
    pub fn measured(array: &Tensor, background: Background) -> Result<Psf, PhysicsError> {
        let dtype = array.dtype();
        if matches!(dtype, DType::U8 | DType::I8) {
            return Err(PhysicsError::EightBitPsf { dtype });
        }
        let values = array.to_f64();
        Psf::new(array.shape(), less_background(values, background)?)
    }

    /// A single pixel, without blur.
    pub fn delta(axes: usize) -> Result<Psf, PhysicsError> {
        let sizes = [1; 3];
        require(matches!(axes, 2 | 3), "the number of axes", axes as f64, "2 or 3")?;
        Psf::new(Shape::new(&sizes[..axes]), vec![1.0])
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The index of the origin along each axis.
    pub fn origin(&self) -> Vec<usize> {
        self.shape.iter().map(|n| n / 2).collect()
    }

    /// The centre of its light relative to the origin, in pixels.
    pub fn centroid(&self) -> Vec<f64> {
        let origin = self.origin();
        let mut centre = vec![0.0; self.shape.rank()];
        let mut at = self.values.iter();
        for_each(self.shape, |i| {
            let v = at.next().expect("a value for each index");
            centre.iter_mut().enumerate().for_each(|(a, c)| *c += v * (i[a] as f64 - origin[a] as f64));
        });
        centre
    }

    /// The standard deviation of its light along each axis, in pixels.
    pub fn spread(&self) -> Vec<f64> {
        let (origin, centre) = (self.origin(), self.centroid());
        let mut squares = vec![0.0; self.shape.rank()];
        let mut at = self.values.iter();
        for_each(self.shape, |i| {
            let v = at.next().expect("a value for each index");
            for (a, s) in squares.iter_mut().enumerate() {
                *s += v * (i[a] as f64 - origin[a] as f64 - centre[a]).powi(2);
            }
        });
        squares.into_iter().map(f64::sqrt).collect()
    }

    /// The full width at half of the largest value along each axis through it, in pixels. Between samples the
    /// logarithm is taken as linear in the squared distance from the peak, as a Gaussian's is.
    pub fn fwhm(&self) -> Vec<f64> {
        let peak = (0..self.values.len())
            .max_by(|&a, &b| self.values[a].total_cmp(&self.values[b]))
            .expect("a PSF has pixels");
        let half = 0.5 * self.values[peak];
        let strides = self.shape.strides();
        (0..self.shape.rank())
            .map(|axis| {
                let (n, stride) = (self.shape[axis], strides[axis]);
                let at = peak / stride % n;
                let value = |i: usize| self.values[peak + i * stride - at * stride];
                let crossing = |step: isize| {
                    let mut i = at;
                    loop {
                        let next = i as isize + step;
                        let outside = !(0..n as isize).contains(&next);
                        let v = if outside { 0.0 } else { value(next as usize) };
                        if v < half {
                            let near = i.abs_diff(at) as f64;
                            if v == 0.0 {
                                return near + 1.0 - half / value(i);
                            }
                            let part = (value(i) / half).ln() / (value(i) / v).ln();
                            return (near * near + part * (2.0 * near + 1.0)).sqrt();
                        }
                        i = next as usize;
                    }
                };
                crossing(-1) + crossing(1)
            })
            .collect()
    }

    /// The part of `size` pixels around the origin, with unit sum again.
    ///
    /// # Errors
    /// If the number of axes differs, or no light is left.
    pub fn cropped(&self, size: impl Into<Shape>) -> Result<Psf, PhysicsError> {
        let size = size.into();
        if size.rank() != self.shape.rank() || size.is_empty() {
            let needed = format!("{} sizes above zero", self.shape.rank());
            return Err(PhysicsError::Shape { what: "the crop of a PSF", got: size, needed });
        }
        let kept = (0..size.rank()).fold(size, |s, a| s.with(a, size[a].min(self.shape[a])));
        let strides = self.shape.strides();
        let mut values = Vec::with_capacity(kept.len());
        for_each(kept, |i| {
            let from = |a: usize| (i[a] + self.shape[a] / 2 - kept[a] / 2) * strides[a];
            values.push(self.values[(0..kept.rank()).map(from).sum::<usize>()]);
        });
        Psf::new(kept, values)
    }

    /// The PSF at a size that fits an image: unchanged, or cropped if the cropped part contains less than
    /// [`NEGLIGIBLE`] of the light.
    ///
    /// # Errors
    /// If the number of axes differs, or it is larger than the image and has light there.
    pub fn fitting(&self, image: impl Into<Shape>) -> Result<Fitted, PhysicsError> {
        let (image, size) = (image.into(), self.shape);
        if size.rank() != image.rank() {
            let needed = format!("a PSF of {} axes, as the image {image} has", image.rank());
            return Err(PhysicsError::Shape { what: "the PSF", got: size, needed });
        }
        let larger = |a: &usize| size[*a] > image[*a];
        if !(0..size.rank()).any(|a| larger(&a)) {
            return Ok(Fitted { psf: self.clone(), outside: 0.0 });
        }
        let room =
            (0..size.rank()).filter(larger).fold(size, |s, a| s.with(a, odd_within(size[a], image[a])));
        let mut light = self.values.iter();
        let mut outside = 0.0;
        for_each(size, |i| {
            let v = light.next().expect("a value for each index");
            let within = |a: usize| {
                let first = size[a] / 2 - room[a] / 2;
                (first..first + room[a]).contains(&i[a])
            };
            if !(0..size.rank()).all(within) {
                outside += v;
            }
        });
        match outside < NEGLIGIBLE {
            true => Ok(Fitted { psf: self.cropped(room)?, outside }),
            false => Err(PhysicsError::PsfTooLarge { psf: size, image }),
        }
    }
}

/// A PSF at a size that fits an image, and the share of its light outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    pub psf: Psf,
    pub outside: f64,
}

/// The share of a PSF's light that may be cropped automatically.
pub const NEGLIGIBLE: f64 = 1e-3;

/// The most of `needed` pixels, an odd number, that an image of `room` has.
fn odd_within(needed: usize, room: usize) -> usize {
    needed.min(room.saturating_sub(usize::from(room.is_multiple_of(2))).max(1))
}

/// The most pixels that a PSF may have: more than any image that is processed at once.
const MOST_PIXELS: usize = 1 << 27;

/// Refuses sizes that come of a slip in a unit before memory is asked for.
fn check_size(shape: Shape) -> Result<(), PhysicsError> {
    match shape.checked_len() {
        Some(n) if n <= MOST_PIXELS => Ok(()),
        _ => Err(PhysicsError::Shape {
            what: "a PSF",
            got: shape,
            needed: format!("at most {MOST_PIXELS} pixels; check its width and the pixel size"),
        }),
    }
}

/// Takes a background off.
///
/// # Errors
/// If the background is not finite.
pub(crate) fn less_background(values: Vec<f64>, background: Background) -> Result<Vec<f64>, PhysicsError> {
    let level = match background {
        Background::None => return Ok(values),
        Background::Median => crate::units::percentiles(&values, [50.0])?[0],
        Background::Value(x) => x,
    };
    require(level.is_finite(), "the background of a PSF", level, "a finite number")?;
    // NaN stays, so that it is refused by name.
    Ok(values.into_iter().map(|x| if x < level { 0.0 } else { x - level }).collect())
}
