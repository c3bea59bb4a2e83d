//! Prepares a measured image for the network: reads it in bands, fills in and marks invalid pixels, estimates saturated
//! ones, converts counts to electrons, and estimates the background.

use super::Error;
use super::field::{Field, Scratch};
use crate::invalid::{Filled, Invalid};
use crate::saturated::{Least, NoiseLevel, raise};
use clearshot_model::signal::{peak, repeated};
use clearshot_model::{ModelError, Photons};
use clearshot_physics::Correlation;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// An image that can be read in bands, channels last, in the unit of the file.
pub trait Source {
    /// (Z,) Y, X.
    fn size(&self) -> Vec<usize>;
    fn channels(&self) -> usize;
    /// Rows of one plane, as many values as rows, columns and channels say.
    ///
    /// # Errors
    /// What the file has.
    fn rows(&self, z: usize, rows: Range<usize>) -> Result<Vec<f32>, String>;
}

/// An image in memory, channels last.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub values: &'a [f32],
    pub size: &'a [usize],
    pub channels: usize,
}

impl Source for Values<'_> {
    fn size(&self) -> Vec<usize> {
        self.size.to_vec()
    }

    fn channels(&self) -> usize {
        self.channels
    }

    fn rows(&self, z: usize, rows: Range<usize>) -> Result<Vec<f32>, String> {
        let (height, row) = match self.size {
            [.., y, x] => (*y, x * self.channels),
            _ => return Err(format!("an image of {:?} pixels has no Y and X", self.size)),
        };
        let at = |y: usize| (z * height + y) * row;
        let part = self.values.get(at(rows.start)..at(rows.end));
        part.map(<[f32]>::to_vec).ok_or_else(|| format!("fewer values than {:?} pixels need", self.size))
    }
}

/// The parameters that convert counts to electrons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Camera {
    /// Electrons per count.
    pub gain: f64,
    /// Counts in the dark.
    #[serde(default)]
    pub offset: f64,
    /// Standard deviation of the read noise in electrons.
    #[serde(default)]
    pub read_noise: f64,
    /// Mean electrons in empty regions. Default: estimated from the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<f64>,
    /// The correlation of the noise between neighbouring pixels.
    #[serde(default, skip_serializing_if = "Correlation::is_white")]
    pub correlation: Correlation,
}

impl Default for Camera {
    /// Electrons as they are, without read noise, independent from pixel to pixel.
    fn default() -> Camera {
        let (gain, offset, read_noise) = (1.0, 0.0, 0.0);
        Camera { gain, offset, read_noise, background: None, correlation: Correlation::WHITE }
    }
}

impl Camera {
    /// # Errors
    /// Names the impossible parameter.
    pub fn check(&self) -> Result<(), Error> {
        let not_negative = "a finite number not below zero";
        let background = self.background.unwrap_or(0.0);
        for (name, got, fits, needed) in [
            ("the gain", self.gain, self.gain > 0.0, "a finite number above zero (electrons per count)"),
            ("the offset", self.offset, true, "a finite number"),
            ("the read noise", self.read_noise, self.read_noise >= 0.0, not_negative),
            ("the background", background, background >= 0.0, not_negative),
        ] {
            if !(got.is_finite() && fits) {
                return Err(Error::Number { name, got, needed });
            }
        }
        Ok(())
    }

    pub fn electrons(&self, counts: f32) -> f32 {
        ((f64::from(counts) - self.offset) * self.gain) as f32
    }

    pub fn counts(&self, electrons: f32) -> f32 {
        (f64::from(electrons) / self.gain + self.offset) as f32
    }

    /// The standard deviation of the noise at a mean of this many counts, in counts.
    pub fn deviation(&self, counts: f64) -> f64 {
        let electrons = (counts - self.offset) * self.gain;
        (electrons.max(0.0) + self.read_noise * self.read_noise).sqrt() / self.gain
    }
}

/// See the module.
pub struct Measured {
    pub size: Vec<usize>,
    pub channels: usize,
    /// In the unit of the file; invalid pixels have values from their neighbours, and saturated ones their expected
    /// measurement.
    pub values: Field,
    /// False for pixels that were filled in or estimated; `None` if all are valid.
    pub valid: Option<Vec<bool>>,
    /// The number of pixels that were filled in.
    pub filled: usize,
    /// The number of saturated pixels.
    pub saturated: usize,
    /// How low the values of saturated pixels may be restored.
    least: Least,
}

/// Rows that are read at once.
const BAND: usize = 256;
/// The share of pixels that may be missing.
const MOST_MISSING: f64 = 0.5;

