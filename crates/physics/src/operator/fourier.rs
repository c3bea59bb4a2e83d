//! Convolution of real arrays with FFTs, in f32 and f64. Plans and the spectrum of the kernel are computed once.

use rustfft::num_complex::Complex;
use rustfft::num_traits::Float;
use rustfft::{Fft, FftNum, FftPlanner};
use std::sync::Arc;

/// f32 and f64.
pub trait Real: FftNum + Float {
    fn of(x: f64) -> Self;
    fn to_f64_value(self) -> f64;
    #[doc(hidden)]
    fn side(kernel: &Kernel) -> &Side<Self>;
}

impl Real for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn to_f64_value(self) -> f64 {
        self.into()
    }
    fn side(kernel: &Kernel) -> &Side<f32> {
        &kernel.single
    }
}

impl Real for f64 {
    fn of(x: f64) -> f64 {
        x
    }
    fn to_f64_value(self) -> f64 {
        self
    }
    fn side(kernel: &Kernel) -> &Side<f64> {
        &kernel.double
    }
}

/// A convolution kernel on a cyclic grid, ready for both precisions.
#[doc(hidden)]
pub struct Kernel {
    single: Side<f32>,
    double: Side<f64>,
}

/// Plans and spectrum for one precision.
#[doc(hidden)]
pub struct Side<T> {
    /// Z, Y, X.
    size: [usize; 3],
    forward: [Arc<dyn Fft<T>>; 3],
    inverse: [Arc<dyn Fft<T>>; 3],
    /// The kernel's transform over the number of pixels, which undoes FFT's own scale.
    spectrum: Vec<Complex<T>>,
}

impl Kernel {
    /// From values on the grid, the origin first.
    pub(super) fn new(size: [usize; 3], values: &[f64]) -> Kernel {
        let mut double = Side::plan(size);
        let scale = 1.0 / values.len() as f64;
        let mut spectrum: Vec<Complex<f64>> = values.iter().map(|v| Complex::new(v * scale, 0.0)).collect();
        transform(&mut spectrum, size, &double.forward);
        let mut single = Side::plan(size);
        single.spectrum = spectrum.iter().map(|c| Complex::new(c.re as f32, c.im as f32)).collect();
        double.spectrum = spectrum;
        Kernel { single, double }
    }

    /// Cyclic convolution in place of x, or correlation for the adjoint.
    pub(super) fn convolve<T: Real>(&self, x: &[T], adjoint: bool) -> Vec<T> {
        let side = T::side(self);
        let mut field: Vec<Complex<T>> = x.iter().map(|&v| Complex::new(v, T::zero())).collect();
        transform(&mut field, side.size, &side.forward);
        for (f, &k) in field.iter_mut().zip(&side.spectrum) {
            *f = *f * if adjoint { k.conj() } else { k };
        }
        transform(&mut field, side.size, &side.inverse);
        field.into_iter().map(|c| c.re).collect()
    }
}

impl<T: FftNum> Side<T> {
    pub(crate) fn forward(&self) -> &[Arc<dyn Fft<T>>; 3] {
        &self.forward
    }

    pub(crate) fn inverse(&self) -> &[Arc<dyn Fft<T>>; 3] {
        &self.inverse
    }

    pub(crate) fn plan(size: [usize; 3]) -> Side<T> {
        let mut planner = FftPlanner::new();
        let forward = size.map(|n| planner.plan_fft_forward(n));
        let inverse = size.map(|n| planner.plan_fft_inverse(n));
        Side { size, forward, inverse, spectrum: Vec::new() }
    }
}

/// Over all axes, without scaling.
pub(crate) fn transform<T: FftNum>(field: &mut [Complex<T>], size: [usize; 3], plans: &[Arc<dyn Fft<T>>; 3]) {
    for axis in 0..3 {
        let n = size[axis];
        let stride: usize = size[axis + 1..].iter().product();
        if n == 1 {
            continue;
        }
        if stride == 1 {
            plans[axis].process(field);
            continue;
        }
        let mut line = vec![Complex::new(T::zero(), T::zero()); n];
        for block in field.chunks_exact_mut(n * stride) {
            for start in 0..stride {
                line.iter_mut().enumerate().for_each(|(i, x)| *x = block[start + i * stride]);
                plans[axis].process(&mut line);
                line.iter().enumerate().for_each(|(i, &x)| block[start + i * stride] = x);
            }
        }
    }
}

/// The smallest size of at least `n` with no prime factor above 5.
pub(super) fn fast_size(n: usize) -> usize {
    let smooth = |mut m: usize| {
        for p in [2, 3, 5] {
            while m.is_multiple_of(p) {
                m /= p;
            }
        }
        m == 1
    };
    (n.max(1)..).find(|&m| smooth(m)).unwrap_or(n)
}
