//! Group norm, with the affine map, the modulation by an embedding and the activation that follow
//! it; instance norm (a group for each channel) and layer norm (one group, one pixel) are the same.
//!
//! The input is [N, S, C], channels last, S all pixels of an image, and may lie in up to four parts
//! that are concatenated along the channels without being copied; groups may straddle parts.
//!
//! Two roads. Images of many pixels are cut into blocks of fixed size: sums over a block are taken
//! channel by channel, the blocks are merged in order in f64, and a second run over the blocks
//! applies the result. Images of a few pixels (layer norm above all) are taken whole, so that all
//! steps of one image find it in the cache. Which road is taken, and how it is cut, depends on the
//! dimensions only, and so do the bits of the results.

mod act;
mod columns;
mod forward;
mod grad;
mod grid;
mod image;
mod layer;
mod stats;

#[cfg(test)]
mod tests;

pub use forward::{apply, coefficients, forward, forward_workspace};
pub use grad::{GradInputs, NormGradients, PartGradients, grad, grad_workspace};
pub use stats::{stats, stats_workspace};

/// The sizes of one norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormDims {
    /// Images.
    pub n: usize,
    /// Pixels of one image.
    pub s: usize,
    /// Channels, all parts together.
    pub c: usize,
    /// Groups of `c / groups` neighbouring channels.
    pub groups: usize,
}

impl NormDims {
    fn check(&self, parts: &[Part]) {
        assert!(self.groups > 0 && self.c.is_multiple_of(self.groups) && self.c > 0, "{self:?}");
        assert!((1..=MAX_PARTS).contains(&parts.len()));
        assert_eq!(parts.iter().map(|p| p.channels).sum::<usize>(), self.c, "{self:?}");
        let rows = self.n * self.s;
        for p in parts {
            let extent = if rows == 0 { 0 } else { (rows - 1) * p.stride + p.channels };
            assert!(p.stride >= p.channels && p.data.len() >= extent, "{self:?}");
        }
    }

    /// Channels of a group.
    fn width(&self) -> usize {
        self.c / self.groups
    }

    /// Values of one tensor.
    fn len(&self) -> usize {
        self.n * self.s * self.c
    }
}

/// Parts that an input may have.
pub const MAX_PARTS: usize = 4;

/// Some channels of the input: [N, S, channels], with pixels `stride` values apart.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub data: &'a [f32],
    pub channels: usize,
    pub stride: usize,
}

/// What follows the normalisation: u = (xhat gamma + beta) (1 + scale) + shift.
#[derive(Clone, Copy, Default)]
pub struct Affine<'a> {
    /// [C]
    pub gamma: Option<&'a [f32]>,
    /// [C]
    pub beta: Option<&'a [f32]>,
    /// (scale, shift), each [N, C]
    pub film: Option<(&'a [f32], &'a [f32])>,
}

impl Affine<'_> {
    fn check(&self, dims: &NormDims) {
        assert!(self.gamma.is_none_or(|g| g.len() == dims.c));
        assert!(self.beta.is_none_or(|b| b.len() == dims.c));
        let all = dims.n * dims.c;
        assert!(self.film.is_none_or(|(scale, shift)| scale.len() == all && shift.len() == all));
    }
}

/// The activation after the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormAct {
    Identity,
    Silu,
    Relu,
    /// The slope below zero.
    LeakyRelu(f32),
    /// With the error function.
    Gelu,
    GeluTanh,
    Sigmoid,
    Tanh,
    Softplus,
}
