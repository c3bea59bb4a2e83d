//! Planes for painting the layers of a specimen, with blurs that cost the same for every width, and random fields.
//!
//! A wide blur is made on a plane of half the size, recursively; a random field of many octaves is made from the coarsest
//! one up. Both use the same two steps, [`Plane::half`] and [`Plane::doubled`].

use crate::dice::Dice;

/// Wider blurs than this many pixels are made at half the resolution.
const WIDEST_DIRECT: f64 = 2.5;
/// Halving and doubling move light by this many pixels squared, in the mean over places (1/4 and 3/4).
const VARIANCE_OF_HALVING: f64 = 1.0;
/// Planes smaller than this along an axis are not halved.
const SMALLEST_HALVED: usize = 8;

/// See the module.
#[derive(Clone)]
pub(crate) struct Plane {
    pub height: usize,
    pub width: usize,
    pub values: Vec<f64>,
}

impl Plane {
    pub fn new(height: usize, width: usize) -> Plane {
        Plane { height, width, values: vec![0.0; height * width] }
    }

    /// A plane whose pixels are a function of their y and x.
    pub fn from_fn(height: usize, width: usize, mut f: impl FnMut(usize, usize) -> f64) -> Plane {
        let values = (0..height * width).map(|i| f(i / width, i % width)).collect();
        Plane { height, width, values }
    }

    /// The pixel that holds a position, if the plane does.
    pub fn index(&self, [y, x]: [f64; 2]) -> Option<usize> {
        let inside = y >= -0.5 && x >= -0.5 && y < self.height as f64 - 0.5 && x < self.width as f64 - 0.5;
        inside.then(|| (y + 0.5) as usize * self.width + (x + 0.5) as usize)
    }

    /// Adds `amount` at a position between pixels, shared among its four neighbours linearly.
    pub fn splat(&mut self, [y, x]: [f64; 2], amount: f64) {
        let (top, left) = (y.floor(), x.floor());
        let (v, u) = (y - top, x - left);
        for (dy, wy) in [(0.0, 1.0 - v), (1.0, v)] {
            for (dx, wx) in [(0.0, 1.0 - u), (1.0, u)] {
                let (py, px) = (top + dy, left + dx);
                if py >= 0.0 && px >= 0.0 && py < self.height as f64 && px < self.width as f64 {
                    self.values[py as usize * self.width + px as usize] += amount * wy * wx;
                }
            }
        }
    }

