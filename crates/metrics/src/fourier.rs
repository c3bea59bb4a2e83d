//! The discrete Fourier transform of an array, and the frequencies of its bins.
//!
//! Nothing is shifted: bin `k` of an axis of `n` has the signed frequency that [`signed`] gives, and
//! distances from zero frequency are taken from that.

use rustfft::FftPlanner;
use rustfft::num_complex::Complex;

/// The transform over all axes, without scaling.
pub(crate) fn forward(data: &[f64], shape: &[usize]) -> Vec<Complex<f64>> {
    let mut planner = FftPlanner::new();
    let mut spectrum: Vec<Complex<f64>> = data.iter().map(|&x| Complex::new(x, 0.0)).collect();
    for axis in 0..shape.len() {
        let n = shape[axis];
        let stride: usize = shape[axis + 1..].iter().product();
        let fft = planner.plan_fft_forward(n);
        let mut line = vec![Complex::default(); n];
        for block in spectrum.chunks_exact_mut(n * stride) {
            for start in 0..stride {
                line.iter_mut().enumerate().for_each(|(i, x)| *x = block[start + i * stride]);
                fft.process(&mut line);
                line.iter().enumerate().for_each(|(i, &x)| block[start + i * stride] = x);
            }
        }
    }
    spectrum
}

/// The frequency of bin `k` of `n`, in cycles per axis: 0, 1, ..., then from -n/2 up to -1.
pub(crate) fn signed(k: usize, n: usize) -> f64 {
    if 2 * k < n { k as f64 } else { k as f64 - n as f64 }
}

/// The index along each axis of element `i`, into `at`.
pub(crate) fn unravel(mut i: usize, shape: &[usize], at: &mut [usize]) {
    for axis in (0..shape.len()).rev() {
        at[axis] = i % shape[axis];
        i /= shape[axis];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_is_one_pair_of_bins() {
        let shape = [4, 6, 5];
        let phase = |z: usize, y: usize, x: usize| z as f64 / 4.0 + 2.0 * y as f64 / 6.0 - x as f64 / 5.0;
        let mut at = [0; 3];
        let data: Vec<f64> = (0..120)
            .map(|i| {
                unravel(i, &shape, &mut at);
                (std::f64::consts::TAU * phase(at[0], at[1], at[2])).cos()
            })
            .collect();
        for (i, value) in forward(&data, &shape).iter().enumerate() {
            unravel(i, &shape, &mut at);
            let f = [0, 1, 2].map(|a| signed(at[a], shape[a]));
            let expected = if f == [1.0, 2.0, -1.0] || f == [-1.0, -2.0, 1.0] { 60.0 } else { 0.0 };
            assert!((value.re - expected).abs() < 1e-12 && value.im.abs() < 1e-12, "{f:?} {value}");
        }
    }

    #[test]
    fn frequencies_are_signed() {
        assert_eq!([0, 1, 2, 3].map(|k| signed(k, 4)), [0.0, 1.0, -2.0, -1.0]);
        assert_eq!([0, 1, 2, 3, 4].map(|k| signed(k, 5)), [0.0, 1.0, 2.0, -2.0, -1.0]);
    }
}
