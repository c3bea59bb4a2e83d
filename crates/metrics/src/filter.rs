//! Separable windows over arrays: running means and Gaussian weights.
//!
//! Outside the array its values are mirrored with the border repeated (`c b a | a b c`), as scipy
//! does under the name `reflect`. A NaN makes the windows that hold it NaN and no others: the running
//! sum starts again behind it.

/// The weights of one axis; the same for all axes.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    /// The mean of an odd number of values.
    Uniform(usize),
    /// Symmetric weights, from the middle outwards.
    Weights(Vec<f64>),
}

impl Kernel {
    /// Gaussian weights out to `radius`, with sum 1.
    pub fn gaussian(sigma: f64, radius: usize) -> Kernel {
        let half: Vec<f64> = (0..=radius).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
        let sum = half[0] + 2.0 * half[1..].iter().sum::<f64>();
        Kernel::Weights(half.iter().map(|w| w / sum).collect())
    }

    pub fn radius(&self) -> usize {
        match self {
            Kernel::Uniform(size) => size / 2,
            Kernel::Weights(half) => half.len() - 1,
        }
    }

    /// One output for each window of `padded`, which is 2 radii longer than `out`.
    fn line(&self, padded: &[f64], out: &mut [f64]) {
        match self {
            Kernel::Uniform(size) => running_mean(padded, *size, out),
            Kernel::Weights(half) => weighted(padded, half, out),
        }
    }
}

fn running_mean(padded: &[f64], size: usize, out: &mut [f64]) {
    let mut sum: f64 = padded[..size].iter().sum();
    out[0] = sum / size as f64;
    for i in 1..out.len() {
        let leaving = padded[i - 1];
        if leaving.is_finite() {
            sum += padded[i + size - 1] - leaving;
        } else {
            sum = padded[i..i + size].iter().sum();
        }
        out[i] = sum / size as f64;
    }
}

fn weighted(padded: &[f64], half: &[f64], out: &mut [f64]) {
    let r = half.len() - 1;
    for (i, y) in out.iter_mut().enumerate() {
        let middle = i + r;
        let sides = (1..=r).map(|k| half[k] * (padded[middle - k] + padded[middle + k]));
        *y = half[0] * padded[middle] + sides.sum::<f64>();
    }
}

/// Filters along every axis.
pub(crate) fn filter(data: &[f64], shape: &[usize], kernel: &Kernel) -> Vec<f64> {
    let mut data = data.to_vec();
    for axis in 0..shape.len() {
        filter_axis(&mut data, shape, axis, kernel);
    }
    data
}

fn filter_axis(data: &mut [f64], shape: &[usize], axis: usize, kernel: &Kernel) {
    let (n, radius) = (shape[axis], kernel.radius());
    let stride: usize = shape[axis + 1..].iter().product();
    let from: Vec<usize> = (0..n + 2 * radius).map(|i| mirrored(i, radius, n)).collect();
    let (mut padded, mut out) = (vec![0.0; from.len()], vec![0.0; n]);
    for block in data.chunks_exact_mut(n * stride) {
        for start in 0..stride {
            padded.iter_mut().zip(&from).for_each(|(p, &i)| *p = block[start + i * stride]);
            kernel.line(&padded, &mut out);
            out.iter().enumerate().for_each(|(i, &y)| block[start + i * stride] = y);
        }
    }
}

/// The place in `0..n` that place `i` of the padded line repeats.
fn mirrored(i: usize, radius: usize, n: usize) -> usize {
    let i = (i as i64 - radius as i64).rem_euclid(2 * n as i64) as usize;
    if i < n { i } else { 2 * n - 1 - i }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_mirrored() {
        let places: Vec<usize> = (0..11).map(|i| mirrored(i, 4, 3)).collect();
        assert_eq!(places, [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]);
    }

    #[test]
    fn a_window_is_its_mean() {
        let x = [3.0, 6.0, 12.0, 0.0];
        assert_eq!(filter(&x, &[1, 4], &Kernel::Uniform(3)), [4.0, 7.0, 6.0, 4.0]);
        assert_eq!(filter(&x, &[4, 1], &Kernel::Uniform(3)), [4.0, 7.0, 6.0, 4.0]);
    }

    #[test]
    fn weights_keep_constants_and_the_second_moment() {
        let kernel = Kernel::gaussian(1.5, 30);
        let flat = filter(&[2.5; 40], &[5, 8], &kernel);
        assert!(flat.iter().all(|y| (y - 2.5).abs() < 1e-14));
        let mut x = vec![0.0; 101];
        x[50] = 1.0;
        let y = filter(&x, &[1, 101], &kernel);
        let variance: f64 = y.iter().enumerate().map(|(i, y)| y * (i as f64 - 50.0).powi(2)).sum();
        assert!((variance - 2.25).abs() < 1e-7, "{variance}");
    }

    #[test]
    fn nan_stays_in_its_windows() {
        let x = [1.0, 1.0, f64::NAN, 1.0, 1.0, 1.0];
        let y = filter(&x, &[1, 6], &Kernel::Uniform(3));
        assert_eq!(y.iter().map(|y| y.is_nan()).collect::<Vec<_>>(), [false, true, true, true, false, false]);
    }
}