    /// Adds another plane of the same size times a factor.
    pub fn add(&mut self, other: &Plane, factor: f64) {
        self.values.iter_mut().zip(&other.values).for_each(|(a, b)| *a += factor * b);
    }

    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Blurred by a Gaussian of standard deviation `sigma` pixels, mirrored at the edges.
    pub fn blurred(&self, sigma: f64) -> Plane {
        if sigma > WIDEST_DIRECT && self.height.min(self.width) >= SMALLEST_HALVED {
            let rest = 0.5 * (sigma * sigma - VARIANCE_OF_HALVING).sqrt();
            return self.half().blurred(rest).doubled(self.height, self.width);
        }
        if sigma < 0.2 {
            return self.clone();
        }
        let reach = (3.5 * sigma).ceil() as usize;
        let weight = |i: usize| libm::exp(-0.5 * (i as f64 / sigma) * (i as f64 / sigma));
        let mut weights: Vec<f64> = (0..=2 * reach).map(|i| weight(i.abs_diff(reach))).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= sum);
        self.convolved(&weights)
    }

    /// The convolution along both axes with an odd number of weights.
    fn convolved(&self, weights: &[f64]) -> Plane {
        let (h, w) = (self.height, self.width);
        let reach = weights.len() / 2;
        let mut across = Plane::new(h, w);
        let columns: Vec<usize> =
            (0..w + 2 * reach).map(|p| mirror(p as isize - reach as isize, w)).collect();
        let mut line = vec![0.0; w + 2 * reach];
        for (row, out) in self.values.chunks(w).zip(across.values.chunks_mut(w)) {
            line.iter_mut().zip(&columns).for_each(|(v, &c)| *v = row[c]);
            for (k, weight) in weights.iter().enumerate() {
                out.iter_mut().zip(&line[k..]).for_each(|(o, v)| *o += weight * v);
            }
        }
        let mut out = Plane::new(h, w);
        for (y, row) in out.values.chunks_mut(w).enumerate() {
            for (k, weight) in weights.iter().enumerate() {
                let from = mirror((y + k) as isize - reach as isize, h) * w;
                row.iter_mut().zip(&across.values[from..from + w]).for_each(|(o, v)| *o += weight * v);
            }
        }
        out
    }

    /// The mean of each 2 x 2 pixels; the last row or column of an odd size counts twice.
    fn half(&self) -> Plane {
        let (h, w) = (self.height, self.width);
        Plane::from_fn(h.div_ceil(2), w.div_ceil(2), |y, x| {
            let (top, bottom) = (2 * y * w, (2 * y + 1).min(h - 1) * w);
            let (left, right) = (2 * x, (2 * x + 1).min(w - 1));
            let v = &self.values;
            0.25 * (v[top + left] + v[top + right] + v[bottom + left] + v[bottom + right])
        })
    }

    /// Twice the size, cut to the given one: each pixel is 3/4 of the one it lies in and 1/4 of the next, along each axis.
    fn doubled(&self, height: usize, width: usize) -> Plane {
        let (h, w) = (self.height, self.width);
        let next =
            |i: usize, n: usize| if i % 2 == 1 { (i / 2 + 1).min(n - 1) } else { (i / 2).saturating_sub(1) };
        let mut out = Plane::new(height, width);
        let mut line = vec![0.0; w];
        for (y, row) in out.values.chunks_mut(width).enumerate() {
            let (near, far) = (y / 2 * w, next(y, h) * w);
            let rows = self.values[near..near + w].iter().zip(&self.values[far..far + w]);
            line.iter_mut().zip(rows).for_each(|(l, (a, b))| *l = 0.75 * a + 0.25 * b);
            row.iter_mut().enumerate().for_each(|(x, v)| *v = 0.75 * line[x / 2] + 0.25 * line[next(x, w)]);
        }
        out
    }

    /// A random field: the sum of smooth noise of scales 1, 2, 4, ... pixels, each of variance `amplitude(scale)`
    /// squared, up to scales of the whole plane; then brought to mean 0 and variance 1.
    pub fn field(height: usize, width: usize, dice: &mut Dice, amplitude: impl Fn(f64) -> f64) -> Plane {
        // The variance that doubling leaves of white noise, in two axes.
        const LEFT: f64 = 0.5;
        let levels = usize::BITS - height.max(width).leading_zeros();
        let size = |level: u32| [height.div_ceil(1 << level).max(1), width.div_ceil(1 << level).max(1)];
        let [h, w] = size(levels);
        let mut sum = Plane::new(h, w);
        for level in (0..=levels).rev() {
            let [h, w] = size(level);
            if level < levels {
                sum = sum.doubled(h, w);
            }
            let a = amplitude((1u64 << level) as f64);
            if a > 3e-3 {
                let scale = if level == 0 { a } else { a / LEFT };
                sum.values.iter_mut().zip(dice.field(h * w)).for_each(|(s, n)| *s += scale * n);
            }
        }
        sum.standardise();
        sum
    }

    /// A random field of structure around one scale, in pixels: an octave or two wide.
    pub fn grain(height: usize, width: usize, dice: &mut Dice, scale: f64) -> Plane {
        let centre = libm::log2(fitting(scale, height, width));
        Plane::field(height, width, dice, |s| {
            let d = libm::log2(s) - centre;
            libm::exp(-1.2 * d * d)
        })
    }

    /// A random field that is smooth below a scale in pixels and rough above.
    pub fn smooth(height: usize, width: usize, dice: &mut Dice, scale: f64) -> Plane {
        let least = libm::log2(fitting(scale, height, width));
        Plane::field(height, width, dice, |s| {
            let below = (least - libm::log2(s)).max(0.0);
            libm::exp(-2.0 * below * below)
        })
    }

    /// A random field that is rough above a scale in pixels and has a little structure below, the less the finer, as the
    /// cytoplasm of cells has.
    pub fn cloud(height: usize, width: usize, dice: &mut Dice, scale: f64) -> Plane {
        let slope = dice.between(0.5, 2.0);
        let scale = fitting(scale, height, width);
        Plane::field(height, width, dice, |s| libm::pow(s / scale, slope).min(1.0))
    }

    fn standardise(&mut self) {
        let n = self.values.len() as f64;
        let mean = self.mean();
        let variance = self.values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let scale = 1.0 / variance.sqrt().max(1e-12);
        self.values.iter_mut().for_each(|v| *v = (*v - mean) * scale);
    }
}

/// A scale that a plane has room for: a field of larger ones alone would be constant.
fn fitting(scale: f64, height: usize, width: usize) -> f64 {
    scale.clamp(1.0, 0.5 * height.max(width) as f64)
}

