//! PSFs from formulas, sampled at pixel centres.

use super::{Fitted, Psf};
use crate::error::{PhysicsError, require, require_positive};
use crate::grid::for_each;
use clearshot_tensor::Shape;
use libm::{j0, j1};
use std::f64::consts::PI;

/// How far a Gaussian reaches, in standard deviations: 6e-7 of the light lies beyond.
const GAUSSIAN_REACH: f64 = 5.0;
/// Gauss-Legendre nodes on (-1, 1) and their weights; five integrate polynomials of degree nine.
const NODES: [f64; 5] =
    [-0.906_179_845_938_664, -0.538_469_310_105_683, 0.0, 0.538_469_310_105_683, 0.906_179_845_938_664];
const WEIGHTS: [f64; 5] = [
    0.236_926_885_056_189,
    0.478_628_670_499_366,
    0.568_888_888_888_889,
    0.478_628_670_499_366,
    0.236_926_885_056_189,
];
/// Panels of the pupil's radius in the axial model.
const PUPIL_PANELS: usize = 24;

/// An objective and its wavelength, in the unit of the pixel size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optics {
    pub wavelength: f64,
    pub numerical_aperture: f64,
    pub refractive_index: f64,
}

impl Optics {
    fn check(&self) -> Result<(), PhysicsError> {
        require_positive("the wavelength", self.wavelength)?;
        require_positive("the numerical aperture", self.numerical_aperture)?;
        let na = self.numerical_aperture;
        require(
            self.refractive_index.is_finite() && self.refractive_index >= na,
            "the refractive index",
            self.refractive_index,
            "a finite number not below the numerical aperture",
        )
    }
}

impl Psf {
    /// A Gaussian with the given standard deviations along (Z,) Y, X, in pixels; 0 leaves an axis sharp.
    ///
    /// # Errors
    /// If there are not 2 or 3 of them, or one is negative or not finite.
    pub fn gaussian(sigmas: &[f64]) -> Result<Psf, PhysicsError> {
        let reach: Vec<usize> =
            sigmas.iter().map(|s| (GAUSSIAN_REACH * s.clamp(0.0, 1e12)).ceil() as usize).collect();
        Psf::gaussian_within(sigmas, &reach.iter().map(|r| 2 * r + 1).collect::<Vec<_>>())
    }

    /// As [`Psf::gaussian`], at a size that fits an image. In a thin stack it may be cropped, and along an axis with a
    /// single pixel there is no blur.
    ///
    /// # Errors
    /// As [`Psf::gaussian`]; also if the number of axes differs, or more than half of the light would lie outside the image.
    pub fn gaussian_fitting(sigmas: &[f64], image: &[usize]) -> Result<Fitted, PhysicsError> {
        let axes = sigmas.len() as f64;
        require(
            sigmas.len() == image.len(),
            "the number of axes of a Gaussian PSF",
            axes,
            "that of the image",
        )?;
        let reach = |s: f64| 2 * (GAUSSIAN_REACH * s.clamp(0.0, 1e12)).ceil() as usize + 1;
        let size: Vec<usize> =
            sigmas.iter().zip(image).map(|(s, n)| super::odd_within(reach(*s), *n)).collect();
        let psf = Psf::gaussian_within(sigmas, &size)?;
        // An image that most of the light would miss is a slip in a unit or a number.
        let hit = |(s, n): (&f64, &usize)| match *n > 1 && *s > 0.0 {
            true => libm::erf(*n as f64 / (8f64.sqrt() * s)),
            false => 1.0,
        };
        let inside: f64 = sigmas.iter().zip(image).map(hit).product();
        if inside < 0.5 {
            let whole: Vec<usize> = sigmas.iter().map(|s| reach(*s)).collect();
            let (psf, image) = (Shape::new(&whole), Shape::new(image));
            return Err(PhysicsError::PsfMisses { psf, image, percent: 100.0 * (1.0 - inside) });
        }
        // The light of pixels from -h to h is that of a Gaussian up to their edges; along an axis of one pixel none is lost.
        let within = |((s, n), of): ((&f64, &usize), &usize)| match *of > 1 && reach(*s) > *n {
            true => libm::erf(((n / 2) as f64 + 0.5) / (s * 2f64.sqrt())),
            false => 1.0,
        };
        let inside: f64 = sigmas.iter().zip(&size).zip(image).map(within).product();
        Ok(Fitted { psf, outside: 1.0 - inside })
    }

