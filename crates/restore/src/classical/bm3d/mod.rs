//! BM3D (Dabov, Foi, Katkovnik, Egiazarian, 2007): similar blocks are stacked, and the stack is filtered in a transform
//! domain where the image is sparse and the noise is not.
//!
//! There are two stages of the same form. The first finds similar blocks in the noisy image and sets small coefficients
//! to zero. The second finds them in the result of the first, from which its Wiener filter also takes the signal power
//! of each coefficient. Blocks have 8 x 8 pixels; a volume is processed plane by plane.
//!
//! In correlated noise every coefficient of a stack has its own variance (`variance.rs`), which is used for
//! thresholding, Wiener filtering and weighting, and the expected difference due to noise is taken into account in
//! block matching.

mod filter;
mod matching;
mod pass;
mod transform;
mod variance;

use super::{Noise, Reach};
use crate::RestoreError;
use crate::error::{require, require_positive};
use crate::frame::{Frame, mirror};
use clearshot_physics::correlation::REACH;
use filter::Rule;
use pass::{Images, MOST_BLOCKS, Pass, STRIP};
use transform::SIDE;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bm3d {
    pub first: Stage,
    pub second: Stage,
    /// Coefficients below this many standard deviations of the noise are zero after the first stage.
    pub threshold: f32,
}

/// Noise of low frequencies looks like structure, so that both rules are stricter: the first with the first doubling of it,
/// the second with every further one. Chosen on generated scenes and microscope images in drawn noise.
const STRICTER_THRESHOLD: f32 = 0.07;
const STRICTER_WIENER: f32 = 0.08;

/// The block matching of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// The largest number of blocks in a stack, a power of two.
    pub blocks: usize,
    /// The distance of reference blocks along y and x.
    pub step: usize,
    /// The search radius along y and x.
    pub search_radius: usize,
    /// The largest mean squared difference of similar blocks, in variances of the noise.
    pub likeness: f32,
}

impl Bm3d {
    pub const USUAL: Bm3d = Bm3d {
        first: Stage { blocks: 16, step: 3, search_radius: 19, likeness: 8.0 },
        second: Stage { blocks: 32, step: 3, search_radius: 19, likeness: 2.0 },
        threshold: 2.8,
    };

    /// A pixel's value comes from blocks whose reference block is within the search, and those were chosen by what is
    /// within the search of that; so it is in either stage. Reference blocks stand on a grid, in strips.
    pub(super) fn reach(&self) -> Reach {
        let halo = [self.first, self.second].map(|s| 2 * (s.search_radius + SIDE)).iter().sum();
        Reach::Within { halo, align: STRIP * lcm(self.first.step, self.second.step) }
    }

    pub(super) fn run(&self, frame: Frame<'_>, noise: &Noise) -> Result<Vec<f32>, RestoreError> {
        require_positive("the threshold of BM3D", self.threshold.into())?;
        for stage in [self.first, self.second] {
            let power = stage.blocks.is_power_of_two() && stage.blocks <= MOST_BLOCKS;
            require(power, "the blocks of a BM3D stack", stage.blocks as f64, "a power of two up to 64")?;
            let step = (1..=SIDE).contains(&stage.step);
            require(step, "the step of BM3D's blocks", stage.step as f64, "a whole number from 1 to 8")?;
            let near = stage.search_radius <= 100;
            require(near, "BM3D's search radius", stage.search_radius as f64, "a whole number up to 100")?;
            require_positive("the likeness of BM3D's blocks", stage.likeness.into())?;
        }
        let passes = [self.first_pass(noise), self.second_pass(noise)];
        let mut out = Vec::with_capacity(frame.values.len());
        for z in 0..frame.size[0] {
            out.extend(plane(&passes, frame.plane(z), [frame.size[1], frame.size[2]]));
        }
        Ok(out)
    }

    fn first_pass(&self, noise: &Noise) -> Pass {
        let threshold = self.threshold * (1.0 + STRICTER_THRESHOLD * doublings(noise).min(1.0));
        Pass::new(&self.first, &transform::WAVELET, Rule::Threshold(threshold), noise)
    }

    fn second_pass(&self, noise: &Noise) -> Pass {
        let variances = 1.0 + STRICTER_WIENER * (doublings(noise) - 1.0).max(0.0);
        Pass::new(&self.second, &transform::COSINE, Rule::Wiener(variances), noise)
    }
}

/// How often the power of the noise at the lowest frequencies is twice that of white noise.
fn doublings(noise: &Noise) -> f32 {
    noise.correlation.spectrum([4 * REACH; 2])[0].max(1.0).log2() as f32
}

/// Both passes over a plane.
fn plane(passes: &[Pass; 2], noisy: &[f32], size: [usize; 2]) -> Vec<f32> {
    if size.iter().any(|&n| n < SIDE) {
        // A plane narrower than a block is mirrored until it holds one.
        let wide = size.map(|n| n.max(SIDE));
        let at = |i: usize| {
            mirror((i / wide[1]) as isize, size[0]) * size[1] + mirror((i % wide[1]) as isize, size[1])
        };
        let larger: Vec<f32> = (0..wide[0] * wide[1]).map(|i| noisy[at(i)]).collect();
        let done = plane(passes, &larger, wide);
        return (0..size[0] * size[1]).map(|i| done[i / size[1] * wide[1] + i % size[1]]).collect();
    }
    let basic = passes[0].run(&Images { noisy, guide: noisy, size });
    passes[1].run(&Images { noisy, guide: &basic, size })
}

fn lcm(a: usize, b: usize) -> usize {
    (1..=b).map(|k| a * k).find(|m| m.is_multiple_of(b)).unwrap_or(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    /// A stack of few coefficients says more of its blocks than one of many, which has kept noise with them: beside something
    /// strong, what is flat stays flatter than under equal weights.
    #[test]
    fn stacks_of_few_coefficients_count_more() {
        let (height, width) = (48, 64);
        let key = Key { seed: 12, step: 0, stream: 0 };
        let truth =
            |i: usize| if i % width < 32 { 10.0 } else { 10.0 + 30.0 * key.normal((1 << 20) + i as u64) };
        let noisy: Vec<f32> = (0..height * width).map(|i| truth(i) + key.normal(i as u64)).collect();
        let settings = Bm3d::USUAL;
        let pass = settings.first_pass(&Noise::white(1.0));
        let out = pass.run(&Images { noisy: &noisy, guide: &noisy, size: [height, width] });
        let near = (0..height * width).filter(|i| (25..32).contains(&(i % width)));
        let square = near.map(|i| (out[i] - 10.0).powi(2)).sum::<f32>() / (7 * height) as f32;
        assert!(square < 0.02, "{square}");
    }
}
