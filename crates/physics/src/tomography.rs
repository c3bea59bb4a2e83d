//! From CT measurements to slices: line integrals from counts, the centre of rotation, and filtered backprojection.
//!
//! Everything is for parallel beams, and a sinogram has a row for each angle. [`FilteredBackprojection`] is
//! scikit-image's `iradon` with `circle=True`, linear interpolation and the same filters. In addition, the centre of
//! rotation need not be the middle of the detector. A slice is in the unit of the line integrals per pixel.

use crate::error::{PhysicsError, require, require_length};
use crate::operator::fourier::{Side, transform};
use rustfft::num_complex::Complex;
use std::f64::consts::PI;

/// The filter of a sinogram: the ramp, alone or attenuated at high frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Ramp,
    SheppLogan,
    Cosine,
    Hamming,
    Hann,
}

/// Filters by name.
pub const FILTERS: [(&str, Filter); 5] = [
    ("ramp", Filter::Ramp),
    ("shepp-logan", Filter::SheppLogan),
    ("cosine", Filter::Cosine),
    ("hamming", Filter::Hamming),
    ("hann", Filter::Hann),
];

impl Filter {
    /// # Errors
    /// If there is no filter of that name.
    pub fn named(name: &str) -> Result<Filter, PhysicsError> {
        FILTERS.iter().find(|(n, _)| *n == name).map(|(_, f)| *f).ok_or_else(|| PhysicsError::Unknown {
            kind: "filter",
            name: name.into(),
            known: FILTERS.map(|(n, _)| n).join(", "),
        })
    }

    /// Its factor at each frequency of a transform of this even length.
    fn factors(self, length: usize) -> Vec<f64> {
        // The ramp by the transform of its kernel, which has no bias at frequency zero (Kak and Slaney, equation 61).
        let mut kernel = vec![Complex::new(0.0, 0.0); length];
        kernel[0].re = 0.25;
        for i in (1..length).step_by(2) {
            let distance = i.min(length - i) as f64;
            kernel[i].re = -1.0 / (PI * distance).powi(2);
        }
        let plan = Side::plan([1, 1, length]);
        transform(&mut kernel, [1, 1, length], plan.forward());
        // From -1 to 1 of half the sampling rate.
        let turn = |i: usize| {
            let signed = if i < length.div_ceil(2) { i as f64 } else { i as f64 - length as f64 };
            2.0 * signed / length as f64
        };
        // numpy's windows are symmetric in length - 1 and then moved by half of the length.
        let window = |i: usize| 2.0 * PI * ((i + length / 2) % length) as f64 / (length - 1) as f64;
        let weaker = |i: usize| match self {
            Filter::Ramp => 1.0,
            Filter::SheppLogan if i == 0 => 1.0,
            Filter::SheppLogan => libm::sin(0.5 * PI * turn(i)) / (0.5 * PI * turn(i)),
            Filter::Cosine => libm::sin(PI * ((i + length / 2) % length) as f64 / length as f64),
            Filter::Hamming => 0.54 - 0.46 * libm::cos(window(i)),
            Filter::Hann => 0.5 - 0.5 * libm::cos(window(i)),
        };
        kernel.iter().enumerate().map(|(i, v)| 2.0 * v.re * weaker(i)).collect()
    }
}

/// Slices from sinograms with a given number of detector columns and angles; see the module.
pub struct FilteredBackprojection {
    places: usize,
    angles: Vec<f64>,
    side: usize,
    centre: f64,
    factors: Vec<f64>,
    plan: Side<f64>,
}

impl FilteredBackprojection {
    /// For a detector with this number of columns (`places`) and angles in degrees. The centre of rotation is in
    /// columns; that of scikit-image is `places / 2`.
    ///
    /// # Errors
    /// If there are no columns or angles, or the centre is not on the detector.
    pub fn new(
        places: usize,
        angles: &[f64],
        side: usize,
        centre: f64,
        filter: Filter,
    ) -> Result<FilteredBackprojection, PhysicsError> {
        require_places(places)?;
        require(side > 0, "the side of a slice", side as f64, "at least one pixel")?;
        require(!angles.is_empty(), "the number of angles", 0.0, "at least one")?;
        // The first place begins half of one before its middle, which is where places that were averaged may have it.
        let on_it = (-0.5..places as f64).contains(&centre);
        require(on_it, "the centre of rotation", centre, "a place on the detector")?;
        let length = (2 * padded(places)).next_power_of_two().max(64);
        let (factors, plan) = (filter.factors(length), Side::plan([1, 1, length]));
        Ok(FilteredBackprojection { places, angles: angles.to_vec(), side, centre, factors, plan })
    }

