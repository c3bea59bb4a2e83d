//! A separable Gaussian blur, mirrored at the edges. Its width is given and does not depend on the noise.

use crate::RestoreError;
use crate::error::require;
use crate::frame::{Frame, mirror};
use rayon::prelude::*;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaussian {
    /// Standard deviation in pixels.
    pub sigma: f32,
}

impl Gaussian {
    pub const USUAL: Gaussian = Gaussian { sigma: 1.2 };

    /// How many pixels it looks to each side: as far as scipy.ndimage.gaussian_filter does.
    pub(super) fn reach(&self) -> usize {
        (4.0 * f64::from(self.sigma) + 0.5) as usize
    }

    pub(super) fn run(&self, frame: Frame<'_>) -> Result<Vec<f32>, RestoreError> {
        let sigma = f64::from(self.sigma);
        require(
            (0.0..=1000.0).contains(&sigma),
            "the sigma of the Gaussian",
            sigma,
            "a number from 0 to 1000",
        )?;
        if sigma == 0.0 {
            return Ok(frame.values.to_vec());
        }
        let reach = self.reach();
        let weight = |i: isize| (-0.5 * (i as f64 / sigma).powi(2)).exp();
        let sum: f64 = (-(reach as isize)..=reach as isize).map(weight).sum();
        let weights: Vec<f32> = (0..=reach as isize).map(|i| (weight(i) / sum) as f32).collect();
        Ok((0..3).fold(frame.values.to_vec(), |x, axis| smooth(&x, frame.size, axis, &weights)))
    }
}

/// Convolves along one axis with a symmetric kernel given by its middle and one side.
fn smooth(x: &[f32], size: [usize; 3], axis: usize, weights: &[f32]) -> Vec<f32> {
    let n = size[axis];
    if n == 1 {
        return x.to_vec();
    }
    let mut out = vec![0f32; x.len()];
    let row = size[2];
    if axis == 2 {
        out.par_chunks_mut(row).zip(x.par_chunks(row)).for_each(|(out, line)| {
            let reach = weights.len() as isize - 1;
            let padded: Vec<f32> = (-reach..n as isize + reach).map(|p| line[mirror(p, n)]).collect();
            let middle = &padded[weights.len() - 1..][..n];
            out.iter_mut().zip(middle).for_each(|(o, v)| *o = weights[0] * v);
            for (k, w) in weights.iter().enumerate().skip(1) {
                let (a, b) = (&padded[weights.len() - 1 - k..][..n], &padded[weights.len() - 1 + k..][..n]);
                out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o += w * (a + b));
            }
        });
        return out;
    }
    // Whole rows at a time: the axis is walked by rows of x.
    let stride: usize = size[axis + 1..].iter().product();
    out.par_chunks_mut(row).enumerate().for_each(|(r, out)| {
        let first = r * row;
        let at = (first / stride % n) as isize;
        let start = first - at as usize * stride;
        let source = |p: isize| &x[start + mirror(p, n) * stride..][..row];
        out.iter_mut().zip(source(at)).for_each(|(o, v)| *o = weights[0] * v);
        for (k, w) in weights.iter().enumerate().skip(1) {
            let (a, b) = (source(at - k as isize), source(at + k as isize));
            out.iter_mut().zip(a).zip(b).for_each(|((o, a), b)| *o += w * (a + b));
        }
    });
    out
}