/// A Gaussian's height at so many standard deviations, zero from four on.
pub(crate) fn bell(u: f64) -> f64 {
    if u.abs() < 4.0 { libm::exp(-0.5 * u * u) } else { 0.0 }
}

/// The pixel of `n` that position `p` is mirrored to.
fn mirror(p: isize, n: usize) -> usize {
    let q = p.rem_euclid(2 * n as isize) as usize;
    if q < n { q } else { 2 * n - 1 - q }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn dice(step: u32) -> Dice {
        Dice::new(Key { seed: 3, step, stream: 1 })
    }

    /// The light, and the mean squared distance from (y, x) along each axis.
    fn moments(plane: &Plane, y: f64, x: f64) -> [f64; 3] {
        let of = |f: &dyn Fn(f64, f64) -> f64| {
            let at = |(i, v): (usize, &f64)| v * f((i / plane.width) as f64, (i % plane.width) as f64);
            plane.values.iter().enumerate().map(at).sum::<f64>()
        };
        let light = of(&|_, _| 1.0);
        [light, of(&|v, _| (v - y) * (v - y)) / light, of(&|_, u| (u - x) * (u - x)) / light]
    }

    #[test]
    fn blurs_have_their_width_and_keep_the_light() {
        // Below one pixel samples of a Gaussian are narrower than the Gaussian.
        for sigma in [1.0, 1.7, 2.4, 2.6, 5.0, 11.0, 25.0] {
            // Halved planes shift a point by where it lies in a block: all places of a block of 16.
            let mut mean = [0.0; 2];
            for phase in 0..16 {
                let mut plane = Plane::new(256, 240);
                let (y, x) = (120 + phase, 112 + (5 * phase) % 16);
                plane.values[y * 240 + x] = 2.0;
                let [light, down, right] = moments(&plane.blurred(sigma), y as f64, x as f64);
                assert!((light - 2.0).abs() < 1e-9, "{sigma}: {light}");
                mean = [mean[0] + down / 16.0, mean[1] + right / 16.0];
            }
            for variance in mean {
                // Weights end at 3.5 standard deviations.
                assert!((variance.sqrt() / sigma - 1.0).abs() < 0.01, "{sigma}: {}", variance.sqrt());
            }
        }
    }

    #[test]
    fn blurs_are_mirrored_at_the_edges() {
        for (h, w) in [(8, 8), (9, 31), (64, 57)] {
            for sigma in [0.7, 3.0, 30.0] {
                let flat = Plane::from_fn(h, w, |_, _| 0.7).blurred(sigma);
                assert!(flat.values.iter().all(|v| (v - 0.7).abs() < 1e-12), "{h} {w} {sigma}");
            }
        }
    }

    #[test]
    fn fields_are_standard_and_as_smooth_as_asked() {
        // The correlation of neighbours is one for a field that is smooth and less for a rough one.
        let neighbours = |p: &Plane| {
            let rows = p.values.chunks(p.width);
            rows.map(|r| r.windows(2).map(|v| v[0] * v[1]).sum::<f64>()).sum::<f64>() / p.values.len() as f64
        };
        let mut last = 0.0;
        for scale in [1.0, 4.0, 16.0] {
            let p = Plane::grain(128, 100, &mut dice(scale as u32), scale);
            let mean = p.mean();
            let variance = p.values.iter().map(|v| v * v).sum::<f64>() / 12_800.0;
            assert!(mean.abs() < 1e-9 && (variance - 1.0).abs() < 1e-9);
            let now = neighbours(&p);
            assert!(now > last + 0.02, "{scale}: {now} after {last}");
            last = now;
        }
        assert!(last > 0.95, "{last}");
    }

    #[test]
    fn points_between_pixels_are_shared() {
        let mut plane = Plane::new(4, 5);
        plane.splat([1.25, 2.5], 4.0);
        assert_eq!(plane.values[7..9], [1.5, 1.5]);
        assert_eq!(plane.values[12..14], [0.5, 0.5]);
        // What lies outside is lost.
        plane.splat([-0.5, 0.0], 2.0);
        assert_eq!(plane.values[0], 1.0);
        plane.splat([f64::MAX, -1e9], 2.0);
        assert_eq!(plane.values.iter().sum::<f64>(), 5.0);
        assert_eq!(plane.index([3.4, 4.4]), Some(19));
        assert!(plane.index([3.6, 0.0]).is_none() && plane.index([0.0, -0.6]).is_none());
    }
}