    /// The slice of a sinogram, zero outside the circle that fits into it.
    ///
    /// # Errors
    /// If the sinogram does not have a row for each angle.
    pub fn slice(&self, sinogram: &[f64]) -> Result<Vec<f64>, PhysicsError> {
        require_length("a sinogram", sinogram.len(), self.angles.len() * self.places)?;
        let width = padded(self.places);
        let before = width / 2 - self.places / 2;
        let middle = (self.side / 2) as f64;
        let mut image = vec![0.0; self.side * self.side];
        for (row, angle) in sinogram.chunks_exact(self.places).zip(&self.angles) {
            let filtered = &self.filtered(row, before)[..width];
            let (sin, cos) = (libm::sin(angle.to_radians()), libm::cos(angle.to_radians()));
            for (y, line) in image.chunks_exact_mut(self.side).enumerate() {
                for (x, pixel) in line.iter_mut().enumerate() {
                    let t = (x as f64 - middle) * cos - (y as f64 - middle) * sin;
                    *pixel += at(filtered, t + self.centre + before as f64);
                }
            }
        }
        let scale = PI / (2.0 * self.angles.len() as f64);
        for (y, line) in image.chunks_exact_mut(self.side).enumerate() {
            for (x, pixel) in line.iter_mut().enumerate() {
                *pixel = if in_circle(self.side, y, x) { *pixel * scale } else { 0.0 };
            }
        }
        Ok(image)
    }

    fn filtered(&self, row: &[f64], before: usize) -> Vec<f64> {
        let length = self.factors.len();
        let mut line = vec![Complex::new(0.0, 0.0); length];
        row.iter().zip(&mut line[before..]).for_each(|(v, line)| line.re = *v);
        transform(&mut line, [1, 1, length], self.plan.forward());
        line.iter_mut().zip(&self.factors).for_each(|(v, f)| *v *= *f);
        transform(&mut line, [1, 1, length], self.plan.inverse());
        line.iter().map(|v| v.re / length as f64).collect()
    }
}

/// Whether a pixel is in the circle that fits into a square slice, about the pixel `side / 2` as in scikit-image. Only
/// pixels inside are crossed by rays of every angle.
pub fn in_circle(side: usize, y: usize, x: usize) -> bool {
    let middle = (side / 2) as f64;
    (x as f64 - middle).powi(2) + (y as f64 - middle).powi(2) <= middle * middle
}

/// Places with zeros around them, as far as a corner of the slice looks.
fn padded(places: usize) -> usize {
    (2f64.sqrt() * places as f64).ceil() as usize
}

/// Linear interpolation, zero outside.
fn at(line: &[f64], place: f64) -> f64 {
    if !(place >= 0.0 && place <= (line.len() - 1) as f64) {
        return 0.0;
    }
    let left = place.floor() as usize;
    let part = place - left as f64;
    if part == 0.0 { line[left] } else { line[left] + part * (line[left + 1] - line[left]) }
}

/// Line integrals from counts: minus the logarithm of the transmission, from flats (no object) and darks (no light),
/// each the mean of its frames per column. Transmissions below a thousandth are set to a thousandth.
///
/// # Errors
/// If there are no columns, flats and darks do not have one value per column, the counts are not whole rows, or a
/// column has no light.
pub fn line_integrals(counts: &[f64], flat: &[f64], dark: &[f64]) -> Result<Vec<f64>, PhysicsError> {
    require_places(flat.len())?;
    require_length("the darks of a detector", dark.len(), flat.len())?;
    let places = flat.len();
    require_length("projections", counts.len(), counts.len() / places * places)?;
    for (index, (flat, dark)) in flat.iter().zip(dark).enumerate() {
        let light = flat - dark;
        if light.is_nan() || light <= 0.0 {
            let needed = "a flat that is brighter than the dark";
            return Err(PhysicsError::Pixel {
                name: "the light of a detector's place",
                index,
                got: light,
                needed,
            });
        }
    }
    let left = |(i, count): (usize, &f64)| (count - dark[i % places]) / (flat[i % places] - dark[i % places]);
    Ok(counts.iter().enumerate().map(|v| -left(v).max(1e-3).ln()).collect())
}

