//! Images that are so bright that the errors of a network may exceed the noise.
//!
//! The relative noise of bright pixels is small, and the errors of a network should be smaller. Near the brightest
//! images of its training, and if a few pixels are far brighter than the rest, they are not. Images that are brighter
//! still are presented with more noise than they have, under conditions that did not occur in training, so that the
//! network may remove detail as noise or add structure.
//!
//! The result m of the network is then averaged with the measurement y, weighted by the errors of both. The camera
//! gives the noise variance V, and Stein's lemma gives the expected squared error of m, (y - m)^2 - V + 2 V a, where a
//! is the response of m to y. The best of all m + w (y - m) has w = 1 - (1 - a) V / (y - m)^2, with squares and a
//! averaged over the neighbourhood. If the network is as good as possible, w is 0. In brighter images V is smaller in
//! proportion, and the result closer to the measurement. The response of m to y is measured with a second evaluation of
//! the network, on y with a little noise of known sign at each pixel (Ramani, Blu and Unser 2008).

use super::Restorer;
use crate::learned::field::Field;
use crate::learned::measured::{Camera, Measured};
use crate::learned::question::ImageScale;
use crate::learned::{Error, moments};
use clearshot_model::Photons;
use clearshot_tensor::noise::Key;
use rayon::prelude::*;

/// The little noise, in standard deviations of the measurement's own.
const LITTLE: f64 = 0.1;
/// Standard deviations of a mean over a neighbourhood that count as chance.
const BY_CHANCE: f32 = 2.0;

/// The share of the most light that was trained on up to which a network is taken at its word.
const SURE: f64 = 0.125;

/// Whether an answer about an image is to be weighed with the measurement: a pixel has more light than the network is sure
/// of, or all of it more than was trained on.
pub(super) fn is_bright(image: &Measured, camera: &Camera, photons: &Photons, most: f64) -> bool {
    let (c, valid) = (image.channels, image.valid.as_deref());
    let bright = (photons.background + SURE * most) as f32;
    let above =
        |(i, &v): (usize, &f32)| valid.is_none_or(|valid| valid[i / c]) && camera.electrons(v) > bright;
    photons.peak > most || image.values.par_iter().enumerate().any(above)
}

/// The sign of the little noise at a place of the image.
fn sign(key: Key, at: usize) -> f32 {
    if key.uniform(at as u64) < 0.5 { -1.0 } else { 1.0 }
}

/// The little noise's key; noise of images follows from others.
fn key(seed: u64) -> Key {
    Key { seed, step: 0, stream: 0x57E1 }
}

impl Restorer {
    /// The measurement with a little noise.
    pub(super) fn shaken(&self, image: &Measured, scale: &ImageScale, seed: u64) -> Result<Measured, Error> {
        let mut values = self.scratch.field(image.values.len())?;
        values.par_iter_mut().zip(image.values.par_iter()).enumerate().for_each(|(i, (to, &v))| {
            *to = v + sign(key(seed), i) * step(scale, v);
        });
        Ok(image.with_values(values))
    }

    /// How far from the network's answer to the measurement the image lies, at each pixel; `answer` and `shaken`, what was
    /// answered about the measurement with a little noise, are the network's numbers.
    pub(super) fn shares(
        &self,
        image: &Measured,
        scale: &ImageScale,
        answer: &Field,
        shaken: &Field,
        seed: u64,
    ) -> Result<Field, Error> {
        let len = answer.len();
        let mut share = self.scratch.field(len)?;
        let Some(camera) = &scale.camera else { return Ok(share) };
        let [at_zero, per_unit] = scale.file;
        let [mut mean, mut y] = [self.scratch.field(len)?, self.scratch.field(len)?];
        let mut follows = self.scratch.field(len)?;
        let of = |v: f32| camera.electrons((at_zero + per_unit * f64::from(v)) as f32);
        mean.par_iter_mut().zip(answer.par_iter()).for_each(|(m, &v)| *m = of(v));
        y.par_iter_mut().zip(image.values.par_iter()).for_each(|(y, &v)| *y = camera.electrons(v));
        follows.par_iter_mut().enumerate().for_each(|(i, f)| {
            let moved = (per_unit * f64::from(shaken[i] - answer[i])) as f32;
            *f = sign(key(seed), i) * moved / step(scale, image.values[i]);
        });
        let (valid, c, read_noise) = (image.valid.as_deref(), image.channels, camera.read_noise as f32);
        let (chi2, _) = moments::chi2(&y, &mean, None, valid, read_noise, &image.size, c, &self.scratch)?;
        let follows = moments::local_mean(&follows, valid, &image.size, c, &self.scratch)?;
        let [.., height, width] = image.size[..] else { return Ok(share) };
        share.par_iter_mut().enumerate().for_each(|(i, share)| {
            let pixel = i / c;
            let near = moments::neighbours(pixel / width % height, height)
                * moments::neighbours(pixel % width, width);
            let chance = 1.0 + BY_CHANCE * (2.0 / near as f32).sqrt();
            let left = (1.0 - follows[i]).max(0.0);
            let holds = valid.is_none_or(|v| v[pixel]) && chi2[i] > 0.0 && left.is_finite();
            *share = if holds { (1.0 - left * chance / chi2[i]).clamp(0.0, 1.0) } else { 0.0 };
        });
        Ok(share)
    }
}

/// The little noise's size where the file has this number, in the file's unit.
fn step(scale: &ImageScale, value: f32) -> f32 {
    (LITTLE * scale.light(value).map_or(1.0, |l| l.noise)) as f32
}

/// Moves an image in the file's unit, with its samples, by a share of the way to the measurement. What the two leave open
/// together is about that share of the noise's variance.
pub(super) fn weigh(
    measured: &Measured,
    scale: &ImageScale,
    share: &Field,
    image: &mut Field,
    deviation: Option<&mut Field>,
    samples: &mut [Field],
) {
    if let Some(deviation) = deviation {
        deviation.par_iter_mut().zip(share.par_iter()).zip(image.par_iter()).for_each(|((d, share), &v)| {
            let noise = scale.light(v).map_or(0.0, |l| l.noise) as f32;
            *d = d.max(share.sqrt() * noise);
        });
    }
    for (i, share) in share.iter().enumerate().filter(|(_, s)| **s > 0.0) {
        let shift = share * (measured.values[i] - image[i]);
        image[i] += shift;
        samples.iter_mut().for_each(|s| s[i] += shift);
    }
}
