//! Fourier ring correlation (shell correlation in volumes): the frequency up to which two images agree.
//!
//! The spectra of two independent images of one scene are correlated in rings around zero frequency; the first frequency at
//! which the correlation falls below a threshold is the resolution, in the unit of the pixel size. Axes may differ in
//! length and pixel size: rings are of physical frequency. A ring is as wide as one bin of the axis with the shortest
//! extent, ring `r` is centred on `r` times that, and rings go up to the lowest Nyquist frequency of the axes. The mean is
//! removed first, so that a window does not leak it into the first rings; there is no ring 0.
//!
//! A single image is split into its diagonal sub-images (the pixels of a checkerboard whose indices are all even and those
//! whose indices are all odd, and the corresponding pairs along the other diagonals). The two images of a pair are shifted
//! by half of their own pixels along every axis, which would lower the correlation by the cosine of a known phase; this
//! phase is removed in each bin. Two effects remain: their Nyquist frequency is half of the image's, and finer detail is
//! aliased. The split therefore gives resolutions coarser than four pixels, on images sampled at least that finely.

use crate::error::require_positive;
use crate::fourier::{forward, signed, unravel};
use crate::{ImageRef, MetricError};
use rustfft::num_complex::Complex;
use std::f64::consts::PI;

/// What the images are multiplied by before they are transformed, so that opposite borders fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taper {
    None,
    Hann,
    /// Flat but for the outer part of this share, half of it at each end; 1 is Hann.
    Tukey(f64),
}

/// One ring of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    /// Cycles per unit of the pixel size.
    pub frequency: f64,
    /// From -1 to 1; 0 where a spectrum has no power at all.
    pub correlation: f64,
    /// How many independent bins the ring holds: one of each pair of conjugates.
    pub bins: usize,
}

/// Correlation by frequency, from ring 1 outwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub rings: Vec<Ring>,
}

/// Where the correlation ceases to be evidence of detail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// 1/7, for the two halves of a data set.
    OneSeventh,
    Half,
    /// Half a bit of information a bin (van Heel and Schatz, 2005): higher in rings of few bins.
    HalfBit,
}

impl Threshold {
    pub fn at(self, ring: &Ring) -> f64 {
        match self {
            Threshold::OneSeventh => 1.0 / 7.0,
            Threshold::Half => 0.5,
            Threshold::HalfBit => {
                let root = 1.0 / (ring.bins as f64).sqrt();
                (0.2071 + 1.9102 * root) / (1.2071 + 0.9102 * root)
            }
        }
    }
}

/// What a curve says of the resolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resolution {
    /// The curve crosses here, by linear interpolation between rings; `length` is 1 / `frequency`.
    At { frequency: f64, length: f64 },
    /// The curve stays above: finer than the last ring, which the sampling limits.
    BeyondSampling,
    /// The first ring is already below: nothing agrees.
    Unresolved,
}

impl Curve {
    /// The first crossing of a threshold.
    pub fn resolution(&self, threshold: Threshold) -> Resolution {
        let excess = |ring: &Ring| ring.correlation - threshold.at(ring);
        let Some(below) = self.rings.iter().position(|r| excess(r) < 0.0) else {
            return Resolution::BeyondSampling;
        };
        if below == 0 {
            return Resolution::Unresolved;
        }
        let (a, b) = (&self.rings[below - 1], &self.rings[below]);
        let share = excess(a) / (excess(a) - excess(b));
        let frequency = a.frequency + share * (b.frequency - a.frequency);
        Resolution::At { frequency, length: 1.0 / frequency }
    }
}

/// The curve of two images of one scene. `pixel_size` has one entry an axis.
///
/// # Errors
/// If shapes differ, a pixel is not finite, an axis has fewer than 2 pixels, a pixel size or a taper's share is out of its range,
/// or pixel sizes differ so much that no ring is left.
pub fn two_images(
    a: ImageRef<'_>,
    b: ImageRef<'_>,
    pixel_size: &[f64],
    taper: Taper,
) -> Result<Curve, MetricError> {
    a.same_shape("second image", b)?;
    let mut rings = Sums::new(a.shape(), pixel_size)?;
    let spectrum = |image: ImageRef<'_>| tapered(image.data(), a.shape(), taper);
    rings.add(&spectrum(a)?, &spectrum(b)?, &vec![0.0; a.shape().len()]);
    Ok(rings.curve())
}

/// The curve of one image by its diagonal sub-images; the averages are over all diagonals.
///
/// # Errors
/// As [`two_images`], of the sub-images: an axis needs 4 pixels.
pub fn one_image(image: ImageRef<'_>, pixel_size: &[f64], taper: Taper) -> Result<Curve, MetricError> {
    let half: Vec<usize> = image.shape().iter().map(|s| s / 2).collect();
    let double: Vec<f64> = pixel_size.iter().map(|p| 2.0 * p).collect();
    let mut rings = Sums::new(&half, &double)?;
    let axes = half.len();
    // Diagonals: the first axis always starts even, the others either way.
    for choice in 0..1usize << (axes - 1) {
        let first: Vec<usize> =
            (0..axes).map(|axis| if axis == 0 { 0 } else { choice >> (axis - 1) & 1 }).collect();
        let second: Vec<usize> = first.iter().map(|o| 1 - o).collect();
        let shift: Vec<f64> = first.iter().map(|&o| 0.5 - o as f64).collect();
        let part = |offset: &[usize]| tapered(&every_second(image, offset, &half), &half, taper);
        rings.add(&part(&first)?, &part(&second)?, &shift);
    }
    Ok(rings.curve())
}