impl Measured {
    /// # Errors
    /// If the file cannot be read, has no pixels, or most of them are NaN or infinite.
    pub fn read(source: &dyn Source, scratch: &Scratch) -> Result<Measured, Error> {
        let (size, channels) = (source.size(), source.channels());
        let pixels: usize = size.iter().product();
        if !(2..=3).contains(&size.len()) || pixels == 0 || channels == 0 {
            return Err(Error::Size { size });
        }
        let (height, width) = (size[size.len() - 2], size[size.len() - 1]);
        let mut values = scratch.field(pixels * channels)?;
        let mut at = 0;
        for z in 0..pixels / (height * width) {
            for y in (0..height).step_by(BAND) {
                let rows = y..(y + BAND).min(height);
                let expected = rows.len() * width * channels;
                let part = source.rows(z, rows).map_err(|what| Error::Read { what })?;
                if part.len() != expected {
                    let what = format!("{} values came where {expected} belong", part.len());
                    return Err(Error::Read { what });
                }
                values[at..at + expected].copy_from_slice(&part);
                at += expected;
            }
        }
        let (valid, least) = (None, Least::new());
        let mut image = Measured { size, channels, values, valid, filled: 0, saturated: 0, least };
        image.fill()?;
        Ok(image)
    }

    /// Whether each value holds a measurement.
    pub(in crate::learned) fn valid_values(&self) -> Vec<bool> {
        match &self.valid {
            Some(valid) => valid.iter().flat_map(|&v| std::iter::repeat_n(v, self.channels)).collect(),
            None => vec![true; self.values.len()],
        }
    }

    /// The same image with other values, for example with a little noise added.
    pub fn with_values(&self, values: Field) -> Measured {
        let (size, valid, least) = (self.size.clone(), self.valid.clone(), self.least.clone());
        Measured { size, valid, least, values, ..*self }
    }

    /// An image computed from this one, with these valid pixels and without bounds for saturated ones.
    pub(in crate::learned) fn derived(&self, values: Field, valid: Option<Vec<bool>>) -> Measured {
        Measured { size: self.size.clone(), valid, least: Least::new(), values, ..*self }
    }

    /// The same with every pixel repeated along each axis; filled pixels count as measured.
    ///
    /// # Errors
    /// If there is not enough memory or disk space.
    pub fn repeated(&self, factor: usize, scratch: &Scratch) -> Result<Measured, Error> {
        let own = repeated(&self.values, &self.size, self.channels, factor);
        let mut values = scratch.field(own.len())?;
        values.copy_from_slice(&own);
        let size = self.size.iter().map(|n| n * factor).collect();
        let (valid, least) = (None, Least::new());
        Ok(Measured { size, valid, least, values, ..*self })
    }

    /// The middle of the image, of at most `side` pixels along each axis, as it is.
    pub(in crate::learned) fn middle(&self, side: usize, scratch: &Scratch) -> Result<Measured, Error> {
        let size: Vec<usize> = self.size.iter().map(|&n| n.min(side)).collect();
        let first: Vec<usize> = self.size.iter().zip(&size).map(|(n, s)| (n - s) / 2).collect();
        self.crop(&first, &size, scratch)
    }

    /// A part of the image, as it is: `size` pixels from `first` on along each axis.
    pub(in crate::learned) fn crop(
        &self,
        first: &[usize],
        size: &[usize],
        scratch: &Scratch,
    ) -> Result<Measured, Error> {
        let (c, pixels) = (self.channels, size.iter().product::<usize>());
        let place = |mut i: usize| {
            let (mut at, mut stride) = (0, 1);
            for a in (0..size.len()).rev() {
                at += (first[a] + i % size[a]) * stride;
                i /= size[a];
                stride *= self.size[a];
            }
            at
        };
        let mut values = scratch.field(pixels * c)?;
        for (i, to) in values.chunks_exact_mut(c).enumerate() {
            to.copy_from_slice(&self.values[place(i) * c..(place(i) + 1) * c]);
        }
        let valid = self.valid.as_ref().map(|v| (0..pixels).map(|i| v[place(i)]).collect());
        let (size, least) = (size.to_vec(), Least::new());
        let (filled, saturated) = (self.filled, self.saturated);
        Ok(Measured { size, channels: c, values, valid, filled, saturated, least })
    }