    /// As [`Psf::gaussian`], of `size` pixels.
    ///
    /// # Errors
    /// As [`Psf::gaussian`]; also if the number of sizes differs.
    pub fn gaussian_within(sigmas: &[f64], size: &[usize]) -> Result<Psf, PhysicsError> {
        let axes = sigmas.len();
        require(
            matches!(axes, 2 | 3) && size.len() == axes,
            "the number of axes of a Gaussian PSF",
            axes as f64,
            "2 or 3, with a size for each",
        )?;
        for &s in sigmas {
            require(
                s.is_finite() && s >= 0.0,
                "the sigma of a Gaussian PSF",
                s,
                "a finite number not below zero",
            )?;
        }
        super::check_size(Shape::new(size))?;
        let lines: Vec<Vec<f64>> = sigmas.iter().zip(size).map(|(&s, &n)| gaussian_line(s, n)).collect();
        let shape = Shape::new(size);
        let mut values = Vec::with_capacity(shape.len());
        for_each(shape, |i| values.push(lines.iter().zip(i).map(|(line, &p)| line[p]).product()));
        Psf::new(shape, values)
    }

    /// The Airy pattern of a plane in focus; `size` pixels of `pixel` each along Y and X.
    ///
    /// # Errors
    /// If a number is not positive, or the refractive index is below the aperture.
    pub fn airy(optics: &Optics, pixel: [f64; 2], size: [usize; 2]) -> Result<Psf, PhysicsError> {
        optics.check()?;
        super::check_size(Shape::from(size))?;
        pixel.iter().try_for_each(|&p| require_positive("the pixel size", p))?;
        let k = 2.0 * PI * optics.numerical_aperture / optics.wavelength;
        let intensity = |r: f64| {
            let v = k * r;
            if v < 1e-6 { 1.0 } else { (2.0 * j1(v) / v).powi(2) }
        };
        let shape = Shape::from(size);
        let mut values = Vec::with_capacity(shape.len());
        for_each(shape, |i| {
            let from_centre = |a: usize| pixel[a] * (i[a] as f64 - (size[a] / 2) as f64);
            values.push(intensity(from_centre(0).hypot(from_centre(1))));
        });
        Psf::new(shape, values)
    }

    /// The paraxial focus in three dimensions (Born and Wolf): the Airy pattern in the focal plane, and
    /// defocus along Z. `voxel` and `size` are along Z, Y, X.
    ///
    /// # Errors
    /// As [`Psf::airy`].
    pub fn born_wolf(optics: &Optics, voxel: [f64; 3], size: [usize; 3]) -> Result<Psf, PhysicsError> {
        optics.check()?;
        super::check_size(Shape::from(size))?;
        voxel.iter().try_for_each(|&p| require_positive("the voxel size", p))?;
        let k = 2.0 * PI / optics.wavelength;
        let lateral = k * optics.numerical_aperture;
        let axial = 0.5 * k * optics.numerical_aperture.powi(2) / optics.refractive_index;
        // |integral over the pupil's radius p of J0(lateral r p) exp(i axial z p^2) 2 p dp|^2.
        let intensity = |z: f64, r: f64| {
            let (mut re, mut im) = (0.0, 0.0);
            for panel in 0..PUPIL_PANELS {
                for (node, weight) in NODES.iter().zip(WEIGHTS) {
                    let p = (panel as f64 + 0.5 * (node + 1.0)) / PUPIL_PANELS as f64;
                    let amplitude = weight * p * j0(lateral * r * p);
                    let (sin, cos) = (axial * z * p * p).sin_cos();
                    re += amplitude * cos;
                    im += amplitude * sin;
                }
            }
            (re * re + im * im) / (PUPIL_PANELS * PUPIL_PANELS) as f64
        };
        // Radial symmetry: one table of radii for each plane, then pixels by linear interpolation.
        let centre = |a: usize, i: usize| voxel[a] * (i as f64 - (size[a] / 2) as f64);
        let reach =
            centre(1, size[1]).max(centre(1, 0).abs()).hypot(centre(2, size[2]).max(centre(2, 0).abs()));
        let step = voxel[1].min(voxel[2]).min(0.25 * optics.wavelength / optics.numerical_aperture) / 12.0;
        let radii = reach / step;
        let needed = "a size that light of this wavelength can fill";
        require(radii < (1u64 << 22) as f64, "the voxel size", voxel[1].max(voxel[2]), needed)?;
        let mut values = Vec::with_capacity(size.iter().product());
        for z in 0..size[0] {
            let table: Vec<f64> =
                (0..radii as usize + 3).map(|j| intensity(centre(0, z), step * j as f64)).collect();
            for y in 0..size[1] {
                for x in 0..size[2] {
                    let r = centre(1, y).hypot(centre(2, x)) / step;
                    let (j, t) = (r as usize, r.fract());
                    values.push(table[j] + t * (table[j + 1] - table[j]));
                }
            }
        }
        Psf::new(size, values)
    }
}

/// A Gaussian about the middle of `n` pixels.
fn gaussian_line(sigma: f64, n: usize) -> Vec<f64> {
    let pixel = |i: usize| {
        let x = i as f64 - (n / 2) as f64;
        if x == 0.0 { 1.0 } else { (-0.5 * (x / sigma).powi(2)).exp() }
    };
    (0..n).map(pixel).collect()
}