/// The pixels at `offset` and every second one behind it.
fn every_second(image: ImageRef<'_>, offset: &[usize], half: &[usize]) -> Vec<f64> {
    let mut at = vec![0; half.len()];
    let place = |at: &[usize]| {
        let index = |axis: usize| 2 * at[axis] + offset[axis];
        (0..at.len()).fold(0, |place, axis| place * image.shape()[axis] + index(axis))
    };
    (0..half.iter().product())
        .map(|i| {
            unravel(i, half, &mut at);
            image.data()[place(&at)]
        })
        .collect()
}

/// The spectrum of an image without its mean, under the taper.
fn tapered(data: &[f64], shape: &[usize], taper: Taper) -> Result<Vec<Complex<f64>>, MetricError> {
    if let Some(index) = data.iter().position(|x| !x.is_finite()) {
        return Err(MetricError::Pixel { what: "image", index, got: data[index], needed: "a finite value" });
    }
    // Differences from one pixel first, so that a flat image is exactly zero: what rounding leaves of a mean agrees in any two
    // images.
    let first = data[0];
    let mean = data.iter().map(|x| x - first).sum::<f64>() / data.len() as f64;
    let weights = shape.iter().map(|&n| weights(n, taper)).collect::<Result<Vec<_>, _>>()?;
    let mut at = vec![0; shape.len()];
    let weighted = data.iter().enumerate().map(|(i, x)| {
        unravel(i, shape, &mut at);
        at.iter().zip(&weights).fold((x - first) - mean, |x, (&k, w)| x * w[k])
    });
    Ok(forward(&weighted.collect::<Vec<_>>(), shape))
}

fn weights(n: usize, taper: Taper) -> Result<Vec<f64>, MetricError> {
    let share = match taper {
        Taper::None => 0.0,
        Taper::Hann => 1.0,
        Taper::Tukey(share) => share,
    };
    crate::error::require((0.0..=1.0).contains(&share), "the taper's share", share, "0 to 1")?;
    // Pixel centres as shares of the extent, so that no weight is zero.
    let weight = |k: usize| {
        let x = (k as f64 + 0.5) / n as f64;
        let edge = x.min(1.0 - x);
        if edge < 0.5 * share { 0.5 - 0.5 * (2.0 * PI * edge / share).cos() } else { 1.0 }
    };
    Ok((0..n).map(weight).collect())
}

/// The sums of each ring.
struct Sums {
    shape: Vec<usize>,
    pixel_size: Vec<f64>,
    width: f64,
    /// Cross-spectrum, power of the first, power of the second.
    sums: Vec<[f64; 3]>,
    bins: Vec<usize>,
}

impl Sums {
    fn new(shape: &[usize], pixel_size: &[f64]) -> Result<Sums, MetricError> {
        if pixel_size.len() != shape.len() {
            let got = pixel_size.len();
            return Err(MetricError::Count { what: "the pixel size", got, needed: "one an axis" });
        }
        if shape.iter().any(|&n| n < 2) {
            return Err(MetricError::Window { window: 2, shape: shape.to_vec() });
        }
        pixel_size.iter().try_for_each(|&p| require_positive("the pixel size", p))?;
        let axes = || shape.iter().zip(pixel_size);
        let width = axes().map(|(&n, p)| 1.0 / (n as f64 * p)).fold(0.0, f64::max);
        let nyquist = pixel_size.iter().map(|p| 0.5 / p).fold(f64::INFINITY, f64::min);
        // The division may fall short of a whole number by its rounding.
        let count = ((nyquist / width) * (1.0 + 1e-12)).floor() as usize;
        if count == 0 {
            let (what, needed) = ("rings below the lowest Nyquist frequency", "one or more");
            return Err(MetricError::Count { what, got: 0, needed });
        }
        let (shape, pixel_size) = (shape.to_vec(), pixel_size.to_vec());
        Ok(Sums { shape, pixel_size, width, sums: vec![[0.0; 3]; count + 1], bins: vec![0; count + 1] })
    }

    /// Adds a pair of spectra, the second of an image displaced by `shift` pixels.
    fn add(&mut self, a: &[Complex<f64>], b: &[Complex<f64>], shift: &[f64]) {
        let mut at = vec![0; self.shape.len()];
        self.bins.fill(0);
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            unravel(i, &self.shape, &mut at);
            let (mut square, mut turns) = (0.0, 0.0);
            for axis in 0..at.len() {
                let n = self.shape[axis] as f64;
                let k = signed(at[axis], self.shape[axis]);
                square += (k / (n * self.pixel_size[axis])).powi(2);
                turns += k * shift[axis] / n;
            }
            let ring = (square.sqrt() / self.width).round() as usize;
            let Some(sums) = self.sums.get_mut(ring) else { continue };
            let back = Complex::from_polar(1.0, -2.0 * PI * turns);
            let parts = [(a * (b * back).conj()).re, a.norm_sqr(), b.norm_sqr()];
            sums.iter_mut().zip(parts).for_each(|(s, p)| *s += p);
            self.bins[ring] += 1;
        }
    }

    fn curve(&self) -> Curve {
        let ring = |r: usize| {
            let [cross, a, b] = self.sums[r];
            let power = (a * b).sqrt();
            let correlation = if power > 0.0 { cross / power } else { 0.0 };
            Ring { frequency: r as f64 * self.width, correlation, bins: self.bins[r].div_ceil(2) }
        };
        Curve { rings: (1..self.sums.len()).map(ring).collect() }
    }
}

#[cfg(test)]
#[path = "frc_tests.rs"]
mod tests;