    /// Treats pixels at or above `limit`, in the unit of the file, as saturated: they no longer count as measured, and
    /// they bound the restored image from below. Models are trained on clipped images and get these pixels unchanged,
    /// except defects of the sensor, which are filled in.
    pub fn saturate(&mut self, limit: f32, noise: NoiseLevel) {
        let (c, pixels) = (self.channels, self.values.len() / self.channels);
        let mut valid = self.valid.clone().unwrap_or_else(|| vec![true; pixels]);
        // What was filled is not a measurement, and stays what it is.
        let full = |p: usize, v: &Field| valid[p] && v[p * c..(p + 1) * c].iter().any(|v| *v >= limit);
        let found: Vec<usize> = (0..pixels).filter(|&p| full(p, &self.values)).collect();
        if found.is_empty() {
            return;
        }
        self.saturated = found.len();
        let filled: Vec<bool> = valid.iter().map(|v| !v).collect();
        let mut least = Least::new();
        self.for_each_plane(&filled, Some(limit), noise, |at, found| {
            least.extend(found.least.iter().map(|&(i, v)| (at(i), v)));
        });
        self.least = least;
        found.iter().for_each(|&p| valid[p] = false);
        self.valid = Some(valid);
    }

    /// Raises the restored image to the lower bounds of its saturated pixels.
    pub fn raise(&self, restored: &mut [f32]) {
        raise(restored, &self.least);
    }

    /// Fills the marked pixels of every plane and channel, and estimates those at the limit; `found` hears what was found and
    /// where a plane's pixels lie.
    fn for_each_plane(
        &mut self,
        marked: &[bool],
        limit: Option<f32>,
        noise: NoiseLevel,
        mut found: impl FnMut(&dyn Fn(usize) -> usize, &Filled),
    ) {
        let (c, shape) = (self.channels, [self.size[self.size.len() - 2], self.size[self.size.len() - 1]]);
        let pixels = shape[0] * shape[1];
        for (z, channel) in (0..marked.len() / pixels).flat_map(|z| (0..c).map(move |ch| (z, ch))) {
            let at = move |i: usize| (z * pixels + i) * c + channel;
            let plane: Vec<f32> = (0..pixels).map(|i| self.values[at(i)]).collect();
            let marks = &marked[z * pixels..(z + 1) * pixels];
            let filled = Invalid::find(&plane, limit, Some(marks)).filled(&plane, &shape, noise);
            for (i, &v) in filled.values.iter().enumerate() {
                let cut_off = limit.is_some() && plane[i].is_finite() && !marks[i];
                self.values[at(i)] = if cut_off { v.min(plane[i]) } else { v };
            }
            found(&at, &filled);
        }
    }

    /// Gives pixels that are not finite in a channel the mean of their neighbours in every channel, from the edges of gaps inwards.
    /// A plane without a finite pixel stays dark.
    fn fill(&mut self) -> Result<(), Error> {
        let c = self.channels;
        let marked: Vec<bool> =
            self.values.chunks_exact(c).map(|p| p.iter().any(|v| !v.is_finite())).collect();
        self.filled = marked.iter().filter(|m| **m).count();
        if self.filled == 0 {
            return Ok(());
        }
        if self.filled as f64 > MOST_MISSING * marked.len() as f64 {
            return Err(Error::Missing { missing: self.filled, pixels: marked.len() });
        }
        self.for_each_plane(&marked, None, NoiseLevel::Unknown, |_, _| ());
        self.valid = Some(marked.into_iter().map(|m| !m).collect());
        Ok(())
    }

    /// The scale of the image: background and peak over all its planes and channels.
    ///
    /// # Errors
    /// If a camera parameter is impossible.
    pub fn photons(&self, camera: &Camera) -> Result<Photons, ModelError> {
        let found = || background(self, camera);
        let background = camera.background.unwrap_or_else(found);
        let (height, width) = (self.size[self.size.len() - 2], self.size[self.size.len() - 1]);
        let planes = self.values.len() / (height * width * self.channels);
        let mut highest = 0.0f64;
        let mut plane = vec![0.0; height * width];
        // Saturated pixels are the brightest: what they are expected to have measured counts here.
        let mut counts = self.valid.clone();
        if let Some(counts) = &mut counts {
            self.least.iter().for_each(|&(i, _)| counts[i / self.channels] = true);
        }
        for (z, c) in (0..planes).flat_map(|z| (0..self.channels).map(move |c| (z, c))) {
            for (i, e) in plane.iter_mut().enumerate() {
                let at = z * height * width + i;
                let holds = counts.as_ref().is_none_or(|v| v[at]);
                *e = if holds { camera.electrons(self.values[at * self.channels + c]) } else { f32::NAN };
            }
            highest = highest.max(peak(&plane, [height, width], background, camera.read_noise));
        }
        Ok(Photons::new(background, camera.read_noise, highest)?.with_correlation(camera.correlation))
    }
}

/// The side of the blocks whose means tell the background, smaller where there would be too few of them, and the share of
/// them that is dark.
const BLOCK: usize = 12;
const LEAST_BLOCK: usize = 3;
const BLOCKS: usize = 28;
const DARK: f64 = 0.1;
/// By how many standard deviations the middle of the lowest tenth of normal numbers lies below their mean.
const LOWEST_TENTH: f64 = 1.645;