/// The centre of rotation in detector columns: accurate to an eighth without noise, and to half a column if the noise
/// is 3 % of the largest line integral. For detectors with 256 columns and more, `places / 128` columns are averaged,
/// and the accuracy is that number of times lower.
///
/// For any object, the centre of mass of its projections is a sine of the angle about the centre of rotation, which is
/// found by least squares. Near it, the centre is chosen whose slice has the fewest negative values, because a wrong
/// centre causes negative values around all objects. The angles must span nearly half a turn.
///
/// # Errors
/// If there are no columns, fewer than three angles, or no object.
pub fn centre_of_rotation(sinogram: &[f64], places: usize, angles: &[f64]) -> Result<f64, PhysicsError> {
    require_places(places)?;
    require_length("a sinogram", sinogram.len(), places * angles.len())?;
    if angles.len() < 3 {
        return Err(PhysicsError::TooFew { what: "angles", got: angles.len(), needed: 3 });
    }
    // What is empty has noise about zero; counting it as light would pull the mean to the middle.
    let highest = sinogram.iter().fold(0f64, |a, b| a.max(*b));
    require(highest > 0.0, "the largest line integral", highest, "an object in the beam")?;
    let seen: Vec<f64> = sinogram.iter().map(|v| if *v > 0.1 * highest { *v } else { 0.0 }).collect();
    let first = fitted_centre(&seen, places, angles)?.clamp(0.0, places as f64 - 1.0);
    // Coarser places make the search fast.
    let step = (places / 128).max(1);
    let coarse = binned_places(sinogram, places, step);
    let width = places / step;
    let to_coarse = |centre: f64| ((centre + 0.5) / step as f64 - 0.5).clamp(0.0, width as f64 - 1.0);
    let worst = |centre: f64| -> Result<f64, PhysicsError> {
        let back = FilteredBackprojection::new(width, angles, width, to_coarse(centre), Filter::Ramp)?;
        Ok(back.slice(&coarse)?.iter().map(|v| v.min(0.0).powi(2)).sum())
    };
    let mut best = (worst(first)?, first);
    for (reach, by) in [(4.0, 1.0), (0.75, 0.25), (0.125, 0.125)] {
        let middle = best.1;
        let steps = (reach / by) as i32;
        for i in (-steps..=steps).filter(|i| *i != 0) {
            let centre = (middle + f64::from(i) * by * step as f64).clamp(0.0, places as f64 - 1.0);
            let found = (worst(centre)?, centre);
            if found.0 < best.0 {
                best = found;
            }
        }
    }
    Ok(best.1)
}

fn require_places(places: usize) -> Result<(), PhysicsError> {
    require(places > 0, "the number of places of a detector", places as f64, "at least one")
}

/// Means over blocks of neighbouring detector columns; columns that do not fill a block are left out.
pub fn binned_places(sinogram: &[f64], places: usize, block: usize) -> Vec<f64> {
    let mean = |b: &[f64]| b.iter().sum::<f64>() / block as f64;
    sinogram.chunks_exact(places).flat_map(|row| row.chunks_exact(block).map(mean)).collect()
}

/// The middle of the sine that the mean places go by.
fn fitted_centre(seen: &[f64], places: usize, angles: &[f64]) -> Result<f64, PhysicsError> {
    // Normal equations of 1, cos and sin.
    let mut rows = [[0.0; 4]; 3];
    for (row, angle) in seen.chunks_exact(places).zip(angles) {
        let total: f64 = row.iter().sum();
        if total <= 0.0 {
            continue;
        }
        let mean = row.iter().enumerate().map(|(i, v)| i as f64 * v).sum::<f64>() / total;
        let terms = [1.0, libm::cos(angle.to_radians()), libm::sin(angle.to_radians()), mean];
        for (row, by) in rows.iter_mut().zip(terms) {
            row.iter_mut().zip(terms).for_each(|(sum, term)| *sum += by * term);
        }
    }
    for i in 0..3 {
        let pivot = rows[i];
        require(pivot[i].abs() > 1e-9, "the span of the angles", pivot[i], "angles over half a turn")?;
        for (j, row) in rows.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = row[i] / pivot[i];
            row.iter_mut().zip(pivot).for_each(|(v, p)| *v -= factor * p);
            debug_assert!(i != j);
        }
    }
    Ok(rows[0][3] / rows[0][0])
}
