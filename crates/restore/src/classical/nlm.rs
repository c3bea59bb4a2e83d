//! Non-local means (Buades, Coll, Morel, 2005): each pixel becomes the mean of the pixels with similar surroundings.
//!
//! For each displacement the squared differences of whole rows are summed over the patch, axis by axis (after Darbon et
//! al., 2008), so that the cost of a patch depends on its width and not on its area. The contribution of the noise to a
//! distance, twice its variance, is subtracted before weighting; in correlated noise the noise of nearby patches is
//! correlated, and less is subtracted. Rows are divided into independent strips.

use super::Noise;
use crate::RestoreError;
use crate::error::{require, require_positive};
use crate::frame::Frame;
use crate::widest::widest;
use clearshot_physics::Correlation;
use rayon::prelude::*;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonLocalMeans {
    /// Patches have `2 radius + 1` pixels along every axis longer than one.
    pub patch_radius: usize,
    /// The search radius along every axis longer than one.
    pub search_radius: usize,
    /// The width of the weight function relative to the standard deviation of the noise.
    pub strength: f32,
}

/// Rows of a strip: enough to share the sums of patches, few enough to stay in the cache.
const STRIP: usize = 16;

impl NonLocalMeans {
    pub const USUAL: NonLocalMeans = NonLocalMeans { patch_radius: 2, search_radius: 6, strength: 0.95 };

    pub(super) fn run(&self, frame: Frame<'_>, noise: &Noise) -> Result<Vec<f32>, RestoreError> {
        let (p, s) = (self.patch_radius, self.search_radius);
        require(p <= 50, "the patch's radius", p as f64, "a whole number up to 50")?;
        require(s <= 200, "the search's radius", s as f64, "a whole number up to 200")?;
        require_positive("the strength of non-local means", self.strength.into())?;
        let (padded, wide) = frame.mirrored([p + s; 3]);
        let [_, height, width] = frame.size;
        let strips = height.div_ceil(STRIP);
        let mut out = vec![0f32; frame.values.len()];
        let mut tasks: Vec<&mut [f32]> = Vec::new();
        for plane in out.chunks_mut(height * width) {
            tasks.extend(plane.chunks_mut(STRIP * width));
        }
        let strip = Strip { padded: &padded, wide, size: frame.size, patch: p, search: s };
        let h = self.strength * noise.deviation;
        tasks.par_iter_mut().enumerate().for_each(|(task, out)| {
            widest(|| strip.run(task / strips, task % strips * STRIP, out, noise, h * h));
        });
        Ok(out)
    }
}

struct Strip<'a> {
    padded: &'a [f32],
    wide: [usize; 3],
    size: [usize; 3],
    patch: usize,
    search: usize,
}

impl Strip<'_> {
    #[inline(always)]
    /// Denoises the rows from `y` of plane `z` that `out` holds.
    fn run(&self, z: usize, y: usize, out: &mut [f32], noise: &Noise, h2: f32) {
        let width = self.size[2];
        let rows = out.len() / width;
        let long = |a: usize, n: usize| if self.size[a] > 1 { n } else { 0 };
        let (p, s) = ([0, 1, 2].map(|a| long(a, self.patch)), [0, 1, 2].map(|a| long(a, self.search)));
        let pixels: usize = p.iter().map(|r| 2 * r + 1).product();
        let (scale, free) = (-1.0 / (h2 * pixels as f32), 2.0 * noise.variance() * pixels as f32);
        let row = |z: usize, y: usize, x: usize| &self.padded[(z * self.wide[1] + y) * self.wide[2] + x..];
        let tall = rows + 2 * p[1];
        let broad = width + 2 * p[2];
        // Squared differences summed over the patch's Z, then Y.
        let mut apart = vec![0f32; tall * broad];
        let mut columns = vec![0f32; broad];
        let mut sums = vec![0f32; width];
        let mut weights = vec![0f32; rows * width];
        out.fill(0.0);
        for dz in 0..=2 * s[0] {
            for dy in 0..=2 * s[1] {
                for dx in 0..=2 * s[2] {
                    let free = free * (1.0 - shared(&noise.correlation, [dz, dy, dx], s));
                    apart.fill(0.0);
                    for (r, line) in apart.chunks_mut(broad).enumerate() {
                        for pz in 0..=2 * p[0] {
                            let a = row(z + pz + s[0], y + r + s[1], s[2]);
                            let b = row(z + pz + dz, y + r + dy, dx);
                            line.iter_mut().zip(a).zip(b).for_each(|((d, a), b)| *d += (a - b) * (a - b));
                        }
                    }
                    for r in 0..rows {
                        // Sums afresh for each row: a running sum would keep the rounding of a bright spot that left it.
                        columns.copy_from_slice(&apart[r * broad..][..broad]);
                        for k in 1..=2 * p[1] {
                            columns.iter_mut().zip(&apart[(r + k) * broad..]).for_each(|(c, d)| *c += d);
                        }
                        sums.copy_from_slice(&columns[..width]);
                        for k in 1..=2 * p[2] {
                            sums.iter_mut().zip(&columns[k..]).for_each(|(s, c)| *s += c);
                        }
                        let there = row(z + p[0] + dz, y + r + p[1] + dy, p[2] + dx);
                        let (total, weight) =
                            (&mut out[r * width..][..width], &mut weights[r * width..][..width]);
                        for (((t, w), d), v) in total.iter_mut().zip(weight).zip(&sums).zip(there) {
                            let alike = weight_of((d - free).max(0.0) * scale);
                            *t += alike * v;
                            *w += alike;
                        }
                    }
                }
            }
        }
        out.iter_mut().zip(&weights).for_each(|(o, w)| *o /= w);
    }
}

/// How much of the noise two patches share that are displaced by `at - middle`.
fn shared(correlation: &Correlation, at: [usize; 3], middle: [usize; 3]) -> f32 {
    let [dz, dy, dx] = [0, 1, 2].map(|a| at[a] as isize - middle[a] as isize);
    if dz == 0 { correlation.at(dy, dx) as f32 } else { 0.0 }
}

/// Patches that differ by more than this many widths have no weight: they are many, and together they would blur
/// whatever has few patches alike.
const CUT: f32 = -5.0;

/// e^x for x from [`CUT`] to zero to 1e-5 relative, and 0 below; without branches, so that loops become vectors.
#[inline(always)]
fn weight_of(x: f32) -> f32 {
    let t = x.max(CUT) * std::f32::consts::LOG2_E;
    // Adding and taking off 1.5 * 2^23 rounds to the nearest whole number.
    let magic = 12_582_912.0f32;
    let whole = (t + magic) - magic;
    let f = t - whole;
    // The Taylor polynomial of 2^f on [-1/2, 1/2].
    let p = 0.009_618_129 + f * 0.001_333_356;
    let p = 1.0 + f * (std::f32::consts::LN_2 + f * (0.240_226_5 + f * (0.055_504_11 + f * p)));
    let bits = ((t + magic).to_bits() as i32).wrapping_sub(magic.to_bits() as i32) + 127;
    let power = f32::from_bits((bits as u32) << 23);
    if x < CUT { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_exponential_is_near_enough() {
        for i in 0..5_000 {
            let x = -(i as f32) * 1e-3;
            let truth = f64::from(x).exp();
            assert!((f64::from(super::weight_of(x)) / truth - 1.0).abs() < 1e-5, "{x}");
        }
        assert_eq!([0.0, -5.001, -1e9].map(super::weight_of), [1.0, 0.0, 0.0]);
    }
}