/// Mean electrons in the darkest regions of the image, see [`darkest`].
pub fn background(image: &Measured, camera: &Camera) -> f64 {
    let (height, width) = (image.size[image.size.len() - 2], image.size[image.size.len() - 1]);
    let c = image.channels;
    let planes = image.values.len() / (height * width * c);
    let fits = ((planes * height * width / BLOCKS) as f64).sqrt() as usize;
    let side = fits.clamp(LEAST_BLOCK, BLOCK).min(height).min(width);
    let mut means = Vec::new();
    for plane in 0..planes {
        for y in (0..=height - side).step_by(side) {
            for x in (0..=width - side).step_by(side) {
                let pixels = (0..side).flat_map(|j| (0..side).map(move |i| (y + j) * width + x + i));
                let (mut sum, mut count) = (0.0, 0usize);
                for at in pixels.map(|p| plane * height * width + p) {
                    if image.valid.as_ref().is_none_or(|v| v[at]) {
                        sum += (0..c).map(|ch| f64::from(image.values[at * c + ch])).sum::<f64>();
                        count += c;
                    }
                }
                if count > side * side * c / 2 {
                    means.push((sum / count as f64 - camera.offset) * camera.gain);
                }
            }
        }
    }
    means.sort_by(f64::total_cmp);
    darkest(&means, camera.read_noise, side as f64 * (c as f64).sqrt())
}

/// Mean electrons of the darkest regions, from block means in ascending order: the median of the lowest tenth,
/// corrected for the bias due to noise. `root` is the square root of the number of values in a block. Zero if there is
/// no block.
pub fn darkest(means: &[f64], read_noise: f64, root: f64) -> f64 {
    let Some(last) = means.len().checked_sub(1) else { return 0.0 };
    let lowest = means[((means.len() as f64 * DARK * 0.5) as usize).min(last)];
    let noise = (lowest.max(0.0) + read_noise.powi(2)).sqrt() / root;
    // A handful of blocks has no tenth.
    let share = (means.len() as f64 * DARK).min(1.0);
    (lowest + share * LOWEST_TENTH * noise).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn measured(values: &[f32], size: &[usize]) -> Result<Measured, Error> {
        Measured::read(&Values { values, size, channels: 1 }, &Scratch::new(usize::MAX, None))
    }

    #[test]
    fn pixels_that_are_no_numbers_are_filled_by_their_neighbours() {
        let mut values: Vec<f32> = (0..600 * 7).map(|i| (i % 7) as f32).collect();
        (values[0], values[7 * 300 + 3], values[7 * 599 + 6]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let image = measured(&values, &[600, 7]).unwrap();
        assert_eq!(image.filled, 3);
        assert_eq!(image.valid.as_ref().unwrap().iter().filter(|v| !**v).count(), 3);
        // The mean of 1, 0, 1; of the eight around; of 5, 5, 6.
        assert!((image.values[0] - 2.0 / 3.0).abs() < 1e-6);
        assert!((image.values[7 * 300 + 3] - 3.0).abs() < 1e-6);
        assert!((image.values[7 * 599 + 6] - 16.0 / 3.0).abs() < 1e-6);
        let most = [f32::NAN, f32::NAN, f32::NAN, 1.0];
        assert!(matches!(measured(&most, &[2, 2]), Err(Error::Missing { missing: 3, pixels: 4 })));
        assert!(measured(&[], &[0, 3]).is_err() && measured(&[1.0], &[1]).is_err());
    }

    #[test]
    fn the_background_is_found_under_noise() {
        let camera = Camera { gain: 2.0, offset: 100.0, read_noise: 1.5, ..Camera::default() };
        let mut noise = vec![0.0; 240 * 240];
        Key { seed: 4, step: 0, stream: 0 }.fill_normal(0, &mut noise);
        let values: Vec<f32> = noise
            .iter()
            .enumerate()
            .map(|(i, n)| {
                let light = if i % 240 < 120 { 3.0 } else { 60.0 };
                camera.counts(light + n * (light + 2.25f32).sqrt())
            })
            .collect();
        let image = measured(&values, &[240, 240]).unwrap();
        let found = background(&image, &camera);
        assert!((found - 3.0).abs() < 0.1, "{found}");
        let p = image.photons(&camera).unwrap();
        assert!((p.peak - 57.0).abs() < 12.0 && p.background == found, "{p:?}");
        assert_eq!(image.photons(&Camera { background: Some(7.0), ..camera }).unwrap().background, 7.0);
        assert_eq!(
            background(&measured(&[0.0; 9], &[3, 3]).unwrap(), &Camera { offset: 5.0, ..camera }),
            0.0
        );
    }
}
